//! The metrics: each with its name, unit and meaning, and how it is read from statistics. The text,
//! the JSON and the page docs/guide/metrics.md are made from these tables.

use std::time::Duration;

use super::latencies::Latencies;
use super::stats::{EndpointStats, PoolStats, RegionStats, RingStats, StreamStats, WatchedStats};
use crate::endpoint::Blocked;
use crate::event_loop::LoopStats;
use crate::object::{FailureKind, ObjectOperation, ObjectStats, OperationStats};
use crate::stats::{BufferedStats, ProcessStats, PublishStats, SubscribeStats};
use crate::storage::{BackEnd, Direction, IoStats};

/// What may become of a metric's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum MetricType {
    /// It grows; in the text its samples end in `_total`.
    Counter,
    /// It is so at this moment.
    Gauge,
    /// How often something took how long.
    Histogram,
}

impl MetricType {
    /// The word that OpenMetrics has for it.
    pub fn label(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// A metric: what its samples have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Metric {
    /// Its name, without what OpenMetrics puts behind it in a sample (`_total`, `_bucket`, …).
    pub name: &'static str,
    /// What may become of its value.
    pub kind: MetricType,
    /// What it counts.
    pub help: &'static str,
    /// Its labels beside `kind` and `name`.
    pub labels: &'static [&'static str],
}

impl Metric {
    /// The unit, which its name ends with: `bytes`, `seconds`, or none.
    pub fn unit(&self) -> Option<&'static str> {
        let units = ["bytes", "seconds"];
        units.into_iter().find(|unit| self.name.ends_with(unit))
    }
}

/// One value of a metric.
pub(super) enum Value<'a> {
    Count(u64),
    Time(Duration),
    Latencies(&'a Latencies),
}

/// A metric of one sort of statistics.
pub(super) struct Row<T: 'static> {
    pub(super) metric: Metric,
    pub(super) read: Read<T>,
}

/// Told each value, with the values of its labels.
pub(super) type Told<'a> = &'a mut dyn FnMut(&[&str], Value<'_>);

/// How a metric is read.
pub(super) enum Read<T: 'static> {
    One(fn(&T) -> u64),
    Each(fn(&T, Told<'_>)),
}

impl<T> Row<T> {
    const fn one(
        kind: MetricType,
        name: &'static str,
        help: &'static str,
        read: fn(&T) -> u64,
    ) -> Self {
        Self {
            metric: Metric {
                name,
                kind,
                help,
                labels: &[],
            },
            read: Read::One(read),
        }
    }

    const fn counter(name: &'static str, help: &'static str, read: fn(&T) -> u64) -> Self {
        Self::one(MetricType::Counter, name, help, read)
    }

    const fn gauge(name: &'static str, help: &'static str, read: fn(&T) -> u64) -> Self {
        Self::one(MetricType::Gauge, name, help, read)
    }

    const fn each(
        kind: MetricType,
        name: &'static str,
        help: &'static str,
        labels: &'static [&'static str],
        read: fn(&T, Told<'_>),
    ) -> Self {
        Self {
            metric: Metric {
                name,
                kind,
                help,
                labels,
            },
            read: Read::Each(read),
        }
    }

    /// Reads it.
    pub(super) fn tell(&self, stats: &T, told: Told<'_>) {
        match self.read {
            Read::One(read) => told(&[], Value::Count(read(stats))),
            Read::Each(read) => read(stats, told),
        }
    }
}

const PROCESS: &[Row<ProcessStats>] = &[
    Row::counter(
        "fabricast_process_abandoned",
        "Keys of sends whose endpoint was dropped with the send in flight.",
        |s| s.abandoned,
    ),
    Row::counter(
        "fabricast_process_leaked",
        "Operations leaked because a provider would not close its endpoint.",
        |s| s.leaked,
    ),
    Row::counter(
        "fabricast_process_close_failures",
        "Handles that libfabric would not close.",
        |s| s.close_failures,
    ),
];

const ENDPOINT: &[Row<EndpointStats>] = &[
    Row::counter(
        "fabricast_endpoint_sends",
        "Messages and one-sided operations that were accepted.",
        |s| s.sends.posted,
    ),
    Row::counter(
        "fabricast_endpoint_sends_completed",
        "Of these, those that completed.",
        |s| s.sends.completed,
    ),
    Row::counter(
        "fabricast_endpoint_sends_failed",
        "Of these, those that failed.",
        |s| s.sends.failed,
    ),
    Row::counter(
        "fabricast_endpoint_sends_abandoned",
        "Of these, those whose endpoint was dropped with them in flight.",
        |s| s.sends.abandoned,
    ),
    Row::gauge(
        "fabricast_endpoint_sends_in_flight",
        "Of these, those that have no outcome yet.",
        |s| s.sends.in_flight,
    ),
    Row::gauge(
        "fabricast_endpoint_sends_in_flight_max",
        "The most that ever were in flight at once at one endpoint.",
        |s| s.sends.in_flight_max,
    ),
    Row::counter(
        "fabricast_endpoint_sent_bytes",
        "Bytes that were accepted, headers included.",
        |s| s.sends.bytes,
    ),
    Row::counter(
        "fabricast_endpoint_packed_messages",
        "Messages that were copied into frames, to travel together.",
        |s| s.sends.packed.messages,
    ),
    Row::counter(
        "fabricast_endpoint_packed_bytes",
        "Their bytes, headers included: what was copied to be sent.",
        |s| s.sends.packed.bytes,
    ),
    Row::counter(
        "fabricast_endpoint_packed_frames",
        "Frames that they went out in.",
        |s| s.sends.packed.frames,
    ),
    Row::counter(
        "fabricast_endpoint_gathered_messages",
        "Messages that were posted while the kernel gathered small ones.",
        |s| s.sends.gathered.messages,
    ),
    Row::each(
        MetricType::Counter,
        "fabricast_endpoint_would_block",
        "Sends that were refused for now, by reason.",
        &["reason"],
        |s, told| {
            for why in Blocked::ALL {
                told(&[why.label()], Value::Count(s.blocked(why)));
            }
        },
    ),
    Row::counter(
        "fabricast_endpoint_again",
        "Posts that the provider answered with -FI_EAGAIN.",
        |s| s.sends.eagain,
    ),
    Row::counter(
        "fabricast_endpoint_sends_refused",
        "Sends that were refused for any other reason than back-pressure.",
        |s| s.sends.refused,
    ),
    Row::gauge(
        "fabricast_endpoint_credits",
        "Messages that the peers would take now, as of the last look at the clock.",
        |s| s.credits,
    ),
    Row::counter(
        "fabricast_endpoint_received_messages",
        "Messages that were received.",
        |s| s.receives.messages,
    ),
    Row::counter(
        "fabricast_endpoint_received_bytes",
        "Their bytes, headers included.",
        |s| s.receives.bytes,
    ),
    Row::counter(
        "fabricast_endpoint_received_packed_messages",
        "Of these, messages that came in frames.",
        |s| s.receives.packed.messages,
    ),
    Row::counter(
        "fabricast_endpoint_received_frames",
        "Frames that they came in.",
        |s| s.receives.packed.frames,
    ),
    Row::gauge(
        "fabricast_endpoint_connections",
        "Connections that stand.",
        EndpointStats::connections,
    ),
    Row::counter(
        "fabricast_endpoint_connected",
        "Connections that stood, those made again included.",
        |s| s.receives.connections,
    ),
    Row::counter(
        "fabricast_endpoint_connections_lost",
        "Connections that were lost, or broke the protocol.",
        |s| s.receives.lost,
    ),
    Row::counter(
        "fabricast_endpoint_connections_refused",
        "Requests for connections that were refused.",
        |s| s.receives.refused,
    ),
    Row::counter(
        "fabricast_endpoint_connections_reaped",
        "Connections that never said a valid hello and were cut off.",
        |s| s.receives.reaped,
    ),
    Row::counter(
        "fabricast_endpoint_starved",
        "Times that a connection found no buffer to receive into.",
        |s| s.receives.starved,
    ),
    Row::counter(
        "fabricast_endpoint_long_copied_bytes",
        "Bytes of long messages that were copied, since only the endpoint's end ends access.",
        |s| s.receives.long_copied,
    ),
    Row::counter(
        "fabricast_endpoint_late_copied_bytes",
        "Bytes of long messages that were copied, since peers answered fences late.",
        |s| s.receives.late_copied,
    ),
    Row::counter(
        "fabricast_endpoint_peer_writes",
        "Writes of peers that came with immediate data.",
        |s| s.receives.peer_writes,
    ),
    Row::counter(
        "fabricast_endpoint_stray_writes",
        "Writes of peers that named no window.",
        |s| s.receives.stray_writes,
    ),
    Row::counter(
        "fabricast_endpoint_stray_messages",
        "Messages that named no connection.",
        |s| s.receives.strays,
    ),
    Row::counter(
        "fabricast_endpoint_unknown_completions",
        "Completions that named no operation.",
        |s| s.receives.unknown_completions,
    ),
    Row::counter(
        "fabricast_endpoint_leaked",
        "Operations leaked because the provider would not close its endpoint.",
        |s| s.receives.leaked,
    ),
    Row::counter(
        "fabricast_endpoint_queue_reads",
        "Reads of the completion queue.",
        |s| s.receives.cq_reads,
    ),
    Row::counter(
        "fabricast_endpoint_queue_reads_empty",
        "Of these, reads that found nothing.",
        |s| s.receives.cq_reads_empty,
    ),
];

const PUBLISH: &[Row<PublishStats>] = &[
    Row::counter(
        "fabricast_publish_publications",
        "Publications that were accepted.",
        |s| s.published,
    ),
    Row::gauge(
        "fabricast_publish_open",
        "Of these, those that are not over for all of their subscribers.",
        |s| s.open,
    ),
    Row::counter(
        "fabricast_publish_without_subscribers",
        "Publications that nobody had subscribed to.",
        |s| s.without_subscribers,
    ),
    Row::counter(
        "fabricast_publish_would_block",
        "Publications that were refused for now.",
        |s| s.would_block,
    ),
    Row::counter(
        "fabricast_publish_sends",
        "Sends to single subscribers that were begun.",
        |s| s.posted,
    ),
    Row::counter(
        "fabricast_publish_sends_completed",
        "Of these, those that completed.",
        |s| s.sent,
    ),
    Row::counter(
        "fabricast_publish_sends_failed",
        "Of these, those that failed.",
        |s| s.failed,
    ),
    Row::counter(
        "fabricast_publish_dropped",
        "Publications that single subscribers did not get, because they were slow.",
        |s| s.dropped,
    ),
    Row::counter(
        "fabricast_publish_cut_off",
        "Subscribers that were cut off because they were too slow.",
        |s| s.cut_off,
    ),
    Row::gauge(
        "fabricast_publish_subscriptions",
        "Subscriptions that there are.",
        |s| s.subscriptions,
    ),
    Row::counter(
        "fabricast_publish_subscriptions_refused",
        "Subscriptions that were refused because there were too many.",
        |s| s.refused,
    ),
];

const SUBSCRIBE: &[Row<SubscribeStats>] = &[
    Row::counter(
        "fabricast_subscribe_publications",
        "Publications that were received.",
        |s| s.received,
    ),
    Row::counter(
        "fabricast_subscribe_received_bytes",
        "Their bytes: headers and payloads.",
        |s| s.bytes,
    ),
    Row::counter(
        "fabricast_subscribe_missed",
        "Publications that publishers dropped for this subscriber.",
        |s| s.missed,
    ),
    Row::counter(
        "fabricast_subscribe_strays",
        "Publications of tags that were given up while they were on their way.",
        |s| s.strays,
    ),
    Row::gauge(
        "fabricast_subscribe_connected",
        "Publishers that are connected.",
        |s| s.connected,
    ),
    Row::counter(
        "fabricast_subscribe_reconnects",
        "Connections that were made again.",
        |s| s.reconnects,
    ),
];

const BUFFERED: &[Row<BufferedStats>] = &[
    Row::counter(
        "fabricast_buffered_messages",
        "Small messages that were accepted.",
        |s| s.accepted,
    ),
    Row::counter(
        "fabricast_buffered_messages_completed",
        "Of these, those that completed.",
        |s| s.confirmed,
    ),
    Row::counter(
        "fabricast_buffered_messages_failed",
        "Of these, those that failed.",
        |s| s.failed,
    ),
    Row::gauge(
        "fabricast_buffered_messages_pending",
        "Of these, those that have no outcome yet.",
        |s| s.pending,
    ),
    Row::counter(
        "fabricast_buffered_buffers",
        "Buffers that were given to the network.",
        |s| s.buffers,
    ),
    Row::counter(
        "fabricast_buffered_bytes",
        "Bytes of the packed ones, which were copied into them.",
        |s| s.bytes,
    ),
    Row::each(
        MetricType::Counter,
        "fabricast_buffered_left",
        "Packed buffers that left, by reason.",
        &["reason"],
        |s, told| {
            for (why, buffers) in [("full", s.full), ("flush", s.flushed), ("time", s.timed)] {
                told(&[why], Value::Count(buffers));
            }
        },
    ),
    Row::counter(
        "fabricast_buffered_would_block",
        "Messages and buffers that were refused for now.",
        |s| s.would_block,
    ),
];

const POOL: &[Row<PoolStats>] = &[
    Row::gauge("fabricast_pool_slots", "Buffers that pools have.", |s| {
        s.slots
    }),
    Row::gauge(
        "fabricast_pool_free",
        "Of these, buffers that are free, without those that are reserved.",
        |s| s.free,
    ),
    Row::counter(
        "fabricast_pool_empty",
        "Times that somebody asked for a buffer and none was free.",
        |s| s.empty,
    ),
];

const RING: &[Row<RingStats>] = &[
    Row::gauge(
        "fabricast_ring_capacity_bytes",
        "Bytes that rings have.",
        |s| s.capacity,
    ),
    Row::gauge(
        "fabricast_ring_used_bytes",
        "Of these, bytes in use, as the producer saw it last.",
        |s| s.used,
    ),
    Row::gauge(
        "fabricast_ring_fragments",
        "Pieces that are out, as the producer saw it last.",
        |s| s.fragments,
    ),
    Row::counter(
        "fabricast_ring_reserved_bytes",
        "Bytes that were reserved, with those that were skipped at the end.",
        |s| s.reserved,
    ),
    Row::counter(
        "fabricast_ring_full",
        "Reservations that were refused because there was no room.",
        |s| s.full,
    ),
];

const REGION: &[Row<RegionStats>] = &[
    Row::gauge("fabricast_region_regions", "Regions of memory.", |s| {
        s.regions
    }),
    Row::each(
        MetricType::Gauge,
        "fabricast_region_memory_bytes",
        "Their bytes, by whose memory it is.",
        &["memory"],
        |s, told| {
            told(&["host"], Value::Count(s.host_bytes));
            told(&["device"], Value::Count(s.device_bytes));
        },
    ),
    Row::gauge(
        "fabricast_region_registrations",
        "Registrations of regions with domains.",
        |s| s.registrations,
    ),
];

/// By direction and back end.
fn by_back_end(
    stats: &IoStats,
    told: Told<'_>,
    read: fn(crate::storage::stats::BackEndStats) -> u64,
) {
    for way in Direction::ALL {
        for back_end in BackEnd::ALL {
            let value = read(stats.direction(way).back_end(back_end));
            told(&[way.label(), back_end.label()], Value::Count(value));
        }
    }
}

const FILE: &[Row<IoStats>] = &[
    Row::each(
        MetricType::Counter,
        "fabricast_file_operations",
        "Operations that are over, failed ones too.",
        &["direction", "back_end"],
        |s, told| by_back_end(s, told, |it| it.operations),
    ),
    Row::each(
        MetricType::Counter,
        "fabricast_file_bytes",
        "Bytes that were moved, by failed operations too.",
        &["direction", "back_end"],
        |s, told| by_back_end(s, told, |it| it.bytes),
    ),
    Row::each(
        MetricType::Counter,
        "fabricast_file_errors",
        "Operations that failed.",
        &["direction", "back_end"],
        |s, told| by_back_end(s, told, |it| it.errors),
    ),
    Row::each(
        MetricType::Counter,
        "fabricast_file_direct_bytes",
        "Bytes that went past the page cache.",
        &["direction"],
        |s, told| {
            for way in Direction::ALL {
                told(&[way.label()], Value::Count(s.direction(way).direct_bytes));
            }
        },
    ),
    Row::each(
        MetricType::Counter,
        "fabricast_file_bounced_bytes",
        "Bytes that were copied through a bounce buffer.",
        &["direction"],
        |s, told| {
            for way in Direction::ALL {
                told(&[way.label()], Value::Count(s.direction(way).bounced_bytes));
            }
        },
    ),
    Row::each(
        MetricType::Histogram,
        "fabricast_file_operation_seconds",
        "How long operations took, failed ones too.",
        &["direction"],
        |s, told| {
            for way in Direction::ALL {
                told(&[way.label()], Value::Latencies(&s.direction(way).latency));
            }
        },
    ),
];

const STREAM: &[Row<StreamStats>] = &[
    Row::gauge(
        "fabricast_stream_active",
        "Streams that are under way.",
        |s| s.active,
    ),
    Row::counter("fabricast_stream_begun", "Streams that began.", |s| s.begun),
    Row::each(
        MetricType::Counter,
        "fabricast_stream_ended",
        "Streams that ended, by how.",
        &["outcome"],
        |s, told| {
            told(&["complete"], Value::Count(s.complete));
            told(&["cut"], Value::Count(s.cut));
        },
    ),
    Row::counter(
        "fabricast_stream_content_bytes",
        "Bytes of content that sinks have, of streams that are over.",
        |s| s.bytes,
    ),
    Row::counter(
        "fabricast_stream_sent_bytes",
        "Bytes that were sent, those that were sent again included.",
        |s| s.sent_bytes,
    ),
    Row::counter(
        "fabricast_stream_resumed_bytes",
        "Bytes that sinks had before, and that were not sent again.",
        |s| s.resumed_bytes,
    ),
    Row::counter(
        "fabricast_stream_equal_bytes",
        "Bytes that were found equal at the receiver and not sent.",
        |s| s.equal_bytes,
    ),
    Row::counter(
        "fabricast_stream_unchanged_files",
        "Files that were at the receiver unchanged.",
        |s| s.unchanged,
    ),
    Row::counter(
        "fabricast_stream_deleted_files",
        "Files and directories that receivers removed.",
        |s| s.deleted,
    ),
    Row::counter(
        "fabricast_stream_blocks",
        "Blocks that were sent; at a receiver those of streams that are over.",
        |s| s.blocks,
    ),
    Row::counter(
        "fabricast_stream_damaged_blocks",
        "Blocks whose checksum was wrong, and which were sent again.",
        |s| s.damaged,
    ),
    Row::counter(
        "fabricast_stream_doubled_blocks",
        "Blocks that came twice, and were written once.",
        |s| s.doubled,
    ),
    Row::counter(
        "fabricast_stream_reconnects",
        "Attempts to connect again.",
        |s| s.reconnects,
    ),
    Row::counter(
        "fabricast_stream_rails_lost",
        "Connections that were lost while others went on.",
        |s| s.rails_lost,
    ),
    Row::each(
        MetricType::Counter,
        "fabricast_stream_stalled_seconds",
        "Time that streams spent waiting, by what for.",
        &["stage"],
        |s, told| {
            for (stage, time) in s.stalls() {
                told(&[stage], Value::Time(time));
            }
        },
    ),
    Row::each(
        MetricType::Counter,
        "fabricast_stream_work_seconds",
        "Time that threads spent working, all threads together.",
        &["stage"],
        |s, told| {
            for (stage, time) in s.work() {
                told(&[stage], Value::Time(time));
            }
        },
    ),
];

/// By operation.
fn by_operation(stats: &ObjectStats, told: Told<'_>, read: fn(&OperationStats) -> u64) {
    for (operation, word) in OPERATIONS {
        told(&[word], Value::Count(read(stats.operation(operation))));
    }
}

const OPERATIONS: [(ObjectOperation, &str); 2] =
    [(ObjectOperation::Get, "get"), (ObjectOperation::Put, "put")];

const OBJECT: &[Row<ObjectStats>] = &[
    Row::each(
        MetricType::Counter,
        "fabricast_object_transfers",
        "Transfers that are over, those that failed too.",
        &["operation"],
        |s, told| by_operation(s, told, OperationStats::transfers),
    ),
    Row::each(
        MetricType::Counter,
        "fabricast_object_bytes",
        "Bytes that were moved, by transfers that failed too.",
        &["operation"],
        |s, told| by_operation(s, told, |it| it.bytes),
    ),
    Row::each(
        MetricType::Counter,
        "fabricast_object_failures",
        "Transfers that failed, by reason.",
        &["operation", "reason"],
        |s, told| {
            for (operation, word) in OPERATIONS {
                for kind in FailureKind::ALL {
                    let failures = s.operation(operation).failures(kind);
                    told(&[word, kind.label()], Value::Count(failures));
                }
            }
        },
    ),
    Row::each(
        MetricType::Histogram,
        "fabricast_object_transfer_seconds",
        "How long transfers took, those that failed too.",
        &["operation"],
        |s, told| {
            for (operation, word) in OPERATIONS {
                told(&[word], Value::Latencies(&s.operation(operation).latency));
            }
        },
    ),
    Row::counter(
        "fabricast_object_callback_failures",
        "Calls of the application that returned an error.",
        |s| s.callbacks.failed,
    ),
    Row::each(
        MetricType::Histogram,
        "fabricast_object_callback_seconds",
        "How long calls of the application took.",
        &[],
        |s, told| told(&[], Value::Latencies(&s.callbacks.latency)),
    ),
    Row::counter(
        "fabricast_object_tokens",
        "Tokens that were given out.",
        |s| s.lending.tokens,
    ),
    Row::counter(
        "fabricast_object_rekeys",
        "Times that memory got a new key.",
        |s| s.lending.rekeyed,
    ),
    Row::counter(
        "fabricast_object_quarantines",
        "Times that memory was kept back, since something late might have reached it.",
        |s| s.lending.quarantines,
    ),
    Row::gauge(
        "fabricast_object_quarantined_bytes",
        "Bytes that are kept back now.",
        |s| s.lending.quarantined_bytes,
    ),
];

const EVENT_LOOP: &[Row<LoopStats>] = &[
    Row::counter(
        "fabricast_event_loop_turns",
        "Rounds, those that spun included.",
        |s| s.rounds,
    ),
    Row::counter(
        "fabricast_event_loop_sleeps",
        "Rounds that slept in the kernel.",
        |s| s.sleeps,
    ),
    Row::counter(
        "fabricast_event_loop_wakes",
        "Sleeps that a descriptor ended.",
        |s| s.wakes,
    ),
    Row::counter(
        "fabricast_event_loop_spurious_wakes",
        "Wakes after which there was nothing to deliver.",
        |s| s.spurious,
    ),
    Row::each(
        MetricType::Counter,
        "fabricast_event_loop_slept_seconds",
        "Time that loops slept.",
        &[],
        |s, told| told(&[], Value::Time(Duration::from_nanos(s.slept_ns))),
    ),
];

/// Is called with each table of rows, and how its statistics are had.
pub(super) trait EachTable {
    fn table<T>(&mut self, rows: &'static [Row<T>], of: fn(&WatchedStats) -> Option<&T>);
}

macro_rules! tables {
    ($to:expr, $($page:ident: $rows:ident,)*) => {
        $($to.table($rows, |stats| match stats {
            WatchedStats::$page(it) => Some(it),
            _ => None,
        });)*
    };
}

/// All of the tables, in the order of the text.
pub(super) fn each_table(to: &mut impl EachTable) {
    tables!(to,
        Process: PROCESS,
        Endpoint: ENDPOINT,
        Publish: PUBLISH,
        Subscribe: SUBSCRIBE,
        Buffered: BUFFERED,
        Pool: POOL,
        Ring: RING,
        Region: REGION,
        File: FILE,
        Stream: STREAM,
        Object: OBJECT,
        EventLoop: EVENT_LOOP,
    );
}

/// All metrics, in the order of the text: what docs/guide/metrics.md lists.
///
/// ```
/// let metrics = fabricast::metrics::all();
/// assert!(metrics.iter().any(|metric| metric.name == "fabricast_endpoint_sends"));
/// ```
pub fn all() -> Vec<Metric> {
    struct All(Vec<Metric>);

    impl EachTable for All {
        fn table<T>(&mut self, rows: &'static [Row<T>], _: fn(&WatchedStats) -> Option<&T>) {
            self.0.extend(rows.iter().map(|row| row.metric));
        }
    }

    let mut all = All(Vec::new());
    each_table(&mut all);
    all.0
}
