//! What a subscriber asks of a publisher, what it is answered, and what stands in front of the
//! header of each publication.

use std::fmt;

use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{WireError, read};

/// A subscriber asks for the publications of a tag, or asks for them no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SubscriptionRequest {
    pub(crate) tag: u64,
    /// Subscribe; else unsubscribe.
    pub(crate) on: bool,
}

/// What the publisher says to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SubscriptionAnswer {
    pub(crate) tag: u64,
    pub(crate) outcome: SubscriptionOutcome,
    /// The number of the next publication of the tag; 0 where there is no subscription.
    pub(crate) next: u64,
}

/// What a publisher says to a subscription. A number, because a newer peer may have reasons unknown
/// here.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SubscriptionOutcome(pub u16);

impl SubscriptionOutcome {
    /// Done: subscribed, or not any more.
    pub const DONE: Self = Self(0);
    /// It was so already: subscribed before, or not subscribed.
    pub const ALREADY: Self = Self(1);
    /// This connection has as many subscriptions as it may.
    pub const TOO_MANY_HERE: Self = Self(2);
    /// The publisher has as many subscriptions as it may, of all its connections together.
    pub const TOO_MANY_IN_ALL: Self = Self(3);

    /// Whether it is as the subscriber asked.
    pub fn is_granted(self) -> bool {
        self == Self::DONE || self == Self::ALREADY
    }
}

impl fmt::Debug for SubscriptionOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match *self {
            Self::DONE => "DONE",
            Self::ALREADY => "ALREADY",
            Self::TOO_MANY_HERE => "TOO_MANY_HERE",
            Self::TOO_MANY_IN_ALL => "TOO_MANY_IN_ALL",
            Self(other) => return write!(f, "SubscriptionOutcome({other})"),
        };
        f.write_str(name)
    }
}

impl fmt::Display for SubscriptionOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::DONE => f.write_str("done"),
            Self::ALREADY => f.write_str("it was so already"),
            Self::TOO_MANY_HERE => {
                f.write_str("the connection has as many subscriptions as the publisher allows")
            }
            Self::TOO_MANY_IN_ALL => {
                f.write_str("the publisher has as many subscriptions as it takes")
            }
            Self(other) => write!(f, "the publisher refused with code {other}"),
        }
    }
}

/// Bytes that a publisher puts in front of the header of each publication.
pub(crate) const PUBLICATION_LEN: usize = 16;

/// What stands in front of the header of each publication. The same for all its subscribers, so
/// that they share one header slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PublicationPrefix {
    pub(crate) tag: u64,
    /// Counts the publications of the tag, from 0; a gap was dropped.
    pub(crate) number: u64,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct PublicationWire {
    tag: U64,
    number: U64,
}

const _: () = assert!(size_of::<PublicationWire>() == PUBLICATION_LEN);

impl PublicationPrefix {
    pub(crate) fn encode(&self) -> [u8; PUBLICATION_LEN] {
        let wire = PublicationWire {
            tag: self.tag.into(),
            number: self.number.into(),
        };
        zerocopy::transmute!(wire)
    }

    /// Reads the first 16 bytes.
    ///
    /// # Errors
    ///
    /// [`WireError::Short`].
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let wire = read::<PublicationWire>(bytes)?;
        Ok(Self {
            tag: wire.tag.get(),
            number: wire.number.get(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{CONTROL_LEN, Control, ControlKind};
    use super::*;

    #[test]
    fn requests_and_answers_have_these_bytes() {
        for (kind, on) in [(6, true), (7, false)] {
            let request = SubscriptionRequest {
                tag: 0x0102_0304_0506_0708,
                on,
            };
            let asked = Control::Subscription {
                number: 0x1112,
                request,
            };
            let mut expected = [0; CONTROL_LEN];
            expected[..5].copy_from_slice(&[b'f', b'b', b'c', b't', kind]);
            expected[8..10].copy_from_slice(&[0x12, 0x11]);
            expected[16..24].copy_from_slice(&[8, 7, 6, 5, 4, 3, 2, 1]);
            assert_eq!(asked.encode().as_slice(), expected);
            assert_eq!(Control::parse(ControlKind(kind), &expected), Ok(asked));
        }
        let answer = SubscriptionAnswer {
            tag: 0x0102_0304_0506_0708,
            outcome: SubscriptionOutcome(0x2122),
            next: 0x3132,
        };
        let answer = Control::SubscriptionAnswer {
            number: 0x1112,
            answer,
        };
        let mut expected = [0; CONTROL_LEN];
        expected[..8].copy_from_slice(&[b'f', b'b', b'c', b't', 13, 0, 0x22, 0x21]);
        expected[8..10].copy_from_slice(&[0x12, 0x11]);
        expected[16..24].copy_from_slice(&[8, 7, 6, 5, 4, 3, 2, 1]);
        expected[24..26].copy_from_slice(&[0x32, 0x31]);
        assert_eq!(answer.encode().as_slice(), expected);
        assert_eq!(Control::parse(ControlKind(13), &expected), Ok(answer));
    }

    #[test]
    fn a_publication_begins_with_these_bytes() {
        let publication = PublicationPrefix {
            tag: 0x0102_0304_0506_0708,
            number: 0x1112_1314_1516_1718,
        };
        let expected = [
            8, 7, 6, 5, 4, 3, 2, 1, 0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11,
        ];
        assert_eq!(publication.encode(), expected);
        assert_eq!(PublicationPrefix::parse(&expected), Ok(publication));
        let short = WireError::Short { len: 15, need: 16 };
        assert_eq!(PublicationPrefix::parse(&expected[..15]), Err(short));
    }

    #[test]
    fn outcomes_say_what_they_are() {
        let told = SubscriptionOutcome(77).to_string();
        assert_eq!(told, "the publisher refused with code 77");
        assert_eq!(format!("{:?}", SubscriptionOutcome::ALREADY), "ALREADY");
        assert!(SubscriptionOutcome::ALREADY.is_granted());
        assert!(!SubscriptionOutcome::TOO_MANY_HERE.is_granted());
    }
}
