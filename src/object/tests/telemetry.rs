//! What is counted is told: as numbers, as text, to Prometheus, as events, by a writer.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Mutex, MutexGuard};

use proptest::prelude::*;

use super::*;

const GET: ObjectOperation = ObjectOperation::Get;
const PUT: ObjectOperation = ObjectOperation::Put;

fn micros(us: u64) -> Duration {
    Duration::from_micros(us)
}

/// One that counted something of everything.
fn sample(name: &str) -> Arc<Telemetry> {
    let telemetry = Telemetry::new(ObjectSide::Client, name);
    telemetry.on_transfer(GET, 1000, micros(100), Ok(()));
    telemetry.on_transfer(GET, 24, micros(300), Err(FailureKind::Deadline));
    telemetry.on_transfer(PUT, 7, micros(5), Ok(()));
    telemetry.on_callback(micros(50), false);
    telemetry.on_callback(micros(60), true);
    telemetry.on_token();
    telemetry.on_rekey();
    telemetry.on_quarantine(4096);
    telemetry.on_quarantine(4096);
    telemetry.on_quarantine_over(4096);
    telemetry
}

/// A report of these only: other tests of the process count, too.
fn report(of: &[&Telemetry]) -> TelemetryReport {
    let mut report = TelemetryReport::of_process();
    report
        .entries
        .retain(|entry| of.iter().any(|it| it.id() == entry.id));
    report
}

#[test]
fn what_is_counted_is_there_and_adds_up() {
    let telemetry = sample("one");
    let stats = telemetry.stats();
    assert_eq!(
        (stats.get.done, stats.get.failed(), stats.get.bytes),
        (1, 1, 1024)
    );
    assert_eq!(stats.get.failures(FailureKind::Deadline), 1);
    assert_eq!(stats.get.failures(FailureKind::Peer), 0);
    assert_eq!(stats.get.transfers(), stats.get.latency.count());
    assert_eq!(stats.get.latency.max(), Some(micros(300)));
    assert_eq!(stats.operation(PUT).done, 1);
    assert_eq!(
        (stats.callbacks.latency.count(), stats.callbacks.failed),
        (2, 1)
    );
    let lending = LendingStats {
        tokens: 1,
        rekeyed: 1,
        quarantines: 2,
        quarantined_bytes: 4096,
    };
    assert_eq!(stats.lending, lending);
    telemetry.on_quarantine_over(u64::MAX);
    assert_eq!(telemetry.stats().lending.quarantined_bytes, 0);

    let mut sum = stats.clone();
    sum += &stats;
    assert_eq!(sum.get.bytes, 2048);
    assert_eq!(sum.get.failures(FailureKind::Deadline), 2);
    assert_eq!(sum.callbacks.failed, 2);
    assert_eq!(sum.lending.quarantined_bytes, 8192);
}

#[test]
fn each_kind_of_failure_has_a_place_and_a_name_of_its_own() {
    let names: BTreeSet<_> = FailureKind::ALL.map(FailureKind::label).into();
    assert_eq!(names.len(), FailureKind::ALL.len());
    for (at, kind) in FailureKind::ALL.into_iter().enumerate() {
        assert_eq!(kind.index(), at);
    }
}

#[test]
fn errors_count_as_what_they_are() {
    use crate::object::{ObjectError, TransferCause, TransferErrorKind};
    for (error, kind) in [
        (
            TransferErrorKind::Full { depth: 1 },
            FailureKind::WouldBlock,
        ),
        (TransferErrorKind::Deadline, FailureKind::Deadline),
        (TransferErrorKind::Empty, FailureKind::Refused),
        (TransferErrorKind::Reset, FailureKind::Reset),
    ] {
        assert_eq!(FailureKind::from(&error), kind, "{error}");
    }
    for (cause, kind) in [
        (TransferCause::Callback("no".into()), FailureKind::Callback),
        (TransferCause::OtherClient, FailureKind::Refused),
        (
            TransferCause::BeyondObjects { offset: 1, len: 2 },
            FailureKind::Refused,
        ),
        (ObjectError::Quarantined.into(), FailureKind::Deadline),
        (ObjectError::Empty.into(), FailureKind::Refused),
    ] {
        assert_eq!(FailureKind::from(&cause), kind, "{cause}");
    }
}

#[test]
fn what_closed_ones_counted_stays_in_the_sum() {
    let closed = |report: TelemetryReport| {
        let entries = report.entries().iter();
        let mut its = entries.filter(|it| it.id == 0 && it.side == ObjectSide::Client);
        its.next().map_or(0, |it| it.stats.put.bytes)
    };
    let before = closed(TelemetryReport::of_process());
    let telemetry = sample("closes");
    let id = telemetry.id();
    drop(telemetry);
    let after = TelemetryReport::of_process();
    assert!(after.entries().iter().all(|entry| entry.id != id));
    // Other tests may close some meanwhile.
    assert!(closed(after) >= before + 7);
}

#[test]
fn people_read_each_group_and_no_other() {
    let telemetry = sample("a \"name\"\n");
    let report = report(&[&telemetry]);
    let all = report.to_string();
    for part in [
        "client",
        r#""a \"name\"\n""#,
        "get: 1 done, 1024 B, 1 failed, deadline 1, p50 ",
        "max 300.0 us",
        "put: 1 done, 7 B, 0 failed, p50 5.0 us, p99 5.0 us, max 5.0 us\n",
        "callbacks: 2, 1 failed, p50 ",
        "lent: 1 tokens, 1 new keys, kept back 2 times, 4096 B kept back now",
    ] {
        assert!(all.contains(part), "{part:?} is not in\n{all}");
    }
    let lines = |groups| {
        let mut text = String::new();
        report.write_text(&mut text, groups).unwrap();
        text.lines().count()
    };
    assert_eq!(lines(TelemetryGroups::all()), 5);
    assert_eq!(lines(TelemetryGroups::LENDING), 2);
    assert_eq!(lines(TelemetryGroups::FAILURES), 3);
    assert_eq!(lines(TelemetryGroups::empty()), 1);
}

/// A sample: its metric, its labels, its value.
type Sample = (String, BTreeMap<String, String>, f64);

/// Reads Prometheus' text as its format is described, and checks what scrapers insist on: a family
/// has one HELP, one TYPE, then all of its samples; no two samples are the same.
fn parse(page: &str) -> (BTreeMap<String, String>, Vec<Sample>) {
    assert!(page.is_empty() || page.ends_with('\n'));
    let (mut types, mut samples) = (BTreeMap::new(), Vec::new());
    let (mut family, mut helped) = (String::new(), String::new());
    let mut seen = BTreeSet::new();
    for line in page.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, text) = help.split_once(' ').expect("a text");
            assert!(!text.is_empty() && !text.contains('\\'));
            name.clone_into(&mut helped);
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').expect("a type");
            assert_eq!(name, helped, "HELP in front of TYPE");
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{kind}");
            let before = types.insert(name.to_owned(), kind.to_owned());
            assert_eq!(before, None, "{name} twice");
            name.clone_into(&mut family);
        } else {
            let sample = parse_sample(line);
            let suffixes: &[&str] = match types[&family].as_str() {
                "histogram" => &["_bucket", "_sum", "_count"],
                _ => &[""],
            };
            let its = |suffix: &&str| sample.0 == format!("{family}{suffix}");
            assert!(suffixes.iter().any(its), "{line} in {family}");
            let (name, labels) = (sample.0.clone(), sample.1.clone());
            assert!(seen.insert((name, labels)), "{line} twice");
            samples.push(sample);
        }
    }
    (types, samples)
}

fn parse_sample(line: &str) -> Sample {
    let is_name = |name: &str| {
        !name.starts_with(|c: char| c.is_ascii_digit())
            && name.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'_')
    };
    let (name, mut rest) = line.split_once('{').expect("labels");
    assert!(is_name(name), "{name}");
    let mut labels = BTreeMap::new();
    loop {
        let (label, value) = rest.split_once("=\"").expect("a label");
        assert!(is_name(label), "{label}");
        let mut text = String::new();
        let mut chars = value.chars();
        loop {
            match chars.next().expect("the end of a value") {
                '"' => break,
                '\\' => text.push(match chars.next() {
                    Some('n') => '\n',
                    Some(c @ ('\\' | '"')) => c,
                    other => panic!("\\ in front of {other:?}"),
                }),
                c => text.push(c),
            }
        }
        let before = labels.insert(label.to_owned(), text);
        assert_eq!(before, None, "{label} twice");
        let behind = chars.as_str();
        match behind.strip_prefix(',') {
            Some(more) => rest = more,
            None => {
                let value = behind.strip_prefix("} ").expect("a value");
                return (name.to_owned(), labels, value.parse().expect("a number"));
            }
        }
    }
}

fn page(report: &TelemetryReport, groups: TelemetryGroups) -> String {
    let mut page = String::new();
    report.write_prometheus(&mut page, groups).unwrap();
    page
}

/// The buckets grow to the count, and there is a sum.
fn check_histograms(samples: &[Sample]) -> usize {
    let mut histograms = 0;
    for (name, labels, count) in samples {
        let Some(name) = name.strip_suffix("_count") else {
            continue;
        };
        histograms += 1;
        let without = |labels: &BTreeMap<String, String>| {
            let mut labels = labels.clone();
            labels.remove("le");
            labels
        };
        let buckets = samples
            .iter()
            .filter(|it| it.0 == format!("{name}_bucket") && without(&it.1) == *labels);
        let (mut last_le, mut last) = (-1.0, 0.0);
        for (_, labels, value) in buckets {
            let le = &labels["le"];
            let le: f64 = le.parse().unwrap();
            assert!(le > last_le && *value >= last, "{name} {le}");
            (last_le, last) = (le, *value);
        }
        assert_eq!((last_le, last), (f64::INFINITY, *count), "{name}");
        let is_sum = |it: &&Sample| it.0 == format!("{name}_sum") && it.1 == *labels;
        assert_eq!(samples.iter().filter(is_sum).count(), 1, "{name}");
    }
    histograms
}

#[test]
fn prometheus_reads_what_was_counted() {
    let hard = "a\\b\"c\nd{e}, f=\"g\u{e9}";
    let (one, other) = (sample(hard), sample(hard));
    let (types, samples) = parse(&page(&report(&[&one, &other]), TelemetryGroups::all()));
    let find = |metric: &str, id: u64, more: &[(&str, &str)]| {
        let metric = format!("fabricast_object_{metric}");
        let id = id.to_string();
        let mut labels: BTreeMap<_, _> =
            BTreeMap::from([("side", "client"), ("name", hard), ("id", id.as_str())]);
        labels.extend(more.iter().copied());
        let is_it = |it: &&Sample| {
            let its = it.1.iter().map(|(label, value)| (&**label, &**value));
            it.0 == metric && its.eq(labels.iter().map(|(label, value)| (*label, *value)))
        };
        let found = samples.iter().find(is_it);
        found.unwrap_or_else(|| panic!("{metric} {labels:?}")).2
    };
    let get = ("operation", "get");
    for id in [one.id(), other.id()] {
        assert_eq!(find("transfers_total", id, &[get]), 2.0);
        assert_eq!(find("bytes_total", id, &[get]), 1024.0);
        assert_eq!(
            find("failures_total", id, &[get, ("kind", "deadline")]),
            1.0
        );
        assert_eq!(find("failures_total", id, &[get, ("kind", "store")]), 0.0);
        assert_eq!(find("transfer_seconds_sum", id, &[get]), 0.0004);
        let bucket = |le| find("transfer_seconds_bucket", id, &[get, ("le", le)]);
        // 100 us and 300 us.
        assert_eq!(bucket("0.000065535"), 0.0);
        assert_eq!(bucket("0.000131071"), 1.0);
        assert_eq!(bucket("0.000524287"), 2.0);
        assert_eq!(find("callback_seconds_count", id, &[]), 2.0);
        assert_eq!(find("callback_failures_total", id, &[]), 1.0);
        assert_eq!(find("tokens_total", id, &[]), 1.0);
        assert_eq!(find("rekeys_total", id, &[]), 1.0);
        assert_eq!(find("quarantines_total", id, &[]), 2.0);
        assert_eq!(find("quarantined_bytes", id, &[]), 4096.0);
    }
    assert_eq!(types["fabricast_object_quarantined_bytes"], "gauge");
    // Of each: GET, PUT and callbacks.
    assert_eq!(check_histograms(&samples), 6);
}

#[test]
fn prometheus_reads_the_groups_that_were_asked_for() {
    let telemetry = sample("groups");
    let report = report(&[&telemetry]);
    let types = |groups| {
        let (types, _) = parse(&page(&report, groups));
        types.into_keys().collect::<Vec<_>>()
    };
    assert_eq!(types(TelemetryGroups::empty()), Vec::<String>::new());
    assert_eq!(
        types(TelemetryGroups::FAILURES),
        ["fabricast_object_failures_total"]
    );
    assert_eq!(
        types(TelemetryGroups::LATENCY),
        ["fabricast_object_transfer_seconds"]
    );
    let transfers = [
        "fabricast_object_bytes_total",
        "fabricast_object_transfers_total",
    ];
    assert_eq!(types(TelemetryGroups::TRANSFERS), transfers);
    let all = types(TelemetryGroups::all()).len();
    let each = TelemetryGroups::all()
        .iter()
        .map(|group| types(group).len());
    assert_eq!(each.sum::<usize>(), all);
}

proptest! {
    #[test]
    fn prometheus_reads_any_name_and_any_times(
        name in any::<String>(),
        times in proptest::collection::vec((any::<u64>(), 0..64u32), 0..40),
    ) {
        let telemetry = Telemetry::new(ObjectSide::Server, &name);
        for (ns, shift) in times {
            telemetry.on_transfer(PUT, ns >> 40, Duration::from_nanos(ns >> shift), Ok(()));
        }
        let page = page(&report(&[&telemetry]), TelemetryGroups::all());
        // One CR would be the end of a line for `str::lines` in front of LF only.
        let (_, samples) = parse(&page);
        prop_assert!(samples.iter().all(|(_, labels, _)| labels["name"] == name));
        check_histograms(&samples);
    }
}

/// Where a writer writes to.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<SharedState>>);

#[derive(Default)]
struct SharedState {
    bytes: Vec<u8>,
    flushed: usize,
    fails: bool,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, SharedState> {
        self.0.lock().unwrap()
    }

    fn text(&self) -> String {
        String::from_utf8(self.state().bytes.clone()).unwrap()
    }
}

impl io::Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut state = self.state();
        if state.fails {
            return Err(io::Error::other("the disk is full"));
        }
        state.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let mut state = self.state();
        state.flushed = state.bytes.len();
        Ok(())
    }
}

#[test]
fn a_writer_writes_and_flushes_at_its_end_however_it_ends() {
    let _counts = sample("for the writer");
    for dropped in [false, true] {
        let shared = Shared::default();
        let config = TelemetryWriterConfig::default();
        let writer = TelemetryWriter::start(shared.clone(), config).unwrap();
        match dropped {
            true => drop(writer),
            false => writer.finish().unwrap(),
        }
        assert!(shared.text().contains("\"for the writer\""));
        let state = shared.state();
        assert_eq!(state.flushed, state.bytes.len());
        drop(state);
        // Its thread has let go of it.
        assert_eq!(Arc::strong_count(&shared.0), 1);
    }
}

#[test]
fn a_writer_writes_again_and_again() {
    let _counts = sample("again");
    let shared = Shared::default();
    let config = TelemetryWriterConfig::default()
        .format(TelemetryFormat::Prometheus)
        .groups(TelemetryGroups::TRANSFERS)
        .every(Duration::ZERO);
    let writer = TelemetryWriter::start(shared.clone(), config).unwrap();
    let written = || {
        shared
            .text()
            .matches("# TYPE fabricast_object_bytes_total")
            .count()
    };
    let end = std::time::Instant::now() + Duration::from_secs(60);
    while written() < 3 {
        assert!(std::time::Instant::now() < end, "{}", written());
        std::thread::sleep(Duration::from_millis(5));
    }
    let before = written();
    writer.finish().unwrap();
    assert!(written() > before);
    assert!(!shared.text().contains("failures"));
}

#[test]
fn a_file_that_is_replaced_has_one_report_whoever_reads_it_when() {
    let counts = sample("replaced");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("objects.prom");
    let config = TelemetryWriterConfig::default()
        .format(TelemetryFormat::Prometheus)
        .every(Duration::ZERO);
    let writer = TelemetryWriter::replace(&path, config).unwrap();
    let file = || std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(&path).unwrap());
    let (mut last, mut written) = (file(), 0);
    let end = std::time::Instant::now() + Duration::from_secs(60);
    while written < 5 {
        assert!(std::time::Instant::now() < end, "{written}");
        let (types, _) = parse(&std::fs::read_to_string(&path).unwrap());
        assert!(types.contains_key("fabricast_object_bytes_total"));
        written += usize::from(std::mem::replace(&mut last, file()) != last);
    }
    counts.on_transfer(PUT, 41, micros(1), Ok(()));
    writer.finish().unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    let (_, samples) = parse(&text);
    let put = |(name, labels, _): &&Sample| {
        name == "fabricast_object_bytes_total"
            && (labels["name"].as_str(), labels["operation"].as_str()) == ("replaced", "put")
    };
    assert_eq!(samples.iter().find(put).unwrap().2, 48.0, "the last report");
    // No temporary file is left.
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn a_file_that_can_not_be_replaced_is_an_error_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("nothing/objects.prom");
    let error = TelemetryWriter::replace(&path, TelemetryWriterConfig::default()).unwrap_err();
    assert!(
        error.to_string().contains("nothing/objects.prom"),
        "{error}"
    );
}

#[test]
fn a_writer_writes_the_groups_that_were_set_last_and_nothing_of_none() {
    let _counts = sample("groups");
    let shared = Shared::default();
    let config = TelemetryWriterConfig::default().groups(TelemetryGroups::TRANSFERS);
    let writer = TelemetryWriter::start(shared.clone(), config.clone()).unwrap();
    writer.set_groups(TelemetryGroups::LENDING);
    writer.finish().unwrap();
    let text = shared.text();
    assert!(
        text.contains("  lent: ") && !text.contains(" done, "),
        "{text}"
    );
    let shared = Shared::default();
    let writer = TelemetryWriter::start(shared.clone(), config).unwrap();
    writer.set_groups(TelemetryGroups::empty());
    writer.finish().unwrap();
    assert_eq!(shared.text(), "");
}

#[test]
fn a_writer_whose_file_fails_says_so_at_its_end() {
    let shared = Shared::default();
    shared.state().fails = true;
    let config = TelemetryWriterConfig::default().every(Duration::ZERO);
    let _counts = sample("fails");
    let writer = TelemetryWriter::start(shared.clone(), config).unwrap();
    let error = writer.finish().unwrap_err();
    assert!(error.to_string().contains("the disk is full"));
    assert_eq!(shared.state().flushed, 0);
}

/// Keeps the events of this library's statistics, field by field.
#[derive(Clone, Default)]
struct Events(Arc<Mutex<Vec<BTreeMap<String, String>>>>);

impl tracing::Subscriber for Events {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target() == TARGET
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut fields = FieldTexts::default();
        event.record(&mut fields);
        self.0.lock().unwrap().push(fields.0);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

#[derive(Default)]
struct FieldTexts(BTreeMap<String, String>);

impl tracing::field::Visit for FieldTexts {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}"));
    }
}

#[test]
fn transfers_are_events_that_metrics_layers_understand() {
    let events = Events::default();
    // With one subscriber in a process, a thread without one may turn a statement off for all.
    let _second = tracing::Dispatch::new(Events::default());
    tracing::subscriber::with_default(events.clone(), || drop(sample("told")));
    let events = events.0.lock().unwrap();
    let has = |wanted: &[(&str, &str)]| {
        let fits = |event: &BTreeMap<String, String>| {
            wanted
                .iter()
                .all(|(field, value)| event.get(*field).is_some_and(|it| it == value))
        };
        assert!(events.iter().any(fits), "{wanted:?} is not in {events:#?}");
    };
    has(&[
        ("monotonic_counter.fabricast_object_transfers", "1"),
        ("monotonic_counter.fabricast_object_bytes", "24"),
        ("histogram.fabricast_object_transfer_seconds", "0.0003"),
        ("side", "\"client\""),
        ("name", "\"told\""),
        ("operation", "\"get\""),
        ("outcome", "\"deadline\""),
    ]);
    has(&[("operation", "\"put\""), ("outcome", "\"done\"")]);
    has(&[
        ("histogram.fabricast_object_callback_seconds", "6e-5"),
        ("failed", "true"),
    ]);
    has(&[("monotonic_counter.fabricast_object_rekeys", "1")]);
    has(&[("counter.fabricast_object_quarantined_bytes", "-4096")]);
}
