//! `Line`: what was accepted on a connection and can't be posted yet, or not wholly: it waits for a
//! producer's event or a copy out of a GPU's memory, for room in the provider's queue, goes piece
//! by piece through slots of the host's memory, or is behind such a one.
//!
//! ```text
//!  accepted ─► waiting, in order ─ its gate is open, it is the first
//!                │
//!                ├─► posted as a whole: the slab has it
//!                └─► posted piece by piece ─► passing, until all pieces are over
//! ```
//!
//! Each is counted when it is accepted, as one that is posted at once: in flight, with its credit
//! if it takes one, and its deadline. Messages are posted in the order in which they were given,
//! and so are one-sided operations; neither waits for the other. A message lies in the slab while
//! it waits, an operation here. What ends here without having been posted has touched nothing of
//! the peer's.

#![allow(unsafe_code)]

mod messages;
mod operations;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::buffer::{GateError, Payload};
use crate::endpoint::error::SendErrorKind;
use crate::endpoint::hub::control::{CONTROL_RETRY, GATE_RETRY};
use crate::endpoint::hub::data_op::DataOp;
use crate::endpoint::hub::headers::Header;
use crate::endpoint::hub::long_send::LongSend;
use crate::endpoint::hub::posted::TimedOp;
use crate::endpoint::hub::posting::Posting;
use crate::endpoint::link::Link;
use crate::endpoint::link::iov::IovList;
use crate::endpoint::windows::one_sided::OneSided;
use crate::error::{CompletionError, FabricErrno};

pub(crate) use messages::{MessageLine, ReadyMessage};
pub(crate) use operations::OperationLine;

/// Closed gates that are looked at in one go. Copies are done in their order, so looking further
/// brings little; those behind begin theirs in time.
const GATES_AHEAD: usize = 16;

/// Pieces of one-sided operations that an endpoint has in flight at once, at most.
pub(crate) const PIECES_IN_FLIGHT: u32 = 16;

/// Whether what is given now may be posted at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LineState {
    /// Nothing is in front of it.
    Open,
    /// Others are, for which the provider had no room.
    Full,
    /// Others are, one of which waits for an event or a copy.
    Gated,
}

/// A one-sided operation that ended in the line: it was never posted, or went piece by piece. Its
/// connection counts it no more.
#[derive(Debug)]
pub(crate) struct Over {
    pub(crate) op: OneSided,
    pub(crate) error: Option<CompletionError>,
}

/// What became of a line that was looked at.
#[derive(Default)]
pub(crate) struct Driven {
    /// Messages that were never posted, and never will be.
    pub(crate) unposted: Vec<(DataOp, CompletionError)>,
    pub(crate) over: Vec<Over>,
}

/// One that waits.
struct Waiting<T> {
    what: T,
    /// The segments of a message that is posted as a whole.
    iov: IovList,
    /// Its gate is.
    open: bool,
}

// SAFETY: addresses and descriptors of what the operation holds, here or in the slab, which goes to
// another thread together with this; only the link reads them.
unsafe impl<T: Send> Send for Waiting<T> {}

/// What waits, in the order in which it was given.
struct Queue<T>(VecDeque<Waiting<T>>);

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<T> Queue<T> {
    #[inline]
    fn state(&self) -> LineState {
        match self.0.is_empty() {
            true => LineState::Open,
            false if self.has_closed() => LineState::Gated,
            false => LineState::Full,
        }
    }

    fn has_closed(&self) -> bool {
        self.0.iter().any(|waiting| !waiting.open)
    }

    /// Asks the gates of the first ones, by `poll`, which is told whether others in front of one
    /// are closed: what is under way is not asked about then. The place of the first that will not
    /// open, and why.
    fn poll_gates(
        &mut self,
        mut poll: impl FnMut(&mut T, bool) -> Result<bool, GateError>,
    ) -> Option<(usize, CompletionError)> {
        let (mut asked, mut behind) = (0, false);
        for (at, waiting) in self.0.iter_mut().enumerate() {
            if waiting.open {
                continue;
            }
            if asked == GATES_AHEAD {
                break;
            }
            asked += 1;
            match poll(&mut waiting.what, behind) {
                Ok(open) => waiting.open = open,
                Err(error) => return Some((at, CompletionError::gate(&error))),
            }
            behind |= !waiting.open;
        }
        None
    }

    /// The first, if it may be posted.
    fn pop_open(&mut self) -> Option<Waiting<T>> {
        match self.0.front()?.open {
            true => self.0.pop_front(),
            false => None,
        }
    }
}

/// The line of one connection.
#[derive(Default)]
pub(crate) struct Line {
    pub(crate) messages: MessageLine,
    pub(crate) operations: OperationLine,
    /// The long message that is under way.
    long: Option<Box<LongSend>>,
}

impl Line {
    pub(crate) fn is_empty(&self) -> bool {
        self.messages.is_empty() && self.operations.is_empty() && self.long.is_none()
    }

    /// How long until it is to be looked at again, if nobody else says so.
    pub(crate) fn pause(&self) -> Option<Duration> {
        let gated = self.messages.has_closed() || self.operations.is_gated();
        let long = self.long.as_ref();
        if gated || long.is_some_and(|long| long.is_copying()) {
            return Some(GATE_RETRY);
        }
        let waits = !self.messages.is_empty() || self.operations.wants_retry();
        (waits || long.is_some_and(|long| long.wants_retry())).then_some(CONTROL_RETRY)
    }

    // ---- the long message -----------------------------------------------------------------------

    pub(crate) fn long(&self) -> Option<&LongSend> {
        self.long.as_deref()
    }

    /// Keys of what lies here, messages in the slab not counted.
    pub(crate) fn keys(&self) -> impl Iterator<Item = u64> {
        let long = self.long.iter().map(|long| long.key);
        self.operations.ops().map(|op| op.key).chain(long)
    }

    /// When each of them was given, where that is still of interest.
    pub(crate) fn posted_at(&self) -> impl Iterator<Item = Option<Instant>> {
        let long = self.long.iter().map(|long| long.posted);
        self.operations.ops().map(|op| op.posted).chain(long)
    }

    /// Offers a message to the peer that is too long for a receive, or gives everything back. There
    /// is no other one: the machine sees to that.
    #[cold]
    pub(crate) fn offer_long<L: Link>(
        &mut self,
        way: &mut Posting<'_, L>,
        message: (Payload, Header<'_>, u64, u64),
        posted: Option<Instant>,
    ) -> Result<(), (SendErrorKind, Payload)> {
        self.long = Some(LongSend::offer(way, message, posted)?);
        Ok(())
    }

    /// The peer says where the message is to be.
    pub(crate) fn on_long_granted<L: Link>(
        &mut self,
        target: (u64, u64),
        way: &mut Posting<'_, L>,
    ) {
        if let Some(long) = &mut self.long {
            long.on_granted(target, way);
        }
    }

    /// A piece of it is over. True: it was the last one.
    pub(crate) fn on_long_piece<L: Link>(
        &mut self,
        error: Option<FabricErrno>,
        way: &mut Posting<'_, L>,
    ) -> bool {
        let long = self.long.as_mut();
        long.is_some_and(|long| long.on_piece(error, way))
    }

    /// It is over, or its connection is: then the provider may have pieces of it.
    pub(crate) fn take_long(&mut self) -> Option<Box<LongSend>> {
        self.long.take()
    }
    // ---- all of them ----------------------------------------------------------------------------

    /// What has a deadline, and lies in no slab.
    pub(crate) fn timed(&mut self) -> impl Iterator<Item = TimedOp<'_>> {
        let long = self.long.iter_mut().map(|long| long.timed());
        self.operations.timed().chain(long)
    }

    /// Posts what may be posted, and gives what is over.
    pub(crate) fn drive<L: Link>(&mut self, way: &mut Posting<'_, L>) -> Driven {
        let mut driven = Driven::default();
        self.messages.post_open(way, &mut driven);
        self.operations.post_open(way, &mut driven);
        if let Some(long) = self.long.as_mut().filter(|long| long.wants_retry()) {
            long.write(way);
        }
        driven
    }
}
