//! `Control`: what two sides say to each other on an established connection.

use std::fmt;

use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{
    CONTROL_LEN, HELLO_LEN, Hello, HelloKind, Refusal, SubscriptionAnswer, SubscriptionOutcome,
    SubscriptionRequest, WireError, field, read,
};

/// First bytes of a control message; another word than `MAGIC`, so that one is never read as the
/// other.
const CONTROL_TAG: [u8; 4] = *b"fbct";

/// Why a side says goodbye; a number that the application may choose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct ByeReason(pub u16);

impl ByeReason {
    /// Everything was sent.
    pub const DONE: Self = Self(0);
    /// The answer to the peer's goodbye.
    pub const ANSWER: Self = Self(1);
    /// The endpoint is being closed.
    pub const CLOSING: Self = Self(2);
}

/// Kind of a control message: bits 31 to 24 of the CQ data that comes with it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct ControlKind(pub(crate) u8);

impl ControlKind {
    /// More messages may be sent.
    pub(crate) const CREDIT: Self = Self(1);
    /// The speaker will send no more data.
    pub(crate) const BYE: Self = Self(2);
    /// Asks for a sign of life, or is one.
    pub(crate) const HEARTBEAT: Self = Self(3);
    /// A window must not be used any more.
    pub(crate) const REVOKE: Self = Self(4);
    /// A revoked window is not used any more.
    pub(crate) const REVOKE_ACK: Self = Self(5);
    /// A subscriber asks for the publications of a tag.
    pub(crate) const SUBSCRIBE: Self = Self(6);
    /// A subscriber asks for them no more.
    pub(crate) const UNSUBSCRIBE: Self = Self(7);
    /// A message that is too long for a receive, and how long it is.
    pub(crate) const LONG_OFFER: Self = Self(9);
    /// Where it is to be written.
    pub(crate) const LONG_GRANT: Self = Self(10);
    /// All of it is written.
    pub(crate) const LONG_DONE: Self = Self(11);
    /// It is not taken.
    pub(crate) const LONG_REFUSED: Self = Self(12);
    /// The publisher's answer to either.
    pub(crate) const SUBSCRIPTION: Self = Self(13);
    /// Asks for an answer behind everything that the listener began before.
    pub(crate) const FENCE: Self = Self(14);
    /// The answer to it.
    pub(crate) const FENCED: Self = Self(15);
    /// RDM form: the initiator's hello.
    pub(crate) const HELLO: Self = Self(16);
    /// RDM form: the acceptor's answer.
    pub(crate) const HELLO_ACK: Self = Self(17);
    /// RDM form: the connection is refused or given up.
    pub(crate) const REFUSAL: Self = Self(18);
    /// RDM form: not a control message but data, marked so that the connection can be found.
    pub(crate) const DATA: Self = Self(32);
    /// Not a control message but the header of the data message that comes next.
    pub(crate) const HEADER: Self = Self(34);
    /// Not a control message but the payload whose header came just before.
    pub(crate) const PAYLOAD: Self = Self(35);
    /// Not a message at all: the immediate data of a one-sided write.
    pub(crate) const WRITTEN: Self = Self(33);
    /// Not a control message but a frame: several data messages in one. Its low two bits are those
    /// of [`WRITTEN`](Self::WRITTEN), which has no short marks.
    pub(crate) const FRAME: Self = Self(37);
}

impl fmt::Debug for ControlKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match *self {
            Self::CREDIT => "CREDIT",
            Self::BYE => "BYE",
            Self::HEARTBEAT => "HEARTBEAT",
            Self::REVOKE => "REVOKE",
            Self::REVOKE_ACK => "REVOKE_ACK",
            Self::SUBSCRIBE => "SUBSCRIBE",
            Self::UNSUBSCRIBE => "UNSUBSCRIBE",
            Self::LONG_OFFER => "LONG_OFFER",
            Self::LONG_GRANT => "LONG_GRANT",
            Self::LONG_DONE => "LONG_DONE",
            Self::LONG_REFUSED => "LONG_REFUSED",
            Self::SUBSCRIPTION => "SUBSCRIPTION",
            Self::FENCE => "FENCE",
            Self::FENCED => "FENCED",
            Self::HELLO => "HELLO",
            Self::HELLO_ACK => "HELLO_ACK",
            Self::REFUSAL => "REFUSAL",
            Self::DATA => "DATA",
            Self::HEADER => "HEADER",
            Self::PAYLOAD => "PAYLOAD",
            Self::WRITTEN => "WRITTEN",
            Self::FRAME => "FRAME",
            Self(other) => return write!(f, "ControlKind({other})"),
        };
        f.write_str(name)
    }
}

/// A message between the two state machines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Control {
    /// The speaker has, since the beginning, allowed this many data messages.
    Credit { granted: u64 },
    /// The speaker has sent this many data messages and sends no more.
    Bye {
        last_sequence: u64,
        reason: ByeReason,
    },
    /// The peer must not use this window any more, and say so when it does not.
    Revoke { window: u64 },
    /// The speaker does not use this window any more.
    RevokeAck { window: u64 },
    /// The speaker asks for a sign of life, or gives the one that was asked for by this number.
    Heartbeat { number: u64, answer: bool },
    /// The subscriber's request of this number.
    Subscription {
        number: u64,
        request: SubscriptionRequest,
    },
    /// The publisher's answer to the request of this number.
    SubscriptionAnswer {
        number: u64,
        answer: SubscriptionAnswer,
    },
    /// The speaker has a message of `len` bytes.
    LongOffer { number: u64, len: u64 },
    /// It is to be written there.
    LongGrant { number: u64, base: u64, key: u64 },
    /// It is there; the speaker writes no more.
    LongDone { number: u64 },
    /// It is not taken; messages of `limit` bytes are.
    LongRefused { number: u64, limit: u64 },
    /// The speaker wants to know that what the peer began before it read this is over.
    Fence { nonce: u64 },
    /// Everything that the speaker began before it read the question with this nonce comes before
    /// this.
    Fenced { nonce: u64 },
    /// RDM form: hello or hello-ack.
    Hello(Hello),
    /// RDM form.
    Refusal(Refusal),
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct ControlWire {
    tag: [u8; 4],
    kind: u8,
    reserved: u8,
    code: U16,
    number: U64,
    value: U64,
    value2: U64,
}

const _: () = assert!(size_of::<ControlWire>() == CONTROL_LEN);

/// The body of a control message: a few bytes that need no memory of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ControlBody {
    pub(super) bytes: [u8; HELLO_LEN],
    len: u8,
}

/// What a side of the RDM form says beside a heartbeat, where providers may lose what they took for
/// sent: the peer learns of messages that have not come, and of a grant. Who says nothing of it has
/// zeros there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Numbered messages that were sent, and are done with at the sender's provider: modulo 2^32.
    pub(crate) sent: u32,
    /// Data messages that the speaker has allowed since the beginning; 0 where a credit says so
    /// just now.
    pub(crate) granted: u64,
}

/// Set where counts are said.
const COUNTED: u64 = 1 << 63;

impl Counts {
    /// What the body of a heartbeat says.
    pub(crate) fn parse(body: &[u8]) -> Option<Self> {
        let wire = read::<ControlWire>(body).ok()?;
        let said = wire.value2.get();
        (said & COUNTED != 0).then(|| Self {
            sent: said as u32,
            granted: wire.number.get(),
        })
    }
}

impl ControlBody {
    /// A heartbeat that says this, too.
    pub(crate) fn with_counts(mut self, counts: Counts) -> Self {
        let said = COUNTED | u64::from(counts.sent);
        self.bytes[8..16].copy_from_slice(&counts.granted.to_le_bytes());
        self.bytes[24..32].copy_from_slice(&said.to_le_bytes());
        self
    }

    /// What is to be sent.
    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl Control {
    /// The kind, as the CQ data of this message carries it.
    pub(crate) fn kind(&self) -> ControlKind {
        match self {
            Self::Credit { .. } => ControlKind::CREDIT,
            Self::Bye { .. } => ControlKind::BYE,
            Self::Revoke { .. } => ControlKind::REVOKE,
            Self::RevokeAck { .. } => ControlKind::REVOKE_ACK,
            Self::Heartbeat { .. } => ControlKind::HEARTBEAT,
            Self::Subscription { request, .. } if request.on => ControlKind::SUBSCRIBE,
            Self::Subscription { .. } => ControlKind::UNSUBSCRIBE,
            Self::SubscriptionAnswer { .. } => ControlKind::SUBSCRIPTION,
            Self::LongOffer { .. } => ControlKind::LONG_OFFER,
            Self::LongGrant { .. } => ControlKind::LONG_GRANT,
            Self::LongDone { .. } => ControlKind::LONG_DONE,
            Self::LongRefused { .. } => ControlKind::LONG_REFUSED,
            Self::Fence { .. } => ControlKind::FENCE,
            Self::Fenced { .. } => ControlKind::FENCED,
            Self::Hello(Hello {
                kind: HelloKind::Hello,
                ..
            }) => ControlKind::HELLO,
            Self::Hello(Hello {
                kind: HelloKind::Ack,
                ..
            }) => ControlKind::HELLO_ACK,
            Self::Refusal(_) => ControlKind::REFUSAL,
        }
    }

    /// The body.
    pub(crate) fn encode(&self) -> ControlBody {
        let (code, number, value, value2) = match self {
            Self::Hello(hello) => {
                return ControlBody {
                    bytes: hello.encode(),
                    len: HELLO_LEN as u8,
                };
            }
            Self::Refusal(refusal) => {
                return ControlBody {
                    bytes: refusal.encode(),
                    len: HELLO_LEN as u8,
                };
            }
            Self::Credit { granted } => (0, 0, *granted, 0),
            Self::Bye {
                last_sequence,
                reason,
            } => (reason.0, 0, *last_sequence, 0),
            Self::Revoke { window } | Self::RevokeAck { window } => (0, 0, *window, 0),
            Self::Fence { nonce } | Self::Fenced { nonce } => (0, 0, *nonce, 0),
            Self::Heartbeat { number, answer } => (u16::from(*answer), 0, *number, 0),
            Self::Subscription { number, request } => (0, *number, request.tag, 0),
            Self::SubscriptionAnswer { number, answer } => {
                let SubscriptionAnswer { tag, outcome, next } = answer;
                (outcome.0, *number, *tag, *next)
            }
            Self::LongOffer { number, len } => (0, *number, *len, 0),
            Self::LongGrant { number, base, key } => (0, *number, *base, *key),
            Self::LongDone { number } => (0, *number, 0, 0),
            Self::LongRefused { number, limit } => (0, *number, *limit, 0),
        };
        let wire = ControlWire {
            tag: CONTROL_TAG,
            kind: self.kind().0,
            reserved: 0,
            code: code.into(),
            number: number.into(),
            value: value.into(),
            value2: value2.into(),
        };
        let mut bytes = [0; HELLO_LEN];
        bytes[..CONTROL_LEN].copy_from_slice(wire.as_bytes());
        ControlBody {
            bytes,
            len: CONTROL_LEN as u8,
        }
    }

    /// Reads the body of a message whose CQ data says `kind`; what follows the known bytes is
    /// ignored.
    ///
    /// # Errors
    ///
    /// Any [`WireError`]; kinds that are only reserved are [`WireError::Kind`].
    pub(crate) fn parse(kind: ControlKind, body: &[u8]) -> Result<Self, WireError> {
        let control = match kind {
            ControlKind::HELLO | ControlKind::HELLO_ACK => Self::Hello(Hello::parse(body)?),
            ControlKind::REFUSAL => Self::Refusal(Refusal::parse(body)?),
            ControlKind::CREDIT
            | ControlKind::BYE
            | ControlKind::HEARTBEAT
            | ControlKind::REVOKE
            | ControlKind::REVOKE_ACK
            | ControlKind::FENCE
            | ControlKind::FENCED
            | ControlKind::SUBSCRIBE
            | ControlKind::UNSUBSCRIBE
            | ControlKind::LONG_OFFER
            | ControlKind::LONG_GRANT
            | ControlKind::LONG_DONE
            | ControlKind::LONG_REFUSED
            | ControlKind::SUBSCRIPTION => Self::parse_short(body)?,
            ControlKind(other) => return Err(WireError::Kind(other)),
        };
        if control.kind() != kind {
            return Err(WireError::Kind(control.kind().0));
        }
        Ok(control)
    }

    fn parse_short(body: &[u8]) -> Result<Self, WireError> {
        let wire = read::<ControlWire>(body)?;
        if wire.tag != CONTROL_TAG {
            return Err(WireError::Magic(wire.tag));
        }
        let (value, number) = (wire.value.get(), wire.number.get());
        match ControlKind(wire.kind) {
            kind @ (ControlKind::SUBSCRIBE | ControlKind::UNSUBSCRIBE) => Ok(Self::Subscription {
                number,
                request: SubscriptionRequest {
                    tag: value,
                    on: kind == ControlKind::SUBSCRIBE,
                },
            }),
            ControlKind::SUBSCRIPTION => Ok(Self::SubscriptionAnswer {
                number,
                answer: SubscriptionAnswer {
                    tag: value,
                    outcome: SubscriptionOutcome(wire.code.get()),
                    next: wire.value2.get(),
                },
            }),
            ControlKind::LONG_OFFER => Ok(Self::LongOffer { number, len: value }),
            ControlKind::LONG_GRANT => Ok(Self::LongGrant {
                number,
                base: value,
                key: wire.value2.get(),
            }),
            ControlKind::LONG_DONE => Ok(Self::LongDone { number }),
            ControlKind::LONG_REFUSED => Ok(Self::LongRefused {
                number,
                limit: value,
            }),
            ControlKind::CREDIT => Ok(Self::Credit { granted: value }),
            ControlKind::BYE => Ok(Self::Bye {
                last_sequence: value,
                reason: ByeReason(wire.code.get()),
            }),
            ControlKind::REVOKE => Ok(Self::Revoke { window: value }),
            ControlKind::REVOKE_ACK => Ok(Self::RevokeAck { window: value }),
            ControlKind::FENCE => Ok(Self::Fence { nonce: value }),
            ControlKind::FENCED => Ok(Self::Fenced { nonce: value }),
            ControlKind::HEARTBEAT => match wire.code.get() {
                code @ (0 | 1) => Ok(Self::Heartbeat {
                    number: value,
                    answer: code == 1,
                }),
                other => Err(field("code", other)),
            },
            ControlKind(other) => Err(WireError::Kind(other)),
        }
    }
}
