//! `Interval`: a median, and between which two values it lies.

use fabricast_bench::stats::{median, median_interval};

/// A value and its interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Interval {
    pub(super) value: f64,
    pub(super) low: f64,
    pub(super) high: f64,
    /// Of how many runs; of fewer than two there is no interval.
    pub(super) runs: usize,
}

/// What two intervals say of each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Difference {
    /// One of them is of a single run.
    Unknown,
    /// They overlap, or touch.
    None,
    Higher,
    Lower,
}

impl Interval {
    /// A value that was measured once, or whose runs are not known.
    pub(super) fn single(value: f64) -> Self {
        let (low, high) = (value, value);
        Self {
            value,
            low,
            high,
            runs: 1,
        }
    }

    /// The median of runs with its 95 % interval, or the range of fewer than six.
    pub(super) fn of(runs: &[f64]) -> Option<Self> {
        let (low, high) = median_interval(runs);
        (!runs.is_empty()).then(|| Self {
            value: median(runs),
            low,
            high,
            runs: runs.len(),
        })
    }

    /// How this one differs from an earlier one.
    pub(super) fn since(&self, before: &Self) -> Difference {
        match () {
            () if self.runs < 2 || before.runs < 2 => Difference::Unknown,
            () if self.low > before.high => Difference::Higher,
            () if self.high < before.low => Difference::Lower,
            () => Difference::None,
        }
    }
}
