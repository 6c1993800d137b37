//! When each timer is due: a heap of instants. Pure: the caller brings the clock.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

/// Due timers come out in the order of their instants, equal ones in the order in which they were
/// set.
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
    /// One that was set after it and is due already (a period of zero) sorts behind all the others
    /// that are due, so it hides none.
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

/// The first tick after `now` of a timer that ticked at `last` and ticks every `every`: missed
/// ticks are skipped, and the phase is kept, so a periodic timer does not drift. `None` = beyond
/// what the clock can name.
pub(super) fn next_tick(last: Instant, every: Duration, now: Instant) -> Option<Instant> {
    if every.is_zero() {
        return Some(now);
    }
    let late = now.saturating_duration_since(last).as_nanos();
    let to_next = every.as_nanos() - late % every.as_nanos();
    let step = u64::try_from(late + to_next).ok()?;
    last.checked_add(Duration::from_nanos(step))
}

/// The earlier one of those that there are.
pub(super) fn earliest(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (one, other) => one.or(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Debug, Clone)]
    enum Step {
        Set { after_us: u64 },
        Advance { us: u64 },
        Cancel { which: usize },
        Sweep,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0u64..50).prop_map(|after_us| Step::Set { after_us }),
            3 => (0u64..20).prop_map(|us| Step::Advance { us }),
            2 => any::<usize>().prop_map(|which| Step::Cancel { which }),
            1 => Just(Step::Sweep),
        ]
    }

    proptest! {
        #[test]
        fn the_heap_agrees_with_a_sorted_list(steps in proptest::collection::vec(step(), 1..200)) {
            let mut now = Instant::now();
            let mut timers = Timers::new();
            // The model: (instant, key), searched from the front; keys rise in the order of
            // setting.
            let mut model: Vec<(Instant, u64)> = Vec::new();
            let mut key = 0;
            for step in steps {
                match step {
                    Step::Set { after_us } => {
                        let at = now + Duration::from_micros(after_us);
                        timers.set(at, key);
                        model.push((at, key));
                        key += 1;
                    }
                    Step::Cancel { which } if !model.is_empty() => {
                        let which = which % model.len();
                        model.remove(which);
                    }
                    Step::Cancel { .. } => {}
                    Step::Sweep => {
                        timers.retain(|key| model.iter().any(|(_, other)| *other == key));
                        prop_assert_eq!(timers.len(), model.len());
                        prop_assert_eq!(timers.next(), model.iter().map(|(at, _)| *at).min());
                    }
                    Step::Advance { us } => {
                        now += Duration::from_micros(us);
                        let mark = timers.mark();
                        let mut due = Vec::new();
                        while let Some((at, key)) = timers.pop_due(now, mark) {
                            if model.contains(&(at, key)) {
                                due.push((at, key));
                            }
                        }
                        let mut expected: Vec<_> =
                            model.iter().copied().filter(|(at, _)| *at <= now).collect();
                        expected.sort();
                        prop_assert_eq!(due, expected);
                        model.retain(|(at, _)| *at > now);
                    }
                }
            }
        }

        #[test]
        fn the_next_tick_is_the_first_of_the_phase_after_now(
            every_ns in 1u64..10_000_000_000,
            late_ns in 0u64..1_000_000_000_000,
        ) {
            let last = Instant::now();
            let (every, late) = (
                Duration::from_nanos(every_ns),
                Duration::from_nanos(late_ns),
            );
            let next = next_tick(last, every, last + late).expect("the clock reaches that far");
            let offset = (next - last).as_nanos() as u64;
            prop_assert!(offset > late_ns && offset - every_ns <= late_ns);
            prop_assert_eq!(offset % every_ns, 0);
        }
    }

    #[test]
    fn a_timer_set_after_the_mark_waits_for_the_next_round() {
        let now = Instant::now();
        let mut timers = Timers::new();
        timers.set(now, 'a');
        let mark = timers.mark();
        timers.set(now, 'b');
        assert_eq!(timers.pop_due(now, mark), Some((now, 'a')));
        assert_eq!(timers.pop_due(now, mark), None);
        assert_eq!(timers.pop_due(now, timers.mark()), Some((now, 'b')));
    }
}
