//! docs/guide/metrics.md, the alerts and the dashboard say what there is.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;

use super::super::*;

/// The table of the page.
fn table() -> String {
    let mut table = String::from("| metric | type | labels | what it is |\n|---|---|---|---|\n");
    for metric in all() {
        let labels = match metric.labels {
            [] => String::new(),
            labels => format!("`{}`", labels.join("`, `")),
        };
        let (name, kind, help) = (metric.name, metric.kind.label(), metric.help);
        let _ = writeln!(table, "| `{name}` | {kind} | {labels} | {help} |");
    }
    table
}

fn path(of: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(of)
}

fn read(of: &str) -> String {
    std::fs::read_to_string(path(of)).expect(of)
}

/// With FABRICAST_WRITE_DOCS=1 it is written instead.
#[test]
fn the_page_has_the_table_of_the_metrics() {
    const PAGE: &str = "docs/guide/metrics.md";
    let page = read(PAGE);
    let (begin, end) = ("<!-- metrics: begin -->\n", "<!-- metrics: end -->\n");
    let (before, rest) = page.split_once(begin).expect("the table's beginning");
    let (found, after) = rest.split_once(end).expect("the table's end");
    if std::env::var_os("FABRICAST_WRITE_DOCS").is_some() {
        let page = format!("{before}{begin}\n{}\n{end}{after}", table());
        std::fs::write(path(PAGE), page).expect("the page can be written");
        return;
    }
    assert_eq!(
        found.trim(),
        table().trim(),
        "FABRICAST_WRITE_DOCS=1 cargo test --lib metrics writes it"
    );
}

/// Words that begin as our metrics do, without what the text puts behind them.
fn metrics_in(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == ':'));
    let ours = words.filter(|word| word.starts_with("fabricast_"));
    let bare = ours.map(|word| {
        let suffixes = ["_total", "_bucket", "_count", "_sum", "_info"];
        let cut = suffixes
            .into_iter()
            .find_map(|suffix| word.strip_suffix(suffix));
        cut.unwrap_or(word).to_owned()
    });
    bare.collect()
}

#[test]
fn alerts_and_dashboard_name_metrics_that_there_are() {
    let mut known: BTreeSet<String> = all().into_iter().map(|it| it.name.to_owned()).collect();
    known.insert("fabricast_build".to_owned());
    for of in ["docs/metrics/alerts.yml", "docs/metrics/dashboard.json"] {
        let used = metrics_in(&read(of));
        assert!(used.len() >= 10, "{of}: {used:?}");
        let unknown: Vec<_> = used.difference(&known).collect();
        assert_eq!(unknown, Vec::<&String>::new(), "{of}");
    }
}

/// A sample of a counter ends in `_total`, and of a gauge does not.
#[test]
fn alerts_and_dashboard_name_samples_as_the_text_does() {
    for of in ["docs/metrics/alerts.yml", "docs/metrics/dashboard.json"] {
        let text = read(of);
        for metric in all() {
            let samples = text.match_indices(metric.name).filter_map(|(at, _)| {
                let rest = &text[at + metric.name.len()..];
                let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
                let suffix = &rest[..end.unwrap_or(rest.len())];
                // Of a longer name this is another metric.
                ["", "_total", "_bucket", "_count", "_sum"]
                    .contains(&suffix)
                    .then_some(suffix)
            });
            for suffix in samples {
                let is_right = match metric.kind {
                    MetricType::Counter => suffix == "_total",
                    MetricType::Gauge => suffix.is_empty(),
                    MetricType::Histogram => !suffix.is_empty() && suffix != "_total",
                };
                assert!(is_right, "{of}: {}{suffix}", metric.name);
            }
        }
    }
}

#[test]
fn the_dashboard_is_json_and_each_panel_asks_something() {
    let dashboard: serde_json::Value =
        serde_json::from_str(&read("docs/metrics/dashboard.json")).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    assert!(!panels.is_empty());
    for panel in panels.iter().filter(|panel| panel["type"] != "row") {
        let targets = panel["targets"].as_array().expect("targets");
        assert!(!targets.is_empty(), "{}", panel["title"]);
        for target in targets {
            let asked = target["expr"].as_str().expect("an expression");
            assert!(asked.contains("fabricast"), "{asked}");
        }
    }
}
