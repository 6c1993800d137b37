//! `RateLimit`: at most so many bytes a second, over a transfer.

use std::time::{Duration, Instant};

/// A token bucket: what is not used is saved up, for a burst of a tenth of a second. It never
/// sleeps: it says whether, and until when to wait. A block may be more than there is: then the
/// next one waits the longer, so that the rate is kept whatever the size of blocks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RateLimit {
    bytes_per_second: Option<u64>,
    /// In bytes times 10^9; below 0 when more was taken than there was.
    tokens: i128,
    at: Instant,
}

const NANO: i128 = 1_000_000_000;

impl RateLimit {
    /// At most so many bytes a second, 0 counting as 1, from now on; or no limit.
    pub(crate) fn new(bytes_per_second: Option<u64>, now: Instant) -> Self {
        Self {
            bytes_per_second: bytes_per_second.map(|rate| rate.max(1)),
            tokens: 0,
            at: now,
        }
    }

    fn tokens(&self, rate: u64, now: Instant) -> i128 {
        let passed = now.saturating_duration_since(self.at);
        // Whatever was not used in so long a time is more than can be saved up.
        let nanos = passed.as_nanos().min(u64::MAX.into()) as i128;
        let most = i128::from(rate) * NANO / 10;
        (self.tokens + nanos * i128::from(rate)).min(most)
    }

    /// Whether something may be sent now.
    pub(crate) fn may(&self, now: Instant) -> bool {
        self.wait_until(now).is_none()
    }

    /// Until when to wait; `None`: something may be sent now.
    pub(crate) fn wait_until(&self, now: Instant) -> Option<Instant> {
        let rate = self.bytes_per_second?;
        let lacking = -self.tokens(rate, now);
        if lacking <= 0 {
            return None;
        }
        let rate = i128::from(rate);
        let nanos = u64::try_from((lacking + rate - 1) / rate).unwrap_or(u64::MAX);
        // The clock has its limits, too; whoever waits so long asks again.
        now.checked_add(Duration::from_nanos(nanos)).or(Some(now))
    }

    /// Counts bytes that were sent.
    pub(crate) fn take(&mut self, bytes: u64, now: Instant) {
        if let Some(rate) = self.bytes_per_second {
            self.tokens = self.tokens(rate, now) - i128::from(bytes) * NANO;
            self.at = self.at.max(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Sends as fast as it may, at odd times: never above the rate but for the burst and the
        /// last block, and never below it while it waits.
        #[test]
        fn the_rate_is_kept(
            rate in 1_000..10_000_000_000_u64,
            blocks in proptest::collection::vec((1..4_000_000_u32, 0..1_000_000_u64), 2..60),
        ) {
            let begin = Instant::now();
            let mut now = begin;
            let mut limit = RateLimit::new(Some(rate), now);
            let (mut sent, mut idle) = (0_u64, Duration::ZERO);
            for (len, late) in &blocks {
                if let Some(until) = limit.wait_until(now) {
                    prop_assert!(until > now && !limit.may(now));
                    // A thread wakes up late.
                    let late = Duration::from_nanos(*late);
                    (now, idle) = (until + late, idle + late);
                }
                prop_assert!(limit.may(now));
                let earned = ((now - begin).as_secs_f64() + 0.1) * rate as f64;
                prop_assert!(sent as f64 <= earned * 1.000_001 + 1.0, "{sent} of {earned}");
                limit.take((*len).into(), now);
                sent += u64::from(*len);
            }
            let took = (now - begin - idle).as_secs_f64();
            // A nanosecond is the least that can be waited for.
            let least = (took - blocks.len() as f64 * 1e-9) * rate as f64;
            prop_assert!(least <= sent as f64 * 1.000_001 + 1.0, "waited {took} s for {sent} \
                bytes");
        }

        /// Time that stands still or goes backwards gives nothing.
        #[test]
        fn time_gives_once(rate in 1..1_000_000_u64) {
            let now = Instant::now() + Duration::from_secs(10);
            let mut limit = RateLimit::new(Some(rate), now);
            limit.take(1, now);
            for _ in 0..3 {
                prop_assert!(!limit.may(now));
                prop_assert!(!limit.may(now - Duration::from_secs(5)));
                limit.take(0, now - Duration::from_secs(5));
            }
        }
    }

    #[test]
    fn without_a_limit_nothing_waits() {
        let now = Instant::now();
        let mut limit = RateLimit::new(None, now);
        limit.take(u64::MAX, now);
        assert!(limit.may(now));
        let mut limit = RateLimit::new(Some(0), now);
        limit.take(u64::MAX, now);
        assert!(limit.wait_until(now).is_some());
    }
}
