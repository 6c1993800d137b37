//! `RateLimit`: bytes a second, with a burst of a tenth of a second.

use std::time::Instant;

#[derive(Debug, Clone, Copy)]
pub(crate) struct RateLimit {
    per_second: Option<u64>,
    /// Bytes that may be taken; below 0: taken ahead.
    tokens: f64,
    at: Instant,
}

impl RateLimit {
    pub(crate) fn new(per_second: Option<u64>, now: Instant) -> Self {
        Self {
            per_second,
            tokens: 0.0,
            at: now,
        }
    }

    fn tokens(&self, now: Instant) -> f64 {
        let Some(rate) = self.per_second else {
            return f64::MAX;
        };
        let rate = rate as f64;
        let came = now.saturating_duration_since(self.at).as_secs_f64() * rate;
        (self.tokens + came).min(rate / 10.0)
    }

    /// Whether something may be sent now.
    pub(crate) fn may(&self, now: Instant) -> bool {
        self.per_second.is_none() || self.tokens(now) >= 0.0
    }

    /// It was.
    pub(crate) fn take(&mut self, bytes: u64, now: Instant) {
        if self.per_second.is_some() {
            self.tokens = self.tokens(now) - bytes as f64;
            self.at = now;
        }
    }
}
