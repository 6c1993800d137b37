//! The plain side of the operations with GPU memory: cuFile as a C program calls it, and nothing of
//! ours.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use crate::Failure;

/// `cuFileRead` and `cuFileWrite`: the second takes a const pointer, which makes no difference to
/// the call.
type Move = unsafe extern "C" fn(*mut c_void, *mut c_void, usize, i64, i64) -> isize;
type Register = unsafe extern "C" fn(*mut *mut c_void, *mut Descr) -> Answer;
type Deregister = unsafe extern "C" fn(*mut c_void);

/// `CUfileDescr_t`.
#[repr(C)]
struct Descr {
    kind: c_int,
    fd: i64,
    ops: *const c_void,
}

/// `CUfileError_t`.
#[repr(C)]
struct Answer {
    err: c_int,
    cuda: c_int,
}

/// `CU_FILE_HANDLE_TYPE_OPAQUE_FD`.
const OPAQUE_FD: c_int = 1;

/// A file that is registered with cuFile.
pub(crate) struct PlainCuFile {
    read: Move,
    write: Move,
    deregister: Deregister,
    handle: *mut c_void,
    _file: File,
}

impl PlainCuFile {
    /// Registers a file. cuFile's driver is open.
    pub(crate) fn register(file: File) -> Result<Self, Failure> {
        let path = std::env::var_os("FABRICAST_CUFILE").unwrap_or_else(|| "libcufile.so.0".into());
        // SAFETY: the library that this process uses already.
        let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }?;
        // SAFETY: the type is that of the function.
        let register = *unsafe { library.get::<Register>(b"cuFileHandleRegister") }?;
        // SAFETY: the type is that of the function.
        let deregister = *unsafe { library.get::<Deregister>(b"cuFileHandleDeregister") }?;
        // SAFETY: the type is that of the function.
        let read = *unsafe { library.get::<Move>(b"cuFileRead") }?;
        // SAFETY: the type is that of the function, but for a const.
        let write = *unsafe { library.get::<Move>(b"cuFileWrite") }?;
        // It is never unloaded: closing it at the end of a process is known to crash.
        std::mem::forget(library);
        let mut descr = Descr {
            kind: OPAQUE_FD,
            fd: file.as_raw_fd().into(),
            ops: std::ptr::null(),
        };
        let mut handle = std::ptr::null_mut();
        // SAFETY: both are ours.
        let Answer { err, cuda } = unsafe { register(&raw mut handle, &raw mut descr) };
        if err != 0 {
            return Err(format!("cuFileHandleRegister answers {err} (CUDA {cuda})").into());
        }
        Ok(Self {
            read,
            write,
            deregister,
            handle,
            _file: file,
        })
    }

    /// One call after the other over `bytes` of the file, each with the whole memory.
    ///
    /// # Safety
    /// `base` is memory of a GPU of `call` bytes, which nobody else uses; its context is current.
    pub(crate) unsafe fn pass(
        &self,
        base: u64,
        call: usize,
        bytes: usize,
        write: bool,
    ) -> Result<(), Failure> {
        let base = std::ptr::with_exposed_provenance_mut(base as usize);
        let function = if write { self.write } else { self.read };
        for at in (0..bytes).step_by(call) {
            // SAFETY: the caller vouches for the memory; the handle is registered.
            let done = unsafe { function(self.handle, base, call, at as i64, 0) };
            if done == -1 {
                return Err(io::Error::last_os_error().into());
            }
            if done != call as isize {
                return Err(format!("cuFile answers {done} of {call} bytes").into());
            }
        }
        Ok(())
    }
}

impl Drop for PlainCuFile {
    fn drop(&mut self) {
        // SAFETY: registered once, deregistered here alone, with no call under way.
        unsafe { (self.deregister)(self.handle) };
    }
}
