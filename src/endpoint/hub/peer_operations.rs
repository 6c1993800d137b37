//! One-sided operations that are posted on one connection of a hub.

#![allow(unsafe_code)]

use super::outbound;
use super::sends::PeerSender;
use super::windows::may_use;
use crate::buffer::{LeasedPayload, Payload};
use crate::endpoint::error::{Blocked, SendErrorKind};
use crate::endpoint::event::Level;
use crate::endpoint::hub::line::LineState;
use crate::endpoint::hub::posting::Posting;
use crate::endpoint::link::iov::IovList;
use crate::endpoint::link::{Link, RemoteRange};
use crate::endpoint::windows::destination::Destination;
use crate::endpoint::windows::one_sided::{self, Local, OneSided, OneSidedRequest, PostMode};
use crate::endpoint::windows::window::WindowPlace;
use crate::protocol::wire::WindowId;

impl<L: Link> PeerSender<'_, L> {
    /// Posts a write, or gives everything back.
    #[inline(always)]
    pub(super) fn write(
        &mut self,
        payload: Payload,
        place: WindowPlace<'_>,
        (data, level): (Option<u32>, Level),
        key: u64,
    ) -> Result<(), (SendErrorKind, Payload)> {
        let wanted = OneSidedRequest::write(place, &payload, data.is_some());
        let remote = match self.admit_one_sided(&wanted) {
            Ok(remote) => remote,
            Err(kind) => return Err((kind, payload)),
        };
        let mut iov = IovList::new();
        let (leases, recent) = match self.posting().lease(&payload, &mut iov) {
            Ok(leased) => leased,
            Err(kind) => return Err((kind, payload)),
        };
        // SAFETY: the leases are this payload's.
        let payload = unsafe { LeasedPayload::new(payload, leases) };
        let how = PostMode::write(remote, place, data, level);
        let local = (Local::Write(payload), recent);
        let posted = self.post_one_sided((key, place.window.id()), local, &iov, &how);
        posted.map_err(|(kind, op)| match op.local {
            Local::Write(payload) => (kind, payload.into_payload()),
            Local::Read(_) | Local::Staged(_) => unreachable!("it was a write"),
        })
    }

    /// Posts a read, or gives everything back.
    #[inline(always)]
    pub(super) fn read(
        &mut self,
        into: Destination,
        place: WindowPlace<'_>,
        key: u64,
    ) -> Result<(), (SendErrorKind, Destination)> {
        let wanted = OneSidedRequest::read(place, &into);
        let remote = match self.admit_one_sided(&wanted) {
            Ok(remote) => remote,
            Err(kind) => return Err((kind, into)),
        };
        let (into, run, recent) = self.posting().lease_destination(into)?;
        let mut iov = IovList::new();
        iov.push(run.base, run.len, run.desc);
        let how = PostMode::read(remote);
        let local = (Local::Read(into), recent);
        let posted = self.post_one_sided((key, place.window.id()), local, &iov, &how);
        posted.map_err(|(kind, op)| match op.local {
            Local::Read(into) => (kind, into.into_destination()),
            Local::Write(_) | Local::Staged(_) => unreachable!("it was a read"),
        })
    }

    fn posting(&mut self) -> Posting<'_, L> {
        outbound::way(self.outbound, self.link, (self.id, self.peer)).1
    }

    /// Everything that can be said of an operation before anything is taken for it.
    #[inline]
    fn admit_one_sided(&self, wanted: &OneSidedRequest<'_>) -> Result<RemoteRange, SendErrorKind> {
        let rma = self.link.limits().rma.as_ref();
        let blocked = may_use(self.peer, wanted.immediate);
        if let Err(refused @ (SendErrorKind::Closed(_) | SendErrorKind::Closing)) = blocked {
            return Err(refused);
        }
        // What can never be is said first: who is blocked tries again.
        let remote = one_sided::check(&self.peer.machine, self.id, rma, wanted)?;
        blocked?;
        self.outbound.account.has_room(&self.peer.outbound)?;
        match self.peer.outbound.operations() {
            LineState::Open => Ok(remote),
            LineState::Full | LineState::Gated => Err(SendErrorKind::WouldBlock(Blocked::Provider)),
        }
    }

    #[inline]
    fn post_one_sided(
        &mut self,
        names: (u64, WindowId),
        local: (Local, bool),
        iov: &IovList,
        how: &PostMode,
    ) -> Result<(), (SendErrorKind, OneSided)> {
        let op = self.outbound.operation(self.clock, self.id, names, local);
        let sent = one_sided::post(
            self.link,
            &self.peer.link,
            &mut self.peer.machine,
            &mut self.outbound.posted.one_sided,
            op,
            iov,
            how,
        );
        let Err((refused, mut op)) = sent else {
            let len = how.remote.len as u64;
            let own = &mut self.peer.outbound;
            self.outbound.account.count_accepted(own, len);
            return Ok(());
        };
        self.outbound.outgoing.end_one_sided(&mut op);
        Err((one_sided::refused_by_provider(refused, how.write), op))
    }
}
