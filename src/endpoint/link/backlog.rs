//! `Backlog`: whether all is read that was in a queue a while ago.

use crate::fabric::COMPLETION_BATCH;

/// How far a queue was read that is read in batches: one that is behind holds what peers said long
/// ago.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Backlog {
    /// Entries read since the queue was last at its end.
    read: u64,
    capacity: u64,
}

impl Backlog {
    /// Of a queue that holds at most so many entries.
    pub(crate) fn new(capacity: u64) -> Self {
        Self { read: 0, capacity }
    }

    #[inline]
    pub(crate) fn on_read(&mut self, found: usize) {
        self.read = if found < COMPLETION_BATCH {
            0
        } else {
            self.read + found as u64
        };
    }

    /// Everything that was in the queue a while ago was read.
    pub(crate) fn is_read(&self) -> bool {
        self.read == 0 || self.read > self.capacity
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_is_read_at_its_end_or_when_all_that_fits_in_it_was() {
        let mut backlog = Backlog::new(100);
        assert!(backlog.is_read());
        for batches in 1..=3 {
            backlog.on_read(COMPLETION_BATCH);
            assert!(!backlog.is_read(), "{batches} of {COMPLETION_BATCH}");
        }
        backlog.on_read(COMPLETION_BATCH);
        assert!(backlog.is_read(), "128 is more than it holds");
        backlog.on_read(COMPLETION_BATCH - 1);
        assert!(backlog.is_read());
        backlog.on_read(COMPLETION_BATCH);
        assert!(!backlog.is_read());
        backlog.on_read(0);
        assert!(backlog.is_read());
    }
}
