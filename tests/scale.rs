//! Many connections to one listener: descriptors and memory of each, and that all of it comes back.
//!
//! The listener is a process of its own, so that what it takes is its own. Its memory is counted in
//! two ways. What this library asks the allocator for (`Counting`), exactly. What a listener for
//! many takes more than one for one connection is in it, but for 64 bytes for each control message,
//! which are mapped. And the resident memory, in which the provider's part is, allocated in C: of
//! that only the resident memory tells.

#![allow(unsafe_code)]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use common::child::{Child, argument, hear, role, tell};
use common::{
    SOON, Watchdog, after, any_port, domain, drive, fd_count, fd_list, millis, patient, rss_bytes,
    send_end,
};
use fabricast::buffer::{HeaderSlotConfig, HeaderSlotManager, SharedBufferManager};
use fabricast::endpoint::{CloseReason, ReceiveConfig};
use fabricast::error::Error;
use fabricast::{ConnectionEvent, ReceiveEndpoint, ReceiveEvent, SendEndpointZeroCopy, SendEvent};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const CONNECTIONS: usize = 1_000;
const MESSAGES: u64 = 3;
const MESSAGE_BYTES: usize = 512;
/// Receives of each connection: two in reserve, and these credits.
const DEPTH: u32 = 2;
const SLOTS_EACH: u32 = DEPTH + 2;

/// What this library takes for a thousand of them, beside the pool and a slot for each of its
/// buffers.
const OWN_BYTES_MAX: u64 = 1 << 20;
/// Of that, what is no heap: the small buffer of each for a control message.
const CONTROL_BYTES_EACH: u64 = 48;
/// With the provider's part: on libfabric 2.x that is its staging buffers, and 16 KiB for each
/// receive that is posted.
const RESIDENT_BYTES_EACH_MAX: u64 = 1 << 20;
const FDS_EACH_MAX: usize = 2;
/// Descriptors of a connecting endpoint, more than it takes.
const SENDER_FDS: usize = 12;
/// libfabric 2.x has each queue watch its domain's epoll descriptor, and the kernel takes 500 of
/// such.
const SENDERS_PER_DOMAIN: usize = 200;
const LIMIT: std::time::Duration = common::SOON.saturating_mul(4);

static LIVE: AtomicU64 = AtomicU64::new(0);

/// The system's allocator, with a count of the bytes that are allocated.
struct Counting;

// SAFETY: everything is handed to the system's allocator, unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size() as u64, Ordering::Relaxed);
        // SAFETY: the caller's promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size() as u64, Ordering::Relaxed);
        // SAFETY: the caller's promises.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// What the listening process has at one moment.
#[derive(Debug, Clone, Copy)]
struct Taken {
    fds: usize,
    /// Allocated by this library.
    heap: u64,
    resident: u64,
}

impl Taken {
    fn now() -> Self {
        Self {
            fds: fd_count(),
            heap: LIVE.load(Ordering::Relaxed),
            resident: rss_bytes(),
        }
    }
}

/// Raises the soft limit of descriptors to the hard one, and says how many there may be.
fn raise_fd_limit() -> usize {
    let maximum = getrlimit(Resource::Nofile).maximum;
    let limit = Rlimit {
        current: maximum,
        maximum,
    };
    let _ = setrlimit(Resource::Nofile, limit);
    let current = getrlimit(Resource::Nofile).current;
    current.map_or(usize::MAX, |n| usize::try_from(n).unwrap_or(usize::MAX))
}

// ---- the listening process ----------------------------------------------------------------------

#[derive(Debug, Default)]
struct Seen {
    connected: usize,
    messages: u64,
    finished: usize,
}

/// Polls and sleeps until `done`.
fn receive(listener: &mut ReceiveEndpoint, seen: &mut Seen, done: impl Fn(&Seen) -> bool) {
    let until = after(patient(LIMIT));
    let mut events = Vec::with_capacity(256);
    while !done(seen) {
        assert!(Instant::now() < until, "{seen:?} after {LIMIT:?}");
        listener.poll(&mut events).expect("polls");
        for event in events.drain(..) {
            match event {
                ReceiveEvent::Connection(_, ConnectionEvent::Connected(_)) => seen.connected += 1,
                ReceiveEvent::Message(message) => {
                    assert_eq!(message.header(), message.sequence().to_le_bytes());
                    seen.messages += 1;
                }
                ReceiveEvent::Connection(_, ConnectionEvent::Disconnected(reason)) => {
                    assert_eq!(reason, CloseReason::Finished);
                    seen.finished += 1;
                }
                ReceiveEvent::Connection(_, ConnectionEvent::PeerClosing)
                | ReceiveEvent::Starved { .. } => {}
                other => panic!("{other:?}"),
            }
        }
        listener.wait(millis(50)).expect("sleeps");
    }
}

fn config(connections: usize, pool: &SharedBufferManager) -> ReceiveConfig {
    ReceiveConfig::default()
        .incoming(|incoming| incoming.pool(pool).credits(DEPTH))
        .connection(|c| {
            c.max_connections(connections as u32)
                .connect_timeout(LIMIT)
                .close_timeout(LIMIT)
                // The machine may be too busy for a thousand senders.
                .unresponsive_after(None)
                .lost_after(None)
        })
}

/// A pool all of whose memory is there already.
fn resident_pool(slots: u32) -> SharedBufferManager {
    let pool = SharedBufferManager::allocate(slots, MESSAGE_BYTES).expect("memory");
    let mut all: Vec<_> = std::iter::from_fn(|| pool.try_acquire()).collect();
    all.iter_mut().for_each(|buffer| buffer.fill(1));
    pool
}

/// Waits until the harness's own thread waits for this test: what it allocates for that, when it
/// first does, is none of a listener's, and a busy machine may put it off.
fn until_the_harness_waits() {
    drive("the harness waits", SOON, || {
        let stat = std::fs::read_to_string("/proc/self/stat").expect("the kernel tells");
        let state = stat.rsplit(") ").next().expect("behind the name");
        state.starts_with('S')
    });
}

fn listening_process(connections: usize) {
    raise_fd_limit();
    until_the_harness_waits();
    let Some(domain) = domain() else { return };
    let pool = resident_pool(SLOTS_EACH * connections as u32);
    pool.region().register(&domain).expect("registered");
    // What the process and the provider take once, and what a listener for one connection does.
    let small = ReceiveEndpoint::listen(&domain, any_port(), config(1, &pool)).expect("listens");
    let with_small = Taken::now();
    drop(small);
    let before = Taken::now();

    let (mut seen, begin) = (Seen::default(), Instant::now());
    let mut listener =
        ReceiveEndpoint::listen(&domain, any_port(), config(connections, &pool)).expect("listens");
    let listening = Taken::now();
    tell(format!("at {}", listener.local_addr()));
    receive(&mut listener, &mut seen, |seen| {
        seen.connected == connections && seen.messages == MESSAGES * connections as u64
    });
    let took = begin.elapsed();
    drive("each has its receives again", SOON, || {
        listener.poll(&mut Vec::new()).expect("polls");
        pool.free_count() == 0
    });
    let full = Taken::now();
    assert_eq!(listener.connections(), connections);
    tell("full");
    receive(&mut listener, &mut seen, |seen| {
        seen.finished == connections
    });
    let closed = Taken::now();
    assert_eq!(listener.connections(), 0);
    assert_eq!(pool.free_count(), pool.slots());
    drop(listener);
    let after = Taken::now();

    let own = full.heap - with_small.heap + CONTROL_BYTES_EACH * connections as u64;
    let resident = full.resident.saturating_sub(before.resident);
    let fds = full.fds - listening.fds;
    tell(format!(
        "figures {connections} connections and {} messages in {took:?}: {fds} descriptors; ours \
         {own} bytes, {} of them on the heap at listen and {} since (and {} for the pool's \
         buffers); {resident} bytes more resident, the provider's among them ({} each); all \
         closed: {} on the heap, {} resident; listener dropped: {} resident",
        seen.messages,
        listening.heap - with_small.heap,
        full.heap - listening.heap,
        with_small.heap - before.heap,
        resident / connections as u64,
        closed.heap.saturating_sub(listening.heap),
        closed.resident.saturating_sub(before.resident),
        after.resident.saturating_sub(before.resident),
    ));
    assert!(fds <= FDS_EACH_MAX * connections, "{fds} descriptors");
    assert!(own <= OWN_BYTES_MAX, "{own} bytes");
    assert!(
        resident <= RESIDENT_BYTES_EACH_MAX * connections as u64,
        "{resident} bytes"
    );
    assert_eq!(closed.fds, listening.fds, "descriptors of connections");
    assert_eq!(after.fds, before.fds, "descriptors of the listener");
    // Tables keep their room until the listener goes.
    assert!(after.heap <= before.heap, "{before:?} {after:?}");
}

// ---- the sending process ------------------------------------------------------------------------

struct Sender {
    endpoint: SendEndpointZeroCopy,
    events: Vec<SendEvent>,
    posted: u64,
    completed: u64,
}

impl Sender {
    fn step(&mut self, pool: &SharedBufferManager) {
        self.endpoint.poll(&mut self.events).expect("polls");
        for event in self.events.extract_if(.., |e| {
            !matches!(e, SendEvent::Connection(ConnectionEvent::Disconnected(_)))
        }) {
            match event {
                SendEvent::Completed { .. } => self.completed += 1,
                SendEvent::Failed { error, .. } => panic!("{error}"),
                _ => {}
            }
        }
        if self.endpoint.is_connected()
            && self.posted < MESSAGES
            && let Some(buffer) = pool.try_acquire()
        {
            let sequence = (self.posted + 1).to_le_bytes();
            match self
                .endpoint
                .send_data(buffer.freeze(100), &sequence, self.posted)
            {
                Ok(()) => self.posted += 1,
                Err(refused) if refused.is_would_block() => {}
                Err(refused) => panic!("{refused}"),
            }
        }
    }
}

/// Drives all of them, also those that are there: who is not polled answers no question, and is
/// silent for its peer.
fn until_all(
    what: &str,
    senders: &mut [Sender],
    pool: &SharedBufferManager,
    done: impl Fn(&Sender) -> bool,
) {
    let until = after(patient(LIMIT));
    while !senders.iter().all(&done) {
        assert!(Instant::now() < until, "{what}: not within {LIMIT:?}");
        senders.iter_mut().for_each(|sender| sender.step(pool));
        std::thread::sleep(millis(1));
    }
}

fn sending_process() {
    raise_fd_limit();
    let Some(first) = domain() else { return };
    let (count, addr) = argument()
        .split_once(' ')
        .map(|(n, addr)| {
            (
                n.parse::<usize>().expect("a number"),
                addr.parse().expect("an address"),
            )
        })
        .expect("two words");
    let mut domains = vec![first];
    domains.extend((1..count.div_ceil(SENDERS_PER_DOMAIN)).filter_map(|_| domain()));
    let pool = SharedBufferManager::allocate(256, MESSAGE_BYTES).expect("memory");
    for domain in &domains {
        pool.region().register(domain).expect("registered");
    }
    let headers = HeaderSlotManager::new(HeaderSlotConfig::default()).expect("memory");
    let begin = Instant::now();
    let mut senders: Vec<Sender> = Vec::with_capacity(count);
    for number in 0..count {
        let config = common::sending()
            .outgoing(|out| out.depth(4).headers(&headers))
            .connection(|c| {
                c.connect_timeout(LIMIT)
                    .unresponsive_after(None)
                    .lost_after(None)
            });
        let domain = &domains[number / SENDERS_PER_DOMAIN];
        let endpoint = SendEndpointZeroCopy::connect(domain, addr, config);
        senders.push(Sender {
            endpoint: endpoint.unwrap_or_else(|error| panic!("the sender {number}: {error}")),
            events: Vec::new(),
            posted: 0,
            completed: 0,
        });
        // Where each takes a while, the first ones would be silent for too long.
        if number % 16 == 15 {
            senders.iter_mut().for_each(|sender| sender.step(&pool));
        }
    }
    until_all("connected", &mut senders, &pool, |s| {
        s.endpoint.is_connected()
    });
    tell(format!(
        "connected in {:?}, {} descriptors",
        begin.elapsed(),
        fd_count()
    ));
    until_all("sent", &mut senders, &pool, |s| s.completed == MESSAGES);
    assert_eq!(hear().as_deref(), Some("close"));
    senders
        .iter_mut()
        .for_each(|s| s.endpoint.begin_close(after(patient(LIMIT))));
    until_all("closed", &mut senders, &pool, |s| {
        send_end(&s.events).is_some()
    });
    for sender in &senders {
        assert_eq!(send_end(&sender.events), Some(CloseReason::Finished));
    }
}

// ---- the tests ----------------------------------------------------------------------------------

#[test]
fn a_thousand_connections_to_one_listener() {
    const TEST: &str = "a_thousand_connections_to_one_listener";
    match role().as_deref() {
        Some("listen") => return listening_process(argument().parse().expect("a number")),
        Some("send") => return sending_process(),
        _ => {}
    }
    let _dog = Watchdog::with(TEST, LIMIT + SOON);
    if domain().is_none() {
        return;
    }
    let maximum = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX) as usize;
    let connections = CONNECTIONS.min((maximum / SENDER_FDS).saturating_sub(4));
    if connections < CONNECTIONS {
        println!(
            "SKIPPED: {CONNECTIONS} connections need more descriptors than the hard limit of \
             {maximum}: {connections} instead"
        );
    }
    let mut listener = Child::start(TEST, "listen", connections);
    let addr = listener.expect("at", SOON);
    let mut sender = Child::start(TEST, "send", format!("{connections} {addr}"));
    println!(
        "the sender: connected {}",
        sender.expect("connected", LIMIT)
    );
    listener.expect("full", LIMIT);
    sender.say("close");
    println!("the listener: {}", listener.expect("figures", LIMIT));
    sender.finish(LIMIT);
    listener.finish(SOON);
}

/// libfabric 1.17 takes as many as there are descriptors.
#[test]
fn more_senders_in_a_domain_than_the_kernel_takes_are_refused_in_words() {
    const TEST: &str = "more_senders_in_a_domain_than_the_kernel_takes_are_refused_in_words";
    if role().is_none() {
        let mut child = Child::start(TEST, "many", "");
        let said = child.expect("done", 2 * SOON);
        child.finish(SOON);
        return println!("{said}");
    }
    let limit = raise_fd_limit();
    let Some(domain) = domain() else {
        return tell("done SKIPPED: no libfabric");
    };
    let config = ReceiveConfig::default().connection(|c| c.max_connections(1));
    let listener = ReceiveEndpoint::listen(&domain, any_port(), config).expect("listens");
    let headers = HeaderSlotManager::new(HeaderSlotConfig::default()).expect("memory");
    let connect = || {
        let config = common::sending().outgoing(|out| out.headers(&headers));
        SendEndpointZeroCopy::connect(&domain, listener.local_addr(), config)
    };
    let mut senders = Vec::new();
    let error = loop {
        match connect() {
            Ok(sender) => senders.push(sender),
            Err(error) => break error,
        }
        if senders.len() == 600 || (senders.len() + 2) * SENDER_FDS > limit {
            let why = "there could be more (libfabric 1.17, or too few descriptors)";
            return tell(format!(
                "done SKIPPED: {} senders, and {why}",
                senders.len()
            ));
        }
    };
    let words = error.to_string();
    match error {
        // The listener is one of them.
        Error::TooManyEndpoints { open } => assert_eq!(open, senders.len() + 1),
        other => panic!("{other}"),
    }
    let fds = fd_count();
    connect().expect_err("refused");
    assert_eq!(fd_count(), fds, "what was begun is closed");
    senders.pop();
    senders.push(connect().expect("there is room for one"));
    tell(format!("done {words}"));
}

#[test]
fn a_listener_that_the_limit_of_descriptors_does_not_allow_says_so() {
    const TEST: &str = "a_listener_that_the_limit_of_descriptors_does_not_allow_says_so";
    if role().is_none() {
        let mut child = Child::start(TEST, "limited", "");
        child.expect("done", SOON);
        return child.finish(SOON);
    }
    let maximum = getrlimit(Resource::Nofile).maximum;
    let limited = |n| Rlimit {
        current: Some(n),
        maximum,
    };
    setrlimit(Resource::Nofile, limited(256)).expect("lowered");
    if let Some(domain) = domain() {
        let fds = fd_count();
        let config = |n| {
            ReceiveConfig::default()
                .incoming(|incoming| incoming.slots(4096).max_message(64))
                .connection(|c| c.max_connections(n))
        };
        let listen = |n| ReceiveEndpoint::listen(&domain, any_port(), config(n));
        match listen(1_000) {
            Err(
                error @ Error::TooFewDescriptors {
                    limit: 256,
                    needed: 2_000..,
                    open: 1..,
                },
            ) => {
                println!("{error}");
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(fd_count(), fds, "nothing was begun");
        let listener = listen(16).expect("there is room for 16");

        // And a sender that can't be begun.
        let addr = listener.local_addr();
        let mut senders = Vec::new();
        let error = loop {
            match SendEndpointZeroCopy::connect(&domain, addr, common::sending()) {
                Ok(sender) => senders.push(sender),
                Err(error) => break error,
            }
            assert!(
                senders.len() < 256,
                "256 descriptors for more senders than that"
            );
        };
        assert!(
            matches!(error, Error::TooFewDescriptors { limit: 256, .. }),
            "{error}"
        );
        drop((senders, listener));
        assert_eq!(fd_count(), fds, "what was begun is closed: {:?}", fd_list());
    }
    tell("done");
}
