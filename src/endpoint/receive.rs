//! `ReceiveEndpoint`: listens, and receives from every peer that connects.

#![allow(unsafe_code)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use libfabric_sys as sys;

use crate::Error;
use crate::buffer::{Payload, SharedBufferManager};
use crate::clock::Clock;
use crate::endpoint::core::conn_table::CONNECTIONS_MAX;
use crate::endpoint::core::in_flight_max::InFlightMax;
use crate::endpoint::delivery::{Deliveries, DeviceDelivery, receive_pool};
use crate::endpoint::error::{ReadError, SendError, WindowError};
use crate::endpoint::event::{ConnectionRequest, DeadlinePolicy, Level, ReceiveEvent};
use crate::endpoint::hub::{Hub, HubSettings, WindowSettings};
use crate::endpoint::id::ConnectionId;
use crate::endpoint::limits::{
    self, PATIENCE, check_count, check_deadline, check_patience, check_size, check_timeout,
    check_windows, config,
};
use crate::endpoint::link::fd_limit;
use crate::endpoint::link::provider::ProviderLink;
use crate::endpoint::link::rdm_hello::HELLO_MESSAGE_MAX;
use crate::endpoint::link::socket::{Keepalive, TcpWatch};
use crate::endpoint::long_messages::LongMessages;
use crate::endpoint::protocol::connection::Form;
use crate::endpoint::protocol::liveness::Patience;
use crate::endpoint::protocol::wire::WindowDescriptor;
use crate::endpoint::protocol::wire::{
    HeaderMode, Refusal, RefusalCode, SHORT_DEPTH_MAX, SHORT_INDEX_MASK,
};
use crate::endpoint::staging::StagingRing;
use crate::endpoint::windows::destination::Destination;
use crate::endpoint::windows::window::{
    ExposeError, LocalWindow, RemoteWindow, WindowMemory, WindowPlace,
};
use crate::event_loop::{WaitHandle, Waitable};
use crate::fabric::{Domain, EndpointKind, EndpointSettings, PeerAddr};
use crate::memory::Access;
use crate::process::Here;
use crate::stats::ReceiveStats;

/// Who decides about connection requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum AcceptPolicy {
    /// Every peer that speaks our protocol is accepted, within the limits.
    #[default]
    All,
    /// The application is asked, by [`ReceiveEvent::Request`]; a request that is not answered
    /// within the handshake timeout is refused.
    Ask,
}

/// The settings of a [`ReceiveEndpoint`].
///
/// | setting | unit | default | range |
/// |---|---|---|---|
/// | `max_message` | bytes of the largest message, header included | 65,536 | 64 to 1 GiB |
/// | `slots` | buffers of the receive pool | 256 | 3 × `max_connections` to 1,048,576 |
/// | `depth` | messages granted to each peer at once | 32 | 1 to 65,536 |
/// | `max_connections` | connections at once | 64 | 1 to 65,536 |
/// | `accept` | | `All` | |
/// | `handshake_timeout` | time | 5 s | 1 ms to 1 h |
/// | `close_timeout` | time | 5 s | 1 ms to 1 h |
/// | `header_mode` | what peers must use | any | |
/// | `long_messages` | a pool for messages above `max_message` | none | see [`LongMessages`] |
/// | `windows` | windows exposed at once | 0 | 0 to 65,536 |
/// | `operations` | one-sided operations in flight | 64 | 1 to 65,536 |
/// | `staging` | a ring for one-sided operations on a GPU's memory | none | see [`StagingRing`] |
/// | `operation_deadline` | time | 30 s | 1 ms to 24 h, or none |
/// | `operation_deadline_policy` | | `FailConnection` | |
/// | `unresponsive_after` | time | 5 s | 10 ms to 1 h, or none |
/// | `lost_after` | time | 60 s | 10 ms to 24 h and above `unresponsive_after`, or none |
/// | `keepalive` | | none | see [`Keepalive`] |
/// | `tcp_user_timeout` | time | the system's | 1 ms to 24 h |
/// | `endpoint` | | the provider's own | see [`EndpointSettings`] |
///
/// The pool takes `slots × max_message` bytes. Each connection keeps two receives posted beyond its
/// depth: so a dead peer is noticed while all messages are held. With windows, it keeps three more
/// for what peers say about them.
#[derive(Debug, Clone)]
pub struct ReceiveConfig {
    max_message: usize,
    slots: u32,
    depth: u32,
    max_connections: u32,
    accept: AcceptPolicy,
    handshake_timeout: Duration,
    close_timeout: Duration,
    header_mode: Option<HeaderMode>,
    pool: Option<SharedBufferManager>,
    long: Option<LongMessages>,
    windows: WindowSettings,
    endpoint: EndpointSettings,
    patience: Patience,
    watch: TcpWatch,
    delivery: Option<DeviceDelivery>,
    staging: Option<StagingRing>,
}

impl Default for ReceiveConfig {
    fn default() -> Self {
        Self {
            max_message: 64 * 1024,
            slots: 256,
            depth: 32,
            max_connections: 64,
            accept: AcceptPolicy::All,
            handshake_timeout: Duration::from_secs(5),
            close_timeout: Duration::from_secs(5),
            header_mode: None,
            pool: None,
            long: None,
            windows: WindowSettings {
                windows: 0,
                operations: 64,
                deadline: Some(Duration::from_secs(30)),
                policy: DeadlinePolicy::FailConnection,
                long: false,
            },
            endpoint: EndpointSettings::default(),
            patience: PATIENCE,
            watch: TcpWatch::default(),
            delivery: None,
            staging: None,
        }
    }
}

impl ReceiveConfig {
    /// Bytes of the largest message, header included. Peers learn it when they connect.
    #[must_use]
    pub fn max_message(mut self, bytes: usize) -> Self {
        self.max_message = bytes;
        self
    }

    /// Buffers of the receive pool, which all connections share.
    #[must_use]
    pub fn slots(mut self, slots: u32) -> Self {
        self.slots = slots;
        self
    }

    /// A pool of the caller's instead: `max_message` and `slots` are its own. It must not be used
    /// for anything else.
    #[must_use]
    pub fn pool(mut self, pool: &SharedBufferManager) -> Self {
        self.pool = Some(pool.clone());
        self
    }

    /// Messages that each peer may send ahead: its credits.
    #[must_use]
    pub fn depth(mut self, messages: u32) -> Self {
        self.depth = messages;
        self
    }

    /// Connections at once; one more is refused.
    #[must_use]
    pub fn max_connections(mut self, connections: u32) -> Self {
        self.max_connections = connections;
        self
    }

    /// Who decides about connection requests.
    #[must_use]
    pub fn accept(mut self, policy: AcceptPolicy) -> Self {
        self.accept = policy;
        self
    }

    /// How long a peer may take from its first byte to an established connection.
    #[must_use]
    pub fn handshake_timeout(mut self, timeout: Duration) -> Self {
        self.handshake_timeout = timeout;
        self
    }

    /// How long the goodbye may take when the peer begins it.
    #[must_use]
    pub fn close_timeout(mut self, timeout: Duration) -> Self {
        self.close_timeout = timeout;
        self
    }

    /// Refuse peers whose header mode is another.
    #[must_use]
    pub fn header_mode(mut self, mode: HeaderMode) -> Self {
        self.header_mode = Some(mode);
        self
    }

    /// Takes messages that are longer than `max_message`, too: each goes straight into a slot of
    /// this pool, by one-sided operations of its sender, and comes as one
    /// [`Message`](crate::endpoint::Message). Peers whose messages are longer than its slots are
    /// told so. Where the provider has no one-sided operations, it has no effect.
    #[must_use]
    pub fn long_messages(mut self, long: LongMessages) -> Self {
        self.windows.long = true;
        self.long = Some(long);
        self
    }

    /// Copies the payloads of messages to a GPU's memory: they come as
    /// [`ReceiveEvent::DeviceMessage`]. The buffers must have room for the largest message. The
    /// pool is pinned then, for fast copies; one of the caller's should lie in a [pinned
    /// region](crate::Region::pinned).
    #[must_use]
    pub fn deliver_to(mut self, delivery: DeviceDelivery) -> Self {
        self.delivery = Some(delivery);
        self
    }

    /// Windows that this side may expose at once, all connections together. Above 0, peers and this
    /// side can also use the windows of the other; each connection then keeps three more buffers of
    /// the pool.
    #[must_use]
    pub fn windows(mut self, windows: u32) -> Self {
        self.windows.windows = windows;
        self
    }

    /// One-sided operations of this side on memory of a GPU go by way of this ring, where the
    /// fabric takes none; endpoints may share one. Without it they are refused. Messages are
    /// received into a GPU's memory by [`deliver_to`](Self::deliver_to).
    #[must_use]
    pub fn staging(mut self, ring: &StagingRing) -> Self {
        self.staging = Some(ring.clone());
        self
    }

    /// One-sided operations of this side in flight at once, all connections together.
    #[must_use]
    pub fn operations(mut self, operations: u32) -> Self {
        self.windows.operations = operations;
        self
    }

    /// How long a one-sided operation of this side may take; `None` waits for ever.
    #[must_use]
    pub fn operation_deadline(mut self, deadline: Option<Duration>) -> Self {
        self.windows.deadline = deadline;
        self
    }

    /// What happens when one takes longer.
    #[must_use]
    pub fn operation_deadline_policy(mut self, policy: DeadlinePolicy) -> Self {
        self.windows.policy = policy;
        self
    }

    fn check_windows(&self) -> Result<(), Error> {
        check_windows(self.windows.windows)?;
        let reason = "must be 1 to 65536 operations";
        check_count("operations", self.windows.operations, 65_536, reason)?;
        if let Some(long) = &self.long {
            long.check()?;
        }
        check_deadline("operation_deadline", self.windows.deadline)
    }

    /// Buffers that a connection takes at least.
    fn receives_min(&self) -> u32 {
        self.windows.reserve() + 1
    }

    /// Reports a peer of which nothing was heard for so long as
    /// [`Unresponsive`](ReceiveEvent::Unresponsive); nothing else follows. A silent peer is asked
    /// for a sign of life well before; every byte from it is one.
    #[must_use]
    pub fn unresponsive_after(mut self, silence: Option<Duration>) -> Self {
        self.patience.unresponsive = silence;
        self
    }

    /// Closes a connection when nothing was heard from its peer for so long
    /// ([`CloseReason::PeerSilent`](crate::endpoint::CloseReason::PeerSilent)). A peer whose
    /// application polls less often than this is lost although it lives. Over FI_EP_RDM also when a
    /// message is known to have been sent and has not come for so long
    /// ([`CloseReason::MessageLost`](crate::endpoint::CloseReason::MessageLost)).
    #[must_use]
    pub fn lost_after(mut self, silence: Option<Duration>) -> Self {
        self.patience.lost = silence;
        self
    }

    /// Has the kernel probe idle connections, and close those where nothing answers: works while
    /// the peer's application is busy. TCP only; `ConnectionInfo::kernel_watch` says whether it
    /// does.
    #[must_use]
    pub fn keepalive(mut self, keepalive: Option<Keepalive>) -> Self {
        self.watch.keepalive = keepalive;
        self
    }

    /// Has the kernel close a connection when what it sent there is not acknowledged for so long
    /// (`TCP_USER_TIMEOUT`, tcp(7)). TCP only; `ConnectionInfo::kernel_watch` says whether it does.
    #[must_use]
    pub fn tcp_user_timeout(mut self, timeout: Option<Duration>) -> Self {
        self.watch.user_timeout = timeout;
        self
    }

    /// What each connection asks of the provider: queue sizes, segments, traffic class.
    #[must_use]
    pub fn endpoint(mut self, settings: EndpointSettings) -> Self {
        self.endpoint = settings;
        self
    }

    /// Messages that say in 4 bytes of CQ data whose they are and which one (docs/wire.md, short
    /// marks).
    fn check_short_marks(&self) -> Result<(), Error> {
        if self.depth > SHORT_DEPTH_MAX {
            let reason = "must be at most 4096 messages, as the provider has 4 bytes of CQ data";
            return Err(config("depth", self.depth.to_string(), reason));
        }
        if self.max_connections > SHORT_INDEX_MASK - 1 {
            let reason = "must be at most 32766, as the provider has 4 bytes of CQ data";
            return Err(config(
                "max_connections",
                self.max_connections.to_string(),
                reason,
            ));
        }
        Ok(())
    }

    fn check_delivery(&self) -> Result<(), Error> {
        let Some(delivery) = &self.delivery else {
            return Ok(());
        };
        let landing = self.long.as_ref().and_then(|long| long.device.as_ref());
        if landing.is_some_and(|pool| delivery.is_to(pool)) {
            let reason = "must be other buffers than those where long messages land";
            return Err(config("deliver_to", "the same pool".to_owned(), reason));
        }
        let pool = self.pool.as_ref().map(SharedBufferManager::slot_size);
        let long = self.long.as_ref().map_or(0, LongMessages::host_limit);
        let largest = pool.unwrap_or(self.max_message).max(long);
        delivery.check(largest)
    }

    fn check(&self) -> Result<(), Error> {
        self.check_windows()?;
        self.check_delivery()?;
        let Self {
            max_message,
            slots,
            depth,
            max_connections,
            ..
        } = *self;
        check_size("max_message", max_message)?;
        check_count("depth", depth, 65_536, "must be 1 to 65536 messages")?;
        let reason = "must be 1 to 65536";
        check_count("max_connections", max_connections, CONNECTIONS_MAX, reason)?;
        let slots = self
            .pool
            .as_ref()
            .map_or(slots as usize, SharedBufferManager::slots);
        if slots < (self.receives_min() * max_connections) as usize || slots > 1 << 20 {
            let reason = if self.windows.enabled() {
                "must be 6 for each of max_connections, as there are windows, to 1048576"
            } else {
                "must be 3 for each of max_connections, to 1048576"
            };
            return Err(config("slots", slots.to_string(), reason));
        }
        check_timeout("handshake_timeout", self.handshake_timeout)?;
        check_patience(&self.patience)?;
        self.watch.check()?;
        check_timeout("close_timeout", self.close_timeout)
    }
}

/// Listens, and receives from every peer that connects.
///
/// All connections share one pool of registered buffers and one queue: one [`poll`](Self::poll)
/// serves them all, and its events say which connection they are about. A received
/// [`Message`](crate::endpoint::Message) is owned: keep it, or drop it on any thread. See
/// [`SendEndpointZeroCopy`](crate::SendEndpointZeroCopy) for an example of both.
#[derive(Debug)]
pub struct ReceiveEndpoint {
    core: Here<Hub<ProviderLink>>,
    local: PeerAddr,
    /// Behind the core: nothing arrives any more when it goes.
    deliveries: Option<Box<Deliveries<ReceiveEvent>>>,
}

impl ReceiveEndpoint {
    /// Listens at an address of this machine. Port 0 and [`PeerAddr::any`] let the system choose;
    /// [`local_addr`](Self::local_addr) says which it is.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] for a setting out of its range, [`Error::Address`] for one that is not
    /// local or in use, [`Error::TooFewDescriptors`] when the process may not open two for each of
    /// `max_connections`, [`Error::Memory`] and [`Error::Register`] for the pool.
    pub fn listen(
        domain: &Arc<Domain>,
        addr: PeerAddr,
        config: ReceiveConfig,
    ) -> Result<Self, Error> {
        config.check()?;
        domain.fabric().owner().check()?;
        fd_limit::check_listener(config.max_connections)?;
        if domain.fabric().has_short_cq_data() {
            config.check_short_marks()?;
        }
        // Over FI_EP_RDM a hello takes whichever receive is next.
        let (form, slot_min) = match domain.fabric().endpoint_kind() {
            EndpointKind::Msg => (Form::Msg, 0),
            EndpointKind::Rdm => (Form::Rdm, HELLO_MESSAGE_MAX),
        };
        let (pool, max_message) = match &config.pool {
            Some(pool) => (pool.clone(), pool.slot_size()),
            None => {
                let slot_size = config.max_message.max(slot_min);
                let pool = receive_pool(config.delivery.as_ref(), config.slots, slot_size)?;
                let max_message = config.max_message.min(pool.slot_size());
                (pool, max_message)
            }
        };
        if pool.slot_size() < slot_min {
            let reason = "over FI_EP_RDM its slots must have 114 bytes, for hellos";
            return Err(limits::config("pool", pool.slot_size().to_string(), reason));
        }
        let settings = HubSettings {
            depth: config.depth,
            max_connections: config.max_connections,
            max_message: max_message as u64,
            ask: config.accept == AcceptPolicy::Ask,

            accepts: true,
            handshake_timeout: config.handshake_timeout,
            close_timeout: config.close_timeout,
            header_mode: config.header_mode,
            windows: config.windows,
            long: config.long,
            sends: None,
            publishing: false,
            patience: config.patience,
            watch: config.watch,
        };
        let sizes = InFlightMax::of_receiver(&settings, form, pool.slots()).queue_sizes();
        let link = ProviderLink::listen(domain, &addr, sizes, &config.endpoint)?;
        let local = link.local_addr().unwrap_or(addr);
        let deliveries = config.delivery.map(Deliveries::new).transpose()?;
        let waiter = link.waiter();
        let mut core = Hub::listen(link, waiter, Clock::system(), pool, settings)?;
        if let Some(ring) = &config.staging {
            ring.register(domain)?;
            core.stage_in(ring);
        }
        Ok(Self {
            core: Here::new(core),
            local,
            deliveries: deliveries.map(Box::new),
        })
    }

    /// Where it listens, with the real port.
    pub fn local_addr(&self) -> PeerAddr {
        self.local
    }

    /// Drives all connections, and appends what happened. Returns how many events were added.
    ///
    /// One call does a bounded amount of work, however fast peers send; what is left makes the
    /// endpoint ready again at once.
    ///
    /// # Errors
    ///
    /// [`Error::EndpointFailed`] when a queue of the endpoint broke, or reported what can't be:
    /// every connection was closed then, which the events say, and requests are refused.
    /// [`Error::Forked`]. What concerns one connection is an event.
    pub fn poll(&mut self, events: &mut Vec<ReceiveEvent>) -> Result<usize, Error> {
        self.core.owner().check()?;
        let before = events.len();
        let polled = self.core.poll(events);
        if let Some(deliveries) = &mut self.deliveries {
            deliveries.pass(events, before);
            let next = deliveries.next_look(self.core.clock());
            self.core.set_layer_deadline(next);
        }
        polled?;
        Ok(events.len() - before)
    }

    /// Sleeps until there may be something to poll for, or until the time given.
    ///
    /// # Errors
    ///
    /// A system call failed.
    pub fn wait(&self, timeout: Duration) -> Result<(), Error> {
        self.core.owner().check()?;
        self.core
            .wait()
            .sleep(limits::moment_in(self.core.clock(), timeout))
    }

    /// Writes a payload into a window of a peer. Returns at once;
    /// [`WindowEvent::Written`](crate::endpoint::WindowEvent::Written) says that it is in the
    /// peer's memory, [`WindowEvent::WriteFailed`](crate::endpoint::WindowEvent::WriteFailed) that
    /// it may not be.
    ///
    /// The payload is registered memory, as for
    /// [`SendEndpointZeroCopy::send_data`](crate::SendEndpointZeroCopy::send_data); it moves in,
    /// and comes back with the outcome. `place` is a [`RemoteWindow`], or a place in it
    /// ([`RemoteWindow::at`]). `key` is the caller's own. The completion is the peer's answer
    /// (`FI_DELIVERY_COMPLETE`): without it, providers report success for a write that the peer's
    /// rights forbid.
    ///
    /// The payload may lie in a GPU's memory, and may be written [after](Payload::after) an event.
    /// What the provider can't read goes through the endpoint's [`StagingRing`]: in one piece up to
    /// the size of a slot, in several above that. One-sided operations on a connection are posted
    /// in the order in which they were given: those behind one that waits for an event or a copy
    /// wait, too. Messages have an order of their own: who tells the peer of a write by a message
    /// sends that when the write is done.
    ///
    /// # Errors
    ///
    /// Nothing was posted, and payload and key are in the error: back-pressure, or what
    /// [`SendErrorKind::Window`](crate::endpoint::SendErrorKind::Window) says of the window. What
    /// this side can't know, such as a key that is not good any more, fails the operation and ends
    /// the connection.
    pub fn write<'a>(
        &mut self,
        payload: impl Into<Payload>,
        place: impl Into<WindowPlace<'a>>,
        key: u64,
    ) -> Result<(), SendError> {
        self.write_at(payload.into(), place.into(), None, Level::Delivered, key)
    }

    /// As [`write`](Self::write), and tells the peer: it hears of it by
    /// [`WindowEvent::PeerWrote`](crate::endpoint::WindowEvent::PeerWrote) with `data`, when all of
    /// the payload is in its memory. It uses a credit, as a message does.
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write); [`WindowError::NoImmediateData`] where the provider's immediate
    /// data are too short for it.
    pub fn write_with_data<'a>(
        &mut self,
        payload: impl Into<Payload>,
        place: impl Into<WindowPlace<'a>>,
        data: u32,
        key: u64,
    ) -> Result<(), SendError> {
        self.write_at(
            payload.into(),
            place.into(),
            Some(data),
            Level::Delivered,
            key,
        )
    }

    /// As [`write`](Self::write), but
    /// [`WindowEvent::Written`](crate::endpoint::WindowEvent::Written) says only that the payload
    /// may be reused (level [`Sent`](Level::Sent)). **It comes for writes that never reach the
    /// peer's memory, too**: tcp reports success for a write that the peer refuses, and ends the
    /// connection afterwards. For those who hear of arrival by other means.
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write).
    pub fn write_unconfirmed<'a>(
        &mut self,
        payload: impl Into<Payload>,
        place: impl Into<WindowPlace<'a>>,
        key: u64,
    ) -> Result<(), SendError> {
        self.write_at(payload.into(), place.into(), None, Level::Sent, key)
    }

    /// Reads from a window of a peer into registered memory: as many bytes as the destination has.
    /// Returns at once; [`WindowEvent::Read`](crate::endpoint::WindowEvent::Read) brings the
    /// destination back, filled. That may be memory of a GPU: see [`Destination`].
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write), with the destination in the error.
    pub fn read<'a>(
        &mut self,
        into: impl Into<Destination>,
        place: impl Into<WindowPlace<'a>>,
        key: u64,
    ) -> Result<(), ReadError> {
        let into = into.into();
        match self.check_here() {
            Ok(()) => self.core.read(into, place.into(), key),
            Err(error) => Err(ReadError {
                kind: error.into(),
                into,
                key,
            }),
        }
    }

    fn write_at(
        &mut self,
        payload: Payload,
        place: WindowPlace<'_>,
        data: Option<u32>,
        level: Level,
        key: u64,
    ) -> Result<(), SendError> {
        match self.check_here() {
            Ok(()) => self.core.write(payload, place, data, level, key),
            Err(error) => Err(SendError {
                kind: error.into(),
                payload,
                key,
            }),
        }
    }

    /// A child of the process that made the endpoint must not use what it has.
    fn check_here(&self) -> Result<(), WindowError> {
        let owner = self.core.owner();
        if owner.is_here() {
            return Ok(());
        }
        let made_by = owner.pid();
        Err(WindowError::Forked { made_by })
    }

    /// A window of a connection's peer, by the descriptor that it sent.
    ///
    /// # Errors
    ///
    /// [`WindowError`]: it is another connection's, it was revoked, or one of the two sides has no
    /// windows.
    pub fn open_window(
        &self,
        connection: ConnectionId,
        descriptor: &WindowDescriptor,
    ) -> Result<RemoteWindow, WindowError> {
        self.check_here()?;
        self.core.open_window(connection, descriptor)
    }

    /// Lets the peer of a connection use memory of this side, with these rights. The memory is the
    /// endpoint's until nobody can reach it any more: see [`LocalWindow`]. The peer needs the
    /// window's [descriptor](LocalWindow::descriptor).
    ///
    /// # Errors
    ///
    /// [`ExposeError`], with the memory in it; [`WindowError::TooManyWindows`] without
    /// [`ReceiveConfig::windows`].
    pub fn expose(
        &mut self,
        connection: ConnectionId,
        memory: impl Into<WindowMemory>,
        access: Access,
    ) -> Result<LocalWindow, ExposeError> {
        let memory = memory.into();
        match self.check_here() {
            Ok(()) => self.core.expose(connection, memory, access),
            Err(kind) => Err(ExposeError { kind, memory }),
        }
    }

    /// Takes a window back: the peer is told not to use it, ends what it has in flight, and
    /// confirms. Then [`WindowEvent::Released`](crate::endpoint::WindowEvent::Released) brings the
    /// memory back. A peer that has not confirmed at the deadline loses the connection, whose end
    /// releases the memory, too. False: there is nothing to take back, its memory came back
    /// already.
    pub fn revoke(&mut self, window: LocalWindow, deadline: Instant) -> bool {
        self.check_here().is_ok() && self.core.revoke(window, deadline)
    }

    /// Windows that this side exposes, those not given back yet included.
    pub fn windows(&self) -> usize {
        self.core.windows()
    }

    /// Accepts a request ([`AcceptPolicy::Ask`]). False: it is gone.
    pub fn accept(&mut self, request: ConnectionRequest, events: &mut Vec<ReceiveEvent>) -> bool {
        self.core.owner().is_here() && self.core.answer(request.connection, None, events)
    }

    /// Refuses a request; the peer is told so, with two numbers of the application's own. False: it
    /// is gone.
    pub fn refuse(&mut self, request: ConnectionRequest, details: [u64; 2]) -> bool {
        let refusal = Refusal::new(RefusalCode::BY_APPLICATION, details);
        let core = &mut self.core;
        core.owner().is_here() && core.answer(request.connection, Some(refusal), &mut Vec::new())
    }

    /// Begins the polite close of one connection: the peer stops, and what it has sent arrives.
    /// False: there is no such connection.
    pub fn close_connection(&mut self, connection: ConnectionId, deadline: Instant) -> bool {
        self.core.owner().is_here() && self.core.begin_close(connection, deadline)
    }

    /// Begins the polite close of every connection and returns at once: whoever asks for a
    /// connection is refused from now on, and what the peers have sent still arrives. Done when
    /// [`connections`](Self::connections) is 0.
    pub fn begin_close(&mut self, deadline: Instant) {
        self.core.begin_close_all(deadline);
    }

    /// Closes every connection politely, and stops listening. Returns what arrived meanwhile,
    /// messages included.
    ///
    /// # Errors
    ///
    /// A system call failed.
    pub fn close(mut self, deadline: Instant) -> Result<Vec<ReceiveEvent>, Error> {
        self.core.owner().check()?;
        let mut events = self.core.close(deadline)?;
        if let Some(deliveries) = self.deliveries {
            deliveries.finish(&mut events, self.core.clock(), deadline);
        }
        Ok(events)
    }

    /// Connections open now.
    pub fn connections(&self) -> usize {
        self.core.connections()
    }

    /// The receive pool, with its counters. Register its region with a domain to send messages on
    /// without a copy.
    pub fn pool(&self) -> &SharedBufferManager {
        self.core.pool()
    }

    /// Counters.
    pub fn stats(&self) -> ReceiveStats {
        self.core.stats()
    }

    /// The raw `fid_ep` of a connection; `None` when there is no such connection, and while the
    /// provider looks for its peer.
    ///
    /// # Safety
    ///
    /// * It is valid until the next call of a method with `&mut self`, and until this value is
    ///   dropped.
    /// * It must not be closed, and nothing may be posted on it whose completion this endpoint
    ///   would read.
    pub unsafe fn as_raw(&self, connection: ConnectionId) -> Option<*mut sys::fid_ep> {
        self.core.conn(connection).and_then(|conn| conn.as_raw())
    }
}

impl Waitable for ReceiveEndpoint {
    fn wait_handle(&self) -> WaitHandle {
        WaitHandle::new(self.core.wait())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::endpoint::documented_settings::{Setting, compare};

    #[test]
    fn the_table_of_settings_is_what_the_code_does() {
        let settings: &[Setting<ReceiveConfig>] = &[
            Setting {
                name: "max_message",
                get: |c| c.max_message.into(),
                set: |c, v| c.max_message(v.bytes()),
            },
            Setting {
                name: "slots",
                get: |c| c.slots.into(),
                set: |c, v| c.slots(v.count()),
            },
            Setting {
                name: "depth",
                get: |c| c.depth.into(),
                set: |c, v| c.depth(v.count()),
            },
            Setting {
                name: "max_connections",
                get: |c| c.max_connections.into(),
                set: |c, v| c.slots(1 << 20).max_connections(v.count()),
            },
            Setting {
                name: "handshake_timeout",
                get: |c| c.handshake_timeout.into(),
                set: |c, v| c.handshake_timeout(v.time()),
            },
            Setting {
                name: "close_timeout",
                get: |c| c.close_timeout.into(),
                set: |c, v| c.close_timeout(v.time()),
            },
            Setting {
                name: "windows",
                get: |c| c.windows.windows.into(),
                set: |c, v| c.slots(1 << 20).windows(v.count()),
            },
            Setting {
                name: "operations",
                get: |c| c.windows.operations.into(),
                set: |c, v| c.operations(v.count()),
            },
            Setting {
                name: "operation_deadline",
                get: |c| c.windows.deadline.into(),
                set: |c, v| c.operation_deadline(v.limit()),
            },
            Setting {
                name: "unresponsive_after",
                get: |c| c.patience.unresponsive.into(),
                set: |c, v| c.lost_after(None).unresponsive_after(v.limit()),
            },
            Setting {
                name: "lost_after",
                get: |c| c.patience.lost.into(),
                set: |c, v| c.unresponsive_after(None).lost_after(v.limit()),
            },
            Setting {
                name: "tcp_user_timeout",
                get: |c| c.watch.user_timeout.into(),
                set: |c, v| c.tcp_user_timeout(v.limit()),
            },
        ];
        compare(
            include_str!("receive.rs"),
            "ReceiveConfig",
            settings,
            ReceiveConfig::check,
        );
    }
}
