//! What a sleeping thread watches for one endpoint, and how other threads wake it.

#![allow(unsafe_code)]

use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::event::EventfdFlags;
use smallvec::SmallVec;

use crate::Error;
use crate::clock::Clock;
use crate::event_loop::WaitSource;
use crate::poll::sleep_on;
use crate::process::Owner;

/// The link's part: its descriptors and `fi_trywait`.
pub(crate) trait LinkWait: Send + Sync + fmt::Debug {
    /// Readable when there may be something to poll for; empty where the provider has none.
    fn fds(&self) -> SmallVec<[RawFd; 3]>;
    /// True: sleeping on the descriptors is safe now.
    fn try_wait(&self) -> Result<bool, Error>;
    /// The descriptors may not tell of everything: whoever sleeps looks each millisecond.
    fn must_look(&self) -> bool {
        false
    }
}

/// How long a sleeper sleeps at most that no descriptor wakes.
const LOOK: Duration = Duration::from_millis(1);

/// Shared between an endpoint, the loops that watch it and the threads that wake it.
#[derive(Debug)]
pub(crate) struct EndpointWait {
    /// A child shares the eventfd with its parent, and wakes nobody.
    owner: Owner,
    link: Arc<dyn LinkWait>,
    wake_fd: OwnedFd,
    /// A wake was asked for and the endpoint has not polled since.
    woken: AtomicBool,
    /// Someone prepared to sleep since the last poll: the next poll must look everywhere.
    slept: AtomicBool,
    /// Something was accepted that the next poll posts: nobody sleeps before that.
    unsent: AtomicBool,
    /// Something was received that the next call takes, or lets go of: the same.
    unread: AtomicBool,
    /// The kernel gathers messages, which the next poll may let go: nobody sleeps before that.
    gathering: AtomicBool,
    /// By when the endpoint wants to be polled.
    deadline: AtomicDeadline,
    /// The same of an endpoint that packs what this one sends.
    packer_deadline: AtomicDeadline,
    clock: Clock,
}

/// A deadline that one thread sets and others read.
#[derive(Debug)]
struct AtomicDeadline {
    base: Instant,
    /// Nanoseconds after `base`; `u64::MAX` is never.
    ns: AtomicU64,
}

impl AtomicDeadline {
    fn never(base: Instant) -> Self {
        let ns = AtomicU64::new(u64::MAX);
        Self { base, ns }
    }

    fn set(&self, deadline: Option<Instant>) {
        let ns = deadline.map_or(u64::MAX, |at| {
            u64::try_from(at.saturating_duration_since(self.base).as_nanos()).unwrap_or(u64::MAX)
        });
        self.ns.store(ns, Ordering::Release);
    }

    fn get(&self) -> Option<Instant> {
        match self.ns.load(Ordering::Acquire) {
            u64::MAX => None,
            ns => Some(self.base + Duration::from_nanos(ns)),
        }
    }
}

impl EndpointWait {
    pub(crate) fn new(link: Arc<dyn LinkWait>, clock: Clock) -> Result<Self, Error> {
        let wake_fd = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| Error::os("eventfd", e))?;
        Ok(Self {
            owner: Owner::current(),
            link,
            wake_fd,
            woken: AtomicBool::new(false),
            slept: AtomicBool::new(true),
            unsent: AtomicBool::new(false),
            unread: AtomicBool::new(false),
            gathering: AtomicBool::new(false),
            deadline: AtomicDeadline::never(clock.now()),
            packer_deadline: AtomicDeadline::never(clock.now()),
            clock,
        })
    }

    /// What its endpoint judges deadlines by.
    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Makes the endpoint's owner poll it. From any thread; many wakes before a poll count as one.
    pub(crate) fn wake(&self) {
        if !self.owner.is_here() {
            return;
        }
        // AcqRel: what the waker did before is seen by the poll that finds the flag (`begin_poll`).
        if !self.woken.swap(true, Ordering::AcqRel) {
            // The counter of an eventfd that was just read cannot be full, so this cannot fail for
            // want of room.
            let _ = rustix::io::write(&self.wake_fd, &1u64.to_ne_bytes());
        }
    }

    /// Something was accepted that is posted by the next poll, or nothing is any more. Wakes who
    /// sleeps; who does not, won't before that poll.
    pub(crate) fn set_unsent(&self, unsent: bool) {
        self.set_busy(&self.unsent, unsent);
    }

    /// Something was received that lies here until the next call, or nothing does any more. Wakes
    /// who sleeps; who does not, won't before that call.
    pub(crate) fn set_unread(&self, unread: bool) {
        self.set_busy(&self.unread, unread);
    }

    /// As [`set_unsent`](Self::set_unsent), of messages that the kernel gathers.
    pub(crate) fn set_gathering(&self, gathering: bool) {
        self.set_busy(&self.gathering, gathering);
    }

    fn set_busy(&self, flag: &AtomicBool, busy: bool) {
        // SeqCst, as in `prepare_wait`: of this and a sleeper, one sees the other's word.
        flag.store(busy, Ordering::SeqCst);
        if busy && self.slept.load(Ordering::SeqCst) {
            self.wake();
        }
    }

    /// At the start of a poll: takes the wakes so far. True: look at everything, someone slept or
    /// woke us.
    pub(crate) fn begin_poll(&self) -> bool {
        let woken = self.woken.load(Ordering::Acquire);
        if woken {
            let mut count = [0; 8];
            // Read first, clear the flag after: a wake in between finds the flag set and writes
            // nothing, and what it announces is looked at by this very poll.
            let _ = rustix::io::read(&self.wake_fd, &mut count);
            self.woken.store(false, Ordering::Release);
        }
        let slept = self.slept.load(Ordering::Relaxed) && self.slept.swap(false, Ordering::AcqRel);
        woken || slept
    }

    pub(crate) fn set_deadline(&self, deadline: Option<Instant>) {
        self.deadline.set(deadline);
    }

    /// By when an endpoint that packs what this one sends wants to be polled.
    pub(crate) fn set_packer_deadline(&self, deadline: Option<Instant>) {
        self.packer_deadline.set(deadline);
    }

    /// Sleeps until there may be something to poll for, at most until `until`. Without descriptors
    /// it sleeps in steps of a millisecond.
    pub(crate) fn sleep(&self, until: Instant) -> Result<(), Error> {
        if !self.prepare_wait()? {
            return Ok(());
        }
        let until = self.next_deadline().map_or(until, |at| at.min(until));
        let mut left = until.saturating_duration_since(self.clock.now());
        let fds = self.link.fds();
        if fds.is_empty() {
            left = left.min(LOOK);
        }
        let left = self.clock.sleep_for(left);
        let link = fds.iter().map(|&fd| {
            // SAFETY: the descriptors belong to the link's queues, which `self.link` keeps open
            // during this call.
            unsafe { BorrowedFd::borrow_raw(fd) }
        });
        sleep_on(link.chain([self.wake_fd.as_fd()]), Some(left))?;
        Ok(())
    }
}

impl WaitSource for EndpointWait {
    fn fds(&self) -> SmallVec<[RawFd; 3]> {
        let link = self.link.fds();
        if link.is_empty() {
            return SmallVec::new();
        }
        link.into_iter().chain([self.wake_fd.as_raw_fd()]).collect()
    }

    fn prepare_wait(&self) -> Result<bool, Error> {
        self.slept.store(true, Ordering::SeqCst);
        let reasons = [&self.unsent, &self.unread, &self.gathering];
        let stays = reasons.iter().any(|reason| reason.load(Ordering::SeqCst));
        if stays || self.woken.load(Ordering::Acquire) {
            return Ok(false);
        }
        self.link.try_wait()
    }

    fn next_deadline(&self) -> Option<Instant> {
        let deadlines = [self.deadline.get(), self.packer_deadline.get()];
        let deadline = deadlines.into_iter().flatten().min();
        if !self.link.must_look() {
            return deadline;
        }
        let look = self.clock.now() + LOOK;
        Some(deadline.map_or(look, |at| at.min(look)))
    }
}
