//! `Results`: a file of results, read line by line. Whoever has written it is not trusted.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use serde_json::{Map, Value};

use super::case::Case;
use super::facts::Facts;
use crate::failure::Failure;

/// Bytes of a line, at most.
const LINE_MAX: u64 = 1 << 20;
/// Cases of a file, at most.
const CASES_MAX: usize = 10_000;
/// Bytes of a file, at most.
const FILE_MAX: u64 = 256 << 20;
/// Different keys of all cases of a file, at most.
const KEYS_MAX: usize = 500;
/// Lines of a file, those of other kinds included, at most.
const LINES_MAX: usize = 100_000;

/// What a file says.
#[derive(Debug, Clone, Default)]
pub(crate) struct Results {
    pub(super) name: String,
    pub(super) facts: Facts,
    pub(super) cases: Vec<Case>,
}

/// Reads a file, or standard input.
///
/// # Errors
/// Which line is wrong, and why.
pub(super) fn read(path: &Path) -> Result<Results, Failure> {
    let name = path.display().to_string();
    if path.as_os_str() == "-" {
        return parse("standard input".to_owned(), io::stdin().lock());
    }
    let file = File::open(path).map_err(|error| Failure::os(&name, &error))?;
    parse(name, BufReader::new(file))
}

pub(super) fn parse(name: String, mut from: impl BufRead) -> Result<Results, Failure> {
    let mut lines = Lines::default();
    let mut bytes = 0;
    for number in 1.. {
        let at = |why: String| Failure::new(format!("{name}, line {number}: {why}"));
        let mut line = Vec::new();
        let read = from
            .by_ref()
            .take(LINE_MAX + 1)
            .read_until(b'\n', &mut line);
        if read.map_err(|error| Failure::os(&name, &error))? == 0 {
            break;
        }
        if line.len() as u64 > LINE_MAX {
            return Err(at(format!("it is longer than {LINE_MAX} bytes")));
        }
        bytes += line.len() as u64;
        if bytes > FILE_MAX {
            return Err(at(format!("the file is longer than {FILE_MAX} bytes")));
        }
        if number > LINES_MAX {
            return Err(at(format!("there are more than {LINES_MAX} lines")));
        }
        lines.add(number, &line).map_err(at)?;
    }
    let mut results = lines.results;
    if results.cases.is_empty() {
        let text = format!(
            "{name}: there is no case in it: give a file that fabricast bench --json has written"
        );
        return Err(Failure::new(text));
    }
    results.name = name;
    Ok(results)
}

/// The lines that were read.
#[derive(Debug, Default)]
struct Lines {
    results: Results,
    has_facts: bool,
    /// In which line each case is.
    seen: HashMap<(String, u64), usize>,
    keys: HashSet<String>,
}

impl Lines {
    fn add(&mut self, number: usize, line: &[u8]) -> Result<(), String> {
        if line.trim_ascii().is_empty() {
            return Ok(());
        }
        let value: Value = serde_json::from_slice(line).map_err(|error| {
            // It counts lines of what it is given, which is one.
            format!(
                "it is no JSON, from its byte {} on: {}",
                error.column(),
                problem(&error)
            )
        })?;
        let Value::Object(line) = value else {
            return Err("it is no object".to_owned());
        };
        match kind(&line)? {
            Kind::Facts if self.has_facts => Err(
                "a second line of facts: a file is of one run of the bench; put each into a file \
                 of its own"
                    .to_owned(),
            ),
            Kind::Facts => {
                self.has_facts = true;
                self.results.facts = Facts::of(&line)?;
                Ok(())
            }
            Kind::Case => self.add_case(number, &line),
            Kind::Other => Ok(()),
        }
    }

    fn add_case(&mut self, number: usize, line: &Map<String, Value>) -> Result<(), String> {
        let case = Case::of(line)?;
        if self.results.cases.len() == CASES_MAX {
            return Err(format!("there are more than {CASES_MAX} cases"));
        }
        for key in case.scalars.keys() {
            if !self.keys.contains(key) {
                self.keys.insert(key.clone());
            }
        }
        if self.keys.len() > KEYS_MAX {
            return Err(format!(
                "the cases have more than {KEYS_MAX} different keys"
            ));
        }
        let key = (case.part(), case.size.to_bits());
        if let Some(before) = self.seen.insert(key, number) {
            return Err(format!(
                "{} with {} bytes is in line {before}, too",
                case.part(),
                case.size
            ));
        }
        if !self.has_facts && self.results.cases.is_empty() {
            self.results.facts = Facts::of_case(line)?;
        }
        self.results.cases.push(case);
        Ok(())
    }
}

enum Kind {
    Facts,
    Case,
    Other,
}

fn kind(line: &Map<String, Value>) -> Result<Kind, String> {
    match line.get("kind") {
        Some(Value::String(kind)) => Ok(match kind.as_str() {
            "facts" => Kind::Facts,
            "case" => Kind::Case,
            _ => Kind::Other,
        }),
        // A line of the bench of the sources.
        None if line.contains_key("op") => Ok(Kind::Case),
        _ => Err("it has no \"kind\": it is no line of fabricast bench --json".to_owned()),
    }
}

/// What is wrong, without the place.
fn problem(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.split(" at line ")
        .next()
        .unwrap_or_default()
        .to_owned()
}

#[cfg(test)]
#[path = "tests/reading.rs"]
mod tests;
