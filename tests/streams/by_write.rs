//! Blocks by RMA write, where that differs from messages.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use fabricast::fabric::{AccessEnds, EndpointKind};
use fabricast::stream::{
    DirectorySink, DiscardSink, FileSource, MemorySink, RefusalCode, SendOptions, StreamError,
    StreamEvent, StreamSender, Transport,
};
use fabricast::{Domain, Region};

use crate::common::patient;
use crate::world::*;

fn by_write() -> SendOptions {
    SendOptions::default().transport(Transport::Write)
}

fn file(size: usize) -> (tempfile::TempDir, FileSource) {
    named("file", size)
}

fn named(name: &str, size: usize) -> (tempfile::TempDir, FileSource) {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join(name), content(size, 12)).unwrap();
    let source = FileSource::file(dir.path().join(name)).unwrap();
    (dir, source)
}

#[test]
fn who_has_no_windows_is_sent_messages_or_nothing() {
    over_both(|domain| {
        let receiver = listen(domain, receiver_config(DiscardSink));
        let (_dir, source) = file(100_000);
        let outcomes = send(domain, source, &[receiver.local_addr()], by_write());
        match outcomes[0].result.clone().unwrap_err() {
            StreamError::GivenUp { code, .. } => assert_eq!(code, RefusalCode::FEATURE),
            other => panic!("{other:?}"),
        }
        let (_dir, source) = file(100_000);
        let outcomes = send(
            domain,
            source,
            &[receiver.local_addr()],
            SendOptions::default(),
        );
        outcomes[0].result.clone().unwrap();
        let why = &outcomes[0].report.transport;
        assert!(why.starts_with("messages: "), "{why}");
        receiver.close(by());
    });
}

#[test]
fn both_sides_say_that_blocks_were_written_and_nothing_is_checked_that_was_not_asked_for() {
    over_both(|domain| {
        for (crc32c, blake3) in [(false, false), (false, true), (true, true)] {
            // One each: over FI_EP_RDM windows do not come back before the receiver ends.
            let to = tempfile::tempdir().unwrap();
            let config = receiver_config(DirectorySink::new(to.path()).unwrap());
            let receiver = listen(domain, config.rma_slots(1));
            let (from, source) = file(1_000_000);
            let options = by_write().crc32c(crc32c).blake3(blake3);
            let outcomes = send(domain, source, &[receiver.local_addr()], options);
            outcomes[0].result.clone().unwrap();
            let ours = &outcomes[0].report;
            assert!(ours.transport.starts_with("RMA writes: "), "{ours:?}");
            assert_eq!(ours.blake3.is_some(), blake3);
            match next_end(&receiver) {
                StreamEvent::Complete(_, report) => {
                    assert!(report.transport.starts_with("RMA writes, "), "{report:?}");
                }
                other => panic!("{other:?}"),
            }
            assert_same(&from.path().join("file"), &to.path().join("file"));
            receiver.close(by());
        }
    });
}

#[test]
fn streams_wait_for_windows_when_others_have_them_all() {
    over_both(|domain| {
        let receiver = listen(domain, receiver_config(DiscardSink).rma_slots(4));
        let sender = StreamSender::open(domain, sender_config()).unwrap();
        let transfers = ["one", "two"].map(|name| {
            let (dir, source) = named(name, 1_000_000);
            let options = by_write().rate(Some(10_000_000));
            let peers = [receiver.local_addr()];
            (dir, sender.send(source, peers, options).unwrap())
        });
        let results = transfers.map(|(_dir, transfer)| {
            let outcome = transfer.wait(by()).unwrap().pop().unwrap();
            outcome.result
        });
        let (done, refused): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
        // A card looks at the key of each packet, and connections of the provider's own answer for
        // what came by them.
        let by_card = domain.fabric().provider().memory.access_ends == AccessEnds::WithKey;
        if by_card || domain.fabric().endpoint_kind() == EndpointKind::Msg {
            assert!(refused.is_empty(), "{refused:?}");
        } else {
            // What the first one had does not come back before the receiver ends: nothing else ends
            // what its sender may write.
            assert_eq!(done.len(), 1, "{refused:?}");
            let what = refused[0].as_ref().unwrap_err();
            assert!(matches!(what, StreamError::Refused { .. }), "{what}");
        }
        sender.close(by());
        receiver.close(by());
    });
}

fn crowd(domain: &Arc<Domain>) {
    let from = tempfile::tempdir().unwrap();
    let path = from.path().join("file");
    fs::write(&path, content(2_000_000, 13)).unwrap();
    let dirs: Vec<_> = (0..3).map(|_| tempfile::tempdir().unwrap()).collect();
    let receivers: Vec<_> = dirs
        .iter()
        .zip([0, 2, 16])
        .map(|(dir, windows)| {
            let config = receiver_config(DirectorySink::new(dir.path()).unwrap());
            listen(domain, config.rma_slots(windows))
        })
        .collect();
    let addrs: Vec<_> = receivers.iter().map(|it| it.local_addr()).collect();
    let source = FileSource::file(&path).unwrap();
    let mut outcomes = send(domain, source, &addrs, by_write().reconnects(0));
    let without = outcomes.remove(0);
    assert!(matches!(without.result, Err(StreamError::GivenUp { .. })));
    for (outcome, dir) in outcomes.into_iter().zip(&dirs[1..]) {
        outcome.result.unwrap();
        assert_same(&path, &dir.path().join("file"));
    }
    for receiver in receivers {
        receiver.close(by());
    }
}

#[test]
fn one_reading_is_written_to_many() {
    over_both(crowd);
}

#[test]
fn a_receiver_that_ends_while_blocks_are_written_is_a_lost_connection() {
    over_both(|domain| {
        let receiver = listen(domain, receiver_config(DiscardSink).rma_slots(16));
        let sender = StreamSender::open(domain, sender_config()).unwrap();
        let (_dir, source) = file(8_000_000);
        let gate = Arc::new(Gate::default());
        let source = Gated::new(source, &gate);
        let options = by_write().reconnects(0);
        let transfer = sender
            .send(source, [receiver.local_addr()], options)
            .unwrap();
        while transfer.progress()[0].sent < 2_000_000 {
            std::thread::sleep(Duration::from_millis(1));
        }
        receiver.close(std::time::Instant::now());
        gate.open();
        let outcome = transfer.wait(by()).unwrap().pop().unwrap();
        match outcome.result.unwrap_err() {
            StreamError::Lost(_) => {}
            StreamError::Failed { code, .. } => assert_eq!(code, RefusalCode::CLOSING),
            other => panic!("{other:?}"),
        }
        let pool = sender.pool().clone();
        sender.close(by());
        assert_eq!(pool.free_count(), pool.slots(), "nothing is held");
    });
}

/// libfabric 1.17 does not guard its table of keys when a registration of a domain of `net` is
/// closed: two threads in it at once tore it, and searched it for ever, or met what the other had
/// freed. Two threads come and go here, and a third has its keys looked up by writes.
#[test]
fn memory_is_registered_and_given_back_by_several_threads_beside_writes() {
    const ROUNDS: usize = 80;
    const AT_ONCE: usize = 200;
    over_both(|domain| {
        let (over, ends) = std::sync::mpsc::channel();
        for _ in 0..3 {
            let (domain, over) = (domain.clone(), over.clone());
            std::thread::spawn(move || {
                for _ in 0..ROUNDS {
                    let regions = std::iter::repeat_with(|| {
                        let region = Region::host(4096).build().unwrap();
                        region.register(&domain).unwrap();
                        region
                    });
                    drop(regions.take(AT_ONCE).collect::<Vec<_>>());
                }
                over.send(()).unwrap();
            });
        }
        let sink = MemorySink::new(1 << 22);
        let receiver = listen(domain, receiver_config(sink.clone()).rma_slots(128));
        for _ in 0..5 {
            let (_dir, source) = file(1_000_001);
            let outcomes = send(domain, source, &[receiver.local_addr()], by_write());
            outcomes[0].result.clone().unwrap();
            assert!(sink.take()[0].bytes == content(1_000_001, 12));
        }
        for _ in 0..3 {
            let end = ends.recv_timeout(patient(PATIENCE));
            end.expect("a thread that registers memory comes to an end");
        }
        receiver.close(by());
    });
}
