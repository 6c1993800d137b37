//! The table of the CUDA driver's functions: loaded at run time, looked up once.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::marker::PhantomData;
use std::mem;
use std::ptr::{self, NonNull};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use libloading::os::unix::Library as Object;

use super::RawStream;
use super::error::{CudaCode, CudaError, CudaUnavailable, check};
use crate::process::Owner;
use crate::shared_object::{Missing, find, open_first};

/// The environment variable that names the CUDA driver to load instead of the system's: the path of a `libcuda.so.1`.
pub const FABRICAST_CUDA: &str = "FABRICAST_CUDA";

const NAMES: [&str; 2] = ["libcuda.so.1", "libcuda.so"];

/// `CUDA_ERROR_NOT_READY`: the stream still has work to do.
const NOT_READY: c_int = 600;
/// `CUDA_ERROR_NO_DEVICE`.
const NO_DEVICE: c_int = 100;

/// The driver, loaded once and never unloaded.
pub(crate) struct Cuda {
    init: unsafe extern "C" fn(c_uint) -> c_int,
    device_get_count: unsafe extern "C" fn(*mut c_int) -> c_int,
    device_get: unsafe extern "C" fn(*mut c_int, c_int) -> c_int,
    primary_context_retain: unsafe extern "C" fn(*mut *mut c_void, c_int) -> c_int,
    context_get_current: unsafe extern "C" fn(*mut *mut c_void) -> c_int,
    context_set_current: unsafe extern "C" fn(*mut c_void) -> c_int,
    stream_synchronize: unsafe extern "C" fn(RawStream) -> c_int,
    stream_query: unsafe extern "C" fn(RawStream) -> c_int,
    copies: Option<Copies>,
    get_error_name: Option<unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int>,
}

/// Copies between a device and pinned memory of the host.
struct Copies {
    pointer_attribute: unsafe extern "C" fn(*mut c_void, c_int, u64) -> c_int,
    context_push: unsafe extern "C" fn(*mut c_void) -> c_int,
    context_pop: unsafe extern "C" fn(*mut *mut c_void) -> c_int,
    host_alloc: unsafe extern "C" fn(*mut *mut c_void, usize, c_uint) -> c_int,
    host_free: unsafe extern "C" fn(*mut c_void) -> c_int,
    stream_create: unsafe extern "C" fn(*mut RawStream, c_uint) -> c_int,
    stream_destroy: unsafe extern "C" fn(RawStream) -> c_int,
    to_device: unsafe extern "C" fn(u64, *const c_void, usize, RawStream) -> c_int,
    to_host: unsafe extern "C" fn(*mut c_void, u64, usize, RawStream) -> c_int,
}

/// `CU_POINTER_ATTRIBUTE_CONTEXT` and `CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL`.
const POINTER_CONTEXT: c_int = 1;
const POINTER_DEVICE: c_int = 9;
/// `CU_MEMHOSTALLOC_PORTABLE`: pinned for all contexts.
const HOST_PORTABLE: c_uint = 1;
/// `CU_STREAM_NON_BLOCKING`: no order with the default stream.
const STREAM_NON_BLOCKING: c_uint = 1;

/// `CUDA_ERROR_INVALID_CONTEXT`.
const INVALID_CONTEXT: c_int = 201;

static LOADED: OnceLock<Cuda> = OnceLock::new();

impl Cuda {
    /// The driver, once it runs and has a device. That it does is asked once in a process; a failure is not kept: a later call
    /// tries again.
    pub(crate) fn ready() -> Result<&'static Self, CudaUnavailable> {
        static RUNS: OnceLock<Owner> = OnceLock::new();
        let cuda = Self::load()?;
        // In a forked child it does not run any more, which the driver itself says.
        if RUNS.get().is_some_and(|owner| owner.is_here()) {
            return Ok(cuda);
        }
        // SAFETY: takes no memory; any number of calls.
        let code = unsafe { (cuda.init)(0) };
        match code {
            0 => {}
            NO_DEVICE => return Err(CudaUnavailable::NoDevice),
            code => {
                return Err(CudaUnavailable::Init {
                    code: CudaCode(code),
                });
            }
        }
        let mut count = 0;
        // SAFETY: writes one number, which is ours.
        let code = unsafe { (cuda.device_get_count)(&raw mut count) };
        match code {
            0 if count > 0 => {
                let _ = RUNS.set(Owner::current());
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
        let (object, path) = open_first(FABRICAST_CUDA, &NAMES)
            .map_err(|tried| CudaUnavailable::Library { tried })?;
        let cuda = Self::find(&object);
        // Never unloaded, not even when it is refused.
        mem::forget(object);
        let cuda = cuda.map_err(|Missing { symbol, reason }| CudaUnavailable::Broken {
            path,
            symbol,
            reason,
        })?;
        Ok(LOADED.get_or_init(|| cuda))
    }

    /// Looks the functions up. Each field's type is that of the C prototype.
    fn find(object: &Object) -> Result<Self, Missing> {
        Ok(Self {
            // SAFETY: the type of the field is that of the function.
            init: unsafe { find(object, "cuInit") }?,
            // SAFETY: the type of the field is that of the function.
            device_get_count: unsafe { find(object, "cuDeviceGetCount") }?,
            // SAFETY: the type of the field is that of the function.
            device_get: unsafe { find(object, "cuDeviceGet") }?,
            // SAFETY: the type of the field is that of the function.
            primary_context_retain: unsafe { find(object, "cuDevicePrimaryCtxRetain") }?,
            // SAFETY: the type of the field is that of the function.
            context_get_current: unsafe { find(object, "cuCtxGetCurrent") }?,
            // SAFETY: the type of the field is that of the function.
            context_set_current: unsafe { find(object, "cuCtxSetCurrent") }?,
            // SAFETY: the type of the field is that of the function.
            stream_synchronize: unsafe { find(object, "cuStreamSynchronize") }?,
            // SAFETY: the type of the field is that of the function.
            stream_query: unsafe { find(object, "cuStreamQuery") }?,
            copies: Copies::find(object).ok(),
            // SAFETY: the type of the field is that of the function.
            get_error_name: unsafe { find(object, "cuGetErrorName") }.ok(),
        })
    }

    /// Makes the primary context of a device current in this thread, unless one is.
    pub(crate) fn ensure_context(&self, ordinal: i32) -> Result<(), CudaError> {
        let mut context = ptr::null_mut();
        // SAFETY: writes one pointer, which is ours.
        let code = unsafe { (self.context_get_current)(&raw mut context) };
        check("cuCtxGetCurrent", code)?;
        if !context.is_null() {
            return Ok(());
        }
        let mut device = 0;
        // SAFETY: writes one number, which is ours.
        let code = unsafe { (self.device_get)(&raw mut device, ordinal) };
        check("cuDeviceGet", code)?;
        let context = self.primary_context(device)?;
        // SAFETY: the context was just answered, and is kept for the life of the process.
        let code = unsafe { (self.context_set_current)(context) };
        check("cuCtxSetCurrent", code)
    }

    /// The primary context of a device, retained once and for good.
    fn primary_context(&self, device: c_int) -> Result<*mut c_void, CudaError> {
        static RETAINED: Mutex<Vec<(c_int, usize)>> = Mutex::new(Vec::new());
        let mut retained = lock(&RETAINED);
        if let Some((_, context)) = retained.iter().find(|(known, _)| *known == device) {
            return Ok(*context as *mut c_void);
        }
        let mut context = ptr::null_mut();
        // SAFETY: writes one pointer, which is ours.
        let code = unsafe { (self.primary_context_retain)(&raw mut context, device) };
        check("cuDevicePrimaryCtxRetain", code)?;
        retained.push((device, context as usize));
        Ok(context)
    }

    /// Waits until the stream has done all that was given to it.
    ///
    /// # Safety
    ///
    /// `stream` is null or a stream that was not destroyed.
    pub(crate) unsafe fn synchronize(&self, stream: RawStream) -> Result<(), CudaError> {
        // SAFETY: the caller vouches for the stream.
        let code = unsafe { (self.stream_synchronize)(stream) };
        check("cuStreamSynchronize", code)
    }

    /// Whether the stream has done all that was given to it.
    ///
    /// # Safety
    ///
    /// As for [`synchronize`](Self::synchronize).
    pub(crate) unsafe fn is_idle(&self, stream: RawStream) -> Result<bool, CudaError> {
        // SAFETY: the caller vouches for the stream.
        match unsafe { (self.stream_query)(stream) } {
            NOT_READY => Ok(false),
            code => check("cuStreamQuery", code).map(|()| true),
        }
    }
}

impl Copies {
    fn find(object: &Object) -> Result<Self, Missing> {
        Ok(Self {
            // SAFETY: the type of the field is that of the function.
            pointer_attribute: unsafe { find(object, "cuPointerGetAttribute") }?,
            // SAFETY: the type of the field is that of the function.
            context_push: unsafe { find(object, "cuCtxPushCurrent_v2") }?,
            // SAFETY: the type of the field is that of the function.
            context_pop: unsafe { find(object, "cuCtxPopCurrent_v2") }?,
            // SAFETY: the type of the field is that of the function.
            host_alloc: unsafe { find(object, "cuMemHostAlloc") }?,
            // SAFETY: the type of the field is that of the function.
            host_free: unsafe { find(object, "cuMemFreeHost") }?,
            // SAFETY: the type of the field is that of the function.
            stream_create: unsafe { find(object, "cuStreamCreate") }?,
            // SAFETY: the type of the field is that of the function.
            stream_destroy: unsafe { find(object, "cuStreamDestroy_v2") }?,
            // SAFETY: the type of the field is that of the function.
            to_device: unsafe { find(object, "cuMemcpyHtoDAsync_v2") }?,
            // SAFETY: the type of the field is that of the function.
            to_host: unsafe { find(object, "cuMemcpyDtoHAsync_v2") }?,
        })
    }
}

/// A context, which threads may hand to one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Context(NonNull<c_void>);

// SAFETY: the driver's name for it, which any thread may use.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// A context that is current in this thread as long as this lives; what was current before is so again behind it.
pub(crate) struct Current {
    cuda: &'static Cuda,
    context: Context,
    /// It was another one before.
    pushed: bool,
    /// Contexts are current in a thread.
    _not_send: PhantomData<*mut ()>,
}

impl Current {
    /// Tells contexts apart.
    pub(crate) fn id(&self) -> usize {
        self.context.0.addr().get()
    }
}

impl Drop for Current {
    fn drop(&mut self) {
        let copies = self.cuda.copies.as_ref();
        if let Some(copies) = copies.filter(|_| self.pushed) {
            let mut popped = ptr::null_mut();
            // SAFETY: writes one pointer, which is ours; pushed once, popped here alone, on the same thread: this is not Send.
            let code = unsafe { (copies.context_pop)(&raw mut popped) };
            debug_assert_eq!(
                (code, popped),
                (0, self.context.0.as_ptr()),
                "contexts nest"
            );
        }
    }
}

impl Cuda {
    fn copies(&self) -> Result<&Copies, CudaError> {
        self.copies.as_ref().ok_or(CudaError::Lacks {
            function: "cuMemcpyHtoDAsync",
        })
    }

    /// The context that device memory belongs to.
    pub(crate) fn context_of(&self, address: u64) -> Result<Context, CudaError> {
        let copies = self.copies()?;
        let mut context: *mut c_void = ptr::null_mut();
        let into = (&raw mut context).cast();
        // SAFETY: the attribute is a pointer, which is ours; any number may be asked about.
        let code = unsafe { (copies.pointer_attribute)(into, POINTER_CONTEXT, address) };
        check("cuPointerGetAttribute", code)?;
        if context.is_null() {
            // Memory of a pool belongs to a device, and to no context.
            let mut device: c_int = 0;
            let into = (&raw mut device).cast();
            // SAFETY: the attribute is an int, which is ours.
            let code = unsafe { (copies.pointer_attribute)(into, POINTER_DEVICE, address) };
            check("cuPointerGetAttribute", code)?;
            context = self.primary_context(device)?;
        }
        let context = NonNull::new(context).map(Context);
        context.ok_or_else(|| CudaError::call("cuPointerGetAttribute", INVALID_CONTEXT))
    }

    /// Makes the context that device memory belongs to current in this thread.
    pub(crate) fn enter_at(&'static self, address: u64) -> Result<Current, CudaError> {
        self.enter(self.context_of(address)?)
    }

    /// Makes a context current in this thread, unless it is.
    pub(crate) fn enter(&'static self, context: Context) -> Result<Current, CudaError> {
        let mut now = ptr::null_mut();
        // SAFETY: writes one pointer, which is ours.
        let code = unsafe { (self.context_get_current)(&raw mut now) };
        check("cuCtxGetCurrent", code)?;
        let pushed = now != context.0.as_ptr();
        if pushed {
            // SAFETY: a context that the driver has answered.
            let code = unsafe { (self.copies()?.context_push)(context.0.as_ptr()) };
            check("cuCtxPushCurrent", code)?;
        }
        Ok(Current {
            cuda: self,
            context,
            pushed,
            _not_send: PhantomData,
        })
    }

    /// Waits for the default stream of the current context.
    pub(crate) fn synchronize_default(&self) -> Result<(), CudaError> {
        // Mostly there is nothing to wait for, which is found out faster by asking.
        // SAFETY: null is the default stream.
        if unsafe { self.is_idle(ptr::null_mut()) }? {
            return Ok(());
        }
        // SAFETY: as above.
        unsafe { self.synchronize(ptr::null_mut()) }
    }

    /// Pinned memory of the host, aligned to a page, in the current context.
    pub(crate) fn host_alloc(&self, len: usize) -> Result<NonNull<u8>, CudaError> {
        let mut memory = ptr::null_mut();
        // SAFETY: writes one pointer, which is ours.
        let code = unsafe { (self.copies()?.host_alloc)(&raw mut memory, len, HOST_PORTABLE) };
        check("cuMemHostAlloc", code)?;
        let no_memory = CudaCode::OUT_OF_MEMORY.0;
        NonNull::new(memory.cast()).ok_or_else(|| CudaError::call("cuMemHostAlloc", no_memory))
    }

    /// # Safety
    ///
    /// `memory` is from [`host_alloc`](Self::host_alloc), and nobody uses it any more.
    pub(crate) unsafe fn host_free(&self, memory: NonNull<u8>) -> Result<(), CudaError> {
        // SAFETY: the caller says so.
        let code = unsafe { (self.copies()?.host_free)(memory.as_ptr().cast()) };
        check("cuMemFreeHost", code)
    }

    /// A stream of the current context.
    pub(crate) fn stream_create(&self) -> Result<RawStream, CudaError> {
        let mut stream = ptr::null_mut();
        // SAFETY: writes one pointer, which is ours.
        let code = unsafe { (self.copies()?.stream_create)(&raw mut stream, STREAM_NON_BLOCKING) };
        check("cuStreamCreate", code).map(|()| stream)
    }

    /// # Safety
    ///
    /// `stream` is from [`stream_create`](Self::stream_create), and nobody uses it any more.
    pub(crate) unsafe fn stream_destroy(&self, stream: RawStream) -> Result<(), CudaError> {
        // SAFETY: the caller says so.
        let code = unsafe { (self.copies()?.stream_destroy)(stream) };
        check("cuStreamDestroy", code)
    }

    /// Copies from pinned memory to the device, in the order of the stream.
    ///
    /// # Safety
    ///
    /// Both are good for `len` bytes until the stream has passed, and nobody uses the part of the device.
    pub(crate) unsafe fn to_device(
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

    /// Copies from the device to pinned memory, in the order of the stream.
    ///
    /// # Safety
    ///
    /// Both are good for `len` bytes until the stream has passed, and nobody uses the part of the host.
    pub(crate) unsafe fn to_host(
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
}

/// Locks, also after another thread panicked while it held the lock: what our locks guard is whole between any two statements.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The name of a `CUresult`, by the driver where it is loaded.
pub(crate) fn error_name(code: i32) -> String {
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
