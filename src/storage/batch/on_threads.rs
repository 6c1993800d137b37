//! `OnThreads`: a batch over a pool of threads, for where io_uring is not to be had. The same
//! semantics.

#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::entry::{BatchEntry, Entry, Way};
use super::{BatchEvent, EventOutput};
use crate::storage::engine::{Engine, Task, TaskOutcome};
use crate::storage::io_buffer::IoBuf;
use crate::storage::posix::Posix;
use crate::storage::thread_pool::{Run, ThreadPool};
use crate::storage::uring::request::{Moved, Stop};
use crate::storage::{BackEnd, Direction, FileErrorKind};
use fabricast_process::contained;

/// How long to leave a pool alone whose queue is full.
const FULL_PAUSE: Duration = Duration::from_millis(1);

/// What the threads and the batch share.
struct BatchShared<B> {
    over: Mutex<Vec<BatchEvent<B>>>,
    more: Condvar,
}

/// One entry on its way through the pool.
struct Job<B> {
    /// Taken by the thread that does it.
    entry: Mutex<Option<Entry<B>>>,
    shared: Arc<BatchShared<B>>,
}

pub(super) struct OnThreads<B: IoBuf> {
    pool: ThreadPool,
    depth: usize,
    in_flight: usize,
    /// Jobs that may not have begun, for cancellations; the oldest first.
    jobs: VecDeque<(u64, Arc<Job<B>>)>,
    /// Jobs that the pool had no room for.
    refused: VecDeque<Arc<Job<B>>>,
    shared: Arc<BatchShared<B>>,
}

impl<B: IoBuf> OnThreads<B> {
    pub(super) fn new(depth: usize, pool: ThreadPool) -> Self {
        Self {
            pool,
            depth,
            in_flight: 0,
            jobs: VecDeque::with_capacity(depth),
            refused: VecDeque::new(),
            shared: Arc::new(BatchShared {
                over: Mutex::new(Vec::with_capacity(depth)),
                more: Condvar::new(),
            }),
        }
    }

    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    pub(super) fn queue(
        &mut self,
        entry: BatchEntry<B>,
        cookie: u64,
        way: &Way,
    ) -> Result<(), BatchEntry<B>> {
        if self.in_flight == self.depth {
            return Err(entry);
        }
        let entry = entry.begin(cookie, way, Instant::now());
        let job = Arc::new(Job {
            entry: Mutex::new(Some(entry)),
            shared: Arc::clone(&self.shared),
        });
        self.in_flight += 1;
        self.jobs.push_back((cookie, Arc::clone(&job)));
        self.refused.push_back(job);
        Ok(())
    }

    /// Hands jobs to the pool, as far as it takes them.
    pub(super) fn start(&mut self) {
        while let Some(job) = self.refused.pop_front() {
            let taken = self.pool.submit(Arc::clone(&job) as Arc<dyn Run>, 0..1);
            if taken.is_err() {
                self.refused.push_front(job);
                return;
            }
        }
    }

    pub(super) fn wait(&mut self, min: usize, deadline: Instant, output: &mut EventOutput<'_, B>) {
        let mut missing = min.min(self.in_flight);
        loop {
            self.start();
            let mut over = lock(&self.shared.over);
            if over.is_empty() && missing > 0 {
                let mut until = deadline;
                if !self.refused.is_empty() {
                    until = until.min(Instant::now() + FULL_PAUSE);
                }
                while over.is_empty() {
                    let Some(left) = until.checked_duration_since(Instant::now()) else {
                        break;
                    };
                    let woken = self.shared.more.wait_timeout(over, left);
                    over = woken.unwrap_or_else(PoisonError::into_inner).0;
                }
            }
            self.in_flight -= over.len();
            missing = missing.saturating_sub(over.len());
            over.drain(..).for_each(|event| output.give(|| event));
            drop(over);
            if missing == 0 || Instant::now() >= deadline {
                break;
            }
        }
        // Those that are over have nothing to cancel.
        while self
            .jobs
            .front()
            .is_some_and(|(_, job)| lock(&job.entry).is_none())
        {
            self.jobs.pop_front();
        }
        if self.jobs.len() > 2 * self.depth {
            self.jobs.retain(|(_, job)| lock(&job.entry).is_some());
        }
    }

    /// What no thread has begun is over at once; the rest goes on to its end, as the kernel's part
    /// of a direct transfer would.
    pub(super) fn cancel(&mut self, wanted: impl Fn(u64) -> bool) {
        for (cookie, job) in &self.jobs {
            if !wanted(*cookie) {
                continue;
            }
            if let Some(entry) = job.take() {
                job.over(entry, 0, Err(FileErrorKind::Cancelled));
            }
        }
    }
}

impl<B: IoBuf> Drop for OnThreads<B> {
    /// What no thread has begun never is; the rest is dropped with its buffer when it is over.
    fn drop(&mut self) {
        for (_, job) in &self.jobs {
            drop(job.take());
        }
    }
}

impl<B> Job<B> {
    fn take(&self) -> Option<Entry<B>> {
        lock(&self.entry).take()
    }
}

impl<B: IoBuf> Job<B> {
    fn over(&self, mut entry: Entry<B>, bounced: usize, result: Result<(), FileErrorKind>) {
        let elapsed = entry.begun.elapsed();
        let record = entry.record(BackEnd::Posix, bounced, result.is_err(), elapsed);
        let file = entry.file();
        if record.direction == Direction::Write {
            file.forget_size();
        }
        file.counters().record(&record);
        let event = match result {
            Ok(()) => entry.done(BackEnd::Posix, bounced),
            Err(kind) => entry.failed(kind),
        };
        lock(&self.shared.over).push(event);
        self.shared.more.notify_one();
    }
}

impl<B: IoBuf> Run for Job<B> {
    fn run(self: Arc<Self>, _: u32) {
        // Else it was cancelled.
        let Some(mut entry) = self.take() else { return };
        let task = Task {
            file: entry.file(),
            direction: entry.direction,
            memory: entry.memory,
            offset: entry.offset,
            direct: entry.direct,
            bounce: 0,
            unwanted: None,
        };
        // SAFETY: the entry owns the buffer, whose bytes stay where they are (`IoBuf`) and which
        // nobody else touches.
        let run = || unsafe { Posix.run(&task) };
        let outcome = contained(run)
            .unwrap_or_else(|said| TaskOutcome::failed(FileErrorKind::Panicked(said)));
        let is_end = outcome.moved < entry.memory.len();
        let result = entry.advance(Moved {
            bytes: outcome.moved,
            direct_bytes: outcome.direct,
            stop: is_end.then_some(Stop::EndOfFile),
            direct_refused: false,
        });
        let result = match outcome.error {
            Some(kind) => Err(kind),
            None => result.unwrap_or(Ok(())),
        };
        self.over(entry, outcome.bounced, result);
    }

    fn panicked(self: Arc<Self>, _: u32) {
        // Giving the outcome is the last thing that `run` does.
        if let Some(entry) = self.take() {
            self.over(entry, 0, Err(FileErrorKind::Panicked(String::new())));
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
