//! `FileHandle`: an open file, and what can be done with it.

#![allow(unsafe_code)]

use std::ops::RangeBounds;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::path::Path;
use std::sync::Arc;

use crate::Error;

use super::file::{DirectAlignment, File};
use super::io_buffer::{RawMemory, checked_range};
use super::operation::{Operation, Subject, transfer};
use super::transfer_route::TransferRoute;
use super::{
    Direction, FileError, FileErrorKind, FileOperation, IoBuf, IoBufMut, IoFuture, IoOptions,
    IoOutcome, IoStats, OpenOptions, Place, ThreadPool, Transferred,
};

/// An open file: reads and writes at any offset and length, from any thread.
///
/// | call | who does it | memory |
/// |---|---|---|
/// | [`read`], [`write`] | this thread | borrowed |
/// | [`read_parallel`], [`write_parallel`] | this thread and a pool's, cut in tasks | borrowed |
/// | [`pread`], [`pwrite`], [`append`] | a pool's threads, cut in tasks | the operation's own |
/// | [`read_async`], [`write_async`] | cuFile, or else this thread | the operation's own |
///
/// cuFile does it in the order of a CUDA stream.
///
/// [`read`]: Self::read
/// [`write`]: Self::write
/// [`read_parallel`]: Self::read_parallel
/// [`write_parallel`]: Self::write_parallel
/// [`pread`]: Self::pread
/// [`pwrite`]: Self::pwrite
/// [`append`]: Self::append
/// [`read_async`]: Self::read_async
/// [`write_async`]: Self::write_async
///
/// A read is short only at the end of the file. Memory of its range behind the last byte is as it
/// was, but for a read around the page cache, where the kernel may fill it with zeros. A write
/// takes all bytes, or is an error that says how many it took. Operations on ranges that overlap,
/// at the same time, are a race, as they are for pwrite(2).
///
/// ```
/// use fabricast::storage::FileHandle;
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("run.dat");
/// let mut file = FileHandle::open(&path, "w+")?;
/// file.write(b"one two", 0)?;
/// let mut word = [0; 10];
/// let moved = file.read(&mut word, 4)?;
/// assert_eq!((moved.bytes, &word[..3]), (3, &b"two"[..]));
/// file.close();
/// assert!(file.read(&mut word, 0).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct FileHandle {
    /// `None` when it was closed.
    file: Option<Arc<File>>,
    path: Arc<Path>,
}

impl FileHandle {
    pub(crate) fn new(file: File) -> Self {
        Self {
            path: Arc::clone(file.path()),
            file: Some(Arc::new(file)),
        }
    }

    /// Opens a file with flags as text: `r`, `w`, `a`, `x`, each with `+` for both directions; see
    /// [`OpenFlags::parse`](super::OpenFlags::parse). More can be said with [`OpenOptions`].
    ///
    /// # Errors
    /// As [`OpenOptions::open`].
    pub fn open(path: impl AsRef<Path>, flags: &str) -> Result<Self, FileError> {
        OpenOptions::new().flags(flags).open(path)
    }

    /// The open file, in the process that opened it.
    #[inline]
    pub(crate) fn file(&self, operation: FileOperation) -> Result<&Arc<File>, FileError> {
        match &self.file {
            Some(file) if file.check_owner().is_ok() => Ok(file),
            _ => Err(self.no_file(operation)),
        }
    }

    #[cold]
    fn no_file(&self, operation: FileOperation) -> FileError {
        let open = self.file.as_ref();
        let kind = open.and_then(|file| file.check_owner().err());
        self.error(operation, kind.unwrap_or(FileErrorKind::Closed))
    }

    /// Where it was opened. Of a descriptor that was given: what the kernel called it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The size in bytes, as it was when this handle last asked. It asks anew after each write,
    /// append, truncation and allocation of its own; what others do to the file,
    /// [`refresh`](Self::refresh) finds.
    ///
    /// # Errors
    /// What fstat(2) answers, and a handle that is closed.
    pub fn nbytes(&self) -> Result<u64, FileError> {
        let file = self.file(FileOperation::Stat)?;
        file.size()
            .map_err(|kind| FileError::new(FileOperation::Stat, Arc::clone(&self.path), kind))
    }

    /// The size in bytes, asked for now.
    ///
    /// # Errors
    /// As [`nbytes`](Self::nbytes).
    pub fn refresh(&self) -> Result<u64, FileError> {
        let file = self.file(FileOperation::Stat)?;
        file.refresh_size()
            .map_err(|kind| FileError::new(FileOperation::Stat, Arc::clone(&self.path), kind))
    }

    /// What O_DIRECT asks of offsets and addresses; `None` when it was closed.
    pub fn alignment(&self) -> Option<DirectAlignment> {
        self.file.as_ref().map(|file| file.alignment())
    }

    /// Why transfers do not go around the page cache; `None` when they can, or the handle is
    /// closed.
    pub fn direct_refused(&self) -> Option<&str> {
        self.file.as_ref().and_then(|file| file.direct_refused())
    }

    /// The descriptor that goes through the page cache, or the one that goes around it (O_DIRECT);
    /// `None` when there is none.
    pub fn fd(&self, direct: bool) -> Option<RawFd> {
        let file = self.file.as_ref()?;
        if direct {
            file.direct().map(|fd| fd.as_raw_fd())
        } else {
            Some(file.buffered().as_raw_fd())
        }
    }

    /// The descriptor that goes through the page cache; `None` when it was closed.
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.file.as_ref()?.buffered())
    }

    /// The flags of the descriptor that goes through the page cache, as fcntl(2) has them
    /// (`F_GETFL`).
    ///
    /// # Errors
    /// What fcntl(2) answers, and a handle that is closed.
    pub fn open_flags(&self) -> Result<i32, FileError> {
        let file = self.file(FileOperation::Stat)?;
        let flags = rustix::fs::fcntl_getfl(file.buffered());
        let flags = flags.map_err(|errno| self.error(FileOperation::Stat, errno))?;
        // The kernel's are an `int`.
        Ok(flags.bits() as i32)
    }

    /// Major and minor number of the device that the file is on; of a block device, its own. `None`
    /// when it was closed.
    pub fn device(&self) -> Option<(u32, u32)> {
        self.file.as_ref().map(|file| file.device())
    }

    /// What was done with this handle: operations, bytes, errors, latencies. All zeros when it was
    /// closed.
    pub fn stats(&self) -> IoStats {
        let file = self.file.as_ref();
        file.map_or_else(IoStats::default, |file| file.counters().snapshot())
    }

    /// Reads into borrowed memory, on this thread. Short at the end of the file.
    ///
    /// # Errors
    /// [`FileError`], with the bytes that were read before it.
    pub fn read(&self, memory: &mut [u8], offset: u64) -> Result<Transferred, FileError> {
        let memory = RawMemory::of_mut(memory);
        // SAFETY: borrowed for this call, for us alone.
        unsafe { self.now(Direction::Read, memory, offset, &IoOptions::default(), None) }
    }

    /// Writes borrowed memory, on this thread: all of it.
    ///
    /// # Errors
    /// [`FileError`], with the bytes that are in the file.
    pub fn write(&self, memory: &[u8], offset: u64) -> Result<Transferred, FileError> {
        self.write_with(memory, offset, &IoOptions::default())
    }

    /// [`write`](Self::write) with options of one call.
    pub(crate) fn write_with(
        &self,
        memory: &[u8],
        offset: u64,
        options: &IoOptions,
    ) -> Result<Transferred, FileError> {
        let memory = RawMemory::of(memory);
        // SAFETY: borrowed for this call, so that nobody writes there.
        unsafe { self.now(Direction::Write, memory, offset, options, None) }
    }

    /// Reads into a range of a buffer, on this thread; for GPU memory, and for options of one call.
    ///
    /// # Errors
    /// As [`read`](Self::read), and [`FileErrorKind::Range`].
    pub fn read_into<B: IoBufMut>(
        &self,
        buffer: &mut B,
        range: impl RangeBounds<usize>,
        offset: u64,
        options: &IoOptions,
    ) -> Result<Transferred, FileError> {
        let place = buffer.place_mut();
        let memory = self.part(FileOperation::Read, RawMemory::new(place), &range, offset)?;
        // SAFETY: `IoBufMut` promises the place, and it is borrowed for us alone.
        unsafe { self.now(Direction::Read, memory, offset, options, None) }
    }

    /// Writes a range of a buffer, on this thread; for GPU memory, and for options of one call.
    ///
    /// # Errors
    /// As [`write`](Self::write), and [`FileErrorKind::Range`].
    pub fn write_from<B: IoBuf>(
        &self,
        buffer: &B,
        range: impl RangeBounds<usize>,
        offset: u64,
        options: &IoOptions,
    ) -> Result<Transferred, FileError> {
        let place = buffer.place();
        let memory = self.part(FileOperation::Write, RawMemory::new(place), &range, offset)?;
        // SAFETY: `IoBuf` promises the place, and it is borrowed.
        unsafe { self.now(Direction::Write, memory, offset, options, None) }
    }

    /// Reads into borrowed memory, cut in tasks for the threads of a pool and this one. All of them
    /// are done when it returns.
    ///
    /// # Errors
    /// As [`read`](Self::read). Of tasks that failed, the first in the file counts.
    pub fn read_parallel(
        &self,
        memory: &mut [u8],
        offset: u64,
        options: &IoOptions,
    ) -> Result<Transferred, FileError> {
        let pool = self.pool(options).ok();
        let memory = RawMemory::of_mut(memory);
        // SAFETY: borrowed for this call, for us alone.
        unsafe { self.now(Direction::Read, memory, offset, options, pool.as_ref()) }
    }

    /// Writes borrowed memory, cut in tasks for the threads of a pool and this one. All of them are
    /// done when it returns.
    ///
    /// # Errors
    /// As [`write`](Self::write). Of tasks that failed, the first in the file counts; what lies
    /// behind it may or may not be in the file.
    pub fn write_parallel(
        &self,
        memory: &[u8],
        offset: u64,
        options: &IoOptions,
    ) -> Result<Transferred, FileError> {
        let pool = self.pool(options).ok();
        let memory = RawMemory::of(memory);
        // SAFETY: borrowed for this call, so that nobody writes there.
        unsafe { self.now(Direction::Write, memory, offset, options, pool.as_ref()) }
    }

    /// Reads into a range of a buffer that the operation owns, cut in tasks for the threads of a
    /// pool, and returns at once.
    ///
    /// GPU memory of fewer bytes than [`IoOptions::gds_threshold`] is read by this thread, and the
    /// future is ready when this returns.
    ///
    /// What is wrong with the arguments, and a pool that is full ([`FileErrorKind::QueueFull`]),
    /// the outcome says, which is there at once then.
    pub fn pread<B: IoBufMut>(
        &self,
        buffer: B,
        range: impl RangeBounds<usize>,
        offset: u64,
        options: &IoOptions,
    ) -> IoFuture<B> {
        let operation = FileOperation::Read;
        // SAFETY: `IoBufMut` promises the place until the buffer is dropped or used.
        unsafe { self.later(operation, buffer, &range, offset, options, B::place_mut) }
    }

    /// Writes a range of a buffer that the operation owns, cut in tasks for the threads of a pool,
    /// and returns at once.
    ///
    /// As with [`pread`](Self::pread), little GPU memory is written by this thread, and the outcome
    /// says what is wrong.
    pub fn pwrite<B: IoBuf>(
        &self,
        buffer: B,
        range: impl RangeBounds<usize>,
        offset: u64,
        options: &IoOptions,
    ) -> IoFuture<B> {
        let operation = FileOperation::Write;
        // SAFETY: `IoBuf` promises the place until the buffer is dropped or used.
        unsafe {
            self.later(operation, buffer, &range, offset, options, |buffer| {
                buffer.place()
            })
        }
    }

    /// Writes a range of a buffer behind the end of the file: reserves its place there, says where
    /// that is, and goes on as [`pwrite`](Self::pwrite).
    ///
    /// Places that one handle reserves never overlap, whichever threads ask; other handles and
    /// processes know nothing of them. What is reserved and then fails to be written stays a hole,
    /// which reads as zeros.
    ///
    /// # Errors
    /// The buffer, when no place could be reserved: nothing was begun.
    pub fn append<B: IoBuf>(
        &self,
        buffer: B,
        range: impl RangeBounds<usize>,
        options: &IoOptions,
    ) -> Result<(u64, IoFuture<B>), IoOutcome<B>> {
        let reserved = self.reserve(&buffer, &range);
        match reserved {
            Ok(offset) => {
                let operation = FileOperation::Append;
                let place = |buffer: &mut B| buffer.place();
                // SAFETY: `IoBuf` promises the place until the buffer is dropped or used.
                let future =
                    unsafe { self.later(operation, buffer, &range, offset, options, place) };
                Ok((offset, future))
            }
            Err(error) => Err(IoOutcome {
                buffer,
                result: Err(error),
            }),
        }
    }

    fn reserve<B: IoBuf>(
        &self,
        buffer: &B,
        range: &impl RangeBounds<usize>,
    ) -> Result<u64, FileError> {
        let operation = FileOperation::Append;
        let failed = |kind: FileErrorKind| self.error(operation, kind);
        let file = self.file(operation)?;
        let (_, len) = checked_range(range, buffer.place().len()).map_err(failed)?;
        file.check(Direction::Write, 0, len).map_err(failed)?;
        file.reserve_end(len as u64).map_err(failed)
    }

    pub(super) fn error(
        &self,
        operation: FileOperation,
        kind: impl Into<FileErrorKind>,
    ) -> FileError {
        FileError::new(operation, Arc::clone(&self.path), kind)
    }

    pub(super) fn part(
        &self,
        operation: FileOperation,
        memory: RawMemory,
        range: &impl RangeBounds<usize>,
        offset: u64,
    ) -> Result<RawMemory, FileError> {
        let len = memory.len();
        let checked = checked_range(range, len);
        let (start, len) =
            checked.map_err(|kind| self.error(operation, kind).at(offset, len as u64))?;
        Ok(memory.part(start, len))
    }

    /// The threads for a call.
    fn pool(&self, options: &IoOptions) -> Result<ThreadPool, FileErrorKind> {
        if let Some(pool) = &options.pool {
            return Ok(pool.clone());
        }
        let device = self.file.as_ref().map_or((0, 0), |file| file.device());
        ThreadPool::for_file(device).map_err(|error| match error {
            Error::Forked { made_by } => FileErrorKind::Forked { made_by },
            Error::Os { source, .. } => FileErrorKind::os(&source),
            // The settings were checked.
            _ => FileErrorKind::Os {
                errno: libc::EAGAIN,
            },
        })
    }

    /// Checks a transfer.
    pub(super) fn subject(
        &self,
        operation: FileOperation,
        offset: u64,
        len: usize,
    ) -> Result<Subject, FileError> {
        let file = Arc::clone(self.file(operation)?);
        let direction = match operation {
            FileOperation::Read => Direction::Read,
            _ => Direction::Write,
        };
        let subject = Subject {
            file,
            operation,
            direction,
            offset,
        };
        match subject.file.check(direction, offset, len) {
            Ok(()) => Ok(subject),
            Err(kind) => Err(subject.error(len, kind)),
        }
    }

    /// A transfer that is over when this returns.
    ///
    /// # Safety
    /// As [`transfer`].
    pub(super) unsafe fn now(
        &self,
        direction: Direction,
        memory: RawMemory,
        offset: u64,
        options: &IoOptions,
        pool: Option<&ThreadPool>,
    ) -> Result<Transferred, FileError> {
        let operation = match direction {
            Direction::Read => FileOperation::Read,
            Direction::Write => FileOperation::Write,
        };
        let subject = self.subject(operation, offset, memory.len())?;
        let threads = pool.map_or(1, |pool| pool.threads() + 1);
        let route = TransferRoute::new(&subject.file, direction, memory, offset, options, threads);
        let route = route.map_err(|kind| subject.error(memory.len(), kind))?;
        // SAFETY: the caller's promise.
        unsafe { transfer(subject, memory, route, pool) }
    }

    /// A transfer that goes on when this returns.
    ///
    /// # Safety
    /// As [`Operation::new`], for all of the buffer.
    unsafe fn later<B: IoBuf>(
        &self,
        operation: FileOperation,
        buffer: B,
        range: &impl RangeBounds<usize>,
        offset: u64,
        options: &IoOptions,
        place: impl FnOnce(&mut B) -> Place,
    ) -> IoFuture<B> {
        let memory = RawMemory::new(buffer.place());
        let accepted = || {
            let part = self.part(operation, memory, range, offset)?;
            let subject = self.subject(operation, offset, part.len())?;
            let failed = |kind| subject.error(part.len(), kind);
            let pool = if TransferRoute::is_done_at_once(&subject.file, part, options) {
                None
            } else {
                Some(self.pool(options).map_err(failed)?)
            };
            let threads = pool.as_ref().map_or(1, |pool| pool.threads().max(1));
            let route = TransferRoute::new(
                &subject.file,
                subject.direction,
                part,
                offset,
                options,
                threads,
            );
            Ok((part.len(), route.map_err(failed)?, subject, pool))
        };
        let (len, route, subject, pool) = match accepted() {
            Ok(accepted) => accepted,
            Err(error) => return IoFuture::ready(buffer, Err(error)),
        };
        if len == 0 {
            return IoFuture::ready(buffer, Ok(Transferred::new(route.engine.back_end())));
        }
        // Inside of the buffer, as was just checked.
        let start = checked_range(range, memory.len()).map_or(0, |(start, _)| start);
        let place = |buffer: &mut B| RawMemory::new(place(buffer)).part(start, len);
        // SAFETY: the caller's promise.
        let operation = unsafe { Operation::new(subject, route, buffer, place) };
        let Some(pool) = pool else {
            // By this thread, and nobody else has heard of it.
            return IoFuture::over(operation.wait());
        };
        match operation.submit(&pool) {
            Ok(()) => IoFuture::running(operation),
            Err(outcome) => IoFuture::over(outcome),
        }
    }

    /// Closes the handle. Operations that are under way go on: the descriptors are closed with the
    /// last of them.
    pub fn close(&mut self) {
        self.file = None;
    }

    /// Whether it was closed.
    pub fn closed(&self) -> bool {
        self.file.is_none()
    }
}
