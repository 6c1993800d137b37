//! `Lanes`: the queues of all subscribers, and when the next of them has something due.

use std::collections::HashMap;
use std::time::Instant;

use super::account::Ticket;
use super::lane::{Lag, Lane};
use super::policy::SlowPolicy;
use crate::id::ConnectionId;

/// Nothing is due in any lane before this.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct NextDue(Option<Instant>);

impl NextDue {
    /// A lane has something with a deadline.
    #[inline]
    pub(super) fn note(&mut self, lane: &Lane) {
        if let Some(at) = lane.next_deadline() {
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

/// One lane for each subscriber.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    by_connection: HashMap<ConnectionId, Lane>,
    next_due: NextDue,
}

impl Lanes {
    pub(super) fn add(&mut self, connection: ConnectionId, policy: SlowPolicy) {
        self.by_connection.insert(connection, Lane::new(policy));
    }

    pub(super) fn remove(&mut self, connection: ConnectionId) -> Option<Lane> {
        self.by_connection.remove(&connection)
    }

    pub(super) fn connections(&self) -> Vec<ConnectionId> {
        self.by_connection.keys().copied().collect()
    }

    /// A subscriber's lane, and where its deadline is noted.
    #[inline]
    pub(super) fn get_mut(
        &mut self,
        connection: ConnectionId,
    ) -> Option<(&mut Lane, &mut NextDue)> {
        let lane = self.by_connection.get_mut(&connection)?;
        Some((lane, &mut self.next_due))
    }

    /// Publications that wait for a subscriber.
    pub(super) fn waiting(&self, connection: ConnectionId) -> usize {
        self.by_connection.get(&connection).map_or(0, Lane::waiting)
    }

    /// False: there is no such subscriber.
    pub(super) fn set_policy(
        &mut self,
        connection: ConnectionId,
        policy: SlowPolicy,
        now: Instant,
    ) -> bool {
        let Some(lane) = self.by_connection.get_mut(&connection) else {
            return false;
        };
        lane.set_policy(policy);
        // What is due by the new policy is looked for at the next poll.
        if lane.next_deadline().is_some() {
            self.next_due = NextDue(Some(now));
        }
        true
    }

    /// When some may be due.
    pub(super) fn due(&self) -> Option<Instant> {
        self.next_due.0
    }

    /// Looks at each lane, and takes out what is due.
    pub(super) fn take_overdue(&mut self, now: Instant) -> Overdue {
        let mut overdue = Overdue::default();
        self.next_due = NextDue::default();
        for (&connection, lane) in &mut self.by_connection {
            while let Some(ticket) = lane.take_late(now) {
                overdue.late.push((connection, ticket));
            }
            match lane.too_slow(now) {
                Some(lag) => overdue.slow.push((connection, lag)),
                None => self.next_due.note(lane),
            }
        }
        overdue
    }
}
