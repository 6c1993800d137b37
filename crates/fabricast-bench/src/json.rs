//! One line of JSON, field by field, in the order in which they are written. Of `file_bench`, too.

use std::fmt::Write as _;

fn key(line: &mut String, key: &str) {
    if line.len() > 1 {
        line.push(',');
    }
    let _ = write!(line, "\"{key}\":");
}

/// What was not measured is null: JSON has no NaN.
pub fn number(line: &mut String, name: &str, value: f64) {
    key(line, name);
    let _ = if value.is_finite() {
        write!(line, "{value}")
    } else {
        write!(line, "null")
    };
}

/// A text, without what controls a terminal.
pub fn text(line: &mut String, name: &str, value: &str) {
    key(line, name);
    line.push('"');
    for c in value.chars() {
        match c {
            '"' | '\\' => line.extend(['\\', c]),
            c if c.is_control() => {}
            c => line.push(c),
        }
    }
    line.push('"');
}

/// What is JSON already.
pub fn raw(line: &mut String, name: &str, value: &str) {
    key(line, name);
    line.push_str(value);
}
