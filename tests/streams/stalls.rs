//! What a stream says that it waited for.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use fabricast::Domain;
use fabricast::fabric::EndpointKind;
use fabricast::stream::{
    BlockSource, DiscardSink, FileSource, Manifest, ReceiverConfig, SendOptions, SenderConfig,
    SourceError, StreamReport, StreamSender, Timeline, TimelineSample,
};

use crate::common::soak;
use crate::fan_out::Slow;
use crate::throttled::{RATE, Throttled};
use crate::world::*;

/// A sparse file of this size, read through this.
fn report_of<S: BlockSource>(
    domain: &Arc<Domain>,
    size: u64,
    through: impl FnOnce(FileSource) -> S,
) -> StreamReport {
    let from = tempfile::tempdir().unwrap();
    let path = from.path().join("zeros");
    fs::File::create(&path).unwrap().set_len(size).unwrap();
    let receiver = listen(domain, ReceiverConfig::new(DiscardSink));
    let sender = StreamSender::open(domain, SenderConfig::default()).unwrap();
    let source = through(FileSource::file(&path).unwrap());
    let transfer = sender.send(source, [receiver.local_addr()], SendOptions::default());
    let outcome = over(&transfer.unwrap(), &sender, &receiver).pop().unwrap();
    outcome.result.unwrap();
    sender.close(by());
    receiver.close(by());
    outcome.report
}

/// The first block takes its time.
#[derive(Debug)]
struct Late(FileSource);

const LATE: Duration = Duration::from_millis(300);

impl BlockSource for Late {
    fn manifest(&self) -> &Manifest {
        self.0.manifest()
    }

    fn stamp(&self) -> [u8; 16] {
        self.0.stamp()
    }

    fn read(&self, entry: usize, offset: u64, into: &mut [u8]) -> Result<(), SourceError> {
        if offset == 0 {
            std::thread::sleep(LATE);
        }
        self.0.read(entry, offset, into)
    }

    fn check_unchanged(&self) -> Result<(), SourceError> {
        self.0.check_unchanged()
    }
}

/// While the only block is being read, it is the source that is waited for, however late anybody
/// looks.
#[test]
fn a_source_that_takes_its_time_is_what_is_waited_for() {
    over_both(|domain| {
        let report = report_of(domain, 1000, Late);
        assert!(report.stalls.disk >= LATE, "{:?}", report.stalls);
        assert!(report.timeline.is_none(), "nobody asked for it");
    });
}

/// What the samples come to is what the report says, and the time of both.
fn check_timeline(report: &StreamReport) -> &Timeline {
    let timeline = report.timeline.as_ref().expect("it was asked for");
    assert_eq!(timeline.took(), report.took);
    let samples = timeline.samples();
    let sum = |of: fn(&TimelineSample) -> Duration| samples.iter().map(of).sum::<Duration>();
    assert_eq!(sum(|it| it.stalls.disk), report.stalls.disk);
    assert_eq!(sum(|it| it.stalls.sink), report.stalls.sink);
    assert_eq!(sum(|it| it.stalls.all()), report.stalls.all());
    assert_eq!(sum(|it| it.read_time), report.read_time);
    assert_eq!(sum(|it| it.write_time), report.write_time);
    let moving: Duration = (0..samples.len()).map(|n| timeline.moving(n)).sum();
    let connecting = sum(|it| it.connecting);
    assert!(connecting > Duration::ZERO, "{timeline:?}");
    assert_eq!(moving + connecting + report.stalls.all(), report.took);
    timeline
}

/// A source that is late is drawn as reading, and a sink that is slow as writing, at the time when
/// it was so.
#[test]
fn a_timeline_says_when_what_was_waited_for() {
    over_both(|domain| {
        let from = tempfile::tempdir().unwrap();
        let path = from.path().join("zeros");
        // Data, so that no block is a hole that nothing is written for.
        fs::write(&path, vec![7; 16 * (64 << 10)]).unwrap();
        let run = |source: Late, sink: Slow| {
            let config = receiver_config(sink).stream(|s| s.threads(1)).credits(2);
            let receiver = listen(domain, config.timeline(true));
            let sender = StreamSender::open(domain, sender_config()).unwrap();
            let options = SendOptions::default().timeline(true);
            let transfer = sender
                .send(source, [receiver.local_addr()], options)
                .unwrap();
            let outcome = over(&transfer, &sender, &receiver).pop().unwrap();
            outcome.result.unwrap();
            let received = complete(&receiver);
            sender.close(by());
            receiver.close(by());
            (outcome.report, received)
        };
        let (sent, received) = run(Late(FileSource::file(&path).unwrap()), Slow(Duration::ZERO));
        let timeline = check_timeline(&sent);
        check_timeline(&received);
        // The other blocks are sent meanwhile, and then there is nothing but the source.
        let idle = timeline.samples().iter().filter(|sample| sample.bytes == 0);
        let idle: Duration = idle.map(|sample| sample.stalls.disk).sum();
        assert!(idle >= LATE / 2, "{timeline:?}");
        let bytes: u64 = timeline.samples().iter().map(|it| it.bytes).sum();
        assert_eq!(bytes, sent.sent_bytes);
        assert_eq!(
            timeline.address_bytes(0).sum::<u64>(),
            sent.address_bytes[0]
        );

        // 16 blocks of so long each, two of them granted at once.
        let each = Duration::from_millis(20);
        let source = || FileSource::file(&path).unwrap();
        let (sent, received) = run(Late(source()), Slow(each));
        let timeline = check_timeline(&sent);
        let waited = timeline
            .samples()
            .iter()
            .map(|it| it.stalls.sink + it.stalls.credits);
        assert!(waited.sum::<Duration>() >= 8 * each, "{:?}", sent.stalls);
        let timeline = check_timeline(&received);
        let written = timeline.samples().iter().map(|it| it.write_time);
        assert!(written.sum::<Duration>() >= 16 * each, "{timeline:?}");
    });
}

/// Behind a disk that is slower than all else, nothing but the disk is waited for. That is
/// measured, on a machine that has nothing else to do: of FABRICAST_SOAK=1. Everywhere, all of it
/// arrives and the time of the source is counted.
#[test]
fn a_throttled_reader_is_the_only_thing_that_is_waited_for() {
    let Some(domain) = domain(EndpointKind::Msg) else {
        return;
    };
    let (size, runs) = if soak() {
        (200_000_000, 5)
    } else {
        (20_000_000, 1)
    };
    let mut least = f64::MAX;
    for _ in 0..runs {
        let report = report_of(&domain, size, Throttled::new);
        let (stalls, took) = (report.stalls, report.took.as_secs_f64());
        let others = stalls.wire + stalls.credits + stalls.sink + stalls.limit;
        let part = others.as_secs_f64() / took;
        println!(
            "{:.2} % of the time waited for others: {report}; {stalls:?}",
            100.0 * part
        );
        assert_eq!(report.bytes, size);
        assert!(!stalls.disk.is_zero(), "{stalls:?}");
        // No faster than the source gives them.
        assert!(took >= 0.99 * size as f64 / RATE, "{took}");
        least = least.min(part);
    }
    if soak() {
        assert!(
            least < 0.02,
            "{:.1} % of the time at the least",
            100.0 * least
        );
    }
}
