//! `Events`: an endpoint whose events are a stream.

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use futures_core::Stream;

use super::driver::{self, POLL_INTERVAL, ROUNDS_MAX, SLEEP_MAX};
use super::error::{Failed, SendFailure};
use super::reactor::{Reactor, Watch};
use crate::buffer::Payload;
use crate::endpoint::{
    ConnectionRequest, ConnectionlessEvent, Destination, Message, SendErrorKind, WindowEvent,
    WindowPlace,
};
use crate::event_loop::{WaitSource, Waitable};
use crate::{
    BufferedEvent, ConnectionlessEndpoint, Error, PublishEndpoint, PublishEvent, ReceiveEndpoint,
    ReceiveEvent, SendEndpointBuffered, SendEndpointZeroCopy, SendEvent, SubscribeEndpoint,
    SubscribeEvent,
};

/// Events handed out without a pause; then other tasks have their turn.
const EVENTS_IN_A_ROW: u32 = 128;

/// An endpoint whose events [`Events`] can make a stream of: it is polled, and says what to wait
/// for in between.
pub trait EventSource: Waitable {
    /// What happens at it.
    type Event;

    /// Drives the endpoint, and appends what happened.
    ///
    /// # Errors
    ///
    /// The endpoint has failed, for good.
    fn poll(&mut self, events: &mut Vec<Self::Event>) -> Result<(), Error>;

    /// Begins the polite close of all its connections.
    fn begin_close(&mut self, deadline: Instant);

    /// Connections that are open now.
    fn connections(&self) -> usize;

    /// Whether nothing happens at it any more, because its one connection is over.
    fn is_over(&self) -> bool {
        false
    }
}

impl EventSource for ReceiveEndpoint {
    type Event = ReceiveEvent;

    fn poll(&mut self, events: &mut Vec<ReceiveEvent>) -> Result<(), Error> {
        Self::poll(self, events).map(drop)
    }

    fn begin_close(&mut self, deadline: Instant) {
        Self::begin_close(self, deadline);
    }

    fn connections(&self) -> usize {
        Self::connections(self)
    }
}

impl EventSource for PublishEndpoint {
    type Event = PublishEvent;

    fn poll(&mut self, events: &mut Vec<PublishEvent>) -> Result<(), Error> {
        Self::poll(self, events).map(drop)
    }

    fn begin_close(&mut self, deadline: Instant) {
        Self::begin_close(self, deadline);
    }

    fn connections(&self) -> usize {
        Self::connections(self)
    }
}

impl EventSource for SubscribeEndpoint {
    type Event = SubscribeEvent;

    fn poll(&mut self, events: &mut Vec<SubscribeEvent>) -> Result<(), Error> {
        Self::poll(self, events).map(drop)
    }

    fn begin_close(&mut self, deadline: Instant) {
        Self::begin_close(self, deadline);
    }

    fn connections(&self) -> usize {
        self.publishers()
    }
}

impl EventSource for ConnectionlessEndpoint {
    type Event = ConnectionlessEvent;

    fn poll(&mut self, events: &mut Vec<ConnectionlessEvent>) -> Result<(), Error> {
        Self::poll(self, events).map(drop)
    }

    fn begin_close(&mut self, deadline: Instant) {
        Self::begin_close(self, deadline);
    }

    fn connections(&self) -> usize {
        Self::connections(self)
    }
}

impl EventSource for SendEndpointBuffered {
    type Event = BufferedEvent;

    fn poll(&mut self, events: &mut Vec<BufferedEvent>) -> Result<(), Error> {
        Self::poll(self, events).map(drop)
    }

    fn begin_close(&mut self, deadline: Instant) {
        Self::begin_close(self, deadline);
    }

    fn connections(&self) -> usize {
        usize::from(!self.is_over())
    }

    fn is_over(&self) -> bool {
        self.close_reason().is_some()
    }
}

impl EventSource for SendEndpointZeroCopy {
    type Event = SendEvent;

    fn poll(&mut self, events: &mut Vec<SendEvent>) -> Result<(), Error> {
        Self::poll(self, events).map(drop)
    }

    fn begin_close(&mut self, deadline: Instant) {
        Self::begin_close(self, deadline);
    }

    fn connections(&self) -> usize {
        usize::from(!self.is_over())
    }

    fn is_over(&self) -> bool {
        self.close_reason().is_some()
    }
}

/// An endpoint whose events are a [`Stream`].
///
/// One task has it, and drives all its connections by asking for the next event. While nobody asks,
/// nothing is sent or received: the peers' credits run out, and they wait. Nothing is lost by
/// dropping a future of this type: events that it did not give come with the next.
///
/// What else the endpoint can do is done with the endpoint itself
/// ([`endpoint_mut`](Self::endpoint_mut)): publish, subscribe, send to a peer. For sends that are
/// futures of their own there is [`AsyncSendEndpoint`](super::AsyncSendEndpoint), whose example
/// shows this type, too.
///
/// ```
/// use std::time::{Duration, Instant};
/// use fabricast::endpoint::{PublishConfig, SubscribeConfig};
/// use fabricast::future::{Events, Executor};
/// # use fabricast::{ConnectionEvent, PublishEvent};
/// use fabricast::{Fabric, PublishEndpoint, SubscribeEndpoint, SubscribeEvent};
///
/// let domain = Fabric::builder().provider("tcp").node("127.0.0.1").open()?.open_domain()?;
/// let publisher =
///     PublishEndpoint::listen(&domain, "127.0.0.1:0".parse()?, PublishConfig::default())?;
/// let address = publisher.local_addr();
/// # let publishing = std::thread::spawn(move || -> Result<(), fabricast::Error> {
/// #     let executor = Executor::new()?;
/// #     let mut publisher = Events::new(publisher, &executor)?;
/// #     executor.block_on(async {
/// #         while let Some(event) = publisher.next().await {
/// #             if let PublishEvent::Connection(_, ConnectionEvent::Disconnected(_)) = event? {
/// #                 break;
/// #             }
/// #         }
/// #         publisher.close(Instant::now() + Duration::from_secs(5)).await;
/// #         Ok(())
/// #     })
/// # });
/// let executor = Executor::new()?;
/// let subscriber = SubscribeEndpoint::open(&domain, SubscribeConfig::default())?;
/// let mut subscriber = Events::new(subscriber, &executor)?;
/// let at = subscriber.endpoint_mut().connect(address)?;
/// subscriber.endpoint_mut().subscribe(at, 0x1007)?;
/// let subscribed = executor.block_on(async {
///     while let Some(event) = subscriber.next().await {
///         if let SubscribeEvent::Subscribed { tag, .. } = event? {
///             return Ok::<_, fabricast::Error>(Some(tag));
///         }
///     }
///     Ok(None)
/// })?;
/// assert_eq!(subscribed, Some(0x1007));
/// executor.block_on(subscriber.close(Instant::now() + Duration::from_secs(5)));
/// # publishing.join().unwrap()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Events<E: EventSource> {
    watch: Box<dyn Watch>,
    wait: Arc<dyn WaitSource>,
    /// No descriptor speaks for the endpoint.
    polled: bool,
    endpoint: E,
    /// What one poll of the endpoint brought; it is polled again when this is empty.
    events: VecDeque<E::Event>,
    /// Kept for its memory.
    polled_events: Vec<E::Event>,
    /// What ended the stream, until it is told.
    error: Option<Error>,
    ended: bool,
    in_a_row: u32,
    /// Of its own operations, downwards.
    last_key: u64,
    /// Set by `close`: the wait ends then, whatever the connections do.
    close_deadline: Option<Instant>,
}

impl<E: EventSource> Events<E> {
    /// Takes an endpoint over.
    ///
    /// # Errors
    ///
    /// [`Error::Os`] when the reactor watches neither descriptors nor time.
    pub fn new(endpoint: E, reactor: &dyn Reactor) -> Result<Self, Error> {
        let wait = endpoint.wait_handle().upgrade();
        let wait = wait.unwrap_or_else(|| unreachable!("the endpoint lives"));
        let (watch, polled) =
            driver::watch(&wait, reactor).map_err(|error| Error::os("watching", error))?;
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
            last_key: u64::MAX,
            close_deadline: None,
        })
    }

    /// The endpoint.
    pub fn endpoint(&self) -> &E {
        &self.endpoint
    }

    /// The endpoint, to do something with it. What its own `poll` is asked for by hand does not
    /// come here.
    pub fn endpoint_mut(&mut self) -> &mut E {
        &mut self.endpoint
    }

    /// The next event. `None`: the endpoint has failed, and the error was told; or its one
    /// connection is over, and that was told.
    ///
    /// # Errors
    ///
    /// [`Error::EndpointFailed`] once, after the events that tell how the connections ended.
    pub async fn next(&mut self) -> Option<Result<E::Event, Error>> {
        std::future::poll_fn(|cx| self.poll_event(cx)).await
    }

    /// [`next`](Self::next) as a poll.
    ///
    /// # Errors
    ///
    /// As [`next`](Self::next).
    pub fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<E::Event, Error>>> {
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
            if self.ended || self.endpoint.is_over() {
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
                    tracing::warn!(%error, "an endpoint can't prepare to wait: polling it at an \
                        interval");
                }
            }
        }
        let patience = if self.polled {
            POLL_INTERVAL
        } else {
            SLEEP_MAX
        };
        let until = driver::until(&*self.wait, patience);
        let until = self.close_deadline.map_or(until, |at| at.min(until));
        self.watch.poll_ready(cx, until).is_ready()
    }

    /// Closes every connection politely, then the endpoint. Resolves to what happened meanwhile,
    /// messages included; the messages are bounded by the receive pool.
    ///
    /// Who asks for a connection meanwhile is turned away. By the deadline it is over in any case.
    /// Dropping this future is rude, as dropping the endpoint is.
    pub async fn close(mut self, deadline: Instant) -> Vec<E::Event> {
        self.close_deadline = Some(deadline);
        self.endpoint.begin_close(deadline);
        let mut arrived = Vec::new();
        while let Some(event) = std::future::poll_fn(|cx| self.poll_closing(cx, deadline)).await {
            arrived.push(event);
        }
        arrived
    }

    /// The next event; `None` when all connections are closed and told, when the endpoint failed,
    /// and at the deadline.
    fn poll_closing(&mut self, cx: &mut Context<'_>, deadline: Instant) -> Poll<Option<E::Event>> {
        if self.events.is_empty() && self.endpoint.connections() == 0 {
            // What is told behind the end of a connection.
            if !self.ended {
                self.turn();
            }
            return Poll::Ready(self.events.pop_front());
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
}

impl Events<ReceiveEndpoint> {
    /// The next message, of whichever connection; all other events are passed over. A request that
    /// needs an answer ([`AcceptPolicy::Ask`](crate::endpoint::AcceptPolicy::Ask)) is among those.
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

    /// Accepts a request. False: it is gone.
    pub fn accept(&mut self, request: ConnectionRequest) -> bool {
        let accepted = self.endpoint.accept(request, &mut self.polled_events);
        self.events.extend(self.polled_events.drain(..));
        accepted
    }

    // ---- windows --------------------------------------------------------------------------------

    /// Writes to a place in a window of a peer's; resolves to the payload when the bytes are there.
    /// It waits for room by itself, and drives the endpoint: what else happens meanwhile comes with
    /// the next events.
    ///
    /// Dropping the future before it has posted drops the payload. Afterwards the write goes on,
    /// and its outcome comes as an event, with the payload.
    ///
    /// # Errors
    ///
    /// [`Failed`], with the payload.
    pub async fn write(
        &mut self,
        payload: impl Into<Payload>,
        place: impl Into<WindowPlace<'_>>,
    ) -> Result<Payload, Failed<Payload>> {
        let (place, key): (WindowPlace<'_>, u64) = (place.into(), self.next_key());
        let connection = place.window.connection();
        let mut given = Some(payload.into());
        let outcome = self
            .operate(key, |endpoint| {
                let payload = given.take().unwrap_or_else(Payload::empty);
                endpoint
                    .windows(connection)
                    .write(payload, place, key)
                    .map_err(|refused| {
                        given = Some(refused.given);
                        refused.kind
                    })
            })
            .await;
        match outcome {
            Ok(WindowEvent::Written { payload, .. }) => Ok(payload),
            Ok(WindowEvent::WriteFailed { payload, error, .. }) => Err(Failed {
                given: Some(payload),
                why: SendFailure::Failed(error),
            }),
            Ok(_) => unreachable!("the outcome of a write"),
            Err(why) => Err(Failed { given, why }),
        }
    }

    /// Reads from a place in a window of a peer's; resolves to the destination, filled. As
    /// [`write`](Self::write) otherwise.
    ///
    /// # Errors
    ///
    /// [`Failed`], with the destination where it is back.
    pub async fn read(
        &mut self,
        into: impl Into<Destination>,
        place: impl Into<WindowPlace<'_>>,
    ) -> Result<Destination, Failed<Destination>> {
        let (place, key): (WindowPlace<'_>, u64) = (place.into(), self.next_key());
        let connection = place.window.connection();
        let mut given = Some(into.into());
        let outcome = self
            .operate(key, |endpoint| {
                let Some(into) = given.take() else {
                    unreachable!("it is posted once");
                };
                endpoint
                    .windows(connection)
                    .read(into, place, key)
                    .map_err(|refused| {
                        given = Some(refused.given);
                        refused.kind
                    })
            })
            .await;
        match outcome {
            Ok(WindowEvent::Read { into, .. }) => Ok(into),
            Ok(WindowEvent::ReadFailed { into, error, .. }) => Err(Failed {
                given: into,
                why: SendFailure::Failed(error),
            }),
            Ok(_) => unreachable!("the outcome of a read"),
            Err(why) => Err(Failed { given, why }),
        }
    }

    /// Posts an operation as soon as that is possible, and waits for its outcome.
    async fn operate(
        &mut self,
        key: u64,
        mut post: impl FnMut(&mut ReceiveEndpoint) -> Result<(), SendErrorKind>,
    ) -> Result<WindowEvent, SendFailure> {
        let mut posted = false;
        std::future::poll_fn(|cx| {
            for _ in 0..ROUNDS_MAX {
                if !posted {
                    match post(&mut self.endpoint) {
                        Ok(()) => posted = true,
                        Err(SendErrorKind::WouldBlock(_)) => {}
                        Err(kind) => return Poll::Ready(Err(SendFailure::Refused(kind))),
                    }
                }
                if let Some(outcome) = self.take_outcome(key) {
                    return Poll::Ready(Ok(outcome));
                }
                if self.ended {
                    let reason = "its outcome was not told before the endpoint failed";
                    return Poll::Ready(Err(SendFailure::Endpoint(reason)));
                }
                let before = self.events.len();
                self.turn();
                if self.events.len() == before && !self.ended && !self.look(cx) {
                    return Poll::Pending;
                }
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await
    }

    fn take_outcome(&mut self, key: u64) -> Option<WindowEvent> {
        let is_its = |event: &ReceiveEvent| match event {
            ReceiveEvent::Window { event, .. } => event.outcome_of() == Some(key),
            _ => false,
        };
        let at = self.events.iter().position(is_its)?;
        match self.events.remove(at) {
            Some(ReceiveEvent::Window { event, .. }) => Some(event),
            _ => None,
        }
    }

    /// Keys of this type's operations; no event with one reaches the application, but for
    /// operations whose futures were dropped.
    fn next_key(&mut self) -> u64 {
        self.last_key -= 1;
        self.last_key
    }
}

/// Nothing in it is pinned.
impl<E: EventSource> Unpin for Events<E> {}

impl<E: EventSource> Stream for Events<E> {
    type Item = Result<E::Event, Error>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().poll_event(cx)
    }
}

impl<E: EventSource> fmt::Debug for Events<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Events")
            .field("events", &self.events.len())
            .finish_non_exhaustive()
    }
}

/// The messages of an endpoint; see [`Events::messages`].
#[derive(Debug)]
#[must_use = "a stream does nothing unless it is polled"]
pub struct Messages<'a>(&'a mut Events<ReceiveEndpoint>);

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
