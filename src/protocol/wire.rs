//! The bytes that two endpoints exchange besides the messages themselves: hello, refusal, control
//! messages, header framing.
//!
//! Everything is little-endian, versioned and written down byte by byte in `docs/wire.md`. A parser
//! trusts nothing: it never panics, never allocates, and says with a [`WireError`] what it did not
//! like.

use std::fmt;
use std::ops::Range;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The newest wire version that this library speaks.
pub(crate) const VERSION: u16 = 2;
/// The oldest wire version that this library still speaks.
pub(crate) const OLDEST: u16 = 2;

/// Bytes of a hello, a hello-ack and a refusal. All three fit the smallest CM private data (56
/// bytes, verbs over RDMA CM).
pub(crate) const HELLO_LEN: usize = 48;
/// Bytes of a refusal that carry something; the rest is reserved.
const REFUSAL_LEN_MIN: usize = 32;
/// Bytes of a control message on an established connection.
pub(crate) const CONTROL_LEN: usize = 32;
/// Bytes that a receive buffer for control messages has. A later version may use the room.
pub(crate) const CONTROL_LEN_MAX: usize = 64;

/// Feature bit 0: answers heartbeats.
pub(crate) const FEATURE_HEARTBEAT: u32 = 1;

/// Largest receive depth, in messages, that a peer is believed.
pub(crate) const CREDIT_WINDOW_MAX: u32 = 1 << 20;
/// Bytes in front of a header in [`HeaderMode::Prefixed`].
pub(crate) const PREFIX_LEN: usize = 2;

/// Feature bit: the speaker knows windows, and has receives for the messages about them.
pub(crate) const FEATURE_WINDOWS: u32 = 1 << 1;

/// Feature bit: an acceptor publishes, an initiator subscribes; each has a receive for the other's
/// messages about that.
pub(crate) const FEATURE_PUBLISH: u32 = 1 << 2;

/// Feature bit: the speaker sends long messages, or takes some, and has receives for what is said
/// about them.
pub(crate) const FEATURE_LONG: u32 = 1 << 3;

/// Feature bit, beside [`FEATURE_LONG`]: the speaker takes messages, but no long ones. It refuses
/// those that it is offered by who does not know this bit.
pub(crate) const FEATURE_TAKES_NO_LONG: u32 = 1 << 6;

/// RDM form: the speaker's provider has 4 bytes of CQ data, not 8: data messages carry short marks,
/// in both directions.
pub(crate) const FEATURE_SHORT_MARKS: u32 = 1 << 5;
/// Feature bit: headers may travel in messages of their own, and the speaker has a second receive
/// for each credit.
pub(crate) const FEATURE_TWO_MESSAGES: u32 = 1 << 4;

/// First bytes of a hello, a hello-ack and a refusal.
const MAGIC: [u8; 4] = *b"FbCt";
/// First bytes of a control message; another word than [`MAGIC`], so that one is never read as the
/// other.
const CONTROL_TAG: [u8; 4] = *b"fbct";

const HELLO: u8 = 1;
const HELLO_ACK: u8 = 2;
const REFUSAL: u8 = 3;

const MODE_RAW: u8 = 0;
const MODE_PREFIXED: u8 = 1;
const MODE_FIXED: u8 = 2;

/// Why bytes from a peer could not be understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// There are fewer bytes than the format needs.
    #[error("{len} bytes where at least {need} are needed")]
    Short {
        /// Bytes that came.
        len: usize,
        /// Bytes that the format needs.
        need: usize,
    },
    /// The first four bytes are not ours: another program talks to this endpoint.
    #[error("the first four bytes are {0:02x?}, not those of fabricast")]
    Magic([u8; 4]),
    /// The two sides have no wire version in common.
    #[error(
        "the peer speaks wire versions {oldest_theirs} to {theirs}, this side {oldest_ours} to \
         {ours}"
    )]
    Version {
        /// Newest version of the peer.
        theirs: u16,
        /// Oldest version of the peer.
        oldest_theirs: u16,
        /// Newest version of this side.
        ours: u16,
        /// Oldest version of this side.
        oldest_ours: u16,
    },
    /// The kind byte is unknown, or of a message that has no place here.
    #[error("a message of kind {0} has no place here")]
    Kind(u8),
    /// A field has a value that it can't have.
    #[error("{name} can't be {value}")]
    Field {
        /// Name of the field in docs/wire.md.
        name: &'static str,
        /// What it was.
        value: u64,
    },
}

/// How a message is divided into a header and a payload on the wire.
///
/// The hello of each side says how it frames what *it* sends; the receiver divides by that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum HeaderMode {
    /// Each message begins with a header of exactly this many bytes.
    Fixed(u16),
    /// Each message begins with the length of its header (two bytes), then the header.
    Prefixed,
    /// Nothing says where the header ends: the receiver gets header and payload as one run.
    #[default]
    Raw,
}

impl HeaderMode {
    /// Bytes that the framing itself puts in front of the header.
    pub fn overhead(self) -> usize {
        match self {
            Self::Prefixed => PREFIX_LEN,
            Self::Fixed(_) | Self::Raw => 0,
        }
    }

    /// Whether a header of `len` bytes can be sent in this mode.
    pub fn admits(self, len: usize) -> bool {
        match self {
            Self::Fixed(n) => len == usize::from(n),
            Self::Prefixed => len <= usize::from(u16::MAX),
            Self::Raw => true,
        }
    }

    fn to_wire(self) -> (u8, u16) {
        match self {
            Self::Raw => (MODE_RAW, 0),
            Self::Prefixed => (MODE_PREFIXED, 0),
            Self::Fixed(n) => (MODE_FIXED, n),
        }
    }

    fn from_wire(mode: u8, len: u16) -> Result<Self, WireError> {
        match (mode, len) {
            (MODE_RAW, 0) => Ok(Self::Raw),
            (MODE_PREFIXED, 0) => Ok(Self::Prefixed),
            (MODE_FIXED, n) => Ok(Self::Fixed(n)),
            (MODE_RAW | MODE_PREFIXED, n) => Err(field("header_len", n)),
            (other, _) => Err(field("header_mode", other)),
        }
    }

    /// Mode and length in one number, as a refusal carries them.
    pub(crate) fn to_detail(self) -> u64 {
        let (mode, len) = self.to_wire();
        u64::from(mode) << 16 | u64::from(len)
    }

    fn from_detail(detail: u64) -> Option<Self> {
        let mode = u8::try_from(detail >> 16).ok()?;
        Self::from_wire(mode, detail as u16).ok()
    }
}

impl fmt::Display for HeaderMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(n) => write!(f, "headers of {n} bytes"),
            Self::Prefixed => f.write_str("headers with a length in front"),
            Self::Raw => f.write_str("no header framing"),
        }
    }
}

/// The two bytes in front of a header in [`HeaderMode::Prefixed`].
pub(crate) fn prefix(header_len: u16) -> [u8; PREFIX_LEN] {
    header_len.to_le_bytes()
}

/// Where header and payload lie in a message that came from a peer.
///
/// # Errors
///
/// [`WireError::Short`] when the message ends before its header does.
pub(crate) fn split(
    mode: HeaderMode,
    message: &[u8],
) -> Result<(Range<usize>, Range<usize>), WireError> {
    let len = message.len();
    let header = match mode {
        HeaderMode::Raw => 0..0,
        HeaderMode::Fixed(n) => 0..usize::from(n),
        HeaderMode::Prefixed => {
            let short = WireError::Short {
                len,
                need: PREFIX_LEN,
            };
            let (n, _) = U16::read_from_prefix(message).map_err(|_| short)?;
            PREFIX_LEN..PREFIX_LEN + usize::from(n.get())
        }
    };
    let need = header.end;
    if len < need {
        return Err(WireError::Short { len, need });
    }
    Ok((header, need..len))
}

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

    /// The refusal that answers a hello which [`Hello::parse`] did not like.
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

    /// Two numbers that belong to the code: for `TOO_MANY_CONNECTIONS` the limit, for
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
            Self(other) => return write!(f, "ControlKind({other})"),
        };
        f.write_str(name)
    }
}

/// How many bits of the CQ data are the connection index: the low ones.
pub(crate) const INDEX_BITS: u32 = 24;

/// Which bits those are.
pub(crate) const INDEX_MASK: u32 = (1 << INDEX_BITS) - 1;

/// The bit that says that a mark is a short one: kinds are below 128.
const SHORT: u32 = 1 << 31;

/// Where the low two bits of the kind lie in a short mark: those of [`ControlKind::DATA`] and of
/// what else is numbered.
const SHORT_KIND: u32 = 29;

/// Where the number lies in a short mark.
const SHORT_NUMBER: u32 = 15;

/// The connection index in a short mark.
pub(crate) const SHORT_INDEX_MASK: u32 = (1 << SHORT_NUMBER) - 1;

/// Numbers of messages with short marks are modulo this.
pub(crate) const SHORT_NUMBERS: u32 = 1 << (SHORT_KIND - SHORT_NUMBER);

/// The most data messages that may be granted with short marks: each may be two, and together they
/// are half of the numbers.
pub(crate) const SHORT_DEPTH_MAX: u32 = SHORT_NUMBERS / 4;

/// RDM form: the mark of numbered messages of a kind (32 to 35), without their numbers. Where a
/// provider has but 4 bytes of CQ data (`short`), the number has to go in there, too.
pub(crate) fn mark(short: bool, kind: ControlKind, index: u32) -> u32 {
    if short {
        SHORT | u32::from(kind.0 & 3) << SHORT_KIND | index & SHORT_INDEX_MASK
    } else {
        cq_data(kind, index)
    }
}

/// Whether a mark is a short one.
pub(crate) fn is_short(mark: u32) -> bool {
    mark & SHORT != 0
}

/// RDM form: the CQ data of a data message, with its number: in the high half (modulo 2^32), or
/// between the bits of a short mark.
#[inline]
pub(crate) fn numbered(mark: u32, number: u64) -> u64 {
    if is_short(mark) {
        return u64::from(mark | (number as u32 % SHORT_NUMBERS) << SHORT_NUMBER);
    }
    number << u32::BITS | u64::from(mark)
}

/// RDM form: the same CQ data with a number that is lower by so much.
pub(crate) fn renumbered(cq_data: u64, by: u32) -> u64 {
    let (mark, number) = split_numbered(cq_data);
    numbered(mark, number.wrapping_sub(by).into())
}

/// RDM form: the mark in CQ data, and the number of a data message (with a short mark: modulo
/// [`SHORT_NUMBERS`]).
pub(crate) fn split_numbered(cq_data: u64) -> (u32, u32) {
    let (mark, high) = (cq_data as u32, (cq_data >> u32::BITS) as u32);
    if is_short(mark) && high == 0 {
        let number = mark >> SHORT_NUMBER & (SHORT_NUMBERS - 1);
        return (mark & !(number << SHORT_NUMBER), number);
    }
    (mark, high)
}

/// The CQ data of a control message; the index is 0 where the endpoint itself is the connection.
pub(crate) fn cq_data(kind: ControlKind, index: u32) -> u32 {
    u32::from(kind.0) << 24 | index & INDEX_MASK
}

/// Kind and connection index of a message that came with CQ data.
pub(crate) fn split_cq_data(cq_data: u32) -> (ControlKind, u32) {
    if is_short(cq_data) {
        let kind = ControlKind::DATA.0 | (cq_data >> SHORT_KIND & 3) as u8;
        return (ControlKind(kind), cq_data & SHORT_INDEX_MASK);
    }
    (ControlKind((cq_data >> 24) as u8), cq_data & INDEX_MASK)
}

/// The immediate data of a one-sided write: whose window it is, and what the application says.
pub(crate) fn written_data(mark: u32, data: u32) -> u64 {
    u64::from(data) << 32 | u64::from(cq_data(ControlKind::WRITTEN, mark))
}

/// The window's mark and the application's data, if these are the immediate data of a one-sided
/// write.
pub(crate) fn split_written(immediate: u64) -> Option<(u32, u32)> {
    let (kind, mark) = split_cq_data(immediate as u32);
    let is_it = kind == ControlKind::WRITTEN && !is_short(immediate as u32);
    is_it.then_some((mark, (immediate >> 32) as u32))
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
    bytes: [u8; HELLO_LEN],
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

fn read<T: FromBytes>(bytes: &[u8]) -> Result<T, WireError> {
    let short = WireError::Short {
        len: bytes.len(),
        need: size_of::<T>(),
    };
    T::read_from_prefix(bytes)
        .map(|(value, _)| value)
        .map_err(|_| short)
}

fn field(name: &'static str, value: impl Into<u64>) -> WireError {
    WireError::Field {
        name,
        value: value.into(),
    }
}

/// Runs every parser over `bytes` and checks that what is understood is written again as it was.
/// The fuzz target and the tests call it.
///
/// # Panics
///
/// When a parser and its writer disagree, which is what the fuzzer looks for.
#[cfg(any(test, fuzzing))]
pub(crate) fn exercise(bytes: &[u8]) {
    if let Ok(hello) = Hello::parse(bytes) {
        assert_eq!(
            hello.encode(),
            bytes[..HELLO_LEN],
            "a hello has no bytes to spare"
        );
        assert!(hello.credits <= hello.receive_depth);
    }
    if let Ok(refusal) = Refusal::parse(bytes) {
        assert_eq!(Refusal::parse(&refusal.encode()), Ok(refusal));
        assert!(!refusal.to_string().is_empty());
    }
    for kind in 0..=u8::MAX {
        if let Ok(control) = Control::parse(ControlKind(kind), bytes) {
            assert_eq!(control.kind(), ControlKind(kind));
            assert_eq!(
                Control::parse(control.kind(), control.encode().as_slice()),
                Ok(control)
            );
        }
    }
    if let Some(data) = bytes.first_chunk().map(|data| u64::from_le_bytes(*data)) {
        let (mark, number) = split_numbered(data);
        let has_both = is_short(mark) && data >> u32::BITS != 0;
        assert!(has_both || numbered(mark, number.into()) == data);
        assert!(split_cq_data(mark).1 <= INDEX_MASK);
        if let Some((window, said)) = split_written(data) {
            assert_eq!(written_data(window, said), data);
        }
    }
    if let Ok(publication) = PublicationPrefix::parse(bytes) {
        assert_eq!(publication.encode(), bytes[..PUBLICATION_LEN]);
    }
    if let Ok(window) = WindowDescriptor::parse(bytes) {
        assert_eq!(WindowDescriptor::parse(&window.to_bytes()), Ok(window));
        assert!(window.base().checked_add(window.len()).is_some());
    }
    let fixed = bytes.first().map_or(0, |byte| u16::from(*byte));
    for mode in [
        HeaderMode::Raw,
        HeaderMode::Prefixed,
        HeaderMode::Fixed(fixed),
    ] {
        if let Ok((header, payload)) = split(mode, bytes) {
            assert!(mode.overhead() <= header.start || header.start == header.end);
            assert_eq!((header.end, payload.end), (payload.start, bytes.len()));
            assert!(mode == HeaderMode::Raw || mode.admits(header.len()));
        }
    }
}

mod subscription;
mod window;

pub use subscription::SubscriptionOutcome;
pub(crate) use subscription::{
    PUBLICATION_LEN, PublicationPrefix, SubscriptionAnswer, SubscriptionRequest,
};
pub use window::{WINDOW_DESCRIPTOR_LEN, WindowDescriptor, WindowId};

#[cfg(test)]
mod tests;
