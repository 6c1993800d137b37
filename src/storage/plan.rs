//! `Plan` and `Tasks`: how a transfer is cut. Pure: numbers in, numbers out.
//!
//! ```text
//!  file   ────┬───────────────────────────────┬────
//!             │ head │        middle        │ tail │
//!             buffered  direct, or bounced    buffered
//!                    └ multiples of the alignment ┘
//! ```
//!
//! A read goes direct from and to any multiple of the alignment. A write goes direct in whole
//! *pages* only: where a buffered edge shared a page with a direct piece, the kernel would write
//! the page that it has in its cache over what went around it. For the same reason tasks, which run
//! at the same time, begin at pages.

use super::Direction;
use super::file::DirectAlignment;

/// No piece is longer, in bytes: a system call takes no more than 2 GiB less a page.
pub(crate) const PIECE_MAX: usize = 1 << 30;

/// How a piece is moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum How {
    /// Through the page cache.
    Buffered,
    /// Around it, from or to the caller's memory.
    Direct,
    /// Around it, from or to a bounce buffer, since the caller's memory is not aligned.
    Bounced,
}

/// One run of bytes that is moved in one way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Where in the caller's memory, in bytes from its start.
    pub(crate) at: usize,
    /// Where in the file.
    pub(crate) offset: u64,
    /// Bytes, at least 1, at most 1 GiB.
    pub(crate) len: usize,
    pub(crate) how: How,
}

/// What the file and the machine ask for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules {
    pub(crate) direction: Direction,
    /// Whether anything goes around the page cache.
    pub(crate) direct: bool,
    pub(crate) alignment: DirectAlignment,
    /// Bytes of a page.
    pub(crate) page: usize,
}

impl Rules {
    /// Direct pieces begin and end at multiples of this many bytes.
    pub(crate) fn grain(self) -> usize {
        let offset = self.alignment.offset as usize;
        match self.direction {
            Direction::Read => offset,
            Direction::Write => offset.max(self.page),
        }
    }

    /// Tasks begin at multiples of this many bytes.
    pub(crate) fn boundary(self) -> usize {
        self.page.max(self.alignment.offset as usize)
    }

    /// Whether a transfer can go direct from or to this address.
    pub(crate) fn is_aligned(self, address: usize) -> bool {
        address & (self.alignment.memory as usize - 1) == 0
    }
}

/// The pieces of a transfer, in order.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    /// What is left of head, middle and tail.
    parts: [(usize, How); 3],
    at: usize,
    offset: u64,
}

impl Plan {
    /// Cuts `len` bytes at `offset`, which lie (or will lie) in memory at `address`.
    #[inline]
    pub(crate) fn new(rules: Rules, address: usize, offset: u64, len: usize) -> Self {
        let buffered = Self {
            parts: [(len, How::Buffered), (0, How::Buffered), (0, How::Buffered)],
            at: 0,
            offset,
        };
        let grain = rules.grain();
        // A power of two: masks, since a division costs as much as all the rest. Below `grain`,
        // which is a `usize`.
        let within = grain - 1;
        let over = (offset & within as u64) as usize;
        let head = if over == 0 { 0 } else { grain - over };
        if !rules.direct || len.saturating_sub(head) < grain {
            return buffered;
        }
        let middle = (len - head) & !within;
        let how = if rules.is_aligned(address.wrapping_add(head)) {
            How::Direct
        } else {
            How::Bounced
        };
        let parts = [
            (head, How::Buffered),
            (middle, how),
            (len - head - middle, How::Buffered),
        ];
        Self { parts, ..buffered }
    }

    /// Whether anything goes through bounce buffers.
    #[inline]
    pub(crate) fn bounces(&self) -> bool {
        self.parts
            .iter()
            .any(|(len, how)| *len > 0 && *how == How::Bounced)
    }
}

impl Iterator for Plan {
    type Item = Piece;

    #[inline]
    fn next(&mut self) -> Option<Piece> {
        let (left, how) = self.parts.iter_mut().find(|(left, _)| *left > 0)?;
        let len = (*left).min(PIECE_MAX);
        *left -= len;
        let piece = Piece {
            at: self.at,
            offset: self.offset,
            len,
            how: *how,
        };
        self.at += len;
        self.offset += len as u64;
        Some(piece)
    }
}

/// The tasks of a transfer: runs of `size` bytes, of which all but the first begin at a page of the
/// file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tasks {
    len: usize,
    /// Of the first.
    first: usize,
    /// Of the others, but for the last.
    size: usize,
}

impl Tasks {
    /// Cuts `len` bytes at `offset` into tasks of `size` bytes, rounded up to multiples of
    /// `boundary` (a power of two).
    pub(crate) fn new(boundary: usize, offset: u64, len: usize, size: usize) -> Self {
        let Some(size) = size.max(1).checked_next_multiple_of(boundary) else {
            return Self::whole(len);
        };
        // So that there are few enough for a `u32`.
        let size = size.max(len / (u32::MAX as usize / 2) / boundary * boundary);
        // Below `boundary`, which is a `usize`.
        let over = (offset % boundary as u64) as usize;
        Self {
            len,
            first: (size - over).min(len),
            size,
        }
    }

    /// One task.
    pub(crate) fn whole(len: usize) -> Self {
        Self {
            len,
            first: len,
            size: len.max(1),
        }
    }

    /// How many there are: at least 1.
    pub(crate) fn count(self) -> u32 {
        // `new` saw to it that this fits.
        1 + (self.len - self.first).div_ceil(self.size) as u32
    }

    /// Where a task begins in the transfer, and its length.
    pub(crate) fn range(self, index: u32) -> (usize, usize) {
        match index as usize {
            0 => (0, self.first),
            index => {
                let start = self.first + (index - 1) * self.size;
                (start, self.size.min(self.len - start))
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
#[path = "tests/plan.rs"]
mod tests;
