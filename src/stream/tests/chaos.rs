//! Real senders and receivers over connections that lose, double, damage and reorder blocks, and
//! that break. Each stream ends with exactly the source at the sink, or with an error in time and
//! nothing under the name; every buffer is back in its pool either way.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::sender::PeerOutcome;
use super::{
    DirectorySink, FileSource, ReceiverConfig, RefusalCode, SendOptions, SenderConfig, StreamError,
    StreamEvent, StreamReceiver, StreamSender,
};
use crate::buffer::SharedBufferManager;
use crate::endpoint::duplex::faults::{Dice, FaultConfig, Faults};
use crate::fabric::EndpointKind;
use crate::{Domain, Fabric};

const BLOCK: u32 = 64 << 10;
const BLOCKS: usize = 64;

/// No stream of these tests may take longer.
const PATIENCE: Duration = Duration::from_secs(30);

fn domain(kind: EndpointKind) -> Option<Arc<Domain>> {
    let open = |provider| {
        let fabric = Fabric::builder().provider(provider).node("127.0.0.1");
        fabric.endpoint_kind(kind).open()
    };
    let opened = match kind {
        EndpointKind::Msg => open("tcp"),
        // libfabric 1.x calls it `net`, 2.x `tcp`.
        EndpointKind::Rdm => open("net").or_else(|_| open("tcp")),
    };
    match opened {
        Ok(fabric) => Some(fabric.open_domain().unwrap()),
        Err(error) => {
            println!("SKIPPED: {error}");
            None
        }
    }
}

/// What a stream came to.
struct Ended {
    outcome: PeerOutcome,
    /// At the receiver, if it ended there, too.
    news: Vec<StreamEvent>,
    took: Duration,
}

/// A file to a directory, through these faults.
fn stream(domain: &Arc<Domain>, (faults, seed): (Faults, u64), options: SendOptions) -> Ended {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let path = from.path().join("file");
    let mut dice = Dice(seed | 1);
    let len = BLOCKS * BLOCK as usize - 1234;
    let words = (0..=len / 8).flat_map(|_| dice.roll(u64::MAX).to_le_bytes());
    let content: Vec<u8> = words.take(len).collect();
    std::fs::write(&path, &content).unwrap();
    let config = ReceiverConfig::new(DirectorySink::new(to.path()).unwrap());
    // Half of them by threads of their own.
    let threads = 1 + u32::from(seed % 2 == 0);
    let config = config.stream(|s| s.block_bytes(BLOCK).connections(8).rail_threads(threads));
    let receiver = StreamReceiver::listen(domain, "127.0.0.1:0".parse().unwrap(), config).unwrap();
    let config = SenderConfig::default()
        .stream(|s| s.block_bytes(BLOCK).rail_threads(threads))
        .faults(FaultConfig {
            faults,
            dice: Arc::new(Mutex::new(dice)),
            // The kind of a block's header, as docs/wire.md has it.
            concerns: |header| header[4] == 5,
        });
    let sender = StreamSender::open(domain, config).unwrap();
    let (mut pools, began) = (vec![sender.pool().clone()], Instant::now());
    pools.extend_from_slice(receiver.pools());
    let source = FileSource::file(&path).unwrap();
    let transfer = sender
        .send(source, [receiver.local_addr()], options)
        .unwrap();
    let by = began + PATIENCE;
    let outcome = transfer.wait(by).expect("it ends in time").pop().unwrap();
    let took = began.elapsed();
    sender.close(by);
    let news = receiver.close(by);
    println!("{took:?}, and {:?} to stop", began.elapsed() - took);
    assert_whole_or_absent(&to.path().join("file"), &content, outcome.result.is_ok());
    pools.iter().for_each(assert_full);
    Ended {
        outcome,
        news,
        took,
    }
}

fn assert_whole_or_absent(path: &Path, content: &[u8], is_whole: bool) {
    match is_whole {
        true => assert!(std::fs::read(path).unwrap() == content, "other bytes"),
        false => assert!(!path.exists(), "it failed, and is there"),
    }
}

fn assert_full(pool: &SharedBufferManager) {
    assert_eq!(pool.free_count(), pool.slots(), "a buffer is lost");
}

/// Runs a test over each kind of connections.
pub(super) fn over_both(test: impl Fn(&Arc<Domain>)) {
    for kind in [EndpointKind::Msg, EndpointKind::Rdm] {
        if let Some(domain) = domain(kind) {
            println!("over {kind:?}");
            test(&domain);
        }
    }
}

#[test]
fn blocks_that_are_lost_doubled_damaged_and_overtaken_arrive_once_and_right() {
    let none = Faults::default();
    let cases = [
        ("lost", Faults { drop: 6, ..none }),
        ("doubled", Faults { double: 4, ..none }),
        ("damaged", Faults { damage: 6, ..none }),
        ("overtaken", Faults { swap: 3, ..none }),
        (
            "all of that",
            Faults {
                drop: 14,
                double: 8,
                damage: 10,
                swap: 5,
                cut: 0,
            },
        ),
    ];
    over_both(|domain| {
        for (seed, (what, faults)) in cases.into_iter().enumerate() {
            let ended = stream(domain, (faults, 77 + seed as u64), SendOptions::default());
            let report = ended.outcome.report;
            ended
                .outcome
                .result
                .unwrap_or_else(|error| panic!("{what}: {error}"));
            println!("{what}: {:?}, {report}", ended.took);
            let Some(StreamEvent::Complete(_, received)) = ended.news.last() else {
                panic!("{what}: {:?}", ended.news)
            };
            let again = report.sent_bytes > report.bytes;
            assert_eq!(again, faults.drop + faults.damage > 0, "{what}: {report:?}");
            assert_eq!(report.damaged > 0, faults.damage > 0, "{what}: {report:?}");
            assert_eq!(
                received.doubled > 0,
                faults.double > 0,
                "{what}: {received:?}"
            );
        }
    });
}

#[test]
fn connections_that_break_are_taken_over_or_made_again() {
    let faults = Faults {
        cut: 16,
        drop: 30,
        damage: 30,
        ..Faults::default()
    };
    over_both(|domain| {
        let mut broken = 0;
        for (seed, rails) in [(5, 1), (6, 3)] {
            let ended = stream(domain, (faults, seed), SendOptions::default().rails(rails));
            let report = ended.outcome.report;
            println!("{rails} rails: {:?}, {report:?}", ended.took);
            ended.outcome.result.unwrap();
            broken += report.reconnects + report.rails_lost;
        }
        assert!(broken > 0);
    });
}

#[test]
fn what_can_not_succeed_ends_in_an_error_in_time() {
    let none = Faults::default();
    over_both(|domain| {
        let deadline = Duration::from_millis(700);
        let options = SendOptions::default().deadline(Some(deadline));
        let lost = stream(domain, (Faults { drop: 1, ..none }, 1), options);
        let error = lost.outcome.result.unwrap_err();
        assert!(matches!(error, StreamError::Deadline { .. }), "{error:?}");
        println!("over after {:?}", lost.took);

        let damaged = stream(
            domain,
            (Faults { damage: 1, ..none }, 2),
            SendOptions::default(),
        );
        let error = damaged.outcome.result.unwrap_err();
        match error {
            StreamError::GivenUp { code, .. } | StreamError::Failed { code, .. } => {
                assert_eq!(code, RefusalCode::DAMAGED);
            }
            other => panic!("{other:?}"),
        }

        let options = SendOptions::default().reconnects(2);
        let cut = stream(domain, (Faults { cut: 1, ..none }, 3), options);
        let error = cut.outcome.result.unwrap_err();
        assert!(matches!(error, StreamError::Lost(_)), "{error:?}");
        assert_eq!(cut.outcome.report.reconnects, 2);
    });
}
