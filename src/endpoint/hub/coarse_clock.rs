//! `CoarseClock`: whether time has passed since the last look, for next to nothing.
//!
//! An endpoint that is polled in a loop finds nothing most of the time. To look at the clock, and
//! at every deadline, in each of those polls costs as much as to look for messages: a message that
//! comes meanwhile waits for it. The kernel's coarse clock is a number in memory that moves with
//! its timer, each 1 to 10 ms: as long as it stands still, no deadline needs to be looked at again.

use crate::clock::{Clock, CoarseTime};

/// The coarse clock, as of the last look.
#[derive(Debug)]
pub(crate) struct CoarseClock {
    last: CoarseTime,
}

impl CoarseClock {
    pub(crate) fn new(clock: &Clock) -> Self {
        Self {
            last: clock.coarse(),
        }
    }

    /// Whether the coarse clock has moved since the last time that this was asked.
    #[inline]
    pub(crate) fn moved(&mut self, clock: &Clock) -> bool {
        let now = clock.coarse();
        std::mem::replace(&mut self.last, now) != now
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn it_moves_as_time_does_and_stands_still_in_between() {
        let clock = Clock::held();
        let mut coarse = CoarseClock::new(&clock);
        for _ in 0..3 {
            assert!(!coarse.moved(&clock));
            clock.advance(Duration::from_millis(4));
            assert!(coarse.moved(&clock));
        }
        let clock = Clock::system();
        let (mut coarse, began) = (CoarseClock::new(&clock), Instant::now());
        while !coarse.moved(&clock) {
            assert!(began.elapsed() < Duration::from_secs(60), "it stands still");
        }
    }
}
