//! Waiting: a sleep, or the descriptors and the rules for a loop of the program's own.

#![allow(unsafe_code)] // Functions that C calls.

use std::mem::MaybeUninit;
use std::time::{Duration, Instant};

use fabricast::event_loop::WaitHandle;

use crate::call::call;
use crate::endpoint::{Endpoint, fcast_endpoint};
use crate::handle::ENDPOINTS;
use crate::object_server::{CHANNELS, fcast_object_channel};
use crate::pointer::{self, Out};
use crate::status::{Failure, fcast_status};

impl Endpoint {
    pub(crate) fn wait_handle(&self) -> Result<WaitHandle, Failure> {
        self.face
            .wait_handle()
            .ok_or_else(|| self.face.cannot("wait"))
    }

    /// Whether events wait that were polled for and not taken.
    pub(crate) fn has_events(&self) -> bool {
        self.face.has_events()
    }
}

/// Sleeps until there may be something to poll for, for at most `timeout_ms`. FCAST_OK in either
/// case. One thread at a time.
#[unsafe(no_mangle)]
pub extern "C" fn fcast_endpoint_wait(endpoint: fcast_endpoint, timeout_ms: u32) -> fcast_status {
    call(|| {
        let entry = ENDPOINTS.enter(endpoint.id)?;
        if entry.has_events() {
            return Ok(());
        }
        let timeout = Duration::from_millis(u64::from(timeout_ms));
        entry.face.wait(timeout)
    })
}

/// The descriptors that become readable when there is something to poll for, for a loop of the
/// program's: `*count` of them, of which `capacity` are written. They stay the same while the
/// endpoint is open, and are not to be read, written or closed. One thread at a time.
///
/// # Safety
///
/// `fds`: NULL, or room for `capacity`; `count`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_endpoint_fds(
    endpoint: fcast_endpoint,
    fds: *mut i32,
    capacity: usize,
    count: *mut usize,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(count, "count") }?;
        // SAFETY: the caller's promise.
        let places = unsafe { pointer::array_out(fds, capacity, "fds") }?;
        let handle = ENDPOINTS.enter(endpoint.id)?.wait_handle()?;
        out.set(write_fds(&handle, places));
        Ok(())
    })
}

/// Writes as many descriptors as there is room for; gives how many there are.
fn write_fds(handle: &WaitHandle, places: &mut [MaybeUninit<i32>]) -> usize {
    let all = handle.fds();
    for (place, fd) in places.iter_mut().zip(&all) {
        place.write(*fd);
    }
    all.len()
}

/// To be called right before a loop of the program's sleeps: `*may_sleep` says whether it may, and
/// `*timeout_ms` for how long at most (-1: for as long as it likes). Where it may not, the endpoint
/// is to be polled first. One thread at a time.
///
/// # Safety
///
/// Each pointer: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_endpoint_prepare_wait(
    endpoint: fcast_endpoint,
    may_sleep: *mut bool,
    timeout_ms: *mut i32,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let sleep = unsafe { Out::new(may_sleep, "may_sleep") }?;
        // SAFETY: the caller's promise.
        let timeout = unsafe { Out::new(timeout_ms, "timeout_ms") }?;
        let entry = ENDPOINTS.enter(endpoint.id)?;
        let handle = entry.wait_handle()?;
        prepare(&handle, entry.has_events(), (sleep, timeout))
    })
}

fn prepare(
    handle: &WaitHandle,
    has_events: bool,
    (sleep, timeout): (Out<bool>, Out<i32>),
) -> Result<(), Failure> {
    sleep.set(!has_events && handle.prepare_wait()?);
    timeout.set(handle.next_deadline().map_or(-1, milliseconds_until));
    Ok(())
}

/// As fcast_endpoint_fds, of a channel of objects. FCAST_CLOSED: it was closed. One thread at a
/// time.
///
/// # Safety
///
/// `fds`: NULL, or room for `capacity`; `count`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_object_channel_fds(
    channel: fcast_object_channel,
    fds: *mut i32,
    capacity: usize,
    count: *mut usize,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(count, "count") }?;
        // SAFETY: the caller's promise.
        let places = unsafe { pointer::array_out(fds, capacity, "fds") }?;
        let handle = CHANNELS.enter(channel.id)?.wait_handle()?;
        out.set(write_fds(&handle, places));
        Ok(())
    })
}

/// As fcast_endpoint_prepare_wait, of a channel of objects. FCAST_CLOSED: it was closed. One thread
/// at a time.
///
/// # Safety
///
/// Each pointer: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_object_channel_prepare_wait(
    channel: fcast_object_channel,
    may_sleep: *mut bool,
    timeout_ms: *mut i32,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let sleep = unsafe { Out::new(may_sleep, "may_sleep") }?;
        // SAFETY: the caller's promise.
        let timeout = unsafe { Out::new(timeout_ms, "timeout_ms") }?;
        let mut entry = CHANNELS.enter(channel.id)?;
        let handle = entry.wait_handle()?;
        prepare(&handle, entry.has_events(), (sleep, timeout))
    })
}

/// Rounded up, so that a sleep does not end a little too early again and again.
fn milliseconds_until(deadline: Instant) -> i32 {
    let left = deadline.saturating_duration_since(Instant::now());
    i32::try_from(left.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX)
}
