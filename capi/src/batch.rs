//! Batches: several messages in one call.

#![allow(unsafe_code)] // Functions that C calls.

use std::ffi::c_void;
use std::slice;
use std::sync::Arc;

use fabricast::buffer::RegionPart;
use fabricast::endpoint::BatchError;
use fabricast::{Region, SendEndpointZeroCopy};

use crate::call::call;
use crate::endpoint::{Endpoint, fcast_endpoint};
use crate::face::Face;
use crate::handle::ENDPOINTS;
use crate::pointer::{self, Out};
use crate::region::fcast_region;
use crate::send::{Named, or_over, part_at};
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
        let (mut taken, mut end) = (0, None);
        for run in messages.chunk_by(|one, next| one.region.id == next.region.id) {
            // SAFETY: the caller's promise.
            let (sent, stopped) = unsafe { send_run(sender, region.as_ref(), run) };
            taken += sent;
            end = stopped;
            if end.is_some() {
                break;
            }
        }
        let counted = count_taken((taken, end));
        out.set(counted.map_err(|failure| or_over(face, failure))?);
        Ok(())
    })
}

/// Sends messages that name the same region: how many, and why no more.
///
/// # Safety
///
/// Their headers are readable.
unsafe fn send_run(
    sender: &mut SendEndpointZeroCopy,
    own: Option<&Arc<Region>>,
    run: &[fcast_outgoing],
) -> (usize, Option<Failure>) {
    let region = match Named::find(own, run[0].region) {
        Ok(region) => region,
        Err(failure) => return (0, Some(failure)),
    };
    let mut wrong = None;
    let good = until_wrong(run, &mut wrong, |message| {
        // SAFETY: the caller's promise.
        unsafe { read(message, &region) }
    });
    let sent = sender.send_part_batch(good);
    stopped(sent, wrong)
}

/// # Safety
///
/// The header is readable for as long as `'a`.
#[inline(always)]
unsafe fn read<'a, 'r>(
    message: &fcast_outgoing,
    region: &'r Arc<Region>,
) -> Result<(RegionPart<'r>, &'a [u8], u64), Failure> {
    // SAFETY: the caller's promise.
    let header = unsafe { header_of(message) }?;
    let part = part_at(region, message.data.addr(), message.len)?;
    Ok((part, header, message.key))
}

/// # Safety
///
/// The header is readable for as long as `'a`.
#[inline(always)]
pub(crate) unsafe fn header_of<'a>(message: &fcast_outgoing) -> Result<&'a [u8], Failure> {
    let (header, len) = (message.header.cast::<u8>(), message.header_len);
    // SAFETY: the caller's promise.
    unsafe { pointer::bytes(header, len, "header") }
}

/// What can be read, up to the first that can't, of which `wrong` says why.
#[inline]
pub(crate) fn until_wrong<'m, M, T, F: Fn(&'m M) -> Result<T, Failure>>(
    messages: &'m [M],
    wrong: &'m mut Option<Failure>,
    read: F,
) -> UntilWrong<'m, M, F> {
    let messages = messages.iter();
    UntilWrong {
        messages,
        wrong,
        read,
    }
}

/// An iterator of its own, since nothing else has a call for each message made a part of its loop.
pub(crate) struct UntilWrong<'m, M, F> {
    messages: slice::Iter<'m, M>,
    wrong: &'m mut Option<Failure>,
    read: F,
}

impl<'m, M, T, F: Fn(&'m M) -> Result<T, Failure>> Iterator for UntilWrong<'m, M, F> {
    type Item = T;

    #[inline(always)]
    fn next(&mut self) -> Option<T> {
        match (self.read)(self.messages.next()?) {
            Ok(message) => Some(message),
            Err(failure) => {
                *self.wrong = Some(failure);
                None
            }
        }
    }
}

/// How many were sent, and why no more.
pub(crate) fn stopped(
    sent: Result<usize, BatchError>,
    wrong: Option<Failure>,
) -> (usize, Option<Failure>) {
    match sent {
        Ok(sent) => (sent, wrong),
        Err(stopped) => (stopped.sent, Some(stopped.refused.kind.into())),
    }
}

/// How many were taken of a batch; a failure where the first one was not.
pub(crate) fn count_taken((taken, stopped): (usize, Option<Failure>)) -> Result<usize, Failure> {
    match stopped {
        Some(failure) if taken == 0 => Err(failure),
        _ => Ok(taken),
    }
}
