//! One-sided operations: writes to windows of a peer, and reads from them.

#![allow(unsafe_code)] // Functions that C calls.

use std::ffi::c_void;

use fabricast::buffer::Payload;
use fabricast::endpoint::{Refused, WindowPlace, Windows};

use crate::call::call;
use crate::endpoint::fcast_endpoint;
use crate::handle::{ENDPOINTS, REMOTE_WINDOWS};
use crate::payload::fcast_payload;
use crate::region::fcast_region;
use crate::send::{slice_of, using};
use crate::status::{Failure, fcast_status};
use crate::window::{fcast_remote_window, windows};

/// What is written: bytes at an address.
struct Bytes {
    region: fcast_region,
    data: *const c_void,
    len: usize,
}

/// Writes the bytes by one of the ways that there are.
#[inline]
fn write(
    endpoint: fcast_endpoint,
    (window, offset): (fcast_remote_window, u64),
    bytes: Bytes,
    post: impl FnOnce(Windows<'_>, Payload, WindowPlace<'_>) -> Result<(), Refused<Payload>>,
) -> fcast_status {
    call(|| {
        let mut entry = ENDPOINTS.enter(endpoint.id)?;
        let remote = REMOTE_WINDOWS.share(window.id)?;
        let own = entry.region.as_ref();
        let slice = slice_of(own, bytes.region, bytes.data.addr(), bytes.len)?;
        let of = windows(&mut entry.face, remote.connection())?;
        post(of, slice.into(), remote.at(offset)).map_err(|refused| refused.kind.into())
    })
}

/// Writes `len` bytes at `data` into a window of the peer, `offset` bytes behind its start. Returns
/// at once; FCAST_EVENT_WRITTEN says that they are in the peer's memory, FCAST_EVENT_WRITE_FAILED
/// that they may not be, and until then they must not change. `region`: as for fcast_send. One
/// thread at a time.
///
/// FCAST_AGAIN: not now; FCAST_INVALID: beyond the window, or without the right to; FCAST_CLOSED:
/// the window was revoked, or the connection is over: nothing was taken.
#[unsafe(no_mangle)]
pub extern "C" fn fcast_window_write(
    endpoint: fcast_endpoint,
    window: fcast_remote_window,
    offset: u64,
    region: fcast_region,
    data: *const c_void,
    len: usize,
    key: u64,
) -> fcast_status {
    let bytes = Bytes { region, data, len };
    write(
        endpoint,
        (window, offset),
        bytes,
        |mut of, payload, place| of.write(payload, place, key),
    )
}

/// As fcast_window_write, and tells the peer: FCAST_EVENT_PEER_WROTE comes there with `value`, when
/// all of the bytes are in its memory. It takes a credit, as a message does. FCAST_UNSUPPORTED: the
/// provider's immediate data are too short. One thread at a time.
#[unsafe(no_mangle)]
pub extern "C" fn fcast_window_write_with_data(
    endpoint: fcast_endpoint,
    window: fcast_remote_window,
    offset: u64,
    region: fcast_region,
    data: *const c_void,
    len: usize,
    value: u32,
    key: u64,
) -> fcast_status {
    let bytes = Bytes { region, data, len };
    write(
        endpoint,
        (window, offset),
        bytes,
        |mut of, payload, place| of.write_with_data(payload, place, value, key),
    )
}

/// As fcast_window_write, but FCAST_EVENT_WRITTEN says only that the bytes may be changed, also for
/// writes that never reach the peer's memory: for those who hear of arrival by other means. One
/// thread at a time.
#[unsafe(no_mangle)]
pub extern "C" fn fcast_window_write_unconfirmed(
    endpoint: fcast_endpoint,
    window: fcast_remote_window,
    offset: u64,
    region: fcast_region,
    data: *const c_void,
    len: usize,
    key: u64,
) -> fcast_status {
    let bytes = Bytes { region, data, len };
    write(
        endpoint,
        (window, offset),
        bytes,
        |mut of, payload, place| of.write_unconfirmed(payload, place, key),
    )
}

/// As fcast_window_write, of a payload, whose handle is used up, unless this fails. One thread at a
/// time.
#[unsafe(no_mangle)]
pub extern "C" fn fcast_window_write_payload(
    endpoint: fcast_endpoint,
    window: fcast_remote_window,
    offset: u64,
    payload: fcast_payload,
    key: u64,
) -> fcast_status {
    call(|| {
        let mut entry = ENDPOINTS.enter(endpoint.id)?;
        let remote = REMOTE_WINDOWS.share(window.id)?;
        let mut of = windows(&mut entry.face, remote.connection())?;
        using(payload, |given| {
            let written = of.write(given, remote.at(offset), key);
            written.map_err(|refused| (Failure::from(refused.kind), refused.given))
        })
    })
}

/// Reads `len` bytes from a window of the peer, `offset` bytes behind its start, to `into`, which
/// lies in `region`: {0} for that of the endpoint's settings. Returns at once; FCAST_EVENT_READ
/// says that they are there, FCAST_EVENT_READ_FAILED that they may not be. As fcast_window_write in
/// all else. One thread at a time.
///
/// # Safety
///
/// Nobody uses the memory at `into` until the outcome is told.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_window_read(
    endpoint: fcast_endpoint,
    window: fcast_remote_window,
    offset: u64,
    region: fcast_region,
    into: *mut c_void,
    len: usize,
    key: u64,
) -> fcast_status {
    call(|| {
        let mut entry = ENDPOINTS.enter(endpoint.id)?;
        let remote = REMOTE_WINDOWS.share(window.id)?;
        let slice = slice_of(entry.region.as_ref(), region, into.addr(), len)?;
        let mut of = windows(&mut entry.face, remote.connection())?;
        let read = of.read(slice, remote.at(offset), key);
        read.map_err(|refused| refused.kind.into())
    })
}
