//! The network between the two goes away in the middle of a stream.
//!
//! FABRICAST_SOAK=1: over both kinds of connections.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use fabricast::fabric::EndpointKind;
use fabricast::stream::{
    DirectorySink, FileSource, PeerOutcome, SendOptions, SenderConfig, StreamError, StreamReceiver,
    StreamSender, Transfer,
};

use crate::common::child::{self, tell};
use crate::common::{rounds, soak};
use crate::namespaces::{FAR, NEAR, in_two_namespaces, ip, join_far, start_far};
use crate::world::*;

const SIZE: usize = 8 << 20;

/// Bytes a second: a stream takes half a second.
const RATE: u64 = 16_000_000;

/// How long a silent peer is waited for.
const LOST_AFTER: Duration = Duration::from_millis(500);

fn kinds() -> &'static [EndpointKind] {
    &[EndpointKind::Msg, EndpointKind::Rdm][..rounds(1, 2) as usize]
}

/// A receiver of each kind, which write below one directory; the directory's name comes last.
fn far() {
    join_far();
    let dir = tempfile::tempdir().expect("a directory");
    let mut receivers = Vec::new();
    let mut said = String::new();
    for kind in kinds() {
        let domain = domain_at(*kind, FAR).expect("the near side has one");
        let config = receiver_config(DirectorySink::new(dir.path()).expect("a directory"));
        let addr = format!("{FAR}:0").parse().expect("an address");
        let receiver =
            StreamReceiver::listen(&domain, addr, config.stream(|s| s.lost_after(LOST_AFTER)));
        let receiver = receiver.expect("it listens");
        said += &format!("{} ", receiver.local_addr());
        receivers.push(receiver);
    }
    tell(format!("listening {said}{}", dir.path().display()));
    // Until it is told so, or the near side is gone: the directory goes with this process.
    child::hear();
}

fn send_some(sender: &StreamSender, path: &Path, to: &str, options: SendOptions) -> Transfer {
    let source = FileSource::file(path).expect("a file");
    let peer: fabricast::PeerAddr = to.parse().expect("an address");
    let transfer = sender.send(source, [peer], options.rate(Some(RATE)));
    let (transfer, by) = (transfer.expect("begun"), by());
    // A machine that stood still for as long as a silent peer is waited for may have lost it
    // before.
    while transfer.progress()[0].written < SIZE as u64 / 4 && !transfer.progress()[0].over {
        assert!(Instant::now() < by, "{:?}", transfer.progress());
        std::thread::sleep(Duration::from_millis(2));
    }
    transfer
}

/// Waits until the sender has given a connection up.
fn until_it_is_lost(sender: &StreamSender) {
    let by = by();
    while of_sender(sender).contains("; 0 failures;") {
        assert!(Instant::now() < by, "{}", of_sender(sender));
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn outcome(transfer: &Transfer) -> PeerOutcome {
    let outcomes = transfer.wait(by());
    outcomes.expect("over in time").pop().expect("one")
}

fn near(test: &str) {
    let (mut far, said) = start_far(test);
    let mut said = said.split(' ');
    let addrs: Vec<_> = said.by_ref().take(kinds().len()).collect();
    let to = Path::new(said.next().expect("a directory"));
    let from = tempfile::tempdir().expect("a directory");
    for (kind, addr) in kinds().iter().zip(addrs) {
        let domain = domain_at(*kind, NEAR).expect("the far side has one");
        let config = SenderConfig::default().stream(|s| s.block_bytes(64 << 10));
        let config = config.stream(|s| s.lost_after(LOST_AFTER).connect_timeout(LOST_AFTER));
        let sender = StreamSender::open(&domain, config).expect("a sender");

        // For longer than a silent peer is waited for, and then it is back.
        let path = from.path().join(format!("resumed {kind:?}"));
        fs::write(&path, content(SIZE, 21)).expect("written");
        let transfer = send_some(&sender, &path, addr, SendOptions::default().reconnects(20));
        ip("link set fbnear0 down");
        until_it_is_lost(&sender);
        ip("link set fbnear0 up");
        let up = Instant::now();
        let arrived = outcome(&transfer);
        println!(
            "{kind:?}: {:?} after the link was up: {:?}",
            up.elapsed(),
            arrived.report
        );
        arrived.result.expect("it arrives");
        assert!(arrived.report.reconnects > 0, "{:?}", arrived.report);
        assert!(arrived.report.resumed_bytes > 0, "{:?}", arrived.report);
        assert_same(&path, &to.join(path.file_name().expect("a name")));

        // For good.
        let path = from.path().join(format!("lost {kind:?}"));
        fs::write(&path, content(SIZE, 22)).expect("written");
        let transfer = send_some(&sender, &path, addr, SendOptions::default().reconnects(2));
        ip("link set fbnear0 down");
        let down = Instant::now();
        let lost = outcome(&transfer);
        let (took, error) = (down.elapsed(), lost.result.expect_err("nobody is there"));
        println!("{kind:?}: {took:?} after the link was down: {error}");
        let is_clear = matches!(error, StreamError::Lost(_) | StreamError::Deadline { .. });
        assert!(is_clear, "{error:?}");
        // The silence, and two attempts with a rest before each: for a machine that has nothing
        // else to do.
        assert!(!soak() || took < 10 * LOST_AFTER, "{took:?}");
        assert!(!to.join(path.file_name().expect("a name")).exists());
        ip("link set fbnear0 up");
        sender.close(by());
    }
    far.say("enough");
    far.finish(PATIENCE);
}

#[test]
fn a_link_that_goes_down_is_survived_or_said_in_time() {
    in_two_namespaces(
        "link::a_link_that_goes_down_is_survived_or_said_in_time",
        near,
        far,
    );
}
