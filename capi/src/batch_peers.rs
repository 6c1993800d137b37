//! Batches to one of many peers, and to those who have subscribed.

#![allow(unsafe_code)] // Functions that C calls.

use std::sync::Arc;

use fabricast::Region;
use fabricast::buffer::RegionSlice;
use fabricast::endpoint::PeerId;

use crate::batch::{count_taken, fcast_outgoing, header_of, stopped, until_wrong};
use crate::call::call;
use crate::endpoint::{Endpoint, fcast_endpoint};
use crate::face::Face;
use crate::handle::ENDPOINTS;
use crate::pointer::{self, Out};
use crate::publish::fcast_publication;
use crate::send::slice_of;
use crate::status::{Failure, fcast_status};

/// A publication of a batch.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fcast_outgoing_publication {
    /// Whose subscribers get it.
    pub tag: u64,
    /// What they get.
    pub message: fcast_outgoing,
}

/// Sends several messages to a peer of a connectionless endpoint, as fcast_send_to each: `*sent` of
/// them, from the first on. Where it stops early, the next call says why with its first message.
/// FCAST_AGAIN and the other failures of fcast_send_to: the first message was not taken, and no
/// other one. One thread at a time.
///
/// # Safety
///
/// `messages`: NULL, or `count` of them, whose headers are readable; `sent`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_send_to_batch(
    endpoint: fcast_endpoint,
    peer: u64,
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
        let Face::Connectionless(sender, _) = face else {
            return Err(face.cannot("have peers"));
        };
        let mut wrong = None;
        let good = until_wrong(messages, &mut wrong, |message| {
            // SAFETY: the caller's promise.
            unsafe { read(message, region.as_ref()) }
        });
        let taken = sender.send_batch(PeerId::from_u64(peer), good);
        out.set(count_taken(stopped(taken, wrong))?);
        Ok(())
    })
}

/// Publishes several, as fcast_publish each: `*published` of them, from the first on. Where it
/// stops early, the next call says why with its first publication. FCAST_NOT_FOUND, FCAST_AGAIN and
/// the other failures of fcast_publish: the first one was not taken, and no other one. Of buffered
/// publishers: FCAST_UNSUPPORTED. One thread at a time.
///
/// # Safety
///
/// `messages`: NULL, or `count` of them, whose headers are readable; `publications`: NULL, or room
/// for `count`, of which the first `*published` are written; `published`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_publish_batch(
    endpoint: fcast_endpoint,
    messages: *const fcast_outgoing_publication,
    count: usize,
    publications: *mut fcast_publication,
    published: *mut usize,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(published, "published") }?;
        // SAFETY: the caller's promise.
        let messages = unsafe { pointer::array(messages, count, "messages") }?;
        let room = if publications.is_null() { 0 } else { count };
        // SAFETY: the caller's promise.
        let places = unsafe { pointer::array_out(publications, room, "publications") }?;
        let mut entry = ENDPOINTS.enter(endpoint.id)?;
        let Endpoint { face, region, .. } = &mut *entry;
        let Face::Publish(publisher, _) = face else {
            return Err(face.cannot("publish batches"));
        };
        let (mut wrong, mut told) = (None, Vec::with_capacity(messages.len()));
        let good = until_wrong(messages, &mut wrong, |of| {
            // SAFETY: the caller's promise.
            let message = unsafe { read(&of.message, region.as_ref()) };
            message.map(|(slice, header, key)| (of.tag, slice, header, key))
        });
        let taken = publisher.publish_batch(good, &mut told);
        let taken = count_taken(stopped(taken, wrong))?;
        for (place, publication) in places.iter_mut().zip(told) {
            place.write(publication.into());
        }
        out.set(taken);
        Ok(())
    })
}

/// A message of C's: its payload, its header and its key.
///
/// # Safety
///
/// The header is readable for as long as `'a`.
unsafe fn read<'a>(
    message: &fcast_outgoing,
    own: Option<&Arc<Region>>,
) -> Result<(RegionSlice, &'a [u8], u64), Failure> {
    // SAFETY: the caller's promise.
    let header = unsafe { header_of(message) }?;
    let slice = slice_of(own, message.region, message.data.addr(), message.len)?;
    Ok((slice, header, message.key))
}
