//! `Entry`: one transfer of a batch while it is under way, with the buffer and the file that it
//! keeps.

#![allow(unsafe_code)]

use std::ops::{Range, RangeBounds};
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::BatchEvent;
use super::maybe_dangling::MaybeDangling;
use crate::storage::file::File;
use crate::storage::io_buffer::{IoBuf, IoBufMut, RawMemory, checked_range, ends_of};
use crate::storage::plan::{How, PIECE_MAX, Piece, Plan, Rules};
use crate::storage::stats::Record;
use crate::storage::uring::request::{Moved, Stop};
use crate::storage::{
    BackEnd, Direction, FileError, FileErrorKind, FileHandle, FileOperation, Place, Transferred,
};

/// What a batch is to do: which bytes of which file, from or to which buffer.
///
/// The whole buffer, unless a [`range`](Self::range) says otherwise. The batch owns the buffer
/// until its [`BatchEvent`].
#[derive(Debug)]
#[must_use = "nothing happens before it is submitted"]
pub struct BatchEntry<B> {
    /// Boxed: an entry moves, and an error is longer than all the rest.
    file: Result<Arc<File>, Box<FileError>>,
    direction: Direction,
    buffer: MaybeDangling<B>,
    place: Place,
    /// Of the buffer; unchecked.
    range: Range<usize>,
    offset: u64,
}

impl<B: IoBuf> BatchEntry<B> {
    /// Reads from `offset` on into the buffer.
    #[inline]
    pub fn read(file: &FileHandle, buffer: B, offset: u64) -> Self
    where
        B: IoBufMut,
    {
        Self::read_of(file.file(FileOperation::Read).cloned(), buffer, offset)
    }

    #[inline]
    pub(in crate::storage) fn read_of(
        file: Result<Arc<File>, FileError>,
        buffer: B,
        offset: u64,
    ) -> Self
    where
        B: IoBufMut,
    {
        let mut buffer = MaybeDangling::new(buffer);
        let place = buffer.get_mut().place_mut();
        Self::new(file, Direction::Read, buffer, place, offset)
    }

    /// Writes the buffer at `offset`.
    #[inline]
    pub fn write(file: &FileHandle, buffer: B, offset: u64) -> Self {
        Self::write_of(file.file(FileOperation::Write).cloned(), buffer, offset)
    }

    #[inline]
    pub(in crate::storage) fn write_of(
        file: Result<Arc<File>, FileError>,
        buffer: B,
        offset: u64,
    ) -> Self {
        let mut buffer = MaybeDangling::new(buffer);
        let place = buffer.get_mut().place();
        Self::new(file, Direction::Write, buffer, place, offset)
    }

    #[inline]
    fn new(
        file: Result<Arc<File>, FileError>,
        direction: Direction,
        buffer: MaybeDangling<B>,
        place: Place,
        offset: u64,
    ) -> Self {
        Self {
            file: file.map_err(Box::new),
            direction,
            buffer,
            place,
            range: 0..place.len(),
            offset,
        }
    }

    /// Only these bytes of the buffer.
    #[inline]
    pub fn range(mut self, range: impl RangeBounds<usize>) -> Self {
        self.range = ends_of(&range, self.place.len());
        self
    }

    /// Gives the buffer back, undone.
    pub fn into_buffer(self) -> B {
        self.buffer.into_inner()
    }

    /// Checks it, and says how it is to be done. `goes_direct`: whether it is to go around the page
    /// cache, where that can be.
    #[inline]
    pub(super) fn check(
        &self,
        goes_direct: impl FnOnce(&File, Direction, usize) -> bool,
    ) -> Result<Way, Box<FileError>> {
        let file = match &self.file {
            Ok(file) => file,
            Err(error) => return Err(error.clone()),
        };
        let range = checked_range(&self.range, self.place.len());
        let (start, len) = range.map_err(|kind| self.failed(file, 0, kind))?;
        file.check(self.direction, self.offset, len)
            .map_err(|kind| self.failed(file, len, kind))?;
        let memory = RawMemory::new(self.place).part(start, len);
        let Some(address) = memory.host() else {
            return Err(self.failed(file, len, no_device_memory()));
        };
        let direct = goes_direct(file, self.direction, len);
        let whole = Whole {
            direction: self.direction,
            address,
            offset: self.offset,
            len,
        };
        let (piece, direct) = whole.first_piece(file, direct);
        Ok(Way {
            memory,
            direct,
            piece,
        })
    }

    #[cold]
    fn failed(&self, file: &File, len: usize, kind: FileErrorKind) -> Box<FileError> {
        let operation = operation_of(self.direction);
        let error = FileError::new(operation, Arc::clone(file.path()), kind);
        Box::new(error.at(self.offset, len as u64))
    }

    /// It is under way from now on. Only after [`check`](Self::check).
    #[inline(always)]
    pub(super) fn begin(self, cookie: u64, way: &Way, now: Instant) -> Entry<B> {
        let Ok(file) = self.file else {
            unreachable!("it was checked");
        };
        Entry {
            cookie,
            file: Some(file),
            direction: self.direction,
            memory: way.memory,
            offset: self.offset,
            direct: way.direct,
            buffer: Some(self.buffer),
            moved: 0,
            direct_bytes: 0,
            cancelled: false,
            begun: now,
        }
    }

    /// Its file. Only after [`check`](Self::check).
    #[inline]
    pub(super) fn file(&self) -> &Arc<File> {
        match &self.file {
            Ok(file) => file,
            Err(_) => unreachable!("it was checked"),
        }
    }

    #[inline]
    pub(super) fn direction(&self) -> Direction {
        self.direction
    }
}

#[cold]
fn no_device_memory() -> FileErrorKind {
    FileErrorKind::Unsupported {
        what: "a batch with GPU memory",
        reason: "it moves bytes of the host's memory only; cuFile has batches of its own".into(),
    }
}

/// How an entry that was checked is to be done.
pub(super) struct Way {
    pub(super) memory: RawMemory,
    /// Around the page cache, but for the edges.
    direct: bool,
    /// The first run of bytes that go one way.
    pub(super) piece: Piece,
}

/// What is to be cut into pieces.
struct Whole {
    direction: Direction,
    address: NonNull<u8>,
    offset: u64,
    len: usize,
}

impl Whole {
    /// The first piece, and whether it goes direct, as was asked: memory that is not aligned goes
    /// through the page cache, since a batch makes no copies.
    #[inline]
    fn first_piece(&self, file: &File, direct: bool) -> (Piece, bool) {
        let buffered = Piece {
            at: 0,
            offset: self.offset,
            len: self.len.min(PIECE_MAX),
            how: How::Buffered,
        };
        if !direct || file.direct().is_none() {
            return (buffered, false);
        }
        let rules = Rules {
            direction: self.direction,
            direct,
            alignment: file.alignment(),
            page: rustix::param::page_size(),
        };
        let mut plan = Plan::new(rules, self.address.addr().get(), self.offset, self.len);
        match plan.next() {
            Some(piece) if piece.how != How::Bounced && !plan.bounces() => (piece, true),
            // Also of no bytes at all there is a piece: its outcome.
            _ => (buffered, false),
        }
    }
}

/// Where a piece of a file goes: first, and where what is left of it goes.
#[inline]
pub(super) fn descriptors<'a>(
    file: &'a File,
    piece: &Piece,
) -> (BorrowedFd<'a>, Option<BorrowedFd<'a>>) {
    match file.direct() {
        Some(direct) if piece.how == How::Direct => (direct, Some(file.buffered())),
        _ => (file.buffered(), None),
    }
}

fn operation_of(direction: Direction) -> FileOperation {
    match direction {
        Direction::Read => FileOperation::Read,
        Direction::Write => FileOperation::Write,
    }
}

/// A transfer that a batch has accepted. File and buffer are there until its outcome is made, which
/// takes them.
#[derive(Debug)]
pub(super) struct Entry<B> {
    pub(super) cookie: u64,
    file: Option<Arc<File>>,
    pub(super) direction: Direction,
    pub(super) memory: RawMemory,
    pub(super) offset: u64,
    pub(super) direct: bool,
    buffer: Option<MaybeDangling<B>>,
    moved: usize,
    direct_bytes: usize,
    cancelled: bool,
    pub(super) begun: Instant,
}

impl<B: IoBuf> Entry<B> {
    /// The file that it keeps open.
    #[inline]
    pub(super) fn file(&self) -> &Arc<File> {
        match &self.file {
            Some(file) => file,
            None => unreachable!("only the outcome takes it"),
        }
    }

    /// It is to end early, if it still can.
    pub(super) fn cancel(&mut self) {
        self.cancelled = true;
    }

    /// The next run of bytes that go one way, of an entry that has begun.
    pub(super) fn next_piece(&self) -> Piece {
        let left = self.memory.part(self.moved, self.memory.len() - self.moved);
        let whole = Whole {
            direction: self.direction,
            address: left.host().unwrap_or(NonNull::dangling()),
            offset: self.offset + self.moved as u64,
            len: left.len(),
        };
        Piece {
            at: self.moved,
            ..whole.first_piece(self.file(), self.direct).0
        }
    }

    /// Takes in what became of a piece; with a result, the transfer is over. Whether it was refused
    /// as a direct one is for the caller to tell the file.
    #[inline]
    pub(super) fn advance(&mut self, moved: Moved) -> Option<Result<(), FileErrorKind>> {
        self.moved += moved.bytes;
        self.direct_bytes += moved.direct_bytes;
        match moved.stop {
            Some(Stop::EndOfFile) => Some(Ok(())),
            Some(Stop::Cancelled) => Some(Err(FileErrorKind::Cancelled)),
            Some(Stop::Error(errno)) => Some(Err(FileErrorKind::Os { errno })),
            None if self.moved == self.memory.len() => Some(Ok(())),
            None if self.cancelled => Some(Err(FileErrorKind::Cancelled)),
            None => None,
        }
    }

    /// What is to be counted of it.
    #[inline(always)]
    pub(super) fn record(
        &self,
        back_end: BackEnd,
        bounced_bytes: usize,
        failed: bool,
        elapsed: Duration,
    ) -> Record {
        Record {
            direction: self.direction,
            back_end,
            bytes: self.moved as u64,
            direct_bytes: self.direct_bytes as u64,
            bounced_bytes: bounced_bytes as u64,
            elapsed,
            failed,
        }
    }

    /// The file that it kept open, once; nothing else asks for it then.
    #[inline(always)]
    pub(super) fn take_file(&mut self) -> Option<Arc<File>> {
        self.file.take()
    }

    /// The outcome of one that went well, once.
    #[inline(always)]
    pub(super) fn done(&mut self, back_end: BackEnd, bounced_bytes: usize) -> BatchEvent<B> {
        BatchEvent {
            cookie: self.cookie,
            buffer: self.take_buffer(),
            result: Ok(Transferred {
                bytes: self.moved,
                back_end,
                direct_bytes: self.direct_bytes,
                bounced_bytes,
            }),
        }
    }

    /// The outcome of one that did not, once; before its file is taken.
    #[cold]
    pub(super) fn failed(&mut self, kind: FileErrorKind) -> BatchEvent<B> {
        let operation = operation_of(self.direction);
        let error = FileError::new(operation, Arc::clone(self.file().path()), kind);
        let mut error = error.at(self.offset, self.memory.len() as u64);
        error.done = self.moved as u64;
        BatchEvent {
            cookie: self.cookie,
            buffer: self.take_buffer(),
            result: Err(error),
        }
    }

    #[inline(always)]
    fn take_buffer(&mut self) -> B {
        match self.buffer.take() {
            Some(buffer) => buffer.into_inner(),
            None => unreachable!("an entry has one outcome"),
        }
    }
}
