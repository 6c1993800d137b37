//! How a sending endpoint stands at this moment.

use std::time::Duration;

use crate::endpoint::error::Blocked;

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
