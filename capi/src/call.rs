//! How C calls in: no panic gets out, and every failure is remembered.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::log;
use crate::status::{FCAST_OK, FCAST_PANIC, Failure, fcast_status, remember};

/// Runs what a function of the interface does.
///
/// What a panic interrupted is used no more: an endpoint's entry stays marked as in use when its
/// call did not end (`table.rs`), so later calls get `FCAST_BUSY`.
#[inline]
pub(crate) fn call(body: impl FnOnce() -> Result<(), Failure>) -> fcast_status {
    if log::is_inside() {
        return remember(log::inside());
    }
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => FCAST_OK,
        Ok(Err(failure)) => remember(failure),
        Err(panic) => remember(of_panic(panic)),
    }
}

#[cold]
fn of_panic(panic: Box<dyn std::any::Any + Send>) -> Failure {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    // What a panic carries may panic as it is dropped, too.
    std::mem::forget(panic);
    let text = text.unwrap_or_else(|| "without words".to_owned());
    Failure::new(FCAST_PANIC, format!("a defect of the library: {text}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::fcast_last_error;

    #[test]
    #[allow(unsafe_code)]
    fn a_panic_is_a_status() {
        let status = call(|| panic!("of {}", 7));
        assert_eq!(status, FCAST_PANIC);
        // SAFETY: it is valid until the next failure of this thread.
        let words = unsafe { std::ffi::CStr::from_ptr(fcast_last_error()) };
        assert_eq!(words.to_str(), Ok("a defect of the library: of 7"));
    }
}
