//! How a channel sleeps.

use std::time::Duration;

use crate::Error;
use crate::object::server::core::ChannelCore;

/// Without a descriptor that tells: so many looks in a row, then sleeps from the shortest to the
/// longest, each twice as long as the one before.
const LOOKS: u32 = 8;
const REST_FIRST: Duration = Duration::from_micros(20);
const REST_MAX: Duration = Duration::from_millis(1);

/// With descriptors. They tell of everything; nothing depends on it.
const SLEEP_MAX: Duration = Duration::from_millis(50);

impl ChannelCore {
    /// Sleeps until there may be something to poll for, at most so long.
    pub(super) fn sleep(&mut self, timeout: Duration) -> Result<(), Error> {
        self.parts.domain.fabric().owner().check()?;
        if !self.outbox.is_empty() || self.turns.has_ready() {
            return Ok(());
        }
        let now = self.clock.now();
        let due = self.deadlines.first().map(|(at, _)| *at);
        let due = due.into_iter().chain(self.turns.next_try()).min();
        let mut time = due.map_or(timeout, |at| timeout.min(at.saturating_duration_since(now)));
        let is_idle = self.engine.len() == 0;
        if !is_idle {
            let longest = match self.watch.may_sleep()? {
                true => SLEEP_MAX,
                false => self.next_rest(),
            };
            time = time.min(longest);
        }
        if time.is_zero() {
            std::thread::yield_now();
            return Ok(());
        }
        let time = self.clock.sleep_for(time);
        self.watch.sleep(time)
    }

    /// Tells a loop that watches the channel when it is to be polled, behind everything that may
    /// change that.
    pub(super) fn announce(&self) {
        self.wait.set_unsent(self.turns.has_ready());
        self.wait.set_unread(!self.outbox.is_empty());
        let due = self.deadlines.first().map(|(at, _)| *at);
        let is_idle = self.engine.len() == 0;
        let look = (!is_idle).then(|| self.clock.now() + SLEEP_MAX);
        let all = due.into_iter().chain(self.turns.next_try()).chain(look);
        self.wait.set_deadline(all.min());
    }

    fn next_rest(&mut self) -> Duration {
        self.rests = self.rests.saturating_add(1);
        let Some(doubled) = self.rests.checked_sub(LOOKS + 1) else {
            return Duration::ZERO;
        };
        REST_FIRST
            .saturating_mul(1 << doubled.min(16))
            .min(REST_MAX)
    }
}
