//! What a sleeping thread asks of a link's queues before it sleeps on their descriptors.

#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use smallvec::SmallVec;

use crate::Error;
use crate::endpoint::link::resolving_ep::ResolverInbox;
use crate::endpoint::link::wait::LinkWait;
use crate::fabric::{Cq, Domain, Eq};

/// The queues of a link over connected endpoints.
#[derive(Debug)]
pub(crate) struct FabricWait {
    pub(crate) cq: Arc<Cq>,
    pub(crate) eq: Arc<Eq>,
    pub(crate) inbox: Option<Arc<ResolverInbox>>,
    pub(crate) keeps_events: Arc<AtomicBool>,
}

impl LinkWait for FabricWait {
    fn fds(&self) -> SmallVec<[RawFd; 3]> {
        let (Some(cq), Some(eq)) = (self.cq.fd(), self.eq.fd()) else {
            return SmallVec::new();
        };
        let bell = self.inbox.iter().map(|inbox| inbox.bell().as_raw_fd());
        [cq, eq].into_iter().chain(bell).collect()
    }

    fn try_wait(&self) -> Result<bool, Error> {
        if self.keeps_events.load(Ordering::Acquire) {
            return Ok(false);
        }
        if self.cq.fd().is_none() {
            return Ok(true);
        }
        // SAFETY: the queue is one of connected endpoints, whose providers don't look into closed
        // ones (the column `waits_on_closed`).
        unsafe { self.cq.try_wait(Some(&self.eq)) }
    }
}

/// The queue of a link over an endpoint without connections.
#[derive(Debug)]
pub(crate) struct RdmWait {
    cq: Arc<Cq>,
    domain: Arc<Domain>,
    /// Held while the provider is asked, which looks into the endpoint: it is not closed meanwhile.
    bound: Mutex<Bound>,
}

/// The endpoint that the queue is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bound {
    /// The one that it was opened with.
    First,
    /// None any more.
    Closed,
    /// One after that.
    Again,
}

impl RdmWait {
    /// Of a queue whose first endpoint is open.
    pub(crate) fn new(cq: &Arc<Cq>, domain: &Arc<Domain>) -> Self {
        Self {
            cq: Arc::clone(cq),
            domain: Arc::clone(domain),
            bound: Mutex::new(Bound::First),
        }
    }

    fn bound(&self) -> MutexGuard<'_, Bound> {
        self.bound.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Before an endpoint is closed, and after another one was opened.
    pub(crate) fn set(&self, bound: Bound) {
        *self.bound() = bound;
    }

    /// Whether `fi_trywait` may be asked.
    fn can_ask(&self, bound: Bound) -> bool {
        match bound {
            Bound::First => true,
            Bound::Closed => false,
            Bound::Again => !self.looks_into_closed(),
        }
    }

    fn looks_into_closed(&self) -> bool {
        self.domain.fabric().provider().queues.waits_on_closed
    }
}

impl LinkWait for RdmWait {
    fn fds(&self) -> SmallVec<[RawFd; 3]> {
        self.cq.fd().into_iter().collect()
    }

    fn try_wait(&self) -> Result<bool, Error> {
        let bound = self.bound();
        if self.cq.fd().is_none() || !self.can_ask(*bound) {
            return Ok(true);
        }
        // SAFETY: `bound` is held, which is set before an endpoint is closed, and after that a
        // provider that looks into closed ones is not asked (`can_ask`).
        unsafe { self.cq.try_wait(None) }
    }

    fn must_look(&self) -> bool {
        self.looks_into_closed() && self.cq.fd().is_some() && *self.bound() == Bound::Again
    }
}
