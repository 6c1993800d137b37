//! The intake: merges the queues of all detectors by event number.

use std::sync::mpsc::{Receiver, TryRecvError};

use crate::detector::Filled;

/// The receiving ends of all detectors' queues.
pub(crate) struct IncomingStream(Vec<Queue>);

struct Queue {
    detector: u16,
    filled: Receiver<Filled>,
    /// The oldest that was not given out.
    head: Option<Filled>,
    ended: bool,
}

impl IncomingStream {
    pub(crate) fn new(queues: impl Iterator<Item = (u16, Receiver<Filled>)>) -> Self {
        let queue = |(detector, filled)| Queue {
            detector,
            filled,
            head: None,
            ended: false,
        };
        Self(queues.map(queue).collect())
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
            if let Some(filled) = queue.head.take_if(|filled| filled.event == event) {
                take(queue.detector, filled);
            }
        }
        Some(event)
    }

    /// Whether all detectors have ended and everything was given out.
    pub(crate) fn is_over(&self) -> bool {
        self.0
            .iter()
            .all(|queue| queue.ended && queue.head.is_none())
    }
}

impl Queue {
    /// The event of the oldest fragment, `u64::MAX` if there will be none; `None`: not known yet.
    fn peek(&mut self) -> Option<u64> {
        if self.head.is_none() && !self.ended {
            match self.filled.try_recv() {
                Ok(filled) => self.head = Some(filled),
                Err(TryRecvError::Empty) => return None,
                Err(TryRecvError::Disconnected) => self.ended = true,
            }
        }
        Some(self.head.as_ref().map_or(u64::MAX, |filled| filled.event))
    }
}
