//! `ThreadPool`: threads that run the tasks of file operations.
//!
//! ```text
//!  submit(job, 0..n) ──► queue: [job A, tasks 3..9] [job B, tasks 0..1] …
//!                            │ (one entry a job, whatever its tasks; bounded)
//!                            │ each thread takes the next task of the first entry
//!                            ▼
//!                        job.run(3) on one thread, job.run(4) on another, …
//! ```
//!
//! A job that was accepted has each of its tasks called exactly once, in whatever becomes of the
//! pool: a pool that is resized keeps its queue, and one whose last handle is dropped runs what is
//! queued before its threads leave. A task that panics is told so ([`Run::panicked`]) and costs no
//! thread.
//!
//! A forked child has none of the threads: there, jobs are refused.

use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::Error;
use crate::process::Owner;

use fabricast_process::contained;

/// The most threads that a pool may have.
pub(super) const THREADS_MAX: usize = 1024;

/// The longest queue that a pool may have, in operations.
pub(super) const QUEUE_MAX: usize = 1 << 20;

/// A job: something whose tasks run on a pool.
pub(crate) trait Run: Send + Sync {
    /// Does one task. Called once for each, on any thread of the pool, several at a time.
    fn run(self: Arc<Self>, task: u32);

    /// [`run`](Self::run) panicked in this task: gives it its outcome.
    fn panicked(self: Arc<Self>, task: u32);
}

/// Why a job was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RefusedKind {
    /// So many jobs wait already.
    #[error("{bound} operations are queued for this pool's threads, as many as there may be")]
    Full { bound: usize },
    /// The pool's threads are in the process that made it, and this is another.
    #[error("the threads of this pool are in process {made_by}, from which this one was forked")]
    Forked { made_by: u32 },
}

/// A job that was not taken, unchanged.
pub(crate) struct Refused {
    pub(crate) job: Arc<dyn Run>,
    pub(crate) kind: RefusedKind,
}

impl fmt::Debug for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Refused")
            .field("kind", &self.kind)
            .finish_non_exhaustive()
    }
}

/// Threads that run the tasks of file operations. A clone is another handle of the same pool.
///
/// Dropping the last handle waits for nobody: the threads run what is queued, paused or not, and
/// leave.
#[derive(Clone)]
pub struct ThreadPool {
    handle: Arc<PoolHandle>,
}

impl ThreadPool {
    /// A pool of so many threads (1 to 1,024), for which so many operations may wait (1 to
    /// 1,048,576), each with all of its tasks.
    ///
    /// # Errors
    ///
    /// [`Error::Config`]: a number out of its range. [`Error::Os`]: the system gives no thread.
    pub fn new(threads: usize, queue: usize) -> Result<Self, Error> {
        Self::named("fc-io", threads, queue)
    }

    /// The same with a name of at most 10 bytes, which its threads bear, with a number behind it
    /// (`ps -T`, debuggers).
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new), and [`Error::Config`] for a name that is longer or has a 0 in it.
    pub fn named(name: &str, threads: usize, queue: usize) -> Result<Self, Error> {
        check("threads", threads, THREADS_MAX, "must be 1 to 1024 threads")?;
        check("queue", queue, QUEUE_MAX, "must be 1 to 1048576 operations")?;
        if name.len() > 10 || name.contains('\0') {
            return Err(Error::Config {
                field: "name",
                value: name.to_owned(),
                reason: "must be at most 10 bytes, none of them 0",
            });
        }
        let shared = Arc::new(PoolShared {
            state: Mutex::new(PoolState::default()),
            work: Condvar::new(),
            name: name.into(),
            queue_bound: queue,
            owner: Owner::current(),
        });
        let pool = Self {
            handle: Arc::new(PoolHandle {
                shared,
                resizing: Mutex::new(()),
            }),
        };
        pool.resize(threads)?;
        Ok(pool)
    }

    /// How many threads it is to have: a thread too many leaves when its task is done.
    pub fn threads(&self) -> usize {
        self.shared().locked().map_or(0, |state| state.target)
    }

    /// Gives it so many threads. Tasks that run go on, and what is queued stays queued: threads too
    /// many leave when their tasks are done, and nobody waits for them.
    ///
    /// # Errors
    ///
    /// [`Error::Config`]: not 1 to 1,024. [`Error::Os`]: the system does not give that many
    /// threads, and the pool has those that it got. [`Error::Forked`].
    pub fn resize(&self, threads: usize) -> Result<(), Error> {
        check("threads", threads, THREADS_MAX, "must be 1 to 1024 threads")?;
        let shared = self.shared();
        shared.owner.check()?;
        // One at a time: else threads that one call still makes would count as there for another.
        let _resizing = unpoisoned(&self.handle.resizing);
        let missing = {
            let mut state = shared.lock();
            state.target = threads;
            let missing = threads.saturating_sub(state.threads);
            state.threads += missing;
            missing
        };
        // Some may be too many now.
        shared.work.notify_all();
        for made in 0..missing {
            if let Err(source) = shared.spawn() {
                let mut state = shared.lock();
                state.threads -= missing - made;
                state.target = state.threads;
                return Err(Error::Os {
                    call: "pthread_create",
                    source,
                });
            }
        }
        Ok(())
    }

    /// Lets no further task begin until [`resume`](Self::resume); tasks that run go on, and jobs
    /// are still taken.
    pub fn pause(&self) {
        if let Some(mut state) = self.shared().locked() {
            state.paused = true;
        }
    }

    /// Lets tasks begin again.
    pub fn resume(&self) {
        if let Some(mut state) = self.shared().locked() {
            state.paused = false;
        }
        self.shared().work.notify_all();
    }

    /// Whether it is paused.
    pub fn is_paused(&self) -> bool {
        self.shared().locked().is_some_and(|state| state.paused)
    }

    /// What it has, does and did. All zeros in a forked child.
    pub fn stats(&self) -> ThreadPoolStats {
        let Some(state) = self.shared().locked() else {
            return ThreadPoolStats::default();
        };
        ThreadPoolStats {
            threads: state.threads,
            running: state.running,
            queued_operations: state.queue.len(),
            queued_tasks: state.queue.iter().map(|it| it.tasks.len()).sum(),
            done: state.done,
            panics: state.panics,
        }
    }

    /// Takes a job, whose tasks are from then on called exactly once each.
    ///
    /// # Errors
    ///
    /// The job, where the queue is full, or this is a forked child.
    pub(crate) fn submit(&self, job: Arc<dyn Run>, tasks: Range<u32>) -> Result<(), Refused> {
        if tasks.is_empty() {
            return Ok(());
        }
        let shared = self.shared();
        if !shared.owner.is_here() {
            let made_by = shared.owner.pid();
            let kind = RefusedKind::Forked { made_by };
            return Err(Refused { job, kind });
        }
        let count = tasks.len();
        let woken = {
            let mut state = shared.lock();
            if state.queue.len() >= shared.queue_bound {
                let bound = shared.queue_bound;
                let kind = RefusedKind::Full { bound };
                return Err(Refused { job, kind });
            }
            state.queue.push_back(PoolEntry { job, tasks });
            if state.paused {
                0
            } else {
                count.min(state.idle)
            }
        };
        for _ in 0..woken {
            shared.work.notify_one();
        }
        Ok(())
    }

    /// Whether both are handles of one pool.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.handle, &other.handle)
    }

    fn shared(&self) -> &Arc<PoolShared> {
        &self.handle.shared
    }
}

impl fmt::Debug for ThreadPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ThreadPool")
            .field("name", &self.shared().name)
            .field("stats", &self.stats())
            .finish()
    }
}

/// What a pool has, does and did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ThreadPoolStats {
    /// Threads that there are; more than there are to be while threads too many finish their tasks.
    pub threads: usize,
    /// Tasks that run.
    pub running: usize,
    /// Operations that have tasks which have not begun.
    pub queued_operations: usize,
    /// Tasks that have not begun.
    pub queued_tasks: usize,
    /// Tasks that are over, those that panicked too.
    pub done: u64,
    /// Tasks that panicked.
    pub panics: u64,
}

/// What all handles of a pool share; the threads don't, so that the last drop is seen.
struct PoolHandle {
    shared: Arc<PoolShared>,
    resizing: Mutex<()>,
}

impl Drop for PoolHandle {
    fn drop(&mut self) {
        if let Some(mut state) = self.shared.locked() {
            state.closing = true;
        }
        self.shared.work.notify_all();
    }
}

struct PoolShared {
    state: Mutex<PoolState>,
    /// There is something to do for a thread: a task, or to leave.
    work: Condvar,
    name: Box<str>,
    queue_bound: usize,
    owner: Owner,
}

#[derive(Default)]
struct PoolState {
    queue: VecDeque<PoolEntry>,
    /// Threads that are there or being made.
    threads: usize,
    /// Threads that there are to be.
    target: usize,
    /// Threads that sleep.
    idle: usize,
    running: usize,
    paused: bool,
    /// Nobody has a handle any more.
    closing: bool,
    done: u64,
    panics: u64,
    /// How many threads were ever made: the next one's number.
    made: usize,
}

struct PoolEntry {
    job: Arc<dyn Run>,
    /// Those that have not begun; never empty.
    tasks: Range<u32>,
}

impl PoolState {
    /// The next task, if one may begin.
    fn take(&mut self) -> Option<(Arc<dyn Run>, u32)> {
        if self.paused && !self.closing {
            return None;
        }
        let first = self.queue.front_mut()?;
        let task = first.tasks.next()?;
        let job = if first.tasks.is_empty() {
            self.queue.pop_front()?.job
        } else {
            Arc::clone(&first.job)
        };
        self.running += 1;
        Some((job, task))
    }
}

impl PoolShared {
    fn lock(&self) -> MutexGuard<'_, PoolState> {
        unpoisoned(&self.state)
    }

    /// Nothing in a forked child: there, a thread that is no more may hold the lock for ever.
    fn locked(&self) -> Option<MutexGuard<'_, PoolState>> {
        self.owner.is_here().then(|| self.lock())
    }

    fn spawn(self: &Arc<Self>) -> std::io::Result<()> {
        let number = {
            let mut state = self.lock();
            state.made += 1;
            state.made - 1
        };
        let shared = Arc::clone(self);
        std::thread::Builder::new()
            .name(format!("{}-{number}", self.name))
            .spawn(move || shared.work())
            .map(drop)
    }

    /// What a thread does until it has to leave.
    fn work(&self) {
        while let Some((job, task)) = self.next() {
            let panicked = !run(job, task);
            let mut state = self.lock();
            state.running -= 1;
            state.done += 1;
            state.panics += u64::from(panicked);
        }
    }

    /// Waits for a task; nothing where this thread is to leave.
    fn next(&self) -> Option<(Arc<dyn Run>, u32)> {
        let mut state = self.lock();
        loop {
            if state.threads > state.target {
                state.threads -= 1;
                // A wake-up for a task may have come here: another thread does it.
                self.work.notify_one();
                return None;
            }
            if let Some(taken) = state.take() {
                return Some(taken);
            }
            if state.closing {
                state.threads -= 1;
                return None;
            }
            state.idle += 1;
            // No deadline: a thread without work sleeps until there is some, or it is told to
            // leave.
            state = self
                .work
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
            state.idle -= 1;
        }
    }
}

/// Runs one task; whether it came back.
fn run(job: Arc<dyn Run>, task: u32) -> bool {
    let kept = Arc::clone(&job);
    let came_back = contained(|| job.run(task)).is_ok();
    let _ = contained(|| {
        if !came_back {
            Arc::clone(&kept).panicked(task);
        }
        // Here, too: it may be the last, and what a job holds may panic when it is dropped.
        drop(kept);
    });
    came_back
}

/// Locks, also after a panic: what our locks guard is whole between any two statements.
fn unpoisoned<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn check(
    field: &'static str,
    value: usize,
    most: usize,
    reason: &'static str,
) -> Result<(), Error> {
    if (1..=most).contains(&value) {
        return Ok(());
    }
    Err(Error::Config {
        field,
        value: value.to_string(),
        reason,
    })
}

#[cfg(all(test, not(loom)))]
#[path = "tests/thread_pool.rs"]
mod tests;
