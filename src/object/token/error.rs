//! `TokenError`: why something is no token.

use std::fmt;

use super::{DIGITS, FIELDS, RdmaToken};

/// Why something is no token, or none that is understood here.
///
/// What was found is shown as far as it is needed, and never the key.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TokenError {
    /// There is no text.
    #[error("a token is expected, and the text is empty")]
    Empty,
    /// The text, or that of a token of these fields, is longer than tokens are.
    #[error("a token of {len} characters, the limit is {}", RdmaToken::TEXT_MAX)]
    TooLong {
        /// Its length in bytes.
        len: usize,
    },
    /// It is a token of cuObject, of 81 characters, for a connection that is made by the NIC (DC).
    #[error(
        "this is a token of cuObject (RDMA by DC), which libfabric can't use: ask for a token of \
         format ofi1, or move the bytes in band"
    )]
    CuObject,
    /// It is a token of the family `uet`, for Ultra Ethernet without libfabric.
    #[error(
        "this is a token of format {found:?} (Ultra Ethernet), which is not read here: ask for a \
         token of format ofi1, or move the bytes in band"
    )]
    Uet {
        /// What it says, of which the first 16 characters.
        found: Box<str>,
    },
    /// It is a token for libfabric, of another version.
    #[error(
        "this is a token of format {found:?}, and ofi1 is the one that is read here: one of the \
         two sides is newer"
    )]
    Version {
        /// What it says, of which the first 16 characters.
        found: Box<str>,
    },
    /// The third field names no format that is known.
    #[error("{found:?} is no format of a token: ofi1 is expected in the third field")]
    Format {
        /// What is there, of which the first 16 characters.
        found: Box<str>,
    },
    /// It has fewer fields than a token, or more.
    #[error("{found} fields between colons, a token has {FIELDS}: was it cut off, or joined?")]
    Fields {
        /// How many there are.
        found: usize,
    },
    /// A field is empty.
    #[error("the {field} of the token is missing")]
    Missing {
        /// Which one.
        field: TokenField,
    },
    /// A field has a character that does not belong there.
    #[error("{found:?} at {at} of the token's {field}: {} are expected", field.expected())]
    Character {
        /// Which one.
        field: TokenField,
        /// Where in the field, counted from 0 in bytes.
        at: usize,
        /// What is there.
        found: char,
    },
    /// A number has more digits than 64 bits. Keys of more than 8 bytes can't be said in a token.
    #[error("{found} digits are the {field} of the token, the limit is {DIGITS} (64 bits)")]
    TooManyDigits {
        /// Which one.
        field: TokenField,
        /// How many digits it has.
        found: usize,
    },
    /// The digits of the name make no bytes.
    #[error("the name of the token has {digits} digits, and a byte has two")]
    OddName {
        /// How many digits it has.
        digits: usize,
    },
    /// The name is longer than names are.
    #[error(
        "the name of the token has {len} bytes, the limit is {}",
        RdmaToken::NAME_MAX
    )]
    NameTooLong {
        /// Its length in bytes.
        len: usize,
    },
    /// The window is empty, or wraps around.
    #[error("a token names {len} bytes from {base:#x} on, which is no window")]
    Window {
        /// Its first byte.
        base: u64,
        /// Its length in bytes.
        len: u64,
    },
    /// A part of a token is empty, or leaves the token's window.
    #[error("bytes {start} to {end} are no part of a token that names {len} bytes")]
    Part {
        /// Its first byte, counted from the token's.
        start: u64,
        /// The byte behind its last one.
        end: u64,
        /// Bytes that the token names.
        len: u64,
    },
}

fabricast_process::debug_as_words!(TokenError);

/// A field of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TokenField {
    /// What the first byte is addressed by.
    Base,
    /// How many bytes it names.
    Len,
    /// The provider's name.
    Provider,
    /// The name of the endpoint.
    Name,
    /// The key of the registration.
    Key,
}

impl TokenField {
    fn expected(self) -> &'static str {
        match self {
            Self::Provider => "printable ASCII characters without spaces and colons",
            Self::Base | Self::Len | Self::Name | Self::Key => "hexadecimal digits",
        }
    }
}

impl fmt::Display for TokenField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Base => "base",
            Self::Len => "length",
            Self::Provider => "provider",
            Self::Name => "name",
            Self::Key => "key",
        })
    }
}
