//! Goodbyes: how both sides end a connection politely. Each says its own once, behind all that it
//! sent.

use std::time::Instant;

use super::{CloseReason, Connection, State, Violation};
use crate::protocol::wire::{ByeReason, Control};

/// The goodbyes of both sides.
#[derive(Debug, Clone)]
pub(super) struct Goodbye {
    /// What this side's will say.
    reason: ByeReason,
    /// It was handed to the endpoint, and its send completed.
    sent: bool,
    done: bool,
    /// Boxed: a listener has thousands of connections, and few of them are closing.
    peer: Option<Box<PeerBye>>,
    /// When the connection ends in any case.
    deadline: Option<Instant>,
    /// That came from the application.
    own_deadline: bool,
    /// Nobody waits for it any more.
    over: bool,
    /// Long messages that came are not handed out yet: no goodbye before.
    held: bool,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct PeerBye {
    pub(super) last_sequence: u64,
    pub(super) reason: ByeReason,
}

impl Goodbye {
    pub(super) const NONE: Self = Self {
        reason: ByeReason::DONE,
        sent: false,
        done: false,
        peer: None,
        deadline: None,
        own_deadline: false,
        over: false,
        held: false,
    };

    /// Whether this side has said it.
    #[inline]
    pub(super) fn is_said(&self) -> bool {
        self.sent
    }

    /// Whether the peer has.
    #[inline]
    pub(super) fn is_heard(&self) -> bool {
        self.peer.is_some()
    }

    /// Why the peer says it.
    pub(super) fn peer_reason(&self) -> Option<ByeReason> {
        self.peer.as_ref().map(|bye| bye.reason)
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.deadline.filter(|_| !self.over)
    }

    /// Nobody waits for it any more.
    pub(super) fn end(&mut self) {
        self.over = true;
    }

    /// The application wants the end by then; of its deadlines, the earliest counts.
    fn bound(&mut self, deadline: Instant) {
        self.deadline = match self.deadline {
            Some(earlier) if self.own_deadline => Some(earlier.min(deadline)),
            _ => Some(deadline),
        };
        self.own_deadline = true;
    }

    /// This side's, which is now said.
    pub(super) fn say(&mut self, last_sequence: u64) -> Control {
        self.sent = true;
        let reason = self.reason;
        Control::Bye {
            last_sequence,
            reason,
        }
    }

    /// The transport is gone. Whether that is a polite end: the peer leaves when it has our bye,
    /// maybe before we hear that ours was sent.
    pub(super) fn on_lost(&mut self) -> bool {
        self.done |= self.sent && self.peer.is_some();
        self.sent && self.peer.is_some()
    }
}

impl Connection {
    /// The send of this side's goodbye completed.
    pub(super) fn on_bye_done(&mut self) {
        self.goodbye.done = true;
        self.finish_if_done();
    }

    /// The polite end: no new sends, our bye when all posted data is done, then the peer's bye,
    /// then `Close`; at the deadline `Close` in any case. Called again, the earlier deadline
    /// counts.
    pub(crate) fn close(&mut self, reason: ByeReason, deadline: Instant) {
        match self.state {
            State::Closed => return,
            State::Connecting | State::Accepting => return self.end(CloseReason::ClosedLocally),
            State::Established => self.goodbye.reason = reason,
            State::Closing => {}
        }
        self.state = State::Closing;
        self.goodbye.bound(deadline);
    }

    /// Long messages that came wait for a fence: this side's goodbye waits for them.
    pub(crate) fn hold_goodbye(&mut self, held: bool) {
        self.goodbye.held = held;
    }

    /// Nothing else is left to be said, but for the answer to a question of this side's.
    pub(super) fn is_to_say_goodbye(&self) -> bool {
        let closing = self.state == State::Closing && !self.goodbye.is_said();
        closing && self.data.posted == 0 && !self.goodbye.held
    }

    /// This side has said its goodbye: it asks the peer nothing any more.
    pub(crate) fn has_said_goodbye(&self) -> bool {
        self.goodbye.is_said()
    }

    /// The connection is over, and long messages that came still wait for fences of others: until
    /// when, and what it ended with if that passes.
    pub(crate) fn hands_out_until(&self, now: Instant) -> (Instant, CloseReason) {
        let limit = self.local.fences.busy();
        let others = (now + limit, CloseReason::FenceDeadline { limit });
        match self.goodbye.deadline.filter(|_| self.goodbye.own_deadline) {
            Some(own) if own <= others.0 => (own, CloseReason::ClosedByDeadline),
            _ => others,
        }
    }

    pub(super) fn on_bye(&mut self, bye: PeerBye, now: Instant) {
        self.on_arrival("a goodbye before the connection was established");
        if self.state == State::Closed {
            return;
        }
        if self.goodbye.is_heard() {
            return self.violate(Violation::OutOfTurn("a second goodbye"));
        }
        if self.data.headers.waiting.is_some() {
            return self.violate(Violation::OutOfTurn("a goodbye where a payload is due"));
        }
        let received = self.data.receive.received();
        if bye.last_sequence < received {
            return self.violate(Violation::Count {
                claimed: bye.last_sequence,
                received,
            });
        }
        if self.is_long_open() {
            return self.violate(Violation::OutOfTurn(
                "a goodbye in the middle of a long message",
            ));
        }
        self.goodbye.peer = Some(Box::new(bye));
        if self.state == State::Established {
            self.state = State::Closing;
            self.goodbye.reason = ByeReason::ANSWER;
            self.goodbye.deadline = Some(now + self.local.close_timeout);
            self.pending.peer_closing = true;
        }
        self.finish_if_done();
    }

    pub(super) fn finish_if_done(&mut self) {
        let Some(bye) = self.goodbye.peer.as_deref().copied() else {
            return;
        };
        if !self.goodbye.done {
            return;
        }
        let (expected, received) = (bye.last_sequence, self.data.receive.received());
        self.end(if expected == received {
            CloseReason::Finished
        } else {
            CloseReason::PeerTruncated { expected, received }
        });
    }
}
