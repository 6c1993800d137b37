//! `Attempts`: how often a peer was tried in vain, and how long the next attempt waits.

use std::time::{Duration, Instant};

/// The first wait before a new attempt to connect, and the longest.
const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(5);

/// How many attempts there may be in a row, and for how long.
#[derive(Debug, Clone, Copy)]
pub(super) struct AttemptsLimit {
    pub(super) most: u32,
    /// From when the first of a row failed.
    pub(super) retry_for: Option<Duration>,
    /// The same for a peer that has never answered: from when the transfer began.
    pub(super) first_within: Duration,
}

/// The attempts to send something to one peer.
#[derive(Debug)]
pub(super) struct Attempts {
    /// When the transfer began.
    began: Instant,
    /// Attempts in a row at which the peer got no more than it had ever had.
    failures: u32,
    /// When the first of them failed.
    failing_since: Option<Instant>,
    has_failed: bool,
    /// The peer has answered once.
    has_answered: bool,
    /// The most that the peer said it has of the content, in bytes, in whichever session.
    most_written: u64,
}

impl Attempts {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            began: now,
            failures: 0,
            failing_since: None,
            has_failed: false,
            has_answered: false,
            most_written: 0,
        }
    }

    /// An attempt has failed. How long to wait before the next; `None`: there were so many already,
    /// or for so long.
    pub(super) fn next(
        &mut self,
        limit: &AttemptsLimit,
        is_worth_it: bool,
        now: Instant,
    ) -> Option<Duration> {
        if self.failures >= limit.most || !is_worth_it {
            return None;
        }
        let wait = RETRY_FIRST * 2_u32.saturating_pow(self.failures.min(16));
        let mut wait = wait.min(RETRY_MAX);
        let since = *self.failing_since.get_or_insert(now);
        if let Some(retry_for) = limit.retry_for {
            let left = match self.has_answered {
                true => (since + retry_for).saturating_duration_since(now),
                false => (self.began + limit.first_within).saturating_duration_since(now),
            };
            if left.is_zero() {
                return None;
            }
            // The last one is at the end of that time.
            wait = wait.min(left);
        }
        self.failures += 1;
        Some(wait)
    }

    /// The peer has proven that it is one.
    pub(super) fn on_answered(&mut self) {
        self.has_answered = true;
    }

    /// An attempt has failed.
    pub(super) fn on_failed(&mut self) {
        self.has_failed = true;
    }

    /// Whether any attempt has failed.
    pub(super) fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// The peer says how many bytes it has. More than ever is what makes an attempt good, not what
    /// was sent: a peer that takes everything and has nothing in the end would be sent it for ever.
    pub(super) fn on_written(&mut self, bytes: u64) {
        if bytes > self.most_written {
            self.most_written = bytes;
            self.failures = 0;
            self.failing_since = None;
        }
    }

    /// The most that the peer said it has, in bytes.
    pub(super) fn most_written(&self) -> u64 {
        self.most_written
    }

    /// Attempts in a row that were in vain.
    pub(super) fn failures(&self) -> u32 {
        self.failures
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn limit(retry_for: u64) -> AttemptsLimit {
        AttemptsLimit {
            most: u32::MAX,
            retry_for: Some(Duration::from_secs(retry_for)),
            first_within: Duration::from_secs(2),
        }
    }

    /// Fails again and again from `now` on, at once each time: when it ends.
    fn end_of(attempts: &mut Attempts, limit: &AttemptsLimit, mut now: Instant) -> Instant {
        while let Some(wait) = attempts.next(limit, true, now) {
            now += wait;
        }
        now
    }

    #[test]
    fn a_lost_peer_is_tried_for_as_long_as_was_asked_for_and_one_that_never_was_there_for_less() {
        let began = Instant::now();
        let mut attempts = Attempts::new(began);
        let end = end_of(&mut attempts, &limit(30), began);
        assert_eq!(end - began, Duration::from_secs(2));
        let mut attempts = Attempts::new(began);
        attempts.on_answered();
        let lost = began + Duration::from_secs(100);
        let end = end_of(&mut attempts, &limit(30), lost);
        assert_eq!(end - lost, Duration::from_secs(30));
        assert!(attempts.failures() < 20, "pauses grow");
        // It has more than ever: a new row.
        attempts.on_written(1);
        let again = end + Duration::from_secs(100);
        assert_eq!(
            end_of(&mut attempts, &limit(3), again) - again,
            Duration::from_secs(3)
        );
    }

    #[test]
    fn without_a_time_it_is_their_number_that_ends_them() {
        let began = Instant::now();
        let mut attempts = Attempts::new(began);
        let three = AttemptsLimit {
            most: 3,
            retry_for: None,
            first_within: Duration::ZERO,
        };
        let end = end_of(&mut attempts, &three, began);
        assert_eq!(end - began, Duration::from_millis(100 + 200 + 400));
        assert_eq!(Attempts::new(began).next(&three, false, began), None);
    }
}
