//! `SessionReport`: how one session goes: what its application is told in the end.

use std::time::{Duration, Instant};

use super::session_clock::SessionClock;
use super::side::ReceiverTools;
use super::writing::CheckedSums;
use crate::stream::incoming::IncomingStream;
use crate::stream::meter::StreamMeter;
use crate::stream::report::StreamReport;
use crate::stream::sink::{BlockSink, ReadBack, SinkError, StreamOffer};
use crate::stream::timeline::TimelineRecorder;
use crate::stream::wire::Checks;
use crate::stream::workers::guarded;
use crate::stream::{Block, RefusalCode};

/// Blocks that may come damaged before the stream is given up.
const DAMAGED_MAX: u64 = 1000;

/// The report of one session, and its times.
pub(super) struct SessionReport {
    report: StreamReport,
    pub(super) clock: SessionClock,
    /// Once there is a stream.
    meter: Option<StreamMeter>,
}

/// What a sink has removed.
pub(super) fn deleted_by(sink: Option<&dyn BlockSink>) -> u64 {
    sink.map_or(0, |sink| guarded(|| sink.deleted()).unwrap_or(0))
}

impl SessionReport {
    pub(super) fn new(has_timeline: bool, now: Instant) -> Self {
        let timeline = has_timeline.then(|| TimelineRecorder::new(0, now));
        Self {
            report: StreamReport::default(),
            clock: SessionClock::new(timeline, now),
            meter: None,
        }
    }

    /// There is a stream.
    pub(super) fn begin(&mut self, tools: &ReceiverTools) {
        self.meter
            .get_or_insert_with(|| StreamMeter::begin(tools.watched.share()));
    }

    /// Adds what is new to what the side has counted.
    pub(super) fn count(&mut self) {
        if let Some(meter) = &mut self.meter {
            meter.tell(&self.report, 0, &self.clock.stalls());
        }
    }

    pub(super) fn get(&self) -> &StreamReport {
        &self.report
    }

    /// The sink has so many bytes before the stream begins, and keeps so many files as they are.
    pub(super) fn on_had(&mut self, (bytes, unchanged): (u64, u64)) {
        self.report.resumed_bytes = bytes;
        self.report.unchanged = unchanged;
    }

    /// So many blocks came twice.
    pub(super) fn on_doubled(&mut self, blocks: u64) {
        self.report.doubled += blocks;
    }

    /// A block came damaged. After too many of them the stream is given up.
    pub(super) fn on_damaged(&mut self, incoming: &mut IncomingStream, block: &Block) {
        self.report.damaged += 1;
        if self.report.damaged > DAMAGED_MAX {
            let text = "blocks came damaged again and again";
            incoming.fail(RefusalCode::DAMAGED, Some(block.index), text);
        }
    }

    /// A block, or a pack of them, is written, which took so long; `hash_time` of it to hash it.
    pub(super) fn on_written(
        &mut self,
        bytes: u64,
        took: Duration,
        hash_time: Duration,
        now: Instant,
    ) {
        self.report.write_time += took;
        self.report.hash_time += hash_time;
        self.clock.on_written(bytes, took, hash_time, now);
    }

    /// The sink was to keep blocks that it has in files of the same names.
    pub(super) fn on_kept(&mut self, kept: &[CheckedSums]) {
        let equal = kept.iter().filter(|(_, outcome)| outcome.is_ok());
        self.report.equal_bytes += equal.map(|(block, _)| u64::from(block.len)).sum::<u64>();
    }

    /// Counts what is under its names, however the stream ends.
    pub(super) fn count_placed(
        &mut self,
        offer: Option<&StreamOffer>,
        finished: &Result<ReadBack, SinkError>,
    ) {
        self.report.placed = match finished {
            Ok(_) | Err(SinkError::Delete { .. }) => {
                offer.map_or(0, |offer| offer.manifest.len() as u64)
            }
            Err(SinkError::Placed { placed, .. }) => *placed,
            Err(_) => 0,
        };
    }

    /// All is there: the stream is completed, and its sender is to be told, with how much the sink
    /// has removed.
    pub(super) fn complete(
        &mut self,
        incoming: &mut IncomingStream,
        offer: &StreamOffer,
        by_write: bool,
        (read_back, deleted): (ReadBack, u64),
    ) {
        let mut checks = Checks::empty();
        checks.set(Checks::CRC32C, offer.crc32c);
        checks.set(Checks::SYNC, offer.sync);
        checks.set(Checks::READ_BACK, offer.read_back);
        let report = &mut self.report;
        report.blake3 = incoming.complete(checks, deleted).blake3;
        report.entry_hashes = incoming.entry_hashes();
        report.blake3_compared = incoming.is_blake3_compared();
        report.transport = match by_write {
            true => "RMA writes, each block copied once out of its slot".to_owned(),
            false => "messages".to_owned(),
        };
        report.bytes = offer.manifest.bytes();
        report.blocks = offer.plan.blocks();
        report.read_back = read_back;
    }

    /// The stream is cut; the sink has so many bytes of it.
    pub(super) fn cut(&mut self, bytes: u64) {
        self.report.bytes = bytes;
    }

    /// Nothing more is waited for: which way the bytes took, and how long.
    pub(super) fn close(
        &mut self,
        sink: Option<&dyn BlockSink>,
        tools: &ReceiverTools,
        is_complete: bool,
    ) {
        self.report.path = tools.path(sink);
        self.report.io = tools.io_stats(sink);
        self.report.deleted = deleted_by(sink);
        self.clock.close(&mut self.report, tools.now());
        self.count();
        if let Some(meter) = &mut self.meter {
            meter.end(is_complete);
        }
    }
}
