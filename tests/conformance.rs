//! What endpoints do, on every provider that this machine has, over FI_EP_MSG and FI_EP_RDM: `make conformance`.
//!
//! Sender and receiver are processes of their own, for a provider may crash or hang where a peer is killed; a row of the
//! table that is printed at the end is one provider of one library. FABRICAST_ROW and FABRICAST_CASE, parts of
//! names, run some of them only; FABRICAST_LIBFABRIC_2 names a second library, as in `mixed`.

mod common;

use std::collections::{BTreeMap, HashMap};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::child::{self, Child};
use common::{SOON, Watchdog, after, buffer, drive, pattern, pool, send_end};
use fabricast::endpoint::{
    CloseReason, ConnectionId, HeaderMode, Level, ReceiveConfig, RefusalCode, SendConfig,
};
use fabricast::error::Error;
use fabricast::fabric::{EndpointKind, Evidence, PROVIDERS};
use fabricast::{
    Domain, Fabric, PeerAddr, ReceiveEndpoint, ReceiveEvent, SendEndpointZeroCopy, SendEvent,
};

const NAME: &str = "every_behaviour_on_every_provider";

/// A provider with one kind of endpoint, and the local address that it is asked for.
struct Row {
    name: &'static str,
    provider: &'static str,
    kind: EndpointKind,
    node: Option<&'static str>,
}

const LOOPBACK: Option<&str> = Some("127.0.0.1");

const ROWS: &[Row] = &[
    Row {
        name: "tcp(MSG)",
        kind: EndpointKind::Msg,
        ..row("tcp", LOOPBACK)
    },
    Row {
        name: "tcp(RDM)",
        ..row("tcp", LOOPBACK)
    },
    row("tcp;ofi_rxm", LOOPBACK),
    row("net", LOOPBACK),
    row("shm", None),
    row("sockets", LOOPBACK),
    row("udp;ofi_rxd", LOOPBACK),
];

const fn row(provider: &'static str, node: Option<&'static str>) -> Row {
    Row {
        name: provider,
        provider,
        kind: EndpointKind::Rdm,
        node,
    }
}

fn row_named(name: &str) -> &'static Row {
    let is_it = |row: &&Row| row.name == name;
    ROWS.iter().find(is_it).expect("a row of the table")
}

fn open(row: &Row) -> Result<Arc<Domain>, Error> {
    let builder = Fabric::builder()
        .provider(row.provider)
        .endpoint_kind(row.kind);
    let builder = match row.node {
        Some(node) => builder.node(node),
        None => builder,
    };
    builder.open()?.open_domain()
}

/// What a role was told: words of the form name=value.
struct Told(HashMap<String, String>);

impl Told {
    fn new(text: &str) -> Self {
        let words = text.split(' ').filter_map(|word| word.split_once('='));
        let owned = |(k, v): (&str, &str)| (k.to_owned(), v.to_owned());
        Self(words.map(owned).collect())
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    fn number(&self, name: &str, default: u64) -> u64 {
        let parse = |text: &str| text.parse().expect("a number");
        self.text(name).map_or(default, parse)
    }

    fn domain(&self) -> Arc<Domain> {
        let provider = self.text("row").expect("a row").replace('+', ";");
        open(row_named(&provider)).expect("the parent looked")
    }
}

fn mode(name: &str) -> HeaderMode {
    match name {
        "raw" => HeaderMode::Raw,
        "fixed" => HeaderMode::Fixed(HEADER as u16),
        _ => HeaderMode::Prefixed,
    }
}

/// Header: who sends, which message, how long its payload is.
const HEADER: usize = 24;

fn header(sender: u64, number: u64, len: usize) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..8].copy_from_slice(&sender.to_le_bytes());
    header[8..16].copy_from_slice(&number.to_le_bytes());
    header[16..].copy_from_slice(&(len as u64).to_le_bytes());
    header
}

const MAX_MESSAGE: usize = (1 << 20) + 4096;

// ---- the receiving process ---------------------------------------------------------------------------------------

/// Counts what arrives and checks it, byte by byte and in order.
#[derive(Default)]
struct Checker {
    next: BTreeMap<u64, u64>,
    messages: u64,
}

impl Checker {
    fn check(&mut self, header: &[u8], payload: &[u8]) {
        let all = [header, payload].concat();
        let (header, payload) = all.split_at(HEADER);
        let word = |i: usize| u64::from_le_bytes(header[i * 8..][..8].try_into().expect("8"));
        let (sender, number, len) = (word(0), word(1), word(2));
        let next = self.next.entry(sender).or_default();
        assert_eq!(number, *next, "messages of sender {sender} in order");
        assert!(payload == pattern(number, len as usize), "message {number}");
        *next += 1;
        self.messages += 1;
    }
}

fn listen(told: &Told, domain: &Arc<Domain>) -> ReceiveEndpoint {
    let mut config = ReceiveConfig::default()
        .max_message(told.number("max", MAX_MESSAGE as u64) as usize)
        .slots(told.number("slots", 32) as u32)
        .depth(told.number("depth", 8) as u32)
        .max_connections(told.number("peers", 4) as u32)
        .handshake_timeout(Duration::from_secs(2));
    if let Some(asked) = told.text("asks") {
        config = config.header_mode(mode(asked));
    }
    let anywhere = match domain.fabric().provider().name {
        "shm" => "any",
        _ => "127.0.0.1:0",
    };
    let at = told.text("at").unwrap_or(anywhere);
    ReceiveEndpoint::listen(domain, at.parse().expect("an address"), config).expect("listens")
}

/// Receives until so many connections (`ends`) are over, keeping the first `hold` messages until then or until told.
fn receive(told: &Told) {
    let domain = told.domain();
    let mut receiver = listen(told, &domain);
    child::tell(format!("addr {}", receiver.local_addr()));
    let (orders, heard) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        while let Some(order) = child::hear() {
            let _ = orders.send(order);
        }
    });
    let (mut checker, mut held, mut ends) = (Checker::default(), Vec::new(), 0);
    let (mut events, mut hold) = (Vec::new(), told.number("hold", 0) as usize);
    drive("the ends of all connections", 3 * SOON, || {
        receiver.poll(&mut events).expect("polls");
        for event in events.drain(..) {
            match event {
                ReceiveEvent::Message(message) => {
                    checker.check(message.header(), message.payload());
                    if held.len() < hold {
                        held.push(message);
                        child::tell(format!("held {}", held.len()));
                    }
                }
                ReceiveEvent::Connected { connection, info } => tell_connected(connection, &info),
                ReceiveEvent::Disconnected { reason, .. } => {
                    child::tell(format!("over {reason}"));
                    ends += 1;
                }
                _ => {}
            }
        }
        match heard.try_recv().as_deref() {
            Ok("release") => (hold, held) = (0, Vec::new()),
            Ok("drop") => return true,
            _ => {}
        }
        ends == told.number("ends", 1)
    });
    let stats = receiver.stats();
    child::tell(format!(
        "received {} strays {}",
        checker.messages, stats.strays
    ));
    drop(receiver);
    child::tell(format!(
        "failures {}",
        fabricast::stats::process().close_failures
    ));
}

fn tell_connected(connection: ConnectionId, info: &fabricast::endpoint::ConnectionInfo) {
    let peer = info.peer.map(|peer| peer.to_string());
    child::tell(format!(
        "connected {connection} {}",
        peer.unwrap_or_default()
    ));
}

// ---- the sending process -----------------------------------------------------------------------------------------

struct Sender {
    endpoint: SendEndpointZeroCopy,
    who: u64,
    sizes: Vec<usize>,
    posted: u64,
    completed: u64,
    failed: u64,
    blocked: u64,
    events: Vec<SendEvent>,
    pool: fabricast::buffer::SharedBufferManager,
}

impl Sender {
    fn connect(told: &Told) -> Self {
        let domain = told.domain();
        let sizes = told.text("sizes").unwrap_or("1");
        let sizes: Vec<usize> = sizes
            .split(',')
            .map(|n| n.parse().expect("a size"))
            .collect();
        let largest = *sizes.iter().max().expect("a size");
        let level = match told.text("level") {
            Some("delivered") => Level::Delivered,
            _ => Level::Sent,
        };
        let config = SendConfig::default()
            .level(level)
            .header_mode(mode(told.text("mode").unwrap_or("prefixed")))
            .connect_timeout(Duration::from_millis(told.number("connect", 5000)))
            .send_deadline(Some(Duration::from_millis(told.number("deadline", 30_000))))
            .lost_after(Some(Duration::from_millis(told.number("lost", 60_000))));
        let pool = pool(&domain, 16, largest.max(64));
        let to: PeerAddr = told
            .text("to")
            .expect("a peer")
            .parse()
            .expect("an address");
        let endpoint = SendEndpointZeroCopy::connect(&domain, to, config).expect("begins");
        Self {
            endpoint,
            who: told.number("who", 0),
            sizes,
            posted: 0,
            completed: 0,
            failed: 0,
            blocked: 0,
            events: Vec::new(),
            pool,
        }
    }

    fn poll(&mut self) {
        self.endpoint.poll(&mut self.events).expect("polls");
        self.count();
    }

    fn count(&mut self) {
        for event in &self.events {
            match event {
                SendEvent::Completed { .. } => self.completed += 1,
                SendEvent::Failed { .. } => self.failed += 1,
                _ => {}
            }
        }
        let outcome =
            |e: &SendEvent| !matches!(e, SendEvent::Completed { .. } | SendEvent::Failed { .. });
        self.events.retain(outcome);
    }

    /// True when the message was taken.
    fn try_send(&mut self) -> bool {
        if self.pool.free_count() == 0 {
            return false;
        }
        let len = self.sizes[self.posted as usize % self.sizes.len()];
        let payload = buffer(&self.pool, &pattern(self.posted, len));
        let header = header(self.who, self.posted, len);
        match self.endpoint.send_data(payload, &header, self.posted) {
            Ok(()) => {
                self.posted += 1;
                true
            }
            Err(refused) => {
                self.blocked += u64::from(refused.is_would_block());
                false
            }
        }
    }

    fn outcomes(&self) -> u64 {
        self.completed + self.failed
    }

    fn ended(&self) -> Option<CloseReason> {
        send_end(&self.events)
    }

    fn report(&self, reason: Option<CloseReason>) {
        let Self {
            posted,
            completed,
            failed,
            ..
        } = self;
        let code = match reason {
            Some(CloseReason::Refused(refusal)) => format!("refused {:?}", refusal.code()),
            Some(reason) => reason.to_string(),
            None => "none".to_owned(),
        };
        child::tell(format!("sent {posted} {completed} {failed} {code}"));
    }
}

/// Sends `n` messages, then closes politely; with `flood`, sends until the connection ends; with `rude`, drops.
fn send(told: &Told) {
    let mut sender = Sender::connect(told);
    if let Err(error) = sender.endpoint.wait_connected() {
        child::tell(format!("no connection: {error}"));
        sender.poll();
        return sender.report(sender.endpoint.close_reason());
    }
    child::tell("connected");
    let (n, flood) = (told.number("n", 0), told.number("flood", 0));
    let mut told_of_flood = false;
    let idle = Duration::from_millis(told.number("idle", 60_000));
    let mut last = (0, Instant::now());
    drive("all sends", 4 * SOON, || {
        while sender.posted < n && sender.try_send() {}
        sender.poll();
        if sender.outcomes() != last.0 {
            last = (sender.outcomes(), Instant::now());
        }
        if last.1.elapsed() > idle && sender.outcomes() == sender.posted {
            return true;
        }
        if !told_of_flood && flood > 0 && sender.posted >= flood {
            told_of_flood = true;
            child::tell("flooding");
        }
        sender.ended().is_some() || sender.posted == n && sender.completed == n
    });
    if sender.ended().is_none() && sender.posted < n {
        return sender.report(None);
    }
    if let Some(reason) = sender.ended() {
        return sender.report(Some(reason));
    }
    if told.text("rude").is_some() {
        // A socket that is closed with something unread takes back what was written last.
        let until = after(Duration::from_millis(told.number("rude", 0)));
        drive("a moment", SOON, || {
            sender.poll();
            Instant::now() >= until
        });
        let Sender { endpoint, .. } = sender;
        drop(endpoint);
        return child::tell("dropped");
    }
    if told.text("stay").is_some() {
        child::tell("staying");
        let _ = child::hear();
        return;
    }
    let begun = Instant::now();
    sender.endpoint.begin_close(after(SOON));
    drive("the goodbye", 2 * SOON, || {
        sender.poll();
        sender.ended().is_some()
    });
    assert!(begun.elapsed() < 2 * SOON);
    sender.report(sender.ended());
}

/// Sends until it is refused for want of credit, tells, and goes on when it is told to.
fn stall(told: &Told) {
    let mut sender = Sender::connect(told);
    sender.endpoint.wait_connected().expect("connects");
    let n = told.number("n", 0);
    let credits = told.number("credits", 0);
    let until = after(Duration::from_millis(300));
    drive("a stall", SOON, || {
        while sender.posted < n && sender.try_send() {}
        sender.poll();
        Instant::now() >= until
    });
    assert!(sender.blocked > 0, "refused");
    assert!(sender.posted <= credits, "{} posted", sender.posted);
    child::tell(format!("stalled {}", sender.posted));
    drive("the rest", 2 * SOON, || {
        while sender.posted < n && sender.try_send() {}
        sender.poll();
        sender.completed == n
    });
    sender.endpoint.begin_close(after(SOON));
    drive("the goodbye", 2 * SOON, || {
        sender.poll();
        sender.ended().is_some()
    });
    sender.report(sender.ended());
}

/// Only begins to connect.
fn ask(told: &Told) {
    let to: PeerAddr = told
        .text("to")
        .expect("a peer")
        .parse()
        .expect("an address");
    match SendEndpointZeroCopy::connect(&told.domain(), to, SendConfig::default()) {
        Ok(_) => child::tell("error none"),
        Err(error) => child::tell(format!("error {error}")),
    }
}

// ---- the parent --------------------------------------------------------------------------------------------------

/// One row on one library, or on two.
#[derive(Clone)]
struct On {
    provider: &'static str,
    receiving: &'static str,
    sends: String,
    receives: String,
}

const FINISHED: &str = "finished: both sides said goodbye";

impl On {
    fn child(&self, role: &str, library: &str, words: &str) -> Child {
        let provider = match role {
            "receive" => self.receiving,
            _ => self.provider,
        };
        let row = provider.replace(';', "+");
        let env = [
            ("FABRICAST_LIBFABRIC", library),
            ("FABRICAST_ROW", ""),
            ("FABRICAST_CASE", ""),
            // What the row of `ofi_rxm` asks for.
            ("FI_OFI_RXM_SAR_LIMIT", "0"),
        ];
        Child::with_env(NAME, role, format!("row={row} {words}"), &env)
    }

    fn receiver(&self, words: &str) -> (Child, String) {
        let mut child = self.child("receive", &self.receives, words);
        let addr = child.expect("addr", SOON);
        (child, addr)
    }

    fn sender(&self, role: &str, to: &str, words: &str) -> Child {
        self.child(role, &self.sends, &format!("to={to} {words}"))
    }
}

/// Kills a child, and takes away the shared memory that `shm` leaves behind then.
fn kill(child: Child) {
    let regions = format!("{}:", child.id());
    child.kill();
    drop(child);
    for entry in std::fs::read_dir("/dev/shm")
        .into_iter()
        .flatten()
        .flatten()
    {
        if entry.file_name().to_string_lossy().starts_with(&regions) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

fn finish_receiver(receiver: &mut Child, messages: u64) {
    let received = receiver.expect("received", 4 * SOON);
    assert_eq!(received, format!("{messages} strays 0"));
    assert_eq!(receiver.expect("failures", SOON), "0", "closes");
    receiver.finish(SOON);
}

fn expect_sent(sender: &mut Child, messages: u64) {
    let sent = sender.expect("sent", 5 * SOON);
    assert_eq!(sent, format!("{messages} {messages} 0 {FINISHED}"));
    sender.finish(SOON);
}

/// Sizes around what providers inject, copy, split and handle by rendezvous.
const SIZES: &str =
    "0,1,40,64,104,200,1000,4000,4096,9000,16360,16400,65000,262144,1048576,1048500";

fn sizes(on: &On) {
    for (mode, level) in [
        ("prefixed", "sent"),
        ("fixed", "sent"),
        ("raw", "delivered"),
    ] {
        let (mut receiver, addr) = on.receiver("");
        let words = format!("n=64 sizes={SIZES} mode={mode} level={level}");
        let mut sender = on.sender("send", &addr, &words);
        expect_sent(&mut sender, 64);
        assert_eq!(receiver.expect("over", SOON), FINISHED);
        finish_receiver(&mut receiver, 64);
    }
}

fn back_pressure(on: &On) {
    let (mut receiver, addr) = on.receiver("hold=100 slots=10 depth=4 peers=1");
    let mut sender = on.sender("stall", &addr, "n=40 credits=10 sizes=1000,70000");
    sender.expect("stalled", 2 * SOON);
    receiver.say("release");
    expect_sent(&mut sender, 40);
    finish_receiver(&mut receiver, 40);
}

fn refusal(on: &On) {
    let (mut receiver, addr) = on.receiver("asks=raw");
    let mut sender = on.sender("send", &addr, "n=1 mode=prefixed");
    sender.expect("no connection", SOON);
    let told = format!("0 0 0 refused {:?}", RefusalCode::HEADER_MODE);
    assert_eq!(sender.expect("sent", SOON), told);
    let mut sender = on.sender("send", &addr, "n=3 mode=raw");
    expect_sent(&mut sender, 3);
    finish_receiver(&mut receiver, 3);
}

/// To an address where nobody is any more: an answer within the connect timeout.
fn nobody(on: &On) {
    let (mut receiver, addr) = on.receiver("");
    receiver.say("drop");
    receiver.finish(SOON);
    let begun = Instant::now();
    let mut sender = on.sender("send", &addr, "n=1 connect=700");
    let reason = sender.expect("no connection", SOON);
    assert!(begun.elapsed() < SOON, "{reason}");
    sender.finish(SOON);
}

fn two_senders(on: &On) {
    let (mut receiver, addr) = on.receiver("ends=2");
    let words = |who| format!("who={who} n=200 sizes=1,3000,100000");
    let mut senders = [1, 2].map(|who| on.sender("send", &addr, &words(who)));
    for sender in &mut senders {
        expect_sent(sender, 200);
    }
    finish_receiver(&mut receiver, 400);
}

/// A sender that is dropped without a goodbye is noticed, and the next one is served.
fn rude_sender(on: &On) {
    let (mut receiver, addr) = on.receiver("ends=2");
    let mut sender = on.sender("send", &addr, "n=5 sizes=1000 rude=100");
    sender.expect("dropped", 2 * SOON);
    let over = receiver.expect("over", SOON);
    // Over FI_EP_MSG the end of the connection itself says it.
    let said = match row_named(on.provider).kind {
        EndpointKind::Msg => "the peer was lost",
        EndpointKind::Rdm => "given up",
    };
    assert!(over.contains(said), "{over}");
    let mut sender = on.sender("send", &addr, "who=1 n=5 sizes=1000");
    expect_sent(&mut sender, 5);
    let received = receiver.expect("received", SOON);
    assert!(received.starts_with("10 "), "{received}");
    receiver.finish(SOON);
}

/// A receiver that goes without a goodbye is noticed: it says so, or, where that gets lost with its endpoint, its silence does.
fn rude_receiver(on: &On) {
    let (mut receiver, addr) = on.receiver("");
    let mut sender = on.sender(
        "send",
        &addr,
        "n=1000000 flood=20 sizes=1000,100000 lost=6000",
    );
    sender.expect("flooding", SOON);
    receiver.say("drop");
    receiver.finish(SOON);
    assert_all_back(&mut sender, Duration::from_secs(35));
}

fn assert_all_back(sender: &mut Child, limit: Duration) -> String {
    let sent = sender.expect("sent", limit);
    let words: Vec<_> = sent.splitn(4, ' ').collect();
    let number = |i: usize| words[i].parse::<u64>().expect("a count");
    assert_eq!(number(0), number(1) + number(2), "{sent}");
    sender.finish(SOON);
    words[3].to_owned()
}

/// With sends in flight, small and large, every key comes back within the send deadline.
fn killed_receiver(on: &On) {
    for sizes in ["1000", "1048576"] {
        let (receiver, addr) = on.receiver("hold=6 slots=10 depth=4 peers=1");
        let words = format!("n=1000000 flood=4 deadline=1500 idle=2500 sizes={sizes}");
        let mut sender = on.sender("send", &addr, &words);
        sender.expect("flooding", SOON);
        kill(receiver);
        if sizes == "1000" {
            // All may have completed; then only liveness tells.
            std::thread::sleep(Duration::from_millis(200));
            if let Some(line) = sender.heard() {
                assert!(line.starts_with("sent"), "{line}");
            }
            kill(sender);
        } else {
            let reason = assert_all_back(&mut sender, SOON);
            // "none": all had completed; only liveness would tell.
            let told = ["lost", "not done within", "none"];
            assert!(told.iter().any(|words| reason.contains(words)), "{reason}");
        }
    }
}

/// A sender that is killed holds nobody up.
fn killed_sender(on: &On) {
    let (mut receiver, addr) = on.receiver("ends=99 peers=3");
    let mut first = on.sender(
        "send",
        &addr,
        "n=1000000 flood=20 who=7 sizes=1000,100000,200000",
    );
    first.expect("flooding", SOON);
    kill(first);
    let mut second = on.sender("send", &addr, "who=1 n=100 sizes=1000,200000");
    expect_sent(&mut second, 100);
    receiver.say("drop");
    let received = receiver.expect("received", SOON);
    let messages: u64 = received
        .split(' ')
        .next()
        .and_then(|n| n.parse().ok())
        .expect("a count");
    assert!(messages >= 100, "{received}");
    receiver.finish(SOON);
}

/// The address is used again by another process: it is not taken for the old one.
fn restarted_receiver(on: &On) {
    if on.provider == "shm" {
        return println!("  shm: addresses carry the process id and are not used again");
    }
    let (first, addr) = on.receiver("hold=6 slots=10 depth=4 peers=1");
    let mut old = on.sender(
        "send",
        &addr,
        "n=1000000 flood=4 deadline=1500 idle=2500 who=9 sizes=300000",
    );
    old.expect("flooding", SOON);
    kill(first);
    let (mut second, again) = on.receiver(&format!("at={addr} ends=1"));
    assert_eq!(again, addr);
    let mut new = on.sender("send", &addr, "n=50 sizes=1,3000,100000");
    let sent = new.expect("sent", 3 * SOON);
    assert_eq!(sent, format!("50 50 0 {FINISHED}"));
    let received = second.expect("received", 2 * SOON);
    assert!(received.starts_with("50 "), "only the new one: {received}");
    // Where the provider connects again by itself, only liveness would tell; but every key is back.
    assert_all_back(&mut old, SOON);
}

/// Many connections, one after the other, some of them rude.
fn churn(on: &On) {
    let (mut receiver, addr) = on.receiver("ends=99 slots=48 depth=4 peers=8");
    for round in 0..12 {
        let rude = round % 4 == 3;
        let words = format!("who={round} n=10 sizes=100,50000");
        let words = if rude { words + " rude=1" } else { words };
        let mut sender = on.sender("send", &addr, &words);
        if rude {
            sender.expect("dropped", 2 * SOON);
        } else {
            expect_sent(&mut sender, 10);
            receiver.expect(&format!("over {FINISHED}"), SOON);
        }
    }
    receiver.say("drop");
    let received = receiver.expect("received", 2 * SOON);
    assert!(received.starts_with("120 "), "{received}");
    receiver.finish(SOON);
}

/// Sizes and headers, and refusals, of one version with a receiver of another; or an error that says what differs.
fn mixed(on: &On) {
    if on.provider == "shm" {
        let (mut receiver, addr) = on.receiver("");
        let mut sender = on.sender("ask", &addr, "");
        let error = sender.expect("error", SOON);
        assert!(error.contains("same version of libfabric"), "{error}");
        sender.finish(SOON);
        receiver.say("drop");
        return receiver.finish(SOON);
    }
    sizes(on);
    refusal(on);
}

type Behaviour = (&'static str, fn(&On));

const BEHAVIOURS: &[Behaviour] = &[
    ("sizes", sizes),
    ("back-pressure", back_pressure),
    ("refusal", refusal),
    ("nobody", nobody),
    ("two senders", two_senders),
    ("rude sender", rude_sender),
    ("rude receiver", rude_receiver),
    ("killed receiver", killed_receiver),
    ("killed sender", killed_sender),
    ("restart", restarted_receiver),
    ("churn", churn),
];

/// Whether the library has the row, asked in a process of its own: its version, or why not.
fn probe(provider: &'static str, library: &str) -> Result<String, String> {
    let on = On {
        provider,
        receiving: provider,
        sends: library.to_owned(),
        receives: library.to_owned(),
    };
    let mut child = on.child("probe", library, "");
    let answer = child.expect("probed", 2 * SOON);
    child.finish(SOON);
    match answer.split_once(' ') {
        Some(("yes", version)) => Ok(version.to_owned()),
        Some((_, reason)) => Err(reason.to_owned()),
        None => Err(answer),
    }
}

fn tell_probe(told: &Told) {
    let provider = told.text("row").expect("a row").replace('+', ";");
    match open(row_named(&provider)) {
        Ok(domain) => child::tell(format!("probed yes {}", domain.report().library)),
        Err(error) => child::tell(format!("probed no {error}").replace('\n', " ")),
    }
}

fn is_asked_for(variable: &str, name: &str) -> bool {
    std::env::var(variable).map_or(true, |part| part.is_empty() || name.contains(&part))
}

/// What fails for a reason of the provider's own.
const KNOWN: &[(&str, &str, &str)] = &[
    ("udp;ofi_rxd 1.17", "restart", RXD_RESTART),
    ("udp;ofi_rxd 2.5", "restart", RXD_RESTART),
];

const RXD_RESTART: &str =
    "takes packets of the old sender for the new one's, and the new connection times out";

/// Runs the behaviours of one row; a line of the table.
fn run_row(title: &str, on: &On, behaviours: &[Behaviour], table: &mut Table) {
    let mut cells = Vec::new();
    for (name, behaviour) in behaviours {
        if !is_asked_for("FABRICAST_CASE", name) {
            cells.push("-".to_owned());
            continue;
        }
        let begun = Instant::now();
        let ran = std::panic::catch_unwind(AssertUnwindSafe(|| behaviour(on)));
        let known = KNOWN
            .iter()
            .find(|(row, case, _)| (*row, *case) == (title, *name));
        let cell = match (ran, known) {
            (Ok(()), _) => "ok",
            (Err(_), Some((_, _, why))) => {
                println!("{title}: {name}: {why}");
                "known"
            }
            (Err(_), None) => "FAILED",
        };
        println!("{title}: {name}: {cell} in {:?}", begun.elapsed());
        cells.push(cell.to_owned());
    }
    table.push((title.to_owned(), cells));
}

/// Which provider of the first library talks to which of the second.
const MIXED: &[(&str, &str)] = &[
    ("tcp(MSG)", "tcp(MSG)"),
    ("net", "tcp(RDM)"),
    ("tcp;ofi_rxm", "tcp;ofi_rxm"),
    ("shm", "shm"),
    ("sockets", "sockets"),
    ("udp;ofi_rxd", "udp;ofi_rxd"),
];

/// A sender of the library that has `sends`, a receiver of the other.
fn run_mixed(sends: &'static str, receives: &'static str, libraries: &[String], table: &mut Table) {
    let name = format!("{sends} to {receives}");
    if !is_asked_for("FABRICAST_ROW", &name) || !is_asked_for("FABRICAST_CASE", "mixed") {
        return;
    }
    let [first, second] = libraries else {
        return println!("SKIPPED: {name}: FABRICAST_LIBFABRIC_2 does not name a second libfabric");
    };
    for (from, to) in [(first, second), (second, first)] {
        match (probe(sends, from), probe(receives, to)) {
            (Ok(one), Ok(other)) => {
                let on = On {
                    provider: sends,
                    receiving: receives,
                    sends: from.clone(),
                    receives: to.clone(),
                };
                let title = format!("{sends} {one} to {receives} {other}");
                run_row(&title, &on, &[("mixed", mixed)], table);
            }
            // A name that only one of the two has.
            _ if sends != receives => {}
            (Err(reason), _) | (_, Err(reason)) => println!("SKIPPED: {name}: {reason}"),
        }
    }
}

type Table = Vec<(String, Vec<String>)>;

fn print_table(table: &[(String, Vec<String>)]) {
    print!("\n{:38}", "provider, libfabric");
    for (name, _) in BEHAVIOURS {
        print!(" {name}");
    }
    println!();
    for (title, cells) in table {
        print!("{title:38}");
        if let [cell] = &cells[..] {
            println!(" mixed: {cell}");
            continue;
        }
        for ((name, _), cell) in BEHAVIOURS.iter().zip(cells) {
            print!(" {cell:^width$}", width = name.len());
        }
        println!();
    }
}

/// The providers that no line of the table is about, so that no hole is unexplained.
fn print_undecided(table: &[(String, Vec<String>)]) {
    for row in PROVIDERS {
        let is_it = |title: &str| title.starts_with(row.name);
        if !table.iter().any(|(title, _)| is_it(title)) {
            let why = match row.evidence {
                Evidence::Tested => "not on this machine, or not asked for",
                Evidence::Documented => {
                    "known from its documentation only: no machine of ours has it"
                }
            };
            println!("{:38} {why}", row.name);
        }
    }
}

#[test]
fn every_behaviour_on_every_provider() {
    let told = Told::new(&child::argument());
    match child::role().as_deref() {
        Some("probe") => return tell_probe(&told),
        Some("receive") => return receive(&told),
        Some("send") => return send(&told),
        Some("stall") => return stall(&told),
        Some("ask") => return ask(&told),
        Some(other) => panic!("no role {other}"),
        None => {}
    }
    let _dog = Watchdog::with(NAME, Duration::from_secs(1500));
    let first = std::env::var("FABRICAST_LIBFABRIC").unwrap_or_default();
    let second = std::env::var("FABRICAST_LIBFABRIC_2").ok();
    let libraries = std::iter::once(first).chain(second.filter(|path| !path.is_empty()));
    let libraries: Vec<_> = libraries.collect();
    let mut table = Table::new();
    for row in ROWS
        .iter()
        .filter(|row| is_asked_for("FABRICAST_ROW", row.name))
    {
        let mut has = Vec::new();
        for library in &libraries {
            match probe(row.name, library) {
                Ok(version) => has.push((library, version)),
                Err(reason) => println!("SKIPPED: {} of {library:?}: {reason}", row.name),
            }
        }
        for (library, version) in &has {
            let on = On {
                provider: row.name,
                receiving: row.name,
                sends: (*library).clone(),
                receives: (*library).clone(),
            };
            run_row(
                &format!("{} {version}", row.name),
                &on,
                BEHAVIOURS,
                &mut table,
            );
        }
    }
    for (one, other) in MIXED {
        run_mixed(one, other, &libraries, &mut table);
        if one != other {
            run_mixed(other, one, &libraries, &mut table);
        }
    }
    print_table(&table);
    print_undecided(&table);
    let failed = |(_, cells): &&(String, Vec<String>)| cells.iter().any(|cell| cell == "FAILED");
    assert_eq!(table.iter().filter(failed).count(), 0, "rows with failures");
}
