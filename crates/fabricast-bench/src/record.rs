//! The lines of a file of results: one object of JSON each, first the facts, then one for each
//! case. `benches/README.md` says what the keys mean.

use serde_json::{Value, json};

use crate::case::{Case, Operation};
use crate::facts::Node;
use crate::json::{number, raw, text};
use crate::pairs::Outcome;
use crate::report::{Setting, figures};
use crate::times::Times;

/// Of these lines.
const FORMAT: u32 = 1;

/// What is known of all cases before the first.
#[derive(Clone, Debug)]
pub struct Facts {
    /// When it began, as RFC 3339 writes it, in UTC.
    pub at: String,
    /// The command line.
    pub command: String,
    /// The client's machine, and the server's.
    pub nodes: [Node; 2],
    /// The libfabric provider of connections.
    pub provider: String,
    /// Both ends are processes of one machine.
    pub is_loopback: bool,
    /// How long each run is timed.
    pub seconds: f64,
    /// Pairs of runs for each case.
    pub pairs: usize,
    /// What differs between the ends, and what was skipped.
    pub notes: Vec<String>,
}

impl Facts {
    /// The line.
    pub fn line(&self) -> String {
        let nodes: Vec<_> = self.nodes.iter().map(|node| &node.value).collect();
        let value = json!({
            "kind": "facts",
            "format": FORMAT,
            "at": self.at,
            "command": self.command,
            "nodes": nodes,
            "provider": self.provider,
            "loopback": self.is_loopback,
            "seconds": self.seconds,
            "pairs": self.pairs,
            "notes": self.notes,
        });
        value.to_string()
    }
}

/// What a record says of a case beside what was measured.
#[derive(Clone, Debug)]
pub struct About {
    /// The operation, as on the command line.
    pub op: String,
    /// Pairs of processes at once.
    pub processes: u16,
    /// 2: both directions at once.
    pub directions: u8,
    /// `latency`: what is timed, in words.
    pub timed: Option<&'static str>,
    /// `latency`: the longest time that a thread which only reads the clock did not run, and how
    /// often it was more than 100 microseconds.
    pub gaps: Option<(f64, u64)>,
}

/// The line of a case that was measured.
pub fn case(setting: &Setting, case: &Case, about: &About, outcome: &Outcome) -> String {
    let mut line = begin(about, case);
    setting.keys(&mut line, &about.op, case, outcome);
    let mut runs = Vec::new();
    for pair in &outcome.runs {
        let mut run = "{".to_owned();
        for (prefix, found) in [("", &pair.ours), ("bare_", &pair.bare)] {
            if let Some(found) = found {
                figures(&mut run, prefix, found);
            }
        }
        run.push('}');
        runs.push(run);
    }
    raw(&mut line, "runs", &format!("[{}]", runs.join(",")));
    raw(&mut line, "percentiles", &percentiles(&outcome.ours.times));
    raw(
        &mut line,
        "bare_percentiles",
        &percentiles(&outcome.bare.times),
    );
    raw(&mut line, "skipped", "null");
    line.push('}');
    line
}

/// The line of a case that was not.
pub fn skipped(case: &Case, about: &About, why: &str) -> String {
    let mut line = begin(about, case);
    text(&mut line, "op", &about.op);
    text(&mut line, "provider", &case.provider);
    number(&mut line, "size_bytes", case.size as f64);
    number(&mut line, "depth", case.depth as f64);
    text(&mut line, "skipped", why);
    line.push('}');
    line
}

fn begin(about: &About, case: &Case) -> String {
    let mut line = "{".to_owned();
    text(&mut line, "kind", "case");
    let packs = case.pack > 0;
    number(
        &mut line,
        "pack",
        if packs { case.pack as f64 } else { f64::NAN },
    );
    number(&mut line, "pairs_of_processes", about.processes.into());
    number(&mut line, "directions", about.directions.into());
    let is_latency = case.operation == Operation::Latency;
    let rate = if is_latency {
        case.rate.into()
    } else {
        f64::NAN
    };
    number(&mut line, "rate_asked", rate);
    match about.timed {
        Some(timed) => text(&mut line, "timed", timed),
        None => raw(&mut line, "timed", "null"),
    }
    let (longest, many) = about.gaps.map_or((f64::NAN, f64::NAN), |(longest, many)| {
        (longest, many as f64)
    });
    number(&mut line, "gap_max_us", longest);
    number(&mut line, "gaps_over_100us", many);
    line
}

fn percentiles(times: &Times) -> String {
    let all = times.percentiles();
    let value = all.map_or(Value::Null, |all| {
        all.into_iter()
            .map(|(share, us)| json!([share, us]))
            .collect()
    });
    value.to_string()
}
