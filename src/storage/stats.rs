//! `IoCounters` and `IoStats`: operations, bytes, errors and latencies, per file and of the
//! process.
//!
//! ```text
//!  operation ── record ──► IoCounters (one a file, relaxed atomics, an entry of `metrics`)
//!                              │ snapshot            │ all of them, and what closed files counted
//!                              ▼                     ▼
//!                     IoStats of the file     IoStats of the process: stats::process()
//! ```
//!
//! The process has no counters of its own: they would be a cache line that all threads write. Its
//! statistics are added up when somebody asks.

use std::fmt;
use std::ops::AddAssign;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use smallvec::SmallVec;

use super::back_end::{BackEnd, Direction};
use crate::metrics::latencies::{LatencyCells, SUM_MAX, bucket, nanoseconds};
use crate::metrics::registry::{Watch, WatchedCells};
use crate::metrics::{self, Latencies, WatchedKind, WatchedStats};

/// One operation that is over.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Record {
    pub(crate) direction: Direction,
    pub(crate) back_end: BackEnd,
    /// Bytes that were moved, by whatever way.
    pub(crate) bytes: u64,
    /// Of these, bytes that went past the page cache.
    pub(crate) direct_bytes: u64,
    /// Of these, bytes that were copied through a bounce buffer.
    pub(crate) bounced_bytes: u64,
    /// From its acceptance to its outcome.
    pub(crate) elapsed: Duration,
    pub(crate) failed: bool,
}

/// The counters of one file.
pub(crate) struct IoCounters {
    cells: WatchedCells<Cells>,
}

impl IoCounters {
    pub(crate) fn new() -> Self {
        Self {
            cells: WatchedCells::new(WatchedKind::File, Some("files")),
        }
    }

    /// Counts one operation.
    #[inline]
    pub(crate) fn record(&self, record: &Record) {
        self.cells.record(record);
    }

    /// Counts what was gathered, which is then nothing.
    pub(crate) fn record_all(&self, tally: &mut Tally) {
        self.cells.direction(tally.direction).record_all(tally);
    }

    /// Counted so far. Operations that end meanwhile may be in some of the numbers and not yet in
    /// others.
    pub(crate) fn snapshot(&self) -> IoStats {
        self.cells.snapshot()
    }
}

impl fmt::Debug for IoCounters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("IoCounters").field(&self.snapshot()).finish()
    }
}

/// The statistics of all files that this process opened, closed ones too.
pub fn process() -> IoStats {
    let mut sum = IoStats::default();
    for entry in metrics::snapshot() {
        if let WatchedStats::File(stats) = entry.stats {
            sum += &stats;
        }
    }
    sum
}

#[derive(Default)]
struct Cells {
    read: DirectionCells,
    write: DirectionCells,
}

impl Cells {
    fn record(&self, record: &Record) {
        self.direction(record.direction).record(record);
    }

    fn direction(&self, direction: Direction) -> &DirectionCells {
        match direction {
            Direction::Read => &self.read,
            Direction::Write => &self.write,
        }
    }

    fn snapshot(&self) -> IoStats {
        IoStats {
            read: self.read.snapshot(),
            write: self.write.snapshot(),
        }
    }
}

impl Watch for Cells {
    fn stats(&self) -> WatchedStats {
        WatchedStats::File(Box::new(self.snapshot()))
    }
}

#[derive(Default)]
struct DirectionCells {
    back_ends: [BackEndCells; BackEnd::ALL.len()],
    direct_bytes: AtomicU64,
    bounced_bytes: AtomicU64,
    latency: LatencyCells,
}

#[derive(Default)]
struct BackEndCells {
    operations: AtomicU64,
    bytes: AtomicU64,
    errors: AtomicU64,
}

/// Operations that one thread gathers, to count all of them at once: an atomic addition for each
/// number costs as much as a small read's bookkeeping.
pub(crate) struct Tally {
    direction: Direction,
    back_end: BackEnd,
    operations: u64,
    bytes: u64,
    errors: u64,
    direct_bytes: u64,
    bounced_bytes: u64,
    /// The longest of them.
    longest_ns: u64,
    /// By bucket: how many, and how long they took together. Those of one moment are in a few.
    latencies: SmallVec<[(usize, u64, u64); 8]>,
}

impl Tally {
    pub(crate) fn new(direction: Direction, back_end: BackEnd) -> Self {
        Self {
            direction,
            back_end,
            operations: 0,
            bytes: 0,
            errors: 0,
            direct_bytes: 0,
            bounced_bytes: 0,
            longest_ns: 0,
            latencies: SmallVec::new(),
        }
    }

    /// Adds an operation, of the direction and the back end that it is for.
    #[inline]
    pub(crate) fn add(&mut self, record: &Record) {
        debug_assert!(record.direction == self.direction && record.back_end == self.back_end);
        let ns = nanoseconds(record.elapsed);
        self.operations += 1;
        self.bytes += record.bytes;
        self.errors += u64::from(record.failed);
        self.direct_bytes += record.direct_bytes;
        self.bounced_bytes += record.bounced_bytes;
        self.longest_ns = self.longest_ns.max(ns);
        let (bucket, capped) = (bucket(ns), ns.min(SUM_MAX));
        match self.latencies.iter_mut().find(|it| it.0 == bucket) {
            Some((_, operations, total)) => {
                *operations += 1;
                *total = total.saturating_add(capped);
            }
            None => self.latencies.push((bucket, 1, capped)),
        }
    }
}

impl DirectionCells {
    fn record_all(&self, tally: &mut Tally) {
        let cells = &self.back_ends[tally.back_end.index()];
        let sums = [
            (&cells.operations, &mut tally.operations),
            (&cells.bytes, &mut tally.bytes),
            (&cells.errors, &mut tally.errors),
            (&self.direct_bytes, &mut tally.direct_bytes),
            (&self.bounced_bytes, &mut tally.bounced_bytes),
        ];
        for (cell, sum) in sums.into_iter().filter(|(_, sum)| **sum > 0) {
            cell.fetch_add(std::mem::take(sum), Ordering::Relaxed);
        }
        let longest = std::mem::take(&mut tally.longest_ns);
        for (bucket, operations, total) in tally.latencies.drain(..) {
            self.latency.add(bucket, operations, total, longest);
        }
    }

    fn record(&self, record: &Record) {
        let cells = &self.back_ends[record.back_end.index()];
        // Relaxed: counters only, nothing is ordered by them.
        cells.operations.fetch_add(1, Ordering::Relaxed);
        cells.bytes.fetch_add(record.bytes, Ordering::Relaxed);
        if record.failed {
            cells.errors.fetch_add(1, Ordering::Relaxed);
        }
        if record.direct_bytes > 0 {
            self.direct_bytes
                .fetch_add(record.direct_bytes, Ordering::Relaxed);
        }
        if record.bounced_bytes > 0 {
            self.bounced_bytes
                .fetch_add(record.bounced_bytes, Ordering::Relaxed);
        }
        self.latency.record(record.elapsed);
    }

    fn snapshot(&self) -> DirectionStats {
        let read = |cell: &AtomicU64| cell.load(Ordering::Relaxed);
        DirectionStats {
            back_ends: self.back_ends.each_ref().map(|cells| BackEndStats {
                operations: read(&cells.operations),
                bytes: read(&cells.bytes),
                errors: read(&cells.errors),
            }),
            direct_bytes: read(&self.direct_bytes),
            bounced_bytes: read(&self.bounced_bytes),
            latency: self.latency.snapshot(),
        }
    }
}

/// Statistics of one file, or of the process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct IoStats {
    /// What was read.
    pub read: DirectionStats,
    /// What was written.
    pub write: DirectionStats,
}

impl IoStats {
    /// The half for a direction.
    pub fn direction(&self, direction: Direction) -> &DirectionStats {
        match direction {
            Direction::Read => &self.read,
            Direction::Write => &self.write,
        }
    }
}

impl AddAssign<&Self> for IoStats {
    /// Adds what another file, or another set of files, has counted.
    fn add_assign(&mut self, other: &Self) {
        self.read.add(&other.read);
        self.write.add(&other.write);
    }
}

/// Statistics of one direction.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DirectionStats {
    back_ends: [BackEndStats; BackEnd::ALL.len()],
    /// Bytes that went past the page cache: between the device and memory, by O_DIRECT or cuFile.
    pub direct_bytes: u64,
    /// Bytes that were copied through a bounce buffer, because the caller's memory was not aligned
    /// or not the host's.
    pub bounced_bytes: u64,
    /// How long operations took, from their acceptance to their outcome; failed ones too.
    pub latency: Latencies,
}

impl DirectionStats {
    fn add(&mut self, other: &Self) {
        for (sum, it) in self.back_ends.iter_mut().zip(&other.back_ends) {
            sum.operations += it.operations;
            sum.bytes += it.bytes;
            sum.errors += it.errors;
        }
        self.direct_bytes += other.direct_bytes;
        self.bounced_bytes += other.bounced_bytes;
        self.latency += &other.latency;
    }

    /// What one back end did.
    pub fn back_end(&self, back_end: BackEnd) -> BackEndStats {
        self.back_ends[back_end.index()]
    }

    /// Operations that are over, failed ones too.
    pub fn operations(&self) -> u64 {
        self.back_ends.iter().map(|it| it.operations).sum()
    }

    /// Bytes that were moved, by failed operations too, as far as they got.
    pub fn bytes(&self) -> u64 {
        self.back_ends.iter().map(|it| it.bytes).sum()
    }

    /// Operations that failed.
    pub fn errors(&self) -> u64 {
        self.back_ends.iter().map(|it| it.errors).sum()
    }

    /// Bytes that went through the page cache.
    pub fn buffered_bytes(&self) -> u64 {
        // A snapshot is not of one moment: the sum may be behind its part.
        self.bytes().saturating_sub(self.direct_bytes)
    }
}

/// What one back end did in one direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BackEndStats {
    /// Operations that are over, failed ones too.
    pub operations: u64,
    /// Bytes that were moved.
    pub bytes: u64,
    /// Operations that failed.
    pub errors: u64,
}

#[cfg(all(test, not(loom)))]
#[path = "tests/stats.rs"]
mod tests;
