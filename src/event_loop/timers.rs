//! When each timer is due: a heap of instants. Pure: the caller brings the clock.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

/// Due timers come out in the order of their instants, equal ones in the order in which they were set.
#[derive(Debug)]
pub(super) struct Timers<K> {
    heap: BinaryHeap<Reverse<Due<K>>>,
    sequence: u64,
}

#[derive(Debug)]
struct Due<K> {
    at: Instant,
    sequence: u64,
    key: K,
}

impl<K> PartialEq for Due<K> {
    fn eq(&self, other: &Self) -> bool {
        self.sequence == other.sequence
    }
}

impl<K> Eq for Due<K> {}

impl<K> PartialOrd for Due<K> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<K> Ord for Due<K> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.sequence).cmp(&(other.at, other.sequence))
    }
}

impl<K: Copy> Timers<K> {
    pub(super) fn new() -> Self {
        Self {
            heap: BinaryHeap::new(),
            sequence: 0,
        }
    }

    /// How many are set, cancelled ones that were not swept yet among them.
    pub(super) fn len(&self) -> usize {
        self.heap.len()
    }

    pub(super) fn set(&mut self, at: Instant, key: K) {
        self.heap.push(Reverse(Due {
            at,
            sequence: self.sequence,
            key,
        }));
        self.sequence += 1;
    }

    pub(super) fn next(&self) -> Option<Instant> {
        self.heap.peek().map(|Reverse(due)| due.at)
    }

    /// The end of what was set so far, for [`pop_due`](Self::pop_due).
    pub(super) fn mark(&self) -> u64 {
        self.sequence
    }

    /// Takes the first timer that is due at `now`, with its instant, if it was set before `mark`.
    ///
    /// One that was set after it and is due already (a period of zero) sorts behind all the others that are due, so it hides none.
    pub(super) fn pop_due(&mut self, now: Instant, mark: u64) -> Option<(Instant, K)> {
        let Reverse(first) = self.heap.peek()?;
        if first.at > now || first.sequence >= mark {
            return None;
        }
        self.heap.pop().map(|Reverse(due)| (due.at, due.key))
    }

    /// Forgets the timers whose key is not wanted any more.
    pub(super) fn retain(&mut self, mut keep: impl FnMut(K) -> bool) {
        self.heap.retain(|Reverse(due)| keep(due.key));
    }
}

/// The first tick after `now` of a timer that ticked at `last` and ticks every `every`: missed ticks are skipped, and the
/// phase is kept, so a periodic timer does not drift. `None` = beyond what the clock can name.
pub(super) fn next_tick(last: Instant, every: Duration, now: Instant) -> Option<Instant> {
    if every.is_zero() {
        return Some(now);
    }
    let late = now.saturating_duration_since(last).as_nanos();
    let to_next = every.as_nanos() - late % every.as_nanos();
    let step = u64::try_from(late + to_next).ok()?;
    last.checked_add(Duration::from_nanos(step))
}
