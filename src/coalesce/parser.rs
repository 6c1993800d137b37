//! Iterators over the small messages of a buffer: borrowed slices, and owned ones of the same
//! memory.

use std::iter::FusedIterator;
use std::ops::Range;

use super::error::{FormatError, FormatErrorKind};
use super::format::Format;
use super::{compact, netio3};
use crate::buffer::Buffer;

/// A small message, borrowed from the buffer that it arrived in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SmallMessage<'a> {
    /// Whose it is.
    pub tag: u64,
    /// 0: fine; everything else is the application's.
    pub status: u8,
    /// Its bytes. They are aligned to nothing.
    pub bytes: &'a [u8],
}

/// A small message that owns its part of the buffer that it arrived in: nothing was copied, and the
/// buffer is posted again when the last of its messages is gone.
#[derive(Debug, Clone)]
pub struct OwnedSmallMessage {
    /// Whose it is.
    pub tag: u64,
    /// 0: fine; everything else is the application's.
    pub status: u8,
    /// Its bytes. They are aligned to nothing.
    pub bytes: Buffer,
}

/// How far a buffer was read: plain numbers, for who can't keep the iterator, such as a foreign
/// interface. [`Default`] is the start of a buffer, whatever its format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReadPosition {
    /// Bytes that were read.
    pub at: usize,
    /// The tag of the last message.
    pub tag: u64,
    /// Messages that were read.
    pub found: u32,
    /// Nothing comes any more: the end, or an error, was told.
    pub over: bool,
}

/// What the header of a compact buffer promises.
#[derive(Debug, Clone, Copy)]
pub(super) struct Extent {
    pub(super) count: u32,
    pub(super) len: usize,
}

/// A message's header, read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Head {
    pub(super) tag: u64,
    pub(super) status: u8,
    /// Bytes of the header.
    pub(super) head: usize,
    /// Bytes of the message.
    pub(super) len: usize,
}

/// A message as a range of its buffer.
struct Found {
    tag: u64,
    status: u8,
    range: Range<usize>,
}

/// How far a buffer is read. It holds no bytes: every call is given the same ones.
#[derive(Debug, Clone)]
struct Cursor {
    format: Format,
    at: usize,
    /// Where messages end: the buffer's end, or earlier where the header says so.
    end: usize,
    tag: u64,
    found: u32,
    extent: Option<Extent>,
    /// What is wrong with the buffer as a whole.
    broken: Option<FormatError>,
    over: bool,
}

impl Cursor {
    fn new(format: Format, bytes: &[u8]) -> Self {
        let mut cursor = Self {
            format,
            at: 0,
            end: bytes.len(),
            tag: 0,
            found: 0,
            extent: None,
            broken: None,
            over: false,
        };
        if format == Format::Compact {
            match compact::read_header(bytes) {
                Ok(extent) => {
                    cursor.at = compact::HEADER_LEN;
                    cursor.end = extent.len.clamp(cursor.at, bytes.len());
                    cursor.extent = Some(extent);
                }
                Err((offset, kind)) => {
                    cursor.end = 0;
                    cursor.broken = Some(kind.at(offset));
                }
            }
        }
        cursor
    }

    /// As it was there; where there is no such place, at the nearest one that there is.
    fn resume(format: Format, bytes: &[u8], position: ReadPosition) -> Self {
        let mut cursor = Self::new(format, bytes);
        if position.over {
            cursor.stop();
            return cursor;
        }
        cursor.at = position.at.clamp(cursor.at, cursor.end);
        (cursor.tag, cursor.found) = (position.tag, position.found);
        cursor
    }

    #[inline(always)]
    fn next(&mut self, bytes: &[u8]) -> Option<Result<Found, FormatError>> {
        let rest = &bytes[self.at..self.end];
        if rest.is_empty() {
            return self.finish(bytes.len()).map(Err);
        }
        let head = match self.format {
            Format::Compact => compact::read_head(rest, self.tag),
            Format::Netio3 => netio3::read_head(rest, (self.found > 0).then_some(self.tag)),
        };
        let head = match head {
            Ok(head) => head,
            Err(kind) => return Some(Err(self.fail(kind))),
        };
        // Neither overflows: a header has at most 13 bytes, a length at most 30 bits.
        let need = head.head + head.len;
        if need > rest.len() {
            let have = rest.len();
            return Some(Err(self.fail(FormatErrorKind::Truncated { need, have })));
        }
        let range = self.at + head.head..self.at + need;
        self.at += need;
        self.tag = head.tag;
        self.found = self.found.wrapping_add(1);
        Some(Ok(Found {
            tag: head.tag,
            status: head.status,
            range,
        }))
    }

    #[cold]
    fn fail(&mut self, kind: FormatErrorKind) -> FormatError {
        let error = kind.at(self.at);
        self.stop();
        error
    }

    fn stop(&mut self) {
        self.over = true;
        self.at = self.end;
    }

    /// All messages were read: were they what the header promised? Says so once.
    #[cold]
    fn finish(&mut self, have: usize) -> Option<FormatError> {
        if self.over {
            return None;
        }
        self.stop();
        if let Some(error) = self.broken.take() {
            return Some(error);
        }
        let Extent { count, len: said } = self.extent?;
        if said != have {
            return Some(FormatErrorKind::Length { said, have }.at(12));
        }
        if count != self.found {
            let kind = FormatErrorKind::Count {
                said: count,
                have: self.found,
            };
            return Some(kind.at(8));
        }
        None
    }

    /// At most so many messages are left: each takes 4 bytes at least.
    fn at_most(&self) -> usize {
        (self.end - self.at) / Format::HEAD_MIN + usize::from(!self.over)
    }
}

/// The small messages of a buffer, one after the other, borrowed. A malformed buffer gives the
/// messages in front of the fault, then one error, then nothing.
///
/// ```
/// use fabricast::coalesce::{Format, Packer, SmallMessages};
/// let mut packer = Packer::new(Format::Compact, vec![0; 256]);
/// packer.push(7, 0, b"one")?;
/// packer.push(7, 1, b"two")?;
/// let (buffer, len) = packer.finish();
/// let messages: Vec<_> =
///     SmallMessages::new(Format::Compact, &buffer[..len]).collect::<Result<_, _>>()?;
/// assert_eq!(messages[1].bytes, b"two");
/// assert_eq!((messages[1].tag, messages[1].status), (7, 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct SmallMessages<'a> {
    bytes: &'a [u8],
    cursor: Cursor,
}

impl<'a> SmallMessages<'a> {
    /// Reads a buffer from its first byte.
    pub fn new(format: Format, bytes: &'a [u8]) -> Self {
        Self {
            bytes,
            cursor: Cursor::new(format, bytes),
        }
    }

    /// Goes on where a reader of the same bytes [was](Self::position). A position that is none
    /// gives other messages, or an error.
    ///
    /// ```
    /// use fabricast::coalesce::{Format, Packer, ReadPosition, SmallMessages};
    /// let mut packer = Packer::new(Format::Compact, vec![0; 256]);
    /// packer.push(7, 0, b"one")?;
    /// packer.push(7, 1, b"two")?;
    /// let (buffer, len) = packer.finish();
    /// let (mut position, mut all) = (ReadPosition::default(), Vec::new());
    /// loop {
    ///     let mut messages = SmallMessages::resume(Format::Compact, &buffer[..len], position);
    ///     let Some(message) = messages.next() else { break };
    ///     all.push(message?.bytes);
    ///     position = messages.position();
    /// }
    /// assert_eq!(all, [b"one", b"two"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn resume(format: Format, bytes: &'a [u8], position: ReadPosition) -> Self {
        Self {
            bytes,
            cursor: Cursor::resume(format, bytes, position),
        }
    }

    /// How far the buffer was read.
    pub fn position(&self) -> ReadPosition {
        ReadPosition {
            at: self.cursor.at,
            tag: self.cursor.tag,
            found: self.cursor.found,
            over: self.cursor.over,
        }
    }

    /// The number of messages that the buffer's header promises. Nothing is trusted: the iterator
    /// may give fewer, or more, and an error then. `None` where the format has no count.
    pub fn promised(&self) -> Option<u32> {
        self.cursor.extent.map(|extent| extent.count)
    }
}

impl<'a> Iterator for SmallMessages<'a> {
    type Item = Result<SmallMessage<'a>, FormatError>;

    #[inline(always)]
    fn next(&mut self) -> Option<Self::Item> {
        let found = self.cursor.next(self.bytes)?;
        Some(found.map(|found| SmallMessage {
            tag: found.tag,
            status: found.status,
            bytes: &self.bytes[found.range],
        }))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (0, Some(self.cursor.at_most()))
    }
}

impl FusedIterator for SmallMessages<'_> {}

/// The small messages of a received buffer, each owning its part of it. Errors as with
/// [`SmallMessages`].
///
/// A handle costs two atomic operations; where the messages are looked at and let go,
/// [`SmallMessages`] costs none.
#[derive(Debug, Clone)]
pub struct OwnedSmallMessages {
    buffer: Buffer,
    cursor: Cursor,
}

impl OwnedSmallMessages {
    /// Reads a buffer from its first byte.
    pub fn new(format: Format, buffer: Buffer) -> Self {
        let cursor = Cursor::new(format, &buffer);
        Self { buffer, cursor }
    }

    /// The number of messages that the buffer's header promises; see [`SmallMessages::promised`].
    pub fn promised(&self) -> Option<u32> {
        self.cursor.extent.map(|extent| extent.count)
    }
}

impl Iterator for OwnedSmallMessages {
    type Item = Result<OwnedSmallMessage, FormatError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let found = self.cursor.next(&self.buffer)?;
        Some(found.map(|found| OwnedSmallMessage {
            tag: found.tag,
            status: found.status,
            bytes: self.buffer.slice(found.range),
        }))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (0, Some(self.cursor.at_most()))
    }
}

impl FusedIterator for OwnedSmallMessages {}

/// Reads arbitrary bytes by an iterator, and by a new one for each message: both give the same.
///
/// # Panics
///
/// When they do not.
#[cfg(any(test, fuzzing))]
fn exercise_resume(format: Format, bytes: &[u8]) {
    let mut position = ReadPosition::default();
    for item in SmallMessages::new(format, bytes) {
        let mut messages = SmallMessages::resume(format, bytes, position);
        assert_eq!(messages.next(), Some(item));
        position = messages.position();
    }
    let end = SmallMessages::resume(format, bytes, position).next();
    assert_eq!(end, None);
    // A position that is none reads what is there.
    for at in [usize::MAX, bytes.len() / 2, 1] {
        let lost = ReadPosition { at, ..position };
        let lost = ReadPosition {
            over: false,
            ..lost
        };
        let _ = SmallMessages::resume(format, bytes, lost).count();
    }
}

/// Reads arbitrary bytes, and checks what the iterators promise.
///
/// # Panics
///
/// When they break a promise.
#[cfg(any(test, fuzzing))]
pub(super) fn exercise(format: Format, bytes: &[u8]) {
    let mut messages = SmallMessages::new(format, bytes);
    let (_, most) = messages.size_hint();
    let mut behind = bytes.as_ptr().addr();
    let (mut items, mut failed) = (0, false);
    for item in &mut messages {
        items += 1;
        assert!(!failed, "something came behind an error");
        match item {
            Ok(message) => {
                let at = message.bytes.as_ptr().addr();
                assert!(at >= behind + Format::HEAD_MIN, "messages overlap");
                behind = at + message.bytes.len();
                assert!(behind <= bytes.as_ptr().addr() + bytes.len());
            }
            Err(error) => {
                failed = true;
                assert!(error.offset <= bytes.len());
                assert!(!error.to_string().is_empty());
            }
        }
    }
    assert!(messages.next().is_none(), "it is fused");
    exercise_resume(format, bytes);
    assert!(Some(items) <= most, "more items than the hint says");
    if !failed && format == Format::Netio3 {
        // Nothing is around the messages, so they reach to the end.
        assert!(bytes.is_empty() || behind == bytes.as_ptr().addr() + bytes.len());
    }
}
