//! What can be wrong with a buffer of small messages, and why one more message does not go into it.

/// The usual cause of all that does not parse.
const HINT: &str = " (is the other side using the same `Format`?)";

/// A buffer that is not what its format says. The messages in front of the fault were given out.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("byte {offset}: {kind}")]
pub struct FormatError {
    /// Where in the buffer the faulty field or message starts, in bytes.
    pub offset: usize,
    /// What is wrong with it.
    pub kind: FormatErrorKind,
}

fabricast_process::debug_as_words!(FormatError);

/// What is wrong with a buffer of small messages.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FormatErrorKind {
    /// It does not begin with the magic number of the compact format: the peer does not coalesce,
    /// or in another format.
    #[error("{found:02x?} is not the magic number of the compact format{HINT}")]
    NotCompact {
        /// The four bytes that are there.
        found: [u8; 4],
    },
    /// A version of the compact format that is not known here.
    #[error("version {found} of the compact format, known is 1")]
    Version {
        /// What it says.
        found: u8,
    },
    /// A reserved field is not 0.
    #[error("a reserved field is not 0{HINT}")]
    Reserved,
    /// The buffer ends within a header or within a message.
    #[error("{need} bytes are needed, {have} are there{HINT}")]
    Truncated {
        /// Bytes that the header or message takes.
        need: usize,
        /// Bytes to the end of the buffer.
        have: usize,
    },
    /// The first message of a netio3 buffer has no tag.
    #[error("the first message has no tag{HINT}")]
    NoTag,
    /// The length in the header of a compact buffer is not the buffer's.
    #[error("the header says {said} bytes, there are {have}{HINT}")]
    Length {
        /// What the header says.
        said: usize,
        /// What there is.
        have: usize,
    },
    /// The count in the header of a compact buffer is not the number of its messages.
    #[error("the header says {said} messages, there are {have}{HINT}")]
    Count {
        /// What the header says.
        said: u32,
        /// What there is.
        have: u32,
    },
}

fabricast_process::debug_as_words!(FormatErrorKind);

impl FormatErrorKind {
    pub(super) fn at(self, offset: usize) -> FormatError {
        FormatError { offset, kind: self }
    }
}

/// Why a message did not go into a buffer; the buffer is unchanged.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PackError {
    /// Not any more: it would fit an empty buffer.
    #[error(
        "{need} bytes are needed, {free} are free: flush the buffer, and pack into the next one"
    )]
    Full {
        /// Bytes that the message takes here, its header included.
        need: usize,
        /// Bytes that are free.
        free: usize,
    },
    /// Not into an empty buffer either, or beyond what the format can express.
    #[error(
        "a message of {len} bytes, the limit is {max}: send it by itself, or have larger buffers \
         where the format takes more"
    )]
    TooLong {
        /// Bytes of the message.
        len: usize,
        /// The most that fits, with this tag and status.
        max: usize,
    },
}

fabricast_process::debug_as_words!(PackError);
