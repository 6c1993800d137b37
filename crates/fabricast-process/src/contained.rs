//! `contained`: calls code that may panic where nothing may unwind, because memory is lent out or
//! somebody waits for an outcome.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Calls, and lets no panic through.
///
/// What a panic carries may panic again when it is dropped, where nobody expects it any more: it is
/// leaked.
///
/// # Errors
///
/// What the panic said, where it panicked; empty where that was no text.
pub fn contained<T>(call: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(call)).map_err(|payload| {
        let said = text_of(&*payload);
        std::mem::forget(payload);
        said
    })
}

fn text_of(payload: &(dyn Any + Send)) -> String {
    match payload.downcast_ref::<&str>() {
        Some(text) => (*text).to_owned(),
        None => payload
            .downcast_ref::<String>()
            .cloned()
            .unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Panics again when it is dropped, as code of others may throw one.
    struct Spiteful;

    impl Drop for Spiteful {
        fn drop(&mut self) {
            panic!("dropped what was thrown");
        }
    }

    #[test]
    fn the_answer_or_what_the_panic_said() {
        assert_eq!(contained(|| 7), Ok(7));
        let number = 8;
        let said = |call: fn()| contained(call).expect_err("it panics");
        assert_eq!(said(|| panic!("a text")), "a text");
        assert_eq!(
            contained(|| -> u8 { panic!("and {number}") }),
            Err("and 8".to_owned())
        );
        assert_eq!(said(|| std::panic::panic_any(Spiteful)), "");
    }
}
