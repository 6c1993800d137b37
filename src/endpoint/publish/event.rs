//! What a publisher reports.

use super::account::Outcomes;
use super::policy::PeerOutcome;
use crate::buffer::Payload;
use crate::endpoint::event::{ConnectionEvent, ConnectionRequest};
use crate::id::ConnectionId;

/// What happened at a [`PublishEndpoint`](crate::PublishEndpoint).
#[derive(Debug)]
#[non_exhaustive]
pub enum PublishEvent {
    /// A subscriber asks for a connection (with
    /// [`AcceptPolicy::Ask`](crate::endpoint::AcceptPolicy::Ask) only).
    Request(ConnectionRequest),
    /// Something happened to a subscriber's connection. When it is closed, every publication has
    /// its outcome for it before.
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
    /// A publication is on its way to a subscriber for longer than the setting `deadline`
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
    /// A connection is closed, and with it went so many subscriptions that nobody gave up. Its end
    /// comes next.
    SubscriptionsGone {
        /// Whose.
        connection: ConnectionId,
        /// How many; at least one.
        count: u32,
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
