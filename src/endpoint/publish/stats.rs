//! Counters of publishers and subscribers.

/// Counters of one publisher. Publications: `published = over + open`, always. Outcomes for subscribers: those posted end as sent or
/// failed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PublishStats {
    /// Publications that were accepted.
    pub published: u64,
    /// Publications reported as [`PublishEvent::Published`](crate::PublishEvent::Published).
    pub over: u64,
    /// Publications accepted and not yet reported.
    pub open: u64,
    /// Publications refused because nobody had subscribed.
    pub without_subscribers: u64,
    /// Publications refused with `WouldBlock`.
    pub would_block: u64,
    /// Sends to single subscribers.
    pub posted: u64,
    /// Of these, those that were done.
    pub sent: u64,
    /// Of these, those that failed.
    pub failed: u64,
    /// Publications that single subscribers did not get.
    pub dropped: u64,
    /// Subscribers that were cut off because they were too slow.
    pub cut_off: u64,
    /// Subscriptions that there are.
    pub subscriptions: u64,
    /// Subscriptions refused because there were too many.
    pub refused: u64,
}

/// Counters of one subscriber.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SubscribeStats {
    /// Publications received.
    pub received: u64,
    /// Their bytes: headers and payloads.
    pub bytes: u64,
    /// Publications that publishers dropped for this subscriber, as the gaps between the others say.
    pub missed: u64,
    /// Publications of tags that were given up while they were on their way.
    pub strays: u64,
    /// Publishers that are connected.
    pub connected: u64,
    /// Connections made again.
    pub reconnects: u64,
}
