//! The table of the CUDA driver's functions: loaded at run time, looked up once.
//!
//! Without the functions of [`Basic`] it is no CUDA driver. The others come in groups; a group is
//! there when all of its functions are, and who needs it gets [`CudaError::Lacks`] where it is not.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::fmt;
use std::ptr;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use fabricast_process::{Missing, Owner, SharedObject};

use super::RawStream;
use super::error::{CudaCode, CudaError, CudaUnavailable};
use super::virtual_memory::{AccessDescriptor, AllocationProperties};

/// The environment variable that names the CUDA driver to load instead of the system's: the path of
/// a `libcuda.so.1`. Who sets it vouches for the file, as for what `LD_LIBRARY_PATH` leads to.
pub const FABRICAST_CUDA: &str = "FABRICAST_CUDA";

const NAMES: [&str; 2] = ["libcuda.so.1", "libcuda.so"];

/// `CUdeviceptr`.
pub(super) type Address = c_ulonglong;
/// `CUcontext`.
pub(super) type RawContext = *mut c_void;
/// `CUevent`.
pub(super) type RawEvent = *mut c_void;

/// The driver, loaded once and never unloaded: contexts, memory, pinned memory of the host, and
/// copies in streams.
pub struct Cuda {
    pub(super) basic: Basic,
    pub(super) copies: Option<Copies>,
    pub(super) devices: Option<Devices>,
    pub(super) events: Option<Events>,
    pub(super) allocations: Option<Allocations>,
    pub(super) virtual_memory: Option<VirtualMemory>,
    pub(super) stream_get_context:
        Option<unsafe extern "C" fn(RawStream, *mut RawContext) -> c_int>,
    pub(super) handle_for_range:
        Option<unsafe extern "C" fn(*mut c_void, Address, usize, c_int, c_ulonglong) -> c_int>,
    pub(super) context_synchronize: Option<unsafe extern "C" fn() -> c_int>,
    pub(super) context_get_device: Option<unsafe extern "C" fn(*mut c_int) -> c_int>,
    pub(super) flush_writes: Option<unsafe extern "C" fn(c_int, c_int) -> c_int>,
    get_error_name: Option<unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int>,
}

impl fmt::Debug for Cuda {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cuda")
            .field("copies", &self.copies.is_some())
            .field("devices", &self.devices.is_some())
            .field("events", &self.events.is_some())
            .field("allocations", &self.allocations.is_some())
            .field("virtual_memory", &self.virtual_memory.is_some())
            .finish_non_exhaustive()
    }
}

/// What every driver has.
pub(super) struct Basic {
    init: unsafe extern "C" fn(c_uint) -> c_int,
    pub(super) device_get_count: unsafe extern "C" fn(*mut c_int) -> c_int,
    pub(super) device_get: unsafe extern "C" fn(*mut c_int, c_int) -> c_int,
    pub(super) primary_context_retain: unsafe extern "C" fn(*mut RawContext, c_int) -> c_int,
    pub(super) context_get_current: unsafe extern "C" fn(*mut RawContext) -> c_int,
    pub(super) context_set_current: unsafe extern "C" fn(RawContext) -> c_int,
    pub(super) stream_synchronize: unsafe extern "C" fn(RawStream) -> c_int,
    pub(super) stream_query: unsafe extern "C" fn(RawStream) -> c_int,
}

/// Copies between a device and pinned memory of the host, in streams.
pub(super) struct Copies {
    pub(super) pointer_attribute: unsafe extern "C" fn(*mut c_void, c_int, Address) -> c_int,
    pub(super) context_push: unsafe extern "C" fn(RawContext) -> c_int,
    pub(super) context_pop: unsafe extern "C" fn(*mut RawContext) -> c_int,
    pub(super) host_alloc: unsafe extern "C" fn(*mut *mut c_void, usize, c_uint) -> c_int,
    pub(super) host_free: unsafe extern "C" fn(*mut c_void) -> c_int,
    pub(super) stream_create: unsafe extern "C" fn(*mut RawStream, c_uint) -> c_int,
    pub(super) stream_destroy: unsafe extern "C" fn(RawStream) -> c_int,
    pub(super) to_device: unsafe extern "C" fn(Address, *const c_void, usize, RawStream) -> c_int,
    pub(super) to_host: unsafe extern "C" fn(*mut c_void, Address, usize, RawStream) -> c_int,
}

/// What a device is.
pub(super) struct Devices {
    pub(super) name: unsafe extern "C" fn(*mut c_char, c_int, c_int) -> c_int,
    pub(super) pci_bus_id: unsafe extern "C" fn(*mut c_char, c_int, c_int) -> c_int,
    pub(super) attribute: unsafe extern "C" fn(*mut c_int, c_int, c_int) -> c_int,
    pub(super) total_memory: unsafe extern "C" fn(*mut usize, c_int) -> c_int,
}

/// Order between streams.
pub(super) struct Events {
    pub(super) create: unsafe extern "C" fn(*mut RawEvent, c_uint) -> c_int,
    pub(super) destroy: unsafe extern "C" fn(RawEvent) -> c_int,
    pub(super) record: unsafe extern "C" fn(RawEvent, RawStream) -> c_int,
    pub(super) query: unsafe extern "C" fn(RawEvent) -> c_int,
    pub(super) synchronize: unsafe extern "C" fn(RawEvent) -> c_int,
    pub(super) stream_wait: unsafe extern "C" fn(RawStream, RawEvent, c_uint) -> c_int,
}

/// Memory of a device, and memory of the host that is pinned where it lies.
pub(super) struct Allocations {
    pub(super) alloc: unsafe extern "C" fn(*mut Address, usize) -> c_int,
    pub(super) free: unsafe extern "C" fn(Address) -> c_int,
    pub(super) host_register: unsafe extern "C" fn(*mut c_void, usize, c_uint) -> c_int,
    pub(super) host_unregister: unsafe extern "C" fn(*mut c_void) -> c_int,
    pub(super) set_pointer_attribute: unsafe extern "C" fn(*const c_void, c_int, Address) -> c_int,
    pub(super) address_range: unsafe extern "C" fn(*mut Address, *mut usize, Address) -> c_int,
    pub(super) fill: unsafe extern "C" fn(Address, u8, usize, RawStream) -> c_int,
}

/// Allocations that are mapped into a reserved range of addresses (`cuMemCreate` and its family).
pub(super) struct VirtualMemory {
    pub(super) granularity:
        unsafe extern "C" fn(*mut usize, *const AllocationProperties, c_int) -> c_int,
    pub(super) create: unsafe extern "C" fn(
        *mut c_ulonglong,
        usize,
        *const AllocationProperties,
        c_ulonglong,
    ) -> c_int,
    pub(super) release: unsafe extern "C" fn(c_ulonglong) -> c_int,
    pub(super) reserve:
        unsafe extern "C" fn(*mut Address, usize, usize, Address, c_ulonglong) -> c_int,
    pub(super) free: unsafe extern "C" fn(Address, usize) -> c_int,
    pub(super) map: unsafe extern "C" fn(Address, usize, usize, c_ulonglong, c_ulonglong) -> c_int,
    pub(super) unmap: unsafe extern "C" fn(Address, usize) -> c_int,
    pub(super) set_access:
        unsafe extern "C" fn(Address, usize, *const AccessDescriptor, usize) -> c_int,
    pub(super) retain_handle: unsafe extern "C" fn(*mut c_ulonglong, *mut c_void) -> c_int,
}

static LOADED: OnceLock<Cuda> = OnceLock::new();

impl Cuda {
    /// The driver, once it runs and has a device. That it does is asked once in a process; a
    /// failure is not kept: a later call tries again.
    ///
    /// # Errors
    /// [`CudaUnavailable`], which says in words why there is no CUDA in this process.
    pub fn ready() -> Result<&'static Self, CudaUnavailable> {
        static RUNS: OnceLock<Owner> = OnceLock::new();
        let cuda = Self::load()?;
        match RUNS.get() {
            Some(owner) if owner.is_here() => return Ok(cuda),
            Some(owner) => {
                return Err(CudaUnavailable::Forked {
                    made_by: owner.pid(),
                });
            }
            None => {}
        }
        // SAFETY: takes no memory; any number of calls.
        let code = CudaCode(unsafe { (cuda.basic.init)(0) });
        match code.0 {
            0 => {}
            _ if code == CudaCode::NO_DEVICE => return Err(CudaUnavailable::NoDevice),
            _ => return Err(CudaUnavailable::Init { code }),
        }
        let mut count = 0;
        // SAFETY: writes one number, which is ours.
        let code = unsafe { (cuda.basic.device_get_count)(&raw mut count) };
        match code {
            0 if count > 0 => {
                RUNS.get_or_init(Owner::current);
                Ok(cuda)
            }
            0 => Err(CudaUnavailable::NoDevice),
            code => Err(CudaUnavailable::Init {
                code: CudaCode(code),
            }),
        }
    }

    fn load() -> Result<&'static Self, CudaUnavailable> {
        static LOADING: Mutex<()> = Mutex::new(());
        if let Some(cuda) = LOADED.get() {
            return Ok(cuda);
        }
        let _one_at_a_time = lock(&LOADING);
        if let Some(cuda) = LOADED.get() {
            return Ok(cuda);
        }
        // SAFETY: the names are those of NVIDIA's driver, trusted as a library that is linked.
        let opened = unsafe { SharedObject::open_first(FABRICAST_CUDA, &NAMES) };
        let object = opened.map_err(|tried| CudaUnavailable::Library { tried })?;
        let cuda = Self::find(&object);
        let cuda = cuda.map_err(|Missing { symbol, reason }| CudaUnavailable::Broken {
            path: object.path().to_owned(),
            symbol,
            reason,
        })?;
        Ok(LOADED.get_or_init(|| cuda))
    }

    fn find(object: &SharedObject) -> Result<Self, Missing> {
        Ok(Self {
            basic: Basic::find(object)?,
            copies: Copies::find(object).ok(),
            devices: Devices::find(object).ok(),
            events: Events::find(object).ok(),
            allocations: Allocations::find(object).ok(),
            virtual_memory: VirtualMemory::find(object).ok(),
            // SAFETY: the type of the field is that of the function.
            stream_get_context: unsafe { object.find("cuStreamGetCtx") }.ok(),
            // SAFETY: the type of the field is that of the function.
            handle_for_range: unsafe { object.find("cuMemGetHandleForAddressRange") }.ok(),
            // SAFETY: the type of the field is that of the function.
            context_synchronize: unsafe { object.find("cuCtxSynchronize") }.ok(),
            // SAFETY: the type of the field is that of the function.
            context_get_device: unsafe { object.find("cuCtxGetDevice") }.ok(),
            // SAFETY: the type of the field is that of the function.
            flush_writes: unsafe { object.find("cuFlushGPUDirectRDMAWrites") }.ok(),
            // SAFETY: the type of the field is that of the function.
            get_error_name: unsafe { object.find("cuGetErrorName") }.ok(),
        })
    }
}

/// Each field's type is that of the C prototype.
impl Basic {
    fn find(object: &SharedObject) -> Result<Self, Missing> {
        Ok(Self {
            // SAFETY: the type of the field is that of the function.
            init: unsafe { object.find("cuInit") }?,
            // SAFETY: the type of the field is that of the function.
            device_get_count: unsafe { object.find("cuDeviceGetCount") }?,
            // SAFETY: the type of the field is that of the function.
            device_get: unsafe { object.find("cuDeviceGet") }?,
            // SAFETY: the type of the field is that of the function.
            primary_context_retain: unsafe { object.find("cuDevicePrimaryCtxRetain") }?,
            // SAFETY: the type of the field is that of the function.
            context_get_current: unsafe { object.find("cuCtxGetCurrent") }?,
            // SAFETY: the type of the field is that of the function.
            context_set_current: unsafe { object.find("cuCtxSetCurrent") }?,
            // SAFETY: the type of the field is that of the function.
            stream_synchronize: unsafe { object.find("cuStreamSynchronize") }?,
            // SAFETY: the type of the field is that of the function.
            stream_query: unsafe { object.find("cuStreamQuery") }?,
        })
    }
}

/// Each field's type is that of the C prototype.
impl Copies {
    fn find(object: &SharedObject) -> Result<Self, Missing> {
        Ok(Self {
            // SAFETY: the type of the field is that of the function.
            pointer_attribute: unsafe { object.find("cuPointerGetAttribute") }?,
            // SAFETY: the type of the field is that of the function.
            context_push: unsafe { object.find("cuCtxPushCurrent_v2") }?,
            // SAFETY: the type of the field is that of the function.
            context_pop: unsafe { object.find("cuCtxPopCurrent_v2") }?,
            // SAFETY: the type of the field is that of the function.
            host_alloc: unsafe { object.find("cuMemHostAlloc") }?,
            // SAFETY: the type of the field is that of the function.
            host_free: unsafe { object.find("cuMemFreeHost") }?,
            // SAFETY: the type of the field is that of the function.
            stream_create: unsafe { object.find("cuStreamCreate") }?,
            // SAFETY: the type of the field is that of the function.
            stream_destroy: unsafe { object.find("cuStreamDestroy_v2") }?,
            // SAFETY: the type of the field is that of the function.
            to_device: unsafe { object.find("cuMemcpyHtoDAsync_v2") }?,
            // SAFETY: the type of the field is that of the function.
            to_host: unsafe { object.find("cuMemcpyDtoHAsync_v2") }?,
        })
    }
}

/// Each field's type is that of the C prototype.
impl Devices {
    fn find(object: &SharedObject) -> Result<Self, Missing> {
        Ok(Self {
            // SAFETY: the type of the field is that of the function.
            name: unsafe { object.find("cuDeviceGetName") }?,
            // SAFETY: the type of the field is that of the function.
            pci_bus_id: unsafe { object.find("cuDeviceGetPCIBusId") }?,
            // SAFETY: the type of the field is that of the function.
            attribute: unsafe { object.find("cuDeviceGetAttribute") }?,
            // SAFETY: the type of the field is that of the function.
            total_memory: unsafe { object.find("cuDeviceTotalMem_v2") }?,
        })
    }
}

/// Each field's type is that of the C prototype.
impl Events {
    fn find(object: &SharedObject) -> Result<Self, Missing> {
        Ok(Self {
            // SAFETY: the type of the field is that of the function.
            create: unsafe { object.find("cuEventCreate") }?,
            // SAFETY: the type of the field is that of the function.
            destroy: unsafe { object.find("cuEventDestroy_v2") }?,
            // SAFETY: the type of the field is that of the function.
            record: unsafe { object.find("cuEventRecord") }?,
            // SAFETY: the type of the field is that of the function.
            query: unsafe { object.find("cuEventQuery") }?,
            // SAFETY: the type of the field is that of the function.
            synchronize: unsafe { object.find("cuEventSynchronize") }?,
            // SAFETY: the type of the field is that of the function.
            stream_wait: unsafe { object.find("cuStreamWaitEvent") }?,
        })
    }
}

/// Each field's type is that of the C prototype.
impl Allocations {
    fn find(object: &SharedObject) -> Result<Self, Missing> {
        Ok(Self {
            // SAFETY: the type of the field is that of the function.
            alloc: unsafe { object.find("cuMemAlloc_v2") }?,
            // SAFETY: the type of the field is that of the function.
            free: unsafe { object.find("cuMemFree_v2") }?,
            // SAFETY: the type of the field is that of the function.
            host_register: unsafe { object.find("cuMemHostRegister_v2") }?,
            // SAFETY: the type of the field is that of the function.
            host_unregister: unsafe { object.find("cuMemHostUnregister") }?,
            // SAFETY: the type of the field is that of the function.
            set_pointer_attribute: unsafe { object.find("cuPointerSetAttribute") }?,
            // SAFETY: the type of the field is that of the function.
            address_range: unsafe { object.find("cuMemGetAddressRange_v2") }?,
            // SAFETY: the type of the field is that of the function.
            fill: unsafe { object.find("cuMemsetD8Async") }?,
        })
    }
}

/// Each field's type is that of the C prototype.
impl VirtualMemory {
    fn find(object: &SharedObject) -> Result<Self, Missing> {
        Ok(Self {
            // SAFETY: the type of the field is that of the function.
            granularity: unsafe { object.find("cuMemGetAllocationGranularity") }?,
            // SAFETY: the type of the field is that of the function.
            create: unsafe { object.find("cuMemCreate") }?,
            // SAFETY: the type of the field is that of the function.
            release: unsafe { object.find("cuMemRelease") }?,
            // SAFETY: the type of the field is that of the function.
            reserve: unsafe { object.find("cuMemAddressReserve") }?,
            // SAFETY: the type of the field is that of the function.
            free: unsafe { object.find("cuMemAddressFree") }?,
            // SAFETY: the type of the field is that of the function.
            map: unsafe { object.find("cuMemMap") }?,
            // SAFETY: the type of the field is that of the function.
            unmap: unsafe { object.find("cuMemUnmap") }?,
            // SAFETY: the type of the field is that of the function.
            set_access: unsafe { object.find("cuMemSetAccess") }?,
            // SAFETY: the type of the field is that of the function.
            retain_handle: unsafe { object.find("cuMemRetainAllocationHandle") }?,
        })
    }
}

/// The groups that a driver may lack.
impl Cuda {
    pub(super) fn copies(&self) -> Result<&Copies, CudaError> {
        let function = "cuMemcpyHtoDAsync";
        self.copies.as_ref().ok_or(CudaError::Lacks { function })
    }

    pub(super) fn devices(&self) -> Result<&Devices, CudaError> {
        let function = "cuDeviceGetAttribute";
        self.devices.as_ref().ok_or(CudaError::Lacks { function })
    }

    pub(super) fn events(&self) -> Result<&Events, CudaError> {
        let function = "cuEventCreate";
        self.events.as_ref().ok_or(CudaError::Lacks { function })
    }

    pub(super) fn allocations(&self) -> Result<&Allocations, CudaError> {
        let function = "cuMemAlloc";
        self.allocations
            .as_ref()
            .ok_or(CudaError::Lacks { function })
    }

    pub(super) fn virtual_memory(&self) -> Result<&VirtualMemory, CudaError> {
        let function = "cuMemCreate";
        self.virtual_memory
            .as_ref()
            .ok_or(CudaError::Lacks { function })
    }
}

/// Whether the machine may have a device, without asking the driver: loading and starting it takes
/// long.
pub fn may_be_here() -> bool {
    std::env::var_os(FABRICAST_CUDA).is_some_and(|path| !path.is_empty())
        || std::path::Path::new("/dev/nvidiactl").exists()
}

/// Whether the loader finds a driver by its name: so do libraries that know nothing of
/// [`FABRICAST_CUDA`].
#[cfg(feature = "cudarc")]
pub(super) fn is_found_by_name() -> bool {
    // SAFETY: as in `Cuda::load`; no variable is named so.
    let found = unsafe { SharedObject::open_first("", &NAMES) };
    found.is_ok()
}

/// Locks, also after another thread panicked while it held the lock: what our locks guard is whole
/// between any two statements.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The name of a `CUresult`, by the driver where it is loaded.
pub(super) fn error_name(code: i32) -> String {
    let named = LOADED.get().and_then(|cuda| cuda.get_error_name);
    let mut name = ptr::null();
    if let Some(get_error_name) = named
        // SAFETY: writes one pointer, which is ours.
        && unsafe { get_error_name(code, &raw mut name) } == 0
        && !name.is_null()
    {
        // SAFETY: the driver answered a text of its own, which it never frees.
        let name = unsafe { CStr::from_ptr(name) };
        return format!("{} ({code})", name.to_string_lossy());
    }
    format!("CUDA error {code}")
}
