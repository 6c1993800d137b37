//! Received messages without an event for each: for many small ones.

#![allow(unsafe_code)] // Functions that C calls.

use std::ffi::c_void;
use std::mem::MaybeUninit;

use crate::call::call;
use crate::endpoint::fcast_endpoint;
use crate::face::Face;
use crate::handle::ENDPOINTS;
use crate::pointer::{self, Out};
use crate::status::{Failure, fcast_status};

/// A received message that is borrowed: valid until the next fcast_receive, poll, close or release
/// of its endpoint. What is to be kept for longer is copied, or polled for
/// (fcast_endpoint_poll, fcast_message_keep).
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fcast_received {
    /// The connection that it came by.
    pub connection: u64,
    /// Its number on that connection, from 1.
    pub sequence: u64,
    /// The header as it was sent.
    pub header: *const c_void,
    /// Bytes of the header.
    pub header_len: usize,
    /// The payload.
    pub data: *const c_void,
    /// Bytes of the payload.
    pub data_len: usize,
}

/// Drives a receiver, and writes the messages that came: at most `capacity`, `*count` of them; the
/// others come with the next call. Other events are told by fcast_endpoint_poll: `*has_events` says
/// that there are some, which happened before the messages that are written; none are written where
/// polled messages or events wait that were not taken. One thread at a time.
///
/// FCAST_UNSUPPORTED: the endpoint is no receiver.
///
/// # Safety
///
/// `messages`: NULL, or room for `capacity` of them; `count` and `has_events`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_receive(
    endpoint: fcast_endpoint,
    messages: *mut fcast_received,
    capacity: usize,
    count: *mut usize,
    has_events: *mut bool,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let count = unsafe { Out::new(count, "count") }?;
        // SAFETY: the caller's promise.
        let has_events = unsafe { Out::new(has_events, "has_events") }?;
        // SAFETY: the caller's promise.
        let places = unsafe { pointer::array_out(messages, capacity, "messages") }?;
        let mut entry = ENDPOINTS.enter(endpoint.id)?;
        count.set(entry.with_events(|entry| receive(&mut entry.face, places))?);
        has_events.set(entry.face.has_events());
        Ok(())
    })
}

/// How many messages were written.
fn receive(face: &mut Face, places: &mut [MaybeUninit<fcast_received>]) -> Result<usize, Failure> {
    let Face::Receive(receiver, events) = face else {
        return Err(face.cannot("receive so: poll it"));
    };
    if !events.is_empty() {
        return Ok(0);
    }
    let mut came = Vec::new();
    let mut written = 0;
    let messages = match receiver.receive(&mut came) {
        Ok(messages) => messages,
        Err(error) => {
            events.extend(came);
            return Err(error.into());
        }
    };
    for (place, message) in places.iter_mut().zip(messages) {
        place.write(fcast_received {
            connection: message.connection().as_u64(),
            sequence: message.sequence(),
            header: message.header().as_ptr().cast::<c_void>(),
            header_len: message.header().len(),
            data: message.payload().as_ptr().cast::<c_void>(),
            data_len: message.payload().len(),
        });
        written += 1;
    }
    events.extend(came);
    Ok(written)
}
