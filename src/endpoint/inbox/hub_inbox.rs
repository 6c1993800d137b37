//! `HubInbox`: the inbox of an endpoint that is a hub and little more.

use std::time::Instant;

use super::{Inbox, MessageBatch};
use crate::Error;
use crate::clock::Clock;
use crate::endpoint::delivery::Deliveries;
use crate::endpoint::event::ReceiveEvent;
use crate::endpoint::hub::Hub;
use crate::endpoint::hub::received_frame::PlacedFrame;
use crate::endpoint::link::Link;
use crate::stats::ReceiveStats;

/// What came and was not taken yet, with what it passes on its way to the application.
pub(crate) struct HubInbox {
    inbox: Inbox<ReceiveEvent>,
    /// What one poll of the hub brought; kept for their memory.
    events: Vec<ReceiveEvent>,
    frames: Vec<PlacedFrame>,
    deliveries: Option<Box<Deliveries<ReceiveEvent>>>,
}

impl HubInbox {
    pub(crate) fn new(deliveries: Option<Deliveries<ReceiveEvent>>) -> Self {
        Self {
            inbox: Inbox::new(),
            events: Vec::new(),
            frames: Vec::new(),
            deliveries: deliveries.map(Box::new),
        }
    }

    /// Appends what was not taken, polls the hub, and appends what came.
    #[inline]
    pub(crate) fn poll<L: Link>(
        &mut self,
        core: &mut Hub<L>,
        events: &mut Vec<ReceiveEvent>,
    ) -> Result<usize, Error> {
        let before = events.len();
        self.inbox.tell_rest(events, core.wait());
        let came = events.len();
        let polled = core.poll(events);
        self.deliver(core, events, came);
        polled?;
        Ok(events.len() - before)
    }

    /// Polls the hub where there is room for what comes, appends the events in front, and gives the
    /// messages behind them.
    pub(crate) fn receive<L: Link>(
        &mut self,
        core: &mut Hub<L>,
        events: &mut Vec<ReceiveEvent>,
    ) -> Result<MessageBatch<'_, ReceiveEvent>, Error> {
        self.inbox.begin(events);
        let polled = match self.inbox.has_room() {
            true => self.fill(core),
            false => Ok(()),
        };
        self.inbox.go_on(events, core.wait(), polled)
    }

    fn fill<L: Link>(&mut self, core: &mut Hub<L>) -> Result<(), Error> {
        let mut events = std::mem::take(&mut self.events);
        let polled = match self.deliveries {
            None => core.poll_frames(&mut events, &mut self.frames),
            Some(_) => core.poll(&mut events),
        };
        self.deliver(core, &mut events, 0);
        let mut told = events.drain(..);
        let mut before = 0;
        for PlacedFrame { behind, frame } in self.frames.drain(..) {
            for event in told.by_ref().take(behind - before) {
                self.inbox.push(event);
            }
            before = behind;
            self.inbox.push_frame(frame, ());
        }
        for event in told {
            self.inbox.push(event);
        }
        self.events = events;
        polled
    }

    /// Passes what came on to a GPU, if that is asked for.
    #[inline]
    fn deliver<L: Link>(&mut self, core: &mut Hub<L>, events: &mut Vec<ReceiveEvent>, came: usize) {
        if let Some(deliveries) = &mut self.deliveries {
            deliveries.pass(events, came);
            let next = deliveries.next_look(core.clock());
            core.set_layer_deadline(next);
        }
    }

    /// The hub is closed, and said this: everything that is not told yet.
    pub(crate) fn finish(
        mut self,
        mut came: Vec<ReceiveEvent>,
        clock: &Clock,
        deadline: Instant,
    ) -> Vec<ReceiveEvent> {
        if let Some(deliveries) = self.deliveries {
            deliveries.finish(&mut came, clock, deadline);
        }
        let mut events = Vec::new();
        self.inbox.tell_all(&mut events);
        events.append(&mut came);
        events
    }

    /// Everything that was not taken, of a hub that may be gone.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn take_rest(&mut self) -> Vec<ReceiveEvent> {
        let mut events = Vec::new();
        self.inbox.tell_all(&mut events);
        events
    }

    /// No event waits behind messages.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn has_room(&self) -> bool {
        self.inbox.has_room()
    }

    /// Ends of connections that are not told yet.
    pub(crate) fn ends(&self) -> usize {
        self.inbox.ends()
    }

    /// The counters of a hub, without what is held here.
    pub(crate) fn correct(&self, stats: ReceiveStats) -> ReceiveStats {
        self.inbox.correct(stats)
    }
}

impl std::fmt::Debug for HubInbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HubInbox").finish_non_exhaustive()
    }
}
