//! What a publisher reports.

use std::fmt;

use super::account::Outcomes;
use super::policy::PeerOutcome;
use crate::buffer::Payload;
use crate::endpoint::error::{Blocked, SendErrorKind};
use crate::endpoint::event::{ConnectionInfo, ConnectionRequest};
use crate::endpoint::id::ConnectionId;
use crate::endpoint::protocol::connection::CloseReason;

/// What happened at a [`PublishEndpoint`](crate::PublishEndpoint).
#[derive(Debug)]
#[non_exhaustive]
pub enum PublishEvent {
    /// A subscriber asks for a connection (with
    /// [`AcceptPolicy::Ask`](crate::endpoint::AcceptPolicy::Ask) only).
    Request(ConnectionRequest),
    /// A subscriber is connected.
    Connected {
        /// Which.
        connection: ConnectionId,
        /// What was agreed.
        info: ConnectionInfo,
    },
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
    /// How a publication ended for one subscriber; before its [`Published`](Self::Published). Only
    /// where it was not sent, unless the setting
    /// [`tell_sent`](crate::endpoint::PublishConfig::tell_sent) asks for all.
    Peer {
        /// The key that was given to `publish`.
        key: u64,
        /// Whose.
        connection: ConnectionId,
        /// How.
        outcome: PeerOutcome,
    },
    /// A publication is on its way to a subscriber for longer than the setting `send_deadline`
    /// (advice, not an outcome; see
    /// [`DeadlinePolicy::Notify`](crate::endpoint::DeadlinePolicy::Notify)).
    Late {
        /// The key that was given to `publish`.
        key: u64,
        /// Whose.
        connection: ConnectionId,
    },
    /// A publication is over for every subscriber. Exactly one for each that was accepted.
    Published {
        /// The key that was given to `publish`.
        key: u64,
        /// The payload that was given to it. Where a connection over FI_EP_RDM was lost the
        /// provider may still read it: a fragment of a ring or a device's buffer stays in its place
        /// then, and goes back when it is dropped and the provider is done.
        payload: Payload,
        /// How it ended for how many.
        outcomes: Outcomes,
    },
    /// What blocked a refused `publish` has passed.
    Writable,
    /// Nothing was heard from a subscriber for as long as the setting `unresponsive_after` says.
    /// Nothing is closed.
    Unresponsive {
        /// Which.
        connection: ConnectionId,
    },
    /// Something was heard from the subscriber again.
    Responsive {
        /// Which.
        connection: ConnectionId,
    },
    /// A subscriber closes: it gets no publication any more; those on their way still arrive.
    PeerClosing {
        /// Which.
        connection: ConnectionId,
    },
    /// A subscriber's connection is closed, and its subscriptions are gone. Its last event; every
    /// publication has its outcome for it before.
    Disconnected {
        /// Which.
        connection: ConnectionId,
        /// Why.
        reason: CloseReason,
        /// Subscriptions that it had.
        subscriptions: u32,
    },
}

/// A publication that was accepted: what became of it at once. [`PublishEvent::Published`] follows
/// when the rest is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Publication {
    /// Its number among the tag's publications, which the subscribers see.
    pub number: u64,
    /// Subscribers that it is on its way to.
    pub posted: u32,
    /// Subscribers that it waits for, by their policy.
    pub waiting: u32,
    /// Subscribers that do not get it.
    pub dropped: u32,
}

/// Why something was not published at all. Nothing was posted to anybody.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PublishErrorKind {
    /// Nobody has subscribed to the tag.
    #[error("nobody has subscribed to tag {tag}")]
    NoSubscribers {
        /// The tag.
        tag: u64,
    },
    /// Not now; back-pressure, not a failure: as many publications are not over as the setting
    /// `publications` allows, or no header slot, or slot of the staging ring, is free.
    #[error("would block: {0}")]
    WouldBlock(Blocked),
    /// The header does not fit its slot, behind the 16 bytes of the publication, or the header
    /// mode.
    #[error(
        "header of {len} bytes, the limit is {max}: `HeaderSlotConfig::slot_size` \
         (`PublishConfig::header_slots`) less what a publication puts in front, or what \
         `HeaderMode::Fixed` says"
    )]
    HeaderLength {
        /// Bytes given.
        len: usize,
        /// Bytes that fit.
        max: usize,
    },
    /// The endpoint is closing, or was made by another process, or can't stage the payload.
    #[error(transparent)]
    Refused(SendErrorKind),
}

/// A publication that was refused, with everything that was given.
pub struct PublishError {
    /// Why.
    pub kind: PublishErrorKind,
    /// The payload, untouched.
    pub payload: Payload,
    /// The key, unchanged.
    pub key: u64,
}

impl PublishError {
    /// True for back-pressure: try again after the next [`PublishEvent::Writable`].
    pub fn is_would_block(&self) -> bool {
        matches!(self.kind, PublishErrorKind::WouldBlock(_))
    }

    /// True when nobody has subscribed to the tag.
    pub fn is_no_subscribers(&self) -> bool {
        matches!(self.kind, PublishErrorKind::NoSubscribers { .. })
    }
}

impl fmt::Debug for PublishError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PublishError")
            .field("kind", &self.kind)
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}

impl fmt::Display for PublishError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.kind, f)
    }
}

impl std::error::Error for PublishError {}
