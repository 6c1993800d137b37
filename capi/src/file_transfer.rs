//! Reading and writing files: now, or by themselves.

#![allow(unsafe_code)] // Functions that C calls.

use std::ffi::c_void;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Wake};
use std::time::{Duration, Instant};

use fabricast::storage::{FileError, IoFuture, Transferred};

use crate::call::call;
use crate::event_loop::{LOOPS, fcast_loop};
use crate::file::{FILES, fcast_file, fcast_file_moved, fcast_file_options};
use crate::file_memory::FileMemory;
use crate::pointer::{self, Out};
use crate::region::fcast_region;
use crate::status::{FCAST_AGAIN, FCAST_TIMED_OUT, Failure, fcast_status};
use crate::table::Table;

pub(crate) static TRANSFERS: Table<FileTransfer> = Table::new(35, "file transfer");

/// A transfer of a file that goes on by itself. One thread at a time uses it.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fcast_file_transfer {
    /// Its number; 0: none.
    pub id: u64,
}

/// A transfer under way, or what came of it.
pub(crate) struct FileTransfer {
    state: State,
    /// The memory is the caller's, who may use it as soon as the handle is gone.
    is_callers: bool,
}

enum State {
    Running(IoFuture<FileMemory>),
    Over(Result<Transferred, Box<FileError>>),
    /// While it is looked at.
    Lost,
}

impl FileTransfer {
    /// Waits for the outcome; `false`: it is not there by then.
    fn wait(&mut self, deadline: Instant) -> bool {
        self.state = match std::mem::replace(&mut self.state, State::Lost) {
            State::Running(future) => match future.wait_until(deadline) {
                Ok(outcome) => State::Over(outcome.result.map_err(Box::new)),
                Err(future) => State::Running(future),
            },
            other => other,
        };
        matches!(self.state, State::Over(_))
    }
}

impl Drop for FileTransfer {
    fn drop(&mut self) {
        if let State::Running(future) = std::mem::replace(&mut self.state, State::Lost)
            && self.is_callers
        {
            // Nobody but the handle says when the memory is free again.
            drop(future.wait());
        }
    }
}

/// Reads a file into memory, on this thread, and waits for it; `options->parallel`: with the
/// threads of the pool. Any thread.
///
/// `region`: {0}: `data` is an address of the host's memory. Else `data` is an address in the
/// region, which may be a GPU's, and which need not be registered.
///
/// FCAST_INVALID: an argument, or the file was not opened for it. FCAST_SYSTEM: a call of the
/// system; the words say how many bytes were moved before. FCAST_DEVICE: CUDA or cuFile.
///
/// # Safety
///
/// `data`: NULL, or `len` writable bytes that nobody else uses meanwhile; `options`: NULL, or a
/// struct whose size field is right; `moved`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_file_read(
    file: fcast_file,
    region: fcast_region,
    data: *mut c_void,
    len: usize,
    offset: u64,
    options: *const fcast_file_options,
    moved: *mut fcast_file_moved,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(moved, "moved") }?;
        // SAFETY: the caller's promise.
        let given: fcast_file_options = unsafe { pointer::sized(options, "options") }?;
        let options = given.options()?;
        // SAFETY: the caller's promise; the call does not return before it is over.
        let mut memory = unsafe { FileMemory::new(region, data, len) }?;
        let file = FILES.share(file.id)?;
        let done = match given.parallel {
            0 => file.read_into(&mut memory, .., offset, &options)?,
            _ => file.pread(memory, .., offset, &options).wait().result?,
        };
        out.set(done.into());
        Ok(())
    })
}

/// Writes memory to a file, on this thread, and waits for it; `options->parallel`: with the threads
/// of the pool. All of it is written, or it fails. Any thread. Memory and statuses: as of
/// fcast_file_read.
///
/// # Safety
///
/// `data`: NULL, or `len` readable bytes that nobody writes to meanwhile; else as of
/// fcast_file_read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_file_write(
    file: fcast_file,
    region: fcast_region,
    data: *const c_void,
    len: usize,
    offset: u64,
    options: *const fcast_file_options,
    moved: *mut fcast_file_moved,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(moved, "moved") }?;
        // SAFETY: the caller's promise.
        let given: fcast_file_options = unsafe { pointer::sized(options, "options") }?;
        let options = given.options()?;
        // SAFETY: the caller's promise; the call does not return before it is over.
        let memory = unsafe { FileMemory::new(region, data.cast_mut(), len) }?;
        let file = FILES.share(file.id)?;
        let done = match given.parallel {
            0 => file.write_from(&memory, .., offset, &options)?,
            _ => file.pwrite(memory, .., offset, &options).wait().result?,
        };
        out.set(done.into());
        Ok(())
    })
}

/// Begins to read a file into memory, with the threads of the pool, and returns at once: the memory
/// belongs to the transfer until fcast_file_transfer_wait tells what came of it, or until it is
/// released. Any thread. Memory: as of fcast_file_read. FCAST_AGAIN: the pool has as many to do as
/// it takes.
///
/// # Safety
///
/// `data`: NULL, or `len` writable bytes that nobody else uses until then; `options`: NULL, or a
/// struct whose size field is right; `transfer`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_file_begin_read(
    file: fcast_file,
    region: fcast_region,
    data: *mut c_void,
    len: usize,
    offset: u64,
    options: *const fcast_file_options,
    transfer: *mut fcast_file_transfer,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(transfer, "transfer") }?;
        // SAFETY: the caller's promise.
        let given: fcast_file_options = unsafe { pointer::sized(options, "options") }?;
        let options = given.options()?;
        // SAFETY: the caller's promise; the handle does not go before it is over.
        let memory = unsafe { FileMemory::new(region, data, len) }?;
        let is_callers = memory.is_callers();
        let future = FILES.share(file.id)?.pread(memory, .., offset, &options);
        begun(out, future, is_callers)
    })
}

/// Begins to write memory to a file, with the threads of the pool, and returns at once: nobody
/// writes to the memory until fcast_file_transfer_wait tells what came of it, or until it is
/// released. Any thread. Memory: as of fcast_file_read. FCAST_AGAIN: the pool has as many to do as
/// it takes.
///
/// # Safety
///
/// `data`: NULL, or `len` readable bytes that nobody writes to until then; `options`: NULL, or a
/// struct whose size field is right; `transfer`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_file_begin_write(
    file: fcast_file,
    region: fcast_region,
    data: *const c_void,
    len: usize,
    offset: u64,
    options: *const fcast_file_options,
    transfer: *mut fcast_file_transfer,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(transfer, "transfer") }?;
        // SAFETY: the caller's promise.
        let given: fcast_file_options = unsafe { pointer::sized(options, "options") }?;
        let options = given.options()?;
        // SAFETY: the caller's promise; the handle does not go before it is over.
        let memory = unsafe { FileMemory::new(region, data.cast_mut(), len) }?;
        let is_callers = memory.is_callers();
        let future = FILES.share(file.id)?.pwrite(memory, .., offset, &options);
        begun(out, future, is_callers)
    })
}

/// Begins to write memory behind the end of a file, as fcast_file_begin_write; `*offset`: where.
/// Places that one handle gives out never overlap, whichever threads ask. Any thread.
///
/// # Safety
///
/// As fcast_file_begin_write; `offset`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_file_begin_append(
    file: fcast_file,
    region: fcast_region,
    data: *const c_void,
    len: usize,
    options: *const fcast_file_options,
    offset: *mut u64,
    transfer: *mut fcast_file_transfer,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(transfer, "transfer") }?;
        // SAFETY: the caller's promise.
        let place = unsafe { Out::new(offset, "offset") }?;
        // SAFETY: the caller's promise.
        let given: fcast_file_options = unsafe { pointer::sized(options, "options") }?;
        let options = given.options()?;
        // SAFETY: the caller's promise; the handle does not go before it is over.
        let memory = unsafe { FileMemory::new(region, data.cast_mut(), len) }?;
        let is_callers = memory.is_callers();
        match FILES.share(file.id)?.append(memory, .., &options) {
            Ok((at, future)) => {
                begun(out, future, is_callers)?;
                place.set(at);
                Ok(())
            }
            Err(outcome) => outcome.result.map(|_| ()).map_err(Failure::from),
        }
    })
}

/// Puts a transfer into the table; one that was refused is no transfer.
fn begun(
    out: Out<fcast_file_transfer>,
    future: IoFuture<FileMemory>,
    is_callers: bool,
) -> Result<(), Failure> {
    let state = match future.is_done().then(Instant::now) {
        None => State::Running(future),
        Some(now) => match future.wait_until(now) {
            Ok(outcome) => State::Over(Ok(outcome.result?)),
            Err(future) => State::Running(future),
        },
    };
    let transfer = FileTransfer { state, is_callers };
    let id = TRANSFERS.insert(transfer)?;
    out.set(fcast_file_transfer { id });
    Ok(())
}

/// Waits for what came of a transfer, for at most `timeout_ms`; the calling thread takes part in
/// the work. It may be asked again: the answer stays. The handle is to be released all the same.
/// One thread at a time.
///
/// FCAST_AGAIN: it is not over, with a timeout of 0; FCAST_TIMED_OUT with another one. Else as of
/// fcast_file_read.
///
/// # Safety
///
/// `moved`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_file_transfer_wait(
    transfer: fcast_file_transfer,
    timeout_ms: u32,
    moved: *mut fcast_file_moved,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(moved, "moved") }?;
        let mut entry = TRANSFERS.enter(transfer.id)?;
        entry.wait(Instant::now() + Duration::from_millis(u64::from(timeout_ms)));
        match &entry.state {
            State::Over(Ok(done)) => out.set((*done).into()),
            State::Over(Err(error)) => return Err(FileError::clone(error).into()),
            _ => return Err(not_over(timeout_ms)),
        }
        Ok(())
    })
}

#[cold]
fn not_over(timeout_ms: u32) -> Failure {
    match timeout_ms {
        0 => Failure::new(FCAST_AGAIN, "would block: the transfer is under way"),
        ms => {
            let text = format!("the transfer is under way after {ms} ms");
            Failure::new(FCAST_TIMED_OUT, text)
        }
    }
}

/// Wakes a loop.
struct LoopWake(fabricast::event_loop::Waker);

impl Wake for LoopWake {
    fn wake(self: Arc<Self>) {
        self.0.wake();
    }
}

/// Has a loop say FCAST_LOOP_WOKEN when a transfer is over, or at once if it is: then
/// fcast_file_transfer_wait does not wait. The loop that was named last counts. One thread at a
/// time.
#[unsafe(no_mangle)]
pub extern "C" fn fcast_file_transfer_wake(
    transfer: fcast_file_transfer,
    woken: fcast_loop,
) -> fcast_status {
    call(|| {
        let waker = LOOPS.share(woken.id)?.waker.clone();
        let mut entry = TRANSFERS.enter(transfer.id)?;
        let task = std::task::Waker::from(Arc::new(LoopWake(waker.clone())));
        let polled = match &mut entry.state {
            State::Running(future) => Pin::new(future).poll(&mut Context::from_waker(&task)),
            _ => std::task::Poll::Pending,
        };
        if let std::task::Poll::Ready(outcome) = polled {
            entry.state = State::Over(outcome.result.map_err(Box::new));
        }
        if matches!(entry.state, State::Over(_)) {
            waker.wake();
        }
        Ok(())
    })
}

/// Gives a transfer back. One that is not over is waited for where its memory is in no region;
/// where it is, the region is kept until then, and parts of a read that have not begun are left
/// out. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn fcast_file_transfer_release(transfer: fcast_file_transfer) -> fcast_status {
    call(|| TRANSFERS.release(transfer.id))
}
