//! Objects by token between two processes, into and out of a device's memory: `shm`, with a
//! libfabric that was built with CUDA, as in [`direct`](super::direct).
//!
//! The parent starts a server and a client, and carries what the client asks and what the server
//! answers. A row is printed for each kind of the client's memory and each side of the server's.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Instant;

use fabricast::cuda::{Device, Stream};
use fabricast::fabric::{DevicePaths, EndpointKind};
use fabricast::memory::{Access, Path};
use fabricast::object::{
    CallbackError, ObjectChunk, ObjectClient, ObjectClientConfig, ObjectMemory, ObjectOps,
    RdmaToken,
};
use fabricast::{Fabric, Region};

use super::direct::{library, lines, start};
use super::objects::{SOON, Server, Side, content, fill, managed};
use crate::child;
use crate::pattern::pattern;

const TEST: &str = "object::objects_go_between_two_processes";
const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
/// The longest object, and room for it at odd places.
const LONGEST: usize = 16 * MIB;
const REGION: usize = LONGEST + 4 * KIB;

#[test]
fn objects_go_between_two_processes() {
    match child::role().as_deref() {
        Some("server") => return serve(),
        Some(_) => return ask(),
        None => {}
    }
    let library = match library() {
        Ok(library) => library,
        Err(why) => return println!("SKIPPED: {why}"),
    };
    let (mut server, _its_files) = start(TEST, &library, "server", "");
    let said = server.expect("", SOON);
    if let Some(why) = said.strip_prefix("skip ") {
        return println!("SKIPPED: {why}");
    }
    println!("{said}");
    let (mut client, _its_files) = start(TEST, &library, "client", "");
    let mut impossible = Vec::new();
    loop {
        let line = client.expect("", 4 * SOON);
        match line.split_once(' ').unwrap_or((&line, "")) {
            ("|", row) => {
                println!("{line}");
                impossible.extend(row.contains("NOT POSSIBLE").then(|| row.to_owned()));
            }
            ("ask", question) => {
                server.say(question);
                client.say(&server.expect("answer", 2 * SOON));
            }
            ("done", _) => break,
            _ => panic!("the client says {line:?}"),
        }
    }
    client.say("bye");
    client.finish(SOON);
    server.say("bye");
    server.finish(SOON);
    assert!(impossible.is_empty(), "{impossible:#?}");
}

fn fabric(paths: DevicePaths) -> Arc<Fabric> {
    let fabric = Fabric::builder()
        .provider("shm")
        .endpoint_kind(EndpointKind::Rdm)
        .device_memory(paths);
    fabric.open().expect("shm")
}

fn device() -> Arc<Region> {
    Region::device(REGION).build().expect("device memory")
}

// ---- the server ---------------------------------------------------------------------------------

fn serve() {
    if let Err(why) = Device::all() {
        return child::tell(format!("skip {why}").replace('\n', " "));
    }
    let orders = lines();
    let fabric = fabric(DevicePaths::Auto);
    let region = device();
    let mut server = Server::open(&fabric, LONGEST);
    region.register(server.server.domain()).expect("registered");
    let path = region.path(server.server.domain()).expect("registered");
    child::tell(format!(
        "| objects, the server's own memory of a device: {path} |"
    ));
    assert!(matches!(path, Path::Direct(_)), "{path}");
    server = server.with_device(region);
    loop {
        match orders.try_recv() {
            Ok(order) if order == "bye" => break,
            Ok(order) => {
                let answer = answer(&mut server, &order).unwrap_or_else(|why| format!("no {why}"));
                child::tell(format!("answer {}", answer.replace('\n', " ")));
            }
            Err(TryRecvError::Empty) => std::thread::yield_now(),
            Err(TryRecvError::Disconnected) => panic!("the parent is gone"),
        }
    }
}

/// What was asked: `write|read` with `-any|-rate`, and `host|device SEED TOTAL OFFSET TOKEN`.
fn answer(server: &mut Server, order: &str) -> Result<String, String> {
    let words: Vec<_> = order.split(' ').collect();
    let &[what, side, seed, total, offset, token] = &words[..] else {
        panic!("{order:?}");
    };
    let side = match side {
        "host" => Side::Host,
        _ => Side::Device,
    };
    let number = |text: &str| text.parse::<usize>().expect("a number");
    let token: RdmaToken = token.parse().expect("a token");
    let part = number(offset)..number(offset) + token.len() as usize;
    let object = || pattern(number(total), number(seed) as u64)[part].to_vec();
    match what {
        "write" => server.write(&token, side, &object())?,
        "read" if server.read(&token, side)? == object() => {}
        "read" => return Err("the server has other content".to_owned()),
        "write-any" | "read-any" => server.push(&token, what == "write-any")?,
        _ => {
            let rate = server.rate(&token, side, what == "write-rate")?;
            return Ok(format!("{rate:.2}"));
        }
    }
    Ok("ok".to_owned())
}

// ---- the client ---------------------------------------------------------------------------------

/// Asks the server, by way of the parent, to do what it does to an object.
struct Ask<'a> {
    answers: &'a Receiver<String>,
    side: Side,
    /// Of the object's bytes, and how many it has.
    object: (u64, usize),
    /// `-any`: whatever bytes there are; `-rate`: many times.
    how: &'static str,
    /// What came.
    answer: String,
}

impl<'a> Ask<'a> {
    fn new(answers: &'a Receiver<String>, side: Side, object: (u64, usize)) -> Self {
        Self {
            answers,
            side,
            object,
            how: "",
            answer: String::new(),
        }
    }

    fn ask(&mut self, what: &str, chunk: &ObjectChunk<'_>) -> Result<u64, CallbackError> {
        let side = match self.side {
            Side::Host => "host",
            Side::Device => "device",
        };
        let (how, (seed, total)) = (self.how, self.object);
        let (offset, token) = (chunk.offset(), chunk.token());
        child::tell(format!(
            "ask {what}{how} {side} {seed} {total} {offset} {token}"
        ));
        self.answer = self.answers.recv_timeout(2 * SOON)?;
        match self.answer.strip_prefix("no ") {
            Some(why) => Err(why.to_owned().into()),
            None => Ok(chunk.len()),
        }
    }
}

impl ObjectOps for Ask<'_> {
    fn get(&mut self, chunk: &ObjectChunk<'_>) -> Result<u64, CallbackError> {
        self.ask("write", chunk)
    }

    fn put(&mut self, chunk: &ObjectChunk<'_>) -> Result<u64, CallbackError> {
        self.ask("read", chunk)
    }
}

/// Lengths, and odd places.
const CASES: &[(usize, usize)] = &[
    (1, 13),
    (4 * KIB, 7),
    (4 * KIB - 3, 4093),
    (MIB, 0),
    (MIB + 3, 1),
    (16 * MIB, 0),
    (16 * MIB - 5, 4093),
];

/// Memory that is lent, and which way.
struct Lent {
    client: ObjectClient,
    memory: ObjectMemory,
    region: Arc<Region>,
    stream: Stream,
}

impl Lent {
    fn new(paths: DevicePaths, region: Arc<Region>) -> Self {
        let client = ObjectClient::open(&fabric(paths), ObjectClientConfig::default());
        let client = client.expect("a client");
        let all = region.slice(0..region.len()).expect("all of it");
        let memory = client.register(all, Access::all()).expect("memory");
        child::tell(format!(
            "| the client's {}: {} |",
            region.kind(),
            memory.path()
        ));
        Self {
            client,
            memory,
            stream: Stream::new(Device::new(0).expect("it is there")).expect("a stream"),
            region,
        }
    }

    fn way(&self) -> String {
        let way = match self.memory.path() {
            Path::Staged(_) => "staged",
            _ => "direct",
        };
        format!("{}, {way}", self.region.kind())
    }

    fn got(&self, answers: &Receiver<String>, side: Side) -> Result<(), String> {
        for (n, &(len, at)) in CASES.iter().enumerate() {
            let (seed, under) = (n as u64 + 1, n as u64 + 101);
            let mut wanted = pattern(REGION, under);
            fill(&self.region, &wanted, &self.stream);
            let mut ask = Ask::new(answers, side, (seed, len));
            let range = at as u64..(at + len) as u64;
            let got = self.client.get(&mut ask, &self.memory, range, 0);
            got.map_err(|error| format!("{len} bytes to {at}: {error}"))?;
            wanted[at..at + len].copy_from_slice(&pattern(len, seed));
            if content(&self.region, &self.stream) != wanted {
                return Err(format!("{len} bytes to {at}: other content"));
            }
        }
        Ok(())
    }

    fn put(&self, answers: &Receiver<String>, side: Side) -> Result<(), String> {
        for (n, &(len, at)) in CASES.iter().enumerate() {
            let seed = n as u64 + 201;
            fill(&self.region, &pattern(REGION, seed), &self.stream);
            // The object is all of the region, of which a part is put.
            let mut ask = Ask::new(answers, side, (seed, REGION));
            let range = at as u64..(at + len) as u64;
            let put = self.client.put(&mut ask, &self.memory, range, at as u64);
            put.map_err(|error| format!("{len} bytes from {at}: {error}"))?;
        }
        Ok(())
    }

    /// A row for each operation; whether both are possible.
    fn is_whole(&self, answers: &Receiver<String>, side: Side) -> bool {
        let cases = CASES.len();
        let outcomes = [
            ("GET into", self.got(answers, side)),
            ("PUT from", self.put(answers, side)),
        ];
        let is_whole = outcomes.iter().all(|(_, outcome)| outcome.is_ok());
        for (what, outcome) in outcomes {
            let what = format!("{what} {}, the server's bytes on its {side:?}", self.way());
            child::tell(match outcome {
                Ok(()) => format!("| {what}: {cases} of {cases} |"),
                Err(why) => format!("| {what}: NOT POSSIBLE: {why} |").replace('\n', " "),
            });
        }
        is_whole
    }

    /// GB/s of each operation, as the server measures it: one token, many transfers.
    fn rates(&self, answers: &Receiver<String>, side: Side) {
        for len in [4 * KIB, 64 * KIB, MIB, 16 * MIB] {
            let rate = |gets| {
                let mut ask = Ask::new(answers, side, (0, len));
                ask.how = "-rate";
                match self.all_of(len, gets, &mut ask) {
                    Ok(()) => ask.answer,
                    Err(why) => why,
                }
            };
            let (get, put) = (rate(true), rate(false));
            child::tell(format!(
                "| {:>6} KiB, {}, the server's bytes on its {side:?}: GET {get:>7} GB/s, PUT \
                 {put:>7} GB/s |",
                len / KIB,
                self.way()
            ));
        }
    }

    /// GB/s of whole requests, one after the other: the time that it takes to ask is in it.
    fn staged_rates(&self, answers: &Receiver<String>) {
        const TIMES: usize = 8;
        for len in [64 * KIB, MIB, 16 * MIB] {
            let rate = |gets| {
                let begun = Instant::now();
                for _ in 0..TIMES {
                    let mut ask = Ask::new(answers, Side::Host, (0, len));
                    ask.how = "-any";
                    self.all_of(len, gets, &mut ask).expect("as before");
                }
                (TIMES * len) as f64 / begun.elapsed().as_secs_f64() / 1e9
            };
            let (get, put) = (rate(true), rate(false));
            child::tell(format!(
                "| {:>6} KiB, {}, whole requests: GET {get:>7.2} GB/s, PUT {put:>7.2} GB/s |",
                len / KIB,
                self.way()
            ));
        }
    }

    fn all_of(&self, len: usize, gets: bool, ask: &mut Ask<'_>) -> Result<(), String> {
        let all = 0..len as u64;
        let done = match gets {
            true => self.client.get(ask, &self.memory, all, 0),
            false => self.client.put(ask, &self.memory, all, 0),
        };
        done.map(drop)
            .map_err(|error| error.to_string().replace('\n', " "))
    }
}

fn ask() {
    let answers = lines();
    let direct = Lent::new(DevicePaths::Auto, device());
    assert!(
        matches!(direct.memory.path(), Path::Direct(_)),
        "{}",
        direct.memory.path()
    );
    for side in [Side::Host, Side::Device] {
        if direct.is_whole(&answers, side) {
            direct.rates(&answers, side);
        }
    }
    drop(direct);
    for (paths, region) in [
        (DevicePaths::Off, device()),
        (DevicePaths::Auto, managed(REGION)),
    ] {
        let staged = Lent::new(paths, region);
        assert!(staged.memory.path().is_staged(), "{}", staged.memory.path());
        if staged.is_whole(&answers, Side::Host) {
            staged.staged_rates(&answers);
        }
    }
    child::tell("done");
    // The server's memory was open here: it goes behind this process.
    let _ = answers.recv_timeout(SOON);
}
