//! `Samples`: amounts over time, whose resolution goes down as time goes on.

/// Intervals, at most. When there would be more, each two become one.
const INTERVALS_MAX: usize = 512;

/// Amounts of several kinds in equal intervals of time. However long it goes on, there are at most
/// 512 intervals.
#[derive(Debug, Clone)]
pub struct Samples {
    interval: f64,
    kinds: Vec<Vec<f64>>,
    end: f64,
}

impl Samples {
    /// So many kinds of amounts, in intervals of so many seconds at first.
    pub fn new(kinds: usize, interval: f64) -> Self {
        Self {
            interval: interval.max(1e-6),
            kinds: vec![Vec::with_capacity(INTERVALS_MAX); kinds],
            end: 0.0,
        }
    }

    /// An amount that came about evenly between two moments, in seconds from the beginning. Of what
    /// is a level and no flow, give the level times the time that it stood.
    pub fn add(&mut self, kind: usize, from: f64, to: f64, amount: f64) {
        let is_time = from >= 0.0 && from < to && to.is_finite();
        if kind >= self.kinds.len() || !is_time || !amount.is_finite() {
            return;
        }
        self.reach(to);
        let (mut at, length) = (from, to - from);
        // As many intervals as there are reach `to`, but for what rounding leaves over.
        let last = self.kinds[kind].len() - 1;
        while at < to {
            let number = self.number(at).min(last);
            let until = if number == last {
                to
            } else {
                self.end_of(number).min(to)
            };
            self.kinds[kind][number] += amount * (until - at) / length;
            at = until;
        }
    }

    /// Seconds from the beginning to the latest amount.
    pub fn seconds(&self) -> f64 {
        self.end
    }

    /// All of a kind.
    pub fn sum(&self, kind: usize) -> f64 {
        self.kinds.get(kind).map_or(0.0, |it| it.iter().sum())
    }

    /// Amounts a second of a kind, interval by interval. The last interval may be shorter.
    pub fn rates(&self, kind: usize) -> Vec<f64> {
        let amounts = self.kinds.get(kind).into_iter().flatten().enumerate();
        let rate = |(number, amount): (usize, &f64)| {
            let length = (self.end - number as f64 * self.interval).min(self.interval);
            amount / length.max(self.interval * 1e-6)
        };
        amounts.map(rate).collect()
    }

    /// The first interval that does not end by then.
    fn number(&self, at: f64) -> usize {
        let number = (at / self.interval) as usize;
        if self.end_of(number) > at {
            number
        } else {
            number + 1
        }
    }

    fn end_of(&self, number: usize) -> f64 {
        number.saturating_add(1) as f64 * self.interval
    }

    /// There is an interval for this moment, and for all before.
    fn reach(&mut self, to: f64) {
        self.end = self.end.max(to);
        while to > self.interval * INTERVALS_MAX as f64 {
            self.interval *= 2.0;
            for amounts in &mut self.kinds {
                let pairs = amounts.chunks(2).map(|pair| pair.iter().sum());
                *amounts = pairs.collect();
            }
        }
        // What rounding left over is no interval of its own.
        let all = (self.end / self.interval - 1e-9).ceil() as usize;
        let all = all.clamp(1, INTERVALS_MAX);
        for amounts in &mut self.kinds {
            amounts.resize(all.max(amounts.len()), 0.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_lost_when_the_intervals_grow() {
        let mut samples = Samples::new(2, 0.01);
        let (mut at, mut sum) = (0.0, 0.0);
        for n in 0..5000 {
            let to = at + 0.001 * f64::from(1 + n % 97);
            samples.add(0, at, to, f64::from(n % 13));
            // A level of 3.
            samples.add(1, at, to, 3.0 * (to - at));
            (at, sum) = (to, sum + f64::from(n % 13));
        }
        let rates = samples.rates(0);
        assert!(rates.len() <= INTERVALS_MAX && rates.len() > INTERVALS_MAX / 4);
        assert!((samples.sum(0) - sum).abs() < 1e-6 * sum);
        assert!((samples.seconds() - at).abs() < 1e-9);
        assert!(
            samples
                .rates(1)
                .iter()
                .all(|level| (level - 3.0).abs() < 1e-3)
        );
    }

    #[test]
    fn what_is_no_time_or_no_amount_is_left_out() {
        let mut samples = Samples::new(1, 0.01);
        for (from, to, amount) in [
            (1.0, 1.0, 1.0),
            (2.0, 1.0, 1.0),
            (-1.0, 1.0, 1.0),
            (0.0, f64::INFINITY, 1.0),
            (0.0, 1.0, f64::NAN),
        ] {
            samples.add(0, from, to, amount);
        }
        samples.add(7, 0.0, 1.0, 1.0);
        assert!(samples.rates(0).is_empty());
        // A hundred years after the beginning.
        samples.add(0, 0.0, 3e9, 1.0);
        assert!((samples.sum(0) - 1.0).abs() < 1e-6);
    }
}
