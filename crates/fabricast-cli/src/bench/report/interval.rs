//! `Interval`: a median, and between which two values it lies.

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
        let mut sorted = runs.to_vec();
        sorted.sort_by(f64::total_cmp);
        let value = median(&sorted)?;
        let outside = ends_outside(sorted.len());
        Some(Self {
            value,
            low: sorted[outside],
            high: sorted[sorted.len() - 1 - outside],
            runs: sorted.len(),
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

fn median(sorted: &[f64]) -> Option<f64> {
    let n = sorted.len();
    match n {
        0 => None,
        n if n % 2 == 1 => Some(sorted[n / 2]),
        n => Some((sorted[n / 2 - 1] + sorted[n / 2]) / 2.0),
    }
}

/// How many of the sorted values lie outside of the 95 % interval of their median at either end:
/// the most for which a fair coin, tossed for each value, falls on one side no more often in 2.5 %
/// of cases.
fn ends_outside(n: usize) -> usize {
    let (mut outside, mut below) = (0, 0.0);
    let mut term = 0.5f64.powi(i32::try_from(n).unwrap_or(i32::MAX));
    while outside < n / 2 {
        below += term;
        if below > 0.025 {
            break;
        }
        term *= (n - outside) as f64 / (outside + 1) as f64;
        outside += 1;
    }
    outside.saturating_sub(1)
}
