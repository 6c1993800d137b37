//! What lies at an address.

#![allow(unsafe_code)] // A function that C calls.

use std::ffi::c_void;

use fabricast::cuda::{CudaError, MemoryKind};

use crate::call::call;
use crate::pointer::Out;
use crate::status::fcast_status;

/// Memory of the host that CUDA knows nothing of.
pub const FCAST_MEMORY_HOST: u32 = 0;
/// Managed memory of CUDA's.
pub const FCAST_MEMORY_MANAGED: u32 = 1;
/// Memory of a GPU.
pub const FCAST_MEMORY_DEVICE: u32 = 2;
/// The CUDA driver knows it as something else.
pub const FCAST_MEMORY_UNKNOWN: u32 = 3;
/// No memory: NULL, or nothing is mapped there.
pub const FCAST_MEMORY_INVALID: u32 = 4;
/// Memory of the host that is pinned for CUDA.
pub const FCAST_MEMORY_PINNED: u32 = 5;

/// What lies at an address: `*kind` is FCAST_MEMORY_HOST or another. Any number may be asked about.
/// Without a CUDA driver there are FCAST_MEMORY_HOST and FCAST_MEMORY_INVALID; a driver that fails
/// is FCAST_MEMORY_UNKNOWN. Any thread.
///
/// # Safety
///
/// `kind`: NULL, or writable. `address` is a number here, and need not be valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_memory_kind(address: *const c_void, kind: *mut u32) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(kind, "kind") }?;
        let address = address.addr() as u64;
        out.set(number_of(match MemoryKind::of(address) {
            Ok(kind) => kind,
            Err(CudaError::Unavailable(_)) => MemoryKind::of_host(address),
            Err(_) => MemoryKind::Unknown,
        }));
        Ok(())
    })
}

fn number_of(kind: MemoryKind) -> u32 {
    match kind {
        MemoryKind::Host => FCAST_MEMORY_HOST,
        MemoryKind::PinnedHost => FCAST_MEMORY_PINNED,
        MemoryKind::Managed => FCAST_MEMORY_MANAGED,
        MemoryKind::Device { .. } => FCAST_MEMORY_DEVICE,
        MemoryKind::Invalid => FCAST_MEMORY_INVALID,
        _ => FCAST_MEMORY_UNKNOWN,
    }
}
