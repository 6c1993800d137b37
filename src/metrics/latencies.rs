//! `Latencies`: the histogram of everything that is timed here. Its error is bounded, and it is
//! written without a lock.
//!
//! Each power of two of nanoseconds has 16 buckets of equal width, so that a bucket's end is at
//! most one sixteenth above its beginning. Below 16 ns each number has its own. The 16 buckets of a
//! power of two are one block, which is allocated when something first falls into it: what is timed
//! falls into a few of them.

use std::fmt;
use std::ops::AddAssign;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Buckets of each power of two.
const STEPS: usize = 1 << STEP_BITS;
const STEP_BITS: u32 = 4;

/// What takes 2 to the power of this many nanoseconds, 73 minutes, or longer is in one bucket more.
const LONGEST_BITS: u32 = 42;

/// The place of that one.
const LONGEST: usize = (LONGEST_BITS - STEP_BITS + 1) as usize * STEPS;

const BUCKETS: usize = LONGEST + 1;

const BLOCKS: usize = BUCKETS.div_ceil(STEPS);

/// The most that one operation adds to the sum, 52 days: so the sum does not overflow.
pub(crate) const SUM_MAX: u64 = 1 << 52;

/// The bucket of so many nanoseconds.
#[inline]
pub(crate) fn bucket(ns: u64) -> usize {
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

#[inline]
pub(crate) fn nanoseconds(elapsed: Duration) -> u64 {
    u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX)
}

/// What is recorded into, by any thread.
pub(crate) struct LatencyCells {
    blocks: [OnceLock<Box<[AtomicU64; STEPS]>>; BLOCKS],
    total_ns: AtomicU64,
    max_ns: AtomicU64,
}

impl Default for LatencyCells {
    fn default() -> Self {
        Self {
            blocks: [const { OnceLock::new() }; BLOCKS],
            total_ns: AtomicU64::new(0),
            max_ns: AtomicU64::new(0),
        }
    }
}

impl LatencyCells {
    #[inline]
    pub(crate) fn record(&self, elapsed: Duration) {
        let ns = nanoseconds(elapsed);
        self.add(bucket(ns), 1, ns.min(SUM_MAX), ns);
    }

    /// Adds so many of one bucket, which took so long together, and the longest of them so long.
    pub(crate) fn add(&self, bucket: usize, operations: u64, total_ns: u64, max_ns: u64) {
        // Relaxed: counters only, nothing is ordered by them.
        self.max_ns.fetch_max(max_ns, Ordering::Relaxed);
        self.total_ns.fetch_add(total_ns, Ordering::Relaxed);
        let block = self.blocks[bucket / STEPS].get_or_init(Box::default);
        block[bucket % STEPS].fetch_add(operations, Ordering::Relaxed);
    }

    pub(crate) fn snapshot(&self) -> Latencies {
        let mut latencies = Latencies::default();
        self.add_to(&mut latencies);
        latencies
    }

    /// Adds what was recorded so far.
    pub(crate) fn add_to(&self, sum: &mut Latencies) {
        for (place, block) in self.blocks.iter().enumerate() {
            for (step, cell) in block.get().into_iter().flat_map(|it| it.iter()).enumerate() {
                sum.add_bucket(place * STEPS + step, cell.load(Ordering::Relaxed));
            }
        }
        let total = self.total_ns.load(Ordering::Relaxed);
        sum.total_ns = sum.total_ns.saturating_add(total);
        sum.max_ns = sum.max_ns.max(self.max_ns.load(Ordering::Relaxed));
    }
}

/// How long operations took: a histogram with 16 buckets for each power of two of nanoseconds.
///
/// ```
/// use std::time::Duration;
/// use fabricast::metrics::Latencies;
///
/// let mut latencies = Latencies::default();
/// for us in 1..=100 {
///     latencies.record(Duration::from_micros(us));
/// }
/// let p99 = latencies.quantile(0.99).expect("something was recorded");
/// assert!((99.0..=99.0 * 17.0 / 16.0).contains(&(p99.as_nanos() as f64 / 1e3)));
/// assert_eq!(latencies.max(), Some(Duration::from_micros(100)));
/// ```
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Latencies {
    /// Those that are not empty, in their order: the place, and how many are in it.
    buckets: Vec<(u16, u64)>,
    total_ns: u64,
    max_ns: u64,
}

impl Latencies {
    /// Adds an operation that took so long.
    pub fn record(&mut self, elapsed: Duration) {
        let ns = nanoseconds(elapsed);
        self.add_bucket(bucket(ns), 1);
        self.total_ns = self.total_ns.saturating_add(ns.min(SUM_MAX));
        self.max_ns = self.max_ns.max(ns);
    }

    #[inline]
    fn add_bucket(&mut self, bucket: usize, operations: u64) {
        if operations == 0 {
            return;
        }
        let place = bucket as u16;
        match self.buckets.binary_search_by_key(&place, |it| it.0) {
            Ok(at) => {
                let sum = &mut self.buckets[at].1;
                *sum = sum.saturating_add(operations);
            }
            Err(at) => self.buckets.insert(at, (place, operations)),
        }
    }

    /// How many operations are in it.
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|it| it.1).sum()
    }

    /// All of them added up: with operations at the same time it is more than the time that went
    /// by.
    pub fn total(&self) -> Duration {
        Duration::from_nanos(self.total_ns)
    }

    /// The mean; nothing where nothing was counted.
    pub fn mean(&self) -> Option<Duration> {
        let mean = self.total_ns.checked_div(self.count());
        mean.map(Duration::from_nanos)
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
        let count = self.count();
        let share = if share.is_nan() {
            1.0
        } else {
            share.clamp(0.0, 1.0)
        };
        // Rounded up: of three operations the median is the second. A count beyond 2⁵³ is rounded,
        // which moves no bucket.
        let wanted = ((count as f64 * share).ceil() as u64).clamp(1, count.max(1));
        let mut seen = 0;
        let found = self.buckets.iter().find(|(_, operations)| {
            seen += operations;
            seen >= wanted
        });
        let (first, last) = bounds(found?.0.into());
        // The longest may be counted a moment later than its bucket.
        let longest = self.max_ns.max(first);
        Some(Duration::from_nanos(last.min(longest)))
    }

    /// The buckets that are not empty, the fastest first: the longest time that is in it, and how
    /// many operations are.
    pub fn buckets(&self) -> impl Iterator<Item = (Duration, u64)> {
        let longest = |place: u16| Duration::from_nanos(bounds(place.into()).1);
        let buckets = self.buckets.iter();
        buckets.map(move |(place, operations)| (longest(*place), *operations))
    }

    /// How many took less than 2 to the power of `bits` nanoseconds, exactly; `bits` is 42 at most.
    pub(crate) fn below(&self, bits: u32) -> u64 {
        let end = bucket(1 << bits);
        let below = self.buckets.iter().filter(|it| usize::from(it.0) < end);
        below.map(|it| it.1).sum()
    }

    /// How many words [`to_words`](Self::to_words) gives.
    pub const WORDS: usize = BUCKETS + 2;

    /// All of it, for the way to another process of the same version.
    pub fn to_words(&self) -> Vec<u64> {
        let mut words = vec![0; Self::WORDS];
        (words[0], words[1]) = (self.max_ns, self.total_ns);
        for (place, operations) in &self.buckets {
            words[2 + usize::from(*place)] = *operations;
        }
        words
    }

    /// The reverse of [`to_words`](Self::to_words); nothing where these are not so many words, or
    /// say that there were more operations than can be counted.
    pub fn from_words(words: &[u64]) -> Option<Self> {
        let [max_ns, total_ns, buckets @ ..] = words else {
            return None;
        };
        if buckets.len() != BUCKETS {
            return None;
        }
        buckets
            .iter()
            .try_fold(0u64, |sum, it| sum.checked_add(*it))?;
        let places = (0..).zip(buckets.iter().copied());
        Some(Self {
            buckets: places.filter(|(_, operations)| *operations > 0).collect(),
            total_ns: *total_ns,
            max_ns: *max_ns,
        })
    }
}

impl AddAssign<&Self> for Latencies {
    fn add_assign(&mut self, other: &Self) {
        for (place, operations) in &other.buckets {
            self.add_bucket((*place).into(), *operations);
        }
        self.total_ns = self.total_ns.saturating_add(other.total_ns);
        self.max_ns = self.max_ns.max(other.max_ns);
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

#[cfg(all(test, not(loom)))]
#[path = "tests/latencies.rs"]
mod tests;
