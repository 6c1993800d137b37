//! Payloads: what can be sent, whatever it lies in.

#![allow(unsafe_code)] // Functions that C calls.

use crate::call::call;
use crate::handle::PAYLOADS;
use crate::pointer::Out;
use crate::status::fcast_status;

/// A payload: a frozen buffer, a fragment of a ring, or the bytes of a message that was kept. Any
/// thread may use it. A send uses it up.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fcast_payload {
    /// Its number; 0: none.
    pub id: u64,
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
