//! `ProgressThread`: has the provider serve what servers do to lent memory, while tokens stand.

#![allow(unsafe_code)]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::EventfdFlags;
use smallvec::SmallVec;

use crate::Error;
use crate::fabric::Completions;
use crate::object::lender::{Lender, Wake};
use crate::object::window_ep::WindowEp;
use crate::poll::sleep_on;

/// After something happened, a thread without descriptors looks again at once for so long.
const EAGER: Duration = Duration::from_micros(50);

/// How long endpoints are looked at behind which nothing is lent any more, where the thread can't
/// sleep on them: who lends token after token wakes no thread for each.
const LINGER: Duration = Duration::from_millis(1);

/// The shortest and the longest sleep of a thread without descriptors.
const NAPS: (Duration, Duration) = (Duration::from_micros(50), Duration::from_millis(1));

/// How long a thread with descriptors sleeps at most: some providers have timers of their own.
const LONGEST: Duration = Duration::from_millis(100);

/// Descriptors of endpoints, of which there are few.
type Fds = SmallVec<[RawFd; 4]>;

/// Wakes the thread.
#[derive(Debug)]
pub(super) struct Bell {
    fd: OwnedFd,
    stop: AtomicBool,
}

impl Bell {
    pub(super) fn new() -> Result<Arc<Self>, Error> {
        let fd = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| Error::os("eventfd", error))?;
        let stop = AtomicBool::new(false);
        Ok(Arc::new(Self { fd, stop }))
    }

    fn ring(&self) {
        // A counter that is full wakes the thread as well.
        let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
    }

    fn clear(&self) {
        let _ = rustix::io::read(&self.fd, &mut [0u8; 8]);
    }
}

impl Wake for Arc<Bell> {
    fn wake(&self) {
        self.ring();
    }
}

/// The thread. Dropping it ends it.
#[derive(Debug)]
pub(super) struct ProgressThread {
    bell: Arc<Bell>,
    thread: Option<JoinHandle<()>>,
}

impl ProgressThread {
    pub(super) fn start(lender: &Arc<Lender>, bell: &Arc<Bell>) -> Result<Self, Error> {
        let (theirs, rung) = (Arc::clone(lender), Arc::clone(bell));
        let thread = std::thread::Builder::new()
            .name("fabricast-object".to_owned())
            .spawn(move || work(&theirs, &rung))
            .map_err(|error| Error::os("spawn", error))?;
        Ok(Self {
            bell: Arc::clone(bell),
            thread: Some(thread),
        })
    }
}

impl Drop for ProgressThread {
    fn drop(&mut self) {
        self.bell.stop.store(true, Ordering::Release);
        self.bell.ring();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn work(lender: &Lender, bell: &Bell) {
    let mut scratch = Completions::new();
    while !bell.stop.load(Ordering::Acquire) {
        bell.clear();
        let version = lender.version();
        let endpoints = lender.watch();
        if endpoints.is_empty() {
            sleep(&[], bell, None);
            continue;
        }
        serve(&endpoints, lender, version, bell, &mut scratch);
    }
}

/// Serves these endpoints until others are in use, or nothing is lent behind one of them.
fn serve(
    endpoints: &[Arc<WindowEp>],
    lender: &Lender,
    version: u64,
    bell: &Bell,
    scratch: &mut Completions,
) {
    let mut last = Instant::now();
    let mut nap = NAPS.0;
    while lender.version() == version && !bell.stop.load(Ordering::Acquire) {
        let mut busy = false;
        for endpoint in endpoints {
            busy |= endpoint.progress(scratch);
        }
        if busy {
            (last, nap) = (Instant::now(), NAPS.0);
            continue;
        }
        let fds: Fds = endpoints.iter().map_while(|ep| ep.sleeps_on()).collect();
        if fds.len() == endpoints.len() {
            if !sleep(&fds, bell, Some(LONGEST)) && lender.has_idle() {
                return;
            }
        } else if last.elapsed() >= LINGER && lender.has_idle() {
            return;
        } else if last.elapsed() < EAGER || endpoints.iter().all(|ep| ep.has_fd()) {
            // There is something to do, or soon will be.
            std::thread::yield_now();
        } else {
            sleep(&[], bell, Some(nap));
            nap = (2 * nap).min(NAPS.1);
        }
    }
}

/// Sleeps on descriptors of endpoints that the caller keeps open, and on the bell; whether it was
/// woken.
fn sleep(fds: &[RawFd], bell: &Bell, longest: Option<Duration>) -> bool {
    let queues = fds.iter().map(|&fd| {
        // SAFETY: the descriptor is that of an endpoint's queue, which `serve` keeps open by its
        // `Arc` until the sleep is over.
        unsafe { BorrowedFd::borrow_raw(fd) }
    });
    // What fails is looked at again.
    sleep_on(queues.chain([bell.fd.as_fd()]), longest).unwrap_or(true)
}
