//! A device's memory moves between two processes by CUDA IPC: `shm`, with a libfabric that was
//! built with CUDA.
//!
//! `FABRICAST_LIBFABRIC_CUDA` names that library (its libcudart.so may lie beside it), and
//! `FABRICAST_TEST_GPU=real` says that there is a GPU. The parent starts the owner of a window and
//! its peer, and carries what they have to say to each other.

use std::collections::VecDeque;
use std::path::Path as FilePath;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use fabricast::buffer::{
    DeviceBufferManager, Payload, RegionSlice, SharedBufferConfig, SharedBufferManager,
};
use fabricast::cuda::{Device, Stream};
use fabricast::endpoint::{
    Access, ConnectionId, LocalWindow, LongMessages, ReceiveConfig, RemoteWindow, SendConfig,
    WindowDescriptor, WindowEvent,
};
use fabricast::fabric::{DevicePaths, EndpointKind};
use fabricast::memory::Path;
use fabricast::{
    ConnectionEvent, Domain, Fabric, ReceiveEndpoint, ReceiveEvent, Region, SendEndpointZeroCopy,
    SendEvent,
};

use crate::child::{self, Child};
use crate::fake_cuda::wants_real;
use crate::pattern::pattern;

const TEST: &str = "direct::device_memory_goes_between_two_processes";
const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
/// The largest message, and room for odd lengths at odd places behind it.
const LARGEST: usize = 16 * MIB + 3;
const REGION: usize = 16 * MIB + 4 * KIB;
/// Numbers of the connections: the two that the test says more of.
const DIRECT: usize = 0;
const LONG: usize = 2;
/// Messages above that many bytes are long ones there.
const LONG_ABOVE: usize = 64 * KIB;
/// How long one step may take. A first one opens memory of the other process.
const LIMIT: Duration = Duration::from_secs(30);
/// How long one rate is measured, at most.
const MEASURED: Duration = Duration::from_millis(150);
/// Writes in flight while a rate is measured.
const DEPTH: usize = 8;
/// What a bus brings at most (PCIe 5.0 x16 has 63 GB/s a direction): a faster copy did not pass
/// through the host.
const BUS: f64 = 64.0;

#[test]
fn device_memory_goes_between_two_processes() {
    match child::role().as_deref() {
        Some("owner") => return own(),
        Some(_) => return visit(),
        None => {}
    }
    let library = match library() {
        Ok(library) => library,
        Err(why) => return println!("SKIPPED: {why}"),
    };
    let (mut owner, _its_files) = start(TEST, &library, "owner", "");
    let said = owner.expect("", LIMIT);
    if let Some(why) = said.strip_prefix("skip ") {
        return println!("SKIPPED: {why}");
    }
    let addresses = said.strip_prefix("at ").expect("where it listens");
    let (mut peer, _its_files) = start(TEST, &library, "peer", addresses);
    loop {
        let line = peer.expect("", 4 * LIMIT);
        match line.split_once(' ').unwrap_or((&line, "")) {
            ("|", _) => println!("{line}"),
            ("ask", question) => {
                owner.say(question);
                peer.say(&owner.expect("answer", 2 * LIMIT));
            }
            ("done", _) => break,
            _ => panic!("the peer says {line:?}"),
        }
    }
    owner.say("bye");
    owner.finish(LIMIT);
    peer.say("bye");
    peer.finish(LIMIT);
}

/// A libfabric with CUDA on a machine with a GPU, or why there is none.
pub(super) fn library() -> Result<String, String> {
    if !wants_real() {
        return Err("two processes and CUDA IPC: FABRICAST_TEST_GPU=real is not set".to_owned());
    }
    let library = std::env::var("FABRICAST_LIBFABRIC_CUDA").map_err(|_| {
        "FABRICAST_LIBFABRIC_CUDA names no libfabric that was built with CUDA".to_owned()
    })?;
    match FilePath::new(&library).exists() {
        true => Ok(library),
        false => Err(format!("FABRICAST_LIBFABRIC_CUDA: {library} is not there")),
    }
}

/// A process over that library; with what takes its shared memory away when it was killed.
pub(super) fn start(test: &str, library: &str, role: &str, argument: &str) -> (Child, Files) {
    let beside = FilePath::new(library)
        .parent()
        .map_or_else(String::new, |dir| dir.display().to_string());
    let search = match std::env::var("LD_LIBRARY_PATH") {
        Ok(more) => format!("{beside}:{more}"),
        Err(_) => beside,
    };
    let env = [
        ("FABRICAST_LIBFABRIC", library),
        ("LD_LIBRARY_PATH", search.as_str()),
    ];
    let child = Child::with_env(test, role, argument, &env);
    let files = Files(format!("{}:", child.id()));
    (child, files)
}

/// What `shm` leaves in /dev/shm of a process that did not close.
pub(super) struct Files(String);

impl Drop for Files {
    fn drop(&mut self) {
        for entry in std::fs::read_dir("/dev/shm")
            .into_iter()
            .flatten()
            .flatten()
        {
            if entry.file_name().to_string_lossy().starts_with(&self.0) {
                // Gone already, if its process ended well.
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }
}

fn domain(paths: DevicePaths) -> Arc<Domain> {
    let fabric = Fabric::builder()
        .provider("shm")
        .endpoint_kind(EndpointKind::Rdm)
        .device_memory(paths);
    let fabric = fabric.open().expect("shm");
    fabric.open_domain().expect("a domain")
}

/// A device's memory, which that domain reaches by itself.
fn direct_region(domain: &Domain) -> Arc<Region> {
    let region = Region::device(REGION).build().expect("device memory");
    region.register(domain).expect("registered");
    let path = region.path(domain).expect("just registered");
    assert!(
        matches!(path, Path::Direct(_)),
        "the memory does not go directly over this libfabric: {path}"
    );
    region
}

/// Lines of the parent, so that nobody sleeps on them.
pub(super) fn lines() -> Receiver<String> {
    let (tell, lines) = channel();
    std::thread::spawn(move || {
        while let Some(line) = child::hear() {
            if tell.send(line).is_err() {
                return;
            }
        }
    });
    lines
}

fn all_of(region: &Arc<Region>) -> RegionSlice {
    region.slice(0..region.len()).expect("all of it")
}

fn content(region: &Arc<Region>, stream: &Stream) -> Vec<u8> {
    let mut bytes = vec![0; region.len()];
    all_of(region)
        .copy_to_host(&mut bytes, stream)
        .expect("copied");
    bytes
}

fn fill(region: &Arc<Region>, seed: u64, stream: &Stream) {
    all_of(region)
        .copy_from_host(&pattern(region.len(), seed), stream)
        .expect("copied");
}

/// What a region is to hold that was filled and then written to at one place.
fn overlaid(len: usize, under: u64, at: usize, over: &[u8]) -> Vec<u8> {
    let mut bytes = pattern(len, under);
    bytes[at..at + over.len()].copy_from_slice(over);
    bytes
}

// ---- the owner of the windows -------------------------------------------------------------------

/// One endpoint that listens, and what it heard.
struct Listener {
    endpoint: ReceiveEndpoint,
    connection: Option<ConnectionId>,
    messages: VecDeque<Arrived>,
    heard: Vec<ReceiveEvent>,
    stream: Stream,
}

/// A message, and where it came.
struct Arrived {
    header: Vec<u8>,
    payload: Vec<u8>,
    on_device: bool,
}

impl Listener {
    fn open(domain: &Arc<Domain>) -> Self {
        let config = ReceiveConfig::default()
            .incoming(|incoming| incoming.max_message(LARGEST + 4 * KIB).slots(8).credits(2))
            .connection(|c| c.max_connections(1).windows(4));
        Self::listen(domain, config)
    }

    /// Of long messages, with a pool in a device's memory, which is not used over FI_EP_RDM.
    fn open_long(domain: &Arc<Domain>) -> Self {
        let size = LARGEST + 4 * KIB;
        let region = Region::device(size).build().expect("device memory");
        let device = DeviceBufferManager::new(region, size).expect("a pool");
        let host = SharedBufferManager::allocate(1, size).expect("a pool");
        let config = ReceiveConfig::default()
            .incoming(|incoming| incoming.max_message(LONG_ABOVE).slots(16).credits(2))
            .connection(|c| c.max_connections(1))
            .incoming(|i| i.long_messages(LongMessages::new(host).on_device(device)));
        Self::listen(domain, config)
    }

    fn listen(domain: &Arc<Domain>, config: ReceiveConfig) -> Self {
        let at = "any".parse().expect("an address");
        Self {
            endpoint: ReceiveEndpoint::listen(domain, at, config).expect("listens"),
            connection: None,
            messages: VecDeque::new(),
            heard: Vec::new(),
            stream: Stream::new(Device::new(0).expect("it is there")).expect("a stream"),
        }
    }

    fn poll(&mut self) {
        self.endpoint.poll(&mut self.heard).expect("polls");
        for event in self.heard.drain(..) {
            match event {
                ReceiveEvent::Connection(connection, ConnectionEvent::Connected(_)) => {
                    self.connection = Some(connection)
                }
                ReceiveEvent::Message(message) => {
                    self.messages.push_back(Arrived {
                        header: message.header().to_vec(),
                        payload: message.payload().to_vec(),
                        on_device: false,
                    });
                }
                ReceiveEvent::DeviceMessage(message) => {
                    let mut payload = vec![0; message.payload().len()];
                    let copied = message.payload().copy_to_host(&mut payload, &self.stream);
                    copied.expect("copied");
                    self.messages.push_back(Arrived {
                        header: message.header().to_vec(),
                        payload,
                        on_device: true,
                    });
                }
                _ => {}
            }
        }
    }
}

struct Owner {
    /// For the device's memory, for what comes through the host, and for long messages.
    listeners: [Listener; 3],
    device: Arc<Region>,
    host: Arc<Region>,
    stream: Stream,
    windows: Vec<LocalWindow>,
}

impl Owner {
    fn until<T>(&mut self, what: &str, mut found: impl FnMut(&mut Self) -> Option<T>) -> T {
        let until = Instant::now() + LIMIT;
        loop {
            if let Some(found) = found(self) {
                return found;
            }
            assert!(Instant::now() < until, "no {what} within {LIMIT:?}");
            self.listeners.iter_mut().for_each(Listener::poll);
        }
    }

    fn expose(&mut self, of: usize, region: &Arc<Region>) -> String {
        let connection = self.until("connection", |it| it.listeners[of].connection);
        let rights = Access::READ | Access::WRITE;
        let endpoint = &mut self.listeners[of].endpoint;
        let window = match endpoint.windows(connection).expose(all_of(region), rights) {
            Ok(window) => window,
            Err(refused) => panic!("no window into {}: {refused}", region.kind()),
        };
        let bytes = window.descriptor().to_bytes();
        self.windows.push(window);
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn answer(&mut self, question: &str) -> String {
        let (what, numbers) = question.split_once(' ').unwrap_or((question, ""));
        let numbers: Vec<u64> = numbers
            .split_whitespace()
            .map(|number| number.parse().expect("a number"))
            .collect();
        match (what, numbers.as_slice()) {
            ("windows", _) => {
                let (device, host) = (Arc::clone(&self.device), Arc::clone(&self.host));
                format!("{} {}", self.expose(0, &device), self.expose(1, &host))
            }
            ("fill", &[seed]) => {
                fill(&self.device, seed, &self.stream);
                "ok".to_owned()
            }
            ("check", &[under, at, len, over]) => {
                let over = pattern(len as usize, over);
                let wanted = overlaid(REGION, under, at as usize, &over);
                told(content(&self.device, &self.stream) == wanted)
            }
            ("message", &[by, len, seed]) => {
                let by = by as usize;
                let Arrived {
                    header,
                    payload,
                    on_device,
                } = self.until("message", |it| it.listeners[by].messages.pop_front());
                // Nothing but an endpoint's end keeps a peer of shm from memory that it was told
                // of, so what is handed out is a copy, of long messages, too.
                if on_device {
                    return "another place".to_owned();
                }
                told(header == seed.to_le_bytes() && payload == pattern(len as usize, seed))
            }
            _ => panic!("{question:?}"),
        }
    }
}

fn told(as_it_was: bool) -> String {
    if as_it_was { "ok" } else { "other content" }.to_owned()
}

fn own() {
    let device = match Device::all() {
        Ok(devices) => devices[0],
        Err(why) => return child::tell(format!("skip {why}").replace('\n', " ")),
    };
    let orders = lines();
    let (direct, host) = (domain(DevicePaths::Auto), domain(DevicePaths::Off));
    let mut owner = Owner {
        device: direct_region(&direct),
        host: Region::pinned(REGION).build().expect("pinned memory"),
        stream: Stream::new(device).expect("a stream"),
        windows: Vec::new(),
        listeners: [
            Listener::open(&direct),
            Listener::open(&host),
            Listener::open_long(&direct),
        ],
    };
    let [a, b, c] = owner
        .listeners
        .each_ref()
        .map(|it| it.endpoint.local_addr());
    child::tell(format!("at {a} {b} {c}"));
    loop {
        owner.listeners.iter_mut().for_each(Listener::poll);
        match orders.try_recv() {
            Ok(order) if order == "bye" => break,
            Ok(order) => child::tell(format!("answer {}", owner.answer(&order))),
            Err(std::sync::mpsc::TryRecvError::Empty) => {}
            Err(std::sync::mpsc::TryRecvError::Disconnected) => panic!("the parent is gone"),
        }
    }
}

// ---- its peer -----------------------------------------------------------------------------------

/// What became of one operation.
type Outcome = Result<(), String>;

struct Peer {
    senders: [SendEndpointZeroCopy; 3],
    windows: Option<[RemoteWindow; 2]>,
    device: Arc<Region>,
    stream: Stream,
    answers: Receiver<String>,
    outcomes: VecDeque<Outcome>,
    sent: Vec<SendEvent>,
}

impl Peer {
    fn connect(direct: &Arc<Domain>, host: &Arc<Domain>) -> Self {
        let at = child::argument();
        let at: Vec<_> = at.split(' ').collect();
        let [a, b, c] = at[..] else {
            panic!("{at:?} are not three addresses");
        };
        let connect = |domain, at: &str| {
            let at = at.parse().expect("an address");
            SendEndpointZeroCopy::connect(domain, at, SendConfig::default()).expect("begins")
        };
        let device = Device::all().expect("the owner has one")[0];
        let mut peer = Self {
            senders: [connect(direct, a), connect(host, b), connect(direct, c)],
            windows: None,
            device: direct_region(direct),
            stream: Stream::new(device).expect("a stream"),
            answers: lines(),
            outcomes: VecDeque::new(),
            sent: Vec::new(),
        };
        peer.until("connections", |it| {
            let all = it.senders.iter().all(SendEndpointZeroCopy::is_connected);
            all.then_some(())
        })
        .expect("connected");
        let told = peer.ask("windows");
        let (a, b) = told.split_once(' ').expect("two windows");
        let open = |sender: &mut SendEndpointZeroCopy, text: &str| {
            let bytes: Vec<u8> = (0..text.len() / 2)
                .map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).expect("a byte"))
                .collect();
            let descriptor = WindowDescriptor::parse(&bytes).expect("a descriptor");
            sender.windows().open(&descriptor).expect("opened")
        };
        peer.windows = Some([open(&mut peer.senders[0], a), open(&mut peer.senders[1], b)]);
        peer
    }

    fn poll(&mut self) {
        for sender in &mut self.senders {
            sender.poll(&mut self.sent).expect("polls");
        }
        for event in self.sent.drain(..) {
            match event {
                SendEvent::Completed { .. }
                | SendEvent::Window(WindowEvent::Written { .. } | WindowEvent::Read { .. }) => {
                    self.outcomes.push_back(Ok(()));
                }
                SendEvent::Failed { error, .. }
                | SendEvent::Window(
                    WindowEvent::WriteFailed { error, .. } | WindowEvent::ReadFailed { error, .. },
                ) => self.outcomes.push_back(Err(error.to_string())),
                SendEvent::Connection(ConnectionEvent::Disconnected(reason)) => {
                    self.outcomes
                        .push_back(Err(format!("the connection ended: {reason}")));
                }
                _ => {}
            }
        }
    }

    fn until<T>(
        &mut self,
        what: &str,
        mut found: impl FnMut(&mut Self) -> Option<T>,
    ) -> Result<T, String> {
        let until = Instant::now() + LIMIT;
        loop {
            if let Some(found) = found(self) {
                return Ok(found);
            }
            if Instant::now() > until {
                return Err(format!("no {what} within {LIMIT:?}"));
            }
            self.poll();
        }
    }

    fn ask(&mut self, question: &str) -> String {
        child::tell(format!("ask {question}"));
        // The owner has a step's time itself.
        self.until("answer", |it| it.answers.try_recv().ok())
            .unwrap_or_else(|why| panic!("{question}: {why}"))
    }

    fn outcome(&mut self) -> Outcome {
        self.until("outcome", |it| it.outcomes.pop_front())?
    }

    /// Posts a write; waits while there is no room for it.
    fn write(&mut self, by: usize, payload: impl Into<Payload>, at: usize) -> Outcome {
        let mut payload = Some(payload.into());
        self.until("room for a write", |it| {
            let window = &it.windows.as_ref().expect("opened")[by];
            let place = window.at(at as u64);
            match it.senders[by].windows().write(payload.take()?, place, 1) {
                Ok(()) => Some(Ok(())),
                Err(refused) if refused.is_would_block() => {
                    payload = Some(refused.given);
                    None
                }
                Err(refused) => Some(Err(refused.to_string())),
            }
        })?
    }

    fn slice(&self, at: usize, len: usize) -> RegionSlice {
        self.device.slice(at..at + len).expect("inside")
    }
}

/// Lengths, and the places here and there, odd ones among them.
const CASES: &[(usize, usize, usize)] = &[
    (1, 0, 0),
    (1, 13, 7),
    (4 * KIB, 0, 0),
    (4 * KIB + 3, 1, 4093),
    (MIB, 0, 0),
    (MIB + 3, 4093, 1),
    (16 * MIB, 0, 0),
    (LARGEST, 7, 13),
];

fn visit() {
    let (direct, host) = (domain(DevicePaths::Auto), domain(DevicePaths::Off));
    let mut peer = Peer::connect(&direct, &host);
    let path = peer.device.path(&direct).expect("registered");
    let cases = CASES.len();
    child::tell(format!(
        "| shm of libfabric {}: {path} |",
        direct.report().library
    ));
    written(&mut peer);
    child::tell(format!("| (a) one-sided writes: {cases} of {cases} |"));
    read(&mut peer);
    child::tell(format!("| (b) one-sided reads: {cases} of {cases} |"));
    rates(&mut peer, &host);
    // Last: what the provider does not take may end the connection.
    match sent(&mut peer, DIRECT) {
        Ok(()) => child::tell(format!(
            "| (c) sends with a header in host memory: {cases} of {cases} (libfabric's IPC takes \
             one segment: these it copies through the host) |"
        )),
        Err(why) => child::tell(format!(
            "| (c) NOT POSSIBLE: sends of device memory with a header in host memory: {why} |"
        )),
    }
    match sent(&mut peer, LONG) {
        Ok(()) => child::tell(format!(
            "| (d) messages above {} KiB from device memory arrive in the owner's host memory: \
             {cases} of {cases} |",
            LONG_ABOVE / KIB
        )),
        Err(why) => child::tell(format!(
            "| (d) NOT POSSIBLE: long messages into device memory: {why} |"
        )),
    }
    child::tell("done");
    // The owner has this memory open, and closes it first.
    let _ = peer.answers.recv_timeout(LIMIT);
}

fn written(peer: &mut Peer) {
    for (n, &(len, from, to)) in CASES.iter().enumerate() {
        let (seed, under) = (n as u64 + 1, n as u64 + 101);
        assert_eq!(peer.ask(&format!("fill {under}")), "ok");
        let slice = peer.slice(from, len);
        slice
            .copy_from_host(&pattern(len, seed), &peer.stream)
            .expect("copied");
        let outcome = peer
            .write(0, slice.clone(), to)
            .and_then(|()| peer.outcome());
        let what = format!("a write of {len} bytes from {from} to {to}");
        assert_eq!(outcome, Ok(()), "{what}");
        let there = peer.ask(&format!("check {under} {to} {len} {seed}"));
        assert_eq!(there, "ok", "{what}: the owner has");
        let mut here = vec![0; len];
        slice.copy_to_host(&mut here, &peer.stream).expect("copied");
        assert!(here == pattern(len, seed), "{what}: changed at its source");
    }
}

fn read(peer: &mut Peer) {
    for (n, &(len, to, from)) in CASES.iter().enumerate() {
        let (seed, under) = (n as u64 + 201, n as u64 + 301);
        assert_eq!(peer.ask(&format!("fill {seed}")), "ok");
        fill(&peer.device, under, &peer.stream);
        let what = format!("a read of {len} bytes from {from} to {to}");
        let place = peer.windows.as_ref().expect("opened")[0].at(from as u64);
        if let Err(refused) = peer.senders[0].windows().read(
            peer.device.slice(to..to + len).expect("inside"),
            place,
            1,
        ) {
            panic!("{what}: {}", refused.kind);
        }
        assert_eq!(peer.outcome(), Ok(()), "{what}");
        let source = pattern(REGION, seed);
        let wanted = overlaid(REGION, under, to, &source[from..from + len]);
        assert!(
            content(&peer.device, &peer.stream) == wanted,
            "{what}: other content"
        );
        let there = peer.ask(&format!("check {seed} 0 0 0"));
        assert_eq!(there, "ok", "{what}: the owner has");
    }
}

/// Messages of a header in host memory and a payload in a device's, into receives in host memory,
/// long ones into slots of a pool; why not, if the provider refuses.
fn sent(peer: &mut Peer, by: usize) -> Outcome {
    for (n, &(len, from, _)) in CASES.iter().enumerate() {
        let seed = n as u64 + 401;
        let slice = peer.slice(from, len);
        slice
            .copy_from_host(&pattern(len, seed), &peer.stream)
            .expect("copied");
        let mut payload = Some(Payload::from(slice));
        let posted = peer.until("room for a send", |it| {
            match it.senders[by].send_data(payload.take()?, &seed.to_le_bytes(), seed) {
                Ok(()) => Some(Ok(())),
                Err(refused) if refused.is_would_block() => {
                    payload = Some(refused.given);
                    None
                }
                Err(refused) => Some(Err(refused.to_string())),
            }
        });
        posted
            .and_then(|posted| posted)
            .and_then(|()| peer.outcome())
            .map_err(|why| format!("{len} bytes: {why}"))?;
        // What is reported as sent has to be there, and to be right.
        let there = peer.ask(&format!("message {by} {len} {seed}"));
        assert_eq!(there, "ok", "a message of {len} bytes");
    }
    Ok(())
}

// ---- rates --------------------------------------------------------------------------------------

fn rates(peer: &mut Peer, host: &Domain) {
    let pinned = Region::pinned(DEPTH * 16 * MIB)
        .build()
        .expect("pinned memory");
    let settings = SharedBufferConfig::new(16 * MIB);
    let pool = SharedBufferManager::new(pinned, settings).expect("a pool");
    pool.region().register(host).expect("registered");
    let (mut crossover, mut fastest) = (None, 0.0_f64);
    for len in [
        4 * KIB,
        16 * KIB,
        64 * KIB,
        256 * KIB,
        MIB,
        4 * MIB,
        16 * MIB,
    ] {
        let slice = peer.slice(0, len);
        let direct = rate(peer, 0, len, |_| slice.clone().into());
        let staged = rate(peer, 1, len, |peer| {
            let taken = peer.until("free buffer", |_| pool.try_acquire());
            let mut buffer = taken.expect("a free buffer");
            slice
                .copy_to_host(&mut buffer[..len], &peer.stream)
                .expect("copied");
            buffer.freeze(len).into()
        });
        child::tell(format!(
            "| writes of {:>6} KiB: direct {direct:>8.2} GB/s, copied to the host and written to \
             its memory {staged:>6.2} GB/s |",
            len / KIB
        ));
        match direct < staged {
            true => crossover = None,
            false => crossover = crossover.or(Some(len)),
        }
        fastest = fastest.max(direct);
    }
    child::tell(match crossover {
        Some(len) => format!("| direct is the faster one from {} KiB up |", len / KIB),
        None => "| direct is never the faster one |".to_owned(),
    });
    let proof = if fastest > BUS {
        "faster than a bus: no byte passed through the host"
    } else {
        "NOT PROVEN by the rate, which a copy through the host could have, too"
    };
    child::tell(format!("| by CUDA IPC: {proof} |"));
}

/// GB/s of writes of that length, [`DEPTH`] in flight.
fn rate(
    peer: &mut Peer,
    by: usize,
    len: usize,
    mut payload: impl FnMut(&mut Peer) -> Payload,
) -> f64 {
    let (mut begun, mut posted, mut done) = (Instant::now(), 0, 0);
    // The first ones open and map.
    let warm = 2 * DEPTH;
    while done < posted || posted < warm || (begun.elapsed() < MEASURED && posted < 100_000) {
        let more = posted < warm || begun.elapsed() < MEASURED;
        if more && posted - done < DEPTH {
            let next = payload(peer);
            peer.write(by, next, 0).expect("posted");
            posted += 1;
            continue;
        }
        assert_eq!(peer.outcome(), Ok(()), "a write of {len} bytes");
        done += 1;
        if done == warm {
            begun = Instant::now();
        }
    }
    ((done - warm) * len) as f64 / begun.elapsed().as_secs_f64() / 1e9
}
