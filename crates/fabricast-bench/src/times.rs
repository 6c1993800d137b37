//! `Times`: how long messages took, counted with three digits, and merged over runs and processes.

use hdrhistogram::Histogram;

use crate::error::{Failure, fail};

/// The longest time that is counted as it is, in nanoseconds: an hour.
const LONGEST_NS: u64 = 3_600_000_000_000;
/// Digits of a time that are kept.
const DIGITS: u8 = 3;
/// The shares of messages that a record has the times of.
pub const SHARES: [f64; 7] = [50.0, 75.0, 90.0, 99.0, 99.9, 99.99, 100.0];

/// A histogram of times.
#[derive(Clone, Debug)]
pub struct Times {
    histogram: Histogram<u64>,
}

impl Default for Times {
    fn default() -> Self {
        let histogram = Histogram::new_with_bounds(1, LONGEST_NS, DIGITS);
        Self {
            histogram: histogram.expect("bounds and digits that it takes"),
        }
    }
}

impl Times {
    /// Counts one, in nanoseconds. A longer one than an hour counts as an hour.
    #[inline]
    pub fn add(&mut self, ns: u64) {
        self.histogram.saturating_record(ns.max(1));
    }

    /// Counts all of another's.
    pub fn add_all(&mut self, other: &Self) {
        self.histogram += &other.histogram;
    }

    /// Whether none was counted.
    pub fn is_empty(&self) -> bool {
        self.histogram.is_empty()
    }

    /// How many were counted.
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// The time, in microseconds, that so many percent of messages don't exceed; NaN of none.
    pub fn at(&self, percent: f64) -> f64 {
        match self.is_empty() {
            true => f64::NAN,
            false => self.histogram.value_at_quantile(percent / 100.0) as f64 / 1e3,
        }
    }

    /// The mean, in microseconds.
    pub fn mean(&self) -> f64 {
        self.histogram.mean() / 1e3
    }

    /// The times at [`SHARES`]; none of none.
    pub fn percentiles(&self) -> Option<Vec<(f64, f64)>> {
        let all = SHARES.iter().map(|&share| (share, self.at(share)));
        (!self.is_empty()).then(|| all.collect())
    }

    /// Without a space, for a line: `value:count` with commas between, or `-`.
    pub fn text(&self) -> String {
        let counted = self.histogram.iter_recorded();
        let all: Vec<_> = counted
            .map(|it| format!("{}:{}", it.value_iterated_to(), it.count_at_value()))
            .collect();
        match all.is_empty() {
            true => "-".to_owned(),
            false => all.join(","),
        }
    }

    /// Those of such a text.
    ///
    /// # Errors
    /// When it is none.
    pub fn of_text(text: &str) -> Result<Self, Failure> {
        let mut times = Self::default();
        if text == "-" {
            return Ok(times);
        }
        for pair in text.split(',') {
            let Some((value, count)) = pair.split_once(':') else {
                return fail(format!("{pair:?} is no time with its count"));
            };
            let (value, count): (u64, u64) = (value.parse()?, count.parse()?);
            let room = u64::MAX >> 1;
            if times.count().saturating_add(count) > room {
                return fail("more times than can be counted");
            }
            times
                .histogram
                .saturating_record_n(value.clamp(1, LONGEST_NS), count);
        }
        Ok(times)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_is_understood_and_nonsense_is_not() {
        let mut times = Times::default();
        for ns in [0, 1, 999, 12_345, 12_345, 7_000_000, u64::MAX] {
            times.add(ns);
        }
        let again = Times::of_text(&times.text()).expect("it is one");
        assert_eq!(again.count(), 7);
        for share in SHARES {
            assert_eq!(again.at(share), times.at(share), "{share}");
        }
        assert!((times.at(50.0) - 12.3).abs() < 0.1, "{}", times.at(50.0));
        assert!(Times::of_text("-").expect("none").is_empty());
        for text in [
            "",
            "1",
            "1:",
            "x:1",
            "1:1,",
            "-1:2",
            "1:99999999999999999999",
        ] {
            assert!(Times::of_text(text).is_err(), "{text:?}");
        }
        let many = format!("1:{0},2:{0}", u64::MAX - 1);
        assert!(Times::of_text(&many).is_err());
    }

    #[test]
    fn times_of_two_are_those_of_both() {
        let (mut one, mut two) = (Times::default(), Times::default());
        (0..99).for_each(|_| one.add(1_000));
        two.add(1_000_000);
        one.add_all(&two);
        assert_eq!(one.count(), 100);
        assert!(one.at(99.0) < 1.1 && one.at(100.0) > 990.0);
    }
}
