//! `CuFileBatch`: many operations in one call, each with an outcome of its own.
//!
//! An entry takes a place in the batch, and its place's number (with the number of its use) is what
//! cuFile gets as a cookie; the caller's own cookie stays here. A place is free again when cuFile
//! has reported the entry over. Until then the file's handle, what the entry keeps for its caller,
//! and the parameters that cuFile was given are held: after a cancel, and after a time-out, too.

#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::fmt;
use std::mem;
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use super::abi::{BATCH_MODE, IoEvents, IoParams, RawBatch};
use super::driver::Driver;
use super::error::{CuFileError, Failure};
use super::handle::Handle;
use super::status::CuFileStatus;
use super::table::Batches;
use super::{CuFile, check, count_leak, lock};

/// Most entries where the driver does not say how many there may be.
const ENTRIES_MAX: u32 = 128;
/// The longest wait of one call: what does not fit a `timespec` is cut to it, a year.
const WAIT_MAX: Duration = Duration::from_secs(365 * 24 * 3600);
/// A cookie is the number of its place in the low bits, and how often the place was used above.
const PLACE_BITS: u32 = 16;

/// What an entry does, `CUfileOpcode_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Opcode {
    /// `CUFILE_READ`: from the file into memory.
    Read,
    /// `CUFILE_WRITE`: from memory into the file.
    Write,
}

impl Opcode {
    fn code(self) -> c_int {
        match self {
            Self::Read => 0,
            Self::Write => 1,
        }
    }
}

bitflags::bitflags! {
    /// What cuFile says of an entry, `CUfileStatus_t`. Bits that are not named are kept.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct BatchStatus: c_int {
        /// `CUFILE_WAITING`: not taken up yet.
        const WAITING = 0x01;
        /// `CUFILE_PENDING`: under way.
        const PENDING = 0x02;
        /// `CUFILE_INVALID`: ill-formed.
        const INVALID = 0x04;
        /// `CUFILE_CANCELED`: cancelled before it was done.
        const CANCELED = 0x08;
        /// `CUFILE_COMPLETE`: done.
        const COMPLETE = 0x10;
        /// `CUFILE_TIMEOUT`: it took longer than
        /// [`Properties::max_batch_io_timeout_ms`](super::Properties).
        const TIMEOUT = 0x20;
        /// `CUFILE_FAILED`: could not be done.
        const FAILED = 0x40;
        const _ = !0;
    }
}

impl BatchStatus {
    /// cuFile does nothing more with the entry's memory.
    const OVER: Self = Self::INVALID
        .union(Self::CANCELED)
        .union(Self::COMPLETE)
        .union(Self::FAILED);
}

/// One operation of a batch.
#[derive(Debug)]
pub struct CuFileBatchEntry<K> {
    /// What to do.
    pub opcode: Opcode,
    /// With which file.
    pub handle: Handle,
    /// Where the memory begins, of a GPU or of the host; where it is registered, the base of its
    /// registration.
    pub base: *mut c_void,
    /// Where in the memory.
    pub buffer_offset: usize,
    /// How many bytes.
    pub len: usize,
    /// Where in the file.
    pub file_offset: u64,
    /// What its outcome is told by. Two entries may have the same.
    pub cookie: u64,
    /// Held until the entry is over, then given back: the owner of the memory, say.
    pub keep: K,
}

/// Entries that were not submitted.
pub struct BatchError<K> {
    /// Why.
    pub error: CuFileError,
    /// The entries, untouched. None of them, where cuFile's answer does not say whether it has
    /// taken some: then they are held like those in flight, and the batch reports those that it
    /// hears of.
    pub entries: Vec<CuFileBatchEntry<K>>,
}

fabricast_process::debug_as_words!([K] BatchError<K>);

impl<K> fmt::Display for BatchError<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.error, f)
    }
}

impl<K> std::error::Error for BatchError<K> {}

/// What is heard of an entry.
#[derive(Debug)]
#[non_exhaustive]
pub enum CuFileBatchEvent<K> {
    /// Its outcome, and what it kept.
    Done {
        /// The entry's cookie.
        cookie: u64,
        /// What cuFile says of it.
        status: BatchStatus,
        /// Bytes that were read or written, or why it failed.
        result: Result<usize, CuFileError>,
        /// What was held for the caller.
        keep: K,
    },
    /// Its outcome: it timed out. What it keeps is still in cuFile's hands, and comes with
    /// [`Released`](Self::Released), if ever.
    TimedOut {
        /// The entry's cookie.
        cookie: u64,
    },
    /// cuFile has let go of an entry that had timed out.
    Released {
        /// The entry's cookie.
        cookie: u64,
        /// What was held for the caller.
        keep: K,
    },
}

/// A batch, `CUfileBatchHandle_t`, from [`CuFile::batch`].
///
/// Dropping it destroys it where nothing is in flight, and else leaks it with all that is: cuFile
/// may still work on it.
pub struct CuFileBatch<K> {
    raw: RawBatch,
    places: Box<[EntryPlace<K>]>,
    events: Box<[IoEvents]>,
    outstanding: usize,
    strays: u64,
    driver: Driver,
}

/// What cuFile was given with a submission. It may write to it as long as an entry is in flight, so
/// nobody else looks.
type Params = Arc<[UnsafeCell<IoParams>]>;

/// A place for an entry.
struct EntryPlace<K> {
    /// How often it was used, so that a report that comes twice is not taken for one of the next
    /// entry.
    uses: usize,
    entry: Option<Taken<K>>,
}

/// An entry that cuFile has.
struct Taken<K> {
    opcode: Opcode,
    handle: Handle,
    len: usize,
    file_offset: u64,
    cookie: u64,
    keep: K,
    /// Its outcome was told.
    timed_out: bool,
    /// The parameters that cuFile was given with it.
    _params: Params,
}

// SAFETY: cuFile may be called from any thread, and the pointers are only handed to it.
unsafe impl<K: Send> Send for CuFileBatch<K> {}

impl<K> CuFileBatch<K> {
    pub(super) fn set_up(cufile: &'static CuFile, entries: u32) -> Result<Self, CuFileError> {
        let set_up = functions(cufile)?.set_up;
        let driver = cufile.driver()?;
        let limit = match driver.properties() {
            Ok(properties) if properties.max_batch_io_size > 0 => properties.max_batch_io_size,
            _ => ENTRIES_MAX,
        };
        if entries == 0 || entries > limit.min(1 << PLACE_BITS) {
            let reason = format!("there are 1 to {limit} (properties.io_batchsize of cufile.json)");
            return Err(CuFileError::value("entries", entries, "", reason));
        }
        let mut raw = ptr::null_mut();
        // SAFETY: writes one pointer, which is ours.
        let answer = unsafe { set_up(&raw mut raw, entries) };
        check("cuFileBatchIOSetUp", answer)?;
        let empty = IoEvents {
            cookie: ptr::null_mut(),
            status: 0,
            ret: 0,
        };
        let place = || EntryPlace {
            uses: 0,
            entry: None,
        };
        Ok(Self {
            raw,
            places: (0..entries).map(|_| place()).collect(),
            events: vec![empty; entries as usize].into(),
            outstanding: 0,
            strays: 0,
            driver,
        })
    }

    /// How many entries there may be at a time.
    pub fn capacity(&self) -> usize {
        self.places.len()
    }

    /// Entries that cuFile has not reported over.
    pub fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// Reports of cuFile that belong to no entry: none, unless it errs.
    pub fn strays(&self) -> u64 {
        self.strays
    }

    /// Submits entries, `cuFileBatchIOSubmit`: all or none. They run in any order.
    ///
    /// # Errors
    ///
    /// [`BatchError`] with the entries and the reason: [`CuFileError::Full`] where they are more
    /// than there are places for, [`CuFileError::Value`] for none or one that can't be counted, or
    /// what the call answers.
    ///
    /// # Safety
    ///
    /// * `len` bytes from `base + buffer_offset` of each entry are valid, for writes if it reads
    ///   the file and for reads if it writes it, until the entry is reported over, or as long as
    ///   its `keep` lives.
    /// * Until then nobody reads or writes what is read into, and nobody writes what is written.
    pub unsafe fn submit(
        &mut self,
        entries: Vec<CuFileBatchEntry<K>>,
    ) -> Result<(), BatchError<K>> {
        let params = match self.params(&entries) {
            Ok(params) => params,
            Err(error) => return Err(BatchError { error, entries }),
        };
        let cufile = self.driver.cufile();
        let submit = match functions(cufile) {
            Ok(functions) => functions.submit,
            Err(error) => return Err(BatchError { error, entries }),
        };
        let first = UnsafeCell::raw_get(Arc::as_ptr(&params).cast::<UnsafeCell<IoParams>>());
        // SAFETY: the caller vouches for the memory of each entry; the array has the length that is
        // said and, as the handles do, lives until the last of its entries is over.
        let answer = unsafe { submit(self.raw, entries.len() as u32, first, 0) };
        match check("cuFileBatchIOSubmit", answer) {
            Ok(()) => {
                self.take(entries, &params);
                Ok(())
            }
            Err(error) if was_not_taken(error.status()) => Err(BatchError { error, entries }),
            Err(error) => {
                self.take(entries, &params);
                let entries = Vec::new();
                Err(BatchError { error, entries })
            }
        }
    }

    /// What cuFile is told of the entries, each with the cookie of its place.
    fn params(&self, entries: &[CuFileBatchEntry<K>]) -> Result<Params, CuFileError> {
        if entries.is_empty() {
            return Err(CuFileError::value("entries", 0, "", "there is none"));
        }
        if entries.len() > self.places.len() - self.outstanding {
            return Err(CuFileError::Full {
                what: "batch",
                limit: self.places.len(),
            });
        }
        let registered = lock(&self.driver.cufile().registered);
        let free = self.places.iter().enumerate();
        let free = free.filter(|(_, place)| place.entry.is_none());
        let params = free.zip(entries).map(|((index, place), entry)| {
            let (file_offset, mut buffer_offset) =
                entry
                    .handle
                    .checked(entry.len, entry.file_offset, entry.buffer_offset)?;
            // Batches of cuFile look at the offset in registered memory only, and else put every
            // entry at the base.
            let mut base = entry.base;
            if !registered.contains(&base.addr()) {
                base = base.wrapping_byte_add(entry.buffer_offset);
                buffer_offset = 0;
            }
            Ok(UnsafeCell::new(IoParams {
                mode: BATCH_MODE,
                base,
                file_offset,
                buffer_offset,
                size: entry.len,
                handle: entry.handle.raw(),
                opcode: entry.opcode.code(),
                cookie: cookie(index, place.uses),
            }))
        });
        params.collect()
    }

    /// Puts the entries into the places that `params` named: the first that are free.
    fn take(&mut self, entries: Vec<CuFileBatchEntry<K>>, params: &Params) {
        self.outstanding += entries.len();
        let free = self.places.iter_mut().filter(|place| place.entry.is_none());
        for (place, entry) in free.zip(entries) {
            place.entry = Some(Taken {
                opcode: entry.opcode,
                handle: entry.handle,
                len: entry.len,
                file_offset: entry.file_offset,
                cookie: entry.cookie,
                keep: entry.keep,
                timed_out: false,
                _params: Arc::clone(params),
            });
        }
    }

    /// Waits up to `limit` for at least `min` entries to be over (or `max`, where that is less),
    /// `cuFileBatchIOGetStatus`, and appends what was heard of at most `max` of them. Says how many
    /// events that were. With nothing outstanding, or `max` 0, none.
    ///
    /// # Errors
    ///
    /// What the call answers.
    pub fn poll(
        &mut self,
        min: usize,
        max: usize,
        limit: Duration,
        into: &mut Vec<CuFileBatchEvent<K>>,
    ) -> Result<usize, CuFileError> {
        let get_status = functions(self.driver.cufile())?.get_status;
        let max = max.min(self.outstanding);
        if max == 0 {
            return Ok(0);
        }
        let limit = limit.min(WAIT_MAX);
        let mut timeout = libc::timespec {
            tv_sec: limit.as_secs() as libc::time_t,
            tv_nsec: libc::c_long::from(limit.subsec_nanos()),
        };
        let min = min.min(max) as u32;
        let mut count = max as u32;
        // SAFETY: the array has room for as many events as are said, one for each place.
        let answer = unsafe {
            get_status(
                self.raw,
                min,
                &raw mut count,
                self.events.as_mut_ptr(),
                &raw mut timeout,
            )
        };
        check("cuFileBatchIOGetStatus", answer)?;
        let (before, strays) = (into.len(), self.strays);
        let count = (count as usize).min(self.events.len());
        for index in 0..count {
            let event = self.events[index];
            into.extend(self.heard(event));
        }
        if self.strays > strays {
            // Behind the outcomes: a subscriber that panics costs none.
            let reports = self.strays - strays;
            tracing::warn!(reports, "cuFile reports entries that are not in the batch");
        }
        Ok(into.len() - before)
    }

    /// What a report means for its entry.
    fn heard(&mut self, event: IoEvents) -> Option<CuFileBatchEvent<K>> {
        let (index, uses) = place_of(event.cookie);
        let status = BatchStatus::from_bits_retain(event.status);
        let place = self.places.get_mut(index);
        let Some(place) = place.filter(|place| place.uses == uses && place.entry.is_some()) else {
            self.strays += 1;
            return None;
        };
        if !status.intersects(BatchStatus::OVER) {
            if !status.contains(BatchStatus::TIMEOUT) {
                return None;
            }
            let entry = place.entry.as_mut()?;
            let told = mem::replace(&mut entry.timed_out, true);
            let cookie = entry.cookie;
            return (!told).then_some(CuFileBatchEvent::TimedOut { cookie });
        }
        let entry = place.entry.take()?;
        place.uses = place.uses.wrapping_add(1) & (usize::MAX >> PLACE_BITS);
        self.outstanding -= 1;
        Some(entry.over(status, event.ret as isize))
    }

    /// Asks cuFile to cancel what has not begun, `cuFileBatchIOCancel`. Entries stay outstanding
    /// until [`poll`](Self::poll) has heard of them, done or cancelled.
    ///
    /// # Errors
    ///
    /// What the call answers.
    pub fn cancel(&mut self) -> Result<(), CuFileError> {
        let cancel = functions(self.driver.cufile())?.cancel;
        // SAFETY: the batch was set up and is not destroyed.
        check("cuFileBatchIOCancel", unsafe { cancel(self.raw) })
    }

    /// Destroys the batch, `cuFileBatchIODestroy`.
    ///
    /// # Errors
    ///
    /// The batch, where entries are outstanding: poll them, or cancel and poll them.
    pub fn destroy(self) -> Result<(), Self> {
        if self.outstanding == 0 {
            drop(self);
            Ok(())
        } else {
            Err(self)
        }
    }
}

impl<K> Taken<K> {
    fn over(self, status: BatchStatus, ret: isize) -> CuFileBatchEvent<K> {
        let (cookie, keep) = (self.cookie, self.keep);
        if self.timed_out {
            return CuFileBatchEvent::Released { cookie, keep };
        }
        let result = match usize::try_from(ret) {
            Ok(done) if status.contains(BatchStatus::COMPLETE) && done <= self.len => {
                Ok(match self.opcode {
                    Opcode::Read => self.handle.up_to_end(self.file_offset, done),
                    Opcode::Write => done,
                })
            }
            Ok(_) if status.contains(BatchStatus::CANCELED) => Err(Failure::Errno(libc::ECANCELED)),
            Ok(_) if !status.contains(BatchStatus::COMPLETE) => Err(Failure::Unexplained),
            Ok(_) => Err(Failure::Nonsense(ret as i64)),
            Err(_) => Err(Failure::of_operation(ret)),
        };
        let call = match self.opcode {
            Opcode::Read => "cuFileBatchIOSubmit (read)",
            Opcode::Write => "cuFileBatchIOSubmit (write)",
        };
        let at = Some(self.file_offset);
        CuFileBatchEvent::Done {
            cookie,
            status,
            result: result
                .map_err(|failure| CuFileError::call(call, failure).at(self.handle.path(), at)),
            keep,
        }
    }
}

/// Whether that answer to a submission says that nothing was taken: arguments were found wrong, or
/// there was no room. Of internal errors nobody knows.
fn was_not_taken(status: Option<CuFileStatus>) -> bool {
    matches!(
        status,
        Some(CuFileStatus(
            5001 | 5006..=5009 | 5022 | 5025 | 5027 | 5037 | 5038 | 5049
        ))
    )
}

fn cookie(index: usize, uses: usize) -> *mut c_void {
    ptr::without_provenance_mut((uses << PLACE_BITS) | index)
}

/// The place and its use out of a cookie.
fn place_of(cookie: *mut c_void) -> (usize, usize) {
    let bits = cookie.addr();
    (bits & ((1 << PLACE_BITS) - 1), bits >> PLACE_BITS)
}

fn functions(cufile: &'static CuFile) -> Result<&'static Batches, CuFileError> {
    cufile.check_owner()?;
    let batches = cufile.library.batches.as_ref();
    batches.ok_or_else(|| cufile.lacks("cuFileBatchIOSetUp", Some("1.6")))
}

impl<K> Drop for CuFileBatch<K> {
    fn drop(&mut self) {
        let cufile = self.driver.cufile();
        if self.outstanding > 0 {
            // Before anything is said of it: a subscriber of `tracing` may panic, and would free
            // what cuFile may use.
            mem::forget(mem::take(&mut self.places));
            count_leak("entry of a batch", self.outstanding);
        }
        let here = cufile.owner.is_here();
        if let Some(batches) = cufile.library.batches.as_ref()
            && self.outstanding == 0
            && here
        {
            // SAFETY: set up once, destroyed here alone, and nothing is in flight.
            unsafe { (batches.destroy)(self.raw) };
        }
    }
}

impl<K> fmt::Debug for CuFileBatch<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CuFileBatch")
            .field("capacity", &self.capacity())
            .field("outstanding", &self.outstanding)
            .finish_non_exhaustive()
    }
}
