//! `Lane`: pinned memory of the host and a CUDA stream, by which bytes go to a GPU's memory and
//! come from it.
//!
//! Lanes are kept for the next transfer, since pinning takes milliseconds: at most [`IDLE_MAX`] of
//! them, and no more bytes than the setting `bounce_pool_size`. All that are kept have the size
//! that the setting `bounce_buffer_size` asks for: the first transfer that wants another size, and
//! the first lane that comes back after the setting has changed, free the rest.

#![allow(unsafe_code)]

use std::mem;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::cuda::{Cuda, CudaError, Current, RawStream};
use crate::storage::Defaults;

/// Lanes that are kept for the next transfer, at most.
const IDLE_MAX: usize = 32;
/// Into so many lanes a bounce buffer is cut. A task has two at a time; the default, 16 MiB, makes
/// lanes of 4 MiB, which keep a PCIe link busy.
const LANES_A_BUFFER: usize = 4;

/// Bytes of a lane, what one copy moves at most, where bounce buffers have so many: whole pages,
/// one at least.
pub(super) fn lane_bytes(bounce: usize) -> usize {
    let page = rustix::param::page_size();
    // A setting has a range: nothing overflows.
    (bounce / LANES_A_BUFFER).max(1).next_multiple_of(page)
}

/// A lane. It goes back to the others when it is dropped; where the stream can't be asked, it is
/// leaked.
pub(super) struct Lane {
    cuda: &'static Cuda,
    parts: Parts,
    /// A copy was begun, and nobody has waited for it.
    busy: bool,
}

#[derive(Clone, Copy)]
struct Parts {
    /// Which context the stream belongs to.
    context: usize,
    stream: RawStream,
    memory: NonNull<u8>,
    /// Of the memory.
    len: usize,
}

// SAFETY: a stream and pinned memory, which threads may hand to one another.
unsafe impl Send for Parts {}

static IDLE: Mutex<Vec<Parts>> = Mutex::new(Vec::new());
/// Whether there ever was a lane: else nobody needs CUDA to know that there is nothing to free.
static MADE: AtomicBool = AtomicBool::new(false);

fn idle() -> MutexGuard<'static, Vec<Parts>> {
    IDLE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Parts {
    fn make(cuda: &'static Cuda, current: &Current, len: usize) -> Result<Self, CudaError> {
        MADE.store(true, Ordering::Relaxed);
        let memory = cuda.host_alloc(len)?;
        match cuda.stream_create() {
            Ok(stream) => Ok(Self {
                context: current.id(),
                stream,
                memory,
                len,
            }),
            Err(error) => {
                // SAFETY: nobody knows of it yet.
                unsafe { cuda.host_free(memory) }?;
                Err(error)
            }
        }
    }

    /// Gives both back; the bytes that were freed.
    ///
    /// # Safety
    /// No copy is under way, and nobody else has them.
    unsafe fn free(self, cuda: &'static Cuda) -> usize {
        // SAFETY: the caller's promise.
        let freed = unsafe { cuda.host_free(self.memory) };
        // SAFETY: as above.
        let destroyed = unsafe { cuda.stream_destroy(self.stream) };
        match freed.and(destroyed) {
            Ok(()) => self.len,
            Err(error) => {
                tracing::error!(%error, "a lane to the GPU is leaked");
                0
            }
        }
    }
}

impl Lane {
    /// One of so many bytes that is idle, or a new one. Idle ones of another size are of no use any
    /// more: they are freed.
    pub(super) fn acquire(
        cuda: &'static Cuda,
        current: &Current,
        len: usize,
    ) -> Result<Self, CudaError> {
        let lane = |parts| Self {
            cuda,
            parts,
            busy: false,
        };
        let mut idle = idle();
        let others = take_others(&mut idle, len);
        let found = idle.iter().rposition(|it| it.context == current.id());
        let found = found.map(|index| idle.swap_remove(index));
        drop(idle);
        free_all(cuda, others);
        match found {
            Some(parts) => Ok(lane(parts)),
            None => Parts::make(cuda, current, len).map(lane),
        }
    }

    /// The memory, aligned to a page. Not to be touched before [`wait`](Self::wait).
    pub(super) fn memory(&self) -> NonNull<u8> {
        self.parts.memory
    }

    /// Begins to copy the bytes from `start` on to the device.
    ///
    /// # Safety
    /// The device's part is good for `len` bytes and nobody uses it, until a wait of this lane is
    /// over.
    ///
    /// # Panics
    /// When that is more than the lane has.
    pub(super) unsafe fn begin_upload(
        &mut self,
        start: usize,
        to: u64,
        len: usize,
    ) -> Result<(), CudaError> {
        let from = self.part(start, len);
        self.busy = true;
        // SAFETY: the caller vouches for the device; our part is inside, and stays until the lane
        // was waited for.
        unsafe { self.cuda.to_device(to, from, len, self.parts.stream) }
    }

    /// Begins to copy from the device to the bytes from `start` on.
    ///
    /// # Safety
    /// The device's part is good for `len` bytes and nobody writes it, until a wait of this lane is
    /// over.
    ///
    /// # Panics
    /// When that is more than the lane has.
    pub(super) unsafe fn begin_download(
        &mut self,
        start: usize,
        from: u64,
        len: usize,
    ) -> Result<(), CudaError> {
        let to = self.part(start, len);
        self.busy = true;
        // SAFETY: the caller vouches for the device; our part is inside, and nobody looks at it
        // until the lane was waited for.
        unsafe { self.cuda.to_host(to, from, len, self.parts.stream) }
    }

    /// Waits for the copy that was begun last, if there is one.
    pub(super) fn wait(&mut self) -> Result<(), CudaError> {
        if self.busy {
            // SAFETY: the lane's own stream.
            unsafe { self.cuda.synchronize(self.parts.stream) }?;
            self.busy = false;
        }
        Ok(())
    }

    fn part(&self, start: usize, len: usize) -> NonNull<u8> {
        assert!(
            start <= self.parts.len && len <= self.parts.len - start,
            "{len} bytes at {start} of {}",
            self.parts.len
        );
        // SAFETY: inside of the lane's memory (just asserted).
        unsafe { self.parts.memory.add(start) }
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        // After an error or a panic. The one copy of a lane is over in a moment, and until then the
        // device's memory may not go back to its owner: so this waits, as nothing else that is
        // dropped.
        if self.wait().is_err() {
            tracing::error!("pinned memory is leaked: a copy may be under way");
            return;
        }
        let settings = Defaults::get();
        let wanted = lane_bytes(settings.bounce_buffer_size);
        let mut idle = idle();
        let mut useless = take_others(&mut idle, wanted);
        // All that are left have the size that is wanted.
        let most = (settings.bounce_pool_size / wanted).min(IDLE_MAX);
        if self.parts.len == wanted && idle.len() < most {
            idle.push(self.parts);
        } else {
            useless.push(self.parts);
        }
        drop(idle);
        free_all(self.cuda, useless);
    }
}

/// Takes out those of another size.
fn take_others(idle: &mut Vec<Parts>, len: usize) -> Vec<Parts> {
    if idle.iter().all(|it| it.len == len) {
        return Vec::new();
    }
    let (keep, others) = mem::take(idle).into_iter().partition(|it| it.len == len);
    *idle = keep;
    others
}

/// Frees lanes that were taken out of the idle ones; the bytes that they had.
fn free_all(cuda: &'static Cuda, lanes: Vec<Parts>) -> usize {
    let free = |parts: Parts| {
        // SAFETY: idle lanes have no copy under way, and these are nobody's any more.
        unsafe { parts.free(cuda) }
    };
    lanes.into_iter().map(free).sum()
}

/// Frees the pinned memory that is kept for the next transfer, and says how many bytes that were.
pub(super) fn clear() -> usize {
    if !MADE.load(Ordering::Relaxed) {
        return 0;
    }
    Cuda::ready().map_or(0, |cuda| {
        let lanes = mem::take(&mut *idle());
        free_all(cuda, lanes)
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_lane_is_a_quarter_of_a_bounce_buffer_in_whole_pages() {
        let page = rustix::param::page_size();
        assert_eq!(lane_bytes(16 << 20), 4 << 20);
        assert_eq!(lane_bytes(1), page);
        assert_eq!(lane_bytes(4 * page), page);
        assert_eq!(lane_bytes(4 * page + 4), 2 * page);
        assert_eq!(lane_bytes(1 << 30), 256 << 20);
    }
}
