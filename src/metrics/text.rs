//! The registry as text of OpenMetrics 1.0: all samples of a metric together, behind what it is.

use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::sync::Arc;

use super::cell::Totals;
use super::family::{EachTable, Metric, MetricType, Row, Value, each_table};
use super::latencies::Latencies;
use super::stats::{WatchedEntry, WatchedKind, WatchedStats};

/// The bounds of latencies that are told: below 2 to the power of each, in nanoseconds. From 1 us
/// to 69 s; the histogram is exact at each of them.
const BOUNDS: std::ops::RangeInclusive<u32> = 10..=36;

/// What the sums of those that are gone are called in the text.
const CLOSED: &str = "(closed)";

/// Writes all of it. What has the same kind and the same name is added up: two samples with the
/// same labels would be no text of OpenMetrics.
pub(super) fn write(out: &mut dyn Write, entries: &[WatchedEntry]) -> fmt::Result {
    let mut sums: BTreeMap<(u8, WatchedKind, Arc<str>), WatchedStats> = BTreeMap::new();
    for entry in entries {
        let name = match entry.id {
            0 if entry.kind != WatchedKind::Process => CLOSED.into(),
            _ => Arc::clone(&entry.name),
        };
        let key = (entry.stats.page(), entry.kind, name);
        match sums.get_mut(&key) {
            Some(sum) => sum.add(&entry.stats),
            None => {
                sums.insert(key, entry.stats.clone());
            }
        }
    }
    let mut page = Page {
        out,
        sums: &sums,
        result: Ok(()),
    };
    page.result = page.info();
    each_table(&mut page);
    page.result?;
    out.write_str("# EOF\n")
}

struct Page<'a> {
    out: &'a mut dyn Write,
    sums: &'a BTreeMap<(u8, WatchedKind, Arc<str>), WatchedStats>,
    result: fmt::Result,
}

impl EachTable for Page<'_> {
    fn table<T>(&mut self, rows: &'static [Row<T>], of: fn(&WatchedStats) -> Option<&T>) {
        for row in rows {
            if self.result.is_ok() {
                self.result = self.metric(row, of);
            }
        }
    }
}

impl Page<'_> {
    fn info(&mut self) -> fmt::Result {
        let version = env!("CARGO_PKG_VERSION");
        writeln!(self.out, "# TYPE fabricast_build info")?;
        writeln!(self.out, "# HELP fabricast_build The library.")?;
        writeln!(self.out, "fabricast_build_info{{version=\"{version}\"}} 1")
    }

    fn metric<T>(
        &mut self,
        row: &'static Row<T>,
        of: fn(&WatchedStats) -> Option<&T>,
    ) -> fmt::Result {
        let metric = &row.metric;
        let (name, kind) = (metric.name, metric.kind.label());
        writeln!(self.out, "# TYPE {name} {kind}")?;
        if let Some(unit) = metric.unit() {
            writeln!(self.out, "# UNIT {name} {unit}")?;
        }
        writeln!(self.out, "# HELP {name} {}", metric.help)?;
        for ((_, kind, called), stats) in self.sums {
            let Some(stats) = of(stats) else {
                continue;
            };
            let mut result = Ok(());
            row.tell(stats, &mut |labels, value| {
                if result.is_ok() {
                    let labels = Labels {
                        kind: *kind,
                        name: called,
                        more: (metric.labels, labels),
                    };
                    result = sample(self.out, metric, &labels, &value);
                }
            });
            result?;
        }
        Ok(())
    }
}

fn sample(
    out: &mut dyn Write,
    metric: &Metric,
    labels: &Labels<'_>,
    value: &Value<'_>,
) -> fmt::Result {
    let name = metric.name;
    let suffix = match metric.kind {
        MetricType::Counter => "_total",
        _ => "",
    };
    match value {
        Value::Count(value) => writeln!(out, "{name}{suffix}{{{labels}}} {value}"),
        Value::Time(time) => {
            writeln!(
                out,
                "{name}{suffix}{{{labels}}} {}",
                Seconds(time.as_nanos())
            )
        }
        Value::Latencies(latencies) => histogram(out, name, labels, latencies),
    }
}

fn histogram(
    out: &mut dyn Write,
    name: &str,
    labels: &Labels<'_>,
    latencies: &Latencies,
) -> fmt::Result {
    for bits in BOUNDS {
        // "Less or equal" there: the last whole nanosecond below the bound.
        let (le, below) = (Seconds((1 << bits) - 1), latencies.below(bits));
        writeln!(out, "{name}_bucket{{{labels},le=\"{le}\"}} {below}")?;
    }
    let (count, sum) = (latencies.count(), Seconds(latencies.total().as_nanos()));
    writeln!(out, "{name}_bucket{{{labels},le=\"+Inf\"}} {count}")?;
    writeln!(out, "{name}_count{{{labels}}} {count}")?;
    writeln!(out, "{name}_sum{{{labels}}} {sum}")
}

/// The labels of a sample, without the braces.
struct Labels<'a> {
    kind: WatchedKind,
    name: &'a str,
    /// Names and values.
    more: (&'a [&'a str], &'a [&'a str]),
}

impl fmt::Display for Labels<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "kind=\"{}\",name=\"", self.kind)?;
        for c in self.name.chars() {
            match c {
                '\\' => f.write_str("\\\\")?,
                '"' => f.write_str("\\\"")?,
                '\n' => f.write_str("\\n")?,
                c => f.write_char(c)?,
            }
        }
        f.write_char('"')?;
        let (names, values) = self.more;
        for (name, value) in names.iter().zip(values) {
            write!(f, ",{name}=\"{value}\"")?;
        }
        Ok(())
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
