//! Transfers in which nothing moves though both sides are there: messages are swallowed, sources and sinks hang. Each ends in an error that says
//! who waited for what, or goes on in another attempt; and whoever works, however long, is waited for.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::{Duration, Instant};

use super::chaos::over_both;
use super::outbox::Swallow;
use super::wire::Kind;
use super::{
    Block, BlockSink, BlockSource, InMemory, Kept, Manifest, MemorySink, PeerOutcome, ReadBack,
    ReceiverConfig, RefusalCode, SendOptions, SenderConfig, SinkError, SinkFactory, SourceError,
    Stop, StreamError, StreamNews, StreamOffer, StreamReceiver, StreamSender, Transport,
};
use crate::Domain;

/// No transfer of these tests may take longer.
const PATIENCE: Duration = Duration::from_secs(60);

/// For how long nothing may move, where that is what is tested, and elsewhere.
const SHORT: Duration = Duration::from_millis(400);
const LONG: Duration = Duration::from_secs(3600);

const BLOCK: u32 = 16 << 10;

/// 40 blocks, of which one may take its time.
#[derive(Debug)]
struct Source {
    manifest: Manifest,
    takes: Duration,
}

impl Source {
    fn new(takes: Duration) -> Self {
        let name = super::RelativeName::new(b"zeros").unwrap();
        let entry = super::Entry {
            name,
            kind: super::EntryKind::File,
            mode: 0o644,
            size: 40 * u64::from(BLOCK),
            modified: super::Modified::default(),
        };
        let manifest = Manifest::new([entry]).unwrap();
        Self { manifest, takes }
    }
}

impl BlockSource for Source {
    fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    fn stamp(&self) -> [u8; 16] {
        [7; 16]
    }

    fn read(&self, _entry: usize, offset: u64, into: &mut [u8]) -> Result<(), SourceError> {
        if offset == 0 {
            std::thread::sleep(self.takes);
        }
        into.fill(0);
        Ok(())
    }

    fn check_unchanged(&self) -> Result<(), SourceError> {
        Ok(())
    }
}

/// Takes its time for everything but blocks other than the first.
#[derive(Debug, Clone, Copy)]
struct Slow(Duration);

impl SinkFactory for Slow {
    fn make(&self, _offer: &StreamOffer) -> Result<Box<dyn BlockSink>, SinkError> {
        Ok(Box::new(*self))
    }
}

impl BlockSink for Slow {
    fn open(&self, _offer: &StreamOffer, _stop: &Stop) -> Result<Kept, SinkError> {
        std::thread::sleep(self.0);
        Ok(Kept::default())
    }

    fn write(&self, block: Block, _crc: u32, _bytes: &[u8]) -> Result<(), SinkError> {
        if block.index == 0 {
            std::thread::sleep(self.0);
        }
        Ok(())
    }

    fn finish(&self, _stop: &Stop) -> Result<ReadBack, SinkError> {
        std::thread::sleep(self.0);
        Ok(ReadBack::default())
    }

    fn abandon(&self) {}
}

fn swallow(kind: Kind, times: u32) -> Option<Swallow> {
    let left = Arc::new(AtomicU32::new(times));
    Some(Swallow { kind, left })
}

/// One transfer: its outcome, and how it ended at the receiver.
fn transfer(
    domain: &Arc<Domain>,
    source: Source,
    (sender, receiver): (SenderConfig, ReceiverConfig),
    options: SendOptions,
) -> (PeerOutcome, Vec<StreamNews>) {
    // Over FI_EP_RDM the windows of an attempt that is over do not come back: there are enough for some more.
    let receiver = receiver.block_bytes(BLOCK).windows(32).window(8);
    let receiver = StreamReceiver::listen(domain, "127.0.0.1:0".parse().unwrap(), receiver);
    let receiver = receiver.unwrap();
    let sender = StreamSender::open(domain, sender.block_bytes(BLOCK)).unwrap();
    let transfer = sender.send(source, [receiver.local_addr()], options);
    let by = Instant::now() + PATIENCE;
    let outcome = transfer.unwrap().wait(by).unwrap_or_else(|| {
        let second = Duration::from_secs(1);
        let (ours, theirs) = (sender.describe(second), receiver.describe(second));
        panic!("not over in time: {ours:?}\n{theirs:?}")
    });
    sender.stop(by);
    let news = receiver.stop(by);
    (outcome.into_iter().next().unwrap(), news)
}

fn last_cut(news: &[StreamNews]) -> &StreamError {
    match news.last() {
        Some(StreamNews::Cut(_, error, _)) => error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_message_that_is_never_said_ends_in_an_error_that_names_it_on_both_sides() {
    over_both(|domain| {
        for (kind, transport, named) in [
            (
                Kind::ACCEPT,
                Transport::Message,
                "the peer to accept the stream",
            ),
            (
                Kind::CREDIT,
                Transport::Message,
                "blocks to be granted (credit)",
            ),
            (
                Kind::FREED,
                Transport::Write,
                "a slot to write into (window, freed)",
            ),
            (
                Kind::WINDOW,
                Transport::Write,
                "a slot to write into (window, freed)",
            ),
        ] {
            println!("{kind:?}");
            let mut receiver = ReceiverConfig::new(MemorySink::new(1 << 20)).stalled_after(LONG);
            receiver.swallow = swallow(kind, u32::MAX);
            let options = SendOptions::default().transport(transport);
            let options = options.reconnects(0).stalled_after(SHORT);
            let configs = (SenderConfig::default(), receiver);
            let (outcome, news) = transfer(domain, Source::new(Duration::ZERO), configs, options);
            let error = outcome.result.unwrap_err();
            let StreamError::Stalled { after, waits } = &error else {
                panic!("{error:?}")
            };
            assert!(*after > SHORT, "{error}");
            let named = format!("the sender waited for {named}");
            assert!(waits.starts_with(&named), "{error}");
            // The receiver was told, and says what it waited for itself.
            match last_cut(&news) {
                StreamError::Failed { code, reason, .. } => {
                    assert_eq!(*code, RefusalCode::STALLED);
                    assert!(reason.starts_with(&named), "{reason}");
                    assert!(
                        reason.contains("; the receiver waited for blocks"),
                        "{reason}"
                    );
                }
                other => panic!("{other:?}"),
            }
        }
    });
}

#[test]
fn a_receiver_that_waits_for_nothing_says_so_to_the_sender() {
    over_both(|domain| {
        let sink = MemorySink::new(1 << 20);
        let receiver = ReceiverConfig::new(sink.clone()).stalled_after(SHORT);
        let mut sender = SenderConfig::default();
        sender.swallow = swallow(Kind::FINISH, u32::MAX);
        let options = SendOptions::default().reconnects(0).stalled_after(LONG);
        let source = Source::new(Duration::ZERO);
        let (outcome, news) = transfer(domain, source, (sender, receiver), options);
        let named = "the receiver waited for blocks, or the sender to say that it has sent all";
        match last_cut(&news) {
            StreamError::Stalled { waits, .. } => assert!(waits.starts_with(named), "{waits}"),
            other => panic!("{other:?}"),
        }
        match outcome.result.unwrap_err() {
            StreamError::Failed { code, reason, .. } => {
                assert_eq!(code, RefusalCode::STALLED);
                assert!(reason.starts_with(named), "{reason}");
                assert!(
                    reason.contains("; the sender waited for the peer"),
                    "{reason}"
                );
            }
            other => panic!("{other:?}"),
        }
        assert!(sink.take().is_empty(), "nothing is said to have arrived");
    });
}

#[test]
fn what_was_swallowed_once_another_attempt_makes_up_for() {
    over_both(|domain| {
        for (kind, transport) in [
            (Kind::ACCEPT, Transport::Write),
            (Kind::CREDIT, Transport::Message),
            (Kind::FREED, Transport::Write),
        ] {
            let sink = MemorySink::new(1 << 20);
            let mut receiver = ReceiverConfig::new(sink.clone()).stalled_after(LONG);
            // All eight slots of the first attempt.
            receiver.swallow = swallow(kind, if kind == Kind::FREED { 8 } else { 1 });
            let options = SendOptions::default().transport(transport);
            let options = options.reconnects(8).stalled_after(SHORT);
            let configs = (SenderConfig::default(), receiver);
            let (outcome, _) = transfer(domain, Source::new(Duration::ZERO), configs, options);
            outcome.result.unwrap();
            let arrived: Vec<InMemory> = sink.take();
            assert_eq!(arrived.len(), 1);
            assert!(arrived[0].bytes == vec![0; 40 * BLOCK as usize]);
        }
    });
}

/// Whoever works is waited for, many times as long as nothing may move, since the other side hears that it works.
#[test]
fn who_works_for_long_is_waited_for() {
    const WORK: Duration = Duration::from_secs(4);
    const LIMIT: Duration = Duration::from_secs(2);
    over_both(|domain| {
        let run = |source, sink| {
            let receiver = ReceiverConfig::new(Slow(sink)).stalled_after(LIMIT);
            let options = SendOptions::default().reconnects(0).stalled_after(LIMIT);
            let configs = (SenderConfig::default().readers(1), receiver.writers(1));
            let (outcome, news) = transfer(domain, Source::new(source), configs, options);
            outcome.result.unwrap();
            assert!(matches!(news.last(), Some(StreamNews::Complete(..))));
        };
        std::thread::scope(|scope| {
            scope.spawn(|| run(WORK, Duration::ZERO));
            scope.spawn(|| run(Duration::ZERO, WORK));
        });
    });
}

#[test]
fn a_source_or_a_sink_that_hangs_is_named() {
    // Beyond ten times the limit.
    const HANGS: Duration = Duration::from_secs(4);
    const LIMIT: Duration = Duration::from_millis(100);
    over_both(|domain| {
        let receiver = ReceiverConfig::new(Slow(Duration::ZERO)).stalled_after(LONG);
        let options = SendOptions::default().stalled_after(LIMIT);
        let configs = (SenderConfig::default().readers(1), receiver);
        let (outcome, news) = transfer(domain, Source::new(HANGS), configs, options);
        match outcome.result.unwrap_err() {
            StreamError::Stalled { waits, .. } => {
                assert!(
                    waits.starts_with("the sender waited for its source"),
                    "{waits}"
                );
            }
            other => panic!("{other:?}"),
        }
        match last_cut(&news) {
            StreamError::Failed { reason, .. } => {
                assert!(reason.contains("its source"), "{reason}")
            }
            other => panic!("{other:?}"),
        }
        let receiver = ReceiverConfig::new(Slow(HANGS)).stalled_after(LIMIT);
        let options = SendOptions::default().stalled_after(LONG);
        let configs = (SenderConfig::default(), receiver.writers(1));
        let (outcome, _) = transfer(domain, Source::new(Duration::ZERO), configs, options);
        match outcome.result.unwrap_err() {
            StreamError::Refused { code, reason, .. }
            | StreamError::Failed { code, reason, .. } => {
                assert_eq!(code, RefusalCode::SINK);
                assert!(
                    reason.contains("the receiver waited for its sink"),
                    "{reason}"
                );
            }
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn a_rate_and_a_pause_take_as_long_as_they_do() {
    const LIMIT: Duration = Duration::from_millis(1200);
    over_both(|domain| {
        let config = ReceiverConfig::new(Slow(Duration::ZERO)).stalled_after(LIMIT);
        let place = "127.0.0.1:0".parse().unwrap();
        let receiver = StreamReceiver::listen(domain, place, config.block_bytes(BLOCK)).unwrap();
        let config = SenderConfig::default().block_bytes(BLOCK);
        let sender = StreamSender::open(domain, config).unwrap();
        let options = SendOptions::default().reconnects(0).stalled_after(LIMIT);
        let source = Source::new(Duration::ZERO);
        // After the first block, the next is due in hours.
        let options = options.rate(Some(1));
        let transfer = sender
            .send(source, [receiver.local_addr()], options)
            .unwrap();
        std::thread::sleep(3 * LIMIT);
        transfer.pause();
        transfer.set_rate(None);
        std::thread::sleep(3 * LIMIT);
        assert!(!transfer.progress()[0].over, "it is paused");
        transfer.resume();
        let by = Instant::now() + PATIENCE;
        let outcome = transfer.wait(by).expect("over in time").pop().unwrap();
        outcome.result.unwrap();
        sender.stop(by);
        receiver.stop(by);
    });
}
