//! Memory of a GPU, by the few functions of the CUDA driver that it takes.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_uchar, c_ulonglong, c_void};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use crate::Failure;

type Alloc = unsafe extern "C" fn(*mut c_ulonglong, usize) -> c_int;
type Free = unsafe extern "C" fn(c_ulonglong) -> c_int;
type Fill = unsafe extern "C" fn(c_ulonglong, c_uchar, usize) -> c_int;
type Fetch = unsafe extern "C" fn(*mut c_void, c_ulonglong, usize) -> c_int;

/// The functions. The driver is not unloaded: cuFile has it, too.
#[derive(Clone, Copy)]
pub(crate) struct Device {
    alloc: Alloc,
    free: Free,
    fill: Fill,
    fetch: Fetch,
}

impl Device {
    /// Loads the driver, which was initialised already, and in whose context the calls are made.
    pub(crate) fn load() -> Result<Self, Failure> {
        let path = std::env::var_os("FABRICAST_CUDA").unwrap_or_else(|| "libcuda.so.1".into());
        // SAFETY: the CUDA driver, which this process uses already.
        let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }?;
        let device = Self {
            // SAFETY: the type is that of the function.
            alloc: *unsafe { library.get::<Alloc>(b"cuMemAlloc_v2") }?,
            // SAFETY: the type is that of the function.
            free: *unsafe { library.get::<Free>(b"cuMemFree_v2") }?,
            // SAFETY: the type is that of the function.
            fill: *unsafe { library.get::<Fill>(b"cuMemsetD8_v2") }?,
            // SAFETY: the type is that of the function.
            fetch: *unsafe { library.get::<Fetch>(b"cuMemcpyDtoH_v2") }?,
        };
        std::mem::forget(library);
        Ok(device)
    }

    pub(crate) fn memory(self, len: usize) -> Result<DeviceBytes, Failure> {
        let mut address = 0;
        // SAFETY: writes one number, which is ours.
        check("cuMemAlloc", unsafe { (self.alloc)(&raw mut address, len) })?;
        Ok(DeviceBytes {
            device: self,
            address,
            len,
        })
    }
}

/// Memory of a GPU, freed when it is dropped.
pub(crate) struct DeviceBytes {
    device: Device,
    address: c_ulonglong,
    len: usize,
}

impl DeviceBytes {
    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    /// Sets all bytes to one value, before this returns.
    pub(crate) fn fill(&self, value: u8) -> Result<(), Failure> {
        // SAFETY: the memory is that long.
        let code = unsafe { (self.device.fill)(self.address, value, self.len) };
        check("cuMemsetD8", code)?;
        // A copy is behind the fill, and is over when it returns.
        self.last(1).map(drop)
    }

    /// The last bytes.
    pub(crate) fn last(&self, len: usize) -> Result<Vec<u8>, Failure> {
        let mut bytes = vec![0; len.min(self.len)];
        let from = self.address + (self.len - bytes.len()) as u64;
        // SAFETY: both are that long.
        let code = unsafe { (self.device.fetch)(bytes.as_mut_ptr().cast(), from, bytes.len()) };
        check("cuMemcpyDtoH", code)?;
        Ok(bytes)
    }
}

impl Drop for DeviceBytes {
    fn drop(&mut self) {
        // SAFETY: allocated once, freed here alone; no transfer is under way.
        unsafe { (self.device.free)(self.address) };
    }
}

fn check(call: &str, code: c_int) -> Result<(), Failure> {
    match code {
        0 => Ok(()),
        code => Err(format!("{call}: CUDA error {code}").into()),
    }
}
