//! Fences: a question whose answer says that nothing is on the way any more that the peer began
//! before. Pure: numbers and times.
//!
//! ```text
//! asker:  close a registration ─► Fence nonce ──► peer: Fenced nonce, as its next word
//!         what the peer began before is over ◄───
//! ```
//!
//! A connection brings what the peer says and does in one order, and the provider serves it in that
//! order. So the answer stands behind every operation that the peer began before it, and what it
//! begins later finds the registration closed. The nonce is random: an answer proves that the
//! question was read, and with it all that this side's provider had queued in front of it, such as
//! the bytes of a read.
//!
//! One question of each side is open at a time, so at most two of one side's
//! messages are unread. It stands for all epochs (see `AccessLedger`) that began before it was
//! asked; for a later one the next question is asked when the answer is there.
//!
//! A side's goodbye waits for the answer to its question: else that could come when this side is
//! gone already, and a provider that closes with unread messages may destroy what it sent, its
//! goodbye among it. So that this has an end, who has nothing left to say but goodbye asks nothing.
//!
//! A peer that is late holds up memory that others wait for. One that has not answered within the
//! limit ends; so does one that needs more than half of it again and again. It is given more time
//! while what it began before comes in at a good rate, and when this side itself looks too late.

use std::time::{Duration, Instant};

use super::heartbeats::SECOND_LOOK;
use super::{Action, CloseReason, Connection, State, Violation};
use crate::protocol::wire::{Control, ControlKind};

/// Messages about fences of one side that the other has not read, at most: a question, and the
/// answer to one of the other's.
#[cfg(test)]
pub(crate) const FENCE_MESSAGES_MAX: usize = 2;

/// So many late answers within [`REMEMBERED`] end a connection.
const LATE_MAX: usize = 3;

/// For how long a late answer counts.
const REMEMBERED: Duration = Duration::from_secs(600);

/// Bytes in a second at which what a peer began before a question has to come in, for it to be
/// given more time.
const GOOD_RATE: u64 = 4 << 20;

/// How long a peer may take to answer. Whole milliseconds, as each connection has one.
#[derive(Debug, Clone, Copy)]
pub(super) struct FenceLimits {
    answer_ms: u32,
    busy_ms: u32,
}

impl FenceLimits {
    /// `busy`: while what the peer began before comes in.
    pub(super) fn new(answer: Duration, busy: Duration) -> Self {
        let whole = |limit: Duration| limit.as_micros().div_ceil(1000);
        let bounded = |limit| u32::try_from(whole(limit)).unwrap_or(u32::MAX);
        Self {
            answer_ms: bounded(answer),
            busy_ms: bounded(busy),
        }
    }

    pub(super) fn answer(self) -> Duration {
        Duration::from_millis(self.answer_ms.into())
    }

    pub(super) fn busy(self) -> Duration {
        Duration::from_millis(self.busy_ms.into())
    }
}

/// Both sides' fences of one connection.
#[derive(Debug, Clone, Default)]
pub(super) struct Fences {
    /// To be asked.
    next: Option<Fence>,
    /// Asked, and not answered.
    asked: Option<Fence>,
    /// The peer's question, which waits for its answer.
    question: Option<u64>,
    /// Our last question, or answer, was handed to the endpoint, and its send has not completed.
    asking: bool,
    answering: bool,
    /// The epoch that was passed, and not told of yet.
    passed: Option<u64>,
    /// How long the question that is open has been.
    watch: Option<Watch>,
    /// When answers were late, those that count.
    late: [Option<Instant>; LATE_MAX - 1],
}

#[derive(Debug, Clone, Copy)]
struct Fence {
    epoch: u64,
    nonce: u64,
}

/// Looks at a question that is open.
#[derive(Debug, Clone, Copy)]
struct Watch {
    asked: Instant,
    due: Instant,
    next: Look,
    /// This side looked too late once: the answer may be on its way.
    again: bool,
    /// The last look, and the bytes that had come from the peer by then.
    bytes: Option<(Instant, u64)>,
}

/// What the next look at an open question says, if it is still open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Look {
    /// After a quarter of the limit: the bytes are counted from here on.
    Count,
    /// After half of it: the answer is late.
    Late,
    /// The limit has passed.
    End,
}

impl Watch {
    fn new(now: Instant, limit: Duration) -> Self {
        Self {
            asked: now,
            due: now + limit / 4,
            next: Look::Count,
            again: false,
            bytes: None,
        }
    }

    /// Whether bytes came at a good rate since the last look.
    fn is_busy(&mut self, now: Instant, bytes: Option<u64>) -> bool {
        let Some(bytes) = bytes else { return false };
        let before = self.bytes.replace((now, bytes));
        before.is_some_and(|(then, before)| {
            let time = now.saturating_duration_since(then).as_millis() as u64;
            bytes.saturating_sub(before) >= (GOOD_RATE / 1000).saturating_mul(time.max(1))
        })
    }

    /// What there is to say at this time, if anything; `bytes`: those that have come from the peer.
    fn look(&mut self, now: Instant, limits: FenceLimits, bytes: Option<u64>) -> Option<Look> {
        if now < self.due {
            return None;
        }
        let quarter = limits.answer() / 4;
        let is_late = now.saturating_duration_since(self.due) > quarter / 4;
        if is_late && !std::mem::replace(&mut self.again, true) {
            self.due = now + quarter;
            return None;
        }
        let busy = self.is_busy(now, bytes);
        if self.next != Look::Count && busy && now < self.asked + limits.busy() {
            self.due = now + quarter;
            return None;
        }
        let said = self.next;
        (self.next, self.due) = match said {
            Look::Count => (Look::Late, now + quarter),
            Look::Late | Look::End => (Look::End, now + limits.answer() / 2),
        };
        Some(said)
    }
}

impl Fences {
    // ---- asker ----------------------------------------------------------------------------------

    /// The peer is to pass an epoch, within so long; while a question is open, the next one waits.
    pub(super) fn ask(&mut self, epoch: u64, nonce: u64, now: Instant, limit: Duration) {
        if self.next.is_none() && self.asked.is_none() {
            self.watch = Some(Watch::new(now, limit));
        }
        let next = self.next.get_or_insert(Fence { epoch, nonce });
        next.epoch = next.epoch.max(epoch);
    }

    pub(super) fn on_answer(
        &mut self,
        nonce: u64,
        now: Instant,
        limit: Duration,
    ) -> Result<(), Violation> {
        let Some(asked) = self.asked.take_if(|asked| asked.nonce == nonce) else {
            return Err(Violation::OutOfTurn("an answer to no fence"));
        };
        self.passed = self.passed.max(Some(asked.epoch));
        self.watch = self.next.map(|_| Watch::new(now, limit));
        Ok(())
    }

    pub(super) fn take_passed(&mut self) -> Option<u64> {
        self.passed.take()
    }

    /// When the open question is to be looked at.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.watch.map(|watch| watch.due)
    }

    /// This side has not looked for a while: the answer may be there, unread.
    pub(super) fn postpone(&mut self, until: Instant) {
        if let Some(watch) = &mut self.watch {
            watch.due = watch.due.max(until);
        }
    }

    /// Looks at the open question: why the peer is to be ended, if it is.
    pub(super) fn look(
        &mut self,
        now: Instant,
        limits: FenceLimits,
        bytes: Option<u64>,
    ) -> Option<CloseReason> {
        let limit = limits.answer();
        match self.watch.as_mut()?.look(now, limits, bytes)? {
            Look::Count => None,
            Look::Late => {
                let times = LATE_MAX as u32;
                (!self.forgive(now)).then_some(CloseReason::FencesLate { times, limit })
            }
            Look::End => Some(CloseReason::FenceDeadline { limit }),
        }
    }

    /// An answer is late: whether that may be once more.
    fn forgive(&mut self, now: Instant) -> bool {
        let counts = |at: &Instant| now.saturating_duration_since(*at) < REMEMBERED;
        let free = self
            .late
            .iter_mut()
            .find(|at| !at.as_ref().is_some_and(counts));
        free.map(|at| *at = Some(now)).is_some()
    }

    // ---- answerer -------------------------------------------------------------------------------

    pub(super) fn on_question(&mut self, nonce: u64) -> Result<(), Violation> {
        match self.question.replace(nonce) {
            None => Ok(()),
            Some(_) => Err(Violation::OutOfTurn(
                "a fence before the last one was answered",
            )),
        }
    }

    /// What was handed to the endpoint is out.
    pub(super) fn on_sent(&mut self, kind: ControlKind) {
        match kind {
            ControlKind::FENCE => self.asking = false,
            _ => self.answering = false,
        }
    }

    // ---- both -----------------------------------------------------------------------------------

    /// Whether the peer has a question to answer.
    fn is_open(&self) -> bool {
        self.asked.is_some()
    }

    /// What is to be said; `may_ask`: this side has not said goodbye, and is not about to. Who has
    /// still answers, until the other has, too.
    pub(super) fn next(&mut self, may_ask: bool) -> Option<Control> {
        if let Some(nonce) = self.question.take_if(|_| !self.answering) {
            self.answering = true;
            return Some(Control::Fenced { nonce });
        }
        if !may_ask || self.asking || self.asked.is_some() {
            return None;
        }
        self.asked = Some(self.next.take()?);
        self.asking = true;
        self.asked
            .map(|asked| Control::Fence { nonce: asked.nonce })
    }
}

impl Connection {
    pub(super) fn fences(&mut self) -> &mut Fences {
        self.fences.get_or_insert_default()
    }

    pub(super) fn on_fence(&mut self, nonce: u64) {
        let said = [
            "a fence before the connection was established",
            "a fence after its goodbye",
        ];
        if !self.takes(ControlKind::FENCE, true, said) {
            return;
        }
        if let Err(violation) = self.fences().on_question(nonce) {
            self.violate(violation);
        }
    }

    /// Also after its goodbye: until this side says its own, it answers.
    pub(super) fn on_fenced(&mut self, nonce: u64, now: Instant) {
        self.on_arrival("a fence before the connection was established");
        let limit = self.local.fences.answer();
        if self.state != State::Closed
            && let Err(violation) = self.fences().on_answer(nonce, now, limit)
        {
            self.violate(violation);
        }
    }

    /// The peer is asked to pass an epoch: what it begins from now on is not meant. `nonce` is
    /// random. [`Action::FencePassed`] is the answer, or the connection ends.
    pub(crate) fn fence(&mut self, epoch: u64, nonce: u64, now: Instant) {
        if self.state != State::Closed {
            let limit = self.local.fences.answer();
            self.fences().ask(epoch, nonce, now, limit);
        }
    }

    pub(super) fn next_fence(&mut self) -> Option<Action> {
        let may_ask = !self.goodbye.is_said() && !self.is_to_say_goodbye();
        let transmit = self.transmit;
        let fences = self.fences.as_mut()?;
        if let Some(epoch) = fences.take_passed() {
            return Some(Action::FencePassed { epoch });
        }
        let control = transmit.then(|| fences.next(may_ask))??;
        Some(self.control(&control))
    }

    /// Whether a question of this side is not answered yet.
    pub(super) fn has_open_fence(&self) -> bool {
        self.fences.as_ref().is_some_and(|fences| fences.is_open())
    }

    /// Whether the next look at the peer's fence is due.
    pub(crate) fn is_fence_due(&self, now: Instant) -> bool {
        self.fence_deadline().is_some_and(|at| at <= now)
    }

    /// The answer may lie in a queue that is behind.
    pub(crate) fn postpone_fence(&mut self, now: Instant) {
        if let Some(fences) = &mut self.fences {
            fences.postpone(now + SECOND_LOOK);
        }
    }

    /// Looks at the peer's fence, which is due; `bytes`: those that have come from the peer by now,
    /// where somebody counts them.
    pub(crate) fn look_at_fence(&mut self, now: Instant, bytes: Option<u64>) {
        let limits = self.local.fences;
        if self.is_fence_due(now)
            && let Some(reason) = self.fences().look(now, limits, bytes)
        {
            self.end(reason);
        }
    }

    /// Who waits for the goodbye waits for that.
    pub(super) fn fence_deadline(&self) -> Option<Instant> {
        let asks = self.transmit && !self.goodbye.is_said();
        self.fences.as_ref().filter(|_| asks)?.deadline()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(9);

    #[derive(Default)]
    struct Side {
        fences: Fences,
        incoming: VecDeque<Control>,
        /// Epochs that were begun, and of these what it has passed.
        epoch: u64,
        passed: u64,
        nonces: u64,
    }

    fn step(sides: &mut [Side; 2], at: usize, what: u8, now: Instant) {
        let other = 1 - at;
        match what {
            0 => {
                let side = &mut sides[at];
                side.epoch += 1;
                side.nonces += 1;
                side.fences.ask(side.epoch, side.nonces, now, LIMIT);
            }
            1 => {
                if let Some(control) = sides[at].fences.next(true) {
                    sides[other].incoming.push_back(control);
                    let unread = sides[other].incoming.len();
                    assert!(unread <= FENCE_MESSAGES_MAX, "{unread} messages unread");
                }
            }
            2 => {
                let side = &mut sides[at];
                let taken = match side.incoming.pop_front() {
                    Some(Control::Fence { nonce }) => side.fences.on_question(nonce),
                    Some(Control::Fenced { nonce }) => side.fences.on_answer(nonce, now, LIMIT),
                    _ => Ok(()),
                };
                taken.expect("two honest sides");
            }
            _ => {
                let side = &mut sides[at];
                if let Some(passed) = side.fences.take_passed() {
                    assert!(side.passed < passed && passed <= side.epoch);
                    side.passed = passed;
                }
                side.fences.on_sent(ControlKind::FENCE);
                side.fences.on_sent(ControlKind::FENCED);
            }
        }
    }

    proptest! {
        /// Whatever the order, each epoch is passed in the end, and few messages are under way.
        #[test]
        fn every_epoch_is_passed_in_the_end(
            steps in prop::collection::vec((0_usize..2, 0_u8..4), 0..300),
        ) {
            let now = Instant::now();
            let mut sides = [Side::default(), Side::default()];
            for (at, what) in steps {
                step(&mut sides, at, what, now);
            }
            for _ in 0..10 {
                for what in [1, 2, 3] {
                    step(&mut sides, 0, what, now);
                    step(&mut sides, 1, what, now);
                }
            }
            for side in &sides {
                prop_assert_eq!(side.passed, side.epoch);
                prop_assert_eq!(side.fences.deadline(), None, "nothing is open");
            }
        }
    }

    #[test]
    fn a_question_stands_for_what_began_before_it_and_no_more() {
        let now = Instant::now();
        let mut fences = Fences::default();
        fences.ask(1, 11, now, LIMIT);
        fences.ask(2, 12, now, LIMIT);
        assert_eq!(fences.next(false), None, "it has said goodbye");
        assert_eq!(fences.next(true), Some(Control::Fence { nonce: 11 }));
        fences.ask(3, 13, now, LIMIT);
        assert_eq!(fences.next(true), None, "one at a time");
        fences.on_answer(11, now, LIMIT).unwrap();
        assert_eq!(fences.take_passed(), Some(2));
        assert_eq!(fences.next(true), None, "its buffer is in use");
        fences.on_sent(ControlKind::FENCE);
        assert_eq!(fences.next(true), Some(Control::Fence { nonce: 13 }));
        assert_eq!(fences.take_passed(), None);
    }

    #[test]
    fn what_no_honest_peer_says_is_a_violation() {
        let now = Instant::now();
        let mut fences = Fences::default();
        assert!(
            fences.on_answer(1, now, LIMIT).is_err(),
            "nothing was asked"
        );
        fences.ask(1, 77, now, LIMIT);
        assert!(fences.on_answer(77, now, LIMIT).is_err(), "not asked yet");
        assert_eq!(fences.next(true), Some(Control::Fence { nonce: 77 }));
        assert!(fences.on_answer(78, now, LIMIT).is_err(), "a guess");
        fences.on_answer(77, now, LIMIT).unwrap();
        assert!(fences.on_answer(77, now, LIMIT).is_err(), "twice");
        fences.on_question(5).unwrap();
        assert!(fences.on_question(6).is_err(), "before the answer");
    }

    #[test]
    fn one_answer_is_under_way_at_a_time() {
        let mut fences = Fences::default();
        fences.on_question(5).unwrap();
        assert_eq!(fences.next(false), Some(Control::Fenced { nonce: 5 }));
        fences.on_question(6).unwrap();
        assert_eq!(fences.next(false), None);
        assert!(fences.on_question(7).is_err());
        fences.on_sent(ControlKind::FENCED);
        assert_eq!(fences.next(false), Some(Control::Fenced { nonce: 7 }));
    }

    fn limits() -> FenceLimits {
        FenceLimits::new(LIMIT, Duration::from_secs(60))
    }

    /// Looks at the question that is open, each time that one is due, until this time.
    fn look_until(fences: &mut Fences, until: Instant) -> Option<CloseReason> {
        while let Some(due) = fences.deadline().filter(|due| *due <= until) {
            let said = fences.look(due, limits(), None);
            if said.is_some() {
                return said;
            }
        }
        None
    }

    #[test]
    fn the_deadline_is_that_of_the_question_that_is_open() {
        let now = Instant::now();
        let later = now + Duration::from_secs(5);
        let mut fences = Fences::default();
        assert_eq!(fences.deadline(), None);
        fences.ask(1, 1, now, LIMIT);
        fences.next(true);
        fences.ask(2, 2, later, LIMIT);
        assert_eq!(fences.deadline(), Some(now + LIMIT / 4));
        fences.on_answer(1, later, LIMIT).unwrap();
        assert_eq!(fences.deadline(), Some(later + LIMIT / 4));
        fences.on_sent(ControlKind::FENCE);
        fences.next(true);
        fences.postpone(now + Duration::from_secs(60));
        assert_eq!(fences.deadline(), Some(now + Duration::from_secs(60)));
        fences.on_answer(2, later, LIMIT).unwrap();
        assert_eq!(fences.deadline(), None);
    }

    #[test]
    fn who_does_not_answer_ends_at_the_limit() {
        let now = Instant::now();
        let mut fences = Fences::default();
        fences.ask(1, 1, now, LIMIT);
        let before = now + LIMIT - Duration::from_millis(1);
        assert_eq!(look_until(&mut fences, before), None);
        let reason = CloseReason::FenceDeadline { limit: LIMIT };
        assert_eq!(look_until(&mut fences, now + LIMIT), Some(reason));
    }

    /// Answers a question so long after it was asked.
    fn answer(fences: &mut Fences, now: Instant, took: Duration) -> Option<CloseReason> {
        fences.ask(1, 1, now, LIMIT);
        fences.next(true);
        let said = look_until(fences, now + took);
        fences.on_answer(1, now + took, LIMIT).unwrap();
        fences.on_sent(ControlKind::FENCE);
        said
    }

    #[test]
    fn who_is_late_three_times_ends_and_one_who_was_late_long_ago_does_not() {
        let begin = Instant::now();
        let late = LIMIT * 9 / 10;
        let times = 3;
        let reason = CloseReason::FencesLate {
            times,
            limit: LIMIT,
        };
        let mut fences = Fences::default();
        assert_eq!(answer(&mut fences, begin, late), None);
        assert_eq!(answer(&mut fences, begin + LIMIT, late), None);
        // In time, however often.
        for _ in 0..100 {
            assert_eq!(answer(&mut fences, begin + LIMIT, LIMIT * 2 / 5), None);
        }
        let mut forgiven = fences.clone();
        assert_eq!(answer(&mut fences, begin + LIMIT * 2, late), Some(reason));
        assert_eq!(answer(&mut forgiven, begin + REMEMBERED, late), None);
        let mut soon = forgiven.clone();
        assert_eq!(
            answer(&mut soon, begin + REMEMBERED + LIMIT / 10, late),
            Some(reason)
        );
        let later = begin + REMEMBERED + LIMIT * 2;
        assert_eq!(answer(&mut forgiven, later, late), None);
    }

    #[test]
    fn what_comes_in_gives_time_up_to_a_limit() {
        let now = Instant::now();
        let mut fences = Fences::default();
        fences.ask(1, 1, now, LIMIT);
        let mut bytes = 0;
        let said = loop {
            let due = fences.deadline().expect("one is open");
            // Slower than that from the half of the last time on.
            bytes += GOOD_RATE * LIMIT.as_secs();
            if let Some(said) = fences.look(due, limits(), Some(bytes)) {
                break (said, due);
            }
        };
        assert!(said.1 >= now + limits().busy(), "{:?}", said.1 - now);
        assert!(said.1 <= now + limits().busy() + 2 * LIMIT);
        assert_eq!(said.0, CloseReason::FenceDeadline { limit: LIMIT });
        // A trickle is none.
        fences = Fences::default();
        fences.ask(1, 1, now, LIMIT);
        for look in [LIMIT / 4, LIMIT / 2, LIMIT] {
            let said = fences.look(now + look, limits(), Some(look.as_millis() as u64));
            assert_eq!(said.is_some(), look == LIMIT, "{look:?}");
        }
    }

    /// The machine stood still, or the application did not poll.
    #[test]
    fn who_looks_too_late_looks_again_once() {
        let now = Instant::now();
        let mut fences = Fences::default();
        fences.ask(1, 1, now, LIMIT);
        let mut at = now + LIMIT * 3;
        assert_eq!(fences.look(at, limits(), None), None);
        assert_eq!(fences.deadline(), Some(at + LIMIT / 4));
        let mut looks = 0;
        while fences.look(at, limits(), None).is_none() {
            at += LIMIT * 3;
            looks += 1;
        }
        assert_eq!(looks, 3, "what is counted, is late, and is over");
    }
}
