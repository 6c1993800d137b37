//! `CmQueue`: how often a hub looks at the event queue of its connection manager, and what it keeps
//! of what it found there.

use std::collections::VecDeque;
use std::time::Instant;

use super::Hub;
use super::closing::Mark;
use crate::endpoint::hub::event::HubEvent;
use crate::endpoint::link::{CmData, CmEvent, ConnKey, Link};
use crate::id::{ConnectionId, IdMap};
use crate::protocol::connection::{Connection, State};

/// Between two looks at the event queue: as many reads of the completion queue that find something,
/// or fewer empty ones, each of which counts for [`EMPTY_READ`]. A look costs a system call on tcp.
const CM_INTERVAL: u32 = 1024;
const EMPTY_READ: u32 = 16;

/// Events of the connection manager that one poll takes, at most: who asks for connections can ask
/// without an end.
const CM_EVENTS_MAX: usize = 64;

/// Events that are kept for later, at most, while answers of this side's own connections are looked
/// for; requests beyond are refused.
const CM_LATER_MAX: usize = 1024;

pub(super) const EVENT_QUEUE_BROKE: &str = "the event queue broke";

/// What came from the connection manager, and the way there.
pub(super) struct CmQueue<R> {
    /// Reads of the completion queue since the last look; [`CM_INTERVAL`]: the next poll looks.
    reads: u32,
    /// Events that were read while completions were looked at.
    later: VecDeque<CmEvent<R>>,
    pub(super) requests: IdMap<ConnectionId, WaitingRequest<R>>,
    /// When connections that were never asked for are looked for next.
    pub(super) next_reap: Instant,
}

/// A request that waits for the application's answer.
pub(super) struct WaitingRequest<R> {
    pub(super) request: R,
    pub(super) data: CmData,
    pub(super) deadline: Instant,
}

impl<R> CmQueue<R> {
    pub(super) fn new(next_reap: Instant) -> Self {
        Self {
            reads: 0,
            later: VecDeque::new(),
            requests: IdMap::default(),
            next_reap,
        }
    }

    /// The next poll looks, whatever it finds elsewhere.
    pub(super) fn hurry(&mut self) {
        self.reads = CM_INTERVAL;
    }

    /// The completion queue was read, and so much found: whether it is time to look here.
    #[inline]
    pub(super) fn is_due(&mut self, found: usize, handshakes: bool) -> bool {
        self.reads += if found > 0 { 1 } else { EMPTY_READ };
        handshakes || self.reads >= CM_INTERVAL
    }

    /// Keeps an event for the next look. Of those that others ask for, so many: one beyond is
    /// dropped, which refuses it. False: it was.
    fn keep(&mut self, event: CmEvent<R>) -> bool {
        let asks = matches!(event, CmEvent::Request { .. });
        if asks && self.later.len() >= CM_LATER_MAX {
            return false;
        }
        self.later.push_back(event);
        self.hurry();
        true
    }

    /// Requests whose time is over.
    pub(super) fn take_late(&self, now: Instant) -> Vec<ConnectionId> {
        let late = self.requests.iter();
        let late = late.filter(|(_, waiting)| waiting.deadline <= now);
        late.map(|(id, _)| *id).collect()
    }
}

impl<L: Link, E: HubEvent> Hub<L, E> {
    /// A bounded number of events; what is left makes the endpoint ready again.
    pub(super) fn read_cm(&mut self, events: &mut Vec<E>) {
        self.cm.reads = 0;
        for _ in 0..CM_EVENTS_MAX {
            let event = match self.cm.later.pop_front() {
                Some(event) => event,
                None => match self.link.poll_cm() {
                    Ok(Some(event)) => event,
                    Ok(None) => return,
                    Err(error) => {
                        tracing::error!(%error, "the event queue broke");
                        return self.fail(EVENT_QUEUE_BROKE);
                    }
                },
            };
            match event {
                CmEvent::Request { request, data } => self.on_request(request, data, events),
                CmEvent::Connected { conn, data } => {
                    self.with_key(conn, |machine| machine.on_connected(data.as_slice()))
                }
                CmEvent::Refused { conn, errno, data } => {
                    self.with_key(conn, |machine| machine.on_refused(errno, data.as_slice()));
                }
                CmEvent::Shutdown { conn } => {
                    // The peer's last messages, and its goodbye, may still be in the queue.
                    if let Some(id) = self.directory.find(conn) {
                        self.cq.marks.leave(Mark::Gone(id));
                    }
                }
            }
        }
        self.wait.wake();
    }

    pub(super) fn with_key(&mut self, key: ConnKey, f: impl FnOnce(&mut Connection)) {
        let Some(id) = self.directory.find(key) else {
            return;
        };
        if let Some(peer) = self.peers.get_mut(id) {
            f(&mut peer.machine);
            self.touch(id);
        }
    }

    /// MSG form: a message may be in the completion queue before its connection's answer is read
    /// from the event queue. Whatever else is there is kept for later, since completions are being
    /// looked at; what others ask for is bounded.
    #[cold]
    pub(super) fn read_answers(&mut self) {
        for _ in 0..CM_LATER_MAX {
            let Ok(Some(event)) = self.link.poll_cm() else {
                return;
            };
            match event {
                CmEvent::Connected { conn, data } => {
                    self.with_key(conn, |machine| machine.on_connected(data.as_slice()));
                }
                CmEvent::Refused { conn, errno, data } => {
                    self.with_key(conn, |machine| machine.on_refused(errno, data.as_slice()));
                }
                other => {
                    let kept = self.cm.keep(other);
                    self.stats.refused.add(u64::from(!kept));
                }
            }
        }
    }

    /// MSG form: true when the connection is still being made, whatever the event queue says.
    #[cold]
    pub(super) fn still_connecting(&mut self, id: ConnectionId) -> bool {
        let connecting = |this: &Self| {
            let peer = this.peers.get(id);
            peer.is_some_and(|peer| peer.machine.state() == State::Connecting)
        };
        if !connecting(self) {
            return false;
        }
        self.read_answers();
        connecting(self)
    }
}
