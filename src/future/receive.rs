//! `AsyncReceiveEndpoint`: a listening endpoint whose events are a stream.

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use futures_core::Stream;

use super::hub::{self, POLL_INTERVAL, ROUNDS_MAX, SLEEP_MAX};
use super::reactor::{Reactor, Watch};
use crate::buffer::SharedBufferManager;
use crate::endpoint::{ConnectionId, ConnectionRequest, Message};
use crate::event_loop::{WaitSource, Waitable};
use crate::stats::ReceiveStats;
use crate::{Error, PeerAddr, ReceiveEndpoint, ReceiveEvent};

/// Events handed out without a pause; then other tasks have their turn.
const EVENTS_IN_A_ROW: u32 = 128;

/// A [`ReceiveEndpoint`] whose events are a [`Stream`].
///
/// One task has it, and drives all its connections by asking for the next event. While nobody asks, nothing is received: the
/// peers' credits run out, and they wait. Nothing is lost by dropping a future of this type: events that it did not give
/// come with the next.
///
/// See [`AsyncSendEndpoint`](super::AsyncSendEndpoint) for an example.
pub struct AsyncReceiveEndpoint {
    watch: Box<dyn Watch>,
    wait: Arc<dyn WaitSource>,
    /// No descriptor speaks for the endpoint.
    polled: bool,
    endpoint: ReceiveEndpoint,
    /// What one poll of the endpoint brought; it is polled again when this is empty.
    events: VecDeque<ReceiveEvent>,
    /// Kept for its memory.
    polled_events: Vec<ReceiveEvent>,
    /// What ended the stream, until it is told.
    error: Option<Error>,
    ended: bool,
    in_a_row: u32,
    /// Set by `close`: the wait ends then, whatever the connections do.
    close_deadline: Option<Instant>,
}

impl AsyncReceiveEndpoint {
    /// Takes an endpoint over.
    ///
    /// # Errors
    ///
    /// [`Error::Os`] when the reactor watches neither descriptors nor time.
    pub fn new(endpoint: ReceiveEndpoint, reactor: &dyn Reactor) -> Result<Self, Error> {
        let wait = endpoint.wait_handle().upgrade();
        let wait = wait.unwrap_or_else(|| unreachable!("the endpoint lives"));
        let (watch, polled) =
            hub::watch(&wait, reactor).map_err(|error| Error::os("watching", error))?;
        Ok(Self {
            watch,
            wait,
            polled,
            endpoint,
            events: VecDeque::new(),
            polled_events: Vec::new(),
            error: None,
            ended: false,
            in_a_row: 0,
            close_deadline: None,
        })
    }

    /// The next event. `None`: the endpoint has failed, and the error was told.
    ///
    /// # Errors
    ///
    /// [`Error::EndpointFailed`] once, after the events that tell how the connections ended.
    pub async fn next(&mut self) -> Option<Result<ReceiveEvent, Error>> {
        std::future::poll_fn(|cx| self.poll_event(cx)).await
    }

    /// The next message, of whichever connection; all other events are passed over. A request that needs an answer
    /// ([`AcceptPolicy::Ask`](crate::endpoint::AcceptPolicy::Ask)) is among those.
    ///
    /// # Errors
    ///
    /// As [`next`](Self::next).
    pub async fn next_message(&mut self) -> Option<Result<Message, Error>> {
        loop {
            match self.next().await? {
                Ok(ReceiveEvent::Message(message)) => return Some(Ok(message)),
                Ok(_) => {}
                Err(error) => return Some(Err(error)),
            }
        }
    }

    /// The messages as a stream; see [`next_message`](Self::next_message).
    pub fn messages(&mut self) -> Messages<'_> {
        Messages(self)
    }

    /// [`next`](Self::next) as a poll.
    ///
    /// # Errors
    ///
    /// As [`next`](Self::next).
    pub fn poll_event(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<ReceiveEvent, Error>>> {
        if self.in_a_row >= EVENTS_IN_A_ROW {
            self.in_a_row = 0;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        for _ in 0..ROUNDS_MAX {
            if let Some(event) = self.events.pop_front() {
                self.in_a_row += 1;
                return Poll::Ready(Some(Ok(event)));
            }
            if let Some(error) = self.error.take() {
                return Poll::Ready(Some(Err(error)));
            }
            if self.ended {
                return Poll::Ready(None);
            }
            self.turn();
            if self.events.is_empty() && !self.ended && !self.look(cx) {
                self.in_a_row = 0;
                return Poll::Pending;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Polls the endpoint once.
    fn turn(&mut self) {
        if let Err(error) = self.endpoint.poll(&mut self.polled_events) {
            self.ended = true;
            self.error = Some(error);
        }
        self.events.extend(self.polled_events.drain(..));
    }

    /// Whether there is something to do at once; otherwise the task will be woken.
    fn look(&mut self, cx: &mut Context<'_>) -> bool {
        match self.wait.prepare_wait() {
            Ok(true) => {}
            Ok(false) => return true,
            Err(error) => {
                if !std::mem::replace(&mut self.polled, true) {
                    tracing::warn!(%error, "an endpoint can't prepare to wait: polling it at an interval");
                }
            }
        }
        let patience = if self.polled {
            POLL_INTERVAL
        } else {
            SLEEP_MAX
        };
        let until = hub::until(&*self.wait, patience);
        let until = self.close_deadline.map_or(until, |at| at.min(until));
        self.watch.poll_ready(cx, until).is_ready()
    }

    /// Closes every connection politely, then the endpoint. Resolves to what arrived meanwhile, messages included; the
    /// messages are bounded by the receive pool.
    ///
    /// Who asks for a connection meanwhile is turned away. By the deadline it is over in any case. Dropping this future is
    /// rude, as dropping the endpoint is.
    pub async fn close(mut self, deadline: Instant) -> Vec<ReceiveEvent> {
        self.close_deadline = Some(deadline);
        self.endpoint.begin_close(deadline);
        let mut arrived = Vec::new();
        while let Some(event) = std::future::poll_fn(|cx| self.poll_closing(cx, deadline)).await {
            arrived.push(event);
        }
        arrived
    }

    /// The next event; `None` when all connections are closed and told, when the endpoint failed, and at the deadline.
    fn poll_closing(
        &mut self,
        cx: &mut Context<'_>,
        deadline: Instant,
    ) -> Poll<Option<ReceiveEvent>> {
        if self.events.is_empty() && self.endpoint.connections() == 0 {
            return Poll::Ready(None);
        }
        match self.poll_event(cx) {
            Poll::Ready(Some(Ok(event))) => Poll::Ready(Some(event)),
            Poll::Ready(Some(Err(_)) | None) => Poll::Ready(None),
            // The last one may have gone without an event: it had not been established.
            Poll::Pending if self.endpoint.connections() == 0 || Instant::now() >= deadline => {
                Poll::Ready(None)
            }
            Poll::Pending => Poll::Pending,
        }
    }

    /// Where it listens, with the real port.
    pub fn local_addr(&self) -> PeerAddr {
        self.endpoint.local_addr()
    }

    /// Accepts a request. False: it is gone.
    pub fn accept(&mut self, request: ConnectionRequest) -> bool {
        let accepted = self.endpoint.accept(request, &mut self.polled_events);
        self.events.extend(self.polled_events.drain(..));
        accepted
    }

    /// Refuses a request; the peer is told so, with two numbers of the application's own. False: it is gone.
    pub fn refuse(&mut self, request: ConnectionRequest, details: [u64; 2]) -> bool {
        self.endpoint.refuse(request, details)
    }

    /// Begins the polite close of one connection. False: there is no such connection.
    pub fn close_connection(&mut self, connection: ConnectionId, deadline: Instant) -> bool {
        self.endpoint.close_connection(connection, deadline)
    }

    /// Connections open now.
    pub fn connections(&self) -> usize {
        self.endpoint.connections()
    }

    /// The receive pool, with its counters.
    pub fn pool(&self) -> &SharedBufferManager {
        self.endpoint.pool()
    }

    /// Counters.
    pub fn stats(&self) -> ReceiveStats {
        self.endpoint.stats()
    }
}

impl Stream for AsyncReceiveEndpoint {
    type Item = Result<ReceiveEvent, Error>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().poll_event(cx)
    }
}

impl fmt::Debug for AsyncReceiveEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncReceiveEndpoint")
            .field("endpoint", &self.endpoint)
            .field("events", &self.events.len())
            .finish_non_exhaustive()
    }
}

/// The messages of an endpoint; see [`AsyncReceiveEndpoint::messages`].
#[derive(Debug)]
#[must_use = "a stream does nothing unless it is polled"]
pub struct Messages<'a>(&'a mut AsyncReceiveEndpoint);

impl Stream for Messages<'_> {
    type Item = Result<Message, Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            match self.0.poll_event(cx) {
                Poll::Ready(Some(Ok(ReceiveEvent::Message(message)))) => {
                    return Poll::Ready(Some(Ok(message)));
                }
                // Ends: after `EVENTS_IN_A_ROW` of them it is pending.
                Poll::Ready(Some(Ok(_))) => {}
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(Err(error))),
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}
