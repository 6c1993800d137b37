//! `Deadline`: until when something must have happened; `Patience`: one for loops that poll. Of
//! `stream_bench`, too.

use std::time::{Duration, Instant};

use crate::error::{Failure, fail};

/// Empty polls in a row after which the core is offered to others: on a machine with idle cores
/// nobody takes it, and on a busy one the peer may be who waits for it.
const YIELD: u32 = 64;
/// Empty polls in a row between two looks at the clock.
const LOOKS: u32 = 64 * YIELD;

/// Until when something must have happened.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    at: Instant,
    time: Duration,
}

impl Deadline {
    /// So long from now.
    pub fn after(time: Duration) -> Self {
        Self {
            at: Instant::now() + time,
            time,
        }
    }

    /// Looks at the clock.
    ///
    /// # Errors
    /// When the time is over; it says what was waited for.
    pub fn check(&self, what: &str) -> Result<(), Failure> {
        if Instant::now() > self.at {
            return fail(format!("waited {:?} for {what}", self.time));
        }
        Ok(())
    }
}

/// A deadline that a polling loop can afford to look at.
#[derive(Debug)]
pub struct Patience {
    deadline: Deadline,
    empty: u32,
}

impl Patience {
    /// So long from now.
    pub fn new(limit: Duration) -> Self {
        Self {
            deadline: Deadline::after(limit),
            empty: 0,
        }
    }

    /// After each poll: what it found.
    #[inline]
    pub fn on_poll(&mut self, found: usize) -> Result<(), Failure> {
        if found > 0 {
            self.on_something();
            return Ok(());
        }
        self.on_nothing()
    }

    /// A poll found something. A function of its own, as the next: scripts/instructions.py counts
    /// their calls.
    #[inline(never)]
    fn on_something(&mut self) {
        self.empty = 0;
    }

    /// A poll found nothing.
    #[inline(never)]
    fn on_nothing(&mut self) -> Result<(), Failure> {
        self.empty = self.empty.wrapping_add(1);
        if self.empty.is_multiple_of(YIELD) {
            std::thread::yield_now();
        }
        if self.empty.is_multiple_of(LOOKS) {
            return self.deadline.check("the peer");
        }
        Ok(())
    }
}
