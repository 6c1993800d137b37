//! `SendAccount`: how much is in flight for the application, with the bounds of that.

use super::peer_outbound::PeerOutbound;
use crate::endpoint::error::{Blocked, SendErrorKind};
use crate::stats::SendStats;

/// The account of what was accepted, on all connections of a hub.
pub(in crate::endpoint::hub) struct SendAccount {
    /// In flight on one connection.
    depth: u32,
    /// In flight on all of them.
    total: u32,
    /// Accepted, and the provider is not done: with those whose outcome was told because their
    /// connection is over.
    held: u32,
    pub(in crate::endpoint::hub) stats: SendStats,
}

impl SendAccount {
    /// With these bounds: on one connection, and on all of them.
    pub(super) fn new((depth, total): (u32, u32)) -> Self {
        Self {
            depth,
            total,
            held: 0,
            stats: SendStats::default(),
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
        let stats = &mut self.stats;
        stats.posted += 1;
        stats.in_flight += 1;
        stats.bytes += len;
        stats.in_flight_max = stats.in_flight_max.max(stats.in_flight);
    }

    /// A frame was begun, which is in flight as one message is; those in it are counted by
    /// themselves.
    pub(in crate::endpoint::hub) fn count_frame(&mut self, own: &mut PeerOutbound) {
        own.in_flight += 1;
        self.held += 1;
        self.stats.packed.frames += 1;
    }

    /// One more in a frame has an outcome to come.
    #[inline]
    pub(in crate::endpoint::hub) fn count_packed(&mut self, len: u64) {
        let stats = &mut self.stats;
        stats.posted += 1;
        stats.packed.messages += 1;
        stats.packed.bytes += len;
        stats.in_flight += 1;
        stats.bytes += len;
        stats.in_flight_max = stats.in_flight_max.max(stats.in_flight);
    }

    /// So many messages of a frame have their outcomes, which went well, but for the one that the
    /// frame is counted as.
    #[inline]
    pub(super) fn count_frame_sent(&mut self, messages: usize) {
        let others = messages as u64 - 1;
        self.stats.in_flight -= others;
        self.stats.completed += others;
    }

    /// One has its outcome.
    #[inline]
    pub(super) fn count_told(&mut self, failed: bool) {
        self.stats.in_flight -= 1;
        match failed {
            false => self.stats.completed += 1,
            true => self.stats.failed += 1,
        }
    }

    /// Counts messages that completed.
    #[inline]
    pub(in crate::endpoint::hub) fn count_sent(&mut self, count: u32) {
        self.held -= count;
        self.stats.in_flight -= u64::from(count);
        self.stats.completed += u64::from(count);
    }

    /// The provider is done with one.
    #[inline]
    pub(super) fn end(&mut self) {
        self.held -= 1;
    }
}
