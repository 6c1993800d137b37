//! `CopyStreams`: what copies between the host and a device go by.

use std::sync::{Mutex, PoisonError};

use crate::buffer::RegionSlice;
use crate::cuda::{CudaError, Device, Stream};
use crate::memory::MemoryError;

/// CUDA streams of one device: each thread that copies has one for itself, and waits for nobody
/// else's copies. There are as many as threads ever copied at once.
#[derive(Debug)]
pub(super) struct CopyStreams {
    device: Device,
    idle: Mutex<Vec<Stream>>,
}

impl CopyStreams {
    pub(super) fn new(device: Device) -> Self {
        Self {
            device,
            idle: Mutex::default(),
        }
    }

    /// For the device that a slice is memory of.
    pub(super) fn of(slice: &RegionSlice) -> Result<Self, MemoryError> {
        let kind = slice.region().kind();
        let what = "a device's part in a stream";
        let device = kind.device();
        let device = device.ok_or(MemoryError::NotDeviceRegion { what, kind })?;
        Ok(Self::new(device))
    }

    pub(super) fn device(&self) -> Device {
        self.device
    }

    /// Does something with a stream that nobody else uses meanwhile, and that has nothing to do
    /// when this returns.
    pub(super) fn with<T, E: From<CudaError>>(
        &self,
        work: impl FnOnce(&Stream) -> Result<T, E>,
    ) -> Result<T, E> {
        let idle = self.lock().pop();
        let stream = match idle {
            Some(stream) => stream,
            None => Stream::new(self.device)?,
        };
        let done = work(&stream);
        // What failed may have left work, which is over before its memory goes back to whoever lent
        // it; that stream is not used again.
        match &done {
            Ok(_) => self.lock().push(stream),
            Err(_) => drop(stream.synchronize()),
        }
        done
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Stream>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
