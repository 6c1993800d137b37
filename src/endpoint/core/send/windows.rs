//! Windows at a send endpoint: those of its peer, which it writes and reads, and its own, which its
//! peer may use. What can't be posted at once is in `later.rs`.

#![allow(unsafe_code)]

use std::time::Instant;

use super::SendCore;
use crate::buffer::{LeasedPayload, Payload};
use crate::endpoint::core::line::LineState;
use crate::endpoint::error::{Blocked, Refused, SendErrorKind, WindowError};
use crate::endpoint::event::{Level, SendEvent};
use crate::endpoint::link::iov::IovList;
use crate::endpoint::link::{Link, LinkConn, PostRefused, RemoteRange};
use crate::endpoint::windows::destination::Destination;
use crate::endpoint::windows::exposed::{Named, STRAY_WRITES};
use crate::endpoint::windows::one_sided::{self, How, Local, OneSided, OneSidedRequest};
use crate::endpoint::windows::window::{
    LocalWindow, RemoteWindow, WindowEvent, WindowMemory, WindowPlace,
};
use crate::error::{CompletionError, FabricErrno};
use crate::id::ConnectionId;
use crate::memory::{Access, Participant};
use crate::protocol::connection::{State, Violation};
use crate::protocol::wire::{self, WindowDescriptor, WindowId};

impl<L: Link> SendCore<L> {
    /// The name of the one connection.
    pub(crate) fn connection_id(&self) -> ConnectionId {
        ConnectionId(self.machine.local_connection())
    }

    // ---- windows of the peer --------------------------------------------------------------------

    pub(crate) fn open_window(
        &self,
        descriptor: &WindowDescriptor,
    ) -> Result<RemoteWindow, WindowError> {
        let rma = self.link.limits().rma.as_ref();
        one_sided::open_window(&self.machine, self.connection_id(), rma, descriptor)
    }

    /// Posts a write, or gives everything back.
    pub(crate) fn write(
        &mut self,
        payload: Payload,
        place: WindowPlace<'_>,
        data: Option<u32>,
        level: Level,
        key: u64,
    ) -> Result<(), Refused<Payload>> {
        let wanted = OneSidedRequest::write(place, &payload, data.is_some());
        let remote = match self.admit_one_sided(&wanted) {
            Ok(remote) => remote,
            Err(kind) => return self.write_later(kind, payload, (place, data, level), key),
        };
        let mut iov = IovList::new();
        let conn = self.conn.as_ref();
        let leased = self
            .outgoing
            .lease(&payload, conn, &mut self.scoped, &mut iov);
        let (leases, recent) = match leased {
            Ok(leases) => leases,
            Err(kind) => return self.write_later(kind, payload, (place, data, level), key),
        };
        // SAFETY: the leases are this payload's.
        let payload = unsafe { LeasedPayload::new(payload, leases) };
        let how = How::write(remote, place, data, level);
        let local = (Local::Write(payload), recent);
        let posted = self.post_one_sided(key, place.window.id(), local, &iov, &how);
        posted.map_err(|(kind, op)| match op.local {
            Local::Write(payload) => self.refuse(kind, payload.into_payload(), key),
            Local::Read(_) | Local::Passage(_) => unreachable!("it was a write"),
        })
    }

    /// Posts a read, or gives everything back.
    pub(crate) fn read(
        &mut self,
        into: Destination,
        place: WindowPlace<'_>,
        key: u64,
    ) -> Result<(), Refused<Destination>> {
        let wanted = OneSidedRequest::read(place, &into);
        let remote = match self.admit_one_sided(&wanted) {
            Ok(remote) => remote,
            Err(kind) => return self.read_later(kind, into, place, key),
        };
        let leased = match self.way() {
            Some((_, mut way)) => way.lease_destination(into),
            None => Err((WindowError::NotConnected.into(), into)),
        };
        let (into, run, recent) = match leased {
            Ok(leased) => leased,
            Err((kind, into)) => return self.read_later(kind, into, place, key),
        };
        let mut iov = IovList::new();
        iov.push(run.base, run.len, run.desc);
        let how = How::read(remote);
        let local = (Local::Read(into), recent);
        let posted = self.post_one_sided(key, place.window.id(), local, &iov, &how);
        posted.map_err(|(kind, op)| match op.local {
            Local::Read(into) => self.refuse_read(kind, into.into_destination(), key),
            Local::Write(_) | Local::Passage(_) => unreachable!("it was a read"),
        })
    }

    pub(super) fn refuse_read(
        &mut self,
        kind: SendErrorKind,
        into: Destination,
        key: u64,
    ) -> Refused<Destination> {
        let Refused { kind, key, .. } = self.refuse(kind, Payload::empty(), key);
        Refused {
            kind,
            given: into,
            key,
        }
    }

    /// Everything that can be said of an operation before anything is taken for it.
    fn admit_one_sided(&self, wanted: &OneSidedRequest<'_>) -> Result<RemoteRange, SendErrorKind> {
        let blocked = self.may_operate(wanted.immediate);
        if let Err(refused @ (SendErrorKind::Closed(_) | SendErrorKind::Closing)) = blocked {
            return Err(refused);
        }
        let rma = self.link.limits().rma.as_ref();
        // What can never be is said first: who is blocked tries again.
        let remote = one_sided::check(&self.machine, self.connection_id(), rma, wanted)?;
        blocked?;
        // Also where others are in front of it: whether it may wait behind them is asked later.
        if self.data_in_flight >= self.settings.depth || self.line.operations() != LineState::Open {
            return Err(SendErrorKind::WouldBlock(Blocked::Depth));
        }
        Ok(remote)
    }

    #[inline]
    pub(super) fn may_operate(&self, immediate: bool) -> Result<(), SendErrorKind> {
        let may = if immediate {
            self.machine.may_send()
        } else {
            self.machine.may_use_window()
        };
        may.map_err(|blocked| self.blocked(blocked))
    }

    #[inline]
    fn post_one_sided(
        &mut self,
        key: u64,
        window: WindowId,
        (local, recent): (Local, bool),
        iov: &IovList,
        how: &How,
    ) -> Result<(), (SendErrorKind, OneSided)> {
        self.one_sided_posts += 1;
        let op = OneSided {
            connection: self.connection_id(),
            key,
            window,
            local,
            sequence: self.one_sided_posts,
            posted: self.posted_at(),
            told: false,
            recent,
        };
        let posted = match &self.conn {
            Some(conn) => one_sided::post(
                &mut self.link,
                conn,
                &mut self.machine,
                &mut self.posted.one_sided,
                op,
                iov,
                how,
            ),
            None => Err((PostRefused::Errno(FabricErrno::new(libc::ENOTCONN)), op)),
        };
        match posted {
            Ok(()) => {
                self.count_posted(how.remote.len as u64);
                Ok(())
            }
            Err((refused, op)) => Err(self.one_sided_refused(refused, op, how)),
        }
    }

    #[cold]
    fn one_sided_refused(
        &mut self,
        refused: PostRefused,
        mut op: OneSided,
        how: &How,
    ) -> (SendErrorKind, OneSided) {
        self.outgoing.end_one_sided(&mut op);
        self.stats.eagain += u64::from(refused == PostRefused::Again);
        if self.conn.is_none() {
            return (WindowError::NotConnected.into(), op);
        }
        (one_sided::refused_by_provider(refused, how.write), op)
    }

    /// An operation is over that went well, and the slab has it: most do.
    #[inline]
    pub(super) fn on_one_sided_done(
        &mut self,
        context: usize,
        events: &mut Vec<SendEvent>,
    ) -> bool {
        let Ok(mut finished) = self.posted.one_sided.finish_in_place(context) else {
            return false;
        };
        let Some(op) = finished.op() else {
            return false;
        };
        self.outgoing.end_one_sided(op);
        let (window, event) = (op.window, op.take());
        finished.clear_away();
        // Its end may be what a revocation waits for.
        self.eventful |= self.machine.is_window_revoked(window);
        self.count_one_sided(window, None);
        events.push(SendEvent::Window(event));
        true
    }

    /// An operation is over.
    pub(super) fn on_one_sided(
        &mut self,
        mut op: OneSided,
        error: Option<CompletionError>,
        events: &mut Vec<SendEvent>,
    ) {
        self.outgoing.end_one_sided(&mut op);
        self.count_one_sided(op.window, error.as_ref());
        events.push(SendEvent::Window(op.finish(error)));
    }

    /// The endpoint is closed, and the provider did not say what became of an operation.
    pub(super) fn on_one_sided_unreported(
        &mut self,
        mut op: OneSided,
        error: CompletionError,
        events: &mut Vec<SendEvent>,
    ) {
        self.outgoing.end_one_sided(&mut op);
        self.count_one_sided(op.window, Some(&error));
        let rma = self.link.limits().rma.as_ref();
        events.push(SendEvent::Window(op.finish_unreported(rma, error)));
    }

    fn count_one_sided(&mut self, window: WindowId, error: Option<&CompletionError>) {
        self.data_in_flight -= 1;
        self.machine.on_window_done(window);
        match error {
            None => self.stats.completed += 1,
            Some(error) => {
                self.stats.failed += 1;
                self.machine.on_lost(Some(error.errno));
            }
        }
    }

    /// The peer revoked one of its windows: the application hears of it, the machine of who still
    /// uses it.
    pub(super) fn on_window_revoked(&mut self, window: WindowId, events: &mut Vec<SendEvent>) {
        let Some((line, mut way)) = self.way() else {
            return;
        };
        let (over, passing) = line.revoke(window, &mut way);
        let posted = self.posted.one_sided.iter();
        let users = posted.filter(|op| op.window == window).count() + passing;
        events.push(SendEvent::Window(WindowEvent::Revoked { window }));
        // Which are none of its users any more.
        for over in over {
            self.on_line_over(over, events);
        }
        self.machine.window_in_use(window, users as u32);
    }

    // ---- windows of this side -------------------------------------------------------------------

    pub(crate) fn expose(
        &mut self,
        memory: WindowMemory,
        access: Access,
    ) -> Result<LocalWindow, Refused<WindowMemory, WindowError>> {
        let id = self.connection_id();
        let Some(conn) = &self.conn else {
            let kind = WindowError::NotConnected;
            return Err(Refused::without_key(kind, memory));
        };
        let registrar = conn.registrar().unwrap_or_else(|| self.link.registrar());
        let rma = self.link.limits().rma.as_ref();
        self.exposed
            .expose(id, &mut self.machine, registrar, rma, memory, access)
    }

    /// Begins to take a window back; false: there is nothing to take back any more.
    pub(crate) fn revoke(&mut self, window: LocalWindow, deadline: Instant) -> bool {
        let Some((_, window)) = self.exposed.begin_revoke(window) else {
            return false;
        };
        self.machine.revoke_window(window, Some(deadline));
        self.wait.wake();
        true
    }

    /// Takes back the windows whose handles were dropped.
    pub(super) fn revoke_abandoned(&mut self) {
        for (_, window) in self.exposed.take_abandoned() {
            self.machine.revoke_window(window, None);
        }
    }

    /// The peer says that it is done with a window.
    pub(super) fn retire_window(&mut self, window: WindowId, events: &mut Vec<SendEvent>) {
        let id = self.connection_id();
        self.exposed.retire(id, window);
        self.ask_fence();
        self.release_passed(events);
    }

    /// Memory that peers could reach is to come back, here or at another endpoint of the domain:
    /// the peer is asked whether it is done.
    pub(super) fn ask_fence(&mut self) {
        let participant = self.conn.as_ref().and_then(LinkConn::participant);
        if let Some(epoch) = participant.and_then(Participant::lags)
            && self.fence_asked < epoch
        {
            self.fence_asked = epoch;
            let nonce = crate::random::random_u64();
            self.machine.fence(epoch, nonce, self.clock.now());
        }
    }

    pub(super) fn on_fence_passed(&mut self, epoch: u64) {
        if let Some(participant) = self.conn.as_ref().and_then(LinkConn::participant) {
            participant.pass(epoch);
        }
    }

    /// Gives back what nobody can reach any more.
    #[inline]
    pub(super) fn release_passed(&mut self, events: &mut Vec<SendEvent>) {
        if self.exposed.has_limbo() {
            let tell = |_, event| events.push(SendEvent::Window(event));
            self.exposed.release_passed(None, tell);
        }
    }

    /// The endpoint is closed, and others may still reach what it has.
    pub(super) fn leave_windows(&mut self, events: &mut Vec<SendEvent>) {
        self.exposed
            .leave(|_, event| events.push(SendEvent::Window(event)));
    }

    /// Registrations that belong to the provider's endpoint are closed before it; the memory stays
    /// until it is closed.
    pub(super) fn close_scoped_windows(&mut self, conn: &L::Conn) {
        if conn.registrar().is_some() {
            let id = self.connection_id();
            self.exposed.close_all(id);
        }
    }

    /// The provider's endpoint is closed: over this connection nobody reaches a window any more.
    pub(super) fn retire_windows(&mut self, events: &mut Vec<SendEvent>) {
        let id = self.connection_id();
        let tell = |_, event| events.push(SendEvent::Window(event));
        self.exposed.retire_all(id);
        self.exposed.close_held();
        self.exposed.release_passed(None, tell);
    }

    /// The provider's endpoint would not close: peers may use the windows for ever.
    pub(super) fn leak_windows(&mut self) -> u64 {
        let id = self.connection_id();
        self.exposed.leak_all(id)
    }

    /// A peer wrote with immediate data, for which nobody posted anything.
    pub(super) fn on_peer_wrote(&mut self, data: Option<u64>, events: &mut Vec<SendEvent>) {
        let named = data.and_then(wire::split_written);
        let found = self.exposed.by_mark(named.map(|(mark, _)| mark));
        let (Named::Window(connection, window), Some((_, data))) = (found, named) else {
            self.stats.stray_writes += 1;
            // Nobody knows whose it was. Who guesses at marks finds one some time: before that,
            // there are no windows any more.
            if found == Named::Nothing && !self.exposed.on_stray().is_empty() {
                self.machine.violate(Violation::OutOfTurn(STRAY_WRITES));
            }
            return;
        };
        if self.machine.state() == State::Connecting {
            self.read_cm();
        }
        if self.machine.on_peer_wrote().is_ok() {
            match self.exposed.see_writes(connection, window) {
                Ok(()) => events.push(SendEvent::Window(WindowEvent::PeerWrote { window, data })),
                Err(error) => {
                    tracing::error!(%error, "what a peer wrote can't be made visible");
                    self.machine.on_lost(Some(FabricErrno::new(libc::EIO)));
                }
            }
        }
    }

    /// How many windows this side exposes, those that wait for their end included.
    pub(crate) fn windows(&self) -> usize {
        self.exposed.len()
    }
}
