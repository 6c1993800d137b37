//! `SendEngine`: which future waits for what of one sending endpoint, and what became of each send.
//! Pure: the caller polls.
//!
//! ```text
//!  new ─► queue (first come, first served) ─► Flying ─► Done ─► resolved: payload to its future
//!   │  back-pressure: only the first tries      │         │
//!   └ dropped: payload dropped with the future  └ dropped ┴───► detached: payload back to its pool
//! ```

use std::task::{Poll, Waker};
use std::time::Instant;

use super::after::After;
use super::error::SendFailure;
use super::posted::Posted;
use super::unread::UnreadEvents;
use super::waiters::{Ticket, Waiters};
use super::work::{Back, Outcome, Sender, Unposted};
use crate::Error;
use crate::endpoint::{
    Blocked, CloseReason, ConnectionEvent, ConnectionInfo, SendErrorKind, SendEvent, WindowEvent,
};
use crate::error::CompletionError;
use crate::stats::SendStats;

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

/// Window events that wait to be asked for, at most; then those that only tell are dropped.
const WINDOW_EVENTS_MAX: usize = 1024;

/// Events of the connection that wait to be asked for, at most; then the oldest are dropped.
const CONNECTION_EVENTS_MAX: usize = 256;

#[derive(Debug)]
pub(crate) struct SendEngine<S> {
    /// `None`: it broke, and was dropped.
    sender: Option<S>,
    last_stats: SendStats,
    posted: Posted,
    queue: Waiters,
    connected: Waiters,
    closed: Waiters,
    drivers: Waiters,
    /// What happened to windows.
    windows: UnreadEvents<WindowEvent>,
    /// What happened to the connection.
    connection: UnreadEvents<ConnectionEvent>,
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
    /// Polls of the endpoint, and calls of the reactor.
    turns: u64,
    wakes: u64,
}

impl<S: Sender> SendEngine<S> {
    pub(crate) fn new(sender: S) -> Self {
        Self {
            last_stats: sender.stats(),
            info: sender.info(),
            ended: sender.close_reason(),
            sender: Some(sender),
            posted: Posted::default(),
            queue: Waiters::default(),
            connected: Waiters::default(),
            closed: Waiters::default(),
            drivers: Waiters::default(),
            windows: UnreadEvents::default(),
            connection: UnreadEvents::default(),
            broken: None,
            closing: false,
            asked_to_close: false,
            blocked: None,
            touched: false,
            events: Vec::new(),
            turns: 0,
            wakes: 0,
        }
    }

    pub(crate) fn stats(&self) -> FutureStats {
        FutureStats {
            resolved: self.posted.resolved(),
            detached: self.posted.detached(),
            detached_in_flight: self.posted.detached_in_flight(),
            unresolved: self.posted.unresolved(),
            waiting: self.queue.len() as u64,
            turns: self.turns,
            wakes: self.wakes,
        }
    }

    pub(crate) fn send_stats(&self) -> SendStats {
        self.sender.as_ref().map_or(self.last_stats, S::stats)
    }

    pub(crate) fn info(&self) -> Option<&ConnectionInfo> {
        self.info.as_ref()
    }

    /// What whoever waited for the connection is told of its end.
    pub(crate) fn error_of_end(&self, reason: CloseReason) -> Error {
        let sender = self.sender.as_ref();
        sender.map_or(Error::Closed(reason), |it| it.error_of_end(reason))
    }

    pub(crate) fn ended(&self) -> Option<CloseReason> {
        self.ended
    }

    /// Somebody waits for something that the endpoint may bring.
    pub(crate) fn has_waiters(&self) -> bool {
        self.posted.has_waiters()
            || [
                &self.queue,
                &self.connected,
                &self.closed,
                &self.drivers,
                &self.windows.waiters,
                &self.connection.waiters,
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
        self.turns += 1;
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
            self.connection.take();
        }
        self.connection.push(event);
        self.connection.wake_all(after);
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
                    self.windows.push(event);
                }
                self.windows.wake_all(after);
            }
        }
    }

    fn finish(&mut self, key: u64, outcome: Outcome, after: &mut After) {
        self.posted.finish(key, outcome, after);
    }

    fn fail(&mut self, key: u64, back: Back, error: CompletionError, after: &mut After) {
        self.finish(key, Err((back, SendFailure::Failed(error))), after);
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
        self.windows.wake_all(after);
        self.connection.wake_all(after);
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
        self.posted.fail_all(reason, after);
        self.end(CloseReason::EndpointFailed(reason), after);
    }

    /// Wakes who is to turn: the drivers, or where there is none everybody, because one that is
    /// woken need not be polled.
    pub(crate) fn wake(&mut self, after: &mut After) {
        if !self.drivers.is_empty() {
            return self.drivers.wake_all(after);
        }
        self.posted.wake_all(after);
        self.queue.wake_all(after);
        self.connected.wake_all(after);
        self.closed.wake_all(after);
        self.windows.wake_all(after);
        self.connection.wake_all(after);
    }

    pub(crate) fn count_wake(&mut self) {
        self.wakes += 1;
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
        let key = self.posted.next_key();
        match work.post(sender, key) {
            Ok(()) => {
                self.touched = true;
                self.posted.insert(waker.take());
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
        self.windows.take()
    }

    /// What happened to the connection, the oldest first.
    pub(crate) fn take_connection_event(&mut self) -> Option<ConnectionEvent> {
        self.connection.take()
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
        self.posted.poll_outcome(key, waker, after)
    }

    /// The future of a posted send is dropped: the send goes on, and its payload goes home when it
    /// is done.
    pub(crate) fn detach(&mut self, key: u64, after: &mut After) {
        self.posted.detach(key, after);
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
            Topic::Window => &mut self.windows.waiters,
            Topic::Connection => &mut self.connection.waiters,
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
