//! `LoopSignal`: a named wake-up of a loop, from any thread. All signals of a loop go by its one
//! eventfd.
//!
//! ```text
//!  fire ─ raised? no ─► raised, news in the mailbox, eventfd ─► loop: event queued ─► claimed:
//!            │ yes: that event is still to be delivered         not raised any more, handler runs
//! ```

use std::fmt;
use std::sync::Arc;

use super::EventLoop;
use super::event::LoopEvent;
use super::source::Source;
use super::table::Token;
use super::waker::Waker;
use crate::error::Error;
use crate::sync::{AtomicBool, Mutex, Ordering, lock};

/// Whether an event of a signal is on its way; shared by its handles and its loop.
#[derive(Debug, Default)]
struct SignalState {
    raised: AtomicBool,
}

/// A loop's side of a signal.
#[derive(Debug)]
pub(super) struct LoopSide {
    state: Arc<SignalState>,
    /// An event for it waits to be delivered.
    queued: bool,
    /// The last handle is gone.
    orphaned: bool,
}

/// What the handles of signals tell their loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SignalNews {
    Fired(Token),
    Orphaned(Token),
}

/// News that the loop has not looked at. Bounded: of each signal that it has, both at most once.
#[derive(Debug, Default)]
pub(super) struct SignalMailbox(Mutex<Vec<SignalNews>>);

impl SignalMailbox {
    fn put(&self, news: SignalNews) {
        lock(&self.0).push(news);
    }

    /// Moves all of it to an empty vector, whose memory is used for what comes next.
    pub(super) fn take(&self, into: &mut Vec<SignalNews>) {
        std::mem::swap(&mut *lock(&self.0), into);
    }
}

/// One wake-up of an [`EventLoop`], told from all others by its token, which any thread fires.
/// [`EventLoop::add_signal`] makes one.
///
/// Clones are handles on the same signal. The last one that is dropped removes it, when an event
/// that was fired before is delivered; [`EventLoop::remove`] does so at once. It takes no
/// descriptor. Harmless when it is removed, and when its loop is gone.
///
/// ```
/// use fabricast::event_loop::{EventLoop, LoopEvent};
///
/// let mut event_loop = EventLoop::new()?;
/// let (configured, full) = (event_loop.add_signal()?, event_loop.add_signal()?);
/// let (first, second) = (configured.token(), full.token());
/// let thread = std::thread::spawn(move || {
///     configured.fire();
///     full.fire();
/// });
/// let mut heard = Vec::new();
/// event_loop.run(|event_loop, event| {
///     match event {
///         LoopEvent::Signal(token) => heard.push(token),
///         other => panic!("{other:?}"),
///     }
///     if heard.len() == 2 {
///         event_loop.stop();
///     }
/// })?;
/// assert_eq!(heard, [first, second]);
/// thread.join().unwrap();
/// # Ok::<(), fabricast::error::Error>(())
/// ```
#[derive(Clone)]
pub struct LoopSignal(Arc<SignalHandle>);

struct SignalHandle {
    token: Token,
    state: Arc<SignalState>,
    waker: Waker,
}

impl LoopSignal {
    /// The loop delivers [`LoopEvent::Signal`] with this signal's token soon.
    ///
    /// Calls that come before the handler of that event begins become one, and it sees what was
    /// written before each of them. Different signals are delivered in the order in which they were
    /// fired. A call costs one system call when the loop was not signalled yet, none otherwise.
    pub fn fire(&self) {
        let SignalHandle {
            token,
            state,
            waker,
        } = &*self.0;
        // AcqRel: pairs with the swap in `claim`, so the handler sees what the caller wrote before,
        // also where another call raised it.
        if waker.is_here() && !state.raised.swap(true, Ordering::AcqRel) {
            waker.mailbox().put(SignalNews::Fired(*token));
            waker.signal();
        }
    }

    /// What its events carry, and what removes it.
    pub fn token(&self) -> Token {
        self.0.token
    }
}

impl Drop for SignalHandle {
    fn drop(&mut self) {
        if self.waker.is_here() {
            self.waker.mailbox().put(SignalNews::Orphaned(self.token));
            self.waker.signal();
        }
    }
}

impl fmt::Debug for LoopSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoopSignal")
            .field("token", &self.0.token)
            .finish_non_exhaustive()
    }
}

impl LoopSide {
    /// The event is delivered now: whoever fires from here on has another one. True: nobody can.
    pub(super) fn claim(&mut self) -> bool {
        self.queued = false;
        // AcqRel: see `fire`.
        self.state.raised.swap(false, Ordering::AcqRel);
        self.orphaned
    }
}

impl EventLoop {
    /// A signal that any thread fires by its handles: [`LoopEvent::Signal`] with its token is
    /// delivered for each, so that several reasons to wake the loop stay apart. Where one is
    /// enough, there is [`waker`](Self::waker).
    ///
    /// # Errors
    /// [`Error::Forked`] in a child of the process that made the loop.
    pub fn add_signal(&mut self) -> Result<LoopSignal, Error> {
        self.watched.poller.owner().check()?;
        let state = Arc::new(SignalState::default());
        let token = self.sources.insert(Source::Signal(LoopSide {
            state: Arc::clone(&state),
            queued: false,
            orphaned: false,
        }));
        let waker = self.waker();
        Ok(LoopSignal(Arc::new(SignalHandle {
            token,
            state,
            waker,
        })))
    }

    /// Queues the events of signals that were fired, and forgets those that nobody has.
    pub(super) fn hear_signals(&mut self) {
        let mut news = std::mem::take(&mut self.signal_news);
        self.waker.mailbox().take(&mut news);
        for news in news.drain(..) {
            let (SignalNews::Fired(token) | SignalNews::Orphaned(token)) = news;
            let Some(Source::Signal(signal)) = self.sources.get_mut(token) else {
                continue;
            };
            if matches!(news, SignalNews::Fired(_)) {
                signal.queued = true;
                self.pending.push_back(LoopEvent::Signal(token));
            } else if signal.queued {
                signal.orphaned = true;
            } else {
                self.remove(token);
            }
        }
        self.signal_news = news;
    }
}
