//! Closing: each libfabric object is closed once, by its one owner.

#![allow(unsafe_code)]

use libfabric_sys as sys;

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
    tracing::error!(what, errno = rc, "fi_close refused; the object is leaked");
    Err(rc.saturating_abs())
}
