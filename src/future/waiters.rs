//! `Waiters`: the futures that wait for one thing, in the order in which they came.

use std::collections::BTreeMap;
use std::task::Waker;

use super::after::After;

/// A future's place among the waiters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket(u64);

/// One entry for each future that is alive and waits, so whoever holds the futures bounds it.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    next: u64,
    /// Without a waker: woken, and not polled since.
    places: BTreeMap<Ticket, Option<Waker>>,
}

impl Waiters {
    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Whether this is the one that came first; without a ticket, whether there is nobody.
    pub(crate) fn is_first(&self, ticket: Option<Ticket>) -> bool {
        self.places.first_key_value().map(|(first, _)| *first) == ticket
    }

    /// Waits, or goes on waiting at the same place, to be woken by this waker.
    pub(crate) fn wait(
        &mut self,
        ticket: &mut Option<Ticket>,
        waker: Option<Waker>,
        after: &mut After,
    ) {
        let place = *ticket.get_or_insert_with(|| {
            self.next += 1;
            Ticket(self.next)
        });
        after.drop_waker(self.places.insert(place, waker).flatten());
    }

    /// Gives the place up.
    pub(crate) fn leave(&mut self, ticket: Ticket, after: &mut After) {
        after.drop_waker(self.places.remove(&ticket).flatten());
    }

    pub(crate) fn wake_first(&mut self, after: &mut After) {
        if let Some(mut first) = self.places.first_entry() {
            after.wake(first.get_mut().take());
        }
    }

    pub(crate) fn wake_all(&mut self, after: &mut After) {
        for waker in self.places.values_mut() {
            after.wake(waker.take());
        }
    }
}
