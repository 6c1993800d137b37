//! `fabricast top`: what a process does now, from the metrics that it serves.
//!
//! Two texts are asked for, an interval apart; the differences of counters are rates.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, IsTerminal, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::json;

use crate::failure::{End, Failure};
use crate::interrupt;
use crate::say::say;

/// How long a process may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// The longest text that is taken.
const TEXT_MAX: u64 = 64 << 20;

/// How often it is looked whether somebody asked for an end.
const LOOK: Duration = Duration::from_millis(50);

/// Columns of a line at most.
const COLUMNS: usize = 80;

/// Columns of what something is called.
const NAME_COLUMNS: usize = 30;

/// What `top` is told.
#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    /// Where the process serves its metrics (--metrics ADDR:PORT)
    #[arg(value_name = "ADDR:PORT", required_unless_present = "pid")]
    addr: Option<SocketAddr>,
    /// The process, of this user and on this machine, which serves its metrics somewhere
    #[arg(long, conflicts_with = "addr")]
    pid: Option<u32>,
    /// Seconds from one look to the next
    #[arg(
        long,
        default_value_t = 1.0,
        value_name = "SECONDS",
        value_parser = parse_interval
    )]
    interval: f64,
    /// Look twice, print what happened between, and end
    #[arg(long)]
    once: bool,
    /// Print an object of JSON for each look
    #[arg(long)]
    json: bool,
}

fn parse_interval(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    match (0.1..=3600.0).contains(&seconds) {
        true => Ok(seconds),
        false => Err("must be 0.1 to 3600 seconds".to_owned()),
    }
}

/// Looks again and again, until somebody asks for an end.
pub(crate) fn run(args: &TopArgs) -> Result<(), Failure> {
    let addr = address(args)?;
    interrupt::watch()?;
    let interval = Duration::from_secs_f64(args.interval);
    let mut last = (Instant::now(), scrape(addr)?);
    loop {
        let end = Instant::now() + interval;
        while let Some(left) = end.checked_duration_since(Instant::now()) {
            if interrupt::asked().is_some() {
                return Ok(());
            }
            std::thread::sleep(left.min(LOOK));
        }
        let now = (Instant::now(), scrape(addr)?);
        let frame = Frame {
            seconds: (now.0 - last.0).as_secs_f64(),
            before: &last.1,
            now: &now.1,
        };
        show(args, addr, &frame);
        if args.once {
            return Ok(());
        }
        last = now;
    }
}

fn show(args: &TopArgs, addr: SocketAddr, frame: &Frame<'_>) {
    if args.json {
        return say(frame.json());
    }
    let mut text = frame.text(addr);
    if !args.once && io::stdout().is_terminal() {
        // From the corner, over what is there.
        text.insert_str(0, "\x1b[H\x1b[J");
    }
    say(text);
}

#[cfg(feature = "exporter")]
fn exporter_of(pid: u32) -> Option<SocketAddr> {
    fabricast::metrics::exporter_of(pid)
}

#[cfg(not(feature = "exporter"))]
fn exporter_of(_: u32) -> Option<SocketAddr> {
    None
}

fn address(args: &TopArgs) -> Result<SocketAddr, Failure> {
    match (args.addr, args.pid) {
        (Some(addr), _) => Ok(addr),
        (None, Some(pid)) => exporter_of(pid).ok_or_else(|| {
            let text = format!(
                "process {pid} has said nowhere that it serves metrics: it is another user's, has \
                 no --metrics ADDR:PORT, or there is no XDG_RUNTIME_DIR; give the address instead"
            );
            Failure::new(text).ends(End::Unreachable)
        }),
        (None, None) => Err(Failure::new("no address is given").ends(End::Usage)),
    }
}

// ---- what a process answers ---------------------------------------------------------------------

/// A name and labels.
type Series = (String, BTreeMap<String, String>);

/// Samples by their name and labels.
type Samples = BTreeMap<Series, f64>;

fn scrape(addr: SocketAddr) -> Result<Samples, Failure> {
    let failed = |error: io::Error| {
        Failure::new(format!("metrics at {addr}: {error}")).ends(End::Unreachable)
    };
    let text = fetch(addr).map_err(failed)?;
    Ok(text.lines().filter_map(sample).collect())
}

/// In HTTP/1.0: the answer ends with the connection.
fn fetch(addr: SocketAddr) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&addr, ANSWER_WITHIN)?;
    stream.set_read_timeout(Some(ANSWER_WITHIN))?;
    stream.set_write_timeout(Some(ANSWER_WITHIN))?;
    write!(stream, "GET /metrics HTTP/1.0\r\nHost: {addr}\r\n\r\n")?;
    let mut answer = String::new();
    stream.take(TEXT_MAX).read_to_string(&mut answer)?;
    let (head, body) = answer
        .split_once("\r\n\r\n")
        .ok_or_else(|| io::Error::other("what answers there speaks no HTTP"))?;
    let status = head.lines().next().unwrap_or_default();
    match status.split(' ').nth(1) {
        Some("200") if body.ends_with("# EOF\n") => Ok(body.to_owned()),
        Some("200") => Err(io::Error::other("the text is not whole")),
        _ => Err(io::Error::other(format!("it answers {status}"))),
    }
}

/// A line of the text, if it is a sample.
fn sample(line: &str) -> Option<(Series, f64)> {
    if line.starts_with('#') {
        return None;
    }
    let (series, value) = line.rsplit_once(' ')?;
    let value = value.parse().ok()?;
    let Some((name, labels)) = series.split_once('{') else {
        return Some(((series.to_owned(), BTreeMap::new()), value));
    };
    let (mut found, mut rest) = (BTreeMap::new(), labels.strip_suffix('}')?);
    while !rest.is_empty() {
        let (label, quoted) = rest.split_once("=\"")?;
        let (mut text, mut chars) = (String::new(), quoted.char_indices());
        let end = loop {
            match chars.next()? {
                (at, '"') => break at,
                (_, '\\') => text.push(match chars.next()?.1 {
                    'n' => '\n',
                    other => other,
                }),
                (_, other) => text.push(other),
            }
        };
        found.insert(label.to_owned(), text);
        rest = quoted[end + 1..].trim_start_matches(',');
    }
    Some(((name.to_owned(), found), value))
}

// ---- what is shown ------------------------------------------------------------------------------

/// Two looks, so many seconds apart.
struct Frame<'a> {
    seconds: f64,
    before: &'a Samples,
    now: &'a Samples,
}

/// A column: its head, the metric, and how its number is shown.
struct Column {
    head: &'static str,
    metric: &'static str,
    shown: Shown,
}

#[derive(Clone, Copy)]
enum Shown {
    /// A counter: bytes a second.
    Bytes,
    /// A counter: so many a second.
    Rate,
    /// A counter of seconds, as a share of the time.
    Share,
    /// A gauge.
    Now,
    /// A gauge of bytes.
    NowBytes,
}

const fn column(head: &'static str, metric: &'static str, shown: Shown) -> Column {
    Column {
        head,
        metric,
        shown,
    }
}

/// Each table: its head, and its columns, of which the first says what is in it.
const TABLES: &[(&str, &[Column])] = &[
    (
        "ENDPOINTS",
        &[
            column("SENT", "fabricast_endpoint_sent_bytes_total", Shown::Bytes),
            column(
                "RECEIVED",
                "fabricast_endpoint_received_bytes_total",
                Shown::Bytes,
            ),
            column("SENDS", "fabricast_endpoint_sends_total", Shown::Rate),
            column("FLIGHT", "fabricast_endpoint_sends_in_flight", Shown::Now),
            column(
                "BLOCKED",
                "fabricast_endpoint_would_block_total",
                Shown::Rate,
            ),
        ],
    ),
    (
        "PUBLISHING",
        &[
            column(
                "PUBLISHED",
                "fabricast_publish_publications_total",
                Shown::Rate,
            ),
            column("DROPPED", "fabricast_publish_dropped_total", Shown::Rate),
            column("SUBSCRIBED", "fabricast_publish_subscriptions", Shown::Now),
        ],
    ),
    (
        "STREAMS",
        &[
            column("ACTIVE", "fabricast_stream_active", Shown::Now),
            column("SENT", "fabricast_stream_sent_bytes_total", Shown::Bytes),
            column(
                "WAITING",
                "fabricast_stream_stalled_seconds_total",
                Shown::Share,
            ),
            column(
                "DAMAGED",
                "fabricast_stream_damaged_blocks_total",
                Shown::Rate,
            ),
        ],
    ),
    (
        "FILES",
        &[
            column("BYTES", "fabricast_file_bytes_total", Shown::Bytes),
            column("OPERATIONS", "fabricast_file_operations_total", Shown::Rate),
            column("ERRORS", "fabricast_file_errors_total", Shown::Rate),
        ],
    ),
    (
        "OBJECTS",
        &[
            column("BYTES", "fabricast_object_bytes_total", Shown::Bytes),
            column("TRANSFERS", "fabricast_object_transfers_total", Shown::Rate),
            column("FAILED", "fabricast_object_failures_total", Shown::Rate),
        ],
    ),
    (
        "POOLS",
        &[
            column("FREE", "fabricast_pool_free", Shown::Now),
            column("SLOTS", "fabricast_pool_slots", Shown::Now),
            column("EMPTY", "fabricast_pool_empty_total", Shown::Rate),
        ],
    ),
    (
        "RINGS",
        &[
            column("USED", "fabricast_ring_used_bytes", Shown::NowBytes),
            column("SIZE", "fabricast_ring_capacity_bytes", Shown::NowBytes),
            column("FULL", "fabricast_ring_full_total", Shown::Rate),
        ],
    ),
    (
        "EVENT LOOPS",
        &[
            column("TURNS", "fabricast_event_loop_turns_total", Shown::Rate),
            column(
                "ASLEEP",
                "fabricast_event_loop_slept_seconds_total",
                Shown::Share,
            ),
        ],
    ),
];

/// Of what has this kind and this name: the sum of a metric.
type Sums = BTreeMap<(String, String), f64>;

fn sums(samples: &Samples, metric: &str) -> Sums {
    let mut sums = Sums::new();
    for ((name, labels), value) in samples {
        if name == metric {
            let label = |of: &str| labels.get(of).cloned().unwrap_or_default();
            *sums.entry((label("kind"), label("name"))).or_default() += value;
        }
    }
    sums
}

impl Frame<'_> {
    /// The number that a column shows, by kind and name.
    fn numbers(&self, column: &Column) -> Sums {
        let mut now = sums(self.now, column.metric);
        if !matches!(column.shown, Shown::Now | Shown::NowBytes) {
            let before = sums(self.before, column.metric);
            for (key, value) in &mut now {
                let before = before.get(key).copied().unwrap_or_default();
                *value = (*value - before).max(0.0) / self.seconds;
            }
        }
        now
    }

    fn text(&self, addr: SocketAddr) -> String {
        let mut text = format!("fabricast top {addr}, {:.1} s", self.seconds);
        for (head, columns) in TABLES {
            let numbers: Vec<Sums> = columns.iter().map(|column| self.numbers(column)).collect();
            let Some(first) = numbers.first().filter(|it| !it.is_empty()) else {
                continue;
            };
            let width = (COLUMNS - NAME_COLUMNS) / columns.len();
            let width = width.min(12);
            let _ = write!(text, "\n\n{head:NAME_COLUMNS$}");
            for column in *columns {
                let _ = write!(text, "{:>width$}", column.head);
            }
            for key in first.keys() {
                let (kind, name) = key;
                let called: String = match name.starts_with(kind.as_str()) {
                    true => name.clone(),
                    false => format!("{kind} {name}"),
                };
                let called: String = called.chars().take(NAME_COLUMNS - 1).collect();
                let _ = write!(text, "\n{called:NAME_COLUMNS$}");
                for (column, numbers) in columns.iter().zip(&numbers) {
                    let number = numbers.get(key).copied().unwrap_or_default();
                    let _ = write!(text, "{:>width$}", shown(number, column.shown));
                }
            }
        }
        text
    }

    fn json(&self) -> serde_json::Value {
        let tables = TABLES.iter().map(|(head, columns)| {
            let mut rows: BTreeMap<(String, String), serde_json::Map<_, _>> = BTreeMap::new();
            for column in *columns {
                for (key, number) in self.numbers(column) {
                    let row = rows.entry(key).or_default();
                    row.insert(column.metric.to_owned(), json!(number));
                }
            }
            let rows = rows.into_iter().map(
                |((kind, name), numbers)| json!({"kind": kind, "name": name, "numbers": numbers}),
            );
            (head.to_lowercase().replace(' ', "_"), rows.collect())
        });
        let tables: serde_json::Map<String, serde_json::Value> = tables.collect();
        json!({"type": "top", "seconds": self.seconds, "tables": tables})
    }
}

fn shown(number: f64, how: Shown) -> String {
    match how {
        Shown::Bytes => format!("{}B/s", scaled(number)),
        Shown::Rate => format!("{}/s", scaled(number).trim_end()),
        Shown::Share => format!("{:.0} %", number * 100.0),
        Shown::Now => format!("{number:.0}"),
        Shown::NowBytes => format!("{}B", scaled(number)),
    }
}

/// Three digits and what they are counted in.
fn scaled(number: f64) -> String {
    let units = [("G", 1e9), ("M", 1e6), ("k", 1e3)];
    match units.into_iter().find(|(_, of)| number >= *of) {
        Some((unit, of)) => format!("{:.1} {unit}", number / of),
        None => format!("{number:.0} "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_has_its_labels_and_its_value() {
        let line = r#"fabricast_x_total{kind="send",name="a \"b\"\\,\nc",le="+Inf"} 2.5"#;
        let ((name, labels), value) = sample(line).expect("a sample");
        assert_eq!((name.as_str(), value), ("fabricast_x_total", 2.5));
        assert_eq!(labels["name"], "a \"b\"\\,\nc");
        assert_eq!(labels["le"], "+Inf");
        for none in ["# EOF", "", "x{", "x{a=\"b} 1", "x y"] {
            assert_eq!(sample(none), None, "{none}");
        }
    }

    #[test]
    fn a_frame_has_rates_and_stays_within_its_columns() {
        let name = "x".repeat(100);
        let text = |sent: u64, flight: u64| {
            format!(
                "fabricast_endpoint_sent_bytes_total{{kind=\"send\",name=\"{name}\"}} {sent}\n\
                 fabricast_endpoint_sends_in_flight{{kind=\"send\",name=\"{name}\"}} {flight}\n"
            )
        };
        let read = |text: String| text.lines().filter_map(sample).collect::<Samples>();
        let (before, now) = (read(text(1000, 9)), read(text(3_001_000, 7)));
        let frame = Frame {
            seconds: 2.0,
            before: &before,
            now: &now,
        };
        let shown = frame.text("127.0.0.1:1".parse().unwrap());
        assert!(shown.contains("1.5 MB/s"), "{shown}");
        assert!(
            shown.lines().all(|line| line.chars().count() <= COLUMNS),
            "{shown}"
        );
        let row = &frame.json()["tables"]["endpoints"][0];
        assert_eq!(row["numbers"]["fabricast_endpoint_sends_in_flight"], 7.0);
        assert_eq!(row["numbers"]["fabricast_endpoint_sent_bytes_total"], 1.5e6);
    }
}
