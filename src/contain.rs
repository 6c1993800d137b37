//! `contain`: calls of code that is not this crate's, from places where a panic would take
//! something with it.

use fabricast_process::contained;

/// Says something to the log where a panic would take something with it: a subscriber of `tracing`
/// is code of others, too. One that panics is not heard of.
pub(crate) fn say(log: impl FnOnce()) {
    let _ = contained(log);
}

/// Calls code of others. A panic of it is logged and goes no further: others wait for the same
/// call, and a `Drop` must not panic.
///
/// `what` names what was called, as the begin of a sentence.
pub(crate) fn contain(what: &'static str, call: impl FnOnce()) {
    if let Err(said) = contained(call) {
        let said = Some(said.as_str()).filter(|said| !said.is_empty());
        say(|| tracing::error!(panic = said, "{what} panicked"));
    }
}

/// A subscriber of `tracing` that panics at each event, as one that writes to a log that is gone
/// may.
#[cfg(all(test, not(loom)))]
pub(crate) struct Panics;

#[cfg(all(test, not(loom)))]
impl tracing::Subscriber for Panics {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, _: &tracing::Event<'_>) {
        panic!("the log is gone");
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
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

    /// Those that write to a log that is gone, say.
    #[test]
    fn a_subscriber_that_panics_takes_nothing_with_it() {
        let dispatch = tracing::Dispatch::new(Panics);
        tracing::dispatcher::with_default(&dispatch, || {
            say(|| tracing::error!("nobody hears it"));
            contain("a call", || std::panic::resume_unwind(Box::new("text")));
        });
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
