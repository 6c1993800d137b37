//! `Posted`: the operations of one endpoint that were posted, and whose futures have not heard of
//! their end.

use crate::id::IdMap;
use std::task::{Poll, Waker};

use super::after::After;
use super::error::SendFailure;
use super::work::{Back, Outcome, back_of};

/// One that was posted.
#[derive(Debug)]
enum Entry {
    /// Without a waker: its future was woken, and not polled since.
    Flying(Option<Waker>),
    /// In flight, and nobody waits for it.
    Detached,
    Done(Outcome),
}

/// Operations by the key that the endpoint knows: one for each that is in flight, and for each
/// future whose operation is done.
#[derive(Debug, Default)]
pub(super) struct Posted {
    entries: IdMap<u64, Entry>,
    last_key: u64,
    flying: u64,
    resolved: u64,
    detached: u64,
    detached_in_flight: u64,
}

impl Posted {
    /// The key of the next one.
    pub(super) fn next_key(&self) -> u64 {
        self.last_key + 1
    }

    /// The endpoint has taken the one with the next key.
    pub(super) fn insert(&mut self, waker: Option<Waker>) {
        self.last_key += 1;
        self.flying += 1;
        self.entries.insert(self.last_key, Entry::Flying(waker));
    }

    /// Whether a future waits for one that is in flight.
    pub(super) fn has_waiters(&self) -> bool {
        self.flying > 0
    }

    pub(super) fn resolved(&self) -> u64 {
        self.resolved
    }

    pub(super) fn detached(&self) -> u64 {
        self.detached
    }

    pub(super) fn detached_in_flight(&self) -> u64 {
        self.detached_in_flight
    }

    pub(super) fn unresolved(&self) -> u64 {
        self.entries.len() as u64 - self.detached_in_flight
    }

    pub(super) fn finish(&mut self, key: u64, outcome: Outcome, after: &mut After) {
        match self.entries.get_mut(&key) {
            Some(Entry::Flying(waker)) => {
                after.wake(waker.take());
                self.flying -= 1;
                self.entries.insert(key, Entry::Done(outcome));
            }
            Some(Entry::Detached) => {
                self.detached_in_flight -= 1;
                self.entries.remove(&key);
                after.release(back_of(outcome));
            }
            Some(Entry::Done(_)) | None => {
                debug_assert!(false, "key {key} was not in flight");
                after.release(back_of(outcome));
            }
        }
    }

    /// The outcome of a posted send, which is thereby resolved.
    pub(super) fn poll_outcome(
        &mut self,
        key: u64,
        waker: &mut Option<Waker>,
        after: &mut After,
    ) -> Poll<Outcome> {
        match self.entries.get_mut(&key) {
            Some(Entry::Flying(place)) => {
                after.drop_waker(std::mem::replace(place, waker.take()));
                return Poll::Pending;
            }
            Some(Entry::Done(_)) => {}
            Some(Entry::Detached) | None => unreachable!("the future of {key} lives"),
        }
        let Some(Entry::Done(outcome)) = self.entries.remove(&key) else {
            unreachable!("just looked at")
        };
        self.resolved += 1;
        Poll::Ready(outcome)
    }

    /// The future of a posted send is dropped: the send goes on, and its payload goes home when it
    /// is done.
    pub(super) fn detach(&mut self, key: u64, after: &mut After) {
        self.detached += 1;
        match self.entries.remove(&key) {
            Some(Entry::Done(outcome)) => after.release(back_of(outcome)),
            Some(Entry::Flying(waker)) => {
                after.drop_waker(waker);
                self.flying -= 1;
                self.detached_in_flight += 1;
                self.entries.insert(key, Entry::Detached);
            }
            Some(Entry::Detached) | None => unreachable!("the future of {key} lived"),
        }
    }

    /// The endpoint is gone, with all that was in flight.
    pub(super) fn fail_all(&mut self, reason: &'static str, after: &mut After) {
        let keys: Vec<u64> = self.entries.keys().copied().collect();
        for key in keys {
            if !matches!(self.entries.get(&key), Some(Entry::Done(_))) {
                let lost = (Back::Nothing, SendFailure::Endpoint(reason));
                self.finish(key, Err(lost), after);
            }
        }
    }

    /// Wakes every future that waits for one.
    pub(super) fn wake_all(&mut self, after: &mut After) {
        for entry in self.entries.values_mut() {
            if let Entry::Flying(waker) = entry {
                after.wake(waker.take());
            }
        }
    }
}
