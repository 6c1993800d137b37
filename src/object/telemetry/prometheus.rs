//! Statistics in Prometheus' text format: all samples of a metric together, behind what it is.

use std::fmt;

use super::stats::label;
use super::{FailureKind, Latencies, OperationStats, TelemetryEntry, TelemetryGroups};
use crate::object::ObjectOperation;

/// The bounds of latencies that are told: below 2 to the power of each, in nanoseconds. From 1 us
/// to 69 s; the histogram is exact at each of them.
const BOUNDS: std::ops::RangeInclusive<u32> = 10..=36;

const OPERATIONS: [ObjectOperation; 2] = [ObjectOperation::Get, ObjectOperation::Put];

/// A counter or a gauge of which each client or server has one.
type PlainMetric = (
    &'static str,
    &'static str,
    &'static str,
    fn(&TelemetryEntry) -> u64,
);

const CALLBACKS: [PlainMetric; 1] = [(
    "callback_failures_total",
    "counter",
    "Calls of the application that returned an error.",
    |entry| entry.stats.callbacks.failed,
)];

const LENDING: [PlainMetric; 4] = [
    (
        "tokens_total",
        "counter",
        "Tokens that were given out.",
        |entry| entry.stats.lending.tokens,
    ),
    (
        "rekeys_total",
        "counter",
        "Times that memory got a new key.",
        |entry| entry.stats.lending.rekeyed,
    ),
    (
        "quarantines_total",
        "counter",
        "Times that memory was kept back, since something late might still have reached it.",
        |entry| entry.stats.lending.quarantines,
    ),
    (
        "quarantined_bytes",
        "gauge",
        "Bytes that are kept back now.",
        |entry| entry.stats.lending.quarantined_bytes,
    ),
];

pub(super) fn write(
    out: &mut dyn fmt::Write,
    entries: &[TelemetryEntry],
    groups: TelemetryGroups,
) -> fmt::Result {
    let mut page = Page { out, entries };
    if groups.contains(TelemetryGroups::TRANSFERS) {
        let help = "Transfers that are over, those that failed too.";
        page.operations("transfers_total", help, OperationStats::transfers)?;
        let help = "Bytes that were moved, by transfers that failed too.";
        page.operations("bytes_total", help, |stats| stats.bytes)?;
    }
    if groups.contains(TelemetryGroups::FAILURES) {
        page.failures()?;
    }
    if groups.contains(TelemetryGroups::LATENCY) {
        page.latencies()?;
    }
    if groups.contains(TelemetryGroups::CALLBACKS) {
        page.plain(&CALLBACKS)?;
        page.callbacks()?;
    }
    if groups.contains(TelemetryGroups::LENDING) {
        page.plain(&LENDING)?;
    }
    Ok(())
}

struct Page<'a> {
    out: &'a mut dyn fmt::Write,
    entries: &'a [TelemetryEntry],
}

impl Page<'_> {
    fn head(&mut self, metric: &str, kind: &str, help: &str) -> fmt::Result {
        writeln!(self.out, "# HELP fabricast_object_{metric} {help}")?;
        writeln!(self.out, "# TYPE fabricast_object_{metric} {kind}")
    }

    fn plain(&mut self, metrics: &[PlainMetric]) -> fmt::Result {
        for (metric, kind, help, value) in metrics {
            self.head(metric, kind, help)?;
            for entry in self.entries {
                let (labels, value) = (Labels::of(entry), value(entry));
                writeln!(self.out, "fabricast_object_{metric}{{{labels}}} {value}")?;
            }
        }
        Ok(())
    }

    fn operations(
        &mut self,
        metric: &str,
        help: &str,
        value: fn(&OperationStats) -> u64,
    ) -> fmt::Result {
        self.head(metric, "counter", help)?;
        for entry in self.entries {
            for operation in OPERATIONS {
                let labels = Labels::of(entry).with(operation);
                let value = value(entry.stats.operation(operation));
                writeln!(self.out, "fabricast_object_{metric}{{{labels}}} {value}")?;
            }
        }
        Ok(())
    }

    fn failures(&mut self) -> fmt::Result {
        let metric = "failures_total";
        self.head(metric, "counter", "Transfers that failed, by reason.")?;
        for entry in self.entries {
            for operation in OPERATIONS {
                let labels = Labels::of(entry).with(operation);
                for kind in FailureKind::ALL {
                    let value = entry.stats.operation(operation).failures(kind);
                    writeln!(
                        self.out,
                        "fabricast_object_{metric}{{{labels},kind=\"{kind}\"}} {value}"
                    )?;
                }
            }
        }
        Ok(())
    }

    fn latencies(&mut self) -> fmt::Result {
        let metric = "transfer_seconds";
        let help = "How long transfers took, those that failed too.";
        self.head(metric, "histogram", help)?;
        for entry in self.entries {
            for operation in OPERATIONS {
                let labels = Labels::of(entry).with(operation);
                let latency = &entry.stats.operation(operation).latency;
                self.histogram(metric, labels, latency)?;
            }
        }
        Ok(())
    }

    fn callbacks(&mut self) -> fmt::Result {
        let metric = "callback_seconds";
        let help = "How long calls of the application took.";
        self.head(metric, "histogram", help)?;
        for entry in self.entries {
            self.histogram(metric, Labels::of(entry), &entry.stats.callbacks.latency)?;
        }
        Ok(())
    }

    fn histogram(&mut self, metric: &str, labels: Labels<'_>, latency: &Latencies) -> fmt::Result {
        let (out, count) = (&mut *self.out, latency.count());
        for bits in BOUNDS {
            // "Less or equal" in Prometheus: the last whole nanosecond below the bound.
            let (le, below) = (Seconds((1 << bits) - 1), latency.below(bits));
            writeln!(
                out,
                "fabricast_object_{metric}_bucket{{{labels},le=\"{le}\"}} {below}"
            )?;
        }
        writeln!(
            out,
            "fabricast_object_{metric}_bucket{{{labels},le=\"+Inf\"}} {count}"
        )?;
        let sum = Seconds(latency.total().as_nanos());
        writeln!(out, "fabricast_object_{metric}_sum{{{labels}}} {sum}")?;
        writeln!(out, "fabricast_object_{metric}_count{{{labels}}} {count}")
    }
}

/// The labels of a sample, without the braces.
#[derive(Clone, Copy)]
struct Labels<'a> {
    entry: &'a TelemetryEntry,
    operation: Option<ObjectOperation>,
}

impl<'a> Labels<'a> {
    fn of(entry: &'a TelemetryEntry) -> Self {
        Self {
            entry,
            operation: None,
        }
    }

    fn with(self, operation: ObjectOperation) -> Self {
        let operation = Some(operation);
        Self { operation, ..self }
    }
}

impl fmt::Display for Labels<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TelemetryEntry { side, name, id, .. } = self.entry;
        write!(f, "side=\"{side}\",name=\"")?;
        for c in name.chars() {
            match c {
                '\\' => f.write_str("\\\\")?,
                '"' => f.write_str("\\\"")?,
                '\n' => f.write_str("\\n")?,
                c => fmt::Write::write_char(f, c)?,
            }
        }
        write!(f, "\",id=\"{id}\"")?;
        match self.operation {
            Some(operation) => write!(f, ",operation=\"{}\"", label(operation)),
            None => Ok(()),
        }
    }
}

/// Nanoseconds, as seconds with all of their digits.
struct Seconds(u128);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, rest) = (self.0 / 1_000_000_000, self.0 % 1_000_000_000);
        write!(f, "{whole}.{rest:09}")
    }
}
