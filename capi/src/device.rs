//! Memory of GPUs: regions, which way their bytes go, and what is copied through the host.

#![allow(unsafe_code)] // Functions that C calls.

use std::ffi::{c_char, c_void};
use std::sync::Arc;

use fabricast::Region;
use fabricast::buffer::DeviceBufferManager;
use fabricast::endpoint::{StagingConfig, StagingRing};
use fabricast::memory::{DlManagedTensor, DlManagedTensorVersioned, MemoryError, Path};

use crate::call::call;
use crate::fabric::fcast_domain;
use crate::handle::{DEVICE_POOLS, DOMAINS, REGIONS, STAGINGS};
use crate::pointer::{self, Out};
use crate::region::{fcast_region, fcast_release_fn, keep_alive};
use crate::status::{FCAST_NOT_REGISTERED, Failure, fcast_status};

/// Pinned memory of the host, through which a GPU's memory goes out where the provider can't reach
/// it. Any thread; endpoints may share one (setting `staging`).
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fcast_staging {
    /// Its number; 0: none.
    pub id: u64,
}

/// Buffers of one size in a GPU's memory, to which messages are delivered (setting `deliver_to`).
/// Any thread.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fcast_device_pool {
    /// Its number; 0: none.
    pub id: u64,
}

/// Memory of the host: the bytes go as they lie.
pub const FCAST_PATH_HOST: u32 = 0;
/// Memory of a GPU, which the provider reaches by itself.
pub const FCAST_PATH_DIRECT: u32 = 1;
/// Memory of a GPU, which is copied through memory of the host.
pub const FCAST_PATH_STAGED: u32 = 2;

/// In place of a GPU's number: whichever it is.
pub const FCAST_ANY_DEVICE: i32 = -1;

fn insert(out: Out<fcast_region>, made: Arc<Region>) -> Result<(), Failure> {
    let id = REGIONS.insert(made)?;
    out.set(fcast_region { id });
    Ok(())
}

/// Allocates `len` bytes of the memory of a GPU, by its number. `virtual_memory`: by cuMemCreate,
/// and not by cuMemAlloc. FCAST_DEVICE: no CUDA driver, no such GPU, or no memory; the words say
/// which. Any thread.
///
/// # Safety
///
/// `region`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_region_device(
    len: usize,
    device: u32,
    virtual_memory: bool,
    region: *mut fcast_region,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(region, "region") }?;
        let of = Region::device(len).device(device);
        insert(out, of.virtual_memory(virtual_memory).build()?)
    })
}

/// Makes a region of memory that the program allocated with CUDA: `len` bytes from a CUdeviceptr
/// on. It becomes what it is: memory of a GPU, managed memory, or pinned memory of the host.
/// `device`: the GPU that it must lie on, or FCAST_ANY_DEVICE. `release`, which may be NULL, is
/// called with `context` when the library needs it no more, also where this call fails. Any thread.
///
/// FCAST_INVALID: CUDA knows nothing of the address, or it is another GPU's; FCAST_DEVICE.
///
/// # Safety
///
/// All of the bytes stay allocated until `release` is called; `region`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_region_external_device(
    address: u64,
    len: usize,
    device: i32,
    release: fcast_release_fn,
    context: *mut c_void,
    region: *mut fcast_region,
) -> fcast_status {
    call(|| {
        let keep = keep_alive(release, context);
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(region, "region") }?;
        // SAFETY: the caller has promised that it stays until `release`, which `keep` calls.
        let made = unsafe { Region::external_device(address, len, keep) }?;
        let lies_on = made.kind().device().map(|device| device.ordinal());
        let asked = u32::try_from(device).ok();
        if lies_on.is_some() && asked.is_some() && asked != lies_on {
            let kind = made.kind();
            return Err(Failure::invalid(format!("device = {device}: it is {kind}")));
        }
        insert(out, made)
    })
}

/// Makes a region of a tensor of another library: a DLManagedTensor (DLPack before 1.0), which must
/// lie in one run, of a GPU, of managed or pinned memory, or of the host. The region owns it from
/// now on and calls its deleter, on any thread, when the library needs it no more, also where this
/// call fails. Any thread.
///
/// FCAST_INVALID: not contiguous, of another kind of device, or not where it says; FCAST_DEVICE.
///
/// # Safety
///
/// `tensor`: NULL, or a valid DLManagedTensor that the caller owns; work that fills it is done.
/// `region`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_region_from_dlpack(
    tensor: *mut c_void,
    region: *mut fcast_region,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let made = unsafe { Region::from_dlpack(tensor.cast::<DlManagedTensor>()) };
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(region, "region") }?;
        insert(out, made?)
    })
}

/// The same of a DLManagedTensorVersioned (DLPack 1.0 and later). FCAST_INVALID, too: another major
/// version, or one that nobody may write to.
///
/// # Safety
///
/// As fcast_region_from_dlpack.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_region_from_dlpack_versioned(
    tensor: *mut c_void,
    region: *mut fcast_region,
) -> fcast_status {
    call(|| {
        let tensor = tensor.cast::<DlManagedTensorVersioned>();
        // SAFETY: the caller's promise.
        let made = unsafe { Region::from_dlpack_versioned(tensor) };
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(region, "region") }?;
        insert(out, made?)
    })
}

/// Which way the bytes go between a region and the network of a domain: FCAST_PATH_HOST,
/// FCAST_PATH_DIRECT or FCAST_PATH_STAGED, and why, as a text that ends with a zero. `*len`: the
/// bytes that it needs. FCAST_NOT_REGISTERED: it is not registered with the domain. Any thread.
///
/// # Safety
///
/// `text`: NULL, or `capacity` writable bytes; `path` and `len`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_region_path(
    region: fcast_region,
    domain: fcast_domain,
    path: *mut u32,
    text: *mut c_char,
    capacity: usize,
    len: *mut usize,
) -> fcast_status {
    call(|| {
        let region = REGIONS.share(region.id)?;
        let way = region.path(&*DOMAINS.share(domain.id)?);
        let missing = "the region is not registered with this domain";
        let way = way.ok_or_else(|| Failure::new(FCAST_NOT_REGISTERED, missing))?;
        let kind = match &way {
            Path::Direct(_) => FCAST_PATH_DIRECT,
            Path::Staged(_) => FCAST_PATH_STAGED,
            _ => FCAST_PATH_HOST,
        };
        // SAFETY: the caller's promise.
        unsafe { pointer::put(path, kind) };
        // SAFETY: the caller's promise.
        unsafe { pointer::write_text(&way.to_string(), text, capacity, len) }
    })
}

/// Makes a staging ring: `slots` slots (0 for 32) of `slot_bytes` bytes (0 for 1 MiB) of pinned
/// memory, of any node where `numa_node` is -1. FCAST_DEVICE: no CUDA driver. Any thread.
///
/// # Safety
///
/// `staging`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_staging_create(
    slots: u32,
    slot_bytes: usize,
    headroom: usize,
    numa_node: i32,
    staging: *mut fcast_staging,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(staging, "staging") }?;
        let default = StagingConfig::default();
        let config = StagingConfig {
            slots: if slots == 0 { default.slots } else { slots },
            slot_bytes: match slot_bytes {
                0 => default.slot_bytes,
                some => some,
            },
            headroom,
            numa_node: u32::try_from(numa_node).ok(),
        };
        let id = STAGINGS.insert(StagingRing::new(config)?)?;
        out.set(fcast_staging { id });
        Ok(())
    })
}

/// Gives a staging ring back. It goes when the last endpoint that uses it does. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn fcast_staging_release(staging: fcast_staging) -> fcast_status {
    call(|| STAGINGS.release(staging.id))
}

/// Makes a pool of buffers of `slot_size` bytes of a region of a GPU's memory. Any thread.
///
/// # Safety
///
/// `pool`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_device_pool_create(
    region: fcast_region,
    slot_size: usize,
    pool: *mut fcast_device_pool,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(pool, "pool") }?;
        let region = REGIONS.share(region.id)?.clone();
        let made = DeviceBufferManager::new(region, slot_size);
        let id = DEVICE_POOLS.insert(made.map_err(|error: MemoryError| Failure::from(error))?)?;
        out.set(fcast_device_pool { id });
        Ok(())
    })
}

/// Gives a device pool back. Its memory goes when its last buffer does. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn fcast_device_pool_release(pool: fcast_device_pool) -> fcast_status {
    call(|| DEVICE_POOLS.release(pool.id))
}
