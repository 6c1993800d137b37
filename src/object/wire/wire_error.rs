//! `ObjectWireError`: what is wrong with the bytes of a message about objects.

use super::HEADER_LEN;
use crate::object::store::{EtagError, ObjectNameError};

/// Why the bytes of a message about objects could not be understood.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ObjectWireError {
    /// The header is not one of 64 bytes.
    #[error("a header of {len} bytes, where it takes {HEADER_LEN}")]
    HeaderLen {
        /// Bytes that came.
        len: usize,
    },
    /// The first four bytes are not those of a message about objects: the peer is another program,
    /// or of another version.
    #[error("the first four bytes are {0:02x?}, not those of a message about objects, version 1")]
    Magic([u8; 4]),
    /// A message of no kind that is known.
    #[error("a message of kind {0} is not known")]
    Kind(u8),
    /// The payload has another length than the header says, or more than the kind allows.
    #[error("a payload of {len} bytes, where {said} are said or allowed")]
    PayloadLen {
        /// What the header says, or what is allowed.
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
    /// A name, or a prefix of names, is none.
    #[error(transparent)]
    Name(#[from] ObjectNameError),
    /// An etag is none.
    #[error(transparent)]
    Etag(#[from] EtagError),
    /// An entry of a list is cut, or not behind the one before.
    #[error("entry {index} of a list is cut, or not behind the one before")]
    Entry {
        /// Which, from 0.
        index: usize,
    },
}

fabricast_process::debug_as_words!(ObjectWireError);

/// The error of a field with a value that it can't have.
pub(super) fn field(name: &'static str, value: impl Into<u64>) -> ObjectWireError {
    ObjectWireError::Field {
        name,
        value: value.into(),
    }
}
