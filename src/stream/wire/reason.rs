//! `Reason`: a text of the peer's, to be shown to a person.

use std::fmt;

use super::{REASON_LEN_MAX, WireError};

/// Why something was refused or given up, in words. At most 512 bytes; whatever a peer put there,
/// it shows as one harmless line.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Reason<'a> {
    bytes: &'a [u8],
}

impl<'a> Reason<'a> {
    /// The beginning of `text` that fits, no character cut in two.
    pub(crate) fn new(text: &'a str) -> Self {
        let mut len = text.len().min(REASON_LEN_MAX);
        while !text.is_char_boundary(len) {
            len -= 1;
        }
        Self {
            bytes: &text.as_bytes()[..len],
        }
    }

    /// # Errors
    ///
    /// [`WireError::PayloadLen`] when it is too long. What is not UTF-8 is shown as well as it can
    /// be.
    pub(super) fn parse(kind: u8, bytes: &'a [u8]) -> Result<Self, WireError> {
        if bytes.len() > REASON_LEN_MAX {
            return Err(WireError::PayloadLen {
                kind,
                said: REASON_LEN_MAX as u64,
                len: bytes.len(),
            });
        }
        Ok(Self { bytes })
    }

    pub(super) fn as_bytes(self) -> &'a [u8] {
        self.bytes
    }
}

impl fmt::Display for Reason<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use fmt::Write;
        for chunk in self.bytes.utf8_chunks() {
            for c in chunk.valid().chars() {
                f.write_char(if c.is_control() { ' ' } else { c })?;
            }
            if !chunk.invalid().is_empty() {
                f.write_char(char::REPLACEMENT_CHARACTER)?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Reason<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}
