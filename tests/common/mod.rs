//! What the integration tests share: a connected pair, waiting with a deadline, counts from
//! `/proc`, child processes.
//!
//! Every wait ends by its own deadline, and a watchdog ends a test that hangs inside a call.

#![allow(
    dead_code,
    reason = "each test program is a crate of its own and uses a part of this"
)]

pub(crate) mod child;
#[allow(
    clippy::duplicate_mod,
    reason = "whoever needs it has it; programs take these files one by one"
)]
mod patience;
pub(crate) mod provider;
pub(crate) mod raw;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

use fabricast::buffer::{Payload, SharedBufferManager};
use fabricast::endpoint::{CloseReason, ConnectionId, Packing, ReceiveConfig, SendConfig};
use fabricast::fabric::EndpointKind;
use fabricast::{
    ConnectionEvent, Domain, ReceiveEndpoint, ReceiveEvent, SendEndpointZeroCopy, SendEvent,
};

#[allow(
    unused_imports,
    reason = "each test program is a crate of its own and uses a part of this"
)]
pub(crate) use self::{
    patience::patient,
    provider::{Offers, any_port, anywhere, domain_of, nobodys_port, node},
};

/// After which a step hangs that takes milliseconds on an idle machine. Ends a test, and is no
/// claim about how long anything takes: a machine may stand still for many seconds.
pub(crate) const SOON: Duration = Duration::from_secs(60);

/// After which a test hangs as a whole, and its process is ended: the least that a [`Watchdog`]
/// waits.
const HANGS_AFTER: Duration = Duration::from_secs(300);

/// A domain of the provider that is asked for, with connections of its own. `None`, after a line
/// that says why, where there is none.
pub(crate) fn domain() -> Option<Arc<Domain>> {
    domain_of(EndpointKind::Msg)
}

/// A moment from now.
pub(crate) fn after(time: Duration) -> Instant {
    Instant::now() + time
}

pub(crate) fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Whether the full counts are asked for.
pub(crate) fn soak() -> bool {
    std::env::var_os("FABRICAST_SOAK").is_some_and(|v| v == "1")
}

/// `few`, or `all` with FABRICAST_SOAK=1.
pub(crate) fn rounds(few: u32, all: u32) -> u32 {
    if soak() { all } else { few }
}

/// `claim`, a duration that only an idle machine keeps, with FABRICAST_SOAK=1; else what only ends
/// a hung test.
pub(crate) fn within(claim: Duration) -> Duration {
    if soak() { claim } else { SOON.max(claim) }
}

/// What `attempt` gives, the first time that it gives something. For what begins with peers that
/// are alive and known to be so: where silence is noticed within a second or two, a machine that
/// does not let a process run for as long silences one that is well, and then nothing was tested.
pub(crate) fn undisturbed<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    // On an idle machine the first one is.
    for number in 1..=rounds(20, 1) {
        if let Some(outcome) = attempt() {
            return outcome;
        }
        println!("{what}: attempt {number} was disturbed");
    }
    panic!("{what}: each attempt was disturbed");
}

/// For tests that count what belongs to the whole process: one at a time.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Numbers from a seed, which is printed: FABRICAST_SEED repeats a run.
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn from_printed_seed(test: &str) -> Self {
        let seed = match std::env::var("FABRICAST_SEED") {
            Ok(text) => text.parse().expect("FABRICAST_SEED is a number"),
            Err(_) => std::time::UNIX_EPOCH
                .elapsed()
                .map_or(1, |t| t.as_nanos() as u64),
        };
        println!("{test}: seed {seed}");
        Self(seed)
    }

    /// SplitMix64.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// Ends the process when a test hangs in a call that no deadline of ours bounds; quiet once it is
/// dropped.
#[derive(Debug)]
pub(crate) struct Watchdog(Option<mpsc::Sender<()>>);

impl Watchdog {
    pub(crate) fn new(test: &'static str) -> Self {
        Self::with(test, HANGS_AFTER)
    }

    pub(crate) fn with(test: &'static str, limit: Duration) -> Self {
        let limit = patient(limit.max(HANGS_AFTER));
        let (quiet, heard) = mpsc::channel();
        std::thread::spawn(move || {
            if heard.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout) {
                eprintln!("{test}: hangs after {limit:?}");
                std::process::abort();
            }
        });
        Self(Some(quiet))
    }
}

/// What a loop that polls does between two turns: mostly nothing, and now and then a short sleep.
/// It never yields: beside busy processes the scheduler gives them a whole slice for each time, and
/// a handshake of twenty turns takes a second.
pub(crate) fn breathe(turn: usize) {
    if turn % 8 == 7 {
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// Calls `step` until `done`, or fails at the deadline.
pub(crate) fn drive(what: &str, limit: Duration, mut step: impl FnMut() -> bool) {
    let limit = patient(limit);
    let until = after(limit);
    let mut turn = 0usize;
    while !step() {
        assert!(Instant::now() < until, "{what}: not within {limit:?}");
        breathe(turn);
        turn = turn.wrapping_add(1);
    }
}

// ---- counts of the process ----------------------------------------------------------------------

fn entries(of: &str) -> usize {
    std::fs::read_dir(of).map_or(0, Iterator::count)
}

/// Open descriptors, the one used for counting among them.
pub(crate) fn fd_count() -> usize {
    entries("/proc/self/fd")
}

pub(crate) fn thread_count() -> usize {
    entries("/proc/self/task")
}

/// What each descriptor is, for messages.
pub(crate) fn fd_list() -> BTreeMap<String, String> {
    let Ok(dir) = std::fs::read_dir("/proc/self/fd") else {
        return BTreeMap::new();
    };
    dir.flatten()
        .map(|entry| {
            let target = std::fs::read_link(entry.path()).unwrap_or_default();
            (
                entry.file_name().to_string_lossy().into_owned(),
                target.to_string_lossy().into_owned(),
            )
        })
        .collect()
}

/// Resident memory in bytes.
pub(crate) fn rss_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("/proc/self/statm");
    let pages: u64 = statm
        .split(' ')
        .nth(1)
        .and_then(|n| n.parse().ok())
        .expect("a number of pages");
    pages * rustix::param::page_size() as u64
}

/// Waits until the process has no more descriptors than this: closing a peer's may take it a
/// moment.
pub(crate) fn assert_fds_back(baseline: usize, limit: Duration, mut step: impl FnMut()) {
    let until = after(patient(limit));
    while fd_count() > baseline {
        assert!(
            Instant::now() < until,
            "{} descriptors, {baseline} before: {:?}",
            fd_count(),
            fd_list()
        );
        step();
        std::thread::sleep(millis(5));
    }
}

// ---- a pool and payloads ------------------------------------------------------------------------

/// A pool that is registered with the domain.
pub(crate) fn pool(domain: &Arc<Domain>, slots: u32, size: usize) -> SharedBufferManager {
    roomy_pool(domain, slots, size, 0)
}

/// The same with so many bytes in front of each buffer.
pub(crate) fn roomy_pool(
    domain: &Arc<Domain>,
    slots: u32,
    size: usize,
    headroom: usize,
) -> SharedBufferManager {
    let pool = SharedBufferManager::allocate_with_headroom(slots, size, headroom).expect("memory");
    pool.region().register(domain).expect("registered");
    pool
}

/// One buffer of the pool with these bytes.
pub(crate) fn buffer(pool: &SharedBufferManager, bytes: &[u8]) -> fabricast::buffer::Buffer {
    let mut buffer = pool.try_acquire().expect("a free buffer");
    buffer[..bytes.len()].copy_from_slice(bytes);
    buffer.freeze(bytes.len())
}

/// Bytes that tell where they belong. They repeat after [`PERIOD`], and are made by copying from
/// there on: a byte at a time takes an emulated processor seconds for a message of a megabyte.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let byte = |i| (seed.wrapping_mul(31).wrapping_add(i * 7) >> 1) as u8;
    let mut bytes: Vec<u8> = (0..PERIOD.min(len) as u64).map(byte).collect();
    while bytes.len() < len {
        bytes.extend_from_within(..bytes.len().min(len - bytes.len()));
    }
    bytes
}

/// Nine bits of the sum above count for a byte, and 7 is odd.
const PERIOD: usize = 512;

/// The bytes of a payload that consists of buffers.
pub(crate) fn bytes_of(payload: &Payload) -> Vec<u8> {
    let mut all = Vec::new();
    for segment in payload.segments() {
        all.extend_from_slice(segment.as_bytes().expect("a buffer"));
    }
    all
}

// ---- a connected pair ---------------------------------------------------------------------------

/// A message as the tests compare it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Got {
    pub(crate) header: Vec<u8>,
    pub(crate) payload: Vec<u8>,
}

pub(crate) fn got(header: &[u8], payload: &[u8]) -> Got {
    Got {
        header: header.to_vec(),
        payload: payload.to_vec(),
    }
}

/// A sender and a receiver on one thread. `None` for a side that was closed or dropped.
#[derive(Debug)]
pub(crate) struct Pair {
    pub(crate) sender: Option<SendEndpointZeroCopy>,
    pub(crate) receiver: Option<ReceiveEndpoint>,
    pub(crate) sent: Vec<SendEvent>,
    pub(crate) received: Vec<ReceiveEvent>,
    pub(crate) pool: SharedBufferManager,
    pub(crate) domain: Arc<Domain>,
    /// The connection that the receiver was told of first.
    pub(crate) connection: Option<ConnectionId>,
}

impl Pair {
    /// With default settings.
    pub(crate) fn open(domain: &Arc<Domain>) -> Self {
        Self::with(domain, sending(), small_receiver())
    }

    /// Connected, with both `Connected` events taken out.
    pub(crate) fn with(domain: &Arc<Domain>, send: SendConfig, receive: ReceiveConfig) -> Self {
        Self::connecting(domain, send, receive).connected()
    }

    /// The same with the receiver in a domain of its own: polling one side drives all endpoints of
    /// its domain on libfabric 2.x, so a peer that does nothing must be elsewhere.
    pub(crate) fn apart(domain: &Arc<Domain>, send: SendConfig, receive: ReceiveConfig) -> Self {
        let elsewhere = crate::common::domain().expect("there is one already");
        Self::between(domain, &elsewhere, send, receive).connected()
    }

    fn connected(mut self) -> Self {
        self.until("connected", |pair| {
            for event in &pair.sent {
                if let SendEvent::Connection(ConnectionEvent::Disconnected(reason)) = event {
                    panic!("not connected: {reason}");
                }
            }
            let accepted = |e: &ReceiveEvent| {
                matches!(
                    e,
                    ReceiveEvent::Connection(_, ConnectionEvent::Connected(_))
                )
            };
            pair.sender().is_connected() && pair.received.iter().any(accepted)
        });
        self.connection = self.received.iter().find_map(|event| match event {
            ReceiveEvent::Connection(connection, ConnectionEvent::Connected(_)) => {
                Some(*connection)
            }
            _ => None,
        });
        self.sent.clear();
        self.received.clear();
        self
    }

    /// Not yet connected.
    pub(crate) fn connecting(
        domain: &Arc<Domain>,
        send: SendConfig,
        receive: ReceiveConfig,
    ) -> Self {
        Self::between(domain, domain, send, receive)
    }

    fn between(
        domain: &Arc<Domain>,
        receiving: &Arc<Domain>,
        send: SendConfig,
        receive: ReceiveConfig,
    ) -> Self {
        let receiver = ReceiveEndpoint::listen(receiving, any_port(), receive).expect("listens");
        let sender = SendEndpointZeroCopy::connect(domain, receiver.local_addr(), send)
            .expect("begins to connect");
        Self {
            sender: Some(sender),
            receiver: Some(receiver),
            sent: Vec::new(),
            received: Vec::new(),
            pool: pool(domain, 64, 64 * 1024),
            domain: Arc::clone(domain),
            connection: None,
        }
    }

    pub(crate) fn sender(&mut self) -> &mut SendEndpointZeroCopy {
        self.sender.as_mut().expect("the sender is open")
    }

    pub(crate) fn receiver(&mut self) -> &mut ReceiveEndpoint {
        self.receiver.as_mut().expect("the receiver is open")
    }

    /// One poll of each side.
    pub(crate) fn step(&mut self) {
        if let Some(sender) = &mut self.sender {
            sender.poll(&mut self.sent).expect("the sender polls");
        }
        if let Some(receiver) = &mut self.receiver {
            receiver
                .poll(&mut self.received)
                .expect("the receiver polls");
        }
    }

    pub(crate) fn until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        drive(what, SOON, || {
            self.step();
            done(self)
        });
    }

    pub(crate) fn buffer(&self, bytes: &[u8]) -> fabricast::buffer::Buffer {
        buffer(&self.pool, bytes)
    }

    /// Sends, and polls while it would block.
    pub(crate) fn send(&mut self, payload: impl Into<Payload>, header: &[u8], key: u64) {
        let mut payload = Some(payload.into());
        drive("a send", SOON, || {
            let p = payload.take().expect("given back");
            match self.sender().send_data(p, header, key) {
                Ok(()) => return true,
                Err(refused) if refused.is_would_block() => payload = Some(refused.given),
                Err(refused) => panic!("{refused}"),
            }
            self.step();
            false
        });
    }

    /// Sends one message and gives what arrived; key and payload are checked.
    pub(crate) fn exchange(&mut self, payload: impl Into<Payload>, header: &[u8], key: u64) -> Got {
        let payload = payload.into();
        let len = payload.len_bytes();
        self.send(payload, header, key);
        let mut completed = None;
        let mut message = None;
        self.until("a message and its completion", |pair| {
            for event in pair.sent.drain(..) {
                match event {
                    SendEvent::Completed { key, payload } => completed = Some((key, payload)),
                    SendEvent::Writable => {}
                    other => panic!("{other:?}"),
                }
            }
            for event in pair.received.drain(..) {
                match event {
                    ReceiveEvent::Message(m) => message = Some(got(m.header(), m.payload())),
                    other => panic!("{other:?}"),
                }
            }
            completed.is_some() && message.is_some()
        });
        let (done, payload) = completed.expect("completed");
        assert_eq!((done, payload.len_bytes()), (key, len));
        message.expect("a message")
    }

    /// The connection that the receiver knows, taken from a message or event that names it.
    pub(crate) fn messages(&mut self) -> Vec<Got> {
        messages(&mut self.received)
    }
}

/// Takes the messages out of a list of events; other events stay.
pub(crate) fn messages(events: &mut Vec<ReceiveEvent>) -> Vec<Got> {
    let mut found = Vec::new();
    events.retain(|event| match event {
        ReceiveEvent::Message(message) => {
            found.push(got(message.header(), message.payload()));
            false
        }
        _ => true,
    });
    found
}

/// The outcomes in a list of events, by key: how often each came, and whether it was a completion.
pub(crate) fn outcomes(events: &[SendEvent]) -> BTreeMap<u64, Vec<bool>> {
    let mut found: BTreeMap<u64, Vec<bool>> = BTreeMap::new();
    for event in events {
        match event {
            SendEvent::Completed { key, .. } => found.entry(*key).or_default().push(true),
            SendEvent::Failed { key, .. } => found.entry(*key).or_default().push(false),
            _ => {}
        }
    }
    found
}

/// Why the sender's connection ended, if the list says so.
pub(crate) fn send_end(events: &[SendEvent]) -> Option<CloseReason> {
    events.iter().find_map(|event| match event {
        SendEvent::Connection(ConnectionEvent::Disconnected(reason)) => Some(*reason),
        _ => None,
    })
}

/// The connections that ended, and why.
pub(crate) fn receive_ends(events: &[ReceiveEvent]) -> Vec<(ConnectionId, CloseReason)> {
    events
        .iter()
        .filter_map(|event| match event {
            ReceiveEvent::Connection(connection, ConnectionEvent::Disconnected(reason)) => {
                Some((*connection, *reason))
            }
            _ => None,
        })
        .collect()
}

/// How long a connection may take to come about on this machine: longer than the default of
/// endpoints, since a machine that others use, too, was seen to stand still for 7 s. A card's
/// connection manager says again after some 4 s what was lost.
pub(crate) fn connect_limit() -> Duration {
    patient(Duration::from_secs(20))
}

/// A sender with default settings, as patient as this machine wants it.
pub(crate) fn sending() -> SendConfig {
    SendConfig::default()
        .connection(|c| c.connect_timeout(connect_limit()))
        .outgoing(|out| out.packing(packing()))
}

/// Whether small messages are packed in tests that say nothing of it: as in a user's program, but
/// in a run of its own, where the environment says that they go out by themselves.
pub(crate) fn packing() -> Packing {
    match std::env::var_os("FABRICAST_TEST_SINGLE") {
        Some(_) => Packing::Off,
        None => Packing::default(),
    }
}

/// A receiver with a small pool: 64 KiB messages, few connections.
pub(crate) fn small_receiver() -> ReceiveConfig {
    ReceiveConfig::default()
        .incoming(|incoming| incoming.slots(64).credits(16))
        .connection(|c| c.max_connections(8).connect_timeout(connect_limit()))
}

/// Asserts the invariant of the counters, which must also match what is in flight.
pub(crate) fn assert_balanced(sender: &SendEndpointZeroCopy) {
    let stats = sender.stats();
    assert_eq!(
        stats.posted,
        stats.completed + stats.failed + stats.abandoned + stats.in_flight,
        "{stats:?}"
    );
    assert_eq!(
        stats.in_flight as usize,
        sender.pending().len(),
        "{stats:?}"
    );
}
