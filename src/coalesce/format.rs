//! `Format`: which of the two formats a buffer of small messages is in.

use super::{compact, netio3};

/// How small messages lie in a buffer. Both ends of a connection are told which; nothing on the
/// wire negotiates it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Format {
    /// Our own: a header of 16 bytes with a magic number, a count and a length, then 4 bytes a
    /// message that hold length and status, and 8 more where the tag is another than before. A
    /// buffer that is not in this format is recognised as such.
    #[default]
    Compact,
    /// netio3's, as its documentation describes it: 4 bytes a message, a status byte where it is
    /// not 0, 8 bytes where the tag is another than before. It has no magic number, no count and no
    /// length: bytes of another format may parse as messages.
    ///
    /// The documentation does not say the byte order; little-endian is assumed. Not tested against
    /// netio3 itself.
    Netio3,
}

impl Format {
    /// The bytes of the longest small message that the format can express: 8,388,607 (compact),
    /// 1,073,741,823 (netio3).
    pub fn max_message(self) -> usize {
        match self {
            Self::Compact => compact::LEN_MAX,
            Self::Netio3 => netio3::LEN_MAX,
        }
    }

    /// The bytes in front of the first message: 16 (compact), 0 (netio3).
    pub fn buffer_header(self) -> usize {
        match self {
            Self::Compact => compact::HEADER_LEN,
            Self::Netio3 => 0,
        }
    }

    /// The bytes that this message takes of a buffer, itself included, when it is the first there.
    pub fn first_message(self, tag: u64, status: u8, len: usize) -> usize {
        let head = match self {
            Self::Compact => compact::head_len(tag == 0),
            Self::Netio3 => netio3::head_len(false, status),
        };
        len.saturating_add(head)
    }

    /// The least bytes that a message takes: its header alone.
    pub(crate) const HEAD_MIN: usize = 4;
}
