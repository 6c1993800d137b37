//! `RateLimit`: at most so many bytes a second, over a stream or several.

use std::time::{Duration, Instant};

/// A token bucket: what is not used is saved up, for a burst of a tenth of a second or of one block, whichever is more. It never sleeps: it says until
/// when to wait. What is sent at once may be more than there is: then the next one waits the longer, so that the rate is kept whatever the blocks are.
#[derive(Debug, Clone, Copy)]
pub struct RateLimit {
    bytes_per_second: u64,
    burst: i128,
    /// In bytes times 10^9; below 0 when more was sent than there was.
    tokens: i128,
    at: Instant,
}

const NANO: i128 = 1_000_000_000;

impl RateLimit {
    /// At most `bytes_per_second`, at least 1, from now on, in blocks of `block_bytes`.
    ///
    /// # Panics
    ///
    /// When `bytes_per_second` is 0: nothing would ever be sent. To pause is another matter.
    pub fn new(bytes_per_second: u64, block_bytes: u32, now: Instant) -> Self {
        assert!(bytes_per_second > 0, "a rate of 0");
        let burst = i128::from((bytes_per_second / 10).max(block_bytes.into())) * NANO;
        Self {
            bytes_per_second,
            burst,
            tokens: burst,
            at: now,
        }
    }

    /// Changes the rate; what was saved up, or overdrawn, stays.
    ///
    /// # Panics
    ///
    /// As [`new`](Self::new).
    pub fn set(&mut self, bytes_per_second: u64, block_bytes: u32, now: Instant) {
        self.refill(now);
        let Self { tokens, at, .. } = *self;
        let new = Self::new(bytes_per_second, block_bytes, now);
        *self = Self {
            tokens: tokens.min(new.burst),
            at,
            ..new
        };
    }

    /// Bytes a second.
    pub fn bytes_per_second(&self) -> u64 {
        self.bytes_per_second
    }

    fn refill(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.at);
        self.at = self.at.max(now);
        let earned =
            passed.as_nanos().min(u64::MAX.into()) as i128 * i128::from(self.bytes_per_second);
        self.tokens = (self.tokens + earned).min(self.burst);
    }

    /// Until when to wait with the next block; `None`: it may go now.
    pub fn wait_until(&mut self, now: Instant) -> Option<Instant> {
        self.refill(now);
        if self.tokens > 0 {
            return None;
        }
        let rate = i128::from(self.bytes_per_second);
        // One more than it takes to be back at nothing.
        let nanos = (1 - self.tokens + rate - 1) / rate;
        Some(now + Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)))
    }

    /// So many bytes were sent.
    pub fn on_sent(&mut self, bytes: u64) {
        self.tokens -= i128::from(bytes) * NANO;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Sends as fast as it may, at odd times: never above the rate but for the burst and the last block, and never much below it.
        #[test]
        fn the_rate_is_kept(
            rate in 1_000..10_000_000_000_u64,
            blocks in proptest::collection::vec((1..4_000_000_u32, 0..1_000_000_u64), 2..60),
        ) {
            let begin = Instant::now();
            let mut now = begin;
            let largest = blocks.iter().map(|(len, _)| *len).max().unwrap();
            let mut limit = RateLimit::new(rate, largest, now);
            let burst = (rate / 10).max(largest.into());
            let (mut sent, mut idle) = (0_u64, Duration::ZERO);
            for (len, late) in &blocks {
                if let Some(until) = limit.wait_until(now) {
                    prop_assert!(until > now);
                    // A thread wakes up late, and not at all too early.
                    let late = Duration::from_nanos(*late);
                    (now, idle) = (until + late, idle + late);
                    prop_assert_eq!(limit.wait_until(now), None);
                }
                let earned = (now - begin).as_secs_f64() * rate as f64 + burst as f64;
                prop_assert!(sent as f64 <= earned * 1.000_001 + 1.0, "{sent} of {earned}");
                limit.on_sent((*len).into());
                sent += u64::from(*len);
            }
            let took = (now - begin - idle).as_secs_f64();
            let least = took * rate as f64;
            prop_assert!(least <= sent as f64 * 1.000_001 + 1.0, "waited {took} s for {sent} bytes");
        }

        /// Time that stands still or goes backwards gives nothing.
        #[test]
        fn time_gives_once(rate in 1..1_000_000_u64) {
            let now = Instant::now() + Duration::from_secs(10);
            let mut limit = RateLimit::new(rate, 1000, now);
            let burst = (rate / 10).max(1000);
            limit.on_sent(burst);
            for _ in 0..3 {
                prop_assert!(limit.wait_until(now).is_some());
                prop_assert!(limit.wait_until(now - Duration::from_secs(5)).is_some());
            }
        }
    }

    #[test]
    fn a_new_rate_counts_from_then_on() {
        let now = Instant::now();
        let mut limit = RateLimit::new(1000, 100, now);
        limit.on_sent(1100);
        assert_eq!(
            limit.wait_until(now).unwrap() - now,
            Duration::from_nanos(1_000_000_001)
        );
        limit.set(1_000_000, 100, now);
        assert_eq!(limit.bytes_per_second(), 1_000_000);
        assert!(limit.wait_until(now).unwrap() - now <= Duration::from_micros(1001));
    }
}
