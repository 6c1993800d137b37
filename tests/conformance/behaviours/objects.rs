//! Objects by token: a client lends memory, a server in another process writes it and reads it; and
//! tokens that are not good any more.
//!
//! The parent is the control path: what the client asks for, it hands to the server, and the answer
//! back.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fabricast::Fabric;
use fabricast::buffer::SharedBufferManager;
use fabricast::endpoint::Access;
use fabricast::fabric::EndpointKind;
use fabricast::object::{
    CallbackError, ChannelEvent, ObjectChannel, ObjectChunk, ObjectClient, ObjectClientConfig,
    ObjectMemory, ObjectOperation, ObjectOps, ObjectServer, ObjectServerConfig, RdmaToken,
};

use crate::common::child::Child;
use crate::common::{SOON, child, drive, pattern};
use crate::on::{On, kill, start};
use crate::rows::row_named;
use crate::table::Shown;
use crate::told::Told;

/// Bytes of the client's memory, and of a server's buffer.
const MEMORY: usize = (4 << 20) + 100;

/// Lengths on both sides of what providers inject, copy and split.
const SIZES: [u64; 8] = [1, 63, 200, 4096, 5000, 100_000, 1 << 20, 4 << 20];

/// What a callback is given at most.
const CALLBACK: u64 = 3 << 20;

/// How long a server waits for a client that does not answer.
const BUDGET: Duration = Duration::from_millis(1500);

fn is_connected(on: &On) -> bool {
    row_named(on.provider).kind == EndpointKind::Msg
}

const NO_NAMES: Shown = Shown::Hole("tokens name endpoints without connections (FI_EP_RDM)");

/// GET and PUT of every size, with callbacks, checked byte by byte on the side that they end on.
pub(crate) fn objects(on: &On) -> Shown {
    one_client(on, "do=all")
}

fn one_client(on: &On, does: &str) -> Shown {
    if is_connected(on) {
        return NO_NAMES;
    }
    let mut server = serve(on);
    let mut client = on.sender("object client", "", does);
    relay(&mut client, &mut server);
    client.finish(SOON);
    server.say("end");
    server.finish(SOON);
    Shown::Works
}

/// Tokens that were dropped, used, guessed or bent: nothing lands, and others go on.
pub(crate) fn old_tokens(on: &On) -> Shown {
    if is_connected(on) {
        return NO_NAMES;
    }
    let mut liar = serve(on);
    let mut client = on.sender("object client", "", "do=old");
    relay(&mut client, &mut liar);
    let mut server = serve(on);
    client.say("next");
    relay(&mut client, &mut server);
    client.finish(SOON);
    for mut end in [liar, server] {
        end.say("end");
        end.finish(SOON);
    }
    Shown::Works
}

/// More tokens, one after the other, than a server can know endpoints at once, where each token has
/// one of its own.
pub(crate) fn many_tokens(on: &On) -> Shown {
    one_client(on, "do=many")
}

/// A client that is stopped is cut off within its budget; another one goes on meanwhile.
pub(crate) fn stopped_client(on: &On) -> Shown {
    if is_connected(on) {
        return NO_NAMES;
    }
    let mut server = serve(on);
    let mut stopped = on.sender("object client", "", "do=one");
    let asked = stopped.expect("ask", 2 * SOON);
    stopped.stop();
    server.say(&format!("begin {asked}"));
    assert_eq!(server.expect("begun", SOON), "0");
    let mut client = on.sender("object client", "", "do=all");
    relay(&mut client, &mut server);
    client.finish(SOON);
    server.say("verdict");
    let verdict = server.expect("verdict", SOON);
    server.say("end");
    server.finish(SOON);
    kill(stopped);
    match verdict.as_str() {
        // The card did it, or the kernel took it all: the program was not needed.
        "did" => Shown::Works,
        verdict => {
            assert!(verdict.starts_with("cut off"), "{verdict}");
            Shown::Works
        }
    }
}

/// A token that names an address which nobody has is cut off, and others go on. How long it held up
/// a call of the channel is in the log: `verbs` of libfabric up to 1.20 looks for the way to a peer
/// in the first post.
pub(crate) fn nobodys_token(on: &On) -> Shown {
    if is_connected(on) {
        return NO_NAMES;
    }
    let mut server = serve(on);
    let mut client = on.sender("object client", "", "do=one");
    let asked = client.expect("ask", 2 * SOON);
    let Some(asked) = at_nobody(&asked) else {
        kill(client);
        server.say("end");
        server.finish(SOON);
        return Shown::Hole("its endpoints have names, and no addresses");
    };
    server.say(&format!("try {asked}"));
    assert_eq!(server.expect("begun", 2 * SOON), "0");
    kill(client);
    let mut client = on.sender("object client", "", "do=all");
    relay(&mut client, &mut server);
    client.finish(SOON);
    server.say("verdict");
    let verdict = server.expect("verdict", SOON);
    assert!(verdict.starts_with("cut off"), "{verdict}");
    println!("{verdict}");
    server.say("longest");
    let longest = server.expect("longest", SOON);
    server.say("end");
    server.finish(SOON);
    println!("{}: the longest call took {longest} ms", on.provider);
    Shown::Works
}

/// The same for an address of that network that nobody has; none where a name is no IPv4 address.
fn at_nobody(asked: &str) -> Option<String> {
    let fields: Vec<_> = asked.split(':').collect();
    let name = fields.get(4).filter(|name| name.len() == 32)?;
    // Family, port, and four bytes, of which the last is another.
    let other = format!("{}63{}", &name[..14], &name[16..]);
    Some(asked.replace(*name, &other))
}

fn serve(on: &On) -> Child {
    start("object server", on.receiving, &on.receives, "")
}

/// Hands what the client asks to the server, and the answer back, until the client says that it is
/// done.
fn relay(client: &mut Child, server: &mut Child) {
    let mut done = false;
    drive("objects", 3 * SOON, || {
        while let Some(line) = client.heard() {
            match line.strip_prefix("ask ") {
                Some(asked) => server.say(asked),
                None => done = line == "done" || panic!("the client says {line}"),
            }
        }
        while let Some(line) = server.heard() {
            client.say(&line);
        }
        std::thread::sleep(Duration::from_micros(100));
        done
    });
}

// ---- the server ---------------------------------------------------------------------------------

struct Server {
    channel: ObjectChannel,
    pool: SharedBufferManager,
    next: u64,
    /// What became of what was begun, and not waited for.
    verdict: Option<String>,
    /// How long its longest call took.
    longest: Duration,
    events: Vec<ChannelEvent>,
}

/// Does what lines say: `get AT LEN SEED TOKEN`, `put AT LEN SEED TOKEN`.
pub(crate) fn server(told: &Told) {
    let domain = told.domain();
    let server = ObjectServer::open(domain.fabric(), ObjectServerConfig::default());
    let server = server.expect("a server");
    let pool = SharedBufferManager::allocate(4, MEMORY).expect("a pool");
    pool.region().register(server.domain()).expect("registered");
    let mut server = Server {
        channel: server.channel().expect("a channel"),
        pool,
        next: 1,
        verdict: None,
        longest: Duration::ZERO,
        events: Vec::new(),
    };
    while let Some(line) = child::hear() {
        match line.split_once(' ') {
            None if line == "end" => break,
            None if line == "longest" => {
                child::tell(format!("longest {}", server.longest.as_millis()));
            }
            None => child::tell(format!("verdict {}", server.verdict())),
            Some(("begin", asked)) => {
                server.begin(asked, Instant::now() + BUDGET);
                child::tell("begun 0");
            }
            Some(("try", asked)) => {
                let begin = Instant::now();
                server.begin(asked, begin + 4 * BUDGET);
                while server.verdict.is_none() && begin.elapsed() < BUDGET {
                    server.turn(None);
                }
                child::tell("begun 0");
            }
            Some(_) => child::tell(server.run(&line)),
        }
    }
    server.channel.close(Instant::now() + SOON);
}

impl Server {
    /// Begins a transfer; its key.
    fn begin(&mut self, asked: &str, deadline: Instant) -> u64 {
        let words: Vec<_> = asked.split(' ').collect();
        let [what, at, len, seed, token] = words[..] else {
            panic!("asked {asked}");
        };
        let number = |text: &str| text.parse::<u64>().expect("a number");
        let (at, len, seed) = (number(at), number(len) as usize, number(seed));
        let token: RdmaToken = token.parse().expect("a token");
        let key = self.next;
        self.next += 1;
        let mut buffer = self.pool.try_acquire().expect("they come back");
        let began = Instant::now();
        let taken = match what {
            "get" => {
                buffer[..len].copy_from_slice(&pattern(seed, len));
                let payload = buffer.freeze(len);
                let taken = self.channel.handle_get(&token, at, payload, key, deadline);
                taken.map_err(|refused| refused.to_string())
            }
            _ => {
                buffer.fill(0);
                let into = fabricast::endpoint::Destination::buffer(buffer, len);
                let taken = self.channel.handle_put(&token, at, into, key, deadline);
                taken.map_err(|refused| refused.to_string())
            }
        };
        taken.expect("taken");
        self.longest = self.longest.max(began.elapsed());
        key
    }

    /// Does it: what became of it.
    fn run(&mut self, asked: &str) -> String {
        let words: Vec<_> = asked.split(' ').collect();
        let budget = if words[0].starts_with("refuse") {
            BUDGET
        } else {
            2 * SOON
        };
        let asked = asked.replacen("refuse-", "", 1);
        let key = self.begin(&asked, Instant::now() + budget);
        let seed = words[3].parse().expect("a number");
        let mut outcome = None;
        drive("an outcome", 3 * SOON, || {
            outcome = outcome.take().or_else(|| self.turn(Some((key, seed))));
            outcome.is_some()
        });
        outcome.expect("driven")
    }

    /// One poll; what became of this one. What became of the one before it is kept.
    fn turn(&mut self, wanted: Option<(u64, u64)>) -> Option<String> {
        self.channel.wait(Duration::from_millis(1)).expect("waits");
        let began = Instant::now();
        self.channel.poll(&mut self.events).expect("polls");
        self.longest = self.longest.max(began.elapsed());
        let mut found = None;
        for event in std::mem::take(&mut self.events) {
            let seed = wanted.filter(|(key, _)| *key == event.key()).map(|it| it.1);
            if !event.is_outcome() {
                continue;
            }
            match seed {
                Some(seed) => found = Some(told_of(event, seed)),
                None => self.verdict = Some(told_of(event, 0)),
            }
        }
        found
    }

    fn verdict(&mut self) -> String {
        drive("a verdict", SOON, || {
            self.turn(None);
            self.verdict.is_some()
        });
        self.verdict.take().expect("driven")
    }
}

fn told_of(event: ChannelEvent, seed: u64) -> String {
    match event {
        ChannelEvent::Written { .. } => "did".to_owned(),
        ChannelEvent::Read { into, .. } => {
            let len = into.len();
            let buffer = into.into_buffer().expect("a buffer");
            match buffer[..len] == pattern(seed, len)[..] {
                true => "did".to_owned(),
                false => "read something else".to_owned(),
            }
        }
        ChannelEvent::WriteFailed { error, .. } | ChannelEvent::ReadFailed { error, .. } => {
            format!("cut off {} {error}", error.posted)
        }
        other => format!("said {other:?}"),
    }
}

// ---- the client ---------------------------------------------------------------------------------

/// Asks the parent, who asks a server.
struct AskParent {
    seed: u64,
    tokens: Vec<RdmaToken>,
}

/// What the parent says.
fn answer(what: &str, at: u64, len: u64, seed: u64, token: &RdmaToken) -> String {
    child::tell(format!("ask {what} {at} {len} {seed} {token}"));
    child::hear().expect("an answer")
}

impl AskParent {
    fn ask(&mut self, what: &str, chunk: &ObjectChunk<'_>) -> Result<u64, CallbackError> {
        // Each part has bytes of its own.
        let seed = self.seed + chunk.offset();
        self.tokens.push(chunk.token().clone());
        match answer(what, 0, chunk.len(), seed, chunk.token()).as_str() {
            "did" => Ok(chunk.len()),
            other => Err(other.to_owned().into()),
        }
    }
}

impl ObjectOps for AskParent {
    fn get(&mut self, chunk: &ObjectChunk<'_>) -> Result<u64, CallbackError> {
        self.ask("get", chunk)
    }

    fn put(&mut self, chunk: &ObjectChunk<'_>) -> Result<u64, CallbackError> {
        self.ask("put", chunk)
    }
}

struct Client {
    client: ObjectClient,
    memory: ObjectMemory,
    /// The provider may tell a server that it did what it did not.
    believes: bool,
}

pub(crate) fn client(told: &Told) {
    let domain = told.domain();
    let client = Client::open(domain.fabric());
    match told.text("do") {
        Some("all") => client.every_size(),
        Some("old") => client.old_tokens(),
        Some("many") => client.many_tokens(),
        _ => {
            let token = client.memory.token(0..MEMORY as u64, ObjectOperation::Get);
            let token = token.expect("a token");
            answer("get", 0, 1 << 20, 1, &token);
        }
    }
}

impl Client {
    fn open(fabric: &Arc<Fabric>) -> Self {
        let config = ObjectClientConfig::default().callback_bytes(CALLBACK);
        let client = ObjectClient::open(fabric, config).expect("a client");
        let pool = SharedBufferManager::allocate(1, MEMORY).expect("a pool");
        let buffer = pool.try_acquire().expect("one is free");
        let memory = client.register(buffer, Access::all()).expect("registered");
        let believes = fabric.provider().names.is_some();
        Self {
            client,
            memory,
            believes,
        }
    }

    fn bytes(&self, from: u64, len: u64) -> Vec<u8> {
        let mut bytes = vec![0; len as usize];
        self.memory.copy_out(from, &mut bytes).expect("a buffer");
        bytes
    }

    fn every_size(self) {
        for (seed, len) in (1..).zip(SIZES) {
            let from = seed * 3;
            let mut ops = AskParent {
                seed: seed * 10_000_000,
                tokens: Vec::new(),
            };
            let range = from..from + len;
            let before = self.bytes(0, from);
            let got = self.client.get(&mut ops, &self.memory, range.clone(), 0);
            assert_eq!(got.expect("got"), len);
            assert_eq!(ops.tokens.len() as u64, len.div_ceil(CALLBACK));
            let mut wanted = Vec::new();
            for part in (0..len).step_by(CALLBACK as usize) {
                let bytes = (len - part).min(CALLBACK);
                wanted.extend(pattern(ops.seed + part, bytes as usize));
            }
            assert!(self.bytes(from, len) == wanted, "{len} bytes came");
            assert_eq!(self.bytes(0, from), before, "nothing before them");
            let put = self.client.put(&mut ops, &self.memory, range, 0);
            assert_eq!(put.expect("put"), len);
        }
        let back = self.memory.release(Instant::now() + SOON).expect("free");
        assert_eq!(back.len(), MEMORY);
        child::tell("done");
    }

    fn many_tokens(self) {
        // `shm` takes 256.
        for round in 1..=300u64 {
            let mut ops = AskParent {
                seed: round,
                tokens: Vec::new(),
            };
            let got = self.client.get(&mut ops, &self.memory, 0..64, 0);
            assert_eq!(got.unwrap_or_else(|error| panic!("{round}: {error}")), 64);
            assert_eq!(self.bytes(0, 64), pattern(round, 64), "{round}");
        }
        child::tell("done");
    }

    fn old_tokens(self) {
        let mut ops = AskParent {
            seed: 1,
            tokens: Vec::new(),
        };
        let got = self.client.get(&mut ops, &self.memory, 0..4096, 0);
        assert_eq!(got.expect("got"), 4096);
        self.memory.copy_in(0, &[7; 8192]).expect("a buffer");
        let used = ops.tokens.remove(0);
        let stands = self.memory.token(4096..8192, ObjectOperation::Put);
        let stands = stands.expect("a token");
        let dropped = self
            .memory
            .token(0..4096, ObjectOperation::Get)
            .expect("a token");
        let old = RdmaToken::clone(&dropped);
        dropped.done();
        // Some kill the connection that they come over, so that what follows may be that one's end.
        let bad = [
            (used, "refuse-get", "used"),
            (old, "refuse-get", "dropped"),
            (
                RdmaToken::clone(&stands),
                "refuse-get",
                "in the other direction",
            ),
        ];
        for (token, what, why) in bad {
            let said = answer(what, 0, 4096, 3, &token);
            assert!(
                self.bytes(0, 8192) == [7; 8192],
                "untouched by one {why}: {said}"
            );
            // `shm` of libfabric 2.x says so of what a window's rights forbid, and does it not.
            let is_false = self.believes && said == "did";
            assert!(is_false || said.starts_with("cut off"), "{why}: {said}");
        }
        child::tell("done");
        assert_eq!(child::hear().as_deref(), Some("next"));
        self.memory
            .copy_in(4096, &pattern(9, 4096))
            .expect("a buffer");
        assert_eq!(answer("put", 0, 4096, 9, &stands), "did", "others go on");
        stands.done();
        self.memory.release(Instant::now() + SOON).expect("free");
        child::tell("done");
    }
}
