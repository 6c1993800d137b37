//! What a stream says that it waited for.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use fabricast::Domain;
use fabricast::fabric::EndpointKind;
use fabricast::stream::{
    BlockSource, DiscardSink, FileSource, Manifest, ReceiverConfig, SendOptions, SenderConfig,
    SourceError, StreamReport, StreamSender,
};

use crate::common::soak;
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
