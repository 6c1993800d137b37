//! Wakes a loop from any thread: an eventfd, three flags, and what signals have to say.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};

use super::signal::SignalMailbox;
use crate::error::Error;
use crate::process::Owner;
use crate::sync::{AtomicBool, Ordering};

/// Wakes a loop, or stops it, from any thread. Cheap to clone; harmless when the loop is gone.
///
/// ```
/// use fabricast::event_loop::{EventLoop, LoopEvent};
///
/// let mut event_loop = EventLoop::new()?;
/// let waker = event_loop.waker();
/// let thread = std::thread::spawn(move || waker.wake());
/// event_loop.run(|event_loop, event| {
///     assert_eq!(event, LoopEvent::Woken);
///     event_loop.stop();
/// })?;
/// thread.join().unwrap();
/// # Ok::<(), fabricast::error::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Waker(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    owner: Owner,
    eventfd: OwnedFd,
    /// A signal is in the eventfd, or is about to be.
    signalled: AtomicBool,
    woken: AtomicBool,
    stop: AtomicBool,
    mailbox: SignalMailbox,
}

impl Waker {
    pub(super) fn new() -> Result<Self, Error> {
        let eventfd =
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|errno| {
                Error::Os {
                    call: "eventfd",
                    source: errno.into(),
                }
            })?;
        Ok(Self(Arc::new(Shared {
            owner: Owner::current(),
            eventfd,
            signalled: AtomicBool::new(false),
            woken: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            mailbox: SignalMailbox::default(),
        })))
    }

    /// The loop delivers [`LoopEvent::Woken`](super::LoopEvent::Woken) soon.
    ///
    /// Wakes that come before the loop has looked become one. What was written before the call is
    /// seen by the handler of that event. Costs one system call when the loop was not signalled
    /// yet, none otherwise.
    pub fn wake(&self) {
        // Release: pairs with the swap in `drain`, so the handler sees what the caller wrote
        // before.
        self.0.woken.store(true, Ordering::Release);
        self.signal();
    }

    /// [`run`](super::EventLoop::run) returns after the handler that is at work now; if the loop is
    /// not running, the next run returns at once.
    pub fn stop(&self) {
        self.0.stop.store(true, Ordering::Release);
        self.signal();
    }

    /// In the process that made the loop.
    pub(super) fn is_here(&self) -> bool {
        self.0.owner.is_here()
    }

    /// Where signals leave what they have to say, before [`signal`](Self::signal).
    pub(super) fn mailbox(&self) -> &SignalMailbox {
        &self.0.mailbox
    }

    pub(super) fn signal(&self) {
        // The flag stays up until the loop has emptied the eventfd, so whoever finds it up knows
        // that a signal is there or under way by the one who raised it. AcqRel: whoever finds it up
        // passes its own store on to `drain`.
        if self.0.owner.is_here() && !self.0.signalled.swap(true, Ordering::AcqRel) {
            // An eventfd refuses only when its counter is full: then the loop will wake anyway.
            let _ = rustix::io::write(&self.0.eventfd, &1u64.to_ne_bytes());
        }
    }

    pub(super) fn fd(&self) -> RawFd {
        self.0.eventfd.as_raw_fd()
    }

    /// Whether a look at the eventfd is worth its system call; for rounds that spin.
    pub(super) fn is_signalled(&self) -> bool {
        self.0.signalled.load(Ordering::Relaxed)
    }

    /// Empties the eventfd; true = somebody called `wake`.
    pub(super) fn drain(&self) -> bool {
        let mut counter = [0; 8];
        let _ = rustix::io::read(&self.0.eventfd, &mut counter);
        // In this order: with the flag lowered first, a signal between the two lines would be read
        // away and the flag would stay up, and no later wake would ever write again.
        self.0.signalled.swap(false, Ordering::AcqRel);
        self.0.woken.swap(false, Ordering::AcqRel)
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.0.stop.load(Ordering::Acquire)
    }

    pub(super) fn take_stop(&self) -> bool {
        self.0.stop.swap(false, Ordering::AcqRel)
    }
}
