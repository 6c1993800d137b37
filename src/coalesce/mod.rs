//! Many small messages in one buffer: two formats, packed and parsed.
//!
//! ```text
//!  push(tag, status, bytes) ─► Packer ─ freeze ─► Buffer ═══ one network message ═══╗
//!                              Compact or Netio3                                    ║
//!                           SmallMessages: borrowed slices ◄─┬─ Message ◄═══════════╝
//!                           OwnedSmallMessages: owned ones ◄─┘
//! ```
//!
//! A small message is a tag (whose it is; a link of a detector, a subscription), a status byte (0:
//! fine) and bytes. Nothing here knows a network:
//! [`SendEndpointBuffered`](crate::SendEndpointBuffered) packs and sends, and
//! [`Message::coalesced`](crate::endpoint::Message::coalesced) parses what arrived. Both ends must
//! be told the same [`Format`]. docs/wire.md has both formats byte by byte.
//!
//! The parsers trust no byte: a malformed buffer gives the messages in front of the fault, then one
//! [`FormatError`], then nothing.
//!
//! One network message costs about as much for 20 bytes as for 2,000: who has many small ones packs
//! them. Where no endpoint of ours is at one of the ends, start with [`Packer`] and
//! [`SmallMessages`]:
//!
//! ```
//! use fabricast::buffer::SharedBufferManager;
//! use fabricast::coalesce::{Format, Packer, SmallMessages};
//!
//! let pool = SharedBufferManager::allocate(4, 4096)?;
//! let mut packer = Packer::new(Format::Compact, pool.try_acquire().expect("4 are free"));
//! packer.push(0xfeed, 0, b"one")?;
//! packer.push(0xfeed, 0, b"another")?;
//! let buffer = packer.freeze();
//!
//! let messages = SmallMessages::new(Format::Compact, &buffer);
//! let bytes: Result<Vec<_>, _> = messages.map(|message| Ok(message?.bytes)).collect();
//! let bytes: Result<_, fabricast::coalesce::FormatError> = bytes;
//! assert_eq!(bytes?, [&b"one"[..], b"another"]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod compact;
mod error;
mod format;
mod netio3;
mod packer;
mod parser;

#[cfg(all(test, not(loom)))]
mod tests;

pub use error::{FormatError, FormatErrorKind, PackError};
pub use format::Format;
pub use packer::Packer;
pub(crate) use packer::{Placed, total_len};
pub use parser::{
    OwnedSmallMessage, OwnedSmallMessages, ReadPosition, SmallMessage, SmallMessages,
};

/// Parses arbitrary bytes in both formats and checks what the parsers promise; the fuzz target and
/// the tests call it.
///
/// # Panics
///
/// When a parser breaks a promise.
#[cfg(any(test, fuzzing))]
pub(crate) fn exercise(bytes: &[u8]) {
    for format in [Format::Compact, Format::Netio3] {
        parser::exercise(format, bytes);
    }
}
