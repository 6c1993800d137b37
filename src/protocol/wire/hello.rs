//! `Hello`: what both sides say of themselves when a connection begins.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{HELLO_LEN, HeaderMode, MAGIC, OLDEST, VERSION, WireError, field, read};

const HELLO: u8 = 1;
const HELLO_ACK: u8 = 2;

/// Which of the two greetings a hello is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HelloKind {
    /// The initiator's.
    Hello,
    /// The acceptor's answer.
    Ack,
}

/// What one side tells the other before the first message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) kind: HelloKind,
    /// How the speaker frames the messages that it sends.
    pub(crate) header_mode: HeaderMode,
    /// Newest version of the speaker.
    pub(crate) version: u16,
    /// Oldest version of the speaker.
    pub(crate) oldest: u16,
    /// What the speaker can do (`FEATURE_...`); only what both can do is used.
    pub(crate) features: u32,
    /// Largest whole message (framing, header and payload) that the speaker takes, in bytes; 0 when
    /// it takes none.
    pub(crate) receive_size: u64,
    /// How many data messages the speaker can ever have room for at a time.
    pub(crate) receive_depth: u32,
    /// How many data messages the other side may send before it is granted more; at most
    /// `receive_depth`.
    pub(crate) credits: u32,
    /// Which life of the speaker's endpoint this is.
    pub(crate) incarnation: u64,
    /// The speaker's number for this connection; in the RDM form the low 24 bits are how it wants
    /// to be addressed.
    pub(crate) connection: u64,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct HelloWire {
    magic: [u8; 4],
    kind: u8,
    header_mode: u8,
    header_len: U16,
    version: U16,
    oldest: U16,
    features: U32,
    receive_size: U64,
    receive_depth: U32,
    credits: U32,
    incarnation: U64,
    connection: U64,
}

const _: () = assert!(size_of::<HelloWire>() == HELLO_LEN);

impl Hello {
    /// The 48 bytes.
    pub(crate) fn encode(&self) -> [u8; HELLO_LEN] {
        let (header_mode, header_len) = self.header_mode.to_wire();
        let wire = HelloWire {
            magic: MAGIC,
            kind: match self.kind {
                HelloKind::Hello => HELLO,
                HelloKind::Ack => HELLO_ACK,
            },
            header_mode,
            header_len: header_len.into(),
            version: self.version.into(),
            oldest: self.oldest.into(),
            features: self.features.into(),
            receive_size: self.receive_size.into(),
            receive_depth: self.receive_depth.into(),
            credits: self.credits.into(),
            incarnation: self.incarnation.into(),
            connection: self.connection.into(),
        };
        zerocopy::transmute!(wire)
    }

    /// Reads the first 48 bytes; what follows is ignored, because providers pad CM data.
    ///
    /// # Errors
    ///
    /// Any [`WireError`]. The version is judged before the fields, so a future layout is reported
    /// as a version.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let wire = read::<HelloWire>(bytes)?;
        if wire.magic != MAGIC {
            return Err(WireError::Magic(wire.magic));
        }
        let kind = match wire.kind {
            HELLO => HelloKind::Hello,
            HELLO_ACK => HelloKind::Ack,
            other => return Err(WireError::Kind(other)),
        };
        let (version, oldest) = (wire.version.get(), wire.oldest.get());
        check_versions(version, oldest)?;
        let hello = Self {
            kind,
            header_mode: HeaderMode::from_wire(wire.header_mode, wire.header_len.get())?,
            version,
            oldest,
            features: wire.features.get(),
            receive_size: wire.receive_size.get(),
            receive_depth: wire.receive_depth.get(),
            credits: wire.credits.get(),
            incarnation: wire.incarnation.get(),
            connection: wire.connection.get(),
        };
        if hello.credits > hello.receive_depth {
            return Err(field("credits", hello.credits));
        }
        if hello.receive_size == 0 && hello.credits != 0 {
            return Err(field("receive_size", 0_u8));
        }
        Ok(hello)
    }

    /// The connection number in bytes that look like a hello of whatever version: where a refusal
    /// is to go.
    pub(crate) fn peek_connection(bytes: &[u8]) -> Option<u64> {
        let wire = read::<HelloWire>(bytes).ok()?;
        (wire.magic == MAGIC && wire.kind == HELLO).then(|| wire.connection.get())
    }
}

/// The two sides can talk when their ranges of versions overlap.
fn check_versions(theirs: u16, oldest_theirs: u16) -> Result<(), WireError> {
    if theirs == 0 || oldest_theirs == 0 || oldest_theirs > theirs {
        return Err(field("oldest", oldest_theirs));
    }
    if oldest_theirs > VERSION || theirs < OLDEST {
        return Err(WireError::Version {
            theirs,
            oldest_theirs,
            ours: VERSION,
            oldest_ours: OLDEST,
        });
    }
    Ok(())
}
