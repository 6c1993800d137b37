//! `Stream`: a queue of a device's work.

#![allow(unsafe_code)]

use std::any::Any;
use std::fmt;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use super::context::{Context, Current};
use super::driver::Cuda;
use super::error::{CudaError, check};
use super::event::Event;
use super::{Device, RawStream};
use fabricast_process::Here;

/// A CUDA stream: work that is given to it is done in its order. A clone is the same stream.
///
/// Calls make the context of the stream current where they need it, whatever thread they are made
/// on, and put back what was current before.
#[derive(Clone)]
pub struct Stream {
    shared: Arc<SharedStream>,
}

struct SharedStream {
    cuda: &'static Cuda,
    raw: RawStream,
    context: Context,
    device: Device,
    /// Not given back by a forked child: CUDA does not survive a fork.
    kept: Here<StreamOwner>,
}

/// Who destroys the stream.
enum StreamOwner {
    Ours(#[expect(dead_code, reason = "held for its drop")] OwnedStream),
    /// Only kept: dropping it is the owner's business.
    Theirs(#[expect(dead_code, reason = "held for its drop")] Box<dyn Any + Send + Sync>),
}

struct OwnedStream {
    cuda: &'static Cuda,
    raw: RawStream,
    device: Device,
}

// SAFETY: streams may be used from any thread; the pointer is only handed to the CUDA driver.
unsafe impl Send for SharedStream {}
// SAFETY: as above; nothing in it changes.
unsafe impl Sync for SharedStream {}

impl Drop for OwnedStream {
    fn drop(&mut self) {
        let destroy = || {
            let _current = self.cuda.enter_device(self.device.ordinal())?;
            // SAFETY: made by `Stream::new`, and this is the last handle. What it was given is
            // still done.
            unsafe { self.cuda.stream_destroy(self.raw) }
        };
        if let Err(error) = destroy() {
            tracing::error!(%error, "a CUDA stream is leaked");
        }
    }
}

impl Stream {
    /// A new stream of the device's primary context, which has no order with the default stream.
    /// Dropping the last clone destroys it; what it was given is done nevertheless.
    ///
    /// # Errors
    /// [`CudaError::Unavailable`], or what the driver answers.
    pub fn new(device: Device) -> Result<Self, CudaError> {
        let cuda = Cuda::ready()?;
        let context = cuda.primary_context(device.ordinal())?;
        let _current = cuda.enter_device(device.ordinal())?;
        let raw = cuda.stream_create()?;
        let owned = OwnedStream { cuda, raw, device };
        Ok(Self::of(
            cuda,
            raw,
            context,
            device,
            StreamOwner::Ours(owned),
        ))
    }

    /// The default stream of the device's primary context.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub fn default_of(device: Device) -> Result<Self, CudaError> {
        let cuda = Cuda::ready()?;
        let context = cuda.primary_context(device.ordinal())?;
        let nobody = StreamOwner::Theirs(Box::new(()));
        Ok(Self::of(cuda, ptr::null_mut(), context, device, nobody))
    }

    /// A stream that somebody else made; null is the default stream of the device. `keep_alive` is
    /// dropped with the last clone and the last [event](Self::event) of the stream, on whatever
    /// thread that is.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    ///
    /// # Safety
    /// * `raw` is null or a stream of that device, and is not destroyed before the last `Stream` of
    ///   it is dropped. Its [events](Self::event) use its context alone.
    /// * Its context lives until `keep_alive` is dropped.
    pub unsafe fn from_raw(
        raw: RawStream,
        device: Device,
        keep_alive: Box<dyn Any + Send + Sync>,
    ) -> Result<Self, CudaError> {
        let cuda = Cuda::ready()?;
        let mut context = ptr::null_mut();
        if let Some(get) = cuda.stream_get_context.filter(|_| !raw.is_null()) {
            // SAFETY: the caller vouches for the stream; writes one pointer, which is ours.
            check("cuStreamGetCtx", unsafe { get(raw, &raw mut context) })?;
        }
        let context = match Context::new(context) {
            Some(context) => context,
            None => cuda.primary_context(device.ordinal())?,
        };
        let kept = StreamOwner::Theirs(keep_alive);
        Ok(Self::of(cuda, raw, context, device, kept))
    }

    /// A stream of that context, which somebody else made; as [`from_raw`](Self::from_raw).
    #[cfg(feature = "cudarc")]
    pub(super) fn in_context(
        raw: RawStream,
        context: Context,
        device: Device,
        keep_alive: Box<dyn Any + Send + Sync>,
    ) -> Result<Self, CudaError> {
        let cuda = Cuda::ready()?;
        let kept = StreamOwner::Theirs(keep_alive);
        Ok(Self::of(cuda, raw, context, device, kept))
    }

    fn of(
        cuda: &'static Cuda,
        raw: RawStream,
        context: Context,
        device: Device,
        kept: StreamOwner,
    ) -> Self {
        Self {
            shared: Arc::new(SharedStream {
                cuda,
                raw,
                context,
                device,
                kept: Here::new(kept),
            }),
        }
    }

    /// The device that does its work.
    pub fn device(&self) -> Device {
        self.shared.device
    }

    /// The stream itself; null is the default stream.
    pub fn raw(&self) -> RawStream {
        self.shared.raw
    }

    /// Waits until all is done that was given to the stream (`cuStreamSynchronize`). That has no
    /// deadline: [`is_idle`](Self::is_idle) asks without waiting.
    ///
    /// # Errors
    /// What the driver answers: also an error of work that was given to it before.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        let _current = self.enter()?;
        // SAFETY: made by us, or whoever made it vouches for it.
        unsafe { self.shared.cuda.synchronize(self.shared.raw) }
    }

    /// Whether all is done that was given to the stream (`cuStreamQuery`).
    ///
    /// # Errors
    /// As for [`synchronize`](Self::synchronize).
    pub fn is_idle(&self) -> Result<bool, CudaError> {
        let _current = self.enter()?;
        // SAFETY: made by us, or whoever made it vouches for it.
        unsafe { self.shared.cuda.is_idle(self.shared.raw) }
    }

    /// Work that is given to the stream from now on waits for what the event stands for
    /// (`cuStreamWaitEvent`); this call does not wait.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn wait_for(&self, event: &Event) -> Result<(), CudaError> {
        let _current = self.enter()?;
        let wait = self.shared.cuda.events()?.stream_wait;
        // SAFETY: both are alive: made by us, or whoever made them vouches for them.
        check("cuStreamWaitEvent", unsafe {
            wait(self.shared.raw, event.raw(), 0)
        })
    }

    /// An event that stands for all that was given to the stream up to now (`cuEventRecord`).
    ///
    /// # Errors
    /// What the driver answers.
    pub fn record(&self) -> Result<Event, CudaError> {
        let event = self.event()?;
        self.record_in(&event)?;
        Ok(event)
    }

    /// An event of the stream's context that stands for nothing yet: it has happened.
    ///
    /// # Errors
    /// What the driver answers; [`CudaError::Lacks`] where it has no such function.
    pub fn event(&self) -> Result<Event, CudaError> {
        Event::new(self.shared.cuda, self)
    }

    /// As [`record`](Self::record), with an event that is used again: what it stood for before, it
    /// no longer does, for all who have a clone of it.
    ///
    /// # Errors
    /// What the driver answers; [`CudaError::Lacks`] where it has no such function.
    pub fn record_in(&self, event: &Event) -> Result<(), CudaError> {
        let _current = self.enter()?;
        let record = self.shared.cuda.events()?.record;
        // SAFETY: both are alive, and of one context: made so by whoever holds them.
        check("cuEventRecord", unsafe {
            record(event.raw(), self.shared.raw)
        })
    }

    /// Makes the stream's context current in this thread.
    ///
    /// # Errors
    /// What the driver answers; [`CudaError::Lacks`] where it has no such function.
    pub fn enter(&self) -> Result<Current, CudaError> {
        let cuda = Cuda::ready()?;
        // SAFETY: a primary one, or as whoever made the stream vouches, alive as long as this is.
        unsafe { cuda.enter(self.shared.context) }
    }

    /// Copies to the device in the order of the stream; asynchronous where the host's memory is
    /// pinned.
    ///
    /// # Errors
    /// What the driver answers; [`CudaError::Lacks`] where it has no such function.
    ///
    /// # Safety
    /// Both are good for `len` bytes until the stream has passed, and nobody else uses the part of
    /// the device, or writes that of the host.
    pub unsafe fn copy_to_device(
        &self,
        to: u64,
        from: NonNull<u8>,
        len: usize,
    ) -> Result<(), CudaError> {
        let _current = self.enter()?;
        // SAFETY: the caller says so.
        unsafe { self.shared.cuda.to_device(to, from, len, self.shared.raw) }
    }

    /// Copies from the device in the order of the stream; asynchronous where the host's memory is
    /// pinned.
    ///
    /// # Errors
    /// What the driver answers; [`CudaError::Lacks`] where it has no such function.
    ///
    /// # Safety
    /// As for [`copy_to_device`](Self::copy_to_device), with the parts exchanged.
    pub unsafe fn copy_to_host(
        &self,
        to: NonNull<u8>,
        from: u64,
        len: usize,
    ) -> Result<(), CudaError> {
        let _current = self.enter()?;
        // SAFETY: the caller says so.
        unsafe { self.shared.cuda.to_host(to, from, len, self.shared.raw) }
    }

    /// Fills a device's memory with a byte, in the order of the stream.
    ///
    /// # Errors
    /// What the driver answers; [`CudaError::Lacks`] where it has no such function.
    ///
    /// # Safety
    /// It is good for `len` bytes until the stream has passed, and nobody else uses it meanwhile.
    pub unsafe fn fill(&self, at: u64, byte: u8, len: usize) -> Result<(), CudaError> {
        let _current = self.enter()?;
        // SAFETY: the caller says so.
        unsafe { self.shared.cuda.fill(at, byte, len, self.shared.raw) }
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream")
            .field("raw", &self.shared.raw)
            .field("device", &self.shared.device)
            .field("ours", &matches!(*self.shared.kept, StreamOwner::Ours(_)))
            .finish()
    }
}
