//! `Telemetry`: counts what clients and servers of objects do, and how long it takes.
//!
//! ```text
//!  on_transfer ──► Telemetry (one a client or server, relaxed atomics)
//!                     │ stats             │ all of them, and what closed ones counted
//!                     ▼                   ▼
//!                ObjectStats       TelemetryReport::of_process
//!                                         │ plain text, Prometheus' text
//!                                         ▼
//!                     by hand, or by a TelemetryWriter, into any writer
//! ```
//!
//! Each transfer is an event of `tracing`, too (target [`TARGET`], level DEBUG), whose fields have
//! the prefixes by which the metrics layer of `tracing-opentelemetry` knows counters and
//! histograms.

mod prometheus;
mod report;
mod stats;
mod writer;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::metrics::WatchedStats;
use crate::metrics::latencies::LatencyCells;
use crate::metrics::registry::{Watch, WatchedCells};
use crate::object::ObjectOperation;

pub use crate::metrics::Latencies;
pub use report::{TelemetryEntry, TelemetryGroups, TelemetryReport};
pub use stats::{
    CallbackStats, FailureKind, LendingStats, ObjectSide, ObjectStats, OperationStats,
};
pub use writer::{TelemetryFormat, TelemetryWriter, TelemetryWriterConfig};

/// The target of the events.
pub(crate) const TARGET: &str = "fabricast::object::telemetry";

/// Counts for one client or one server; its owner shares it with what counts.
pub(crate) struct Telemetry {
    cells: WatchedCells<Cells>,
    side: ObjectSide,
    name: Arc<str>,
}

impl Telemetry {
    /// For one that just opened. `name`: what people tell it from others by.
    pub(crate) fn new(side: ObjectSide, name: &str) -> Arc<Self> {
        Arc::new(Self {
            cells: WatchedCells::new(side.watched_kind(), Some(name)),
            side,
            name: name.into(),
        })
    }

    /// Its number in the process.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn id(&self) -> u64 {
        self.cells.place().id()
    }

    /// A transfer is over: `bytes` were moved, by one that failed too, as far as it got.
    pub(crate) fn on_transfer(
        &self,
        operation: ObjectOperation,
        bytes: u64,
        elapsed: Duration,
        outcome: Result<(), FailureKind>,
    ) {
        let cells = self.cells.operation(operation);
        // Relaxed, here and below: counters only, nothing is ordered by them.
        cells.bytes.fetch_add(bytes, Ordering::Relaxed);
        match outcome {
            Ok(()) => cells.done.fetch_add(1, Ordering::Relaxed),
            Err(kind) => cells.failures[kind.index()].fetch_add(1, Ordering::Relaxed),
        };
        cells.latency.record(elapsed);
        tracing::debug!(
            target: TARGET,
            side = self.side.label(),
            monotonic_counter.fabricast_object_transfers = 1u64,
            monotonic_counter.fabricast_object_bytes = bytes,
            histogram.fabricast_object_transfer_seconds = elapsed.as_secs_f64(),
            name = &*self.name,
            operation = stats::label(operation),
            outcome = outcome.map_or_else(FailureKind::label, |()| "done"),
        );
    }

    /// A callback of the application returned.
    pub(crate) fn on_callback(&self, elapsed: Duration, failed: bool) {
        let cells = &self.cells;
        if failed {
            cells.callbacks_failed.fetch_add(1, Ordering::Relaxed);
        }
        cells.callbacks.record(elapsed);
        tracing::debug!(
            target: TARGET,
            side = self.side.label(),
            histogram.fabricast_object_callback_seconds = elapsed.as_secs_f64(),
            name = &*self.name,
            failed,
        );
    }

    /// A token was given out.
    pub(crate) fn on_token(&self) {
        self.cells.tokens.fetch_add(1, Ordering::Relaxed);
    }

    /// Memory got a new key: what knew the old one does not reach it any more.
    pub(crate) fn on_rekey(&self) {
        self.cells.rekeyed.fetch_add(1, Ordering::Relaxed);
        tracing::debug!(
            target: TARGET,
            side = self.side.label(),
            monotonic_counter.fabricast_object_rekeys = 1u64,
            name = &*self.name,
        );
    }

    /// Memory is kept back, since something late may still reach it.
    pub(crate) fn on_quarantine(&self, bytes: u64) {
        let cells = &self.cells;
        cells.quarantines.fetch_add(1, Ordering::Relaxed);
        cells.quarantined.fetch_add(bytes, Ordering::Relaxed);
        self.say_quarantined(i64::try_from(bytes).unwrap_or(i64::MAX));
    }

    /// Memory that was kept back is free again.
    pub(crate) fn on_quarantine_over(&self, bytes: u64) {
        let quarantined = &self.cells.quarantined;
        // Whoever says more than was kept back must not make it endless.
        let less = |sum: u64| Some(sum.saturating_sub(bytes));
        let _ = quarantined.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        self.say_quarantined(i64::try_from(bytes).map_or(i64::MIN, |bytes| -bytes));
    }

    fn say_quarantined(&self, change: i64) {
        tracing::debug!(
            target: TARGET,
            side = self.side.label(),
            counter.fabricast_object_quarantined_bytes = change,
            name = &*self.name,
        );
    }

    /// Counted so far. Transfers that end meanwhile may be in some of the numbers and not yet in
    /// others.
    pub(crate) fn stats(&self) -> ObjectStats {
        self.cells.read()
    }
}

impl fmt::Debug for Telemetry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Telemetry")
            .field("side", &self.side)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

#[derive(Default)]
struct Cells {
    get: OperationCells,
    put: OperationCells,
    callbacks: LatencyCells,
    callbacks_failed: AtomicU64,
    tokens: AtomicU64,
    rekeyed: AtomicU64,
    quarantines: AtomicU64,
    quarantined: AtomicU64,
}

#[derive(Default)]
struct OperationCells {
    done: AtomicU64,
    bytes: AtomicU64,
    failures: [AtomicU64; FailureKind::ALL.len()],
    latency: LatencyCells,
}

impl Watch for Cells {
    fn stats(&self) -> WatchedStats {
        WatchedStats::Object(Box::new(self.read()))
    }
}

impl Cells {
    fn operation(&self, operation: ObjectOperation) -> &OperationCells {
        match operation {
            ObjectOperation::Get => &self.get,
            ObjectOperation::Put => &self.put,
        }
    }

    fn read(&self) -> ObjectStats {
        let read = |cell: &AtomicU64| cell.load(Ordering::Relaxed);
        ObjectStats {
            get: self.get.stats(),
            put: self.put.stats(),
            callbacks: CallbackStats {
                failed: read(&self.callbacks_failed),
                latency: self.callbacks.snapshot(),
            },
            lending: LendingStats {
                tokens: read(&self.tokens),
                rekeyed: read(&self.rekeyed),
                quarantines: read(&self.quarantines),
                quarantined_bytes: read(&self.quarantined),
            },
        }
    }
}

impl OperationCells {
    fn stats(&self) -> OperationStats {
        OperationStats {
            done: self.done.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            failures: FailureKind::ALL.map(|kind| {
                let cell = &self.failures[kind.index()];
                cell.load(Ordering::Relaxed)
            }),
            latency: self.latency.snapshot(),
        }
    }
}

#[cfg(all(test, not(loom)))]
#[path = "tests/telemetry.rs"]
mod tests;
