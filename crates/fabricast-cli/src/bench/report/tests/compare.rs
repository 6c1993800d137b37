use serde_json::{Value, json};

use super::*;
use crate::bench::report::reading;

/// Numbers by chance, the same each time.
struct Chance(u64);

impl Chance {
    fn next(&mut self, below: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }

    fn runs(&mut self) -> Vec<f64> {
        let (count, middle) = (1 + self.next(14), 50 + self.next(20));
        (0..count)
            .map(|_| (middle + self.next(12)) as f64)
            .collect()
    }
}

/// The 95 % interval of a median by counting all ways in which a coin can fall; of fewer than six
/// runs the range.
fn model(runs: &[f64]) -> (f64, f64) {
    let mut sorted = runs.to_vec();
    sorted.sort_by(f64::total_cmp);
    let n = sorted.len();
    let mut outside = 0;
    for candidate in 1..=n / 2 {
        // Heads fewer than `candidate + 1` times, that is the true median beyond that value.
        let falls = (0..1u32 << n)
            .filter(|fall| fall.count_ones() as usize <= candidate)
            .count();
        if falls as f64 / f64::from(1u32 << n) <= 0.025 {
            outside = candidate;
        }
    }
    (sorted[outside], sorted[n - 1 - outside])
}

fn results(name: &str, runs: &[f64]) -> Results {
    let runs: Vec<Value> = runs.iter().map(|it| json!({ "gb_per_s": it })).collect();
    let line = json!({"kind": "case", "op": "send", "size_bytes": 64, "depth": 16, "runs": runs});
    reading::parse(name.to_owned(), line.to_string().as_bytes()).expect("it is right")
}

#[test]
fn a_change_is_named_when_the_intervals_lie_apart_and_only_then() {
    let mut chance = Chance(7);
    let mut counts = [0; 3];
    for _ in 0..150 {
        let (before, after) = (chance.runs(), chance.runs());
        let comparison = Comparison::of(&results("a", &before), &results("b", &after));
        let back = Comparison::of(&results("b", &after), &results("a", &before));
        let is_known = before.len() > 1 && after.len() > 1;
        assert_eq!(comparison.unknown, usize::from(!is_known));
        assert_eq!(comparison.compared, usize::from(is_known));
        let ((a_low, a_high), (b_low, b_high)) = (model(&before), model(&after));
        let expected = match () {
            () if !is_known => None,
            () if b_low > a_high => Some(true),
            () if b_high < a_low => Some(false),
            () => None,
        };
        let found = |it: &Comparison| {
            it.changes
                .first()
                .map(|change| change.is_better == Some(true))
        };
        assert_eq!(found(&comparison), expected, "{before:?} {after:?}");
        assert_eq!(
            found(&back),
            expected.map(|better| !better),
            "the other way round"
        );
        counts[expected.map_or(0, |better| 1 + usize::from(better))] += 1;
    }
    // All three came about.
    assert!(counts.iter().all(|count| *count > 10), "{counts:?}");
}

#[test]
fn a_file_has_not_changed_since_itself() {
    let runs = [5.0, 5.1, 5.2, 5.3, 5.4, 5.5, 9.9];
    let comparison = Comparison::of(&results("a", &runs), &results("a", &runs));
    assert!(comparison.changes.is_empty());
    assert_eq!(comparison.compared, 1);
    assert!(
        comparison.summary()[0].starts_with("Nothing has changed"),
        "{:?}",
        comparison.summary()
    );
}

fn line(op: &str, figures: &[(&str, [f64; 2])]) -> String {
    let mut line = json!({"kind": "case", "op": op, "size_bytes": 4096, "depth": 1});
    let run = |n: usize| -> Value {
        let fields = figures
            .iter()
            .map(|(key, runs)| ((*key).to_owned(), json!(runs[n])));
        Value::Object(fields.collect())
    };
    line["runs"] = json!([run(0), run(1)]);
    line.to_string()
}

#[test]
fn less_time_is_better_and_less_bandwidth_is_worse() {
    let parse = |name: &str, text: &str| {
        reading::parse(name.to_owned(), text.as_bytes()).expect("it is right")
    };
    let before = [
        line("pingpong", &[("p50_us", [10.0, 11.0])]),
        line(
            "send",
            &[
                ("gb_per_s", [5.0, 5.1]),
                ("msgs_per_s", [5.0, 5.1]),
                ("cpu_s_per_gb", [1.0, 1.1]),
            ],
        ),
        line(
            "rdm",
            &[("bare_gb_per_s", [1.0, 1.1]), ("gb_per_s", [1.0, 3.0])],
        ),
        line("gone", &[]),
    ];
    let after = [
        line("pingpong", &[("p50_us", [8.0, 9.0])]),
        line(
            "send",
            &[
                ("gb_per_s", [4.0, 4.1]),
                ("msgs_per_s", [4.0, 4.1]),
                ("cpu_s_per_gb", [1.2, 1.3]),
            ],
        ),
        line(
            "rdm",
            &[("bare_gb_per_s", [2.0, 2.1]), ("gb_per_s", [2.0, 2.1])],
        ),
        line("new", &[]),
    ];
    let comparison = Comparison::of(
        &parse("a", &before.join("\n")),
        &parse("b", &after.join("\n")),
    );
    let sentences: Vec<_> = comparison
        .changes
        .iter()
        .map(|it| it.sentence(["A", "B"]))
        .collect();
    assert_eq!(
        sentences,
        [
            "pingpong, depth 1, 4 KiB: median latency 10.5 us [10.0, 11.0] in A, 8.50 us [8.00, \
             9.00] in B: -19 %, better",
            "send, depth 1, 4 KiB: bandwidth 5.05 GB/s [5.00, 5.10] in A, 4.05 GB/s [4.00, 4.10] \
             in B: -20 %, worse",
            "send, depth 1, 4 KiB: processor time 1.05 CPU seconds per GB [1.00, 1.10] in A, 1.25 \
             CPU seconds per GB [1.20, 1.30] in B: +19 %, worse",
            "rdm, depth 1, 4 KiB: the bare loop's bandwidth 1.05 GB/s [1.00, 1.10] in A, 2.05 GB/s \
             [2.00, 2.10] in B: +95 %",
        ]
    );
    assert_eq!(
        comparison.only,
        [["gone, depth 1, 4 KiB"], ["new, depth 1, 4 KiB"]]
    );
    assert_eq!(comparison.table(["A", "B"]).rows.len(), 4);
}
