//! Event loops: one thread sleeps for endpoints, descriptors, timers and wake-ups, and pulls what
//! there is to do. The calls are in `event_loop_calls.rs`.

#![allow(unsafe_code)] // A promise to `pointer::sized`.

use std::collections::{HashMap, VecDeque};
use std::mem::MaybeUninit;
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::Duration;

use fabricast::event_loop::{EventLoop, LoopConfig, LoopEvent, LoopSignal, Token, WaitMode, Waker};

use crate::handle::ENDPOINTS;
use crate::object_server::CHANNELS;
use crate::pointer::Sized0;
use crate::status::{FCAST_BUSY, FCAST_NOT_FOUND, Failure};
use crate::table::Table;
use crate::untaken::Untaken;

pub(crate) static LOOPS: Table<Loop> = Table::new(32, "event loop");
pub(crate) static SIGNALS: Table<LoopSignal> = Table::new(33, "signal");

/// An event loop. One thread at a time runs it, adds to it and takes from it; another one that
/// calls meanwhile gets FCAST_BUSY. fcast_loop_wake and fcast_loop_stop are for any thread, at any
/// time.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fcast_loop {
    /// Its number; 0: none.
    pub id: u64,
}

/// A signal of a loop: a wake-up that is told apart from others. Any thread may use it.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fcast_signal {
    /// Its number; 0: none.
    pub id: u64,
}

/// The loop sleeps in the kernel while nothing happens.
pub const FCAST_LOOP_BLOCK: u32 = 0;
/// The loop never sleeps: each run hands out every endpoint. Lowest latency, one core for good.
pub const FCAST_LOOP_SPIN: u32 = 1;
/// The loop spins until `window_us` after the last fcast_loop_mark_busy, then sleeps.
pub const FCAST_LOOP_ADAPTIVE: u32 = 2;

/// How a loop is made. All zeros but the size are the defaults.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fcast_loop_settings {
    /// sizeof(fcast_loop_settings).
    pub size: usize,
    /// FCAST_LOOP_BLOCK or another.
    pub mode: u32,
    /// FCAST_LOOP_ADAPTIVE: how long it spins after the last work, 1 to 1,000,000 microseconds.
    pub window_us: u32,
    /// How often endpoints without a descriptor are handed out, 10 to 1,000,000 microseconds.
    /// Default 1,000.
    pub poll_interval_us: u32,
    /// Descriptors that a round looks at, 1 to 4,096. Default 64.
    pub events_max: u32,
}

// SAFETY: C's layout, a `usize` first; 0 is a value of all its fields.
unsafe impl Sized0 for fcast_loop_settings {}

/// Poll the endpoint. It may turn out to have nothing.
pub const FCAST_LOOP_ENDPOINT: u32 = 1;
/// A descriptor is ready: `readiness`. It is told in each round until it is read or written.
pub const FCAST_LOOP_FD: u32 = 2;
/// A timer is due.
pub const FCAST_LOOP_TIMER: u32 = 3;
/// Somebody called fcast_loop_wake, once or several times.
pub const FCAST_LOOP_WOKEN: u32 = 4;
/// Somebody called fcast_loop_stop, once or several times.
pub const FCAST_LOOP_STOPPED: u32 = 5;

/// A signal was fired, once or several times.
pub const FCAST_LOOP_SIGNAL: u32 = 6;
/// Poll the channel of objects. It may turn out to have nothing.
pub const FCAST_LOOP_CHANNEL: u32 = 7;

/// There is something to read, or the end.
pub const FCAST_LOOP_READ: u32 = 1;
/// There is room to write.
pub const FCAST_LOOP_WRITE: u32 = 2;
/// The other side closed, wholly or for writing.
pub const FCAST_LOOP_HANGUP: u32 = 4;
/// The descriptor has an error; told whatever it is watched for.
pub const FCAST_LOOP_ERROR: u32 = 8;

/// Something to do. Its layout does not change.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fcast_loop_event {
    /// FCAST_LOOP_ENDPOINT or another.
    pub kind: u32,
    /// FCAST_LOOP_FD: the sum of some of FCAST_LOOP_READ, _WRITE, _HANGUP and _ERROR.
    pub readiness: u32,
    /// Which source, as it was told when it was added; 0: none.
    pub token: u64,
    /// What the program gave with the source.
    pub key: u64,
    /// 0.
    pub reserved: u64,
}

const _: () = assert!(size_of::<fcast_loop_event>() == 32);

/// A loop, and what wakes it without being let in.
pub(crate) struct Loop {
    pub(crate) waker: Waker,
    inner: Mutex<Inner>,
}

/// What a source is, for C.
pub(crate) struct LoopSource {
    token: Token,
    key: u64,
    kind: Kind,
    /// Of an endpoint or a channel.
    untaken: Option<Untaken>,
}

/// What a source of a loop is.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Kind {
    /// With its handle.
    Endpoint(u64),
    /// A channel of objects, with its handle.
    Channel(u64),
    /// With its handle.
    Signal(u64),
    Descriptor,
    /// It goes with its first event.
    Once,
    Periodic,
}

/// What one thread at a time uses.
pub(crate) struct Inner {
    pub(crate) event_loop: EventLoop,
    sources: HashMap<u64, LoopSource>,
    /// The number of each source by the loop's own.
    numbers: HashMap<Token, u64>,
    next: u64,
    /// Told by the loop, and not taken yet: of one round.
    queue: VecDeque<fcast_loop_event>,
}

impl fcast_loop_settings {
    fn config(&self) -> Result<LoopConfig, Failure> {
        let micros = |us: u32| Duration::from_micros(u64::from(us));
        let mode = match self.mode {
            FCAST_LOOP_BLOCK => WaitMode::Block,
            FCAST_LOOP_SPIN => WaitMode::Spin,
            FCAST_LOOP_ADAPTIVE => WaitMode::Adaptive {
                window: micros(self.window_us),
            },
            other => {
                let text = format!("setting mode = {other}: must be 0 to 2");
                return Err(Failure::invalid(text));
            }
        };
        let mut config = LoopConfig::default().mode(mode);
        if self.poll_interval_us != 0 {
            config = config.poll_interval(micros(self.poll_interval_us));
        }
        if self.events_max != 0 {
            config = config.events_max(self.events_max as usize);
        }
        Ok(config)
    }
}

impl Loop {
    pub(crate) fn new(settings: &fcast_loop_settings) -> Result<Self, Failure> {
        let event_loop = EventLoop::with(settings.config()?)?;
        Ok(Self {
            waker: event_loop.waker(),
            inner: Mutex::new(Inner {
                event_loop,
                sources: HashMap::new(),
                numbers: HashMap::new(),
                next: 1,
                queue: VecDeque::new(),
            }),
        })
    }

    /// Lets one thread in; what a panic left half done lets nobody in any more.
    pub(crate) fn enter(&self) -> Result<MutexGuard<'_, Inner>, Failure> {
        self.inner.try_lock().map_err(|error| {
            let text = match error {
                TryLockError::WouldBlock => "this event loop is in use by another call",
                TryLockError::Poisoned(_) => "this event loop was given up after a defect",
            };
            Failure::new(FCAST_BUSY, text)
        })
    }
}

impl Inner {
    /// Gives a source that the loop has a number for C.
    pub(crate) fn number(&mut self, token: Token, kind: Kind, key: u64) -> u64 {
        self.number_with(token, kind, key, None)
    }

    /// The same of an endpoint or a channel.
    pub(crate) fn number_with(
        &mut self,
        token: Token,
        kind: Kind,
        key: u64,
        untaken: Option<Untaken>,
    ) -> u64 {
        let number = self.next;
        self.next += 1;
        let source = LoopSource {
            token,
            key,
            kind,
            untaken,
        };
        self.sources.insert(number, source);
        self.numbers.insert(token, number);
        number
    }

    /// Forgets endpoints, channels and signals that were released, whose sources the loop forgets
    /// by itself.
    pub(crate) fn sweep(&mut self) {
        let gone = |source: &LoopSource| match source.kind {
            Kind::Endpoint(id) => !ENDPOINTS.is_live(id),
            Kind::Channel(id) => !CHANNELS.is_live(id),
            Kind::Signal(id) => !SIGNALS.is_live(id),
            _ => false,
        };
        let numbers: Vec<u64> = (self.sources.iter())
            .filter(|(_, source)| gone(source))
            .map(|(number, _)| *number)
            .collect();
        for number in numbers {
            self.forget(number);
        }
    }

    /// The loop's own token of a source.
    pub(crate) fn token(&self, number: u64) -> Result<Token, Failure> {
        let source = self.sources.get(&number).ok_or_else(|| unknown(number))?;
        Ok(source.token)
    }

    pub(crate) fn remove(&mut self, number: u64) -> Result<(), Failure> {
        let source = self.forget(number).ok_or_else(|| unknown(number))?;
        self.event_loop.remove(source.token);
        self.queue.retain(|event| event.token != number);
        Ok(())
    }

    fn forget(&mut self, number: u64) -> Option<LoopSource> {
        let source = self.sources.remove(&number)?;
        self.numbers.remove(&source.token);
        Some(source)
    }

    /// Waits, and writes as many events as there is room for; the others come with the next call.
    pub(crate) fn run_once(
        &mut self,
        timeout: Option<Duration>,
        places: &mut [MaybeUninit<fcast_loop_event>],
    ) -> Result<usize, Failure> {
        if places.is_empty() {
            return Ok(0);
        }
        if self.queue.is_empty() {
            self.queue_untaken();
            let timeout = match self.queue.is_empty() {
                true => timeout,
                false => Some(Duration::ZERO),
            };
            self.collect(timeout)?;
        }
        let mut written = 0;
        while written < places.len() {
            let Some(event) = self.queue.pop_front() else {
                break;
            };
            places[written].write(event);
            written += 1;
        }
        Ok(written)
    }

    /// One round of the loop.
    fn collect(&mut self, timeout: Option<Duration>) -> Result<(), Failure> {
        let Self {
            event_loop,
            sources,
            numbers,
            queue,
            ..
        } = self;
        let untaken = queue.len();
        event_loop.run_once(timeout, |_, event| {
            let Some(told) = told(event, sources, numbers) else {
                return;
            };
            // What had events left was queued already.
            let is_polled = matches!(told.kind, FCAST_LOOP_ENDPOINT | FCAST_LOOP_CHANNEL);
            let mut queued = queue.iter().take(untaken);
            if !is_polled || !queued.any(|other| other.token == told.token) {
                queue.push_back(told);
            }
        })?;
        if event_loop.take_stop() {
            queue.push_back(event_of(FCAST_LOOP_STOPPED));
        }
        Ok(())
    }

    /// Queues the endpoints and channels whose last poll gave fewer events than there were: the
    /// loop knows nothing of those.
    fn queue_untaken(&mut self) {
        let untaken = |source: &LoopSource| source.untaken.as_ref().is_some_and(Untaken::is_so);
        for (number, source) in self.sources.iter().filter(|(_, source)| untaken(source)) {
            // What another thread is in a call of is its own, so it is not entered here.
            let kind = match source.kind {
                Kind::Endpoint(id) if ENDPOINTS.is_live(id) => FCAST_LOOP_ENDPOINT,
                Kind::Channel(id) if CHANNELS.is_live(id) => FCAST_LOOP_CHANNEL,
                _ => continue,
            };
            self.queue.push_back(fcast_loop_event {
                token: *number,
                key: source.key,
                ..event_of(kind)
            });
        }
    }
}

fn event_of(kind: u32) -> fcast_loop_event {
    fcast_loop_event {
        kind,
        readiness: 0,
        token: 0,
        key: 0,
        reserved: 0,
    }
}

/// An event of the loop's, for C; `None` for one of a source that was removed.
fn told(
    event: LoopEvent,
    sources: &mut HashMap<u64, LoopSource>,
    numbers: &mut HashMap<Token, u64>,
) -> Option<fcast_loop_event> {
    let (kind, token, readiness) = match event {
        LoopEvent::Endpoint(token) => (FCAST_LOOP_ENDPOINT, token, 0),
        LoopEvent::Fd { token, readiness } => (FCAST_LOOP_FD, token, readiness.bits().into()),
        LoopEvent::Timer(token) => (FCAST_LOOP_TIMER, token, 0),
        LoopEvent::Signal(token) => (FCAST_LOOP_SIGNAL, token, 0),
        LoopEvent::Woken => return Some(event_of(FCAST_LOOP_WOKEN)),
        _ => return None,
    };
    let number = *numbers.get(&token)?;
    let source = sources.get(&number)?;
    let told = fcast_loop_event {
        readiness,
        token: number,
        key: source.key,
        ..event_of(match source.kind {
            Kind::Channel(_) => FCAST_LOOP_CHANNEL,
            _ => kind,
        })
    };
    if source.kind == Kind::Once {
        sources.remove(&number);
        numbers.remove(&token);
    }
    Some(told)
}

#[cold]
fn unknown(number: u64) -> Failure {
    let text = format!("the loop has no source {number}: it was removed, or is over");
    Failure::new(FCAST_NOT_FOUND, text)
}
