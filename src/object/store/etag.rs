//! `ObjectEtag`: names a version of an object.

use std::fmt;
use std::sync::Arc;

/// The name of a version of an object: two that differ in content differ in it. 1 to 128 visible
/// ASCII characters without quotes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectEtag(Arc<str>);

/// Why some text is no etag.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EtagError {
    /// It is empty or too long.
    #[error("an etag has {len} bytes: 1 to {} are taken", ObjectEtag::LEN_MAX)]
    Len {
        /// Its length in bytes.
        len: usize,
    },
    /// A byte in it is no visible ASCII character, or a quote.
    #[error("an etag has byte {byte:#04x} at {at}: visible ASCII but `\"` is taken")]
    Byte {
        /// Where.
        at: usize,
        /// The byte.
        byte: u8,
    },
}

fabricast_process::debug_as_words!(EtagError);

impl ObjectEtag {
    /// The longest etag, in bytes.
    pub const LEN_MAX: usize = 128;

    /// Checks an etag.
    ///
    /// # Errors
    /// [`EtagError`].
    pub fn new(etag: &str) -> Result<Self, EtagError> {
        Self::from_bytes(etag.as_bytes())
    }

    /// Checks an etag that a peer sent.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub(crate) fn from_bytes(etag: &[u8]) -> Result<Self, EtagError> {
        if etag.is_empty() || etag.len() > Self::LEN_MAX {
            return Err(EtagError::Len { len: etag.len() });
        }
        let is_wrong = |byte: &u8| !byte.is_ascii_graphic() || *byte == b'"';
        if let Some(at) = etag.iter().position(is_wrong) {
            let byte = etag[at];
            return Err(EtagError::Byte { at, byte });
        }
        let text = etag.iter().map(|&byte| char::from(byte));
        Ok(Self(text.collect::<String>().into()))
    }

    /// The etag of a content: its CRC-64/NVME and its length.
    pub fn of_content(crc64: u64, size: u64) -> Self {
        Self(format!("c-{crc64:016x}-{size:x}").into())
    }

    /// The etag of a file of which nobody wrote down what is in it.
    pub(super) fn of_file(inode: u64, modified_ns: i128, size: u64) -> Self {
        Self(format!("m-{inode:x}-{modified_ns:x}-{size:x}").into())
    }

    /// The etag as text, without quotes.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ObjectEtag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ObjectEtag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}
