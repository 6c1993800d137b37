//! `StreamEvent`: what a receiver tells its application.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::side::RemotePeer;
use crate::PeerAddr;
use crate::stream::{Manifest, RefusalCode, StreamError, StreamIdentity, StreamReport};

/// Which stream something is about.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Arrival {
    /// A number of this receiver's own: another one for each attempt.
    pub session: u64,
    /// Where it comes from, where the provider tells.
    pub peer: Option<PeerAddr>,
    /// Where it goes, and what it is.
    pub identity: StreamIdentity,
    /// How many files and directories it has.
    pub entries: u64,
    /// Bytes of all files.
    pub bytes: u64,
    /// Its files and directories. None: this waited to be fetched for so long that the memory
    /// ([`Limits::memory`](crate::stream::Limits::memory)) was needed for another stream.
    pub manifest: Option<Arc<Manifest>>,
}

/// What happened at a [`StreamReceiver`](super::StreamReceiver).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum StreamEvent {
    /// A stream was accepted.
    Began(Arrival),
    /// A stream is complete: the sink has it, checked, and as its sender asked on the device.
    Complete(Arrival, StreamReport),
    /// A stream was cut, cancelled or failed. What the sink kept, a later stream may go on from.
    /// Nothing of it is under its name, unless it was cut while the sink finished:
    /// [`StreamReport::placed`] says how many files and directories are.
    Cut(Arrival, StreamError, StreamReport),
    /// A connection or a stream was not taken.
    Refused {
        /// Where it comes from, where the provider tells.
        peer: Option<PeerAddr>,
        /// Why, as its sender was told.
        code: RefusalCode,
        /// The same in words; may be empty.
        reason: String,
    },
}

impl StreamEvent {
    fn arrival_mut(&mut self) -> Option<&mut Arrival> {
        match self {
            Self::Began(arrival) | Self::Complete(arrival, _) | Self::Cut(arrival, ..) => {
                Some(arrival)
            }
            Self::Refused { .. } => None,
        }
    }

    fn manifest(&self) -> Option<&Arc<Manifest>> {
        match self {
            Self::Began(arrival) | Self::Complete(arrival, _) | Self::Cut(arrival, ..) => {
                arrival.manifest.as_ref()
            }
            Self::Refused { .. } => None,
        }
    }
}

/// Events that wait for the application, at most.
const EVENTS_MAX: usize = 4096;

/// The events between the network thread and the application.
#[derive(Debug, Default)]
pub(super) struct EventQueue {
    state: Mutex<QueueState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct QueueState {
    waiting: VecDeque<StreamEvent>,
    /// Nothing more comes.
    is_closed: bool,
}

impl EventQueue {
    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The oldest, once there is one; `None`: nothing within that time, or nothing comes any more.
    pub(super) fn next(&self, timeout: Duration) -> Option<StreamEvent> {
        // Without an end where the clock has none.
        let by = Instant::now().checked_add(timeout);
        let mut state = self.lock();
        loop {
            if let Some(event) = state.waiting.pop_front() {
                return Some(event);
            }
            if state.is_closed {
                return None;
            }
            let left = match by {
                Some(by) => by.checked_duration_since(Instant::now())?,
                None => timeout,
            };
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// All that nobody fetched.
    pub(super) fn take_all(&self) -> Vec<StreamEvent> {
        self.lock().waiting.drain(..).collect()
    }
}

/// The network thread's end of an [`EventQueue`].
pub(super) struct EventSender {
    queue: Arc<EventQueue>,
    /// Events that nobody fetched, and that were thrown away.
    missed: u64,
}

impl EventSender {
    pub(super) fn new(queue: Arc<EventQueue>) -> Self {
        Self { queue, missed: 0 }
    }

    pub(super) fn tell(&mut self, event: StreamEvent) {
        let mut state = self.queue.lock();
        if state.waiting.len() < EVENTS_MAX {
            state.waiting.push_back(event);
            drop(state);
            return self.queue.changed.notify_one();
        }
        drop(state);
        // Without a listener the queue fills up, and streams go on.
        self.missed += 1;
        if self.missed == 1 {
            tracing::warn!(
                "nobody fetches the events of a stream receiver: the latest are thrown away"
            );
        }
    }

    pub(super) fn refused(&mut self, peer: RemotePeer, code: RefusalCode, reason: &str) {
        let reason = reason.to_owned();
        self.tell(StreamEvent::Refused { peer, code, reason });
    }

    /// Lets manifests of waiting events take so many bytes at most: the oldest go first. How many
    /// they take.
    pub(super) fn keep_within(&self, most: u64) -> u64 {
        let mut state = self.queue.lock();
        let mut counted = HashSet::new();
        let (mut bytes, mut full) = (0_u64, false);
        // From the latest on; what begins and ends a stream has one manifest.
        for event in state.waiting.iter_mut().rev() {
            let Some(manifest) = event.manifest() else {
                continue;
            };
            if counted.contains(&Arc::as_ptr(manifest)) {
                continue;
            }
            let more = manifest.memory();
            full |= bytes.saturating_add(more) > most;
            if full {
                if let Some(arrival) = event.arrival_mut() {
                    arrival.manifest = None;
                }
                continue;
            }
            counted.insert(Arc::as_ptr(manifest));
            bytes += more;
        }
        bytes
    }
}

impl Drop for EventSender {
    fn drop(&mut self) {
        self.queue.lock().is_closed = true;
        self.queue.changed.notify_all();
    }
}
