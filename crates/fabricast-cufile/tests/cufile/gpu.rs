//! GPU memory and streams for the tests, by a table of the CUDA driver's functions: the real ones
//! or the fake's.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_uint, c_ulonglong, c_void};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

pub(crate) struct Gpu {
    library: Library,
}

impl Gpu {
    /// Loads the driver; `CuFile::get` has initialised it.
    pub(crate) fn load() -> Self {
        let path = std::env::var_os("FABRICAST_CUDA").unwrap_or_else(|| "libcuda.so.1".into());
        // SAFETY: the CUDA driver, which this process uses already.
        let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) };
        Self {
            library: library.expect("loads"),
        }
    }

    pub(crate) fn alloc(&self, len: usize) -> Memory<'_> {
        let mut address = 0;
        type Alloc = unsafe extern "C" fn(*mut c_ulonglong, usize) -> c_int;
        // SAFETY: the type is that of the function, and the number is ours.
        let code = unsafe { self.function::<Alloc>("cuMemAlloc_v2")(&raw mut address, len) };
        assert_eq!(code, 0, "cuMemAlloc");
        Memory {
            gpu: self,
            address,
            len,
        }
    }

    pub(crate) fn stream(&self) -> *mut c_void {
        let mut stream = std::ptr::null_mut();
        type Create = unsafe extern "C" fn(*mut *mut c_void, c_uint) -> c_int;
        // SAFETY: the type is that of the function, and the pointer is ours.
        let code = unsafe { self.function::<Create>("cuStreamCreate")(&raw mut stream, 1) };
        assert_eq!(code, 0, "cuStreamCreate");
        stream
    }

    pub(crate) fn destroy(&self, stream: *mut c_void) {
        type Destroy = unsafe extern "C" fn(*mut c_void) -> c_int;
        // SAFETY: the type is that of the function; the stream is from `stream`, and nobody uses it
        // any more.
        let code = unsafe { self.function::<Destroy>("cuStreamDestroy_v2")(stream) };
        assert_eq!(code, 0, "cuStreamDestroy");
    }

    pub(crate) fn function<F: Copy>(&self, name: &str) -> F {
        // SAFETY: whoever asks knows the type of the function.
        *unsafe { self.library.get::<F>(name.as_bytes()) }.expect("there")
    }
}

/// Memory of a GPU, freed when it is dropped.
pub(crate) struct Memory<'a> {
    gpu: &'a Gpu,
    address: c_ulonglong,
    len: usize,
}

impl Memory<'_> {
    pub(crate) fn base(&self) -> *mut c_void {
        self.address as usize as *mut c_void
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn fill(&self, bytes: &[u8]) {
        assert!(bytes.len() <= self.len);
        type Copy = unsafe extern "C" fn(c_ulonglong, *const c_void, usize) -> c_int;
        let copy = self.gpu.function::<Copy>("cuMemcpyHtoD_v2");
        // SAFETY: the type is that of the function; both are that long.
        let code = unsafe { copy(self.address, bytes.as_ptr().cast(), bytes.len()) };
        assert_eq!(code, 0, "cuMemcpyHtoD");
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len];
        type Copy = unsafe extern "C" fn(*mut c_void, c_ulonglong, usize) -> c_int;
        let copy = self.gpu.function::<Copy>("cuMemcpyDtoH_v2");
        // SAFETY: the type is that of the function; both are that long.
        let code = unsafe { copy(bytes.as_mut_ptr().cast(), self.address, self.len) };
        assert_eq!(code, 0, "cuMemcpyDtoH");
        bytes
    }
}

impl Drop for Memory<'_> {
    fn drop(&mut self) {
        type Free = unsafe extern "C" fn(c_ulonglong) -> c_int;
        // SAFETY: the type is that of the function; allocated once, freed here alone.
        let code = unsafe { self.gpu.function::<Free>("cuMemFree_v2")(self.address) };
        assert_eq!(code, 0, "cuMemFree");
    }
}
