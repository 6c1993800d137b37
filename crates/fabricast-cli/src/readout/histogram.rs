//! A histogram of times: 16 buckets for each power of two, so that a percentile is right to 6 %.

/// Buckets: up to 2^41 ns, over half an hour.
pub(crate) const BUCKETS: usize = 38 * 16;

/// The shares that are reported, by name.
pub(crate) const PERCENTILES: [(&str, f64); 4] =
    [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p999", 0.999)];

/// Times in nanoseconds, counted by bucket.
#[derive(Debug, Clone)]
pub(crate) struct Histogram {
    buckets: Box<[u64; BUCKETS]>,
    count: u64,
    max: u64,
}

impl Histogram {
    pub(crate) fn new() -> Self {
        Self {
            buckets: Box::new([0; BUCKETS]),
            count: 0,
            max: 0,
        }
    }

    pub(crate) fn record(&mut self, ns: u64) {
        self.buckets[bucket(ns)] += 1;
        self.count += 1;
        self.max = self.max.max(ns);
    }

    pub(crate) fn add(&mut self, other: &Self) {
        for (mine, other) in self.buckets.iter_mut().zip(other.buckets.iter()) {
            *mine += other;
        }
        self.count += other.count;
        self.max = self.max.max(other.max);
    }

    pub(crate) fn max_us(&self) -> Option<f64> {
        (self.count > 0).then_some(self.max as f64 / 1e3)
    }

    /// The time in microseconds that this share of all are below, the middle of its bucket; `None`
    /// if there are none.
    pub(crate) fn percentile_us(&self, share: f64) -> Option<f64> {
        let rank = (self.count as f64 * share).ceil().max(1.0) as u64;
        let mut below = 0;
        let found = self.buckets.iter().position(|count| {
            below += count;
            below >= rank
        });
        found.map(|bucket| middle(bucket).min(self.max as f64) / 1e3)
    }

    /// As words, for the way to another process: the maximum and the buckets.
    pub(crate) fn words(&self) -> impl Iterator<Item = u64> {
        std::iter::once(self.max).chain(self.buckets.iter().copied())
    }

    /// The reverse of [`words`](Self::words).
    pub(crate) fn from_words(mut words: impl Iterator<Item = u64>) -> Option<Self> {
        let mut histogram = Self::new();
        histogram.max = words.next()?;
        for bucket in histogram.buckets.iter_mut() {
            *bucket = words.next()?;
            histogram.count = histogram.count.checked_add(*bucket)?;
        }
        Some(histogram)
    }
}

fn bucket(ns: u64) -> usize {
    if ns < 16 {
        return ns as usize;
    }
    let power = ns.ilog2() as usize;
    let within = (ns >> (power - 4)) as usize & 15;
    ((power - 3) * 16 + within).min(BUCKETS - 1)
}

fn middle(bucket: usize) -> f64 {
    if bucket < 16 {
        return bucket as f64;
    }
    let (power, within) = (bucket / 16 + 3, bucket % 16);
    let width = (1u64 << (power - 4)) as f64;
    (16 + within) as f64 * width + width / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_right_to_6_percent() {
        let mut histogram = Histogram::new();
        assert_eq!(histogram.percentile_us(0.5), None);
        for us in 1..=1000 {
            histogram.record(us * 1000);
        }
        for (share, want) in [(0.5, 500.0), (0.99, 990.0), (1.0, 1000.0)] {
            let got = histogram.percentile_us(share).expect("some were recorded");
            assert!((got / want - 1.0_f64).abs() < 0.06, "{share}: {got}");
        }
        assert_eq!(histogram.max_us(), Some(1000.0));
    }

    #[test]
    fn every_time_has_a_bucket_that_holds_it() {
        for ns in [0, 1, 15, 16, 17, 31, 32, 1_000_003, 1 << 40, u64::MAX] {
            let bucket = bucket(ns);
            assert!(bucket < BUCKETS, "{ns}");
            let error = (middle(bucket) - ns as f64).abs() / (ns as f64).max(1.0);
            assert!(error <= 1.0 / 16.0 || ns > 1 << 41, "{ns}: {error}");
        }
    }

    #[test]
    fn words_make_the_same_histogram() {
        let mut histogram = Histogram::new();
        for ns in [3, 70_000, 70_000, 5_000_000] {
            histogram.record(ns);
        }
        let again = Histogram::from_words(histogram.words()).expect("whole");
        assert_eq!((again.count, again.max), (4, 5_000_000));
        assert_eq!(again.buckets, histogram.buckets);
        assert!(Histogram::from_words(histogram.words().skip(1)).is_none());
    }
}
