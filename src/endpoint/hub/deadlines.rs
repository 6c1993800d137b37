//! `Deadlines`: when what is in flight is late.

use std::time::{Duration, Instant};

use crate::clock::Clock;
use crate::endpoint::event::DeadlinePolicy;
use crate::endpoint::hub::coarse_clock::CoarseClock;
use crate::endpoint::hub::posted::TimedOp;
use crate::id::ConnectionId;

/// Deadlines that are shorter than this count from the moment of the post; others from up to a tick
/// of the kernel's timer (1 to 10 ms) before, which saves a look at the clock for each.
const PRECISE: Duration = Duration::from_secs(1);

/// How long something may be in flight, and when the next look at all of it is due.
#[derive(Debug)]
pub(crate) struct Deadlines {
    limit: Option<Duration>,
    pub(crate) policy: DeadlinePolicy,
    /// Nothing in flight is older than `limit` before this. It stays when nothing is in flight,
    /// until it has passed.
    next: Option<Instant>,
    /// As of the last look at the clock.
    now: Instant,
    coarse: CoarseClock,
    /// `next` was set, and the timer does not know.
    moved: bool,
}

/// One that is late, in the order in which they are told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LateOp {
    pub(crate) connection: ConnectionId,
    posted: Instant,
    sequence: u64,
    pub(crate) key: u64,
}

impl Deadlines {
    pub(crate) fn new(limit: Option<Duration>, policy: DeadlinePolicy, clock: &Clock) -> Self {
        Self {
            limit,
            policy,
            next: None,
            now: clock.now(),
            coarse: CoarseClock::new(clock),
            moved: false,
        }
    }

    /// How long something may take.
    pub(crate) fn limit(&self) -> Option<Duration> {
        self.limit
    }

    /// The time that a post of now counts its deadline from, where there is one.
    #[inline]
    pub(crate) fn stamp(&mut self, clock: &Clock) -> Option<Instant> {
        let limit = self.limit?;
        // The last look may be long ago, where the application polls seldom. A tick more or less
        // matters to short deadlines only.
        if limit < PRECISE || self.coarse.moved(clock) {
            self.now = clock.now();
        }
        if self.next.is_none() {
            self.next = Some(self.now + limit);
            self.moved = true;
        }
        Some(self.now)
    }

    /// When something may be late.
    #[inline]
    pub(crate) fn next(&self) -> Option<Instant> {
        self.next
    }

    /// Whether the timer has to be set.
    #[inline]
    pub(crate) fn has_moved(&self) -> bool {
        self.moved
    }

    /// The timer is set.
    pub(crate) fn take_moved(&mut self) -> bool {
        std::mem::take(&mut self.moved)
    }

    /// Begins to look at each of those in flight, as the oldest may be late.
    pub(crate) fn scan(&self, now: Instant) -> DeadlineScan {
        DeadlineScan {
            limit: self.limit,
            now,
            late: Vec::new(),
            earliest: None,
        }
    }

    /// All were looked at: those that are late, once each.
    pub(crate) fn end_scan(&mut self, scan: DeadlineScan) -> Vec<LateOp> {
        let mut late = scan.late;
        // With none in flight that is not late yet, the next post sets the time.
        self.next = scan.earliest;
        self.moved = true;
        late.sort_unstable();
        late
    }

    /// Whether it is time to look.
    pub(crate) fn are_due(&self, now: Instant) -> bool {
        self.next.is_some_and(|next| next <= now)
    }
}

/// A look at all that is in flight.
pub(crate) struct DeadlineScan {
    limit: Option<Duration>,
    now: Instant,
    late: Vec<LateOp>,
    earliest: Option<Instant>,
}

impl DeadlineScan {
    pub(crate) fn look(&mut self, op: TimedOp<'_>) {
        let (Some(limit), Some(posted)) = (self.limit, *op.posted) else {
            return;
        };
        let due = posted + limit;
        if self.now < due {
            self.earliest = Some(self.earliest.map_or(due, |at| at.min(due)));
            return;
        }
        *op.posted = None;
        let others = op.others.iter().map(|message| message.key);
        let keys = [op.key].into_iter().chain(others);
        self.late.extend(keys.map(|key| LateOp {
            connection: op.connection,
            posted,
            sequence: op.sequence,
            key,
        }));
    }
}
