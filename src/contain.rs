//! `contain`: calls of code that is not this crate's, from places where a panic would take something with it.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Calls code of others. A panic of it is logged and goes no further: others wait for the same call, and a `Drop` must not panic.
///
/// `what` names what was called, as the begin of a sentence.
pub(crate) fn contain(what: &'static str, call: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(call)) {
        let said = panic.downcast_ref::<&str>().copied();
        let said = said.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        tracing::error!(panic = said, "{what} panicked");
        // What a panic carries may panic again when it is dropped.
        std::mem::forget(panic);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// What a panic carries, and panics again.
    struct Carried;

    impl Drop for Carried {
        fn drop(&mut self) {
            std::panic::resume_unwind(Box::new("again"));
        }
    }

    #[test]
    fn a_panic_goes_no_further_whatever_it_carries() {
        let mut calls = 0;
        contain("a call", || calls += 1);
        contain("a call", || std::panic::resume_unwind(Box::new("text")));
        contain("a call", || {
            std::panic::resume_unwind(Box::new("text".to_owned()))
        });
        contain("a call", || std::panic::resume_unwind(Box::new(Carried)));
        assert_eq!(calls, 1);
    }
}
