//! `TelemetryReport`: statistics of several clients and servers, as text.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::stats::{FailureKind, label};
use super::{ObjectSide, ObjectStats, OperationStats, prometheus};
use crate::metrics::{self, WatchedStats};
use crate::object::ObjectOperation;

bitflags::bitflags! {
    /// Which groups of numbers are written.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct TelemetryGroups: u32 {
        /// How many transfers there were, and how many bytes they moved.
        const TRANSFERS = 1;
        /// How many failed, and why.
        const FAILURES = 2;
        /// How long they took.
        const LATENCY = 4;
        /// The application's callbacks.
        const CALLBACKS = 8;
        /// Memory that is lent: tokens, new keys, what is kept back.
        const LENDING = 16;
    }
}

impl Default for TelemetryGroups {
    fn default() -> Self {
        Self::all()
    }
}

/// One client or server of a report.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TelemetryEntry {
    /// Which of the two.
    pub side: ObjectSide,
    /// What it is called. Several may be called the same; empty for the sum of those that are
    /// closed.
    pub name: Arc<str>,
    /// Its number in the process, from 1; 0 for the sum of those that are closed.
    pub id: u64,
    /// What it counted.
    pub stats: ObjectStats,
}

/// Statistics of several clients and servers.
///
/// [`Display`](fmt::Display) writes them for people, and
/// [`write_prometheus`](Self::write_prometheus) for Prometheus.
///
/// ```
/// use fabricast::object::{TelemetryGroups, TelemetryReport};
///
/// let report = TelemetryReport::of_process();
/// println!("{report}");
///
/// let mut page = String::new();
/// report.write_prometheus(&mut page, TelemetryGroups::all())?;
/// assert!(page.contains("# TYPE fabricast_object_transfers_total counter\n"));
/// # Ok::<(), std::fmt::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TelemetryReport {
    pub(super) entries: Vec<TelemetryEntry>,
}

impl TelemetryReport {
    /// Of all that this process opened; those that were closed are added up.
    pub fn of_process() -> Self {
        let entries = metrics::snapshot().into_iter().filter_map(|entry| {
            let WatchedStats::Object(stats) = entry.stats else {
                return None;
            };
            Some(TelemetryEntry {
                side: ObjectSide::of_kind(entry.kind)?,
                name: entry.name,
                id: entry.id,
                stats: *stats,
            })
        });
        Self {
            entries: entries.collect(),
        }
    }

    /// Each of them: the sums of those that are closed, then the others in the order in which they
    /// were opened.
    pub fn entries(&self) -> &[TelemetryEntry] {
        &self.entries
    }

    /// Writes them for people, some lines each.
    ///
    /// # Errors
    /// What the writer answers.
    pub fn write_text(&self, out: &mut dyn fmt::Write, groups: TelemetryGroups) -> fmt::Result {
        for entry in &self.entries {
            write_entry(out, entry, groups)?;
        }
        Ok(())
    }

    /// Writes them in Prometheus' text format, version 0.0.4: what a scraper is answered with
    /// (`Content-Type: text/plain; version=0.0.4`). Each sample has the labels `side`, `name` and
    /// `id`.
    ///
    /// # Errors
    /// What the writer answers.
    pub fn write_prometheus(
        &self,
        out: &mut dyn fmt::Write,
        groups: TelemetryGroups,
    ) -> fmt::Result {
        prometheus::write(out, &self.entries, groups)
    }

    /// Writes them for people into a file, a socket or the like; buffered, and not flushed.
    ///
    /// # Errors
    /// What the writer answers.
    pub fn write_text_to(
        &self,
        out: &mut dyn io::Write,
        groups: TelemetryGroups,
    ) -> io::Result<()> {
        send(out, |text| self.write_text(text, groups))
    }

    /// Writes them in Prometheus' text format into a file, a socket or the like; not flushed.
    ///
    /// # Errors
    /// What the writer answers.
    pub fn write_prometheus_to(
        &self,
        out: &mut dyn io::Write,
        groups: TelemetryGroups,
    ) -> io::Result<()> {
        send(out, |text| self.write_prometheus(text, groups))
    }
}

/// All in one write, so that nobody sees half of it.
fn send(out: &mut dyn io::Write, write: impl FnOnce(&mut String) -> fmt::Result) -> io::Result<()> {
    let mut text = String::new();
    write(&mut text).map_err(io::Error::other)?;
    out.write_all(text.as_bytes())
}

impl fmt::Display for TelemetryReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_text(f, TelemetryGroups::all())
    }
}

fn write_entry(
    out: &mut dyn fmt::Write,
    entry: &TelemetryEntry,
    groups: TelemetryGroups,
) -> fmt::Result {
    match entry.id {
        0 => writeln!(out, "objects, closed {}s", entry.side)?,
        id => writeln!(out, "objects, {} {id} {:?}", entry.side, entry.name)?,
    }
    for operation in [ObjectOperation::Get, ObjectOperation::Put] {
        write_operation(out, operation, entry.stats.operation(operation), groups)?;
    }
    if groups.contains(TelemetryGroups::CALLBACKS) {
        let callbacks = &entry.stats.callbacks;
        let (count, failed) = (callbacks.latency.count(), callbacks.failed);
        write!(out, "  callbacks: {count}, {failed} failed")?;
        write_latency(out, &callbacks.latency)?;
        out.write_char('\n')?;
    }
    if groups.contains(TelemetryGroups::LENDING) {
        let its = &entry.stats.lending;
        writeln!(
            out,
            "  lent: {} tokens, {} new keys, kept back {} times, {} B kept back now",
            its.tokens, its.rekeyed, its.quarantines, its.quarantined_bytes
        )?;
    }
    Ok(())
}

fn write_operation(
    out: &mut dyn fmt::Write,
    operation: ObjectOperation,
    stats: &OperationStats,
    groups: TelemetryGroups,
) -> fmt::Result {
    let shown = TelemetryGroups::TRANSFERS | TelemetryGroups::FAILURES | TelemetryGroups::LATENCY;
    if !groups.intersects(shown) {
        return Ok(());
    }
    write!(out, "  {}:", label(operation))?;
    if groups.contains(TelemetryGroups::TRANSFERS) {
        write!(out, " {} done, {} B", stats.done, stats.bytes)?;
    }
    if groups.contains(TelemetryGroups::FAILURES) {
        write!(out, ", {} failed", stats.failed())?;
        let kinds = FailureKind::ALL.map(|kind| (kind, stats.failures(kind)));
        for (kind, count) in kinds.into_iter().filter(|(_, count)| *count > 0) {
            write!(out, ", {kind} {count}")?;
        }
    }
    if groups.contains(TelemetryGroups::LATENCY) {
        write_latency(out, &stats.latency)?;
    }
    out.write_char('\n')
}

fn write_latency(out: &mut dyn fmt::Write, latency: &super::Latencies) -> fmt::Result {
    let micros = |time: Option<Duration>| time.map_or(0.0, |time| time.as_nanos() as f64 / 1e3);
    if latency.count() == 0 {
        return Ok(());
    }
    let [p50, p99] = [0.5, 0.99].map(|share| micros(latency.quantile(share)));
    let max = micros(latency.max());
    write!(out, ", p50 {p50:.1} us, p99 {p99:.1} us, max {max:.1} us")
}
