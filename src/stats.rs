//! Counters: plain `u64` structs, copied out.
//!
//! They tell where time and messages go, without a profiler; what they promise of each other
//! (`posted = completed + failed + in_flight`) holds at any time. Each endpoint has a `stats()`;
//! [`process`] has what is counted for the process.
//!
//! ```
//! let stats = fabricast::stats::process();
//! println!("{} operations were leaked", stats.leaked);
//! ```

use std::sync::atomic::{AtomicU64, Ordering};

use crate::metrics::cell::cells;

/// Counters of one send endpoint, messages and one-sided operations together.
/// `posted = completed + failed + abandoned + in_flight`, always.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SendStats {
    /// Sends that were accepted.
    pub posted: u64,
    /// Sends reported as [`SendEvent::Completed`](crate::SendEvent::Completed).
    pub completed: u64,
    /// Sends reported as [`SendEvent::Failed`](crate::SendEvent::Failed).
    pub failed: u64,
    /// Sends whose outcome nobody heard, because the endpoint was dropped.
    pub abandoned: u64,
    /// Sends accepted and not yet reported.
    pub in_flight: u64,
    /// The most sends ever in flight at once.
    pub in_flight_max: u64,
    /// Bytes accepted, headers included.
    pub bytes: u64,
    /// Of these, messages that were packed into frames.
    pub packed: PackedSends,
    /// Of these, messages that the kernel could gather.
    pub gathered: GatheredSends,
    /// Sends refused with `WouldBlock`.
    pub would_block: u64,
    /// Posts that the provider answered with `-FI_EAGAIN`.
    pub eagain: u64,
    /// Sends refused for any other reason.
    pub refused: u64,
    /// Reads of the completion queue.
    pub cq_reads: u64,
    /// Of these, reads that found nothing.
    pub cq_reads_empty: u64,
    /// Writes with immediate data that named no window of ours: one that was just released, or a
    /// peer's lie. With the 16th that names none that there was, the connections that have windows
    /// are ended.
    pub stray_writes: u64,
    /// Completions that named no operation of ours.
    pub unknown_completions: u64,
    /// Operations leaked because the provider would not close its endpoint.
    pub leaked: u64,
}

/// Messages that went out in frames ([`Packing`](crate::endpoint::Packing)).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PackedSends {
    /// How many.
    pub messages: u64,
    /// Their bytes, headers included, which were copied.
    pub bytes: u64,
    /// Frames that they went out in.
    pub frames: u64,
}

/// Messages that were posted while the kernel gathered small ones
/// ([`gather`](crate::endpoint::OutgoingSettings::gather)).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GatheredSends {
    /// How many.
    pub messages: u64,
    /// Times that it began to: a stream of small messages came, or went on after a pause.
    pub streams: u64,
    /// Times that what it had gathered went although more came, so as to wait no longer.
    pub pushed: u64,
    /// Times that a poll ended a stream, since nothing had been sent after the poll before.
    pub let_go: u64,
}

/// Messages that came in frames, which share the frame's buffer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PackedReceives {
    /// How many.
    pub messages: u64,
    /// Frames that they came in.
    pub frames: u64,
    /// Frames whose buffers can't be posted again now, because messages that came in them, or
    /// payloads of those, were handed out and are held.
    pub frames_held: u64,
    /// The messages and payloads that share those buffers:
    /// [`Message::detach`](crate::endpoint::Message::detach) frees a frame of one that is kept.
    pub messages_held: u64,
}

/// Counters of one buffered endpoint. Small messages: `accepted = confirmed + failed + pending`,
/// always; those that are pending when it is dropped are abandoned.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BufferedStats {
    /// Small messages that were accepted.
    pub accepted: u64,
    /// Small messages reported as [`BufferedEvent::Completed`](crate::BufferedEvent::Completed).
    pub confirmed: u64,
    /// Small messages reported as [`BufferedEvent::Failed`](crate::BufferedEvent::Failed).
    pub failed: u64,
    /// Small messages accepted and not yet reported: being packed, waiting, or in flight.
    pub pending: u64,
    /// Buffers that were given to the network, whole ones of the caller's among them.
    pub buffers: u64,
    /// Bytes of the packed ones, the format's own included.
    pub bytes: u64,
    /// Packed buffers that left because they were full.
    pub full: u64,
    /// Packed buffers that left because of `flush`, or a whole buffer behind them.
    pub flushed: u64,
    /// Packed buffers that left because the flush interval was over.
    pub timed: u64,
    /// Messages and buffers refused with `WouldBlock`.
    pub would_block: u64,
}

/// Counters of one receive endpoint.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReceiveStats {
    /// Messages received.
    pub messages: u64,
    /// Their bytes, headers included.
    pub bytes: u64,
    /// Of these, messages that came in frames.
    pub packed: PackedReceives,
    /// Connections that stood.
    pub connections: u64,
    /// Of these, connections that are closed again.
    pub closed: u64,
    /// Connection requests refused, for whatever reason.
    pub refused: u64,
    /// Sockets that never said a valid hello and were cut off.
    pub reaped: u64,
    /// Connections that were lost or broke the protocol.
    pub lost: u64,
    /// Times that a connection found the pool empty, or this endpoint's share of it used up.
    pub starved: u64,
    /// One-sided operations of this side.
    pub one_sided: OneSidedStats,
    /// Bytes of long messages that were copied, since nothing ends what their senders may write but
    /// the end of this endpoint (`FI_EP_RDM`, but for verbs).
    pub long_copied: u64,
    /// Bytes of long messages that were copied, since peers of the domain were late to answer
    /// fences: see [`LongMessages`](crate::endpoint::LongMessages).
    pub late_copied: u64,
    /// Writes of peers that came with immediate data.
    pub peer_writes: u64,
    /// Writes with immediate data that named no window of ours: one that was just released, or a
    /// peer's lie. With the 16th that names none that there was, the connections that have windows
    /// are ended.
    pub stray_writes: u64,
    /// Windows of connections that are over whose peers did not give them back: the endpoint keeps
    /// their memory until it is closed (FI_EP_RDM only). They count against the setting `windows`.
    pub quarantined: u64,
    /// Reads of the completion queue.
    pub cq_reads: u64,
    /// Of these, reads that found nothing.
    pub cq_reads_empty: u64,
    /// Messages that named no connection, and receives that failed: over FI_EP_RDM anybody can send
    /// some, and what a peer sent to a connection that is over is among them.
    pub strays: u64,
    /// Completions that named no operation of ours.
    pub unknown_completions: u64,
    /// Operations leaked because the provider would not close its endpoint.
    pub leaked: u64,
}

/// Counters of the one-sided operations of an endpoint that receives:
/// `posted = completed + failed + in_flight`, always. Those of an endpoint that sends are among its
/// [`SendStats`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct OneSidedStats {
    /// Operations that were accepted.
    pub posted: u64,
    /// Of these, those that were done.
    pub completed: u64,
    /// Of these, those that failed.
    pub failed: u64,
    /// Operations accepted and not yet reported.
    pub in_flight: u64,
}

/// Counters of one publisher. Publications: `published = over + open`, always. Outcomes for
/// subscribers: those posted end as sent or failed.
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
    /// Publications that publishers dropped for this subscriber, as the gaps between the others
    /// say.
    pub missed: u64,
    /// Publications of tags that were given up while they were on their way.
    pub strays: u64,
    /// Publishers that are connected.
    pub connected: u64,
    /// Connections made again.
    pub reconnects: u64,
}

/// Counters of the process, which outlive the endpoints that count them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProcessStats {
    /// Keys of sends whose endpoint was dropped with the send in flight.
    pub abandoned: u64,
    /// Operations leaked because a provider would not close its endpoint.
    pub leaked: u64,
    /// Handles that libfabric would not close.
    pub close_failures: u64,
}

static ABANDONED: AtomicU64 = AtomicU64::new(0);
static LEAKED: AtomicU64 = AtomicU64::new(0);
static CLOSE_FAILURES: AtomicU64 = AtomicU64::new(0);

/// The counters of this process.
pub fn process() -> ProcessStats {
    // Counters only: nothing is ordered by them.
    ProcessStats {
        abandoned: ABANDONED.load(Ordering::Relaxed),
        leaked: LEAKED.load(Ordering::Relaxed),
        close_failures: CLOSE_FAILURES.load(Ordering::Relaxed),
    }
}

pub(crate) fn count_abandoned(n: u64) {
    ABANDONED.fetch_add(n, Ordering::Relaxed);
}

pub(crate) fn count_leaked(n: u64) {
    LEAKED.fetch_add(n, Ordering::Relaxed);
}

pub(crate) fn count_close_failure() {
    CLOSE_FAILURES.fetch_add(1, Ordering::Relaxed);
}

cells! {
    /// Where [`SendStats`] are counted.
    SendCells of SendStats {
        posted: count,
        completed: count,
        failed: count,
        abandoned: count,
        in_flight: gauge,
        in_flight_max: max,
        bytes: count,
        packed: within(PackedSendCells),
        gathered: within(GatheredSendCells),
        would_block: count,
        eagain: count,
        refused: count,
        cq_reads: count,
        cq_reads_empty: count,
        stray_writes: count,
        unknown_completions: count,
        leaked: count,
    }
}

cells! {
    /// Where [`PackedSends`] are counted.
    PackedSendCells of PackedSends {
        messages: count,
        bytes: count,
        frames: count,
    }
}

cells! {
    /// Where [`GatheredSends`] are counted.
    GatheredSendCells of GatheredSends {
        messages: count,
        streams: count,
        pushed: count,
        let_go: count,
    }
}

cells! {
    /// Where [`PackedReceives`] are counted.
    PackedReceiveCells of PackedReceives {
        messages: count,
        frames: count,
        frames_held: gauge,
        messages_held: gauge,
    }
}

cells! {
    /// Where [`BufferedStats`] are counted.
    BufferedCells of BufferedStats {
        accepted: count,
        confirmed: count,
        failed: count,
        pending: gauge,
        buffers: count,
        bytes: count,
        full: count,
        flushed: count,
        timed: count,
        would_block: count,
    }
}

cells! {
    /// Where [`ReceiveStats`] are counted.
    ReceiveCells of ReceiveStats {
        messages: count,
        bytes: count,
        packed: within(PackedReceiveCells),
        connections: count,
        closed: count,
        refused: count,
        reaped: count,
        lost: count,
        starved: count,
        one_sided: within(OneSidedCells),
        long_copied: count,
        late_copied: count,
        peer_writes: count,
        stray_writes: count,
        quarantined: gauge,
        cq_reads: count,
        cq_reads_empty: count,
        strays: count,
        unknown_completions: count,
        leaked: count,
    }
}

cells! {
    /// Where [`OneSidedStats`] are counted.
    OneSidedCells of OneSidedStats {
        posted: count,
        completed: count,
        failed: count,
        in_flight: gauge,
    }
}

cells! {
    /// Where [`PublishStats`] are counted.
    PublishCells of PublishStats {
        published: count,
        over: count,
        open: gauge,
        without_subscribers: count,
        would_block: count,
        posted: count,
        sent: count,
        failed: count,
        dropped: count,
        cut_off: count,
        subscriptions: gauge,
        refused: count,
    }
}

cells! {
    /// Where [`SubscribeStats`] are counted.
    SubscribeCells of SubscribeStats {
        received: count,
        bytes: count,
        missed: count,
        strays: count,
        connected: gauge,
        reconnects: count,
    }
}
