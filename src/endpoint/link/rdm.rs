//! `RdmLink`: the link over libfabric's endpoints without connections (FI_EP_RDM).
//!
//! One endpoint with its address vector and queue: for one connection that this side makes, or for
//! all those of a listener. Connections are made by messages (`connection`, RDM form); this link
//! knows who is where, finds the request in a hello, and says no to those whom nobody accepts.
//!
//! ```text
//!  hello ─► take_hello ─► Request ─► prepare_accept ─► RdmConn {index, number}
//!                            │                         messages name the index
//!                            └─► reject ─► a refusal, injected, or sent from a slot;
//!                                          tried again until its deadline
//! ```

#![allow(unsafe_code)]

use std::collections::{HashMap, VecDeque};
use std::ffi::c_void;
use std::sync::Arc;
use std::time::{Duration, Instant};

use libfabric_sys as sys;

use crate::Error;
use crate::clock::Clock;
use crate::endpoint::link::addressed_ep::AddressedEp;
use crate::endpoint::link::indices::Indices;
use crate::endpoint::link::peer_book::PeerBook;
use crate::endpoint::link::queue_wait::{Bound, RdmWait};
use crate::endpoint::link::rdm_hello::{self, HelloTail};
use crate::endpoint::link::refusals::{Refusals, Refusing};
use crate::endpoint::link::socket::{KernelWatch, TcpWatch};
use crate::endpoint::link::wait::LinkWait;
use crate::endpoint::link::{
    COMPLETION_BATCH, CloseFailed, CmData, CmEvent, Completions, ConnKey, Link, LinkConn,
    LinkLimits, PostRefused, RmaLimits, RmaPost, SendPost, settle,
};
use crate::errno::FabricErrno;
use crate::fabric::{
    Av, Cq, Domain, EndpointKind, EndpointSettings, Ep, FiAddr, Info, PeerAddr, check_local,
    check_peer, in_use, local_info,
};
use crate::in_flight::ContextKind;
use crate::memory::{AccessLedger, Participant, Registrar};
use crate::protocol::connection::Form;
use crate::protocol::wire::{self, HELLO_LEN, Hello};

/// Hellos that wait to be looked at; more are dropped, and their senders time out.
const REQUESTS_MAX: usize = 256;

/// Addresses that are only lingering beyond which refusals are not told: a flood of hellos must not
/// fill the vector.
const LINGERING_MAX: usize = 512;

/// The link.
#[derive(Debug)]
pub(crate) struct RdmLink {
    limits: LinkLimits,
    local: PeerAddr,
    tail: HelloTail,
    /// What endpoints are made of, and the sizes of their queues.
    info: Info,
    sizes: (usize, usize),
    listens: bool,
    indices: Box<Indices>,
    /// Connections that a listener accepted, by the peer's address, with the hello's words for
    /// which it is.
    live: HashMap<PeerAddr, LiveConnection>,
    events: VecDeque<CmEvent<RdmRequest>>,
    refusals: Refusals,
    book: PeerBook,
    /// The hub's, once there is one.
    clock: Clock,
    /// Completions that were read while the endpoint was closed.
    last: Completions,
    /// Gone once it is closed.
    ep: Option<Ep>,
    av: Arc<Av>,
    wait: Arc<RdmWait>,
    cq: Arc<Cq>,
    domain: Arc<Domain>,
}

/// The connection that a peer has, and the incarnation of the peer that made it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct LiveConnection {
    key: ConnKey,
    incarnation: u64,
    connection: u64,
}

impl RdmLink {
    /// A link for connections that this side makes, one after the other, with room for so many
    /// operations in flight.
    pub(crate) fn open(
        domain: &Arc<Domain>,
        tx: usize,
        rx: usize,
        settings: &EndpointSettings,
    ) -> Result<Self, Error> {
        let info = settings.info(domain.fabric())?;
        let link = Self::with(domain, info, (tx, rx), settings, false)?;
        settings.check_source(|| Some(link.local))?;
        Ok(link)
    }

    /// A link for many connections that this side makes, over one endpoint, with room for the
    /// operations of all together.
    pub(crate) fn dial(
        domain: &Arc<Domain>,
        tx: usize,
        rx: usize,
        settings: &EndpointSettings,
    ) -> Result<Self, Error> {
        let info = settings.info(domain.fabric())?;
        let link = Self::with(domain, info, (tx, rx), settings, true)?;
        settings.check_source(|| Some(link.local))?;
        Ok(link)
    }

    /// A link that listens, with room for the operations of all connections together.
    pub(crate) fn listen(
        domain: &Arc<Domain>,
        addr: &PeerAddr,
        tx: usize,
        rx: usize,
        settings: &EndpointSettings,
    ) -> Result<Self, Error> {
        let mut info = local_info(domain.fabric(), addr)?;
        settings.adjust(&mut info);
        let link = Self::with(domain, info, (tx, rx), settings, true)
            .map_err(|error| in_use(error, addr))?;
        check_local(addr, Some(link.local))?;
        Ok(link)
    }

    fn with(
        domain: &Arc<Domain>,
        info: Info,
        sizes: (usize, usize),
        settings: &EndpointSettings,
        listens: bool,
    ) -> Result<Self, Error> {
        let cq = Arc::new(Cq::open(domain, sizes.0 + sizes.1)?);
        let end = AddressedEp::open(domain, &info, settings.queue_sizes(sizes), &cq)?;
        let tx = info.tx();
        let mut rma = RmaLimits::of(&info, domain.fabric().provider(), EndpointKind::Rdm);
        if let Some(rma) = &mut rma {
            rma.immediate_bytes = rma.immediate_bytes.min(domain.fabric().cq_data());
        }
        let needs_cells = info.mode() & (sys::FI_CONTEXT | sys::FI_CONTEXT2) != 0;
        Ok(Self {
            limits: LinkLimits {
                iov_limit: tx.iov_limit,
                max_message: info.max_message(),
                contexts: if needs_cells {
                    ContextKind::Cells
                } else {
                    ContextKind::Opaque
                },
                shared_receives: end.receives,
                short_marks: domain.fabric().has_short_cq_data(),
                inject_size: tx.inject_size,
                inject_pays: domain.fabric().provider().inject_pays,
                pack_below: domain.fabric().provider().pack_below,
                gathers_below: None,
                uses_more: domain.fabric().provider().uses_more,
                rma,
            },
            sizes: settings.queue_sizes(sizes),
            refusals: Refusals::new(domain, tx.inject_size, needs_cells),
            info,
            listens,
            indices: Box::new(Indices::new(crate::endpoint::incarnation())),
            live: HashMap::new(),
            events: VecDeque::new(),
            book: PeerBook::default(),
            clock: Clock::system(),
            last: Completions::new(),
            local: end.local,
            tail: end.tail,
            ep: Some(end.ep),
            av: end.av,
            wait: Arc::new(RdmWait::new(&cq, domain)),
            cq,
            domain: Arc::clone(domain),
        })
    }

    /// Another endpoint in the place of the one that was closed, at another address.
    fn open_again(&mut self) -> Result<(), Error> {
        let end = AddressedEp::open(&self.domain, &self.info, self.sizes, &self.cq)?;
        self.book = PeerBook::default();
        (self.local, self.tail) = (end.local, end.tail);
        (self.ep, self.av) = (Some(end.ep), end.av);
        self.wait.set(Bound::Again);
        Ok(())
    }

    /// Where it is.
    pub(crate) fn local_addr(&self) -> PeerAddr {
        self.local
    }

    /// What a sleeping thread watches.
    pub(crate) fn waiter(&self) -> Arc<dyn LinkWait> {
        Arc::clone(&self.wait) as _
    }

    /// `short`: for an index that fits a short mark.
    fn join(&mut self, peer: PeerAddr, short: bool) -> Result<RdmConn, Error> {
        let ep = self.ep.as_ref();
        let raw = ep.ok_or_else(|| Error::fabric("fi_endpoint", libc::ESHUTDOWN))?;
        let raw = raw.as_ptr();
        check_peer(&self.local, &peer)?;
        let av = &self.av;
        let number = self.book.take(peer, || av.insert(&peer))?;
        let indices = match short {
            true => wire::SHORT_INDEX_MASK,
            false => wire::INDEX_MASK,
        };
        let index = self.indices.allot(indices);
        Ok(RdmConn {
            index,
            peer,
            number,
            raw,
        })
    }

    /// The connection that a peer had, if any, is over: the same address speaks for another one.
    fn supersede(&mut self, peer: &PeerAddr) {
        if let Some(live) = self.live.remove(peer) {
            self.events.push_back(CmEvent::Shutdown { conn: live.key });
        }
    }
}

impl Drop for RdmLink {
    fn drop(&mut self) {
        // Cores close what they opened; here, a listener that never came to be.
        self.wait.set(Bound::Closed);
        drop(self.ep.take());
    }
}

/// A peer that said hello and was not answered yet. Dropped without an answer, it times out.
#[derive(Debug)]
pub(crate) struct RdmRequest {
    peer: PeerAddr,
    hello: RequestHello,
}

/// What the link itself needs of a hello.
#[derive(Debug, Clone, Copy, Default)]
struct RequestHello {
    /// It needs short marks.
    short: bool,
    incarnation: u64,
    connection: u64,
}

/// A connection: an index here and a number there.
#[derive(Debug)]
pub(crate) struct RdmConn {
    index: u32,
    peer: PeerAddr,
    number: FiAddr,
    raw: *mut sys::fid_ep,
}

// SAFETY: the pointer is only handed out (`as_raw`); the endpoint's provider was opened with
// FI_THREAD_SAFE.
unsafe impl Send for RdmConn {}

impl RdmConn {
    pub(crate) fn as_raw(&self) -> Option<*mut sys::fid_ep> {
        Some(self.raw)
    }
}

impl LinkConn for RdmConn {
    fn key(&self) -> ConnKey {
        self.index as ConnKey
    }

    fn registrar(&self) -> Option<&dyn Registrar> {
        None
    }

    fn peer(&self) -> Option<PeerAddr> {
        Some(self.peer)
    }

    /// Its peer can open further connections beneath the endpoint: there is nothing that it could
    /// answer for.
    fn participant(&self) -> Option<&Participant> {
        None
    }
}

fn closed() -> PostRefused {
    PostRefused::Errno(FabricErrno::new(libc::ESHUTDOWN))
}

impl Link for RdmLink {
    type Conn = RdmConn;
    type Request = RdmRequest;

    fn form(&self) -> Form {
        Form::Rdm
    }

    fn shares_endpoint(&self) -> bool {
        self.listens
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

    fn prepare_connect(&mut self, peer: &PeerAddr) -> Result<RdmConn, Error> {
        if self.ep.is_none() {
            self.open_again()?;
        }
        // Whether the peer needs a short one is known when it is too late.
        self.join(*peer, true)
    }

    /// The hello is a message of the core's: there is nothing to start.
    fn connect(&mut self, _conn: &RdmConn, _peer: &PeerAddr, _data: &[u8]) -> Result<(), Error> {
        Err(Error::fabric("fi_connect", libc::ENOSYS))
    }

    fn prepare_accept(&mut self, request: RdmRequest) -> Result<RdmConn, (RdmRequest, Error)> {
        self.supersede(&request.peer);
        match self.join(request.peer, request.hello.short || self.limits.short_marks) {
            Ok(conn) => {
                let live = LiveConnection {
                    key: conn.key(),
                    incarnation: request.hello.incarnation,
                    connection: request.hello.connection,
                };
                self.live.insert(request.peer, live);
                Ok(conn)
            }
            Err(error) => Err((request, error)),
        }
    }

    fn peer_of(&self, request: &RdmRequest) -> Option<PeerAddr> {
        Some(request.peer)
    }

    /// The answer is a message of the core's: there is nothing more to accept.
    fn accept(&mut self, _conn: &mut RdmConn, _data: &[u8]) -> Result<(), Error> {
        Err(Error::fabric("fi_accept", libc::ENOSYS))
    }

    fn reject(&mut self, request: RdmRequest, data: &[u8]) {
        let now = self.clock.now();
        if self.book.lingering() >= LINGERING_MAX || !self.refusals.takes(data) {
            return;
        }
        let (av, peer) = (&self.av, request.peer);
        if check_peer(&self.local, &peer).is_err() {
            return;
        }
        let Ok(number) = self.book.take(peer, || av.insert(&peer)) else {
            return;
        };
        let index = request.hello.connection as u32 & wire::INDEX_MASK;
        let refusing = Refusing::new(peer, number, index, data, now);
        self.refusals.push(refusing);
        self.refusals.send(self.ep.as_ref(), &mut self.book, now);
    }

    fn close(&mut self, conn: RdmConn) -> Result<(), CloseFailed> {
        self.indices.free(conn.index);
        if !self.listens {
            return self.close_all();
        }
        if self
            .live
            .get(&conn.peer)
            .is_some_and(|live| live.key == conn.key())
        {
            self.live.remove(&conn.peer);
        }
        let is_its = |event: &CmEvent<RdmRequest>| {
            matches!(event, CmEvent::Shutdown { conn: key }
                if *key == conn.key())
        };
        self.events.retain(|event| !is_its(event));
        self.book.give_back(conn.peer, self.clock.now());
        Ok(())
    }

    fn close_all(&mut self) -> Result<(), CloseFailed> {
        self.refusals.clear();
        settle(&self.cq, &mut self.last);
        self.wait.set(Bound::Closed);
        let closed = self.ep.take().map_or(Ok(()), Ep::close);
        self.refusals.on_closed(closed.is_ok());
        closed.map_err(|code| CloseFailed(FabricErrno::new(code)))
    }

    #[inline]
    unsafe fn post_send(&mut self, conn: &RdmConn, post: &SendPost<'_>) -> Result<(), PostRefused> {
        let Some(ep) = &self.ep else {
            return Err(closed());
        };
        // SAFETY: the caller's promises; the endpoint is of no connected type.
        unsafe { ep.send(conn.number, post) }
    }

    #[inline]
    unsafe fn post_receive(
        &mut self,
        _conn: &RdmConn,
        base: *mut u8,
        len: usize,
        desc: *mut c_void,
        context: usize,
    ) -> Result<(), PostRefused> {
        // SAFETY: the caller's promises.
        unsafe { self.post_shared_receive(base, len, desc, context) }
    }

    #[inline]
    unsafe fn post_write(&mut self, conn: &RdmConn, post: &RmaPost<'_>) -> Result<(), PostRefused> {
        let Some(ep) = &self.ep else {
            return Err(closed());
        };
        // SAFETY: the caller's promises; the endpoint is of no connected type.
        unsafe { ep.write(conn.number, post) }
    }

    #[inline]
    unsafe fn post_read(&mut self, conn: &RdmConn, post: &RmaPost<'_>) -> Result<(), PostRefused> {
        let Some(ep) = &self.ep else {
            return Err(closed());
        };
        // SAFETY: the caller's promises; the endpoint is of no connected type.
        unsafe { ep.read(conn.number, post) }
    }

    #[inline]
    unsafe fn post_shared_receive(
        &mut self,
        base: *mut u8,
        len: usize,
        desc: *mut c_void,
        context: usize,
    ) -> Result<(), PostRefused> {
        let Some(ep) = &self.ep else {
            return Err(closed());
        };
        // SAFETY: the caller's promises.
        unsafe { ep.receive(base, len, desc, context) }
    }

    #[inline]
    fn poll_completions(&mut self, out: &mut Completions) -> Result<usize, Error> {
        let from = out.len();
        let mut read = if self.last.is_empty() {
            self.cq.read(out)?
        } else {
            let read = self.last.len().min(COMPLETION_BATCH);
            out.extend(self.last.drain(..read));
            read
        };
        if self.refusals.has_sends() {
            let now = self.clock.now();
            self.refusals.on_completions(out, from, &mut self.book, now);
            read = out.len() - from;
        }
        Ok(read)
    }

    fn poll_cm(&mut self) -> Result<Option<CmEvent<RdmRequest>>, Error> {
        if self.events.is_empty() && self.listens {
            let now = self.clock.now();
            self.refusals.send(self.ep.as_ref(), &mut self.book, now);
            let av = &self.av;
            self.book.expire(now, |number| av.remove(number));
        }
        Ok(self.events.pop_front())
    }

    fn hello_tail(&self) -> &[u8] {
        self.tail.as_slice()
    }

    fn take_hello(&mut self, message: &[u8]) {
        let format = self.domain.fabric().info().addr_format();
        let peer = rdm_hello::speaker(message)
            .filter(|peer| self.listens && crate::fabric::fits(format, peer));
        let Some(peer) = peer.filter(|_| self.events.len() < REQUESTS_MAX) else {
            tracing::debug!(bytes = message.len(), "a hello that can't be answered");
            return;
        };
        let words = &message[..HELLO_LEN];
        // A hello that is not understood is refused by whoever judges it, if it says where to.
        let hello = Hello::parse(words).map_or_else(
            |_| RequestHello {
                short: false,
                incarnation: 0,
                connection: Hello::peek_connection(words).unwrap_or(0),
            },
            |hello| RequestHello {
                short: hello.features & wire::FEATURE_SHORT_MARKS != 0,
                incarnation: hello.incarnation,
                connection: hello.connection,
            },
        );
        if let Some(live) = self.live.get(&peer) {
            if (live.incarnation, live.connection) == (hello.incarnation, hello.connection) {
                return tracing::debug!(%peer, "a hello that was heard before");
            }
            self.supersede(&peer);
        }
        self.events.push_back(CmEvent::Request {
            request: RdmRequest { peer, hello },
            data: CmData::new(words),
        });
    }

    /// A connection has no socket of its own.
    fn watch(&mut self, _conn: &RdmConn, _watch: &TcpWatch) -> KernelWatch {
        KernelWatch::Unavailable
    }

    /// As [`watch`](Self::watch).
    fn gather(&mut self, _conn: &mut RdmConn, _gather: bool) -> bool {
        false
    }

    /// As [`watch`](Self::watch).
    fn bytes_received(&mut self, _conn: &mut RdmConn) -> Option<u64> {
        None
    }

    /// Nobody is accepted before a hello came.
    fn reap_half_open(&mut self, _now: Instant, _patience: Duration) -> u64 {
        0
    }

    fn read_clock(&mut self, clock: &Clock) {
        self.clock = clock.clone();
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.refusals.next_deadline(&self.clock)
    }
}

#[cfg(all(test, not(loom)))]
#[path = "tests/rdm.rs"]
mod tests;
