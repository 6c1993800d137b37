//! One-sided operations that can't be posted when they are given, as those of an endpoint with one
//! connection (`send/later.rs`): each connection has a line of its own (`windows/line.rs`), and
//! holds back its own operations only.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::windows::{may_use, told};
use super::{Hub, Operation};
use crate::buffer::{Leases, Payload, WakerId};
use crate::endpoint::core::control::HeldDescriptor;
use crate::endpoint::core::outgoing;
use crate::endpoint::error::WindowError;
use crate::endpoint::error::{Blocked, SendErrorKind};
use crate::endpoint::event::ReceiveEvent;
use crate::endpoint::id::ConnectionId;
use crate::endpoint::link::iov::IovList;
use crate::endpoint::link::{Link, RemoteRange, RmaLimits};
use crate::endpoint::protocol::connection::{CloseReason, State};
use crate::endpoint::protocol::wire::WindowId;
use crate::endpoint::staging::{StagingRing, staged_segment};
use crate::endpoint::windows::destination::{Destination, DestinationRun, LeasedDestination};
use crate::endpoint::windows::later::{self, Later, TakesLater, Target};
use crate::endpoint::windows::line::{HoldsOneSided, Line, Over, PIECES_IN_FLIGHT, Posting};
use crate::endpoint::windows::one_sided::{self, How, Local, OneSided, OneSidedRequest};
use crate::endpoint::windows::passage::{Piece, Slots};
use crate::endpoint::windows::window::WindowPlace;
use crate::error::CompletionError;
use crate::in_flight::{ContextKind, InFlight};

/// What waits at an endpoint, and what it goes through.
pub(super) struct LaterOps {
    lines: HashMap<ConnectionId, Line>,
    pub(super) pieces: InFlight<Piece>,
    /// With the endpoint's waker at it.
    staging: Option<(StagingRing, WakerId)>,
    /// Connections on which an operation was refused, as no slot was free.
    starved: Vec<ConnectionId>,
}

impl LaterOps {
    pub(super) fn new(contexts: ContextKind) -> Self {
        Self {
            lines: HashMap::new(),
            pieces: InFlight::third(PIECES_IN_FLIGHT, contexts),
            staging: None,
            starved: Vec::new(),
        }
    }

    fn ring(&self) -> Option<&StagingRing> {
        self.staging.as_ref().map(|(ring, _)| ring)
    }

    /// Whether what is given now on a connection has to wait behind others.
    fn has_line(&self, id: ConnectionId) -> bool {
        self.lines.get(&id).is_some_and(|line| !line.is_open())
    }

    /// Whether nothing waits on any connection.
    fn is_open(&self) -> bool {
        self.lines.values().all(Line::is_open)
    }

    pub(super) fn ops_mut(&mut self) -> impl Iterator<Item = (ConnectionId, &mut OneSided)> {
        let lines = self.lines.iter_mut();
        lines.flat_map(|(&id, line)| line.ops_mut().map(move |op| (id, op)))
    }

    pub(super) fn revoke(&mut self, id: ConnectionId, window: WindowId) -> (Vec<Over>, usize) {
        let line = self.lines.get_mut(&id);
        line.map(|line| line.revoke(window)).unwrap_or_default()
    }

    /// How long until it is to be looked at again, if nobody else says so.
    pub(super) fn pause(&self) -> Option<Duration> {
        self.lines.values().filter_map(Line::pause).min()
    }

    /// Whether a slot of the ring is free; if none is, the endpoint is woken when one is.
    fn has_slot(&self) -> bool {
        let staging = self.staging.as_ref();
        staging.is_none_or(|(ring, waker)| ring.free_slots() > 0 || ring.arm(*waker))
    }

    fn pieces_of(&self, id: ConnectionId) -> u32 {
        let of = |piece: &&Piece| piece.connection == id;
        self.pieces.iter().filter(of).count() as u32
    }
}

impl HoldsOneSided for (ConnectionId, Operation) {
    fn of_one_sided(connection: ConnectionId, op: OneSided) -> Self {
        (connection, Operation::OneSided(op))
    }

    fn into_one_sided(self) -> Option<OneSided> {
        match self.1 {
            Operation::OneSided(op) => Some(op),
            Operation::Data { .. } => None,
        }
    }
}

impl<L: Link> Hub<L> {
    /// The ring that one-sided operations are staged in.
    pub(crate) fn stage_in(&mut self, ring: &StagingRing) {
        let waker = Arc::clone(&self.wait);
        let waker = ring.add_waker(Arc::new(move || waker.wake()));
        self.account.later.staging = Some((ring.clone(), waker));
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
        let (place, data, level) = target;
        let id = place.window.connection();
        let Some(scope) = self.scope_of(id) else {
            return Err((kind, payload));
        };
        let waits = payload.is_gated() || staged_segment(&payload, scope).is_some();
        if !waits && !self.is_held_back(&kind) {
            return Err((kind, payload));
        }
        if !waits && !self.account.later.has_line(id) {
            let wanted = OneSidedRequest::write(place, &payload, data.is_some());
            return match self.admit_later(&wanted) {
                Ok(remote) => {
                    let how = How::write(remote, place, data, level);
                    self.post_write(id, payload, place.window.id(), &how, key)
                }
                Err(kind) => Err((kind, payload)),
            };
        }
        let ring = self.account.later.ring().cloned();
        let max_bytes = self.max_bytes();
        let way = |payload| Later::of(ring.as_ref(), payload, scope, max_bytes);
        self.queue_write(payload, target, key, way)
    }

    /// The same of a read.
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
        if !staged && !self.is_held_back(&kind) {
            return Err((kind, into));
        }
        if !staged && !self.account.later.has_line(id) {
            return match self.admit_later(&OneSidedRequest::read(place, &into)) {
                Ok(remote) => self.post_read(id, into, place.window.id(), remote, key),
                Err(kind) => Err((kind, into)),
            };
        }
        let ring = self.account.later.ring().cloned();
        let max_bytes = self.max_bytes();
        let slots = |into: &_| match staged {
            true => later::staged_read(ring.as_ref(), into, max_bytes).map(Some),
            false => Ok(None),
        };
        self.queue_read(into, place, key, slots)
    }

    /// Whether that may only say that others wait, on some connection.
    fn is_held_back(&self, kind: &SendErrorKind) -> bool {
        self.account.limit == 0 && *kind == SendErrorKind::WouldBlock(Blocked::Depth)
    }

    // ---- waiting --------------------------------------------------------------------------------

    /// Posts what may be posted of what waits, on all connections.
    pub(super) fn drive_lines(&mut self, events: &mut Vec<ReceiveEvent>) {
        if self.account.later.lines.is_empty() {
            return;
        }
        let ids: Vec<_> = self.account.later.lines.keys().copied().collect();
        for id in ids {
            self.drive_line(id, events);
        }
        self.retry |= self.account.later.pause().is_some();
    }

    fn drive_line(&mut self, id: ConnectionId, events: &mut Vec<ReceiveEvent>) {
        let (later, peer) = (&mut self.account.later, self.peers.get_mut(id));
        let (Some(line), Some(peer)) = (later.lines.get_mut(&id), peer) else {
            return;
        };
        if peer.machine.state() == State::Closed {
            // Its end is on the way, and gives them their outcomes.
            return;
        }
        let over = line.drive(Posting {
            link: &mut self.link,
            conn: &peer.link,
            connection: id,
            slab: &mut self.operations,
            pieces: &mut later.pieces,
        });
        if line.is_empty() {
            later.lines.remove(&id);
        }
        self.reopen();
        self.on_line_over(id, over, events);
    }

    fn reopen(&mut self) {
        if self.account.later.is_open() {
            self.account.limit = self.settings.windows.operations;
        }
    }

    /// A piece of a one-sided operation is over.
    pub(super) fn on_one_sided_piece(
        &mut self,
        piece: Piece,
        error: Option<CompletionError>,
        events: &mut Vec<ReceiveEvent>,
    ) {
        let id = piece.connection;
        let Some(peer) = self.peers.get_mut(id) else {
            // Its operation had its outcome when the connection ended.
            return self.on_orphan(id);
        };
        if let Some(error) = &error {
            peer.machine.on_lost(Some(error.errno));
            self.touch(id);
        }
        if let Some(line) = self.account.later.lines.get_mut(&id) {
            line.on_piece(piece, error);
        }
        self.drive_line(id, events);
        self.retry |= self.account.later.pause().is_some();
    }

    /// Operations ended in a line. A connection is not lost by that.
    pub(super) fn on_line_over(
        &mut self,
        id: ConnectionId,
        over: Vec<Over>,
        events: &mut Vec<ReceiveEvent>,
    ) {
        for Over { op, error, untold } in over {
            self.account.in_flight -= 1;
            if let Some(peer) = self.peers.get_mut(id) {
                if untold {
                    peer.machine.on_immediate_undone();
                }
                peer.machine.on_window_done(op.window);
                self.touch(id);
            }
            match &error {
                None => self.stats.completed += 1,
                Some(_) => self.stats.failed += 1,
            }
            events.push(told(id, op.finish(error)));
        }
    }

    // ---- back-pressure --------------------------------------------------------------------------

    /// An operation was refused, as no slot of the ring is free.
    pub(super) fn wait_for_slot(&mut self, id: ConnectionId) {
        let later = &mut self.account.later;
        if !later.starved.contains(&id) {
            later.starved.push(id);
        }
        if later.has_slot() {
            self.wait.wake();
        }
    }

    /// Tells those that were refused for want of a slot that there is one.
    pub(super) fn tell_starved(&mut self, events: &mut Vec<ReceiveEvent>) {
        let later = &mut self.account.later;
        if later.starved.is_empty() || !later.has_slot() {
            return;
        }
        for id in std::mem::take(&mut later.starved) {
            if self.peers.get(id).is_some() {
                events.push(ReceiveEvent::Writable { connection: id });
            }
        }
    }

    // ---- the end --------------------------------------------------------------------------------

    /// The connection is over, and the provider has nothing of what waits but slots: outcomes are
    /// told.
    pub(super) fn fail_line(
        &mut self,
        id: ConnectionId,
        reason: CloseReason,
        events: &mut Vec<ReceiveEvent>,
    ) {
        let Some(mut line) = self.account.later.lines.remove(&id) else {
            return;
        };
        self.reopen();
        for op in line.end() {
            self.account.in_flight -= 1;
            self.stats.failed += 1;
            events.push(told(id, op.finish(Some(CompletionError::ended(reason)))));
        }
    }

    /// RDM form: pieces that the provider has of a connection that is over.
    pub(super) fn orphan_pieces(&self, id: ConnectionId) -> u32 {
        self.account.later.pieces_of(id)
    }

    /// The provider's endpoint is closed: what pieces hold is free.
    pub(super) fn drop_pieces(&mut self, of: Option<ConnectionId>) {
        let rma = self.link.limits().rma;
        let is_of = |piece: &Piece| of.is_none_or(|id| piece.connection == id);
        for piece in self.account.later.pieces.take_where(is_of) {
            one_sided::drop_piece(piece, rma.as_ref());
        }
    }

    /// The provider may use the slots for ever.
    pub(super) fn leak_pieces(&mut self) {
        let empty = InFlight::third(0, ContextKind::Opaque);
        std::mem::forget(std::mem::replace(&mut self.account.later.pieces, empty));
    }

    /// The endpoint is dropped.
    pub(super) fn leave_staging(&mut self) {
        if let Some((ring, waker)) = self.account.later.staging.take() {
            ring.remove_waker(waker);
        }
    }
}

impl<L: Link> TakesLater for Hub<L> {
    fn rma_limits(&self) -> Option<RmaLimits> {
        self.link.limits().rma
    }

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
        match self.account.is_full(self.settings.windows.operations) {
            true => Err(SendErrorKind::WouldBlock(Blocked::Depth)),
            false => Ok(remote),
        }
    }

    fn lease_wire(
        &mut self,
        id: ConnectionId,
        payload: &Payload,
        iov: &mut IovList,
    ) -> Result<(Leases, bool), SendErrorKind> {
        let peer = self.peers.get_mut(id).ok_or(SendErrorKind::NoConnection)?;
        let link = Some(&peer.link);
        let leases = outgoing::lease_each(payload.wire(), link, &mut peer.scoped, iov);
        leases.map(|leases| (leases, false))
    }

    fn lease_into(
        &mut self,
        id: ConnectionId,
        into: Destination,
    ) -> Result<(LeasedDestination, DestinationRun, bool), (SendErrorKind, Destination)> {
        let (into, run) = self.lease_destination(id, into)?;
        Ok((into, run, false))
    }

    fn hold(&mut self, id: ConnectionId, slots: &Slots) -> Result<HeldDescriptor, SendErrorKind> {
        let peer = self.peers.get_mut(id).ok_or(SendErrorKind::NoConnection)?;
        later::hold_slots(slots, Some(&peer.link), &mut peer.scoped)
    }

    fn push_line(
        &mut self,
        id: ConnectionId,
        (key, window): (u64, WindowId),
        (local, _): (Local, bool),
        iov: IovList,
        how: How,
    ) {
        let op = self.one_sided_op(key, window, local);
        if let Some(peer) = self.peers.get_mut(id) {
            let counted = peer.machine.on_window_posted(how.immediate.is_some());
            debug_assert!(counted.is_ok(), "`admit_later` asked the same");
        }
        let line = self.account.later.lines.entry(id).or_default();
        line.push(op, iov, how);
        self.account.limit = 0;
        self.count_one_sided_posted();
        self.retry = true;
        // The next poll looks at the gate, and sets the timer.
        self.wait.wake();
    }
}
