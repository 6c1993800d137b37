//! `Deadline`: until when something must have happened. Of `stream_bench`, too.

use std::time::{Duration, Instant};

use crate::error::{Failure, fail};

/// Until when something must have happened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    at: Instant,
    time: Duration,
}

impl Deadline {
    pub(crate) fn after(time: Duration) -> Self {
        Self {
            at: Instant::now() + time,
            time,
        }
    }

    pub(crate) fn check(&self, what: &str) -> Result<(), Failure> {
        if Instant::now() > self.at {
            return fail(format!("waited {:?} for {what}", self.time));
        }
        Ok(())
    }
}
