//! Errors: what went wrong, where, which limit, and what to do.
//!
//! Six kinds of failure have six homes: a programmer's error panics where documented; bad configuration is
//! [`Error::Config`]; a lacking environment is [`Error::NoProvider`], [`Error::Unsupported`] or
//! [`Error::Library`]; back-pressure is [`SendErrorKind::WouldBlock`] and gives the payload back; one failed
//! operation is a [`CompletionError`] in its event; a failed endpoint says so in its last event and in
//! [`Error::Closed`] from then on.

use std::fmt;
use std::num::NonZeroI32;

use crate::buffer::Payload;
use crate::endpoint::{CloseReason, Destination, PeerError, WindowError};
use crate::fabric::Diagnosis;
use crate::memory::MemoryError;

/// A libfabric error number, positive, as `fi_errno.3` counts them.
///
/// Never an enum: a provider may answer a code that this library has never heard of.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct FabricErrno(NonZeroI32);

impl FabricErrno {
    /// What stands in for a failure that came with the code 0.
    const UNSPECIFIED: NonZeroI32 = NonZeroI32::new(libc::EIO).expect("EIO is not 0");

    /// From a positive or negative return code; 0, which names no error, becomes `EIO`.
    pub fn new(code: i32) -> Self {
        Self(NonZeroI32::new(code.saturating_abs()).unwrap_or(Self::UNSPECIFIED))
    }

    /// From what an operation returned as `ssize_t`.
    pub(crate) fn from_ssize(code: isize) -> Self {
        Self::new(i32::try_from(code).unwrap_or(libc::EIO))
    }

    /// The positive number.
    pub fn get(self) -> i32 {
        self.0.get()
    }
}

impl fmt::Display for FabricErrno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match libfabric_sys::Library::load() {
            Ok(library) => write!(f, "{} ({})", library.fi_strerror(self.get()), self.get()),
            Err(_) => write!(f, "libfabric error {}", self.get()),
        }
    }
}

impl fmt::Debug for FabricErrno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What can go wrong outside a single operation.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// libfabric is missing, too old or broken.
    #[error(transparent)]
    Library(#[from] libfabric_sys::LoadError),
    /// A libfabric call failed.
    #[error("{call}: {errno}")]
    Fabric {
        /// The C function.
        call: &'static str,
        /// Its error.
        errno: FabricErrno,
    },
    /// No provider does what was asked; which there are, and what ruled each out.
    #[error(transparent)]
    NoProvider(#[from] Box<Diagnosis>),
    /// The provider was found, but can't do what this library needs of it.
    #[error("provider {provider}: {need}")]
    Unsupported {
        /// The provider's name, as libfabric spells it.
        provider: String,
        /// What is missing.
        need: &'static str,
    },
    /// A setting is out of its range.
    #[error("setting {field} = {value}: {reason}")]
    Config {
        /// The setting's name.
        field: &'static str,
        /// Its value, as it was given.
        value: String,
        /// What is wrong with it, with the limit.
        reason: &'static str,
    },
    /// An address was not understood, or names nothing.
    #[error("address {address:?}: {reason}")]
    Address {
        /// What was given.
        address: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A system call failed.
    #[error("{call}: {source}")]
    Os {
        /// The system call.
        call: &'static str,
        /// The system's error.
        source: std::io::Error,
    },
    /// Memory could not be had.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// Memory could not be registered.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// As many domains or endpoint scopes are open in this process as there are places for.
    #[error("{limit} domains are open in this process, as many as there may be")]
    TooManyDomains {
        /// The limit.
        limit: usize,
    },
    /// The endpoint has as many connections as it may have.
    #[error(
        "the endpoint has {limit} connections, as many as it may have (setting `max_connections` or `max_peers`)"
    )]
    TooManyConnections {
        /// The limit.
        limit: u32,
    },
    /// A connection takes receive buffers, and too few are free.
    #[error(
        "{free} receive buffers are free, one connection more takes {needed} at least (setting `slots`)"
    )]
    NoReceiveBuffers {
        /// Buffers that are free.
        free: usize,
        /// Fewest that a connection takes.
        needed: usize,
    },
    /// The process may not open as many file descriptors as this needs.
    #[error(
        "{needed} file descriptors are needed and {open} are open, but RLIMIT_NOFILE is {limit} \
         (raise it with `ulimit -n` or LimitNOFILE=, or lower `max_connections`)"
    )]
    TooFewDescriptors {
        /// The soft limit in force.
        limit: u64,
        /// Descriptors that are open now.
        open: u64,
        /// Descriptors that may be needed beside them.
        needed: u64,
    },
    /// The connection is closed, or never came to be; the reason is the one of its last event.
    #[error("the connection is closed: {0}")]
    Closed(CloseReason),
    /// A completion named no operation of ours, or the completion queue broke. The endpoint is failed, for good.
    #[error("the endpoint failed: {0}")]
    EndpointFailed(&'static str),
    /// The handle was made by the process that this one was forked from. Open what is needed here, in this process.
    #[error(
        "made by process {made_by}, which this process was forked from: its connections and registrations are not shared"
    )]
    Forked {
        /// The process that made the handle.
        made_by: u32,
    },
    /// Nothing came in time.
    #[error("{what}: not within {waited:?}")]
    TimedOut {
        /// What was waited for.
        what: &'static str,
        /// How long.
        waited: std::time::Duration,
    },
}

impl Error {
    /// A failed libfabric call, by its return code.
    pub(crate) fn fabric(call: &'static str, code: impl Into<i64>) -> Self {
        let code = i32::try_from(code.into()).unwrap_or(libc::EIO);
        Self::Fabric {
            call,
            errno: FabricErrno::new(code),
        }
    }

    /// A failed system call.
    pub(crate) fn os(call: &'static str, source: impl Into<std::io::Error>) -> Self {
        Self::Os {
            call,
            source: source.into(),
        }
    }
}

/// Why memory could not be registered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// The domain already holds as many registrations as its setting allows.
    #[error(
        "this domain already holds {limit} registrations, its limit (setting `max_registrations`)"
    )]
    DomainLimit {
        /// The limit, a number of registrations.
        limit: usize,
    },
    /// The kernel would not lock that much memory.
    #[error(
        "cannot lock {asked_bytes} bytes for registration: RLIMIT_MEMLOCK is {limit_bytes} bytes \
         (raise it with `ulimit -l` or LimitMEMLOCK=)"
    )]
    MemLock {
        /// The soft limit in force, in bytes.
        limit_bytes: u64,
        /// The size of the region that was to be registered, in bytes.
        asked_bytes: u64,
    },
    /// The domain was opened by the process that this one was forked from.
    #[error("this domain was opened by process {made_by}, which this process was forked from")]
    Forked {
        /// The process that opened it.
        made_by: u32,
    },
    /// The last deregistration still waits for operations in flight.
    #[error("this region is still being deregistered: operations that use it are in flight")]
    Closing,
    /// libfabric refused for another reason.
    #[error("{call}: {errno}")]
    Fabric {
        /// The C function.
        call: &'static str,
        /// Its error.
        errno: FabricErrno,
    },
}

/// Why one operation that was accepted failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{errno}{}{provider_message}", if provider_message.is_empty() { "" } else { ": " })]
pub struct CompletionError {
    /// libfabric's error number.
    pub errno: FabricErrno,
    /// The provider's own error number, 0 if it gave none.
    pub provider_errno: i32,
    /// The provider's words for it, may be empty.
    pub provider_message: String,
    /// The peer did not take a long message: the longest that it does, in bytes.
    pub limit_bytes: Option<u64>,
}

impl CompletionError {
    /// An error that we found ourselves.
    pub(crate) fn new(errno: i32) -> Self {
        Self {
            errno: FabricErrno::new(errno),
            provider_errno: 0,
            provider_message: String::new(),
            limit_bytes: None,
        }
    }

    /// The connection ended before the operation was done.
    pub(crate) fn ended(reason: CloseReason) -> Self {
        Self::new(libc::ECANCELED).because(Some(reason))
    }

    /// Says why, where all that the provider said is that the operation was cancelled: because its connection ended.
    #[cold]
    pub(crate) fn because(mut self, ended: Option<CloseReason>) -> Self {
        if let Some(reason) = ended.filter(|_| self.errno.get() == libc::ECANCELED) {
            self.provider_message = format!("the connection ended before it was done: {reason}");
        }
        self
    }

    /// The peer takes long messages, but none that is so long.
    pub(crate) fn too_long(limit: u64) -> Self {
        Self {
            provider_message: format!("the peer takes long messages of up to {limit} bytes"),
            limit_bytes: Some(limit),
            ..Self::new(libc::EMSGSIZE)
        }
    }
}

/// What back-pressure waits for. Every one of them passes by itself; a `Writable` event says when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Blocked {
    /// All header slots are in use.
    HeaderSlots,
    /// As many sends are in flight as the endpoint's depth allows.
    Depth,
    /// The peer has granted no more messages: it holds what it got, or is slow.
    Credits,
    /// The provider's own queue is full.
    Provider,
    /// The connection is not established yet.
    Connecting,
    /// No buffer is free: all are in flight, or held.
    Buffers,
    /// A long message is under way: what is sent behind it would overtake it.
    LongMessage,
    /// Shape `Headroom`: a clone of the buffer is on its way with another header in front of it.
    HeaderRoom,
}

impl fmt::Display for Blocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::HeaderSlots => "no header slot is free",
            Self::Depth => "as many sends are in flight as the depth allows",
            Self::Credits => "the peer has granted no more messages",
            Self::Provider => "the provider's queue is full",
            Self::Connecting => "the connection is not established yet",
            Self::Buffers => "no buffer is free",
            Self::LongMessage => "a long message is under way",
            Self::HeaderRoom => "another header is in front of this buffer, until its send is over",
        })
    }
}

/// Why a send was refused. Nothing was posted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendErrorKind {
    /// Not now; back-pressure, not a failure.
    #[error("would block: {0}")]
    WouldBlock(Blocked),
    /// The header does not fit its slot, or the header mode.
    #[error(
        "header of {len} bytes, the limit is {max} (setting `header_slot_size`, or the header mode)"
    )]
    HeaderTooLong {
        /// Bytes given.
        len: usize,
        /// Bytes that fit.
        max: usize,
    },
    /// The header mode `Fixed(n)` takes headers of exactly n bytes.
    #[error("header of {len} bytes, the header mode is Fixed({fixed})")]
    HeaderLength {
        /// Bytes given.
        len: usize,
        /// Bytes that the mode asks for.
        fixed: usize,
    },
    /// Shape `Headroom`: the header can't be put in front of the payload.
    #[error(
        "no room for {len} bytes of header right in front of the payload, there are {room}: send one whole buffer, or one fragment, of a pool or ring with \
         `headroom`, or connect with the shape TwoMessages"
    )]
    NoHeaderRoom {
        /// Bytes of the header, framing included.
        len: usize,
        /// Bytes of room; 0 where the payload is not one buffer from its start, or one fragment.
        room: usize,
    },
    /// Header and payload are longer than what the peer's buffers or the provider take.
    ///
    /// Longer ones go where both sides have one-sided operations and the receiver has set
    /// [`ReceiveConfig::long_messages`](crate::endpoint::ReceiveConfig::long_messages).
    #[error(
        "message of {len} bytes, {whose} {max} (longer ones need one-sided operations, and `ReceiveConfig::long_messages` at the peer)"
    )]
    TooLong {
        /// Header and payload, in bytes.
        len: u64,
        /// The limit, in bytes.
        max: u64,
        /// Whose limit it is.
        whose: MessageLimit,
    },
    /// More segments than one message may have.
    #[error("payload of {count} segments, the limit is {max} beside the header")]
    TooManySegments {
        /// Segments given.
        count: usize,
        /// Segments that fit.
        max: usize,
    },
    /// A segment's region is registered, but not with the domain of this endpoint.
    #[error("segment {segment} belongs to a region that is registered with another domain only")]
    ForeignBuffer {
        /// Which segment, from 0.
        segment: usize,
    },
    /// A segment's region is not registered.
    #[error("segment {segment} belongs to a region that is not registered (call Region::register)")]
    NotRegistered {
        /// Which segment, from 0.
        segment: usize,
    },
    /// The region is registered with the domain, but registering it with this endpoint failed.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// The window of a one-sided operation does not allow it.
    #[error(transparent)]
    Window(#[from] WindowError),
    /// The endpoint was made by the process that this one was forked from.
    #[error("this endpoint was made by process {made_by}, which this process was forked from")]
    Forked {
        /// The process that made it.
        made_by: u32,
    },
    /// There is no such connection, or it is over and its end was reported.
    #[error("there is no such connection, or it is over")]
    NoConnection,
    /// The peer of a connectionless endpoint is not known, or can't be.
    #[error(transparent)]
    Peer(#[from] PeerError),
    /// One of the two sides is saying goodbye: no new sends.
    #[error("the connection is closing")]
    Closing,
    /// The connection is closed.
    #[error("the connection is closed: {0}")]
    Closed(CloseReason),
    /// The provider refused the message.
    #[error("fi_sendmsg: {0}")]
    Fabric(FabricErrno),
}

/// Whose limit a message exceeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum MessageLimit {
    /// The receive buffers of the peer, as it said when the connection was made.
    Peer,
    /// The provider's largest message.
    Provider,
}

impl fmt::Display for MessageLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Peer => "the peer's receive buffers take",
            Self::Provider => "the provider takes",
        })
    }
}

/// A send that was refused, with everything that was given.
pub struct SendError {
    /// Why.
    pub kind: SendErrorKind,
    /// The payload, untouched.
    pub payload: Payload,
    /// The key, unchanged.
    pub key: u64,
}

impl SendError {
    /// True for back-pressure: try again after the next `Writable` event or poll.
    pub fn is_would_block(&self) -> bool {
        matches!(self.kind, SendErrorKind::WouldBlock(_))
    }
}

impl fmt::Debug for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendError")
            .field("kind", &self.kind)
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.kind, f)
    }
}

impl std::error::Error for SendError {}

/// A batch of sends that stopped at a message that was refused.
#[derive(Debug)]
pub struct BatchError {
    /// Messages that were taken before it, and are on their way.
    pub sent: usize,
    /// The refused message, with the reason. Those behind it were not looked at.
    pub refused: SendError,
}

impl fmt::Display for BatchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "after {} messages: {}", self.sent, self.refused)
    }
}

impl std::error::Error for BatchError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.refused)
    }
}

/// A one-sided read that was refused, with everything that was given.
#[derive(Debug)]
pub struct ReadError {
    /// Why.
    pub kind: SendErrorKind,
    /// The destination, untouched.
    pub into: Destination,
    /// The key, unchanged.
    pub key: u64,
}

impl ReadError {
    /// True for back-pressure: try again after the next `Writable` event or poll.
    pub fn is_would_block(&self) -> bool {
        matches!(self.kind, SendErrorKind::WouldBlock(_))
    }
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.kind, f)
    }
}

impl std::error::Error for ReadError {}
