//! What C calls of event loops.

#![allow(unsafe_code)] // Functions that C calls.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use fabricast::event_loop::{Interest, WaitHandle};

use crate::call::call;
use crate::endpoint::fcast_endpoint;
use crate::event_loop::{
    Kind, LOOPS, Loop, SIGNALS, fcast_loop, fcast_loop_event, fcast_loop_settings, fcast_signal,
};
use crate::handle::ENDPOINTS;
use crate::object_server::{CHANNELS, fcast_object_channel};
use crate::pointer::{self, Out};
use crate::status::{FCAST_NOT_FOUND, Failure, fcast_status};
use crate::untaken::Untaken;

/// Makes an event loop. FCAST_INVALID: a setting; FCAST_SYSTEM: no descriptors are left. Any
/// thread.
///
/// # Safety
///
/// `settings`: NULL, or a struct whose size field is right; `made`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_loop_create(
    settings: *const fcast_loop_settings,
    made: *mut fcast_loop,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(made, "made") }?;
        // SAFETY: the caller's promise.
        let settings: fcast_loop_settings = unsafe { pointer::sized(settings, "settings") }?;
        let id = LOOPS.insert(Loop::new(&settings)?)?;
        out.set(fcast_loop { id });
        Ok(())
    })
}

/// Has a loop say FCAST_LOOP_ENDPOINT whenever the endpoint should be polled, and once at the
/// start. The loop polls nothing itself. An endpoint that is released is forgotten by itself, and
/// may be removed before. `key` comes with each event. FCAST_SYSTEM with EEXIST: it is in the loop
/// already. One thread at a time.
///
/// # Safety
///
/// `token`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_loop_add_endpoint(
    in_loop: fcast_loop,
    endpoint: fcast_endpoint,
    key: u64,
    token: *mut u64,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(token, "token") }?;
        let handle = || {
            let entry = ENDPOINTS.enter(endpoint.id)?;
            Ok((entry.wait_handle()?, entry.untaken.clone()))
        };
        out.set(watch(in_loop, handle, Kind::Endpoint(endpoint.id), key)?);
        Ok(())
    })
}

/// Has a loop watch what a handle is of, which is asked for when the loop is this thread's.
fn watch(
    in_loop: fcast_loop,
    handle: impl FnOnce() -> Result<(WaitHandle, Untaken), Failure>,
    kind: Kind,
    key: u64,
) -> Result<u64, Failure> {
    let entry = LOOPS.share(in_loop.id)?;
    let mut inner = entry.enter()?;
    let (handle, untaken) = handle()?;
    inner.sweep();
    let own = inner.event_loop.add_endpoint(&handle)?;
    Ok(inner.number_with(own, kind, key, Some(untaken)))
}

/// As fcast_loop_add_endpoint, of a channel of objects: the loop says FCAST_LOOP_CHANNEL. One
/// thread at a time.
///
/// # Safety
///
/// `token`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_loop_add_channel(
    in_loop: fcast_loop,
    channel: fcast_object_channel,
    key: u64,
    token: *mut u64,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(token, "token") }?;
        let handle = || {
            let mut entry = CHANNELS.enter(channel.id)?;
            Ok((entry.wait_handle()?, entry.untaken.clone()))
        };
        out.set(watch(in_loop, handle, Kind::Channel(channel.id), key)?);
        Ok(())
    })
}

/// Has a loop say FCAST_LOOP_FD whenever the descriptor is ready for `interest`: FCAST_LOOP_READ,
/// FCAST_LOOP_WRITE or both. The descriptor stays the program's: remove it before you close it.
/// FCAST_SYSTEM with EEXIST: it is in the loop already; with EPERM: it can't be waited for (a
/// regular file). One thread at a time.
///
/// # Safety
///
/// `token`: NULL, or writable. `fd` is open during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_loop_add_fd(
    in_loop: fcast_loop,
    fd: i32,
    interest: u32,
    key: u64,
    token: *mut u64,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(token, "token") }?;
        let interest = interest_of(interest)?;
        if fd < 0 {
            return Err(Failure::invalid(format!("fd = {fd}: no descriptor")));
        }
        let entry = LOOPS.share(in_loop.id)?;
        let mut inner = entry.enter()?;
        // SAFETY: not -1, and the caller has promised that it is open; the loop keeps its number.
        let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
        let own = inner.event_loop.add_fd(borrowed, interest)?;
        out.set(inner.number(own, Kind::Descriptor, key));
        Ok(())
    })
}

/// Has a loop say FCAST_LOOP_TIMER after `after_us` microseconds, and every `every_us` from then
/// on; 0: once, and the source is gone with its event. Ticks that nobody had time for are skipped.
/// One thread at a time.
///
/// # Safety
///
/// `token`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_loop_add_timer(
    in_loop: fcast_loop,
    after_us: u64,
    every_us: u64,
    key: u64,
    token: *mut u64,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(token, "token") }?;
        let entry = LOOPS.share(in_loop.id)?;
        let mut inner = entry.enter()?;
        let every = (every_us != 0).then(|| Duration::from_micros(every_us));
        let after = Duration::from_micros(after_us);
        let own = inner.event_loop.add_timer(after, every);
        let kind = every.map_or(Kind::Once, |_| Kind::Periodic);
        out.set(inner.number(own, kind, key));
        Ok(())
    })
}

/// Adds a signal to a loop, which says FCAST_LOOP_SIGNAL when it is fired. It takes no descriptor.
/// It is in the loop until it is removed by its token, or released. One thread at a time.
///
/// # Safety
///
/// `signal` and `token`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_loop_add_signal(
    in_loop: fcast_loop,
    key: u64,
    signal: *mut fcast_signal,
    token: *mut u64,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(signal, "signal") }?;
        // SAFETY: the caller's promise.
        let number = unsafe { Out::new(token, "token") }?;
        let entry = LOOPS.share(in_loop.id)?;
        let mut inner = entry.enter()?;
        inner.sweep();
        let made = inner.event_loop.add_signal()?;
        let own = made.token();
        let id = SIGNALS.insert(made)?;
        out.set(fcast_signal { id });
        number.set(inner.number(own, Kind::Signal(id), key));
        Ok(())
    })
}

/// Has the loop say FCAST_LOOP_SIGNAL soon, with the token of the signal: once for all calls that
/// come before it is told. Different signals are told in the order in which they were fired. It has
/// no effect where the signal was removed, or the loop is gone. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn fcast_signal_fire(signal: fcast_signal) -> fcast_status {
    call(|| {
        SIGNALS.share(signal.id)?.fire();
        Ok(())
    })
}

/// Gives a signal back, which takes it out of its loop; one that was fired and not told may be told
/// or not. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn fcast_signal_release(signal: fcast_signal) -> fcast_status {
    call(|| SIGNALS.release(signal.id))
}

/// Changes what a descriptor is watched for. FCAST_NOT_FOUND: the token names no descriptor of this
/// loop. One thread at a time.
#[unsafe(no_mangle)]
pub extern "C" fn fcast_loop_set_interest(
    in_loop: fcast_loop,
    token: u64,
    interest: u32,
) -> fcast_status {
    call(|| {
        let interest = interest_of(interest)?;
        let entry = LOOPS.share(in_loop.id)?;
        let mut inner = entry.enter()?;
        let own = inner.token(token)?;
        match inner.event_loop.set_interest(own, interest)? {
            true => Ok(()),
            false => Err(Failure::new(FCAST_NOT_FOUND, "this is no descriptor")),
        }
    })
}

/// Takes a source out of a loop: nothing is told of it from now on. FCAST_NOT_FOUND: it was taken
/// out before, or was a timer that is over, or an endpoint or a channel that is gone. One thread at
/// a time.
#[unsafe(no_mangle)]
pub extern "C" fn fcast_loop_remove(in_loop: fcast_loop, token: u64) -> fcast_status {
    call(|| LOOPS.share(in_loop.id)?.enter()?.remove(token))
}

/// Waits for something to do, for at most `timeout_ms` (-1: as long as it takes), and writes it:
/// at most `capacity` events, `*count` of them. What there was no room for comes with the next
/// call. 0 events: the time is over. One thread at a time.
///
/// # Safety
///
/// `events`: NULL, or room for `capacity` of them; `count`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_loop_run_once(
    in_loop: fcast_loop,
    timeout_ms: i32,
    events: *mut fcast_loop_event,
    capacity: usize,
    count: *mut usize,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(count, "count") }?;
        // SAFETY: the caller's promise.
        let places = unsafe { pointer::array_out(events, capacity, "events") }?;
        let entry = LOOPS.share(in_loop.id)?;
        let mut inner = entry.enter()?;
        let timeout = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
        out.set(inner.run_once(timeout, places)?);
        Ok(())
    })
}

/// Tells a loop in the mode FCAST_LOOP_ADAPTIVE that there was work, so that it spins for its
/// window from now. One thread at a time.
#[unsafe(no_mangle)]
pub extern "C" fn fcast_loop_mark_busy(in_loop: fcast_loop) -> fcast_status {
    call(|| {
        LOOPS.share(in_loop.id)?.enter()?.event_loop.mark_busy();
        Ok(())
    })
}

/// Has a loop say FCAST_LOOP_WOKEN soon. Any thread, also while another one runs the loop.
#[unsafe(no_mangle)]
pub extern "C" fn fcast_loop_wake(in_loop: fcast_loop) -> fcast_status {
    call(|| {
        LOOPS.share(in_loop.id)?.waker.wake();
        Ok(())
    })
}

/// Has a loop say FCAST_LOOP_STOPPED soon, once: what it means is the program's own matter. Any
/// thread, also while another one runs the loop.
#[unsafe(no_mangle)]
pub extern "C" fn fcast_loop_stop(in_loop: fcast_loop) -> fcast_status {
    call(|| {
        LOOPS.share(in_loop.id)?.waker.stop();
        Ok(())
    })
}

/// Gives a loop back. Its endpoints and descriptors are as they were. Any thread; where another one
/// runs it, it goes when that call ends.
#[unsafe(no_mangle)]
pub extern "C" fn fcast_loop_release(released: fcast_loop) -> fcast_status {
    call(|| LOOPS.release(released.id))
}

fn interest_of(bits: u32) -> Result<Interest, Failure> {
    let known = u8::try_from(bits).ok().and_then(Interest::from_bits);
    known.filter(|some| !some.is_empty()).ok_or_else(|| {
        let text = format!("interest = {bits}: must be FCAST_LOOP_READ, FCAST_LOOP_WRITE or both");
        Failure::invalid(text)
    })
}
