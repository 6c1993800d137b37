//! `Executor`: runs one future on the calling thread and sleeps on the endpoints' descriptors. For
//! tests and simple programs.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use smallvec::SmallVec;

use super::reactor::{EndpointFds, Reactor, Watch};
use crate::Error;
use crate::contain::contain;
use crate::sync::{Mutex, lock};

/// The future is being polled, or looked after.
const AWAKE: u8 = 0;
/// The thread sleeps, or is about to.
const ASLEEP: u8 = 1;
/// The future is to be polled.
const WOKEN: u8 = 2;

/// The pause after the system refused to wait.
const PAUSE: Duration = Duration::from_millis(1);

/// Runs one future at a time on the calling thread, and is the [`Reactor`] of the endpoints in it.
/// It starts no thread.
///
/// The endpoints that were made with it are watched while [`block_on`](Self::block_on) runs. A
/// future of theirs that is polled elsewhere makes progress too, but is woken only while it does.
///
/// ```
/// let executor = fabricast::future::Executor::new()?;
/// assert_eq!(executor.block_on(async { 6 * 7 }), 42);
/// # Ok::<(), fabricast::Error>(())
/// ```
pub struct Executor {
    shared: Arc<Shared>,
    running: Cell<bool>,
    stats: Cell<ExecutorStats>,
}

/// Counters of an executor.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExecutorStats {
    /// Polls of the futures given to `block_on`.
    pub polls: u64,
    /// Sleeps in the kernel.
    pub sleeps: u64,
}

struct Shared {
    state: AtomicU8,
    eventfd: OwnedFd,
    watches: Mutex<Watches>,
}

#[derive(Default)]
struct Watches {
    last: u64,
    armed: BTreeMap<u64, Armed>,
}

/// A watch whose waker is to be called.
struct Armed {
    fds: EndpointFds,
    until: Instant,
    waker: Waker,
}

impl Executor {
    /// An executor.
    ///
    /// # Errors
    ///
    /// [`Error::Os`] when the process or the system is out of descriptors.
    pub fn new() -> Result<Self, Error> {
        let eventfd = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| Error::os("eventfd", errno))?;
        Ok(Self {
            shared: Arc::new(Shared {
                state: AtomicU8::new(AWAKE),
                eventfd,
                watches: Mutex::new(Watches::default()),
            }),
            running: Cell::new(false),
            stats: Cell::default(),
        })
    }

    /// Runs a future to its end, and sleeps while there is nothing to do.
    ///
    /// # Panics
    ///
    /// When the future itself calls this on the same executor.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        assert!(
            !self.running.replace(true),
            "block_on was called by the future that it runs"
        );
        let _running = Running(&self.running);
        let waker = Waker::from(Arc::clone(&self.shared));
        let mut cx = Context::from_waker(&waker);
        let mut future = pin!(future);
        loop {
            // Before the poll: what wakes during it must lead to another. A swap, so that what was
            // written before a wake is seen in the poll.
            self.shared.state.swap(AWAKE, Ordering::SeqCst);
            self.count(|stats| stats.polls += 1);
            if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
                return output;
            }
            while self.shared.go_to_sleep() {
                self.count(|stats| stats.sleeps += 1);
                self.shared.sleep();
            }
        }
    }

    /// The counters since it was made.
    pub fn stats(&self) -> ExecutorStats {
        self.stats.get()
    }

    fn count(&self, add: impl FnOnce(&mut ExecutorStats)) {
        let mut stats = self.stats.get();
        add(&mut stats);
        self.stats.set(stats);
    }
}

/// Also when the future panics.
struct Running<'a>(&'a Cell<bool>);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

impl Shared {
    /// False: the future is to be polled first.
    fn go_to_sleep(&self) -> bool {
        self.state
            .compare_exchange(AWAKE, ASLEEP, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok()
    }

    /// Makes a sleeping thread look again.
    fn kick(&self) {
        // An eventfd refuses only when its counter is full: then the thread will wake anyway.
        let _ = rustix::io::write(&self.eventfd, &1u64.to_ne_bytes());
    }

    /// Sleeps until a descriptor is readable, a time comes or somebody kicks; wakes whom that
    /// concerns.
    fn sleep(&self) {
        // State ASLEEP was set before this look, and who arms a watch looks at the state
        // afterwards: one sees the other.
        let mut watched: SmallVec<[(u64, EndpointFds); 4]> = SmallVec::new();
        let mut until = None;
        for (id, armed) in &lock(&self.watches).armed {
            watched.push((*id, armed.fds.clone()));
            until = Some(until.map_or(armed.until, |at: Instant| at.min(armed.until)));
        }
        let readable = self.poll(&watched, until);
        // A wake meanwhile stays: only the sleep ends here.
        let _ = self
            .state
            .compare_exchange(ASLEEP, AWAKE, Ordering::SeqCst, Ordering::SeqCst);
        let now = Instant::now();
        let mut due: SmallVec<[Armed; 4]> = SmallVec::new();
        {
            let mut watches = lock(&self.watches);
            for (id, _) in &watched {
                let late = watches
                    .armed
                    .get(id)
                    .is_some_and(|armed| armed.until <= now);
                if late || readable.contains(id) {
                    due.extend(watches.armed.remove(id));
                }
            }
        }
        // Without the lock: a waker may arm the watch again.
        for armed in due {
            contain("a waker", || armed.waker.wake());
        }
    }

    /// Waits in the kernel; the watches of which a descriptor is readable.
    fn poll(&self, watched: &[(u64, EndpointFds)], until: Option<Instant>) -> SmallVec<[u64; 4]> {
        let mut fds: SmallVec<[PollFd<'_>; 12]> = SmallVec::new();
        fds.push(PollFd::new(&self.eventfd, PollFlags::IN));
        for (_, endpoint) in watched {
            fds.extend(
                endpoint
                    .iter()
                    .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)),
            );
        }
        let timeout = until.map(|at| timespec(at.saturating_duration_since(Instant::now())));
        match rustix::event::poll(&mut fds, timeout.as_ref()) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return SmallVec::new(),
            Err(errno) => {
                // More descriptors than the process may wait for, or no memory: everybody looks for
                // themselves.
                tracing::warn!(%errno, "poll(2) failed");
                std::thread::sleep(PAUSE);
                return watched.iter().map(|(id, _)| *id).collect();
            }
        }
        if !fds[0].revents().is_empty() {
            let mut counter = [0; 8];
            let _ = rustix::io::read(&self.eventfd, &mut counter);
        }
        let mut ready = fds[1..].iter().map(|fd| !fd.revents().is_empty());
        let mut readable = SmallVec::new();
        for (id, endpoint) in watched {
            // All of its descriptors are taken off the list, whichever is readable.
            if ready
                .by_ref()
                .take(endpoint.len())
                .fold(false, |any, fd| any | fd)
            {
                readable.push(*id);
            }
        }
        readable
    }
}

fn timespec(time: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: time.subsec_nanos().into(),
    }
}

impl Wake for Shared {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.state.swap(WOKEN, Ordering::SeqCst) == ASLEEP {
            self.kick();
        }
    }
}

impl Reactor for Executor {
    fn watch(&self, fds: EndpointFds) -> io::Result<Box<dyn Watch>> {
        let mut watches = lock(&self.shared.watches);
        watches.last += 1;
        Ok(Box::new(ExecutorWatch {
            id: watches.last,
            fds,
            shared: Arc::clone(&self.shared),
        }))
    }
}

struct ExecutorWatch {
    id: u64,
    fds: EndpointFds,
    shared: Arc<Shared>,
}

impl Watch for ExecutorWatch {
    /// The sleep looks at levels, so there is no need to look here.
    fn poll_ready(&mut self, cx: &mut Context<'_>, until: Instant) -> Poll<()> {
        if until <= Instant::now() {
            return Poll::Ready(());
        }
        let armed = Armed {
            fds: self.fds.clone(),
            until,
            waker: cx.waker().clone(),
        };
        let old = lock(&self.shared.watches).armed.insert(self.id, armed);
        drop(old);
        if self.shared.state.load(Ordering::SeqCst) == ASLEEP {
            self.shared.kick();
        }
        Poll::Pending
    }
}

impl Drop for ExecutorWatch {
    fn drop(&mut self) {
        let old = lock(&self.shared.watches).armed.remove(&self.id);
        drop(old);
    }
}

impl fmt::Debug for Executor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Executor")
            .field("stats", &self.stats.get())
            .finish_non_exhaustive()
    }
}
