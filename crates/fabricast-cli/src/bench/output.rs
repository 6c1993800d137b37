//! Where records go: lines of JSON as they come, and CSV at the end.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::args::BenchArgs;
use crate::failure::{End, Failure};
use crate::say::say;

/// What was asked for.
pub(super) struct Output {
    json: Option<(PathBuf, Option<File>)>,
    csv: Option<PathBuf>,
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
        if let Some(path) = &args.csv {
            create(path)?;
        }
        Ok(Self {
            json,
            csv: args.csv.clone(),
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

    /// All is measured. Who draws pictures of it gets the records here.
    pub(super) fn close(self) -> Result<(), Failure> {
        let Some(path) = &self.csv else {
            return Ok(());
        };
        let mut file = BufWriter::new(create(path)?);
        let written = file
            .write_all(csv(&self.records).as_bytes())
            .and_then(|()| file.flush());
        written.map_err(|error| Failure::file(path, &error).ends(End::Sink))
    }
}

fn create(path: &Path) -> Result<File, Failure> {
    File::create(path).map_err(|error| Failure::file(path, &error).ends(End::Sink))
}

/// One row a case, of what is one value; what is known of all cases as comments.
fn csv(records: &[String]) -> String {
    let parsed: Vec<Value> = records
        .iter()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect();
    let (cases, others): (Vec<_>, Vec<_>) =
        parsed.iter().partition(|record| record["kind"] == "case");
    let mut text = String::new();
    for record in others {
        for (key, value) in record.as_object().into_iter().flatten() {
            text += &format!("# {key}: {value}\n");
        }
    }
    let mut columns: Vec<&String> = Vec::new();
    for case in &cases {
        for (key, value) in case.as_object().into_iter().flatten() {
            if !value.is_array() && !value.is_object() && key != "kind" && !columns.contains(&key)
            {
                columns.push(key);
            }
        }
    }
    let names: Vec<_> = columns.iter().map(|name| cell(name)).collect();
    text += &format!("{}\n", names.join(","));
    for case in &cases {
        let row = columns.iter().map(|name| match &case[name.as_str()] {
            Value::Null | Value::Array(_) | Value::Object(_) => String::new(),
            Value::String(text) => cell(text),
            value => value.to_string(),
        });
        text += &format!("{}\n", row.collect::<Vec<_>>().join(","));
    }
    text
}

/// A cell as RFC 4180 writes it.
fn cell(text: &str) -> String {
    match text.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_the_columns_of_all() {
        let records = [
            r#"{"kind":"facts","provider":"tcp","notes":["a"]}"#,
            r#"{"kind":"case","op":"send","gb_per_s":1.5,"runs":[1]}"#,
            r#"{"kind":"case","op":"a \"b\", c","skipped":"why"}"#,
        ];
        let text = csv(&records.map(str::to_owned));
        let lines: Vec<_> = text.lines().collect();
        assert!(lines.contains(&"# provider: \"tcp\""), "{text}");
        assert!(lines.contains(&"gb_per_s,op,skipped"), "{text}");
        assert!(lines.contains(&"1.5,send,"), "{text}");
        assert!(lines.contains(&",\"a \"\"b\"\", c\",why"), "{text}");
    }
}
