//! `Ring`: the one owner of an io_uring, of what is registered with it, and of all memory that the
//! kernel may touch for it.
//!
//! ```text
//!  submit(request, owner) ──► slab (owner) ──► SQ ══ kernel ══► CQ ──► finish(user data) ─┐
//!                              ▲                                          │               │
//!                              └──── again: short, EINTR, EAGAIN ◄────────┘               │
//!                                                   Completed{owner, moved} ◄─────────────┘
//! ```
//!
//! # Safety
//! * The owner of a request's memory sits in the slab from before its first submission until the
//!   kernel's last answer: nobody frees, reads or writes that memory meanwhile. `user_data` is
//!   (generation, index), and is checked: a wrong answer ends the ring, and no request.
//! * A ring that is dropped with requests in flight is not closed, and nothing of it freed: it goes
//!   to [`super::reaper`].
//! * There are never more entries in flight than places in the completion queue, so none is ever
//!   lost.

#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use io_uring::{IoUring, squeue, types};

use super::entry::entry;
use super::fixed::{BUFFER_MAX_BYTES, FileSlot, FixedFiles, FixedRegions};
use super::flight::{Completed, Ended, Flight, Full};
use super::probe::{RingFeatures, probe};
use super::reaper;
use super::request::{Moved, Part, Progress, Request, Step};
use crate::in_flight::{ContextError, ContextKind, InFlight};
use crate::memory::Region;
use crate::process::Here;

mod cancellations;

/// The most requests in flight in one ring.
pub(crate) const DEPTH_MAX: u32 = 4096;
/// Marks the completion of a cancellation: no context of the slab is 0.
const CANCELLATION: u64 = 0;
/// How long to leave the kernel alone that has no memory for a submission.
const OUT_OF_MEMORY_PAUSE: Duration = Duration::from_millis(1);

/// How large a ring is, and who uses it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RingConfig {
    /// Requests in flight at most, 1 to [`DEPTH_MAX`].
    pub(crate) depth: u32,
    /// Places for registered files.
    pub(crate) files: u32,
    /// Places for registered buffers, 1 GiB each.
    pub(crate) buffers: u16,
    /// The thread that opens it is the only one that uses it, and it is empty when that thread lets
    /// go of it.
    pub(crate) one_thread: bool,
}

/// Requests in flight through one io_uring; `T` owns the memory and the descriptors of a request.
pub(crate) struct Ring<T: Send + 'static> {
    inner: ManuallyDrop<Box<RingParts<T>>>,
}

/// What outlives a ring that is dropped with requests in flight.
pub(super) struct RingParts<T> {
    /// Closed first, when nothing is in flight; a forked child closes nothing.
    kernel: Here<IoUring>,
    in_flight: InFlight<Flight<T>>,
    /// Requests that are to be begun again once the submission queue has room.
    again: VecDeque<usize>,
    cancellations: u32,
    /// When requests that are in flight were cancelled last.
    cancelled_at: Option<Instant>,
    /// Cancellations that the kernel does not hear of.
    #[cfg(test)]
    lost_cancellations: u32,
    files: FixedFiles,
    regions: FixedRegions,
    one_thread: bool,
    broken: Option<ContextError>,
}

// SAFETY: the addresses in a `Flight` are the kernel's to use; here they are only kept. Their
// memory belongs to `T`, which is `Send`. A ring for one thread is only used by private code that
// keeps it there, and another thread's call fails with EEXIST and touches nothing.
unsafe impl<T: Send> Send for RingParts<T> {}

impl<T: Send + 'static> Ring<T> {
    /// Sets up a ring.
    ///
    /// # Errors
    /// What io_uring_setup(2) answers, and `Unsupported` with the reason where this process may not
    /// use io_uring.
    pub(crate) fn open(config: RingConfig) -> io::Result<Self> {
        let capabilities = probe()
            .map_err(|reason| io::Error::new(io::ErrorKind::Unsupported, reason.as_str()))?;
        let depth = config.depth.clamp(1, DEPTH_MAX);
        let kernel = set_up(depth, config.one_thread, capabilities)?;
        let files = match config.files {
            0 => 0,
            // Before Linux 5.19: descriptors it is.
            places => kernel
                .submitter()
                .register_files_sparse(places)
                .map_or(0, |()| places),
        };
        let buffers = match config.buffers {
            0 => 0,
            places => kernel
                .submitter()
                .register_buffers_sparse(places.into())
                .map_or(0, |()| places),
        };
        Ok(Self {
            inner: ManuallyDrop::new(Box::new(RingParts {
                kernel: Here::new(kernel),
                in_flight: InFlight::new(depth, ContextKind::Opaque),
                again: VecDeque::with_capacity(depth as usize),
                cancellations: 0,
                cancelled_at: None,
                #[cfg(test)]
                lost_cancellations: 0,
                files: FixedFiles::new(files),
                regions: FixedRegions::new(buffers),
                one_thread: config.one_thread,
                broken: None,
            })),
        })
    }

    /// Requests in flight at most.
    pub(crate) fn depth(&self) -> usize {
        self.inner.in_flight.capacity()
    }

    /// Which ring it is.
    #[cfg(test)]
    pub(crate) fn descriptor(&self) -> std::os::fd::RawFd {
        self.inner.kernel.as_raw_fd()
    }

    /// Requests in flight, those that the kernel does not know of yet among them.
    pub(crate) fn in_flight(&self) -> usize {
        self.inner.in_flight.len()
    }

    /// Registers a file: the kernel keeps it open until it is taken out or the ring is closed.
    /// `None` when there is no place, or the kernel refuses.
    pub(crate) fn register_file(&mut self, file: BorrowedFd<'_>) -> Option<FileSlot> {
        let slot = self.inner.files.free()?;
        self.inner.set_file(slot, file.as_raw_fd()).ok()?;
        self.inner.files.set(slot, true);
        Some(slot)
    }

    /// Takes a file out of the table; requests in flight keep theirs.
    pub(crate) fn unregister_file(&mut self, slot: FileSlot) {
        // What can't be taken out stays taken.
        if self.inner.set_file(slot, -1).is_ok() {
            self.inner.files.set(slot, false);
        }
    }

    /// Registers a region, which the ring then keeps: its pages are pinned until the ring is
    /// closed. Again is fine, and does nothing.
    ///
    /// # Errors
    /// `OutOfMemory` where so much may not be locked (RLIMIT_MEMLOCK), `StorageFull` when there is
    /// no place left; requests then go unregistered.
    pub(crate) fn register_region(&mut self, region: &Arc<Region>) -> io::Result<()> {
        if self.inner.regions.contains(region) {
            return Ok(());
        }
        let places = (self.inner.regions.room_for(region)).ok_or(io::ErrorKind::StorageFull)?;
        let base = region.as_ptr();
        let buffers: Vec<_> = (0..region.len())
            .step_by(BUFFER_MAX_BYTES)
            .map(|start| libc::iovec {
                iov_base: base.wrapping_add(start).cast(),
                iov_len: (region.len() - start).min(BUFFER_MAX_BYTES),
            })
            .collect();
        let submitter = self.inner.kernel.submitter();
        // SAFETY: all of it lies in the region, which stays mapped until the ring is closed:
        // `FixedRegions` holds it.
        unsafe { submitter.register_buffers_update(places.start.into(), &buffers, None) }?;
        self.inner.regions.add(Arc::clone(region), places);
        Ok(())
    }

    /// Takes a request; the kernel hears of it at the next [`start`](Self::start) or
    /// [`wait`](Self::wait), or when its queue is full.
    ///
    /// # Errors
    /// [`Full`], with the owner, when there is no [`room`](Self::room).
    ///
    /// # Safety
    /// As [`Room::submit`].
    pub(crate) unsafe fn submit(&mut self, request: Request, owner: T) -> Result<(), Full<T>> {
        match self.room() {
            Some(room) => {
                // SAFETY: the caller's promise.
                unsafe { room.submit(request, owner) };
                Ok(())
            }
            None => Err(Full(owner)),
        }
    }

    /// Room for one more request; none when as many are in flight as there may be, or when the ring
    /// is of no use any more: then [`wait`](Self::wait) says why. Who has it before the owner is
    /// made can make it there, without a move.
    #[inline]
    pub(crate) fn room(&mut self) -> Option<Room<'_, T>> {
        let inner = &mut **self.inner;
        // In a forked child the queues are not even mapped; `wait` says why.
        let has_room = inner.is_fine() && inner.in_flight.len() < inner.in_flight.capacity();
        has_room.then_some(Room { inner })
    }

    /// Whether this is the process that opened it, and the kernel's answers made sense so far.
    pub(crate) fn is_here(&self) -> bool {
        self.inner.check().is_ok()
    }

    /// Tells the kernel of the requests that it does not know yet.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub(crate) fn start(&mut self) -> io::Result<()> {
        self.inner.check()?;
        self.inner.enter(0, None)
    }

    /// Asks the kernel to end requests early: those whose owners are `wanted`. Each ends in any
    /// case, once: as cancelled, or as if nobody had asked.
    pub(crate) fn cancel_where(&mut self, wanted: impl FnMut(&mut T) -> bool) {
        if self.inner.check().is_ok() {
            self.inner.cancel_where(wanted);
        }
    }

    /// Collects requests that are over, until `min` are (or all, if fewer are in flight), or the
    /// deadline.
    ///
    /// # Errors
    /// What io_uring_enter(2) answers, where waiting does not help; `Unsupported` in a forked
    /// child. What is in flight stays so.
    pub(crate) fn wait(
        &mut self,
        min: usize,
        deadline: Option<Instant>,
        completed: &mut Vec<Completed<T>>,
    ) -> io::Result<()> {
        self.wait_each(min, deadline, |ended, moved| {
            if let Some(owner) = ended.into_owner() {
                completed.push(Completed { owner, moved });
            }
        })
    }

    /// The same, and calls `over` with each, in its place.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    #[inline]
    pub(crate) fn wait_each(
        &mut self,
        min: usize,
        deadline: Option<Instant>,
        mut over: impl FnMut(Ended<'_, T>, Moved),
    ) -> io::Result<()> {
        let inner = &mut **self.inner;
        inner.check()?;
        let mut missing = min.min(inner.in_flight.len());
        loop {
            missing = missing.saturating_sub(inner.reap(&mut over)?);
            let now = (missing > 0 && deadline.is_some()).then(Instant::now);
            let left = deadline
                .zip(now)
                .map(|(at, now)| at.saturating_duration_since(now));
            if missing == 0 || left == Some(Duration::ZERO) {
                if inner.has_news() {
                    inner.enter(0, None)?;
                    inner.reap(&mut over)?;
                }
                return Ok(());
            }
            inner.enter_patiently(missing, left)?;
        }
    }

    /// The kernel does not hear of the next so many cancellations, as when they come between two
    /// places where it looks for them.
    #[cfg(test)]
    pub(crate) fn lose_cancellations(&mut self, count: u32) {
        self.inner.lost_cancellations = count;
    }
}

/// Room for one request in a ring.
pub(crate) struct Room<'a, T> {
    inner: &'a mut RingParts<T>,
}

impl<T> Room<'_, T> {
    /// Takes a request; the kernel hears of it as [`Ring::submit`] says.
    ///
    /// # Safety
    /// Until `owner` is given back or dropped, wherever it is moved to:
    /// * `request.memory`, for `request.len` bytes, is valid for what the kernel does: reads for a
    ///   write, writes for a read;
    /// * nobody else writes to it, and for a read nobody else reads it;
    /// * the descriptors of `request` stay open.
    #[inline(always)]
    pub(crate) unsafe fn submit(self, mut request: Request, owner: T) {
        let inner = self.inner;
        if request.region.is_none() {
            request.region = inner.regions.find(request.memory.addr(), request.len);
        }
        let Some(vacant) = inner.in_flight.vacant() else {
            unreachable!("`Ring::room` looked");
        };
        let part = Part::first(&request);
        let context = vacant.fill(Flight {
            progress: Progress::new(request),
            owner,
        });
        // In the order in which they came: what waits goes first.
        if inner.again.is_empty() {
            let entry = entry(&request, part).user_data(context as u64);
            if inner.push(&entry) {
                return;
            }
        }
        inner.again.push_back(context);
        inner.push_waiting();
    }
}

impl<T: Send + 'static> Drop for Ring<T> {
    fn drop(&mut self) {
        // SAFETY: taken once, here, and `self` is not used again.
        let mut inner = unsafe { ManuallyDrop::take(&mut self.inner) };
        if !inner.kernel.owner().is_here() {
            // The parent's requests: this process has only a copy of their memory, and of nothing
            // that could be waited for.
            std::mem::forget(inner);
            return;
        }
        // The kernel does not know of these.
        while let Some(context) = inner.again.pop_front() {
            drop(inner.in_flight.finish(context));
        }
        if !inner.in_flight.is_empty() {
            inner.cancel_where(|_| true);
            // One look: most of it is over by then.
            let _ = inner.enter(0, None).and_then(|()| inner.reap(forget_it));
        }
        if !inner.in_flight.is_empty() {
            reaper::adopt(inner);
        }
    }
}

/// Of a ring that was dropped, nobody asks what became of a request.
fn forget_it<T>(ended: Ended<'_, T>, _: Moved) {
    drop(ended);
}

impl<T: Send> reaper::Orphan for RingParts<T> {
    fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    fn reap_until(&mut self, deadline: Instant) -> io::Result<()> {
        while !self.in_flight.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            self.enter_patiently(1, Some(left))?;
            self.reap(forget_it)?;
        }
        Ok(())
    }
}

impl<T> RingParts<T> {
    #[inline]
    fn is_fine(&self) -> bool {
        self.broken.is_none() && self.kernel.owner().is_here()
    }

    #[inline]
    fn check(&self) -> io::Result<()> {
        if self.is_fine() {
            return Ok(());
        }
        Err(self.of_no_use())
    }

    /// Why it is not fine.
    #[cold]
    fn of_no_use(&self) -> io::Error {
        match self.broken {
            Some(error) if self.kernel.owner().is_here() => io::Error::other(error),
            _ => {
                let text = "this ring was made by another process, before a fork";
                io::Error::new(io::ErrorKind::Unsupported, text)
            }
        }
    }

    fn set_file(&self, slot: FileSlot, fd: i32) -> io::Result<()> {
        let submitter = self.kernel.submitter();
        submitter
            .register_files_update(slot.index(), &[fd])
            .map(drop)
    }

    /// Whether something has not reached the other side yet: entries for the kernel, or completions
    /// that it only hands out when entered.
    fn has_news(&mut self) -> bool {
        let queue = self.kernel.submission();
        !queue.is_empty() || queue.taskrun() || !self.again.is_empty()
    }

    /// Puts what waits into the submission queue, as far as there is room.
    fn push_waiting(&mut self) {
        while let Some(&context) = self.again.front() {
            let Some(flight) = self.in_flight.get(context) else {
                self.again.pop_front();
                continue;
            };
            let part = flight.progress.next();
            let entry = entry(flight.progress.request(), part).user_data(context as u64);
            if !self.push(&entry) {
                return;
            }
            self.again.pop_front();
        }
    }

    /// False when the queue is full, and stays so for the moment.
    fn push(&mut self, entry: &squeue::Entry) -> bool {
        // SAFETY: the memory and descriptors of the entry are kept by the slab until the kernel's
        // last answer (`submit`); a cancellation has none.
        if unsafe { self.kernel.submission().push(entry) }.is_ok() {
            return true;
        }
        // Whatever goes wrong here goes wrong again where it can be said.
        let _ = self.kernel.submit();
        // SAFETY: as above.
        unsafe { self.kernel.submission().push(entry) }.is_ok()
    }

    /// Submits what is queued, and waits until `want` completions are there, or for so long.
    fn enter(&mut self, want: usize, timeout: Option<Duration>) -> io::Result<()> {
        self.push_waiting();
        let result = match timeout {
            None => self.kernel.submit_and_wait(want),
            Some(left) => {
                let time = types::Timespec::from(left);
                let args = types::SubmitArgs::new().timespec(&time);
                self.kernel.submitter().submit_with_args(want, &args)
            }
        };
        match result {
            Ok(_) => Ok(()),
            // EBUSY: completions are to be taken first, which the caller does next.
            Err(error) => match error.raw_os_error() {
                Some(libc::ETIME | libc::EINTR | libc::EBUSY) => Ok(()),
                Some(libc::EAGAIN) => {
                    let left = timeout.unwrap_or(OUT_OF_MEMORY_PAUSE);
                    std::thread::sleep(left.min(OUT_OF_MEMORY_PAUSE));
                    Ok(())
                }
                _ => Err(error),
            },
        }
    }

    /// Takes in all completions that are there; how many requests are over.
    #[inline]
    fn reap(&mut self, mut over: impl FnMut(Ended<'_, T>, Moved)) -> io::Result<usize> {
        let Self {
            kernel,
            in_flight,
            again,
            cancellations,
            ..
        } = self;
        let mut count = 0;
        let mut completions = kernel.completion();
        while let Some(entry) = completions.next() {
            if completions.is_empty() {
                // What came meanwhile.
                completions.sync();
            }
            if entry.user_data() == CANCELLATION {
                *cancellations = cancellations.saturating_sub(1);
                continue;
            }
            let context = entry.user_data() as usize;
            let Ok(mut flight) = in_flight.finish_in_place(context) else {
                drop(completions);
                return Err(self.break_off(context));
            };
            let Some(Flight { progress, .. }) = flight.op() else {
                continue;
            };
            match progress.answer(entry.result()) {
                Step::Again => {
                    flight.keep();
                    again.push_back(context);
                }
                Step::Over(moved) => {
                    count += 1;
                    over(Ended(flight), moved);
                }
            }
        }
        drop(completions);
        if !self.again.is_empty() {
            self.push_waiting();
        }
        Ok(count)
    }

    /// An answer to a question that nobody asked: nothing that this ring says is believed any more,
    /// and nothing of it freed.
    #[cold]
    fn break_off(&mut self, context: usize) -> io::Error {
        let error = match self.in_flight.finish(context) {
            Err(error) => error,
            Ok(_) => ContextError::Idle,
        };
        tracing::error!(%error, user_data = context, "io_uring");
        self.broken = Some(error);
        io::Error::other(error)
    }
}

impl<T: Send + 'static> fmt::Debug for Ring<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring")
            .field("depth", &self.depth())
            .field("in_flight", &self.in_flight())
            .field("one_thread", &self.inner.one_thread)
            .field("broken", &self.inner.broken)
            .finish_non_exhaustive()
    }
}

/// The completion queue has twice the entries of the submission queue: room for each request and
/// its cancellation.
fn set_up(depth: u32, one_thread: bool, capabilities: &RingFeatures) -> io::Result<IoUring> {
    let mut builder = IoUring::builder();
    if one_thread && capabilities.deferred {
        builder.setup_single_issuer().setup_defer_taskrun();
    } else if capabilities.cooperative {
        builder.setup_coop_taskrun().setup_taskrun_flag();
    }
    builder.dontfork().build(depth)
}

#[cfg(test)]
#[path = "tests/ring.rs"]
mod tests;
