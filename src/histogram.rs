//! `BucketCounts`: what histograms of latencies have in common, whatever their buckets are.

use std::time::Duration;

/// How many operations were in each bucket, the fastest first, and how long all of them took.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct BucketCounts<B> {
    pub(crate) buckets: B,
    pub(crate) total_ns: u64,
}

impl<B: AsRef<[u64]>> BucketCounts<B> {
    pub(crate) fn count(&self) -> u64 {
        self.buckets.as_ref().iter().sum()
    }

    pub(crate) fn total(&self) -> Duration {
        Duration::from_nanos(self.total_ns)
    }

    pub(crate) fn mean(&self) -> Option<Duration> {
        self.total_ns
            .checked_div(self.count())
            .map(Duration::from_nanos)
    }

    /// The place of the bucket within which this share of the operations was done; nothing where
    /// nothing was counted. A share below 0 counts as 0, one above 1 (or not a number) as 1.
    pub(crate) fn quantile(&self, share: f64) -> Option<usize> {
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
        self.buckets.as_ref().iter().position(|operations| {
            seen += operations;
            seen >= wanted
        })
    }
}

impl<B: AsMut<[u64]>> BucketCounts<B> {
    /// Adds what was counted in the same buckets.
    pub(crate) fn add(&mut self, buckets: impl IntoIterator<Item = u64>, total_ns: u64) {
        for (sum, operations) in self.buckets.as_mut().iter_mut().zip(buckets) {
            *sum += operations;
        }
        self.total_ns = self.total_ns.saturating_add(total_ns);
    }
}
