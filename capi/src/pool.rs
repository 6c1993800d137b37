//! Pools of buffers that are shared by endpoints and threads.

#![allow(unsafe_code)] // Functions that C calls.

use std::ffi::c_void;
use std::time::{Duration, Instant};

use fabricast::buffer::{AcquireError, BufferMut, SharedBufferConfig, SharedBufferManager};

use crate::call::call;
use crate::endpoint::fcast_endpoint;
use crate::handle::{BUFFERS, ENDPOINTS, PAYLOADS, POOLS, REGIONS};
use crate::payload::fcast_payload;
use crate::pointer::{self, Out};
use crate::region::fcast_region;
use crate::status::{FCAST_AGAIN, FCAST_TIMED_OUT, Failure, fcast_status};

/// A pool: a region in slots of one size. Any thread may use it.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fcast_pool {
    /// Its number; 0: none.
    pub id: u64,
}

/// A buffer of a pool that the program writes to. One thread at a time.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fcast_buffer {
    /// Its number; 0: none.
    pub id: u64,
}

/// Makes a pool of a region that nothing else was done with but registering it. `headroom`: bytes
/// in front of each slot for headers, for providers of one segment a message; else 0. Any thread.
///
/// # Safety
///
/// `pool`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_pool_create(
    region: fcast_region,
    slot_size: usize,
    headroom: usize,
    pool: *mut fcast_pool,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(pool, "pool") }?;
        let region = REGIONS.share(region.id)?.clone();
        let config = SharedBufferConfig {
            headroom,
            ..SharedBufferConfig::new(slot_size)
        };
        let made = SharedBufferManager::new(region, config)?;
        let id = POOLS.insert(made)?;
        out.set(fcast_pool { id });
        Ok(())
    })
}

/// The receive pool of an endpoint, or the pool of a buffered sender's or publisher's buffers, as a
/// handle of its own: for fcast_pool_status, and for its region, so that what came in can be sent
/// on without a copy. Take no buffers from a receive pool; those of a buffered publisher may be
/// taken, filled and published (fcast_buffer_freeze, fcast_publish_payload). One thread at a time.
///
/// # Safety
///
/// `pool`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_endpoint_pool(
    endpoint: fcast_endpoint,
    pool: *mut fcast_pool,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(pool, "pool") }?;
        let shared = ENDPOINTS.enter(endpoint.id)?.face.pool()?;
        let id = POOLS.insert(shared)?;
        out.set(fcast_pool { id });
        Ok(())
    })
}

/// The region of a pool, as a handle of its own: register it with the domains that send from it.
/// Any thread.
///
/// # Safety
///
/// `region`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_pool_region(
    pool: fcast_pool,
    region: *mut fcast_region,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(region, "region") }?;
        let shared = POOLS.share(pool.id)?.region().clone();
        let id = REGIONS.insert(shared)?;
        out.set(fcast_region { id });
        Ok(())
    })
}

/// How a pool stands: slots, those that are free, and the fewest that ever were. Any thread.
///
/// # Safety
///
/// Each pointer: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_pool_status(
    pool: fcast_pool,
    slots: *mut usize,
    free: *mut usize,
    low_water: *mut usize,
) -> fcast_status {
    call(|| {
        let pool = POOLS.share(pool.id)?;
        let values = [pool.slots(), pool.free_count(), pool.low_water()];
        for (place, value) in [slots, free, low_water].into_iter().zip(values) {
            // SAFETY: the caller's promise.
            unsafe { pointer::put(place, value) };
        }
        Ok(())
    })
}

/// Takes a buffer out of a pool, and waits for one for at most `timeout_ms`. FCAST_AGAIN: none is
/// free, with a timeout of 0; FCAST_TIMED_OUT with another one. Any thread.
///
/// # Safety
///
/// Each pointer: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_pool_acquire(
    pool: fcast_pool,
    timeout_ms: u32,
    buffer: *mut fcast_buffer,
    data: *mut *mut c_void,
    capacity: *mut usize,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(buffer, "buffer") }?;
        // SAFETY: the caller's promise.
        let data = unsafe { Out::new(data, "data") }?;
        let pool = POOLS.share(pool.id)?.clone();
        let taken = match timeout_ms {
            0 => pool.try_acquire().ok_or_else(none_free)?,
            ms => acquire_by(&pool, Duration::from_millis(u64::from(ms)))?,
        };
        // SAFETY: the caller's promise.
        unsafe { hand_out(taken, out, data, capacity) }
    })
}

/// Gives a buffer to the program: its handle, where it begins, and its size.
///
/// # Safety
///
/// `capacity`: null, or writable.
pub(crate) unsafe fn hand_out(
    mut taken: BufferMut,
    out: Out<fcast_buffer>,
    data: Out<*mut c_void>,
    capacity: *mut usize,
) -> Result<(), Failure> {
    let (at, len) = (taken.as_mut_ptr(), taken.len());
    let id = BUFFERS.insert(taken)?;
    out.set(fcast_buffer { id });
    data.set(at.cast::<c_void>());
    // SAFETY: the caller's promise.
    unsafe { pointer::put(capacity, len) };
    Ok(())
}

#[cold]
fn none_free() -> Failure {
    Failure::new(FCAST_AGAIN, "would block: no buffer of the pool is free")
}

fn acquire_by(pool: &SharedBufferManager, timeout: Duration) -> Result<BufferMut, Failure> {
    pool.acquire(Instant::now() + timeout)
        .map_err(|error| match error {
            AcquireError::TimedOut { .. } => Failure::new(FCAST_TIMED_OUT, error.to_string()),
            _ => Failure::invalid(error.to_string()),
        })
}

/// Makes the first `len` bytes of a buffer a payload, which can be sent. The buffer's handle is
/// used up, unless this fails.
///
/// # Safety
///
/// `payload`: NULL, or writable. Nothing is written to the buffer from now on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_buffer_freeze(
    buffer: fcast_buffer,
    len: usize,
    payload: *mut fcast_payload,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(payload, "payload") }?;
        let capacity = BUFFERS.enter(buffer.id)?.len();
        if len > capacity {
            return Err(too_long(len, capacity));
        }
        let frozen = BUFFERS.take(buffer.id)?.freeze(len);
        let id = PAYLOADS.insert(frozen.into())?;
        out.set(fcast_payload { id });
        Ok(())
    })
}

#[cold]
pub(crate) fn too_long(len: usize, capacity: usize) -> Failure {
    Failure::invalid(format!("len = {len}: the buffer has {capacity} bytes"))
}

/// Gives a buffer back to its pool, unsent.
#[unsafe(no_mangle)]
pub extern "C" fn fcast_buffer_release(buffer: fcast_buffer) -> fcast_status {
    call(|| BUFFERS.release(buffer.id))
}

/// Gives a pool back. Its memory goes when its last buffer does.
#[unsafe(no_mangle)]
pub extern "C" fn fcast_pool_release(pool: fcast_pool) -> fcast_status {
    call(|| POOLS.release(pool.id))
}
