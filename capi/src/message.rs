//! Messages that are kept.

#![allow(unsafe_code)] // Functions that C calls.

use fabricast::endpoint::{DeviceMessage, Message};

use crate::call::call;
use crate::endpoint::fcast_endpoint;
use crate::event::fcast_event;
use crate::handle::{ENDPOINTS, MESSAGES, PAYLOADS};
use crate::payload::fcast_payload;
use crate::pointer::{self, Out};
use crate::status::{FCAST_STALE, Failure, fcast_status};

/// A message that is kept, wherever its payload lies.
pub(crate) enum Kept {
    Host(Message),
    Device(DeviceMessage),
}

/// A message that is kept. Any thread may use it; while it is held, its buffer is not received into
/// again.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fcast_message {
    /// Its number; 0: none.
    pub id: u64,
}

/// Keeps the message of an event of the endpoint's last poll: header and data stay where they are
/// until it is released. FCAST_STALE: the event is of an earlier poll, or no message, or was kept.
///
/// # Safety
///
/// `event`: NULL, or readable; `message`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_message_keep(
    endpoint: fcast_endpoint,
    event: *const fcast_event,
    message: *mut fcast_message,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(message, "message") }?;
        // SAFETY: the caller's promise.
        let event = unsafe { event.as_ref() }.ok_or_else(|| pointer::null("event"))?;
        let kept = ENDPOINTS.enter(endpoint.id)?.keep(event);
        let kept = kept.ok_or_else(|| {
            let text = "the event has no message, or is of an earlier poll, or was kept";
            Failure::new(FCAST_STALE, text)
        })?;
        let id = MESSAGES.insert(kept)?;
        out.set(fcast_message { id });
        Ok(())
    })
}

/// Makes the payload of a kept message one that can be sent: forwarded without a copy, where the
/// region of the receive pool (fcast_endpoint_pool, fcast_pool_region) is registered with the
/// domain that it goes out by. The message's handle is used up, unless this fails; its header is
/// gone. Any thread.
///
/// # Safety
///
/// `payload`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_message_payload(
    message: fcast_message,
    payload: *mut fcast_payload,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(payload, "payload") }?;
        let made = match MESSAGES.take(message.id)? {
            Kept::Host(message) => message.into_payload().into(),
            Kept::Device(message) => message.into_payload().into(),
        };
        let id = PAYLOADS.insert(made)?;
        out.set(fcast_payload { id });
        Ok(())
    })
}

/// Gives a kept message back, and its buffer to the endpoint. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn fcast_message_release(message: fcast_message) -> fcast_status {
    call(|| MESSAGES.release(message.id))
}
