//! Signs of life: what a connection makes of the peer's silence (`SilenceTimer`), and the
//! heartbeats by which it is asked.

use std::time::{Duration, Instant};

use super::{Action, CloseReason, Connection, Form, State, Violation};
use crate::protocol::liveness::LivenessVerdict;
use crate::protocol::wire::{self, Control, Counts};

/// A question and an answer.
const HEARTBEATS_UNDER_WAY_MAX: u8 = 2;

/// The time between two questions of a peer, on average. A third of the shortest limit of silence
/// (10 ms) lies between those of a peer of ours, since each of them was answered.
const HEARTBEAT_PAUSE: Duration = Duration::from_millis(1);

/// Questions without a pause, at most: a side that was held up may read several at once.
const HEARTBEATS_AT_ONCE: u32 = 64;

/// How much later a fence is judged where this side has not looked for a while.
pub(super) const SECOND_LOOK: Duration = Duration::from_millis(100);

/// Heartbeats: one question of each side at a time, until it is answered.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Heartbeats {
    /// Questions of this side so far; the last one has this number.
    asked: u64,
    unanswered: bool,
    /// One is to be asked as soon as there is none unanswered.
    pub(super) ask: bool,
    /// Questions of the peer so far.
    pub(super) heard: u64,
    /// The last of them waits for its answer.
    answer: bool,
    /// Handed to the endpoint, and its send has not completed.
    under_way: u8,
    /// The peer's questions so far, each with its pause, last until then.
    paused_until: Option<Instant>,
}

impl Heartbeats {
    /// The peer's heartbeat.
    ///
    /// # Errors
    ///
    /// What is wrong with it, in words.
    fn on_received(&mut self, number: u64, answer: bool, now: Instant) -> Result<(), &'static str> {
        if answer {
            let due = std::mem::take(&mut self.unanswered) && number == self.asked;
            return match due {
                true => Ok(()),
                false => Err("an answer to a heartbeat that was not sent"),
            };
        }
        self.heard += 1;
        let early = std::mem::replace(&mut self.answer, true);
        if early || number != self.heard {
            Err("a heartbeat before the last one was answered")
        } else if !self.is_seldom(now) {
            Err("heartbeats without a pause")
        } else {
            Ok(())
        }
    }

    /// Whether the peer asks as seldom as silence makes anybody ask, a few that were held up and
    /// come at once apart.
    fn is_seldom(&mut self, now: Instant) -> bool {
        let since = self.paused_until.map_or(now, |until| until.max(now));
        let until = since + HEARTBEAT_PAUSE;
        self.paused_until = Some(until);
        until <= now + HEARTBEAT_PAUSE * HEARTBEATS_AT_ONCE
    }

    /// An answer, or a question when the last one was answered.
    fn next(&mut self) -> Option<Control> {
        if self.under_way == HEARTBEATS_UNDER_WAY_MAX {
            return None;
        }
        let heartbeat = if std::mem::take(&mut self.answer) {
            Control::Heartbeat {
                number: self.heard,
                answer: true,
            }
        } else if self.ask && !self.unanswered {
            (self.ask, self.unanswered) = (false, true);
            self.asked += 1;
            Control::Heartbeat {
                number: self.asked,
                answer: false,
            }
        } else {
            return None;
        };
        self.under_way += 1;
        Some(heartbeat)
    }

    /// The send of one completed.
    pub(super) fn on_sent(&mut self) {
        debug_assert!(self.under_way > 0, "more completions than heartbeats");
        self.under_way = self.under_way.saturating_sub(1);
    }
}

impl Connection {
    pub(super) fn on_heartbeat(&mut self, number: u64, answer: bool, now: Instant) {
        self.on_arrival("a heartbeat before the connection was established");
        if self.state == State::Closed {
            return;
        }
        let taken = if self.local.features & wire::FEATURE_HEARTBEAT == 0 {
            Err("a heartbeat that nobody offered to answer")
        } else if self.goodbye.is_heard() {
            Err("a heartbeat after its goodbye")
        } else {
            self.heartbeats.on_received(number, answer, now)
        };
        if let Err(what) = taken {
            self.violate(Violation::OutOfTurn(what));
        }
    }

    /// The next heartbeat, if one is due.
    pub(super) fn next_heartbeat(&mut self) -> Option<Action> {
        if self.goodbye.is_heard() {
            return None;
        }
        let heartbeat = self.heartbeats.next()?;
        Some(self.beat(&heartbeat))
    }

    /// Whether silence of the peer means anything now: nobody has said goodbye. Whatever the peer's
    /// hello offers.
    pub(super) fn listens(&self) -> bool {
        self.transmit && !self.goodbye.is_said() && !self.goodbye.is_heard()
    }

    /// Whether the peer can be asked for a sign of life; where it can't, only what it says by
    /// itself counts.
    fn answers_heartbeats(&self) -> bool {
        let features = self.peer.map_or(0, |peer| peer.features) & self.local.features;
        features & wire::FEATURE_HEARTBEAT != 0
    }

    pub(super) fn judge_silence(&mut self, now: Instant) {
        if !self.listens() {
            return;
        }
        while let Some(verdict) = self.silence.as_mut().and_then(|silence| silence.look(now)) {
            match verdict {
                LivenessVerdict::Ask => self.heartbeats.ask = self.answers_heartbeats(),
                LivenessVerdict::Unresponsive => self.pending.unresponsive = true,
                LivenessVerdict::Lost { silence } => {
                    return self.end(CloseReason::PeerSilent { silence });
                }
            }
        }
    }

    /// Something came from the peer; when, the next [`Connection::tick`] says.
    #[inline]
    pub(super) fn hear(&mut self) {
        if let Some(silence) = &mut self.silence
            && silence.hear()
        {
            self.pending.responsive = true;
        }
        // What is still to be asked has its answer.
        self.heartbeats.ask = false;
    }

    /// Since when nothing was heard from the peer, where that means something.
    pub(crate) fn silent_since(&self) -> Option<Instant> {
        self.silence
            .filter(|_| self.listens())
            .map(|silence| silence.since())
    }

    /// What the peer said may lie in a queue that is behind: its silence is not judged yet.
    pub(crate) fn postpone(&mut self, now: Instant) {
        if let Some(silence) = &mut self.silence {
            silence.postpone(now);
        }
        self.postpone_fence(now);
    }

    /// Bytes came from the peer that are no whole message yet.
    pub(crate) fn on_bytes(&mut self) {
        self.hear();
    }

    /// In the RDM form it says what was sent and granted, too: a provider that makes its own
    /// connection anew loses messages, and nobody is told.
    fn beat(&mut self, heartbeat: &Control) -> Action {
        let immediates = self.windows.as_ref().map_or(0, |it| it.immediates());
        let counts = self.data.counts(immediates);
        match (self.control(heartbeat), self.form) {
            (Action::SendControl { cq_data, body }, Form::Rdm) => Action::SendControl {
                cq_data,
                body: body.with_counts(counts),
            },
            (beat, _) => beat,
        }
    }

    /// A grant that was lost is said again beside a heartbeat; what is not above the last one is
    /// none.
    pub(super) fn on_counts(&mut self, body: &[u8]) {
        let counts = Counts::parse(body).filter(|_| self.form == Form::Rdm);
        if let Some(Counts { granted, .. }) = counts
            && self.state != State::Closed
            && granted > self.data.send.granted()
            && let Err(error) = self.data.send.grant(granted)
        {
            self.violate(error);
        }
    }

    /// A message of the peer's was sent, it says, and has not come although it has had its time.
    pub(crate) fn on_message_lost(&mut self, waited: Duration) {
        if self.listens() {
            self.end(CloseReason::MessageLost { waited });
        }
    }
}
