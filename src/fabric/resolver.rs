//! `Resolver`: threads that stand still in a provider so that no other thread has to.
//!
//! `verbs` of libfabric up to 1.20 looks for the way to a peer inside `fi_endpoint`
//! (`rdma_resolve_addr`), and an address that nobody has takes it some seconds, 7 as measured. Who
//! polls can't wait for that, and nothing ends such a call. So it is made by a thread:
//!
//! * a domain has [`THREADS_MAX`] of them at most, made when there is something to do and gone when
//!   there is nothing left: each ends as soon as the provider has answered what it was asked last;
//! * what can't begin yet waits in a queue, as long as whoever asked for it still wants it: there
//!   is one place in it for each connection that is being made.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::Error;
use crate::contain::contain;

/// Threads of one domain at once: so many peers that nobody has, and the next one waits until the
/// provider has given one of them up.
pub(crate) const THREADS_MAX: usize = 8;

/// A call that may take seconds. It keeps alive what it needs.
pub(crate) type Job = Box<dyn FnOnce() + Send>;

/// Names a job, to take it back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct JobId(u64);

/// The threads of a domain, and what waits for them.
#[derive(Debug, Default)]
pub(crate) struct Resolver {
    shared: Arc<Mutex<Shared>>,
}

#[derive(Default)]
struct Shared {
    waiting: VecDeque<(JobId, Job)>,
    threads: usize,
    next: u64,
}

impl Resolver {
    /// Has a thread do it.
    ///
    /// # Errors
    /// There is no thread, and none can be made: nothing was begun.
    pub(crate) fn submit(&self, job: Job) -> Result<JobId, Error> {
        let mut shared = lock(&self.shared);
        let id = JobId(shared.next);
        shared.next += 1;
        shared.waiting.push_back((id, job));
        // No thread is idle: each ends when it finds nothing to do.
        if shared.threads == THREADS_MAX {
            return Ok(id);
        }
        let theirs = Arc::clone(&self.shared);
        let thread = std::thread::Builder::new().name("fabricast-open".to_owned());
        match thread.spawn(move || work(&theirs)) {
            Ok(_) => shared.threads += 1,
            Err(_) if shared.threads > 0 => {}
            Err(error) => {
                let job = shared.waiting.pop_back();
                drop(shared);
                drop(job);
                return Err(Error::os("a thread that opens endpoints", error));
            }
        }
        Ok(id)
    }

    /// Nobody wants it any more: if no thread has begun it, none will.
    pub(crate) fn cancel(&self, id: JobId) {
        let mut shared = lock(&self.shared);
        let at = shared.waiting.iter().position(|(job, _)| *job == id);
        let job = at.and_then(|at| shared.waiting.remove(at));
        drop(shared);
        // Not under the lock: what it keeps alive may be the last of a domain.
        drop(job);
    }

    #[cfg(test)]
    pub(crate) fn threads(&self) -> usize {
        lock(&self.shared).threads
    }
}

fn work(shared: &Mutex<Shared>) {
    loop {
        let job = {
            let mut shared = lock(shared);
            let Some((_, job)) = shared.waiting.pop_front() else {
                shared.threads -= 1;
                return;
            };
            job
        };
        contain("a call of the provider", job);
    }
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("waiting", &self.waiting.len())
            .field("threads", &self.threads)
            .finish()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn what_is_asked_for_is_done_by_few_threads_that_end() {
        let resolver = Resolver::default();
        let (begin, begun) = mpsc::channel();
        let gate = Arc::new(Mutex::new(()));
        let held = gate.lock().unwrap();
        let submit = |n: usize| {
            let (begin, gate) = (begin.clone(), Arc::clone(&gate));
            let job = move || {
                begin.send(n).unwrap();
                drop(gate.lock());
            };
            resolver.submit(Box::new(job)).unwrap()
        };
        let ids: Vec<_> = (0..THREADS_MAX + 3).map(submit).collect();
        for _ in 0..THREADS_MAX {
            assert!(begun.recv().unwrap() < THREADS_MAX);
        }
        assert!(begun.try_recv().is_err() && resolver.threads() == THREADS_MAX);
        // One that waits, one that has begun.
        resolver.cancel(ids[THREADS_MAX + 1]);
        resolver.cancel(ids[0]);
        resolver
            .submit(Box::new(|| std::panic::resume_unwind(Box::new("a panic"))))
            .unwrap();
        drop(held);
        let mut rest = [begun.recv().unwrap(), begun.recv().unwrap()];
        rest.sort_unstable();
        assert_eq!(rest, [THREADS_MAX, THREADS_MAX + 2]);
        while resolver.threads() > 0 {
            std::thread::sleep(std::time::Duration::from_micros(100));
        }
        assert!(begun.try_recv().is_err());
        submit(7);
        assert_eq!(begun.recv(), Ok(7), "another thread");
    }
}
