//! What is printed: one JSON object a line and case, or a table.

use crate::case::{Case, Operation};
use crate::client::Figures;
use crate::error::Failure;
use crate::json::{number, text};
use crate::pairs::Outcome;
use crate::stats::DECIDED;
use crate::{host, ours};

/// What all cases of a call have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The provider, as it calls itself.
    pub provider: String,
    /// The version of libfabric.
    pub libfabric: String,
    /// None where there is no TCP.
    pub congestion: Option<String>,
    /// What the library makes of the provider.
    pub shape: String,
    /// Which way payloads take: `host`, or of a GPU's memory `staged` or `direct`.
    pub path: String,
    /// Whether lines of JSON are printed.
    pub json: bool,
    /// Connections of the bare ping-pong.
    pub bare_connections: u8,
}

impl Setting {
    /// That of a case on this machine.
    ///
    /// # Errors
    /// When its provider can't be opened here.
    pub fn of(case: &Case, json: bool) -> Result<Self, Failure> {
        let (provider, libfabric, shape) = ours::describe(case)?;
        Ok(Self {
            congestion: host::congestion_over(&provider),
            provider,
            libfabric,
            shape,
            path: "host".to_owned(),
            json,
            bare_connections: case.bare_connections,
        })
    }

    /// The line above the table.
    pub fn print_head(&self, pinned: bool) {
        if self.json {
            return;
        }
        println!(
            "{}, libfabric {}{}, shape {}, path host, {}; bare ping-pong over {} connection(s)",
            self.provider,
            self.libfabric,
            match &self.congestion {
                Some(congestion) => format!(", congestion control {congestion}"),
                None => String::new(),
            },
            self.shape,
            if pinned {
                "client on core 0, server on core 1"
            } else {
                "not pinned"
            },
            self.bare_connections,
        );
        println!(
            "{:9} {:>9} {:>5}  {:>21}  {:>21}  {:>16} {:>19}  ratio to bare [95 %]",
            "op",
            "bytes",
            "depth",
            "GB/s (bare)",
            "messages/s (bare)",
            "p50 us (bare)",
            "cpu s/GB (bare)"
        );
    }

    /// A line of the table, or of JSON.
    pub fn print(&self, case: &Case, outcome: &Outcome) {
        if self.json {
            println!("{}", self.json_line(case, outcome));
            return;
        }
        let Outcome {
            ours,
            bare,
            ratio,
            ratio_lo,
            ratio_hi,
            pairs,
            to_send,
            to_single,
            paused,
            to_paused,
            runs: _,
        } = outcome;
        let pair = |ours: f64, bare: f64, digits: usize| {
            if ours.is_nan() && bare.is_nan() {
                "-".to_owned()
            } else {
                format!("{ours:.digits$} ({bare:.digits$})")
            }
        };
        println!(
            "{:9} {:>9} {:>5}  {:>21}  {:>21}  {:>16} {:>19}  {ratio:.3} [{ratio_lo:.3}, \
             {ratio_hi:.3}] of {pairs} pairs{}",
            case.operation.name(),
            case.size,
            case.depth,
            pair(ours.gb_per_s, bare.gb_per_s, 3),
            pair(ours.msgs_per_s, bare.msgs_per_s, 0),
            pair(ours.p50_us, bare.p50_us, 2),
            pair(ours.cpu_s_per_gb, bare.cpu_s_per_gb, 3),
            if ratio_hi - ratio_lo > DECIDED {
                ": not decided"
            } else {
                ""
            },
        );
        if case.has_pause() {
            println!(
                "{:9} bare loop with {} us between reads: {:.3} GB/s, {:.0} messages/s, {:.3} cpu \
                 s/GB, {:.3} of bare; ours is {:.3} [{:.3}, {:.3}] of it",
                "",
                case.bare_pause_us,
                paused.gb_per_s,
                paused.msgs_per_s,
                paused.cpu_s_per_gb,
                paused.gb_per_s / bare.gb_per_s,
                to_paused.median,
                to_paused.low,
                to_paused.high,
            );
        }
        if case.operation == Operation::Publish {
            println!(
                "{:9} to {} subscribers; counted is what arrives at all of them",
                "", case.subscribers
            );
        }
        if case.operation == Operation::Coalesced {
            println!(
                "{:9} buffers of {} bytes: {:.3} [{:.3}, {:.3}] of the byte rate of send at that \
                 size, {:.0} [{:.0}, {:.0}] times the rate of bare single messages; a lone message \
                 leaves in {:.0} us (p50), {:.0} us (p99), flush interval {} us",
                "",
                case.buffer,
                to_send.median,
                to_send.low,
                to_send.high,
                to_single.median,
                to_single.low,
                to_single.high,
                ours.p50_us,
                ours.p99_us,
                case.flush_us,
            );
        }
    }

    fn json_line(&self, case: &Case, outcome: &Outcome) -> String {
        let mut line = String::from("{");
        self.keys(&mut line, case.operation.name(), case, outcome);
        line.push('}');
        line
    }

    /// The keys of a case, for a line of JSON.
    pub(crate) fn keys(&self, line: &mut String, op: &str, case: &Case, outcome: &Outcome) {
        text(line, "op", op);
        text(line, "provider", &self.provider);
        text(line, "libfabric", &self.libfabric);
        let congestion = self.congestion.as_deref();
        text(line, "congestion", congestion.unwrap_or("none"));
        text(line, "shape", &self.shape);
        text(line, "path", &self.path);
        number(line, "size_bytes", case.size as f64);
        number(line, "depth", case.depth as f64);
        figures(line, "", &outcome.ours);
        figures(line, "bare_", &outcome.bare);
        number(line, "pairs", outcome.pairs as f64);
        number(line, "ratio", outcome.ratio);
        number(line, "ratio_lo", outcome.ratio_lo);
        number(line, "ratio_hi", outcome.ratio_hi);
        coalesced(line, case, outcome);
        if case.has_pause() {
            number(line, "bare_pause_us", case.bare_pause_us as f64);
            figures(line, "paused_", &outcome.paused);
            number(line, "paused_ratio", outcome.to_paused.median);
            number(line, "paused_ratio_lo", outcome.to_paused.low);
            number(line, "paused_ratio_hi", outcome.to_paused.high);
        }
    }
}

/// `null` for the other operations.
fn coalesced(line: &mut String, case: &Case, outcome: &Outcome) {
    let only_of = |operation, value: usize| match case.operation == operation {
        true => value as f64,
        false => f64::NAN,
    };
    let only = |value| only_of(Operation::Coalesced, value);
    let subscribers = only_of(Operation::Publish, case.subscribers.into());
    number(line, "subscribers", subscribers);
    number(line, "buffer_bytes", only(case.buffer));
    number(line, "flush_us", only(case.flush_us as usize));
    for (name, ratio) in [("send", outcome.to_send), ("single", outcome.to_single)] {
        number(line, &format!("{name}_ratio"), ratio.median);
        number(line, &format!("{name}_ratio_lo"), ratio.low);
        number(line, &format!("{name}_ratio_hi"), ratio.high);
    }
}

pub(crate) fn figures(line: &mut String, prefix: &str, figures: &Figures) {
    let fields = [
        ("gb_per_s", figures.gb_per_s),
        ("msgs_per_s", figures.msgs_per_s),
        ("messages", figures.messages),
        ("p50_us", figures.p50_us),
        ("p99_us", figures.p99_us),
        ("p999_us", figures.p999_us),
        ("cpu_s_per_gb", figures.cpu_s_per_gb),
    ];
    for (key, value) in fields {
        number(line, &format!("{prefix}{key}"), value);
    }
}
