//! What one client can do to the others of a service, and what it can't.

use std::collections::VecDeque;
use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use crate::endpoint::{CloseReason, ConnectionEvent, ConnectionId, ReceiveEvent, RefusalCode};
use crate::fabric::EndpointKind;
use crate::object::control::{ControlConfig, ControlMessage, ControlPort};
use crate::object::tests::service::{
    by, bytes, client, config, connect, fabrics, filled, memory, serve,
};
use crate::object::wire::{
    ANSWER_PAYLOAD_MAX, Answer, AnswerBody, HEADER_LEN, PutRequest, REQUEST_PAYLOAD_MAX, Request,
    RequestBody,
};
use crate::object::*;
use crate::{Domain, Fabric};

const MIB: usize = 1 << 20;
/// Gets that are compared.
const ROUNDS: usize = 20;

fn name(text: &str) -> ObjectName {
    ObjectName::new(text).unwrap()
}

fn fabric() -> Option<Arc<Fabric>> {
    fabrics().into_iter().next()
}

/// A connection that says what it likes, and waits for nothing.
struct RawClient {
    port: ControlPort,
    connection: ConnectionId,
    waiting: VecDeque<ControlMessage>,
    is_connected: bool,
    is_lost: bool,
    /// How each request was refused, or that it was not.
    answers: Vec<(u64, Option<ObjectStatus>)>,
}

impl RawClient {
    fn config() -> ControlConfig {
        ControlConfig {
            connections: 1,
            of_host: None,
            incoming: ANSWER_PAYLOAD_MAX,
            outgoing: REQUEST_PAYLOAD_MAX,
            connect_timeout: Duration::from_secs(30),
            lost_after: Duration::from_secs(60),
        }
    }

    fn connect(fabric: &Arc<Fabric>, service: &ObjectService) -> Self {
        Self::over(&fabric.open_domain().unwrap(), service)
    }

    /// As one of several of a program: a process may have 64 domains, and other tests have some.
    fn over(domain: &Arc<Domain>, service: &ObjectService) -> Self {
        let mut port = ControlPort::dialing(domain, &Self::config()).unwrap();
        let connection = port.dial(&service.local_addr()).unwrap();
        let mut raw = Self {
            port,
            connection,
            waiting: VecDeque::new(),
            is_connected: false,
            is_lost: false,
            answers: Vec::new(),
        };
        // A machine with much else to do may have it end before it was made.
        while !raw.is_connected {
            raw.until("connected", |raw| raw.is_connected || raw.is_lost);
            if std::mem::take(&mut raw.is_lost) {
                raw.connection = raw.port.dial(&service.local_addr()).unwrap();
            }
        }
        raw
    }

    /// Why it is not taken.
    fn refused(fabric: &Arc<Fabric>, service: &ObjectService) -> Option<CloseReason> {
        let domain = fabric.open_domain().unwrap();
        let mut port = ControlPort::dialing(&domain, &Self::config()).unwrap();
        let connection = port.dial(&service.local_addr()).unwrap();
        let (end, mut events) = (by(), Vec::new());
        loop {
            assert!(Instant::now() < end, "neither taken nor refused");
            port.poll(&mut events).unwrap();
            for event in events.drain(..) {
                match event {
                    ReceiveEvent::Connection(id, ConnectionEvent::Disconnected(reason)) => {
                        assert_eq!(id, connection);
                        return Some(reason);
                    }
                    ReceiveEvent::Connection(_, ConnectionEvent::Connected(_)) => return None,
                    _ => {}
                }
            }
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    fn until(&mut self, what: &str, mut is_so: impl FnMut(&Self) -> bool) {
        let end = by();
        while !is_so(self) {
            assert!(Instant::now() < end, "not {what}");
            self.progress();
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    fn ask(&mut self, id: u64, body: RequestBody) {
        let (mut header, mut payload) = ([0; HEADER_LEN], Vec::new());
        let budget_ms = 0;
        let request = Request {
            id,
            budget_ms,
            body,
        };
        request.encode(&mut header, &mut payload);
        self.waiting.push_back(ControlMessage { header, payload });
    }

    fn progress(&mut self) {
        let mut events = Vec::new();
        self.port.poll(&mut events).unwrap();
        for event in events {
            match event {
                ReceiveEvent::Connection(_, ConnectionEvent::Connected(_)) => {
                    self.is_connected = true;
                }
                ReceiveEvent::Connection(_, ConnectionEvent::Disconnected(reason)) => {
                    println!("lost: {reason}");
                    (self.is_connected, self.is_lost) = (false, true);
                }
                ReceiveEvent::Message(message) => {
                    let answer = Answer::parse(message.header(), message.payload()).unwrap();
                    let status = match answer.body {
                        AnswerBody::Refused { status, .. } => Some(status),
                        _ => None,
                    };
                    self.answers.push((answer.id, status));
                }
                _ => {}
            }
        }
        if self.is_connected {
            self.port.flush(self.connection, &mut self.waiting);
        }
    }

    fn say_all(&mut self) {
        self.until("said", |raw| raw.waiting.is_empty());
    }

    fn answer_to(&mut self, id: u64) -> Option<ObjectStatus> {
        self.until("answered", |raw| {
            raw.answers.iter().any(|(it, _)| *it == id)
        });
        let found = self.answers.iter().find(|(it, _)| *it == id);
        found.and_then(|(_, status)| *status)
    }
}

/// Until it is opened, who comes waits.
#[derive(Debug, Default)]
struct Gate {
    is_open: Mutex<bool>,
    opened: Condvar,
    /// Those who came.
    came: AtomicUsize,
}

impl Gate {
    fn pass(&self) {
        self.came.fetch_add(1, Ordering::SeqCst);
        let is_open = self.is_open.lock().unwrap();
        drop(self.opened.wait_while(is_open, |is_open| !*is_open));
    }

    fn came(&self) -> usize {
        self.came.load(Ordering::SeqCst)
    }

    fn open(&self) {
        *self.is_open.lock().unwrap() = true;
        self.opened.notify_all();
    }

    fn until_came(&self, count: usize) {
        let end = by();
        while self.came() < count {
            assert!(Instant::now() < end, "{} of {count} came", self.came());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Opens the gate, so that a test that failed leaves no thread behind.
struct Opens(Arc<Gate>);

impl Drop for Opens {
    fn drop(&mut self) {
        self.0.open();
    }
}

/// A store whose lists, and whose object `waits`, wait for a gate.
#[derive(Debug)]
struct GatedStore {
    memory: MemoryStore,
    gate: Arc<Gate>,
}

impl ObjectStore for GatedStore {
    fn head(&self, name: &ObjectName) -> Result<ObjectInfo, StoreError> {
        if name.as_str() == "waits" {
            self.gate.pass();
        }
        self.memory.head(name)
    }

    fn open(&self, name: &ObjectName) -> Result<Arc<dyn StoredObject>, StoreError> {
        self.memory.open(name)
    }

    fn begin(
        &self,
        name: &ObjectName,
        size: u64,
        condition: &PutCondition,
    ) -> Result<Box<dyn ObjectUpload>, StoreError> {
        self.memory.begin(name, size, condition)
    }

    fn list(&self, query: &ListQuery) -> Result<ListPage, StoreError> {
        self.gate.pass();
        self.memory.list(query)
    }

    fn delete(&self, name: &ObjectName, etag: Option<&ObjectEtag>) -> Result<(), StoreError> {
        self.memory.delete(name, etag)
    }
}

fn gated() -> (GatedStore, Arc<Gate>, Opens) {
    let gate = Arc::new(Gate::default());
    let (memory, opens) = (MemoryStore::new(), Opens(Arc::clone(&gate)));
    let store = GatedStore {
        memory,
        gate: Arc::clone(&gate),
    };
    (store, gate, opens)
}

fn list() -> RequestBody {
    RequestBody::List(ListQuery {
        limit: 1000,
        ..ListQuery::default()
    })
}

/// One list is under way for as long as this test likes; 400 others were cancelled.
#[test]
fn what_was_cancelled_is_not_done_and_holds_up_nobody() {
    let Some(fabric) = fabric() else { return };
    let (store, gate, _opens) = gated();
    let service = serve(&fabric, store, config());
    let honest_client = client(&fabric);
    let mut honest = connect(&honest_client, &fabric, &service);
    let mut flood = RawClient::connect(&fabric, &service);
    flood.ask(0, list());
    flood.say_all();
    gate.until_came(1);
    for id in 1..=400 {
        flood.ask(id, list());
        flood.ask(id, RequestBody::Cancel);
        flood.say_all();
    }
    let begin = Instant::now();
    let answered = honest.head("x", Instant::now() + Duration::from_secs(10));
    println!("a head beside 400 lists: {:?}", begin.elapsed());
    let status = answered.unwrap_err().status();
    assert_eq!(status, Some(ObjectStatus::NOT_FOUND), "the gate is closed");
    let busy = flood.answers.iter();
    let busy = busy.filter(|(_, status)| *status == Some(ObjectStatus::BUSY));
    println!("{} of them were refused", busy.count());
    gate.open();
    assert_eq!(flood.answer_to(0), None);
    // What was asked behind the others is done.
    let begin = Instant::now();
    flood.ask(1000, list());
    while flood.answer_to(1000) == Some(ObjectStatus::BUSY) {
        assert!(begin.elapsed() < Duration::from_secs(60));
        flood.answers.clear();
        flood.ask(1000, list());
    }
    println!("{} of 402 lists were done", gate.came());
    assert!(gate.came() <= 20, "{} lists were done", gate.came());
}

/// A connection that goes takes what it asked for with it.
#[test]
fn what_a_connection_that_is_gone_asked_for_is_not_done() {
    let Some(fabric) = fabric() else { return };
    let (store, gate, _opens) = gated();
    let service = serve(&fabric, store, config());
    let honest_client = client(&fabric);
    let mut honest = connect(&honest_client, &fabric, &service);
    for round in 0..10 {
        let mut flood = RawClient::connect(&fabric, &service);
        (0..16).for_each(|id| flood.ask(id, list()));
        flood.say_all();
        if round == 0 {
            gate.until_came(1);
        }
    }
    let answered = honest.head("x", Instant::now() + Duration::from_secs(10));
    let status = answered.unwrap_err().status();
    assert_eq!(status, Some(ObjectStatus::NOT_FOUND));
    gate.open();
    let begin = Instant::now();
    // This list comes in its turn.
    while honest.list("", by()).any(|it| it.is_err()) {
        assert!(begin.elapsed() < Duration::from_secs(60));
    }
    println!("{} of 161 lists were done", gate.came());
    assert!(gate.came() <= 40, "{} lists were done", gate.came());
}

/// How long that takes, while a store hangs.
fn time_of(end: impl FnOnce(ObjectService) + Send + 'static) -> Duration {
    let fabric = fabric().expect("a provider");
    let (store, gate, opens) = gated();
    let here = store.memory.clone();
    let service = serve(&fabric, store, config());
    let mut flood = RawClient::connect(&fabric, &service);
    for id in 0..16 {
        flood.ask(
            id,
            RequestBody::Head {
                name: name("waits"),
            },
        );
    }
    flood.say_all();
    gate.until_came(1);
    let (said, heard) = channel();
    let begin = Instant::now();
    let closing = std::thread::spawn(move || {
        end(service);
        said.send(begin.elapsed())
    });
    let took = heard.recv_timeout(Duration::from_secs(20));
    // What was left is at its end when the store is, and the store goes with it.
    let done = gate.came();
    drop(opens);
    closing.join().unwrap().unwrap();
    let end = by();
    while here.handles() > 1 {
        assert!(Instant::now() < end, "somebody still has the store");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(gate.came() <= done + 2, "{} were done", gate.came());
    took.expect("it takes what it is given")
}

#[test]
fn a_close_takes_what_it_is_given_while_a_store_hangs() {
    if fabric().is_none() {
        return;
    }
    let close = |service: ObjectService| service.close(Instant::now() + Duration::from_secs(1));
    let (close, dropped) = (time_of(close), time_of(drop));
    println!("a close of 1 s took {close:?}, a drop {dropped:?}");
    assert!(close < Duration::from_secs(10), "{close:?}");
    assert!(dropped < Duration::from_secs(10), "{dropped:?}");
}

/// A token that names a port where nobody takes connections.
fn deaf_token(client: &ObjectClient, len: usize) -> (RdmaToken, TcpListener) {
    let deaf = TcpListener::bind("127.0.0.1:0").unwrap();
    let window = memory(client, len);
    let lent = window.token(0..window.len(), ObjectOperation::Get).unwrap();
    let token: RdmaToken = lent.to_string().parse().unwrap();
    // A `sockaddr_in`.
    let mut name = token.name().to_vec();
    let port = deaf.local_addr().unwrap().port();
    name[2..4].copy_from_slice(&port.to_be_bytes());
    let (base, len, key) = (token.base(), token.len(), token.key());
    let token = RdmaToken::new(base, len, token.provider(), &name, key).unwrap();
    (token, deaf)
}

/// Connections of a client that does not move, with 16 gets each.
fn stalled(
    fabric: &Arc<Fabric>,
    service: &ObjectService,
    count: usize,
    token: &RdmaToken,
) -> Vec<RawClient> {
    let domain = fabric.open_domain().unwrap();
    let connections = (0..count).map(|_| {
        let mut raw = RawClient::over(&domain, service);
        for id in 0..16 {
            raw.ask(
                id,
                RequestBody::Get {
                    name: name("x"),
                    offset: 0,
                    len: token.len(),
                    etag: None,
                    checksum: None,
                    token: token.to_string(),
                },
            );
        }
        raw.say_all();
        raw
    });
    connections.collect()
}

/// Times of gets, sorted, and how many were refused.
fn gets(remote: &mut RemoteObjects, memory: &ObjectMemory, count: usize) -> (Vec<Duration>, usize) {
    let (mut times, mut refused) = (Vec::new(), 0);
    for _ in 0..count {
        let begin = Instant::now();
        match remote.get("x", memory, 0..memory.len(), 0, by()) {
            Ok(_) => times.push(begin.elapsed()),
            Err(error) => {
                println!("{error}");
                refused += 1;
            }
        }
    }
    times.sort_unstable();
    (times, refused)
}

/// With the service's defaults; the others are at that address. The exact figures want a quiet
/// machine.
fn beside_stalled(count: usize, node: &str) {
    let Some(fabric) = fabric() else { return };
    let theirs = at(&fabric, node);
    let store = MemoryStore::new();
    let data = bytes(4 * MIB, 9);
    store.insert(&name("x"), &data, &PutCondition::Any).unwrap();
    let service = serve(&fabric, store, ObjectServiceConfig::default());
    let honest_client = client(&fabric);
    let mut honest = connect(&honest_client, &fabric, &service);
    let into = memory(&honest_client, 4 * MIB);
    gets(&mut honest, &into, 5);
    let (alone, refused) = gets(&mut honest, &into, ROUNDS);
    assert_eq!(refused, 0);
    let (token, _deaf) = deaf_token(&honest_client, 4 * MIB);
    let attackers = stalled(&theirs, &service, count, &token);
    std::thread::sleep(Duration::from_millis(200));
    let (beside, refused) = gets(&mut honest, &into, ROUNDS);
    assert_eq!(refused, 0, "beside {count} connections that stall");
    compare(
        &format!("gets beside {count} at {node} that stall"),
        &alone,
        &beside,
    );
    // One who comes now is served, too.
    let mut late = connect(&honest_client, &fabric, &service);
    let (times, refused) = gets(&mut late, &into, 3);
    println!("one who came later: {times:?}");
    assert_eq!(refused, 0, "one who came later");
    drop(attackers);
}

/// The same provider, at another address.
fn at(fabric: &Fabric, node: &str) -> Arc<Fabric> {
    let builder = Fabric::builder().provider(fabric.provider().name);
    let builder = builder.endpoint_kind(EndpointKind::Rdm).node(node);
    builder.open().expect("the same provider")
}

/// Sorted times of the same, alone and beside others: the ratios are printed, and no more is asked
/// of them than a busy machine can hold.
fn compare(what: &str, alone: &[Duration], beside: &[Duration]) {
    let sum = |times: &[Duration]| times.iter().sum::<Duration>().as_secs_f64();
    let rate = sum(alone) / sum(beside);
    let wait = |at: usize| beside[at].as_secs_f64() / alone[at].as_secs_f64();
    let (median, longest) = (wait(alone.len() / 2), wait(alone.len() - 1));
    println!("{what}: rate {rate:.2} of alone, median wait {median:.2}, longest {longest:.2}");
    println!("median {:?} alone", alone[alone.len() / 2]);
    assert!(rate > 0.02 && median < 50.0, "{what}: {rate}, {median}");
}

#[test]
fn a_client_beside_4_that_stall_is_served() {
    beside_stalled(1, "127.0.0.1");
    beside_stalled(4, "127.0.0.1");
}

#[test]
fn a_client_beside_16_that_stall_is_served() {
    beside_stalled(16, "127.0.0.1");
}

#[test]
fn a_client_beside_16_of_another_host_that_stall_is_served() {
    beside_stalled(16, "127.0.0.2");
}

/// Each asks for a list and cancels it, a thousand times a second; then a head beside it.
fn beside_floods(counts: &[usize]) {
    let Some(fabric) = fabric() else { return };
    let dir = tempfile::tempdir().unwrap();
    for index in 0..1000 {
        std::fs::write(dir.path().join(format!("{index}")), b"").unwrap();
    }
    let store = FileStore::open(dir.path()).unwrap();
    let service = serve(&fabric, store, ObjectServiceConfig::default());
    let honest_client = client(&fabric);
    let mut honest = connect(&honest_client, &fabric, &service);
    let mut heads = || {
        let mut times: Vec<_> = (0..10 * ROUNDS)
            .map(|_| {
                let begin = Instant::now();
                honest.head("1", by()).expect("it is there");
                begin.elapsed()
            })
            .collect();
        times.sort_unstable();
        times
    };
    heads();
    let alone = heads();
    for count in counts {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (fabric, service, stop) = (&fabric, &service, &stop);
            let (said, ready) = channel();
            let flood = scope.spawn(move || {
                let domain = fabric.open_domain().unwrap();
                let mut raws: Vec<_> = (0..*count)
                    .map(|_| RawClient::over(&domain, service))
                    .collect();
                said.send(()).unwrap();
                let mut id = 0;
                while !stop.load(Ordering::Relaxed) {
                    id += 1;
                    for raw in raws.iter_mut().filter(|raw| raw.waiting.len() < 16) {
                        raw.ask(id, list());
                        raw.ask(id, RequestBody::Cancel);
                    }
                    raws.iter_mut().for_each(RawClient::progress);
                    std::thread::sleep(Duration::from_millis(1));
                }
                id
            });
            let set = Stops(stop);
            ready.recv_timeout(Duration::from_secs(60)).unwrap();
            let beside = heads();
            drop(set);
            let lists = flood.join().unwrap();
            compare(
                &format!("heads beside {count} floods, {lists} lists each"),
                &alone,
                &beside,
            );
        });
    }
}

/// Ends a thread of a test that fails, too.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_client_beside_floods_of_lists_is_served() {
    beside_floods(&[1, 4, 16]);
}

fn part(id: u64, len: u64, token: String) -> RequestBody {
    RequestBody::Put(PutRequest {
        name: name("held"),
        offset: 0,
        len,
        total: 1 << 30,
        upload: 1,
        begins: id == 0,
        ends: false,
        condition: PutCondition::Any,
        checksum: None,
        given: None,
        token,
    })
}

#[test]
fn a_put_that_does_not_go_on_ends_and_takes_no_room() {
    let Some(fabric) = fabric() else { return };
    let store = MemoryStore::new();
    let stall = Duration::from_millis(500);
    let service = serve(&fabric, store, config().stall(stall));
    let mut raw = RawClient::connect(&fabric, &service);
    raw.ask(0, part(0, 0, String::new()));
    assert_eq!(raw.answer_to(0), None);
    // It has said that all of the room is to be its own.
    let honest_client = client(&fabric);
    let mut honest = connect(&honest_client, &fabric, &service);
    let from = filled(&honest_client, &bytes(4096, 3));
    let any = PutCondition::Any;
    let put = honest.put("small", &from, 0..4096, &any, by());
    assert_eq!(put.map_err(|error| error.to_string()).unwrap().moved, 4096);
    let begin = Instant::now();
    let mut id = 1;
    loop {
        std::thread::sleep(stall / 10);
        raw.ask(id, part(id, 0, String::new()));
        if let Some(status) = raw.answer_to(id) {
            assert_eq!(status, ObjectStatus::MALFORMED);
            break;
        }
        assert!(
            id < 200,
            "parts of no byte keep it for {:?}",
            begin.elapsed()
        );
        id += 1;
    }
    println!("parts of no byte kept it for {:?}", begin.elapsed());
}

/// One host opens as many connections as it may, and holds them: one more is refused, with the
/// limit; a client of another host is served.
#[test]
fn one_host_never_has_the_last_connections() {
    let Some(fabric) = fabric() else { return };
    let service = serve(&fabric, MemoryStore::new(), config().connections(4));
    let flood: Vec<_> = (0..3)
        .map(|_| RawClient::connect(&fabric, &service))
        .collect();
    let refused = RawClient::refused(&fabric, &service);
    let Some(CloseReason::Refused(refusal)) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(refusal.code(), RefusalCode::TOO_MANY_CONNECTIONS);
    assert_eq!(refusal.details(), [3, 4]);
    assert!(
        refusal.to_string().contains("3 connections from this host"),
        "{refusal}"
    );
    let elsewhere = Fabric::builder()
        .provider(fabric.provider().name)
        .endpoint_kind(EndpointKind::Rdm)
        .node("127.0.0.2")
        .open();
    let elsewhere = elsewhere.expect("another address of this machine");
    let other_client = client(&elsewhere);
    let mut other = connect(&other_client, &elsewhere, &service);
    let missing = other.head("x", by()).unwrap_err();
    assert_eq!(missing.status(), Some(ObjectStatus::NOT_FOUND));
    drop(flood);
}
