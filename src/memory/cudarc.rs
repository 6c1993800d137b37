//! Memory that cudarc allocated as regions. Feature `cudarc`.

#![allow(unsafe_code)]

use std::sync::Arc;

use cudarc::driver::{CudaSlice, DevicePtrMut};

use super::device::refused;
use super::{MemoryError, Region};
use crate::cuda::{Cuda, OfCudarc, Stream};

impl Region {
    /// A region over memory that cudarc allocated, and its owner from here on: the slice is freed
    /// when the region and everything made from it is gone. Kernels get its
    /// [`address`](Self::address).
    ///
    /// Waits for the work with the slice that cudarc knows of: what the region is used for finds it
    /// done.
    ///
    /// ```
    /// use fabricast::Region;
    /// use fabricast::cuda::{Device, Stream};
    /// let Ok(device) = Device::new(0) else {
    ///     return Ok(()); // no GPU here
    /// };
    /// let stream = device.cudarc_context()?.default_stream();
    /// let region = Region::from_cuda_slice(stream.clone_htod(&[1_u32, 2, 3])?)?;
    /// let mut bytes = [0; 4];
    /// region.slice(4..8)?.copy_to_host(&mut bytes, &Stream::from_cudarc(&stream)?)?;
    /// assert_eq!(u32::from_ne_bytes(bytes), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`MemoryError::Cuda`] for a slice of another context than the device's primary one, or of a
    /// stream per thread ([`CudaError::Cudarc`](crate::cuda::CudaError::Cudarc)), and for what
    /// failed on its stream; [`MemoryError::Empty`]. The slice is freed then.
    pub fn from_cuda_slice<T: 'static>(mut slice: CudaSlice<T>) -> Result<Arc<Self>, MemoryError> {
        let refused = refused("memory of cudarc");
        let on = Arc::clone(slice.stream());
        let stream = Stream::from_cudarc(&on).map_err(&refused)?;
        let len = slice.num_bytes();
        let address = {
            let _current = stream.enter().map_err(&refused)?;
            // The stream waits for who reads and who writes it on others.
            slice.device_ptr_mut(&on).0
        };
        stream.synchronize().map_err(&refused)?;
        // Copies may be under way that nobody waits for any more: cudarc frees in the order of the
        // slice's stream, which knows nothing of them.
        let keep_alive = OfCudarc::new(stream.device(), slice, Cuda::synchronize_context);
        // SAFETY: all of the slice's bytes stay allocated as long as it does, which the keep-alive
        // has alone.
        unsafe { Self::external_device(address, len, keep_alive) }
    }
}
