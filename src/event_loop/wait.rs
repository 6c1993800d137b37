//! What a sleeping thread must watch for one endpoint: descriptors, the check before the sleep, the
//! next deadline.

use std::fmt::Debug;
use std::os::fd::RawFd;
use std::sync::{Arc, Weak};
use std::time::Instant;

use smallvec::SmallVec;

use crate::error::Error;

/// Shared view of what a sleeping thread must watch for one endpoint.
///
/// The loop holds it weakly and asks it on its own thread. It may outlive the endpoint for the
/// length of a call.
pub(crate) trait WaitSource: Send + Sync + Debug {
    /// The completion queue's, the event queue's and the endpoint's own wake-up descriptor.
    ///
    /// None at all means that the endpoint must be polled at a bounded interval. They never change
    /// while it lives.
    fn fds(&self) -> SmallVec<[RawFd; 3]>;

    /// `fi_trywait` on every queue: true = the thread may sleep, false = poll the endpoint first.
    fn prepare_wait(&self) -> Result<bool, Error>;

    /// The endpoint must be polled by then.
    fn next_deadline(&self) -> Option<Instant>;
}

/// What a thread needs to sleep until an endpoint has something to do; an endpoint's
/// `wait_handle()` returns it.
///
/// [`EventLoop`](super::EventLoop) uses it by itself. A loop that is not ours (asio, tokio, a bare
/// `epoll`) watches [`fds`](Self::fds) for reading, and before *every* sleep asks
/// [`prepare_wait`](Self::prepare_wait) and [`next_deadline`](Self::next_deadline); when a
/// descriptor is readable it polls the endpoint.
///
/// A handle does not keep its endpoint alive.
#[derive(Debug, Clone)]
pub struct WaitHandle(Weak<dyn WaitSource>);

impl WaitHandle {
    /// A handle on `source` that does not keep it alive.
    #[allow(dead_code, reason = "the endpoints call it")]
    pub(crate) fn new<S: WaitSource + 'static>(source: &Arc<S>) -> Self {
        let weak = Arc::downgrade(source);
        Self(weak)
    }

    /// The source, for one call.
    pub(crate) fn upgrade(&self) -> Option<Arc<dyn WaitSource>> {
        self.0.upgrade()
    }

    /// Whether the endpoint still exists. Another thread may drop it right after.
    pub fn is_alive(&self) -> bool {
        self.0.strong_count() > 0
    }

    /// The descriptors to watch for reading, level-triggered; they are the endpoint's: never read
    /// or close them.
    ///
    /// Empty where the provider has none: then poll the endpoint at an interval of your own. Empty
    /// too when the endpoint is gone. They stay the same as long as the endpoint lives.
    pub fn fds(&self) -> Vec<RawFd> {
        self.upgrade()
            .map(|source| source.fds().to_vec())
            .unwrap_or_default()
    }

    /// Whether the thread may sleep now; ask right before each sleep (`fi_trywait`, fi_poll.3).
    ///
    /// `Ok(false)`: poll the endpoint first, or a completion may never wake the thread. A dead
    /// handle answers `Ok(true)`: nothing will come from it.
    ///
    /// # Errors
    /// What `fi_trywait` answered. Poll the endpoint: it reports its own failure.
    pub fn prepare_wait(&self) -> Result<bool, Error> {
        self.upgrade()
            .map_or(Ok(true), |source| source.prepare_wait())
    }

    /// When the endpoint must be polled even if no descriptor became readable; `None` = no
    /// deadline, or it is gone.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.upgrade()?.next_deadline()
    }
}

/// Something that an [`EventLoop`](super::EventLoop) can drive: every endpoint of this library, and
/// [`ObjectChannel`](crate::object::ObjectChannel)s.
pub trait Waitable {
    /// What to watch for it.
    fn wait_handle(&self) -> WaitHandle;
}

impl Waitable for WaitHandle {
    fn wait_handle(&self) -> WaitHandle {
        self.clone()
    }
}
