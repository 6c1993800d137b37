//! `Agenda`: the connections that the next poll has to look at, and why.

use crate::id::ConnectionId;

/// Lists of connections that want something of a poll.
#[derive(Default)]
pub(super) struct Agenda {
    /// Their machine may want something.
    touched: Vec<ConnectionId>,
    /// Connections that were heard since the last look at the clock.
    heard: Vec<ConnectionId>,
    /// Connections with a control message that the provider's full queue did not take.
    unsent: Vec<ConnectionId>,
    /// The provider's queue was full: something is to be offered to it again.
    pub(super) retry: bool,
}

impl Agenda {
    /// No connection wants anything, and nothing is to be offered again.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        !self.retry && self.touched.is_empty()
    }

    /// The machine of a connection may want something.
    #[inline]
    pub(super) fn touch(&mut self, id: ConnectionId) {
        if self.touched.last() != Some(&id) {
            self.touched.push(id);
        }
    }

    pub(super) fn pop_touched(&mut self) -> Option<ConnectionId> {
        self.touched.pop()
    }

    /// Something came from a connection; once between two looks at the clock.
    pub(super) fn hear(&mut self, id: ConnectionId) {
        self.heard.push(id);
    }

    pub(super) fn pop_heard(&mut self) -> Option<ConnectionId> {
        self.heard.pop()
    }

    /// The provider's full queue did not take a control message.
    pub(super) fn wait_for_room(&mut self, id: ConnectionId) {
        self.unsent.push(id);
        self.retry = true;
    }

    /// What the provider did not take is offered again.
    pub(super) fn touch_unsent(&mut self) {
        self.touched.append(&mut self.unsent);
    }
}
