//! `Transferred`: how many bytes went which way.

use super::BackEnd;

/// What a transfer moved, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Transferred {
    /// Bytes moved, from the offset on. A read is short only at the end of the file.
    pub bytes: usize,
    /// What moved them.
    pub back_end: BackEnd,
    /// Bytes that went around the page cache. Where memory is not aligned, 0 of
    /// [`readv`](super::FileHandle::readv), [`writev`](super::FileHandle::writev) and a
    /// [`Batch`](super::Batch), which make no copies.
    pub direct_bytes: usize,
    /// Those of `direct_bytes` that went through a bounce buffer and a copy, because the memory is
    /// not aligned.
    pub bounced_bytes: usize,
}

impl Transferred {
    pub(crate) fn new(back_end: BackEnd) -> Self {
        Self {
            bytes: 0,
            back_end,
            direct_bytes: 0,
            bounced_bytes: 0,
        }
    }

    /// Bytes that went through the page cache.
    pub fn buffered_bytes(&self) -> usize {
        self.bytes.saturating_sub(self.direct_bytes)
    }
}
