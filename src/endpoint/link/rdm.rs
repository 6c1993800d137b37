//! `RdmLink`: the link over libfabric's endpoints without connections (FI_EP_RDM).
//!
//! One endpoint with its address vector and queue: for one connection that this side makes, or for
//! all those of a listener. Connections are made by messages (`connection`, RDM form); this link
//! knows who is where, finds the request in a hello, and says no to those whom nobody accepts.
//!
//! ```text
//!  hello ─► take_hello ─► Request ─► prepare_accept ─► RdmConn {index, number}
//!                            │                         messages name the index
//!                            └─► reject ─► a refusal, injected, or sent as a letter;
//!                                          tried again until its deadline
//! ```

#![allow(unsafe_code)]

use std::collections::{HashMap, HashSet, VecDeque};
use std::ffi::c_void;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use libfabric_sys as sys;
use smallvec::SmallVec;

use crate::Error;
use crate::endpoint::link::letter::Letter;
use crate::endpoint::link::peer_book::PeerBook;
use crate::endpoint::link::rdm_hello::{self, HelloTail};
use crate::endpoint::link::socket::{KernelWatch, TcpWatch};
use crate::endpoint::link::wait::LinkWait;
use crate::endpoint::link::{
    COMPLETION_BATCH, CloseFailed, CmData, CmEvent, Completions, ConnKey, Link, LinkConn,
    LinkLimits, PostRefused, RmaLimits, RmaPost, SendPost,
};
use crate::errno::FabricErrno;
use crate::fabric::{
    Av, Cq, Domain, EndpointKind, EndpointSettings, Ep, FiAddr, Info, PeerAddr, check_local,
    check_peer, in_use, local_info,
};
use crate::in_flight::ContextKind;
use crate::memory::{AccessLedger, Participant, Registrar};
use crate::protocol::connection::Form;
use crate::protocol::wire::{self, ControlKind, HELLO_LEN, Hello};

/// Hellos that wait to be looked at; more are dropped, and their senders time out.
const REQUESTS_MAX: usize = 256;

/// Refusals that wait for the provider to take them; more are not told, and the refused time out.
const REFUSALS_MAX: usize = 64;

/// Addresses that are only lingering beyond which refusals are not told: a flood of hellos must not
/// fill the vector.
const LINGERING_MAX: usize = 512;

/// How long a refusal is offered to a provider that has no way to the peer yet.
const REFUSAL_PATIENCE: Duration = Duration::from_secs(2);

/// Reads of the queue before the endpoint closes, at most, and so many in a row that must find
/// nothing.
const SETTLE_READS_MAX: u32 = 256;
const SETTLE_EMPTY_READS: u32 = 16;

/// Between two such offers.
const REFUSAL_RETRY: Duration = Duration::from_millis(1);

/// The link.
#[derive(Debug)]
pub(crate) struct RdmLink {
    limits: LinkLimits,
    local: PeerAddr,
    tail: HelloTail,
    /// What endpoints are made of, and the sizes of their queues.
    info: Info,
    sizes: (usize, usize),
    /// Most bytes that the provider takes by `fi_inject`.
    inject_size: usize,
    listens: bool,
    indices: Box<Indices>,
    /// Connections that a listener accepted, by the peer's address, with the hello's words for
    /// which it is.
    live: HashMap<PeerAddr, Life>,
    events: VecDeque<CmEvent<RdmRequest>>,
    refusals: VecDeque<Refusing>,
    /// For refusals of a provider that injects nothing; made with the first one.
    letter: Option<Box<Letter<Refusing>>>,
    book: PeerBook,
    /// Completions that were read while the endpoint was closed.
    last: Completions,
    /// Gone once it is closed.
    ep: Option<Ep>,
    av: Arc<Av>,
    wait: Arc<RdmWait>,
    cq: Arc<Cq>,
    domain: Arc<Domain>,
}

/// Which connection of which life of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Life {
    key: ConnKey,
    incarnation: u64,
    connection: u64,
}

/// A refusal under way.
#[derive(Debug)]
struct Refusing {
    peer: PeerAddr,
    number: FiAddr,
    /// Under which the peer wants to be addressed.
    index: u32,
    data: CmData,
    deadline: Instant,
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
                uses_more: domain.fabric().provider().uses_more,
                rma,
            },
            sizes: settings.queue_sizes(sizes),
            inject_size: tx.inject_size,
            info,
            listens,
            indices: Box::new(Indices::new(crate::endpoint::incarnation())),
            live: HashMap::new(),
            events: VecDeque::new(),
            refusals: VecDeque::new(),
            letter: None,
            book: PeerBook::default(),
            last: Completions::new(),
            local: end.local,
            tail: end.tail,
            ep: Some(end.ep),
            av: end.av,
            wait: Arc::new(RdmWait {
                cq: Arc::clone(&cq),
                domain: Arc::clone(domain),
                bound: Mutex::new(Bound::First),
            }),
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
        if let Some(life) = self.live.remove(peer) {
            self.events.push_back(CmEvent::Shutdown { conn: life.key });
        }
    }

    /// What the provider knows already it is made to deal with before the endpoint closes:
    /// `ofi_rxm` answers what it finds in its own queue on connections that it has just closed, and
    /// crashes. Never blocks; bounded.
    fn settle(&mut self) {
        let mut empty = 0;
        for _ in 0..SETTLE_READS_MAX {
            match self.cq.read(&mut self.last) {
                Ok(0) => empty += 1,
                Ok(_) => empty = 0,
                Err(_) => return,
            }
            if empty == SETTLE_EMPTY_READS {
                return;
            }
        }
    }

    /// Whether so many bytes can be sent without an operation of the core's.
    fn can_refuse(&mut self, data: &[u8]) -> bool {
        if data.len() <= self.inject_size {
            return true;
        }
        // A cell would have to live as long as the operation: no provider that wants some has asked
        // for it yet.
        if self.limits.contexts == ContextKind::Cells {
            return false;
        }
        if self.letter.is_none() {
            self.letter = Letter::new(&self.domain).map(Box::new);
        }
        self.letter.is_some()
    }

    /// Takes the completion of a refusal out of what was read behind that place.
    #[cold]
    fn on_letter(&mut self, out: &mut Completions, from: usize) {
        let done = self
            .letter
            .as_mut()
            .and_then(|it| it.take_completion(out, from));
        if let Some(refusing) = done {
            self.book.give_back(refusing.peer, Instant::now());
        }
    }

    /// Offers the refusals to the provider again.
    fn send_refusals(&mut self, now: Instant) {
        for _ in 0..self.refusals.len() {
            let (Some(ep), Some(refusing)) = (&self.ep, self.refusals.pop_front()) else {
                return;
            };
            let mark = wire::cq_data(ControlKind::REFUSAL, refusing.index);
            if refusing.data.as_slice().len() > self.inject_size {
                let Some(letter) = &mut self.letter else {
                    return self.book.give_back(refusing.peer, now);
                };
                let (to, data) = ((refusing.number, mark), refusing.data);
                match letter.send(ep, to, data.as_slice(), refusing) {
                    Err((PostRefused::Again, refusing)) if now < refusing.deadline => {
                        self.refusals.push_back(refusing);
                    }
                    Err((_, refusing)) => self.book.give_back(refusing.peer, now),
                    Ok(()) => {}
                }
                continue;
            }
            let sent = ep.inject(refusing.number, mark, refusing.data.as_slice());
            if sent == Err(PostRefused::Again) && now < refusing.deadline {
                self.refusals.push_back(refusing);
            } else {
                self.book.give_back(refusing.peer, now);
            }
        }
    }
}

/// An endpoint with its address vector and its address.
struct AddressedEp {
    ep: Ep,
    av: Arc<Av>,
    local: PeerAddr,
    tail: HelloTail,
    /// Receives that it takes.
    receives: u32,
}

impl AddressedEp {
    fn open(
        domain: &Arc<Domain>,
        info: &Info,
        sizes: (usize, usize),
        cq: &Arc<Cq>,
    ) -> Result<Self, Error> {
        let mut info = info.duplicate()?;
        let av = Arc::new(Av::open(domain)?);
        let ep = Ep::open_rdm(domain, &mut info, sizes, cq, &av)?;
        let unnamed = || Error::Unsupported {
            provider: info.provider_name(),
            need: "names its endpoints in a form that no peer can be told",
        };
        let local = ep.name(info.addr_format()).ok_or_else(unnamed)?;
        let tail = HelloTail::new(&local).ok_or_else(unnamed)?;
        Ok(Self {
            ep,
            av,
            local,
            tail,
            receives: u32::try_from(info.rx().size).unwrap_or(u32::MAX),
        })
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
                let life = Life {
                    key: conn.key(),
                    incarnation: request.hello.incarnation,
                    connection: request.hello.connection,
                };
                self.live.insert(request.peer, life);
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
        let now = Instant::now();
        let too_many =
            self.refusals.len() >= REFUSALS_MAX || self.book.lingering() >= LINGERING_MAX;
        if too_many || !self.can_refuse(data) {
            return;
        }
        let (av, peer) = (&self.av, request.peer);
        if check_peer(&self.local, &peer).is_err() {
            return;
        }
        let Ok(number) = self.book.take(peer, || av.insert(&peer)) else {
            return;
        };
        self.refusals.push_back(Refusing {
            peer,
            number,
            index: request.hello.connection as u32 & wire::INDEX_MASK,
            data: CmData::new(data),
            deadline: now + REFUSAL_PATIENCE,
        });
        self.send_refusals(now);
    }

    fn close(&mut self, conn: RdmConn) -> Result<(), CloseFailed> {
        self.indices.free(conn.index);
        if !self.listens {
            return self.close_all();
        }
        if self
            .live
            .get(&conn.peer)
            .is_some_and(|life| life.key == conn.key())
        {
            self.live.remove(&conn.peer);
        }
        let is_its = |event: &CmEvent<RdmRequest>| {
            matches!(event, CmEvent::Shutdown { conn: key }
                if *key == conn.key())
        };
        self.events.retain(|event| !is_its(event));
        self.book.give_back(conn.peer, Instant::now());
        Ok(())
    }

    fn close_all(&mut self) -> Result<(), CloseFailed> {
        self.refusals.clear();
        self.settle();
        self.wait.set(Bound::Closed);
        let closed = self.ep.take().map_or(Ok(()), Ep::close);
        if let Some(letter) = &mut self.letter {
            match closed {
                Ok(()) => drop(letter.end()),
                Err(_) => letter.leak(),
            }
        }
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
        if self.letter.is_some() {
            self.on_letter(out, from);
            read = out.len() - from;
        }
        Ok(read)
    }

    fn poll_cm(&mut self) -> Result<Option<CmEvent<RdmRequest>>, Error> {
        if self.events.is_empty() && self.listens {
            let now = Instant::now();
            self.send_refusals(now);
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
        if let Some(life) = self.live.get(&peer) {
            if (life.incarnation, life.connection) == (hello.incarnation, hello.connection) {
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
    fn bytes_received(&mut self, _conn: &mut RdmConn) -> Option<u64> {
        None
    }

    /// Nobody is accepted before a hello came.
    fn reap_half_open(&mut self, _now: Instant, _patience: Duration) -> u64 {
        0
    }

    fn next_deadline(&self) -> Option<Instant> {
        (!self.refusals.is_empty()).then(|| Instant::now() + REFUSAL_RETRY)
    }
}

/// Gives out indices in turn, so that one is not used again soon: a message for a connection that
/// is over names an index that nobody has. Where they begin is drawn at random: a restarted process
/// begins elsewhere.
#[derive(Debug)]
struct Indices {
    last: u32,
    taken: HashSet<u32>,
}

impl Indices {
    fn new(seed: u64) -> Self {
        // Two links of one process begin apart, too.
        let seed =
            seed.rotate_left(24) ^ crate::endpoint::next_connection().wrapping_mul(0x9E37_79B9);
        Self {
            last: (seed ^ (seed >> 32)) as u32 & wire::INDEX_MASK,
            taken: HashSet::new(),
        }
    }

    /// The next one within these bits that is free. Index 0 is nobody's: hellos carry it.
    fn allot(&mut self, mask: u32) -> u32 {
        loop {
            self.last = (self.last + 1) & wire::INDEX_MASK;
            let index = self.last & mask;
            // Fewer connections than indices (`max_connections`): this ends.
            if index != 0 && self.taken.insert(index) {
                return index;
            }
        }
    }

    fn free(&mut self, index: u32) {
        self.taken.remove(&index);
    }
}

/// The queue of a link, for a sleeping thread.
#[derive(Debug)]
struct RdmWait {
    cq: Arc<Cq>,
    domain: Arc<Domain>,
    /// Held while the provider is asked, which looks into the endpoint: it is not closed meanwhile.
    bound: Mutex<Bound>,
}

/// The endpoint that the queue is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bound {
    /// The one that it was opened with.
    First,
    /// None any more.
    Closed,
    /// One after that.
    Again,
}

impl RdmWait {
    fn bound(&self) -> MutexGuard<'_, Bound> {
        self.bound.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, bound: Bound) {
        *self.bound() = bound;
    }

    /// Whether `fi_trywait` may be asked.
    fn can_ask(&self, bound: Bound) -> bool {
        match bound {
            Bound::First => true,
            Bound::Closed => false,
            Bound::Again => !self.looks_into_closed(),
        }
    }

    fn looks_into_closed(&self) -> bool {
        self.domain.fabric().provider().waits_on_closed
    }
}

impl LinkWait for RdmWait {
    fn fds(&self) -> SmallVec<[RawFd; 3]> {
        self.cq.fd().into_iter().collect()
    }

    fn try_wait(&self) -> Result<bool, Error> {
        let bound = self.bound();
        if self.cq.fd().is_none() || !self.can_ask(*bound) {
            return Ok(true);
        }
        // SAFETY: `bound` is held, which is set before an endpoint is closed, and after that a
        // provider that looks into closed ones is not asked (`can_ask`).
        unsafe { self.cq.try_wait(None) }
    }

    fn must_look(&self) -> bool {
        self.looks_into_closed() && self.cq.fd().is_some() && *self.bound() == Bound::Again
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_is_not_used_again_soon_and_never_by_two() {
        let mut indices = Indices {
            last: wire::INDEX_MASK - 2,
            taken: HashSet::from([1]),
        };
        let all = wire::INDEX_MASK;
        let first = indices.allot(all);
        assert_eq!(first, wire::INDEX_MASK - 1);
        assert_eq!(indices.allot(all), wire::INDEX_MASK);
        assert_eq!(indices.allot(all), 2, "0 is nobody's, 1 is taken");
        indices.free(first);
        for _ in 0..100_000 {
            assert_ne!(indices.allot(all), first);
        }
        let begins: std::collections::HashSet<_> =
            (0..100).map(|seed| Indices::new(seed).last).collect();
        assert!(begins.len() > 90, "lives begin apart");
    }
}
