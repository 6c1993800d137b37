//! `IoCounters` and `IoStats`: operations, bytes, errors and latencies, per file and of the
//! process.
//!
//! ```text
//!  operation ── record ──► IoCounters (one a file, relaxed atomics)
//!                              │ snapshot            │ all of them, and what closed files counted
//!                              ▼                     ▼
//!                     IoStats of the file     IoStats of the process: stats::process()
//! ```
//!
//! The process has no counters of its own: they would be a cache line that all threads write. Its
//! statistics are added up when somebody asks.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::AddAssign;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::back_end::{BackEnd, Direction};
use crate::histogram::BucketCounts;
use crate::process::Owner;

/// Buckets of a latency histogram: the last one takes what took longer than 2⁴⁰ ns, 18 minutes.
const BUCKETS: usize = 41;

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
    cells: Arc<Cells>,
    id: u64,
    owner: Owner,
}

impl IoCounters {
    pub(crate) fn new() -> Self {
        let cells = Arc::new(Cells::default());
        let mut ledger = ledger();
        let id = ledger.next;
        ledger.next += 1;
        ledger.open.insert(id, Arc::clone(&cells));
        Self {
            cells,
            id,
            owner: Owner::current(),
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
        *tally = Tally::new(tally.direction, tally.back_end);
    }

    /// Counted so far. Operations that end meanwhile may be in some of the numbers and not yet in
    /// others.
    pub(crate) fn snapshot(&self) -> IoStats {
        let mut stats = IoStats::default();
        self.cells.add_to(&mut stats);
        stats
    }
}

impl fmt::Debug for IoCounters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("IoCounters").field(&self.snapshot()).finish()
    }
}

impl Drop for IoCounters {
    fn drop(&mut self) {
        // In a forked child another thread of the parent may have held the lock for ever.
        if !self.owner.is_here() {
            return;
        }
        let mut ledger = ledger();
        self.cells.add_to(&mut ledger.closed);
        ledger.open.remove(&self.id);
    }
}

/// The statistics of all files that this process opened, closed ones too.
pub fn process() -> IoStats {
    let ledger = ledger();
    let mut stats = ledger.closed;
    for cells in ledger.open.values() {
        cells.add_to(&mut stats);
    }
    stats
}

/// The counters of all files that are open, and the sum of those that are not.
struct Ledger {
    next: u64,
    open: BTreeMap<u64, Arc<Cells>>,
    closed: IoStats,
}

static LEDGER: Mutex<Ledger> = Mutex::new(Ledger {
    next: 0,
    open: BTreeMap::new(),
    closed: IoStats::ZERO,
});

fn ledger() -> std::sync::MutexGuard<'static, Ledger> {
    LEDGER.lock().unwrap_or_else(PoisonError::into_inner)
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

    fn add_to(&self, stats: &mut IoStats) {
        self.read.add_to(&mut stats.read);
        self.write.add_to(&mut stats.write);
    }
}

struct DirectionCells {
    back_ends: [BackEndCells; BackEnd::ALL.len()],
    direct_bytes: AtomicU64,
    bounced_bytes: AtomicU64,
    elapsed_ns: AtomicU64,
    buckets: [AtomicU64; BUCKETS],
}

impl Default for DirectionCells {
    fn default() -> Self {
        Self {
            back_ends: Default::default(),
            direct_bytes: AtomicU64::new(0),
            bounced_bytes: AtomicU64::new(0),
            elapsed_ns: AtomicU64::new(0),
            buckets: [const { AtomicU64::new(0) }; BUCKETS],
        }
    }
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
    elapsed_ns: u64,
    /// Which of the buckets have something.
    filled: u64,
    buckets: [u32; BUCKETS],
}

const _: () = assert!(BUCKETS <= u64::BITS as usize);

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
            elapsed_ns: 0,
            filled: 0,
            buckets: [0; BUCKETS],
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
        self.elapsed_ns = self.elapsed_ns.saturating_add(ns);
        let bucket = bucket(ns);
        self.filled |= 1 << bucket;
        self.buckets[bucket] += 1;
    }
}

#[inline]
fn nanoseconds(elapsed: Duration) -> u64 {
    u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX)
}

impl DirectionCells {
    fn record_all(&self, tally: &Tally) {
        let cells = &self.back_ends[tally.back_end.index()];
        let sums = [
            (&cells.operations, tally.operations),
            (&cells.bytes, tally.bytes),
            (&cells.errors, tally.errors),
            (&self.direct_bytes, tally.direct_bytes),
            (&self.bounced_bytes, tally.bounced_bytes),
            (&self.elapsed_ns, tally.elapsed_ns),
        ];
        for (cell, sum) in sums.into_iter().filter(|(_, sum)| *sum > 0) {
            cell.fetch_add(sum, Ordering::Relaxed);
        }
        let mut filled = tally.filled;
        while filled != 0 {
            let bucket = filled.trailing_zeros() as usize;
            self.buckets[bucket].fetch_add(tally.buckets[bucket].into(), Ordering::Relaxed);
            filled &= filled - 1;
        }
    }

    fn record(&self, record: &Record) {
        let ns = nanoseconds(record.elapsed);
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
        self.elapsed_ns.fetch_add(ns, Ordering::Relaxed);
        self.buckets[bucket(ns)].fetch_add(1, Ordering::Relaxed);
    }

    fn add_to(&self, stats: &mut DirectionStats) {
        let read = |cell: &AtomicU64| cell.load(Ordering::Relaxed);
        for (sum, cells) in stats.back_ends.iter_mut().zip(&self.back_ends) {
            sum.operations += read(&cells.operations);
            sum.bytes += read(&cells.bytes);
            sum.errors += read(&cells.errors);
        }
        stats.direct_bytes += read(&self.direct_bytes);
        stats.bounced_bytes += read(&self.bounced_bytes);
        let buckets = self.buckets.iter().map(read);
        stats.latency.0.add(buckets, read(&self.elapsed_ns));
    }
}

/// The bucket of a latency: number `n` takes what took less than 2ⁿ ns, and at least half of that.
#[inline]
fn bucket(ns: u64) -> usize {
    ((u64::BITS - ns.leading_zeros()) as usize).min(BUCKETS - 1)
}

/// What stays below in a bucket.
fn below(bucket: usize) -> Duration {
    Duration::from_nanos(1 << bucket)
}

/// Statistics of one file, or of the process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct IoStats {
    /// What was read.
    pub read: DirectionStats,
    /// What was written.
    pub write: DirectionStats,
}

impl IoStats {
    const ZERO: Self = Self {
        read: DirectionStats::ZERO,
        write: DirectionStats::ZERO,
    };

    /// The half for a direction.
    pub fn direction(&self, direction: Direction) -> &DirectionStats {
        match direction {
            Direction::Read => &self.read,
            Direction::Write => &self.write,
        }
    }
}

impl AddAssign for IoStats {
    /// Adds what another file, or another set of files, has counted.
    fn add_assign(&mut self, other: Self) {
        self.read.add(&other.read);
        self.write.add(&other.write);
    }
}

/// Statistics of one direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DirectionStats {
    back_ends: [BackEndStats; BackEnd::ALL.len()],
    /// Bytes that went past the page cache: between the device and memory, by O_DIRECT or cuFile.
    pub direct_bytes: u64,
    /// Bytes that were copied through a bounce buffer, because the caller's memory was not aligned
    /// or not the host's.
    pub bounced_bytes: u64,
    /// How long operations took, from their acceptance to their outcome; failed ones too.
    pub latency: LatencyHistogram,
}

impl DirectionStats {
    const ZERO: Self = Self {
        back_ends: [BackEndStats::ZERO; BackEnd::ALL.len()],
        direct_bytes: 0,
        bounced_bytes: 0,
        latency: LatencyHistogram::ZERO,
    };

    fn add(&mut self, other: &Self) {
        for (sum, it) in self.back_ends.iter_mut().zip(&other.back_ends) {
            sum.operations += it.operations;
            sum.bytes += it.bytes;
            sum.errors += it.errors;
        }
        self.direct_bytes += other.direct_bytes;
        self.bounced_bytes += other.bounced_bytes;
        let latency = &other.latency.0;
        self.latency.0.add(latency.buckets, latency.total_ns);
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

impl BackEndStats {
    const ZERO: Self = Self {
        operations: 0,
        bytes: 0,
        errors: 0,
    };
}

/// How long operations took: a bucket for each power of two of nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct LatencyHistogram(BucketCounts<[u64; BUCKETS]>);

impl LatencyHistogram {
    const ZERO: Self = Self(BucketCounts {
        buckets: [0; BUCKETS],
        total_ns: 0,
    });

    /// Operations in it.
    pub fn count(&self) -> u64 {
        self.0.count()
    }

    /// All latencies added up: with operations at the same time it is more than the time that went
    /// by.
    pub fn total(&self) -> Duration {
        self.0.total()
    }

    /// The mean; nothing where nothing was counted.
    pub fn mean(&self) -> Option<Duration> {
        self.0.mean()
    }

    /// A bound below which this share of the operations stayed: `quantile(0.99)` is the p99, up to
    /// twice as long as it really was. Nothing where nothing was counted. A share below 0 counts as
    /// 0, one above 1 (or not a number) as 1.
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        self.0.quantile(share).map(below)
    }

    /// The buckets that are not empty, the fastest first: a bound, and how many operations stayed
    /// below it but not below half of it. The last bucket, whose bound is 2⁴⁰ ns, has everything
    /// slower too.
    pub fn buckets(&self) -> impl Iterator<Item = (Duration, u64)> {
        let buckets = self.0.buckets.iter().enumerate();
        let filled = buckets.filter(|(_, n)| **n > 0);
        filled.map(|(place, n)| (below(place), *n))
    }
}

impl Default for LatencyHistogram {
    fn default() -> Self {
        Self::ZERO
    }
}

impl fmt::Debug for LatencyHistogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LatencyHistogram")
            .field("count", &self.count())
            .field("mean", &self.mean())
            .field("p50_below", &self.quantile(0.5))
            .field("p99_below", &self.quantile(0.99))
            .finish()
    }
}

#[cfg(all(test, not(loom)))]
#[path = "tests/stats.rs"]
mod tests;
