//! `Marks`: what waits until a completion queue was read up to where it ended at some time. Pure.
//!
//! "Until the queue is empty" is no such time: a peer that fills the queue as fast as it is read
//! decides when that is. So what has to wait for completions that are in the queue, and for no
//! others, leaves a mark. The mark is passed when a read found nothing, or when as many operations
//! have completed since as could be in the queue when it was left.

use std::collections::VecDeque;

/// What waits, in the order in which it came.
#[derive(Debug)]
pub(crate) struct Marks<T> {
    /// Operations whose completions were read so far.
    read: u64,
    /// Most operations that are in flight at once.
    in_flight_max: u64,
    /// How many may pass since the last read.
    due: usize,
    /// With the number of completions that must have been read.
    waiting: VecDeque<(u64, T)>,
}

impl<T> Marks<T> {
    /// For a queue of so many operations at most.
    pub(crate) fn new(in_flight_max: u64) -> Self {
        Self {
            read: 0,
            in_flight_max,
            due: 0,
            waiting: VecDeque::new(),
        }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// What waits for its mark.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.waiting.iter().map(|(_, what)| what)
    }

    /// Leaves a mark behind what is in the queue now.
    pub(crate) fn leave(&mut self, what: T) {
        self.waiting
            .push_back((self.read + self.in_flight_max, what));
    }

    /// Counts completions that were read; 0: the queue was at its end.
    #[inline]
    pub(crate) fn on_read(&mut self, found: usize) {
        self.read += found as u64;
        if found == 0 {
            self.due = self.waiting.len();
        }
    }

    /// One of those was of no operation of this side, so there can be any number of them.
    pub(crate) fn on_strange(&mut self) {
        self.read = self.read.saturating_sub(1);
    }

    /// The next one whose mark was passed.
    pub(crate) fn take_passed(&mut self) -> Option<T> {
        let read = self.read;
        let reached = self.waiting.front().is_some_and(|(at, _)| *at <= read);
        if self.due == 0 && !reached {
            return None;
        }
        self.due = self.due.saturating_sub(1);
        self.waiting.pop_front().map(|(_, what)| what)
    }

    /// All of them, passed or not.
    pub(crate) fn take_all(&mut self) -> impl Iterator<Item = T> + use<T> {
        self.due = 0;
        std::mem::take(&mut self.waiting)
            .into_iter()
            .map(|(_, what)| what)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn passed(marks: &mut Marks<u32>) -> Vec<u32> {
        std::iter::from_fn(|| marks.take_passed()).collect()
    }

    #[test]
    fn the_end_of_the_queue_passes_the_marks_that_were_left_before() {
        let mut marks = Marks::new(100);
        marks.leave(1);
        marks.leave(2);
        marks.on_read(5);
        assert!(passed(&mut marks).is_empty());
        marks.on_read(0);
        marks.leave(3);
        assert_eq!(passed(&mut marks), [1, 2], "not one that was left later");
        assert!(!marks.is_empty());
        assert!(passed(&mut marks).is_empty());
        marks.on_read(0);
        assert_eq!(passed(&mut marks), [3]);
        assert!(marks.is_empty());
    }

    #[test]
    fn as_many_completions_as_there_could_be_pass_a_mark_in_a_queue_without_end() {
        let mut marks = Marks::new(100);
        marks.on_read(7);
        marks.leave(1);
        marks.on_read(60);
        marks.leave(2);
        marks.on_read(39);
        assert!(passed(&mut marks).is_empty());
        marks.on_read(1);
        assert_eq!(passed(&mut marks), [1]);
        for _ in 0..1000 {
            marks.on_read(1);
            marks.on_strange();
        }
        assert!(passed(&mut marks).is_empty(), "those are of no operation");
        marks.on_read(59);
        assert!(passed(&mut marks).is_empty());
        marks.on_read(32);
        assert_eq!(passed(&mut marks), [2]);
        marks.leave(3);
        marks.leave(4);
        assert_eq!(marks.iter().count(), 2);
        assert_eq!(marks.take_all().collect::<Vec<_>>(), [3, 4]);
        assert!(marks.is_empty() && marks.take_passed().is_none());
    }
}
