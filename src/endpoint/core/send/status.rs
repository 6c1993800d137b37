//! How a sending endpoint stands at this moment.

use crate::endpoint::error::Blocked;
use std::time::{Duration, Instant};

use super::SendCore;
use crate::endpoint::link::Link;
use crate::protocol::connection::State;

/// How a [`SendEndpointZeroCopy`](crate::SendEndpointZeroCopy) stands at this moment: what tells a
/// slow peer from a slow application.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SendStatus {
    /// Sends and one-sided operations in flight.
    pub in_flight: u32,
    /// Messages that the peer has room for now: it granted so many more than were sent. 0 without a
    /// connection.
    pub credits: u64,
    /// What the last refused operation waits for, until [`Writable`](crate::SendEvent::Writable)
    /// says that it has passed.
    pub blocked: Option<Blocked>,
    /// For how long the oldest of those in flight has been, if it is within its deadline; counted
    /// as the deadline is. `None` where none is, or without a deadline
    /// ([`OutgoingSettings::deadline`](crate::endpoint::OutgoingSettings::deadline)).
    pub oldest: Option<Duration>,
    /// How many of those in flight are beyond their deadline, and were told as
    /// [`Late`](crate::SendEvent::Late).
    pub late: u32,
}

impl<L: Link> SendCore<L> {
    pub(crate) fn status(&self) -> SendStatus {
        let data = self.posted.sends().map(|op| op.posted);
        let one_sided = self.posted.one_sided.iter().chain(self.line.ops());
        let one_sided = one_sided.map(|op| op.posted);
        let long = self.line.long().map(|long| long.posted);
        let (mut oldest, mut late) = (None::<Instant>, 0);
        for posted in data.chain(one_sided).chain(long) {
            match posted {
                Some(at) => oldest = Some(oldest.map_or(at, |oldest| oldest.min(at))),
                None => late += u32::from(self.settings.send_deadline.is_some()),
            }
        }
        let stands = self.machine.state() == State::Established;
        SendStatus {
            in_flight: self.data_in_flight,
            credits: if stands { self.machine.credits() } else { 0 },
            blocked: self.blocked,
            oldest: oldest.map(|at| self.clock.since(at)),
            late,
        }
    }
}
