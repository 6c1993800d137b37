//! Where records go: lines of JSON as they come, CSV and a page of charts at the end.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use super::args::BenchArgs;
use super::report;
use crate::failure::{End, Failure};
use crate::say::say;

/// What was asked for.
pub(super) struct Output {
    json: Option<(PathBuf, Option<File>)>,
    csv: Option<PathBuf>,
    html: Option<PathBuf>,
    /// All lines so far.
    records: Vec<String>,
}

impl Output {
    /// Opens the files, so that what can't be written is known before anything is measured.
    pub(super) fn open(args: &BenchArgs) -> Result<Self, Failure> {
        let json = match &args.json {
            Some(path) if path.as_os_str() == "-" => Some((path.clone(), None)),
            Some(path) => Some((path.clone(), Some(create(path)?))),
            None => None,
        };
        for path in [&args.csv, &args.html].into_iter().flatten() {
            create(path)?;
        }
        Ok(Self {
            json,
            csv: args.csv.clone(),
            html: args.html.clone(),
            records: Vec::new(),
        })
    }

    /// Whether the terminal is for the table.
    pub(super) fn has_table(&self) -> bool {
        !matches!(&self.json, Some((_, None)))
    }

    /// One more line.
    pub(super) fn put(&mut self, line: String) -> Result<(), Failure> {
        match &mut self.json {
            Some((path, Some(file))) => {
                writeln!(file, "{line}")
                    .map_err(|error| Failure::file(path, &error).ends(End::Sink))?;
            }
            Some((_, None)) => say(&line),
            None => {}
        }
        self.records.push(line);
        Ok(())
    }

    /// All is measured: what is made of all records together.
    pub(super) fn close(self) -> Result<(), Failure> {
        if self.records.is_empty() {
            return Ok(());
        }
        let lines: String = self
            .records
            .iter()
            .flat_map(|line| [line.as_str(), "\n"])
            .collect();
        if let Some(path) = &self.csv {
            write(path, &report::csv(&lines)?)?;
        }
        if let Some(path) = &self.html {
            write(path, &report::html(&lines)?)?;
        }
        Ok(())
    }
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    let written = create(path)?.write_all(text.as_bytes());
    written.map_err(|error| Failure::file(path, &error).ends(End::Sink))
}

fn create(path: &Path) -> Result<File, Failure> {
    File::create(path).map_err(|error| Failure::file(path, &error).ends(End::Sink))
}
