//! `StreamOperation`: one operation in a CUDA stream, and the numbers that cuFile reads and writes
//! for it.

#![allow(unsafe_code)]

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicIsize, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::error::{CuFileError, Failure};
use super::handle::Handle;
use super::stream::{AsyncRequest, CuFileStreamShared, StreamFlags};
use super::{lock, signed};

/// Between two looks at a stream: the first pause, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_micros(20), Duration::from_millis(1));

/// What cuFile reads and writes by address. Atomics, because it does so from threads of its own,
/// whenever the stream comes to it.
#[derive(Debug)]
pub(super) struct Cell {
    pub(super) size: AtomicUsize,
    pub(super) file_offset: AtomicI64,
    pub(super) buffer_offset: AtomicI64,
    pub(super) bytes_done: AtomicIsize,
}

impl Cell {
    pub(super) fn of(handle: &Handle, request: &AsyncRequest) -> Result<Self, CuFileError> {
        let AsyncRequest {
            size,
            buffer_len,
            buffer_offset,
            ..
        } = *request;
        let (at, behind) = handle.checked(size, request.file_offset, buffer_offset)?;
        if buffer_offset
            .checked_add(size)
            .is_none_or(|end| end > buffer_len)
        {
            let reason = format!("with {size} bytes it leaves the memory of {buffer_len}");
            let field = "buffer_offset";
            return Err(CuFileError::value(field, buffer_offset, "bytes", reason));
        }
        Ok(Self {
            size: AtomicUsize::new(size),
            file_offset: AtomicI64::new(at),
            buffer_offset: AtomicI64::new(behind),
            // What cuFile asks for; so it says nothing about whether the operation has run.
            bytes_done: AtomicIsize::new(0),
        })
    }
}

/// What may not be freed before the stream has passed.
pub(super) struct StreamHold<K> {
    pub(super) cell: Box<Cell>,
    pub(super) handle: Handle,
    pub(super) keep: K,
}

/// An operation in a stream.
///
/// Its size and offsets can be set until the stream comes to it, unless they were fixed by
/// [`StreamFlags`]; who sets them has to know that it has not come yet.
///
/// Dropping it gives up the result. Its memory stays taken until the stream has passed it.
#[must_use = "only check_bytes_done says what became of it"]
pub struct StreamOperation<K: Send + 'static = ()> {
    pub(super) call: &'static str,
    pub(super) is_read: bool,
    pub(super) stream: Arc<CuFileStreamShared>,
    /// Always there but in `drop`.
    pub(super) held: Option<StreamHold<K>>,
    pub(super) request: AsyncRequest,
    pub(super) flags: StreamFlags,
    /// The memory is.
    pub(super) registered: bool,
}

// SAFETY: the pointer of the request is only compared and handed to cuFile; the rest is Send.
unsafe impl<K: Send + 'static> Send for StreamOperation<K> {}

/// What became of an operation in a stream.
#[derive(Debug)]
pub struct StreamOutcome<K> {
    /// Bytes that were read or written, or why it failed.
    pub result: Result<usize, CuFileError>,
    /// What was held for the caller; `None` where the stream can't be asked: then it is leaked,
    /// since it may be in use.
    pub keep: Option<K>,
}

impl<K: Send + 'static> StreamOperation<K> {
    /// Sets the size: at most the one that it was submitted with.
    ///
    /// # Errors
    ///
    /// [`CuFileError::Value`] where it is more, or was fixed.
    pub fn set_size(&self, size: usize) -> Result<(), CuFileError> {
        self.settable("size", size as u64, StreamFlags::FIXED_SIZE)?;
        if size > self.request.size {
            let reason = format!("it was submitted with at most {}", self.request.size);
            return Err(CuFileError::value("size", size, "bytes", reason));
        }
        // Pairs with the stream, whose later work sees what was written before it was let go on.
        self.cell().size.store(size, Ordering::Release);
        Ok(())
    }

    /// Sets the offset in the file.
    ///
    /// # Errors
    ///
    /// [`CuFileError::Value`] where it can't be counted, or was fixed.
    pub fn set_file_offset(&self, offset: u64) -> Result<(), CuFileError> {
        self.settable("file_offset", offset, StreamFlags::FIXED_FILE_OFFSET)?;
        let end = offset.saturating_add(self.request.size as u64);
        signed("end of the range in the file", end)?;
        let at = signed("file_offset", offset)?;
        self.cell().file_offset.store(at, Ordering::Release);
        Ok(())
    }

    /// Sets the offset in the memory: so that the size it was submitted with fits behind it.
    ///
    /// # Errors
    ///
    /// [`CuFileError::Value`] where it does not fit, was fixed, or the memory is not registered
    /// ([`CuFile::register_memory`](super::CuFile::register_memory)).
    pub fn set_buffer_offset(&self, offset: usize) -> Result<(), CuFileError> {
        let fixed = StreamFlags::FIXED_BUFFER_OFFSET;
        self.settable("buffer_offset", offset as u64, fixed)?;
        if !self.registered {
            let reason = "cuFile takes no other offset in memory that is not registered";
            let field = "buffer_offset";
            return Err(CuFileError::value(field, offset, "bytes", reason));
        }
        let AsyncRequest {
            size, buffer_len, ..
        } = self.request;
        if offset > buffer_len - size {
            let reason = format!("with {size} bytes it leaves the memory of {buffer_len}");
            let field = "buffer_offset";
            return Err(CuFileError::value(field, offset, "bytes", reason));
        }
        let behind = signed("buffer_offset", offset as u64)?;
        self.cell().buffer_offset.store(behind, Ordering::Release);
        Ok(())
    }

    fn settable(
        &self,
        field: &'static str,
        value: u64,
        fixed: StreamFlags,
    ) -> Result<(), CuFileError> {
        if self.flags.contains(fixed) {
            let reason = "the stream was registered with it fixed at submission";
            return Err(CuFileError::value(field, value, "bytes", reason));
        }
        if self.flags.contains(StreamFlags::PAGE_ALIGNED) && !value.is_multiple_of(4096) {
            let reason = "the stream was registered for multiples of 4096";
            return Err(CuFileError::value(field, value, "bytes", reason));
        }
        Ok(())
    }

    fn cell(&self) -> &Cell {
        &self.held.as_ref().expect("held until it is dropped").cell
    }

    /// Whether the stream has passed it, `cuStreamQuery`. It says yes only when all of the stream's
    /// work is done, that behind it, too.
    ///
    /// # Errors
    ///
    /// What the CUDA driver answers.
    pub fn is_done(&self) -> Result<bool, CuFileError> {
        self.stream.is_idle()
    }

    /// Waits for the stream, `cuStreamSynchronize`, then says what became of the operation. That
    /// has no deadline: [`check_bytes_done_within`](Self::check_bytes_done_within) has one.
    ///
    /// Fewer bytes than asked are no error: the file ended.
    pub fn check_bytes_done(self) -> StreamOutcome<K> {
        match self.stream.synchronize() {
            Ok(()) => self.passed(),
            Err(error) => StreamOutcome {
                result: Err(error),
                // `self` is dropped, and leaves what it holds with the stream.
                keep: None,
            },
        }
    }

    /// The same with a deadline: the stream is looked at again and again.
    ///
    /// # Errors
    ///
    /// The operation, which is still in flight, where it was not done in time.
    pub fn check_bytes_done_within(self, limit: Duration) -> Result<StreamOutcome<K>, Self> {
        // One beyond what the clock can tell never comes.
        let (until, mut pause) = (Instant::now().checked_add(limit), PAUSES.0);
        loop {
            match self.stream.is_idle() {
                Ok(true) => return Ok(self.passed()),
                Ok(false) => {}
                Err(error) => {
                    return Ok(StreamOutcome {
                        result: Err(error),
                        keep: None,
                    });
                }
            }
            let now = Instant::now();
            let left = until.map(|until| until.saturating_duration_since(now));
            if left.is_some_and(|left| left.is_zero()) {
                return Err(self);
            }
            std::thread::sleep(left.map_or(pause, |left| pause.min(left)));
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    /// The stream has passed it: nobody but us has the cell any more.
    fn passed(mut self) -> StreamOutcome<K> {
        let held = self.held.take().expect("held until it is dropped");
        self.stream.release();
        let size = held.cell.size.load(Ordering::Acquire);
        let done = held.cell.bytes_done.load(Ordering::Acquire);
        let at = held.cell.file_offset.load(Ordering::Acquire);
        let at = u64::try_from(at).ok();
        let result = match usize::try_from(done) {
            Ok(done) if done <= size && self.is_read => {
                Ok(held.handle.up_to_end(at.unwrap_or(0), done))
            }
            Ok(done) if done <= size => Ok(done),
            Ok(_) => Err(Failure::Nonsense(done as i64)),
            Err(_) => Err(Failure::of_operation(done)),
        };
        StreamOutcome {
            result: result.map_err(|failure| {
                CuFileError::call(self.call, failure).at(held.handle.path(), at)
            }),
            keep: Some(held.keep),
        }
    }
}

impl<K: Send + 'static> Drop for StreamOperation<K> {
    fn drop(&mut self) {
        if let Some(held) = self.held.take() {
            lock(&self.stream.state).dropped.push(Box::new(held));
        }
    }
}

impl<K: Send + 'static> fmt::Debug for StreamOperation<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamOperation")
            .field("call", &self.call)
            .field("request", &self.request)
            .finish_non_exhaustive()
    }
}
