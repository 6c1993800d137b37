//! `Context`, and `Current`: a context that is current in this thread for a while.

#![allow(unsafe_code)]

use std::ffi::c_int;
use std::fmt;
use std::marker::PhantomData;
use std::ptr::{self, NonNull};
use std::sync::Mutex;

use super::driver::{Cuda, RawContext, lock};
use super::error::{CudaCode, CudaError, check};
use super::memory::attribute;

/// A context, which threads may hand to one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Context(NonNull<std::ffi::c_void>);

// SAFETY: the driver's name for it, which any thread may use.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    pub(super) fn new(raw: RawContext) -> Option<Self> {
        NonNull::new(raw).map(Self)
    }
}

/// A context that is current in this thread as long as this lives; what was current before is so
/// again behind it.
pub struct Current {
    cuda: &'static Cuda,
    context: Context,
    /// It was another one before.
    pushed: bool,
    /// Contexts are current in a thread.
    _not_send: PhantomData<*mut ()>,
}

impl Current {
    /// Tells contexts apart.
    pub fn id(&self) -> usize {
        self.context.0.addr().get()
    }
}

impl fmt::Debug for Current {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Current")
            .field("context", &self.context)
            .field("pushed", &self.pushed)
            .finish_non_exhaustive()
    }
}

impl Drop for Current {
    fn drop(&mut self) {
        let copies = self.cuda.copies.as_ref();
        if let Some(copies) = copies.filter(|_| self.pushed) {
            let mut popped = ptr::null_mut();
            // SAFETY: writes one pointer, which is ours; pushed once, popped here alone, on the
            // same thread: this is not Send.
            let code = unsafe { (copies.context_pop)(&raw mut popped) };
            let pushed = self.context.0.as_ptr();
            debug_assert_eq!((code, popped), (0, pushed), "contexts nest");
        }
    }
}

impl Cuda {
    /// Makes a context current in this thread, unless it is, until what is answered is dropped.
    ///
    /// # Errors
    /// What the driver answers; [`CudaError::Lacks`] where it has no such function.
    ///
    /// # Safety
    /// The context was not destroyed: a primary one never is, and the others are their makers'.
    pub unsafe fn enter(&'static self, context: Context) -> Result<Current, CudaError> {
        let raw = context.0.as_ptr();
        let pushed = self.current()? != raw;
        if pushed {
            // SAFETY: a context that the driver has answered.
            let code = unsafe { (self.copies()?.context_push)(raw) };
            check("cuCtxPushCurrent", code)?;
        }
        Ok(Current {
            cuda: self,
            context,
            pushed,
            _not_send: PhantomData,
        })
    }

    /// Makes the context that device memory belongs to current in this thread, as
    /// [`enter`](Self::enter) does. `address` is one in that memory.
    ///
    /// # Errors
    /// What the driver answers; [`CudaError::Lacks`] where it has no such function.
    pub fn enter_at(&'static self, address: u64) -> Result<Current, CudaError> {
        let context = self.context_of(address)?;
        // SAFETY: the driver has just answered it for memory that is there; whoever destroys a
        // context owes it to all who use its memory that they are done.
        unsafe { self.enter(context) }
    }

    /// Makes the primary context of a device current in this thread, as [`enter`](Self::enter)
    /// does. Devices are counted from 0.
    ///
    /// # Errors
    /// What the driver answers; [`CudaError::Lacks`] where it has no such function.
    pub fn enter_device(&'static self, ordinal: u32) -> Result<Current, CudaError> {
        let context = self.primary_context(ordinal)?;
        // SAFETY: retained for good.
        unsafe { self.enter(context) }
    }

    /// The context that device memory belongs to.
    ///
    /// # Errors
    /// What the driver answers; [`CudaError::Lacks`] where it has no such function.
    pub fn context_of(&self, address: u64) -> Result<Context, CudaError> {
        let mut context: RawContext = ptr::null_mut();
        // SAFETY: the attribute is a pointer, which is ours.
        unsafe { self.pointer_attribute(attribute::CONTEXT, address, &raw mut context) }?;
        if let Some(context) = Context::new(context) {
            return Ok(context);
        }
        // Memory of a pool belongs to a device, and to no context.
        let mut ordinal: c_int = 0;
        // SAFETY: the attribute is an int, which is ours.
        unsafe { self.pointer_attribute(attribute::DEVICE_ORDINAL, address, &raw mut ordinal) }?;
        self.primary_context(u32::try_from(ordinal).unwrap_or_default())
    }

    /// Makes the primary context of a device current in this thread, for good, unless one is.
    ///
    /// # Errors
    /// What the driver answers; [`CudaError::Lacks`] where it has no such function.
    pub fn ensure_context(&self, ordinal: i32) -> Result<(), CudaError> {
        if !self.current()?.is_null() {
            return Ok(());
        }
        let ordinal = u32::try_from(ordinal)
            .map_err(|_| CudaError::call("cuDeviceGet", CudaCode::INVALID_DEVICE.0))?;
        let context = self.primary_context(ordinal)?;
        // SAFETY: the context was just answered, and is kept for the life of the process.
        let code = unsafe { (self.basic.context_set_current)(context.0.as_ptr()) };
        check("cuCtxSetCurrent", code)
    }

    /// The context that is current in this thread; null where none is.
    fn current(&self) -> Result<RawContext, CudaError> {
        let mut context = ptr::null_mut();
        // SAFETY: writes one pointer, which is ours.
        let code = unsafe { (self.basic.context_get_current)(&raw mut context) };
        check("cuCtxGetCurrent", code).map(|()| context)
    }

    /// The context that is current in this thread.
    ///
    /// # Errors
    /// What the driver answers; [`CudaError::Lacks`] where it has no such function.
    pub fn current_context(&self) -> Result<Option<Context>, CudaError> {
        self.current().map(Context::new)
    }

    /// The number of the device whose context is current in this thread; `None` where none is.
    ///
    /// # Errors
    /// What the driver answers; [`CudaError::Lacks`] where it has no such function.
    pub fn current_device(&self) -> Result<Option<u32>, CudaError> {
        if self.current()?.is_null() {
            return Ok(None);
        }
        let function = "cuCtxGetDevice";
        let ask = self
            .context_get_device
            .ok_or(CudaError::Lacks { function })?;
        let mut device = 0;
        // SAFETY: writes one number, which is ours.
        check(function, unsafe { ask(&raw mut device) })?;
        // What the driver calls a device is the number that it has.
        Ok(u32::try_from(device).ok())
    }

    /// The driver's name for a device.
    pub(super) fn device(&self, ordinal: u32) -> Result<c_int, CudaError> {
        let mut device = 0;
        let ordinal = c_int::try_from(ordinal).unwrap_or(c_int::MAX);
        // SAFETY: writes one number, which is ours.
        let code = unsafe { (self.basic.device_get)(&raw mut device, ordinal) };
        check("cuDeviceGet", code).map(|()| device)
    }

    /// The primary context of a device, retained once and for good: giving it back would reset the
    /// device under others.
    ///
    /// # Errors
    /// What the driver answers; [`CudaError::Lacks`] where it has no such function.
    pub fn primary_context(&self, ordinal: u32) -> Result<Context, CudaError> {
        static RETAINED: Mutex<Vec<(u32, Context)>> = Mutex::new(Vec::new());
        let mut retained = lock(&RETAINED);
        if let Some((_, context)) = retained.iter().find(|(known, _)| *known == ordinal) {
            return Ok(*context);
        }
        let device = self.device(ordinal)?;
        let mut context = ptr::null_mut();
        // SAFETY: writes one pointer, which is ours.
        let code = unsafe { (self.basic.primary_context_retain)(&raw mut context, device) };
        check("cuDevicePrimaryCtxRetain", code)?;
        let none = || CudaError::call("cuDevicePrimaryCtxRetain", CudaCode::INVALID_DEVICE.0);
        let context = Context::new(context).ok_or_else(none)?;
        retained.push((ordinal, context));
        Ok(context)
    }
}
