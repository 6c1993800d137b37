//! `DuplexEndpoint`: connections of either kind, made or accepted, on which both sides send.
//!
//! A thin handle over [`Hub`]: what a stream needs beside a send and a receive endpoint, in one
//! direction each. A side listens, or it does not; either may dial, and from then on there is no
//! difference between the two. Not public: what is sent here is a protocol of ours.

#[cfg(test)]
#[path = "duplex/testing/faults.rs"]
pub(crate) mod faults;

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::Error;
use crate::buffer::{HeaderSlotConfig, HeaderSlotManager, Payload, SharedBufferManager};
use crate::clock::Clock;
use crate::endpoint::error::{Refused, WindowError};
use crate::endpoint::event::{DeadlinePolicy, Inject, Level, Packing, ReceiveEvent};
use crate::endpoint::hub::in_flight_max::InFlightMax;
use crate::endpoint::hub::{Hub, HubSettings, OutboundSettings, WindowSettings};
use crate::endpoint::limits::{self, LIVENESS_DEFAULT};
#[cfg(test)]
use crate::endpoint::link::Link;
use crate::endpoint::link::fd_limit;
use crate::endpoint::link::provider::ProviderLink;
use crate::endpoint::link::rdm_hello::HELLO_MESSAGE_MAX;
use crate::endpoint::link::socket::TcpWatch;
use crate::endpoint::link::wait::LinkWait;
use crate::endpoint::long_messages::LongMessages;
use crate::endpoint::windows::volatile_buffer::VolatileBuffer;
use crate::endpoint::windows::window::{LocalWindow, RemoteWindow, WindowPlace};
use crate::event_loop::{WaitHandle, Waitable};
use crate::fabric::{Domain, EndpointKind, EndpointSettings, PeerAddr};
use crate::id::ConnectionId;
use crate::memory::Access;
use crate::metrics::WatchedKind;
use crate::metrics::registry::WatchedAs;
use crate::process::Here;
use crate::protocol::connection::{CloseReason, Form};
use crate::protocol::liveness::LivenessTimeouts;
use crate::protocol::wire::{HeaderMode, WindowDescriptor};

/// What a duplex endpoint is over: in this crate's own tests, a net in memory will do, too.
#[cfg(not(all(test, not(loom))))]
pub(crate) type DuplexLink = ProviderLink;
#[cfg(all(test, not(loom)))]
pub(crate) type DuplexLink =
    crate::endpoint::link::either::Either<ProviderLink, crate::endpoint::link::fake::FakeLink>;

/// What a duplex endpoint is opened with.
#[derive(Debug, Clone)]
pub(crate) struct DuplexConfig {
    /// Bytes of the header that every message begins with.
    pub(crate) header_len: u16,
    /// Where messages arrive; its slots have room for header and payload.
    pub(crate) pool: SharedBufferManager,
    /// Messages granted to each peer at once.
    pub(crate) credits: u32,
    /// Sends in flight on one connection.
    pub(crate) depth: u32,
    pub(crate) max_connections: u32,
    /// Of those that come from one host, if there is such a limit.
    pub(crate) max_of_host: Option<u32>,
    pub(crate) connect_timeout: Duration,
    pub(crate) close_timeout: Duration,
    /// How long a posted send may take before its connection is given up.
    pub(crate) send_deadline: Duration,
    /// How long a peer may be silent before its connection is given up.
    pub(crate) lost_after: Duration,
    /// How long a peer may take to answer a fence: memory that it could reach waits for that.
    pub(crate) fence_timeout: Duration,
    /// Windows exposed at once; with 0, none of the peers' can be used either.
    pub(crate) windows: u32,
    /// Writes into windows of peers that are in flight at once.
    pub(crate) writes: u32,
    /// Much is sent on each connection ([`TcpWatch::fill_long_ways`]), for which its socket has to
    /// be found.
    pub(crate) fill_long_ways: bool,
    /// Where messages go that are longer than a slot of the pool. With this, longer ones are sent,
    /// too, to peers that take them.
    pub(crate) long: Option<LongMessages>,
    /// What it judges deadlines by.
    pub(crate) clock: Clock,
    /// What becomes of messages that are sent.
    #[cfg(test)]
    pub(crate) faults: Option<faults::FaultConfig>,
}

impl DuplexConfig {
    /// Receives that a connection takes from the pool, at most.
    pub(crate) fn receives(kind: EndpointKind, credits: u32, windows: u32) -> u32 {
        let windows = WindowSettings {
            windows,
            ..WindowSettings::none()
        };
        windows.reserve() + OutboundSettings::grants(form(kind)) + credits
    }

    fn windows(&self) -> WindowSettings {
        WindowSettings {
            windows: self.windows,
            operations: self.writes.max(1),
            deadline: Some(self.send_deadline),
            long: self.long.is_some(),
            ..WindowSettings::none()
        }
    }

    fn headers(&self) -> Result<HeaderSlotManager, Error> {
        Ok(HeaderSlotManager::new(HeaderSlotConfig {
            slots: self.total(),
            slot_size: usize::from(self.header_len),
        })?)
    }

    fn settings(&self, headers: &HeaderSlotManager, accepts: bool) -> HubSettings {
        let silence = self.lost_after;
        let unresponsive = LIVENESS_DEFAULT
            .unresponsive
            .filter(|sooner| *sooner < silence);
        HubSettings {
            credits: self.credits,
            max_connections: self.max_connections,
            max_of_host: self.max_of_host,
            max_message: self.pool.slot_size() as u64,
            ask: false,
            accepts,
            handshake_timeout: self.connect_timeout,
            close_timeout: self.close_timeout,
            header_mode: Some(HeaderMode::Fixed(self.header_len)),
            windows: self.windows(),
            long: self.long.clone(),
            sends: Some(OutboundSettings {
                headers: headers.clone(),
                header_mode: HeaderMode::Fixed(self.header_len),
                depth: self.depth,
                total: self.total(),
                level: Level::Sent,
                shape: None,
                inject: Inject::Auto,
                packing: Packing::Off,
                // Blocks are long, and what is short is waited for.
                gather: false,
                deadline: Some(self.send_deadline),
                policy: DeadlinePolicy::FailConnection,
                staging: None,
                long: self.long.is_some(),
                on_abandoned: None,
            }),
            publishing: false,
            liveness: LivenessTimeouts {
                unresponsive,
                lost: Some(silence),
            },
            fence_timeout: self.fence_timeout,
            watch: TcpWatch {
                fill_long_ways: self.fill_long_ways,
                ..TcpWatch::default()
            },
            watched: WatchedAs::of(WatchedKind::Duplex),
        }
    }

    fn total(&self) -> u32 {
        self.depth.saturating_mul(self.max_connections)
    }
}

fn form(kind: EndpointKind) -> Form {
    match kind {
        EndpointKind::Msg => Form::Msg,
        EndpointKind::Rdm => Form::Rdm,
    }
}

/// Connections on which both sides send.
#[derive(Debug)]
pub(crate) struct DuplexEndpoint {
    core: Here<Hub<DuplexLink>>,
    local: Option<PeerAddr>,
    #[cfg(test)]
    faults: Option<faults::FaultLayer>,
}

impl DuplexEndpoint {
    /// Takes connections at an address of this machine; port 0 lets the system choose.
    pub(crate) fn listen(
        domain: &Arc<Domain>,
        addr: PeerAddr,
        config: &DuplexConfig,
    ) -> Result<Self, Error> {
        Self::open(domain, Some(addr), config)
    }

    /// Takes none, and only [dials](Self::dial).
    pub(crate) fn dialing(domain: &Arc<Domain>, config: &DuplexConfig) -> Result<Self, Error> {
        Self::open(domain, None, config)
    }

    fn open(
        domain: &Arc<Domain>,
        listen: Option<PeerAddr>,
        config: &DuplexConfig,
    ) -> Result<Self, Error> {
        domain.fabric().owner().check()?;
        fd_limit::check_listener(config.max_connections)?;
        let kind = domain.fabric().endpoint_kind();
        let slot = config.pool.slot_size();
        if kind == EndpointKind::Rdm && slot < HELLO_MESSAGE_MAX {
            let reason = "over FI_EP_RDM its slots must have 114 bytes, for hellos";
            return Err(limits::config("pool", slot.to_string(), reason));
        }
        let settings = config.settings(&config.headers()?, listen.is_some());
        let sizes = InFlightMax::of_hub(&settings, form(kind), config.pool.slots());
        let sizes = sizes.queue_sizes();
        let endpoint = EndpointSettings::default();
        let link = match &listen {
            Some(addr) => ProviderLink::listen(domain, addr, sizes, &endpoint),
            None => ProviderLink::dial(domain, sizes, &endpoint),
        };
        let link = link.map_err(fd_limit::explain)?;
        let local = listen.map(|addr| link.local_addr().unwrap_or(addr));
        let waiter = link.waiter();
        #[cfg(all(test, not(loom)))]
        let link = DuplexLink::Left(link);
        Self::assemble(link, waiter, local, config, settings)
    }

    /// Over a link that is not the provider's; `local`: where it listens, if it does.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn over(
        link: DuplexLink,
        waiter: Arc<dyn LinkWait>,
        local: Option<PeerAddr>,
        config: &DuplexConfig,
    ) -> Result<Self, Error> {
        let settings = config.settings(&config.headers()?, local.is_some());
        Self::assemble(link, waiter, local, config, settings)
    }

    /// Over a link that is open.
    fn assemble(
        link: DuplexLink,
        waiter: Arc<dyn LinkWait>,
        local: Option<PeerAddr>,
        config: &DuplexConfig,
        settings: HubSettings,
    ) -> Result<Self, Error> {
        #[cfg(test)]
        let faults = match &config.faults {
            Some(faults) => Some(faults::FaultLayer::new(faults.clone(), link.registrar())?),
            None => None,
        };
        let (clock, pool) = (config.clock.clone(), config.pool.clone());
        let core = Hub::listen(link, waiter, clock, pool, settings)?;
        Ok(Self {
            core: Here::new(core),
            local,
            #[cfg(test)]
            faults,
        })
    }

    /// Where it listens, with the real port; none where it only dials.
    pub(crate) fn local_addr(&self) -> Option<PeerAddr> {
        self.local
    }

    /// Starts to connect; `Connected` or `Disconnected` of this connection follows.
    pub(crate) fn dial(&mut self, peer: &PeerAddr) -> Result<ConnectionId, Error> {
        self.core.owner().check()?;
        self.core.dial(peer).map_err(fd_limit::explain)
    }

    /// Posts one message, or gives everything back.
    pub(crate) fn send(
        &mut self,
        connection: ConnectionId,
        payload: Payload,
        header: &[u8],
        key: u64,
    ) -> Result<(), Refused<Payload>> {
        #[cfg(test)]
        if let Some(layer) = &mut self.faults {
            return layer.send(&mut self.core, connection, payload, header, key);
        }
        self.core.send_data(connection, payload, header, key)
    }

    /// Lets the peer of a connection write this memory until the connection is over, or the handle
    /// is dropped.
    pub(crate) fn expose(
        &mut self,
        connection: ConnectionId,
        memory: Arc<VolatileBuffer>,
    ) -> Result<LocalWindow, WindowError> {
        self.check_here()?;
        let exposed = self.core.expose(connection, memory.into(), Access::WRITE);
        exposed.map_err(|refused| refused.kind)
    }

    /// A window of the peer of this connection, from the bytes that it sent.
    pub(crate) fn open_window(
        &self,
        connection: ConnectionId,
        descriptor: &WindowDescriptor,
    ) -> Result<RemoteWindow, WindowError> {
        self.check_here()?;
        self.core.open_window(connection, descriptor)
    }

    /// Posts one write, or gives everything back. It is over when the bytes are in the peer's
    /// memory.
    pub(crate) fn write(
        &mut self,
        payload: Payload,
        place: WindowPlace<'_>,
        key: u64,
    ) -> Result<(), Refused<Payload>> {
        match self.check_here() {
            Ok(()) => self.core.write(payload, place, None, Level::Delivered, key),
            Err(kind) => Err(Refused::new(kind, payload, key)),
        }
    }

    /// Whether this side, and the provider, can write so many bytes at once into a peer's window.
    pub(crate) fn can_write(&self, bytes: u64) -> bool {
        let longest = self.core.longest_write();
        longest.is_some_and(|longest| longest >= bytes)
    }

    fn check_here(&self) -> Result<(), WindowError> {
        Ok(self.core.owner().check()?)
    }

    /// Drives all connections, and appends what happened.
    pub(crate) fn poll(&mut self, events: &mut Vec<ReceiveEvent>) -> Result<(), Error> {
        self.core.owner().check()?;
        #[cfg(test)]
        if let Some(layer) = &mut self.faults {
            return layer.poll(&mut self.core, events);
        }
        self.core.poll(events)
    }

    /// Begins the polite close of a connection: what was sent arrives. False: there is no such
    /// connection.
    pub(crate) fn close_connection(&mut self, id: ConnectionId, deadline: Instant) -> bool {
        self.core.begin_close(id, deadline)
    }

    /// Ends a connection at once: what is in flight comes back failed.
    pub(crate) fn abort_connection(&mut self, id: ConnectionId) {
        self.core.abort_connection(id, CloseReason::ClosedLocally);
    }

    /// Closes every connection politely; what happened meanwhile.
    pub(crate) fn close(mut self, deadline: Instant) -> Result<Vec<ReceiveEvent>, Error> {
        self.core.owner().check()?;
        self.core.close(deadline)
    }

    /// When it wants to be polled, whatever happens.
    #[cfg(test)]
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        use crate::event_loop::WaitSource;
        self.core.wait().next_deadline()
    }

    /// Connections that are open, or being made.
    pub(crate) fn connections(&self) -> usize {
        self.core.connections()
    }
}

impl Waitable for DuplexEndpoint {
    fn wait_handle(&self) -> WaitHandle {
        WaitHandle::new(self.core.wait())
    }
}

#[cfg(all(test, not(loom)))]
#[path = "tests/duplex.rs"]
mod tests;
