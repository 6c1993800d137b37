//! What a `SendEndpointBuffered` reports, and how it refuses.

use std::fmt;

use crate::buffer::Buffer;
use crate::coalesce::Format;
use crate::endpoint::error::{Blocked, Refused, SendErrorKind};
use crate::endpoint::event::ConnectionEvent;
use crate::error::{CompletionError, Forked};
use crate::protocol::close_reason::{CloseReason, Over};

/// What one network buffer carried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Carried {
    /// Small messages, by the numbers that `push` gave them: `first` to `first + count - 1`.
    Messages {
        /// The number of the first one.
        first: u64,
        /// How many.
        count: u64,
    },
    /// A whole buffer of the caller's.
    Buffer {
        /// The key that was given to `send_buffer`.
        key: u64,
    },
}

impl Carried {
    /// The number of small messages; 0 for a whole buffer.
    pub fn messages(self) -> u64 {
        match self {
            Self::Messages { count, .. } => count,
            Self::Buffer { .. } => 0,
        }
    }
}

/// What happened at a [`SendEndpointBuffered`](crate::SendEndpointBuffered).
#[derive(Debug)]
#[non_exhaustive]
pub enum BufferedEvent {
    /// Something happened to the connection; messages are taken while it stands.
    Connection(ConnectionEvent),
    /// A buffer is sent, with everything in it.
    Completed {
        /// The messages, or the whole buffer's key.
        carried: Carried,
        /// The buffer; dropped, it goes back to its pool.
        buffer: Option<Buffer>,
    },
    /// A buffer failed, or will never be sent, with everything in it.
    Failed {
        /// The messages, or the whole buffer's key.
        carried: Carried,
        /// The buffer, with the packed messages: [`SmallMessages`](crate::coalesce::SmallMessages)
        /// reads them. `None` if it had to be leaked because the provider would not close.
        buffer: Option<Buffer>,
        /// Why.
        error: BufferError,
    },
    /// A buffer has not completed within its deadline (advice, not an outcome; see
    /// [`DeadlinePolicy::Notify`](crate::endpoint::DeadlinePolicy::Notify)).
    Late {
        /// The messages, or the whole buffer's key.
        carried: Carried,
    },
    /// What blocked a refused push or buffer has passed.
    Writable,
}

/// Why a buffer failed that was accepted.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BufferError {
    /// It was sent, and the provider says that it failed.
    #[error(transparent)]
    Completion(CompletionError),
    /// It was packed and could never be sent; mostly because the connection ended first.
    #[error("not sent: {0}")]
    Refused(SendErrorKind),
}

fabricast_process::debug_as_words!(BufferError);

/// Whose limit a small message exceeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SmallMessageLimit {
    /// The size of the endpoint's buffers (setting `buffer_size`).
    Buffer,
    /// The peer's receive buffers, which are smaller.
    Peer,
    /// What the format can express.
    Format,
}

impl fmt::Display for SmallMessageLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Buffer => "a buffer (setting `buffer_size`) takes",
            Self::Peer => "the peer's receive buffers take",
            Self::Format => "the format takes",
        })
    }
}

impl SmallMessageLimit {
    /// Whether a message fits an empty buffer of `size` bytes, of which `limit` are used; the most
    /// that does.
    pub(crate) fn check_len(
        format: Format,
        (size, limit): (usize, usize),
        (tag, status, len): (u64, u8, usize),
    ) -> Result<usize, PushError> {
        let room = limit.saturating_sub(format.buffer_header());
        let head = format.first_message(tag, status, 0);
        let max = room.saturating_sub(head).min(format.max_message());
        if len <= max && head <= room {
            return Ok(max);
        }
        let whose = if max == format.max_message() {
            Self::Format
        } else if limit < size {
            Self::Peer
        } else {
            Self::Buffer
        };
        Err(PushError::TooLong { len, max, whose })
    }
}

/// Why a small message was refused. Nothing of it was packed.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PushError {
    /// Not now; back-pressure, not a failure. The endpoint's event `Writable` says when.
    #[error("would block: {0}")]
    WouldBlock(Blocked),
    /// It does not fit an empty buffer. Send it through a
    /// [`SendEndpointZeroCopy`](crate::SendEndpointZeroCopy), or take larger buffers.
    #[error(
        "a small message of {len} bytes, {whose} {max} with its tag and status: take larger \
         buffers, or send it through a SendEndpointZeroCopy"
    )]
    TooLong {
        /// Bytes given.
        len: usize,
        /// Bytes that fit, with this tag and status.
        max: usize,
        /// Whose limit it is.
        whose: SmallMessageLimit,
    },
    /// A segment of the payload is memory of the host that others may write to, a slice of a region
    /// or a fragment of a ring: push its bytes.
    #[error("segment {segment} is memory of the host that others may write to: push its bytes")]
    NotCopied {
        /// Which segment, from 0.
        segment: usize,
    },
    /// Nobody has subscribed to the tag; of a
    /// [`PublishEndpointBuffered`](crate::PublishEndpointBuffered) only.
    #[error(
        "nobody has subscribed to tag {tag}: push it again when `Subscribed` says that one has"
    )]
    NoSubscribers {
        /// The tag.
        tag: u64,
    },
    /// One of the two sides is saying goodbye: nothing new is taken.
    #[error(
        "the connection is closing: one of the two sides said goodbye; what is to be sent after \
         that needs a new endpoint"
    )]
    Closing,
    /// The connection is closed.
    #[error(
        "{}; what is to be sent needs a new endpoint",
        Over("the connection is closed", .0)
    )]
    Closed(CloseReason),
    /// The endpoint was made by the process that this one was forked from.
    #[error("{0}: open a fabric of its own in the child")]
    Forked(#[from] Forked),
}

fabricast_process::debug_as_words!(PushError);

impl PushError {
    /// True for back-pressure: try again after the next `Writable` event or poll.
    pub fn is_would_block(&self) -> bool {
        matches!(self, Self::WouldBlock(_))
    }
}

/// A batch of small messages that stopped at one that was refused.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("after {pushed} messages: {error}")]
pub struct PushBatchError {
    /// Messages that were packed before it.
    pub pushed: usize,
    /// Why it was refused. Nothing of it was packed, and those behind it were not looked at.
    #[source]
    pub error: PushError,
}

fabricast_process::debug_as_words!(PushBatchError);

impl PushBatchError {
    /// Pushes messages until one is refused: how many there were. `here`: whether this is the
    /// process that made the endpoint.
    #[inline(always)]
    pub(crate) fn or_pushed<'m>(
        here: Result<(), Forked>,
        messages: impl IntoIterator<Item = (u64, u8, &'m [u8])>,
        mut push: impl FnMut(u64, u8, &'m [u8]) -> Result<u64, PushError>,
    ) -> Result<usize, Self> {
        let stopped = |pushed, error| Err(Self { pushed, error });
        if let Err(forked) = here {
            return stopped(0, forked.into());
        }
        let mut pushed = 0;
        for (tag, status, bytes) in messages {
            if let Err(error) = push(tag, status, bytes) {
                return stopped(pushed, error);
            }
            pushed += 1;
        }
        Ok(pushed)
    }
}

impl<T> Refused<T, PushError> {
    /// True for back-pressure: try again after the next `Writable` event or poll.
    pub fn is_would_block(&self) -> bool {
        self.kind.is_would_block()
    }
}
