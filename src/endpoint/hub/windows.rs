//! Windows at a receive endpoint: its own, which peers may use, and those of its peers, which it
//! writes and reads.

use std::time::{Duration, Instant};

use super::outbound::{self, told};
use super::{Hub, Peer, RESERVE};
use crate::buffer::Payload;
use crate::endpoint::error::{Refused, SendErrorKind, WindowError};
use crate::endpoint::event::{DeadlinePolicy, Level, ReceiveEvent};
use crate::endpoint::hub::deadlines::LateOp;
use crate::endpoint::hub::event::{HubEvent, Tell};
use crate::endpoint::hub::outgoing;
use crate::endpoint::link::{Link, LinkConn};
use crate::endpoint::windows::destination::Destination;
use crate::endpoint::windows::exposed::{STRAY_WRITES, WriteMark};
use crate::endpoint::windows::one_sided::{self, OneSided};
use crate::endpoint::windows::window::{
    LocalWindow, RemoteWindow, WindowEvent, WindowMemory, WindowPlace,
};
use crate::error::{CompletionError, FabricErrno};
use crate::id::ConnectionId;
use crate::memory::Access;
use crate::protocol::connection::{
    CloseReason, Form, LONG_MESSAGES_MAX, State, Violation, WINDOW_MESSAGES_MAX,
};
use crate::protocol::wire::{self, WindowDescriptor, WindowId};

/// What a receive endpoint may do with windows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WindowSettings {
    /// Windows exposed at once.
    pub(crate) windows: u32,
    /// Windows of the peers can be used, though none of this side's is exposed. Without either,
    /// peers are told that there are none.
    pub(crate) uses_peers: bool,
    /// One-sided operations in flight at once.
    pub(crate) operations: u32,
    pub(crate) deadline: Option<Duration>,
    pub(crate) policy: DeadlinePolicy,
    /// Messages that are too long for a receive are taken, too.
    pub(crate) long: bool,
}

impl WindowSettings {
    /// No windows on either side.
    pub(crate) fn none() -> Self {
        Self {
            windows: 0,
            uses_peers: false,
            operations: 1,
            deadline: None,
            policy: DeadlinePolicy::FailConnection,
            long: false,
        }
    }

    pub(crate) fn enabled(&self) -> bool {
        self.windows > 0 || self.uses_peers
    }

    /// Receives of each connection beyond its credits: [`RESERVE`], and those for what the peer
    /// says of windows and long messages.
    pub(crate) fn reserve(&self) -> u32 {
        let windows = u32::from(self.enabled()) * WINDOW_MESSAGES_MAX as u32;
        let long = u32::from(self.long) * LONG_MESSAGES_MAX as u32;
        RESERVE + windows + long
    }
}

impl<L: Link, E: HubEvent> Hub<L, E> {
    // ---- windows of this side -------------------------------------------------------------------

    pub(crate) fn expose(
        &mut self,
        id: ConnectionId,
        memory: WindowMemory,
        access: Access,
    ) -> Result<LocalWindow, Refused<WindowMemory, WindowError>> {
        let Some(peer) = self.peers.get_mut(id) else {
            let kind = WindowError::NotConnected;
            return Err(Refused::without_key(kind, memory));
        };
        let own = peer.link.registrar();
        let registrar = own.unwrap_or_else(|| self.link.registrar());
        let rma = self.link.limits().rma.as_ref();
        self.exposed
            .expose(id, &mut peer.machine, registrar, rma, memory, access)
    }

    /// Begins to take a window back; false: there is nothing to take back any more.
    pub(crate) fn revoke(
        &mut self,
        window: LocalWindow,
        deadline: Instant,
    ) -> Result<bool, Refused<LocalWindow, WindowError>> {
        let Some((id, window)) = self.exposed.begin_revoke(window)? else {
            return Ok(false);
        };
        self.begin_revoke(id, window, Some(deadline));
        self.wait.wake();
        Ok(true)
    }

    /// Takes back the windows whose handles were dropped.
    pub(super) fn revoke_abandoned(&mut self) {
        for (id, window) in self.exposed.take_abandoned() {
            self.begin_revoke(id, window, None);
        }
    }

    fn begin_revoke(&mut self, id: ConnectionId, window: WindowId, deadline: Option<Instant>) {
        if let Some(peer) = self.peers.get_mut(id) {
            peer.machine.revoke_window(window, deadline);
            self.touch(id);
        }
    }

    /// The peer says that it is done with a window.
    pub(super) fn retire_window(
        &mut self,
        id: ConnectionId,
        window: WindowId,
        events: &mut Vec<E>,
    ) {
        self.exposed.retire(id, window);
        self.release_passed(events);
    }

    /// The connection is over: so are its windows.
    pub(super) fn retire_windows(&mut self, id: ConnectionId, events: &mut Vec<E>) {
        self.exposed.retire_all(id);
        self.release_passed(events);
    }

    /// RDM form: the endpoint of all connections is closed.
    pub(super) fn release_quarantine(&mut self, events: &mut Vec<E>) {
        self.exposed.close_held();
        self.release_passed(events);
    }

    /// The endpoint is closed, and others may still reach what it has.
    pub(super) fn leave_windows(&mut self, events: &mut Vec<E>) {
        self.exposed.leave(|id, event| events.tell(told(id, event)));
    }

    /// Registrations that belong to the provider's endpoint are closed before it; the memory stays
    /// until it is closed.
    pub(super) fn close_scoped_windows(&mut self, id: ConnectionId, conn: &L::Conn) {
        if conn.registrar().is_some() {
            self.exposed.close_all(id);
        }
    }

    /// A peer wrote with immediate data, for which nobody posted anything.
    pub(super) fn on_peer_wrote(&mut self, data: Option<u64>, events: &mut Vec<E>) {
        let named = data.and_then(wire::split_written);
        let found = self.exposed.by_mark(named.map(|(mark, _)| mark));
        let (WriteMark::Window(id, window), Some((_, data))) = (found, named) else {
            return self.on_stray_write(found);
        };
        let Some(peer) = self.peers.get_mut(id) else {
            return;
        };
        let held = peer.long.held.is_some();
        if peer.machine.on_peer_wrote().is_ok() {
            self.stats.peer_writes.add(1);
            // It took no receive: its credit is free again.
            peer.count_reposted();
            match self.exposed.see_writes(id, window) {
                Ok(()) => {
                    let event = told(id, WindowEvent::PeerWrote { window, data });
                    match held {
                        false => events.tell(event),
                        true => self.hold(id, event),
                    }
                }
                Err(error) => {
                    tracing::error!(%error, "what a peer wrote can't be made visible");
                    peer.machine.on_lost(Some(FabricErrno::new(libc::EIO)));
                }
            }
        }
        self.take_late_bye(id, events);
        self.touch(id);
    }

    /// Nobody knows whose it was. Who guesses at marks finds one some time: before that, there are
    /// no windows any more.
    #[cold]
    fn on_stray_write(&mut self, named: WriteMark) {
        self.stats.stray_writes.add(1);
        if named != WriteMark::Nothing {
            return;
        }
        for id in self.exposed.on_stray() {
            if let Some(peer) = self.peers.get_mut(id) {
                peer.machine.violate(Violation::OutOfTurn(STRAY_WRITES));
                self.touch(id);
            }
        }
    }

    /// How many windows are exposed, those that wait for their end included.
    pub(crate) fn windows(&self) -> usize {
        self.exposed.len()
    }

    // ---- windows of the peers -------------------------------------------------------------------

    pub(crate) fn open_window(
        &self,
        id: ConnectionId,
        descriptor: &WindowDescriptor,
    ) -> Result<RemoteWindow, WindowError> {
        let peer = self.peers.get(id).ok_or(WindowError::NotConnected)?;
        let rma = self.link.limits().rma.as_ref();
        one_sided::open_window(&peer.machine, id, rma, descriptor)
    }

    /// Bytes that one write may have; none: there are no windows.
    pub(crate) fn longest_write(&self) -> Option<u64> {
        let rma = self.link.limits().rma.as_ref();
        rma.filter(|_| self.settings.windows.enabled())
            .map(|rma| rma.max_bytes)
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
        let id = place.window.connection();
        match self.sender(id) {
            Some(mut sender) => sender.write(payload, place, (data, level), key),
            None => Err((WindowError::WrongConnection.into(), payload)),
        }
        .or_else(|(kind, payload)| self.write_later(kind, payload, (place, data, level), key))
        .map_err(|(kind, payload)| {
            let kind = self.refuse_one_sided(id, kind, data.is_some());
            Refused::new(kind, payload, key)
        })
    }

    /// Posts a read, or gives everything back.
    pub(crate) fn read(
        &mut self,
        into: Destination,
        place: WindowPlace<'_>,
        key: u64,
    ) -> Result<(), Refused<Destination>> {
        let id = place.window.connection();
        match self.sender(id) {
            Some(mut sender) => sender.read(into, place, key),
            None => Err((WindowError::WrongConnection.into(), into)),
        }
        .or_else(|(kind, into)| self.read_later(kind, into, place, key))
        .map_err(|(kind, into)| {
            let kind = self.refuse_one_sided(id, kind, false);
            Refused::new(kind, into, key)
        })
    }

    pub(super) fn scope_of(&self, id: ConnectionId) -> Option<crate::memory::Scope> {
        self.peers.get(id).map(|peer| peer.scoped.scope())
    }

    fn refuse_one_sided(
        &mut self,
        id: ConnectionId,
        kind: SendErrorKind,
        immediate: bool,
    ) -> SendErrorKind {
        let peer = self.peers.get_mut(id);
        let of = peer.map(|peer| (id, &mut peer.outbound));
        self.outbound.refuse(of, &kind, immediate);
        kind
    }

    /// An operation is over that went well, and the slab has it: most do. Its connection is looked
    /// at where that may be what it waits for.
    #[inline]
    pub(super) fn on_one_sided_done(&mut self, context: usize, events: &mut Vec<E>) -> bool {
        let Ok(mut finished) = self.outbound.posted.one_sided.finish_in_place(context) else {
            return false;
        };
        let op = match finished.op() {
            Some(op) if !op.told => op,
            _ => {
                finished.keep();
                return false;
            }
        };
        self.outbound.outgoing.end_one_sided(op);
        let (id, window, event) = (op.connection, op.window, op.take());
        finished.clear_away();
        self.outbound.count_over(false);
        events.tell(told(id, event));
        if let Some(peer) = self.peers.get_mut(id) {
            peer.outbound.in_flight -= 1;
            peer.machine.on_window_done(window);
            let waits = peer.outbound.waits_alone() || peer.machine.is_window_revoked(window);
            if waits || peer.machine.state() != State::Established {
                self.touch(id);
            }
        }
        true
    }

    /// An operation is over.
    pub(super) fn on_one_sided(
        &mut self,
        mut op: OneSided,
        error: Option<CompletionError>,
        events: &mut Vec<E>,
    ) {
        let id = op.connection;
        if op.told {
            // The outcome was told when its connection ended.
            self.outbound.on_told_over(&mut op);
            if self.link.form() == Form::Rdm {
                self.on_orphan(id);
                if let Some(event) = op.give_back(None) {
                    events.tell(told(id, event));
                }
            }
            return;
        }
        if let Some(peer) = self.peers.get_mut(id) {
            peer.outbound.in_flight -= 1;
            peer.machine.on_window_done(op.window);
            if let Some(error) = &error {
                peer.machine.on_lost(Some(error.errno));
            }
            self.touch(id);
        }
        self.outbound.outgoing.end_one_sided(&mut op);
        self.outbound.on_operation_over(op, error, events);
    }

    /// The endpoint of a connection is closed, and the provider did not say what became of an
    /// operation.
    pub(super) fn on_unreported(
        &mut self,
        mut op: OneSided,
        error: CompletionError,
        events: &mut Vec<E>,
    ) {
        if op.told {
            return self.on_one_sided(op, Some(error), events);
        }
        let (id, rma) = (op.connection, self.link.limits().rma);
        self.outbound.outgoing.end_one_sided(&mut op);
        self.outbound.count_over(true);
        events.tell(told(id, op.finish_unreported(rma.as_ref(), error)));
    }

    /// The peer revoked one of its windows: the application hears of it, the machine of who still
    /// uses it.
    pub(super) fn on_window_revoked(
        &mut self,
        id: ConnectionId,
        window: WindowId,
        events: &mut Vec<E>,
    ) {
        events.tell(told(id, WindowEvent::Revoked { window }));
        let Some(peer) = self.peers.get_mut(id) else {
            return;
        };
        let (line, mut way) = outbound::way(&mut self.outbound, &mut self.link, (id, peer));
        let revoked = line
            .as_mut()
            .map(|line| line.operations.revoke(window, &mut way));
        let (over, passing) = revoked.unwrap_or_default();
        let uses = |op: &&OneSided| op.connection == id && op.window == window;
        let posted = self.outbound.posted.one_sided.iter().filter(uses).count();
        peer.outbound.in_flight -= over.len() as u32;
        peer.machine
            .window_in_use(window, (posted + passing) as u32);
        self.outbound.tell_over(over, events);
        self.touch(id);
    }

    /// Ends, or tells, what is late.
    pub(super) fn check_deadlines(&mut self, now: Instant, events: &mut Vec<E>) {
        let late = self.outbound.take_late(now, &mut self.peers);
        let (policy, limit) = (
            self.outbound.deadlines.policy,
            self.outbound.deadlines.limit(),
        );
        for LateOp {
            connection, key, ..
        } in late
        {
            if policy == DeadlinePolicy::Notify {
                events.tell(ReceiveEvent::Late { connection, key });
            } else if let (Some(peer), Some(deadline)) = (self.peers.get_mut(connection), limit) {
                peer.machine.abort(CloseReason::SendDeadline { deadline });
                self.touch(connection);
            }
        }
    }
}

pub(super) fn may_use<C>(peer: &Peer<C>, immediate: bool) -> Result<(), SendErrorKind> {
    let may = if immediate {
        peer.machine.may_send()
    } else {
        peer.machine.may_use_window()
    };
    may.map_err(|blocked| outgoing::refusal(blocked, peer.machine.close_reason()))
}
