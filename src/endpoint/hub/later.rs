//! What can't be posted when it is given: one-sided operations that have to wait, and the lines of
//! the connections, each of which holds back its own only.

use super::windows::may_use;
use super::{Hub, outbound};
use crate::buffer::Payload;
use crate::endpoint::core::line::{LineState, Posting};
use crate::endpoint::error::{Blocked, SendErrorKind, WindowError};
use crate::endpoint::event::ReceiveEvent;
use crate::endpoint::link::iov::IovList;
use crate::endpoint::link::{Link, RemoteRange, RmaLimits};
use crate::endpoint::staging::{StagingRing, staged_segment};
use crate::endpoint::windows::destination::Destination;
use crate::endpoint::windows::later::{self, Later, TakesLater, Target};
use crate::endpoint::windows::one_sided::{self, How, Local, OneSidedRequest};
use crate::endpoint::windows::passage::Piece;
use crate::endpoint::windows::window::WindowPlace;
use crate::error::CompletionError;
use crate::id::ConnectionId;
use crate::protocol::connection::State;
use crate::protocol::wire::WindowId;

impl<L: Link> Hub<L> {
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
        let ring = self.outbound.outgoing.ring().cloned();
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
        if !staged && !self.waits_behind(id, &kind) {
            return Err((kind, into));
        }
        let ring = self.outbound.outgoing.ring().cloned();
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
    pub(super) fn drive_lines(&mut self, events: &mut Vec<ReceiveEvent>) {
        for id in self.outbound.take_waiting() {
            self.drive_line(id, events);
        }
        self.outbound.retry |= self.outbound.pause(&self.peers).is_some();
    }

    fn drive_line(&mut self, id: ConnectionId, events: &mut Vec<ReceiveEvent>) {
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
        events: &mut Vec<ReceiveEvent>,
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
            line.on_piece(piece, error);
        }
        self.drive_line(id, events);
        self.outbound.retry |= self.outbound.pause(&self.peers).is_some();
    }
}

impl<L: Link> TakesLater for Hub<L> {
    type Link = L;

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
        self.outbound.has_room(&peer.outbound).map(|()| remote)
    }

    fn posting(&mut self, id: ConnectionId) -> Option<Posting<'_, L>> {
        let peer = self.peers.get_mut(id)?;
        Some(outbound::way(&mut self.outbound, &mut self.link, (id, peer)).1)
    }

    fn push_line(
        &mut self,
        id: ConnectionId,
        names: (u64, WindowId),
        local: (Local, bool),
        iov: IovList,
        how: How,
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
        own.open_line().push_operation(op, iov, how);
        self.outbound.count_accepted(own, len);
        self.outbound.count_waiting(id, own);
    }
}
