//! Rings: a region that is filled in order and drained in any.

#![allow(unsafe_code)] // Functions that C calls.

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::time::Instant;

use fabricast::buffer::{Reservation, RingConfig, RingRegion};

use crate::call::call;
use crate::handle::{PAYLOADS, REGIONS, RESERVATIONS, RINGS};
use crate::payload::fcast_payload;
use crate::pointer::{self, Out};
use crate::pool::too_long;
use crate::region::fcast_region;
use crate::status::fcast_status;

/// A ring: a region that a card or a reader fills in order. One thread at a time; what was reserved
/// and committed is any thread's.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fcast_ring {
    /// Its number; 0: none.
    pub id: u64,
}

/// Bytes of a ring that are to be filled. Any thread.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fcast_reservation {
    /// Its number; 0: none.
    pub id: u64,
}

/// Bytes to be written to.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fcast_span {
    /// Where they begin.
    pub data: *mut c_void,
    /// How many; 0: none.
    pub len: usize,
}

/// Makes a ring of all of a region: of this library's, or of memory of the program's, such as the
/// DMA buffer of a card. `max_fragments`: reservations and payloads that are out at once; 0 for
/// 65,536. `headroom`: bytes in front of each piece for headers, for providers of one segment a
/// message; else 0. Any thread.
///
/// # Safety
///
/// `ring`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_ring_create(
    region: fcast_region,
    max_fragments: u32,
    headroom: usize,
    ring: *mut fcast_ring,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(ring, "ring") }?;
        let region = REGIONS.share(region.id)?.clone();
        let default = RingConfig::default();
        let config = RingConfig {
            max_fragments: match max_fragments {
                0 => default.max_fragments,
                some => some,
            },
            headroom,
        };
        let id = RINGS.insert(RingRegion::new(region, config)?)?;
        out.set(fcast_ring { id });
        Ok(())
    })
}

/// Takes the next `len` bytes of a ring: they lie in spans[0] and, where they go over the end of
/// the region, spans[1]. In a ring with headroom spans[1] is always empty. Several reservations may
/// be out. FCAST_AGAIN: no room before the oldest come back; FCAST_TOO_LONG: the ring is smaller.
/// One thread at a time.
///
/// # Safety
///
/// `reservation`: NULL, or writable; `spans`: NULL, or room for two.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_ring_reserve(
    ring: fcast_ring,
    len: usize,
    reservation: *mut fcast_reservation,
    spans: *mut fcast_span,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(reservation, "reservation") }?;
        // SAFETY: the caller's promise.
        let places = unsafe { pointer::array_out(spans, 2, "spans") }?;
        let reserved = RINGS.enter(ring.id)?.reserve(len)?;
        let found = spans_of(&reserved);
        let id = RESERVATIONS.insert(reserved)?;
        for (place, span) in places.iter_mut().zip(found) {
            *place = MaybeUninit::new(span);
        }
        out.set(fcast_reservation { id });
        Ok(())
    })
}

fn spans_of(reserved: &Reservation) -> [fcast_span; 2] {
    let base = reserved.region().as_ptr();
    let (first, second) = reserved.ranges();
    [first, second].map(|range| fcast_span {
        data: base.wrapping_add(range.start).cast::<c_void>(),
        len: range.len(),
    })
}

/// Makes the first `len` bytes of a reservation a payload; where it is the newest one, the rest is
/// free again at once. The reservation's handle is used up, unless this fails. The bytes must not
/// change any more, and are free again when the payload was sent or released. One thread at a time.
///
/// # Safety
///
/// `payload`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_ring_commit(
    ring: fcast_ring,
    reservation: fcast_reservation,
    len: usize,
    payload: *mut fcast_payload,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(payload, "payload") }?;
        let mut ring = RINGS.enter(ring.id)?;
        let reserved = RESERVATIONS.enter(reservation.id)?.len();
        if len > reserved {
            return Err(too_long(len, reserved));
        }
        let taken = RESERVATIONS.take(reservation.id)?;
        let id = PAYLOADS.insert(ring.commit(taken, len).into())?;
        out.set(fcast_payload { id });
        Ok(())
    })
}

/// How a ring stands: the bytes handed out and those up to which everything came back, both counted
/// since it was made (a card may write up to `*tail` + the region's length), the bytes that can be
/// reserved now, the pieces that are out, and for how many milliseconds the oldest of them has
/// been. One thread at a time.
///
/// # Safety
///
/// Each pointer: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_ring_status(
    ring: fcast_ring,
    head: *mut u64,
    tail: *mut u64,
    free_bytes: *mut usize,
    outstanding: *mut usize,
    oldest_ms: *mut u64,
) -> fcast_status {
    call(|| {
        let mut ring = RINGS.enter(ring.id)?;
        let age = ring.oldest_age(Instant::now()).unwrap_or_default();
        // SAFETY: the caller's promise.
        unsafe { pointer::put(head, ring.head()) };
        // SAFETY: the caller's promise.
        unsafe { pointer::put(tail, ring.tail()) };
        // SAFETY: the caller's promise.
        unsafe { pointer::put(free_bytes, ring.free_bytes()) };
        // SAFETY: the caller's promise.
        unsafe { pointer::put(outstanding, ring.outstanding()) };
        // SAFETY: the caller's promise.
        unsafe {
            pointer::put(
                oldest_ms,
                u64::try_from(age.as_millis()).unwrap_or(u64::MAX),
            )
        };
        Ok(())
    })
}

/// Gives a reservation back, unfilled. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn fcast_reservation_release(reservation: fcast_reservation) -> fcast_status {
    call(|| RESERVATIONS.release(reservation.id))
}

/// Gives a ring back. Its memory goes when the last piece does. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn fcast_ring_release(ring: fcast_ring) -> fcast_status {
    call(|| RINGS.release(ring.id))
}
