//! `After`: what is to be done once the lock is free, because it may run code that is not ours.

use std::fmt;
use std::task::Waker;

use smallvec::SmallVec;

use crate::contain::contain;

use super::reactor::Watch;
use super::work::Back;

/// Wakers to call; wakers, payloads and a watch to drop.
#[derive(Default)]
pub(crate) struct After {
    wake: SmallVec<[Waker; 4]>,
    drop: SmallVec<[Waker; 2]>,
    payloads: Vec<Back>,
    watch: Option<Box<dyn Watch>>,
}

impl After {
    pub(crate) fn wake(&mut self, waker: Option<Waker>) {
        self.wake.extend(waker);
    }

    pub(crate) fn drop_waker(&mut self, waker: Option<Waker>) {
        self.drop.extend(waker);
    }

    /// A payload that nobody waits for any more goes back to where it came from.
    pub(crate) fn release(&mut self, back: Back) {
        self.payloads.push(back);
    }

    pub(crate) fn drop_watch(&mut self, watch: Option<Box<dyn Watch>>) {
        self.watch = watch;
    }

    /// Does it. The caller holds no lock.
    pub(crate) fn run(self) {
        // Memory that somebody lent may run code of others when it goes.
        for back in self.payloads {
            contain("the drop of a payload", || drop(back));
        }
        for waker in self.wake {
            contain("a waker", || waker.wake());
        }
        for waker in self.drop {
            contain("the drop of a waker", || drop(waker));
        }
    }
}

impl fmt::Debug for After {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("After")
            .field("wake", &self.wake.len())
            .field("payloads", &self.payloads.len())
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    /// Counts, and panics every other time.
    #[derive(Default)]
    struct Panics(AtomicUsize);

    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            if self.0.fetch_add(1, Ordering::Relaxed).is_multiple_of(2) {
                std::panic::resume_unwind(Box::new("a waker of a test"));
            }
        }
    }

    #[test]
    fn a_waker_that_panics_takes_no_wake_up_of_another_with_it() {
        let wakers = Arc::new(Panics::default());
        let mut after = After::default();
        for _ in 0..10 {
            after.wake(Some(Waker::from(Arc::clone(&wakers))));
        }
        after.run();
        assert_eq!(wakers.0.load(Ordering::Relaxed), 10);
    }
}
