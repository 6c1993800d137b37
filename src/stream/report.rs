//! `StreamReport`: how a stream went, what it waited for, and which way its bytes took.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::ReadBack;
use super::timeline::{Timeline, TimelineRecorder};
use crate::storage::IoStats;
use crate::storage::stats::DirectionStats;

/// What a side waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stall {
    /// Nothing: bytes are moving, or nothing is to be moved.
    None,
    /// The connection, or the end of the pause before the next attempt. Only timelines tell it.
    Connecting,
    Disk,
    Wire,
    Credits,
    Sink,
    Limit,
}

impl Stall {
    /// Those that reports tell.
    pub(crate) const WAITS: [Self; 5] = [
        Self::Disk,
        Self::Wire,
        Self::Credits,
        Self::Sink,
        Self::Limit,
    ];
}

/// Time that a stream spent waiting, by cause. What is left of its time, bytes were moving and
/// nothing waited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Stalls {
    /// The network was idle: the source was being read.
    pub disk: Duration,
    /// Blocks were ready: the network, or the peer's side of it, took no more.
    pub wire: Duration,
    /// Blocks were ready and others on their way: the peer had granted no more.
    pub credits: Duration,
    /// Everything that was granted had been sent: the sink was writing, proving or finishing.
    pub sink: Duration,
    /// A rate limit, a pause, or peers that were to be waited for.
    pub limit: Duration,
}

impl Stalls {
    /// All of it together.
    pub fn all(&self) -> Duration {
        Stall::WAITS.into_iter().map(|what| self.of(what)).sum()
    }

    pub(crate) fn of(&self, what: Stall) -> Duration {
        match what {
            Stall::None | Stall::Connecting => Duration::ZERO,
            Stall::Disk => self.disk,
            Stall::Wire => self.wire,
            Stall::Credits => self.credits,
            Stall::Sink => self.sink,
            Stall::Limit => self.limit,
        }
    }

    pub(crate) fn add(&mut self, what: Stall, spent: Duration) {
        match what {
            Stall::None | Stall::Connecting => {}
            Stall::Disk => self.disk += spent,
            Stall::Wire => self.wire += spent,
            Stall::Credits => self.credits += spent,
            Stall::Sink => self.sink += spent,
            Stall::Limit => self.limit += spent,
        }
    }

    fn named(&self) -> [(&'static str, Duration); 5] {
        [
            ("disk", self.disk),
            ("wire", self.wire),
            ("credits", self.credits),
            ("sink", self.sink),
            ("limit", self.limit),
        ]
    }
}

/// Adds up time by what was waited for, and where it is asked for, interval by interval.
#[derive(Debug)]
pub(crate) struct StallClock {
    now: Stall,
    since: Instant,
    totals: Stalls,
    timeline: Option<TimelineRecorder>,
}

impl StallClock {
    pub(crate) fn new(timeline: Option<TimelineRecorder>, now: Instant) -> Self {
        Self {
            now: Stall::Connecting,
            since: now,
            totals: Stalls::default(),
            timeline,
        }
    }

    /// From now on, this is waited for.
    pub(crate) fn turn(&mut self, to: Stall, now: Instant) {
        if to == self.now {
            return;
        }
        let spent = now.saturating_duration_since(self.since);
        self.totals.add(self.now, spent);
        if let Some(timeline) = &mut self.timeline {
            timeline.on_waited(self.now, self.since, now);
        }
        (self.now, self.since) = (to, now);
    }

    pub(crate) fn totals(&self) -> Stalls {
        self.totals
    }

    /// Where what happens is recorded, if it is.
    pub(crate) fn timeline(&mut self) -> Option<&mut TimelineRecorder> {
        self.timeline.as_mut()
    }

    /// Nothing is waited for any more: what was, goes into a report.
    pub(crate) fn close(&mut self, report: &mut StreamReport, now: Instant) {
        self.turn(Stall::None, now);
        report.stalls = self.totals;
        let timeline = self.timeline.take();
        report.timeline = timeline.map(|timeline| Arc::new(timeline.finish(now)));
    }
}

/// What the buffers of blocks are, for [`StreamReport::path`].
pub(crate) fn memory(pinned: bool) -> &'static str {
    match pinned {
        true => "pinned host memory, registered",
        false => "host memory, registered",
    }
}

/// How a stream went, at one peer.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct StreamReport {
    /// Bytes of the content that the sink has. At the sender of a stream that did not end well: the
    /// most that the peer said it has.
    pub bytes: u64,
    /// Of those, bytes that it had before: from a stream that was cut, or in files that are kept as
    /// they are.
    pub resumed_bytes: u64,
    /// Files that were there unchanged and are kept as they are
    /// ([`SendOptions::skip_unchanged`](crate::stream::SendOptions::skip_unchanged)).
    pub unchanged: u64,
    /// Bytes that were at the receiver in files of another time, and were found equal and not sent
    /// ([`SendOptions::compare_content`](crate::stream::SendOptions::compare_content)).
    pub equal_bytes: u64,
    /// Files and directories that the receiver has removed
    /// ([`SendOptions::delete`](crate::stream::SendOptions::delete)).
    pub deleted: u64,
    /// Bytes that were sent, those that were sent again included, those of blocks in holes not. At
    /// a receiver 0.
    pub sent_bytes: u64,
    /// The same by the peer's addresses, in their order ([`Peer::new`](crate::stream::Peer::new)):
    /// which rails carried how much. At a receiver empty.
    pub address_bytes: Vec<u64>,
    /// Blocks that were sent, or at a receiver: of the stream.
    pub blocks: u64,
    /// From the beginning to the end.
    pub took: Duration,
    /// The time that was spent waiting, by reason.
    pub stalls: Stalls,
    /// Time that threads spent reading and computing checksums, all threads together.
    pub read_time: Duration,
    /// Time that threads spent checking and writing, all threads together.
    pub write_time: Duration,
    /// Blocks that came damaged, and were sent again.
    pub damaged: u64,
    /// Blocks that came twice, and were written once.
    pub doubled: u64,
    /// Attempts to connect again.
    pub reconnects: u64,
    /// Connections that were lost while others went on.
    pub rails_lost: u64,
    /// What the sink read back to check it, and how long that took; at a sender nothing.
    pub read_back: ReadBack,
    /// BLAKE3 of the content, where it was asked for: of one entry the plain hash of the file, of
    /// several the hash of their plain hashes, one behind the other in the order of the manifest.
    pub blake3: Option<[u8; 32]>,
    /// BLAKE3 of each entry, where it was asked for, in the order of the manifest: plain hashes, as
    /// `b3sum` shows them. What has no bytes has the hash of nothing. At a sender `None`.
    pub entry_hashes: Option<Arc<[[u8; 32]]>>,
    /// Sender and receiver have both computed it, and it is the same. A sender that did not read
    /// everything, since the receiver had a part of it from a stream that was cut, has none to
    /// compare: then it is the receiver's.
    pub blake3_compared: bool,
    /// Time that threads spent computing it, all threads together; part of the time for reading, or
    /// checking and writing.
    pub hash_time: Duration,
    /// Files and directories that are under their names at the receiver: of a complete stream all
    /// of them. Of one that was cut none, unless it was cut while its sink finished: then as many
    /// as could be put there, each of them whole. At a sender 0.
    pub placed: u64,
    /// Which way the bytes took on this side: where they came from or went to, where that is a
    /// GPU's memory; the memory that they were sent from or received in; the provider.
    pub path: String,
    /// Whether blocks came as messages or by RMA write, and why.
    pub transport: String,
    /// What this side did with files: operations, bytes, errors and latencies by back end, and how
    /// much went around the page cache. At a receiver of this stream; at a sender of its source,
    /// for all peers and since the source was made. All zeros where there are no files.
    pub io: IoStats,
    /// How it went over time, where that was asked for
    /// ([`SendOptions::timeline`](crate::stream::SendOptions::timeline),
    /// [`ReceiverConfig::timeline`](crate::stream::ReceiverConfig::timeline)).
    pub timeline: Option<Arc<Timeline>>,
}

/// Below this part of its time, a cause is no bottleneck.
const WORTH_NAMING: f64 = 0.05;

impl StreamReport {
    /// Bytes a second, those from an earlier stream left out.
    pub fn rate(&self) -> f64 {
        let moved = self.bytes.saturating_sub(self.resumed_bytes);
        moved as f64 / self.took.as_secs_f64().max(1e-9)
    }

    /// What the stream waited for most, in words.
    pub fn bottleneck(&self) -> String {
        let took = self.took.as_secs_f64().max(1e-9);
        let most = self
            .stalls
            .named()
            .into_iter()
            .max_by_key(|(_, time)| *time);
        let Some((name, time)) = most.filter(|(_, time)| time.as_secs_f64() / took >= WORTH_NAMING)
        else {
            return "none: bytes were moving nearly all the time".to_owned();
        };
        let words = match name {
            "disk" => "the source: the network waited for it",
            "wire" => "the network: blocks waited for it",
            "credits" => "too few blocks granted for the length of the way",
            "sink" => "the sink: the sender waited for it",
            _ => "a limit that was asked for, or peers that were to be waited for",
        };
        format!(
            "{words} ({:.0} % of the time)",
            100.0 * time.as_secs_f64() / took
        )
    }

    /// The report as a JSON object: times in seconds, rate in bytes a second.
    pub fn to_json(&self) -> String {
        let stalls = self.stalls.named();
        let stalls = stalls.map(|(name, time)| (name.to_owned(), json!(time.as_secs_f64())));
        let stalls = Value::Object(stalls.into_iter().collect());
        json!({
            "bytes": self.bytes,
            "resumed_bytes": self.resumed_bytes,
            "unchanged": self.unchanged,
            "equal_bytes": self.equal_bytes,
            "deleted": self.deleted,
            "sent_bytes": self.sent_bytes,
            "address_bytes": self.address_bytes,
            "blocks": self.blocks,
            "seconds": self.took.as_secs_f64(),
            "rate": self.rate(),
            "stalls": stalls,
            "read_seconds": self.read_time.as_secs_f64(),
            "write_seconds": self.write_time.as_secs_f64(),
            "damaged": self.damaged,
            "doubled": self.doubled,
            "reconnects": self.reconnects,
            "rails_lost": self.rails_lost,
            "read_back_bytes": self.read_back.bytes,
            "read_back_seconds": self.read_back.took.as_secs_f64(),
            "blake3": self.blake3.map(hex),
            "blake3_compared": self.blake3_compared,
            "placed": self.placed,
            "hash_seconds": self.hash_time.as_secs_f64(),
            "path": self.path,
            "transport": self.transport,
            "read": direction(&self.io.read),
            "written": direction(&self.io.write),
            "bottleneck": self.bottleneck(),
        })
        .to_string()
    }
}

impl fmt::Display for StreamReport {
    /// One line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, rate) = (self.took.as_secs_f64(), self.rate() / 1e9);
        write!(f, "{} bytes in {seconds:.3} s, {rate:.2} GB/s", self.bytes)?;
        if self.resumed_bytes > 0 {
            write!(f, ", {} of them were there", self.resumed_bytes)?;
        }
        if self.unchanged > 0 {
            write!(f, ", {} files unchanged", self.unchanged)?;
        }
        if self.equal_bytes > 0 {
            write!(f, ", {} bytes were equal", self.equal_bytes)?;
        }
        if self.deleted > 0 {
            write!(f, ", {} files and directories deleted", self.deleted)?;
        }
        if self.damaged > 0 {
            write!(f, ", {} blocks were damaged and sent again", self.damaged)?;
        }
        if let Some(hash) = self.blake3 {
            let seconds = self.hash_time.as_secs_f64();
            write!(f, "; BLAKE3 {} took {seconds:.3} s of CPU", hex(hash))?;
        }
        if self.read_back.bytes > 0 {
            let seconds = self.read_back.took.as_secs_f64();
            write!(f, "; reading back took {seconds:.3} s")?;
        }
        write!(f, "; bottleneck: {}", self.bottleneck())
    }
}

/// What was done with files in one direction.
fn direction(io: &DirectionStats) -> Value {
    json!({
        "operations": io.operations(),
        "bytes": io.bytes(),
        "direct_bytes": io.direct_bytes,
        "bounced_bytes": io.bounced_bytes,
        "errors": io.errors(),
    })
}

fn hex(hash: [u8; 32]) -> String {
    blake3::Hash::from_bytes(hash).to_string()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn time_goes_to_what_was_waited_for() {
        let begin = Instant::now();
        let mut clock = StallClock::new(None, begin);
        clock.turn(Stall::Disk, begin + ms(10));
        clock.turn(Stall::Disk, begin + ms(20));
        clock.turn(Stall::Sink, begin + ms(40));
        clock.turn(Stall::None, begin + ms(45));
        clock.turn(Stall::Wire, begin + ms(50));
        clock.turn(Stall::None, begin + ms(51));
        let mut report = StreamReport::default();
        clock.close(&mut report, begin + ms(60));
        let Stalls {
            disk, wire, sink, ..
        } = report.stalls;
        assert_eq!((disk, wire, sink), (ms(30), ms(1), ms(5)));
    }

    #[test]
    fn the_report_names_the_bottleneck() {
        let mut report = StreamReport {
            bytes: 3_000_000_000,
            resumed_bytes: 1_000_000_000,
            took: Duration::from_secs(2),
            ..StreamReport::default()
        };
        assert_eq!(report.rate(), 1e9);
        assert!(report.bottleneck().starts_with("none"));
        report.stalls.wire = ms(99);
        assert!(report.bottleneck().starts_with("none"));
        report.stalls.disk = ms(500);
        assert_eq!(
            report.bottleneck(),
            "the source: the network waited for it (25 % of the time)"
        );
        let read: Value = serde_json::from_str(&report.to_json()).expect("JSON");
        assert_eq!(read["rate"], 1e9);
        assert_eq!(read["stalls"]["disk"], 0.5);
        assert!(
            report.to_string().starts_with(
                "3000000000 bytes in 2.000 s, 1.00 GB/s, 1000000000 of them were there"
            )
        );
    }
}
