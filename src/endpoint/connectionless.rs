//! `ConnectionlessEndpoint`: one endpoint without connections (FI_EP_RDM), and many peers that it
//! sends to and receives from.
//!
//! The connections are ours: hello, credits and goodbye go on behind the scenes, so that nothing is
//! lost without a word. `hub` makes and serves them; here each of their events becomes one of a
//! peer.

#![allow(unsafe_code)]

mod config;
mod event;
mod hub_events;
mod peers;
mod received;

use std::sync::Arc;
use std::time::{Duration, Instant};

use libfabric_sys as sys;

use self::config::OnAbandoned;
use self::peers::{ConnectionStage, Peers};
use crate::Error;
use crate::buffer::{HeaderSlotManager, Payload, SharedBufferManager};
use crate::clock::Clock;
use crate::contain::contain;
use crate::endpoint::delivery::Deliveries;
use crate::endpoint::error::{BatchError, Blocked, PeerError, Refused, SendErrorKind};
use crate::endpoint::event::ReceiveEvent;
use crate::endpoint::hub::Hub;
use crate::endpoint::hub::in_flight_max::InFlightMax;
use crate::endpoint::hub::received_frame::PlacedFrame;
use crate::endpoint::inbox::Inbox;
use crate::endpoint::link::fd_limit;
use crate::endpoint::link::provider::ProviderLink;
use crate::endpoint::settings::SettingsOf;
use crate::event_loop::{WaitHandle, Waitable};
use crate::fabric::{Domain, EndpointKind, PeerAddr};
use crate::id::ConnectionId;
use crate::memory::HeldRegistration;
use crate::process::Here;
use crate::protocol::connection::Form;
use crate::stats::{ReceiveStats, SendStats};

pub use config::ConnectionlessConfig;
pub use event::{ConnectionlessEvent, PeerId, PeerInUse, PeerMessage, SendTo};
pub use received::{PeerMessageRef, ReceivedPeerMessages};

/// Sends to and receives from many peers over one endpoint without connections (FI_EP_RDM with an
/// address vector).
///
/// A peer is another `ConnectionlessEndpoint`, known by its address
/// ([`local_addr`](Self::local_addr)). It is [added](Self::add_peer), or added by the first send to
/// its address, or comes by itself when it sends. A peer that went stays known, and the next send
/// begins anew. A [`SendEndpointZeroCopy`](crate::SendEndpointZeroCopy) can be a peer that only
/// sends, a [`ReceiveEndpoint`](crate::ReceiveEndpoint) one that only receives.
///
/// As with [`SendEndpointZeroCopy`](crate::SendEndpointZeroCopy), payloads go out from where they
/// lie, and each accepted key has exactly one outcome. Messages to one peer arrive in the order in
/// which they were sent, as long as it is not
/// [down](crate::endpoint::ConnectionEvent::Disconnected).
///
/// One thread at a time; [`poll`](Self::poll) drives it, by hand or from an
/// [`EventLoop`](crate::event_loop::EventLoop).
///
/// ```
/// use fabricast::buffer::SharedBufferManager;
/// use fabricast::endpoint::{ConnectionlessConfig, ConnectionlessEvent};
/// use fabricast::fabric::EndpointKind;
/// use fabricast::{ConnectionlessEndpoint, Fabric};
///
/// // libfabric 1.x calls it `net`, 2.x `tcp`.
/// let open = |provider| {
///     let builder = Fabric::builder().provider(provider).node("127.0.0.1");
///     builder.endpoint_kind(EndpointKind::Rdm).open()
/// };
/// let domain = open("net").or_else(|_| open("tcp"))?.open_domain()?;
/// let (any, config) = ("127.0.0.1:0".parse()?, ConnectionlessConfig::default);
/// let mut a = ConnectionlessEndpoint::open(&domain, any, config())?;
/// let mut b = ConnectionlessEndpoint::open(&domain, any, config())?;
///
/// let pool = SharedBufferManager::allocate(16, 64 * 1024)?;
/// pool.region().register(&domain)?;
/// let mut buffer = pool.try_acquire().expect("16 are free");
/// buffer[..5].copy_from_slice(b"hello");
/// let mut payload = Some(buffer.freeze(5).into());
/// let (mut sent, mut received) = (Vec::new(), Vec::new());
/// let mut done = 0;
/// while done < 2 {
///     // Refused until the peer has answered: the payload comes back.
///     if let Some(p) = payload.take()
///         && let Err(refused) = a.send_data(b.local_addr(), p, b"event 7", 42)
///     {
///         assert!(refused.is_would_block(), "{refused}");
///         payload = Some(refused.given);
///     }
///     a.poll(&mut sent)?;
///     b.poll(&mut received)?;
///     for event in sent.drain(..) {
///         if let ConnectionlessEvent::Completed { key, .. } = event {
///             assert_eq!(key, 42);
///             done += 1;
///         }
///     }
///     for event in received.drain(..) {
///         if let ConnectionlessEvent::Message { message, .. } = event {
///             assert_eq!((message.header(), message.payload()), (&b"event 7"[..], &b"hello"[..]));
///             done += 1;
///         }
///     }
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ConnectionlessEndpoint {
    core: Here<Hub<ProviderLink>>,
    peers: Peers,
    local: PeerAddr,
    headers: HeaderSlotManager,
    accept_unknown: bool,
    add_on_send: bool,
    close_timeout: Duration,
    on_abandoned: Option<OnAbandoned>,
    came: Came,
    inbox: Inbox<ConnectionlessEvent>,
    /// Behind the core: nothing arrives any more when it goes.
    deliveries: Option<Box<Deliveries<ConnectionlessEvent>>>,
    /// The region of [`HeaderSource::WithData`](crate::endpoint::HeaderSource::WithData).
    _data: Option<Here<HeldRegistration>>,
}

/// What one poll of the core brought, and what that is for peers; kept for their memory.
#[derive(Default)]
struct Came {
    said: Vec<ReceiveEvent>,
    frames: Vec<PlacedFrame>,
    told: Vec<ConnectionlessEvent>,
}

impl ConnectionlessEndpoint {
    /// Opens the endpoint at an address of this machine. Port 0 and [`PeerAddr::any`] let the
    /// system choose; [`local_addr`](Self::local_addr) says which it is.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] when the fabric was opened with connected endpoints (FI_EP_MSG),
    /// [`Error::Config`] for a setting out of its range, [`Error::Address`] for one that is not
    /// local or in use, [`Error::Memory`] and [`Error::Register`] for pool and headers and the
    /// region of [`HeaderSource::WithData`](crate::endpoint::HeaderSource::WithData).
    pub fn open(
        domain: &Arc<Domain>,
        addr: PeerAddr,
        config: ConnectionlessConfig,
    ) -> Result<Self, Error> {
        domain.fabric().owner().check()?;
        if domain.fabric().endpoint_kind() != EndpointKind::Rdm {
            return Err(Error::Unsupported {
                provider: domain.fabric().info().provider_name(),
                need: "was opened with connected endpoints (FI_EP_MSG): ask the builder for \
                       endpoint_kind(EndpointKind::Rdm), or use SendEndpointZeroCopy and \
                       ReceiveEndpoint",
            });
        }
        config.check()?;
        let source = config.outgoing.headers_of(SettingsOf::Connectionless);
        let headers = source.manager()?;
        let data = source.hold(domain)?;
        if let Some(ring) = &config.outgoing.staging {
            ring.register(domain)?;
        }
        let (share, _) = config.incoming.open_pool(config.pool_slots(), 0)?;
        let settings = config.settings(headers.clone(), share.pool().slot_size());
        let endpoint = config.connection.endpoint;
        let deliveries = config.incoming.delivery.map(Deliveries::new).transpose()?;
        let sizes = InFlightMax::of_hub(&settings, Form::Rdm, share.most()).queue_sizes();
        let link =
            ProviderLink::listen(domain, &addr, sizes, &endpoint).map_err(fd_limit::explain)?;
        let local = link.local_addr().unwrap_or(addr);
        let waiter = link.waiter();
        let core = Hub::listen(link, waiter, Clock::system(), share, settings)?;
        Ok(Self {
            core: Here::new(core),
            peers: Peers::new(config.max_peers),
            local,
            headers,
            accept_unknown: config.accept_unknown,
            add_on_send: config.add_on_send,
            close_timeout: config.connection.close_timeout,
            on_abandoned: config.on_abandoned,
            came: Came::default(),
            inbox: Inbox::new(),
            deliveries: deliveries.map(Box::new),
            _data: data,
        })
    }

    /// Where it is, for its peers.
    pub fn local_addr(&self) -> PeerAddr {
        self.local
    }

    // ---- peers ----------------------------------------------------------------------------------

    /// Adds a peer, and says hello to it:
    /// [`Connected`](crate::endpoint::ConnectionEvent::Connected) or
    /// [`Disconnected`](crate::endpoint::ConnectionEvent::Disconnected) follows. One that is known
    /// already is only found.
    ///
    /// # Errors
    ///
    /// Nothing was added: there are as many peers as there may be, or the address can't be reached
    /// from here.
    pub fn add_peer(&mut self, addr: PeerAddr) -> Result<PeerId, PeerError> {
        if let Some(peer) = self.peers.at(&addr) {
            let known = self.peers.get_mut(peer).ok_or(PeerError::Unknown)?;
            known.added = true;
            if known.usable_connection().is_none() && !known.leaving {
                self.dial(peer, addr)?;
            }
            return Ok(peer);
        }
        if self.peers.is_full() {
            let limit = self.peers.limit();
            return Err(PeerError::TooMany { limit });
        }
        let peer = self.peers.add(addr, true).ok_or(PeerError::Unknown)?;
        let dialed = self.dial(peer, addr);
        dialed.inspect_err(|_| self.peers.remove(peer))?;
        Ok(peer)
    }

    /// Says hello to a peer that there is no connection with.
    fn dial(&mut self, peer: PeerId, addr: PeerAddr) -> Result<ConnectionId, PeerError> {
        if !self.core.owner().is_here() {
            return Err(PeerError::Unknown);
        }
        let conn = self.core.dial(&addr).map_err(peer_error)?;
        self.peers.set_stage(peer, conn, ConnectionStage::Dialing);
        Ok(conn)
    }

    /// The peer at an address, if it is known.
    pub fn peer_at(&self, addr: &PeerAddr) -> Option<PeerId> {
        self.peers.at(addr)
    }

    /// Where a peer is.
    pub fn peer_addr(&self, peer: PeerId) -> Option<PeerAddr> {
        self.peers.get(peer).map(|peer| peer.addr)
    }

    /// Whether a peer has answered, and is not lost.
    pub fn is_up(&self, peer: PeerId) -> bool {
        self.peers.get(peer).is_some_and(peers::AddedPeer::is_up)
    }

    /// How many peers are known.
    pub fn peers(&self) -> usize {
        self.peers.len()
    }

    /// Removes a peer with which nothing is outstanding: it is told goodbye, and
    /// [`Removed`](ConnectionlessEvent::Removed) follows. Its address leaves the provider's vector
    /// a little later.
    ///
    /// # Errors
    ///
    /// [`PeerInUse`]: how many sends, kept payloads and held messages are in the way; nothing was
    /// done.
    pub fn remove_peer(&mut self, peer: PeerId) -> Result<(), PeerError> {
        let in_use = self.outstanding(peer)?;
        if in_use.sends + in_use.payloads_kept + in_use.messages_held > 0 {
            return Err(in_use.into());
        }
        self.remove_peer_by(peer, self.core.clock().now() + self.close_timeout)
    }

    /// Removes a peer politely: no send to it is taken any more, those in flight complete, both
    /// sides say goodbye. At the deadline, what is still in flight comes back failed.
    /// [`Removed`](ConnectionlessEvent::Removed) is the last of it, but for payloads that the
    /// provider [kept](ConnectionlessEvent::Released). Messages that are held stay good.
    ///
    /// # Errors
    ///
    /// There is no such peer.
    pub fn remove_peer_by(&mut self, peer: PeerId, deadline: Instant) -> Result<(), PeerError> {
        self.core.owner().check()?;
        let connections = self.peers.leave(peer).ok_or(PeerError::Unknown)?;
        for conn in connections {
            self.core.begin_close(conn, deadline);
        }
        // One without a connection goes at the next poll.
        self.core.wait().wake();
        Ok(())
    }

    /// What is outstanding with a peer.
    ///
    /// # Errors
    ///
    /// There is no such peer.
    pub fn outstanding(&self, peer: PeerId) -> Result<PeerInUse, PeerError> {
        self.core.owner().check()?;
        let known = self.peers.get(peer).ok_or(PeerError::Unknown)?;
        let sends = known.connections().map(|c| self.core.sends_in_flight(c));
        let waiting = self.inbox.count_about(|about| about.0 == peer);
        Ok(PeerInUse {
            peer,
            sends: sends.sum(),
            payloads_kept: known.kept,
            messages_held: known.messages_held().saturating_sub(waiting as u32),
        })
    }

    // ---- sending --------------------------------------------------------------------------------

    /// Sends a header and a payload of one or several registered segments to a peer, by its id or
    /// its address. Returns at once.
    ///
    /// `key` is the caller's own, comes back unchanged, and need not be unique. A first send to an
    /// address adds the peer, and is refused as back-pressure:
    /// [`Writable`](ConnectionlessEvent::Writable) says when it has answered,
    /// [`Disconnected`](crate::endpoint::ConnectionEvent::Disconnected) that it will not.
    ///
    /// A message that is longer than the peer's receive buffers goes where the peer takes
    /// [`long_messages`](crate::endpoint::IncomingSettings::long_messages): piece by piece, and
    /// what follows it is back-pressure until it is there.
    ///
    /// # Errors
    ///
    /// Nothing was posted, and payload and key are in the error: back-pressure
    /// ([`Refused::is_would_block`]), what is wrong with the peer ([`SendErrorKind::Peer`]), or a
    /// message that can't be sent.
    #[inline]
    pub fn send_data(
        &mut self,
        to: impl Into<SendTo>,
        payload: impl Into<Payload>,
        header: &[u8],
        key: u64,
    ) -> Result<(), Refused<Payload>> {
        let payload = payload.into();
        match self.usable_connection(to.into()) {
            Ok(conn) => self.core.send_data(conn, payload, header, key),
            Err(kind) => Err(Refused::new(kind, payload, key)),
        }
    }

    /// Sends several messages to one peer, as [`send_data`](Self::send_data) each: payload, header,
    /// key. Where the provider joins posts
    /// ([`Provider::uses_more`](crate::fabric::Provider::uses_more)), they go to the card together;
    /// everywhere else this is a loop.
    ///
    /// All of them are taken, or all in front of the first one that is refused: that one comes back
    /// in the error, and the rest was not taken from the iterator. What was taken is on its way
    /// when this returns, or lies in a frame ([`Packing`](crate::endpoint::Packing)), and each
    /// message has its one outcome.
    ///
    /// # Errors
    ///
    /// [`BatchError`]: why it stopped, with the message that was refused, and how many were sent
    /// before it.
    pub fn send_batch<P: Into<Payload>, H: AsRef<[u8]>>(
        &mut self,
        to: impl Into<SendTo>,
        messages: impl IntoIterator<Item = (P, H, u64)>,
    ) -> Result<usize, BatchError> {
        let messages = messages
            .into_iter()
            .map(|(payload, header, key)| (payload.into(), header, key));
        match self.usable_connection(to.into()) {
            Ok(conn) => BatchError::or_sent(self.core.send_batch(conn, messages)),
            Err(kind) => BatchError::at_first(kind, messages),
        }
    }

    /// The connection that a message goes by; one is made where there is none.
    #[inline]
    fn usable_connection(&mut self, to: SendTo) -> Result<ConnectionId, SendErrorKind> {
        self.core.owner().check()?;
        let id = match to {
            SendTo::Peer(peer) => peer,
            SendTo::Addr(addr) => match self.peers.at(&addr) {
                Some(peer) => peer,
                None if self.add_on_send => self.add_peer(addr)?,
                None => return Err(PeerError::Unknown.into()),
            },
        };
        let peer = self.peers.get_mut(id).ok_or(PeerError::Unknown)?;
        if peer.leaving {
            return Err(SendErrorKind::Closing);
        }
        match peer.usable_connection() {
            Some((_, ConnectionStage::Closing)) => {
                Err(SendErrorKind::WouldBlock(Blocked::Connecting))
            }
            Some((conn, _)) => Ok(conn),
            None => {
                let addr = peer.addr;
                Ok(self.dial(id, addr)?)
            }
        }
    }

    /// Posts what was packed ([`OutgoingSettings::packing`]) and would wait for the next poll.
    ///
    /// # Errors
    ///
    /// [`Error::Forked`].
    ///
    /// [`OutgoingSettings::packing`]: crate::endpoint::OutgoingSettings::packing
    pub fn flush(&mut self) -> Result<(), Error> {
        self.core.owner().check()?;
        self.core.flush();
        Ok(())
    }

    // ---- polling --------------------------------------------------------------------------------

    /// Drives everything, and appends what happened. Returns how many events were added.
    ///
    /// # Errors
    ///
    /// [`Error::EndpointFailed`] when the queue of the endpoint broke, or reported what can't be:
    /// every peer was given up then, which the events say. [`Error::Forked`]. What concerns one
    /// peer is an event.
    pub fn poll(&mut self, events: &mut Vec<ConnectionlessEvent>) -> Result<usize, Error> {
        self.core.owner().check()?;
        let before = events.len();
        self.inbox.tell_rest(events, self.core.wait());
        self.poll_core(events)?;
        Ok(events.len() - before)
    }

    /// [`poll`](Self::poll) that gives the messages that came behind the events as
    /// [`ReceiveEndpoint::receive`](crate::ReceiveEndpoint::receive) does: borrowed where they lie,
    /// without an event's cost for each.
    ///
    /// # Errors
    ///
    /// As [`poll`](Self::poll), when all that was received before is taken.
    pub fn receive(
        &mut self,
        events: &mut Vec<ConnectionlessEvent>,
    ) -> Result<ReceivedPeerMessages<'_>, Error> {
        self.core.owner().check()?;
        self.inbox.begin(events);
        let polled = match self.inbox.has_room() {
            true => self.fill_inbox(),
            false => Ok(()),
        };
        let batch = self.inbox.go_on(events, self.core.wait(), polled)?;
        Ok(ReceivedPeerMessages::new(batch))
    }

    /// Sleeps until there may be something to poll for, or until the time given.
    ///
    /// # Errors
    ///
    /// A system call failed.
    pub fn wait(&self, timeout: Duration) -> Result<(), Error> {
        self.core.owner().check()?;
        self.core.wait().sleep(crate::endpoint::limits::moment_in(
            self.core.clock(),
            timeout,
        ))
    }

    // ---- the end --------------------------------------------------------------------------------

    /// Begins the goodbye to all peers and returns at once: those who come now are refused, what is
    /// in flight completes, and [`poll`](Self::poll) tells how each connection ends, at the
    /// deadline in any case.
    pub fn begin_close(&mut self, deadline: Instant) {
        if self.core.owner().is_here() {
            self.core.begin_close_all(deadline);
        }
    }

    /// Connections with peers that are open now: two with one peer, if both sides began at once.
    /// Those whose end is not told yet are among them.
    pub fn connections(&self) -> usize {
        self.core.connections() + self.inbox.ends()
    }

    /// Says goodbye to all peers and closes. Every key has its outcome in what is returned, with
    /// messages that came meanwhile and payloads that the provider had kept.
    ///
    /// # Errors
    ///
    /// A system call failed.
    pub fn close(mut self, deadline: Instant) -> Result<Vec<ConnectionlessEvent>, Error> {
        self.core.owner().check()?;
        let mut said = self.core.close(deadline)?;
        let mut came = Vec::new();
        self.tell(said.drain(..), &mut came);
        self.end_leaving(&mut came);
        if let Some(deliveries) = self.deliveries.take() {
            deliveries.finish(&mut came, self.core.clock(), deadline);
        }
        let mut events = Vec::new();
        self.inbox.tell_all(&mut events);
        events.append(&mut came);
        Ok(events)
    }

    // ---- about it -------------------------------------------------------------------------------

    /// Keys whose outcome was not told yet, and to whom they went.
    pub fn pending(&self) -> Vec<(PeerId, u64)> {
        let sends = self.core.pending_sends().into_iter();
        let sends = sends.filter_map(|(conn, key)| Some((self.peers.of(conn)?, key)));
        // Outcomes that wait behind messages are nobody's yet.
        let untold = self.inbox.events().filter_map(|event| match event {
            ConnectionlessEvent::Completed { peer, key, .. }
            | ConnectionlessEvent::Failed { peer, key, .. } => Some((*peer, *key)),
            _ => None,
        });
        sends.chain(untold).collect()
    }

    /// The header slots.
    pub fn headers(&self) -> &HeaderSlotManager {
        &self.headers
    }

    /// The receive pool, with its counters. Register its region with a domain to send messages on
    /// without a copy.
    pub fn pool(&self) -> &SharedBufferManager {
        self.core.pool()
    }

    /// Counters of what is sent.
    pub fn send_stats(&self) -> SendStats {
        self.core.send_stats()
    }

    /// Counters of what is received, of the queue, and of the connections behind the scenes.
    /// Looks at each buffer of the pool, while frames are held.
    pub fn receive_stats(&self) -> ReceiveStats {
        self.inbox.correct(self.core.stats())
    }

    /// The raw `fid_ep`; `None` before the first peer.
    ///
    /// # Safety
    ///
    /// * It is valid until this value is dropped.
    /// * It must not be closed, and nothing may be posted on it whose completion this endpoint
    ///   would read.
    pub unsafe fn as_raw(&self) -> Option<*mut sys::fid_ep> {
        let mut ids = self.peers.ids();
        let conn = ids.find_map(|id| self.peers.get(id)?.connections().next())?;
        self.core.conn(conn).and_then(|conn| conn.as_raw())
    }
}

impl Drop for ConnectionlessEndpoint {
    /// The rude end: tells the peers if that takes no time, waits for nothing. Payloads go back to
    /// their pools, keys to `on_abandoned`.
    fn drop(&mut self) {
        if !self.core.owner().is_here() {
            return;
        }
        if let Some(mut hear) = self.on_abandoned.take() {
            for (peer, key) in self.pending() {
                contain("on_abandoned", || hear(peer, key));
            }
        }
    }
}

impl std::fmt::Debug for ConnectionlessEndpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConnectionlessEndpoint")
            .field("local", &self.local)
            .field("peers", &self.peers.len())
            .finish_non_exhaustive()
    }
}

impl Waitable for ConnectionlessEndpoint {
    fn wait_handle(&self) -> WaitHandle {
        WaitHandle::new(self.core.wait())
    }
}

fn peer_error(error: Error) -> PeerError {
    match error {
        Error::TooManyConnections { limit } => PeerError::TooMany { limit },
        Error::NoReceiveBuffers { free, needed } => PeerError::NoReceiveBuffers { free, needed },
        Error::Fabric { call, errno } => PeerError::Fabric { call, errno },
        other => PeerError::Address(other.to_string()),
    }
}
