//! What a `PublishEndpointBuffered` reports.

use crate::buffer::{Buffer, Payload};
use crate::endpoint::error::SendErrorKind;
use crate::endpoint::event::{ConnectionEvent, ConnectionRequest};
use crate::endpoint::publish::{Outcomes, PeerOutcome};
use crate::id::ConnectionId;

/// What one publication carried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PublishedContent {
    /// Small messages of its tag, all that `push` gave this number.
    Messages {
        /// The number of their buffer.
        batch: u64,
        /// How many; at least one.
        count: u64,
    },
    /// One payload of the caller's: what was given to `publish` or `publish_copied`.
    Payload {
        /// The key that was given with it.
        key: u64,
    },
}

impl PublishedContent {
    /// The number of small messages; 0 for a payload.
    pub fn messages(self) -> u64 {
        match self {
            Self::Messages { count, .. } => count,
            Self::Payload { .. } => 0,
        }
    }
}

/// What happened at a [`PublishEndpointBuffered`](crate::PublishEndpointBuffered).
#[derive(Debug)]
#[non_exhaustive]
pub enum PublishBufferedEvent {
    /// A subscriber asks for a connection (with
    /// [`AcceptPolicy::Ask`](crate::endpoint::AcceptPolicy::Ask) only).
    Request(ConnectionRequest),
    /// Something happened to a subscriber's connection.
    Connection(ConnectionId, ConnectionEvent),
    /// A subscriber has subscribed to a tag.
    Subscribed {
        /// Which.
        connection: ConnectionId,
        /// What to.
        tag: u64,
    },
    /// A subscriber has given a tag up.
    Unsubscribed {
        /// Which.
        connection: ConnectionId,
        /// What.
        tag: u64,
    },
    /// A connection is closed, and with it went so many subscriptions that nobody gave up.
    SubscriptionsGone {
        /// Whose.
        connection: ConnectionId,
        /// How many; at least one.
        count: u32,
    },
    /// How a publication ended for one subscriber, where it was not sent; see
    /// [`PublishEvent::Peer`](crate::PublishEvent::Peer).
    Peer {
        /// The publication's tag.
        tag: u64,
        /// What was in it.
        content: PublishedContent,
        /// Whose.
        connection: ConnectionId,
        /// How.
        outcome: PeerOutcome,
    },
    /// A publication is on its way to a subscriber for longer than the setting `deadline` (advice,
    /// not an outcome).
    Late {
        /// The publication's tag.
        tag: u64,
        /// What was in it.
        content: PublishedContent,
        /// Whose.
        connection: ConnectionId,
    },
    /// A publication is over for every subscriber, with all that was in it.
    Published {
        /// The publication's tag.
        tag: u64,
        /// What was in it.
        content: PublishedContent,
        /// What was sent; dropped, a buffer goes back to its pool.
        payload: Payload,
        /// How it ended for how many.
        outcomes: Outcomes,
    },
    /// Small messages that were packed could not be published, to anybody: the last subscriber of
    /// their tag is gone, or the endpoint closes.
    Failed {
        /// Their tag.
        tag: u64,
        /// Which messages.
        content: PublishedContent,
        /// The buffer: [`SmallMessages`](crate::coalesce::SmallMessages) reads them.
        buffer: Option<Buffer>,
        /// Why.
        error: SendErrorKind,
    },
    /// What blocked a refused call has passed.
    Writable,
}
