//! The trigger: which event numbers there are. All detectors see the same ones, and stop at the
//! same one.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Shared by all detectors of a process.
#[derive(Debug)]
pub(crate) struct Trigger(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// No detector has gone beyond this event.
    claimed: u64,
    /// The first event that there is not, once the run is over.
    end: Option<u64>,
    aborted: bool,
}

impl Trigger {
    /// A run of so many events; `None`: until [`stop`](Self::stop).
    pub(crate) fn new(events: Option<u64>) -> Self {
        Self(Mutex::new(State {
            end: events,
            ..State::default()
        }))
    }

    /// What a detector may fill next: from `next`, `want` events at most, up to the number that is
    /// returned. `None`: the run is over for it.
    pub(crate) fn claim(&self, next: u64, want: u64) -> Option<u64> {
        let mut state = self.lock();
        let limit = match state.end {
            Some(end) => end.min(next + want),
            None => next + want,
        };
        state.claimed = state.claimed.max(limit);
        let over = state.aborted || state.end.is_some_and(|end| next >= end);
        (!over).then_some(limit)
    }

    /// Ends the run at an event that every detector can still fill; returns how many events there
    /// are in all.
    pub(crate) fn stop(&self) -> u64 {
        let mut state = self.lock();
        let claimed = state.claimed;
        *state.end.get_or_insert(claimed)
    }

    /// Ends the run at once, in the middle of events.
    pub(crate) fn abort(&self) {
        self.lock().aborted = true;
    }

    pub(crate) fn is_aborted(&self) -> bool {
        self.lock().aborted
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Each change is one assignment: a panic leaves nothing half done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_detectors_stop_at_the_same_event() {
        let trigger = Trigger::new(None);
        assert_eq!(trigger.claim(0, 10), Some(10));
        assert_eq!(
            trigger.claim(0, 0),
            Some(0),
            "nothing is due, and it is not over"
        );
        assert_eq!(trigger.claim(10, 5), Some(15), "one is ahead");
        assert_eq!(trigger.stop(), 15);
        assert_eq!(trigger.claim(0, 100), Some(15));
        assert_eq!(trigger.claim(15, 100), None);
        assert_eq!(trigger.stop(), 15, "once is enough");
        trigger.abort();
        assert_eq!(trigger.claim(3, 1), None);
        assert_eq!(Trigger::new(Some(4)).claim(0, 100), Some(4));
    }
}
