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
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use super::driver::Driver;
use super::error::CuFileError;
use super::handle::Handle;
use super::stream_operation::{Cell, StreamHold, StreamOperation};
use super::table::Streams;
use super::{CuFile, abi, check, count_leak, lock};

pub use fabricast_cuda::RawStream;

const READ: &str = "cuFileReadAsync";
/// Most operations of a stream that are in flight or were dropped there.
const IN_FLIGHT_MAX: usize = 4096;
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

pub(super) struct CuFileStreamShared {
    raw: RawStream,
    driver: Driver,
    /// The flags that it is registered with. Its lock is held while cuFile waits for the stream, so
    /// nothing else is behind it.
    registered: Mutex<Option<StreamFlags>>,
    pub(super) state: Mutex<CuFileStreamState>,
}

#[derive(Default)]
pub(super) struct CuFileStreamState {
    /// Operations whose end nobody has heard of.
    in_flight: usize,
    /// Of those, the ones whose owners dropped them.
    pub(super) dropped: Vec<Box<dyn Send>>,
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

    pub(super) fn release(&self) {
        lock(&self.state).in_flight -= 1;
    }

    pub(super) fn synchronize(&self) -> Result<(), CuFileError> {
        self.driver.cufile().check_owner()?;
        let dropped = self.dropped();
        // SAFETY: whoever opened this vouches for the stream.
        unsafe { self.driver.cufile().cuda.synchronize(self.raw) }?;
        self.sweep(dropped);
        Ok(())
    }

    pub(super) fn is_idle(&self) -> Result<bool, CuFileError> {
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
