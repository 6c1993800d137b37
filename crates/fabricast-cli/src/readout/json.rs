//! `Json`: one object, written field by field.

use std::fmt::Write;
use std::time::Duration;

use fabricast::metrics::Latencies;

/// The shares of latencies that are reported, by name.
pub(crate) const PERCENTILES: [(&str, f64); 4] =
    [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p999", 0.999)];

/// In microseconds.
pub(crate) fn micros(time: Option<Duration>) -> Option<f64> {
    time.map(|time| time.as_nanos() as f64 / 1e3)
}

/// A JSON object that is being written.
pub(crate) struct Json(String);

impl Json {
    pub(crate) fn new() -> Self {
        Self("{".to_owned())
    }

    pub(crate) fn raw(&mut self, name: &str, value: &str) {
        if self.0.len() > 1 {
            self.0.push(',');
        }
        let _ = write!(self.0, "\"{name}\":{value}");
    }

    pub(crate) fn count(&mut self, name: &str, value: u64) {
        self.raw(name, &value.to_string());
    }

    /// What was not measured is null: JSON has no NaN.
    pub(crate) fn number(&mut self, name: &str, value: f64) {
        let text = if value.is_finite() {
            value.to_string()
        } else {
            "null".to_owned()
        };
        self.raw(name, &text);
    }

    pub(crate) fn text(&mut self, name: &str, value: &str) {
        let mut quoted = String::from("\"");
        for c in value.chars() {
            match c {
                '"' | '\\' => quoted.extend(['\\', c]),
                c if c.is_control() => {}
                c => quoted.push(c),
            }
        }
        quoted.push('"');
        self.raw(name, &quoted);
    }

    pub(crate) fn latency(&mut self, latency: &Latencies) {
        for (name, share) in PERCENTILES {
            let us = micros(latency.quantile(share)).unwrap_or(f64::NAN);
            self.number(&format!("latency_us_{name}"), us);
        }
        self.number("latency_us_max", micros(latency.max()).unwrap_or(f64::NAN));
    }

    pub(crate) fn end(mut self) -> String {
        self.0.push('}');
        self.0
    }
}
