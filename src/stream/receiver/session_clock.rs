//! `SessionClock`: when something of a session happened last, and what it waited for.

use std::time::{Duration, Instant};

use crate::stream::incoming::IncomingStream;
use crate::stream::report::{Stall, StallClock, Stalls, StreamReport};
use crate::stream::timeline::TimelineRecorder;

/// How often a sender is told that the sink works, though there is nothing new to say.
const SIGN_OF_LIFE_EVERY: Duration = Duration::from_millis(200);

/// How often a sender is told what is written.
const PROGRESS_EVERY: Duration = Duration::from_millis(100);

/// The times of one session.
#[derive(Debug)]
pub(super) struct SessionClock {
    began: Instant,
    last_moved: Instant,
    /// Since when its sender has paused it, and no block has come.
    paused_since: Option<Instant>,
    /// When the sender was told last what is written.
    progress_at: Instant,
    /// When the sender was told last that the sink works.
    sign_of_life_at: Instant,
    stalls: StallClock,
}

impl SessionClock {
    pub(super) fn new(timeline: Option<TimelineRecorder>, now: Instant) -> Self {
        Self {
            began: now,
            last_moved: now,
            paused_since: None,
            progress_at: now,
            sign_of_life_at: now,
            stalls: StallClock::new(timeline, now),
        }
    }

    /// Something came, or was done.
    pub(super) fn on_moved(&mut self, now: Instant) {
        self.last_moved = self.last_moved.max(now);
    }

    /// For how long nothing has come, and nothing was done.
    pub(super) fn silent_for(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.last_moved)
    }

    /// The sender says that it pauses, or goes on. Going on for a moment, and sending nothing, is
    /// no end of a pause.
    pub(super) fn on_pause(&mut self, now: Instant) {
        self.paused_since.get_or_insert(now);
    }

    /// A block came; the sender may have paused behind it.
    pub(super) fn on_block(&mut self, is_paused: bool, now: Instant) {
        self.paused_since = is_paused.then_some(now);
    }

    /// For how long the sender has paused it, and no block has come.
    pub(super) fn paused_for(&self, now: Instant) -> Duration {
        let since = self.paused_since;
        since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }

    /// Has the sender told from time to time that the sink works, and what is written.
    pub(super) fn remind(&mut self, incoming: &mut IncomingStream, sink_works: bool, now: Instant) {
        if sink_works && take(&mut self.sign_of_life_at, SIGN_OF_LIFE_EVERY, now) {
            incoming.want_sign_of_life();
        }
        if take(&mut self.progress_at, PROGRESS_EVERY, now) {
            incoming.want_progress();
        }
    }

    /// From now on, this is waited for.
    pub(super) fn wait_for(&mut self, what: Stall, now: Instant) {
        self.stalls.turn(what, now);
    }

    /// A thread has written so many bytes, which took so long.
    pub(super) fn on_written(
        &mut self,
        bytes: u64,
        took: Duration,
        hash_time: Duration,
        now: Instant,
    ) {
        if let Some(timeline) = self.stalls.timeline() {
            timeline.on_written(took, hash_time, now);
            timeline.on_bytes(bytes, None, now);
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

/// Whether so much time has gone by; then it begins anew.
fn take(last: &mut Instant, every: Duration, now: Instant) -> bool {
    let is_due = now.saturating_duration_since(*last) >= every;
    if is_due {
        *last = now;
    }
    is_due
}
