//! `HubTimer`: when a hub looks at the clock, and what its sleepers are woken by.

use std::time::{Duration, Instant};

use super::Hub;
use crate::clock::Clock;
use crate::endpoint::hub::coarse_clock::CoarseClock;
use crate::endpoint::hub::control::CONTROL_RETRY;
use crate::endpoint::hub::event::HubEvent;
use crate::endpoint::link::Link;
use crate::protocol::wire::{Refusal, RefusalCode};

/// Polls between two looks at the clock while something comes in each of them.
const CLOCK_INTERVAL: u32 = 64;

/// The clock, and what the timer is set to.
pub(super) struct HubTimer {
    clock: Clock,
    coarse: CoarseClock,
    polls_without_look: u32,
    /// What it is set to; none while a deadline may have moved to an earlier time.
    armed: Option<Instant>,
    /// It is to be set anew: a deadline came or moved to an earlier time, or it ran out.
    stale: bool,
    /// When the layer above wants to be polled.
    layer: Option<Instant>,
    /// When what changes with each message was counted last.
    counted: Option<Instant>,
}

/// How often what changes with each message is counted, at most.
const COUNT_EVERY: Duration = Duration::from_millis(1);

impl HubTimer {
    pub(super) fn new(clock: Clock) -> Self {
        Self {
            coarse: CoarseClock::new(&clock),
            clock,
            polls_without_look: 0,
            armed: None,
            stale: false,
            layer: None,
            counted: None,
        }
    }

    pub(super) fn clock(&self) -> &Clock {
        &self.clock
    }

    pub(super) fn now(&self) -> Instant {
        self.clock.now()
    }

    // ---- looks at the clock ---------------------------------------------------------------------

    /// Whether a poll that has nothing else to do looks at the clock: when time has passed, or,
    /// while something comes in each poll, after some of them.
    #[inline]
    pub(super) fn wants_look(&mut self, found: usize) -> bool {
        if found == 0 {
            return self.coarse.moved(&self.clock);
        }
        if self.polls_without_look + 1 >= CLOCK_INTERVAL {
            return true;
        }
        self.polls_without_look += 1;
        false
    }

    /// Counts a poll. True: it looks at deadlines and at every connection, as each idle poll does.
    #[inline]
    pub(super) fn begin_look(&mut self, idle: bool) -> bool {
        self.polls_without_look += 1;
        let looks = idle || self.polls_without_look >= CLOCK_INTERVAL;
        if looks {
            self.polls_without_look = 0;
        }
        looks
    }

    /// Whether it is time to count what changes with each message.
    #[inline]
    fn take_count_due(&mut self, now: Instant) -> bool {
        let is_due = self.counted.is_none_or(|at| now >= at + COUNT_EVERY);
        if is_due {
            self.counted = Some(now);
        }
        is_due
    }

    /// Whether a deadline that the timer was set to has passed, or may have.
    pub(super) fn has_passed(&mut self, now: Instant) -> bool {
        let passed = self.armed.is_none_or(|armed| armed <= now);
        self.stale |= passed;
        passed
    }

    // ---- the timer ------------------------------------------------------------------------------

    /// A deadline came, or went.
    pub(super) fn disturb(&mut self) {
        self.stale = true;
    }

    /// A deadline is there now. A later one is found when the timer runs out.
    #[inline]
    pub(super) fn on_deadline(&mut self, deadline: Option<Instant>) {
        let armed = self.armed;
        self.stale |= deadline.is_some_and(|at| armed.is_none_or(|armed| at < armed));
    }

    /// A deadline may be there that is earlier than what the timer is set to.
    pub(super) fn forget(&mut self) {
        self.armed = None;
    }

    #[inline]
    pub(super) fn is_stale(&self) -> bool {
        self.stale
    }

    pub(super) fn take_stale(&mut self) -> bool {
        std::mem::take(&mut self.stale)
    }

    /// Sets the timer to the first of all deadlines.
    pub(super) fn arm(&mut self, first: Option<Instant>) {
        self.armed = first;
    }

    /// The layer above has another deadline; false: it had the same.
    pub(super) fn set_layer(&mut self, at: Option<Instant>) -> bool {
        std::mem::replace(&mut self.layer, at) != at
    }

    /// The first of all that is known here.
    pub(super) fn next(&self) -> Option<Instant> {
        self.armed.into_iter().chain(self.layer).min()
    }
}

impl<L: Link, E: HubEvent> Hub<L, E> {
    pub(super) fn on_time(&mut self, events: &mut Vec<E>) {
        let now = self.timer.now();
        if self.timer.take_count_due(now) {
            self.count_credits();
        }
        while let Some(id) = self.agenda.pop_heard() {
            if let Some(peer) = self.peers.get_mut(id) {
                peer.liveness.heard = false;
                if !self.cq.backlog.is_read() {
                    peer.machine.postpone_fence(now);
                }
                peer.look_at_fence(&mut self.link, now);
                peer.machine.tick(now);
                self.agenda.touch(id);
            }
        }
        // The timer does not know of a deadline that came since it was set.
        if !self.timer.has_passed(now) && !self.outbound.deadlines.are_due(now) {
            return;
        }
        for (id, peer) in self.peers.iter_mut() {
            if peer.next_deadline().is_some_and(|at| at <= now) {
                peer.ask_kernel(&mut self.link);
                if !self.cq.backlog.is_read() {
                    peer.machine.postpone(now);
                }
                peer.look_at_fence(&mut self.link, now);
                peer.machine.tick(now);
                peer.give_up_on_early(now);
                let limit = self.settings.liveness.lost;
                peer.give_up_on_owed(now, limit, self.cq.backlog.is_read());
                self.agenda.touch(id);
            }
        }
        for id in self.cm.take_late(now) {
            self.answer(
                id,
                Some(Refusal::new(RefusalCode::UNANSWERED, [0, 0])),
                events,
            );
        }
        self.check_deadlines(now, events);
        if now >= self.cm.next_reap {
            let timeout = self.settings.handshake_timeout;
            self.stats
                .reaped
                .add(self.link.reap_half_open(now, timeout));
            self.cm.next_reap = now + self.settings.handshake_timeout / 2;
        }
    }

    pub(super) fn arm_timer(&mut self) {
        let machines = self
            .peers
            .iter()
            .filter_map(|(_, peer)| peer.next_deadline());
        let waiting = self.cm.requests.values().map(|waiting| waiting.deadline);
        let reap = self.settings.accepts.then_some(self.cm.next_reap);
        let ended = self.fencing.next_deadline();
        let all = machines.chain(waiting).chain(reap).chain(ended);
        let first = all.chain(self.outbound.deadlines.next()).min();
        self.timer.arm(first);
        self.set_timer();
    }

    pub(super) fn set_timer(&self) {
        let line = self.outbound.pause(&self.peers);
        let retry = self.agenda.retry || self.outbound.retry;
        let pause = line.or_else(|| retry.then_some(CONTROL_RETRY));
        let retry = pause.map(|pause| self.timer.now() + pause);
        let all = [self.timer.next(), retry, self.link.next_deadline()];
        self.wait.set_deadline(all.into_iter().flatten().min());
    }
}
