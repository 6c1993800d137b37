//! `WireError`: what is wrong with the bytes of a message.

use super::HEADER_LEN;

/// Why the bytes of a stream's message could not be understood.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// The header is not one of 64 bytes.
    #[error("a header of {len} bytes, where it takes {HEADER_LEN}")]
    HeaderLen {
        /// Bytes that came.
        len: usize,
    },
    /// The first four bytes are not those of a stream's message: the peer is another program.
    #[error("the first four bytes are {0:02x?}, not those of a stream")]
    Magic([u8; 4]),
    /// A message of no kind that is known.
    #[error("a message of kind {0} is not known")]
    Kind(u8),
    /// The header tells of another length than the message has, or the kind allows another only.
    #[error(
        "a payload of {len} bytes in a message of kind {kind}, where {said} are said or allowed"
    )]
    PayloadLen {
        /// The kind of the message.
        kind: u8,
        /// What the header says, or the kind allows.
        said: u64,
        /// Bytes that came.
        len: usize,
    },
    /// A bit or byte is set that has no meaning.
    #[error("a message of kind {kind} has reserved bits set")]
    Reserved {
        /// The kind of the message.
        kind: u8,
    },
    /// A field has a value that it can't have.
    #[error("{name} can't be {value}")]
    Field {
        /// Name of the field in docs/wire.md.
        name: &'static str,
        /// The value that came.
        value: u64,
    },
    /// A list of ranges is not in order, or one of its ranges is empty or beyond the end.
    #[error("range {index} of a list is out of order, empty or too long")]
    Ranges {
        /// Which, from 0.
        index: usize,
    },
}

fabricast_process::debug_as_words!(WireError);

/// The error of a field with a value that it can't have.
pub(super) fn field(name: &'static str, value: impl Into<u64>) -> WireError {
    WireError::Field {
        name,
        value: value.into(),
    }
}
