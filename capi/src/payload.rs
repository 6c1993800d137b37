//! Payloads: what can be sent, whatever it lies in.

#![allow(unsafe_code)] // Functions that C calls.

use std::ffi::c_void;

use fabricast::buffer::{Payload, Segment};

use crate::call::call;
use crate::handle::PAYLOADS;
use crate::pointer::{self, Out};
use crate::region::fcast_region;
use crate::send::{fcast_iov, slice_in};
use crate::status::{Failure, fcast_status};

/// A payload: a frozen buffer, a fragment of a ring, the bytes of a message that was kept, or parts
/// of regions. Any thread may use it. A send uses it up.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fcast_payload {
    /// Its number; 0: none.
    pub id: u64,
}

/// Puts a payload into the table.
pub(crate) fn insert(out: Out<fcast_payload>, made: impl Into<Payload>) -> Result<(), Failure> {
    let id = PAYLOADS.insert(made.into())?;
    out.set(fcast_payload { id });
    Ok(())
}

/// Makes a payload of `len` bytes at `data` in a region, which may be a GPU's memory: for what a
/// payload can do and an address can't, such as fcast_payload_after_event and fcast_push_payload.
/// The region stays while the payload does. Any thread.
///
/// FCAST_NOT_FOUND: the data are outside of the region. FCAST_INVALID: the region is a pool's, or a
/// ring's.
///
/// # Safety
///
/// `payload`: NULL, or writable. `data` is looked up in the region, not read; from the send on the
/// bytes must not change before its outcome is told.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_payload_of_region(
    region: fcast_region,
    data: *const c_void,
    len: usize,
    payload: *mut fcast_payload,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(payload, "payload") }?;
        insert(out, slice_in(region, data.addr(), len)?)
    })
}

/// As fcast_payload_of_region, of several pieces that become one message. Each names its region.
///
/// # Safety
///
/// `iov`: NULL, or `count` pieces; `payload`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_payload_of_pieces(
    iov: *const fcast_iov,
    count: usize,
    payload: *mut fcast_payload,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(payload, "payload") }?;
        // SAFETY: the caller's promise.
        let pieces = unsafe { pointer::array(iov, count, "iov") }?;
        let slice = |piece: &fcast_iov| {
            slice_in(piece.region, piece.base.addr(), piece.len).map(Segment::from)
        };
        let segments = pieces.iter().map(slice).collect::<Result<Vec<_>, _>>()?;
        insert(out, segments)
    })
}

/// How many bytes a payload has.
///
/// # Safety
///
/// `len`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_payload_len(
    payload: fcast_payload,
    len: *mut usize,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(len, "len") }?;
        out.set(PAYLOADS.share(payload.id)?.len_bytes());
        Ok(())
    })
}

/// Gives a payload back, unsent.
#[unsafe(no_mangle)]
pub extern "C" fn fcast_payload_release(payload: fcast_payload) -> fcast_status {
    call(|| PAYLOADS.release(payload.id))
}
