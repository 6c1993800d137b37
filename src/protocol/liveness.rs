//! `SilenceTimer`: for how long a peer has said nothing, and what is to be said of it. Pure.
//!
//! ```text
//!  heard ──a third of the shorter time──► ask ──t1──► Unresponsive ──t2──► Lost
//!    ▲                                                     │
//!    └───────────── anything from the peer: Responsive ────┘
//! ```
//!
//! Hearing costs no look at the clock: it sets a flag, and the next look takes its own time for the
//! time of hearing. So a verdict may come late by the time between two looks, and never early.
//!
//! SilenceTimer counts against a peer only while this side listens. A verdict that came due while
//! nobody looked waits for a second look a moment later, and until that queue was read
//! ([`Backlog`](crate::endpoint::link::backlog::Backlog)): what the peer said meanwhile lies in it.

use std::time::{Duration, Instant};

/// Longest moment between the two looks of a verdict that nobody was there for.
const SECOND_LOOK_MAX: Duration = Duration::from_millis(100);

/// How long a peer may say nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LivenessTimeouts {
    /// Then it is reported as unresponsive; nothing else happens.
    pub(crate) unresponsive: Option<Duration>,
    /// Then it is lost.
    pub(crate) lost: Option<Duration>,
}

impl LivenessTimeouts {
    /// SilenceTimer means nothing.
    #[cfg(test)]
    pub(crate) const ENDLESS: Self = Self {
        unresponsive: None,
        lost: None,
    };

    fn shorter(&self) -> Option<Duration> {
        match (self.unresponsive, self.lost) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// SilenceTimer after which the peer is asked for a sign of life.
    fn ask_after(&self) -> Duration {
        self.shorter().unwrap_or_default() / 3
    }

    /// Between the two looks of a late verdict.
    fn moment(&self) -> Duration {
        (self.shorter().unwrap_or_default() / 4).min(SECOND_LOOK_MAX)
    }
}

/// What silence says of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LivenessVerdict {
    /// Nothing yet, but it should be asked for a sign of life.
    Ask,
    /// It may be stopped, or busy with something else.
    Unresponsive,
    /// It has been silent for too long.
    Lost {
        /// For how long at least: the setting.
        silence: Duration,
    },
}

/// The silence of one peer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SilenceTimer {
    liveness: LivenessTimeouts,
    /// Something came since the last look.
    heard: bool,
    /// Nothing was heard since then.
    since: Instant,
    /// The last look.
    looked: Instant,
    asked: bool,
    unresponsive: bool,
    /// A verdict that came due while nobody looked is not given before.
    second_look: Option<Instant>,
}

impl SilenceTimer {
    /// Begins to listen; none where silence means nothing.
    pub(crate) fn new(liveness: LivenessTimeouts, now: Instant) -> Option<Self> {
        liveness.shorter()?;
        Some(Self {
            liveness,
            heard: true,
            since: now,
            looked: now,
            asked: false,
            unresponsive: false,
            second_look: None,
        })
    }

    /// The peer said something. True when it had been unresponsive.
    #[inline]
    pub(crate) fn hear(&mut self) -> bool {
        self.heard = true;
        std::mem::take(&mut self.unresponsive)
    }

    /// A look at the clock: what is to be said of the peer, if anything. At most one verdict a
    /// look; look again.
    pub(crate) fn look(&mut self, now: Instant) -> Option<LivenessVerdict> {
        let away = now.saturating_duration_since(self.looked) > self.liveness.moment();
        self.looked = now;
        if std::mem::take(&mut self.heard) {
            self.since = now;
            self.asked = false;
            self.second_look = None;
            return None;
        }
        let due = self.next_verdict().filter(|(due, _)| now >= *due);
        if away && due.is_some() && self.second_look.is_none() {
            self.second_look = Some(now + self.liveness.moment());
        }
        if !self.asked && now >= self.since + self.liveness.ask_after() {
            self.asked = true;
            return Some(LivenessVerdict::Ask);
        }
        let (_, verdict) = due?;
        if self.second_look.is_some_and(|at| now < at) {
            return None;
        }
        self.second_look = None;
        self.unresponsive |= verdict == LivenessVerdict::Unresponsive;
        Some(verdict)
    }

    /// What the peer said may lie in a queue that was not read so far yet: no verdict for a moment.
    pub(crate) fn postpone(&mut self, now: Instant) {
        if self.next_verdict().is_some_and(|(due, _)| now >= due) {
            self.second_look = Some(now + self.liveness.moment());
        }
    }

    /// When the next look has something to say, at the earliest.
    pub(crate) fn next_look(&self) -> Option<Instant> {
        if self.heard {
            return Some(self.looked + self.liveness.ask_after());
        }
        if !self.asked {
            return Some(self.since + self.liveness.ask_after());
        }
        if self.second_look.is_some() {
            return self.second_look;
        }
        let (due, _) = self.next_verdict()?;
        // A look shortly before shows that somebody listens; then the verdict is on time.
        let before = due.checked_sub(self.liveness.moment()).unwrap_or(due);
        Some(if self.looked < before { before } else { due })
    }

    /// Nothing was heard since then, as far as the last look knows.
    pub(crate) fn since(&self) -> Instant {
        self.since
    }

    fn next_verdict(&self) -> Option<(Instant, LivenessVerdict)> {
        match self.liveness {
            LivenessTimeouts {
                unresponsive: Some(after),
                ..
            } if !self.unresponsive => Some((self.since + after, LivenessVerdict::Unresponsive)),
            LivenessTimeouts {
                lost: Some(silence),
                ..
            } => Some((self.since + silence, LivenessVerdict::Lost { silence })),
            _ => None,
        }
    }
}

/// Bytes that the kernel counts on a connection, compared within one silence: a message that takes
/// long to arrive is life.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct KernelBytes {
    /// Since when there was silence, and the count at the first look in it.
    seen: Option<(Instant, u64)>,
}

impl KernelBytes {
    /// True when bytes came since the last look in the same silence. The first look in each only
    /// takes the count.
    pub(crate) fn came(&mut self, since: Instant, count: u64) -> bool {
        let before = self.seen.replace((since, count));
        before.is_some_and(|(same, before)| same == since && before != count)
    }
}

#[cfg(test)]
#[path = "tests/liveness.rs"]
mod tests;
