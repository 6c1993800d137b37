//! `StreamReport`: how a stream went.

use std::fmt;
use std::time::{Duration, Instant};

/// What a side waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stall {
    None,
    Disk,
    Wire,
    Credits,
    Sink,
}

/// Time spent waiting, by cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Stalls {
    /// For the source to be read.
    pub disk: Duration,
    /// For the network.
    pub wire: Duration,
    /// For grants, with blocks on their way.
    pub credits: Duration,
    /// For the sink.
    pub sink: Duration,
}

#[derive(Debug)]
pub(crate) struct StallClock {
    now: Stall,
    since: Instant,
    totals: Stalls,
}

impl StallClock {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            now: Stall::None,
            since: now,
            totals: Stalls::default(),
        }
    }

    pub(crate) fn turn(&mut self, to: Stall, now: Instant) {
        if to == self.now {
            return;
        }
        let spent = now.saturating_duration_since(self.since);
        match self.now {
            Stall::None => {}
            Stall::Disk => self.totals.disk += spent,
            Stall::Wire => self.totals.wire += spent,
            Stall::Credits => self.totals.credits += spent,
            Stall::Sink => self.totals.sink += spent,
        }
        self.now = to;
        self.since = now;
    }

    pub(crate) fn totals(&self) -> Stalls {
        self.totals
    }
}

/// How a stream went, at one peer.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct StreamReport {
    /// Bytes of the content that the sink has.
    pub bytes: u64,
    /// Of those, bytes that it had before.
    pub resumed_bytes: u64,
    /// Bytes that were sent, those that were sent again included.
    pub sent_bytes: u64,
    /// Blocks that were sent or taken.
    pub blocks: u64,
    /// From the beginning to the end.
    pub took: Duration,
    /// Time spent waiting.
    pub stalls: Stalls,
    /// Time that threads spent reading.
    pub read_time: Duration,
    /// Time that threads spent checking and writing.
    pub write_time: Duration,
    /// Blocks that came damaged, and were sent again.
    pub damaged: u64,
    /// Blocks that came twice.
    pub doubled: u64,
    /// Attempts to connect again.
    pub reconnects: u64,
    /// Connections that were lost while others went on.
    pub rails_lost: u64,
    /// Bytes that were read back to check them.
    pub read_back_bytes: u64,
}

impl fmt::Display for StreamReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = self.bytes as f64 / self.took.as_secs_f64().max(1e-9) / 1e9;
        write!(
            f,
            "{} bytes in {:.3} s, {rate:.2} GB/s",
            self.bytes,
            self.took.as_secs_f64()
        )
    }
}
