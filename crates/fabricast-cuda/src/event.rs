//! `Event`: a point in a stream.

#![allow(unsafe_code)]

use std::any::Any;
use std::fmt;
use std::ptr;
use std::sync::Arc;

use super::Stream;
use super::driver::{Cuda, RawEvent};
use super::error::{CudaCode, CudaError, check};
use fabricast_process::Here;

/// `CU_EVENT_DISABLE_TIMING`: it is only asked whether it has happened, which is faster.
const DISABLE_TIMING: u32 = 2;

/// A point in a [`Stream`]: it has happened when all is done that the stream was
/// given before. A clone is the same event.
#[derive(Clone)]
pub struct Event {
    shared: Arc<SharedEvent>,
}

struct SharedEvent {
    raw: RawEvent,
    /// Not given back by a forked child: CUDA does not survive a fork.
    kept: Here<EventOwner>,
}

/// Who destroys the event.
enum EventOwner {
    Ours(#[expect(dead_code, reason = "held for its drop")] OwnedEvent),
    /// Only kept: dropping it is the owner's business.
    Theirs(#[expect(dead_code, reason = "held for its drop")] Box<dyn Any + Send + Sync>),
}

struct OwnedEvent {
    cuda: &'static Cuda,
    raw: RawEvent,
    /// Keeps the context that the event was made in.
    stream: Stream,
}

// SAFETY: events may be used from any thread; the pointer is only handed to the CUDA driver.
unsafe impl Send for SharedEvent {}
// SAFETY: as above; nothing in it changes.
unsafe impl Sync for SharedEvent {}

impl Drop for OwnedEvent {
    fn drop(&mut self) {
        let destroy = || {
            let _current = self.stream.enter()?;
            let destroy = self.cuda.events()?.destroy;
            // SAFETY: made by `Event::new`, and this is the last handle. Streams that wait for it
            // still do.
            check("cuEventDestroy", unsafe { destroy(self.raw) })
        };
        if let Err(error) = destroy() {
            tracing::error!(%error, "a CUDA event is leaked");
        }
    }
}

impl Event {
    /// One that stands for nothing yet: it has happened.
    pub(super) fn new(cuda: &'static Cuda, stream: &Stream) -> Result<Self, CudaError> {
        let _current = stream.enter()?;
        let mut raw = ptr::null_mut();
        // SAFETY: writes one pointer, which is ours.
        let code = unsafe { (cuda.events()?.create)(&raw mut raw, DISABLE_TIMING) };
        check("cuEventCreate", code)?;
        Ok(Self {
            shared: Arc::new(SharedEvent {
                raw,
                kept: Here::new(EventOwner::Ours(OwnedEvent {
                    cuda,
                    raw,
                    stream: stream.clone(),
                })),
            }),
        })
    }

    /// An event that somebody else made, a `CUevent`. `keep_alive` is dropped with the last clone,
    /// on whatever thread that is.
    ///
    /// # Errors
    /// [`CudaError::Unavailable`].
    ///
    /// # Safety
    /// `raw` is an event that is not destroyed, nor recorded again, before `keep_alive` is dropped.
    pub unsafe fn from_raw(
        raw: RawEvent,
        keep_alive: Box<dyn Any + Send + Sync>,
    ) -> Result<Self, CudaError> {
        Cuda::ready()?;
        Ok(Self {
            shared: Arc::new(SharedEvent {
                raw,
                kept: Here::new(EventOwner::Theirs(keep_alive)),
            }),
        })
    }

    /// Whether it has happened (`cuEventQuery`).
    ///
    /// # Errors
    /// What the driver answers: also an error of work that was to be done before.
    pub fn is_done(&self) -> Result<bool, CudaError> {
        // Also says whether this is still the process that made it.
        let cuda = Cuda::ready()?;
        // SAFETY: made by us, or whoever made it vouches for it.
        match CudaCode(unsafe { (cuda.events()?.query)(self.shared.raw) }) {
            CudaCode::NOT_READY => Ok(false),
            CudaCode(code) => check("cuEventQuery", code).map(|()| true),
        }
    }

    /// Waits until it has happened (`cuEventSynchronize`). That has no deadline:
    /// [`is_done`](Self::is_done) asks without waiting.
    ///
    /// # Errors
    /// As for [`is_done`](Self::is_done).
    pub fn synchronize(&self) -> Result<(), CudaError> {
        let cuda = Cuda::ready()?;
        let synchronize = cuda.events()?.synchronize;
        // SAFETY: made by us, or whoever made it vouches for it.
        check("cuEventSynchronize", unsafe {
            synchronize(self.shared.raw)
        })
    }

    /// The event itself, a `CUevent`.
    pub fn raw(&self) -> RawEvent {
        self.shared.raw
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Event")
            .field("raw", &self.shared.raw)
            .field("ours", &matches!(*self.shared.kept, EventOwner::Ours(_)))
            .finish()
    }
}
