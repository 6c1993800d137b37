//! `Refusal`: why a side does not take a connection, or ends it.

use std::fmt;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{CONTROL_LEN_MAX, HELLO_LEN, HeaderMode, MAGIC, OLDEST, VERSION, WireError, read};

const REFUSAL: u8 = 3;

/// Bytes of a refusal that carry something; the rest is reserved.
const REFUSAL_LEN_MIN: usize = 32;

/// Why an endpoint did not take a connection, or gave it up. A number, because a newer peer may
/// have reasons unknown here.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RefusalCode(pub u16);

impl RefusalCode {
    /// No wire version in common.
    pub const VERSION: Self = Self(1);
    /// The hello made no sense.
    pub const MALFORMED: Self = Self(2);
    /// The endpoint already has as many connections as it may have.
    pub const TOO_MANY_CONNECTIONS: Self = Self(3);
    /// The endpoint does not listen (any more).
    pub const CLOSING: Self = Self(4);
    /// The endpoint asks for another header mode.
    pub const HEADER_MODE: Self = Self(5);
    /// The application did not want this connection.
    pub const BY_APPLICATION: Self = Self(6);
    /// The peer's receive depth is above what this side keeps account of.
    pub const RECEIVE_DEPTH: Self = Self(7);
    /// An established connection was given up without a goodbye.
    pub const ABORTED: Self = Self(8);
    /// The application was asked, and did not answer within the connect timeout.
    pub const UNANSWERED: Self = Self(9);
    /// The endpoint has no receive buffers left for one connection more.
    pub const NO_BUFFERS: Self = Self(10);
    /// The endpoint asks for features that it was not offered: it publishes to subscribers only, or
    /// subscribes to publishers only.
    pub const FEATURES: Self = Self(11);
}

impl fmt::Debug for RefusalCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match *self {
            Self::VERSION => "VERSION",
            Self::MALFORMED => "MALFORMED",
            Self::TOO_MANY_CONNECTIONS => "TOO_MANY_CONNECTIONS",
            Self::CLOSING => "CLOSING",
            Self::HEADER_MODE => "HEADER_MODE",
            Self::BY_APPLICATION => "BY_APPLICATION",
            Self::RECEIVE_DEPTH => "RECEIVE_DEPTH",
            Self::ABORTED => "ABORTED",
            Self::UNANSWERED => "UNANSWERED",
            Self::NO_BUFFERS => "NO_BUFFERS",
            Self::FEATURES => "FEATURES",
            Self(other) => return write!(f, "RefusalCode({other})"),
        };
        f.write_str(name)
    }
}

/// A refused connection, with the reason in words and numbers.
///
/// Its `Display` is a whole sentence about "the endpoint", which is the one that refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    code: RefusalCode,
    version: u16,
    oldest: u16,
    details: [u64; 2],
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RefusalWire {
    magic: [u8; 4],
    kind: u8,
    reserved: u8,
    code: U16,
    version: U16,
    oldest: U16,
    reserved2: U32,
    details: [U64; 2],
}

const _: () = assert!(size_of::<RefusalWire>() == REFUSAL_LEN_MIN);
const _: () = assert!(REFUSAL_LEN_MIN <= HELLO_LEN && HELLO_LEN <= CONTROL_LEN_MAX);

impl Refusal {
    /// A refusal by this side. What the two details mean depends on the code (docs/wire.md).
    pub(crate) fn new(code: RefusalCode, details: [u64; 2]) -> Self {
        Self {
            code,
            version: VERSION,
            oldest: OLDEST,
            details,
        }
    }

    /// The refusal that answers a hello which `Hello::parse` did not like.
    pub(crate) fn of_wire_error(error: &WireError) -> Self {
        match *error {
            WireError::Version {
                theirs,
                oldest_theirs,
                ..
            } => Self::new(RefusalCode::VERSION, [theirs.into(), oldest_theirs.into()]),
            _ => Self::new(RefusalCode::MALFORMED, [0, 0]),
        }
    }

    /// Why.
    pub fn code(&self) -> RefusalCode {
        self.code
    }

    /// Two numbers that belong to the code: for `TOO_MANY_CONNECTIONS` the limit, and all that
    /// there may be where the limit is that of one host, for
    /// `BY_APPLICATION` what the application gave.
    pub fn details(&self) -> [u64; 2] {
        self.details
    }

    /// Oldest and newest wire version of the endpoint that refused.
    pub fn versions(&self) -> (u16, u16) {
        (self.oldest, self.version)
    }

    /// The bytes, as long as a hello.
    pub(crate) fn encode(&self) -> [u8; HELLO_LEN] {
        let wire = RefusalWire {
            magic: MAGIC,
            kind: REFUSAL,
            reserved: 0,
            code: self.code.0.into(),
            version: self.version.into(),
            oldest: self.oldest.into(),
            reserved2: 0.into(),
            details: [self.details[0].into(), self.details[1].into()],
        };
        let mut bytes = [0; HELLO_LEN];
        bytes[..REFUSAL_LEN_MIN].copy_from_slice(wire.as_bytes());
        bytes
    }

    /// Reads a refusal of any version: its layout is fixed for ever, or nobody could be told about
    /// versions.
    ///
    /// # Errors
    ///
    /// [`WireError::Short`], [`WireError::Magic`], [`WireError::Kind`].
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let wire = read::<RefusalWire>(bytes)?;
        if wire.magic != MAGIC {
            return Err(WireError::Magic(wire.magic));
        }
        if wire.kind != REFUSAL {
            return Err(WireError::Kind(wire.kind));
        }
        Ok(Self {
            code: RefusalCode(wire.code.get()),
            version: wire.version.get(),
            oldest: wire.oldest.get(),
            details: wire.details.map(U64::get),
        })
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [first, second] = self.details;
        match self.code {
            RefusalCode::VERSION => write!(
                f,
                "the endpoint speaks wire versions {} to {}, it was offered {second} to {first}",
                self.oldest, self.version
            ),
            RefusalCode::MALFORMED => f.write_str("the endpoint did not understand the hello"),
            RefusalCode::TOO_MANY_CONNECTIONS if second > 0 => write!(
                f,
                "the endpoint already has {first} connections from this host, as many as one host \
                 may have of its {second}"
            ),
            RefusalCode::TOO_MANY_CONNECTIONS => {
                write!(f, "the endpoint already has {first} connections, its limit")
            }
            RefusalCode::CLOSING => f.write_str("the endpoint does not take connections any more"),
            RefusalCode::HEADER_MODE => fmt_header_mode(f, first, second),
            RefusalCode::BY_APPLICATION => {
                write!(
                    f,
                    "the application at the endpoint refused (its code {first})"
                )
            }
            RefusalCode::RECEIVE_DEPTH => write!(
                f,
                "the endpoint deals with receive depths up to {second}, it was offered {first}"
            ),
            RefusalCode::ABORTED => f.write_str("the endpoint gave the connection up"),
            RefusalCode::UNANSWERED => {
                f.write_str("the application at the endpoint did not answer in time")
            }
            RefusalCode::NO_BUFFERS => write!(
                f,
                "the endpoint has {first} receive buffers free, a connection takes {second}"
            ),
            RefusalCode::FEATURES => write!(
                f,
                "the endpoint asks for features {second:#b} (bit 2: publish and subscribe), it was \
                 offered {first:#b}"
            ),
            RefusalCode(other) => {
                write!(
                    f,
                    "the endpoint refused with code {other} (details {first}, {second})"
                )
            }
        }
    }
}

fn fmt_header_mode(f: &mut fmt::Formatter<'_>, offered: u64, asked: u64) -> fmt::Result {
    match (
        HeaderMode::from_detail(asked),
        HeaderMode::from_detail(offered),
    ) {
        (Some(asked), Some(offered)) => {
            write!(f, "the endpoint asks for {asked}, it was offered {offered}")
        }
        _ => f.write_str("the endpoint asks for another header mode"),
    }
}
