//! `BufferRegistration`: memory that is registered with cuFile, as a guard.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::fmt;

use super::driver::Driver;
use super::error::CuFileError;
use super::{CuFile, check, count_leak, lock};

bitflags::bitflags! {
    /// What a registration is for, the flags of `cuFileBufRegister`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct BufferFlags: c_int {
        /// `CU_FILE_RDMA_REGISTER`: for RDMA by a userspace file system or by cuObject.
        const RDMA = 1 << 0;
        /// `CU_FILE_RDMA_RELAXED_ORDERING`: of the writes of RDMA.
        const RDMA_RELAXED_ORDERING = 1 << 1;
    }
}

impl CuFile {
    /// Registers memory, of a GPU or of the host, `cuFileBufRegister`: operations on it then need
    /// no buffer between. It takes long, so it is done once and not for each operation.
    ///
    /// # Errors
    ///
    /// What the driver's opening or the registration answers.
    ///
    /// # Safety
    ///
    /// * `len` bytes from `base` are one allocation, and stay allocated until the registration is
    ///   dropped.
    /// * For GPU memory, its CUDA context is current in this thread.
    pub unsafe fn register_memory(
        &'static self,
        base: *mut c_void,
        len: usize,
        flags: BufferFlags,
    ) -> Result<BufferRegistration, CuFileError> {
        // SAFETY: the caller keeps the contract, which is the same.
        unsafe { BufferRegistration::register(self, base, len, flags) }
    }
}

/// Memory that is registered with cuFile until this is dropped (`cuFileBufDeregister`), from
/// [`CuFile::register_memory`].
pub struct BufferRegistration {
    base: *mut c_void,
    len: usize,
    driver: Driver,
}

// SAFETY: cuFile may be called from any thread, and the pointer is only handed to it.
unsafe impl Send for BufferRegistration {}
// SAFETY: as above; nothing in it changes.
unsafe impl Sync for BufferRegistration {}

impl BufferRegistration {
    /// # Safety
    ///
    /// As for [`CuFile::register_memory`].
    pub(super) unsafe fn register(
        cufile: &'static CuFile,
        base: *mut c_void,
        len: usize,
        flags: BufferFlags,
    ) -> Result<Self, CuFileError> {
        if len == 0 || len > isize::MAX as usize {
            let reason = "it has to be 1 to 2^63 - 1";
            return Err(CuFileError::value("len", len, "bytes", reason));
        }
        if base.is_null() {
            return Err(CuFileError::value("base", "null", "", "there is no memory"));
        }
        let driver = cufile.driver()?;
        let register = cufile.library.basic.buf_register;
        // SAFETY: the caller vouches for the memory.
        let answer = unsafe { register(base, len, flags.bits()) };
        check("cuFileBufRegister", answer)?;
        lock(&cufile.registered).insert(base.addr());
        Ok(Self { base, len, driver })
    }

    /// Where the memory begins: operations name it by this address and an offset.
    pub fn base(&self) -> *mut c_void {
        self.base
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never: memory of no bytes is not registered.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Deregisters it, and says if that failed: then the memory is best never freed.
    ///
    /// # Errors
    ///
    /// What the call answers. The registration is gone for this library either way.
    pub fn deregister(self) -> Result<(), CuFileError> {
        let this = std::mem::ManuallyDrop::new(self);
        // SAFETY: `this` is neither used nor dropped after this, so the driver is moved out of it
        // once.
        let driver = unsafe { std::ptr::read(&raw const this.driver) };
        driver.cufile().check_owner()?;
        // SAFETY: registered once, deregistered here alone, since `this` is not dropped.
        unsafe { deregister(&driver, this.base) }
    }
}

/// # Safety
///
/// `base` is registered, and is not registered any more after this.
unsafe fn deregister(driver: &Driver, base: *mut c_void) -> Result<(), CuFileError> {
    lock(&driver.cufile().registered).remove(&base.addr());
    let call = driver.cufile().library.basic.buf_deregister;
    // SAFETY: the caller says so.
    check("cuFileBufDeregister", unsafe { call(base) })
}

impl Drop for BufferRegistration {
    fn drop(&mut self) {
        if !self.driver.cufile().owner.is_here() {
            return;
        }
        // SAFETY: registered once, deregistered here alone.
        if let Err(error) = unsafe { deregister(&self.driver, self.base) } {
            tracing::error!(%error, len_bytes = self.len, "memory stays registered with cuFile");
            count_leak("registration", 1);
        }
    }
}

impl fmt::Debug for BufferRegistration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BufferRegistration")
            .field("base", &self.base)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}
