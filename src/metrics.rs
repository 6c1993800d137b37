//! What everything in this process counts: endpoints, pools, rings, memory, files, streams, objects
//! and event loops, by name, in one registry.
//!
//! ```text
//!  endpoint ── counts in ──► cells (its own, written by its thread alone, read by any)
//!     │ owns                   ▲
//!  WatchedPlace ── entry ──► registry ── reads ──► snapshot ──► openmetrics_text, json, files
//!     │ dropped: the entry goes │
//!     └── what was counted ───► sums of what is gone, by kind
//! ```
//!
//! It is always on. What counts on a data path has cells of its own, which one thread writes with
//! loads and stores, without a lock or an instruction that locks the bus; whoever reads them reads
//! them as they are, and nobody waits for a reader. What several threads count together (files,
//! objects, refusals of pools) is counted by atomic additions. The registry has a lock, which is
//! taken where something is made and where it goes, and for the copying of a list of entries.
//!
//! An entry is there as long as what it is of: its owner holds a `WatchedPlace`. When that is
//! dropped, what was counted is added to the sum of its kind, and what was so at that moment
//! (connections, bytes in use) is forgotten; so the registry is as large as what lives. A child
//! that is forked has a registry of its own, which is empty.
//!
//! A thing is called what the application calls it (a setting `name`), or by its kind and a number:
//! `send-3`. What has the same kind and name is one series in the text.
//!
//! | what is wanted | |
//! |---|---|
//! | text for Prometheus, or whoever reads OpenMetrics 1.0 | [`openmetrics_text`] |
//! | the same, served at an address | `Exporter`, with the feature `exporter` |
//! | the same, in a file that is always whole | [`MetricsFile`] |
//! | JSON | [`json`](fn@json) |
//! | numbers | [`snapshot`] |
//! | which metrics there are | [`all`], docs/guide/metrics.md |
//!
//! ```
//! use fabricast::buffer::SharedBufferManager;
//! use fabricast::metrics;
//!
//! let pool = SharedBufferManager::allocate(8, 4096)?;
//! pool.set_name("events");
//! let text = metrics::openmetrics_text();
//! assert!(text.contains("fabricast_pool_free{kind=\"pool\",name=\"events\"} 8\n"));
//! assert!(text.ends_with("# EOF\n"));
//! # Ok::<(), fabricast::memory::MemoryError>(())
//! ```

pub(crate) mod cell;
#[cfg(feature = "exporter")]
mod exporter;
mod family;
pub(crate) mod file;
mod json;
pub(crate) mod latencies;
pub(crate) mod periodic;
pub(crate) mod registry;
pub(crate) mod stats;
mod text;

#[cfg(all(test, not(loom)))]
mod tests;

use std::fmt;

#[cfg(feature = "exporter")]
pub use exporter::{Exporter, exporter_of};
pub use family::{Metric, MetricType, all};
pub use file::MetricsFile;
pub use latencies::Latencies;
pub use stats::{
    EndpointStats, PoolStats, RegionStats, RingStats, StreamStats, WatchedEntry, WatchedKind,
    WatchedStats,
};

/// What the text of [`openmetrics_text`] is, for whoever serves it.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Everything: the process, the sums of what is gone, and what lives, in the order in which it was
/// made. Numbers that change meanwhile may be of different moments.
pub fn snapshot() -> Vec<WatchedEntry> {
    let process = WatchedEntry {
        kind: WatchedKind::Process,
        name: "process".into(),
        id: 0,
        stats: WatchedStats::Process(crate::stats::process()),
    };
    let mut entries = vec![process];
    entries.extend(registry::snapshot());
    entries
}

/// Everything as text of OpenMetrics 1.0, whose type is [`CONTENT_TYPE`].
pub fn openmetrics_text() -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = write_openmetrics(&mut text);
    text
}

/// Writes what [`openmetrics_text`] gives.
///
/// # Errors
/// What the writer answers.
pub fn write_openmetrics(out: &mut dyn fmt::Write) -> fmt::Result {
    text::write(out, &snapshot())
}

/// Everything as JSON: `{"version": "…", "entries": [{"kind", "name", "id", "metrics"}]}`, where
/// `metrics` has each metric by its name: a number; of a metric with labels a list of objects, each
/// with its labels and a `value`; of a histogram `count`, `sum`, quantiles and `max`, in seconds.
pub fn json() -> String {
    json::write(&snapshot())
}
