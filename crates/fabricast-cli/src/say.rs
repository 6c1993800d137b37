//! Lines on stdout.

use std::fmt;
use std::io::Write;

/// A line on stdout. That nobody reads it is no reason to stop.
pub(crate) fn say(line: impl fmt::Display) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}
