//! One-sided operations that can't be posted when they are given: behind a producer's event or a
//! copy out of a GPU's memory, piece by piece through the staging ring, or behind such a one. See
//! `windows/line.rs`.

use super::{PieceOp, SendCore};
use crate::buffer::{Leases, Payload};
use crate::endpoint::core::control::HeldDescriptor;
use crate::endpoint::event::SendEvent;
use crate::endpoint::id::ConnectionId;
use crate::endpoint::link::iov::IovList;
use crate::endpoint::link::{Link, RemoteRange, RmaLimits};
use crate::endpoint::protocol::connection::State;
use crate::endpoint::protocol::wire::WindowId;
use crate::endpoint::windows::destination::{Destination, DestinationRun, LeasedDestination};
use crate::endpoint::windows::later::{self, Later, TakesLater, Target};
use crate::endpoint::windows::line::{HoldsPiece, Over, Posting};
use crate::endpoint::windows::one_sided::{self, How, Local, OneSided, OneSidedRequest};
use crate::endpoint::windows::passage::{Piece, Slots};
use crate::endpoint::windows::window::WindowPlace;
use crate::error::{Blocked, CompletionError, Refused, SendErrorKind};

impl HoldsPiece for PieceOp {
    fn of_piece(piece: Piece) -> Self {
        Self::OneSided(piece)
    }

    fn into_piece(self) -> Option<Piece> {
        match self {
            Self::OneSided(piece) => Some(piece),
            Self::Long(_) => None,
        }
    }
}

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
        !self.line.is_open() && *kind == SendErrorKind::WouldBlock(Blocked::Depth)
    }

    // ---- waiting --------------------------------------------------------------------------------

    /// Posts what may be posted of those that wait.
    pub(super) fn drive_line(&mut self, events: &mut Vec<SendEvent>) {
        let connection = self.connection_id();
        let Some(conn) = &self.conn else { return };
        if self.machine.state() == State::Closed {
            // Its end is on the way, and gives them their outcomes.
            return;
        }
        let over = self.line.drive(Posting {
            link: &mut self.link,
            conn,
            connection,
            slab: &mut self.one_sided,
            pieces: &mut self.pieces,
        });
        if self.line.is_open() {
            self.one_sided_limit = self.settings.depth;
        }
        for over in over {
            self.on_line_over(over, events);
        }
    }

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

    /// An operation ended in the line. A connection that is lost is not lost by it.
    pub(super) fn on_line_over(&mut self, over: Over, events: &mut Vec<SendEvent>) {
        let Over {
            mut op,
            error,
            untold,
        } = over;
        self.outgoing.end_one_sided(&mut op);
        self.data_in_flight -= 1;
        if untold {
            self.machine.on_immediate_undone();
        }
        self.machine.on_window_done(op.window);
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
        self.one_sided_limit = self.settings.depth;
        for mut op in ops {
            self.outgoing.end_one_sided(&mut op);
            self.stats.failed += 1;
            events.push(SendEvent::Window(op.finish(Some(error.clone()))));
        }
    }
}

impl<L: Link> TakesLater for SendCore<L> {
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

    fn lease_wire(
        &mut self,
        _: ConnectionId,
        payload: &Payload,
        iov: &mut IovList,
    ) -> Result<(Leases, bool), SendErrorKind> {
        let (wire, conn) = (payload.wire(), self.conn.as_ref());
        self.outgoing.lease(wire, conn, &mut self.scoped, iov)
    }

    fn lease_into(
        &mut self,
        _: ConnectionId,
        into: Destination,
    ) -> Result<(LeasedDestination, DestinationRun, bool), (SendErrorKind, Destination)> {
        self.lease_destination(into)
    }

    fn hold(&mut self, _: ConnectionId, slots: &Slots) -> Result<HeldDescriptor, SendErrorKind> {
        later::hold_slots(slots, self.conn.as_ref(), &mut self.scoped)
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
            key,
            window,
            local,
            sequence: self.one_sided_posts,
            posted: self.posted_at(),
            told: false,
            recent,
        };
        let len = how.remote.len as u64;
        self.line.push(op, iov, how);
        self.one_sided_limit = 0;
        self.count_posted(len);
        // The next poll looks at the gate, or sets the timer.
        self.eventful = true;
        self.wait.wake();
    }
}
