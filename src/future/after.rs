//! `After`: what is to be done once the lock is free, because it may run code that is not ours.

use std::fmt;
use std::task::Waker;

use smallvec::SmallVec;

use super::reactor::Watch;
use super::send_engine::Back;

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
        drop(self.payloads);
        self.wake.into_iter().for_each(Waker::wake);
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
