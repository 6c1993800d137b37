//! `FabricLink`: the link over libfabric's connected endpoints (FI_EP_MSG).

#![allow(unsafe_code)]

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::ffi::c_void;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use libfabric_sys as sys;
use smallvec::SmallVec;

use crate::Error;
use crate::endpoint::link::half_open::HalfOpen;
use crate::endpoint::link::queue_sizes::QueueSizes;
use crate::endpoint::link::socket::{self, KernelWatch, TcpWatch};
use crate::endpoint::link::sought::{Inbox, Search, Sought};
use crate::endpoint::link::wait::LinkWait;
use crate::endpoint::link::{
    CloseFailed, CmData, CmEvent, Completions, ConnKey, Link, LinkConn, LinkLimits, PostRefused,
    RmaLimits, RmaPost, SendPost,
};
use crate::errno::FabricErrno;
use crate::fabric::{
    Cq, Domain, EndpointKind, EndpointSettings, Ep, Eq, Fabric, FiAddr, Info, OpenedEp, PeerAddr,
    Pep, RawEvent, in_use, receives_of, unreachable,
};
use crate::in_flight::ContextKind;
use crate::memory::{AccessLedger, Participant, Registrar};
use crate::protocol::connection::Form;

/// The most events that are looked through when a link is dropped; bounds the drop.
const REQUESTS_AT_CLOSE_MAX: usize = 4096;

/// The most events that are kept while those of a closed endpoint are looked for: requests come as
/// fast as peers like.
const EVENTS_KEPT_MAX: usize = 1024;

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
    /// Events read while looking for stale ones, not yet handed out.
    events: VecDeque<RawEvent>,
    /// There are such. They lie in no queue of the provider's, so who is about to sleep looks here.
    keeps_events: Arc<AtomicBool>,
    /// Closed endpoints that may have events further back in the event queue, until that was seen
    /// empty.
    stale: Vec<ConnKey>,
    /// Connections whose peer the provider looks for.
    search: Search,
    listener: Option<Listener>,
    cq: Arc<Cq>,
    eq: Arc<Eq>,
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
        let eq = Arc::new(Eq::open(fabric)?);
        let cq = Arc::new(queue_sizes.open_queue(domain, info.rx().size)?);
        let search = match fabric.provider().resolves_in_open {
            true => Search::by_thread()?,
            false => Search::default(),
        };
        Ok(Self {
            limits: limits(fabric, &info),
            info,
            settings: *settings,
            queue_sizes,
            events: VecDeque::new(),
            keeps_events: Arc::default(),
            stale: Vec::new(),
            search,
            listener: None,
            cq,
            eq,
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
        let pep = Arc::new(Pep::listen(domain.fabric(), addr, &link.eq)?);
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
            eq: Arc::clone(&self.eq),
            inbox: self.search.inbox().map(Arc::clone),
            keeps_events: Arc::clone(&self.keeps_events),
        })
    }

    /// Nothing that was said of another endpoint at this place may be taken for this one's.
    fn admit(&mut self, ep: Ep) -> Result<Ep, Error> {
        let fid = ep.as_ptr() as ConnKey;
        self.search.forget_endpoint(fid);
        unstale(&self.stale, ep)
    }

    /// An endpoint for a connection to a peer, at once.
    fn open_active(&mut self, mut info: Info, peer: &PeerAddr) -> Result<Ep, Error> {
        let (domain, sizes) = (&self.domain, self.queue_sizes.each);
        let ep = Ep::open_active(domain, &mut info, peer, sizes, (&self.cq, &self.eq))?;
        self.settings.check_source(|| ep.local())?;
        self.admit(ep)
    }

    /// An endpoint for the request that the info came with.
    fn open_passive(&mut self, info: &mut Info) -> Result<Ep, Error> {
        let (domain, sizes) = (&self.domain, self.queue_sizes.each);
        let ep = Ep::open_passive(domain, info, sizes, (&self.cq, &self.eq))?;
        self.admit(ep)
    }

    /// Endpoints that threads have opened: their connections go on, or end.
    fn take_sought(&mut self) {
        let (cq, eq, stale) = (&self.cq, &self.eq, &self.stale);
        let settings = &self.settings;
        let over = self.search.take(|opened: OpenedEp| {
            let ep = Ep::connected(opened, cq, eq)?;
            settings.check_source(|| ep.local())?;
            unstale(stale, ep)
        });
        for (key, errno) in over {
            self.events.push_back(RawEvent {
                kind: 0,
                fid: key,
                info: None,
                errno: errno.get(),
                data: CmData::new(&[]),
            });
        }
    }

    /// Takes events of a closed endpoint out of the event queue: its address may be the next
    /// endpoint's. Those that lie too far back are passed over when they are read (`stale`).
    fn forget_events_of(&mut self, key: ConnKey) {
        self.keep_events_but_of(key);
        self.note_kept_events();
    }

    fn keep_events_but_of(&mut self, key: ConnKey) {
        self.events.retain(|event| event.fid != key);
        for _ in self.events.len()..EVENTS_KEPT_MAX {
            match self.next_event() {
                Ok(Some(event)) if event.fid != key => self.events.push_back(event),
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => return,
            }
        }
        self.stale.push(key);
    }

    /// Nobody sleeps while there are some. Release: who finds the flag finds the events, although
    /// the thread that watches the endpoint may be another one than polled it last.
    fn note_kept_events(&self) {
        let some = !self.events.is_empty();
        self.keeps_events.store(some, Ordering::Release);
    }

    /// The next one in the event queue that is not of a closed endpoint.
    fn next_event(&mut self) -> Result<Option<RawEvent>, Error> {
        loop {
            match self.eq.read()? {
                // They end: nothing more is said of a closed endpoint.
                Some(event) if self.stale.contains(&event.fid) => {}
                Some(event) => return Ok(Some(event)),
                None => {
                    self.stale.clear();
                    return Ok(None);
                }
            }
        }
    }

    /// The next one that says something to the core.
    fn next_cm(&mut self) -> Result<Option<CmEvent<Request>>, Error> {
        loop {
            let event = match self.events.pop_front() {
                Some(event) => event,
                None => match self.next_event()? {
                    Some(event) => event,
                    None => return Ok(None),
                },
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
        let fid = self.search.key_of(fid);
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
            listener.half_open.heard_of(&peer, Instant::now());
        }
    }
}

impl Drop for FabricLink {
    /// Requests that nobody looked at are refused, and sockets that never became one are cut off:
    /// the provider would keep them for ever.
    fn drop(&mut self) {
        self.search.end(&self.domain);
        for _ in 0..BACKLOG_AT_CLOSE_MAX {
            // Here the provider takes a socket out of its backlog, and sees the end of the one that
            // was cut off before.
            self.refuse_all();
            if self.reap_half_open(Instant::now(), Duration::ZERO) == 0 {
                return;
            }
        }
    }
}

/// What is still to come of the endpoint that was here before would be taken for this one's.
fn unstale(stale: &[ConnKey], ep: Ep) -> Result<Ep, Error> {
    match stale.contains(&(ep.as_ptr() as ConnKey)) {
        true => Err(Error::fabric("fi_endpoint", libc::EAGAIN)),
        false => Ok(ep),
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
        uses_more: fabric.provider().uses_more,
        rma: RmaLimits::of(info, fabric.provider(), EndpointKind::Msg),
    }
}

/// A connection request that was not answered yet. Dropping it refuses it: the provider holds a
/// socket for it, and memory, until it is accepted or refused; also when an endpoint was made from
/// it.
#[derive(Debug)]
pub(crate) struct Request {
    info: Option<Info>,
    pep: Arc<Pep>,
}

impl Request {
    fn refuse(&mut self, data: &[u8]) {
        if let Some(info) = self.info.take() {
            self.pep.reject(info.handle(), data);
        }
    }

    /// The provider has freed what it held for the request.
    fn accepted(mut self) {
        self.info = None;
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        self.refuse(&[]);
    }
}

/// The endpoint of a connection.
#[derive(Debug)]
enum ConnEp {
    Here(Ep),
    Sought(Arc<Sought>),
}

/// A connection.
#[derive(Debug)]
pub(crate) struct FabricConn {
    end: ConnEp,
    /// As known before it is connected. Providers of connected endpoints that have other addresses
    /// are asked.
    peer: Option<SocketAddr>,
    /// Its socket, once it was looked for.
    socket: Option<RawFd>,
    /// Until it is accepted: what it was made from. Dropped after the endpoint, which has taken
    /// over the socket.
    request: Option<Request>,
}

impl LinkConn for FabricConn {
    fn key(&self) -> ConnKey {
        match &self.end {
            ConnEp::Here(ep) => ep.as_ptr() as ConnKey,
            ConnEp::Sought(sought) => sought.key(),
        }
    }

    fn registrar(&self) -> Option<&dyn Registrar> {
        None
    }

    fn peer(&self) -> Option<PeerAddr> {
        let known = self.peer.map(PeerAddr::from);
        known.or_else(|| self.ep()?.peer())
    }

    fn participant(&self) -> Option<&Participant> {
        self.ep().and_then(Ep::participant)
    }
}

impl FabricConn {
    /// None while the provider looks for the peer.
    #[inline]
    fn ep(&self) -> Option<&Ep> {
        match &self.end {
            ConnEp::Here(ep) => Some(ep),
            ConnEp::Sought(sought) => sought.ep(),
        }
    }

    /// Local address and peer.
    fn ends(&self) -> Option<(SocketAddr, SocketAddr)> {
        let ep = self.ep()?;
        Some((ep.local()?.socket_addr()?, ep.peer()?.socket_addr()?))
    }

    /// The socket of a connection that stands: the library says which, or it is looked for.
    fn socket(&self) -> Option<RawFd> {
        self.ep()?.socket().or_else(|| {
            let (local, peer) = self.ends()?;
            socket::find(local, peer)
        })
    }

    /// None while the provider looks for the peer.
    pub(crate) fn as_raw(&self) -> Option<*mut sys::fid_ep> {
        self.ep().map(Ep::as_ptr)
    }
}

/// A connection whose endpoint is not there: nothing is posted on it before it stands.
fn not_connected() -> PostRefused {
    PostRefused::Errno(FabricErrno::new(libc::ENOTCONN))
}

impl Link for FabricLink {
    type Conn = FabricConn;
    type Request = Request;

    fn form(&self) -> Form {
        Form::Msg
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
        let end = if self.search.inbox().is_some() {
            let sizes = self.queue_sizes.each;
            ConnEp::Sought(self.search.begin(&self.domain, info, *peer, sizes)?)
        } else {
            match self.open_active(info, peer) {
                Ok(ep) => ConnEp::Here(ep),
                Err(error) => match (unreachable(&error), self.settings.source_addr()) {
                    (Some(errno), _) => ConnEp::Sought(self.search.lost(errno)),
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
            ConnEp::Sought(sought) => sought.connect(peer, data),
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
            ConnEp::Sought(sought) => {
                self.search.forget(&self.domain, key);
                self.events.retain(|event| event.fid != key);
                Arc::into_inner(sought).and_then(Sought::into_ep)
            }
        };
        let Some(ep) = ep else { return Ok(()) };
        let fid = ep.as_ptr() as ConnKey;
        self.search.forget_endpoint(fid);
        ep.close()
            .map_err(|code| CloseFailed(FabricErrno::new(code)))?;
        self.forget_events_of(fid);
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
            ConnEp::Sought(sought) => {
                let row = self.domain.fabric().provider();
                let limit = receives_of(row, self.info.rx().size, self.queue_sizes.each.1);
                // SAFETY: the caller's promises.
                unsafe { sought.receive(limit, base, len, desc, context) }
            }
        }
    }

    fn watch(&mut self, conn: &FabricConn, watch: &TcpWatch) -> KernelWatch {
        if !watch.is_asked() {
            return KernelWatch::NotAsked;
        }
        let Some(fd) = conn.socket() else {
            tracing::warn!(
                "the socket of a connection was not found: the kernel does not watch it"
            );
            return KernelWatch::Unavailable;
        };
        // SAFETY: the descriptor is the endpoint's own, which is open (`conn`), and closes it only
        // in calls that this thread makes.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        match watch.apply(fd) {
            Ok(()) => KernelWatch::Set,
            Err(error) => {
                tracing::warn!(%error, "the kernel does not watch a connection");
                KernelWatch::Unavailable
            }
        }
    }

    fn bytes_received(&mut self, conn: &mut FabricConn) -> Option<u64> {
        let (local, peer) = conn.ends()?;
        let known = conn.socket;
        if !known.is_some_and(|fd| socket::is_between(fd, local, peer)) {
            conn.socket = conn.socket();
        }
        socket::bytes_received(conn.socket?)
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
        self.note_kept_events();
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

/// The queues of a link, for a sleeping thread.
#[derive(Debug)]
struct FabricWait {
    cq: Arc<Cq>,
    eq: Arc<Eq>,
    inbox: Option<Arc<Inbox>>,
    keeps_events: Arc<AtomicBool>,
}

impl LinkWait for FabricWait {
    fn fds(&self) -> SmallVec<[RawFd; 3]> {
        let (Some(cq), Some(eq)) = (self.cq.fd(), self.eq.fd()) else {
            return SmallVec::new();
        };
        let bell = self.inbox.iter().map(|inbox| inbox.bell().as_raw_fd());
        [cq, eq].into_iter().chain(bell).collect()
    }

    fn try_wait(&self) -> Result<bool, Error> {
        if self.keeps_events.load(Ordering::Acquire) {
            return Ok(false);
        }
        if self.cq.fd().is_none() {
            return Ok(true);
        }
        // SAFETY: the queue is one of connected endpoints, whose providers don't look into closed
        // ones (the column `waits_on_closed`).
        unsafe { self.cq.try_wait(Some(&self.eq)) }
    }
}

#[cfg(all(test, not(loom)))]
#[path = "sought_tests.rs"]
mod tests;
