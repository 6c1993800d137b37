//! Operations in the order of a CUDA stream, whose sizes and offsets are read when the stream comes
//! to them.
//!
//! cuFile reads those numbers, and writes the result, at addresses that it was given; so they lie
//! in a cell of the operation's own on the heap. An operation that is dropped before the stream is
//! known to have passed it leaves its cell, the file's handle and what it keeps for its caller with
//! the stream, which frees them when it has heard that it is idle, and leaks them where it never
//! does.

#![allow(unsafe_code)]

use std::ffi::{c_uint, c_void};
use std::fmt;
use std::mem;
use std::sync::atomic::{AtomicI64, AtomicIsize, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::driver::Driver;
use super::error::{CuFileError, Failure};
use super::handle::Handle;
use super::table::Streams;
use super::{CuFile, abi, check, count_leak, lock, signed};

pub use fabricast_cuda::RawStream;

const READ: &str = "cuFileReadAsync";
/// Most operations of a stream that are in flight or were dropped there.
const IN_FLIGHT_MAX: usize = 4096;
/// Between two looks at a stream: the first pause, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_micros(20), Duration::from_millis(1));

bitflags::bitflags! {
    /// What is known of a stream's operations when they are submitted, the flags of
    /// `cuFileStreamRegister`. The more, the faster.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct StreamFlags: c_uint {
        /// `CU_FILE_STREAM_FIXED_BUF_OFFSET`: the offset in the buffer.
        const FIXED_BUFFER_OFFSET = 1 << 0;
        /// `CU_FILE_STREAM_FIXED_FILE_OFFSET`: the offset in the file.
        const FIXED_FILE_OFFSET = 1 << 1;
        /// `CU_FILE_STREAM_FIXED_FILE_SIZE`: the size.
        const FIXED_SIZE = 1 << 2;
        /// `CU_FILE_STREAM_PAGE_ALIGNED_INPUTS`: all three are multiples of 4096.
        const PAGE_ALIGNED = 1 << 3;
    }
}

impl CuFile {
    /// A CUDA stream, for operations in its order. Registering it ([`Stream::register`]) is
    /// optional.
    ///
    /// # Errors
    ///
    /// [`CuFileError::Lacks`], or what the driver's opening answers.
    ///
    /// # Safety
    ///
    /// `raw` is null (the default stream) or a stream that is not destroyed before the [`Stream`]
    /// and all of its operations are gone. GPU memory that is read into or written from in its
    /// order belongs to its context.
    pub unsafe fn stream(&'static self, raw: RawStream) -> Result<Stream, CuFileError> {
        // SAFETY: the caller keeps the contract, which is the same.
        unsafe { Stream::open(self, raw) }
    }
}

/// A CUDA stream that files are read and written in the order of, from [`CuFile::stream`]. A clone
/// is the same stream.
#[derive(Clone)]
pub struct Stream {
    shared: Arc<CuFileStreamShared>,
}

struct CuFileStreamShared {
    raw: RawStream,
    driver: Driver,
    /// The flags that it is registered with. Its lock is held while cuFile waits for the stream, so
    /// nothing else is behind it.
    registered: Mutex<Option<StreamFlags>>,
    state: Mutex<CuFileStreamState>,
}

#[derive(Default)]
struct CuFileStreamState {
    /// Operations whose end nobody has heard of.
    in_flight: usize,
    /// Of those, the ones whose owners dropped them.
    dropped: Vec<Box<dyn Send>>,
    /// How many of the dropped ones were freed.
    freed: usize,
}

// SAFETY: streams may be used from any thread; the pointer is only handed to cuFile and the CUDA
// driver.
unsafe impl Send for CuFileStreamShared {}
// SAFETY: as above; what changes is behind a lock.
unsafe impl Sync for CuFileStreamShared {}

/// What one operation is to do.
#[derive(Clone, Copy, Debug)]
pub struct AsyncRequest {
    /// Where the memory begins, of a GPU or of the host; where it is registered, the base of its
    /// registration.
    pub base: *mut c_void,
    /// How long the memory is from `base` on, in bytes. No setter of [`StreamOperation`] leads out
    /// of it.
    pub buffer_len: usize,
    /// How many bytes; the most that it will be, where the size is set later.
    pub size: usize,
    /// Where in the file.
    pub file_offset: u64,
    /// Where in the memory. It can be set later only where the memory is registered.
    pub buffer_offset: usize,
}

/// What cuFile reads and writes by address. Atomics, because it does so from threads of its own,
/// whenever the stream comes to it.
#[derive(Debug)]
struct Cell {
    size: AtomicUsize,
    file_offset: AtomicI64,
    buffer_offset: AtomicI64,
    bytes_done: AtomicIsize,
}

/// What may not be freed before the stream has passed.
struct StreamHold<K> {
    cell: Box<Cell>,
    handle: Handle,
    keep: K,
}

impl Stream {
    /// # Safety
    ///
    /// As for [`CuFile::stream`].
    pub(super) unsafe fn open(
        cufile: &'static CuFile,
        raw: RawStream,
    ) -> Result<Self, CuFileError> {
        functions(cufile)?;
        let driver = cufile.driver()?;
        Ok(Self {
            shared: Arc::new(CuFileStreamShared {
                raw,
                driver,
                registered: Mutex::default(),
                state: Mutex::default(),
            }),
        })
    }

    /// Registers the stream, `cuFileStreamRegister`: cuFile then takes what it needs for it once,
    /// and knows what to expect. Waits for what is in the stream. Once for each stream.
    ///
    /// # Errors
    ///
    /// [`CuFileError::Value`] where it is registered already; what the call answers.
    pub fn register(&self, flags: StreamFlags) -> Result<(), CuFileError> {
        let register = functions(self.shared.driver.cufile())?.register;
        let mut registered = lock(&self.shared.registered);
        if registered.is_some() {
            let reason = "the stream is registered already";
            return Err(CuFileError::value("flags", flags.bits(), "", reason));
        }
        // SAFETY: whoever opened this vouches for the stream.
        let answer = unsafe { register(self.shared.raw, flags.bits()) };
        check("cuFileStreamRegister", answer)?;
        *registered = Some(flags);
        Ok(())
    }

    /// Ends the registration, `cuFileStreamDeregister`. Waits for what is in the stream. Nothing
    /// happens where it is not registered. To be done before the stream is destroyed.
    ///
    /// # Errors
    ///
    /// What the call answers.
    pub fn deregister(&self) -> Result<(), CuFileError> {
        self.shared.deregister()
    }

    /// Reads in the order of the stream, `cuFileReadAsync`. `keep` is held until it is over, and
    /// comes back then: the owner of the memory, say.
    ///
    /// It is asynchronous only where bytes go GPU-direct: in compatibility mode cuFile does much of
    /// the work before this returns.
    ///
    /// # Errors
    ///
    /// [`CuFileError::Full`] with 4096 in flight; [`CuFileError::Value`] where the range is out of
    /// the memory; what the call answers. `keep` is dropped then.
    ///
    /// # Safety
    ///
    /// * `buffer_len` bytes from `base` are valid for writes until the operation is over, or as
    ///   long as `keep` lives.
    /// * Until then nobody reads or writes the part that is read into, but for work in the stream
    ///   behind it.
    /// * The CUDA context of the stream is current in this thread.
    pub unsafe fn read_async<K: Send + 'static>(
        &self,
        handle: &Handle,
        request: AsyncRequest,
        keep: K,
    ) -> Result<StreamOperation<K>, CuFileError> {
        let call = functions(self.shared.driver.cufile())?.read_async;
        // SAFETY: the caller vouches for the memory and the context.
        unsafe { self.submit(READ, call, handle, request, keep) }
    }

    /// Writes in the order of the stream, `cuFileWriteAsync`; else as
    /// [`read_async`](Self::read_async).
    ///
    /// # Errors
    ///
    /// As for [`read_async`](Self::read_async).
    ///
    /// # Safety
    ///
    /// As for [`read_async`](Self::read_async), with memory that is valid for reads, and that
    /// nobody writes but work in the stream before or behind it.
    pub unsafe fn write_async<K: Send + 'static>(
        &self,
        handle: &Handle,
        request: AsyncRequest,
        keep: K,
    ) -> Result<StreamOperation<K>, CuFileError> {
        let call = functions(self.shared.driver.cufile())?.write_async;
        // SAFETY: the caller vouches for the memory and the context.
        unsafe { self.submit("cuFileWriteAsync", call, handle, request, keep) }
    }

    /// # Safety
    ///
    /// As for [`read_async`](Self::read_async) and [`write_async`](Self::write_async).
    unsafe fn submit<K: Send + 'static>(
        &self,
        name: &'static str,
        call: abi::Async,
        handle: &Handle,
        request: AsyncRequest,
        keep: K,
    ) -> Result<StreamOperation<K>, CuFileError> {
        let cell = Box::new(Cell::of(handle, &request)?);
        // Of memory that is not registered, cuFile takes the size that is submitted for all there
        // is, and fails with EIO where an offset leads out of that: so it gets the first byte as
        // the base.
        let cufile = self.shared.driver.cufile();
        let registered = lock(&cufile.registered).contains(&request.base.addr());
        let mut base = request.base;
        if !registered {
            base = base.wrapping_byte_add(request.buffer_offset);
            cell.buffer_offset.store(0, Ordering::Relaxed);
        }
        self.shared.reserve()?;
        let flags = lock(&self.shared.registered).unwrap_or_default();
        // SAFETY: the caller vouches for memory and context. The cell is kept on the heap until the
        // stream has passed, by the operation or by the stream; so is the handle.
        let answer = unsafe {
            call(
                handle.raw(),
                base,
                cell.size.as_ptr(),
                cell.file_offset.as_ptr(),
                cell.buffer_offset.as_ptr(),
                cell.bytes_done.as_ptr(),
                self.shared.raw,
            )
        };
        if let Err(error) = check(name, answer) {
            self.shared.release();
            return Err(error.at(handle.path(), Some(request.file_offset)));
        }
        Ok(StreamOperation {
            call: name,
            is_read: name == READ,
            stream: Arc::clone(&self.shared),
            held: Some(StreamHold {
                cell,
                handle: handle.clone(),
                keep,
            }),
            request,
            flags,
            registered,
        })
    }

    /// Waits until the stream has done all that was given to it, `cuStreamSynchronize`, and frees
    /// what dropped operations left.
    ///
    /// # Errors
    ///
    /// What the CUDA driver answers.
    pub fn synchronize(&self) -> Result<(), CuFileError> {
        self.shared.synchronize()
    }

    /// Operations whose end nobody has heard of, those that were dropped among them.
    pub fn in_flight(&self) -> usize {
        lock(&self.shared.state).in_flight
    }

    /// The stream itself.
    pub fn raw(&self) -> RawStream {
        self.shared.raw
    }
}

fn functions(cufile: &'static CuFile) -> Result<&'static Streams, CuFileError> {
    cufile.check_owner()?;
    let streams = cufile.library.streams.as_ref();
    streams.ok_or_else(|| cufile.lacks("cuFileReadAsync", Some("1.7")))
}

impl Cell {
    fn of(handle: &Handle, request: &AsyncRequest) -> Result<Self, CuFileError> {
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

impl CuFileStreamShared {
    fn reserve(&self) -> Result<(), CuFileError> {
        if lock(&self.state).in_flight >= IN_FLIGHT_MAX {
            // Dropped ones may be over.
            self.sweep_if_idle();
        }
        let mut state = lock(&self.state);
        if state.in_flight >= IN_FLIGHT_MAX {
            return Err(CuFileError::Full {
                what: "stream",
                limit: IN_FLIGHT_MAX,
            });
        }
        state.in_flight += 1;
        Ok(())
    }

    fn release(&self) {
        lock(&self.state).in_flight -= 1;
    }

    fn synchronize(&self) -> Result<(), CuFileError> {
        self.driver.cufile().check_owner()?;
        let dropped = self.dropped();
        // SAFETY: whoever opened this vouches for the stream.
        unsafe { self.driver.cufile().cuda.synchronize(self.raw) }?;
        self.sweep(dropped);
        Ok(())
    }

    fn is_idle(&self) -> Result<bool, CuFileError> {
        self.driver.cufile().check_owner()?;
        let dropped = self.dropped();
        // SAFETY: whoever opened this vouches for the stream.
        let idle = unsafe { self.driver.cufile().cuda.is_idle(self.raw) }?;
        if idle {
            self.sweep(dropped);
        }
        Ok(idle)
    }

    fn sweep_if_idle(&self) {
        // What can't be asked stays where it is.
        let _ = self.is_idle();
    }

    /// How many were ever dropped before the stream is asked: an answer says nothing about those
    /// that came after the question.
    fn dropped(&self) -> usize {
        let state = lock(&self.state);
        state.freed + state.dropped.len()
    }

    /// Frees the first so many that were ever dropped, which the stream has passed; others may have
    /// freed some of them.
    fn sweep(&self, ever: usize) {
        let mut state = lock(&self.state);
        let count = ever.saturating_sub(state.freed);
        state.freed += count;
        let passed: Vec<_> = state.dropped.drain(..count).collect();
        state.in_flight -= passed.len();
        drop(state);
        // Outside the lock: what they keep may do anything when it is dropped.
        drop(passed);
    }

    fn deregister(&self) -> Result<(), CuFileError> {
        let deregister = functions(self.driver.cufile())?.deregister;
        let mut registered = lock(&self.registered);
        if registered.is_none() {
            return Ok(());
        }
        // SAFETY: whoever opened this vouches for the stream; it is registered.
        let answer = unsafe { deregister(self.raw) };
        check("cuFileStreamDeregister", answer)?;
        *registered = None;
        Ok(())
    }
}

impl Drop for CuFileStreamShared {
    fn drop(&mut self) {
        let here = self.driver.cufile().owner.is_here();
        // Every operation holds this, so those that are left were dropped.
        let idle = here && self.is_idle().unwrap_or(false);
        let left = mem::take(&mut lock(&self.state).dropped);
        let registered = lock(&self.registered).is_some();
        if !left.is_empty() {
            let count = left.len();
            // Before anything is said of it: a subscriber of `tracing` may panic, and would free
            // what the stream may use.
            mem::forget(left);
            count_leak("operation on a stream", count);
        }
        if !registered || !here {
            return;
        }
        // It would wait for a stream that is busy, and dropping waits for nothing.
        if idle {
            if let Err(error) = self.deregister() {
                tracing::error!(%error, "the stream stays registered with cuFile");
            }
        } else {
            mem::forget(self.driver.clone());
            count_leak("registration of a stream", 1);
        }
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream")
            .field("raw", &self.shared.raw)
            .field("in_flight", &self.in_flight())
            .finish_non_exhaustive()
    }
}

/// An operation in a stream.
///
/// Its size and offsets can be set until the stream comes to it, unless they were fixed by
/// [`StreamFlags`]; who sets them has to know that it has not come yet.
///
/// Dropping it gives up the result. Its memory stays taken until the stream has passed it.
#[must_use = "only check_bytes_done says what became of it"]
pub struct StreamOperation<K: Send + 'static = ()> {
    call: &'static str,
    is_read: bool,
    stream: Arc<CuFileStreamShared>,
    /// Always there but in `drop`.
    held: Option<StreamHold<K>>,
    request: AsyncRequest,
    flags: StreamFlags,
    /// The memory is.
    registered: bool,
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
    /// ([`CuFile::register_memory`]).
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
