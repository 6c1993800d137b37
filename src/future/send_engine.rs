//! `SendEngine`: which future waits for what of one sending endpoint, and what became of each send.
//! Pure: the caller polls.
//!
//! ```text
//!  new ─► queue (first come, first served) ─► Flying ─► Done ─► resolved: payload to its future
//!   │  back-pressure: only the first tries      │         │
//!   └ dropped: payload dropped with the future  └ dropped ┴───► detached: payload back to its pool
//! ```

use std::collections::{HashMap, VecDeque};
use std::task::{Poll, Waker};
use std::time::Instant;

use smallvec::SmallVec;

use super::after::After;
use super::error::SendFailure;
use super::waiters::{Ticket, Waiters};
use crate::Error;
use crate::buffer::Payload;
use crate::endpoint::{
    Blocked, CloseReason, ConnectionEvent, ConnectionInfo, Destination, Refused, RemoteWindow,
    SendErrorKind, SendEvent, WindowEvent, WindowPlace,
};
use crate::error::CompletionError;
use crate::stats::SendStats;

/// What the engine drives: a send endpoint, in the tests one over a link that is no network.
pub(crate) trait Sender: Send + 'static {
    fn send_data(
        &mut self,
        payload: Payload,
        header: &[u8],
        key: u64,
    ) -> Result<(), Refused<Payload>>;
    fn write(
        &mut self,
        payload: Payload,
        place: WindowPlace<'_>,
        data: Option<u32>,
        key: u64,
    ) -> Result<(), Refused<Payload>>;
    fn read(
        &mut self,
        into: Destination,
        place: WindowPlace<'_>,
        key: u64,
    ) -> Result<(), Refused<Destination>>;
    fn poll(&mut self, events: &mut Vec<SendEvent>) -> Result<(), Error>;
    fn begin_close(&mut self, deadline: Instant);
    /// As long as the connection stands.
    fn info(&self) -> Option<ConnectionInfo>;
    fn close_reason(&self) -> Option<CloseReason>;
    fn stats(&self) -> SendStats;
}

/// Counters of the futures of one endpoint.
///
/// `posted = resolved + detached + unresolved`, where `posted` is the one of [`SendStats`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FutureStats {
    /// Posted sends whose future gave the outcome.
    pub resolved: u64,
    /// Posted sends whose future was dropped before it gave the outcome.
    pub detached: u64,
    /// Of these, sends that are still in flight.
    pub detached_in_flight: u64,
    /// Posted sends whose future lives and has not given the outcome yet.
    pub unresolved: u64,
    /// Futures that wait for room to post.
    pub waiting: u64,
    /// Polls of the endpoint.
    pub turns: u64,
    /// Calls of the reactor: a descriptor was readable, or a time came.
    pub wakes: u64,
}

/// The header of a send that is not posted yet.
pub(crate) type Header = SmallVec<[u8; 64]>;

/// An operation before it is posted; its future owns it.
#[derive(Debug)]
pub(crate) struct Unposted {
    pub(crate) work: Work,
    pub(crate) ticket: Option<Ticket>,
}

/// What an operation does, with what it was given, until that is posted.
#[derive(Debug)]
pub(crate) enum Work {
    Send {
        payload: Payload,
        header: Header,
    },
    Write {
        payload: Payload,
        window: RemoteWindow,
        offset: u64,
        data: Option<u32>,
    },
    Read {
        into: Option<Destination>,
        window: RemoteWindow,
        offset: u64,
    },
}

impl Work {
    /// Posts it; refused, it has everything as before.
    fn post<S: Sender>(&mut self, sender: &mut S, key: u64) -> Result<(), SendErrorKind> {
        match self {
            Self::Send { payload, header } => {
                let sent = sender.send_data(std::mem::take(payload), header, key);
                sent.map_err(|refused| {
                    *payload = refused.given;
                    refused.kind
                })
            }
            Self::Write {
                payload,
                window,
                offset,
                data,
            } => {
                let given = std::mem::take(payload);
                let posted = sender.write(given, window.at(*offset), *data, key);
                posted.map_err(|refused| {
                    *payload = refused.given;
                    refused.kind
                })
            }
            Self::Read {
                into,
                window,
                offset,
            } => {
                let Some(given) = into.take() else {
                    unreachable!("it is posted once");
                };
                let posted = sender.read(given, window.at(*offset), key);
                posted.map_err(|refused| {
                    *into = Some(refused.given);
                    refused.kind
                })
            }
        }
    }

    /// What it was given.
    fn take_back(&mut self) -> Back {
        match self {
            Self::Send { payload, .. } | Self::Write { payload, .. } => {
                Back::Payload(std::mem::take(payload))
            }
            Self::Read { into, .. } => into.take().map_or(Back::Nothing, Back::Into),
        }
    }
}

/// What an operation gives back when it is over.
#[derive(Debug)]
pub(crate) enum Back {
    Payload(Payload),
    Into(Destination),
    /// It was leaked, or is with an endpoint that is gone.
    Nothing,
}

/// What became of an operation.
pub(crate) type Outcome = Result<Back, (Back, SendFailure)>;

/// Window events that wait to be asked for, at most; then those that only tell are dropped.
const WINDOW_EVENTS_MAX: usize = 1024;

/// Events of the connection that wait to be asked for, at most; then the oldest are dropped.
const CONNECTION_EVENTS_MAX: usize = 256;

/// A send that was posted.
#[derive(Debug)]
enum Entry {
    /// Without a waker: its future was woken, and not polled since.
    Flying(Option<Waker>),
    /// In flight, and nobody waits for it.
    Detached,
    Done(Outcome),
}

/// What a future may wait for, apart from a send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Topic {
    Connected,
    Closed,
    /// Something happened to a window.
    Window,
    /// Something happened to the connection.
    Connection,
    /// To drive the endpoint; these futures alone are woken for that, where there are any.
    Driving,
}

#[derive(Debug)]
pub(crate) struct SendEngine<S> {
    /// `None`: it broke, and was dropped.
    sender: Option<S>,
    last_stats: SendStats,
    /// By the key that the endpoint knows. One for each send in flight, and for each future whose
    /// send is done.
    entries: HashMap<u64, Entry>,
    last_key: u64,
    queue: Waiters,
    connected: Waiters,
    closed: Waiters,
    drivers: Waiters,
    window_waiters: Waiters,
    /// What happened to windows and was not asked for yet.
    windows: VecDeque<WindowEvent>,
    connection_waiters: Waiters,
    /// What happened to the connection and was not asked for yet.
    connection: VecDeque<ConnectionEvent>,
    info: Option<ConnectionInfo>,
    ended: Option<CloseReason>,
    broken: Option<&'static str>,
    /// No send is taken any more: no use in waiting for one's turn.
    closing: bool,
    asked_to_close: bool,
    blocked: Option<Blocked>,
    /// Something was posted or begun since the last turn.
    touched: bool,
    /// One batch of events; kept for its memory.
    events: Vec<SendEvent>,
    flying: u64,
    stats: FutureStats,
}

impl<S: Sender> SendEngine<S> {
    pub(crate) fn new(sender: S) -> Self {
        Self {
            last_stats: sender.stats(),
            info: sender.info(),
            ended: sender.close_reason(),
            sender: Some(sender),
            entries: HashMap::new(),
            last_key: 0,
            queue: Waiters::default(),
            connected: Waiters::default(),
            closed: Waiters::default(),
            drivers: Waiters::default(),
            window_waiters: Waiters::default(),
            windows: VecDeque::new(),
            connection_waiters: Waiters::default(),
            connection: VecDeque::new(),
            broken: None,
            closing: false,
            asked_to_close: false,
            blocked: None,
            touched: false,
            events: Vec::new(),
            flying: 0,
            stats: FutureStats::default(),
        }
    }

    pub(crate) fn stats(&self) -> FutureStats {
        FutureStats {
            unresolved: self.entries.len() as u64 - self.stats.detached_in_flight,
            waiting: self.queue.len() as u64,
            ..self.stats
        }
    }

    pub(crate) fn send_stats(&self) -> SendStats {
        self.sender.as_ref().map_or(self.last_stats, S::stats)
    }

    pub(crate) fn info(&self) -> Option<&ConnectionInfo> {
        self.info.as_ref()
    }

    pub(crate) fn ended(&self) -> Option<CloseReason> {
        self.ended
    }

    /// Somebody waits for something that the endpoint may bring.
    pub(crate) fn has_waiters(&self) -> bool {
        self.flying > 0
            || [
                &self.queue,
                &self.connected,
                &self.closed,
                &self.drivers,
                &self.window_waiters,
                &self.connection_waiters,
            ]
            .iter()
            .any(|waiters| !waiters.is_empty())
    }

    /// The provider's queue was full, and no descriptor says when it no longer is.
    pub(crate) fn wants_retry(&self) -> bool {
        self.blocked == Some(Blocked::Provider) && !self.queue.is_empty()
    }

    pub(crate) fn take_touched(&mut self) -> bool {
        std::mem::take(&mut self.touched)
    }

    // ---- driving --------------------------------------------------------------------------------

    /// Polls the endpoint once, and hands out what it reports.
    pub(crate) fn turn(&mut self, after: &mut After) {
        self.touched = false;
        let Some(sender) = &mut self.sender else {
            return;
        };
        self.stats.turns += 1;
        let mut events = std::mem::take(&mut self.events);
        let polled = sender.poll(&mut events);
        for event in events.drain(..) {
            self.take(event, after);
        }
        self.events = events;
        if let Err(error) = polled {
            self.break_down(&error, after);
        }
    }

    fn take(&mut self, event: SendEvent, after: &mut After) {
        if let Some(event) = about_connection(&event) {
            self.keep_connection_event(event, after);
        }
        match event {
            SendEvent::Completed { key, payload } => {
                self.finish(key, Ok(Back::Payload(payload)), after);
            }
            SendEvent::Failed {
                key,
                payload,
                error,
            } => self.fail(key, Back::Payload(payload), error, after),
            SendEvent::Connection(ConnectionEvent::Connected(info)) => {
                self.info = Some(info);
                self.connected.wake_all(after);
                self.queue.wake_first(after);
            }
            SendEvent::Writable => {
                self.blocked = None;
                self.queue.wake_first(after);
            }
            SendEvent::Connection(ConnectionEvent::PeerClosing) => self.stop_posting(after),
            SendEvent::Connection(ConnectionEvent::Disconnected(reason)) => self.end(reason, after),
            SendEvent::Connection(ConnectionEvent::Reconnecting { .. }) => {
                self.info = None;
                self.closing = self.asked_to_close;
            }
            // Advice, for who asks for it; what comes of it follows.
            SendEvent::Late { .. }
            | SendEvent::Connection(
                ConnectionEvent::Unresponsive | ConnectionEvent::Responsive | ConnectionEvent::Late,
            ) => {}
            SendEvent::Window(event) => self.take_window(event, after),
        }
    }

    pub(crate) fn keep_connection_event(&mut self, event: ConnectionEvent, after: &mut After) {
        if self.connection.len() == CONNECTION_EVENTS_MAX {
            self.connection.pop_front();
        }
        self.connection.push_back(event);
        self.connection_waiters.wake_all(after);
    }

    fn take_window(&mut self, event: WindowEvent, after: &mut After) {
        match event {
            WindowEvent::Written { key, payload } => {
                self.finish(key, Ok(Back::Payload(payload)), after);
            }
            WindowEvent::WriteFailed {
                key,
                payload,
                error,
            } => self.fail(key, Back::Payload(payload), error, after),
            WindowEvent::Read { key, into } => self.finish(key, Ok(Back::Into(into)), after),
            WindowEvent::ReadFailed { key, into, error } => {
                let back = into.map_or(Back::Nothing, Back::Into);
                self.fail(key, back, error, after);
            }
            event => {
                let tells_only = !matches!(event, WindowEvent::Released { .. });
                if !tells_only || self.windows.len() < WINDOW_EVENTS_MAX {
                    self.windows.push_back(event);
                }
                self.window_waiters.wake_all(after);
            }
        }
    }

    fn fail(&mut self, key: u64, back: Back, error: CompletionError, after: &mut After) {
        self.finish(key, Err((back, SendFailure::Failed(error))), after);
    }

    fn finish(&mut self, key: u64, outcome: Outcome, after: &mut After) {
        match self.entries.get_mut(&key) {
            Some(Entry::Flying(waker)) => {
                after.wake(waker.take());
                self.flying -= 1;
                self.entries.insert(key, Entry::Done(outcome));
            }
            Some(Entry::Detached) => {
                self.stats.detached_in_flight -= 1;
                self.entries.remove(&key);
                after.release(back_of(outcome));
            }
            Some(Entry::Done(_)) | None => {
                debug_assert!(false, "key {key} was not in flight");
                after.release(back_of(outcome));
            }
        }
    }

    /// Those who wait for their turn are refused, each by its own try.
    fn stop_posting(&mut self, after: &mut After) {
        self.closing = true;
        self.queue.wake_all(after);
    }

    fn end(&mut self, reason: CloseReason, after: &mut After) {
        self.ended = Some(reason);
        self.stop_posting(after);
        self.connected.wake_all(after);
        self.closed.wake_all(after);
        self.drivers.wake_all(after);
        self.window_waiters.wake_all(after);
        self.connection_waiters.wake_all(after);
    }

    /// A system call failed in the endpoint. Nothing tells what still works, so it goes, and
    /// everybody hears of it.
    fn break_down(&mut self, error: &Error, after: &mut After) {
        tracing::error!(%error, "a send endpoint broke, and is dropped");
        let reason = match *error {
            Error::EndpointFailed(reason) => reason,
            _ => "a system call failed",
        };
        self.broken = Some(reason);
        // Its payloads go home with it.
        if let Some(sender) = self.sender.take() {
            self.last_stats = sender.stats();
        }
        let keys: Vec<u64> = self.entries.keys().copied().collect();
        for key in keys {
            if !matches!(self.entries.get(&key), Some(Entry::Done(_))) {
                self.finish(
                    key,
                    Err((Back::Nothing, SendFailure::Endpoint(reason))),
                    after,
                );
            }
        }
        self.end(CloseReason::EndpointFailed(reason), after);
    }

    /// Wakes who is to turn: the drivers, or where there is none everybody, because one that is
    /// woken need not be polled.
    pub(crate) fn wake(&mut self, after: &mut After) {
        if !self.drivers.is_empty() {
            return self.drivers.wake_all(after);
        }
        for entry in self.entries.values_mut() {
            if let Entry::Flying(waker) = entry {
                after.wake(waker.take());
            }
        }
        self.queue.wake_all(after);
        self.connected.wake_all(after);
        self.closed.wake_all(after);
        self.window_waiters.wake_all(after);
        self.connection_waiters.wake_all(after);
    }

    pub(crate) fn count_wake(&mut self) {
        self.stats.wakes += 1;
    }

    // ---- what futures do ------------------------------------------------------------------------

    /// Posts an operation when it is its turn: `Ready` with its key, or with the refusal. What it
    /// was given is gone then.
    pub(crate) fn poll_post(
        &mut self,
        unposted: &mut Unposted,
        waker: &mut Option<Waker>,
        after: &mut After,
    ) -> Poll<Result<u64, (Back, SendFailure)>> {
        let Unposted { work, ticket } = unposted;
        if !self.closing && !self.queue.is_empty() && !self.queue.is_first(*ticket) {
            self.queue.wait(ticket, waker.take(), after);
            return Poll::Pending;
        }
        let Some(sender) = &mut self.sender else {
            self.leave_queue(ticket, after);
            let error = SendFailure::Endpoint(self.broken.unwrap_or_default());
            return Poll::Ready(Err((work.take_back(), error)));
        };
        let key = self.last_key + 1;
        match work.post(sender, key) {
            Ok(()) => {
                self.last_key = key;
                self.touched = true;
                self.flying += 1;
                self.entries.insert(key, Entry::Flying(waker.take()));
                self.leave_queue(ticket, after);
                Poll::Ready(Ok(key))
            }
            Err(SendErrorKind::WouldBlock(blocked)) => {
                self.blocked = Some(blocked);
                self.queue.wait(ticket, waker.take(), after);
                Poll::Pending
            }
            // Another connection is on its way, and says when it stands.
            Err(SendErrorKind::Closed(_)) if sender.close_reason().is_none() => {
                self.queue.wait(ticket, waker.take(), after);
                Poll::Pending
            }
            Err(kind) => {
                self.leave_queue(ticket, after);
                Poll::Ready(Err((work.take_back(), SendFailure::Refused(kind))))
            }
        }
    }

    /// The endpoint, for what is done at once; `None`: it broke.
    pub(crate) fn sender(&mut self) -> Option<&mut S> {
        self.touched = true;
        self.sender.as_mut()
    }

    /// What happened to a window, the oldest first.
    pub(crate) fn take_window_event(&mut self) -> Option<WindowEvent> {
        self.windows.pop_front()
    }

    /// What happened to the connection, the oldest first.
    pub(crate) fn take_connection_event(&mut self) -> Option<ConnectionEvent> {
        self.connection.pop_front()
    }

    /// Gives the place in the queue up; who is first now has its turn.
    pub(crate) fn leave_queue(&mut self, ticket: &mut Option<Ticket>, after: &mut After) {
        if let Some(place) = ticket.take() {
            let was_first = self.queue.is_first(Some(place));
            self.queue.leave(place, after);
            if was_first {
                self.queue.wake_first(after);
            }
        }
    }

    /// The outcome of a posted send, which is thereby resolved.
    pub(crate) fn poll_outcome(
        &mut self,
        key: u64,
        waker: &mut Option<Waker>,
        after: &mut After,
    ) -> Poll<Outcome> {
        match self.entries.get_mut(&key) {
            Some(Entry::Flying(place)) => {
                after.drop_waker(std::mem::replace(place, waker.take()));
                return Poll::Pending;
            }
            Some(Entry::Done(_)) => {}
            Some(Entry::Detached) | None => unreachable!("the future of {key} lives"),
        }
        let Some(Entry::Done(outcome)) = self.entries.remove(&key) else {
            unreachable!("just looked at")
        };
        self.stats.resolved += 1;
        Poll::Ready(outcome)
    }

    /// The future of a posted send is dropped: the send goes on, and its payload goes home when it
    /// is done.
    pub(crate) fn detach(&mut self, key: u64, after: &mut After) {
        self.stats.detached += 1;
        match self.entries.remove(&key) {
            Some(Entry::Done(outcome)) => after.release(back_of(outcome)),
            Some(Entry::Flying(waker)) => {
                after.drop_waker(waker);
                self.flying -= 1;
                self.stats.detached_in_flight += 1;
                self.entries.insert(key, Entry::Detached);
            }
            Some(Entry::Detached) | None => unreachable!("the future of {key} lived"),
        }
    }

    pub(crate) fn wait(
        &mut self,
        topic: Topic,
        ticket: &mut Option<Ticket>,
        waker: &mut Option<Waker>,
        after: &mut After,
    ) {
        self.waiters(topic).wait(ticket, waker.take(), after);
    }

    pub(crate) fn leave(&mut self, topic: Topic, ticket: Ticket, after: &mut After) {
        self.waiters(topic).leave(ticket, after);
    }

    fn waiters(&mut self, topic: Topic) -> &mut Waiters {
        match topic {
            Topic::Connected => &mut self.connected,
            Topic::Closed => &mut self.closed,
            Topic::Driving => &mut self.drivers,
            Topic::Window => &mut self.window_waiters,
            Topic::Connection => &mut self.connection_waiters,
        }
    }

    pub(crate) fn has_drivers(&self) -> bool {
        !self.drivers.is_empty()
    }

    pub(crate) fn begin_close(&mut self, deadline: Instant, after: &mut After) {
        self.asked_to_close = true;
        if let Some(sender) = &mut self.sender {
            sender.begin_close(deadline);
            self.touched = true;
        }
        self.stop_posting(after);
    }
}

fn back_of(outcome: Outcome) -> Back {
    outcome.unwrap_or_else(|(back, _)| back)
}

/// What an event says about the connection as such; its end is told by other means.
fn about_connection(event: &SendEvent) -> Option<ConnectionEvent> {
    match event {
        SendEvent::Connection(ConnectionEvent::Disconnected(_)) => None,
        SendEvent::Connection(event) => Some(event.clone()),
        SendEvent::Late { .. } => Some(ConnectionEvent::Late),
        SendEvent::Completed { .. }
        | SendEvent::Failed { .. }
        | SendEvent::Window(_)
        | SendEvent::Writable => None,
    }
}
