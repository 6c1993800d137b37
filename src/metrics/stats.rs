//! What the registry has of each thing: `WatchedEntry`, with the statistics of its kind.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::cell::{Count, Totals, cells};
use super::registry::Watch;
use crate::endpoint::Blocked;
use crate::event_loop::LoopStats;
use crate::object::ObjectStats;
use crate::stats::{
    BufferedStats, ProcessStats, PublishStats, ReceiveCells, ReceiveStats, SendCells, SendStats,
    SubscribeStats,
};
use crate::storage::IoStats;

/// What something is that is watched. Its word is the label `kind` of its metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum WatchedKind {
    /// The process itself: what outlives all that counts it.
    Process,
    /// A [`SendEndpointZeroCopy`](crate::SendEndpointZeroCopy).
    Send,
    /// A [`ReceiveEndpoint`](crate::ReceiveEndpoint).
    Receive,
    /// A [`SendEndpointBuffered`](crate::SendEndpointBuffered).
    Buffered,
    /// A [`ConnectionlessEndpoint`](crate::ConnectionlessEndpoint).
    Connectionless,
    /// A [`PublishEndpoint`](crate::PublishEndpoint), or a
    /// [`PublishEndpointBuffered`](crate::PublishEndpointBuffered).
    Publish,
    /// A [`SubscribeEndpoint`](crate::SubscribeEndpoint).
    Subscribe,
    /// An endpoint on whose connections both sides send: what streams, and objects' requests, go
    /// over.
    Duplex,
    /// A pool of buffers ([`SharedBufferManager`](crate::buffer::SharedBufferManager)).
    Pool,
    /// A ring ([`RingRegion`](crate::buffer::RingRegion)).
    Ring,
    /// Memory ([`Region`](crate::Region)).
    Region,
    /// A file ([`FileHandle`](crate::storage::FileHandle)). All of them are called "files".
    File,
    /// A [`StreamSender`](crate::stream::StreamSender).
    StreamSender,
    /// A [`StreamReceiver`](crate::stream::StreamReceiver).
    StreamReceiver,
    /// An [`ObjectClient`](crate::object::ObjectClient).
    ObjectClient,
    /// An [`ObjectServer`](crate::object::ObjectServer).
    ObjectServer,
    /// An [`EventLoop`](crate::event_loop::EventLoop).
    EventLoop,
}

impl WatchedKind {
    fn label(self) -> &'static str {
        match self {
            Self::Process => "process",
            Self::Send => "send",
            Self::Receive => "receive",
            Self::Buffered => "buffered",
            Self::Connectionless => "connectionless",
            Self::Publish => "publish",
            Self::Subscribe => "subscribe",
            Self::Duplex => "duplex",
            Self::Pool => "pool",
            Self::Ring => "ring",
            Self::Region => "region",
            Self::File => "file",
            Self::StreamSender => "stream_sender",
            Self::StreamReceiver => "stream_receiver",
            Self::ObjectClient => "object_client",
            Self::ObjectServer => "object_server",
            Self::EventLoop => "event_loop",
        }
    }
}

impl fmt::Display for WatchedKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label())
    }
}

/// One thing that is watched, or the sum of those of its kind that are gone.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct WatchedEntry {
    /// What it is.
    pub kind: WatchedKind,
    /// What it is called. Several may be called the same; empty for the sum of those that are gone.
    pub name: Arc<str>,
    /// Its number in the process, from 1; 0 for the sum of those that are gone. A thing that has
    /// statistics of two sorts has two entries.
    pub id: u64,
    /// What it counted.
    pub stats: WatchedStats,
}

/// What something counted.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum WatchedStats {
    /// The process.
    Process(ProcessStats),
    /// An endpoint, of whatever kind: what goes over its connections.
    Endpoint(Box<EndpointStats>),
    /// Publications, of an endpoint that publishes.
    Publish(PublishStats),
    /// Publications, of an endpoint that subscribes.
    Subscribe(SubscribeStats),
    /// Small messages, of an endpoint that packs them into buffers.
    Buffered(BufferedStats),
    /// A pool of buffers.
    Pool(PoolStats),
    /// A ring.
    Ring(RingStats),
    /// Memory.
    Region(RegionStats),
    /// A file.
    File(Box<IoStats>),
    /// One side of streams.
    Stream(Box<StreamStats>),
    /// A client or a server of objects.
    Object(Box<ObjectStats>),
    /// An event loop.
    EventLoop(LoopStats),
}

impl WatchedStats {
    /// The number of its variant.
    pub(super) fn page(&self) -> u8 {
        match self {
            Self::Process(_) => 0,
            Self::Endpoint(_) => 1,
            Self::Publish(_) => 2,
            Self::Subscribe(_) => 3,
            Self::Buffered(_) => 4,
            Self::Pool(_) => 5,
            Self::Ring(_) => 6,
            Self::Region(_) => 7,
            Self::File(_) => 8,
            Self::Stream(_) => 9,
            Self::Object(_) => 10,
            Self::EventLoop(_) => 11,
        }
    }
}

impl Totals for WatchedStats {
    /// Of another variant, nothing is added.
    fn add(&mut self, other: &Self) {
        match (self, other) {
            (Self::Endpoint(sum), Self::Endpoint(it)) => sum.add(it),
            (Self::Publish(sum), Self::Publish(it)) => sum.add(it),
            (Self::Subscribe(sum), Self::Subscribe(it)) => sum.add(it),
            (Self::Buffered(sum), Self::Buffered(it)) => sum.add(it),
            (Self::Pool(sum), Self::Pool(it)) => sum.add(it),
            (Self::Ring(sum), Self::Ring(it)) => sum.add(it),
            (Self::Region(sum), Self::Region(it)) => sum.add(it),
            (Self::File(sum), Self::File(it)) => **sum += it,
            (Self::Stream(sum), Self::Stream(it)) => sum.add(it),
            (Self::Object(sum), Self::Object(it)) => **sum += it,
            (Self::EventLoop(sum), Self::EventLoop(it)) => sum.add(it),
            _ => debug_assert!(false, "statistics of one sort"),
        }
    }

    fn rest(&mut self) {
        match self {
            Self::Process(_) | Self::File(_) => {}
            Self::Endpoint(it) => it.rest(),
            Self::Publish(it) => it.rest(),
            Self::Subscribe(it) => it.rest(),
            Self::Buffered(it) => it.rest(),
            Self::Pool(it) => it.rest(),
            Self::Ring(it) => it.rest(),
            Self::Region(it) => it.rest(),
            Self::Stream(it) => it.rest(),
            // What it kept back is its own matter no more.
            Self::Object(it) => it.lending.quarantined_bytes = 0,
            Self::EventLoop(it) => it.rest(),
        }
    }
}

/// How many reasons there are to say `WouldBlock`.
const BLOCKED: usize = Blocked::ALL.len();

/// What went over the connections of an endpoint.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EndpointStats {
    /// What was sent, written and read: messages and one-sided operations together.
    pub sends: SendStats,
    /// What was received, and the connections. Its one-sided operations are among the sends, and
    /// what messages hold of the pool is not in it.
    pub receives: ReceiveStats,
    /// Messages that the peers would take now, on the first 64 connections; as of the last look at
    /// the clock, which a poll takes each 1 to 10 ms.
    pub credits: u64,
    blocked: [u64; BLOCKED],
}

impl EndpointStats {
    /// How many sends were refused with `WouldBlock` for this reason.
    pub fn blocked(&self, why: Blocked) -> u64 {
        self.blocked[why.index()]
    }

    /// Connections that stand.
    pub fn connections(&self) -> u64 {
        // A snapshot is not of one moment.
        let receives = &self.receives;
        receives.connections.saturating_sub(receives.closed)
    }
}

impl Totals for EndpointStats {
    fn add(&mut self, other: &Self) {
        self.sends.add(&other.sends);
        self.receives.add(&other.receives);
        self.credits += other.credits;
        for (sum, it) in self.blocked.iter_mut().zip(other.blocked) {
            *sum += it;
        }
    }

    fn rest(&mut self) {
        self.sends.rest();
        self.receives.rest();
        self.receives.closed = self.receives.connections;
        self.credits = 0;
    }
}

/// Where an endpoint counts: its thread writes, any thread reads.
#[derive(Debug, Default)]
pub(crate) struct EndpointCells {
    sends: SendCells,
    receives: ReceiveCells,
    pub(crate) credits: Count,
    blocked: [Count; BLOCKED],
}

impl Watch for EndpointCells {
    fn stats(&self) -> WatchedStats {
        let receives = self.receives.read();
        let mut sends = self.sends.read();
        (sends.cq_reads, sends.cq_reads_empty) = (receives.cq_reads, receives.cq_reads_empty);
        WatchedStats::Endpoint(Box::new(EndpointStats {
            sends,
            receives,
            credits: self.credits.read(),
            blocked: std::array::from_fn(|place| self.blocked[place].read()),
        }))
    }
}

/// The part of them that a hub counts what it sends in.
#[derive(Debug)]
pub(crate) struct SendsCounted(pub(crate) Arc<EndpointCells>);

impl SendsCounted {
    pub(crate) fn count_blocked(&self, why: Blocked) {
        self.0.blocked[why.index()].add(1);
    }
}

impl std::ops::Deref for SendsCounted {
    type Target = SendCells;

    #[inline(always)]
    fn deref(&self) -> &SendCells {
        &self.0.sends
    }
}

/// The part of them that a hub counts what it receives in.
#[derive(Debug)]
pub(crate) struct ReceivesCounted(pub(crate) Arc<EndpointCells>);

impl std::ops::Deref for ReceivesCounted {
    type Target = ReceiveCells;

    #[inline(always)]
    fn deref(&self) -> &ReceiveCells {
        &self.0.receives
    }
}

/// A pool of buffers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolStats {
    /// Buffers that it has.
    pub slots: u64,
    /// Of these, buffers that are free, without those that are reserved for an endpoint.
    pub free: u64,
    /// Times that somebody asked for a buffer and none was free.
    pub empty: u64,
}

impl Totals for PoolStats {
    fn add(&mut self, other: &Self) {
        self.slots += other.slots;
        self.free += other.free;
        self.empty += other.empty;
    }

    fn rest(&mut self) {
        (self.slots, self.free) = (0, 0);
    }
}

cells! {
    /// Where a ring's producer counts.
    RingCells of RingStats {
        capacity: gauge,
        used: gauge,
        fragments: gauge,
        reserved: count,
        full: count,
    }
}

/// A ring.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RingStats {
    /// Bytes that it has.
    pub capacity: u64,
    /// Of these, bytes in use, as the producer saw it last.
    pub used: u64,
    /// Pieces that are out, as the producer saw it last.
    pub fragments: u64,
    /// Bytes that were reserved, with those that were skipped at the region's end.
    pub reserved: u64,
    /// Reservations that were refused because there was no room.
    pub full: u64,
}

impl Watch for RingCells {
    fn stats(&self) -> WatchedStats {
        WatchedStats::Ring(self.read())
    }
}

/// Memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RegionStats {
    /// Regions: one, or of a sum how many live.
    pub regions: u64,
    /// Bytes of the host's memory.
    pub host_bytes: u64,
    /// Bytes of GPUs' memory.
    pub device_bytes: u64,
    /// Domains that it is registered with.
    pub registrations: u64,
}

impl Totals for RegionStats {
    fn add(&mut self, other: &Self) {
        self.regions += other.regions;
        self.host_bytes += other.host_bytes;
        self.device_bytes += other.device_bytes;
        self.registrations += other.registrations;
    }

    fn rest(&mut self) {
        *self = Self::default();
    }
}

cells! {
    /// Where one side of streams counts.
    StreamCells of StreamStats {
        active: gauge,
        begun: count,
        complete: count,
        cut: count,
        bytes: count,
        sent_bytes: count,
        resumed_bytes: count,
        equal_bytes: count,
        unchanged: count,
        deleted: count,
        blocks: count,
        damaged: count,
        doubled: count,
        reconnects: count,
        rails_lost: count,
        disk_ns: count,
        wire_ns: count,
        credits_ns: count,
        sink_ns: count,
        limit_ns: count,
        read_ns: count,
        write_ns: count,
        hash_ns: count,
    }
}

/// One side of streams: all streams to, or from, all of its peers together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamStats {
    /// Streams that are under way: of a sender one for each peer.
    pub active: u64,
    /// Streams that began.
    pub begun: u64,
    /// Of these, streams that ended well.
    pub complete: u64,
    /// Of these, streams that did not.
    pub cut: u64,
    /// Bytes of the content that the sinks have, of streams that are over.
    pub bytes: u64,
    /// Bytes that were sent, those that were sent again included; at a receiver 0.
    pub sent_bytes: u64,
    /// Bytes that sinks had before, from streams that were cut or in files that were unchanged.
    pub resumed_bytes: u64,
    /// Bytes that were found equal and not sent.
    pub equal_bytes: u64,
    /// Files that were there unchanged.
    pub unchanged: u64,
    /// Files and directories that were removed.
    pub deleted: u64,
    /// Blocks that were sent, or at a receiver, that the streams which are over had.
    pub blocks: u64,
    /// Blocks that came damaged, and were sent again.
    pub damaged: u64,
    /// Blocks that came twice.
    pub doubled: u64,
    /// Attempts to connect again.
    pub reconnects: u64,
    /// Connections that were lost while others went on.
    pub rails_lost: u64,
    /// Nanoseconds that the source was waited for, as all that follows.
    pub disk_ns: u64,
    /// That the network was.
    pub wire_ns: u64,
    /// That the peer's grants were.
    pub credits_ns: u64,
    /// That the sink was.
    pub sink_ns: u64,
    /// That a limit, a pause or other peers were.
    pub limit_ns: u64,
    /// That threads spent reading and computing checksums.
    pub read_ns: u64,
    /// That threads spent checking and writing.
    pub write_ns: u64,
    /// That threads spent computing BLAKE3.
    pub hash_ns: u64,
}

impl StreamStats {
    /// What was waited for, by name: for how long.
    pub fn stalls(&self) -> [(&'static str, Duration); 5] {
        [
            ("disk", self.disk_ns),
            ("wire", self.wire_ns),
            ("credits", self.credits_ns),
            ("sink", self.sink_ns),
            ("limit", self.limit_ns),
        ]
        .map(|(name, ns)| (name, Duration::from_nanos(ns)))
    }

    /// What threads worked at, by name: for how long.
    pub fn work(&self) -> [(&'static str, Duration); 3] {
        [
            ("read", self.read_ns),
            ("write", self.write_ns),
            ("hash", self.hash_ns),
        ]
        .map(|(name, ns)| (name, Duration::from_nanos(ns)))
    }
}

impl Watch for StreamCells {
    fn stats(&self) -> WatchedStats {
        WatchedStats::Stream(Box::new(self.read()))
    }
}

cells! {
    /// Where an event loop counts.
    LoopCells of LoopStats {
        rounds: count,
        sleeps: count,
        wakes: count,
        spurious: count,
        slept_ns: count,
    }
}

impl Watch for LoopCells {
    fn stats(&self) -> WatchedStats {
        WatchedStats::EventLoop(self.read())
    }
}

impl Watch for crate::stats::SubscribeCells {
    fn stats(&self) -> WatchedStats {
        WatchedStats::Subscribe(self.read())
    }
}

impl Watch for crate::stats::PublishCells {
    fn stats(&self) -> WatchedStats {
        let stats = self.read();
        WatchedStats::Publish(PublishStats {
            open: stats.published.saturating_sub(stats.over),
            ..stats
        })
    }
}

impl Watch for crate::stats::BufferedCells {
    fn stats(&self) -> WatchedStats {
        let stats = self.read();
        let done = stats.confirmed.saturating_add(stats.failed);
        WatchedStats::Buffered(BufferedStats {
            pending: stats.accepted.saturating_sub(done),
            ..stats
        })
    }
}
