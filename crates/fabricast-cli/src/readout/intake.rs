//! The intake: what detectors have filled, in batches, merged by event number.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fabricast::buffer::RingFragment;

/// One fragment on its way to the sender.
#[derive(Debug)]
pub(crate) struct Filled {
    pub(crate) event: u64,
    pub(crate) committed: u64,
    pub(crate) crc: u32,
    pub(crate) fragment: RingFragment,
}

/// What one detector has filled and the sender has not looked at.
#[derive(Debug)]
struct Handover(Mutex<State>);

#[derive(Debug)]
struct State {
    filled: VecDeque<Filled>,
    ended: bool,
}

impl Handover {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Each change is one step: a panic leaves nothing half done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The detector's end of a queue, which has room for so many fragments without an allocation.
/// Dropping it says that there will be no more.
pub(crate) struct FilledSender(Arc<Handover>);

impl FilledSender {
    pub(crate) fn new(capacity: usize) -> Self {
        Self(Arc::new(Handover(Mutex::new(State {
            filled: VecDeque::with_capacity(capacity),
            ended: false,
        }))))
    }

    /// Hands a batch over: the lock is taken once for all of it.
    pub(crate) fn send(&self, batch: &mut Vec<Filled>) {
        if !batch.is_empty() {
            self.0.lock().filled.extend(batch.drain(..));
        }
    }
}

impl Drop for FilledSender {
    fn drop(&mut self) {
        self.0.lock().ended = true;
    }
}

/// The receiving ends of all detectors' queues.
pub(crate) struct IncomingStream(Vec<Queue>);

/// One detector's.
pub(crate) struct Queue {
    detector: u16,
    handover: Arc<Handover>,
    /// What was taken from there at once.
    taken: VecDeque<Filled>,
    ended: bool,
}

impl Queue {
    pub(crate) fn new(detector: u16, sender: &FilledSender) -> Self {
        let handover = Arc::clone(&sender.0);
        let capacity = handover.lock().filled.capacity();
        Self {
            detector,
            handover,
            taken: VecDeque::with_capacity(capacity),
            ended: false,
        }
    }

    /// The event of the oldest fragment, `u64::MAX` if there will be none; `None`: not known yet.
    fn peek(&mut self) -> Option<u64> {
        if self.taken.is_empty() && !self.ended {
            self.refill();
        }
        match self.taken.front() {
            Some(filled) => Some(filled.event),
            None => self.ended.then_some(u64::MAX),
        }
    }

    #[cold]
    fn refill(&mut self) {
        // From its start on again: memory that is in the cache.
        self.taken.clear();
        let mut state = self.handover.lock();
        std::mem::swap(&mut state.filled, &mut self.taken);
        self.ended = state.ended && self.taken.is_empty();
    }
}

impl IncomingStream {
    pub(crate) fn new(queues: Vec<Queue>) -> Self {
        Self(queues)
    }

    /// The next event of which every detector has delivered or dropped its fragment; gives its
    /// fragments to `take`.
    ///
    /// Every detector delivers in order, so a fragment of a later event says that this one's was
    /// dropped.
    pub(crate) fn next(&mut self, mut take: impl FnMut(u16, Filled)) -> Option<u64> {
        let mut event = u64::MAX;
        for queue in &mut self.0 {
            event = event.min(queue.peek()?);
        }
        if event == u64::MAX {
            return None;
        }
        for queue in &mut self.0 {
            if queue.taken.front().is_some_and(|f| f.event == event)
                && let Some(filled) = queue.taken.pop_front()
            {
                take(queue.detector, filled);
            }
        }
        Some(event)
    }

    /// Whether all detectors have ended and everything was given out.
    pub(crate) fn is_over(&self) -> bool {
        self.0
            .iter()
            .all(|queue| queue.ended && queue.taken.is_empty())
    }
}
