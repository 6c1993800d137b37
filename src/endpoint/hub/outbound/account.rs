//! `SendAccount`: how much is in flight for the application, with the bounds of that.

use std::sync::Arc;

use super::peer_outbound::PeerOutbound;
use crate::endpoint::error::{Blocked, SendErrorKind};
use crate::metrics::stats::{EndpointCells, SendsCounted};

/// The account of what was accepted, on all connections of a hub.
pub(in crate::endpoint::hub) struct SendAccount {
    /// In flight on one connection.
    depth: u32,
    /// In flight on all of them.
    total: u32,
    /// Accepted, and the provider is not done: with those whose outcome was told because their
    /// connection is over.
    held: u32,
    pub(in crate::endpoint::hub) stats: SendsCounted,
}

impl SendAccount {
    /// With these bounds: on one connection, and on all of them.
    pub(super) fn new((depth, total): (u32, u32), cells: Arc<EndpointCells>) -> Self {
        Self {
            depth,
            total,
            held: 0,
            stats: SendsCounted(cells),
        }
    }

    /// No connection may have more in flight.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.held >= self.total
    }

    /// A connection has less in flight than one may have.
    #[inline]
    pub(super) fn has_depth(&self, own: &PeerOutbound) -> bool {
        own.in_flight < self.depth
    }

    /// Whether there is room in the account for one more on a connection.
    #[inline]
    pub(in crate::endpoint::hub) fn has_room(
        &self,
        own: &PeerOutbound,
    ) -> Result<(), SendErrorKind> {
        match self.has_depth(own) && !self.is_full() {
            true => Ok(()),
            false => Err(SendErrorKind::WouldBlock(Blocked::Depth)),
        }
    }

    /// One more has an outcome to come.
    #[inline]
    pub(in crate::endpoint::hub) fn count_accepted(&mut self, own: &mut PeerOutbound, len: u64) {
        own.in_flight += 1;
        self.held += 1;
        let stats = &*self.stats;
        stats.posted.add(1);
        stats.in_flight.add(1);
        stats.bytes.add(len);
        stats.in_flight_max.raise(stats.in_flight.read());
    }

    /// A frame was begun, which is in flight as one message is; those in it are counted by
    /// themselves.
    pub(in crate::endpoint::hub) fn count_frame(&mut self, own: &mut PeerOutbound) {
        own.in_flight += 1;
        self.held += 1;
        self.stats.packed.frames.add(1);
    }

    /// One more in a frame has an outcome to come.
    #[inline]
    pub(in crate::endpoint::hub) fn count_packed(&mut self, len: u64) {
        let stats = &*self.stats;
        stats.posted.add(1);
        stats.packed.messages.add(1);
        stats.packed.bytes.add(len);
        stats.in_flight.add(1);
        stats.bytes.add(len);
        stats.in_flight_max.raise(stats.in_flight.read());
    }

    /// So many messages of a frame have their outcomes, which went well, but for the one that the
    /// frame is counted as.
    #[inline]
    pub(super) fn count_frame_sent(&mut self, messages: usize) {
        let others = messages as u64 - 1;
        self.stats.in_flight.sub(others);
        self.stats.completed.add(others);
    }

    /// One has its outcome.
    #[inline]
    pub(super) fn count_told(&mut self, failed: bool) {
        self.stats.in_flight.sub(1);
        match failed {
            false => self.stats.completed.add(1),
            true => self.stats.failed.add(1),
        }
    }

    /// Counts messages that completed.
    #[inline]
    pub(in crate::endpoint::hub) fn count_sent(&mut self, count: u32) {
        self.held -= count;
        self.stats.in_flight.sub(u64::from(count));
        self.stats.completed.add(u64::from(count));
    }

    /// The provider is done with one.
    #[inline]
    pub(super) fn end(&mut self) {
        self.held -= 1;
    }
}
