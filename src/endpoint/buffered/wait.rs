//! `BufferedWait`: what a thread sleeps on that drives a buffered endpoint.

use std::fmt;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use smallvec::SmallVec;

use crate::Error;
use crate::clock::Clock;
use crate::endpoint::link::wait::EndpointWait;
use crate::event_loop::WaitSource;

/// The outlet's wait, with the time by which the open buffer must leave.
pub(crate) struct BufferedWait {
    inner: Arc<EndpointWait>,
    /// Nanoseconds after `base`; `u64::MAX` is never.
    due_ns: AtomicU64,
    base: Instant,
}

impl BufferedWait {
    pub(crate) fn new(inner: Arc<EndpointWait>) -> Self {
        Self {
            due_ns: AtomicU64::new(u64::MAX),
            base: inner.clock().now(),
            inner,
        }
    }

    /// What its endpoint judges deadlines by.
    pub(super) fn clock(&self) -> &Clock {
        self.inner.clock()
    }

    pub(super) fn set_due(&self, due: Option<Instant>) {
        let ns = due.map_or(u64::MAX, |at| {
            u64::try_from(at.saturating_duration_since(self.base).as_nanos()).unwrap_or(u64::MAX)
        });
        self.due_ns.store(ns, Ordering::Release);
    }

    fn due(&self) -> Option<Instant> {
        match self.due_ns.load(Ordering::Acquire) {
            u64::MAX => None,
            ns => Some(self.base + Duration::from_nanos(ns)),
        }
    }

    pub(crate) fn wake(&self) {
        self.inner.wake();
    }

    pub(crate) fn sleep(&self, until: Instant) -> Result<(), Error> {
        self.inner
            .sleep(self.due().map_or(until, |due| due.min(until)))
    }
}

impl fmt::Debug for BufferedWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BufferedWait").finish_non_exhaustive()
    }
}

impl WaitSource for BufferedWait {
    fn fds(&self) -> SmallVec<[RawFd; 3]> {
        self.inner.fds()
    }

    fn prepare_wait(&self) -> Result<bool, Error> {
        self.inner.prepare_wait()
    }

    fn next_deadline(&self) -> Option<Instant> {
        [self.inner.next_deadline(), self.due()]
            .into_iter()
            .flatten()
            .min()
    }
}
