//! The registry as JSON: an object for each entry.

use serde_json::{Map, Value as Json, json};

use super::family::{EachTable, Metric, Row, Value, each_table};
use super::latencies::Latencies;
use super::stats::{WatchedEntry, WatchedStats};

/// All entries.
pub(super) fn write(entries: &[WatchedEntry]) -> String {
    let entries = entries.iter().map(|entry| {
        let mut metrics = Metrics {
            of: &entry.stats,
            found: Map::new(),
        };
        each_table(&mut metrics);
        json!({
            "kind": entry.kind.to_string(),
            "name": &*entry.name,
            "id": entry.id,
            "metrics": metrics.found,
        })
    });
    let entries: Vec<_> = entries.collect();
    json!({ "version": env!("CARGO_PKG_VERSION"), "entries": entries }).to_string()
}

struct Metrics<'a> {
    of: &'a WatchedStats,
    found: Map<String, Json>,
}

impl EachTable for Metrics<'_> {
    fn table<T>(&mut self, rows: &'static [Row<T>], of: fn(&WatchedStats) -> Option<&T>) {
        let Some(stats) = of(self.of) else {
            return;
        };
        for row in rows {
            let mut values = Vec::new();
            row.tell(stats, &mut |labels, value| {
                values.push(labelled(&row.metric, labels, &value));
            });
            let value = match (row.metric.labels, values.as_slice()) {
                ([], [only]) => only["value"].clone(),
                _ => values.into(),
            };
            self.found.insert(row.metric.name.to_owned(), value);
        }
    }
}

/// A value, beside its labels.
fn labelled(metric: &Metric, labels: &[&str], value: &Value<'_>) -> Json {
    let value = match value {
        Value::Count(value) => json!(value),
        Value::Time(time) => json!(time.as_secs_f64()),
        Value::Latencies(latencies) => latencies_json(latencies),
    };
    let labels = metric.labels.iter().zip(labels);
    let labels = labels.map(|(name, value)| ((*name).to_owned(), json!(value)));
    let mut object: Map<String, Json> = labels.collect();
    object.insert("value".to_owned(), value);
    object.into()
}

fn latencies_json(latencies: &Latencies) -> Json {
    let seconds = |share| latencies.quantile(share).map(|it| it.as_secs_f64());
    json!({
        "count": latencies.count(),
        "sum": latencies.total().as_secs_f64(),
        "p50": seconds(0.5),
        "p90": seconds(0.9),
        "p99": seconds(0.99),
        "p999": seconds(0.999),
        "max": latencies.max().map(|it| it.as_secs_f64()),
    })
}
