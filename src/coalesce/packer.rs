//! `Packer`: writes small messages into a buffer, one behind the other.

use std::fmt;

use std::ops::{DerefMut, Range};
use std::ptr::NonNull;

use super::error::PackError;
use super::format::Format;
use super::{compact, netio3};
use crate::buffer::{Buffer, BufferMut};

/// Where the next message goes, and what it follows.
#[derive(Debug, Clone, Copy)]
struct State {
    at: usize,
    tag: u64,
    count: u32,
}

/// A message that has its place, and is not there yet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Placed {
    tag: u64,
    status: u8,
    same_tag: bool,
    /// Where its bytes start and end.
    start: usize,
    end: usize,
}

impl Placed {
    pub(crate) fn range(&self) -> Range<usize> {
        self.start..self.end
    }
}

/// Packs small messages into a buffer. A message that does not fit is refused and changes nothing.
///
/// ```
/// use fabricast::buffer::SharedBufferManager;
/// use fabricast::coalesce::{Format, Packer};
/// let pool = SharedBufferManager::allocate(4, 4096)?;
/// let mut packer = Packer::new(Format::Compact, pool.try_acquire().expect("4 are free"));
/// packer.push(0xfeed, 0, b"a small message")?;
/// assert_eq!(packer.count(), 1);
/// let buffer = packer.freeze();
/// assert_eq!(buffer.len(), 16 + 12 + 15);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Packer<B> {
    buffer: B,
    format: Format,
    /// Bytes of the buffer that may be used.
    limit: usize,
    state: State,
}

impl<B: DerefMut<Target = [u8]>> Packer<B> {
    /// Begins at the buffer's first byte, and may fill all of it (in the compact format up to 4
    /// GiB).
    pub fn new(format: Format, buffer: B) -> Self {
        Self::with_limit(format, buffer, usize::MAX)
    }

    /// The same, with so many bytes of the buffer at most.
    pub fn with_limit(format: Format, buffer: B, limit: usize) -> Self {
        let limit = limit.min(buffer.len()).min(u32::MAX as usize);
        Self {
            buffer,
            format,
            limit,
            state: State {
                at: format.buffer_header(),
                tag: 0,
                count: 0,
            },
        }
    }

    /// Appends a message.
    ///
    /// # Errors
    ///
    /// [`PackError::Full`]: finish this buffer and begin another. [`PackError::TooLong`]: no buffer
    /// like this one takes it.
    #[inline(always)]
    pub fn push(&mut self, tag: u64, status: u8, bytes: &[u8]) -> Result<(), PackError> {
        let placed = self.place(tag, status, bytes.len())?;
        // As `commit`, with one look at the buffer for header and bytes.
        let out = &mut self.buffer[self.state.at..placed.end];
        let (head, body) = out.split_at_mut(placed.start - self.state.at);
        write_head(self.format, head, &placed, bytes.len());
        body.copy_from_slice(bytes);
        self.advance(&placed, bytes.len());
        Ok(())
    }

    /// Appends a message that lies in several pieces.
    ///
    /// # Errors
    ///
    /// As [`push`](Self::push).
    pub fn push_segments(
        &mut self,
        tag: u64,
        status: u8,
        segments: &[&[u8]],
    ) -> Result<(), PackError> {
        let len = total_len(segments);
        let placed = self.place(tag, status, len)?;
        self.fill(&placed, segments);
        self.commit(&placed, len);
        Ok(())
    }

    /// Whether a message like this fits now.
    pub fn fits(&self, tag: u64, status: u8, len: usize) -> bool {
        self.place(tag, status, len).is_ok()
    }

    /// The number of messages.
    pub fn count(&self) -> u32 {
        self.state.count
    }

    /// True before the first message.
    pub fn is_empty(&self) -> bool {
        self.state.count == 0
    }

    /// The bytes used so far, the format's own included.
    pub fn len(&self) -> usize {
        self.state.at
    }

    /// The bytes that are not used yet.
    pub fn free(&self) -> usize {
        self.limit.saturating_sub(self.state.at)
    }

    /// Ends packing: the buffer, and how many of its bytes are to be sent. 0 for a buffer that is
    /// too short for the format's own header.
    pub fn finish(mut self) -> (B, usize) {
        let len = self.seal();
        (self.buffer, len)
    }

    fn seal(&mut self) -> usize {
        let State { at, count, .. } = self.state;
        if self.limit < self.format.buffer_header() {
            return 0;
        }
        if self.format == Format::Compact {
            let header = compact::write_header(&mut self.buffer, count, at);
            debug_assert!(header.is_some(), "`limit` is at most 32 bits");
        }
        at
    }

    /// Finds the place of a message; nothing is written.
    #[inline]
    pub(crate) fn place(&self, tag: u64, status: u8, len: usize) -> Result<Placed, PackError> {
        let State {
            at,
            tag: before,
            count,
        } = self.state;
        let (same_tag, head, len_max) = match self.format {
            Format::Compact => {
                let same = tag == before;
                (same, compact::head_len(same), compact::LEN_MAX)
            }
            Format::Netio3 => {
                let same = tag == before && count > 0;
                (same, netio3::head_len(same, status), netio3::LEN_MAX)
            }
        };
        let start = at + head;
        if len > len_max || start > self.limit || len > self.limit - start {
            return Err(self.refuse(tag, status, len, head));
        }
        Ok(Placed {
            tag,
            status,
            same_tag,
            start,
            end: start + len,
        })
    }

    #[cold]
    fn refuse(&self, tag: u64, status: u8, len: usize, head: usize) -> PackError {
        let empty = self.limit.saturating_sub(self.format.buffer_header());
        let first_head = self.format.first_message(tag, status, 0);
        let max = empty
            .saturating_sub(first_head)
            .min(self.format.max_message());
        if len > max || empty < first_head {
            return PackError::TooLong { len, max };
        }
        PackError::Full {
            need: len.saturating_add(head),
            free: self.free(),
        }
    }

    /// Copies a message's pieces to its place; together they have its length.
    pub(crate) fn fill(&mut self, placed: &Placed, segments: &[&[u8]]) {
        let mut out = &mut self.buffer[placed.range()];
        for segment in segments {
            let (here, behind) = out.split_at_mut(segment.len());
            here.copy_from_slice(segment);
            out = behind;
        }
    }

    /// The bytes of a message that has its place.
    pub(crate) fn bytes_mut(&mut self, placed: &Placed) -> &mut [u8] {
        &mut self.buffer[placed.range()]
    }

    /// The same, to read.
    pub(crate) fn bytes(&self, placed: &Placed) -> &[u8] {
        &self.buffer[placed.range()]
    }

    /// Makes a message that has its place part of the buffer, with its first `len` bytes.
    ///
    /// # Panics
    ///
    /// If `len` is more than it was placed for.
    #[inline]
    pub(crate) fn commit(&mut self, placed: &Placed, len: usize) {
        let &Placed { start, end, .. } = placed;
        assert!(len <= end - start, "commit({len}) of {} bytes", end - start);
        let head = &mut self.buffer[self.state.at..start];
        write_head(self.format, head, placed, len);
        self.advance(placed, len);
    }

    #[inline]
    fn advance(&mut self, placed: &Placed, len: usize) {
        self.state = State {
            at: placed.start + len,
            tag: placed.tag,
            count: self.state.count + 1,
        };
    }
}

#[inline(always)]
fn write_head(format: Format, head: &mut [u8], placed: &Placed, len: usize) {
    let &Placed {
        tag,
        status,
        same_tag,
        ..
    } = placed;
    match format {
        Format::Compact => compact::write_head(head, same_tag, tag, status, len),
        Format::Netio3 => netio3::write_head(head, same_tag, tag, status, len),
    }
}

impl Packer<BufferMut> {
    /// Ends packing: the buffer with the messages, ready to be sent.
    pub fn freeze(self) -> Buffer {
        let (buffer, len) = self.finish();
        buffer.freeze(len)
    }

    /// Where a message that has its place lies, for who fills it later.
    pub(crate) fn address_of(&mut self, placed: &Placed) -> NonNull<u8> {
        self.buffer.place(placed.range().start)
    }
}

impl<B> fmt::Debug for Packer<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Packer")
            .field("format", &self.format)
            .field("count", &self.state.count)
            .field("len", &self.state.at)
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}

/// Bytes of a message in pieces; saturated, it is too long for any buffer.
pub(crate) fn total_len(segments: &[&[u8]]) -> usize {
    let lens = segments.iter().map(|segment| segment.len());
    lens.fold(0, usize::saturating_add)
}
