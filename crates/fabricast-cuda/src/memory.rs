//! Memory: what an address is, allocations, pinned memory of the host, and copies in streams.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_uint, c_void};
use std::fmt;
use std::ptr::{self, NonNull};

use fabricast_process::mapping;

use super::RawStream;
use super::driver::Cuda;
use super::error::{CudaCode, CudaError, check};

/// `CUpointer_attribute`.
pub(super) mod attribute {
    use std::ffi::c_int;

    pub(crate) const CONTEXT: c_int = 1;
    pub(super) const MEMORY_TYPE: c_int = 2;
    pub(super) const SYNC_MEMOPS: c_int = 6;
    pub(super) const IS_MANAGED: c_int = 8;
    pub(crate) const DEVICE_ORDINAL: c_int = 9;
    pub(super) const MEMPOOL: c_int = 17;
}

/// `CU_MEMHOSTALLOC_PORTABLE`, `CU_MEMHOSTREGISTER_PORTABLE`: pinned for all contexts.
const HOST_PORTABLE: c_uint = 1;
/// `CU_STREAM_NON_BLOCKING`: no order with the default stream.
const STREAM_NON_BLOCKING: c_uint = 1;
/// `CU_MEMORYTYPE_HOST`, `CU_MEMORYTYPE_DEVICE`.
const TYPE_HOST: c_uint = 1;
const TYPE_DEVICE: c_uint = 2;

/// What lies at an address, as the CUDA driver knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MemoryKind {
    /// Memory of the host that CUDA knows nothing of.
    Host,
    /// Memory of the host that is pinned for CUDA (`cuMemHostAlloc`, `cuMemHostRegister`).
    PinnedHost,
    /// Managed memory (`cuMemAllocManaged`): the driver moves its pages between host and devices.
    Managed,
    /// Memory of a device.
    Device {
        /// The number of the device.
        ordinal: u32,
        /// How it was allocated.
        allocation: DeviceAllocation,
    },
    /// The driver knows the address, as something else than memory that this library can use.
    Unknown,
    /// No memory at all: 0, or an address where nothing is mapped.
    Invalid,
}

/// How memory of a device was allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeviceAllocation {
    /// By `cuMemAlloc` (`cudaMalloc`).
    Plain,
    /// By `cuMemCreate`, and mapped into reserved addresses: CUDA virtual memory, which some
    /// providers can't take.
    Virtual,
    /// From a memory pool (`cuMemAllocAsync`).
    Pool,
}

impl fmt::Display for DeviceAllocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Plain => "cuMemAlloc",
            Self::Virtual => "CUDA virtual memory",
            Self::Pool => "a CUDA memory pool",
        })
    }
}

impl MemoryKind {
    /// What lies at an address. Any number may be asked about: of what the driver does not know,
    /// the kernel says whether it is memory ([`of_host`](Self::of_host)).
    ///
    /// # Errors
    /// [`CudaError`]: no driver, or what it answers.
    pub fn of(address: u64) -> Result<Self, CudaError> {
        let cuda = Cuda::ready()?;
        let mut kind: c_uint = 0;
        // SAFETY: the attribute is an unsigned int, which is ours.
        let asked =
            unsafe { cuda.pointer_attribute(attribute::MEMORY_TYPE, address, &raw mut kind) };
        match asked {
            Err(error) if error.code() == Some(CudaCode::INVALID_VALUE) => {
                return Ok(Self::of_host(address));
            }
            asked => asked?,
        }
        let mut managed: c_uint = 0;
        // SAFETY: the attribute is an unsigned int (0 or 1), which is ours.
        let asked =
            unsafe { cuda.pointer_attribute(attribute::IS_MANAGED, address, &raw mut managed) };
        if asked.is_ok() && managed != 0 {
            return Ok(Self::Managed);
        }
        match kind {
            TYPE_HOST => Ok(Self::PinnedHost),
            TYPE_DEVICE => Ok(Self::Device {
                ordinal: cuda.ordinal_of(address)?,
                allocation: cuda.allocation_of(address),
            }),
            // An array, or what is yet to come: not memory that bytes lie in one behind the other.
            _ => Ok(Self::Unknown),
        }
    }

    /// What lies at an address of a process without CUDA: [`Host`](Self::Host) memory, or
    /// [`Invalid`](Self::Invalid) where nothing is mapped.
    pub fn of_host(address: u64) -> Self {
        let start = usize::try_from(address).unwrap_or_default();
        match NonNull::new(ptr::without_provenance_mut(start)) {
            Some(start) if mapping::is_mapped(start, 1) => Self::Host,
            _ => Self::Invalid,
        }
    }
}

impl Cuda {
    /// # Safety
    /// `into` takes the attribute's type.
    pub(super) unsafe fn pointer_attribute<T>(
        &self,
        attribute: c_int,
        address: u64,
        into: *mut T,
    ) -> Result<(), CudaError> {
        // SAFETY: the caller vouches for the place; any number may be asked about.
        let code = unsafe { (self.copies()?.pointer_attribute)(into.cast(), attribute, address) };
        check("cuPointerGetAttribute", code)
    }

    /// The number of the device whose memory an address is in.
    ///
    /// # Errors
    /// What the driver answers; [`CudaError::Lacks`] where it has no such function.
    pub fn ordinal_of(&self, address: u64) -> Result<u32, CudaError> {
        let mut ordinal: c_int = 0;
        // SAFETY: the attribute is an int, which is ours.
        unsafe { self.pointer_attribute(attribute::DEVICE_ORDINAL, address, &raw mut ordinal) }?;
        Ok(u32::try_from(ordinal).unwrap_or_default())
    }

    /// What can't be asked is taken for a plain allocation: then a registration fails where it
    /// must, and is no worse.
    fn allocation_of(&self, address: u64) -> DeviceAllocation {
        if self.is_virtual(address) {
            return DeviceAllocation::Virtual;
        }
        let mut pool: *mut c_void = ptr::null_mut();
        // SAFETY: the attribute is a pointer, which is ours.
        let asked = unsafe { self.pointer_attribute(attribute::MEMPOOL, address, &raw mut pool) };
        if asked.is_ok() && !pool.is_null() {
            return DeviceAllocation::Pool;
        }
        DeviceAllocation::Plain
    }

    /// The allocation that an address lies in: where it begins, and its length in bytes. Drivers
    /// want a context to be current, whichever ([`enter_device`](Self::enter_device)).
    ///
    /// # Errors
    /// What the driver answers; [`CudaError::Lacks`] where it has no such function.
    pub fn address_range(&self, address: u64) -> Result<(u64, usize), CudaError> {
        let (mut base, mut len) = (0, 0);
        let ask = self.allocations()?.address_range;
        // SAFETY: writes two numbers, which are ours; any address may be asked about.
        let code = unsafe { ask(&raw mut base, &raw mut len, address) };
        check("cuMemGetAddressRange", code).map(|()| (base, len))
    }

    /// Makes copies and fills of this allocation that the caller does not order wait for what a
    /// device reads or writes by itself (`CU_POINTER_ATTRIBUTE_SYNC_MEMOPS`). For memory that a
    /// network card touches.
    ///
    /// # Errors
    /// What the driver answers; [`CudaError::Lacks`] where it has no such function.
    pub fn sync_memory_operations(&self, address: u64) -> Result<(), CudaError> {
        let on: c_uint = 1;
        let set = self.allocations()?.set_pointer_attribute;
        // SAFETY: the attribute is an unsigned int, which is read during the call.
        let code = unsafe { set((&raw const on).cast(), attribute::SYNC_MEMOPS, address) };
        check("cuPointerSetAttribute", code)
    }

    /// `len` bytes of memory of the device whose context is current; where they begin.
    ///
    /// # Errors
    /// What the driver answers; [`CudaError::Lacks`] where it has no such function.
    pub fn alloc(&self, len: usize) -> Result<u64, CudaError> {
        let mut address = 0;
        // SAFETY: writes one number, which is ours.
        let code = unsafe { (self.allocations()?.alloc)(&raw mut address, len) };
        check("cuMemAlloc", code).map(|()| address)
    }

    /// Gives memory of a device back, and waits for what the device does with it.
    ///
    /// # Errors
    /// What the driver answers; [`CudaError::Lacks`] where it has no such function.
    ///
    /// # Safety
    /// `address` is from [`alloc`](Self::alloc), its context is current, and nobody uses the memory
    /// any more.
    pub unsafe fn free(&self, address: u64) -> Result<(), CudaError> {
        // SAFETY: the caller says so.
        let code = unsafe { (self.allocations()?.free)(address) };
        check("cuMemFree", code)
    }

    /// Pins memory of the host where it lies, for all contexts: copies from and to it are
    /// asynchronous then.
    ///
    /// # Errors
    /// What the driver answers; [`CudaError::Lacks`] where it has no such function.
    ///
    /// # Safety
    /// `len` bytes from `start` are mapped until [`host_unregister`](Self::host_unregister).
    pub unsafe fn host_register(&self, start: NonNull<u8>, len: usize) -> Result<(), CudaError> {
        let register = self.allocations()?.host_register;
        // SAFETY: the caller says so.
        let code = unsafe { register(start.as_ptr().cast(), len, HOST_PORTABLE) };
        check("cuMemHostRegister", code)
    }

    /// Ends [`host_register`](Self::host_register).
    ///
    /// # Errors
    /// What the driver answers; [`CudaError::Lacks`] where it has no such function.
    ///
    /// # Safety
    /// `start` is registered, and no copy uses the memory any more.
    pub unsafe fn host_unregister(&self, start: NonNull<u8>) -> Result<(), CudaError> {
        // SAFETY: the caller says so.
        let code = unsafe { (self.allocations()?.host_unregister)(start.as_ptr().cast()) };
        check("cuMemHostUnregister", code)
    }

    /// `len` bytes of pinned memory of the host, aligned to a page, in the current context.
    ///
    /// # Errors
    /// What the driver answers; [`CudaError::Lacks`] where it has no such function.
    pub fn host_alloc(&self, len: usize) -> Result<NonNull<u8>, CudaError> {
        let mut memory = ptr::null_mut();
        // SAFETY: writes one pointer, which is ours.
        let code = unsafe { (self.copies()?.host_alloc)(&raw mut memory, len, HOST_PORTABLE) };
        check("cuMemHostAlloc", code)?;
        let no_memory = CudaCode::OUT_OF_MEMORY.0;
        NonNull::new(memory.cast()).ok_or_else(|| CudaError::call("cuMemHostAlloc", no_memory))
    }

    /// Gives pinned memory back.
    ///
    /// # Errors
    /// What the driver answers; [`CudaError::Lacks`] where it has no such function.
    ///
    /// # Safety
    /// `memory` is from [`host_alloc`](Self::host_alloc), and nobody uses it any more.
    pub unsafe fn host_free(&self, memory: NonNull<u8>) -> Result<(), CudaError> {
        // SAFETY: the caller says so.
        let code = unsafe { (self.copies()?.host_free)(memory.as_ptr().cast()) };
        check("cuMemFreeHost", code)
    }

    /// A stream of the current context.
    ///
    /// # Errors
    /// What the driver answers; [`CudaError::Lacks`] where it has no such function.
    pub fn stream_create(&self) -> Result<RawStream, CudaError> {
        let mut stream = ptr::null_mut();
        // SAFETY: writes one pointer, which is ours.
        let code = unsafe { (self.copies()?.stream_create)(&raw mut stream, STREAM_NON_BLOCKING) };
        check("cuStreamCreate", code).map(|()| stream)
    }

    /// What the stream was given is still done.
    ///
    /// # Errors
    /// What the driver answers; [`CudaError::Lacks`] where it has no such function.
    ///
    /// # Safety
    /// `stream` is from [`stream_create`](Self::stream_create), and nobody uses it any more.
    pub unsafe fn stream_destroy(&self, stream: RawStream) -> Result<(), CudaError> {
        // SAFETY: the caller says so.
        let code = unsafe { (self.copies()?.stream_destroy)(stream) };
        check("cuStreamDestroy", code)
    }

    /// Waits until the stream has done all that was given to it.
    ///
    /// # Errors
    /// What the driver answers; [`CudaError::Lacks`] where it has no such function.
    ///
    /// # Safety
    /// `stream` is null or a stream that was not destroyed.
    pub unsafe fn synchronize(&self, stream: RawStream) -> Result<(), CudaError> {
        // SAFETY: the caller vouches for the stream.
        let code = unsafe { (self.basic.stream_synchronize)(stream) };
        check("cuStreamSynchronize", code)
    }

    /// Whether the stream has done all that was given to it.
    ///
    /// # Errors
    /// What the driver answers; [`CudaError::Lacks`] where it has no such function.
    ///
    /// # Safety
    /// As for [`synchronize`](Self::synchronize).
    pub unsafe fn is_idle(&self, stream: RawStream) -> Result<bool, CudaError> {
        // SAFETY: the caller vouches for the stream.
        match CudaCode(unsafe { (self.basic.stream_query)(stream) }) {
            CudaCode::NOT_READY => Ok(false),
            CudaCode(code) => check("cuStreamQuery", code).map(|()| true),
        }
    }

    /// Waits for all that the current context was given.
    ///
    /// # Errors
    /// What the driver answers; [`CudaError::Lacks`] where it has no such function.
    pub fn synchronize_context(&self) -> Result<(), CudaError> {
        let function = "cuCtxSynchronize";
        let synchronize = self
            .context_synchronize
            .ok_or(CudaError::Lacks { function })?;
        // SAFETY: takes no memory.
        check(function, unsafe { synchronize() })
    }

    /// Waits for the default stream of the current context.
    ///
    /// # Errors
    /// What the driver answers; [`CudaError::Lacks`] where it has no such function.
    pub fn synchronize_default(&self) -> Result<(), CudaError> {
        // Mostly there is nothing to wait for, which is found out faster by asking.
        // SAFETY: null is the default stream.
        if unsafe { self.is_idle(ptr::null_mut()) }? {
            return Ok(());
        }
        // SAFETY: as above.
        unsafe { self.synchronize(ptr::null_mut()) }
    }

    /// Copies from memory of the host to the device, in the order of the stream; asynchronous where
    /// the host's is pinned.
    ///
    /// # Errors
    /// What the driver answers; [`CudaError::Lacks`] where it has no such function.
    ///
    /// # Safety
    /// Both are good for `len` bytes until the stream has passed, and nobody uses the part of the
    /// device. A context is current.
    pub unsafe fn to_device(
        &self,
        to: u64,
        from: NonNull<u8>,
        len: usize,
        stream: RawStream,
    ) -> Result<(), CudaError> {
        // SAFETY: the caller says so.
        let code = unsafe { (self.copies()?.to_device)(to, from.as_ptr().cast(), len, stream) };
        check("cuMemcpyHtoDAsync", code)
    }

    /// Copies from the device to memory of the host, in the order of the stream; asynchronous where
    /// the host's is pinned.
    ///
    /// # Errors
    /// What the driver answers; [`CudaError::Lacks`] where it has no such function.
    ///
    /// # Safety
    /// Both are good for `len` bytes until the stream has passed, and nobody uses the part of the
    /// host. A context is current.
    pub unsafe fn to_host(
        &self,
        to: NonNull<u8>,
        from: u64,
        len: usize,
        stream: RawStream,
    ) -> Result<(), CudaError> {
        // SAFETY: the caller says so.
        let code = unsafe { (self.copies()?.to_host)(to.as_ptr().cast(), from, len, stream) };
        check("cuMemcpyDtoHAsync", code)
    }

    /// Fills memory of a device with a byte, in the order of the stream.
    ///
    /// # Errors
    /// What the driver answers; [`CudaError::Lacks`] where it has no such function.
    ///
    /// # Safety
    /// As for [`to_device`](Self::to_device).
    pub unsafe fn fill(
        &self,
        at: u64,
        byte: u8,
        len: usize,
        stream: RawStream,
    ) -> Result<(), CudaError> {
        // SAFETY: the caller says so.
        let code = unsafe { (self.allocations()?.fill)(at, byte, len, stream) };
        check("cuMemsetD8Async", code)
    }
}
