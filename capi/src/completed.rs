//! Sends that are done, without an event for each: for many small ones.

#![allow(unsafe_code)] // Functions that C calls.

use crate::call::call;
use crate::endpoint::fcast_endpoint;
use crate::handle::ENDPOINTS;
use crate::pointer::{self, Out};
use crate::status::fcast_status;

/// Drives a sender, and writes the keys of the sends that are done (FCAST_EVENT_COMPLETED), in the
/// order of their outcomes: at most `capacity`, `*count` of them; the others come with the next
/// call. Other events are told by fcast_endpoint_poll: `*has_events` says that there are some,
/// which happened after the sends that are written; none that is behind them is written before they
/// are polled. One thread at a time.
///
/// FCAST_UNSUPPORTED: the endpoint is no sender, or a buffered one.
///
/// # Safety
///
/// `keys`: NULL, or room for `capacity` of them; `count` and `has_events`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_poll_completed(
    endpoint: fcast_endpoint,
    keys: *mut u64,
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
        let places = unsafe { pointer::array_out(keys, capacity, "keys") }?;
        let mut entry = ENDPOINTS.enter(endpoint.id)?;
        count.set(entry.with_events(|entry| entry.face.completed(places))?);
        has_events.set(entry.face.has_events());
        Ok(())
    })
}
