//! What a run came to: a table for people, one JSON object for programs, and whether both sides
//! agree.

use std::fmt::{self, Write};
use std::sync::Arc;

use fabricast::metrics::Latencies;
use fabricast::{Domain, PeerAddr, fabric};

use crate::readout::args::{OnFull, Policy, ReadoutArgs};
use crate::readout::counts::Counts;
use crate::readout::detector::Status;
use crate::readout::json::Json;
use crate::readout::json::{PERCENTILES, micros};
use crate::readout::link::{DEPTH, Link, Stage, Stalls};
use crate::readout::summary::Summary;
use crate::readout::usage::Usage;
use crate::readout::wire::Volume;

/// One builder.
struct Row {
    to: PeerAddr,
    stage: Stage,
    built: u64,
    given_up: u64,
    sent: Volume,
    summary: Option<Summary>,
}

/// What was filled, sent and built, and what it waited for.
pub(crate) struct Report {
    readout: ReadoutArgs,
    fabric: fabric::Report,
    used: Usage,
    triggered: u64,
    counts: Counts,
    filled: Volume,
    dropped: u64,
    full: u64,
    full_seconds: f64,
    /// Fragments that each builder takes ahead; of those, the fewest.
    granted: u64,
    stalls: Stalls,
    rows: Vec<Row>,
    latency: Latencies,
}

impl Report {
    pub(crate) fn new(
        readout: &ReadoutArgs,
        domain: &Domain,
        used: Usage,
        triggered: u64,
        counts: Counts,
        statuses: &[Arc<Status>],
        links: &[Link],
    ) -> Self {
        let sum = |get: fn(&Status) -> u64| statuses.iter().map(|status| get(status)).sum::<u64>();
        let mut latency = Latencies::default();
        let mut stalls = Stalls::default();
        for link in links {
            if let Some(summary) = &link.summary {
                latency += &summary.latency;
            }
            stalls.add(link.stalls);
        }
        Self {
            readout: readout.clone(),
            fabric: domain.report(),
            used,
            triggered,
            counts,
            filled: Volume {
                fragments: sum(|s| Status::get(&s.fragments)),
                bytes: sum(|s| Status::get(&s.bytes)),
            },
            dropped: sum(|s| Status::get(&s.dropped)),
            full: sum(|s| Status::get(&s.stalls)),
            full_seconds: sum(|s| Status::get(&s.stalled_ns)) as f64 / 1e9,
            granted: links.iter().map(|link| link.granted).min().unwrap_or(0),
            stalls,
            rows: links.iter().map(Row::new).collect(),
            latency,
        }
    }

    fn built(&self) -> u64 {
        self.rows.iter().map(|row| row.built).sum()
    }

    fn given_up(&self) -> u64 {
        self.rows.iter().map(|row| row.given_up).sum()
    }

    /// Events that all detectors dropped: nobody but the trigger knows of them.
    fn unseen(&self) -> u64 {
        self.triggered - self.counts.events
    }

    fn builders_lost(&self) -> usize {
        let lost = |row: &&Row| matches!(row.stage, Stage::Lost(_));
        self.rows.iter().filter(lost).count()
    }

    /// Everything that does not add up, or was lost though the policy does not allow it.
    pub(crate) fn problems(&self) -> Vec<String> {
        let counts = &self.counts;
        let accounted = self.built() + self.given_up() + counts.lost_events + self.unseen();
        let wanted = self.triggered * u64::from(self.readout.detectors);
        let mut problems = Vec::new();
        let mut check = |right: bool, text: String| {
            if !right {
                problems.push(text);
            }
        };
        let triggered = self.triggered;
        check(
            accounted == triggered,
            format!("{triggered} events were triggered, {accounted} are accounted for"),
        );
        let (filled, taken) = (self.filled.fragments, counts.fragments);
        check(
            filled == taken,
            format!("detectors filled {filled} fragments, {taken} were taken"),
        );
        let dropped = self.dropped;
        check(
            filled + dropped == wanted,
            format!(
                "{filled} fragments were filled and {dropped} dropped, there should be {wanted}"
            ),
        );
        let waits = self.readout.on_full == OnFull::Wait;
        check(
            !waits || dropped == 0,
            format!("{dropped} fragments were dropped by detectors that should wait"),
        );
        let keeps = self.readout.policy == Policy::Resend;
        let lost = counts.lost_events;
        check(
            !keeps || lost == 0,
            format!("{lost} events were lost though fragments are kept"),
        );
        for row in &self.rows {
            row.check(&mut check);
        }
        problems
    }

    /// Nanoseconds that a builder takes to check one fragment; `None` if none was timed.
    fn check_ns(&self) -> Option<f64> {
        let summaries = || self.rows.iter().filter_map(|row| row.summary.as_ref());
        let timed: u64 = summaries().map(|summary| summary.timed).sum();
        let ns: u64 = summaries().map(|summary| summary.timed_ns).sum();
        (timed > 0).then(|| ns as f64 / timed as f64)
    }

    /// The share of a builder's time that checks take.
    fn check_share(&self) -> Option<f64> {
        let alive = self.rows.iter().filter_map(|row| row.summary.as_ref());
        let fragments = alive.map(|summary| summary.received.fragments).max()?;
        Some(self.check_ns()? * fragments as f64 / self.used.time.as_nanos().max(1) as f64)
    }

    /// What builders used that said so at their end: nanoseconds of the processor, and allocations.
    fn used_by_builders(&self) -> (u64, u64) {
        let summaries = || self.rows.iter().filter_map(|row| row.summary.as_ref());
        let cpu_ns = summaries().map(|summary| summary.cpu_ns).sum();
        (cpu_ns, summaries().map(|summary| summary.allocations).sum())
    }

    /// Nanoseconds of the processor for one fragment, on both sides; `None` if a builder did not
    /// live to say its part.
    fn cpu_ns_a_fragment(&self) -> Option<f64> {
        let all = self.rows.iter().all(|row| row.summary.is_some());
        let cpu_ns = self.used.cpu_ns + self.used_by_builders().0;
        (all && self.filled.fragments > 0).then(|| cpu_ns as f64 / self.filled.fragments as f64)
    }

    fn rate_khz(&self, count: u64) -> f64 {
        count as f64 / self.used.time.as_secs_f64().max(1e-9) / 1e3
    }

    fn gb_per_s(&self) -> f64 {
        self.filled.bytes as f64 / self.used.time.as_secs_f64().max(1e-9) / 1e9
    }

    /// One JSON object, on one line.
    pub(crate) fn json(&self) -> String {
        let (readout, counts) = (&self.readout, &self.counts);
        let mut json = Json::new();
        json.text("provider", &self.fabric.provider);
        json.text("libfabric", &self.fabric.library);
        json.number("detectors", readout.detectors.into());
        json.number("builders", self.rows.len() as f64);
        json.number("rate_khz_asked", readout.rate);
        json.text("size", &readout.size.to_string());
        json.count("depth", DEPTH.into());
        json.count("fragments_ahead", self.granted);
        json.text("policy", policy_name(readout.policy));
        json.text("on_full", on_full_name(readout.on_full));
        json.number("seconds", self.used.time.as_secs_f64());
        json.count("events_triggered", self.triggered);
        json.count("events_built", self.built());
        json.count("events_incomplete", counts.incomplete);
        json.count("events_dropped_by_detectors", self.unseen());
        json.count("events_lost_with_builder", counts.lost_events);
        json.count("events_given_up", self.given_up());
        json.count("events_reassigned", counts.reassigned);
        json.count("answers_late", counts.late_answers);
        json.count("fragments", self.filled.fragments);
        json.count("fragments_dropped", self.dropped);
        json.count("fragments_lost", counts.lost_fragments);
        json.count("fragments_resent", counts.resent);
        json.count("bytes", self.filled.bytes);
        json.number("events_khz", self.rate_khz(self.built()));
        json.number("fragments_khz", self.rate_khz(self.filled.fragments));
        json.number("gb_per_s", self.gb_per_s());
        json.count("ring_full", self.full);
        json.number("ring_full_s", self.full_seconds);
        json.count("blocked_builders", self.stalls.granted);
        json.count("blocked_credits", self.stalls.credits);
        json.count("blocked_depth", self.stalls.depth);
        json.count("blocked_header_slots", self.stalls.header_slots);
        json.count("blocked_provider", self.stalls.provider);
        json.count("blocked_window", counts.window);
        json.latency(&self.latency);
        let (builders_cpu_ns, builders_allocations) = self.used_by_builders();
        json.number("source_cpu_s", self.used.cpu_ns as f64 / 1e9);
        json.number("builders_cpu_s", builders_cpu_ns as f64 / 1e9);
        json.number(
            "cpu_ns_per_fragment",
            self.cpu_ns_a_fragment().unwrap_or(f64::NAN),
        );
        json.count("source_allocations", self.used.allocations);
        json.count("builders_allocations", builders_allocations);
        json.number("check_ns", self.check_ns().unwrap_or(f64::NAN));
        json.count("builders_lost", self.builders_lost() as u64);
        json.raw("builder", &self.rows_json());
        json.raw(
            "agree",
            if self.problems().is_empty() {
                "true"
            } else {
                "false"
            },
        );
        json.end()
    }

    fn rows_json(&self) -> String {
        let rows: Vec<_> = self.rows.iter().map(Row::json).collect();
        format!("[{}]", rows.join(","))
    }

    fn write_head(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (readout, fabric) = (&self.readout, &self.fabric);
        let rate = match readout.rate {
            0.0 => "as fast as it goes".to_owned(),
            khz => format!("{khz} kHz"),
        };
        writeln!(
            f,
            "run          {:.3} s, {} detectors, {rate}, fragments of {} bytes, rings of {} bytes",
            self.used.time.as_secs_f64(),
            readout.detectors,
            readout.size,
            readout.ring_bytes()
        )?;
        writeln!(
            f,
            "provider     {} {} on {}, libfabric {}",
            fabric.provider, fabric.provider_version, fabric.interface, fabric.library
        )?;
        writeln!(
            f,
            "events       {} triggered, {} built: {:.1} kHz",
            self.triggered,
            self.built(),
            self.rate_khz(self.built())
        )?;
        writeln!(
            f,
            "fragments    {} filled: {:.1} kHz; {} bytes: {:.3} GB/s",
            self.filled.fragments,
            self.rate_khz(self.filled.fragments),
            self.filled.bytes,
            self.gb_per_s()
        )
    }

    fn write_rows(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "\n{:22} {:>9} {:>10} {:>10} {:>12} {:>9} {:>9} {:>9} {:>9}",
            "builder",
            "events",
            "sent",
            "received",
            "bytes",
            "p50 us",
            "p99 us",
            "p99.9 us",
            "max us"
        )?;
        self.rows.iter().try_for_each(|row| row.write(f))?;
        let events = self.built();
        let sent = self.rows.iter().map(|row| row.sent.fragments).sum::<u64>();
        write!(
            f,
            "{:22} {events:>9} {sent:>10} {:>10} {:>12} ",
            "all", "", ""
        )?;
        write_latency(f, &self.latency)?;
        writeln!(f, "   (fragment committed to event complete)\n")
    }

    fn write_waits(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (counts, stalls) = (&self.counts, &self.stalls);
        writeln!(
            f,
            "back-press.  rings full {} times, detectors waited {:.3} s ({:.0} % of their time)",
            self.full,
            self.full_seconds,
            self.full_seconds
                / self.used.time.as_secs_f64().max(1e-9)
                / f64::from(self.readout.detectors)
                * 100.0
        )?;
        writeln!(
            f,
            "sender       waited for builders {}, credits {}, depth {}, header slot {}, \
             provider {}, \
             window of events {} (times)",
            stalls.granted,
            stalls.credits,
            stalls.depth,
            stalls.header_slots,
            stalls.provider,
            counts.window
        )?;
        writeln!(
            f,
            "full rings   {} fragments dropped: {} events without some, {} events without any",
            self.dropped,
            counts.incomplete,
            self.unseen()
        )?;
        writeln!(
            f,
            "losses       {} builders lost, {} events re-assigned ({} fragments sent again), {} \
             events lost (policy {})",
            self.builders_lost(),
            counts.reassigned,
            counts.resent,
            counts.lost_events + self.given_up(),
            policy_name(self.readout.policy)
        )?;
        let (cpu_ns, allocations) = self.used_by_builders();
        writeln!(
            f,
            "used         {} ns of the processor a fragment: source {:.3} s, builders {:.3} s; \
             allocations {} and {}",
            self.cpu_ns_a_fragment()
                .map_or_else(|| "-".to_owned(), |ns| format!("{ns:.0}")),
            self.used.cpu_ns as f64 / 1e9,
            cpu_ns as f64 / 1e9,
            self.used.allocations,
            allocations
        )?;
        match (self.check_ns(), self.check_share()) {
            (Some(ns), Some(share)) => writeln!(
                f,
                "check        pattern and CRC32C, {ns:.0} ns a fragment: {:.1} % of a builder's \
                 time (--check none)",
                share * 100.0
            ),
            _ => writeln!(f, "check        order, loss and length only"),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_head(f)?;
        self.write_rows(f)?;
        self.write_waits(f)?;
        if self.problems().is_empty() {
            write!(
                f,
                "both sides agree: every event and every fragment is accounted for"
            )
        } else {
            write!(
                f,
                "the counts do not agree, or something was lost that should not be"
            )
        }
    }
}

impl Row {
    fn new(link: &Link) -> Self {
        Self {
            to: link.to,
            stage: link.stage.clone(),
            built: link.built,
            given_up: link.given_up,
            sent: link.sent,
            summary: link.summary.clone(),
        }
    }

    /// A builder that was lost has no summary, and nothing to compare with.
    fn check(&self, check: &mut impl FnMut(bool, String)) {
        let (to, sent) = (self.to, self.sent);
        check(
            self.given_up == 0,
            format!(
                "builder {to} gave up {} events: fragments did not come in time",
                self.given_up
            ),
        );
        let Some(summary) = &self.summary else {
            return;
        };
        let received = summary.received;
        check(
            sent == received,
            format!(
                "builder {to}: {} fragments of {} bytes were sent, {} of {} received",
                sent.fragments, sent.bytes, received.fragments, received.bytes
            ),
        );
        check(
            self.built == summary.built && self.given_up == summary.lost,
            format!(
                "builder {to} built {} events, and answered for {}",
                summary.built, self.built
            ),
        );
        let (order, content, twice) = (
            summary.order_errors,
            summary.content_errors,
            summary.duplicates,
        );
        check(
            order + content + twice == 0,
            format!(
                "builder {to}: {order} fragments out of order, {content} with wrong bytes, {twice} \
                 twice"
            ),
        );
    }

    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let received = self
            .summary
            .as_ref()
            .map(|summary| summary.received.fragments);
        let received = received.map_or_else(|| "-".to_owned(), |count| count.to_string());
        write!(
            f,
            "{:22} {:>9} {:>10} {received:>10} {:>12} ",
            self.to.to_string(),
            self.built,
            self.sent.fragments,
            self.sent.bytes
        )?;
        match (&self.summary, &self.stage) {
            (Some(summary), _) => write_latency(f, &summary.latency)?,
            (None, Stage::Lost(reason)) => write!(f, "lost: {reason}")?,
            (None, _) => {}
        }
        writeln!(f)
    }

    fn json(&self) -> String {
        let mut json = Json::new();
        json.text("address", &self.to.to_string());
        json.count("events_built", self.built);
        json.count("fragments_sent", self.sent.fragments);
        json.count("bytes_sent", self.sent.bytes);
        if let Some(summary) = &self.summary {
            json.count("fragments_received", summary.received.fragments);
            json.count("bytes_received", summary.received.bytes);
            json.latency(&summary.latency);
        }
        if let Stage::Lost(reason) = &self.stage {
            json.text("lost", reason);
        }
        json.end()
    }
}

fn write_latency(f: &mut fmt::Formatter<'_>, latency: &Latencies) -> fmt::Result {
    let shares = [0.5, 0.99, 0.999].map(|share| micros(latency.quantile(share)));
    for us in shares.into_iter().chain([micros(latency.max())]) {
        match us {
            Some(us) => write!(f, "{us:>9.1} ")?,
            None => write!(f, "{:>9} ", "-")?,
        }
    }
    Ok(())
}

/// The same of a builder alone: counts by name.
pub(crate) fn builder_report(json: bool, counts: &[(&str, u64)], latency: &Latencies) -> String {
    if json {
        let mut json = Json::new();
        for (name, count) in counts {
            json.count(name, *count);
        }
        json.latency(latency);
        return json.end();
    }
    let mut text = String::new();
    for (name, count) in counts {
        let _ = writeln!(text, "{:16} {count}", name.replace('_', " "));
    }
    for (name, share) in PERCENTILES {
        let us = micros(latency.quantile(share));
        let us = us.map_or_else(|| "-".to_owned(), |us| format!("{us:.1} us"));
        let _ = writeln!(text, "latency {name:8} {us}");
    }
    text.truncate(text.trim_end().len());
    text
}

fn policy_name(policy: Policy) -> &'static str {
    match policy {
        Policy::Resend => "resend",
        Policy::Drop => "drop",
    }
}

fn on_full_name(on_full: OnFull) -> &'static str {
    match on_full {
        OnFull::Wait => "wait",
        OnFull::Drop => "drop",
    }
}
