//! Subscriptions of one connection: the initiator asks, the acceptor answers. Pure: tags and
//! numbers, no table.
//!
//! ```text
//! subscriber (initiator):  ask ─► Subscribe n ──────► publisher (acceptor): asks the endpoint
//!                          answered ◄──────── Answer n
//! ```
//!
//! The next request follows only the answer to the last one, so of each side at most
//! [`SUBSCRIPTION_MESSAGES_MAX`] message is ever unread: a request of the subscriber's, because it
//! was read when it is answered, and an answer of the publisher's, because it was read when the
//! next request is sent. So a publisher keeps a receive for one request of each connection, and a
//! subscriber for one answer.

use super::{Action, Connection, State, Violation};
use crate::protocol::wire::{
    self, Control, HelloKind, SubscriptionAnswer, SubscriptionOutcome, SubscriptionRequest,
};

/// Messages about subscriptions of one side that the other has not read, at most.
pub(crate) const SUBSCRIPTION_MESSAGES_MAX: usize = 1;

/// What the endpoint is to do about subscriptions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SubscriptionAction {
    Send(Control),
    /// Publisher: answer this.
    Asked(SubscriptionRequest),
    /// Subscriber: this is the answer.
    Answered(SubscriptionRequest, SubscriptionAnswer),
}

/// Both roles; a connection has one of them.
#[derive(Debug, Default)]
#[cfg_attr(test, derive(Clone))]
pub(super) struct Subscriptions {
    /// Requests of this side so far.
    asked: u64,
    /// The last of them.
    question: Option<Question>,
    /// Requests of the peer so far.
    heard: u64,
    /// The last of them.
    answer: Option<PendingAnswer>,
}

#[derive(Debug, Clone, Copy)]
enum Question {
    /// To be sent.
    New(SubscriptionRequest),
    Sent(SubscriptionRequest),
    Answered(SubscriptionRequest, SubscriptionAnswer),
}

#[derive(Debug, Clone, Copy)]
enum PendingAnswer {
    /// The endpoint is to be asked.
    New(SubscriptionRequest),
    Asked(SubscriptionRequest),
    /// To be sent.
    ToSend(SubscriptionAnswer),
}

impl Subscriptions {
    // ---- subscriber -----------------------------------------------------------------------------

    /// True: no request is waiting, or waits for its answer.
    pub(super) fn may_ask(&self) -> bool {
        self.question.is_none()
    }

    pub(super) fn ask(&mut self, request: SubscriptionRequest) -> bool {
        let may = self.may_ask();
        if may {
            self.question = Some(Question::New(request));
        }
        may
    }

    pub(super) fn on_answer(
        &mut self,
        number: u64,
        answer: SubscriptionAnswer,
    ) -> Result<(), Violation> {
        match self.question {
            Some(Question::Sent(request)) if number == self.asked && answer.tag == request.tag => {
                self.question = Some(Question::Answered(request, answer));
                Ok(())
            }
            _ => Err(Violation::OutOfTurn("an answer to no subscription")),
        }
    }

    // ---- publisher ------------------------------------------------------------------------------

    pub(super) fn on_request(
        &mut self,
        number: u64,
        request: SubscriptionRequest,
    ) -> Result<(), Violation> {
        if self.answer.is_some() {
            return Err(Violation::OutOfTurn(
                "a subscription before the last one was answered",
            ));
        }
        if number != self.heard + 1 {
            return Err(Violation::OutOfTurn("a subscription out of its turn"));
        }
        self.heard = number;
        self.answer = Some(PendingAnswer::New(request));
        Ok(())
    }

    /// What the endpoint says to the request that it was asked.
    pub(super) fn give(&mut self, outcome: SubscriptionOutcome, next: u64) {
        if let Some(PendingAnswer::Asked(request)) = self.answer {
            let tag = request.tag;
            let answer = SubscriptionAnswer { tag, outcome, next };
            self.answer = Some(PendingAnswer::ToSend(answer));
        }
    }

    // ---- both -----------------------------------------------------------------------------------

    /// What is to be done; `may_send`: messages can go out now.
    pub(super) fn next_action(&mut self, may_send: bool) -> Option<SubscriptionAction> {
        match self.answer {
            Some(PendingAnswer::New(request)) => {
                self.answer = Some(PendingAnswer::Asked(request));
                return Some(SubscriptionAction::Asked(request));
            }
            Some(PendingAnswer::ToSend(answer)) if may_send => {
                self.answer = None;
                let number = self.heard;
                let control = Control::SubscriptionAnswer { number, answer };
                return Some(SubscriptionAction::Send(control));
            }
            _ => {}
        }
        match self.question {
            Some(Question::New(request)) if may_send => {
                self.question = Some(Question::Sent(request));
                self.asked += 1;
                let number = self.asked;
                let control = Control::Subscription { number, request };
                Some(SubscriptionAction::Send(control))
            }
            Some(Question::Answered(request, answer)) => {
                self.question = None;
                Some(SubscriptionAction::Answered(request, answer))
            }
            _ => None,
        }
    }
}

impl Connection {
    /// Both sides know what subscriptions are.
    fn has_subscriptions(&self) -> bool {
        self.peer
            .is_some_and(|peer| peer.features & self.local.features & wire::FEATURE_PUBLISH != 0)
    }

    fn subscriptions(&mut self) -> &mut Subscriptions {
        self.subscriptions.get_or_insert_default()
    }

    /// The acceptor does.
    fn publishes(&self) -> bool {
        self.peer.is_some_and(|peer| peer.kind == HelloKind::Hello)
    }

    pub(super) fn on_subscription_message(&mut self, control: Control) {
        let said = [
            "a subscription before the connection was established",
            "a subscription after its goodbye",
        ];
        if !self.takes(control.kind(), self.has_subscriptions(), said) {
            return;
        }
        let taken = match control {
            Control::Subscription { number, request } if self.publishes() => {
                self.subscriptions().on_request(number, request)
            }
            Control::SubscriptionAnswer { number, answer } => {
                self.subscriptions().on_answer(number, answer)
            }
            _ => Err(Violation::OutOfTurn(
                "a subscription at a side that does not publish",
            )),
        };
        if let Err(violation) = taken {
            self.violate(violation);
        }
    }

    /// Whether `ask_subscription` would take a request.
    pub(crate) fn may_ask_subscription(&self) -> bool {
        self.state == State::Established
            && self.has_subscriptions()
            && !self.publishes()
            && self.subscriptions.as_ref().is_none_or(|all| all.may_ask())
    }

    /// A subscriber's request; false: not now, since the last one has no answer yet, or there is
    /// nobody to ask.
    pub(crate) fn ask_subscription(&mut self, request: SubscriptionRequest) -> bool {
        self.may_ask_subscription() && self.subscriptions().ask(request)
    }

    /// What the publisher says to [`Action::SubscriptionAsked`]. `next` is the number of the tag's
    /// next publication.
    pub(crate) fn answer_subscription(&mut self, outcome: SubscriptionOutcome, next: u64) {
        self.subscriptions().give(outcome, next);
    }

    pub(super) fn next_subscription(&mut self) -> Option<Action> {
        let may_send = self.transmit && !self.goodbye.is_said() && !self.goodbye.is_heard();
        let subscriptions = self.subscriptions.as_mut()?;
        Some(match subscriptions.next_action(may_send)? {
            SubscriptionAction::Send(control) => self.control(&control),
            SubscriptionAction::Asked(request) => Action::SubscriptionAsked(request),
            SubscriptionAction::Answered(request, answer) => {
                Action::SubscriptionAnswered { request, answer }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(tag: u64) -> SubscriptionRequest {
        SubscriptionRequest { tag, on: true }
    }

    fn answer(tag: u64) -> SubscriptionAnswer {
        let outcome = SubscriptionOutcome::DONE;
        SubscriptionAnswer {
            tag,
            outcome,
            next: 9,
        }
    }

    #[test]
    fn a_request_waits_for_the_answer_to_the_last() {
        let mut side = Subscriptions::default();
        assert!(side.ask(on(5)) && !side.ask(on(6)));
        assert_eq!(side.next_action(false), None);
        let sent = Control::Subscription {
            number: 1,
            request: on(5),
        };
        assert_eq!(side.next_action(true), Some(SubscriptionAction::Send(sent)));
        assert!(!side.ask(on(6)) && side.next_action(true).is_none());
        side.on_answer(1, answer(5)).unwrap();
        assert!(!side.may_ask(), "not told yet");
        let told = SubscriptionAction::Answered(on(5), answer(5));
        assert_eq!(side.next_action(false), Some(told));
        assert!(side.ask(on(6)));
    }

    #[test]
    fn what_no_honest_peer_says_is_a_violation() {
        let mut side = Subscriptions::default();
        assert!(side.on_answer(0, answer(5)).is_err(), "nothing was asked");
        side.ask(on(5));
        assert!(side.on_answer(1, answer(5)).is_err(), "not sent yet");
        side.next_action(true);
        assert!(side.on_answer(2, answer(5)).is_err(), "another number");
        assert!(side.on_answer(1, answer(6)).is_err(), "another tag");
        side.on_answer(1, answer(5)).unwrap();
        assert!(side.on_answer(1, answer(5)).is_err(), "twice");

        assert!(side.on_request(0, on(1)).is_err() && side.on_request(2, on(1)).is_err());
        side.on_request(1, on(1)).unwrap();
        assert!(side.on_request(2, on(2)).is_err(), "not answered");
        side.next_action(true);
        side.give(SubscriptionOutcome::DONE, 0);
        assert!(side.on_request(2, on(2)).is_err(), "the answer is not sent");
        side.next_action(true);
        side.on_request(2, on(2)).unwrap();
    }
}
