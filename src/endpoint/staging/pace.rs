//! `Pace`: how often the driver is asked whether a copy is done. Asking costs about a microsecond,
//! which is a part of what a message may take.

use std::time::{Duration, Instant};

/// What the shortest copy takes, about, and how long to wait between two questions.
const LEAST: Duration = Duration::from_micros(4);

/// When to ask next.
#[derive(Debug)]
pub(crate) struct Pace(Instant);

impl Pace {
    /// A copy of so many bytes begins now. None is faster than 64 bytes a nanosecond (PCIe 5.0 with
    /// 16 lanes).
    pub(crate) fn of(bytes: usize) -> Self {
        Self(Instant::now() + LEAST + Duration::from_nanos(bytes as u64 / 64))
    }

    /// Whether to ask now.
    pub(crate) fn may_ask(&mut self) -> bool {
        let now = Instant::now();
        if now < self.0 {
            return false;
        }
        self.0 = now + LEAST;
        true
    }
}
