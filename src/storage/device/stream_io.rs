//! `StreamFuture`: a transfer in the order of a CUDA stream, that owns its buffer.
//!
//! # Safety
//! The buffer lies with the operation, or where that was dropped, with the stream, until the stream
//! has passed.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::fmt;
use std::ops::RangeBounds;
use std::ptr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::engine::failed;
use crate::cuda::{Cuda, Current};
use crate::storage::cufile::{
    AsyncRequest, CuFileError, Handle, Stream, StreamOperation, StreamOutcome,
};
use crate::storage::io_buffer::RawMemory;
use crate::storage::operation::Subject;
use crate::storage::stats::Record;
use crate::storage::{
    BackEnd, Direction, FileError, FileErrorKind, FileHandle, FileOperation, IoBuf, IoBufMut,
    IoOptions, IoOutcome, Place, Transferred,
};

/// A transfer in the order of a CUDA stream, from [`FileHandle::read_async`] and
/// [`FileHandle::write_async`].
///
/// It owns its buffer and keeps the file open, and gives the buffer back once. Dropping it gives up
/// the result: what the stream still uses stays where it is until the stream has passed.
///
/// Where cuFile does it, size and offsets can be set until the stream comes to it; who sets them
/// has to know that it has not come yet. Where it was done at once
/// ([`is_asynchronous`](Self::is_asynchronous) says so), those of the call counted, and setting
/// them is an error.
#[must_use = "only check_bytes_done says what became of it"]
pub struct StreamFuture<B: Send + 'static> {
    inner: StreamIoState<B>,
}

/// The buffer, so that a submission that is refused gives it back.
type Shared<B> = Arc<Mutex<B>>;

enum StreamIoState<B: Send + 'static> {
    Ready(IoOutcome<Option<B>>),
    Running(Box<Running<B>>),
}

struct Running<B: Send + 'static> {
    operation: StreamOperation<Shared<B>>,
    about: About,
}

/// What is known of an operation in a stream.
struct About {
    subject: Subject,
    /// The allocation, whose context is current where the stream is asked.
    base: u64,
    /// Where in it the buffer begins.
    first: usize,
    /// As it was set last.
    size: AtomicUsize,
    /// As it was set last.
    offset: AtomicU64,
    begun: Instant,
}

impl<B: Send + 'static> StreamFuture<B> {
    fn ready(buffer: B, result: Result<Transferred, FileError>) -> Self {
        Self {
            inner: StreamIoState::Ready(IoOutcome {
                buffer: Some(buffer),
                result,
            }),
        }
    }

    /// Whether it was given to cuFile in the stream's order; else it was done, or refused, before
    /// the call returned.
    pub fn is_asynchronous(&self) -> bool {
        matches!(self.inner, StreamIoState::Running(_))
    }

    /// Sets the size in bytes: at most the one that it was submitted with.
    ///
    /// # Errors
    /// It was done at once; it is more; the stream was registered with sizes fixed
    /// ([`StreamOperation::set_size`]).
    pub fn set_size(&self, size: usize) -> Result<(), CuFileError> {
        let running = self.running("size", size as u64)?;
        running.operation.set_size(size)?;
        running.about.size.store(size, Ordering::Relaxed);
        Ok(())
    }

    /// Sets the offset in the file.
    ///
    /// # Errors
    /// It was done at once; it can't be counted; the stream was registered with it fixed
    /// ([`StreamOperation::set_file_offset`]).
    pub fn set_file_offset(&self, offset: u64) -> Result<(), CuFileError> {
        let running = self.running("file_offset", offset)?;
        running.operation.set_file_offset(offset)?;
        running.about.offset.store(offset, Ordering::Relaxed);
        Ok(())
    }

    /// Sets the offset in memory that is registered with cuFile, from the beginning of its
    /// allocation: inside of the buffer with the range that was given, and not before the buffer's
    /// first byte.
    ///
    /// # Errors
    /// It was done at once; it does not fit; the memory is not registered, or the stream was
    /// registered with it fixed ([`StreamOperation::set_buffer_offset`]).
    pub fn set_buffer_offset(&self, offset: usize) -> Result<(), CuFileError> {
        let running = self.running("buffer_offset", offset as u64)?;
        if offset < running.about.first {
            let reason = format!("the buffer begins at {}", running.about.first);
            return Err(CuFileError::value("buffer_offset", offset, "bytes", reason));
        }
        running.operation.set_buffer_offset(offset)
    }

    fn running(&self, field: &'static str, value: u64) -> Result<&Running<B>, CuFileError> {
        match &self.inner {
            StreamIoState::Running(running) => Ok(running),
            StreamIoState::Ready(_) => {
                let reason = "it was done before the call returned, with the values of the call";
                Err(CuFileError::value(field, value, "bytes", reason))
            }
        }
    }

    /// Whether it is over. It says yes only when all of the stream's work is done, that behind it,
    /// too.
    ///
    /// # Errors
    /// What the CUDA driver answers.
    pub fn is_done(&self) -> Result<bool, FileError> {
        let StreamIoState::Running(running) = &self.inner else {
            return Ok(true);
        };
        let about = &running.about;
        let asked = about
            .enter()
            .and_then(|_current| running.operation.is_done());
        asked.map_err(|error| about.error(error))
    }

    /// Waits for the stream, then says what became of it. That has no deadline:
    /// [`check_bytes_done_within`](Self::check_bytes_done_within) has one.
    ///
    /// There is no buffer in it where the stream can't be asked whether it still uses it: then it
    /// is leaked.
    pub fn check_bytes_done(self) -> IoOutcome<Option<B>> {
        let Running { operation, about } = match self.inner {
            StreamIoState::Ready(outcome) => return outcome,
            StreamIoState::Running(running) => *running,
        };
        let _current = about.enter();
        about.outcome(operation.check_bytes_done())
    }

    /// The same with a deadline: the stream is looked at again and again.
    ///
    /// # Errors
    /// The future, which is still in flight, where it was not done in time.
    pub fn check_bytes_done_within(self, limit: Duration) -> Result<IoOutcome<Option<B>>, Self> {
        let Running { operation, about } = match self.inner {
            StreamIoState::Ready(outcome) => return Ok(outcome),
            StreamIoState::Running(running) => *running,
        };
        let _current = about.enter();
        match operation.check_bytes_done_within(limit) {
            Ok(outcome) => Ok(about.outcome(outcome)),
            Err(operation) => Err(Self {
                inner: StreamIoState::Running(Box::new(Running { operation, about })),
            }),
        }
    }
}

impl<B: Send + 'static> fmt::Debug for StreamFuture<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamFuture")
            .field("is_asynchronous", &self.is_asynchronous())
            .finish_non_exhaustive()
    }
}

impl About {
    fn enter(&self) -> Result<Current, CuFileError> {
        Ok(Cuda::ready()?.enter_at(self.base)?)
    }

    fn error(&self, error: CuFileError) -> FileError {
        let mut error = self.subject.error(self.size(), failed(error));
        error.offset = Some(self.offset.load(Ordering::Relaxed));
        error
    }

    fn size(&self) -> usize {
        self.size.load(Ordering::Relaxed)
    }

    /// The stream has passed, or can't be asked; counts it, too.
    fn outcome<B>(&self, outcome: StreamOutcome<Shared<B>>) -> IoOutcome<Option<B>> {
        let Subject {
            file, direction, ..
        } = &self.subject;
        if *direction == Direction::Write {
            file.forget_size();
        }
        let moved = outcome.result.as_ref().map_or(0, |moved| *moved);
        let result = match outcome.result {
            Err(error) => Err(self.error(error)),
            Ok(moved) if *direction == Direction::Write && moved < self.size() => {
                let offset = self.offset.load(Ordering::Relaxed);
                let mut error = self.subject.error(self.size(), FileErrorKind::WriteZero);
                error.offset = Some(offset);
                error.done = moved as u64;
                Err(error)
            }
            Ok(moved) => Ok(Transferred {
                bytes: moved,
                ..Transferred::new(BackEnd::CuFile)
            }),
        };
        file.counters().record(&Record {
            direction: *direction,
            back_end: BackEnd::CuFile,
            bytes: moved as u64,
            direct_bytes: 0,
            bounced_bytes: 0,
            elapsed: self.begun.elapsed(),
            failed: result.is_err(),
        });
        IoOutcome {
            buffer: outcome.keep.and_then(owned),
            result,
        }
    }
}

/// The buffer, of which nobody else has a hold any more.
fn owned<B>(shared: Shared<B>) -> Option<B> {
    let mutex = Arc::into_inner(shared)?;
    Some(mutex.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// Where it goes.
struct StreamTarget<'a> {
    handle: &'a Handle,
    stream: &'a Stream,
    request: AsyncRequest,
    about: About,
}

impl FileHandle {
    /// Reads into a range of a buffer in the order of a CUDA stream, and returns before the stream
    /// has come to it.
    ///
    /// It is asynchronous where the buffer is GPU memory, a stream is given that is not the default
    /// one, and the file is not in compatibility mode for it
    /// ([`is_compat_mode_preferred_for_async`](Self::is_compat_mode_preferred_for_async); why,
    /// [`compat_reason`](Self::compat_reason) says). cuFile then looks at size and offsets when the
    /// stream comes to it; a short count says that the file ended, or that cuFile stopped there.
    /// The rest is not read then: when the count is known, what stands behind it in the stream has
    /// used the memory already, and whoever gave it that has to know.
    ///
    /// Else **this blocks**: it waits for the stream, then reads as [`read_into`](Self::read_into)
    /// does, and the future is over when this returns. Without CUDA, and for memory of the host,
    /// that is so with no stream at all (`None`, the default stream). [`Transferred::back_end`]
    /// says which it was.
    ///
    /// What is wrong with the arguments, the outcome says, which is there at once then.
    ///
    /// ```
    /// use fabricast::storage::FileHandle;
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("run.dat");
    /// let file = FileHandle::open(&path, "w+")?;
    /// let written = file.write_async(b"one two".to_vec(), .., 0, None);
    /// assert_eq!(written.check_bytes_done().result?.bytes, 7);
    ///
    /// let read = file.read_async(vec![0; 10], ..3, 4, None);
    /// assert!(!read.is_asynchronous(), "memory of the host");
    /// let outcome = read.check_bytes_done();
    /// assert_eq!(outcome.result?.bytes, 3);
    /// assert_eq!(&outcome.buffer.expect("it comes back")[..3], b"two");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn read_async<B: IoBufMut>(
        &self,
        mut buffer: B,
        range: impl RangeBounds<usize>,
        offset: u64,
        stream: Option<&Stream>,
    ) -> StreamFuture<B> {
        let memory = RawMemory::new(buffer.place_mut());
        // SAFETY: `IoBufMut` promises the place until the buffer is dropped or used.
        unsafe { self.in_stream(Direction::Read, buffer, memory, &range, offset, stream) }
    }

    /// Writes a range of a buffer in the order of a CUDA stream; else as
    /// [`read_async`](Self::read_async). A write that took fewer bytes than asked is an error,
    /// which says how many it took.
    ///
    /// What work in the stream puts into the memory before belongs to it; nothing else may write
    /// there.
    pub fn write_async<B: IoBuf>(
        &self,
        buffer: B,
        range: impl RangeBounds<usize>,
        offset: u64,
        stream: Option<&Stream>,
    ) -> StreamFuture<B> {
        let memory = RawMemory::new(buffer.place());
        // SAFETY: `IoBuf` promises the place until the buffer is dropped or used.
        unsafe { self.in_stream(Direction::Write, buffer, memory, &range, offset, stream) }
    }

    /// # Safety
    /// `memory` is good to write, with nobody else reading or writing it (a read), or good to read
    /// (a write), until the buffer is dropped or used in any other way.
    unsafe fn in_stream<B: IoBuf>(
        &self,
        direction: Direction,
        buffer: B,
        memory: RawMemory,
        range: &impl RangeBounds<usize>,
        offset: u64,
        stream: Option<&Stream>,
    ) -> StreamFuture<B> {
        let operation = match direction {
            Direction::Read => FileOperation::Read,
            Direction::Write => FileOperation::Write,
        };
        let accepted = || {
            let part = self.part(operation, memory, range, offset)?;
            let subject = self.subject(operation, offset, part.len())?;
            Ok((part, subject))
        };
        let (part, subject) = match accepted() {
            Ok(accepted) => accepted,
            Err(error) => return StreamFuture::ready(buffer, Err(error)),
        };
        let file = Arc::clone(&subject.file);
        let route = match (part.place(), stream) {
            (Place::Device { .. }, Some(stream)) if part.len() > 0 && !stream.raw().is_null() => {
                match file.route() {
                    Ok(route) if !route.compat.for_async => route.handle.as_ref(),
                    Ok(_) => None,
                    Err(kind) => {
                        let error = subject.error(part.len(), kind);
                        return StreamFuture::ready(buffer, Err(error));
                    }
                }
            }
            _ => None,
        };
        if let (Some(handle), Some(stream)) = (route, stream) {
            let target = StreamTarget::new(handle, stream, subject, memory, part);
            // SAFETY: the caller's promise.
            return unsafe { target.submit(buffer) };
        }
        let result = match synchronize(part.place(), stream) {
            // SAFETY: the caller's promise, and the buffer is here until this is over.
            Ok(()) => unsafe { self.now(direction, part, offset, &IoOptions::default(), None) },
            Err(error) => Err(subject.error(part.len(), failed(error))),
        };
        StreamFuture::ready(buffer, result)
    }
}

/// Waits for what the stream was given before. The default stream, the transfer itself waits for.
fn synchronize(place: Place, stream: Option<&Stream>) -> Result<(), CuFileError> {
    let Some(stream) = stream else { return Ok(()) };
    let _current = match place {
        Place::Device { base, .. } => Some(Cuda::ready()?.enter_at(base)?),
        Place::Host { .. } => None,
    };
    stream.synchronize()
}

impl<'a> StreamTarget<'a> {
    /// The part of the memory, both of a device's.
    fn new(
        handle: &'a Handle,
        stream: &'a Stream,
        subject: Subject,
        memory: RawMemory,
        part: RawMemory,
    ) -> Self {
        let place = |memory: RawMemory| match memory.place() {
            Place::Device { base, offset, len } => (base, offset, len),
            Place::Host { ptr, len } => (ptr.addr().get() as u64, 0, len),
        };
        let ((base, first, all), (_, behind, len)) = (place(memory), place(part));
        let offset = subject.offset;
        Self {
            handle,
            stream,
            request: AsyncRequest {
                base: ptr::with_exposed_provenance_mut::<c_void>(base as usize),
                buffer_len: first + all,
                size: len,
                file_offset: offset,
                buffer_offset: behind,
            },
            about: About {
                subject,
                base,
                first,
                size: AtomicUsize::new(len),
                offset: AtomicU64::new(offset),
                begun: Instant::now(),
            },
        }
    }

    /// # Safety
    /// As for [`FileHandle::in_stream`].
    unsafe fn submit<B: IoBuf>(self, buffer: B) -> StreamFuture<B> {
        let Self {
            handle,
            stream,
            request,
            about,
        } = self;
        let shared = Arc::new(Mutex::new(buffer));
        let keep = Arc::clone(&shared);
        let submit = || {
            let _current = about.enter()?;
            match about.subject.direction {
                // SAFETY: the memory is good as long as the buffer lives, which is kept. Whoever
                // made the stream vouches that it belongs to the context of the memory, which is
                // current.
                Direction::Read => unsafe { stream.read_async(handle, request, keep) },
                // SAFETY: as above.
                Direction::Write => unsafe { stream.write_async(handle, request, keep) },
            }
        };
        match submit() {
            Ok(operation) => StreamFuture {
                inner: StreamIoState::Running(Box::new(Running { operation, about })),
            },
            Err(error) => StreamFuture {
                inner: StreamIoState::Ready(IoOutcome {
                    result: Err(about.error(error)),
                    buffer: owned(shared),
                }),
            },
        }
    }
}
