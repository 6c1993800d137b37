//! `Workers`: threads that block on files, so that the thread of the network never does.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Sender, TrySendError, bounded};

use crate::Error;
use crate::clock::Clock;

/// How often the end of threads is looked for.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// Threads that take jobs from one queue, which has a bound.
#[derive(Debug)]
pub(super) struct Workers<J> {
    /// `None`: the threads end.
    jobs: Option<Sender<J>>,
    threads: Vec<JoinHandle<()>>,
}

impl<J: Send + 'static> Workers<J> {
    /// `bound`: jobs that may wait.
    pub(super) fn spawn(
        name: &str,
        threads: u32,
        bound: usize,
        run: impl Fn(J) + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        let (jobs, queue) = bounded(bound);
        let run = Arc::new(run);
        let mut this = Self {
            jobs: Some(jobs),
            threads: Vec::new(),
        };
        for number in 0..threads {
            let (queue, run) = (queue.clone(), Arc::clone(&run));
            let thread = std::thread::Builder::new().name(format!("{name}-{number}"));
            let thread = thread.spawn(move || {
                // Until nobody gives any more, and all are done.
                for job in queue {
                    run(job);
                }
            });
            this.threads.push(thread.map_err(|error| Error::Os {
                call: "pthread_create",
                source: error,
            })?);
        }
        Ok(this)
    }

    /// None: whoever calls takes the jobs out of the queue, and does them.
    #[cfg(all(test, not(loom)))]
    pub(super) fn by_hand(bound: usize) -> (Self, crossbeam_channel::Receiver<J>) {
        let (jobs, queue) = bounded(bound);
        let this = Self {
            jobs: Some(jobs),
            threads: Vec::new(),
        };
        (this, queue)
    }

    /// Gives a job to whichever thread is free next; back, if as many wait as may.
    pub(super) fn give(&self, job: J) -> Result<(), J> {
        let Some(jobs) = &self.jobs else {
            return Err(job);
        };
        jobs.try_send(job).map_err(|refused| match refused {
            TrySendError::Full(job) | TrySendError::Disconnected(job) => job,
        })
    }

    /// Waits until every job that was given is done, and the threads have ended, or until then: a
    /// thread that a file holds for longer ends by itself when it is let go.
    pub(super) fn finish(mut self, clock: &Clock, by: Instant) {
        drop(self.jobs.take());
        while !self.threads.iter().all(JoinHandle::is_finished) && clock.now() < by {
            std::thread::sleep(LOOK_EVERY);
        }
        for thread in self.threads.drain(..) {
            if !thread.is_finished() {
                tracing::warn!(
                    name = thread.thread().name(),
                    "a file holds a thread of a stream"
                );
                continue;
            }
            // What a job says of its panic, it said to whoever gave it.
            let _ = thread.join();
        }
    }
}

/// Calls code of the user's: a panic of its becomes the text that it came with.
pub(super) fn guarded<T>(call: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(call)).map_err(|panic| text_of(&*panic))
}

/// A source or a sink of the user's that several threads share. The last of them drops it: a panic
/// of its destructor ends there.
#[derive(Debug)]
pub(super) struct Guarded<T: ?Sized>(Option<Arc<T>>);

impl<T: ?Sized> Guarded<T> {
    pub(super) fn new(it: Arc<T>) -> Self {
        Self(Some(it))
    }
}

impl<T: ?Sized> Clone for Guarded<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T: ?Sized> std::ops::Deref for Guarded<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect("it is there until it is dropped")
    }
}

impl<T: ?Sized> Drop for Guarded<T> {
    fn drop(&mut self) {
        let it = self.0.take();
        if let Err(text) = guarded(|| drop(it)) {
            tracing::warn!(%text, "a source or sink could not be dropped");
        }
    }
}

fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    format!("panicked: {}", text.unwrap_or_default())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::{Mutex, mpsc};

    #[test]
    fn every_job_that_is_taken_is_done_and_the_queue_has_a_bound() {
        let (go, wait) = mpsc::channel::<()>();
        let wait = Mutex::new(wait);
        let (done, results) = mpsc::channel();
        let (begins, begun) = mpsc::channel();
        let workers = Workers::spawn("test", 1, 2, move |job: u32| {
            begins.send(job).expect("somebody listens");
            wait.lock().expect("no panic").recv().expect("told to go");
            done.send(job).expect("somebody listens");
        })
        .expect("threads");
        // One is with the thread, and two may wait.
        workers.give(0).expect("nobody waits");
        assert_eq!(begun.recv(), Ok(0));
        let mut taken = 1;
        while workers.give(taken).is_ok() {
            taken += 1;
        }
        assert_eq!(taken, 3);
        for _ in 0..taken {
            go.send(()).expect("it waits");
        }
        let clock = Clock::system();
        workers.finish(&clock, clock.now() + Duration::from_secs(60));
        assert_eq!(results.iter().collect::<Vec<_>>(), [0, 1, 2]);
    }

    #[test]
    fn a_panic_is_a_text() {
        assert_eq!(guarded(|| 7), Ok(7));
        let said = guarded(|| -> u32 { panic!("no {}", "luck") });
        assert_eq!(said, Err("panicked: no luck".to_owned()));
    }

    #[test]
    fn a_panic_when_something_is_dropped_ends_there() {
        struct Bomb;
        impl Drop for Bomb {
            fn drop(&mut self) {
                panic!("no luck");
            }
        }
        let theirs = Guarded::new(Arc::new(Bomb));
        drop(theirs.clone());
        assert!(guarded(|| drop(theirs)).is_ok());
    }
}
