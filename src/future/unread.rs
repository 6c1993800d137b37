//! `UnreadEvents`: what happened, and was not asked for yet.

use std::collections::VecDeque;

use super::after::After;
use super::waiters::Waiters;

/// Events of one kind, the oldest first, and who waits for the next.
#[derive(Debug)]
pub(super) struct UnreadEvents<E> {
    events: VecDeque<E>,
    pub(super) waiters: Waiters,
}

impl<E> Default for UnreadEvents<E> {
    fn default() -> Self {
        Self {
            events: VecDeque::new(),
            waiters: Waiters::default(),
        }
    }
}

impl<E> UnreadEvents<E> {
    pub(super) fn len(&self) -> usize {
        self.events.len()
    }

    pub(super) fn push(&mut self, event: E) {
        self.events.push_back(event);
    }

    pub(super) fn take(&mut self) -> Option<E> {
        self.events.pop_front()
    }

    pub(super) fn wake_all(&mut self, after: &mut After) {
        self.waiters.wake_all(after);
    }
}
