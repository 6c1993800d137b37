//! `Posted`: what an endpoint has posted for its application, in a slab for each kind, on all of
//! its connections.

use std::time::Instant;

use crate::buffer::Payload;
use crate::endpoint::hub::data_op::DataOp;
use crate::endpoint::hub::frames::PackedMessage;
use crate::endpoint::hub::long_send::LongSend;
use crate::endpoint::hub::outgoing::Outgoing;
use crate::endpoint::hub::pair::HeaderOp;
use crate::endpoint::link::RmaLimits;
use crate::endpoint::windows::one_sided::{self, OneSided};
use crate::endpoint::windows::staged_transfer::Piece;
use crate::id::ConnectionId;
use crate::in_flight::{ContextKind, InFlight};

/// A message in flight, or a part of one.
pub(crate) enum MessageOp {
    Data(DataOp),
    /// The header of a message whose payload follows in another.
    Header(HeaderOp),
}

impl MessageOp {
    pub(crate) fn data(&self) -> Option<&DataOp> {
        match self {
            Self::Data(op) => Some(op),
            Self::Header(_) => None,
        }
    }

    pub(crate) fn into_data(self) -> Option<DataOp> {
        match self {
            Self::Data(op) => Some(op),
            Self::Header(_) => None,
        }
    }

    pub(crate) fn connection(&self) -> ConnectionId {
        match self {
            Self::Data(op) => op.connection,
            Self::Header(op) => op.connection,
        }
    }
}

/// A piece in flight, with what it holds.
pub(crate) enum PieceOp {
    Long(LongPiece),
    OneSided(Piece),
}

impl PieceOp {
    fn connection(&self) -> ConnectionId {
        match self {
            Self::Long(piece) => piece.connection,
            Self::OneSided(piece) => piece.connection,
        }
    }
}

/// A piece of the long message of a connection, which has one at most.
pub(crate) struct LongPiece {
    pub(crate) connection: ConnectionId,
    /// Where its bytes are; empty, where the message itself has them.
    pub(crate) held: Payload,
}

/// A long message whose connection is over, and of which the provider has pieces.
pub(crate) struct OrphanedLong {
    pub(crate) send: Box<LongSend>,
    /// Its outcome was told.
    pub(crate) told: bool,
}

/// What has a deadline: which it is, and when it was posted.
pub(crate) struct TimedOp<'a> {
    pub(crate) connection: ConnectionId,
    pub(crate) sequence: u64,
    pub(crate) key: u64,
    /// Messages of the same frame, behind the first.
    pub(crate) others: &'a [PackedMessage],
    pub(crate) posted: &'a mut Option<Instant>,
}

impl DataOp {
    fn timed(&mut self) -> TimedOp<'_> {
        let packed = self.packed.as_deref();
        let first = packed.and_then(|packed| packed.split_first());
        let (first, others) =
            first.map_or((None, &[][..]), |(first, others)| (Some(first), others));
        TimedOp {
            connection: self.connection,
            sequence: self.sequence,
            key: first.map_or(self.key, |first| first.key),
            others,
            posted: &mut self.posted,
        }
    }
}

impl OneSided {
    pub(crate) fn timed(&mut self) -> TimedOp<'_> {
        TimedOp {
            connection: self.connection,
            sequence: self.sequence,
            key: self.key,
            others: &[],
            posted: &mut self.posted,
        }
    }
}

/// The slabs. They are beside the one that an endpoint has for its receives and control messages:
/// no context is of two of them.
pub(crate) struct Posted {
    pub(crate) messages: InFlight<MessageOp>,
    pub(crate) one_sided: InFlight<OneSided>,
    pub(crate) pieces: InFlight<PieceOp>,
    /// What some of the pieces are of, where no connection has it any more.
    pub(crate) orphans: Vec<OrphanedLong>,
}

impl Posted {
    /// Slabs for so many of each kind.
    pub(crate) fn new(messages: u32, one_sided: u32, pieces: u32, contexts: ContextKind) -> Self {
        Self {
            messages: InFlight::fourth(messages, contexts),
            one_sided: InFlight::second(one_sided, contexts),
            pieces: InFlight::third(pieces, contexts),
            orphans: Vec::new(),
        }
    }

    /// How many posts there can be.
    pub(crate) fn capacity(&self) -> u64 {
        let (messages, one_sided) = (self.messages.capacity(), self.one_sided.capacity());
        (messages + one_sided + self.pieces.capacity()) as u64
    }

    /// How many posts the provider has not reported.
    pub(crate) fn len(&self) -> usize {
        self.messages.len() + self.one_sided.len() + self.pieces.len()
    }

    /// The message with this context.
    #[inline(always)]
    pub(crate) fn data(&mut self, context: usize) -> Option<&mut DataOp> {
        match self.messages.get_mut(context) {
            Some(MessageOp::Data(op)) => Some(op),
            Some(MessageOp::Header(_)) | None => None,
        }
    }

    /// Messages whose outcome was not told.
    pub(crate) fn sends(&self) -> impl Iterator<Item = &DataOp> + Clone {
        let data = self.messages.iter().filter_map(MessageOp::data);
        data.filter(|op| !op.told)
    }

    /// All whose outcome was not told.
    pub(crate) fn timed(&mut self) -> impl Iterator<Item = TimedOp<'_>> {
        let messages = self.messages.iter_mut().filter_map(|op| match op {
            MessageOp::Data(op) if !op.told => Some(op.timed()),
            MessageOp::Data(_) | MessageOp::Header(_) => None,
        });
        let one_sided = self.one_sided.iter_mut().filter(|op| !op.told);
        let orphans = self.orphans.iter_mut().filter(|orphan| !orphan.told);
        let orphans = orphans.map(|orphan| orphan.send.timed());
        let operations = one_sided.map(OneSided::timed);
        messages.chain(operations).chain(orphans)
    }

    /// A header that was not posted is none any more.
    pub(crate) fn abort_header(&mut self, context: usize, outgoing: &Outgoing) {
        if let MessageOp::Header(op) = self.messages.abort(context) {
            outgoing.end_header(self.on_header(op).0);
        }
    }

    /// Posts of one connection that the provider has not reported.
    pub(crate) fn count_of(&self, id: ConnectionId) -> u32 {
        let messages = self.messages.iter().filter(|op| op.connection() == id);
        let one_sided = self.one_sided.iter().filter(|op| op.connection == id);
        let pieces = self.pieces.iter().filter(|piece| piece.connection() == id);
        (messages.count() + one_sided.count() + pieces.count()) as u32
    }

    /// The provider's endpoint is closed: the messages that it did not report, of one connection or
    /// of all, in the order in which they were posted.
    pub(crate) fn take_messages(
        &mut self,
        of: Option<ConnectionId>,
        outgoing: &Outgoing,
    ) -> Vec<DataOp> {
        let is_of = |op: &MessageOp| of.is_none_or(|id| op.connection() == id);
        let mut messages = Vec::new();
        for op in self.messages.take_where(is_of) {
            match op {
                MessageOp::Data(op) => messages.push(op),
                MessageOp::Header(op) => outgoing.end_header(op.into_slot()),
            }
        }
        messages.sort_unstable_by_key(|op| op.sequence);
        messages
    }

    /// Takes the one-sided operations out.
    pub(crate) fn take_one_sided(&mut self, of: Option<ConnectionId>) -> Vec<OneSided> {
        let is_of = |op: &OneSided| of.is_none_or(|id| op.connection == id);
        let mut operations = self.one_sided.take_where(is_of);
        operations.sort_unstable_by_key(|op| op.sequence);
        operations
    }

    /// The provider's endpoint is closed: what pieces hold is free.
    pub(crate) fn drop_pieces(&mut self, of: Option<ConnectionId>, rma: Option<&RmaLimits>) {
        let is_of = |piece: &PieceOp| of.is_none_or(|id| piece.connection() == id);
        for piece in self.pieces.take_where(is_of) {
            if let PieceOp::OneSided(piece) = piece {
                one_sided::drop_piece(piece, rma);
            }
        }
    }

    /// The connection of a long message is over, and the provider has pieces of it: it stays until
    /// they are over, or the provider's endpoint is closed.
    pub(crate) fn adopt_long(&mut self, send: Box<LongSend>) {
        self.orphans.push(OrphanedLong { send, told: false });
    }

    /// A piece is over whose connection was over before. Gives the message with its last one.
    pub(crate) fn on_orphaned_piece(&mut self, id: ConnectionId) -> Option<OrphanedLong> {
        let is_of = |orphan: &OrphanedLong| orphan.send.connection() == id;
        let at = self.orphans.iter().position(is_of)?;
        let orphan = &mut self.orphans[at];
        orphan.send.on_orphaned_piece();
        (!orphan.send.has_pieces()).then(|| self.orphans.swap_remove(at))
    }

    /// The provider's endpoint is closed: the long messages of which it had pieces, of one
    /// connection or of all.
    pub(crate) fn take_orphans(&mut self, of: Option<ConnectionId>) -> Vec<OrphanedLong> {
        let is_of = |orphan: &mut OrphanedLong| of.is_none_or(|id| orphan.send.connection() == id);
        self.orphans.extract_if(.., is_of).collect()
    }

    /// The provider may use all that is here for ever: it is leaked, the cells that it writes to
    /// included.
    pub(crate) fn leak(&mut self) {
        let empty = Self::new(0, 0, 0, ContextKind::Opaque);
        std::mem::forget(std::mem::replace(self, empty));
    }
}
