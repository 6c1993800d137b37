//! What the two sides say to each other: one fixed header a message, little-endian, parsed without trust.
//!
//! ```text
//!  sender                                               receiver
//!    │ Hello  where to send answers, and a token            │
//!    │ Open   size; payload: the name                       │
//!    │ Block  index, offset; payload: the bytes      ×n     │   the data connection
//!    │ Close  CRC32C of all bytes                           │
//!    ├─────────────────────────────────────────────────────►│
//!    │◄─────────────────────────────────────────────────────┤
//!    │ Reply  written, or why not; one for each Open        │   the return connection
//! ```
//!
//! A connection of this library carries data one way, so the receiver answers over a second one, which it makes to a
//! listener of the sender's. The next `Open` follows the reply to the last: so neither side ever queues replies.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of every header. The block behind it is then as aligned as the buffer that it was received into.
pub(crate) const HEADER_LEN: usize = 64;
/// The longest name that file systems take, in bytes.
pub(crate) const NAME_LEN_MAX: usize = 255;
/// The longest text of a reply, in bytes.
pub(crate) const REASON_LEN_MAX: usize = 512;

const MAGIC: [u8; 4] = *b"FCS1";
const HELLO: u8 = 1;
const OPEN: u8 = 2;
const BLOCK: u8 = 3;
const CLOSE: u8 = 4;
const WRITTEN: u8 = 5;
const FAILED: u8 = 6;

/// One layout for all kinds of message; what a kind does not use is 0.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct HeaderWire {
    magic: [u8; 4],
    kind: u8,
    reserved: u8,
    port: U16,
    file: U32,
    payload_len: U32,
    index: U64,
    offset: U64,
    size: U64,
    crc: U32,
    reserved2: U32,
    token: U64,
    reserved3: U64,
}

const _: () = assert!(size_of::<HeaderWire>() == HEADER_LEN);

impl HeaderWire {
    fn new(kind: u8, file: u32, payload_len: usize) -> Self {
        Self {
            magic: MAGIC,
            kind,
            file: file.into(),
            payload_len: u32::try_from(payload_len)
                .expect("a buffer is far below 4 GiB")
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

/// What a sender says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Request {
    /// The first message: the port at the sender's address that takes replies, and what proves them to be replies.
    Hello { port: u16, token: u64 },
    /// A file begins; its name is the payload.
    Open { file: u32, size: u64 },
    /// The next bytes of the file: the payload.
    Block { file: u32, index: u64, offset: u64 },
    /// The file is complete.
    Close { file: u32, crc: u32 },
}

impl Request {
    pub(crate) fn encode(self, payload_len: usize) -> [u8; HEADER_LEN] {
        let wire = |kind, file| HeaderWire::new(kind, file, payload_len);
        let wire = match self {
            Self::Hello { port, token } => HeaderWire {
                port: port.into(),
                token: token.into(),
                ..wire(HELLO, 0)
            },
            Self::Open { file, size } => HeaderWire {
                size: size.into(),
                ..wire(OPEN, file)
            },
            Self::Block {
                file,
                index,
                offset,
            } => HeaderWire {
                index: index.into(),
                offset: offset.into(),
                ..wire(BLOCK, file)
            },
            Self::Close { file, crc } => HeaderWire {
                crc: crc.into(),
                ..wire(CLOSE, file)
            },
        };
        wire.bytes()
    }

    pub(crate) fn parse(header: &[u8], payload_len: usize) -> Result<Self, &'static str> {
        let wire = HeaderWire::parse(header, payload_len)?;
        let file = wire.file.get();
        match wire.kind {
            HELLO if payload_len == 0 => Ok(Self::Hello {
                port: wire.port.get(),
                token: wire.token.get(),
            }),
            OPEN => Ok(Self::Open {
                file,
                size: wire.size.get(),
            }),
            BLOCK if payload_len > 0 => Ok(Self::Block {
                file,
                index: wire.index.get(),
                offset: wire.offset.get(),
            }),
            CLOSE if payload_len == 0 => Ok(Self::Close {
                file,
                crc: wire.crc.get(),
            }),
            _ => Err("a message of no kind that a sender may send"),
        }
    }
}

/// What the receiver answers: how one file ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) token: u64,
    pub(crate) file: u32,
    pub(crate) outcome: Outcome,
}

/// How one file ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It lies under its name, whole.
    Written { size: u64, crc: u32 },
    /// Nothing lies under its name. The text is the payload.
    Failed { reason: String },
}

impl Reply {
    /// The text of the reply, cut to what a receiver of replies takes.
    pub(crate) fn payload(&self) -> &str {
        match &self.outcome {
            Outcome::Written { .. } => "",
            Outcome::Failed { reason } => cut(reason, REASON_LEN_MAX),
        }
    }

    pub(crate) fn encode(&self) -> [u8; HEADER_LEN] {
        let (kind, size, crc) = match self.outcome {
            Outcome::Written { size, crc } => (WRITTEN, size, crc),
            Outcome::Failed { .. } => (FAILED, 0, 0),
        };
        let wire = HeaderWire {
            token: self.token.into(),
            size: size.into(),
            crc: crc.into(),
            ..HeaderWire::new(kind, self.file, self.payload().len())
        };
        wire.bytes()
    }

    pub(crate) fn parse(header: &[u8], payload: &[u8]) -> Result<Self, &'static str> {
        let wire = HeaderWire::parse(header, payload.len())?;
        let outcome = match wire.kind {
            WRITTEN if payload.is_empty() => Outcome::Written {
                size: wire.size.get(),
                crc: wire.crc.get(),
            },
            FAILED if payload.len() <= REASON_LEN_MAX => Outcome::Failed {
                reason: printable(payload),
            },
            _ => return Err("a message of no kind that a receiver may send"),
        };
        Ok(Self {
            token: wire.token.get(),
            file: wire.file.get(),
            outcome,
        })
    }
}

/// The beginning of `text`, of at most `max` bytes, no character cut in two.
fn cut(text: &str, max: usize) -> &str {
    let mut len = text.len().min(max);
    while !text.is_char_boundary(len) {
        len -= 1;
    }
    &text[..len]
}

/// A peer's text, made safe for a terminal.
fn printable(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    text.chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect()
}

/// A name that a peer gave, if it can only name a file in the directory itself.
pub(crate) fn file_name(bytes: &[u8]) -> Result<OsString, &'static str> {
    if bytes.is_empty() || bytes.len() > NAME_LEN_MAX {
        return Err("a name that is empty or longer than 255 bytes");
    }
    if bytes == b"." || bytes == b".." || bytes.contains(&b'/') {
        return Err("a name that leads elsewhere");
    }
    if bytes.iter().any(u8::is_ascii_control) {
        return Err("a name with control characters");
    }
    Ok(OsString::from_vec(bytes.to_vec()))
}
