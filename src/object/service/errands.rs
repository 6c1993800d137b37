//! `ErrandQueue`: what a store is asked, until somebody does it; `Clerks`: threads that do.
//!
//! It holds no more than there are places of requests: an errand has its request's. What nobody
//! waits for any more is not done.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::Error;
use crate::contain::contain;
use crate::endpoint::ConnectionId;
use crate::object::service::account::Place;
use crate::object::service::fair_lines::FairLines;

/// How long something takes that a store is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ErrandPace {
    Quick,
    /// Lists: one thread, where there are several, is kept free of them.
    Long,
}

/// Something that a store is asked.
pub(super) struct Errand {
    pub(super) place: Arc<Place>,
    pub(super) connection: ConnectionId,
    pub(super) pace: ErrandPace,
    pub(super) work: Box<dyn FnOnce() + Send>,
}

/// Something of a store's that is to be dropped, and the place that it takes meanwhile.
struct Discard {
    thing: Box<dyn Send>,
    _place: Option<Arc<Place>>,
}

/// What is next.
enum Next {
    Errand(Errand),
    Discard(Discard),
}

#[derive(Default)]
struct Waiting {
    discards: VecDeque<Discard>,
    quick: FairLines<Errand>,
    long: FairLines<Errand>,
    /// The last one was a long one.
    was_long: bool,
    /// No errand is done any more, and what is to be dropped is.
    is_closed: bool,
    /// Clerks that have not ended.
    clerks: u32,
}

impl Waiting {
    /// Quick ones and long ones in turns.
    fn next(&mut self, takes_long: bool) -> Option<Next> {
        if let Some(discard) = self.discards.pop_front() {
            return Some(Next::Discard(discard));
        }
        let long_first = takes_long && !self.was_long && !self.long.is_empty();
        let quick = if long_first { None } else { self.quick.take() };
        let (errand, is_long) = match quick {
            Some(quick) => (quick, false),
            None if takes_long => (self.long.take()?, true),
            None => return None,
        };
        if takes_long {
            self.was_long = is_long;
        }
        Some(Next::Errand(errand))
    }
}

/// What a store is asked, until somebody does it.
#[derive(Default)]
pub(super) struct ErrandQueue {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

impl ErrandQueue {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn push(&self, errand: Errand) {
        let (origin, connection) = (errand.place.account().origin, errand.connection);
        let mut waiting = self.lock();
        match errand.pace {
            ErrandPace::Quick => waiting.quick.push(origin, connection, errand),
            ErrandPace::Long => waiting.long.push(origin, connection, errand),
        }
        drop(waiting);
        // Not each of them takes each errand.
        self.changed.notify_all();
    }

    pub(super) fn discard(&self, thing: Box<dyn Send>, place: Option<Arc<Place>>) {
        let _place = place;
        self.lock().discards.push_back(Discard { thing, _place });
        self.changed.notify_all();
    }

    /// A connection has gone: what it asked for is dropped.
    pub(super) fn take_out(&self, connection: ConnectionId) {
        let mut waiting = self.lock();
        let (quick, long) = (
            waiting.quick.take_out(connection),
            waiting.long.take_out(connection),
        );
        // An errand may have something of the store's, which takes its time.
        for errand in quick.into_iter().chain(long) {
            let _place = Some(errand.place);
            let thing = Box::new(errand.work);
            waiting.discards.push_back(Discard { thing, _place });
        }
        drop(waiting);
        self.changed.notify_all();
    }

    /// Does what is next, on this thread; whether there was something.
    pub(super) fn do_one(&self) -> bool {
        let next = self.lock().next(true);
        let worked = next.is_some();
        if let Some(next) = next {
            self.perform(next);
        }
        worked
    }

    fn perform(&self, next: Next) {
        contain("an object store", || match next {
            Next::Discard(discard) => drop(discard.thing),
            Next::Errand(errand) if errand.place.is_over() || self.lock().is_closed => {
                drop(errand.work);
            }
            Next::Errand(errand) => (errand.work)(),
        });
    }

    /// No errand is begun any more. What is left is dropped by who does errands.
    pub(super) fn close(&self) {
        self.lock().is_closed = true;
        self.changed.notify_all();
    }

    /// As a clerk, until it is closed and empty.
    fn serve(&self, takes_long: bool) {
        loop {
            let mut waiting = self.lock();
            let next = loop {
                let is_closed = waiting.is_closed;
                if let Some(next) = waiting.next(takes_long || is_closed) {
                    break next;
                }
                if is_closed {
                    return;
                }
                let woken = self.changed.wait(waiting);
                waiting = woken.unwrap_or_else(PoisonError::into_inner);
            };
            drop(waiting);
            self.perform(next);
        }
    }

    fn clerk_ended(&self) {
        self.lock().clerks -= 1;
        self.changed.notify_all();
    }

    /// Waits until each clerk has ended, at most until then; whether they have.
    fn wait_ended(&self, by: Instant) -> bool {
        let mut waiting = self.lock();
        while waiting.clerks > 0 {
            let left = by.saturating_duration_since(Instant::now());
            if left == Duration::ZERO {
                return false;
            }
            let woken = self.changed.wait_timeout(waiting, left);
            waiting = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}

/// Threads that do errands. Dropped, they end when they have done what they are at.
pub(super) struct Clerks {
    queue: Arc<ErrandQueue>,
    threads: Vec<JoinHandle<()>>,
}

impl Clerks {
    pub(super) fn start(count: u32, queue: &Arc<ErrandQueue>) -> Result<Self, Error> {
        let mut clerks = Self {
            queue: Arc::clone(queue),
            threads: Vec::new(),
        };
        for index in 0..count {
            let queue = Arc::clone(queue);
            let work = move || {
                queue.serve(index > 0 || count == 1);
                queue.clerk_ended();
            };
            let builder = std::thread::Builder::new().name("fabricast-store".to_owned());
            let thread = builder.spawn(work).map_err(|source| Error::Os {
                call: "pthread_create",
                source,
            })?;
            clerks.queue.lock().clerks += 1;
            clerks.threads.push(thread);
        }
        Ok(clerks)
    }

    /// Ends them, at most until then. A thread that a store keeps longer is left: what it has, it
    /// owns, and it ends when the store lets it go.
    pub(super) fn close(mut self, by: Instant) {
        self.queue.close();
        let threads = std::mem::take(&mut self.threads);
        if self.queue.wait_ended(by) {
            for thread in threads {
                // Nothing in it panics that was not caught.
                let _ = thread.join();
            }
        } else {
            tracing::warn!("an object store keeps threads of a service that has ended");
        }
    }
}

impl Drop for Clerks {
    fn drop(&mut self) {
        self.queue.close();
    }
}
