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

use std::time::{Duration, Instant};

use super::{Action, Connection, State, Violation};
use crate::protocol::wire::{Control, ControlKind};

/// Messages about fences of one side that the other has not read, at most: a question, and the
/// answer to one of the other's.
#[cfg(test)]
pub(crate) const FENCE_MESSAGES_MAX: usize = 2;

/// Both sides' fences of one connection.
#[derive(Debug, Clone, Copy, Default)]
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
    /// Until when the peer may take its time.
    deadline: Option<Instant>,
}

#[derive(Debug, Clone, Copy)]
struct Fence {
    epoch: u64,
    nonce: u64,
}

impl Fences {
    // ---- asker ----------------------------------------------------------------------------------

    /// The peer is to pass an epoch, within so long; while a question is open, the next one waits.
    pub(super) fn ask(&mut self, epoch: u64, nonce: u64, now: Instant, limit: Duration) {
        if self.next.is_none() && self.asked.is_none() {
            self.deadline = now.checked_add(limit);
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
        self.deadline = self.next.and_then(|_| now.checked_add(limit));
        Ok(())
    }

    pub(super) fn take_passed(&mut self) -> Option<u64> {
        self.passed.take()
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// This side has not looked for a while: the answer may be there, unread.
    pub(super) fn postpone(&mut self, until: Instant) {
        self.deadline = self.deadline.map(|at| at.max(until));
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
        let limit = self.local.fence_limit;
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
            let limit = self.local.fence_limit;
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

    #[test]
    fn the_deadline_is_that_of_the_question_that_is_open() {
        let now = Instant::now();
        let later = now + Duration::from_secs(5);
        let mut fences = Fences::default();
        assert_eq!(fences.deadline(), None);
        fences.ask(1, 1, now, LIMIT);
        fences.next(true);
        fences.ask(2, 2, later, LIMIT);
        assert_eq!(fences.deadline(), Some(now + LIMIT));
        fences.on_answer(1, later, LIMIT).unwrap();
        assert_eq!(fences.deadline(), Some(later + LIMIT));
        fences.on_sent(ControlKind::FENCE);
        fences.next(true);
        fences.postpone(now + Duration::from_secs(60));
        assert_eq!(fences.deadline(), Some(now + Duration::from_secs(60)));
        fences.on_answer(2, later, LIMIT).unwrap();
        assert_eq!(fences.deadline(), None);
    }
}
