//! `FabricLink`: the link over libfabric's connected endpoints (FI_EP_MSG).

#![allow(unsafe_code)]

use std::collections::{BTreeMap, HashSet};
use std::ffi::c_void;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use libfabric_sys as sys;

use crate::Error;
use crate::clock::Clock;
use crate::endpoint::link::event_queue::EventQueue;
use crate::endpoint::link::fabric_conn::ConnEp;
pub(crate) use crate::endpoint::link::fabric_conn::{FabricConn, Request};
use crate::endpoint::link::half_open::HalfOpen;
use crate::endpoint::link::queue_sizes::QueueSizes;
use crate::endpoint::link::queue_wait::FabricWait;
use crate::endpoint::link::resolving_ep::{EpResolver, ResolvingEp};
use crate::endpoint::link::socket::{self, KernelWatch, TcpWatch};
use crate::endpoint::link::wait::LinkWait;
use crate::endpoint::link::{
    CloseFailed, CmData, CmEvent, Completions, ConnKey, Link, LinkConn, LinkLimits, PostRefused,
    RmaLimits, RmaPost, SendPost,
};
use crate::errno::FabricErrno;
use crate::fabric::{
    Cq, Domain, EndpointKind, EndpointSettings, Ep, Fabric, FiAddr, Info, OpenedEp, PeerAddr, Pep,
    RawEvent, bytes_received, in_use, receives_of, unreachable,
};
use crate::in_flight::ContextKind;
use crate::memory::{AccessLedger, Registrar};
use crate::protocol::connection::Form;

/// The most events that are looked through when a link is dropped; bounds the drop.
const REQUESTS_AT_CLOSE_MAX: usize = 4096;

/// The most sockets that are taken out of the provider's backlog then.
const BACKLOG_AT_CLOSE_MAX: usize = 256;

/// The real link. One completion queue and one event queue, for one or many connections.
#[derive(Debug)]
pub(crate) struct FabricLink {
    limits: LinkLimits,
    /// What connections that this side makes are made of.
    info: Info,
    settings: EndpointSettings,
    queue_sizes: QueueSizes,
    events: EventQueue,
    /// Connections whose peer the provider looks for.
    resolver: EpResolver,
    listener: Option<Listener>,
    /// The hub's, once there is one.
    clock: Clock,
    cq: Arc<Cq>,
    domain: Arc<Domain>,
}

/// What only a listening link has.
#[derive(Debug)]
struct Listener {
    half_open: HalfOpen,
    /// The peers of connections that were made from requests; sockets of others are half open. A
    /// tree has no empty places.
    peers: BTreeMap<ConnKey, SocketAddr>,
    pep: Arc<Pep>,
}

impl FabricLink {
    /// A link for connections that this side makes, one or many.
    pub(crate) fn open(
        domain: &Arc<Domain>,
        sizes: QueueSizes,
        settings: &EndpointSettings,
    ) -> Result<Self, Error> {
        let fabric = domain.fabric();
        let info = settings.info(fabric)?;
        let queue_sizes = sizes.with(settings);
        let events = EventQueue::open(fabric)?;
        let cq = Arc::new(queue_sizes.open_queue(domain, info.rx().size)?);
        let resolver = match fabric.provider().resolves_in_open {
            true => EpResolver::by_thread()?,
            false => EpResolver::default(),
        };
        Ok(Self {
            limits: limits(fabric, &info),
            info,
            settings: *settings,
            queue_sizes,
            events,
            resolver,
            listener: None,
            clock: Clock::system(),
            cq,
            domain: Arc::clone(domain),
        })
    }

    /// A link that listens.
    pub(crate) fn listen(
        domain: &Arc<Domain>,
        addr: &PeerAddr,
        sizes: QueueSizes,
        settings: &EndpointSettings,
    ) -> Result<Self, Error> {
        let mut link = Self::open(domain, sizes, settings)?;
        let pep = Arc::new(Pep::listen(domain.fabric(), addr, link.events.queue())?);
        let half_open = HalfOpen::new(pep.local());
        link.listener = Some(Listener {
            half_open,
            peers: BTreeMap::new(),
            pep,
        });
        Ok(link)
    }

    /// Where it listens, with the real port.
    pub(crate) fn local_addr(&self) -> Option<PeerAddr> {
        self.listener.as_ref().map(|listener| listener.pep.local())
    }

    /// What a sleeping thread watches.
    pub(crate) fn waiter(&self) -> Arc<dyn LinkWait> {
        Arc::new(FabricWait {
            cq: Arc::clone(&self.cq),
            eq: Arc::clone(self.events.queue()),
            inbox: self.resolver.inbox().map(Arc::clone),
            keeps_events: Arc::clone(self.events.keeps()),
        })
    }

    /// Nothing that was said of another endpoint at this place may be taken for this one's.
    fn admit(&mut self, ep: Ep) -> Result<Ep, Error> {
        let fid = ep.as_ptr() as ConnKey;
        self.resolver.forget_endpoint(fid);
        self.events.unstale(ep)
    }

    /// An endpoint for a connection to a peer, at once.
    fn open_active(&mut self, mut info: Info, peer: &PeerAddr) -> Result<Ep, Error> {
        let (domain, sizes) = (&self.domain, self.queue_sizes.each);
        let queues = (&self.cq, self.events.queue());
        let ep = Ep::open_active(domain, &mut info, peer, sizes, queues)?;
        self.settings.check_source(|| ep.local())?;
        self.admit(ep)
    }

    /// An endpoint for the request that the info came with.
    fn open_passive(&mut self, info: &mut Info) -> Result<Ep, Error> {
        let (domain, sizes) = (&self.domain, self.queue_sizes.each);
        let queues = (&self.cq, self.events.queue());
        let ep = Ep::open_passive(domain, info, sizes, queues)?;
        self.admit(ep)
    }

    /// Endpoints that threads have opened: their connections go on, or end.
    fn take_sought(&mut self) {
        let (cq, events) = (&self.cq, &self.events);
        let settings = &self.settings;
        let over = self.resolver.take(|opened: OpenedEp| {
            let ep = Ep::connected(opened, cq, events.queue())?;
            settings.check_source(|| ep.local())?;
            events.unstale(ep)
        });
        for (key, errno) in over {
            self.events.push_failure(key, errno);
        }
    }

    /// The next one that says something to the core.
    fn next_cm(&mut self) -> Result<Option<CmEvent<Request>>, Error> {
        loop {
            let Some(event) = self.events.next()? else {
                return Ok(None);
            };
            if let Some(event) = self.event(event) {
                return Ok(Some(event));
            }
        }
    }

    fn refuse_all(&mut self) {
        for _ in 0..REQUESTS_AT_CLOSE_MAX {
            match self.poll_cm() {
                Ok(Some(event)) => drop(event),
                Ok(None) | Err(_) => return,
            }
        }
    }

    fn event(&mut self, event: RawEvent) -> Option<CmEvent<Request>> {
        let RawEvent {
            kind,
            fid,
            info,
            errno,
            data,
        } = event;
        let fid = self.resolver.key_of(fid);
        if errno != 0 {
            return Some(CmEvent::Refused {
                conn: fid,
                errno: FabricErrno::new(errno),
                data,
            });
        }
        match kind {
            sys::FI_CONNREQ => self.request(info, data),
            sys::FI_CONNECTED => Some(CmEvent::Connected { conn: fid, data }),
            sys::FI_SHUTDOWN => Some(CmEvent::Shutdown { conn: fid }),
            _ => None,
        }
    }

    fn request(&mut self, info: Option<Info>, data: CmData) -> Option<CmEvent<Request>> {
        let pep = Arc::clone(&self.listener.as_ref()?.pep);
        let request = Request {
            info: Some(info?),
            pep,
        };
        // It may be answered late, by an application.
        self.is_no_longer_silent(&request);
        Some(CmEvent::Request { request, data })
    }

    fn is_no_longer_silent(&mut self, request: &Request) {
        let peer = request.info.as_ref().and_then(Info::destination);
        let peer = peer.and_then(|peer| peer.socket_addr());
        if let (Some(listener), Some(peer)) = (&mut self.listener, peer) {
            listener.half_open.heard_of(&peer, self.clock.now());
        }
    }
}

impl Drop for FabricLink {
    /// Requests that nobody looked at are refused, and sockets that never became one are cut off:
    /// the provider would keep them for ever.
    fn drop(&mut self) {
        self.resolver.end(&self.domain);
        for _ in 0..BACKLOG_AT_CLOSE_MAX {
            // Here the provider takes a socket out of its backlog, and sees the end of the one that
            // was cut off before.
            self.refuse_all();
            if self.reap_half_open(self.clock.now(), Duration::ZERO) == 0 {
                return;
            }
        }
    }
}

fn limits(fabric: &Fabric, info: &Info) -> LinkLimits {
    let tx = info.tx();
    let needs_cells = info.mode() & (sys::FI_CONTEXT | sys::FI_CONTEXT2) != 0;
    LinkLimits {
        iov_limit: tx.iov_limit,
        max_message: info.max_message(),
        contexts: if needs_cells {
            ContextKind::Cells
        } else {
            ContextKind::Opaque
        },
        shared_receives: 0,
        short_marks: false,
        inject_size: tx.inject_size,
        inject_pays: fabric.provider().inject_pays,
        pack_below: fabric.provider().pack_below,
        uses_more: fabric.provider().uses_more,
        gathers_below: fabric.provider().gathers_below,
        rma: RmaLimits::of(info, fabric.provider(), EndpointKind::Msg),
    }
}

/// A connection whose endpoint is not there: nothing is posted on it before it stands.
fn not_connected() -> PostRefused {
    PostRefused::Errno(FabricErrno::new(libc::ENOTCONN))
}

/// What `call` says of the socket of a connection; false where it has none, or the
/// call fails.
fn on_socket(
    conn: &mut FabricConn,
    call: impl FnOnce(BorrowedFd<'_>) -> rustix::io::Result<bool>,
) -> bool {
    let socket = conn.known_socket();
    // SAFETY: the descriptor is the endpoint's own, which is open (`conn`), and closes it only in
    // calls that this thread makes; it was looked at in this call.
    let socket = socket.map(|fd| unsafe { BorrowedFd::borrow_raw(fd) });
    socket.is_some_and(|socket| call(socket).unwrap_or(false))
}

/// The socket of a connection, if one is found.
fn socket_of(conn: &FabricConn) -> Option<BorrowedFd<'_>> {
    // SAFETY: the descriptor is the endpoint's own, which is open (`conn`), and closes it only in
    // calls that this thread makes.
    conn.socket()
        .map(|fd| unsafe { BorrowedFd::borrow_raw(fd) })
}

impl Link for FabricLink {
    type Conn = FabricConn;
    type Request = Request;

    fn form(&self) -> Form {
        Form::Msg
    }

    fn shares_endpoint(&self) -> bool {
        false
    }

    fn limits(&self) -> &LinkLimits {
        &self.limits
    }

    fn registrar(&self) -> &dyn Registrar {
        &*self.domain
    }

    fn ledger(&self) -> &Arc<AccessLedger> {
        self.domain.ledger()
    }

    fn prepare_connect(&mut self, peer: &PeerAddr) -> Result<FabricConn, Error> {
        let info = self.info.duplicate()?;
        let end = if self.resolver.inbox().is_some() {
            let sizes = self.queue_sizes.each;
            ConnEp::ResolvingEp(self.resolver.begin(&self.domain, info, *peer, sizes)?)
        } else {
            match self.open_active(info, peer) {
                Ok(ep) => ConnEp::Here(ep),
                Err(error) => match (unreachable(&error), self.settings.source_addr()) {
                    (Some(errno), _) => ConnEp::ResolvingEp(self.resolver.lost(errno)),
                    (None, Some(source)) => return Err(in_use(error, &source)),
                    (None, None) => return Err(error),
                },
            }
        };
        Ok(FabricConn {
            end,
            peer: peer.socket_addr(),
            socket: None,
            request: None,
        })
    }

    fn connect(&mut self, conn: &FabricConn, peer: &PeerAddr, data: &[u8]) -> Result<(), Error> {
        match &conn.end {
            ConnEp::Here(ep) => ep.connect(peer, data),
            ConnEp::ResolvingEp(resolving) => resolving.connect(peer, data),
        }
    }

    fn prepare_accept(&mut self, mut request: Request) -> Result<FabricConn, (Request, Error)> {
        let Some(info) = &mut request.info else {
            return Err((request, Error::fabric("fi_endpoint", libc::EINVAL)));
        };
        self.settings.adjust(info);
        let peer = info.destination().and_then(|peer| peer.socket_addr());
        match self.open_passive(info) {
            Ok(ep) => {
                let conn = FabricConn {
                    end: ConnEp::Here(ep),
                    peer,
                    socket: None,
                    request: Some(request),
                };
                if let (Some(listener), Some(peer)) = (&mut self.listener, peer) {
                    listener.peers.insert(conn.key(), peer);
                }
                Ok(conn)
            }
            Err(error) => Err((request, error)),
        }
    }

    fn peer_of(&self, request: &Request) -> Option<PeerAddr> {
        request.info.as_ref().and_then(Info::destination)
    }

    fn accept(&mut self, conn: &mut FabricConn, data: &[u8]) -> Result<(), Error> {
        let ep = conn.ep();
        let accepted = ep.map_or_else(
            || Err(Error::fabric("fi_accept", libc::ENOTCONN)),
            |ep| ep.accept(data),
        );
        // Whatever the answer: an accept that failed may have freed the request, and must not be
        // followed by a refusal.
        if let Some(request) = conn.request.take() {
            request.accepted();
        }
        accepted
    }

    fn reject(&mut self, mut request: Request, data: &[u8]) {
        // The provider may have yet to send the answer.
        self.is_no_longer_silent(&request);
        request.refuse(data);
    }

    fn close(&mut self, conn: FabricConn) -> Result<(), CloseFailed> {
        let key = conn.key();
        if let Some(listener) = &mut self.listener {
            listener.peers.remove(&key);
        }
        let ep = match conn.end {
            ConnEp::Here(ep) => Some(ep),
            ConnEp::ResolvingEp(resolving) => {
                self.resolver.forget(&self.domain, key);
                self.events.drop_kept(key);
                Arc::into_inner(resolving).and_then(ResolvingEp::into_ep)
            }
        };
        let Some(ep) = ep else { return Ok(()) };
        let fid = ep.as_ptr() as ConnKey;
        self.resolver.forget_endpoint(fid);
        ep.close()
            .map_err(|code| CloseFailed(FabricErrno::new(code)))?;
        self.events.forget(fid);
        Ok(())
    }

    #[inline]
    unsafe fn post_send(
        &mut self,
        conn: &FabricConn,
        post: &SendPost<'_>,
    ) -> Result<(), PostRefused> {
        let ep = conn.ep().ok_or_else(not_connected)?;
        // SAFETY: the caller's promises; cores post sends on established connections only
        // (`Connection::may_send`).
        unsafe { ep.send(FiAddr::UNSPECIFIED, post) }
    }

    #[inline]
    unsafe fn post_receive(
        &mut self,
        conn: &FabricConn,
        base: *mut u8,
        len: usize,
        desc: *mut c_void,
        context: usize,
    ) -> Result<(), PostRefused> {
        match &conn.end {
            // SAFETY: the caller's promises.
            ConnEp::Here(ep) => unsafe { ep.receive(base, len, desc, context) },
            ConnEp::ResolvingEp(resolving) => {
                let row = self.domain.fabric().provider();
                let limit = receives_of(row, self.info.rx().size, self.queue_sizes.each.1);
                // SAFETY: the caller's promises.
                unsafe { resolving.receive(limit, base, len, desc, context) }
            }
        }
    }

    fn watch(&mut self, conn: &FabricConn, watch: &TcpWatch) -> KernelWatch {
        if watch.fill_long_ways && self.domain.fabric().provider().over_tcp {
            // Best effort: where the kernel would not, the connection has the rate that it has.
            let filled = socket_of(conn).map(socket::fill_long_way);
            tracing::debug!(?filled, "whether the kernel holds more of what is sent");
        }
        if !watch.is_asked() {
            return KernelWatch::NotAsked;
        }
        let Some(socket) = socket_of(conn) else {
            tracing::warn!(
                "the socket of a connection was not found: the kernel does not watch it"
            );
            return KernelWatch::Unavailable;
        };
        match watch.apply(socket) {
            Ok(()) => KernelWatch::Set,
            Err(error) => {
                tracing::warn!(%error, "the kernel does not watch a connection");
                KernelWatch::Unavailable
            }
        }
    }

    fn gather(&mut self, conn: &mut FabricConn, gather: bool) -> bool {
        on_socket(conn, |socket| socket::gather(socket, gather))
    }

    fn push_gathered(&mut self, conn: &mut FabricConn) -> bool {
        on_socket(conn, |socket| {
            Ok(socket::gather(socket, false)? && socket::gather(socket, true)?)
        })
    }

    fn bytes_received(&mut self, conn: &mut FabricConn) -> Option<u64> {
        bytes_received(conn.known_socket()?)
    }

    #[inline]
    unsafe fn post_write(
        &mut self,
        conn: &FabricConn,
        post: &RmaPost<'_>,
    ) -> Result<(), PostRefused> {
        let ep = conn.ep().ok_or_else(not_connected)?;
        // SAFETY: the caller's promises; cores write on established connections only.
        unsafe { ep.write(FiAddr::UNSPECIFIED, post) }
    }

    #[inline]
    unsafe fn post_read(
        &mut self,
        conn: &FabricConn,
        post: &RmaPost<'_>,
    ) -> Result<(), PostRefused> {
        let ep = conn.ep().ok_or_else(not_connected)?;
        // SAFETY: the caller's promises; cores read on established connections only.
        unsafe { ep.read(FiAddr::UNSPECIFIED, post) }
    }

    #[inline]
    fn poll_completions(&mut self, out: &mut Completions) -> Result<usize, Error> {
        self.cq.read(out)
    }

    fn poll_cm(&mut self) -> Result<Option<CmEvent<Request>>, Error> {
        self.take_sought();
        let event = self.next_cm();
        self.events.note_kept();
        event
    }

    fn hello_tail(&self) -> &[u8] {
        &[]
    }

    /// Not reached: the event queue brings hellos.
    fn take_hello(&mut self, _message: &[u8]) {}

    /// Not reached: the limits say that each connection has receives of its own.
    unsafe fn post_shared_receive(
        &mut self,
        _base: *mut u8,
        _len: usize,
        _desc: *mut c_void,
        _context: usize,
    ) -> Result<(), PostRefused> {
        Err(PostRefused::Errno(FabricErrno::new(libc::ENOSYS)))
    }

    /// Connections share no endpoint.
    fn close_all(&mut self) -> Result<(), CloseFailed> {
        Ok(())
    }

    /// The descriptors tell of all that happens.
    fn read_clock(&mut self, clock: &Clock) {
        self.clock = clock.clone();
    }

    fn next_deadline(&self) -> Option<Instant> {
        None
    }

    fn reap_half_open(&mut self, now: Instant, patience: Duration) -> u64 {
        match &mut self.listener {
            Some(Listener {
                half_open, peers, ..
            }) => {
                let known: HashSet<_> = peers.values().collect();
                half_open.reap(now, patience, |peer| known.contains(peer))
            }
            None => 0,
        }
    }
}

#[cfg(all(test, not(loom)))]
#[path = "tests/resolving_ep.rs"]
mod tests;
