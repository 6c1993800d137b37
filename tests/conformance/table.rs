//! The table: what was shown on which row, and in words what was not.

use std::fmt::Write as _;

use fabricast::fabric::{EndpointKind, Evidence, PROVIDERS, Provider};

use crate::behaviours::BEHAVIOURS;

/// What a behaviour found out; a failure panics instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shown {
    /// The row does it.
    Works,
    /// The row can't do it, for this reason, which the table prints.
    Hole(&'static str),
}

const SECOND: &str = "failed, and worked when it was run once more: the log says how it failed";

/// What the table says about one behaviour on one row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cell {
    Shown(Shown),
    /// Failed, and then worked when it was run once more.
    Second,
    /// Fails for a reason of the provider's own, which is known.
    Known(&'static str),
    Failed,
    /// FABRICAST_CASE names others.
    NotAsked,
}

/// One row on one library, or a pair of libraries.
#[derive(Debug)]
pub(crate) struct Line {
    /// The provider, or the two.
    pub(crate) provider: String,
    pub(crate) version: String,
    /// What the row was on: a network interface or a card. Nothing, of a pair.
    pub(crate) device: String,
    /// One for each behaviour; or just one, of a pair.
    pub(crate) cells: Vec<Cell>,
}

impl Line {
    pub(crate) fn has_failed(&self) -> bool {
        self.cells.contains(&Cell::Failed)
    }
}

/// The reasons, each with the number that stands for it.
#[derive(Default)]
struct Reasons(Vec<&'static str>);

impl Reasons {
    fn number(&mut self, reason: &'static str) -> usize {
        let known = self.0.iter().position(|r| *r == reason);
        known.unwrap_or_else(|| {
            self.0.push(reason);
            self.0.len() - 1
        }) + 1
    }

    fn word(&mut self, cell: Cell) -> String {
        match cell {
            Cell::Shown(Shown::Works) => "ok".to_owned(),
            Cell::Shown(Shown::Hole(reason)) => format!("no({})", self.number(reason)),
            Cell::Second => format!("2nd({})", self.number(SECOND)),
            Cell::Known(reason) => format!("known({})", self.number(reason)),
            Cell::Failed => "FAILED".to_owned(),
            Cell::NotAsked => "-".to_owned(),
        }
    }
}

/// The whole table as text: a column for each row that was run, then the pairs, the reasons and the
/// rows that nobody ran.
pub(crate) fn table(lines: &[Line], pairs: &[Line]) -> String {
    let mut out = String::new();
    let mut reasons = Reasons::default();
    let words = |of: fn(&Line) -> &str| lines.iter().map(of).map(str::to_owned).collect();
    write_words(&mut out, "behaviour", words(|line| &line.provider), lines);
    write_words(&mut out, "", words(|line| &line.version), lines);
    for (i, (name, _)) in BEHAVIOURS.iter().enumerate() {
        let words = lines.iter().map(|line| reasons.word(line.cells[i]));
        write_words(&mut out, name, words.collect(), lines);
    }
    for pair in pairs {
        let word = reasons.word(pair.cells[0]);
        let _ = writeln!(out, "{} {}: {word}", pair.provider, pair.version);
    }
    for (i, reason) in reasons.0.iter().enumerate() {
        let _ = writeln!(out, "({}) {reason}", i + 1);
    }
    for row in PROVIDERS {
        describe_unrun(row, lines, &mut out);
    }
    out
}

/// A line of text: a word under each provider's name.
fn write_words(out: &mut String, first: &str, words: Vec<String>, lines: &[Line]) {
    let _ = write!(out, "{first:18}");
    for (word, line) in words.iter().zip(lines) {
        let _ = write!(out, " {word:<width$}", width = line.provider.len().max(9));
    }
    out.push('\n');
}

/// A row that no line is about, so that no hole is unexplained.
fn describe_unrun(row: &Provider, lines: &[Line], out: &mut String) {
    let is_its = |line: &&Line| line.provider.split('(').next() == Some(row.name);
    match row.evidence() {
        Evidence::Documented => {
            let _ = writeln!(
                out,
                "{:18} documented, untested: {}",
                row.name,
                consequences(row)
            );
        }
        Evidence::Tested if lines.iter().any(|line| is_its(&line)) => {}
        Evidence::Tested => {
            let _ = writeln!(out, "{:18} not on this machine, or not asked for", row.name);
        }
    }
}

/// What follows for its endpoints from what is documented.
fn consequences(row: &Provider) -> String {
    let kind = match row.endpoints[0] {
        EndpointKind::Msg => "connections of the provider's own (FI_EP_MSG)",
        EndpointKind::Rdm => "connections of ours over FI_EP_RDM",
    };
    let scope = match row.memory.endpoint_scope {
        true => "memory is registered for each endpoint",
        false => "memory is registered for the domain",
    };
    let wait = match row.queues.wait_fd {
        true => "a sleeper has a descriptor",
        false => "no descriptor: a sleeper looks each millisecond",
    };
    let close = match row.queues.reports_after_close {
        true => "reports what was in flight at a close",
        false => "what was in flight at a close is failed by us",
    };
    let segments = match row.iov_limit {
        1 => "1 segment a message".to_owned(),
        n => format!("{n} segments a message"),
    };
    let data = match row.queues.cq_data {
        8.. => "8 bytes of CQ data".to_owned(),
        n => format!("{n} bytes of CQ data, so no writes with immediate data"),
    };
    let contexts = if row.queues.context_cells {
        "; contexts are cells"
    } else {
        ""
    };
    let refused = row
        .refused
        .map_or_else(String::new, |why| format!("; refused: {why}"));
    format!("{kind}; {segments}; {data}; {scope}; {wait}; {close}{contexts}{refused}")
}
