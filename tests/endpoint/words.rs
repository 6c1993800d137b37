//! What a person reads: errors at the prompt, and the log of a program that logs.

use std::error::Error as StdError;
use std::fmt::Debug;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::{Command, Termination};
use std::sync::{Arc, Mutex};

use fabricast::endpoint::BufferedConfig;
use fabricast::{Domain, Error, Fabric, PeerAddr, SendEndpointBuffered, SendEndpointZeroCopy};
use tracing::Level;

use crate::common::child::role;
use crate::common::{
    self, Offers, Pair, SOON, Watchdog, domain, millis, nobodys_port, node, outcomes, receive_ends,
    send_end, small_receiver,
};

// ---- errors -------------------------------------------------------------------------------------

/// A `main` of the guide, without what comes behind its first line.
fn guide_main() -> Result<(), Box<dyn StdError>> {
    let domain = Fabric::builder()
        .provider("tcp")
        .node("127.0.0.1")
        .open()?
        .open_domain()?;
    drop(domain);
    Ok(())
}

#[test]
fn a_program_of_the_guide_prints_words() {
    if role().is_some() {
        // As the runtime of Rust ends a program.
        std::process::exit(i32::from(
            guide_main().report() != std::process::ExitCode::SUCCESS,
        ));
    }
    // It is the guide's.
    let page = include_str!("../../docs/guide/limits.md");
    let own = include_str!("words.rs");
    let line = own.lines().find(|line| line.contains("Fabric::builder()"));
    assert!(page.contains(line.expect("above").trim()));
    assert!(page.contains("fn main() -> Result<(), Box<dyn std::error::Error>> {"));

    let program = std::env::current_exe().expect("this program");
    let ended = Command::new(program)
        .args([
            "words::a_program_of_the_guide_prints_words",
            "--exact",
            "--nocapture",
        ])
        .env("FABRICAST_TEST_ROLE", "guide")
        .env("FABRICAST_LIBFABRIC", "/nonexistent/libfabric.so.1")
        .output()
        .expect("starts");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(!ended.status.success(), "{said}");
    let wanted = "Error: cannot load libfabric: tried /nonexistent/libfabric.so.1 (";
    assert!(said.contains(wanted), "{said}");
    assert!(
        said.contains("Install it (Debian, Ubuntu: apt-get install libfabric1"),
        "{said}"
    );
    assert!(!said.contains("NotFound"), "{said}");
}

fn refused(provider: &str) -> String {
    let error = Fabric::builder()
        .provider(provider)
        .open()
        .expect_err("there is none");
    assert!(matches!(error, Error::NoProvider(_)), "{error}");
    let text = error.to_string();
    // Each clause is said once, and none of what was not asked for.
    assert!(!text.contains("the provider setting asks for"), "{text}");
    assert!(text.len() < 330, "{} bytes: {text}", text.len());
    text
}

#[test]
fn a_provider_that_is_not_there_is_refused_with_the_reason_first() {
    if domain().is_none() {
        return;
    }
    for (asked, meant) in [
        ("TCP", "tcp"),
        ("tpc", "tcp"),
        ("Shm", "shm"),
        ("udp;ofi_rdx", "udp;ofi_rxd"),
    ] {
        let text = refused(asked);
        let wanted = format!("{asked}: there is no such provider; did you mean {meant}?");
        assert!(text.starts_with(&wanted), "{text}");
        assert!(
            text.contains("libfabric ") && text.contains(" has "),
            "{text}"
        );
        assert!(text.contains("tcp") && text.contains("shm"), "{text}");
    }
    let text = refused("nonsense");
    assert!(
        text.starts_with("nonsense: there is no such provider; libfabric "),
        "{text}"
    );
    let text = refused("");
    assert!(text.starts_with("the provider's name is empty"), "{text}");
    if !std::path::Path::new("/sys/class/infiniband").exists() {
        let text = refused("verbs");
        let why = "there is no device (/sys/class/infiniband is not there)";
        let but = format!("verbs: libfabric has it, but {why}");
        let left_out = format!("verbs: {why}, for want of which libfabric leaves it out");
        assert!(
            text.starts_with(&but) || text.starts_with(&left_out),
            "{text}"
        );
    }
}

#[test]
fn a_node_that_is_not_this_machines_is_refused_as_the_fabric_opens() {
    let Some(domain) = domain() else { return };
    let name = domain.fabric().provider().name;
    let open = |node: &str| Fabric::builder().provider(name).node(node).open();
    // Of TEST-NET-1 and the documentation's IPv6 range: nobody's.
    for foreign in ["192.0.2.77", "2001:db8::77"] {
        let error = open(foreign).expect_err("it is not ours");
        let text = error.to_string();
        assert!(matches!(error, Error::Address { .. }), "{text}");
        assert!(
            text.contains(foreign) && text.contains("no address of this machine"),
            "{text}"
        );
        assert!(text.contains("127.0.0.1 (lo)"), "{text}");
        // Whichever provider is to be taken.
        let any = Fabric::builder()
            .node(foreign)
            .open()
            .expect_err("it is not ours");
        assert_eq!(any.to_string(), text);
    }
    if !domain.has_sockets() {
        return;
    }
    // All of 127.0.0.0/8 is, though no interface lists it; so are names.
    for own in ["127.0.0.1", "127.0.0.2", "localhost", "0.0.0.0"] {
        if let Err(error) = open(own) {
            panic!("{own}: {error}");
        }
    }
}

/// What a listener of another kind does.
#[derive(Clone, Copy, Debug)]
enum Other {
    /// Nothing.
    IsSilent,
    Says(&'static [u8]),
    HangsUp,
    /// Once it was asked something.
    HangsUpLater,
    /// With part of an answer.
    BreaksOff,
}

/// Connects to it; gives what that comes to in words.
fn words_of(domain: &Arc<Domain>, other: Other) -> String {
    let server = TcpListener::bind((node(), 0)).expect("binds");
    let addr = PeerAddr::from(server.local_addr().expect("bound"));
    let serve = std::thread::spawn(move || {
        let (mut stream, _) = server.accept().expect("the client connects");
        match other {
            Other::IsSilent | Other::HangsUp => {}
            Other::Says(answer) => stream.write_all(answer).unwrap_or_default(),
            Other::HangsUpLater => drop(stream.read(&mut [0; 512])),
            Other::BreaksOff => {
                let _ = stream.read(&mut [0; 512]);
                stream.write_all(&[1; 3]).unwrap_or_default();
            }
        }
        if matches!(other, Other::IsSilent | Other::Says(_)) {
            // Until the client hangs up.
            let _ = stream.read_to_end(&mut Vec::new());
        }
    });
    let config = common::sending().connection(|c| c.connect_timeout(millis(300)));
    let mut sender = SendEndpointZeroCopy::connect(domain, addr, config).expect("begins");
    let error = sender.wait_connected().expect_err("it is no endpoint");
    drop(sender);
    serve.join().expect("no panic");
    let text = error.to_string();
    let begin = format!("could not connect to {addr}: ");
    assert!(
        text.starts_with(&begin) && text.matches("connect to").count() == 1,
        "{text}"
    );
    text
}

#[test]
fn what_listens_and_does_not_speak_fabricast_is_named_as_the_likely_cause() {
    let _dog = Watchdog::new("something else listens");
    let Some(domain) = domain().filter(|domain| domain.has_sockets()) else {
        return;
    };
    for other in [
        Other::IsSilent,
        Other::HangsUp,
        Other::HangsUpLater,
        Other::BreaksOff,
        Other::Says(b"SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3\r\n"),
        Other::Says(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"),
        Other::Says(&[0; 512]),
    ] {
        let text = words_of(&domain, other);
        println!("{other:?}: {text}");
        assert!(text.contains("speak fabricast"), "{other:?}: {text}");
        assert!(!text.contains("nobody listens there"), "{other:?}: {text}");
    }
}

#[test]
fn a_connection_that_never_was_is_not_said_to_be_closed_or_lost() {
    let _dog = Watchdog::new("never was");
    let Some(domain) = domain() else { return };
    let addr = nobodys_port();
    let mut sender =
        SendEndpointZeroCopy::connect(&domain, addr, common::sending()).expect("begins");
    let text = sender.wait_connected().expect_err("nobody").to_string();
    assert!(
        text.starts_with(&format!("could not connect to {addr}: ")),
        "{text}"
    );
    let pool = common::pool(&domain, 1, 64);
    let refused = sender.send_data(common::buffer(&pool, b"late"), b"", 1);
    let later = refused.expect_err("no connection").to_string();
    assert!(later.starts_with("could not connect: "), "{later}");
    for text in [text, later] {
        assert!(!text.contains("closed") && !text.contains("lost"), "{text}");
        assert_eq!(text.matches("could not connect").count(), 1, "{text}");
    }
}

/// Code and pages say one number.
#[test]
fn the_limit_of_a_header_is_the_one_that_the_guide_gives() {
    let _dog = Watchdog::new("limit of a header");
    let Some(domain) = domain() else { return };
    let mut pair = Pair::open(&domain);
    let payload = pair.buffer(b"payload");
    let refused = pair.sender().send_data(payload, &[0; 65], 1);
    let text = refused.expect_err("too long").to_string();
    assert!(
        text.starts_with("header of 65 bytes, the limit is 62, "),
        "{text}"
    );
    assert!(text.contains("2 bytes for its length"), "{text}");
    let limits = include_str!("../../docs/guide/limits.md");
    let row = limits
        .lines()
        .find(|line| line.starts_with("| header slots, bytes of a slot"));
    let row = row.expect("the row");
    assert!(
        row.contains("2 of them say how long the header is"),
        "{row}"
    );
    assert!(
        row.contains("so a header has up to 62 | 256, 64 |"),
        "{row}"
    );
    let errors = include_str!("../../docs/guide/errors.md");
    assert!(errors.contains("a slot has 64 bytes, 2 of them for the length"));
}

// ---- the log ------------------------------------------------------------------------------------

/// Keeps what is logged by the thread that it is the subscriber of.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<(Level, String)>>>);

impl Log {
    /// What was said since the last call, from this level up; endpoints only.
    fn take(&self, least: Level) -> Vec<(Level, String)> {
        let mut said = std::mem::take(&mut *self.0.lock().unwrap());
        said.retain(|(level, _)| *level <= least);
        said
    }

    /// Runs `work` with this log as the thread's subscriber.
    ///
    /// While a process has one subscriber, tracing asks the thread that meets a statement first
    /// whether anybody wants it. The thread of another test wants nothing, and then the statement
    /// stays off for this one. A second subscriber that lives on makes tracing ask them all.
    fn listen<T>(&self, work: impl FnOnce() -> T) -> T {
        static SECOND: std::sync::OnceLock<tracing::Dispatch> = std::sync::OnceLock::new();
        SECOND.get_or_init(|| tracing::Dispatch::new(Self::default()));
        tracing::subscriber::with_default(self.clone(), work)
    }
}

impl tracing::Subscriber for Log {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target().starts_with("fabricast::endpoint")
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        let entry = (*event.metadata().level(), line.0);
        self.0.lock().unwrap().push(entry);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

/// The message, and fields as `name=value`.
struct Line(String);

impl tracing::field::Visit for Line {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn Debug) {
        use std::fmt::Write;
        let _ = match field.name() {
            "message" => write!(self.0, " {value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
    }
}

fn has(said: &[(Level, String)], level: Level, parts: &[&str]) -> bool {
    let fits = |line: &str| parts.iter().all(|part| line.contains(part));
    said.iter().any(|(at, line)| *at == level && fits(line))
}

#[test]
fn connections_and_their_ends_are_in_the_log_at_the_levels_of_an_operator() {
    let _dog = Watchdog::new("log of connections");
    let Some(domain) = domain() else { return };
    let log = Log::default();
    log.listen(|| {
        // A polite end.
        let mut pair = Pair::open(&domain);
        let said = log.take(Level::INFO);
        assert!(has(&said, Level::INFO, &["connected", "peer="]), "{said:?}");
        assert!(
            said.iter().all(|(level, _)| *level == Level::INFO),
            "{said:?}"
        );
        pair.sender().begin_close(common::after(SOON));
        pair.until("closed", |pair| {
            send_end(&pair.sent).is_some() && !receive_ends(&pair.received).is_empty()
        });
        let said = log.take(Level::INFO);
        assert!(
            has(&said, Level::INFO, &["closed", "finished", "peer="]),
            "{said:?}"
        );
        assert!(
            said.iter().all(|(level, _)| *level == Level::INFO),
            "{said:?}"
        );

        // One that is refused, on both sides.
        let only_one = small_receiver().connection(|c| c.max_connections(1));
        let mut pair = Pair::with(&domain, common::sending(), only_one);
        log.take(Level::INFO);
        let addr = pair.receiver().local_addr();
        let mut second =
            SendEndpointZeroCopy::connect(&domain, addr, common::sending()).expect("begins");
        let mut events = Vec::new();
        pair.until("refused", |_| {
            second.poll(&mut events).expect("polls");
            send_end(&events).is_some()
        });
        let said = log.take(Level::INFO);
        let refused = ["not connected", "already has 1 connections"];
        assert!(has(&said, Level::WARN, &refused), "{said:?}");
        assert_eq!(said.len(), 2, "{said:?}");
        drop(pair);

        // A loss: of a peer that is dropped as a killed one goes.
        let mut pair = Pair::open(&domain);
        log.take(Level::INFO);
        drop(pair.sender.take());
        pair.until("lost", |pair| !receive_ends(&pair.received).is_empty());
        let said = log.take(Level::INFO);
        let warnings: Vec<_> = said
            .iter()
            .filter(|(level, _)| *level == Level::WARN)
            .collect();
        assert_eq!(warnings.len(), 1, "{said:?}");
        assert!(
            has(
                &said,
                Level::WARN,
                &["the peer was lost", "its process ended", "peer="]
            ),
            "{said:?}"
        );
    });
}

#[test]
fn a_peer_that_comes_and_goes_for_ever_does_not_fill_the_log() {
    let _dog = Watchdog::new("flood of losses");
    let Some(domain) = domain() else { return };
    const ROUNDS: usize = 140;
    // So many at once, and then one each second.
    const BURST: usize = 100;
    let log = Log::default();
    log.listen(|| {
        let mut pair = Pair::open(&domain);
        log.take(Level::INFO);
        let begin = std::time::Instant::now();
        for round in 1..=ROUNDS {
            drop(pair.sender.take());
            pair.until("lost", |pair| receive_ends(&pair.received).len() == round);
            let addr = pair.receiver().local_addr();
            let next = SendEndpointZeroCopy::connect(&domain, addr, common::sending());
            pair.sender = Some(next.expect("begins"));
            pair.until("connected", |pair| pair.sender().is_connected());
        }
        let seconds = begin.elapsed().as_secs() as usize + 1;
        let said = log.take(Level::DEBUG);
        let loud = said.iter().filter(|(level, _)| *level <= Level::INFO);
        let lost = |line: &&(Level, String)| line.1.contains("the peer was lost");
        let (warned, all) = (loud.filter(lost).count(), said.iter().filter(lost).count());
        println!("{warned} of {all} losses at WARN, in {seconds} s");
        assert_eq!(all, ROUNDS);
        assert!(
            warned >= 1 && warned <= BURST + seconds,
            "{warned} in {seconds} s"
        );
    });
}

#[test]
fn a_sender_that_is_dropped_with_messages_on_their_way_says_how_many() {
    let _dog = Watchdog::new("dropped sender");
    let Some(domain) = domain() else { return };
    let log = Log::default();
    log.listen(|| {
        let mut pair = Pair::open(&domain);
        log.take(Level::INFO);
        for key in 0..3 {
            let payload = pair.buffer(b"to be lost");
            pair.sender()
                .send_data(payload, b"", key)
                .expect("there is room");
        }
        drop(pair.sender.take());
        let said = log.take(Level::INFO);
        assert!(
            has(&said, Level::WARN, &["dropped", "close", "in_flight=3"]),
            "{said:?}"
        );

        // Small messages that are packed, and were not sent.
        let small = BufferedConfig::default().flush_interval(None);
        let addr = pair.receiver().local_addr();
        let mut buffered = SendEndpointBuffered::connect(&domain, addr, small).expect("begins");
        let mut events = Vec::new();
        pair.until("connected", |_| {
            buffered.poll(&mut events).expect("polls");
            buffered.is_connected()
        });
        for tag in 0..5 {
            buffered.push(tag, 0, b"small").expect("there is room");
        }
        log.take(Level::INFO);
        drop(buffered);
        let said = log.take(Level::INFO);
        assert!(
            has(&said, Level::WARN, &["packed and not sent", "unsent=5"]),
            "{said:?}"
        );

        // Nothing is said where nothing was lost.
        let mut pair = Pair::open(&domain);
        log.take(Level::INFO);
        let payload = pair.buffer(b"arrives");
        pair.sender()
            .send_data(payload, b"", 7)
            .expect("there is room");
        pair.until("sent", |pair| outcomes(&pair.sent).contains_key(&7));
        drop(pair.sender.take());
        assert_eq!(log.take(Level::WARN), []);
    });
}
