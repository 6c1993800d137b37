//! `ReceiveEndpoint`: listens, and receives from every peer that connects.

#![allow(unsafe_code)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use libfabric_sys as sys;

use crate::Error;
use crate::buffer::SharedBufferManager;
use crate::endpoint::conn_table::CONNECTIONS_MAX;
use crate::endpoint::control::CONTROL_SENDS;
use crate::endpoint::event::{ConnectionRequest, ReceiveEvent};
use crate::endpoint::id::ConnectionId;
use crate::endpoint::liveness::Patience;
use crate::endpoint::provider_link::ProviderLink;
use crate::endpoint::rdm_hello::HELLO_MESSAGE_MAX;
use crate::endpoint::receive_core::{
    CONTROLS_PER_CONNECTION, RECEIVES_MIN, RESERVE, ReceiveCore, ReceiveSettings,
};
use crate::endpoint::send::{PATIENCE, check_patience, check_timeout, config};
use crate::endpoint::socket::{Keepalive, TcpWatch};
use crate::endpoint::wire::{HeaderMode, Refusal, RefusalCode};
use crate::event_loop::{WaitHandle, Waitable};
use crate::fabric::{Domain, EndpointKind, EndpointSettings, PeerAddr};
use crate::process::Here;
use crate::stats::ReceiveStats;

/// Who decides about connection requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum AcceptPolicy {
    /// Every peer that speaks our protocol is accepted, within the limits.
    #[default]
    All,
    /// The application is asked, by [`ReceiveEvent::Request`]; a request that is not answered within the handshake
    /// timeout is refused.
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
/// | `unresponsive_after` | time | 5 s | 10 ms to 1 h, or none |
/// | `lost_after` | time | 60 s | 10 ms to 24 h and above `unresponsive_after`, or none |
/// | `keepalive` | | none | see [`Keepalive`] |
/// | `tcp_user_timeout` | time | the system's | 1 ms to 24 h |
/// | `endpoint` | | the provider's own | see [`EndpointSettings`] |
///
/// The pool takes `slots × max_message` bytes. Each connection keeps two receives posted beyond its depth: so a dead
/// peer is noticed while all messages are held.
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
    endpoint: EndpointSettings,
    patience: Patience,
    watch: TcpWatch,
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
            endpoint: EndpointSettings::default(),
            patience: PATIENCE,
            watch: TcpWatch::default(),
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

    /// A pool of the caller's instead: `max_message` and `slots` are its own. It must not be used for anything else.
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

    /// Reports a peer of which nothing was heard for so long as [`Unresponsive`](ReceiveEvent::Unresponsive); nothing else
    /// follows. A silent peer is asked for a sign of life well before; every byte from it is one.
    #[must_use]
    pub fn unresponsive_after(mut self, silence: Option<Duration>) -> Self {
        self.patience.unresponsive = silence;
        self
    }

    /// Closes a connection when nothing was heard from its peer for so long
    /// ([`CloseReason::PeerSilent`](crate::endpoint::CloseReason::PeerSilent)). A peer whose application polls less often
    /// than this is lost although it lives.
    #[must_use]
    pub fn lost_after(mut self, silence: Option<Duration>) -> Self {
        self.patience.lost = silence;
        self
    }

    /// Has the kernel probe idle connections, and close those where nothing answers: works while the peer's application is
    /// busy. TCP only; `ConnectionInfo::kernel_watch` says whether it does.
    #[must_use]
    pub fn keepalive(mut self, keepalive: Option<Keepalive>) -> Self {
        self.watch.keepalive = keepalive;
        self
    }

    /// Has the kernel close a connection when what it sent there is not acknowledged for so long (`TCP_USER_TIMEOUT`,
    /// tcp(7)). TCP only; `ConnectionInfo::kernel_watch` says whether it does.
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

    fn check(&self) -> Result<(), Error> {
        let Self {
            max_message,
            slots,
            depth,
            max_connections,
            ..
        } = *self;
        if !(64..=1 << 30).contains(&max_message) {
            return Err(config(
                "max_message",
                max_message.to_string(),
                "must be 64 bytes to 1 GiB",
            ));
        }
        if !(1..=65_536).contains(&depth) {
            return Err(config(
                "depth",
                depth.to_string(),
                "must be 1 to 65536 messages",
            ));
        }
        if !(1..=CONNECTIONS_MAX).contains(&max_connections) {
            return Err(config(
                "max_connections",
                max_connections.to_string(),
                "must be 1 to 65536",
            ));
        }
        let slots = self
            .pool
            .as_ref()
            .map_or(slots as usize, SharedBufferManager::slots);
        if slots < (RECEIVES_MIN * max_connections) as usize || slots > 1 << 20 {
            let reason = "must be 3 for each of max_connections, to 1048576";
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
/// All connections share one pool of registered buffers and one queue: one [`poll`](Self::poll) serves them all, and
/// its events say which connection they are about. A received [`Message`](crate::endpoint::Message) is owned: keep it, or drop it on
/// any thread. See [`SendEndpointZeroCopy`](crate::SendEndpointZeroCopy) for an example of both.
#[derive(Debug)]
pub struct ReceiveEndpoint {
    core: Here<ReceiveCore<ProviderLink>>,
    local: PeerAddr,
}

impl ReceiveEndpoint {
    /// Listens at an address of this machine. Port 0 and [`PeerAddr::any`] let the system choose;
    /// [`local_addr`](Self::local_addr) says which it is.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] for a setting out of its range, [`Error::Address`] for one that is not local or in use,
    /// [`Error::Memory`] and [`Error::Register`] for the pool.
    pub fn listen(
        domain: &Arc<Domain>,
        addr: PeerAddr,
        config: ReceiveConfig,
    ) -> Result<Self, Error> {
        config.check()?;
        domain.fabric().owner().check()?;
        // Over FI_EP_RDM a hello takes whichever receive is next.
        let slot_min = match domain.fabric().endpoint_kind() {
            EndpointKind::Msg => 0,
            EndpointKind::Rdm => HELLO_MESSAGE_MAX,
        };
        let (pool, max_message) = match &config.pool {
            Some(pool) => (pool.clone(), pool.slot_size()),
            None => {
                let slot_size = config.max_message.max(slot_min);
                let pool = SharedBufferManager::allocate(config.slots, slot_size)?;
                let max_message = config.max_message.min(pool.slot_size());
                (pool, max_message)
            }
        };
        if pool.slot_size() < slot_min {
            let reason = "over FI_EP_RDM its slots must have 114 bytes, for hellos";
            return Err(super::send::config(
                "pool",
                pool.slot_size().to_string(),
                reason,
            ));
        }
        let controls = (CONTROLS_PER_CONNECTION * config.max_connections + CONTROL_SENDS) as usize;
        let link = ProviderLink::listen(
            domain,
            &addr,
            controls,
            pool.slots(),
            (CONTROL_SENDS as usize, (config.depth + RESERVE) as usize),
            &config.endpoint,
        )?;
        let local = link.local_addr().unwrap_or(addr);
        let settings = ReceiveSettings {
            depth: config.depth,
            max_connections: config.max_connections,
            max_message: max_message as u64,
            ask: config.accept == AcceptPolicy::Ask,
            handshake_timeout: config.handshake_timeout,
            close_timeout: config.close_timeout,
            header_mode: config.header_mode,
            patience: config.patience,
            watch: config.watch,
        };
        let waiter = link.waiter();
        let core = ReceiveCore::listen(link, waiter, pool, settings)?;
        Ok(Self {
            core: Here::new(core),
            local,
        })
    }

    /// Where it listens, with the real port.
    pub fn local_addr(&self) -> PeerAddr {
        self.local
    }

    /// Drives all connections, and appends what happened. Returns how many events were added.
    ///
    /// # Errors
    ///
    /// [`Error::EndpointFailed`] when a queue of the endpoint broke, or reported what can't be: every connection was
    /// closed then, which the events say, and requests are refused. [`Error::Forked`]. What concerns one connection is an event.
    pub fn poll(&mut self, events: &mut Vec<ReceiveEvent>) -> Result<usize, Error> {
        self.core.owner().check()?;
        let before = events.len();
        self.core.poll(events)?;
        Ok(events.len() - before)
    }

    /// Sleeps until there may be something to poll for, or until the time given.
    ///
    /// # Errors
    ///
    /// A system call failed.
    pub fn wait(&self, timeout: Duration) -> Result<(), Error> {
        self.core.owner().check()?;
        self.core.wait().sleep(Instant::now() + timeout)
    }

    /// Accepts a request ([`AcceptPolicy::Ask`]). False: it is gone.
    pub fn accept(&mut self, request: ConnectionRequest, events: &mut Vec<ReceiveEvent>) -> bool {
        self.core.owner().is_here() && self.core.answer(request.connection, None, events)
    }

    /// Refuses a request; the peer is told so, with two numbers of the application's own. False: it is gone.
    pub fn refuse(&mut self, request: ConnectionRequest, details: [u64; 2]) -> bool {
        let refusal = Refusal::new(RefusalCode::BY_APPLICATION, details);
        let core = &mut self.core;
        core.owner().is_here() && core.answer(request.connection, Some(refusal), &mut Vec::new())
    }

    /// Begins the polite close of one connection: the peer stops, and what it has sent arrives. False: there is no such
    /// connection.
    pub fn close_connection(&mut self, connection: ConnectionId, deadline: Instant) -> bool {
        self.core.owner().is_here() && self.core.begin_close(connection, deadline)
    }

    /// Begins the polite close of every connection and returns at once: whoever asks for a connection is refused from now
    /// on, and what the peers have sent still arrives. Done when [`connections`](Self::connections) is 0.
    pub fn begin_close(&mut self, deadline: Instant) {
        self.core.begin_close_all(deadline);
    }

    /// Closes every connection politely, and stops listening. Returns what arrived meanwhile, messages included.
    ///
    /// # Errors
    ///
    /// A system call failed.
    pub fn close(mut self, deadline: Instant) -> Result<Vec<ReceiveEvent>, Error> {
        self.core.owner().check()?;
        self.core.close(deadline)
    }

    /// Connections open now.
    pub fn connections(&self) -> usize {
        self.core.connections()
    }

    /// The receive pool, with its counters. Register its region with a domain to send messages on without a copy.
    pub fn pool(&self) -> &SharedBufferManager {
        self.core.pool()
    }

    /// Counters.
    pub fn stats(&self) -> ReceiveStats {
        self.core.stats()
    }

    /// The raw `fid_ep` of a connection; `None` when there is no such connection.
    ///
    /// # Safety
    ///
    /// * It is valid until the next call of a method with `&mut self`, and until this value is dropped.
    /// * It must not be closed, and nothing may be posted on it whose completion this endpoint would read.
    pub unsafe fn as_raw(&self, connection: ConnectionId) -> Option<*mut sys::fid_ep> {
        self.core.conn(connection).map(|conn| conn.as_raw())
    }
}

impl Waitable for ReceiveEndpoint {
    fn wait_handle(&self) -> WaitHandle {
        WaitHandle::new(self.core.wait())
    }
}
