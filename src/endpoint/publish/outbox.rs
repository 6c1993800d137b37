//! `Outbox`: what a publisher is told at its next poll, and what is counted.

use super::event::PublishEvent;
use super::policy::PeerOutcome;
use crate::id::ConnectionId;
use crate::metrics::registry::{WatchedCells, WatchedPlace};
use crate::stats::PublishCells;

/// Events that nobody was told of yet, with the counters.
#[derive(Debug)]
pub(super) struct Outbox {
    events: Vec<PublishEvent>,
    /// Each send that succeeded is told of, too.
    tell_sent: bool,
    pub(super) stats: WatchedCells<PublishCells>,
}

impl Outbox {
    pub(super) fn new(tell_sent: bool, watched: &WatchedPlace) -> Self {
        Self {
            events: Vec::new(),
            tell_sent,
            stats: WatchedCells::beside(watched),
        }
    }

    pub(super) fn push(&mut self, event: PublishEvent) {
        self.events.push(event);
    }

    /// Hands out what is there.
    pub(super) fn drain_into(&mut self, events: &mut Vec<PublishEvent>) {
        events.append(&mut self.events);
    }

    /// How a publication ended for one subscriber.
    pub(super) fn tell_peer(&mut self, key: u64, connection: ConnectionId, outcome: PeerOutcome) {
        match outcome {
            PeerOutcome::Sent => self.stats.sent.add(1),
            PeerOutcome::Dropped(_) => self.stats.dropped.add(1),
            PeerOutcome::Failed(_) => self.stats.failed.add(1),
        }
        if self.tell_sent || outcome != PeerOutcome::Sent {
            self.events.push(PublishEvent::Peer {
                key,
                connection,
                outcome,
            });
        }
    }
}
