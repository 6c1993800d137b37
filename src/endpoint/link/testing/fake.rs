//! A link without a network, for tests: one listener and any number of connecting links in memory,
//! and faults on demand.
//!
//! Nothing moves by itself: [`Net::deliver`] moves one message from where it really lies to where
//! it is really received, as a network card would, so a freed buffer is read or written for real.
//! What a provider may do wrong is scripted: refused posts, failed operations, invented
//! completions, broken queues, an endpoint that will not close.

#![allow(unsafe_code)]

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::ffi::c_void;
use std::os::fd::RawFd;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use smallvec::SmallVec;

use crate::Error;
use crate::clock::Clock;
use crate::endpoint::event::Level;
use crate::endpoint::link::socket::{KernelWatch, TcpWatch};
use crate::endpoint::link::wait::LinkWait;
use crate::endpoint::link::{
    COMPLETION_BATCH, CloseFailed, CmData, CmEvent, Completions, ConnKey, IOV_MAX, Link,
    LinkCompletion, LinkConn, LinkLimits, PEER_WROTE, PostRefused, RemoteRange, RmaLimits, RmaPost,
    SendPost,
};
use crate::error::{CompletionError, FabricErrno, RegisterError};
use crate::fabric::{self, AccessEnds, EndpointKind, PeerAddr, Provider};
use crate::in_flight::ContextKind;
use crate::memory::{
    Access, AccessLedger, DeviceRange, Participant, RawRegistration, Registrar, Scope, ScopeGuard,
};
use crate::protocol::connection::Form;
use crate::protocol::wire::{self, ControlKind, HELLO_LEN, Hello};

mod device;
mod hands;
mod weather;

pub(crate) use device::{DeviceSupport, Offer, is_open};

/// What the provider writes into a context cell whenever it touches it.
const CELL_MARK: usize = 0x5a5a_5a5a;

/// What kind of provider the net is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NetConfig {
    pub(crate) form: Form,
    pub(crate) iov_limit: usize,
    pub(crate) max_message: u64,
    pub(crate) contexts: ContextKind,
    /// Registrations belong to endpoints.
    pub(crate) endpoint_scope: bool,
    /// Messages carry 4 bytes of CQ data and no more.
    pub(crate) short_cq_data: bool,
    pub(crate) inject_size: usize,
    pub(crate) inject_pays: bool,
    pub(crate) uses_more: bool,
    /// Where its kernel may gather messages.
    pub(crate) gathers_below: Option<u64>,
    /// The kernel can be told.
    pub(crate) can_gather: bool,
    /// One-sided operations.
    pub(crate) rma: Option<RmaLimits>,
    /// Access to a device's memory, if there is any.
    pub(crate) device: Option<DeviceSupport>,
}

impl Default for NetConfig {
    fn default() -> Self {
        Self {
            form: Form::Msg,
            iov_limit: 4,
            max_message: 1 << 20,
            contexts: ContextKind::Opaque,
            endpoint_scope: false,
            short_cq_data: false,
            inject_size: 64,
            inject_pays: false,
            uses_more: false,
            gathers_below: None,
            can_gather: true,
            rma: Some(RmaLimits {
                iov_limit: 4,
                max_bytes: 1 << 20,
                immediate_bytes: 8,
                virtual_addresses: false,
                key_bytes: 8,
                ordered: true,
                reads_outlive_close: false,
                holds_registrations: false,
                access_ends: AccessEnds::BehindFence,
            }),
            device: None,
        }
    }
}

impl NetConfig {
    /// As the provider table describes a provider, with the kind of endpoint that it has by
    /// default.
    pub(crate) fn of(row: &Provider) -> Self {
        let kind = row.endpoints[0];
        let base = Self::default();
        let rma = base.rma.map(|rma| RmaLimits {
            iov_limit: row.iov_limit.min(IOV_MAX),
            immediate_bytes: row.queues.cq_data,
            // FI_MR_BASIC providers; those with offsets are what the default is.
            virtual_addresses: !row.memory.offset_windows && !row.memory.endpoint_scope,
            ordered: kind == EndpointKind::Msg,
            reads_outlive_close: row.memory.reads_outlive_close,
            holds_registrations: row.memory.holds_registrations,
            access_ends: row.access_ends(kind),
            ..rma
        });
        Self {
            form: match kind {
                EndpointKind::Msg => Form::Msg,
                EndpointKind::Rdm => Form::Rdm,
            },
            iov_limit: row.iov_limit.min(IOV_MAX),
            contexts: match row.queues.context_cells {
                true => ContextKind::Cells,
                false => ContextKind::Opaque,
            },
            endpoint_scope: row.memory.endpoint_scope,
            short_cq_data: row.queues.cq_data < size_of::<u64>(),
            rma,
            ..base
        }
    }
}

/// What the order log says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A registration of the memory at `base`, by the registrar with this number, was closed.
    MrClosed {
        registrar: usize,
        base: usize,
    },
    EpClosed(ConnKey),
    /// A link, with its queues.
    LinkClosed(usize),
    /// Logged by whatever keeps the region alive ([`Net::keep_alive`]).
    RegionFreed(usize),
}

/// What becomes of operations in flight when their endpoint is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CloseMode {
    /// Reported as cancelled, as tcp does.
    Reports,
    /// Never heard of again, as with rxm and shm.
    Silent,
    /// The endpoint does not close.
    Fails,
}

// ---- memory -------------------------------------------------------------------------------------

#[derive(Clone, Copy, Debug)]
struct Mr {
    registrar: usize,
    base: usize,
    len: usize,
    /// What a peer may do.
    access: Access,
}

#[derive(Debug, Default)]
struct Ledger {
    log: Vec<Step>,
    mrs: HashMap<usize, Mr>,
    next_mr: usize,
    next_registrar: usize,
    /// Domains take no more registrations.
    full: bool,
    /// Memory that is gone: base, length.
    freed: Vec<(usize, usize)>,
    /// What was said of a device's memory.
    offers: Vec<Offer>,
    /// What the cores did that no core may do.
    offences: Vec<String>,
}

impl Ledger {
    fn check(&mut self, what: &str, (base, len, desc): Run, registrar: usize) {
        match self.mrs.get(&desc) {
            Some(mr) if mr.registrar != registrar => self.offences.push(format!(
                "{what}: descriptor {desc} is of registrar {}, not {registrar}",
                mr.registrar
            )),
            Some(mr) if base < mr.base || base + len > mr.base + mr.len => {
                self.offences
                    .push(format!("{what}: outside of its registration"));
            }
            Some(_) => {}
            None => self
                .offences
                .push(format!("{what}: descriptor {desc} is not open")),
        }
    }
}

impl Ledger {
    /// Where a peer's operation begins, if the registration allows it.
    fn resolve(
        &self,
        remote: &RemoteRange,
        access: Access,
        registrar: usize,
        virt: bool,
    ) -> Option<usize> {
        let mr = self.mrs.get(&(remote.key as usize))?;
        if mr.registrar != registrar || !mr.access.contains(access) {
            return None;
        }
        let from = if virt { mr.base } else { 0 } as u64;
        let offset = remote.addr.checked_sub(from)?;
        let inside = offset.checked_add(remote.len as u64)? <= mr.len as u64;
        inside.then(|| mr.base + offset as usize)
    }

    /// Says, and remembers, if a peer's operation touches memory that is gone.
    fn may_touch(&mut self, base: usize, len: usize) -> bool {
        let hit = |(at, size): &(usize, usize)| base < at + size && *at < base + len;
        let gone = self.freed.iter().any(hit);
        if gone {
            self.offences
                .push("a peer touches memory that is gone".to_owned());
        }
        !gone
    }
}

type SharedLedger = Arc<Mutex<Ledger>>;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A domain, or an endpoint that wants registrations of its own.
#[derive(Debug)]
pub(crate) struct FakeMemory {
    id: usize,
    guard: Arc<FakeScope>,
    ledger: SharedLedger,
    /// When memory that peers could reach is free.
    access: Arc<AccessLedger>,
    device: Option<DeviceSupport>,
}

/// A scope, which is free again when the test that allocated it is over: what such a test leaks by
/// intent keeps its scope else, and a process has 64.
#[derive(Debug)]
struct FakeScope {
    scope: Scope,
    guard: Mutex<Option<ScopeGuard>>,
}

impl FakeScope {
    fn allocate() -> Arc<Self> {
        let guard = Scope::allocate().expect("fewer than 64 scopes at a time");
        let scope = guard.scope();
        let guard = Mutex::new(Some(guard));
        let fake = Arc::new(Self { scope, guard });
        ALLOCATED.with_borrow_mut(|all| {
            all.0.retain(|fake| fake.strong_count() > 0);
            all.0.push(Arc::downgrade(&fake));
        });
        fake
    }
}

/// Those of one thread: each test has its own.
struct AllocatedScopes(Vec<Weak<FakeScope>>);

impl Drop for AllocatedScopes {
    fn drop(&mut self) {
        for leaked in self.0.iter().filter_map(Weak::upgrade) {
            drop(lock(&leaked.guard).take());
        }
    }
}

thread_local! {
    static ALLOCATED: RefCell<AllocatedScopes> =
        const { RefCell::new(AllocatedScopes(Vec::new())) };
}

impl FakeMemory {
    fn new(ledger: &SharedLedger, device: Option<DeviceSupport>) -> Self {
        let mut inner = lock(ledger);
        inner.next_registrar += 1;
        Self {
            id: inner.next_registrar,
            guard: FakeScope::allocate(),
            ledger: Arc::clone(ledger),
            access: AccessLedger::new(),
            device,
        }
    }

    /// Its number in the order log.
    pub(crate) fn id(&self) -> usize {
        self.id
    }

    /// When memory that peers could reach is free.
    pub(crate) fn access_ledger(&self) -> &Arc<AccessLedger> {
        &self.access
    }
}

impl Registrar for FakeMemory {
    fn scope(&self) -> Scope {
        self.guard.scope
    }

    fn register(&self, base: NonNull<u8>, len: usize) -> Result<RawRegistration, RegisterError> {
        let (full, limit) = {
            let ledger = lock(&self.ledger);
            (ledger.full, ledger.mrs.len())
        };
        match full {
            true => Err(RegisterError::DomainLimit { limit }),
            false => Ok(self.open(base, len, Access::empty())),
        }
    }

    fn register_window(
        &self,
        base: NonNull<u8>,
        len: usize,
        access: Access,
    ) -> Result<RawRegistration, RegisterError> {
        Ok(self.open(base, len, access))
    }

    fn register_device(
        &self,
        memory: &DeviceRange,
        rights: Option<Access>,
    ) -> Result<RawRegistration, RegisterError> {
        let none = self.device.is_none().then_some("the net has no FI_HMEM");
        fabric::register_device(self, none.map_or(Ok(()), Err), memory, rights)
    }
}

impl FakeMemory {
    fn open(&self, base: NonNull<u8>, len: usize, access: Access) -> RawRegistration {
        let mut ledger = lock(&self.ledger);
        ledger.next_mr += 1;
        let id = ledger.next_mr;
        let base = base.as_ptr().expose_provenance();
        let mr = Mr {
            registrar: self.id,
            base,
            len,
            access,
        };
        ledger.mrs.insert(id, mr);
        let open = OpenMr {
            id,
            ledger: Arc::clone(&self.ledger),
            _guard: Arc::clone(&self.guard),
        };
        let desc = std::ptr::without_provenance_mut(id);
        RawRegistration::new(desc, id as u64, Box::new(open))
    }
}

struct OpenMr {
    id: usize,
    ledger: SharedLedger,
    _guard: Arc<FakeScope>,
}

impl Drop for OpenMr {
    fn drop(&mut self) {
        let mut ledger = lock(&self.ledger);
        if let Some(Mr {
            registrar, base, ..
        }) = ledger.mrs.remove(&self.id)
        {
            ledger.log.push(Step::MrClosed { registrar, base });
        }
    }
}

/// Keeps external memory for a region, and logs when it goes.
pub(crate) struct KeepAlive {
    number: usize,
    ledger: SharedLedger,
    memory: Box<[u64]>,
}

impl Drop for KeepAlive {
    fn drop(&mut self) {
        let range = (self.memory.as_ptr().addr(), size_of_val(&*self.memory));
        let mut ledger = lock(&self.ledger);
        ledger.log.push(Step::RegionFreed(self.number));
        ledger.freed.push(range);
    }
}

// ---- the network --------------------------------------------------------------------------------

/// Address, length, descriptor.
type Run = (usize, usize, usize);

#[derive(Debug)]
enum Body {
    /// Where the bytes lie until the operation is over.
    Live(Vec<Run>),
    Copied(Vec<u8>),
}

#[derive(Debug)]
struct Sent {
    body: Body,
    /// None: posted by nobody, so nobody hears of its completion.
    context: Option<usize>,
    data: Option<u64>,
    /// Not a message but a one-sided operation.
    rma: Option<Rma>,
    /// Flagged to be followed by another, and not followed yet.
    kept_back: bool,
}

/// A one-sided operation.
#[derive(Clone, Copy, Debug)]
struct Rma {
    access: Access,
    remote: RemoteRange,
    immediate: Option<u64>,
    level: Level,
    /// The peer's provider has looked up the key: where in its memory, and how many bytes were
    /// moved.
    begun: Option<(usize, usize)>,
}

/// Where a message goes.
#[derive(Clone, Copy, Debug)]
enum Way {
    OneSided,
    /// To a receive of a listener that does not know the connection yet.
    Hello(usize),
    Message(ConnKey),
}

#[derive(Clone, Copy, Debug)]
struct Receive {
    run: Run,
    context: usize,
    registrar: usize,
}

#[derive(Debug, PartialEq, Eq, Clone, Copy)]
enum Phase {
    New,
    Asked,
    Connected,
    Closed,
    Stuck,
}

#[derive(Debug)]
struct ConnState {
    link: usize,
    registrar: usize,
    peer: Option<ConnKey>,
    /// The link that it was to connect to.
    target: Option<usize>,
    phase: Phase,
    /// Made by the test: nobody closes it.
    by_hand: bool,
    /// Its kernel gathers what it sends, and acknowledges nothing.
    gathers: bool,
    sends: VecDeque<Sent>,
    receives: VecDeque<Receive>,
}

#[derive(Debug)]
enum Cm {
    Request { initiator: ConnKey, hello: Vec<u8> },
    Connected { conn: ConnKey, data: Vec<u8> },
    Refused { conn: ConnKey, data: Vec<u8> },
    Shutdown { conn: ConnKey },
}

#[derive(Debug)]
struct LinkState {
    /// The connections that there are and were.
    conns: Vec<ConnKey>,
    cm: VecDeque<Cm>,
    cq: VecDeque<LinkCompletion>,
    cq_error: Option<i32>,
    cm_error: Option<i32>,
    send_faults: VecDeque<PostRefused>,
    send_always: Option<PostRefused>,
    /// After so many sends, one is refused like this.
    second_fault: Option<(usize, PostRefused)>,
    receive_always: Option<PostRefused>,
    /// Sends and receives that each of its connections has room for; else they grow as they have
    /// to.
    room: Option<(usize, usize)>,
    close: CloseMode,
    /// So many completions are reported twice.
    double: usize,
    /// So many writes of strangers are still to come, as fast as the queue is read; and what they
    /// say.
    flood: (usize, u64),
    /// RDM form, listening: the receives that all connections share; none once the endpoint is
    /// closed.
    shared: Option<VecDeque<Receive>>,
    /// Others can connect to it: it is the listener, or a hub, which has an address of its own.
    listens: bool,
    registrar: usize,
    /// Sends that were flagged to be followed by another, and those that were injected, so far.
    flagged: usize,
    injected: usize,
    late: weather::Late,
}

#[derive(Debug)]
struct State {
    config: NetConfig,
    links: Vec<LinkState>,
    conns: Vec<ConnState>,
    /// Those that are open or have something to send, in order, and some that do not any more:
    /// nothing comes of any other.
    live: Vec<ConnKey>,
    /// Messages that went to an endpoint which was gone.
    lost: u64,
    listener: Option<usize>,
    /// Which connection delivers next.
    turn: usize,
    ledger: SharedLedger,
}

impl State {
    fn offence(&self, what: String) {
        lock(&self.ledger).offences.push(what);
    }

    fn touch_cell(&self, context: usize) {
        if self.config.contexts == ContextKind::Cells {
            let cell = std::ptr::with_exposed_provenance_mut::<usize>(context);
            // SAFETY: only for contexts of operations that the cores posted and that are not over;
            // if a core freed the cells too early, this is the wild write that a real provider
            // would do, and the sanitizer sees it.
            unsafe { cell.write_volatile(CELL_MARK) };
        }
    }

    fn report(&mut self, link: usize, completion: LinkCompletion) {
        self.touch_cell(completion.context);
        let link = &mut self.links[link];
        if link.double > 0 {
            link.double -= 1;
            link.cq.push_back(completion.clone());
        }
        link.cq.push_back(completion);
    }

    fn finish_send(&mut self, conn: ConnKey, sent: &Sent, errno: Option<i32>) {
        if let Some(context) = sent.context {
            self.report_sent(self.conns[conn].link, context, errno);
        }
    }

    /// Reads a message from where it lies.
    fn gather(&self, conn: ConnKey, sent: &Sent) -> Vec<u8> {
        match &sent.body {
            Body::Copied(bytes) => bytes.clone(),
            Body::Live(runs) => {
                let mut bytes = Vec::new();
                for &run in runs {
                    lock(&self.ledger).check("send", run, self.conns[conn].registrar);
                    // SAFETY: the contract of `Link::post_send`; where a core breaks it, this finds
                    // out.
                    bytes.extend(unsafe { self.load(run.0, run.1) });
                }
                bytes
            }
        }
    }

    fn add_conn(&mut self, conn: ConnState) -> ConnKey {
        let key = self.conns.len();
        self.links[conn.link].conns.push(key);
        self.conns.push(conn);
        self.live.push(key);
        key
    }

    /// Posted: it is the last of what this connection has to send.
    fn put(&mut self, conn: ConnKey, sent: Sent) {
        self.conns[conn].sends.push_back(sent);
        if let Err(at) = self.live.binary_search(&conn) {
            self.live.insert(at, conn);
        }
    }

    /// Where the oldest message of a connection goes, if it is taken there now.
    fn way(&self, conn: ConnKey) -> Option<Way> {
        let state = &self.conns[conn];
        let lets_go = |sent: &&Sent| !sent.kept_back && !state.gathers;
        let front = state.sends.front().filter(lets_go)?;
        if front.rma.is_some() {
            return self.reachable_peer(conn).map(|_| Way::OneSided);
        }
        let kind = front.data.map(kind_of);
        match (state.peer, state.target) {
            (None, Some(listener)) if kind == Some(ControlKind::HELLO) => {
                let link = &self.links[listener];
                let has_room = link.shared.as_ref().is_some_and(|it| !it.is_empty());
                (has_room || link.late.refuses > 0).then_some(Way::Hello(listener))
            }
            (Some(peer), _) => (!self.receives_of(peer).is_empty()).then_some(Way::Message(peer)),
            _ => None,
        }
    }

    /// Moves the oldest message of a connection, if its peer has a receive for it.
    fn deliver_from(&mut self, conn: ConnKey) -> bool {
        match self.way(conn) {
            None => false,
            Some(Way::OneSided) => self.deliver_rma(conn),
            Some(Way::Hello(listener)) => self.deliver_hello(conn, listener),
            Some(Way::Message(peer)) => self.deliver_message(conn, peer),
        }
    }

    fn deliver_message(&mut self, conn: ConnKey, peer: ConnKey) -> bool {
        let Some(receive) = self.receives_at(peer).pop_front() else {
            return false;
        };
        let Some(sent) = self.conns[conn].sends.pop_front() else {
            return false;
        };
        let bytes = self.gather(conn, &sent);
        self.finish_send(conn, &sent, None);
        self.receive(peer, receive, &bytes, sent.data);
        true
    }

    fn receives_of(&self, conn: ConnKey) -> &VecDeque<Receive> {
        let state = &self.conns[conn];
        let shared = self.links[state.link].shared.as_ref();
        shared.unwrap_or(&state.receives)
    }

    /// Where a message for this connection is received: at its own receives, or at those of its
    /// listener.
    fn receives_at(&mut self, conn: ConnKey) -> &mut VecDeque<Receive> {
        let state = &mut self.conns[conn];
        match &mut self.links[state.link].shared {
            Some(shared) => shared,
            None => &mut state.receives,
        }
    }

    /// The peer's provider looks up the key, and moves the first half of a write. Whatever becomes
    /// of the registration, the rest follows.
    fn begin_rma(&mut self, conn: ConnKey) -> bool {
        let Some(peer) = self.reachable_peer(conn) else {
            return false;
        };
        let Some(rma) = self.conns[conn].sends.front().and_then(|sent| sent.rma) else {
            return false;
        };
        let virt = self.config.rma.is_some_and(|rma| rma.virtual_addresses);
        let registrar = self.conns[peer].registrar;
        let found = lock(&self.ledger).resolve(&rma.remote, rma.access, registrar, virt);
        let Some(base) = found else {
            self.deny(conn, peer);
            return false;
        };
        self.move_rma(conn, base, 0..rma.remote.len / 2);
        if let Some(Sent { rma: Some(rma), .. }) = self.conns[conn].sends.front_mut() {
            rma.begun = Some((base, rma.remote.len / 2));
        }
        true
    }

    /// RDM form: an endpoint is reached as long as it is open, whatever became of the connection.
    fn reachable_peer(&self, conn: ConnKey) -> Option<ConnKey> {
        let peer = self.conns[conn].peer?;
        let state = &self.conns[peer];
        let reached = match self.config.form {
            Form::Msg => state.phase == Phase::Connected,
            Form::Rdm => state.phase != Phase::Closed || self.links[state.link].shared.is_some(),
        };
        reached.then_some(peer)
    }

    /// As tcp: who wrote with the weaker level hears of success; then the connection is gone.
    fn deny(&mut self, conn: ConnKey, peer: ConnKey) {
        if let Some(sent) = self.conns[conn].sends.pop_front() {
            let confirmed = sent
                .rma
                .is_some_and(|rma| rma.level == Level::Delivered || rma.access == Access::READ);
            self.finish_send(conn, &sent, confirmed.then_some(libc::ECANCELED));
        }
        if self.config.form == Form::Rdm {
            return;
        }
        for end in [conn, peer] {
            self.flush(end, libc::ECANCELED);
            let link = self.conns[end].link;
            self.links[link].cm.push_back(Cm::Shutdown { conn: end });
        }
    }

    fn deliver_rma(&mut self, conn: ConnKey) -> bool {
        let begun = |state: &Self| {
            let front = state.conns[conn].sends.front();
            front.and_then(|sent| sent.rma.and_then(|rma| rma.begun.map(|begun| (rma, begun))))
        };
        let Some(peer) = self.reachable_peer(conn) else {
            return false;
        };
        if begun(self).is_none() && !self.begin_rma(conn) {
            return false;
        }
        let Some((rma, (base, moved))) = begun(self) else {
            return false;
        };
        self.move_rma(conn, base, moved..rma.remote.len);
        let Some(sent) = self.conns[conn].sends.pop_front() else {
            return false;
        };
        self.finish_send(conn, &sent, None);
        if let Some(immediate) = rma.immediate {
            let told = completion(PEER_WROTE, 0, Some(immediate), None);
            let link = self.conns[peer].link;
            self.links[link].cq.push_back(told);
        }
        true
    }

    /// Moves a part of the first operation of a connection between the two memories.
    fn move_rma(&self, conn: ConnKey, base: usize, part: std::ops::Range<usize>) {
        let Some(Sent {
            body: Body::Live(runs),
            rma: Some(rma),
            ..
        }) = self.conns[conn].sends.front()
        else {
            return;
        };
        if part.is_empty() || !lock(&self.ledger).may_touch(base, rma.remote.len) {
            return;
        }
        let mut at = 0;
        for &(start, len, desc) in runs {
            lock(&self.ledger).check("one-sided", (start, len, desc), self.conns[conn].registrar);
            let from = part.start.clamp(at, at + len);
            let to = part.end.clamp(at, at + len);
            let (local, remote) = (start + (from - at), base + from);
            let (source, target) = match rma.access {
                Access::READ => (remote, local),
                _ => (local, remote),
            };
            // SAFETY: the contract of `Link::post_write` and `Link::post_read` for the one side,
            // that of a window's memory for the other; where a core breaks them, this finds out.
            let bytes = unsafe { self.load(source, to - from) };
            // SAFETY: as above.
            unsafe { self.store(target, &bytes) };
            at += len;
        }
    }

    /// RDM form: a hello takes whichever receive of the listener is next.
    fn deliver_hello(&mut self, conn: ConnKey, listener: usize) -> bool {
        if self.turns_away(listener) {
            if let Some(sent) = self.conns[conn].sends.pop_front() {
                self.finish_send(conn, &sent, Some(libc::EHOSTUNREACH));
            }
            return true;
        }
        let shared = self.links[listener].shared.as_mut();
        let Some(receive) = shared.and_then(VecDeque::pop_front) else {
            return false;
        };
        let Some(sent) = self.conns[conn].sends.pop_front() else {
            return false;
        };
        let bytes = self.gather(conn, &sent);
        self.finish_send(conn, &sent, None);
        self.receive_at(listener, receive, &bytes, sent.data);
        true
    }

    fn receive(&mut self, conn: ConnKey, receive: Receive, bytes: &[u8], data: Option<u64>) {
        self.receive_at(self.conns[conn].link, receive, bytes, data);
    }

    fn receive_at(&mut self, link: usize, receive: Receive, bytes: &[u8], data: Option<u64>) {
        let (base, room, _) = receive.run;
        lock(&self.ledger).check("receive", receive.run, receive.registrar);
        let len = bytes.len().min(room);
        // SAFETY: the contract of `Link::post_receive`; where a core breaks it, this finds out.
        unsafe { self.store(base, &bytes[..len]) };
        let errno = (bytes.len() > room).then_some(libc::EMSGSIZE);
        let done = completion(receive.context, len, data, errno);
        self.report(link, done);
    }

    fn deliver(&mut self, limit: usize) -> usize {
        let mut delivered = 0;
        let mut idle = 0;
        while delivered < limit && idle < self.conns.len() {
            let conn = self.turn % self.conns.len();
            self.turn += 1;
            if self.deliver_from(conn) {
                delivered += 1;
                idle = 0;
            } else {
                idle += 1;
            }
        }
        delivered
    }

    /// What was flagged to be followed by another send was followed.
    fn let_go(&mut self, link: usize) {
        for &conn in &self.live {
            let conn = &mut self.conns[conn];
            if conn.link == link {
                let sends = conn.sends.iter_mut();
                sends.for_each(|sent| sent.kept_back = false);
            }
        }
    }

    /// Everything outstanding on a connection fails.
    fn flush(&mut self, conn: ConnKey, errno: i32) {
        let sends = std::mem::take(&mut self.conns[conn].sends);
        let receives = std::mem::take(&mut self.conns[conn].receives);
        for sent in &sends {
            self.finish_send(conn, sent, Some(errno));
        }
        for receive in receives {
            let failed = completion(receive.context, 0, None, Some(errno));
            self.report(self.conns[conn].link, failed);
        }
    }

    fn refuse(&mut self, initiator: ConnKey, data: &[u8]) {
        let link = self.conns[initiator].link;
        if self.conns[initiator].phase == Phase::Closed {
            return;
        }
        // In the RDM form a refusal is a message (`refuse_by_message`), and without words there is
        // none.
        if self.config.form == Form::Msg {
            self.links[link].cm.push_back(Cm::Refused {
                conn: initiator,
                data: data.to_vec(),
            });
        }
    }

    /// RDM form: a refusal is a message to whoever said hello.
    fn refuse_by_message(&mut self, initiator: ConnKey, hello: &[u8], data: &[u8]) {
        let Some(index) = Hello::peek_connection(hello) else {
            return;
        };
        let Some(receive) = self.receives_at(initiator).pop_front() else {
            return;
        };
        let mark = wire::cq_data(ControlKind::REFUSAL, index as u32);
        self.receive(initiator, receive, data, Some(mark.into()));
    }

    /// RDM form: the endpoint that all connections of a listener share.
    fn close_all(&mut self, link: usize) -> Result<(), CloseFailed> {
        let Some(receives) = self.links[link].shared.take() else {
            return Ok(());
        };
        let mut its = self.links[link].conns.clone();
        its.retain(|&conn| !self.conns[conn].by_hand);
        match self.links[link].close {
            CloseMode::Fails => {
                for &conn in &its {
                    self.conns[conn].phase = Phase::Stuck;
                }
                // Where `use_stuck` finds them.
                match its.first() {
                    Some(&conn) => self.conns[conn].receives = receives,
                    None => self.links[link].shared = Some(receives),
                }
                return Err(CloseFailed(FabricErrno::new(libc::EBUSY)));
            }
            mode => {
                for &conn in &its {
                    self.end_sends(conn, mode == CloseMode::Reports);
                    lock(&self.ledger).log.push(Step::EpClosed(conn));
                }
                for receive in receives {
                    if mode == CloseMode::Reports {
                        let code = Some(libc::ECANCELED);
                        self.report(link, completion(receive.context, 0, None, code));
                    }
                }
            }
        }
        self.catch_up(link);
        Ok(())
    }

    /// The sends of a connection whose endpoint closes; in the RDM form its last words are on the
    /// wire already.
    fn end_sends(&mut self, conn: ConnKey, reports: bool) {
        self.keep_last_words(conn);
        let sends = std::mem::take(&mut self.conns[conn].sends);
        let (last, cancelled): (VecDeque<_>, VecDeque<_>) =
            sends.into_iter().partition(|sent| sent.context.is_none());
        self.conns[conn].sends = last;
        for sent in cancelled.iter().filter(|_| reports) {
            self.finish_send(conn, sent, Some(libc::ECANCELED));
        }
    }

    fn close(&mut self, conn: ConnKey) -> Result<(), CloseFailed> {
        let link = self.conns[conn].link;
        if self.links[link].shared.is_some() {
            // What is in flight stays in flight.
            self.catch_up(link);
            self.conns[conn].phase = Phase::Closed;
            return Ok(());
        }
        match self.links[link].close {
            CloseMode::Fails => {
                self.conns[conn].phase = Phase::Stuck;
                return Err(CloseFailed(FabricErrno::new(libc::EBUSY)));
            }
            CloseMode::Reports => {
                self.end_sends(conn, true);
                let last = std::mem::take(&mut self.conns[conn].sends);
                self.flush(conn, libc::ECANCELED);
                self.conns[conn].sends = last;
            }
            CloseMode::Silent => {
                self.end_sends(conn, false);
                self.conns[conn].receives.clear();
            }
        }
        self.catch_up(link);
        let before = std::mem::replace(&mut self.conns[conn].phase, Phase::Closed);
        lock(&self.ledger).log.push(Step::EpClosed(conn));
        self.links[link]
            .cm
            .retain(|event| event.conn() != Some(conn));
        self.tell_peer(conn, before);
        Ok(())
    }

    /// RDM form: control messages that were posted are on the wire already, whatever becomes of the
    /// connection.
    fn keep_last_words(&mut self, conn: ConnKey) {
        if self.config.form == Form::Msg {
            return;
        }
        let mut copies = Vec::new();
        for sent in self.conns[conn]
            .sends
            .iter()
            .filter(|sent| sent.rma.is_none())
        {
            let kind = sent.data.map(kind_of);
            if kind != Some(ControlKind::DATA) {
                copies.push(Sent {
                    body: Body::Copied(self.gather(conn, sent)),
                    context: None,
                    data: sent.data,
                    rma: None,
                    kept_back: false,
                });
            }
        }
        self.conns[conn].sends.extend(copies);
    }

    fn tell_peer(&mut self, conn: ConnKey, before: Phase) {
        let Some(peer) = self.conns[conn].peer else {
            return;
        };
        let link = self.conns[peer].link;
        if self.config.form == Form::Rdm || self.conns[peer].phase == Phase::Closed {
            return;
        }
        match before {
            Phase::Connected => self.links[link].cm.push_back(Cm::Shutdown { conn: peer }),
            // Made from a request and never accepted.
            Phase::New => self.refuse(peer, &[]),
            _ => {}
        }
    }

    fn may_post(&mut self, conn: ConnKey, what: &str) {
        let state = &self.conns[conn];
        let connected = state.phase == Phase::Connected || self.config.form == Form::Rdm;
        if state.phase == Phase::Closed || (what == "send" && !connected) {
            self.offence(format!(
                "{what} on connection {conn} in phase {:?}",
                state.phase
            ));
        }
        let room = self.links[state.link].room;
        if what == "send" && room.is_some_and(|(sends, _)| state.sends.len() >= sends) {
            self.offence(format!(
                "more sends on connection {conn} than it has room for"
            ));
        }
    }

    /// Whether a connection's queue takes another receive.
    fn takes_receive(&self, conn: ConnKey) -> bool {
        let state = &self.conns[conn];
        let room = self.links[state.link].room;
        room.is_none_or(|(_, receives)| state.receives.len() < receives)
    }
}

/// What kind of message CQ data tells of.
fn kind_of(data: u64) -> ControlKind {
    wire::split_cq_data(wire::split_numbered(data).0).0
}

impl Cm {
    fn conn(&self) -> Option<ConnKey> {
        match self {
            Self::Request { .. } => None,
            Self::Connected { conn, .. } | Self::Refused { conn, .. } | Self::Shutdown { conn } => {
                Some(*conn)
            }
        }
    }
}

fn completion(context: usize, len: usize, data: Option<u64>, errno: Option<i32>) -> LinkCompletion {
    LinkCompletion {
        context,
        len,
        data,
        error: errno.map(|errno| Box::new(CompletionError::new(errno))),
    }
}

/// The network, as the test sees it: moves messages and breaks things.
#[derive(Clone, Debug)]
pub(crate) struct Net {
    state: Arc<Mutex<State>>,
    ledger: SharedLedger,
    /// The domain of the connecting links.
    near: Arc<FakeMemory>,
    /// The domain of the listener.
    far: Arc<FakeMemory>,
}

impl Net {
    pub(crate) fn new(mut config: NetConfig) -> Self {
        // As `Provider::access_ends` has it.
        if let (Form::Rdm, Some(rma)) = (config.form, &mut config.rma)
            && rma.access_ends == AccessEnds::BehindFence
        {
            rma.access_ends = AccessEnds::WithEndpoint;
        }
        let ledger = SharedLedger::default();
        let state = State {
            config,
            links: Vec::new(),
            conns: Vec::new(),
            live: Vec::new(),
            lost: 0,
            listener: None,
            turn: 0,
            ledger: Arc::clone(&ledger),
        };
        Self {
            state: Arc::new(Mutex::new(state)),
            near: Arc::new(FakeMemory::new(&ledger, config.device)),
            far: Arc::new(FakeMemory::new(&ledger, config.device)),
            ledger,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// The domain of the connecting links.
    pub(crate) fn near(&self) -> &FakeMemory {
        &self.near
    }

    /// The domain of the listener.
    pub(crate) fn far(&self) -> &FakeMemory {
        &self.far
    }

    /// A link that connects.
    pub(crate) fn link(&self) -> FakeLink {
        self.add_link(&self.near)
    }

    /// The link that listens.
    pub(crate) fn listen(&self) -> FakeLink {
        let mut link = self.add_link(&self.far);
        self.state().listener = Some(link.id);
        self.open_ears(&mut link);
        link
    }

    /// A link that both listens, at an address of its own ([`addr_of`]), and connects.
    pub(crate) fn hub(&self) -> FakeLink {
        let mut link = self.add_link(&self.near);
        self.open_ears(&mut link);
        link
    }

    fn open_ears(&self, link: &mut FakeLink) {
        let mut state = self.state();
        state.links[link.id].listens = true;
        if state.config.form == Form::Rdm {
            state.links[link.id].shared = Some(VecDeque::new());
            link.shared = Some(link.domain.access.join());
        }
    }

    /// The two ends of the connections that stand, or stood.
    pub(crate) fn pairs(&self) -> Vec<(ConnKey, ConnKey)> {
        let state = self.state();
        let pairs = state.conns.iter().enumerate();
        pairs
            .filter_map(|(key, conn)| Some((key, conn.peer?)))
            .collect()
    }

    /// The other end of a connection that stands.
    pub(crate) fn peer_of(&self, conn: ConnKey) -> ConnKey {
        self.state().conns[conn].peer.expect("it stands")
    }

    /// The link of a connection.
    pub(crate) fn link_of(&self, conn: ConnKey) -> usize {
        self.state().conns[conn].link
    }

    fn add_link(&self, domain: &Arc<FakeMemory>) -> FakeLink {
        let mut state = self.state();
        state.links.push(LinkState {
            conns: Vec::new(),
            cm: VecDeque::new(),
            cq: VecDeque::new(),
            cq_error: None,
            cm_error: None,
            send_faults: VecDeque::new(),
            send_always: None,
            second_fault: None,
            receive_always: None,
            room: None,
            close: CloseMode::Reports,
            double: 0,
            flood: (0, 0),
            shared: None,
            listens: false,
            registrar: domain.id,
            flagged: 0,
            injected: 0,
            late: weather::Late::default(),
        });
        let NetConfig {
            form,
            iov_limit,
            max_message,
            contexts,
            inject_size,
            inject_pays,
            uses_more,
            gathers_below,
            rma,
            short_cq_data,
            ..
        } = state.config;
        FakeLink {
            id: state.links.len() - 1,
            form,
            limits: LinkLimits {
                iov_limit,
                max_message,
                contexts,
                shared_receives: u32::MAX,
                short_marks: short_cq_data && form == Form::Rdm,
                inject_size,
                inject_pays,
                pack_below: 4096,
                uses_more,
                gathers_below,
                rma,
            },
            tail: (state.links.len() as u64 - 1).to_le_bytes(),
            shared: None,
            domain: Arc::clone(domain),
            net: self.clone(),
        }
    }

    /// Memory for an external region, whose end is logged with this number.
    pub(crate) fn keep_alive(&self, number: usize, bytes: usize) -> (NonNull<u8>, Box<KeepAlive>) {
        let mut memory = vec![0u64; bytes.div_ceil(8)].into_boxed_slice();
        let base = NonNull::new(memory.as_mut_ptr().cast()).expect("a box is not null");
        let keep = KeepAlive {
            number,
            ledger: Arc::clone(&self.ledger),
            memory,
        };
        // An address that was free before may be used again.
        let range = base.addr().get()..base.addr().get() + bytes;
        let mut ledger = lock(&self.ledger);
        ledger
            .freed
            .retain(|(at, size)| at + size <= range.start || range.end <= *at);
        (base, Box::new(keep))
    }

    /// Moves up to so many messages, of each connection in order; how many were moved.
    pub(crate) fn deliver(&self, limit: usize) -> usize {
        self.state().deliver(limit)
    }

    /// Moves what these connections have to send, and nothing of others.
    pub(crate) fn deliver_of(&self, conns: &[ConnKey]) {
        let mut state = self.state();
        for &conn in conns {
            while state.deliver_from(conn) {}
        }
    }

    /// The first operation of a connection, if it is a one-sided one, begins at the peer's
    /// provider: from here on it does not look at the registration any more.
    pub(crate) fn begin_one_sided(&self, conn: ConnKey) -> bool {
        self.state().begin_rma(conn)
    }

    /// A one-sided read by a peer that is not ours, into memory that the net forgets.
    pub(crate) fn read_by_hand(&self, conn: ConnKey, addr: u64, key: u64, len: usize) {
        self.reach_by_hand(conn, Access::READ, RemoteRange { addr, len, key });
    }

    /// A one-sided write by a peer that is not ours, of zeros.
    pub(crate) fn bury_by_hand(&self, conn: ConnKey, addr: u64, key: u64, len: usize) {
        self.reach_by_hand(conn, Access::WRITE, RemoteRange { addr, len, key });
    }

    /// The key of the registration that was opened last, of those that are open for peers to write.
    pub(crate) fn last_key(&self) -> Option<u64> {
        let ledger = lock(&self.ledger);
        let writable = |mr: &Mr| mr.access.contains(Access::WRITE);
        let keys = ledger.mrs.iter().filter(|(_, mr)| writable(mr));
        keys.map(|(key, _)| *key as u64).max()
    }

    fn reach_by_hand(&self, conn: ConnKey, access: Access, remote: RemoteRange) {
        let len = remote.len;
        let into = Box::leak(vec![0u8; len].into_boxed_slice());
        let base = NonNull::new(into.as_mut_ptr()).expect("a box is not null");
        let registered = self.near.open(base, len, Access::empty());
        let run = (
            into.as_mut_ptr().expose_provenance(),
            len,
            registered.desc.addr(),
        );
        std::mem::forget(registered);
        let sent = Sent {
            body: Body::Live(vec![run]),
            context: None,
            data: None,
            rma: Some(Rma {
                access,
                remote,
                immediate: None,
                level: Level::Delivered,
                begun: None,
            }),
            kept_back: false,
        };
        self.state().put(conn, sent);
    }

    /// A completion that tells of a peer's write, with these immediate data.
    pub(crate) fn write_by_hand(&self, link: usize, immediate: u64) {
        let told = completion(PEER_WROTE, 0, Some(immediate), None);
        self.state().links[link].cq.push_back(told);
    }

    /// From now on domains have as many registrations as they take, or no longer.
    pub(crate) fn refuse_registrations(&self, full: bool) {
        lock(&self.ledger).full = full;
    }

    /// The next posts of sends are refused like this.
    pub(crate) fn refuse_sends(&self, link: usize, refused: &[PostRefused]) {
        self.state().links[link].send_faults.extend(refused);
    }

    /// Sends that were flagged to be followed by another, and sends that were injected, so far.
    pub(crate) fn flagged_and_injected(&self, link: usize) -> (usize, usize) {
        let state = self.state();
        (state.links[link].flagged, state.links[link].injected)
    }

    /// The next send is taken; the one behind it is refused, as the provider's queue is full.
    pub(crate) fn refuse_second_send(&self, link: usize) {
        self.refuse_second_send_with(link, PostRefused::Again);
    }

    /// The same with another refusal.
    pub(crate) fn refuse_second_send_with(&self, link: usize, refused: PostRefused) {
        self.state().links[link].second_fault = Some((1, refused));
    }

    /// The queues of the link's connections have this length from now on, as those of cards do: one
    /// receive more is refused. One send more is an offence, since it would wait there although the
    /// endpoint was promised room for it.
    pub(crate) fn fix_queues(&self, link: usize, room: (usize, usize)) {
        self.state().links[link].room = Some(room);
    }

    /// All posts of sends are refused like this, until `None`.
    pub(crate) fn refuse_all_sends(&self, link: usize, refused: Option<PostRefused>) {
        self.state().links[link].send_always = refused;
    }

    /// All posts of receives are refused like this, until `None`.
    pub(crate) fn refuse_all_receives(&self, link: usize, refused: Option<PostRefused>) {
        self.state().links[link].receive_always = refused;
    }

    /// What `close` does from now on.
    pub(crate) fn set_close(&self, link: usize, mode: CloseMode) {
        self.state().links[link].close = mode;
    }

    /// So many completions are reported twice.
    pub(crate) fn double(&self, link: usize, completions: usize) {
        self.state().links[link].double = completions;
    }

    /// Strangers write, with immediate data that no window has, as fast as the queue is read, so
    /// many times.
    pub(crate) fn flood(&self, link: usize, writes: usize) {
        self.state().links[link].flood = (writes, wire::written_data(0xff_ffff, 0));
    }

    /// Writes of the flood that are still to come.
    pub(crate) fn flood_left(&self, link: usize) -> usize {
        self.state().links[link].flood.0
    }

    /// The completion queue is broken from now on.
    pub(crate) fn break_cq(&self, link: usize, errno: i32) {
        self.state().links[link].cq_error = Some(errno);
    }

    /// The event queue is broken from now on.
    pub(crate) fn break_cm(&self, link: usize, errno: i32) {
        self.state().links[link].cm_error = Some(errno);
    }

    /// Reports a completion that the net does not know of.
    pub(crate) fn inject(&self, link: usize, context: usize, errno: Option<i32>) {
        let mut state = self.state();
        let invented = completion(context, 0, None, errno);
        state.links[link].cq.push_back(invented);
    }

    /// The contexts of the sends outstanding on a connection, the oldest first.
    pub(crate) fn sends_of(&self, conn: ConnKey) -> Vec<usize> {
        let state = self.state();
        let sends = state.conns[conn].sends.iter();
        sends.filter_map(|sent| sent.context).collect()
    }

    /// How many receives are posted on a connection.
    pub(crate) fn receives_of(&self, conn: ConnKey) -> usize {
        self.state().receives_of(conn).len()
    }

    /// The oldest send of a connection fails. False: there is none.
    pub(crate) fn fail_send(&self, conn: ConnKey, errno: i32) -> bool {
        let mut state = self.state();
        let Some(sent) = state.conns[conn].sends.pop_front() else {
            return false;
        };
        state.finish_send(conn, &sent, Some(errno));
        true
    }

    /// Everything outstanding on a connection fails.
    pub(crate) fn flush(&self, conn: ConnKey, errno: i32) {
        self.state().flush(conn, errno);
    }

    /// Reports that the peer of a connection is gone.
    pub(crate) fn shut_down(&self, conn: ConnKey) {
        let mut state = self.state();
        let link = state.conns[conn].link;
        state.links[link].cm.push_back(Cm::Shutdown { conn });
    }

    /// A peer that is not ours asks for a connection with these bytes; its connection, on a link of
    /// its own.
    pub(crate) fn ask(&self, hello: &[u8]) -> (FakeLink, ConnKey) {
        let link = self.link();
        let mut state = self.state();
        let conn = state.add_conn(ConnState {
            link: link.id,
            registrar: self.near.id,
            peer: None,
            target: None,
            phase: Phase::Asked,
            by_hand: true,
            gathers: false,
            sends: VecDeque::new(),
            receives: VecDeque::new(),
        });
        let listener = state.listener.expect("somebody listens");
        let request = Cm::Request {
            initiator: conn,
            hello: hello.to_vec(),
        };
        state.links[listener].cm.push_back(request);
        drop(state);
        (link, conn)
    }

    /// A message from a connection whose sender is not ours.
    pub(crate) fn say(&self, conn: ConnKey, data: Option<u32>, bytes: &[u8]) {
        let sent = Sent {
            body: Body::Copied(bytes.to_vec()),
            context: None,
            data: data.map(u64::from),
            rma: None,
            kept_back: false,
        };
        self.state().put(conn, sent);
    }

    /// What operations of endpoints that did not close do to memory, now: nothing of it may be
    /// gone.
    pub(crate) fn use_stuck(&self) -> usize {
        let mut state = self.state();
        let mut used = 0;
        for conn in 0..state.conns.len() {
            if state.conns[conn].phase != Phase::Stuck {
                continue;
            }
            let sends = std::mem::take(&mut state.conns[conn].sends);
            for sent in &sends {
                drop(state.gather(conn, sent));
                sent.context
                    .into_iter()
                    .for_each(|context| state.touch_cell(context));
            }
            let receives: Vec<_> = state.conns[conn].receives.iter().copied().collect();
            for receive in &receives {
                lock(&state.ledger).check("stuck", receive.run, state.conns[conn].registrar);
                let to = std::ptr::with_exposed_provenance_mut::<u8>(receive.run.0);
                // SAFETY: a core must have leaked it, as its endpoint did not close; where it did
                // not, this finds out.
                unsafe { to.write_bytes(0xee, receive.run.1) };
                state.touch_cell(receive.context);
            }
            used += sends.len() + receives.len();
            state.conns[conn].sends = sends;
        }
        used
    }

    /// The order in which things ended so far.
    pub(crate) fn log(&self) -> Vec<Step> {
        lock(&self.ledger).log.clone()
    }

    /// How many registrations are open.
    pub(crate) fn open_mrs(&self) -> usize {
        lock(&self.ledger).mrs.len()
    }

    /// Panics if a core did what no core may do.
    #[track_caller]
    pub(crate) fn check(&self) {
        let offences = lock(&self.ledger).offences.clone();
        assert!(offences.is_empty(), "{offences:#?}");
    }
}

// ---- the link -----------------------------------------------------------------------------------

/// One side's link.
#[derive(Debug)]
pub(crate) struct FakeLink {
    id: usize,
    form: Form,
    limits: LinkLimits,
    /// Its number, as the address that a hello tells.
    tail: [u8; 8],
    /// The endpoint that connections share.
    shared: Option<Participant>,
    domain: Arc<FakeMemory>,
    net: Net,
}

impl FakeLink {
    /// Its number, for scripts.
    pub(crate) fn id(&self) -> usize {
        self.id
    }

    fn post_rma(
        &self,
        conn: &FakeConn,
        post: &RmaPost<'_>,
        access: Access,
    ) -> Result<(), PostRefused> {
        let mut state = self.net.state();
        state.may_post(conn.key, "send");
        let link = &mut state.links[self.id];
        if let Some(refused) = link.send_faults.pop_front().or(link.send_always) {
            return Err(refused);
        }
        let limits = state.config.rma.expect("the net has one-sided operations");
        let len: usize = post.iov.iter().map(|segment| segment.iov_len).sum();
        if post.iov.len() > limits.iov_limit || len != post.remote.len {
            state.offence(format!(
                "{} segments, {len} bytes to {:?}",
                post.iov.len(),
                post.remote
            ));
        }
        let runs = post.iov.iter().zip(post.desc);
        let runs = runs.map(|(v, d)| (v.iov_base.expose_provenance(), v.iov_len, d.addr()));
        let body = Body::Live(runs.collect());
        state.touch_cell(post.context);
        let sent = Sent {
            body,
            context: Some(post.context),
            data: None,
            rma: Some(Rma {
                access,
                remote: post.remote,
                immediate: post.data,
                level: post.level,
                begun: None,
            }),
            kept_back: false,
        };
        state.put(conn.key, sent);
        Ok(())
    }

    fn add_conn(
        &self,
        peer: Option<ConnKey>,
        target: Option<usize>,
        peer_addr: Option<PeerAddr>,
    ) -> FakeConn {
        let mut state = self.net.state();
        // Connections that share an endpoint have no registrations of their own.
        let shares = state.links[self.id].shared.is_some();
        let own = (state.config.endpoint_scope && !shares)
            .then(|| FakeMemory::new(&self.net.ledger, state.config.device));
        let key = state.add_conn(ConnState {
            link: self.id,
            registrar: own.as_ref().map_or(self.domain.id, FakeMemory::id),
            peer,
            target,
            phase: Phase::New,
            by_hand: false,
            gathers: false,
            sends: VecDeque::new(),
            receives: VecDeque::new(),
        });
        FakeConn {
            key,
            own,
            peer_addr,
            form: state.config.form,
            // Connections that share an endpoint do nothing by themselves.
            participant: (!shares).then(|| self.domain.access.join()),
        }
    }
}

impl Drop for FakeLink {
    fn drop(&mut self) {
        let mut state = self.net.state();
        let open = |conn: &ConnKey| {
            let conn = &state.conns[*conn];
            !conn.by_hand && !matches!(conn.phase, Phase::Closed | Phase::Stuck)
        };
        if state.links[self.id].conns.iter().any(open) || state.links[self.id].shared.is_some() {
            state.offence(format!("link {} closed before its connections", self.id));
        }
        let unread = std::mem::take(&mut state.links[self.id].cm);
        state.links[self.id].late.is_gone = true;
        if std::mem::take(&mut state.links[self.id].listens) {
            state.listener = state.listener.filter(|&id| id != self.id);
            for event in unread {
                if let Cm::Request { initiator, .. } = event {
                    state.refuse(initiator, &[]);
                }
            }
        }
        lock(&state.ledger).log.push(Step::LinkClosed(self.id));
    }
}

/// One side's end of a connection.
#[derive(Debug)]
pub(crate) struct FakeConn {
    key: ConnKey,
    own: Option<FakeMemory>,
    peer_addr: Option<PeerAddr>,
    form: Form,
    participant: Option<Participant>,
}

impl LinkConn for FakeConn {
    fn key(&self) -> ConnKey {
        self.key
    }

    fn registrar(&self) -> Option<&dyn Registrar> {
        self.own.as_ref().map(|own| own as &dyn Registrar)
    }

    fn peer(&self) -> Option<PeerAddr> {
        self.peer_addr
    }

    fn participant(&self) -> Option<&Participant> {
        let asked = self.form == Form::Msg;
        self.participant.as_ref().filter(|_| asked)
    }
}

/// A request; dropping it refuses it.
#[derive(Debug)]
pub(crate) struct FakeRequest {
    initiator: ConnKey,
    hello: Vec<u8>,
    answered: bool,
    net: Net,
}

impl FakeRequest {
    fn refuse(&mut self, data: &[u8]) {
        if std::mem::replace(&mut self.answered, true) {
            return;
        }
        let mut state = self.net.state();
        match state.config.form {
            Form::Msg => state.refuse(self.initiator, data),
            Form::Rdm => state.refuse_by_message(self.initiator, &self.hello, data),
        }
    }
}

impl Drop for FakeRequest {
    fn drop(&mut self) {
        self.refuse(&[]);
    }
}

/// An address that nobody listens at; who connects is joined to the listener whatever the address.
pub(crate) fn some_addr() -> PeerAddr {
    PeerAddr::from(std::net::SocketAddr::from(([192, 0, 2, 1], 7471)))
}

/// The address of a hub.
pub(crate) fn addr_of(link: usize) -> PeerAddr {
    let port = HUB_PORTS + u16::try_from(link).expect("few links");
    PeerAddr::from(std::net::SocketAddr::from(([192, 0, 2, 2], port)))
}

/// The port of hub 0.
const HUB_PORTS: u16 = 10_000;

impl State {
    /// Who listens at an address.
    fn listener_at(&self, addr: &PeerAddr) -> Option<usize> {
        let hub = addr
            .socket_addr()
            .and_then(|addr| addr.port().checked_sub(HUB_PORTS));
        match hub.map(usize::from) {
            Some(hub) => self
                .links
                .get(hub)
                .is_some_and(|link| link.listens)
                .then_some(hub),
            None => self.listener,
        }
    }

    fn addr_of_conn(&self, conn: ConnKey) -> PeerAddr {
        let link = self.conns[conn].link;
        if self.links[link].listens {
            addr_of(link)
        } else {
            some_addr()
        }
    }
}

impl Link for FakeLink {
    type Conn = FakeConn;
    type Request = FakeRequest;

    fn form(&self) -> Form {
        self.form
    }

    fn shares_endpoint(&self) -> bool {
        self.shared.is_some()
    }

    fn limits(&self) -> &LinkLimits {
        &self.limits
    }

    fn registrar(&self) -> &dyn Registrar {
        &*self.domain
    }

    fn ledger(&self) -> &Arc<AccessLedger> {
        &self.domain.access
    }

    fn prepare_connect(&mut self, peer: &PeerAddr) -> Result<FakeConn, Error> {
        let target = self.net.state().listener_at(peer);
        Ok(self.add_conn(None, target, Some(*peer)))
    }

    fn connect(&mut self, conn: &FakeConn, peer: &PeerAddr, data: &[u8]) -> Result<(), Error> {
        let mut state = self.net.state();
        state.conns[conn.key].phase = Phase::Asked;
        let listener = state.listener_at(peer);
        let Some(listener) = listener.filter(|link| !state.turns_away(*link)) else {
            state.refuse(conn.key, &[]);
            return Ok(());
        };
        state.links[listener].cm.push_back(Cm::Request {
            initiator: conn.key,
            hello: data.to_vec(),
        });
        Ok(())
    }

    fn prepare_accept(
        &mut self,
        mut request: FakeRequest,
    ) -> Result<FakeConn, (FakeRequest, Error)> {
        request.answered = true;
        let peer = self.net.state().addr_of_conn(request.initiator);
        let conn = self.add_conn(Some(request.initiator), None, Some(peer));
        if self.form == Form::Rdm {
            self.net.state().conns[request.initiator].peer = Some(conn.key);
        }
        Ok(conn)
    }

    fn peer_of(&self, request: &FakeRequest) -> Option<PeerAddr> {
        Some(self.net.state().addr_of_conn(request.initiator))
    }

    fn accept(&mut self, conn: &mut FakeConn, data: &[u8]) -> Result<(), Error> {
        let mut state = self.net.state();
        let initiator = state.conns[conn.key].peer;
        let Some(initiator) = initiator.filter(|&i| state.conns[i].phase == Phase::Asked) else {
            return Err(Error::fabric("fi_accept", libc::ECONNABORTED));
        };
        state.conns[initiator].phase = Phase::Connected;
        state.conns[initiator].peer = Some(conn.key);
        state.conns[conn.key].phase = Phase::Connected;
        let theirs = state.conns[initiator].link;
        state.links[theirs].cm.push_back(Cm::Connected {
            conn: initiator,
            data: data.to_vec(),
        });
        state.links[self.id].cm.push_back(Cm::Connected {
            conn: conn.key,
            data: Vec::new(),
        });
        Ok(())
    }

    fn reject(&mut self, mut request: FakeRequest, data: &[u8]) {
        request.refuse(data);
    }

    fn close(&mut self, conn: FakeConn) -> Result<(), CloseFailed> {
        let closed = self.net.state().close(conn.key);
        if closed.is_err() {
            std::mem::forget(conn);
        }
        closed
    }

    unsafe fn post_send(
        &mut self,
        conn: &FakeConn,
        post: &SendPost<'_>,
    ) -> Result<(), PostRefused> {
        let mut state = self.net.state();
        state.may_post(conn.key, "send");
        let link = &mut state.links[self.id];
        let second = link.second_fault.take_if(|(after, _)| *after == 0);
        if let Some((after, _)) = &mut link.second_fault {
            *after -= 1;
        }
        let second = second.map(|(_, refused)| refused);
        let fault = second.or_else(|| link.send_faults.pop_front());
        if let Some(refused) = fault.or(link.send_always) {
            // Providers that keep posts back let them go when they take no more.
            state.let_go(self.id);
            return Err(refused);
        }
        link.flagged += usize::from(post.more);
        link.injected += usize::from(post.inject);
        if post.iov.len() > self.limits.iov_limit {
            state.offence(format!("{} segments", post.iov.len()));
        }
        let too_long = |data| data > u64::from(u32::MAX);
        if state.config.short_cq_data && post.data.is_some_and(too_long) {
            state.offence(format!("{:?} in 4 bytes of CQ data", post.data));
        }
        let runs = post.iov.iter().zip(post.desc);
        let runs = runs.map(|(v, d)| (v.iov_base.expose_provenance(), v.iov_len, d.addr()));
        let mut sent = Sent {
            body: Body::Live(runs.collect()),
            context: Some(post.context),
            data: post.data,
            rma: None,
            kept_back: post.more,
        };
        if post.inject {
            if post.iov.iter().any(|v| state.is_device(v.iov_base.addr())) {
                state.offence("a device's memory was injected".to_owned());
            }
            let bytes = state.gather(conn.key, &sent);
            if bytes.len() > self.limits.inject_size || post.level != Level::Sent {
                state.offence(format!("{} bytes injected, {:?}", bytes.len(), post.level));
            }
            sent.body = Body::Copied(bytes);
        }
        if post.more && !self.limits.uses_more {
            state.offence("flagged for a provider that does not look".to_owned());
        }
        state.touch_cell(post.context);
        state.put(conn.key, sent);
        if !post.more {
            state.let_go(self.id);
        }
        Ok(())
    }

    unsafe fn post_write(
        &mut self,
        conn: &FakeConn,
        post: &RmaPost<'_>,
    ) -> Result<(), PostRefused> {
        self.post_rma(conn, post, Access::WRITE)
    }

    unsafe fn post_read(&mut self, conn: &FakeConn, post: &RmaPost<'_>) -> Result<(), PostRefused> {
        self.post_rma(conn, post, Access::READ)
    }

    unsafe fn post_receive(
        &mut self,
        conn: &FakeConn,
        base: *mut u8,
        len: usize,
        desc: *mut c_void,
        context: usize,
    ) -> Result<(), PostRefused> {
        let mut state = self.net.state();
        state.may_post(conn.key, "receive");
        if let Some(refused) = state.links[self.id].receive_always {
            return Err(refused);
        }
        if !state.takes_receive(conn.key) {
            return Err(PostRefused::Again);
        }
        state.touch_cell(context);
        let registrar = state.conns[conn.key].registrar;
        state.conns[conn.key].receives.push_back(Receive {
            run: (base.expose_provenance(), len, desc.addr()),
            context,
            registrar,
        });
        Ok(())
    }

    unsafe fn post_shared_receive(
        &mut self,
        base: *mut u8,
        len: usize,
        desc: *mut c_void,
        context: usize,
    ) -> Result<(), PostRefused> {
        let mut state = self.net.state();
        if let Some(refused) = state.links[self.id].receive_always {
            return Err(refused);
        }
        state.touch_cell(context);
        let link = &mut state.links[self.id];
        let registrar = link.registrar;
        let Some(shared) = &mut link.shared else {
            state.offence("a receive on an endpoint that is closed, or shares none".to_owned());
            return Ok(());
        };
        shared.push_back(Receive {
            run: (base.expose_provenance(), len, desc.addr()),
            context,
            registrar,
        });
        Ok(())
    }

    fn hello_tail(&self) -> &[u8] {
        match self.form {
            Form::Msg => &[],
            Form::Rdm => &self.tail,
        }
    }

    fn take_hello(&mut self, message: &[u8]) {
        let Some((hello, tail)) = message.split_at_checked(HELLO_LEN) else {
            return;
        };
        let mut state = self.net.state();
        let from = tail.first_chunk().map(|tail| u64::from_le_bytes(*tail));
        let its = |conn: &ConnState| Some(conn.link as u64) == from;
        // A hub has several; the hello says which one it is.
        let named = Hello::peek_connection(hello).map(|n| n as usize & wire::INDEX_MASK as usize);
        let named = named.filter(|&n| state.conns.get(n).is_some_and(its));
        // Else its latest: the ones before are over.
        let Some(initiator) = named.or_else(|| state.conns.iter().rposition(its)) else {
            return;
        };
        let hello = hello.to_vec();
        state.links[self.id]
            .cm
            .push_back(Cm::Request { initiator, hello });
    }

    fn close_all(&mut self) -> Result<(), CloseFailed> {
        let closed = self.net.state().close_all(self.id);
        match closed {
            Ok(()) => drop(self.shared.take()),
            Err(_) => std::mem::forget(self.shared.take()),
        }
        closed
    }

    /// There is no socket.
    fn watch(&mut self, _conn: &FakeConn, _watch: &TcpWatch) -> KernelWatch {
        KernelWatch::Unavailable
    }

    /// Nothing leaves meanwhile, as if the peer acknowledged nothing.
    fn gather(&mut self, conn: &mut FakeConn, gather: bool) -> bool {
        let mut state = self.net.state();
        let can = state.config.can_gather;
        let told = can && std::mem::replace(&mut state.conns[conn.key].gathers, gather) != gather;
        if can && !told {
            state.offence(format!("{gather} was told twice"));
        }
        told
    }

    fn bytes_received(&mut self, _conn: &mut FakeConn) -> Option<u64> {
        None
    }

    /// Nothing happens by itself.
    /// It knows no time.
    fn read_clock(&mut self, _clock: &Clock) {}

    fn next_deadline(&self) -> Option<Instant> {
        None
    }

    fn reap_half_open(&mut self, _now: Instant, _patience: Duration) -> u64 {
        0
    }

    fn poll_completions(&mut self, out: &mut Completions) -> Result<usize, Error> {
        let mut state = self.net.state();
        let kept_back = |conn: &ConnKey| {
            let conn = &state.conns[*conn];
            conn.link == self.id && conn.sends.iter().any(|sent| sent.kept_back)
        };
        if state.live.iter().any(kept_back) {
            state.offence("a send that was to be followed by another was not".to_owned());
        }
        let link = &mut state.links[self.id];
        if let Some(errno) = link.cq_error {
            return Err(Error::fabric("fi_cq_read", errno));
        }
        let (flood, said) = link.flood;
        let now = flood.min(COMPLETION_BATCH);
        link.flood.0 -= now;
        let strange = std::iter::repeat_with(|| completion(PEER_WROTE, 0, Some(said), None));
        link.cq.extend(strange.take(now));
        let room = (out.capacity() - out.len()).min(link.cq.len());
        out.extend(link.cq.drain(..room));
        Ok(room)
    }

    fn poll_cm(&mut self) -> Result<Option<CmEvent<FakeRequest>>, Error> {
        let mut state = self.net.state();
        let link = &mut state.links[self.id];
        if let Some(errno) = link.cm_error {
            return Err(Error::fabric("fi_eq_read", errno));
        }
        let Some(event) = link.cm.pop_front() else {
            return Ok(None);
        };
        Ok(Some(match event {
            Cm::Request { initiator, hello } => CmEvent::Request {
                data: CmData::new(&hello),
                request: FakeRequest {
                    initiator,
                    hello,
                    answered: false,
                    net: self.net.clone(),
                },
            },
            Cm::Connected { conn, data } => CmEvent::Connected {
                conn,
                data: CmData::new(&data),
            },
            Cm::Refused { conn, data } => CmEvent::Refused {
                conn,
                errno: FabricErrno::new(libc::ECONNREFUSED),
                data: CmData::new(&data),
            },
            Cm::Shutdown { conn } => CmEvent::Shutdown { conn },
        }))
    }
}

/// Nothing to sleep on: whoever waits looks again after a millisecond.
#[derive(Debug)]
pub(crate) struct FakeWait;

impl LinkWait for FakeWait {
    fn fds(&self) -> SmallVec<[RawFd; 3]> {
        SmallVec::new()
    }

    fn try_wait(&self) -> Result<bool, Error> {
        Ok(true)
    }
}
