//! `Reactor`: what wakes the futures of an endpoint, and the descriptors that it watches for it.

#![allow(unsafe_code)]

use std::fmt;
use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec};
use smallvec::SmallVec;

use crate::event_loop::WaitSource;

/// Wakes tasks when an endpoint's descriptors become readable, or at a time.
///
/// [`Executor`](super::Executor) is one that needs no runtime; with the feature `tokio` there is
/// `TokioReactor`. To use another runtime, implement this and [`Watch`] with what it has to watch a
/// descriptor and to set a timer.
pub trait Reactor {
    /// Prepares to watch the descriptors of one endpoint. None at all: only the time matters.
    ///
    /// # Errors
    ///
    /// The system will not watch them. The endpoint is then polled at an interval.
    fn watch(&self, fds: EndpointFds) -> io::Result<Box<dyn Watch>>;
}

/// Watches one endpoint. Dropping it ends that.
pub trait Watch: Send {
    /// `Ready` when a descriptor is readable now or `until` is over; else the waker is called as
    /// soon as one of that is so.
    ///
    /// Only the waker of the last call counts. It may be called for no reason, and must not be
    /// called for nothing again and again.
    ///
    /// The descriptors count as *levels*. What reports only edges (epoll with `EPOLLET`, as in most
    /// runtimes) must register the waker first, and then look at [`EndpointFds::any_readable`]: the
    /// endpoint reads its queues and never empties the descriptors themselves, so one may be
    /// readable without a further edge to come.
    fn poll_ready(&mut self, cx: &mut Context<'_>, until: Instant) -> Poll<()>;
}

/// The descriptors of one endpoint, which stay open as long as this lives.
///
/// They are the endpoint's: watch them for reading, and never read, write or close them.
#[derive(Clone)]
pub struct EndpointFds {
    fds: SmallVec<[RawFd; 3]>,
    /// Keeps the queues open that the descriptors belong to.
    _source: Option<Arc<dyn WaitSource>>,
}

impl EndpointFds {
    pub(crate) fn of(source: &Arc<dyn WaitSource>) -> Self {
        Self {
            fds: source.fds(),
            _source: Some(Arc::clone(source)),
        }
    }

    /// No descriptor.
    pub fn none() -> Self {
        Self {
            fds: SmallVec::new(),
            _source: None,
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.fds.len()
    }

    /// Whether there is none: then only the time matters.
    pub fn is_empty(&self) -> bool {
        self.fds.is_empty()
    }

    /// Each of them.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = BorrowedFd<'_>> {
        self.fds.iter().map(|&fd| {
            // SAFETY: the descriptor belongs to `_source` (`of` took it from there), which is not
            // dropped while `self` is borrowed, and keeps its queues and its eventfd open.
            unsafe { BorrowedFd::borrow_raw(fd) }
        })
    }

    /// Whether one of them is readable at this moment; one system call.
    ///
    /// # Errors
    ///
    /// What `poll(2)` answered.
    pub fn any_readable(&self) -> io::Result<bool> {
        let mut fds: SmallVec<[PollFd<'_>; 3]> = self
            .iter()
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        match rustix::event::poll(&mut fds, Some(&Timespec::default())) {
            Ok(ready) => Ok(ready > 0),
            // Not known: whoever asks looks at the endpoint then, which costs little.
            Err(rustix::io::Errno::INTR) => Ok(true),
            Err(errno) => Err(errno.into()),
        }
    }
}

impl fmt::Debug for EndpointFds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("EndpointFds").field(&self.fds).finish()
    }
}
