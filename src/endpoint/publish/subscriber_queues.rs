//! `SubscriberQueues`: the queues of all subscribers, and when the next of them has something due.

use std::time::Instant;

use super::account::Ticket;
use super::policy::SlowPolicy;
use super::subscriber_queue::{Lag, SubscriberQueue};
use crate::id::{ConnectionId, IdMap};

/// Nothing is due in any queue before this.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct NextDue(Option<Instant>);

impl NextDue {
    /// A queue has something with a deadline.
    #[inline]
    pub(super) fn note(&mut self, queue: &SubscriberQueue) {
        if let Some(at) = queue.next_deadline() {
            self.0 = Some(self.0.map_or(at, |due| due.min(at)));
        }
    }
}

/// What waited for too long, by the policies.
#[derive(Debug, Default)]
pub(super) struct Overdue {
    /// These are to be dropped.
    pub(super) late: Vec<(ConnectionId, Ticket)>,
    /// These are to be cut off.
    pub(super) slow: Vec<(ConnectionId, Lag)>,
}

/// One queue for each subscriber.
#[derive(Debug, Default)]
pub(super) struct SubscriberQueues {
    by_connection: IdMap<ConnectionId, SubscriberQueue>,
    next_due: NextDue,
}

impl SubscriberQueues {
    pub(super) fn add(&mut self, connection: ConnectionId, policy: SlowPolicy) {
        self.by_connection
            .insert(connection, SubscriberQueue::new(policy));
    }

    pub(super) fn remove(&mut self, connection: ConnectionId) -> Option<SubscriberQueue> {
        self.by_connection.remove(&connection)
    }

    pub(super) fn connections(&self) -> Vec<ConnectionId> {
        self.by_connection.keys().copied().collect()
    }

    /// A subscriber's queue, and where its deadline is noted.
    #[inline]
    pub(super) fn get_mut(
        &mut self,
        connection: ConnectionId,
    ) -> Option<(&mut SubscriberQueue, &mut NextDue)> {
        let queue = self.by_connection.get_mut(&connection)?;
        Some((queue, &mut self.next_due))
    }

    /// Publications that wait for a subscriber.
    pub(super) fn waiting(&self, connection: ConnectionId) -> usize {
        self.by_connection
            .get(&connection)
            .map_or(0, SubscriberQueue::waiting)
    }

    /// False: there is no such subscriber.
    pub(super) fn set_policy(
        &mut self,
        connection: ConnectionId,
        policy: SlowPolicy,
        now: Instant,
    ) -> bool {
        let Some(queue) = self.by_connection.get_mut(&connection) else {
            return false;
        };
        queue.set_policy(policy);
        // What is due by the new policy is looked for at the next poll.
        if queue.next_deadline().is_some() {
            self.next_due = NextDue(Some(now));
        }
        true
    }

    /// When some may be due.
    pub(super) fn due(&self) -> Option<Instant> {
        self.next_due.0
    }

    /// Looks at each queue, and takes out what is due.
    pub(super) fn take_overdue(&mut self, now: Instant) -> Overdue {
        let mut overdue = Overdue::default();
        self.next_due = NextDue::default();
        for (&connection, queue) in &mut self.by_connection {
            while let Some(ticket) = queue.take_late(now) {
                overdue.late.push((connection, ticket));
            }
            match queue.too_slow(now) {
                Some(lag) => overdue.slow.push((connection, lag)),
                None => self.next_due.note(queue),
            }
        }
        overdue
    }
}
