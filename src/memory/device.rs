//! Memory of devices as regions: allocated by us, or another library's; and memory of the host that
//! is pinned for copies.
//!
//! # Safety
//! The address of such a region is a number for drivers and providers. No type of this library
//! makes a reference of it, and nothing here reads or writes there but the CUDA driver.

#![allow(unsafe_code)]

use std::any::Any;
use std::fmt;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use super::region::Memory;
use super::{MemoryError, Region};
use crate::cuda::{Cuda, CudaError, Device, DeviceAllocation, Mapped, MemoryKind};

/// What a region's memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RegionKind {
    /// Memory of the host, our own.
    Host,
    /// Memory of the host, ours or another's, that is pinned for CUDA: copies from and to devices
    /// are asynchronous.
    PinnedHost,
    /// Memory of the host that somebody else owns.
    External,
    /// CUDA's managed memory. The host never touches it here: it is copied as a device's is.
    Managed(Device),
    /// Memory of a device.
    Device(Device),
}

impl RegionKind {
    /// The device whose memory it is, managed memory included.
    pub fn device(self) -> Option<Device> {
        match self {
            Self::Managed(device) | Self::Device(device) => Some(device),
            Self::Host | Self::PinnedHost | Self::External => None,
        }
    }
}

impl fmt::Display for RegionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.write_str("host memory"),
            Self::PinnedHost => f.write_str("pinned host memory"),
            Self::External => f.write_str("external memory"),
            Self::Managed(device) => write!(f, "managed memory of {device}"),
            Self::Device(device) => write!(f, "memory of {device}"),
        }
    }
}

/// A run of a device's memory, for whoever registers it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceRange {
    pub(crate) device: Device,
    pub(crate) address: u64,
    pub(crate) len: usize,
    /// `None`: managed memory.
    pub(crate) allocation: Option<DeviceAllocation>,
}

impl DeviceRange {
    pub(crate) fn kind(&self) -> RegionKind {
        match self.allocation {
            Some(_) => RegionKind::Device(self.device),
            None => RegionKind::Managed(self.device),
        }
    }
}

/// Describes a region of device memory before it is allocated. From [`Region::device`].
#[derive(Clone, Debug)]
#[must_use = "nothing is allocated before `build`"]
pub struct DeviceRegionBuilder {
    len: usize,
    ordinal: u32,
    virtual_memory: bool,
}

impl DeviceRegionBuilder {
    /// The number of the device. Default: 0.
    pub fn device(mut self, ordinal: u32) -> Self {
        self.ordinal = ordinal;
        self
    }

    /// Whether to allocate CUDA virtual memory (`cuMemCreate`), rounded up to its granularity (2
    /// MiB), and not `cuMemAlloc`. Default: false.
    pub fn virtual_memory(mut self, on: bool) -> Self {
        self.virtual_memory = on;
        self
    }

    /// Allocates the memory; its content is whatever lay there. When the region goes it is freed,
    /// for which the CUDA driver waits until the device does nothing with it.
    ///
    /// # Errors
    /// [`MemoryError::Empty`]; [`MemoryError::TooLarge`]; [`MemoryError::Cuda`]: no driver, no such
    /// device, or no memory.
    pub fn build(self) -> Result<Arc<Region>, MemoryError> {
        let Self { len, ordinal, .. } = self;
        check_len(len)?;
        let device = Device::new(ordinal).map_err(refused("a region of device memory"))?;
        let owned = Allocated::new(device, len, self.virtual_memory);
        let owned = owned.map_err(refused("a region of device memory"))?;
        let (address, allocation) = (owned.address(), owned.allocation());
        let kind = RegionKind::Device(device);
        let base = address_of(address, len)?;
        let memory = Memory::Device(owned);
        Ok(Region::new(base, len, kind, Some(allocation), memory))
    }
}

/// Memory of a device that we allocated.
pub(super) struct Allocated {
    cuda: &'static Cuda,
    device: Device,
    memory: Owned,
}

#[derive(Clone, Copy)]
enum Owned {
    Plain(u64),
    Mapped(Mapped),
}

impl Allocated {
    fn new(device: Device, len: usize, virtual_memory: bool) -> Result<Self, CudaError> {
        let cuda = Cuda::ready()?;
        let _current = cuda.enter_device(device.ordinal())?;
        let memory = if virtual_memory {
            let features = device.features()?;
            let for_rdma = features.gpu_direct_rdma_with_virtual_memory;
            Owned::Mapped(cuda.map_memory(device.ordinal(), len, for_rdma)?)
        } else {
            Owned::Plain(cuda.alloc(len)?)
        };
        Ok(Self {
            cuda,
            device,
            memory,
        })
    }

    fn address(&self) -> u64 {
        match self.memory {
            Owned::Plain(address) => address,
            Owned::Mapped(mapped) => mapped.address,
        }
    }

    fn allocation(&self) -> DeviceAllocation {
        match self.memory {
            Owned::Plain(_) => DeviceAllocation::Plain,
            Owned::Mapped(_) => DeviceAllocation::Virtual,
        }
    }
}

impl Drop for Allocated {
    fn drop(&mut self) {
        let free = || {
            let _current = self.cuda.enter_device(self.device.ordinal())?;
            match self.memory {
                // SAFETY: allocated in `new`, and freed here alone; its region is gone, so nobody
                // has an address of it.
                Owned::Plain(address) => unsafe { self.cuda.free(address) },
                Owned::Mapped(mapped) => {
                    // Copies may be under way that nobody waits for any more; freeing plain memory
                    // waits for them, this would not.
                    self.cuda.synchronize_context()?;
                    // SAFETY: as above.
                    unsafe { self.cuda.unmap_memory(mapped) }
                }
            }
        };
        if let Err(error) = free() {
            tracing::error!(%error, "memory of a device is leaked");
        }
    }
}

/// Memory of the host, pinned where it lies. Unpinned when dropped.
pub(super) struct Pin {
    cuda: &'static Cuda,
    /// The number of the device in whose primary context it was pinned.
    device: u32,
    start: NonNull<u8>,
}

// SAFETY: an address that is only handed to the driver, which any thread may call.
unsafe impl Send for Pin {}
// SAFETY: as above; nothing in it changes.
unsafe impl Sync for Pin {}

impl Pin {
    /// # Safety
    /// `len` bytes from `start` are mapped until this is dropped.
    pub(super) unsafe fn new(start: NonNull<u8>, len: usize) -> Result<Self, MemoryError> {
        let pin = || {
            let cuda = Cuda::ready()?;
            // Pinned for all contexts; the call needs any. One that is current may be somebody's
            // own, who destroys it before this memory goes: the primary one of its device stays.
            let device = cuda.current_device().ok().flatten().unwrap_or_default();
            let _current = cuda.enter_device(device)?;
            // SAFETY: the caller says so.
            unsafe { cuda.host_register(start, len) }?;
            Ok(Self {
                cuda,
                device,
                start,
            })
        };
        pin().map_err(refused("pinned memory of the host"))
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let unpin = || {
            let _current = self.cuda.enter_device(self.device)?;
            // SAFETY: registered in `new`, and unregistered here alone; the region is gone, so no
            // copy of ours uses it.
            unsafe { self.cuda.host_unregister(self.start) }
        };
        if let Err(error) = unpin() {
            tracing::error!(%error, "memory of the host stays pinned");
        }
    }
}

impl Region {
    /// Starts to describe `len` bytes of a device's memory.
    ///
    /// ```
    /// use fabricast::Region;
    /// match Region::device(1 << 20).build() {
    ///     Ok(region) => assert!(region.is_device()),
    ///     // "a region of device memory: the CUDA driver cannot be loaded: tried libcuda.so.1..."
    ///     Err(why) => println!("{why}"),
    /// }
    /// ```
    pub fn device(len: usize) -> DeviceRegionBuilder {
        DeviceRegionBuilder {
            len,
            ordinal: 0,
            virtual_memory: false,
        }
    }

    /// A region over memory that another library allocated with CUDA: `len` bytes from a
    /// `CUdeviceptr` on. It becomes what it is: memory of the device that it lies on, managed
    /// memory, or pinned memory of the host.
    ///
    /// `keep_alive` is dropped when the region and everything made from it is gone and
    /// deregistered, on whatever thread that is.
    ///
    /// # Errors
    /// [`MemoryError::Empty`], [`MemoryError::TooLarge`]; [`MemoryError::NotDevice`] where CUDA
    /// knows nothing of the address, or less than `len` bytes from there on; [`MemoryError::Cuda`].
    ///
    /// # Safety
    /// * All of the `len` bytes stay allocated until `keep_alive` is dropped.
    /// * Where they are pinned memory of the host: as for [`Region::external`].
    pub unsafe fn external_device(
        address: u64,
        len: usize,
        keep_alive: Box<dyn Any + Send + Sync>,
    ) -> Result<Arc<Self>, MemoryError> {
        let what = "memory of another library";
        check_len(len)?;
        let base = address_of(address, len)?;
        let (kind, allocation) = match MemoryKind::of(address).map_err(refused(what))? {
            MemoryKind::Device {
                ordinal,
                allocation,
            } => {
                let device = Device::new(ordinal).map_err(refused(what))?;
                (RegionKind::Device(device), Some(allocation))
            }
            MemoryKind::Managed => {
                let cuda = Cuda::ready().map_err(|why| refused(what)(why.into()))?;
                let ordinal = cuda.ordinal_of(address).unwrap_or_default();
                let device = Device::new(ordinal).map_err(refused(what))?;
                (RegionKind::Managed(device), None)
            }
            MemoryKind::PinnedHost => (RegionKind::PinnedHost, None),
            // Memory that CUDA knows nothing of, and kinds that are not known here.
            _ => return Err(MemoryError::NotDevice { address, len }),
        };
        if allocation.is_some() && !is_allocated(address, len) {
            return Err(MemoryError::NotDevice { address, len });
        }
        let base = match kind {
            RegionKind::PinnedHost => host_address_of(address).unwrap_or(base),
            _ => base,
        };
        let memory = Memory::External(keep_alive);
        Ok(Self::new(base, len, kind, allocation, memory))
    }

    /// What its memory is.
    pub fn kind(&self) -> RegionKind {
        self.kind
    }

    /// Whether the host must not touch it: memory of a device, or CUDA's managed memory. Its bytes
    /// are moved by the device, by cuFile, or by a provider that can.
    #[inline]
    pub fn is_device(&self) -> bool {
        self.kind.device().is_some()
    }

    /// Where it begins, as CUDA has it (`CUdeviceptr`); for memory of the host, its address.
    pub fn address(&self) -> u64 {
        self.as_ptr().addr() as u64
    }

    /// All of it for who registers it, where it is a device's.
    pub(crate) fn device_range(&self) -> Option<DeviceRange> {
        self.kind.device().map(|device| DeviceRange {
            device,
            address: self.address(),
            len: self.len(),
            allocation: self.allocation,
        })
    }

    /// A part of it, which lies inside.
    pub(crate) fn device_part(&self, address: u64, len: usize) -> Option<DeviceRange> {
        self.device_range().map(|whole| DeviceRange {
            address,
            len,
            ..whole
        })
    }
}

/// Whether CUDA knows all of the bytes: of one allocation, or of several that were mapped one
/// behind the other. An older driver can't be asked; then the caller's word is all there is.
fn is_allocated(address: u64, len: usize) -> bool {
    let Ok(cuda) = Cuda::ready() else { return true };
    // The call needs a context on some versions.
    let _current = cuda.enter_at(address);
    let (mut at, end) = (address, address.saturating_add(len as u64));
    while at < end {
        match cuda.address_range(at) {
            Ok((start, bytes)) if start.saturating_add(bytes as u64) > at => {
                at = start.saturating_add(bytes as u64);
            }
            Ok(_) => return false,
            Err(CudaError::Lacks { .. }) => return true,
            Err(_) => return false,
        }
    }
    true
}

fn check_len(len: usize) -> Result<(), MemoryError> {
    match len {
        0 => Err(MemoryError::Empty),
        1..=0x7fff_ffff_ffff_ffff => Ok(()),
        _ => Err(MemoryError::TooLarge { asked_bytes: len }),
    }
}

/// A device's address as regions have it: a number that nothing is reached by.
fn address_of(address: u64, len: usize) -> Result<NonNull<u8>, MemoryError> {
    let too_large = MemoryError::TooLarge { asked_bytes: len };
    let start = usize::try_from(address).ok();
    let fits = start.is_some_and(|start| start.checked_add(len).is_some());
    NonNull::new(ptr::without_provenance_mut(start.unwrap_or_default()))
        .filter(|_| fits)
        .ok_or(too_large)
}

/// The address of memory of the host, which its owner reaches by a pointer of its own.
fn host_address_of(address: u64) -> Option<NonNull<u8>> {
    NonNull::new(ptr::with_exposed_provenance_mut(
        usize::try_from(address).ok()?,
    ))
}

pub(super) fn refused(what: &'static str) -> impl Fn(CudaError) -> MemoryError {
    move |source| MemoryError::Cuda { what, source }
}
