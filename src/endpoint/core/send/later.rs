//! One-sided operations that can't be posted when they are given: behind a producer's event or a
//! copy out of a GPU's memory, piece by piece through the staging ring, or behind such a one. See
//! `core/line.rs`.

use super::SendCore;
use crate::buffer::Payload;
use crate::endpoint::core::line::{LineState, Over, Posting};
use crate::endpoint::error::{Blocked, Refused, SendErrorKind};
use crate::endpoint::event::SendEvent;
use crate::endpoint::link::iov::IovList;
use crate::endpoint::link::{Link, RemoteRange, RmaLimits};
use crate::endpoint::windows::destination::Destination;
use crate::endpoint::windows::later::{self, Later, TakesLater, Target};
use crate::endpoint::windows::one_sided::{self, How, Local, OneSided, OneSidedRequest};
use crate::endpoint::windows::passage::Piece;
use crate::endpoint::windows::window::WindowPlace;
use crate::error::CompletionError;
use crate::id::ConnectionId;
use crate::protocol::wire::WindowId;

impl<L: Link> SendCore<L> {
    // ---- accepting ------------------------------------------------------------------------------

    /// A write that can't be posted now for this reason: takes it all the same if it only has to
    /// wait, else gives everything back.
    #[cold]
    pub(super) fn write_later(
        &mut self,
        kind: SendErrorKind,
        payload: Payload,
        target: Target<'_>,
        key: u64,
    ) -> Result<(), Refused<Payload>> {
        let staged = self.outgoing.must_stage(&payload, self.scoped.scope());
        if !self.waits_behind(&kind) && !payload.is_gated() && staged == Ok(false) {
            return Err(self.refuse(kind, payload, key));
        }
        let (ring, scope) = (self.outgoing.ring().cloned(), self.scoped.scope());
        let max_bytes = self.max_bytes();
        let way = |payload| Later::of(ring.as_ref(), payload, scope, max_bytes);
        self.queue_write(payload, target, key, way)
            .map_err(|(kind, payload)| self.refuse(kind, payload, key))
    }

    /// The same of a read.
    #[cold]
    pub(super) fn read_later(
        &mut self,
        kind: SendErrorKind,
        into: Destination,
        place: WindowPlace<'_>,
        key: u64,
    ) -> Result<(), Refused<Destination>> {
        let staged = into.region().is_staged(self.scoped.scope());
        if !self.waits_behind(&kind) && !staged {
            return Err(self.refuse_read(kind, into, key));
        }
        let ring = self.outgoing.ring().cloned();
        let max_bytes = self.max_bytes();
        let slots = |into: &_| match staged {
            true => later::staged_read(ring.as_ref(), into, max_bytes).map(Some),
            false => Ok(None),
        };
        self.queue_read(into, place, key, slots)
            .map_err(|(kind, into)| self.refuse_read(kind, into, key))
    }

    /// Whether that only says that there are others in front of it.
    fn waits_behind(&self, kind: &SendErrorKind) -> bool {
        self.line.operations() != LineState::Open
            && *kind == SendErrorKind::WouldBlock(Blocked::Depth)
    }

    // ---- waiting --------------------------------------------------------------------------------

    /// A piece of a one-sided operation is over.
    pub(super) fn on_one_sided_piece(
        &mut self,
        piece: Piece,
        error: Option<CompletionError>,
        events: &mut Vec<SendEvent>,
    ) {
        if let Some(error) = &error {
            self.machine.on_lost(Some(error.errno));
        }
        self.line.on_piece(piece, error);
        self.drive_line(events);
    }

    /// An operation ended before all of it was posted. Its error does not close the connection.
    pub(super) fn on_line_over(&mut self, over: Over, events: &mut Vec<SendEvent>) {
        let Over { op, error } = over;
        self.data_in_flight -= 1;
        match &error {
            None => self.stats.completed += 1,
            Some(_) => self.stats.failed += 1,
        }
        // A revocation may wait for it, or who was refused.
        self.eventful = true;
        events.push(SendEvent::Window(op.finish(error)));
    }

    // ---- the end --------------------------------------------------------------------------------

    /// The connection is over, and the provider has nothing of these any more.
    pub(super) fn fail_line(
        &mut self,
        ops: Vec<OneSided>,
        error: &CompletionError,
        events: &mut Vec<SendEvent>,
    ) {
        for op in ops {
            self.stats.failed += 1;
            events.push(SendEvent::Window(op.finish(Some(error.clone()))));
        }
    }
}

impl<L: Link> TakesLater for SendCore<L> {
    type Link = L;

    fn rma_limits(&self) -> Option<RmaLimits> {
        self.link.limits().rma
    }

    fn admit_later(&self, wanted: &OneSidedRequest<'_>) -> Result<RemoteRange, SendErrorKind> {
        let rma = self.link.limits().rma.as_ref();
        // What can never be is said first: who is blocked tries again.
        let id = self.connection_id();
        let remote = one_sided::check_in_pieces(&self.machine, id, rma, wanted)?;
        self.may_operate(wanted.immediate)?;
        match self.data_in_flight < self.settings.depth {
            true => Ok(remote),
            false => Err(SendErrorKind::WouldBlock(Blocked::Depth)),
        }
    }

    fn posting(&mut self, _: ConnectionId) -> Option<Posting<'_, L>> {
        self.way().map(|(_, way)| way)
    }

    fn push_line(
        &mut self,
        _: ConnectionId,
        (key, window): (u64, WindowId),
        (local, recent): (Local, bool),
        iov: IovList,
        how: How,
    ) {
        let counted = self.machine.on_window_posted(how.immediate.is_some());
        debug_assert!(counted.is_ok(), "`admit_later` asked the same");
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
        let len = how.remote.len as u64;
        self.line.push_operation(op, iov, how);
        self.count_posted(len);
        // The next poll looks at the gate, or sets the timer.
        self.eventful = true;
        self.wait.wake();
    }
}
