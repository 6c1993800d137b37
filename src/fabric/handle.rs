//! Closing: each libfabric object is closed once, by its one owner.

#![allow(unsafe_code)]

use libfabric_sys as sys;

use crate::contain::say;
use crate::process::Owner;
use crate::stats;

/// Closes an object, and counts and logs it if the library refuses.
///
/// In a child of the process that opened it, nothing is done: the object is the parent's.
///
/// There is no second try: a queue that answered `-FI_EBUSY` has freed parts of itself already.
///
/// # Safety
///
/// * `fid` is open, and nothing uses it afterwards.
/// * All its children are closed.
pub(crate) unsafe fn close(
    what: &'static str,
    owner: Owner,
    fid: *mut sys::fid,
) -> Result<(), i32> {
    if !owner.is_here() {
        return Ok(());
    }
    // SAFETY: the caller's promise.
    let rc = unsafe { sys::fi_close(fid) };
    if rc == 0 {
        return Ok(());
    }
    stats::count_close_failure();
    // Whoever called has still to leak what the provider may use.
    say(|| tracing::error!(what, errno = rc, "fi_close refused; the object is leaked"));
    Err(rc.saturating_abs())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::contain::Panics;

    unsafe extern "C" fn refuse(_: *mut sys::fid) -> libc::c_int {
        -libc::EBUSY
    }

    /// Whoever closes leaks what is in use when it hears of the refusal: a panic before that would
    /// free it.
    #[test]
    fn a_refusal_is_heard_although_the_log_is_gone() {
        // SAFETY: numbers, and functions that may be missing.
        let mut ops: sys::fi_ops = unsafe { std::mem::zeroed() };
        ops.size = size_of_val(&ops);
        ops.close = Some(refuse);
        let mut fid = sys::fid {
            fclass: 0,
            context: std::ptr::null_mut(),
            ops: &raw mut ops,
        };
        let dispatch = tracing::Dispatch::new(Panics);
        // SAFETY: nothing is behind it, and it is not used again.
        let close = || unsafe { close("ep", Owner::current(), &raw mut fid) };
        let closed = tracing::dispatcher::with_default(&dispatch, close);
        assert_eq!(closed, Err(libc::EBUSY));
    }
}
