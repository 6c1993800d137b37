//! CUDA virtual memory: an allocation (`cuMemCreate`) that is mapped into a range of addresses
//! (`cuMemMap`).

#![allow(unsafe_code)]

use std::ffi::{c_int, c_uchar, c_uint, c_ulonglong, c_ushort, c_void};
use std::mem::size_of;
use std::ptr;

use super::driver::Cuda;
use super::error::{CudaError, check};

/// `CU_MEM_ALLOCATION_TYPE_PINNED`.
const PINNED: c_int = 1;
/// `CU_MEM_LOCATION_TYPE_DEVICE`.
const ON_DEVICE: c_int = 1;
/// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`.
const READ_WRITE: c_int = 3;
/// `CU_MEM_ALLOC_GRANULARITY_MINIMUM`.
const MINIMUM: c_int = 0;

/// `CUmemLocation`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Location {
    kind: c_int,
    id: c_int,
}

/// `CUmemAllocationProp`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct AllocationProperties {
    kind: c_int,
    handle_types: c_int,
    location: Location,
    win32: *mut c_void,
    compression: c_uchar,
    gpu_direct_rdma: c_uchar,
    usage: c_ushort,
    reserved: [c_uchar; 4],
}

/// `CUmemAccessDesc`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct AccessDescriptor {
    location: Location,
    flags: c_int,
}

const _: () = assert!(size_of::<AllocationProperties>() == 32);
const _: () = assert!(size_of::<AccessDescriptor>() == 12);
const _: () = assert!(size_of::<c_uint>() == 4);

/// An allocation of virtual memory, mapped.
#[derive(Clone, Copy, Debug)]
pub struct Mapped {
    /// Where it begins.
    pub address: u64,
    /// Whole granules.
    len: usize,
    handle: c_ulonglong,
}

impl Cuda {
    /// Whether an address lies in CUDA virtual memory.
    pub(super) fn is_virtual(&self, address: u64) -> bool {
        let Ok(functions) = self.virtual_memory() else {
            return false;
        };
        let mut handle = 0;
        let asked: *mut c_void = ptr::with_exposed_provenance_mut(address as usize);
        // SAFETY: writes one number, which is ours; any address may be asked about.
        if unsafe { (functions.retain_handle)(&raw mut handle, asked) } != 0 {
            return false;
        }
        // SAFETY: one reference was just taken.
        let code = unsafe { (functions.release)(handle) };
        debug_assert_eq!(code, 0, "the reference was ours");
        true
    }

    /// At least `len` bytes of a device's memory that a network card may reach, where the device
    /// allows.
    ///
    /// # Errors
    /// What the driver answers; [`CudaError::Lacks`] where it has no such function.
    pub fn map_memory(
        &self,
        ordinal: u32,
        len: usize,
        for_rdma: bool,
    ) -> Result<Mapped, CudaError> {
        let functions = self.virtual_memory()?;
        let location = Location {
            kind: ON_DEVICE,
            id: self.device(ordinal)?,
        };
        let properties = AllocationProperties {
            kind: PINNED,
            handle_types: 0,
            location,
            win32: ptr::null_mut(),
            compression: 0,
            gpu_direct_rdma: for_rdma.into(),
            usage: 0,
            reserved: [0; 4],
        };
        let mut granule = 0;
        // SAFETY: the properties are read, one number is written.
        let code =
            unsafe { (functions.granularity)(&raw mut granule, &raw const properties, MINIMUM) };
        check("cuMemGetAllocationGranularity", code)?;
        let too_large = || CudaError::call("cuMemCreate", super::CudaCode::OUT_OF_MEMORY.0);
        let len = len
            .checked_next_multiple_of(granule.max(1))
            .ok_or_else(too_large)?;
        let mut handle = 0;
        // SAFETY: as above.
        let code = unsafe { (functions.create)(&raw mut handle, len, &raw const properties, 0) };
        check("cuMemCreate", code)?;
        let mut address = 0;
        // SAFETY: writes one number, which is ours.
        let code = unsafe { (functions.reserve)(&raw mut address, len, granule, 0, 0) };
        if let Err(error) = check("cuMemAddressReserve", code) {
            // SAFETY: made above, and mapped nowhere.
            let _ = unsafe { (functions.release)(handle) };
            return Err(error);
        }
        let mapped = Mapped {
            address,
            len,
            handle,
        };
        self.open(mapped, location).inspect_err(|_| {
            // SAFETY: made above, and nobody knows of it yet.
            let _ = unsafe { self.unmap_memory(mapped) };
        })?;
        Ok(mapped)
    }

    /// Maps an allocation into its addresses, for its device.
    fn open(&self, mapped: Mapped, location: Location) -> Result<(), CudaError> {
        let functions = self.virtual_memory()?;
        let Mapped {
            address,
            len,
            handle,
        } = mapped;
        // SAFETY: addresses just reserved, an allocation of that length.
        let code = unsafe { (functions.map)(address, len, 0, handle, 0) };
        check("cuMemMap", code)?;
        let access = AccessDescriptor {
            location,
            flags: READ_WRITE,
        };
        // SAFETY: just mapped; one descriptor is read.
        let code = unsafe { (functions.set_access)(address, len, &raw const access, 1) };
        check("cuMemSetAccess", code)
    }

    /// Unmaps an allocation and gives it back.
    ///
    /// # Errors
    /// What the driver answers; [`CudaError::Lacks`] where it has no such function.
    ///
    /// # Safety
    /// From [`map_memory`](Self::map_memory), not unmapped yet, and nobody uses the memory any
    /// more.
    pub unsafe fn unmap_memory(&self, mapped: Mapped) -> Result<(), CudaError> {
        let functions = self.virtual_memory()?;
        let Mapped {
            address,
            len,
            handle,
        } = mapped;
        // SAFETY: the caller says so. It fails where it was never mapped, which does no harm.
        let unmapped = check("cuMemUnmap", unsafe { (functions.unmap)(address, len) });
        // SAFETY: as above.
        let freed = check("cuMemAddressFree", unsafe {
            (functions.free)(address, len)
        });
        // SAFETY: as above.
        let released = check("cuMemRelease", unsafe { (functions.release)(handle) });
        unmapped.and(freed).and(released)
    }
}
