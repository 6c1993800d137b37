//! `QueueWatch`: what a thread that sleeps watches for a channel, whose endpoints come and go.

#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use smallvec::SmallVec;

use crate::Error;
use crate::endpoint::link::RdmWait;
use crate::endpoint::link::wait::LinkWait;
use crate::object::server::engine::GenerationId;
use crate::poll::sleep_on;

/// One descriptor for all queues of a channel, and for its bell.
#[derive(Debug)]
pub(super) struct QueueWatch {
    epoll: OwnedFd,
    queues: Mutex<Vec<(GenerationId, Arc<RdmWait>)>>,
    /// The provider's queues have no descriptors, which the first one says.
    is_blind: AtomicBool,
}

impl QueueWatch {
    pub(super) fn new(bell: BorrowedFd<'_>) -> Result<Self, Error> {
        let epoll = epoll::create(CreateFlags::CLOEXEC);
        let epoll = epoll.map_err(|errno| Error::os("epoll_create1", errno))?;
        watch(&epoll, bell)?;
        Ok(Self {
            epoll,
            queues: Mutex::default(),
            is_blind: AtomicBool::new(false),
        })
    }

    fn queues(&self) -> MutexGuard<'_, Vec<(GenerationId, Arc<RdmWait>)>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches the queue of an endpoint that was opened, too.
    pub(super) fn add(&self, id: GenerationId, wait: &Arc<RdmWait>) -> Result<(), Error> {
        match wait.fds().first() {
            Some(fd) => {
                // SAFETY: it is the queue's, which `wait` keeps open during this call.
                watch(&self.epoll, unsafe { BorrowedFd::borrow_raw(*fd) })?;
            }
            None => self.is_blind.store(true, Ordering::Relaxed),
        }
        self.queues().push((id, Arc::clone(wait)));
        Ok(())
    }

    /// Watches it no more; before its queue is closed.
    pub(super) fn remove(&self, id: GenerationId) {
        let mut queues = self.queues();
        let Some(place) = queues.iter().position(|(other, _)| *other == id) else {
            return;
        };
        let (_, wait) = queues.swap_remove(place);
        if let Some(fd) = wait.fds().first() {
            // SAFETY: as in `add`.
            let fd = unsafe { BorrowedFd::borrow_raw(*fd) };
            // One that is not watched is what it is to be.
            let _ = epoll::delete(&self.epoll, fd);
        }
    }

    /// Whether a thread may sleep on the descriptor: the queues tell by it, and nothing is to be
    /// read.
    pub(super) fn may_sleep(&self) -> Result<bool, Error> {
        Ok(!self.is_blind.load(Ordering::Relaxed) && self.try_wait()?)
    }

    /// Sleeps until there is something, at most for so long.
    pub(super) fn sleep(&self, time: Duration) -> Result<(), Error> {
        sleep_on([self.epoll.as_fd()], Some(time))?;
        Ok(())
    }
}

fn watch(epoll: &OwnedFd, fd: BorrowedFd<'_>) -> Result<(), Error> {
    let added = epoll::add(epoll, fd, EventData::new_u64(0), EventFlags::IN);
    added.map_err(|errno| Error::os("epoll_ctl", errno))
}

impl LinkWait for QueueWatch {
    fn fds(&self) -> SmallVec<[RawFd; 3]> {
        let is_blind = self.is_blind.load(Ordering::Relaxed);
        let fd = Some(self.epoll.as_raw_fd()).filter(|_| !is_blind);
        fd.into_iter().collect()
    }

    fn try_wait(&self) -> Result<bool, Error> {
        for (_, wait) in &*self.queues() {
            if !wait.try_wait()? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
