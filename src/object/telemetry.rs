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

mod histogram;
mod prometheus;
mod report;
mod stats;
mod writer;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use self::histogram::HistogramCells;
use crate::object::ObjectOperation;
use crate::process::Owner;

pub use histogram::Latencies;
pub use report::{TelemetryEntry, TelemetryGroups, TelemetryReport};
pub use stats::{
    CallbackStats, FailureKind, LendingStats, ObjectSide, ObjectStats, OperationStats,
};
pub use writer::{TelemetryFormat, TelemetryWriter, TelemetryWriterConfig};

/// The target of the events.
pub(crate) const TARGET: &str = "fabricast::object::telemetry";

/// Counts for one client or one server; its owner shares it with what counts.
pub(crate) struct Telemetry {
    cells: Arc<Cells>,
    side: ObjectSide,
    name: Arc<str>,
    id: u64,
    owner: Owner,
}

impl Telemetry {
    /// For one that just opened. `name`: what people tell it from others by.
    pub(crate) fn new(side: ObjectSide, name: &str) -> Arc<Self> {
        let cells = Arc::new(Cells::default());
        let name: Arc<str> = name.into();
        let mut ledger = ledger();
        ledger.last += 1;
        let id = ledger.last;
        let open = OpenEntry {
            side,
            name: Arc::clone(&name),
            cells: Arc::clone(&cells),
        };
        ledger.open.insert(id, open);
        Arc::new(Self {
            cells,
            side,
            name,
            id,
            owner: Owner::current(),
        })
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
        self.cells.stats()
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

impl Drop for Telemetry {
    fn drop(&mut self) {
        // In a forked child another thread of the parent may have held the lock for ever.
        if !self.owner.is_here() {
            return;
        }
        let mut stats = self.cells.stats();
        // What it kept back is its own matter no more.
        stats.lending.quarantined_bytes = 0;
        let mut ledger = ledger();
        ledger.open.remove(&self.id);
        *ledger.closed.entry(self.side).or_default() += &stats;
    }
}

/// What there is in the process: those that are open, and the sums of those that are not.
struct Ledger {
    last: u64,
    open: BTreeMap<u64, OpenEntry>,
    closed: BTreeMap<ObjectSide, ObjectStats>,
}

struct OpenEntry {
    side: ObjectSide,
    name: Arc<str>,
    cells: Arc<Cells>,
}

static LEDGER: Mutex<Ledger> = Mutex::new(Ledger {
    last: 0,
    open: BTreeMap::new(),
    closed: BTreeMap::new(),
});

fn ledger() -> MutexGuard<'static, Ledger> {
    LEDGER.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Default)]
struct Cells {
    get: OperationCells,
    put: OperationCells,
    callbacks: HistogramCells,
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
    latency: HistogramCells,
}

impl Cells {
    fn operation(&self, operation: ObjectOperation) -> &OperationCells {
        match operation {
            ObjectOperation::Get => &self.get,
            ObjectOperation::Put => &self.put,
        }
    }

    fn stats(&self) -> ObjectStats {
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
