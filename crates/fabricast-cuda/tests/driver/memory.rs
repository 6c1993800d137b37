//! Memory of a device, for the tests.

#![allow(unsafe_code)]

use fabricast_cuda::Cuda;

/// Allocated, and freed when it is dropped, which waits for the device.
pub(crate) struct Memory {
    device: u32,
    address: u64,
}

impl Memory {
    pub(crate) fn of(device: u32, len: usize) -> Self {
        let cuda = Cuda::ready().expect("a driver");
        let _current = cuda.enter_device(device).expect("entered");
        let address = cuda.alloc(len).expect("memory");
        Self { device, address }
    }

    pub(crate) fn address(&self) -> u64 {
        self.address
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let cuda = Cuda::ready().expect("a driver");
        let _current = cuda.enter_device(self.device).expect("entered");
        // SAFETY: allocated by `of`, freed here alone; who uses it holds this.
        unsafe { cuda.free(self.address) }.expect("freed");
    }
}
