//! `Fencing`: what waits until peers have passed an epoch of the domain.

use std::collections::VecDeque;

use crate::id::ConnectionId;

/// Epochs that peers were asked to pass, and long messages that wait for that.
#[derive(Default)]
pub(super) struct Fencing {
    /// The last epoch of the domain that the connections were told of.
    pub(super) asked: u64,
    /// Connections with a long message that waits for an epoch, in the order of those.
    waiting: VecDeque<(u64, ConnectionId)>,
}

impl Fencing {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// A long message of a connection waits for an epoch, which is none before the last one.
    pub(super) fn wait_for(&mut self, epoch: u64, id: ConnectionId) {
        self.waiting.push_back((epoch, id));
    }

    /// The first epoch that is waited for.
    pub(super) fn first(&self) -> Option<u64> {
        self.waiting.front().map(|(epoch, _)| *epoch)
    }

    /// The next connection whose epoch has passed, as `has_passed` says.
    pub(super) fn take_passed(
        &mut self,
        has_passed: impl FnOnce(u64) -> bool,
    ) -> Option<ConnectionId> {
        let &(epoch, id) = self.waiting.front()?;
        has_passed(epoch).then(|| {
            self.waiting.pop_front();
            id
        })
    }
}
