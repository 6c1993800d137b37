//! What is timed, the same for both loops: from the begin mark to the end mark, as the receiver
//! sees them.

use std::time::{Duration, Instant};

pub use crate::deadline::{Deadline, Patience};

use crate::case::{Arrived, Header};
use crate::error::{Failure, fail};
use crate::host::cpu_seconds;

/// Keeps the core busy for so many microseconds, and touches nothing.
#[inline]
pub fn spin(microseconds: u64) {
    if microseconds == 0 {
        return;
    }
    let until = Instant::now() + Duration::from_micros(microseconds);
    while Instant::now() < until {
        std::hint::spin_loop();
    }
}

/// Counts what arrives between the marks.
#[derive(Debug)]
pub struct Sampler {
    messages: u64,
    began: Option<(Instant, f64)>,
    ended: Option<(Instant, f64)>,
    patience: Patience,
}

impl Sampler {
    /// Counts nothing until the begin mark comes.
    pub fn new(limit: Duration) -> Self {
        Self {
            messages: 0,
            began: None,
            ended: None,
            patience: Patience::new(limit),
        }
    }

    /// A message arrived.
    #[inline]
    pub fn on_message(&mut self, header: Header) {
        self.messages += 1;
        if header.is_mark() {
            self.on_mark(header);
        }
    }

    /// A mark arrived. What scripts/instructions.py counts lies between two calls of it.
    #[cold]
    #[inline(never)]
    fn on_mark(&mut self, header: Header) {
        let now = (Instant::now(), cpu_seconds());
        if header.is_end() {
            self.ended = Some(now);
        } else {
            self.began = Some(now);
            self.messages = 0;
        }
    }

    /// After each poll: what it found.
    ///
    /// # Errors
    /// When the limit is over.
    #[inline]
    pub fn on_poll(&mut self, found: usize) -> Result<(), Failure> {
        self.patience.on_poll(found)
    }

    /// Whether the end mark arrived.
    #[inline]
    pub fn done(&self) -> bool {
        self.ended.is_some()
    }

    /// What was counted.
    ///
    /// # Errors
    /// When a mark is missing.
    pub fn arrived(&self) -> Result<Arrived, Failure> {
        let (Some((from, cpu_from)), Some((to, cpu_to))) = (self.began, self.ended) else {
            return fail("a mark is missing");
        };
        Ok(Arrived {
            messages: self.messages,
            elapsed_s: (to - from).as_secs_f64(),
            cpu_s: cpu_to - cpu_from,
        })
    }
}
