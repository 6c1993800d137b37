//! Payloads that wait for work on a GPU: by a stream of the program's, or by an event.

#![allow(unsafe_code)] // Functions that C calls; streams and events of the program's.

use std::ffi::c_void;

use fabricast::cuda::{Device, Event, Stream};

use crate::call::call;
use crate::handle::PAYLOADS;
use crate::payload::fcast_payload;
use crate::pointer;
use crate::region::{fcast_release_fn, keep_alive};
use crate::status::{Failure, fcast_status};

/// Has a payload wait for all that a CUDA stream was given up to now (a CUstream, or a
/// cudaStream_t; NULL for the default stream of the GPU of that number): whatever it is then given
/// to, sends, publishes or pushes it when that work is done, and reads none of it before. That is
/// accepted at once and keeps its place; sends behind it on the same connection wait for it. Work
/// that fails, fails this one send. May be said of several streams and events. One thread at a
/// time.
///
/// FCAST_DEVICE: no CUDA driver, no such GPU, or the driver refused it; the payload is as it was.
///
/// # Safety
///
/// `stream`: NULL, or a stream of that GPU which is not being captured into a graph. It may be
/// destroyed as soon as this returns. A context of the program's own making that it belongs to
/// stays until the outcome is told, or the payload is released.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_payload_after_stream(
    payload: fcast_payload,
    stream: *mut c_void,
    device: u32,
) -> fcast_status {
    call(|| {
        let device = Device::new(device)?;
        // SAFETY: the caller has promised the stream until this returns, by when it is dropped, and
        // its context for as long as the payload has the event.
        let stream = unsafe { Stream::from_raw(stream, device, Box::new(())) }?;
        wait_for(payload, &stream.record()?)
    })
}

/// As fcast_payload_after_stream, of what a CUDA event (a CUevent, or a cudaEvent_t) stands for;
/// one that was never recorded stands for nothing. `release`, which may be NULL, is called with
/// `context` when the library needs the event no more, on any thread, also where this call fails.
/// One thread at a time.
///
/// FCAST_INVALID: the event is NULL. FCAST_DEVICE: no CUDA driver. The payload is as it was.
///
/// # Safety
///
/// `event`: NULL, or an event that is neither destroyed nor recorded again until `release` is
/// called; where that is NULL, until the outcome is told or the payload is released.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_payload_after_event(
    payload: fcast_payload,
    event: *mut c_void,
    release: fcast_release_fn,
    context: *mut c_void,
) -> fcast_status {
    call(|| {
        let keep = keep_alive(release, context);
        if event.is_null() {
            return Err(pointer::null("event"));
        }
        // SAFETY: the caller has promised it until `release`, which `keep` calls in its drop; or
        // for as long as the payload has it.
        let event = unsafe { Event::from_raw(event, keep) }?;
        wait_for(payload, &event)
    })
}

/// The payload stays in its place, and waits from now on.
fn wait_for(payload: fcast_payload, event: &Event) -> Result<(), Failure> {
    let mut entry = PAYLOADS.enter(payload.id)?;
    let given = std::mem::take(&mut *entry);
    *entry = given.after(event);
    Ok(())
}
