//! `Json`: one object, written field by field.

use std::fmt::Write;

use crate::readout::histogram::{Histogram, PERCENTILES};

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

    pub(crate) fn latency(&mut self, latency: &Histogram) {
        for (name, share) in PERCENTILES {
            let us = latency.percentile_us(share).unwrap_or(f64::NAN);
            self.number(&format!("latency_us_{name}"), us);
        }
        self.number("latency_us_max", latency.max_us().unwrap_or(f64::NAN));
    }

    pub(crate) fn end(mut self) -> String {
        self.0.push('}');
        self.0
    }
}
