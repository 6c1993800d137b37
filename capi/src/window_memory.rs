//! Windows of buffers and payloads, which are given back when nobody reaches them any more.

#![allow(unsafe_code)] // Functions that C calls.

use std::ffi::c_void;

use fabricast::buffer::Payload;
use fabricast::endpoint::{Access, ConnectionId, LocalWindow, WindowMemory, Windows};

use crate::call::call;
use crate::endpoint::fcast_endpoint;
use crate::event::{FCAST_EVENT_WINDOW_RELEASED, Held, fcast_event};
use crate::handle::{BUFFERS, ENDPOINTS};
use crate::payload::fcast_payload;
use crate::pointer::{self, Out};
use crate::pool::{fcast_buffer, hand_out};
use crate::send::using;
use crate::status::{FCAST_STALE, FCAST_UNSUPPORTED, Failure, fcast_status};
use crate::window::{fcast_window, insert, rights, windows};

/// Lets the peer of a connection use all of a buffer of a pool, as fcast_window_expose. The
/// buffer's handle is used up, unless this fails; FCAST_EVENT_WINDOW_RELEASED gives the buffer
/// back, with what the peer wrote (fcast_buffer_keep). One thread at a time.
///
/// # Safety
///
/// `window`: NULL, or writable. Where the peer may write, the buffer's bytes change at any time;
/// this side does not write to them while they are exposed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_window_expose_buffer(
    endpoint: fcast_endpoint,
    connection: u64,
    buffer: fcast_buffer,
    access: u32,
    window: *mut fcast_window,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(window, "window") }?;
        let rights = rights(access)?;
        let mut entry = ENDPOINTS.enter(endpoint.id)?;
        let of = windows(&mut entry.face, ConnectionId::from_u64(connection))?;
        let exposed = BUFFERS.try_take(buffer.id, |taken| {
            expose(of, taken.into(), rights).map_err(|(failure, memory)| {
                let back = memory.into_buffer_mut();
                (failure, back.expect("what was given comes back"))
            })
        });
        insert(out, exposed?)
    })
}

/// As fcast_window_expose_buffer, of a payload that lies in one piece: a frozen buffer or the bytes
/// of a message that was kept, which the peer may read alone, a part of a region, or a buffer in a
/// GPU's memory. Its handle is used up, unless this fails; what it is of goes back to where it came
/// from when nobody reaches it any more. One thread at a time.
///
/// FCAST_UNSUPPORTED, too: a fragment of a ring, several pieces, or a payload that waits for work
/// of a GPU; or a GPU's memory that the provider can't reach.
///
/// # Safety
///
/// `window`: NULL, or writable. Where the peer may write, the bytes change at any time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_window_expose_payload(
    endpoint: fcast_endpoint,
    connection: u64,
    payload: fcast_payload,
    access: u32,
    window: *mut fcast_window,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(window, "window") }?;
        let rights = rights(access)?;
        let mut entry = ENDPOINTS.enter(endpoint.id)?;
        let of = windows(&mut entry.face, ConnectionId::from_u64(connection))?;
        let exposed = using(payload, |given| {
            let memory = memory_of(given)?;
            expose(of, memory, rights).map_err(|(failure, memory)| (failure, back(memory)))
        });
        insert(out, exposed?)
    })
}

/// Exposes; refused memory comes back.
fn expose(
    mut of: Windows<'_>,
    memory: WindowMemory,
    rights: Access,
) -> Result<LocalWindow, (Failure, WindowMemory)> {
    let exposed = of.expose(memory, rights);
    exposed.map_err(|refused| (refused.kind.into(), refused.given))
}

/// What a payload lies in, where a window can be of it.
fn memory_of(payload: Payload) -> Result<WindowMemory, (Failure, Payload)> {
    if payload.is_after() {
        let text = "the payload waits for work of a GPU, which a window does not";
        return Err((Failure::new(FCAST_UNSUPPORTED, text), payload));
    }
    let other = match payload.into_buffer() {
        Ok(buffer) => return Ok(buffer.into()),
        Err(other) => other,
    };
    let other = match other.into_slice() {
        Ok(slice) => return Ok(slice.into()),
        Err(other) => other,
    };
    other
        .into_device_buffer()
        .map(WindowMemory::from)
        .map_err(|other| {
            let text = "a window is of one piece: a buffer, or a part of a region";
            (Failure::new(FCAST_UNSUPPORTED, text), other)
        })
}

/// The payload that `memory_of` was given.
fn back(memory: WindowMemory) -> Payload {
    let other = match memory.into_buffer() {
        Ok(buffer) => return buffer.into(),
        Err(other) => other,
    };
    let other = match other.into_slice() {
        Ok(slice) => return slice.into(),
        Err(other) => other,
    };
    let buffer = other.into_device_buffer();
    buffer.map_or_else(|_| Payload::empty(), Payload::from)
}

/// Nobody reaches a window any more: a buffer is held for who keeps it, all else goes back.
pub(crate) fn released(id: u64, memory: WindowMemory) -> (fcast_event, Held) {
    let held = memory.into_buffer_mut().map_or(Held::Nothing, Held::Buffer);
    (fcast_event::keyed(FCAST_EVENT_WINDOW_RELEASED, id), held)
}

/// Takes the buffer back that FCAST_EVENT_WINDOW_RELEASED of the endpoint's last poll is about, as
/// fcast_pool_acquire gives one, with what the peer wrote. One that nobody takes goes to its pool
/// with the next poll. FCAST_STALE: the event is of an earlier poll, or of no buffer, or it was
/// taken. One thread at a time.
///
/// # Safety
///
/// `event`: NULL, or readable; each other pointer: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_buffer_keep(
    endpoint: fcast_endpoint,
    event: *const fcast_event,
    buffer: *mut fcast_buffer,
    data: *mut *mut c_void,
    capacity: *mut usize,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(buffer, "buffer") }?;
        // SAFETY: the caller's promise.
        let data = unsafe { Out::new(data, "data") }?;
        // SAFETY: the caller's promise.
        let event = unsafe { event.as_ref() }.ok_or_else(|| pointer::null("event"))?;
        let kept = ENDPOINTS.enter(endpoint.id)?.keep_buffer(event);
        let kept = kept.ok_or_else(|| {
            let text = "the event has no buffer, or is of an earlier poll, or it was taken";
            Failure::new(FCAST_STALE, text)
        })?;
        // SAFETY: the caller's promise.
        unsafe { hand_out(kept, out, data, capacity) }
    })
}
