//! What sources and builders say to each other: a header of 40 bytes, and a payload behind it. All
//! numbers are little-endian.
//!
//! | message | from | payload |
//! |---|---|---|
//! | Hello | source | none: its detectors, and the port at its address that takes answers |
//! | Fragment | source | the bytes of one detector for one event |
//! | End | source | none: how much it has sent on this connection |
//! | Ready | builder | none: start, and how many fragments of which length it takes ahead |
//! | Built, Lost | builder | the numbers of events that are complete, or given up, 8 bytes each |
//! | Summary | builder | its counts and the times that it measured |

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of every header.
pub(crate) const HEADER_LEN: usize = 40;
/// Events in one answer, at most.
pub(crate) const ANSWER_EVENTS_MAX: usize = ANSWER_LEN_MAX / 8;
/// Bytes of the longest payload of an answer.
pub(crate) const ANSWER_LEN_MAX: usize = 16_384;
/// Detectors of a whole experiment: builders keep a bit for each.
pub(crate) const DETECTORS_MAX: u16 = 64;

const MAGIC: [u8; 2] = *b"F3";
const HELLO: u8 = 1;
const FRAGMENT: u8 = 2;
const END: u8 = 3;
const READY: u8 = 4;
const BUILT: u8 = 5;
const LOST: u8 = 6;
const SUMMARY: u8 = 7;

/// Flag of a hello: fragments carry a pattern and its CRC32C.
const CHECKED: u8 = 1;
/// Flag of a fragment: its event was another builder's, so it comes out of order.
const REASSIGNED: u8 = 1;

/// One layout for all kinds of message: that of a fragment, which others use for what they have.
/// What a kind does not use is 0.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct HeaderWire {
    magic: [u8; 2],
    kind: u8,
    flags: u8,
    detector: u8,
    count: u8,
    /// Of a hello.
    port: U16,
    payload_len: U32,
    crc: U32,
    /// Or the clock of a hello, the bytes of an end, the longest fragment of a ready.
    event: U64,
    /// Or the fragments of an end or a ready.
    serial: U64,
    /// When a fragment was committed; of a hello and of answers, the token.
    stamp: U64,
}

const _: () = assert!(size_of::<HeaderWire>() == HEADER_LEN);

impl HeaderWire {
    fn new(kind: u8, payload_len: usize) -> Self {
        Self {
            magic: MAGIC,
            kind,
            payload_len: u32::try_from(payload_len)
                .expect("fragments and answers are far below 4 GiB")
                .into(),
            ..Self::new_zeroed()
        }
    }

    fn bytes(self) -> [u8; HEADER_LEN] {
        zerocopy::transmute!(self)
    }

    /// Everything that must be true of any message.
    fn parse(header: &[u8], payload_len: usize) -> Result<Self, &'static str> {
        let Ok(wire) = Self::read_from_bytes(header) else {
            return Err("a header of the wrong length");
        };
        if wire.magic != MAGIC {
            return Err("a header that is none of this program's");
        }
        if wire.payload_len.get() as usize != payload_len {
            return Err("a message whose length is not the one in its header");
        }
        Ok(wire)
    }
}

/// The number of a detector, or of some detectors.
fn detector_byte(number: u16) -> u8 {
    u8::try_from(number).expect("there are `DETECTORS_MAX` at most")
}

/// A source's first words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) first_detector: u16,
    pub(crate) detectors: u16,
    /// Where answers go to, at the source's address, and what proves them to be answers.
    pub(crate) port: u16,
    pub(crate) token: u64,
    /// See [`clock_id`](crate::readout::clock::clock_id).
    pub(crate) clock: u64,
    /// Fragments carry a pattern and its CRC32C.
    pub(crate) checked: bool,
}

/// What stands before the bytes of a fragment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fragment {
    pub(crate) event: u64,
    pub(crate) detector: u16,
    /// Fragments that the source has of this event: fewer than its detectors where a full ring cost
    /// one.
    pub(crate) of: u16,
    /// The fragment's number on the connection, from 0.
    pub(crate) serial: u64,
    /// When it was committed to the ring, by the machine's clock.
    pub(crate) committed: u64,
    pub(crate) crc: u32,
    pub(crate) reassigned: bool,
}

/// How much a source has sent on one connection, or a builder received.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Volume {
    pub(crate) fragments: u64,
    /// Without headers.
    pub(crate) bytes: u64,
}

/// What a source says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ToBuilder {
    Hello(Hello),
    Fragment(Fragment),
    End(Volume),
}

impl ToBuilder {
    pub(crate) fn encode(self, payload_len: usize) -> [u8; HEADER_LEN] {
        let wire = match self {
            Self::Hello(hello) => HeaderWire {
                flags: u8::from(hello.checked) * CHECKED,
                detector: detector_byte(hello.first_detector),
                count: detector_byte(hello.detectors),
                port: hello.port.into(),
                stamp: hello.token.into(),
                event: hello.clock.into(),
                ..HeaderWire::new(HELLO, payload_len)
            },
            Self::Fragment(fragment) => HeaderWire {
                flags: u8::from(fragment.reassigned) * REASSIGNED,
                event: fragment.event.into(),
                detector: detector_byte(fragment.detector),
                count: detector_byte(fragment.of),
                serial: fragment.serial.into(),
                stamp: fragment.committed.into(),
                crc: fragment.crc.into(),
                ..HeaderWire::new(FRAGMENT, payload_len)
            },
            Self::End(sent) => HeaderWire {
                serial: sent.fragments.into(),
                event: sent.bytes.into(),
                ..HeaderWire::new(END, payload_len)
            },
        };
        wire.bytes()
    }

    pub(crate) fn parse(header: &[u8], payload_len: usize) -> Result<Self, &'static str> {
        let wire = HeaderWire::parse(header, payload_len)?;
        match wire.kind {
            FRAGMENT => Ok(Self::Fragment(Fragment {
                event: wire.event.get(),
                detector: wire.detector.into(),
                of: wire.count.into(),
                serial: wire.serial.get(),
                committed: wire.stamp.get(),
                crc: wire.crc.get(),
                reassigned: wire.flags & REASSIGNED != 0,
            })),
            HELLO if payload_len == 0 => Ok(Self::Hello(Hello {
                first_detector: wire.detector.into(),
                detectors: wire.count.into(),
                port: wire.port.get(),
                token: wire.stamp.get(),
                clock: wire.event.get(),
                checked: wire.flags & CHECKED != 0,
            })),
            END if payload_len == 0 => Ok(Self::End(Volume {
                fragments: wire.serial.get(),
                bytes: wire.event.get(),
            })),
            _ => Err("a message of no kind that a source may send"),
        }
    }
}

/// What a builder takes from each source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Grant {
    /// Fragments that it keeps, those of events that it has not answered for.
    pub(crate) fragments: u32,
    /// Bytes of the longest one.
    pub(crate) longest: u32,
}

/// What a builder answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    Ready(Grant),
    Built,
    Lost,
    Summary,
}

impl Answer {
    pub(crate) fn encode(self, token: u64, payload_len: usize) -> [u8; HEADER_LEN] {
        let (kind, grant) = match self {
            Self::Ready(grant) => (READY, Some(grant)),
            Self::Built => (BUILT, None),
            Self::Lost => (LOST, None),
            Self::Summary => (SUMMARY, None),
        };
        let wire = HeaderWire {
            stamp: token.into(),
            event: grant.map_or(0, |grant| grant.longest.into()).into(),
            serial: grant.map_or(0, |grant| grant.fragments.into()).into(),
            ..HeaderWire::new(kind, payload_len)
        };
        wire.bytes()
    }

    /// The answer, and the token of the builder that gives it.
    pub(crate) fn parse(header: &[u8], payload: &[u8]) -> Result<(Self, u64), &'static str> {
        let wire = HeaderWire::parse(header, payload.len())?;
        let answer = match wire.kind {
            READY => Self::Ready(Grant {
                fragments: u32::try_from(wire.serial.get()).unwrap_or(u32::MAX),
                longest: u32::try_from(wire.event.get()).unwrap_or(u32::MAX),
            }),
            BUILT if payload.len().is_multiple_of(8) => Self::Built,
            LOST if payload.len().is_multiple_of(8) => Self::Lost,
            SUMMARY => Self::Summary,
            _ => return Err("a message of no kind that a builder may send"),
        };
        Ok((answer, wire.stamp.get()))
    }
}

/// Writes words; returns how many bytes they take.
pub(crate) fn put_words(out: &mut [u8], words: impl Iterator<Item = u64>) -> usize {
    let mut len = 0;
    for (bytes, word) in out.chunks_exact_mut(8).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes());
        len += 8;
    }
    len
}

/// The words in whole groups of 8 bytes.
pub(crate) fn words(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes
        .as_chunks()
        .0
        .iter()
        .map(|word| u64::from_le_bytes(*word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_back_as_they_went() {
        let hello = Hello {
            first_detector: 3,
            detectors: 5,
            port: 40_000,
            token: u64::MAX,
            clock: 7,
            checked: true,
        };
        let fragment = Fragment {
            event: 1 << 47,
            detector: 63,
            of: 64,
            serial: 9,
            committed: 10,
            crc: u32::MAX,
            reassigned: true,
        };
        let end = Volume {
            fragments: 11,
            bytes: 12,
        };
        for (message, len) in [
            (ToBuilder::Hello(hello), 0),
            (ToBuilder::Fragment(fragment), 4096),
            (ToBuilder::End(end), 0),
        ] {
            let header = message.encode(len);
            assert_eq!(ToBuilder::parse(&header, len), Ok(message));
            assert!(ToBuilder::parse(&header, len + 1).is_err());
            assert!(ToBuilder::parse(&header[1..], len).is_err());
            assert!(Answer::parse(&header, &vec![0; len]).is_err());
        }
        let ready = Answer::Ready(Grant {
            fragments: 32_768,
            longest: 4096,
        });
        for answer in [ready, Answer::Built, Answer::Lost, Answer::Summary] {
            let header = answer.encode(5, 16);
            assert_eq!(Answer::parse(&header, &[0; 16]), Ok((answer, 5)));
            assert!(Answer::parse(&header, &[0; 15]).is_err());
        }
        let header = Answer::Built.encode(5, 15);
        assert!(Answer::parse(&header, &[0; 15]).is_err(), "half a number");
    }

    #[test]
    fn words_come_back_as_they_went() {
        let mut bytes = [0; 24];
        let numbers = [1, u64::MAX, 0x0102_0304_0506_0708];
        assert_eq!(put_words(&mut bytes, numbers.into_iter()), 24);
        assert!(words(&bytes).eq(numbers));
    }
}
