//! All figures as CSV, for other programs.

use std::collections::BTreeSet;

use serde_json::Value;

use super::reading::Results;

/// The columns that come before the others.
const FIRST: [&str; 3] = ["op", "size_bytes", "depth"];

/// A row for each case, the facts in lines that begin with `#`. Of two files, the first column says
/// which.
pub(super) fn table(all: &[Results]) -> String {
    let cases = all.iter().flat_map(|results| &results.cases);
    let keys: BTreeSet<&str> = cases
        .flat_map(|case| case.scalars.keys().map(String::as_str))
        .collect();
    let first = FIRST.into_iter().filter(|key| keys.contains(key));
    let others = keys
        .iter()
        .copied()
        .filter(|key| !FIRST.contains(key) && *key != "kind");
    let columns: Vec<&str> = first.chain(others).collect();
    let mut text = String::new();
    for results in all {
        text += &comment(&format!("file: {}", results.name));
        let facts = &results.facts;
        for (name, value) in [("at", &facts.at), ("command", &facts.command)] {
            if let Some(value) = value {
                text += &comment(&format!("{name}: {value}"));
            }
        }
        for (name, value) in &facts.common {
            text += &comment(&format!("{name}: {value}"));
        }
        for (role, about) in &facts.nodes {
            for (name, value) in about {
                text += &comment(&format!("{role} {name}: {value}"));
            }
        }
        for note in &facts.notes {
            text += &comment(&format!("note: {note}"));
        }
    }
    let is_one = all.len() == 1;
    let first = if is_one {
        None
    } else {
        Some("file".to_owned())
    };
    let head = columns.iter().map(|key| quoted(key));
    text += &row(first.into_iter().chain(head));
    for results in all {
        let first = if is_one {
            None
        } else {
            Some(quoted(&results.name))
        };
        for case in &results.cases {
            let cells = columns.iter().map(|key| match case.scalars.get(*key) {
                None | Some(Value::Null) => String::new(),
                Some(Value::String(text)) => quoted(text),
                Some(other) => other.to_string(),
            });
            text += &row(first.clone().into_iter().chain(cells));
        }
    }
    text
}

fn comment(text: &str) -> String {
    let line: String = text
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    format!("# {line}\n")
}

fn row(cells: impl Iterator<Item = String>) -> String {
    let cells: Vec<_> = cells.collect();
    format!("{}\n", cells.join(","))
}

fn quoted(text: &str) -> String {
    match text.contains([',', '"', '\n', '\r']) || text.starts_with('#') {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_owned(),
    }
}
