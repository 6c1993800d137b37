//! What is said when it is done: a summary for people, an object for programs.

use std::fmt;

use fabricast::fabric::Report;
use fabricast::stream::{StreamError, StreamReport};
use serde_json::Value;

use super::far::MARK;
use super::measure::Bytes;
use super::ways::rails_text;
use crate::failure::End;
use crate::say::say;

/// Who is told what happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Voice {
    People,
    /// Objects on stdout, one a line.
    Json,
    /// The same, for the near end of a remote shell.
    NearEnd,
    Nobody,
}

impl Voice {
    pub(crate) fn of(json: bool, quiet: bool) -> Self {
        match (json, quiet) {
            (true, _) => Self::Json,
            (_, true) => Self::Nobody,
            _ => Self::People,
        }
    }

    pub(crate) fn say_json(self, value: &Value) {
        match self {
            Self::Json => say(value),
            Self::NearEnd => say(format_args!("{MARK}{value}")),
            Self::People | Self::Nobody => {}
        }
    }
}

/// What became of one receiver, for programs.
pub(crate) fn result_to_json(
    peer: &str,
    result: &Result<(), StreamError>,
    report: &StreamReport,
) -> Value {
    let mut value: Value = serde_json::from_str(&report.to_json()).unwrap_or_default();
    value["type"] = "result".into();
    value["peer"] = peer.into();
    value["ok"] = result.is_ok().into();
    if let Err(error) = result {
        let end = End::of(error);
        value["error"] = error.to_string().into();
        value["code"] = end.word().into();
        value["exit"] = (end as u64).into();
        value["todo"] = End::todo_of(error).into();
        // Where a stream spends its time says nothing of one that did not arrive.
        if let Some(all) = value.as_object_mut() {
            all.remove("bottleneck");
        }
    }
    value
}

/// What was sent to a receiver, how fast, and which way.
pub(crate) struct Summary<'a> {
    pub(crate) entries: usize,
    pub(crate) block: u32,
    pub(crate) peer: &'a str,
    pub(crate) report: &'a StreamReport,
    pub(crate) rails: &'a Value,
    pub(crate) fabric: &'a Report,
}

impl fmt::Display for Summary<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (fabric, report) = (self.fabric, self.report);
        let seconds = report.took.as_secs_f64();
        writeln!(f, "receiver     {}", self.peer)?;
        writeln!(f, "entries      {} files and directories", self.entries)?;
        writeln!(
            f,
            "bytes        {} ({})",
            report.bytes,
            Bytes(report.bytes as f64)
        )?;
        f.write_str(&there_already(report.resumed_bytes, report.unchanged))?;
        f.write_str(&equal_text(report.equal_bytes))?;
        f.write_str(&deleted_text(report.deleted))?;
        writeln!(
            f,
            "seconds      {seconds:.3} (until the receiver had written them)"
        )?;
        writeln!(f, "rate         {}/s", Bytes(report.rate()))?;
        writeln!(
            f,
            "provider     {} {} on {}",
            fabric.provider, fabric.provider_version, fabric.interface
        )?;
        f.write_str(&rails_text(self.rails))?;
        writeln!(f, "libfabric    {} (API {})", fabric.library, fabric.api)?;
        writeln!(f, "shape        {}", fabric.shape)?;
        writeln!(f, "path         {}", report.path)?;
        writeln!(f, "transport    {}", report.transport)?;
        if fabricast::fabric::provider(&fabric.provider).is_some_and(|row| row.over_tcp) {
            writeln!(f, "congestion   {}", congestion_control())?;
        }
        writeln!(
            f,
            "blocks       {} of up to {} bytes",
            report.blocks, self.block
        )?;
        let stalls = report.stalls;
        writeln!(
            f,
            "waited for   disk {:.3}, wire {:.3}, credits {:.3}, sink {:.3}, limits {:.3} \
             (seconds)",
            stalls.disk.as_secs_f64(),
            stalls.wire.as_secs_f64(),
            stalls.credits.as_secs_f64(),
            stalls.sink.as_secs_f64(),
            stalls.limit.as_secs_f64()
        )?;
        if let Some(hash) = report.blake3 {
            let hex: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
            let whose = match report.blake3_compared {
                true => "both sides'",
                false => "the receiver's",
            };
            let (took, share) = (report.hash_time.as_secs_f64(), 100.0 / seconds.max(1e-9));
            writeln!(f, "BLAKE3       {hex}, {whose}")?;
            writeln!(
                f,
                "             {took:.3} s of CPU here, {:.0} % of one core",
                took * share
            )?;
        }
        write!(f, "bottleneck   {}", report.bottleneck())
    }
}

/// Lines about what the receiver had before.
pub(crate) fn there_already(bytes: u64, unchanged: u64) -> String {
    match (bytes, unchanged) {
        (0, 0) => String::new(),
        (bytes, 0) => format!("resumed      {bytes} bytes were there\n"),
        (bytes, files) => format!("unchanged    {files} files: {bytes} bytes were there\n"),
    }
}

/// A line of what is equal in files that are there with another time, or nothing.
pub(crate) fn equal_text(bytes: u64) -> String {
    match bytes {
        0 => String::new(),
        bytes => format!("equal        {bytes} bytes of other files\n"),
    }
}

/// A line of what was removed, or nothing.
pub(crate) fn deleted_text(count: u64) -> String {
    match count {
        0 => String::new(),
        count => format!("deleted      {count} files and directories\n"),
    }
}

/// What the kernel gives new connections; over tcp it decides more than anything else.
fn congestion_control() -> String {
    let read = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control");
    read.map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned())
}
