//! The reaper: a thread that closes rings which were dropped with requests in flight, once the
//! kernel is done with their memory.
//!
//! It runs only while there is such a ring. What the kernel does not end within [`PATIENCE`] is
//! leaked, counted and logged: never freed.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::process::Owner;

/// How long one ring may take. A disk that is alive answers within a small part of that.
const PATIENCE: Duration = Duration::from_secs(30);

/// A ring without a user, and with requests in flight.
pub(super) trait Orphan: Send {
    /// Requests whose memory the kernel may still touch.
    fn in_flight(&self) -> usize;

    /// Waits until nothing is in flight, or the deadline.
    fn reap_until(&mut self, deadline: Instant) -> io::Result<()>;
}

struct Queue {
    orphans: VecDeque<Box<dyn Orphan>>,
    /// The process that a reaper runs in, as long as it does.
    running: Option<Owner>,
}

static QUEUE: Mutex<Queue> = Mutex::new(Queue {
    orphans: VecDeque::new(),
    running: None,
});
static LEAKED: AtomicU64 = AtomicU64::new(0);

/// Requests whose memory was leaked, since this process started.
pub(crate) fn leaked() -> u64 {
    LEAKED.load(Ordering::Relaxed)
}

fn queue() -> MutexGuard<'static, Queue> {
    QUEUE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes a ring over; does not wait for it.
pub(super) fn adopt(orphan: Box<impl Orphan + 'static>) {
    let mut queue = queue();
    queue.orphans.push_back(orphan);
    if queue.running.is_some_and(Owner::is_here) {
        return;
    }
    let reaper = std::thread::Builder::new().name("fabricast-reap".to_owned());
    match reaper.spawn(reap) {
        Ok(_) => queue.running = Some(Owner::current()),
        Err(error) => {
            let orphans = std::mem::take(&mut queue.orphans);
            drop(queue);
            for orphan in orphans {
                leak(orphan, &error);
            }
        }
    }
}

fn reap() {
    loop {
        let next = {
            let mut queue = queue();
            let next = queue.orphans.pop_front();
            if next.is_none() {
                queue.running = None;
            }
            next
        };
        let Some(mut orphan) = next else { return };
        let result = orphan.reap_until(Instant::now() + PATIENCE);
        if orphan.in_flight() > 0 {
            let late = io::Error::from(io::ErrorKind::TimedOut);
            leak(orphan, &result.err().unwrap_or(late));
        }
    }
}

fn leak(orphan: Box<dyn Orphan>, error: &io::Error) {
    let requests = orphan.in_flight();
    // Before anything is said of it: a subscriber of `tracing` may panic, and would free what the
    // kernel may write to.
    std::mem::forget(orphan);
    LEAKED.fetch_add(requests as u64, Ordering::Relaxed);
    tracing::error!(%error, requests, "io_uring: a ring with requests in flight leaked");
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::contain::Panics;
    use fabricast_process::contained;

    /// Whose memory the kernel never gives back.
    struct Stuck<'a>(&'a AtomicU64);

    impl Orphan for Stuck<'_> {
        fn in_flight(&self) -> usize {
            0
        }

        fn reap_until(&mut self, _: Instant) -> io::Result<()> {
            Ok(())
        }
    }

    impl Drop for Stuck<'_> {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_subscriber_that_panics_frees_nothing_that_is_leaked() {
        static FREED: AtomicU64 = AtomicU64::new(0);
        let dispatch = tracing::Dispatch::new(Panics);
        let leak = || leak(Box::new(Stuck(&FREED)), &io::ErrorKind::TimedOut.into());
        let said = contained(|| tracing::dispatcher::with_default(&dispatch, leak));
        assert_eq!(said, Err("the log is gone".to_owned()));
        assert_eq!(FREED.load(Ordering::Relaxed), 0);
    }
}
