//! `AsyncSendEndpoint`: a sending endpoint whose sends are futures.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use super::driver::Driver;
use super::error::Failed;
use super::reactor::Reactor;
use super::send_engine::FutureStats;
use super::sending::{self, Handle, ReadOn, SendOn};
use super::work::Sender;
use crate::Error;
use crate::SendEndpointZeroCopy;
use crate::buffer::Payload;
use crate::endpoint::{
    Access, CloseReason, ConnectionEvent, ConnectionInfo, Destination, LocalWindow, Refused,
    RemoteWindow, SendEvent, WindowDescriptor, WindowError, WindowEvent, WindowMemory, WindowPlace,
};
use crate::event_loop::Waitable;
use crate::stats::SendStats;

impl Sender for SendEndpointZeroCopy {
    fn send_data(
        &mut self,
        payload: Payload,
        header: &[u8],
        key: u64,
    ) -> Result<(), Refused<Payload>> {
        Self::send_data(self, payload, header, key)
    }

    fn write(
        &mut self,
        payload: Payload,
        place: WindowPlace<'_>,
        data: Option<u32>,
        key: u64,
    ) -> Result<(), Refused<Payload>> {
        let mut windows = self.windows();
        match data {
            Some(data) => windows.write_with_data(payload, place, data, key),
            None => windows.write(payload, place, key),
        }
    }

    fn read(
        &mut self,
        into: Destination,
        place: WindowPlace<'_>,
        key: u64,
    ) -> Result<(), Refused<Destination>> {
        self.windows().read(into, place, key)
    }

    fn poll(&mut self, events: &mut Vec<SendEvent>) -> Result<(), Error> {
        Self::poll(self, events).map(drop)
    }

    fn begin_close(&mut self, deadline: Instant) {
        Self::begin_close(self, deadline);
    }

    fn info(&self) -> Option<ConnectionInfo> {
        Self::connection_info(self)
    }

    fn close_reason(&self) -> Option<CloseReason> {
        Self::close_reason(self)
    }

    fn error_of_end(&self, reason: CloseReason) -> Error {
        Self::error_of_end(self, reason)
    }

    fn stats(&self) -> SendStats {
        Self::stats(self)
    }
}

/// A [`SendEndpointZeroCopy`] whose sends are futures. Clones are handles on the same connection,
/// for as many tasks as you like.
///
/// [`send`](Self::send) resolves to the payload when the message is sent (or delivered: the level
/// is the endpoint's). It waits by itself where the endpoint would refuse for back-pressure, in the
/// order of the first polls.
///
/// Whichever of the futures is polled drives the connection for all of them. With many tasks on one
/// connection, spawn [`driver`](Self::driver) too: then a wake-up wakes that one task and not all
/// of them. The driver also completes sends whose futures were dropped while no other future of
/// this endpoint is polled.
///
/// Where the endpoint has a [`ReconnectPolicy`](crate::endpoint::ReconnectPolicy), sends wait for
/// the next connection; what was in flight on the last one failed with it, and nothing is sent
/// again.
///
/// Dropping the last clone ends the connection without a goodbye: futures that are still alive
/// resolve with [`Failed`], which carries the payload. [`close`](Self::close) is polite, and
/// nothing that was sent is lost.
///
/// ```
/// use std::time::{Duration, Instant};
/// use fabricast::buffer::SharedBufferManager;
/// use fabricast::endpoint::{CloseReason, ReceiveConfig, SendConfig};
/// use fabricast::future::{AsyncSendEndpoint, Events, Executor};
/// use fabricast::{Fabric, ReceiveEndpoint, SendEndpointZeroCopy};
///
/// let domain = Fabric::builder().provider("tcp").node("127.0.0.1").open()?.open_domain()?;
/// let receiver =
///     ReceiveEndpoint::listen(&domain, "127.0.0.1:0".parse()?, ReceiveConfig::default())?;
/// let address = receiver.local_addr();
/// // As a rule another process.
/// let receiving = std::thread::spawn(move || -> Result<Vec<u8>, fabricast::Error> {
///     let executor = Executor::new()?;
///     let mut receiver = Events::new(receiver, &executor)?;
///     executor.block_on(async {
///         let message = receiver.next_message().await.expect("one comes")?;
///         receiver.close(Instant::now() + Duration::from_secs(5)).await;
///         Ok(message.payload().to_vec())
///     })
/// });
///
/// let pool = SharedBufferManager::allocate(16, 64 * 1024)?;
/// pool.region().register(&domain)?;
/// let executor = Executor::new()?;
/// let sender = SendEndpointZeroCopy::connect(&domain, address, SendConfig::default())?;
/// let sender = AsyncSendEndpoint::new(sender, &executor)?;
/// executor.block_on(async {
///     let mut buffer = pool.try_acquire().expect("16 are free");
///     buffer[..5].copy_from_slice(b"hello");
///     // Waits until the connection stands, until there is room, and until it is sent.
///     let payload = sender.send(buffer.freeze(5), b"event 7").await?;
///     assert_eq!(payload.len_bytes(), 5);
///     let reason = sender.close(Instant::now() + Duration::from_secs(5)).await;
///     assert_eq!(reason, CloseReason::Finished);
///     Ok::<(), Box<dyn std::error::Error>>(())
/// })?;
/// assert_eq!(receiving.join().unwrap()?, b"hello");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct AsyncSendEndpoint {
    handle: Arc<Handle<SendEndpointZeroCopy>>,
}

impl AsyncSendEndpoint {
    /// Takes an endpoint over, connected or not.
    ///
    /// The keys of sends are this type's own: a
    /// [`SendConfig::on_abandoned`](crate::endpoint::SendConfig::on_abandoned) hears numbers that
    /// say nothing but how many.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] when sends of it are in flight, whose keys would be taken for others;
    /// [`Error::Os`] when the reactor watches neither descriptors nor time.
    pub fn new(endpoint: SendEndpointZeroCopy, reactor: &dyn Reactor) -> Result<Self, Error> {
        let in_flight = endpoint.stats().in_flight;
        if in_flight > 0 {
            return Err(Error::Config {
                field: "endpoint",
                value: format!("{in_flight} sends in flight"),
                reason: "must have none when it becomes one of futures",
            });
        }
        let wait = endpoint.wait_handle().upgrade();
        let wait = wait.unwrap_or_else(|| unreachable!("the endpoint lives"));
        let driver =
            Driver::new(endpoint, wait, reactor).map_err(|error| Error::os("watching", error))?;
        Ok(Self {
            handle: Arc::new(Handle(driver)),
        })
    }

    /// Sends a header and a payload; resolves to the payload. Nothing is posted before the first
    /// poll. The header is copied twice: into the future, which allocates for one of more than 64
    /// bytes, and into its slot.
    ///
    /// Dropping the future before it has posted drops the payload with it. Afterwards the send
    /// can't be taken back: it goes on, and its payload goes back to where it came from when it is
    /// done ([`FutureStats::detached`] counts it).
    pub fn send(&self, payload: impl Into<Payload>, header: &[u8]) -> Sending {
        Sending(SendOn::new(&self.handle.0, payload.into(), header))
    }

    /// The windows of the connection, with futures for what is done to them.
    pub fn windows(&self) -> AsyncWindows<'_> {
        AsyncWindows(&self.handle.0)
    }

    /// What happens to the connection next: a late send, a peer that is silent, closes, or is
    /// connected to again. `None`: it is over, and all was told
    /// ([`close_reason`](Self::close_reason) says why).
    ///
    /// What nobody asks for waits, the last 256. Each event is given once, to one of those who ask.
    pub fn connection_event(
        &self,
    ) -> impl Future<Output = Option<ConnectionEvent>> + Send + 'static + use<> {
        sending::connection_event(Arc::clone(&self.handle.0))
    }

    /// Waits until the connection stands. Not needed before a send, which waits for that itself.
    ///
    /// # Errors
    ///
    /// [`Error::NotConnected`]: it could not be made; [`Error::Closed`]: it is over.
    pub fn connected(
        &self,
    ) -> impl Future<Output = Result<ConnectionInfo, Error>> + Send + 'static + use<> {
        sending::connected(Arc::clone(&self.handle.0))
    }

    /// Says goodbye: no new sends; those in flight complete, and both sides know it. Resolves when
    /// the connection is closed, by the deadline in any case; [`CloseReason::Finished`] says that
    /// the peer has everything.
    ///
    /// It begins with the first poll. Sends that still wait for room fail then, with their
    /// payloads.
    pub fn close(
        &self,
        deadline: Instant,
    ) -> impl Future<Output = CloseReason> + Send + 'static + use<> {
        sending::close(Arc::clone(&self.handle.0), deadline)
    }

    /// Waits until the connection is closed, by whomever.
    pub fn closed(&self) -> impl Future<Output = CloseReason> + Send + 'static + use<> {
        sending::closed(Arc::clone(&self.handle.0))
    }

    /// Drives the connection until it is closed; for a task of its own. While it lives, only it is
    /// woken to drive, so that task must be one that goes on being polled.
    ///
    /// It is no handle: when the last clone of the endpoint is dropped, the connection ends, and so
    /// does this.
    pub fn driver(&self) -> impl Future<Output = CloseReason> + Send + 'static + use<> {
        sending::drive(Arc::clone(&self.handle.0))
    }

    /// Why the connection is closed, once it is and a future has found out.
    pub fn close_reason(&self) -> Option<CloseReason> {
        self.handle.0.with(|engine, _| engine.ended())
    }

    /// The counters of the endpoint.
    pub fn stats(&self) -> SendStats {
        self.handle.0.with(|engine, _| engine.send_stats())
    }

    /// The counters of its futures.
    pub fn future_stats(&self) -> FutureStats {
        self.handle.0.with(|engine, _| engine.stats())
    }
}

/// The windows of an [`AsyncSendEndpoint`]'s connection, as [`Windows`](crate::endpoint::Windows)
/// are those of an endpoint.
#[derive(Clone, Copy, Debug)]
pub struct AsyncWindows<'a>(&'a Arc<Driver<SendEndpointZeroCopy>>);

impl AsyncWindows<'_> {
    /// Writes to a place in a window of the peer's; resolves to the payload when the bytes are
    /// there. It waits its turn among the sends.
    ///
    /// Dropping the future is as dropping one of [`send`](AsyncSendEndpoint::send): what was posted
    /// goes on, and nothing is lost.
    pub fn write<'a>(
        &self,
        payload: impl Into<Payload>,
        place: impl Into<WindowPlace<'a>>,
    ) -> Sending {
        Sending(SendOn::write(self.0, payload.into(), place.into(), None))
    }

    /// As [`write`](Self::write), and the peer is told with 32 bits; see
    /// [`Windows::write_with_data`](crate::endpoint::Windows::write_with_data).
    pub fn write_with_data<'a>(
        &self,
        payload: impl Into<Payload>,
        place: impl Into<WindowPlace<'a>>,
        data: u32,
    ) -> Sending {
        Sending(SendOn::write(
            self.0,
            payload.into(),
            place.into(),
            Some(data),
        ))
    }

    /// Reads from a place in a window of the peer's; resolves to the destination, filled. It waits
    /// its turn among the sends.
    ///
    /// Dropping the future after it has posted does not take the read back: the destination goes
    /// back to where it came from when it is done.
    pub fn read<'a>(
        &self,
        into: impl Into<Destination>,
        place: impl Into<WindowPlace<'a>>,
    ) -> Reading {
        Reading(ReadOn::new(self.0, into.into(), place.into()))
    }

    /// A window of the peer's, by its descriptor; see
    /// [`Windows::open`](crate::endpoint::Windows::open).
    ///
    /// # Errors
    ///
    /// As there; [`WindowError::NotConnected`] when the endpoint has failed.
    pub fn open(&self, descriptor: &WindowDescriptor) -> Result<RemoteWindow, WindowError> {
        self.0.with(|engine, _| match engine.sender() {
            Some(sender) => sender.windows().open(descriptor),
            None => Err(WindowError::NotConnected),
        })
    }

    /// Lets the peer use memory of this side; see
    /// [`Windows::expose`](crate::endpoint::Windows::expose). What becomes of it is told by
    /// [`event`](Self::event).
    ///
    /// # Errors
    ///
    /// As there; [`WindowError::NotConnected`] when the endpoint has failed.
    pub fn expose(
        &self,
        memory: impl Into<WindowMemory>,
        access: Access,
    ) -> Result<LocalWindow, Refused<WindowMemory, WindowError>> {
        let memory = memory.into();
        self.0.with(|engine, _| match engine.sender() {
            Some(sender) => sender.windows().expose(memory, access),
            None => Err(Refused::without_key(WindowError::NotConnected, memory)),
        })
    }

    /// Asks the peer not to use a window any more; see
    /// [`Windows::revoke`](crate::endpoint::Windows::revoke). Its memory comes by
    /// [`event`](Self::event). False: there is nothing to take back any more.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn revoke(
        &self,
        window: LocalWindow,
        deadline: Instant,
    ) -> Result<bool, Refused<LocalWindow, WindowError>> {
        self.0.with(|engine, _| match engine.sender() {
            Some(sender) => sender.windows().revoke(window, deadline),
            None => Ok(false),
        })
    }

    /// What happens to windows next: memory that is back, windows that the peer revoked. `None`:
    /// the connection is over, and all was told.
    ///
    /// What nobody asks for waits: memory always, of what only tells 1,024. Each event is given
    /// once, to one of those who ask.
    pub fn event(&self) -> impl Future<Output = Option<WindowEvent>> + Send + 'static + use<> {
        sending::window_event(Arc::clone(self.0))
    }
}

/// One send, or one write; see [`AsyncSendEndpoint::send`].
///
/// # Panics
///
/// When it is polled after it has resolved.
#[must_use = "a future does nothing unless it is polled"]
pub struct Sending(SendOn<SendEndpointZeroCopy>);

impl Sending {
    /// Whether it was posted: from then on, dropping this does not take the send back.
    pub fn is_posted(&self) -> bool {
        self.0.is_posted()
    }
}

impl Future for Sending {
    type Output = Result<Payload, Failed<Payload>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx)
    }
}

impl fmt::Debug for Sending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sending")
            .field("is_posted", &self.is_posted())
            .finish_non_exhaustive()
    }
}

/// One read; see [`AsyncWindows::read`].
///
/// # Panics
///
/// When it is polled after it has resolved.
#[must_use = "a future does nothing unless it is polled"]
pub struct Reading(ReadOn<SendEndpointZeroCopy>);

impl Reading {
    /// Whether it was posted: from then on, dropping this does not take the read back.
    pub fn is_posted(&self) -> bool {
        self.0.is_posted()
    }
}

impl Future for Reading {
    type Output = Result<Destination, Failed<Destination>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx)
    }
}

impl fmt::Debug for Reading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reading")
            .field("is_posted", &self.is_posted())
            .finish_non_exhaustive()
    }
}
