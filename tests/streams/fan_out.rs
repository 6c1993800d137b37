//! One source, many peers.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fabricast::stream::{
    Block, BlockSink, BlockSource, DirectorySink, FileSource, Kept, Manifest, PeerOutcome,
    ReadBack, SendOptions, SinkError, SinkFactory, SlowPeer, SourceError, Stop, StreamError,
    StreamOffer, StreamReceiver, StreamSender,
};

use crate::common::patient;
use crate::world::*;

const SIZE: usize = 4 << 20;

/// Counts the reads of another source.
#[derive(Debug)]
struct Counted(FileSource, Arc<AtomicU64>);

impl BlockSource for Counted {
    fn manifest(&self) -> &Manifest {
        self.0.manifest()
    }
    fn stamp(&self) -> [u8; 16] {
        self.0.stamp()
    }
    fn read(&self, entry: usize, offset: u64, into: &mut [u8]) -> Result<(), SourceError> {
        self.1.fetch_add(into.len() as u64, Ordering::Relaxed);
        self.0.read(entry, offset, into)
    }
    fn check_unchanged(&self) -> Result<(), SourceError> {
        self.0.check_unchanged()
    }
}

/// Takes so long for each block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Slow(pub(crate) Duration);

impl SinkFactory for Slow {
    fn make(&self, _offer: &StreamOffer) -> Result<Box<dyn BlockSink>, SinkError> {
        Ok(Box::new(*self))
    }
}

impl BlockSink for Slow {
    fn open(&self, _offer: &StreamOffer, _stop: &Stop) -> Result<Kept, SinkError> {
        Ok(Kept::default())
    }
    fn write(&self, _block: Block, _crc: u32, _bytes: &[u8]) -> Result<(), SinkError> {
        std::thread::sleep(self.0);
        Ok(())
    }
    fn finish(&self, _stop: &Stop) -> Result<ReadBack, SinkError> {
        Ok(ReadBack::default())
    }
    fn abandon(&self) {}
}

/// Writes nothing before the gate is open.
#[derive(Debug, Clone)]
struct Shut(Arc<Gate>);

impl SinkFactory for Shut {
    fn make(&self, _offer: &StreamOffer) -> Result<Box<dyn BlockSink>, SinkError> {
        Ok(Box::new(self.clone()))
    }
}

impl BlockSink for Shut {
    fn open(&self, _offer: &StreamOffer, _stop: &Stop) -> Result<Kept, SinkError> {
        Ok(Kept::default())
    }
    fn write(&self, _block: Block, _crc: u32, _bytes: &[u8]) -> Result<(), SinkError> {
        self.0.pass();
        Ok(())
    }
    fn finish(&self, _stop: &Stop) -> Result<ReadBack, SinkError> {
        Ok(ReadBack::default())
    }
    fn abandon(&self) {}
}

struct Crowd {
    from: tempfile::TempDir,
    dirs: Vec<tempfile::TempDir>,
    receivers: Vec<StreamReceiver>,
}

impl Crowd {
    fn new(domain: &Arc<fabricast::Domain>, peers: usize) -> Self {
        let from = tempfile::tempdir().unwrap();
        fs::write(from.path().join("file"), content(SIZE, 11)).unwrap();
        let dirs: Vec<_> = (0..peers).map(|_| tempfile::tempdir().unwrap()).collect();
        let receivers = dirs.iter().map(|dir| {
            listen(
                domain,
                receiver_config(DirectorySink::new(dir.path()).unwrap()),
            )
        });
        let receivers = receivers.collect();
        Self {
            from,
            dirs,
            receivers,
        }
    }

    fn addrs(&self) -> Vec<fabricast::PeerAddr> {
        self.receivers
            .iter()
            .map(StreamReceiver::local_addr)
            .collect()
    }

    fn source(&self) -> FileSource {
        FileSource::file(self.from.path().join("file")).unwrap()
    }

    fn assert_all_have_it(&self, outcomes: &[PeerOutcome]) {
        for (dir, outcome) in self.dirs.iter().zip(outcomes) {
            outcome.result.clone().unwrap();
            assert_same(&self.from.path().join("file"), &dir.path().join("file"));
        }
    }
}

#[test]
fn four_peers_are_served_by_one_reading() {
    over_both(|domain| {
        let crowd = Crowd::new(domain, 4);
        let read = Arc::new(AtomicU64::new(0));
        let source = Counted(crowd.source(), Arc::clone(&read));
        let outcomes = send(domain, source, &crowd.addrs(), SendOptions::default());
        crowd.assert_all_have_it(&outcomes);
        assert_eq!(read.load(Ordering::Relaxed), SIZE as u64);
    });
}

#[test]
fn a_peer_that_is_not_there_does_not_hold_the_others_up() {
    over_both(|domain| {
        let crowd = Crowd::new(domain, 2);
        let mut addrs = crowd.addrs();
        // Nobody listens there.
        addrs.push(nobodys_port());
        let began = Instant::now();
        // Those who are there have as long: longer than a machine keeps them from its processors,
        // three times in a row.
        let timeout = patient(Duration::from_secs(2));
        let sender = sender_config().stream(|s| s.connect_timeout(timeout));
        let sender = StreamSender::open(domain, sender).unwrap();
        let options = SendOptions::default().reconnects(2);
        let transfer = sender.send(crowd.source(), addrs, options).unwrap();
        while transfer.progress()[..2].iter().any(|peer| !peer.over) {
            assert!(began.elapsed() < patient(PATIENCE));
            std::thread::sleep(Duration::from_millis(5));
        }
        println!("the others were done after {:?}", began.elapsed());
        let outcomes = transfer.wait(by()).unwrap();
        crowd.assert_all_have_it(&outcomes[..2]);
        let lost = outcomes[2].result.clone().unwrap_err();
        assert!(
            matches!(lost, StreamError::Lost(_) | StreamError::Deadline { .. }),
            "{lost:?}"
        );
        assert_eq!(outcomes[2].report.reconnects, 2);
        sender.close(by());
    });
}

#[test]
fn a_slow_peer_is_waited_for_or_left_behind_as_the_policy_says() {
    over_both(|domain| {
        let crowd = Crowd::new(domain, 1);
        let slow = |millis| {
            let sink = Slow(Duration::from_millis(millis));
            listen(
                domain,
                receiver_config(sink).stream(|s| s.threads(1)).credits(4),
            )
        };
        // The gate, if there is one, opens when the first peer has all.
        let run = |slow: &StreamReceiver, policy, gate: Option<&Gate>| {
            let sender =
                StreamSender::open(domain, sender_config().stream(|s| s.buffers(8))).unwrap();
            let peers = [crowd.addrs()[0], slow.local_addr()];
            let options = SendOptions::default().slow(policy).reconnects(0);
            let began = Instant::now();
            let transfer = sender.send(crowd.source(), peers, options).unwrap();
            while !transfer.progress()[0].over {
                assert!(began.elapsed() < patient(PATIENCE));
                std::thread::sleep(Duration::from_millis(5));
            }
            let first = began.elapsed();
            if let Some(gate) = gate {
                assert!(!transfer.progress()[1].over, "nothing can be written there");
                gate.open();
            }
            let outcomes = transfer.wait(by()).unwrap();
            sender.close(by());
            (first, began.elapsed(), outcomes)
        };
        // 64 blocks of 20 ms each.
        let steady = slow(20);
        let wait = SlowPeer::Wait(patient(Duration::from_secs(10)));
        let (first, all, outcomes) = run(&steady, wait, None);
        println!("wait: the first after {first:?}, all after {all:?}");
        outcomes
            .iter()
            .for_each(|outcome| outcome.result.clone().unwrap());
        assert!(
            first > Duration::from_millis(500),
            "it waited for the slow one"
        );
        let gate = Arc::new(Gate::default());
        let shut = receiver_config(Shut(Arc::clone(&gate)));
        let shut = listen(domain, shut.stream(|s| s.threads(1)).credits(4));
        let (first, all, outcomes) = run(&shut, SlowPeer::CatchUp, Some(&gate));
        println!("catch up: the first after {first:?}, all after {all:?}");
        outcomes
            .iter()
            .for_each(|outcome| outcome.result.clone().unwrap());
        // One that takes nothing for a long time.
        let stuck = slow(30_000);
        // The first one is held to it, too: longer than a machine keeps it from its processors.
        let limit = patient(Duration::from_secs(3));
        for policy in [SlowPeer::Wait(limit), SlowPeer::Drop(limit)] {
            let (first, _, outcomes) = run(&stuck, policy, None);
            println!("{policy:?}: the first after {first:?}");
            outcomes[0].result.clone().unwrap();
            outcomes[1].result.clone().unwrap_err();
            // Waited for to the end, it would take half an hour.
        }
        crowd.assert_all_have_it(&[]);
    });
}
