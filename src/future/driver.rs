//! `Driver`: what all futures of one sending endpoint share. Whichever of them is polled drives the
//! endpoint for all.
//!
//! A round, without the lock where it says so:
//!
//! ```text
//!  turn, unless armed ─► the future's own step ─► fi_trywait ─► Watch::poll_ready ─► armed: wait
//!        ▲                                          │ no          │ (no lock)
//!        │                                          │             │ ready, or somebody turned
//!        │                                          │             │ meanwhile
//!        └──────────────────────────────────────────┴─────────────┘
//! ```
//!
//! *Armed* means that nothing has been posted or polled since a look at the queues found nothing,
//! and that the reactor will ring the bell at the next sign of life. Then a turn can bring nothing
//! and is left out, at most for [`POLL_INTERVAL`]: so who polls a future again and again makes
//! progress too, even while the reactor does not run. The bell belongs to no future: a future that
//! is dropped takes nobody's wake-up with it.

use std::fmt;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use super::after::After;
use super::reactor::{EndpointFds, Reactor, Watch};
use super::send_engine::SendEngine;
use super::work::Sender;
use crate::event_loop::WaitSource;
use crate::sync::{Mutex, lock};

/// How often an endpoint is polled that no descriptor speaks for. Never in a model, whose steps
/// must not depend on the clock.
pub(crate) const POLL_INTERVAL: Duration =
    Duration::from_millis(if cfg!(loom) { 3_600_000 } else { 1 });

/// The longest wait for a sign of life: then the endpoint is looked at in any case.
pub(crate) const SLEEP_MAX: Duration = Duration::from_secs(1);

/// Rounds in one poll of a future; then other tasks have their turn.
pub(crate) const ROUNDS_MAX: usize = 8;

/// What all futures of one endpoint share.
pub(crate) struct Driver<S: Sender> {
    core: Mutex<Core<S>>,
    /// What the reactor calls.
    bell: Waker,
    wait: Arc<dyn WaitSource>,
}

struct Core<S> {
    engine: SendEngine<S>,
    /// `None` while a thread asks it, and when the endpoint is over.
    watch: Option<Box<dyn Watch>>,
    /// Since when.
    armed: Option<Instant>,
    /// The bell rang since the watch was last asked.
    rung: bool,
    /// Of the endpoint; counts so that whoever arms sees that another has turned.
    turns: u64,
    /// No descriptor speaks for the endpoint.
    polled: bool,
}

/// Rings at whichever driver is still there: a reactor keeps it, and must not keep the driver.
struct DriverWake<S: Sender>(Weak<Driver<S>>);

impl<S: Sender> Wake for DriverWake<S> {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if let Some(driver) = self.0.upgrade() {
            driver.ring();
        }
    }
}

/// What a round comes to.
enum Next {
    /// There may be more to do at once.
    Again,
    /// Nothing to do before somebody is woken.
    Settled,
    /// Ask the watch, without the lock.
    Ask {
        watch: Box<dyn Watch>,
        until: Instant,
        turns: u64,
    },
}

impl<S: Sender> Driver<S> {
    pub(crate) fn new(
        sender: S,
        wait: Arc<dyn WaitSource>,
        reactor: &dyn Reactor,
    ) -> std::io::Result<Arc<Self>> {
        let (watch, polled) = watch(&wait, reactor)?;
        let core = Core {
            engine: SendEngine::new(sender),
            watch: Some(watch),
            armed: None,
            rung: false,
            turns: 0,
            polled,
        };
        Ok(Arc::new_cyclic(|driver| Self {
            core: Mutex::new(core),
            bell: Waker::from(Arc::new(DriverWake(Weak::clone(driver)))),
            wait,
        }))
    }

    /// Polls one future: drives the endpoint, and lets `step` look at what that brought.
    ///
    /// `step` is called until it is ready, and while it is pending it leaves a waker behind.
    pub(crate) fn poll<R>(
        &self,
        cx: &Context<'_>,
        mut step: impl FnMut(&mut SendEngine<S>, &mut Option<Waker>, &mut After) -> Poll<R>,
    ) -> Poll<R> {
        let mut result = Poll::Pending;
        for _ in 0..ROUNDS_MAX {
            let mut after = After::default();
            // Made and dropped without the lock, as wakers are code of others.
            let mut waker = Some(cx.waker().clone());
            let next = {
                let mut core = lock(&self.core);
                if core.may_bring_something() {
                    core.armed = None;
                    core.turns += 1;
                    core.engine.turn(&mut after);
                }
                if result.is_pending() {
                    result = step(&mut core.engine, &mut waker, &mut after);
                }
                core.prepare(&*self.wait, &mut after)
            };
            after.run();
            let settled = match next {
                Next::Again => false,
                Next::Settled => true,
                Next::Ask {
                    watch,
                    until,
                    turns,
                } => self.ask(watch, until, turns),
            };
            if settled {
                return result;
            }
        }
        // Still busy: whoever waits goes on after other tasks had their turn.
        self.wake_all();
        result
    }

    /// Asks the watch; true when it will ring.
    fn ask(&self, mut watch: Box<dyn Watch>, until: Instant, turns: u64) -> bool {
        let ready = watch
            .poll_ready(&mut Context::from_waker(&self.bell), until)
            .is_ready();
        let mut core = lock(&self.core);
        core.watch = Some(watch);
        let will_ring = !ready && !core.rung && core.turns == turns;
        core.armed = will_ring.then(Instant::now);
        will_ring
    }

    /// The reactor calls.
    fn ring(&self) {
        let mut after = After::default();
        {
            let mut core = lock(&self.core);
            core.rung = true;
            core.armed = None;
            core.engine.count_wake();
            core.engine.wake(&mut after);
        }
        after.run();
    }

    fn wake_all(&self) {
        let mut after = After::default();
        lock(&self.core).engine.wake(&mut after);
        after.run();
    }

    /// Something with the engine that is no poll of a future. If that touches the endpoint,
    /// everybody is woken to drive it.
    pub(crate) fn with<R>(&self, act: impl FnOnce(&mut SendEngine<S>, &mut After) -> R) -> R {
        let mut after = After::default();
        let result = {
            let mut core = lock(&self.core);
            let result = act(&mut core.engine, &mut after);
            if core.engine.take_touched() {
                core.armed = None;
                core.rung = true;
                core.engine.wake(&mut after);
            }
            result
        };
        after.run();
        result
    }

    /// A future that drives for all is gone. If it was woken to do that, another must.
    pub(crate) fn driver_left(&self) {
        let mut after = After::default();
        {
            let mut core = lock(&self.core);
            if core.armed.is_none() && !core.engine.has_drivers() {
                core.engine.wake(&mut after);
            }
        }
        after.run();
    }
}

impl<S: Sender> Core<S> {
    /// Whether a turn may bring something.
    fn may_bring_something(&self) -> bool {
        self.armed.is_none_or(|at| at.elapsed() >= POLL_INTERVAL)
    }

    /// After a turn and a step: what is to be done before everybody may sleep.
    fn prepare(&mut self, wait: &dyn WaitSource, after: &mut After) -> Next {
        if self.engine.take_touched() {
            self.armed = None;
            return Next::Again;
        }
        if self.engine.ended().is_some() {
            after.drop_watch(self.watch.take());
            return Next::Settled;
        }
        if self.armed.is_some() || !self.engine.has_waiters() {
            return Next::Settled;
        }
        // Another thread asks it at this moment, and sees then that there was a turn.
        let Some(watch) = self.watch.take() else {
            return Next::Settled;
        };
        match wait.prepare_wait() {
            Ok(true) => {}
            Ok(false) => {
                self.watch = Some(watch);
                return Next::Again;
            }
            Err(error) => {
                // The endpoint must report this itself, and it may be so for ever.
                if !std::mem::replace(&mut self.polled, true) {
                    tracing::warn!(%error, "an endpoint can't prepare to wait: polling it at an \
                        interval");
                }
            }
        }
        self.rung = false;
        let patience = if self.polled || self.engine.wants_retry() {
            POLL_INTERVAL
        } else {
            SLEEP_MAX
        };
        Next::Ask {
            watch,
            until: until(wait, patience),
            turns: self.turns,
        }
    }
}

/// When the endpoint must be looked at, whatever its descriptors say.
pub(crate) fn until(wait: &dyn WaitSource, patience: Duration) -> Instant {
    let latest = Instant::now() + patience;
    wait.next_deadline().map_or(latest, |at| at.min(latest))
}

/// Has the descriptors watched, or only the time where that can't be; then also true.
pub(crate) fn watch(
    wait: &Arc<dyn WaitSource>,
    reactor: &dyn Reactor,
) -> std::io::Result<(Box<dyn Watch>, bool)> {
    let fds = EndpointFds::of(wait);
    let polled = fds.is_empty();
    match reactor.watch(fds) {
        Ok(watch) => Ok((watch, polled)),
        Err(error) if !polled => {
            tracing::warn!(%error, "an endpoint's descriptors can't be watched: polling it at an \
                interval");
            Ok((reactor.watch(EndpointFds::none())?, true))
        }
        Err(error) => Err(error),
    }
}

#[cfg(all(test, loom))]
#[path = "tests/driver_model.rs"]
mod model;

impl<S: Sender> fmt::Debug for Driver<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").finish_non_exhaustive()
    }
}
