//! Why an endpoint refused something: with what was given, and what back-pressure waits for.

use std::fmt;
use std::sync::Arc;

use crate::buffer::{GateError, Given, Payload};
use crate::endpoint::connectionless::PeerInUse;
use crate::errno::{Advised, CompletionError, FabricErrno};
use crate::memory::{Access, RegionKind, RegisterError};
use crate::process::Forked;
use crate::protocol::close_reason::{CloseReason, Over};

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
    /// No slot of the staging ring is free.
    Staging,
    /// Messages before it wait for a producer's event or a copy, and this one can't wait behind
    /// them.
    Gate,
}

impl Blocked {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::HeaderSlots,
        Self::Depth,
        Self::Credits,
        Self::Provider,
        Self::Connecting,
        Self::Buffers,
        Self::LongMessage,
        Self::HeaderRoom,
        Self::Staging,
        Self::Gate,
    ];

    /// Its place in [`ALL`](Self::ALL).
    pub(crate) const fn index(self) -> usize {
        self as usize
    }

    /// Its word, in metrics.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::HeaderSlots => "header_slots",
            Self::Depth => "depth",
            Self::Credits => "credits",
            Self::Provider => "provider",
            Self::Connecting => "connecting",
            Self::Buffers => "buffers",
            Self::LongMessage => "long_message",
            Self::HeaderRoom => "header_room",
            Self::Staging => "staging",
            Self::Gate => "gate",
        }
    }
}

impl fmt::Display for Blocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::HeaderSlots => {
                "no header slot is free (as many as `HeaderSlotConfig::slots` are in use)"
            }
            Self::Depth => "as many sends are in flight as the setting `depth` allows",
            Self::Credits => "the peer has granted no more messages",
            Self::Provider => "the provider's queue is full",
            Self::Connecting => "the connection is not established yet",
            Self::Buffers => "no buffer is free",
            Self::LongMessage => "a long message is under way",
            Self::Staging => {
                "no slot of the staging ring is free (as many as `StagingConfig` says are in use)"
            }
            Self::Gate => "messages before it wait for an event or a copy",
            Self::HeaderRoom => "another header is in front of this buffer, until its send is over",
        })
    }
}

/// Why a send was refused. Nothing was posted.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendErrorKind {
    /// Not now; back-pressure, not a failure.
    #[error("would block: {0}")]
    WouldBlock(Blocked),
    /// The header does not fit its slot, or the header mode. A publication puts 16 bytes of its own
    /// in front of it.
    #[error(
        "header of {len} bytes, the limit is {max}, a header slot less what goes in front of the \
         header (2 bytes for its length, unless the mode is Fixed, and 16 of a publication): give \
         the endpoint larger slots (`HeaderSlotConfig::slot_size`, by `headers` of its settings), \
         or put the rest in front of the payload"
    )]
    HeaderTooLong {
        /// Bytes given.
        len: usize,
        /// Bytes that fit.
        max: usize,
    },
    /// The header mode `Fixed(n)` takes headers of exactly n bytes.
    #[error(
        "header of {len} bytes, the header mode is Fixed({fixed}): give it {fixed} bytes, or \
         connect with HeaderMode::Prefixed (setting `header_mode`)"
    )]
    HeaderLength {
        /// Bytes given.
        len: usize,
        /// Bytes that the mode asks for.
        fixed: usize,
    },
    /// Shape `Headroom`: the header can't be put in front of the payload.
    #[error(
        "no room for {len} bytes of header right in front of the payload, there are {room}: send \
         one whole buffer, or one fragment, of a pool or ring with `headroom`, or connect with the \
         shape TwoMessages"
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
    /// [`IncomingSettings::long_messages`](crate::endpoint::IncomingSettings::long_messages).
    #[error(
        "message of {len} bytes, {whose} {max} (longer ones need one-sided operations, and \
         `IncomingSettings::long_messages` at the peer)"
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
    #[error(
        "payload of {count} segments, the limit is {max} beside the header: join segments, or \
         connect with `OutgoingSettings::shape(TwoMessages)`, which leaves one more for the payload"
    )]
    TooManySegments {
        /// Segments given.
        count: usize,
        /// Segments that fit.
        max: usize,
    },
    /// A segment's region is registered, but not with the domain of this endpoint.
    #[error(
        "segment {segment} belongs to a region that is registered with another domain only: call \
         Region::register with this endpoint's domain, too"
    )]
    ForeignBuffer {
        /// Which segment, from 0.
        segment: usize,
    },
    /// A segment's region is not registered.
    #[error(
        "segment {segment} belongs to a region that is not registered: call Region::register, or \
         connect with `OutgoingSettings::headers`, which does that"
    )]
    NotRegistered {
        /// Which segment, from 0.
        segment: usize,
    },
    /// A segment, or the destination of a read, lies in a device's memory that the provider can't
    /// reach ([`Region::path`](crate::Region::path) says why), and the endpoint has no
    /// [`StagingRing`](crate::endpoint::StagingRing) to copy it through memory of the host.
    #[error(
        "segment {segment} lies in a device's memory that the provider can't reach, and is not \
         staged here: Region::path says why; give the endpoint a StagingRing \
         (`OutgoingSettings::staging`)"
    )]
    NotStaged {
        /// Which segment, from 0.
        segment: usize,
    },
    /// The message is longer than the whole staging ring.
    #[error(
        "{len} bytes in a GPU's memory, the staging ring has {max}: give it more or larger slots \
         (`StagingConfig`), or send them in parts"
    )]
    StagingTooLong {
        /// Bytes of the payload.
        len: usize,
        /// Bytes of all slots.
        max: usize,
    },
    /// The region is registered with the domain, but registering it with this endpoint failed.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// The window of a one-sided operation does not allow it.
    #[error(transparent)]
    Window(#[from] WindowError),
    /// The endpoint was made by the process that this one was forked from.
    #[error("{0}: open a fabric of its own in the child")]
    Forked(#[from] Forked),
    /// There is no such connection, or it is over and its end was reported.
    #[error("there is no such connection, or it is over")]
    NoConnection,
    /// Nobody has subscribed to the tag of a publication.
    #[error("nobody has subscribed to tag {tag}")]
    NoSubscribers {
        /// The tag.
        tag: u64,
    },
    /// The peer of a connectionless endpoint is not known, or can't be.
    #[error(transparent)]
    Peer(#[from] PeerError),
    /// One of the two sides is saying goodbye: no new sends.
    #[error(
        "the connection is closing: one of the two sides said goodbye; what is to be sent after \
         that needs a new endpoint"
    )]
    Closing,
    /// The connection is closed.
    #[error(
        "{}; connect a new endpoint, or have this done by `ConnectionSettings::reconnect`",
        Over("the connection is closed", .0)
    )]
    Closed(CloseReason),
    /// The provider refused the message.
    #[error("fi_sendmsg: {}", Advised::of(.0))]
    Fabric(FabricErrno),
}

fabricast_process::debug_as_words!(SendErrorKind);

/// Whose limit a message exceeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum MessageLimit {
    /// The receive buffers of the peer, as it said when the connection was made.
    Peer,
    /// The provider's largest message.
    Provider,
    /// The buffers that messages are copied into (setting `buffer_size`).
    Buffer,
}

impl fmt::Display for MessageLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Peer => "the peer's receive buffers take",
            Self::Provider => "the provider takes",
            Self::Buffer => "a buffer (setting `buffer_size`) takes",
        })
    }
}

/// Something that was refused, with what was given. Nothing was posted.
///
/// `T` is what moved in and comes back: a [`Payload`], the
/// [`Destination`](crate::endpoint::Destination) of a read, a buffer, the memory of a window. `K`
/// says why: most often a [`SendErrorKind`].
pub struct Refused<T, K = SendErrorKind> {
    /// Why.
    pub kind: K,
    /// What was given, untouched.
    pub given: T,
    /// The key, unchanged; 0 for what has none: small messages, and windows.
    pub key: u64,
}

impl<T> Refused<T> {
    /// True for back-pressure: try again after the next `Writable` event or poll.
    pub fn is_would_block(&self) -> bool {
        matches!(self.kind, SendErrorKind::WouldBlock(_))
    }

    /// True where nobody has subscribed to the tag of a publication.
    pub fn is_no_subscribers(&self) -> bool {
        matches!(self.kind, SendErrorKind::NoSubscribers { .. })
    }
}

impl<T, K> Refused<T, K> {
    #[cold]
    pub(crate) fn new(kind: impl Into<K>, given: T, key: u64) -> Self {
        let kind = kind.into();
        Self { kind, given, key }
    }

    /// Of what has no key.
    #[cold]
    pub(crate) fn without_key(kind: impl Into<K>, given: T) -> Self {
        Self::new(kind, given, 0)
    }
}

fabricast_process::debug_as_words!([T, K: fmt::Display] Refused<T, K>);

impl<T, K: fmt::Display> fmt::Display for Refused<T, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.kind, f)
    }
}

impl<T, K: fmt::Display> std::error::Error for Refused<T, K> {}

// It is returned by each send that has to wait.
const _: () = assert!(size_of::<SendErrorKind>() <= 40);
const _: () = assert!(size_of::<Refused<Payload>>() <= 104);

/// A batch of sends that stopped at a message that was refused.
pub struct BatchError {
    /// Messages that were taken before it, and are on their way.
    pub sent: usize,
    /// The refused message, with the reason. Those behind it were not looked at.
    pub refused: Refused<Payload>,
}

impl BatchError {
    /// What a batch came to: how many messages were taken, and which one was refused.
    pub(crate) fn or_sent(
        (sent, refused): (usize, Option<Refused<Payload>>),
    ) -> Result<usize, Self> {
        refused.map_or(Ok(sent), |refused| Err(Self { sent, refused }))
    }

    /// No message is taken, for this reason: the first one, if there is one, comes back.
    pub(crate) fn at_first<G: Given, H>(
        kind: impl Into<SendErrorKind>,
        mut messages: impl Iterator<Item = (G, H, u64)>,
    ) -> Result<usize, Self> {
        let first = messages.next();
        let refused = first.map(|(given, _, key)| Refused::new(kind, given.into_payload(), key));
        Self::or_sent((0, refused))
    }
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

fabricast_process::debug_as_words!(BatchError);

/// Why a one-sided operation, or a window, was refused. Nothing was posted.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WindowError {
    /// The provider has no one-sided operations.
    #[error(
        "the provider has no one-sided operations: use messages, or another provider \
         (`fabricast::fabric::PROVIDERS` says what each has)"
    )]
    Unsupported,
    /// The peer does not know windows, or did not reserve what they take.
    #[error("the peer takes no part in windows (ConnectionSettings::windows, or an older version)")]
    PeerWithoutWindows,
    /// The connection does not stand, or there is no such connection.
    #[error(
        "not connected: the connection is not made yet, or is over; windows and one-sided \
         operations need one, from `Connected` to `Disconnected`"
    )]
    NotConnected,
    /// The window is another connection's.
    #[error(
        "the window belongs to another connection: use it on the one whose peer exposed it; after \
         a reconnect it has to be exposed anew"
    )]
    WrongConnection,
    /// The owner has revoked it.
    #[error("the window was revoked by its owner: ask it for another one")]
    Revoked,
    /// The window does not give that right, or the memory can't.
    #[error(
        "{asked} asked for, the window gives {has}: its owner says what a peer may do with the \
         rights that it gives to `expose`, and memory that is shared can only be read"
    )]
    Access {
        /// What was asked for.
        asked: Access,
        /// What there is.
        has: Access,
    },
    /// The operation reaches beyond the window.
    #[error(
        "{len} bytes at offset {offset} of a window of {window_len} bytes: stay within it \
         (`RemoteWindow::len`)"
    )]
    OutOfRange {
        /// Where it begins, in bytes.
        offset: u64,
        /// How long it is, in bytes.
        len: u64,
        /// How long the window is, in bytes.
        window_len: u64,
    },
    /// A window, or an operation, without a byte.
    #[error("0 bytes: a window, and what is written to or read from it, has at least 1")]
    Empty,
    /// As many windows are exposed as the endpoint may have.
    #[error(
        "{limit} windows are exposed, as many as may be at once (setting `windows`): revoke some, \
         or raise it"
    )]
    TooManyWindows {
        /// The limit.
        limit: u32,
    },
    /// The provider's writes carry too few bytes of immediate data.
    #[error(
        "the provider's writes carry {bytes} bytes of immediate data, 8 are needed: use a write \
         and a message behind it instead"
    )]
    NoImmediateData {
        /// What they carry.
        bytes: usize,
    },
    /// The endpoint was made by the process that this one was forked from.
    #[error("{0}: open a fabric of its own in the child")]
    Forked(#[from] Forked),
    /// A window over memory that peers can't reach by themselves. What this side sends or reads is
    /// staged where that is so; what a peer does to a window can't be, since its owner does not
    /// hear when bytes come or are fetched, and so can't copy them in time.
    #[error(
        "a window over {kind} has to be reached directly, which it can't be: {reason}; it can't be \
         staged, as its owner does not hear when a peer writes or reads it: expose memory of the \
         host and copy between the two, or receive messages with `IncomingSettings::deliver_to`"
    )]
    NotDirect {
        /// What the memory is.
        kind: RegionKind,
        /// Why the provider does not reach it, in words.
        reason: Arc<str>,
    },
    /// The memory could not be registered.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// The provider refused the operation.
    #[error("{call}: {}", Advised::of(errno))]
    Fabric {
        /// The C function.
        call: &'static str,
        /// Its error.
        errno: FabricErrno,
    },
}

fabricast_process::debug_as_words!(WindowError);

/// What is wrong with a peer.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PeerError {
    /// It was never added, or was removed, or went and was forgotten.
    #[error("no such peer: it was never added, or is gone and forgotten; add it again (add_peer)")]
    Unknown,
    /// Something is outstanding with it.
    #[error(transparent)]
    InUse(#[from] PeerInUse),
    /// The endpoint was made by the process that this one was forked from.
    #[error("{0}: open a fabric of its own in the child")]
    Forked(#[from] Forked),
    /// There are as many as there may be.
    #[error(
        "the endpoint has {limit} peers, as many as it may have (setting `max_peers`): remove some \
         (remove_peer), or raise it"
    )]
    TooMany {
        /// The limit.
        limit: u32,
    },
    /// A peer takes receive buffers, and too few are free.
    #[error(
        "{free} receive buffers are free, a peer takes {needed} at least: let go of messages, \
         remove peers, or raise the setting `slots`"
    )]
    NoReceiveBuffers {
        /// Buffers that are free.
        free: usize,
        /// Fewest that a peer takes.
        needed: usize,
    },
    /// The provider can't reach such an address.
    #[error("{call}: {}", Advised::of(errno))]
    Fabric {
        /// The C function.
        call: &'static str,
        /// Its error.
        errno: FabricErrno,
    },
    /// The address is not of a form that this side's provider uses, or names another kind of
    /// machine.
    #[error("{0}")]
    Address(String),
}

fabricast_process::debug_as_words!(PeerError);

impl CompletionError {
    /// The connection ended before the operation was done.
    pub(crate) fn ended(reason: CloseReason) -> Self {
        Self::new(libc::ECANCELED).because(Some(reason))
    }

    /// Says why, where all that the provider said is that the operation was cancelled: because its
    /// connection ended.
    #[cold]
    pub(crate) fn because(mut self, ended: Option<CloseReason>) -> Self {
        if let Some(reason) = ended.filter(|_| self.errno.get() == libc::ECANCELED) {
            self.provider_message = format!("the connection ended before it was done: {reason}");
        }
        self
    }

    /// What a send was to wait for will not be.
    #[cold]
    pub(crate) fn gate(error: &GateError) -> Self {
        Self {
            provider_message: error.to_string(),
            ..Self::new(libc::EIO)
        }
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
