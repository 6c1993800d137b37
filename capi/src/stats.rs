//! Counters of endpoints, loops, files and the process, as structs that can grow.

#![allow(unsafe_code)] // Promises to `pointer::write_sized`.

use fabricast::event_loop::LoopStats;
use fabricast::stats::{
    BufferedStats, GatheredSends, OneSidedStats, PackedReceives, PackedSends, ProcessStats,
    PublishStats, ReceiveStats, SendStats, SubscribeStats,
};

use crate::pointer::Sized0;

/// Counters, by their names.
pub(crate) trait Counters {
    /// Calls `tell` with each; `front` is written in front of the names.
    fn each(&self, front: &str, tell: &mut dyn FnMut(&str, u64));
}

/// Makes a struct of C's of one of the library's, and tells its numbers by name.
macro_rules! counters {
    ($made:ident of $from:ident { $($set:tt)* } $($field:ident)* $(; $($part:ident)*)?) => {
        impl From<$from> for $made {
            fn from(of: $from) -> Self {
                Self { $($set)* $($field: of.$field,)* $($($part: of.$part.into(),)*)? }
            }
        }

        impl Counters for $made {
            fn each(&self, front: &str, tell: &mut dyn FnMut(&str, u64)) {
                $(tell(&format!("{front}{}", stringify!($field)), self.$field);)*
                $($(
                    self.$part.each(&format!("{front}{}_", stringify!($part)), tell);
                )*)?
            }
        }
    };
}

/// Counters of one send endpoint, messages and one-sided operations together. `posted =
/// completed + failed + abandoned + in_flight`, always.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct fcast_send_stats {
    /// sizeof(fcast_send_stats), set by the caller.
    pub size: usize,
    /// Sends that were accepted.
    pub posted: u64,
    /// Sends reported as FCAST_EVENT_COMPLETED.
    pub completed: u64,
    /// Sends reported as FCAST_EVENT_FAILED.
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
    pub packed: fcast_packed_sends,
    /// Of these, messages that the kernel could gather.
    pub gathered: fcast_gathered_sends,
    /// Sends refused with FCAST_AGAIN.
    pub would_block: u64,
    /// Posts that the provider answered with `-FI_EAGAIN`.
    pub eagain: u64,
    /// Sends refused for any other reason.
    pub refused: u64,
    /// Reads of the completion queue.
    pub cq_reads: u64,
    /// Of these, reads that found nothing.
    pub cq_reads_empty: u64,
    /// Writes with immediate data that named no window of ours: one that was just
    /// released, or a peer's lie. With the 16th that names none that there was, the
    /// connections that have windows are ended.
    pub stray_writes: u64,
    /// Completions that named no operation of ours.
    pub unknown_completions: u64,
    /// Operations leaked because the provider would not close its endpoint.
    pub leaked: u64,
}

// SAFETY: C's layout, a `usize` first; 0 is a value of all its fields.
unsafe impl Sized0 for fcast_send_stats {}

/// Messages that went out in frames (setting `packing`).
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct fcast_packed_sends {
    /// How many.
    pub messages: u64,
    /// Their bytes, headers included, which were copied.
    pub bytes: u64,
    /// Frames that they went out in.
    pub frames: u64,
}

/// Messages that were posted while the kernel gathered small ones (setting `no_gather`).
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct fcast_gathered_sends {
    /// How many.
    pub messages: u64,
    /// Times that it began to: a stream of small messages came, or went on after a pause.
    pub streams: u64,
    /// Times that what it had gathered went although more came, so as to wait no longer.
    pub pushed: u64,
    /// Times that a poll ended a stream, since nothing had been sent after the poll
    /// before.
    pub let_go: u64,
}

/// Counters of one receive endpoint.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct fcast_receive_stats {
    /// sizeof(fcast_receive_stats), set by the caller.
    pub size: usize,
    /// Messages received.
    pub messages: u64,
    /// Their bytes, headers included.
    pub bytes: u64,
    /// Of these, messages that came in frames.
    pub packed: fcast_packed_receives,
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
    /// Times that a connection found the pool empty.
    pub starved: u64,
    /// One-sided operations of this side.
    pub one_sided: fcast_one_sided_stats,
    /// Bytes of long messages that were copied, since nothing ends what their senders may
    /// write but the end of this endpoint (`FI_EP_RDM`, but for verbs).
    pub long_copied: u64,
    /// Writes of peers that came with immediate data.
    pub peer_writes: u64,
    /// Writes with immediate data that named no window of ours: one that was just
    /// released, or a peer's lie. With the 16th that names none that there was, the
    /// connections that have windows are ended.
    pub stray_writes: u64,
    /// Windows of connections that are over whose peers did not give them back: the
    /// endpoint keeps their memory until it is closed (FI_EP_RDM only). They count against
    /// the setting `windows`.
    pub quarantined: u64,
    /// Reads of the completion queue.
    pub cq_reads: u64,
    /// Of these, reads that found nothing.
    pub cq_reads_empty: u64,
    /// Messages that named no connection, and receives that failed: over FI_EP_RDM anybody
    /// can send some, and what a peer sent to a connection that is over is among them.
    pub strays: u64,
    /// Completions that named no operation of ours.
    pub unknown_completions: u64,
    /// Operations leaked because the provider would not close its endpoint.
    pub leaked: u64,
    /// Bytes of long messages that were copied, since peers of the domain were late to say that
    /// they write no more (setting `fence_timeout_ms`).
    pub late_copied: u64,
}

// SAFETY: C's layout, a `usize` first; 0 is a value of all its fields.
unsafe impl Sized0 for fcast_receive_stats {}

/// Messages that came in frames, which share the frame's buffer.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct fcast_packed_receives {
    /// How many.
    pub messages: u64,
    /// Frames that they came in.
    pub frames: u64,
    /// Frames whose buffers can't be posted again now, because messages that came in them,
    /// or payloads of those, were handed out and are held.
    pub frames_held: u64,
    /// The messages and payloads that share those buffers.
    pub messages_held: u64,
}

/// Counters of the one-sided operations of an endpoint that receives: `posted = completed +
/// failed + in_flight`, always. Those of an endpoint that sends are among its
/// fcast_send_stats.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct fcast_one_sided_stats {
    /// Operations that were accepted.
    pub posted: u64,
    /// Of these, those that were done.
    pub completed: u64,
    /// Of these, those that failed.
    pub failed: u64,
    /// Operations accepted and not yet reported.
    pub in_flight: u64,
}

/// Counters of one buffered endpoint. Small messages: `accepted = confirmed + failed +
/// pending`, always; those that are pending when it is dropped are abandoned.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct fcast_buffered_stats {
    /// sizeof(fcast_buffered_stats), set by the caller.
    pub size: usize,
    /// Small messages that were accepted.
    pub accepted: u64,
    /// Small messages reported as completed.
    pub confirmed: u64,
    /// Small messages reported as failed.
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
    /// Messages and buffers refused with FCAST_AGAIN.
    pub would_block: u64,
}

// SAFETY: C's layout, a `usize` first; 0 is a value of all its fields.
unsafe impl Sized0 for fcast_buffered_stats {}

/// Counters of one publisher. Publications: `published = over + open`, always. Outcomes for
/// subscribers: those posted end as sent or failed.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct fcast_publish_stats {
    /// sizeof(fcast_publish_stats), set by the caller.
    pub size: usize,
    /// Publications that were accepted.
    pub published: u64,
    /// Publications reported as over.
    pub over: u64,
    /// Publications accepted and not yet reported.
    pub open: u64,
    /// Publications refused because nobody had subscribed.
    pub without_subscribers: u64,
    /// Publications refused with FCAST_AGAIN.
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

// SAFETY: C's layout, a `usize` first; 0 is a value of all its fields.
unsafe impl Sized0 for fcast_publish_stats {}

/// Counters of one subscriber.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct fcast_subscribe_stats {
    /// sizeof(fcast_subscribe_stats), set by the caller.
    pub size: usize,
    /// Publications received.
    pub received: u64,
    /// Their bytes: headers and payloads.
    pub bytes: u64,
    /// Publications that publishers dropped for this subscriber, as the gaps between the
    /// others say.
    pub missed: u64,
    /// Publications of tags that were given up while they were on their way.
    pub strays: u64,
    /// Publishers that are connected.
    pub connected: u64,
    /// Connections made again.
    pub reconnects: u64,
}

// SAFETY: C's layout, a `usize` first; 0 is a value of all its fields.
unsafe impl Sized0 for fcast_subscribe_stats {}

/// Counters of a loop since it was made.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct fcast_loop_stats {
    /// sizeof(fcast_loop_stats), set by the caller.
    pub size: usize,
    /// Rounds, those that spun included.
    pub rounds: u64,
    /// Rounds that slept in the kernel.
    pub sleeps: u64,
    /// Sleeps that a descriptor ended before their time was over.
    pub wakes: u64,
    /// Wakes after which there was nothing to deliver.
    pub spurious: u64,
}

// SAFETY: C's layout, a `usize` first; 0 is a value of all its fields.
unsafe impl Sized0 for fcast_loop_stats {}

/// Counters of the process, which outlive the endpoints that count them.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct fcast_process_stats {
    /// sizeof(fcast_process_stats), set by the caller.
    pub size: usize,
    /// Keys of sends whose endpoint was dropped with the send in flight.
    pub abandoned: u64,
    /// Operations leaked because a provider would not close its endpoint.
    pub leaked: u64,
    /// Handles that libfabric would not close.
    pub close_failures: u64,
}

// SAFETY: C's layout, a `usize` first; 0 is a value of all its fields.
unsafe impl Sized0 for fcast_process_stats {}

counters!(
    fcast_send_stats of SendStats { size: 0, }
    posted completed failed abandoned in_flight in_flight_max bytes would_block eagain refused
    cq_reads cq_reads_empty stray_writes unknown_completions leaked ; packed gathered
);
counters!(
    fcast_packed_sends of PackedSends {}
    messages bytes frames
);
counters!(
    fcast_gathered_sends of GatheredSends {}
    messages streams pushed let_go
);
counters!(
    fcast_receive_stats of ReceiveStats { size: 0, }
    messages bytes connections closed refused reaped lost starved long_copied peer_writes
    stray_writes quarantined cq_reads cq_reads_empty strays unknown_completions leaked late_copied ;
    packed one_sided
);
counters!(
    fcast_packed_receives of PackedReceives {}
    messages frames frames_held messages_held
);
counters!(
    fcast_one_sided_stats of OneSidedStats {}
    posted completed failed in_flight
);
counters!(
    fcast_buffered_stats of BufferedStats { size: 0, }
    accepted confirmed failed pending buffers bytes full flushed timed would_block
);
counters!(
    fcast_publish_stats of PublishStats { size: 0, }
    published over open without_subscribers would_block posted sent failed dropped cut_off
    subscriptions refused
);
counters!(
    fcast_subscribe_stats of SubscribeStats { size: 0, }
    received bytes missed strays connected reconnects
);
counters!(
    fcast_loop_stats of LoopStats { size: 0, }
    rounds sleeps wakes spurious
);
counters!(
    fcast_process_stats of ProcessStats { size: 0, }
    abandoned leaked close_failures
);
