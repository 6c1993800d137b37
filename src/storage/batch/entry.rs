//! `Entry`: one transfer of a batch while it is under way, with the buffer and the file that it keeps.

#![allow(unsafe_code)]

use std::ops::RangeBounds;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;

use super::{BatchEvent, BatchRefused, BatchRefusedKind};
use crate::storage::file::File;
use crate::storage::io_buffer::{IoBuf, IoBufMut, RawMemory, checked_range};
use crate::storage::plan::{How, Piece, Plan, Rules};
use crate::storage::stats::Record;
use crate::storage::uring::request::{Moved, Stop};
use crate::storage::{
    BackEnd, Direction, FileError, FileErrorKind, FileHandle, FileOperation, Place, Transferred,
};

/// What a batch is to do: which bytes of which file, from or to which buffer.
///
/// The whole buffer, unless a [`range`](Self::range) says otherwise. The batch owns the buffer until its [`BatchEvent`].
#[derive(Debug)]
#[must_use = "nothing happens before it is submitted"]
pub struct BatchEntry<B> {
    file: Result<Arc<File>, FileError>,
    direction: Direction,
    buffer: B,
    place: Place,
    range: Result<(usize, usize), FileErrorKind>,
    offset: u64,
}

impl<B: IoBuf> BatchEntry<B> {
    /// Reads from `offset` on into the buffer.
    pub fn read(file: &FileHandle, buffer: B, offset: u64) -> Self
    where
        B: IoBufMut,
    {
        Self::read_of(file.file(FileOperation::Read).cloned(), buffer, offset)
    }

    pub(in crate::storage) fn read_of(
        file: Result<Arc<File>, FileError>,
        mut buffer: B,
        offset: u64,
    ) -> Self
    where
        B: IoBufMut,
    {
        let place = buffer.place_mut();
        Self::new(file, Direction::Read, buffer, place, offset)
    }

    /// Writes the buffer at `offset`.
    pub fn write(file: &FileHandle, buffer: B, offset: u64) -> Self {
        Self::write_of(file.file(FileOperation::Write).cloned(), buffer, offset)
    }

    pub(in crate::storage) fn write_of(
        file: Result<Arc<File>, FileError>,
        buffer: B,
        offset: u64,
    ) -> Self {
        let place = buffer.place();
        Self::new(file, Direction::Write, buffer, place, offset)
    }

    fn new(
        file: Result<Arc<File>, FileError>,
        direction: Direction,
        buffer: B,
        place: Place,
        offset: u64,
    ) -> Self {
        Self {
            file,
            direction,
            buffer,
            place,
            range: Ok((0, place.len())),
            offset,
        }
    }

    /// Only these bytes of the buffer.
    pub fn range(mut self, range: impl RangeBounds<usize>) -> Self {
        self.range = checked_range(&range, self.place.len());
        self
    }

    /// Gives the buffer back, undone.
    pub fn into_buffer(self) -> B {
        self.buffer
    }

    /// Checks it, and makes it ready to run; the clock starts.
    pub(super) fn accept(
        self,
        cookie: u64,
        goes_direct: impl FnOnce(&File, Direction, usize) -> bool,
    ) -> Result<Entry<B>, BatchRefused<B>> {
        match self.checked() {
            Ok((file, memory)) => {
                let direct = goes_direct(&file, self.direction, memory.len());
                Ok(Entry::new(self, cookie, file, memory, direct))
            }
            Err(error) => Err(BatchRefused {
                kind: BatchRefusedKind::File(error),
                buffer: self.buffer,
            }),
        }
    }

    fn checked(&self) -> Result<(Arc<File>, RawMemory), FileError> {
        let operation = operation_of(self.direction);
        let file = self.file.as_ref().map_err(Clone::clone)?;
        let failed = |kind: FileErrorKind| {
            let len = self.range.as_ref().map_or(0, |(_, len)| *len);
            FileError::new(operation, Arc::clone(file.path()), kind).at(self.offset, len as u64)
        };
        let (start, len) = self.range.clone().map_err(&failed)?;
        file.check(self.direction, self.offset, len)
            .map_err(&failed)?;
        let memory = RawMemory::new(self.place).part(start, len);
        if memory.host().is_none() {
            return Err(failed(FileErrorKind::Unsupported {
                what: "a batch with GPU memory",
                reason: "it moves bytes of the host's memory only; cuFile has batches of its own"
                    .into(),
            }));
        }
        Ok((Arc::clone(file), memory))
    }
}

fn operation_of(direction: Direction) -> FileOperation {
    match direction {
        Direction::Read => FileOperation::Read,
        Direction::Write => FileOperation::Write,
    }
}

/// A transfer that a batch has accepted.
#[derive(Debug)]
pub(super) struct Entry<B> {
    pub(super) cookie: u64,
    pub(super) file: Arc<File>,
    pub(super) direction: Direction,
    pub(super) memory: RawMemory,
    pub(super) offset: u64,
    pub(super) direct: bool,
    buffer: B,
    moved: usize,
    direct_bytes: usize,
    cancelled: bool,
    begun: Instant,
}

impl<B: IoBuf> Entry<B> {
    fn new(
        entry: BatchEntry<B>,
        cookie: u64,
        file: Arc<File>,
        memory: RawMemory,
        direct: bool,
    ) -> Self {
        Self {
            cookie,
            file,
            direction: entry.direction,
            memory,
            offset: entry.offset,
            direct,
            buffer: entry.buffer,
            moved: 0,
            direct_bytes: 0,
            cancelled: false,
            begun: Instant::now(),
        }
    }

    pub(super) fn into_buffer(self) -> B {
        self.buffer
    }

    /// It is to end early, if it still can.
    pub(super) fn cancel(&mut self) {
        self.cancelled = true;
    }

    /// How what is left is cut.
    fn plan(&self, direct: bool) -> Plan {
        let rules = Rules {
            direction: self.direction,
            direct: direct && self.file.direct().is_some(),
            alignment: self.file.alignment(),
            page: rustix::param::page_size(),
        };
        let address = self.memory.host().map_or(0, |start| start.addr().get());
        let offset = self.offset + self.moved as u64;
        let left = self.memory.len() - self.moved;
        Plan::new(rules, address + self.moved, offset, left)
    }

    /// Whether it goes direct: memory that is not aligned goes through the page cache, since a batch makes no copies.
    pub(super) fn goes_direct(&self) -> bool {
        self.direct && self.plan(true).all(|piece| piece.how != How::Bounced)
    }

    /// The next run of bytes that go one way.
    pub(super) fn next_piece(&self) -> Piece {
        let piece = self.plan(self.goes_direct()).next();
        Piece {
            at: self.moved,
            ..piece.unwrap_or(Piece {
                at: 0,
                offset: self.offset,
                len: 0,
                how: How::Buffered,
            })
        }
    }

    /// Where a piece goes: first, and where what is left of it goes.
    pub(super) fn descriptors(&self, piece: &Piece) -> (BorrowedFd<'_>, Option<BorrowedFd<'_>>) {
        match self.file.direct() {
            Some(direct) if piece.how == How::Direct => (direct, Some(self.file.buffered())),
            _ => (self.file.buffered(), None),
        }
    }

    /// Takes in what became of a piece; with a result, the transfer is over.
    pub(super) fn advance(&mut self, moved: Moved) -> Option<Result<(), FileErrorKind>> {
        self.moved += moved.bytes;
        self.direct_bytes += moved.direct_bytes;
        if moved.direct_refused {
            let errno = std::io::Error::from_raw_os_error(libc::EINVAL);
            self.file
                .refuse_direct(format!("a direct {} was refused: {errno}", self.direction));
        }
        match moved.stop {
            Some(Stop::EndOfFile) => Some(Ok(())),
            Some(Stop::Cancelled) => Some(Err(FileErrorKind::Cancelled)),
            Some(Stop::Error(errno)) => Some(Err(FileErrorKind::Os { errno })),
            None if self.moved == self.memory.len() => Some(Ok(())),
            None if self.cancelled => Some(Err(FileErrorKind::Cancelled)),
            None => None,
        }
    }

    /// The outcome, once. `now`: one look at the clock for all that end together.
    pub(super) fn finish(
        self,
        back_end: BackEnd,
        bounced_bytes: usize,
        result: Result<(), FileErrorKind>,
        now: Instant,
    ) -> BatchEvent<B> {
        let file = &self.file;
        if self.direction == Direction::Write {
            file.forget_size();
        }
        file.counters().record(&Record {
            direction: self.direction,
            back_end,
            bytes: self.moved as u64,
            direct_bytes: self.direct_bytes as u64,
            bounced_bytes: bounced_bytes as u64,
            elapsed: now.saturating_duration_since(self.begun),
            failed: result.is_err(),
        });
        let result = match result {
            Ok(()) => Ok(Transferred {
                bytes: self.moved,
                back_end,
                direct_bytes: self.direct_bytes,
                bounced_bytes,
            }),
            Err(kind) => {
                let operation = operation_of(self.direction);
                let error = FileError::new(operation, Arc::clone(file.path()), kind);
                let mut error = error.at(self.offset, self.memory.len() as u64);
                error.done = self.moved as u64;
                Err(error)
            }
        };
        BatchEvent {
            cookie: self.cookie,
            buffer: self.buffer,
            result,
        }
    }
}
