//! `Lane`: pinned memory of the host and a CUDA stream, by which bytes go to a GPU's memory and come from it.

#![allow(unsafe_code)]

use std::mem;
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

use crate::cuda::{Cuda, CudaError, Current, RawStream};

/// Bytes of a lane: what one copy moves at most.
pub(super) const LANE_BYTES: usize = 4 << 20;
/// Lanes that are kept for the next transfer: 128 MiB of pinned memory.
const IDLE_MAX: usize = 32;

/// A lane. It goes back to the others when it is dropped; where the stream can't be asked, it is leaked.
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
}

// SAFETY: a stream and pinned memory, which threads may hand to one another.
unsafe impl Send for Parts {}

static IDLE: Mutex<Vec<Parts>> = Mutex::new(Vec::new());

impl Lane {
    /// One that is idle, or a new one: pinning takes milliseconds.
    pub(super) fn acquire(cuda: &'static Cuda, current: &Current) -> Result<Self, CudaError> {
        let lane = |parts| Self {
            cuda,
            parts,
            busy: false,
        };
        let mut idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(index) = idle.iter().rposition(|it| it.context == current.id()) {
            return Ok(lane(idle.swap_remove(index)));
        }
        drop(idle);
        let memory = cuda.host_alloc(LANE_BYTES)?;
        let stream = match cuda.stream_create() {
            Ok(stream) => stream,
            Err(error) => {
                // SAFETY: nobody knows of it yet.
                unsafe { cuda.host_free(memory) }?;
                return Err(error);
            }
        };
        Ok(lane(Parts {
            context: current.id(),
            stream,
            memory,
        }))
    }

    /// The memory, [`LANE_BYTES`] long and aligned to a page. Not to be touched before [`wait`](Self::wait).
    pub(super) fn memory(&self) -> NonNull<u8> {
        self.parts.memory
    }

    /// Begins to copy the bytes from `start` on to the device.
    ///
    /// # Safety
    /// The device's part is good for `len` bytes and nobody uses it, until a wait of this lane is over.
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
        // SAFETY: the caller vouches for the device; our part is inside, and stays until the lane was waited for.
        unsafe { self.cuda.to_device(to, from, len, self.parts.stream) }
    }

    /// Begins to copy from the device to the bytes from `start` on.
    ///
    /// # Safety
    /// The device's part is good for `len` bytes and nobody writes it, until a wait of this lane is over.
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
        // SAFETY: the caller vouches for the device; our part is inside, and nobody looks at it until the lane was waited for.
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
            start <= LANE_BYTES && len <= LANE_BYTES - start,
            "{len} bytes at {start}"
        );
        // SAFETY: inside of the lane's memory (just asserted).
        unsafe { self.parts.memory.add(start) }
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        // After an error or a panic. The one copy of a lane is over in a moment, and until then the device's memory may not
        // go back to its owner: so this waits, as nothing else that is dropped.
        if self.wait().is_err() {
            tracing::error!("pinned memory is leaked: a copy may be under way");
            return;
        }
        let mut idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE_MAX {
            idle.push(self.parts);
            return;
        }
        drop(idle);
        // SAFETY: no copy is under way, and nobody else has the lane.
        let freed = unsafe { self.cuda.host_free(self.parts.memory) };
        // SAFETY: as above.
        let destroyed = unsafe { self.cuda.stream_destroy(self.parts.stream) };
        if let Err(error) = freed.and(destroyed) {
            tracing::error!(%error, "a lane to the GPU is leaked");
        }
    }
}

/// Frees the pinned memory that is kept for the next transfer, and says how many bytes that were.
pub(super) fn clear(cuda: &'static Cuda) -> usize {
    let mut idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner);
    let lanes = mem::take(&mut *idle);
    drop(idle);
    let mut bytes = 0;
    for parts in lanes {
        // SAFETY: idle lanes have no copy under way, and these are nobody's any more.
        let freed = unsafe { cuda.host_free(parts.memory) };
        // SAFETY: as above.
        let destroyed = unsafe { cuda.stream_destroy(parts.stream) };
        if freed.and(destroyed).is_ok() {
            bytes += LANE_BYTES;
        }
    }
    bytes
}
