//! `Latencies`: a histogram whose error is bounded, written without a lock.
//!
//! Each power of two of nanoseconds has 16 buckets of equal width, so that a bucket's end is at
//! most one sixteenth above its beginning. Below 16 ns each number has its own.

use std::fmt;
use std::ops::AddAssign;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::histogram::BucketCounts;

/// Buckets of each power of two.
const STEPS: usize = 1 << STEP_BITS;
const STEP_BITS: u32 = 4;

/// What takes 2 to the power of this many nanoseconds, 73 minutes, or longer is in one bucket more.
const LONGEST_BITS: u32 = 42;

/// The place of that one.
const LONGEST: usize = (LONGEST_BITS - STEP_BITS + 1) as usize * STEPS;

const BUCKETS: usize = LONGEST + 1;

/// The most that one operation adds to the sum, 52 days: so the sum does not overflow.
const SUM_MAX: u64 = 1 << 52;

/// The bucket of so many nanoseconds.
fn bucket(ns: u64) -> usize {
    let bits = u64::BITS - ns.leading_zeros();
    if bits <= STEP_BITS {
        return ns as usize;
    }
    let shift = bits - 1 - STEP_BITS;
    let place = shift as usize * STEPS + (ns >> shift) as usize;
    place.min(LONGEST)
}

/// The first and the last number of nanoseconds in a bucket.
fn bounds(bucket: usize) -> (u64, u64) {
    if bucket < STEPS {
        return (bucket as u64, bucket as u64);
    }
    if bucket >= LONGEST {
        return (1 << LONGEST_BITS, u64::MAX);
    }
    let shift = bucket / STEPS - 1;
    let step = (bucket % STEPS + STEPS) as u64;
    (step << shift, ((step + 1) << shift) - 1)
}

/// What is recorded into.
pub(super) struct HistogramCells {
    buckets: Box<[AtomicU64]>,
    total_ns: AtomicU64,
    max_ns: AtomicU64,
}

impl Default for HistogramCells {
    fn default() -> Self {
        Self {
            buckets: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect(),
            total_ns: AtomicU64::new(0),
            max_ns: AtomicU64::new(0),
        }
    }
}

impl HistogramCells {
    pub(super) fn record(&self, elapsed: Duration) {
        let ns = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX);
        // Relaxed: counters only, nothing is ordered by them.
        self.max_ns.fetch_max(ns, Ordering::Relaxed);
        self.total_ns.fetch_add(ns.min(SUM_MAX), Ordering::Relaxed);
        self.buckets[bucket(ns)].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn snapshot(&self) -> Latencies {
        let read = |cell: &AtomicU64| cell.load(Ordering::Relaxed);
        Latencies {
            counts: BucketCounts {
                buckets: self.buckets.iter().map(read).collect(),
                total_ns: read(&self.total_ns),
            },
            max_ns: read(&self.max_ns),
        }
    }
}

/// How long operations took, those that failed too.
#[derive(Clone, PartialEq, Eq)]
pub struct Latencies {
    counts: BucketCounts<Box<[u64]>>,
    max_ns: u64,
}

impl Latencies {
    /// How many operations are in it.
    pub fn count(&self) -> u64 {
        self.counts.count()
    }

    /// All of them added up: with operations at the same time it is more than the time that went
    /// by.
    pub fn total(&self) -> Duration {
        self.counts.total()
    }

    /// The mean; nothing where nothing was counted.
    pub fn mean(&self) -> Option<Duration> {
        self.counts.mean()
    }

    /// The longest, exactly; nothing where nothing was counted.
    pub fn max(&self) -> Option<Duration> {
        (self.count() > 0).then_some(Duration::from_nanos(self.max_ns))
    }

    /// Within which time this share of the operations was done: `quantile(0.99)` is the p99. It is
    /// at most one sixteenth above the right answer, and never below it; from 73 minutes on it is
    /// the longest. Nothing where nothing was counted. A share below 0 counts as 0, one above 1 (or
    /// not a number) as 1.
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        let (first, last) = bounds(self.counts.quantile(share)?);
        // The longest may be counted a moment later than its bucket.
        let longest = self.max_ns.max(first);
        Some(Duration::from_nanos(last.min(longest)))
    }

    /// How many took less than 2 to the power of `bits` nanoseconds, exactly; `bits` is 42 at most.
    pub(super) fn below(&self, bits: u32) -> u64 {
        self.counts.buckets[..bucket(1 << bits)].iter().sum()
    }
}

impl AddAssign<&Self> for Latencies {
    fn add_assign(&mut self, other: &Self) {
        let counts = &other.counts;
        self.counts
            .add(counts.buckets.iter().copied(), counts.total_ns);
        self.max_ns = self.max_ns.max(other.max_ns);
    }
}

impl Default for Latencies {
    fn default() -> Self {
        Self {
            counts: BucketCounts {
                buckets: vec![0; BUCKETS].into(),
                total_ns: 0,
            },
            max_ns: 0,
        }
    }
}

impl fmt::Debug for Latencies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Latencies")
            .field("count", &self.count())
            .field("p50", &self.quantile(0.5))
            .field("p99", &self.quantile(0.99))
            .field("max", &self.max())
            .finish()
    }
}

#[cfg(test)]
#[path = "../tests/latencies.rs"]
mod tests;
