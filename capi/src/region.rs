//! Regions: memory of this library's, of the program's, and of a GPU's.

#![allow(unsafe_code)] // Functions that C calls; memory of the program's.

use std::any::Any;
use std::ffi::c_void;
use std::ptr::NonNull;

use fabricast::Region;
use fabricast::memory::HugePages;

use crate::call::call;
use crate::fabric::fcast_domain;
use crate::handle::{DOMAINS, REGIONS};
use crate::pointer::{self, Out};
use crate::status::{FCAST_NOT_FOUND, Failure, fcast_status};

/// A region: memory that can be registered with domains, sent and received. Any thread may use it.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fcast_region {
    /// Its number; 0: none.
    pub id: u64,
}

/// Called when the library needs external memory no more: behind the last send from it and the last
/// registration, on the thread that ended it. It must not throw, and may call this interface.
pub type fcast_release_fn = Option<unsafe extern "C" fn(context: *mut c_void)>;

/// Regions try to lie in huge pages.
pub const FCAST_REGION_HUGE_PAGES: u32 = 1;
/// Regions are pinned for CUDA, so that copies from and to GPUs are asynchronous.
pub const FCAST_REGION_PINNED: u32 = 2;

/// Calls `release` when it is dropped.
pub(crate) struct KeepAlive {
    pub(crate) release: fcast_release_fn,
    pub(crate) context: *mut c_void,
}

/// What a region of the program's memory keeps: `release` is called when it is dropped.
pub(crate) fn keep_alive(
    release: fcast_release_fn,
    context: *mut c_void,
) -> Box<dyn Any + Send + Sync> {
    Box::new(KeepAlive { release, context })
}

// SAFETY: the pointer is not followed here, and the interface says that `release` is called on any
// thread.
unsafe impl Send for KeepAlive {}
// SAFETY: as above; nothing can be done with a shared one.
unsafe impl Sync for KeepAlive {}

impl Drop for KeepAlive {
    fn drop(&mut self) {
        if let Some(release) = self.release {
            // SAFETY: the program gave both together, for this one call.
            unsafe { release(self.context) };
        }
    }
}

/// Allocates `len` bytes of the host's memory, zeroed and page-aligned. `flags`: 0, or the sum of
/// some of FCAST_REGION_HUGE_PAGES and FCAST_REGION_PINNED. `numa_node`: -1 for any. Any thread.
///
/// # Safety
///
/// `region`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_region_allocate(
    len: usize,
    flags: u32,
    numa_node: i32,
    region: *mut fcast_region,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(region, "region") }?;
        let known = FCAST_REGION_HUGE_PAGES | FCAST_REGION_PINNED;
        if flags & !known != 0 {
            return Err(Failure::invalid(format!(
                "flags = {flags:#x}: {known:#x} are known"
            )));
        }
        let huge = match flags & FCAST_REGION_HUGE_PAGES != 0 {
            true => HugePages::Try,
            false => HugePages::default(),
        };
        let made = Region::host(len)
            .huge_pages(huge)
            .numa_node(u32::try_from(numa_node).ok())
            .pinned(flags & FCAST_REGION_PINNED != 0)
            .build()?;
        let id = REGIONS.insert(made)?;
        out.set(fcast_region { id });
        Ok(())
    })
}

/// Makes a region of memory of the program's, such as the DMA buffer of a card. The library neither
/// moves nor frees it; `release`, which may be NULL, is called with `context` when the library
/// needs it no more, also where this call fails. Any thread.
///
/// # Safety
///
/// All of `base .. base + len` is mapped, readable, and writable where something is received into
/// it, until `release` is called; and to the same pages.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_region_external(
    base: *mut c_void,
    len: usize,
    release: fcast_release_fn,
    context: *mut c_void,
    region: *mut fcast_region,
) -> fcast_status {
    call(|| {
        let keep = keep_alive(release, context);
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(region, "region") }?;
        let base = NonNull::new(base.cast::<u8>());
        let base = base.ok_or_else(|| Failure::invalid("base is null"))?;
        // SAFETY: the caller has promised the mapping until `release`, which `keep` calls in its
        // drop; no Rust reference to memory of C's is held here.
        let made = unsafe { Region::external(base, len, keep) }?;
        let id = REGIONS.insert(made)?;
        out.set(fcast_region { id });
        Ok(())
    })
}

/// Registers a region with a domain, so that endpoints of the domain send from it. Any thread.
///
/// FCAST_NO_RESOURCES: the provider refused it, or the domain has as many registrations as it may.
#[unsafe(no_mangle)]
pub extern "C" fn fcast_region_register(
    region: fcast_region,
    domain: fcast_domain,
) -> fcast_status {
    call(|| {
        let region = REGIONS.share(region.id)?;
        region.register(&*DOMAINS.share(domain.id)?)?;
        Ok(())
    })
}

/// Takes the registration with a domain back: nothing new is sent from the region; what is under
/// way completes, and who ends the last of it ends the registration. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn fcast_region_deregister(
    region: fcast_region,
    domain: fcast_domain,
) -> fcast_status {
    call(|| {
        let region = REGIONS.share(region.id)?;
        region.deregister(&*DOMAINS.share(domain.id)?);
        Ok(())
    })
}

/// Where a region begins, and how many bytes it has. Of a GPU's memory the address is the device's.
/// Any thread.
///
/// # Safety
///
/// `base` and `len`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_region_memory(
    region: fcast_region,
    base: *mut *mut c_void,
    len: *mut usize,
) -> fcast_status {
    call(|| {
        let region = REGIONS.share(region.id)?;
        // SAFETY: the caller's promise.
        unsafe { pointer::put(base, region.as_ptr().cast::<c_void>()) };
        // SAFETY: the caller's promise.
        unsafe { pointer::put(len, region.len()) };
        Ok(())
    })
}

/// The offset of an address in a region, whose next `len` bytes are in it, too.
///
/// FCAST_NOT_FOUND: they are not. Any thread.
///
/// # Safety
///
/// `offset`: NULL, or writable. `address` is a number here, and need not be valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_region_slice_at(
    region: fcast_region,
    address: *const c_void,
    len: usize,
    offset: *mut usize,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(offset, "offset") }?;
        let region = REGIONS.share(region.id)?;
        out.set(offset_of(&region, address.addr(), len)?);
        Ok(())
    })
}

/// Where `len` bytes at an address are in a region.
#[inline]
pub(crate) fn offset_of(region: &Region, address: usize, len: usize) -> Result<usize, Failure> {
    let offset = address.wrapping_sub(region.as_ptr().addr());
    match offset <= region.len() && len <= region.len() - offset {
        true => Ok(offset),
        false => Err(outside(region, address, len)),
    }
}

#[cold]
fn outside(region: &Region, address: usize, len: usize) -> Failure {
    let (base, end) = (
        region.as_ptr().addr(),
        region.as_ptr().addr() + region.len(),
    );
    let text = format!(
        "{len} bytes at {address:#x} are not in the region, which is {base:#x} to {end:#x}"
    );
    Failure::new(FCAST_NOT_FOUND, text)
}

/// Gives a region back. It is gone, and `release` was called, when nothing is under way any more
/// and no pool, buffer or message of it is left.
#[unsafe(no_mangle)]
pub extern "C" fn fcast_region_release(region: fcast_region) -> fcast_status {
    call(|| REGIONS.release(region.id))
}
