//! The bytes that two endpoints exchange besides the messages themselves: hello, refusal, control
//! messages, header framing.
//!
//! Everything is little-endian, versioned and written down byte by byte in `docs/wire.md`. A parser
//! trusts nothing: it never panics, never allocates, and says with a [`WireError`] what it did not
//! like.

mod control;
pub(crate) mod frame;
mod header;
mod hello;
mod mark;
mod refusal;
mod subscription;
mod window;

use zerocopy::FromBytes;

pub use control::ByeReason;
pub(crate) use control::{Control, ControlBody, ControlKind, Counts};
pub use header::HeaderMode;
pub(crate) use header::{PREFIX_LEN, prefix, split};
pub(crate) use hello::{Hello, HelloKind};
pub(crate) use mark::{
    INDEX_BITS, INDEX_MASK, SHORT_DEPTH_MAX, SHORT_INDEX_MASK, SHORT_NUMBERS, cq_data, is_short,
    mark, numbered, renumbered, split_cq_data, split_numbered, split_written, written_data,
};
pub use refusal::{Refusal, RefusalCode};
pub use subscription::SubscriptionOutcome;
pub(crate) use subscription::{
    PUBLICATION_LEN, PublicationPrefix, SubscriptionAnswer, SubscriptionRequest,
};
pub use window::{WINDOW_DESCRIPTOR_LEN, WindowDescriptor, WindowId};

/// The newest wire version that this library speaks.
pub(crate) const VERSION: u16 = 2;
/// The oldest wire version that this library still speaks.
pub(crate) const OLDEST: u16 = 2;

/// Bytes of a hello, a hello-ack and a refusal. All three fit the smallest CM private data (56
/// bytes, verbs over RDMA CM).
pub(crate) const HELLO_LEN: usize = 48;
/// Bytes of a control message on an established connection.
pub(crate) const CONTROL_LEN: usize = 32;
/// Bytes that a receive buffer for control messages has. A later version may use the room.
pub(crate) const CONTROL_LEN_MAX: usize = 64;

/// Feature bit 0: answers heartbeats.
pub(crate) const FEATURE_HEARTBEAT: u32 = 1;

/// Largest receive depth, in messages, that a peer is believed.
pub(crate) const CREDIT_WINDOW_MAX: u32 = 1 << 20;
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

/// Feature bit: the speaker takes frames.
pub(crate) const FEATURE_FRAMES: u32 = 1 << 7;

/// First bytes of a hello, a hello-ack and a refusal.
const MAGIC: [u8; 4] = *b"FbCt";
/// Why bytes from a peer could not be understood.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
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

fabricast_process::debug_as_words!(WireError);

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
    frame::exercise(bytes);
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

#[cfg(test)]
mod tests;
