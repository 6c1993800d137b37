//! `Source`: what a loop watches.

use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use smallvec::SmallVec;

use super::signal::LoopSide;
use super::wait::WaitHandle;

/// One thing that a loop watches, by its token.
#[derive(Debug)]
pub(super) enum Source {
    Endpoint(Endpoint),
    Fd(RawFd),
    Timer { every: Option<Duration> },
    Signal(LoopSide),
}

/// One endpoint of the loop.
#[derive(Debug)]
pub(super) struct Endpoint {
    pub(super) handle: WaitHandle,
    pub(super) fds: SmallVec<[RawFd; 3]>,
    /// It has no descriptor, or the kernel would not watch it: polled at the interval.
    pub(super) polled: bool,
    pub(super) next_poll: Instant,
    /// `prepare_wait` failed, which is told once.
    pub(super) warned: bool,
    /// An event for it waits in `pending`.
    pub(super) queued: bool,
}
