//! `SlowPolicy`: what becomes of a publication for which a subscriber has no room.

use std::fmt;
use std::time::Duration;

use crate::Error;
use crate::endpoint::error::{Blocked, SendErrorKind};
use crate::endpoint::limits::{check_count, check_timeout};
use crate::error::CompletionError;

/// What a publisher does about a subscriber that has no room: one that granted no more messages,
/// because its application holds them or is stopped, that has as many publications on the way as
/// the setting `depth` allows, or to which a long one is on its way, behind which nothing is sent
/// until it is there.
///
/// | | unit | range |
/// |---|---|---|
/// | `queue` | publications that wait for one subscriber | 1 to 65,536 |
/// | `deadline`, `after` | time since the publication was made | 1 ms to 1 h |
///
/// No subscriber holds up another one, and none holds a buffer for longer than its policy says and,
/// once the buffer is posted, the setting `deadline`. But what waits for one keeps its place among
/// the setting `publications`, and its header slot: leave room beyond `queue` in both, or a slow
/// one takes all of them and the publisher gets `WouldBlock` until their time is over. A subscriber
/// always gets a tag's publications in their order, and learns from their numbers how many it did
/// not get.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum SlowPolicy {
    /// The subscriber does not get this publication.
    #[default]
    Drop,
    /// The publication waits for it, in a queue of shared buffers: nothing is copied. One that
    /// comes to a full queue is dropped, and so is one that has waited until the deadline.
    Wait {
        /// Publications that wait at once.
        queue: u32,
        /// How long each waits.
        deadline: Duration,
    },
    /// As `Wait`, but a full queue, and a publication that it does not have after that time, end
    /// the connection ([`CloseReason::TooSlow`](crate::endpoint::CloseReason::TooSlow)): for those
    /// who take all or nothing.
    Disconnect {
        /// Publications that wait at once.
        queue: u32,
        /// How long a publication may wait and be on its way.
        after: Duration,
    },
}

impl SlowPolicy {
    pub(crate) fn check(&self) -> Result<(), Error> {
        let (queue, time) = match *self {
            Self::Drop => return Ok(()),
            Self::Wait { queue, deadline } => (queue, deadline),
            Self::Disconnect { queue, after } => (queue, after),
        };
        let reason = "the queue must be 1 to 65536 publications";
        check_count("slow", queue, 65_536, reason)?;
        check_timeout("slow", time)
    }

    /// Publications that may wait.
    pub(crate) fn queue(&self) -> usize {
        match *self {
            Self::Drop => 0,
            Self::Wait { queue, .. } | Self::Disconnect { queue, .. } => queue as usize,
        }
    }
}

/// How one publication ended for one subscriber.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum PeerOutcome {
    /// The publication was sent.
    Sent,
    /// The publication was not posted.
    Dropped(DropReason),
    /// The publication was posted, and failed or will never complete: the connection is over. Or it
    /// is a long one that the subscriber's pool for such has no room for
    /// ([`CompletionError::limit_bytes`] says what fits): then the connection goes on.
    Failed(CompletionError),
}

/// Why a subscriber did not get a publication.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum DropReason {
    /// There was no room, and the policy is to drop.
    NoRoom(Blocked),
    /// As many publications waited for it as the policy allows.
    QueueFull,
    /// It waited until the policy's deadline.
    Late,
    /// The connection was being closed, or ended while the publication waited.
    Closing,
    /// The subscriber does not take it, whatever room it has: it is too long for its buffers, for
    /// instance, and it takes no
    /// [long messages](crate::endpoint::IncomingSettings::long_messages).
    Refused(SendErrorKind),
}

impl DropReason {
    /// What the refusal of a send, which is no back-pressure, is for its subscriber.
    pub(super) fn of(kind: SendErrorKind) -> Self {
        match kind {
            SendErrorKind::Closing | SendErrorKind::Closed(_) | SendErrorKind::NoConnection => {
                Self::Closing
            }
            other => Self::Refused(other),
        }
    }
}

impl fmt::Display for DropReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRoom(blocked) => write!(f, "no room: {blocked}"),
            Self::QueueFull => f.write_str("as many publications wait for it as may"),
            Self::Late => f.write_str("it waited until its deadline"),
            Self::Closing => f.write_str("the connection is closing"),
            Self::Refused(kind) => kind.fmt(f),
        }
    }
}

/// What becomes of a publication for one subscriber, when it is made.
pub(super) enum Offered {
    Posted,
    Waits,
    Dropped(DropReason),
}
