//! `StoreDesk`: asks the store, and gets its answers, on whatever thread they come, back to the
//! worker.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, unbounded};

use crate::Error;
use crate::buffer::BufferMut;
use crate::contain::contain;
use crate::endpoint::ConnectionId;
use crate::event_loop::Waker;
use crate::object::service::account::{BufferHold, Place};
use crate::object::service::errands::{Clerks, Errand, ErrandPace, ErrandQueue};
use crate::object::service::put_job::OpenUpload;
use crate::object::store::{
    ListPage, ObjectInfo, ObjectStore, ObjectUpload, StoreError, StoredObject, TakenUp,
};
use crate::object::wire::TakeUpRequest;
use crate::process::contained;

/// What a store answered.
pub(super) enum StoreAnswer {
    Opened(Result<Arc<dyn StoredObject>, StoreError>),
    Headed(Result<ObjectInfo, StoreError>),
    Listed(Result<ListPage, StoreError>),
    Deleted(Result<(), StoreError>),
    Began(Result<Box<dyn ObjectUpload>, StoreError>),
    /// What was asked, and what came of it.
    TakenUp(TakeUpRequest, Result<TakenUp, StoreError>),
    /// How far an upload is was written down.
    Marked(Box<OpenUpload>),
    PieceRead {
        at: u64,
        len: usize,
        buffer: Option<BufferMut>,
        hold: BufferHold,
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

/// How long a worker asks a store that never blocks, before it looks at others again.
const SHIFT: Duration = Duration::from_micros(500);

/// Asks the store.
pub(super) struct StoreDesk {
    store: Arc<dyn ObjectStore>,
    queue: Arc<ErrandQueue>,
    /// None: the store never blocks, and the worker asks it.
    clerks: Option<Clerks>,
    pub(super) answers: AnswerQueue,
}

impl StoreDesk {
    pub(super) fn open(
        store: Arc<dyn ObjectStore>,
        threads: u32,
        answers: AnswerQueue,
    ) -> Result<Self, Error> {
        let queue = Arc::default();
        let clerks = match store.may_block() {
            true => Some(Clerks::start(threads, &queue)?),
            false => None,
        };
        Ok(Self {
            store,
            queue,
            clerks,
            answers,
        })
    }

    /// Asks for a job of this number and place; the answer comes in the queue, unless the job is
    /// over before.
    pub(super) fn ask(
        &self,
        (number, place): (u64, Arc<Place>),
        connection: ConnectionId,
        pace: ErrandPace,
        question: impl FnOnce(&dyn ObjectStore) -> StoreAnswer + Send + 'static,
    ) {
        let (store, answers) = (Arc::clone(&self.store), self.answers.clone());
        let work = Box::new(move || {
            let answer = contained(|| question(&*store));
            answers.put(number, answer.unwrap_or_else(StoreAnswer::Broke));
        });
        self.queue.push(Errand {
            place,
            connection,
            pace,
            work,
        });
    }

    /// Drops something of the store's, which may take its time: its place is taken until then.
    pub(super) fn discard(&self, thing: impl Send + 'static, place: Option<Arc<Place>>) {
        match &self.clerks {
            Some(_) => self.queue.discard(Box::new(thing), place),
            None => contain("an object store", || drop(thing)),
        }
    }

    /// A connection has gone: what it asked for is not done any more.
    pub(super) fn take_out(&self, connection: ConnectionId) {
        self.queue.take_out(connection);
    }

    /// Asks a store that never blocks, for a while; whether it was asked.
    pub(super) fn work(&self) -> bool {
        if self.clerks.is_some() || !self.queue.do_one() {
            return false;
        }
        let begin = Instant::now();
        while begin.elapsed() < SHIFT && self.queue.do_one() {}
        true
    }

    /// Asks nothing any more.
    pub(super) fn end(&self) {
        self.queue.close();
    }

    /// Asks nothing any more, and waits for those that are at work, at most until then.
    pub(super) fn close(mut self, by: Instant) {
        self.queue.close();
        match self.clerks.take() {
            Some(clerks) => clerks.close(by),
            // Nothing is done of it: it is dropped.
            None => while self.queue.do_one() {},
        }
    }
}
