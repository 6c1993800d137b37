//! `BufferParts`: many views of one buffer, whose handles are counted at once.

#![allow(unsafe_code)]

use std::ops::Range;

use super::shared::{Buffer, SharedBufferManager};
use super::slot_table::SlotPool;

impl Buffer {
    /// A view of a part of this buffer, as [`slice`](Self::slice), which
    /// [`PartsHeld`] counts.
    ///
    /// # Panics
    /// If the range is not within the buffer.
    pub(crate) fn part(&self, range: Range<usize>) -> Self {
        let (table, index) = self.slot.table();
        table.set_parted(index);
        self.slice(range)
    }

    /// Whether [`PartsHeld`] counts this buffer.
    pub(crate) fn is_parted(&self) -> bool {
        let (table, index) = self.slot.table();
        table.is_parted(index)
    }

    /// To make many views of this buffer, which are counted together: at most so many.
    pub(crate) fn parts(&self, max: u32) -> BufferParts<'_> {
        let (table, index) = self.slot.table();
        table.set_parted(index);
        table.share(index, max);
        BufferParts {
            buffer: self,
            spare: max,
        }
    }
}

/// Buffers of a pool that were given out in parts and are not free again, as far as that can be
/// said while other threads drop some.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PartsHeld {
    pub(crate) buffers: u64,
    /// Handles on these buffers.
    pub(crate) handles: u64,
}

impl SharedBufferManager {
    /// What is held in parts now. Looks at each buffer, where there are such.
    pub(crate) fn parts_held(&self) -> PartsHeld {
        let (buffers, handles) = self.table().parted();
        PartsHeld {
            buffers: buffers.into(),
            handles,
        }
    }
}

/// Handles on a buffer that are counted and have no view yet.
pub(crate) struct BufferParts<'a> {
    buffer: &'a Buffer,
    spare: u32,
}

impl BufferParts<'_> {
    /// As [`Buffer::slice`].
    ///
    /// # Panics
    /// If the range is not within the buffer, or there were as many as were to be.
    #[inline]
    pub(crate) fn part(&mut self, range: Range<usize>) -> Buffer {
        let Buffer { slot, start, len } = self.buffer;
        assert!(
            self.spare > 0 && range.start <= range.end && range.end <= *len,
            "part {range:?} of a buffer of {len} bytes, {} are left",
            self.spare
        );
        self.spare -= 1;
        Buffer {
            // SAFETY: `Buffer::parts` counted as many handles as `spare` was at first; this is one
            // of them, and what stays is one less (`drop` gives those back).
            slot: unsafe { slot.counted() },
            start: start + range.start,
            len: range.end - range.start,
        }
    }
}

impl Drop for BufferParts<'_> {
    fn drop(&mut self) {
        let (table, index) = self.buffer.slot.table();
        table.unshare(index, self.spare);
    }
}
