use serde_json::json;

use super::*;
use crate::bench::report::case::{Metric, Who};
use crate::bench::report::contents::Contents;
use crate::bench::report::{csv, text};

fn parsed(text: &str) -> Result<Results, String> {
    parse("a.jsonl".to_owned(), text.as_bytes()).map_err(|failure| failure.to_string())
}

fn case() -> Value {
    json!({
        "kind": "case", "op": "send", "size_bytes": 65536, "depth": 16, "pack": null,
        "pairs_of_processes": 1, "directions": 1, "subscribers": null, "path": "host",
        "gb_per_s": 5.1, "msgs_per_s": 77820.0, "cpu_s_per_gb": 0.39, "bare_gb_per_s": 5.0,
        "pairs": 2, "ratio": 1.02, "ratio_lo": 1.0, "ratio_hi": 1.04,
        "runs": [{"gb_per_s": 5.0, "bare_gb_per_s": 5.0}, {"gb_per_s": 5.2}],
        "percentiles": [[100.0, 90.0], [50.0, 12.5]], "unknown": {"key": [1]},
    })
}

fn facts() -> Value {
    json!({
        "kind": "facts", "format": 1, "at": "2026-11-26T22:40:00Z", "command": "fabricast bench",
        "provider": "tcp", "loopback": true, "seconds": 1.0, "pairs": 2, "notes": ["a note"],
        "nodes": [
            {"role": "client", "host": "one", "cores": 2, "pinned": [0, 1], "address": "[::1]:1"},
            {"role": "server", "host": "two", "cores": 2},
        ],
    })
}

#[test]
fn what_a_file_says_is_read() {
    let text = format!(
        "{}\n\n{}\n{}\n",
        facts(),
        case(),
        json!({"kind": "later", "x": 1})
    );
    let results = parsed(&text).expect("it is right");
    assert_eq!(results.facts.nodes[0].0, "client");
    let about = &results.facts.nodes[0].1;
    assert!(
        about.contains(&("pinned".to_owned(), "0, 1".to_owned())),
        "{about:?}"
    );
    assert_eq!(results.facts.notes, ["a note"]);
    let [case] = &results.cases[..] else {
        panic!("{results:?}")
    };
    assert_eq!(case.part(), "send, depth 16");
    let ours = case.figure(Who::Ours, Metric::Bandwidth).expect("measured");
    assert_eq!(
        (ours.value, ours.low, ours.high, ours.runs),
        (5.1, 5.0, 5.2, 2)
    );
    let rate = case
        .figure(Who::Ours, Metric::MessageRate)
        .expect("measured");
    assert_eq!(rate.runs, 1);
    assert!(case.figure(Who::Bare, Metric::ProcessorTime).is_none());
    assert_eq!(case.percentiles(Who::Ours), [(50.0, 12.5), (100.0, 90.0)]);
    // Null is what was not measured, and so is what is not there.
    assert!(case.skipped.is_none());
}

#[test]
fn lines_of_the_bench_of_the_sources_are_read_too() {
    let mut line = case();
    line.as_object_mut().expect("an object").remove("kind");
    line["provider"] = "tcp".into();
    let results = parsed(&line.to_string()).expect("it is right");
    assert_eq!(
        results.facts.common,
        [("provider".to_owned(), "tcp".to_owned())]
    );
}

#[test]
fn what_is_wrong_is_named_with_its_line_and_limit() {
    let with = |key: &str, value: Value| {
        let mut line = case();
        line[key] = value;
        format!("{}\n{line}", facts())
    };
    let many: Vec<_> = (0..10_001).map(|_| json!({})).collect();
    let cases = [
        (String::new(), "no case in it"),
        (
            "{".to_owned(),
            "line 1: it is no JSON, from its byte 1 on: EOF while parsing an object",
        ),
        ("\u{0}\u{0}".to_owned(), "line 1: it is no JSON"),
        (format!("{}\n[]", facts()), "line 2: it is no object"),
        ("{}".to_owned(), "line 1: it has no \"kind\""),
        (
            format!("{}\n{}", facts(), facts()),
            "line 2: a second line of facts",
        ),
        (
            r#"{"kind":"facts","format":2}"#.to_owned(),
            "reads format 1",
        ),
        (
            format!("{}\n\n{}", case(), case()),
            "line 3: send, depth 16 with 65536 bytes is in line 1",
        ),
        (with("op", 5.into()), "line 2: \"op\" is no text"),
        (with("op", Value::Null), "line 2: it has no \"op\""),
        (
            with("op", "x".repeat(1001).into()),
            "longer than 1000 letters",
        ),
        (with("size_bytes", Value::Null), "it has no \"size_bytes\""),
        (
            with("gb_per_s", (-1).into()),
            "line 2: \"gb_per_s\" is -1, and must be 0 or more",
        ),
        (with("gb_per_s", "5".into()), "\"gb_per_s\" is no number"),
        (
            r#"{"kind":"case","op":"a","size_bytes":1e999}"#.to_owned(),
            "number out of range",
        ),
        (
            r#"{"kind":"case","op":"a","size_bytes":NaN}"#.to_owned(),
            "it is no JSON",
        ),
        (
            with("ratio_lo", 2.into()),
            "ratio 1.02 is not between ratio_lo 2",
        ),
        (
            with("runs", json!([{"gb_per_s": -2}])),
            "run 1: \"gb_per_s\" is -2",
        ),
        (with("runs", json!([7])), "run 1: it is no object"),
        (with("runs", many.into()), "more than 10000"),
        (
            with("percentiles", json!([[50, 1, 2]])),
            "each is [percent, microseconds]",
        ),
        (
            with("percentiles", json!([[101, 1]])),
            "percent is 0 to 100",
        ),
        (
            with("percentiles", json!([[50, 9], [99, 1]])),
            "a higher percentile is a shorter time",
        ),
        (
            "x".repeat(1 << 20) + "x",
            "line 1: it is longer than 1048576 bytes",
        ),
        ("[".repeat(100_000), "line 1: it is no JSON"),
    ];
    for (text, why) in cases {
        let error = parsed(&text).expect_err(why);
        assert!(
            error.starts_with("a.jsonl") && error.contains(why),
            "{why}: {error}"
        );
    }
    let mut text = String::new();
    for size in 0..=10_000 {
        let mut line = json!({"kind": "case", "op": "send"});
        line["size_bytes"] = size.into();
        text += &format!("{line}\n");
    }
    let error = parsed(&text).expect_err("one case too many");
    assert_eq!(
        error,
        "a.jsonl, line 10001: there are more than 10000 cases"
    );
}

#[test]
fn ten_thousand_cases_give_a_report() {
    let mut text = String::new();
    for number in 0..10_000 {
        let mut line = case();
        line["op"] = format!("operation-{}", number % 100).into();
        line["size_bytes"] = (number * 37 + 1).into();
        text += &format!("{line}\n");
    }
    let results = [parsed(&text).expect("it is right")];
    let contents = Contents::of(&results);
    assert_eq!(contents.parts.len(), 100);
    assert!(text::of(&contents).contains("There are charts for the first 60 settings only."));
    let html = contents.page().html();
    assert!(html.len() < 50 << 20, "{} bytes", html.len());
    assert!(html.contains("Percentiles are drawn for one in 13 sizes."));
    let rows = csv::table(&results)
        .lines()
        .filter(|line| !line.starts_with('#'))
        .count();
    assert_eq!(rows, 10_001);
}

#[test]
fn a_page_of_a_hostile_file_is_only_text() {
    let hostile = "</title><script>alert(1)</script>\u{1b}[2J,\"x\"";
    let mut line = case();
    line["op"] = hostile.into();
    line["path"] = hostile.into();
    let mut head = facts();
    head["provider"] = hostile.into();
    head["nodes"][0]["host"] = hostile.into();
    head["notes"][0] = hostile.into();
    let mut skipped = line.clone();
    skipped["size_bytes"] = 1.into();
    skipped["skipped"] = hostile.into();
    let results = [parsed(&format!("{head}\n{line}\n{skipped}")).expect("it is right")];
    let contents = Contents::of(&results);
    let html = contents.page().html();
    assert!(!html.contains("<script"), "{html}");
    let shown = text::of(&contents);
    assert!(shown.contains("SKIPPED: "), "{shown}");
    for line in shown.lines() {
        assert!(
            line.chars().count() <= 80 && !line.contains('\u{1b}'),
            "{line:?}"
        );
    }
    for line in csv::table(&results).lines() {
        assert!(!line.starts_with("</title"), "a cell is quoted: {line}");
    }
    for part in &contents.parts {
        for drawn in part.drawn() {
            assert!(
                drawn
                    .name
                    .bytes()
                    .all(|c| c.is_ascii_alphanumeric() || c == b'-'),
                "{}",
                drawn.name
            );
        }
    }
}
