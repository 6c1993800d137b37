//! `PeerClock`: when something of one peer's transfer moved last, and what was waited for.

use std::time::{Duration, Instant};

use crate::stream::report::{Stall, StallClock, Stalls, StreamReport};
use crate::stream::timeline::TimelineRecorder;

/// A peer that grants nothing and says nothing for so long is asked what it has.
const INQUIRE_AFTER: Duration = Duration::from_secs(1);

/// How often a peer is told that this side works, though it has no block for it.
const SIGN_OF_LIFE_EVERY: Duration = Duration::from_millis(200);

/// The times of one peer's transfer.
#[derive(Debug)]
pub(super) struct PeerClock {
    began: Instant,
    last_moved: Instant,
    /// When the peer said last that its sink works, though nothing has moved.
    peer_works: Instant,
    /// When the peer was asked last what it has.
    asked_at: Instant,
    /// Since when the source has worked and given nothing.
    source_since: Option<Instant>,
    /// When the peer was told last that this side works.
    sign_of_life_at: Instant,
    stalls: StallClock,
}

impl PeerClock {
    pub(super) fn new(timeline: Option<TimelineRecorder>, now: Instant) -> Self {
        Self {
            began: now,
            last_moved: now,
            peer_works: now,
            asked_at: now,
            source_since: None,
            sign_of_life_at: now,
            stalls: StallClock::new(timeline, now),
        }
    }

    /// Something moved, or it is not the peer that is waited for.
    pub(super) fn on_moved(&mut self, now: Instant) {
        self.last_moved = now;
    }

    /// The peer says that its sink works, though nothing has moved.
    pub(super) fn on_sign_of_life(&mut self, now: Instant) {
        self.peer_works = now;
    }

    /// For how long nothing has moved.
    pub(super) fn unmoved_for(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.last_moved)
    }

    /// For how long nothing has moved, and the peer has not said that its sink works.
    pub(super) fn silent_for(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.last_moved.max(self.peer_works))
    }

    /// Whether the peer has been silent for long enough to be asked what it has.
    pub(super) fn may_ask(&self, now: Instant) -> bool {
        let asked = now.saturating_duration_since(self.asked_at);
        self.silent_for(now) > INQUIRE_AFTER && asked > INQUIRE_AFTER
    }

    /// The peer was asked what it has.
    pub(super) fn on_asked(&mut self, now: Instant) {
        self.asked_at = now;
    }

    /// The source has given something, or is not what is waited for.
    pub(super) fn forget_source(&mut self) {
        self.source_since = None;
    }

    /// Since when the source is waited for: from now on, if it was not before.
    pub(super) fn source_since(&mut self, now: Instant) -> Instant {
        *self.source_since.get_or_insert(now)
    }

    /// Whether the peer is to be told now that this side works.
    pub(super) fn take_sign_of_life(&mut self, now: Instant) -> bool {
        let since = now.saturating_duration_since(self.sign_of_life_at);
        let is_due = since >= SIGN_OF_LIFE_EVERY;
        if is_due {
            self.sign_of_life_at = now;
        }
        is_due
    }

    /// From now on, this is waited for.
    pub(super) fn wait_for(&mut self, what: Stall, now: Instant) {
        self.stalls.turn(what, now);
    }

    /// A thread has read, which took so long.
    pub(super) fn on_read(&mut self, took: Duration, hash_time: Duration, now: Instant) {
        if let Some(timeline) = self.stalls.timeline() {
            timeline.on_read(took, hash_time, now);
        }
    }

    /// So many bytes were given to the network, for this address of the peer.
    pub(super) fn on_sent(&mut self, bytes: u64, address: usize, now: Instant) {
        if let Some(timeline) = self.stalls.timeline() {
            timeline.on_bytes(bytes, Some(address), now);
        }
    }

    /// What was waited for so far.
    pub(super) fn stalls(&self) -> Stalls {
        self.stalls.totals()
    }

    /// Writes into a report how long it took, and what it waited for.
    pub(super) fn close(&mut self, report: &mut StreamReport, now: Instant) {
        self.stalls.close(report, now);
        report.took = now - self.began;
    }
}
