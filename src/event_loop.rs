//! One thread's loop over any number of endpoints, descriptors of the user, timers, and signals
//! and a waker callable from any thread.
//!
//! The loop drives endpoints and owns none: it says *which* endpoint should be polled, and the
//! handler polls it. Events are delivered one after the other on the thread that runs the loop, and
//! the handler may add and remove sources.
//!
//! ```text
//!              ┌──────────────────────────── one round ───────────────────────────────┐
//!   each endpoint: prepare_wait, deadline ─► sleep, or only look ─► due timers ─► deliver
//!              └──────────── false, or overdue: no sleep in this round ───────────────┘
//! ```
//!
//! Each round serves everything that is ready once (descriptors: [`LoopConfig::events_max`] of
//! them, the rest in the next rounds), so an endpoint that is always busy keeps no timer, wake-up
//! or descriptor waiting, nor the other way round. A sleep lasts at most one second: after that the
//! loop looks again even if nothing happened.
//!
//! What it does not do: it runs nothing on other threads, and reads nothing from the descriptors
//! that it watches, nor closes one. All its calls are made on its thread, between handlers or in
//! one, so [`EventLoop::remove`] is over when it returns, and a descriptor may be closed right
//! after: there is nothing to wait for, as with netio3's `remove_fd(fd, close, wait)`. Another
//! thread [fires a signal](EventLoop::add_signal) whose handler removes. Nor is there a function
//! that [`run`](EventLoop::run) calls first: whoever calls it does what comes first, on the same
//! thread, or fires a signal before, which is the first event then.
//!
//! It is for threads that drive several endpoints, or wait for something else beside them; one that
//! drives one endpoint polls it, or calls its `wait`. Start with [`EventLoop`], which has an
//! example.

mod config;
mod event;
mod poller;
mod signal;
mod source;
mod table;
mod timers;
mod wait;
mod waker;
mod watched;

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use rustix::event::epoll::EventFlags;
use smallvec::SmallVec;

use crate::clock::Clock;
use crate::error::Error;
use crate::metrics::WatchedKind;
use crate::metrics::latencies::nanoseconds;
use crate::metrics::registry::WatchedCells;
use crate::metrics::stats::LoopCells;
use poller::{Poller, epoll_ctl_error, is_unwatchable};
use signal::SignalNews;
use source::{Endpoint, Source};
use table::Table;
use timers::{Timers, earliest};
use watched::Watched;

pub use config::{LoopConfig, WaitMode};
pub use event::{Interest, LoopEvent, LoopStats, Readiness};
pub use signal::LoopSignal;
pub use table::Token;
#[allow(unused_imports, reason = "the endpoints implement it")]
pub(crate) use wait::WaitSource;
pub use wait::{WaitHandle, Waitable};
pub use waker::Waker;

/// The longest sleep: an endpoint that was dropped meanwhile is noticed by then.
const SLEEP_MAX: Duration = Duration::from_secs(1);

/// While spinning, the clock and the descriptors are looked at whenever this many endpoints were
/// handed out, a count. A wake-up is seen at once.
const SPIN_LOOK_EVERY: usize = 64;

/// What the waker is registered as; no token has these bits.
const WAKER_BITS: u64 = u64::MAX;

/// An event loop; see the [module](self).
///
/// ```
/// use std::time::Duration;
/// use fabricast::event_loop::{EventLoop, LoopEvent};
///
/// let mut event_loop = EventLoop::new()?;
/// let tick = event_loop.add_timer(Duration::ZERO, Some(Duration::from_millis(2)));
/// let mut ticks = 0;
/// event_loop.run(|event_loop, event| {
///     assert_eq!(event, LoopEvent::Timer(tick));
///     ticks += 1;
///     if ticks == 3 {
///         event_loop.stop();
///     }
/// })?;
/// # Ok::<(), fabricast::error::Error>(())
/// ```
#[derive(Debug)]
pub struct EventLoop {
    config: LoopConfig,
    watched: Watched,
    waker: Waker,
    sources: Table<Source>,
    endpoints: Vec<Token>,
    timers: Timers<Token>,
    timers_live: usize,
    /// Collected and not yet delivered. Bounded: each source is in it at most once.
    pending: VecDeque<LoopEvent>,
    /// Kept for its memory.
    signal_news: Vec<SignalNews>,
    clock: Clock,
    /// The time when it was last asked.
    now: Instant,
    busy: bool,
    spin_until: Option<Instant>,
    /// Endpoints handed out since the last look.
    spins: usize,
    stats: WatchedCells<LoopCells>,
}

impl EventLoop {
    /// A loop with the default settings.
    ///
    /// # Errors
    /// [`Error::Os`] when the process or the system is out of descriptors.
    pub fn new() -> Result<Self, Error> {
        Self::with(LoopConfig::default())
    }

    /// A loop with these settings.
    ///
    /// # Errors
    /// [`Error::Config`] for a setting outside its range, [`Error::Os`] as in [`new`](Self::new).
    pub fn with(config: LoopConfig) -> Result<Self, Error> {
        Self::by(config, Clock::system())
    }

    /// A loop that tells the time by this clock.
    fn by(config: LoopConfig, clock: Clock) -> Result<Self, Error> {
        config.validate()?;
        let poller = Poller::new(config.events_max)?;
        let waker = Waker::new()?;
        let stats = WatchedCells::new(WatchedKind::EventLoop, config.name.as_deref());
        poller
            .add(waker.fd(), WAKER_BITS, EventFlags::IN)
            .map_err(epoll_ctl_error)?;
        Ok(Self {
            config,
            watched: Watched::new(poller),
            waker,
            sources: Table::new(),
            endpoints: Vec::new(),
            timers: Timers::new(),
            timers_live: 0,
            pending: VecDeque::new(),
            signal_news: Vec::new(),
            now: clock.now(),
            clock,
            busy: false,
            spin_until: None,
            spins: 0,
            stats,
        })
    }

    /// Delivers [`LoopEvent::Endpoint`] whenever `endpoint` should be polled. It is handed out once
    /// at the start.
    ///
    /// An endpoint without a descriptor, or whose descriptors the kernel will not watch (it limits
    /// how many nested epoll sets lead to one file), is handed out every
    /// [`poll_interval`](LoopConfig::poll_interval) instead; the latter is logged once. An endpoint
    /// that was dropped is forgotten by itself.
    ///
    /// # Errors
    /// [`Error::Os`] when a descriptor can't be watched for another reason; `EEXIST`: this endpoint
    /// is already in the loop.
    pub fn add_endpoint(&mut self, endpoint: &impl Waitable) -> Result<Token, Error> {
        self.watched.poller.owner().check()?;
        let handle = endpoint.wait_handle();
        let fds = handle
            .upgrade()
            .map(|source| source.fds())
            .unwrap_or_default();
        let polled = fds.is_empty();
        let next_poll = self.clock.now();
        let token = self.sources.insert(Source::Endpoint(Endpoint {
            handle,
            fds: SmallVec::new(),
            polled,
            next_poll,
            warned: false,
            queued: false,
        }));
        self.endpoints.push(token);
        match self.watched.watch_all(token, &fds) {
            Ok(()) => self.endpoint_mut(token).fds = fds,
            Err(error) if is_unwatchable(&error) => {
                tracing::warn!(?token, %error, "endpoint can't be watched by epoll: polling it at \
                    an interval");
                self.endpoint_mut(token).polled = true;
            }
            Err(error) => {
                self.remove(token);
                return Err(epoll_ctl_error(error));
            }
        }
        self.queue_endpoint(token);
        Ok(token)
    }

    /// Delivers [`LoopEvent::Fd`] whenever `fd` is ready for `interest`.
    ///
    /// The loop remembers the number and does not own the descriptor: [`remove`](Self::remove) it
    /// before you close it. The kernel forgets a closed descriptor by itself, but only with the
    /// last duplicate of it; until then a source that was not removed goes on waking the loop.
    ///
    /// # Errors
    /// [`Error::Config`] for an empty interest. [`Error::Os`] from `epoll_ctl`: `EEXIST` when the
    /// loop watches this descriptor already, `EPERM` for one that can't be waited for (a regular
    /// file).
    pub fn add_fd(&mut self, fd: impl AsFd, interest: Interest) -> Result<Token, Error> {
        self.watched.poller.owner().check()?;
        let flags = interest.epoll_flags()?;
        let fd = fd.as_fd().as_raw_fd();
        let token = self.sources.insert(Source::Fd(fd));
        if let Err(error) = self.watched.watch(token, fd, flags) {
            self.sources.remove(token);
            return Err(epoll_ctl_error(error));
        }
        Ok(token)
    }

    /// Changes what a descriptor is watched for; `Ok(false)`: `token` names no descriptor of this
    /// loop.
    ///
    /// # Errors
    /// As in [`add_fd`](Self::add_fd); `ENOENT` or `EBADF` when the descriptor was closed.
    pub fn set_interest(&mut self, token: Token, interest: Interest) -> Result<bool, Error> {
        let flags = interest.epoll_flags()?;
        let Some(Source::Fd(fd)) = self.sources.get(token) else {
            return Ok(false);
        };
        if !self.watched.is_of(token, *fd) {
            return Ok(false);
        }
        self.watched
            .poller
            .modify(*fd, token.bits(), flags)
            .map_err(epoll_ctl_error)?;
        Ok(true)
    }

    /// Delivers [`LoopEvent::Timer`] after `after`, and then every `every` if it is given.
    ///
    /// Times count from now. A periodic timer keeps its phase; ticks that the loop was too busy for
    /// are skipped, so each round delivers one at most. A timer that fires once is removed right
    /// before its event. A time beyond what the clock can name never comes.
    pub fn add_timer(&mut self, after: Duration, every: Option<Duration>) -> Token {
        let token = self.sources.insert(Source::Timer { every });
        self.timers_live += 1;
        if let Some(at) = self.clock.now().checked_add(after) {
            self.timers.set(at, token);
        }
        token
    }

    /// Removes a source; `false`: it was removed before. Events of it that were not delivered yet
    /// never are.
    pub fn remove(&mut self, token: Token) -> bool {
        match self.sources.remove(token) {
            None => return false,
            Some(Source::Endpoint(endpoint)) => {
                self.endpoints.retain(|other| *other != token);
                self.watched.unwatch(token, &endpoint.fds);
            }
            Some(Source::Fd(fd)) => self.watched.unwatch(token, &[fd]),
            Some(Source::Timer { .. }) => self.forget_timer(),
            Some(Source::Signal(_)) => {}
        }
        true
    }

    /// Wakes or stops this loop from any thread.
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Ends the current [`run`](Self::run) after this handler; see [`Waker::stop`].
    pub fn stop(&self) {
        self.waker.stop();
    }

    /// Whether a stop was asked for since the last time; for loops made of
    /// [`run_once`](Self::run_once).
    pub fn take_stop(&mut self) -> bool {
        self.waker.take_stop()
    }

    /// Tells the loop that the handler found work, so that [`WaitMode::Adaptive`] spins for its
    /// window from now.
    ///
    /// Only this counts as work: a descriptor may be ready for no reason. Without effect in the
    /// other modes.
    pub fn mark_busy(&mut self) {
        self.busy = true;
    }

    /// The counters since the loop was made.
    pub fn stats(&self) -> LoopStats {
        self.stats.read()
    }

    /// Delivers events until [`stop`](Self::stop).
    ///
    /// A handler may run the loop itself: the inner run goes on with what the outer round has
    /// collected, and a stop ends the innermost. What is collected and not delivered when a run
    /// ends comes first in the next one.
    ///
    /// # Errors
    /// [`Error::Os`] when the kernel refuses to wait, [`Error::Forked`] in a child of the process
    /// that made the loop.
    pub fn run(&mut self, mut handler: impl FnMut(&mut Self, LoopEvent)) -> Result<(), Error> {
        while !self.take_stop() {
            self.serve(None, &mut handler)?;
        }
        Ok(())
    }

    /// Delivers events for `duration`, or until [`stop`](Self::stop) if that is earlier.
    ///
    /// The run ends with the round in which its time is over, so it is late by as much as that
    /// round's handlers take.
    ///
    /// # Errors
    /// As in [`run`](Self::run).
    pub fn run_for(
        &mut self,
        duration: Duration,
        mut handler: impl FnMut(&mut Self, LoopEvent),
    ) -> Result<(), Error> {
        let until = self.clock.now().checked_add(duration);
        while !self.take_stop() {
            self.serve(until, &mut handler)?;
            if self.is_over(until) {
                break;
            }
        }
        Ok(())
    }

    /// Waits for at most `timeout` (`None`: until something happens) and delivers one round of
    /// events; returns their number. 0 = the time is over, or a stop was asked for
    /// ([`take_stop`](Self::take_stop) tells).
    ///
    /// # Errors
    /// As in [`run`](Self::run).
    pub fn run_once(
        &mut self,
        timeout: Option<Duration>,
        mut handler: impl FnMut(&mut Self, LoopEvent),
    ) -> Result<usize, Error> {
        let until = timeout.and_then(|timeout| self.clock.now().checked_add(timeout));
        self.serve(until, &mut handler)
    }

    /// Rounds until one delivered something, the time is over, or a stop was asked for.
    fn serve(
        &mut self,
        until: Option<Instant>,
        handler: &mut impl FnMut(&mut Self, LoopEvent),
    ) -> Result<usize, Error> {
        self.watched.poller.owner().check()?;
        while !self.waker.is_stopped() {
            if self.pending.is_empty() {
                self.collect(until)?;
            }
            let delivered = self.deliver(handler);
            if delivered > 0 || self.is_over(until) {
                return Ok(delivered);
            }
        }
        Ok(0)
    }

    fn deliver(&mut self, handler: &mut impl FnMut(&mut Self, LoopEvent)) -> usize {
        let mut delivered = 0;
        while let Some(event) = self.pending.pop_front() {
            if !self.claim(event) {
                continue;
            }
            delivered += 1;
            handler(self, event);
            if self.waker.is_stopped() {
                break;
            }
        }
        delivered
    }

    /// Whether the event's source is still there; if so, this is the delivery.
    fn claim(&mut self, event: LoopEvent) -> bool {
        let token = match event {
            LoopEvent::Woken => return true,
            LoopEvent::Endpoint(token)
            | LoopEvent::Timer(token)
            | LoopEvent::Signal(token)
            | LoopEvent::Fd { token, .. } => token,
        };
        match self.sources.get_mut(token) {
            None => false,
            Some(Source::Fd(_) | Source::Timer { every: Some(_) }) => true,
            Some(Source::Timer { every: None }) => self.remove(token),
            Some(Source::Signal(signal)) => !signal.claim() || self.remove(token),
            Some(Source::Endpoint(endpoint)) => {
                endpoint.queued = false;
                endpoint.next_poll = self.now + self.config.poll_interval;
                let alive = endpoint.handle.is_alive();
                if !alive {
                    self.remove(token);
                }
                alive
            }
        }
    }

    /// One round up to the delivery: fills `pending`.
    fn collect(&mut self, until: Option<Instant>) -> Result<(), Error> {
        self.stats.rounds.add(1);
        if self.is_spinning() {
            self.spins += self.endpoints.len();
            if self.spins >= SPIN_LOOK_EVERY
                || self.endpoints.is_empty()
                || self.waker.is_signalled()
            {
                self.spins = 0;
                self.look(Duration::ZERO)?;
                self.update_spin();
            }
            for position in 0..self.endpoints.len() {
                self.queue_endpoint(self.endpoints[position]);
            }
            std::hint::spin_loop();
            return Ok(());
        }
        self.now = self.clock.now();
        let wake_at = earliest(self.sweep_endpoints(), earliest(self.timers.next(), until));
        let timeout = if self.pending.is_empty() {
            wake_at.map_or(SLEEP_MAX, |at| {
                at.saturating_duration_since(self.now).min(SLEEP_MAX)
            })
        } else {
            Duration::ZERO
        };
        let ready = self.look(self.clock.sleep_for(timeout))?;
        self.update_spin();
        if !timeout.is_zero() {
            let spurious = ready && self.pending.is_empty() && !self.waker.is_stopped();
            self.stats.sleeps.add(1);
            self.stats.wakes.add(u64::from(ready));
            self.stats.spurious.add(u64::from(spurious));
            let slept = self.clock.since(self.now);
            self.stats.slept_ns.add(nanoseconds(slept));
        }
        Ok(())
    }

    /// Asks every endpoint whether the thread may sleep. Queues those that must be polled first;
    /// returns when the earliest of the others must be.
    fn sweep_endpoints(&mut self) -> Option<Instant> {
        let mut wake_at = None;
        let mut position = 0;
        while let Some(&token) = self.endpoints.get(position) {
            let now = self.now;
            let endpoint = self.endpoint_mut(token);
            let Some(source) = endpoint.handle.upgrade() else {
                self.remove(token);
                continue;
            };
            let may_sleep = source.prepare_wait().unwrap_or_else(|error| {
                // It must be polled to report this itself, and at the interval: it may fail so for
                // ever.
                if !std::mem::replace(&mut endpoint.warned, true) {
                    tracing::warn!(?token, %error, "endpoint can't prepare to wait: polling it at \
                        an interval");
                }
                endpoint.polled = true;
                true
            });
            let poll_at = endpoint.polled.then_some(endpoint.next_poll);
            let due_at = earliest(poll_at, source.next_deadline());
            if !may_sleep || due_at.is_some_and(|at| at <= now) {
                self.queue_endpoint(token);
            }
            wake_at = earliest(wake_at, due_at);
            position += 1;
        }
        wake_at
    }

    /// Waits for descriptors and queues what is ready and which timers are due; true = some
    /// descriptor was ready.
    fn look(&mut self, timeout: Duration) -> Result<bool, Error> {
        let count = self.watched.poller.wait(timeout)?;
        for position in 0..count {
            let (bits, flags) = self.watched.poller.event(position);
            if bits == WAKER_BITS {
                if self.waker.drain() {
                    self.pending.push_back(LoopEvent::Woken);
                }
                self.hear_signals();
                continue;
            }
            let token = Token::from_bits(bits);
            match self.sources.get(token) {
                Some(Source::Endpoint(_)) => self.queue_endpoint(token),
                Some(Source::Fd(_)) => {
                    self.pending.push_back(LoopEvent::Fd {
                        token,
                        readiness: Readiness::of(flags),
                    });
                }
                Some(Source::Timer { .. } | Source::Signal(_)) | None => {}
            }
        }
        self.now = self.clock.now();
        self.queue_due_timers();
        Ok(count > 0)
    }

    fn queue_due_timers(&mut self) {
        let mark = self.timers.mark();
        while let Some((at, token)) = self.timers.pop_due(self.now, mark) {
            let Some(Source::Timer { every }) = self.sources.get(token) else {
                continue;
            };
            self.pending.push_back(LoopEvent::Timer(token));
            if let Some(next) = every.and_then(|every| timers::next_tick(at, every, self.now)) {
                self.timers.set(next, token);
            }
        }
    }

    fn queue_endpoint(&mut self, token: Token) {
        let endpoint = self.endpoint_mut(token);
        if !std::mem::replace(&mut endpoint.queued, true) {
            self.pending.push_back(LoopEvent::Endpoint(token));
        }
    }

    fn is_spinning(&self) -> bool {
        match self.config.mode {
            WaitMode::Block => false,
            WaitMode::Spin => true,
            WaitMode::Adaptive { .. } => self.busy || self.spin_until.is_some(),
        }
    }

    /// Begins, prolongs or ends the spinning of the adaptive mode; the clock was just read.
    fn update_spin(&mut self) {
        let WaitMode::Adaptive { window } = self.config.mode else {
            return;
        };
        if std::mem::take(&mut self.busy) {
            self.spin_until = self.now.checked_add(window);
        }
        self.spin_until = self.spin_until.filter(|until| *until > self.now);
    }

    /// Whether the run's time is over. A spinning loop asks the clock only when it looks, see
    /// [`SPIN_LOOK_EVERY`].
    fn is_over(&mut self, until: Option<Instant>) -> bool {
        let Some(until) = until else {
            return false;
        };
        if !self.is_spinning() {
            self.now = self.clock.now();
        }
        self.now >= until
    }

    fn endpoint_mut(&mut self, token: Token) -> &mut Endpoint {
        match self.sources.get_mut(token) {
            Some(Source::Endpoint(endpoint)) => endpoint,
            _ => unreachable!(
                "`endpoints` holds the tokens of the endpoints in `sources`, no others"
            ),
        }
    }

    /// Counts a removed timer, and sweeps the heap before removed ones outnumber those that live.
    fn forget_timer(&mut self) {
        const SWEEP_MIN: usize = 64;
        self.timers_live -= 1;
        if self.timers.len() > SWEEP_MIN + 2 * self.timers_live {
            self.timers
                .retain(|token| self.sources.get(token).is_some());
        }
    }
}
