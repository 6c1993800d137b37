//! What can't be posted when it is given: one-sided operations that have to wait, and the lines of
//! the connections, each of which holds back its own only.

#![allow(unsafe_code)]

use super::windows::may_use;
use super::{Hub, outbound};
use crate::buffer::{LeasedPayload, Payload};
use crate::endpoint::error::{Blocked, SendErrorKind, WindowError};
use crate::endpoint::hub::control::HeldDescriptor;
use crate::endpoint::hub::event::HubEvent;
use crate::endpoint::hub::leases;
use crate::endpoint::hub::line::LineState;
use crate::endpoint::hub::posting::Posting;
use crate::endpoint::link::iov::IovList;
use crate::endpoint::link::{Link, RemoteRange};
use crate::endpoint::staging::{StagingRing, staged_segment};
use crate::endpoint::windows::destination::Destination;
use crate::endpoint::windows::later::{self, Later, Target};
use crate::endpoint::windows::one_sided::{self, Local, OneSidedRequest, PostMode};
use crate::endpoint::windows::staged_transfer::{Piece, Slots};
use crate::endpoint::windows::window::WindowPlace;
use crate::error::CompletionError;
use crate::id::ConnectionId;
use crate::protocol::connection::State;
use crate::protocol::wire::WindowId;

impl<L: Link, E: HubEvent> Hub<L, E> {
    /// The ring that payloads and one-sided operations are staged in.
    pub(crate) fn stage_in(&mut self, ring: &StagingRing) {
        self.outbound.stage_in(ring);
    }

    // ---- accepting ------------------------------------------------------------------------------

    /// A write that can't be posted now for this reason: takes it all the same if it only has to
    /// wait, else gives the payload back.
    #[cold]
    pub(super) fn write_later(
        &mut self,
        kind: SendErrorKind,
        payload: Payload,
        target: Target<'_>,
        key: u64,
    ) -> Result<(), (SendErrorKind, Payload)> {
        let id = target.0.window.connection();
        let Some(scope) = self.scope_of(id) else {
            return Err((kind, payload));
        };
        let staged = staged_segment(&payload, scope).is_some();
        if !payload.is_gated() && !staged && !self.waits_behind(id, &kind) {
            return Err((kind, payload));
        }
        let ring = self.outbound.outgoing.staging.ring().cloned();
        let max_bytes = self.max_bytes();
        let way = |payload| Later::of(ring.as_ref(), payload, scope, max_bytes);
        self.queue_write(payload, target, key, way)
    }

    /// Puts a read that was refused with `kind` into the line of its connection, if it may wait
    /// there.
    #[cold]
    pub(super) fn read_later(
        &mut self,
        kind: SendErrorKind,
        into: Destination,
        place: WindowPlace<'_>,
        key: u64,
    ) -> Result<(), (SendErrorKind, Destination)> {
        let id = place.window.connection();
        let Some(scope) = self.scope_of(id) else {
            return Err((kind, into));
        };
        let staged = into.region().is_staged(scope);
        if !staged && !self.waits_behind(id, &kind) {
            return Err((kind, into));
        }
        let ring = self.outbound.outgoing.staging.ring().cloned();
        let max_bytes = self.max_bytes();
        let slots = |into: &_| match staged {
            true => later::staged_read(ring.as_ref(), into, max_bytes).map(Some),
            false => Ok(None),
        };
        self.queue_read(into, place, key, slots)
    }

    /// Whether that only says that there are others in front of it.
    fn waits_behind(&self, id: ConnectionId, kind: &SendErrorKind) -> bool {
        *kind == SendErrorKind::WouldBlock(Blocked::Provider)
            && self
                .peers
                .get(id)
                .is_some_and(|peer| peer.outbound.operations() != LineState::Open)
    }

    // ---- waiting --------------------------------------------------------------------------------

    /// Posts what may be posted of what waits, on all connections.
    pub(super) fn drive_lines(&mut self, events: &mut Vec<E>) {
        for id in self.outbound.take_waiting() {
            self.drive_line(id, events);
        }
        self.outbound.retry |= self.outbound.pause(&self.peers).is_some();
    }

    fn drive_line(&mut self, id: ConnectionId, events: &mut Vec<E>) {
        let Some(peer) = self.peers.get_mut(id) else {
            return;
        };
        if peer.machine.state() == State::Closed {
            // Its end is on the way, and gives them their outcomes.
            return self.touch(id);
        }
        let driven = self.outbound.drive(&mut self.link, (id, peer));
        self.outbound.tell_driven(driven, events);
        self.touch(id);
    }

    /// A piece of a one-sided operation is over.
    pub(super) fn on_one_sided_piece(
        &mut self,
        piece: Piece,
        error: Option<CompletionError>,
        events: &mut Vec<E>,
    ) {
        let id = piece.connection;
        let Some(peer) = self.peers.get_mut(id) else {
            // Its operation had its outcome when the connection ended.
            return self.on_orphan(id);
        };
        if let Some(error) = &error {
            peer.machine.on_lost(Some(error.errno));
        }
        if let Some(line) = peer.outbound.line() {
            line.operations.on_piece(piece, error);
        }
        self.drive_line(id, events);
        self.outbound.retry |= self.outbound.pause(&self.peers).is_some();
    }

    // ---- what is taken for those that wait ------------------------------------------------------

    /// Everything that can be said of an operation before anything is taken for it. Where it goes.
    fn admit_later(&self, wanted: &OneSidedRequest<'_>) -> Result<RemoteRange, SendErrorKind> {
        let id = wanted.place.window.connection();
        let peer = self
            .peers
            .get(id)
            .ok_or(SendErrorKind::Window(WindowError::WrongConnection))?;
        let rma = self.link.limits().rma.as_ref();
        // What can never be is said first: who is blocked tries again.
        let remote = one_sided::check_in_pieces(&peer.machine, id, rma, wanted)?;
        may_use(peer, wanted.immediate)?;
        self.outbound
            .account
            .has_room(&peer.outbound)
            .map(|()| remote)
    }

    /// The connection with what operations on it go through, if it stands.
    pub(super) fn posting(&mut self, id: ConnectionId) -> Option<Posting<'_, L>> {
        let peer = self.peers.get_mut(id)?;
        Some(outbound::way(&mut self.outbound, &mut self.link, (id, peer)).1)
    }

    /// Counts an operation as one that is posted, and has it wait. With its local side: whether the
    /// lease that all share is its.
    fn push_line(
        &mut self,
        id: ConnectionId,
        names: (u64, WindowId),
        local: (Local, bool),
        iov: IovList,
        how: PostMode,
    ) {
        let op = self
            .outbound
            .operation(self.timer.clock(), id, names, local);
        let Some(peer) = self.peers.get_mut(id) else {
            return;
        };
        let counted = peer.machine.on_window_posted(how.immediate.is_some());
        debug_assert!(counted.is_ok(), "`admit_later` asked the same");
        let (own, len) = (&mut peer.outbound, how.remote.len as u64);
        own.open_line().operations.push(op, iov, how);
        self.outbound.account.count_accepted(own, len);
        self.outbound.count_waiting(id, own);
    }

    /// Keeps the registration of the slots open for one operation.
    ///
    /// # Errors
    /// They are not registered with the domain of this connection, or registering them for this
    /// connection alone failed.
    fn hold_slots(
        &mut self,
        id: ConnectionId,
        slots: &Slots,
    ) -> Result<HeldDescriptor, SendErrorKind> {
        let unstaged = || SendErrorKind::NotStaged { segment: 0 };
        let region = slots.region().ok_or_else(unstaged)?;
        let way = self.posting(id).ok_or(WindowError::NotConnected)?;
        let held = leases::hold_region(region, Some(way.conn), way.scoped);
        held.map_err(|error| error.unwrap_or_else(unstaged))
    }

    /// Bytes that the provider takes at once.
    fn max_bytes(&self) -> u64 {
        self.link.limits().rma.map_or(0, |rma| rma.max_bytes)
    }

    /// Has a write wait whose bytes take the way that `way` says.
    pub(crate) fn queue_write(
        &mut self,
        payload: Payload,
        (place, data, level): Target<'_>,
        key: u64,
        way: impl FnOnce(Payload) -> Result<Later, (SendErrorKind, Payload)>,
    ) -> Result<(), (SendErrorKind, Payload)> {
        let id = place.window.connection();
        let wanted = OneSidedRequest::write(place, &payload, data.is_some());
        let remote = match self.admit_later(&wanted) {
            Ok(remote) => remote,
            Err(kind) => return Err((kind, payload)),
        };
        let how = PostMode::write(remote, place, data, level);
        let mut iov = IovList::new();
        let local = match way(payload)? {
            Later::Whole(payload) => self
                .whole(id, payload, &how, &mut iov)
                .map_err(|(kind, payload)| (kind, payload.unstaged()))?,
            Later::Pieces(payload, slots) => match self.hold_slots(id, &slots) {
                Ok(desc) => (later::pieces_of_write(payload, slots, desc, &how), false),
                Err(kind) => return Err((kind, payload)),
            },
        };
        self.push_line(id, (key, place.window.id()), local, iov, how);
        Ok(())
    }

    /// The local side of a write that is posted as it is, when its gate is open.
    fn whole(
        &mut self,
        id: ConnectionId,
        payload: Payload,
        how: &PostMode,
        iov: &mut IovList,
    ) -> Result<(Local, bool), (SendErrorKind, Payload)> {
        let rma = self.link.limits().rma;
        let (len, segments) = (how.remote.len as u64, payload.run_count());
        let checked = one_sided::check_whole(rma.as_ref(), len, segments);
        let leased = checked.and_then(|()| {
            let mut way = self.posting(id).ok_or(WindowError::NotConnected)?;
            way.lease(payload.wire(), iov)
        });
        let (mut leases, recent) = match leased {
            Ok(leased) => leased,
            Err(kind) => return Err((kind, payload)),
        };
        if payload.is_gated() {
            leases = leases.of_gated();
        }
        // SAFETY: the leases are this payload's, or those of what is sent of it.
        let payload = unsafe { LeasedPayload::new(payload, leases) };
        Ok((Local::Write(payload), recent))
    }

    /// Has a read wait, which comes into slots if `slots` gives some.
    pub(crate) fn queue_read(
        &mut self,
        into: Destination,
        place: WindowPlace<'_>,
        key: u64,
        slots: impl FnOnce(&Destination) -> Result<Option<Slots>, SendErrorKind>,
    ) -> Result<(), (SendErrorKind, Destination)> {
        let id = place.window.connection();
        let wanted = OneSidedRequest::read(place, &into);
        let admitted = self.admit_later(&wanted);
        let admitted = admitted.and_then(|remote| Ok((remote, slots(&into)?)));
        let mut iov = IovList::new();
        let (remote, local) = match admitted {
            Ok((remote, Some(slots))) => match self.hold_slots(id, &slots) {
                Ok(desc) => (remote, (later::pieces_of_read(into, slots, desc), false)),
                Err(kind) => return Err((kind, into)),
            },
            Ok((remote, None)) => {
                let rma = self.link.limits().rma;
                let checked = one_sided::check_whole(rma.as_ref(), wanted.len, wanted.segments);
                if let Err(kind) = checked {
                    return Err((kind, into));
                }
                let Some(mut way) = self.posting(id) else {
                    return Err((WindowError::NotConnected.into(), into));
                };
                let (into, run, recent) = way.lease_destination(into)?;
                iov.push(run.base, run.len, run.desc);
                (remote, (Local::Read(into), recent))
            }
            Err(kind) => return Err((kind, into)),
        };
        let names = (key, place.window.id());
        self.push_line(id, names, local, iov, PostMode::read(remote));
        Ok(())
    }
}
