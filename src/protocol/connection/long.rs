//! Messages that are longer than the receiver's buffers, or than the provider's messages. Pure:
//! numbers and lengths, no memory.
//!
//! ```text
//! sender                                                receiver
//! offer n, length ─────────────────────────────────────► takes a destination, opens it for writing
//! writes into it, piece by piece ◄── grant n, base, key   (or refused n, limit; or later)
//! done n: every byte is there, none follows ───────────► closes it, hands the message out
//! ```
//!
//! One at a time on a connection, and the sender sends nothing else meanwhile: so the message keeps
//! its place among the others. The next offer follows when *done* is out, so of the sender's
//! messages at most [`LONG_MESSAGES_MAX`] are unread: a *done* and the next offer. The receiver has
//! at most one that is unread, its answer.
//!
//! A long message uses a credit and a number, as any other. One that is refused gives both back:
//! nothing was sent behind it.

use std::time::Instant;

use super::{Action, Connection, SendBlocked, State, Violation};
use crate::protocol::wire::{self, Control, Hello};

/// Messages about long messages of one side that the other has not read, at most.
pub(crate) const LONG_MESSAGES_MAX: usize = 2;

/// And of the receiver's.
pub(crate) const LONG_ANSWERS_MAX: usize = 1;

/// What the endpoint is to do about long messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LongAction {
    Send(Control),
    /// Receiver: give it a destination, or refuse it, now or later.
    Offered {
        len: u64,
    },
    /// Sender: write it there.
    Granted {
        base: u64,
        key: u64,
    },
    /// Sender: it is not taken.
    Refused {
        limit: Option<u64>,
    },
}

/// Both roles of one connection.
#[derive(Debug, Default)]
#[cfg_attr(test, derive(Clone))]
pub(super) struct Long {
    out: Out,
    into: Into,
    /// Until when the peer's message must be whole, once it has a destination.
    whole_by: Option<Instant>,
    /// The peer's message of this number is whole, and was not handed out yet.
    whole: Option<u64>,
}

/// The message that this side sends.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Out {
    #[default]
    None,
    Offer {
        number: u64,
        len: u64,
    },
    Offered {
        number: u64,
        len: u64,
    },
    Granted {
        number: u64,
        base: u64,
        key: u64,
    },
    Refused {
        limit: Option<u64>,
    },
    Writing {
        number: u64,
    },
    Written {
        number: u64,
    },
    /// *Done* was handed to the endpoint.
    Last,
}

/// The message that the peer sends.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Into {
    #[default]
    None,
    Offered {
        number: u64,
        len: u64,
    },
    /// The endpoint was told.
    Asked {
        number: u64,
    },
    Grant {
        number: u64,
        base: u64,
        key: u64,
    },
    Refuse {
        number: u64,
        limit: u64,
    },
    /// The peer may write.
    Open {
        number: u64,
    },
}

impl Long {
    // ---- sender ---------------------------------------------------------------------------------

    /// Whether other messages have to wait.
    pub(super) fn is_sending(&self) -> bool {
        self.out != Out::None
    }

    pub(super) fn offer(&mut self, number: u64, len: u64) {
        debug_assert!(!self.is_sending(), "one at a time");
        self.out = Out::Offer { number, len };
    }

    /// Every byte is in the peer's memory.
    pub(super) fn written(&mut self) {
        if let Out::Writing { number } = self.out {
            self.out = Out::Written { number };
        }
    }

    /// *Done* is out.
    pub(super) fn on_done_sent(&mut self) {
        if self.out == Out::Last {
            self.out = Out::None;
        }
    }

    /// The peer says goodbye: it grants nothing any more.
    fn on_goodbye(&mut self) {
        if matches!(self.out, Out::Offer { .. } | Out::Offered { .. }) {
            self.out = Out::Refused { limit: None };
        }
    }

    // ---- receiver -------------------------------------------------------------------------------

    /// The destination of what was [`LongAction::Offered`].
    pub(super) fn grant(&mut self, base: u64, key: u64) {
        if let Into::Asked { number } = self.into {
            self.into = Into::Grant { number, base, key };
        }
    }

    /// There will be none.
    pub(super) fn refuse(&mut self, limit: u64) {
        if let Into::Asked { number } = self.into {
            self.into = Into::Refuse { number, limit };
        }
    }

    /// Until when what was granted must be whole; `None`: for ever.
    pub(super) fn bound(&mut self, deadline: Option<Instant>) {
        self.whole_by = deadline;
    }

    /// When a destination was granted for long enough, and the peer is not done with it.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let waits = matches!(
            self.into,
            Into::None | Into::Offered { .. } | Into::Asked { .. } | Into::Refuse { .. }
        );
        self.whole_by.filter(|_| !waits)
    }

    /// Whether the peer may be writing.
    pub(super) fn is_open(&self) -> bool {
        matches!(self.into, Into::Open { .. })
    }

    // ---- both -----------------------------------------------------------------------------------

    /// A message of the peer's; the number of the long message that is whole with it.
    pub(super) fn on_control(&mut self, control: Control) -> Result<Option<u64>, Violation> {
        match (control, self.into, self.out) {
            (Control::LongOffer { number, len }, Into::None, _) if len > 0 => {
                self.into = Into::Offered { number, len };
                Ok(None)
            }
            (Control::LongDone { number }, Into::Open { number: open }, _) if number == open => {
                self.into = Into::None;
                Ok(Some(number))
            }
            (Control::LongGrant { number, base, key }, _, Out::Offered { number: asked, len })
                if number == asked && base.checked_add(len).is_some() =>
            {
                self.out = Out::Granted { number, base, key };
                Ok(None)
            }
            (Control::LongRefused { number, limit }, _, Out::Offered { number: asked, .. })
                if number == asked =>
            {
                self.out = Out::Refused { limit: Some(limit) };
                Ok(None)
            }
            // It crossed this side's goodbye, or the peer's.
            (Control::LongGrant { .. } | Control::LongRefused { .. }, _, Out::Refused { .. }) => {
                Ok(None)
            }
            _ => Err(Violation::OutOfTurn(
                "a message about a long message that is not under way",
            )),
        }
    }

    /// What is to be done; `may_send`: messages can go out. `goodbye`: the peer has said it, so
    /// only *done* can.
    pub(super) fn next_action(&mut self, may_send: bool, goodbye: bool) -> Option<LongAction> {
        if goodbye {
            self.on_goodbye();
        }
        self.next_out(may_send)
            .or_else(|| self.next_into(may_send && !goodbye))
    }

    fn next_out(&mut self, may_send: bool) -> Option<LongAction> {
        match self.out {
            Out::Offer { number, len } if may_send => {
                self.out = Out::Offered { number, len };
                Some(LongAction::Send(Control::LongOffer { number, len }))
            }
            Out::Granted { number, base, key } => {
                self.out = Out::Writing { number };
                Some(LongAction::Granted { base, key })
            }
            Out::Refused { limit } => {
                self.out = Out::None;
                Some(LongAction::Refused { limit })
            }
            Out::Written { number } if may_send => {
                self.out = Out::Last;
                Some(LongAction::Send(Control::LongDone { number }))
            }
            _ => None,
        }
    }

    fn next_into(&mut self, may_send: bool) -> Option<LongAction> {
        match self.into {
            Into::Offered { number, len } => {
                self.into = Into::Asked { number };
                Some(LongAction::Offered { len })
            }
            Into::Grant { number, base, key } if may_send => {
                self.into = Into::Open { number };
                Some(LongAction::Send(Control::LongGrant { number, base, key }))
            }
            Into::Refuse { number, limit } if may_send => {
                self.into = Into::None;
                Some(LongAction::Send(Control::LongRefused { number, limit }))
            }
            _ => None,
        }
    }
}

impl Connection {
    /// Both sides know what long messages are: one to send some, the other to take them.
    pub(crate) fn has_long_messages(&self) -> bool {
        self.peer
            .is_some_and(|peer| peer.features & self.local.features & wire::FEATURE_LONG != 0)
    }

    pub(super) fn long(&mut self) -> &mut Long {
        self.long.get_or_insert_default()
    }

    pub(super) fn on_long_message(&mut self, control: Control) {
        let said = [
            "a long message before the connection was established",
            "a long message after its goodbye",
        ];
        if !self.takes(control.kind(), self.has_long_messages(), said) {
            return;
        }
        let takes = self.local.receive_size > 0;
        match self.long().on_control(control) {
            Ok(_) if matches!(control, Control::LongOffer { .. }) && !takes => {
                self.violate(Violation::OutOfTurn("a long message where none are taken"));
            }
            Ok(whole) => {
                let long = self.long();
                long.whole = long.whole.or(whole);
            }
            Err(violation) => self.violate(violation),
        }
    }

    /// The peer may be offered long messages: it takes messages, and does not say that those are
    /// none of them.
    pub(crate) fn may_offer_long(&self) -> bool {
        let takes = |peer: &Hello| {
            peer.receive_size > 0 && peer.features & wire::FEATURE_TAKES_NO_LONG == 0
        };
        self.has_long_messages() && self.peer().is_some_and(takes)
    }

    /// A message of so many bytes is to be sent piece by piece: takes its credit. Its end is told
    /// by [`Action::LongRefused`], or by this side (`long_written`).
    ///
    /// # Errors
    ///
    /// As [`Connection::may_send`]; then nothing changes.
    pub(crate) fn offer_long(&mut self, len: u64) -> Result<(), SendBlocked> {
        let number = self.on_data_posted()?;
        self.long().offer(number, len);
        Ok(())
    }

    /// Whether pieces of this side's long message may be posted: its credit is taken, so it goes on
    /// while a goodbye waits for it.
    pub(crate) fn may_write_long(&self) -> bool {
        self.transmit && matches!(self.state, State::Established | State::Closing)
    }

    /// All of this side's long message is in the peer's memory.
    pub(crate) fn long_written(&mut self) {
        self.long().written();
        self.on_data_done();
    }

    /// Where the peer is to write what [`Action::LongOffered`] told of.
    pub(crate) fn grant_long(&mut self, base: u64, key: u64) {
        self.long().grant(base, key);
    }

    /// Until when the message must be whole that was granted; the connection ends where it is not.
    pub(crate) fn bound_long(&mut self, deadline: Option<Instant>) {
        self.long().bound(deadline);
    }

    /// That is not taken; up to `limit` bytes are.
    pub(crate) fn refuse_long(&mut self, limit: u64) {
        self.long().refuse(limit);
    }

    /// Whether the peer may be writing a long message.
    pub(crate) fn is_long_open(&self) -> bool {
        self.long.as_ref().is_some_and(|long| long.is_open())
    }

    /// The number of the long message that has become whole: to be asked for behind each control
    /// message.
    pub(crate) fn take_whole_long(&mut self) -> Option<u64> {
        self.long.as_mut()?.whole.take()
    }

    pub(super) fn next_long(&mut self) -> Option<Action> {
        let may_send = self.transmit && !self.goodbye.is_said();
        let goodbye = self.goodbye.is_heard();
        Some(match self.long.as_mut()?.next_action(may_send, goodbye)? {
            LongAction::Send(control) => self.control(&control),
            LongAction::Offered { len } => Action::LongOffered { len },
            LongAction::Granted { base, key } => Action::LongGranted { base, key },
            LongAction::Refused { limit } => {
                // Nothing was sent behind it.
                self.on_post_undone();
                Action::LongRefused { limit }
            }
        })
    }

    pub(super) fn long_deadline(&self) -> Option<Instant> {
        let long = self.long.as_ref();
        long.filter(|_| self.state != State::Closed)?.deadline()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    /// A sender and a receiver, and what lies between them.
    #[derive(Default)]
    struct Pair {
        sides: [Long; 2],
        wires: [VecDeque<Control>; 2],
        /// Of the sender: messages offered, ended well, refused.
        counts: [u64; 3],
        open: bool,
        writing: bool,
        delivered: u64,
        dones: u32,
    }

    impl Pair {
        fn act(&mut self, at: usize) {
            let Some(action) = self.sides[at].next_action(true, false) else {
                return;
            };
            match action {
                LongAction::Send(control) => {
                    match control {
                        Control::LongGrant { .. } => self.open = true,
                        Control::LongDone { .. } => self.dones += 1,
                        _ => {}
                    }
                    self.wires[1 - at].push_back(control);
                    let limit = if at == 0 {
                        LONG_MESSAGES_MAX
                    } else {
                        LONG_ANSWERS_MAX
                    };
                    assert!(self.wires[1 - at].len() <= limit, "too many unread");
                }
                LongAction::Offered { len } if len.is_multiple_of(3) => self.sides[at].refuse(2),
                LongAction::Offered { .. } => self.sides[at].grant(0, 77),
                LongAction::Granted { base: 0, key: 77 } => {
                    assert!(self.open, "granted, and not open");
                    self.writing = true;
                }
                LongAction::Granted { .. } => panic!("another place"),
                LongAction::Refused { limit } => {
                    assert_eq!(limit, Some(2));
                    self.counts[2] += 1;
                }
            }
        }

        fn deliver(&mut self, at: usize) {
            let Some(control) = self.wires[at].pop_front() else {
                return;
            };
            let whole = self.sides[at].on_control(control).expect("honest");
            if whole.is_some() {
                assert!(self.open && !self.writing, "handed out while it is written");
                self.open = false;
                self.delivered += 1;
            }
        }

        fn step(&mut self, step: u8) {
            match step {
                0 | 1 => self.act(step.into()),
                2 | 3 => self.deliver((step - 2).into()),
                4 if !self.sides[0].is_sending() => {
                    self.counts[0] += 1;
                    let number = self.counts[0];
                    self.sides[0].offer(number, number);
                }
                5 if self.writing => {
                    self.writing = false;
                    self.counts[1] += 1;
                    self.sides[0].written();
                }
                6 if self.dones > 0 => {
                    self.dones -= 1;
                    self.sides[0].on_done_sent();
                }
                _ => {}
            }
        }
    }

    proptest! {
        /// Every message that is offered is refused or arrives, once; none is handed out while its
        /// bytes may still move.
        #[test]
        fn long_messages_arrive_or_are_refused(steps in prop::collection::vec(0_u8..7, 0..300)) {
            let mut pair = Pair::default();
            for step in steps {
                pair.step(step);
            }
            for _ in 0..50 {
                for step in [0, 1, 2, 3, 5, 6] {
                    pair.step(step);
                }
            }
            let [offered, written, refused] = pair.counts;
            prop_assert_eq!(offered, written + refused);
            prop_assert_eq!(written, pair.delivered);
            prop_assert!(!pair.sides[0].is_sending() && !pair.sides[1].is_open());
        }
    }

    #[test]
    fn what_no_honest_peer_says_is_a_violation() {
        let grant = Control::LongGrant {
            number: 1,
            base: 0,
            key: 0,
        };
        let done = Control::LongDone { number: 1 };
        let offer = |number, len| Control::LongOffer { number, len };
        let mut long = Long::default();
        assert!(long.on_control(grant).is_err(), "nothing was offered");
        assert!(long.on_control(done).is_err());
        assert!(long.on_control(offer(1, 0)).is_err(), "without a byte");
        let refused = Control::LongRefused {
            number: 1,
            limit: 9,
        };
        assert!(long.on_control(refused).is_err());
        long.on_control(offer(1, 10)).unwrap();
        assert!(long.on_control(offer(2, 10)).is_err(), "one at a time");
        assert!(long.on_control(done).is_err(), "not granted");
        long.next_action(true, false);
        long.grant(0, 5);
        assert!(long.on_control(done).is_err(), "the grant is not out");
        long.next_action(true, false);
        assert!(long.is_open());
        assert!(long.on_control(Control::LongDone { number: 2 }).is_err());
        assert_eq!(long.on_control(done), Ok(Some(1)));
        assert!(long.on_control(done).is_err(), "twice");

        long.offer(1, 100);
        assert!(long.on_control(grant).is_err(), "the offer is not out");
        long.next_action(true, false);
        let far = Control::LongGrant {
            number: 1,
            base: u64::MAX - 50,
            key: 0,
        };
        assert!(long.on_control(far).is_err(), "it ends nowhere");
        let other = Control::LongGrant {
            number: 2,
            base: 0,
            key: 0,
        };
        assert!(long.on_control(other).is_err(), "another message");
        assert!(long.on_control(grant).is_ok());
        assert!(long.on_control(grant).is_err(), "twice");
    }

    #[test]
    fn a_goodbye_refuses_what_was_not_granted() {
        let mut long = Long::default();
        long.offer(0, 10);
        assert!(matches!(
            long.next_action(true, false),
            Some(LongAction::Send(_))
        ));
        let refused = LongAction::Refused { limit: None };
        assert_eq!(long.next_action(true, true), Some(refused));
        assert!(!long.is_sending());
    }

    #[test]
    fn a_deadline_counts_from_the_grant_until_the_message_is_whole() {
        let by = Instant::now();
        let mut long = Long::default();
        long.bound(Some(by));
        assert_eq!(long.deadline(), None, "nothing is under way");
        long.on_control(Control::LongOffer { number: 0, len: 5 })
            .unwrap();
        long.next_action(true, false);
        assert_eq!(long.deadline(), None, "it waits for a slot of this side");
        long.grant(0, 5);
        assert_eq!(long.deadline(), Some(by));
        long.next_action(true, false);
        assert_eq!(long.deadline(), Some(by), "the peer may write");
        long.on_control(Control::LongDone { number: 0 }).unwrap();
        assert_eq!(long.deadline(), None);
    }
}
