//! What cudarc makes, as ours: contexts, streams and events of the device's primary context.
//! Feature `cudarc`.
//!
//! cudarc loads the driver by itself. That it is the one that this library has loaded shows in the
//! context: a driver has one primary context for each device, and no two drivers have the same.

#![allow(unsafe_code)]

use std::fmt;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaEvent, CudaStream, DriverError};

use super::context::Context;
use super::driver::{Cuda, is_found_by_name};
use super::error::CudaError;
use super::{Device, Event, Stream};

/// `CU_STREAM_PER_THREAD`: another stream for each thread that names it.
const PER_THREAD: usize = 2;

/// What cudarc made and somebody here keeps. It goes with its context current, and what was current
/// in that thread before is so again behind it; cudarc by itself would leave its context there, on
/// whatever thread that is.
pub struct OfCudarc<T> {
    device: Device,
    /// What has to be done before it goes, or it stays.
    before: fn(&Cuda) -> Result<(), CudaError>,
    inner: Option<T>,
}

impl<T> OfCudarc<T> {
    /// Keeps `inner`, which cudarc made in the primary context of that device; `before` is called
    /// ahead of its drop, and `inner` is leaked where that fails.
    pub fn new(device: Device, inner: T, before: fn(&Cuda) -> Result<(), CudaError>) -> Box<Self> {
        Box::new(Self {
            device,
            before,
            inner: Some(inner),
        })
    }
}

impl<T> fmt::Debug for OfCudarc<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OfCudarc")
            .field("device", &self.device)
            .finish_non_exhaustive()
    }
}

impl<T> Drop for OfCudarc<T> {
    fn drop(&mut self) {
        let inner = self.inner.take();
        let ready = Cuda::ready().map_err(CudaError::from).and_then(|cuda| {
            let current = cuda.enter_device(self.device.ordinal())?;
            (self.before)(cuda).map(|()| current)
        });
        match ready {
            Ok(_current) => drop(inner),
            Err(error) => {
                std::mem::forget(inner);
                tracing::error!(%error, "what cudarc made is leaked");
            }
        }
    }
}

/// The context as ours, where it is the primary one of its device.
fn primary(context: &CudaContext) -> Result<(Device, Context), CudaError> {
    let device = Device::new(u32::try_from(context.ordinal()).unwrap_or(u32::MAX))?;
    let ours = Cuda::ready()?.primary_context(device.ordinal())?;
    match Context::new(context.cu_ctx().cast()) {
        Some(theirs) if theirs == ours => Ok((device, ours)),
        _ => Err(CudaError::Cudarc {
            reason: "its context is not the primary one of a device of the driver that is loaded \
                here (`CudaContext::new`)",
        }),
    }
}

impl Device {
    /// cudarc's handle on this device: its primary context, which all of this library works in,
    /// too. Better than `CudaContext::new`, which panics where there is no CUDA driver. What was
    /// current in this thread stays so.
    ///
    /// # Errors
    /// [`CudaError::Unavailable`]; [`CudaError::Cudarc`] where cudarc finds no driver, or another
    /// one than this library has loaded; what the driver answers.
    pub fn cudarc_context(self) -> Result<Arc<CudaContext>, CudaError> {
        let _current = Cuda::ready()?.enter_device(self.ordinal())?;
        if !is_found_by_name() {
            let reason = "it finds no libcuda.so: the loader has to (LD_LIBRARY_PATH)";
            return Err(CudaError::Cudarc { reason });
        }
        let context = CudaContext::new(self.ordinal() as usize).map_err(|DriverError(code)| {
            CudaError::call("cuDevicePrimaryCtxRetain", code as u32 as i32)
        })?;
        primary(&context)?;
        Ok(context)
    }
}

impl Stream {
    /// A stream of cudarc's, which lives as long as this one and its clones: received data can be
    /// ordered before its work, and [`record`](Self::record) gives events for
    /// others to wait for.
    ///
    /// # Errors
    /// [`CudaError::Cudarc`] for a stream of another context than the device's primary one, and for
    /// a stream per thread, which would be another one on each thread that this is used on;
    /// [`CudaError::Unavailable`].
    pub fn from_cudarc(stream: &Arc<CudaStream>) -> Result<Self, CudaError> {
        let (device, context) = primary(stream.context())?;
        if stream.cu_stream().addr() == PER_THREAD {
            let reason = "a stream per thread is another one on each thread";
            return Err(CudaError::Cudarc { reason });
        }
        let kept = OfCudarc::new(device, Arc::clone(stream), |_| Ok(()));
        Self::in_context(stream.cu_stream().cast(), context, device, kept)
    }
}

impl Event {
    /// An event of cudarc's, for [`Stream::wait_for`] and whoever else waits for events. As it is
    /// given away, nobody can record it again.
    ///
    /// # Errors
    /// [`CudaError::Cudarc`] for an event of another context than the device's primary one;
    /// [`CudaError::Unavailable`].
    pub fn from_cudarc(event: CudaEvent) -> Result<Self, CudaError> {
        let (device, _) = primary(event.context())?;
        let raw = event.cu_event().cast();
        // SAFETY: an event of the driver that is loaded here, as its context is; destroyed with the
        // keep-alive, which alone has it.
        unsafe { Self::from_raw(raw, OfCudarc::new(device, event, |_| Ok(()))) }
    }
}
