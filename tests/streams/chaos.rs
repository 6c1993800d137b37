//! Senders and receivers that are killed and stopped, as real processes.
//!
//! FABRICAST_SOAK=1: 200 kills of each kind of connections.

use std::fs;
use std::time::{Duration, Instant};

use fabricast::fabric::EndpointKind;
use fabricast::stream::{
    DirectorySink, FileSource, SendOptions, StreamEvent, StreamReceiver, StreamSender, Transport,
};

use crate::common::child::{Child, argument, hear, role, tell};
use crate::common::{Random, patient, rounds};
use crate::world::*;

const SIZE: usize = 8 << 20;

/// Bytes a second: a stream takes a quarter of a second.
const RATE: u64 = 32_000_000;

fn kind_of(text: &str) -> EndpointKind {
    match text {
        "Msg" => EndpointKind::Msg,
        _ => EndpointKind::Rdm,
    }
}

fn transport_of(text: &str) -> Transport {
    match text {
        "Message" => Transport::Message,
        _ => Transport::Write,
    }
}

/// More windows than senders can take with them that are lost over FI_EP_RDM.
const WINDOWS: u32 = 4096;

/// After which a peer that was killed or stopped is lost, where nothing else tells. One that lives
/// and is lost is connected to again.
const LOST_AFTER: Duration = Duration::from_secs(3);

/// Receives into a directory until its parent is gone.
fn be_receiver() {
    let argument = argument();
    let mut parts = argument.splitn(3, ' ');
    let mut next = || parts.next().expect("three parts");
    let (kind, addr, dir) = (kind_of(next()), next().to_owned(), next().to_owned());
    let domain = domain(kind).expect("the parent has one");
    let by = by();
    // The port of a process that was just killed may not be free at once.
    let receiver = loop {
        let config = receiver_config(DirectorySink::new(&dir).expect("a directory"));
        let config = config
            .rma_slots(WINDOWS)
            .stream(|s| s.lost_after(LOST_AFTER).rail_threads(2));
        match StreamReceiver::listen(&domain, addr.parse().expect("an address"), config) {
            Ok(receiver) => break receiver,
            Err(error) => assert!(Instant::now() < by, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    tell(format!("listening {}", receiver.local_addr()));
    std::thread::spawn(move || {
        while hear().is_some() {}
        std::process::exit(0);
    });
    loop {
        match receiver.next(PATIENCE) {
            Some(StreamEvent::Complete(..)) => tell("complete"),
            Some(news) => println!("{news:?}"),
            None => {}
        }
    }
}

/// Sends a file, and says how that went.
fn be_sender() {
    let argument = argument();
    let mut parts = argument.splitn(4, ' ');
    let mut next = || parts.next().expect("four parts");
    let (kind, transport) = (kind_of(next()), transport_of(next()));
    let (addr, path) = (next().to_owned(), next().to_owned());
    let domain = domain(kind).expect("the parent has one");
    let config = sender_config().stream(|s| s.lost_after(LOST_AFTER).rail_threads(2));
    let sender = StreamSender::open(&domain, config).expect("a sender");
    let source = FileSource::file(path).expect("a file");
    tell("sending");
    let options = SendOptions::default().rate(Some(RATE)).reconnects(20);
    // By threads of their own, or all by one.
    let options = match std::process::id() % 2 {
        0 => options.rails(2),
        _ => options,
    };
    let options = options.transport(transport);
    let peer: fabricast::PeerAddr = addr.parse().expect("an address");
    let transfer = sender.send(source, [peer], options).expect("begun");
    let outcome = transfer
        .wait(by())
        .expect("over in time")
        .pop()
        .expect("one");
    match outcome.result {
        Ok(()) => tell(format!("done {}", outcome.report.resumed_bytes)),
        Err(error) => tell(format!("failed {error}")),
    }
    sender.close(by());
}

struct Play {
    test: &'static str,
    kind: EndpointKind,
    transport: Transport,
    from: tempfile::TempDir,
    to: tempfile::TempDir,
    addr: String,
    seed: u64,
}

impl Play {
    fn new(test: &'static str, kind: EndpointKind, transport: Transport) -> Self {
        let this = Self {
            test,
            kind,
            transport,
            from: tempfile::tempdir().expect("a directory"),
            to: tempfile::tempdir().expect("a directory"),
            addr: any_port().to_string(),
            seed: 0,
        };
        fs::write(this.path(), content(SIZE, this.seed)).expect("written");
        this
    }

    fn path(&self) -> std::path::PathBuf {
        self.from.path().join("file")
    }

    fn arrived(&self) -> std::path::PathBuf {
        self.to.path().join("file")
    }

    fn receiver(&mut self) -> Child {
        let argument = format!("{:?} {} {}", self.kind, self.addr, self.to.path().display());
        let mut child = Child::start(self.test, "receiver", argument);
        self.addr = child.expect("listening", PATIENCE);
        child
    }

    fn sender(&self) -> Child {
        let (kind, transport) = (self.kind, self.transport);
        let path = self.path();
        let argument = format!("{kind:?} {transport:?} {} {}", self.addr, path.display());
        let mut child = Child::start(self.test, "sender", argument);
        child.expect("sending", PATIENCE);
        child
    }

    /// Whatever is under the name is all of it.
    fn assert_whole_or_absent(&self) -> bool {
        let there = self.arrived().exists();
        if there {
            let (sent, got) = (fs::read(self.path()), fs::read(self.arrived()));
            assert!(
                sent.expect("read") == got.expect("read"),
                "a part of it is under its name"
            );
        }
        there
    }

    /// The next stream has other bytes.
    fn next_file(&mut self) {
        self.seed += 1;
        fs::remove_file(self.arrived()).expect("it is there");
        fs::write(self.path(), content(SIZE, self.seed)).expect("written");
    }
}

/// Kills one side at a random point, again and again.
fn kills(
    test: &'static str,
    (kind, transport): (EndpointKind, Transport),
    victims: &[bool],
    count: u32,
) {
    if domain(kind).is_none() {
        return;
    }
    let mut random = Random::from_printed_seed(test);
    let mut play = Play::new(test, kind, transport);
    let mut receiver = play.receiver();
    let mut sender = play.sender();
    let (mut resumed, mut whole) = (0, 0);
    for kill in 0..count {
        std::thread::sleep(Duration::from_millis(random.below(300)));
        let is_receiver = victims[kill as usize % victims.len()];
        match is_receiver {
            true => receiver.kill(),
            false => sender.kill(),
        }
        if play.assert_whole_or_absent() {
            // It was done before the kill.
            whole += 1;
            sender = play.sender();
            sender.kill();
            play.next_file();
            receiver.kill();
            fs::read_dir(play.to.path())
                .expect("there")
                .for_each(|left| {
                    let left = left.expect("an entry").path();
                    if left.is_dir() {
                        fs::remove_dir_all(left).expect("removed");
                    }
                });
            receiver = play.receiver();
            sender = play.sender();
            continue;
        }
        match is_receiver {
            true => receiver = play.receiver(),
            false => sender = play.sender(),
        }
        if let Some(line) = sender.heard() {
            assert!(!line.starts_with("failed"), "{line}");
        }
    }
    let done = sender.expect("done", PATIENCE);
    resumed += done.parse::<u64>().expect("a number");
    assert!(play.assert_whole_or_absent(), "it has arrived");
    sender.finish(PATIENCE);
    let left = names(play.to.path());
    assert_eq!(left, ["file"], "nothing else is left there");
    println!("{test}: {count} kills, {whole} after the end, {resumed} bytes resumed at last");
    drop(receiver);
}

fn roles() -> bool {
    match role().as_deref() {
        Some("receiver") => be_receiver(),
        Some("sender") => be_sender(),
        Some(other) => panic!("no role {other}"),
        None => return false,
    }
    true
}

#[test]
fn killed_over_msg_and_resumed() {
    if !roles() {
        let count = rounds(5, 200);
        kills(
            "chaos::killed_over_msg_and_resumed",
            (EndpointKind::Msg, Transport::Message),
            &[true, false],
            count,
        );
    }
}

#[test]
fn killed_over_rdm_and_resumed() {
    if !roles() {
        let count = rounds(4, 200);
        kills(
            "chaos::killed_over_rdm_and_resumed",
            (EndpointKind::Rdm, Transport::Message),
            &[false, true],
            count,
        );
    }
}

#[test]
fn killed_by_write_over_msg_and_resumed() {
    if !roles() {
        let count = rounds(2, 200);
        kills(
            "chaos::killed_by_write_over_msg_and_resumed",
            (EndpointKind::Msg, Transport::Write),
            &[true, false],
            count,
        );
    }
}

#[test]
fn killed_by_write_over_rdm_and_resumed() {
    if !roles() {
        let count = rounds(2, 200);
        kills(
            "chaos::killed_by_write_over_rdm_and_resumed",
            (EndpointKind::Rdm, Transport::Write),
            &[false, true],
            count,
        );
    }
}

#[test]
fn a_receiver_that_is_stopped_is_given_up_and_the_stream_goes_on_with_it_later() {
    let test = "chaos::a_receiver_that_is_stopped_is_given_up_and_the_stream_goes_on_with_it_later";
    if roles() {
        return;
    }
    let kinds = [EndpointKind::Msg, EndpointKind::Rdm];
    for kind in &kinds[..rounds(1, 2) as usize] {
        let kind = *kind;
        if domain(kind).is_none() {
            continue;
        }
        let mut play = Play::new(test, kind, Transport::Message);
        let receiver = play.receiver();
        let mut sender = play.sender();
        std::thread::sleep(Duration::from_millis(100));
        receiver.stop();
        // Longer than a silent peer is waited for: connections are given up, and made again.
        std::thread::sleep(patient(Duration::from_millis(4000)));
        receiver.go_on();
        sender.expect("done", PATIENCE);
        assert!(play.assert_whole_or_absent(), "it has arrived");
        assert_eq!(names(play.to.path()), ["file"]);
        drop(receiver);
    }
}
