//! `Parameters`: the variables of the environment that a libfabric reads, which tell what it was
//! built with.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_int};
use std::ptr;

use libfabric_sys as sys;

/// How the names begin that are there where CUDA is, from 1.17 to 2.6 (`cuda_hmem_init`): neither
/// in a library that was built without it, nor in one that was told to leave it alone (`FI_HMEM`).
const OF_CUDA: &str = "FI_HMEM_CUDA_";

/// A list that the library made.
pub(super) struct Parameters {
    first: *mut sys::fi_param,
    len: usize,
    library: &'static sys::Library,
}

impl Parameters {
    /// Asks the library, which loads its providers for that; `None`: it does not say.
    pub(super) fn of(library: &'static sys::Library) -> Option<Self> {
        let (mut first, mut len): (_, c_int) = (ptr::null_mut(), 0);
        // SAFETY: both are valid for a write.
        let rc = unsafe { library.fi_getparams(&raw mut first, &raw mut len) };
        let len = usize::try_from(len).ok()?;
        (rc == 0 && !first.is_null()).then_some(Self {
            first,
            len,
            library,
        })
    }

    /// Whether the library has asked for CUDA.
    pub(super) fn know_cuda(&self) -> bool {
        self.any(|name| name.starts_with(OF_CUDA))
    }

    fn any(&self, is_it: impl Fn(&str) -> bool) -> bool {
        // SAFETY: the library made `len` parameters at `first` (`of`), which stay until `drop`.
        let all = unsafe { std::slice::from_raw_parts(self.first, self.len) };
        let mut names = all.iter().filter(|param| !param.name.is_null());
        names.any(|param| {
            // SAFETY: a text that ends with 0, and lives as long as the list (fi_getparams).
            let name = unsafe { CStr::from_ptr(param.name) };
            name.to_str().is_ok_and(&is_it)
        })
    }
}

impl Drop for Parameters {
    fn drop(&mut self) {
        // SAFETY: from this library (`of`), and not used again.
        unsafe { self.library.fi_freeparams(self.first) };
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_every_library_reads_is_listed() {
        let library = match sys::Library::load() {
            Ok(library) => library,
            Err(why) => return println!("SKIPPED: {why}"),
        };
        let parameters = Parameters::of(library).expect("a list");
        assert!(parameters.any(|name| name == "FI_PROVIDER"));
        assert!(parameters.any(|name| name == "FI_HMEM_DISABLE_P2P"));
        assert!(!parameters.any(|name| name == "FI_NO_SUCH_VARIABLE"));
        println!("knows CUDA: {}", parameters.know_cuda());
    }
}
