//! `StoreThreads`: threads that do for futures what blocks.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use fabricast_process::Owner;
use zarrs_storage::storage_adapter::sync_to_async::{
    SyncToAsyncSpawnBlocking, SyncToAsyncStorageAdapter,
};

use crate::FileZarrStore;

/// The most threads that may be asked for.
const THREADS_MAX: usize = 1024;
/// Jobs that wait for a thread; further ones wait in their futures.
const QUEUE_MAX: usize = 4096;

/// A [`FileZarrStore`] of futures, for any runtime: what blocks is done by [`StoreThreads`].
///
/// It is `zarrs_storage`'s adapter, so that a store and its threads can also be put together by
/// hand, and many stores share threads. A future that is dropped gives its result up; what a thread
/// has begun, or has in its queue, it does all the same.
///
/// ```
/// use std::sync::Arc;
/// use fabricast_zarr::{AsyncFileZarrStore, FileZarrStore, StoreThreads};
/// use zarrs_storage::{AsyncReadableStorageTraits, AsyncWritableStorageTraits, StorageError};
///
/// async fn twice(store: &AsyncFileZarrStore) -> Result<(), StorageError> {
///     let key = "a/zarr.json".try_into()?;
///     store.set(&key, b"{}"[..].into()).await?;
///     assert_eq!(store.get(&key).await?.as_deref(), Some(&b"{}"[..]));
///     Ok(())
/// }
///
/// # let directory = tempfile::tempdir()?;
/// let store = Arc::new(FileZarrStore::open(directory.path())?);
/// let store = AsyncFileZarrStore::new(store, StoreThreads::new(8)?);
/// // Or a runtime of your own.
/// fabricast::future::Executor::new()?.block_on(twice(&store))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub type AsyncFileZarrStore = SyncToAsyncStorageAdapter<FileZarrStore, StoreThreads>;

/// Threads of a fixed number, and a queue of jobs before them. Clones are the same threads; they
/// end when the last clone is dropped and the queue is empty.
///
/// When the queue is full (4096 jobs), a job waits in its future. In a forked child, which has none
/// of the threads, a job is done by whoever polls its future.
///
/// ```
/// # use fabricast_zarr::StoreThreads;
/// let threads = StoreThreads::new(4)?;
/// assert_eq!(threads.threads(), 4);
/// assert!(StoreThreads::new(0).is_err());
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone)]
pub struct StoreThreads(Arc<Workers>);

/// Closes the queue when it is dropped.
struct Workers {
    jobs: Arc<Jobs>,
    threads: usize,
    owner: Owner,
}

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Jobs {
    queue: Mutex<JobQueue>,
    changed: Condvar,
}

#[derive(Default)]
struct JobQueue {
    jobs: VecDeque<Job>,
    /// Futures whose jobs found no room.
    want_room: Vec<Waker>,
    is_closed: bool,
}

impl StoreThreads {
    /// Starts that many threads: as many jobs are done at a time.
    ///
    /// # Errors
    /// `InvalidInput` for none, and for more than 1024; what the system answers.
    pub fn new(threads: usize) -> io::Result<Self> {
        if threads == 0 || threads > THREADS_MAX {
            let said = format!("{threads} threads: from 1 to {THREADS_MAX}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, said));
        }
        let jobs = Arc::new(Jobs::default());
        // Made first: where a thread can't be started, those before it end with this.
        let workers = Workers {
            jobs: Arc::clone(&jobs),
            threads,
            owner: Owner::current(),
        };
        for n in 0..threads {
            let jobs = Arc::clone(&jobs);
            let thread = std::thread::Builder::new().name(format!("fc-zarr-{n}"));
            thread.spawn(move || jobs.work())?;
        }
        Ok(Self(Arc::new(workers)))
    }

    /// How many there are.
    pub fn threads(&self) -> usize {
        self.0.threads
    }
}

impl fmt::Debug for StoreThreads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreThreads")
            .field("threads", &self.threads())
            .finish_non_exhaustive()
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        // A forked child has neither the threads nor, perhaps, a lock that anybody would open.
        if self.owner.is_here() {
            unpoisoned(&self.jobs.queue).is_closed = true;
            self.jobs.changed.notify_all();
        }
    }
}

impl Jobs {
    /// What each thread does.
    fn work(&self) {
        while let Some(job) = self.next() {
            job();
        }
    }

    fn next(&self) -> Option<Job> {
        let mut queue = unpoisoned(&self.queue);
        loop {
            if let Some(job) = queue.jobs.pop_front() {
                let want_room = std::mem::take(&mut queue.want_room);
                drop(queue);
                want_room.into_iter().for_each(Waker::wake);
                return Some(job);
            }
            if queue.is_closed {
                return None;
            }
            let waited = self.changed.wait(queue);
            queue = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Gives the job back where there is no room; then the waker is called when there may be.
    fn push(&self, job: Job, waker: &Waker) -> Result<(), Job> {
        let mut queue = unpoisoned(&self.queue);
        if queue.jobs.len() >= QUEUE_MAX {
            if !queue.want_room.iter().any(|old| old.will_wake(waker)) {
                queue.want_room.push(waker.clone());
            }
            return Err(job);
        }
        queue.jobs.push_back(job);
        drop(queue);
        self.changed.notify_one();
        Ok(())
    }
}

/// What came of a job: its result, or what it panicked with.
type JobResult<R> = std::thread::Result<R>;

/// Where a thread leaves the result.
struct JobSlot<R>(Mutex<(Option<JobResult<R>>, Option<Waker>)>);

/// A job on its way, and then its result.
struct JobFuture<R> {
    workers: Arc<Workers>,
    /// Until it is in the queue.
    job: Option<Job>,
    slot: Arc<JobSlot<R>>,
}

impl<R: Send + 'static> JobFuture<R> {
    fn new(workers: Arc<Workers>, work: impl FnOnce() -> R + Send + 'static) -> Self {
        let slot = Arc::new(JobSlot(Mutex::new((None, None))));
        let filled = Arc::clone(&slot);
        let job = Box::new(move || {
            let result = catch_unwind(AssertUnwindSafe(work));
            let waker = {
                let mut slot = unpoisoned(&filled.0);
                slot.0 = Some(result);
                slot.1.take()
            };
            if let Some(waker) = waker {
                waker.wake();
            }
        });
        Self {
            workers,
            job: Some(job),
            slot,
        }
    }
}

impl<R: Send + 'static> Future for JobFuture<R> {
    type Output = R;

    /// # Panics
    /// With what the job panicked with.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<R> {
        if let Some(job) = self.job.take() {
            if !self.workers.owner.is_here() {
                job();
            } else if let Err(job) = self.workers.jobs.push(job, cx.waker()) {
                self.job = Some(job);
                return Poll::Pending;
            }
        }
        let mut slot = unpoisoned(&self.slot.0);
        match slot.0.take() {
            Some(Ok(result)) => Poll::Ready(result),
            Some(Err(panic)) => {
                drop(slot);
                resume_unwind(panic)
            }
            None => {
                slot.1 = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl SyncToAsyncSpawnBlocking for StoreThreads {
    fn spawn_blocking<F, R>(&self, f: F) -> impl Future<Output = R> + Send
    where
        F: FnOnce() -> R + Send + 'static,
        R: Send + 'static,
    {
        JobFuture::new(Arc::clone(&self.0), f)
    }
}

fn unpoisoned<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[path = "tests/threads.rs"]
mod tests;
