//! Batches: many transfers of files in flight from one thread.

#![allow(unsafe_code)] // Functions that C calls.

use std::ffi::c_void;
use std::time::{Duration, Instant};

use fabricast::storage::{Batch, BatchEntry, BatchEvent, BatchOptions, BatchRefusedKind};

use crate::call::call;
use crate::file::{FILES, back_end_of, direct_of, fcast_file, fcast_file_moved};
use crate::file_memory::FileMemory;
use crate::pointer::{self, Out, Sized0};
use crate::region::fcast_region;
use crate::status::{FCAST_AGAIN, FCAST_OK, Failure, fcast_status, remember};
use crate::table::Table;

pub(crate) static BATCHES: Table<FileBatch> = Table::new(36, "file batch");

/// A batch: transfers of files in flight, by io_uring where the kernel allows it, else by threads.
/// For the host's memory. One thread at a time uses it.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fcast_file_batch {
    /// Its number; 0: none.
    pub id: u64,
}

/// How a batch works. All zeros but the size are the defaults.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fcast_file_batch_settings {
    /// sizeof(fcast_file_batch_settings).
    pub size: usize,
    /// Transfers under way at once, 1 to 4,096; 0: 64.
    pub depth: u32,
    /// FCAST_BACK_END_DEFAULT, _POSIX or _IO_URING.
    pub back_end: u32,
    /// FCAST_DIRECT_DEFAULT or another.
    pub direct: u32,
    /// Must be 0.
    pub reserved: u32,
}

// SAFETY: C's layout, a `usize` first; 0 is a value of all its fields.
unsafe impl Sized0 for fcast_file_batch_settings {}

/// What came of one transfer of a batch. Its layout does not change.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fcast_file_batch_event {
    /// As it was given.
    pub key: u64,
    /// FCAST_OK, or why not; the words of the last one that failed: fcast_last_error.
    pub status: fcast_status,
    /// The system's number (errno.3), where a call of it failed; else 0.
    pub error: i32,
    /// What was moved, also by one that failed.
    pub moved: fcast_file_moved,
}

/// A batch; dropped when nothing touches the callers' memory any more.
pub(crate) struct FileBatch {
    batch: Batch<FileMemory>,
    events: Vec<BatchEvent<FileMemory>>,
}

impl Drop for FileBatch {
    fn drop(&mut self) {
        // Nobody but the handle says when the memory is free again.
        self.batch.cancel_all();
        while self.batch.pending() > 0 {
            let deadline = Instant::now() + Duration::from_secs(1);
            let all = self.batch.pending();
            self.events.clear();
            if self
                .batch
                .status(all, all, deadline, &mut self.events)
                .is_err()
            {
                // A child of a fork, where nothing is under way.
                break;
            }
        }
    }
}

/// Makes a batch. FCAST_INVALID: a setting. Any thread.
///
/// # Safety
///
/// `settings`: NULL, or a struct whose size field is right; `batch`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_file_batch_create(
    settings: *const fcast_file_batch_settings,
    batch: *mut fcast_file_batch,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(batch, "batch") }?;
        // SAFETY: the caller's promise.
        let given: fcast_file_batch_settings = unsafe { pointer::sized(settings, "settings") }?;
        let depth = if given.depth == 0 { 64 } else { given.depth };
        let options = BatchOptions {
            back_end: back_end_of(given.back_end)?.unwrap_or_default(),
            direct: direct_of(given.direct)?,
            ..BatchOptions::default()
        };
        let made = FileBatch {
            batch: Batch::new(depth, options)?,
            events: Vec::new(),
        };
        let id = BATCHES.insert(made)?;
        out.set(fcast_file_batch { id });
        Ok(())
    })
}

/// Takes a read, which begins with the next fcast_file_batch_poll or _start: the memory belongs to
/// it until its event. `key` comes with the event. Memory: as of fcast_file_read, but the host's.
/// FCAST_AGAIN: as many are under way as the batch takes. One thread at a time.
///
/// # Safety
///
/// `data`: NULL, or `len` writable bytes that nobody else uses until the event, or until the batch
/// is released.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_file_batch_read(
    batch: fcast_file_batch,
    file: fcast_file,
    region: fcast_region,
    data: *mut c_void,
    len: usize,
    offset: u64,
    key: u64,
) -> fcast_status {
    call(|| {
        let mut entry = BATCHES.enter(batch.id)?;
        // SAFETY: the caller's promise; the batch does not go before it is over.
        let memory = unsafe { FileMemory::new(region, data, len) }?;
        let read = BatchEntry::read(&*FILES.share(file.id)?, memory, offset);
        queue(&mut entry.batch, read, key)
    })
}

/// Takes a write, which begins with the next fcast_file_batch_poll or _start: nobody writes to the
/// memory until its event. Else as fcast_file_batch_read. One thread at a time.
///
/// # Safety
///
/// `data`: NULL, or `len` readable bytes that nobody writes to until the event, or until the batch
/// is released.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_file_batch_write(
    batch: fcast_file_batch,
    file: fcast_file,
    region: fcast_region,
    data: *const c_void,
    len: usize,
    offset: u64,
    key: u64,
) -> fcast_status {
    call(|| {
        let mut entry = BATCHES.enter(batch.id)?;
        // SAFETY: the caller's promise; the batch does not go before it is over.
        let memory = unsafe { FileMemory::new(region, data.cast_mut(), len) }?;
        let write = BatchEntry::write(&*FILES.share(file.id)?, memory, offset);
        queue(&mut entry.batch, write, key)
    })
}

fn queue(
    batch: &mut Batch<FileMemory>,
    entry: BatchEntry<FileMemory>,
    key: u64,
) -> Result<(), Failure> {
    batch
        .queue(entry, key)
        .map_err(|refused| match refused.kind {
            BatchRefusedKind::Full { .. } => Failure::new(
                FCAST_AGAIN,
                "would block: the batch has as many as it takes",
            ),
            BatchRefusedKind::File(error) => error.into(),
            other => Failure::invalid(other.to_string()),
        })
}

/// Begins what was taken, many transfers by one call of the system. One thread at a time.
#[unsafe(no_mangle)]
pub extern "C" fn fcast_file_batch_start(batch: fcast_file_batch) -> fcast_status {
    call(|| Ok(BATCHES.enter(batch.id)?.batch.start()?))
}

/// Waits until `least` transfers are over, or all, or `timeout_ms` is, and writes what came of
/// them: at most `capacity` events, `*count` of them, each transfer's once. What there was no room
/// for comes with the next call. One thread at a time.
///
/// # Safety
///
/// `events`: NULL, or room for `capacity` of them; `count`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_file_batch_poll(
    batch: fcast_file_batch,
    least: usize,
    timeout_ms: u32,
    events: *mut fcast_file_batch_event,
    capacity: usize,
    count: *mut usize,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(count, "count") }?;
        // SAFETY: the caller's promise.
        let places = unsafe { pointer::array_out(events, capacity, "events") }?;
        let mut entry = BATCHES.enter(batch.id)?;
        let FileBatch { batch, events } = &mut *entry;
        let deadline = Instant::now() + Duration::from_millis(u64::from(timeout_ms));
        events.clear();
        batch.status(least, capacity, deadline, events)?;
        out.set(events.len());
        for (place, event) in places.iter_mut().zip(events.drain(..)) {
            place.write(told(event));
        }
        Ok(())
    })
}

fn told(event: BatchEvent<FileMemory>) -> fcast_file_batch_event {
    let mut told = fcast_file_batch_event {
        key: event.cookie,
        status: FCAST_OK,
        error: 0,
        moved: fcast_file_moved::default(),
    };
    match event.result {
        Ok(moved) => told.moved = moved.into(),
        Err(error) => {
            told.moved.bytes = error.done;
            let failure = Failure::from(error);
            told.error = failure.errno;
            told.status = remember(failure);
        }
    }
    told
}

/// Asks for the end of the transfers with this key. Each has its event in any case: FCAST_CLOSED,
/// or as if nobody had asked. One thread at a time.
#[unsafe(no_mangle)]
pub extern "C" fn fcast_file_batch_cancel(batch: fcast_file_batch, key: u64) -> fcast_status {
    call(|| {
        BATCHES.enter(batch.id)?.batch.cancel(key);
        Ok(())
    })
}

/// Gives a batch back. What is under way is cancelled where that can be, and waited for. Any
/// thread.
#[unsafe(no_mangle)]
pub extern "C" fn fcast_file_batch_release(batch: fcast_file_batch) -> fcast_status {
    call(|| BATCHES.release(batch.id))
}
