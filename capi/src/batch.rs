//! Batches: several messages in one call.

#![allow(unsafe_code)] // Functions that C calls.

use std::ffi::c_void;
use std::sync::Arc;

use fabricast::Region;
use fabricast::buffer::RegionSlice;

use crate::call::call;
use crate::endpoint::{Endpoint, fcast_endpoint};
use crate::face::Face;
use crate::handle::ENDPOINTS;
use crate::pointer::{self, Out};
use crate::region::fcast_region;
use crate::send::slice_of;
use crate::status::{Failure, fcast_status};

/// A message of a batch.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fcast_outgoing {
    /// Where its payload begins: an address in the region.
    pub data: *const c_void,
    /// Bytes of the payload.
    pub len: usize,
    /// The region that it lies in; {0}: the one of the endpoint's settings.
    pub region: fcast_region,
    /// The header, which is copied; NULL where there is none.
    pub header: *const c_void,
    /// Bytes of the header.
    pub header_len: usize,
    /// Comes back with the outcome.
    pub key: u64,
}

/// Sends several messages by a sender, as fcast_send each: `*sent` of them, from the first on.
/// Where it stops early, the next call says why with its first message. FCAST_AGAIN and the other
/// failures of fcast_send: the first message was not taken, and no other one. One thread at a time.
///
/// # Safety
///
/// `messages`: NULL, or `count` of them, whose headers are readable; `sent`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_send_batch(
    endpoint: fcast_endpoint,
    messages: *const fcast_outgoing,
    count: usize,
    sent: *mut usize,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(sent, "sent") }?;
        // SAFETY: the caller's promise.
        let messages = unsafe { pointer::array(messages, count, "messages") }?;
        let mut entry = ENDPOINTS.enter(endpoint.id)?;
        let Endpoint { face, region, .. } = &mut *entry;
        let Face::Send(sender, _) = face else {
            return Err(face.cannot("send batches"));
        };
        let mut wrong = None;
        let good = messages.iter().map_while(|message| {
            // SAFETY: the caller's promise.
            match unsafe { read(message, region.as_ref()) } {
                Ok(message) => Some(message),
                Err(failure) => {
                    wrong = Some(failure);
                    None
                }
            }
        });
        let (taken, stopped) = match sender.send_batch(good) {
            Ok(taken) => (taken, wrong),
            Err(stopped) => (stopped.sent, Some(stopped.refused.kind.into())),
        };
        match stopped {
            Some(failure) if taken == 0 => Err(failure),
            _ => {
                out.set(taken);
                Ok(())
            }
        }
    })
}

/// A message of C's: its payload, its header and its key.
///
/// # Safety
///
/// The header is readable for as long as `'a`.
pub(crate) unsafe fn read<'a>(
    message: &fcast_outgoing,
    own: Option<&Arc<Region>>,
) -> Result<(RegionSlice, &'a [u8], u64), Failure> {
    let (header, len) = (message.header.cast::<u8>(), message.header_len);
    // SAFETY: the caller's promise.
    let header = unsafe { pointer::bytes(header, len, "header") }?;
    let slice = slice_of(own, message.region, message.data.addr(), message.len)?;
    Ok((slice, header, message.key))
}
