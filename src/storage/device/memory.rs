//! `DeviceMemory`: GPU memory that an operation on a file owns until it is over.

#![allow(unsafe_code)]

use crate::buffer::{DeviceBuffer, RegionSlice};
use crate::storage::{IoBuf, IoBufMut, Place};

/// A part of an allocation in a GPU's memory, and what keeps it allocated.
///
/// ```
/// use fabricast::storage::{DeviceMemory, FileHandle, IoFuture, IoOptions};
///
/// /// Memory by cuMemAlloc, freed when it is dropped.
/// struct Allocation {
///     address: u64,
///     len: usize,
/// }
///
/// fn read(file: &FileHandle, into: Allocation) -> IoFuture<DeviceMemory<Allocation>> {
///     let (address, len) = (into.address, into.len);
///     // SAFETY: the allocation is that long, and who owns it uses it for nothing else.
///     let memory = unsafe { DeviceMemory::new(address, 0, len, into) };
///     file.pread(memory, .., 0, &IoOptions::default())
/// }
/// ```
#[derive(Debug)]
pub struct DeviceMemory<K> {
    base: u64,
    offset: usize,
    len: usize,
    keep: K,
}

impl<K: Send + 'static> DeviceMemory<K> {
    /// `len` bytes from `offset` on of the allocation at `base` (a `CUdeviceptr`; what is
    /// registered with cuFile, where it is). `keep` is held as long as this lives: the owner of the
    /// memory.
    ///
    /// # Safety
    ///
    /// As long as `keep` lives, and it is not used by others to do so:
    /// * these bytes are allocated in the memory of a CUDA device;
    /// * nobody else reads or writes them while an operation has this value: no kernel, no copy, no
    ///   other operation.
    pub unsafe fn new(base: u64, offset: usize, len: usize, keep: K) -> Self {
        Self {
            base,
            offset,
            len,
            keep,
        }
    }

    /// What it keeps.
    pub fn keep(&self) -> &K {
        &self.keep
    }

    /// What it kept; the memory is no longer spoken for.
    pub fn into_keep(self) -> K {
        self.keep
    }
}

impl DeviceMemory<RegionSlice> {
    /// The bytes of a slice of a region of a device's memory. Who uses them meanwhile by other
    /// means reads or writes a mixture: the host never touches them, so nothing worse happens.
    ///
    /// # Errors
    /// Gives the slice back when it is memory of the host.
    pub fn of_slice(slice: RegionSlice) -> Result<Self, RegionSlice> {
        if !slice.region().is_device() {
            return Err(slice);
        }
        Ok(Self {
            base: slice.region().address(),
            offset: slice.offset(),
            len: slice.len(),
            keep: slice,
        })
    }
}

// SAFETY: a slot that this is the only handle on, of a region that it keeps; the slot stays where
// it is when the handle moves. That nothing on the device uses it, whoever gives such things an
// address sees to; the host never touches it.
unsafe impl IoBuf for DeviceBuffer {
    fn place(&self) -> Place {
        Place::Device {
            base: self.region().address(),
            offset: self.offset(),
            len: self.len(),
        }
    }
}

// SAFETY: as above.
unsafe impl IoBufMut for DeviceBuffer {
    fn place_mut(&mut self) -> Place {
        self.place()
    }
}

// SAFETY: whoever made it has promised it; the place is the same wherever this moves.
unsafe impl<K: Send + 'static> IoBuf for DeviceMemory<K> {
    fn place(&self) -> Place {
        Place::Device {
            base: self.base,
            offset: self.offset,
            len: self.len,
        }
    }
}

// SAFETY: as above; not Clone, and there is no other way to the bytes through this.
unsafe impl<K: Send + 'static> IoBufMut for DeviceMemory<K> {
    fn place_mut(&mut self) -> Place {
        self.place()
    }
}
