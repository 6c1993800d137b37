//! `StreamMeter`: what one stream adds to what its side has counted, while it is under way.

use std::sync::Arc;

use super::report::{Stalls, StreamReport};
use crate::metrics::latencies::nanoseconds;
use crate::metrics::stats::StreamCells;

const NUMBERS: usize = 19;

/// Begins a stream, and ends it when it is dropped, if that was not told.
#[derive(Debug)]
pub(super) struct StreamMeter {
    cells: Arc<StreamCells>,
    /// Of this stream, what the cells have.
    told: [u64; NUMBERS],
    is_over: bool,
}

impl StreamMeter {
    /// A stream begins, on the thread that writes the cells.
    pub(super) fn begin(cells: Arc<StreamCells>) -> Self {
        cells.begun.add(1);
        cells.active.add(1);
        Self {
            cells,
            told: [0; NUMBERS],
            is_over: false,
        }
    }

    /// Adds what is new in the report of the stream, and in what it has waited for so far.
    pub(super) fn tell(&mut self, report: &StreamReport, sent_bytes: u64, stalls: &Stalls) {
        let cells = &self.cells;
        let numbers = [
            (&cells.bytes, report.bytes),
            (&cells.sent_bytes, sent_bytes),
            (&cells.resumed_bytes, report.resumed_bytes),
            (&cells.equal_bytes, report.equal_bytes),
            (&cells.unchanged, report.unchanged),
            (&cells.deleted, report.deleted),
            (&cells.blocks, report.blocks),
            (&cells.damaged, report.damaged),
            (&cells.doubled, report.doubled),
            (&cells.reconnects, report.reconnects),
            (&cells.rails_lost, report.rails_lost),
            (&cells.disk_ns, nanoseconds(stalls.disk)),
            (&cells.wire_ns, nanoseconds(stalls.wire)),
            (&cells.credits_ns, nanoseconds(stalls.credits)),
            (&cells.sink_ns, nanoseconds(stalls.sink)),
            (&cells.limit_ns, nanoseconds(stalls.limit)),
            (&cells.read_ns, nanoseconds(report.read_time)),
            (&cells.write_ns, nanoseconds(report.write_time)),
            (&cells.hash_ns, nanoseconds(report.hash_time)),
        ];
        for ((cell, now), told) in numbers.into_iter().zip(&mut self.told) {
            // A session that begins anew may have less: that was counted.
            if now > *told {
                cell.add(now - *told);
                *told = now;
            }
        }
    }

    /// It is over: it went well, or did not.
    pub(super) fn end(&mut self, is_complete: bool) {
        if std::mem::replace(&mut self.is_over, true) {
            return;
        }
        self.cells.active.sub(1);
        match is_complete {
            true => self.cells.complete.add(1),
            false => self.cells.cut.add(1),
        }
    }
}

impl Drop for StreamMeter {
    fn drop(&mut self) {
        self.end(false);
    }
}
