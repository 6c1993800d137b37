//! `StoreDesk`: asks the store, and gets its answers, on whatever thread they come, back to the
//! worker.

use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, unbounded};

use crate::Error;
use crate::buffer::BufferMut;
use crate::contain::contain;
use crate::event_loop::Waker;
use crate::object::store::{
    ListPage, ObjectInfo, ObjectStore, ObjectUpload, StoreError, StoredObject,
};
use crate::process::contained;

/// What a store answered.
pub(super) enum StoreAnswer {
    Opened(Result<Arc<dyn StoredObject>, StoreError>),
    Headed(Result<ObjectInfo, StoreError>),
    Listed(Result<ListPage, StoreError>),
    Deleted(Result<(), StoreError>),
    Began(Result<Box<dyn ObjectUpload>, StoreError>),
    PieceRead {
        at: u64,
        len: usize,
        buffer: Option<BufferMut>,
        result: Result<usize, StoreError>,
    },
    PieceWritten {
        len: usize,
        result: Result<usize, StoreError>,
    },
    Committed(Result<ObjectInfo, StoreError>),
    /// The store panicked.
    Broke(String),
}

/// Where answers are put, with the number of the job that asked.
#[derive(Clone)]
pub(super) struct AnswerQueue {
    queue: Sender<(u64, StoreAnswer)>,
    waker: Waker,
}

impl AnswerQueue {
    /// Its bound is that of what was asked: some pieces of each job, or one other question.
    pub(super) fn new(waker: Waker) -> (Self, Receiver<(u64, StoreAnswer)>) {
        let (queue, answers) = unbounded();
        (Self { queue, waker }, answers)
    }

    pub(super) fn put(&self, job: u64, answer: StoreAnswer) {
        // A worker that has gone asks for nothing any more.
        let _ = self.queue.send((job, answer));
        self.waker.wake();
    }
}

type Errand = Box<dyn FnOnce() + Send>;

/// Threads that wait for the store. Dropped, it waits until what was asked is answered.
struct Clerks {
    errands: Option<Sender<Errand>>,
    threads: Vec<JoinHandle<()>>,
}

impl Clerks {
    fn start(count: u32) -> Result<Self, Error> {
        let (errands, queue) = unbounded::<Errand>();
        let mut clerks = Self {
            errands: Some(errands),
            threads: Vec::new(),
        };
        for _ in 0..count {
            let queue = queue.clone();
            let work = move || {
                while let Ok(errand) = queue.recv() {
                    contain("an object store", errand);
                }
            };
            let builder = std::thread::Builder::new().name("fabricast-store".to_owned());
            let thread = builder.spawn(work);
            clerks.threads.push(thread.map_err(|source| Error::Os {
                call: "pthread_create",
                source,
            })?);
        }
        Ok(clerks)
    }
}

impl Drop for Clerks {
    fn drop(&mut self) {
        self.errands = None;
        for thread in self.threads.drain(..) {
            // Nothing in it panics that was not caught.
            let _ = thread.join();
        }
    }
}

/// Asks the store.
pub(super) struct StoreDesk {
    store: Arc<dyn ObjectStore>,
    /// None: the store never blocks.
    clerks: Option<Clerks>,
    pub(super) answers: AnswerQueue,
}

impl StoreDesk {
    pub(super) fn open(
        store: Arc<dyn ObjectStore>,
        threads: u32,
        answers: AnswerQueue,
    ) -> Result<Self, Error> {
        let clerks = match store.may_block() {
            true => Some(Clerks::start(threads)?),
            false => None,
        };
        Ok(Self {
            store,
            clerks,
            answers,
        })
    }

    /// Asks; the answer comes in the queue.
    pub(super) fn ask(
        &self,
        job: u64,
        question: impl FnOnce(&dyn ObjectStore) -> StoreAnswer + Send + 'static,
    ) {
        let (store, answers) = (Arc::clone(&self.store), self.answers.clone());
        self.run(Box::new(move || {
            let answer = contained(|| question(&*store));
            answers.put(job, answer.unwrap_or_else(StoreAnswer::Broke));
        }));
    }

    /// Drops something of the store's, which may take its time.
    pub(super) fn discard(&self, thing: impl Send + 'static) {
        self.run(Box::new(move || drop(thing)));
    }

    fn run(&self, errand: Errand) {
        match self
            .clerks
            .as_ref()
            .and_then(|clerks| clerks.errands.as_ref())
        {
            // The threads are there as long as this is.
            Some(errands) => drop(errands.send(errand)),
            None => contain("an object store", errand),
        }
    }
}
