//! `bench report` of files as `bench --json` writes them.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

fn run(dir: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fabricast"));
    command
        .args(["bench", "report"])
        .args(words)
        .current_dir(dir);
    command.stdin(Stdio::null()).output().expect("it runs")
}

fn out(dir: &Path, words: &[&str]) -> String {
    let output = run(dir, words);
    assert!(output.status.success(), "{words:?}: {output:?}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Results on a machine with this kernel, so many times as fast as others.
fn results(kernel: &str, factor: f64) -> String {
    let facts = json!({
        "kind": "facts", "format": 1, "at": "2026-11-26T22:40:00Z",
        "command": "fabricast bench --local --json a.jsonl", "provider": "tcp", "loopback": true,
        "seconds": 1.0, "pairs": 9, "notes": ["gpu: SKIPPED: this machine has no CUDA"],
        "nodes": [
            {"role": "client", "host": "node-one", "kernel": kernel, "cpu": "a CPU", "cores": 2},
            {"role": "server", "host": "node-two", "kernel": kernel, "cpu": "a CPU", "cores": 2},
        ],
    });
    let mut lines = vec![facts];
    for (number, size) in [64.0, 4096.0, 65_536.0, 1_048_576.0]
        .into_iter()
        .enumerate()
    {
        let rate = factor * 6.0 * size / (size + 40_000.0);
        let runs = |n: u32| {
            let spread = 1.0 + 0.005 * f64::from(n);
            json!({
                "gb_per_s": rate * spread, "msgs_per_s": 1e9 * rate * spread / size,
                "cpu_s_per_gb": 1.9 / rate, "bare_gb_per_s": 0.98 * rate,
                "bare_cpu_s_per_gb": 2.0 / rate,
            })
        };
        lines.push(json!({
            "kind": "case", "op": "send", "size_bytes": size, "depth": 16, "path": "host",
            "gb_per_s": rate * 1.02, "msgs_per_s": 1e9 * rate * 1.02 / size, "pairs": 9,
            "ratio": 1.04, "ratio_lo": 1.02, "ratio_hi": 1.06,
            "runs": (0..9).map(runs).collect::<Vec<Value>>(),
        }));
        let us = (10.0 + size / 4000.0) / factor;
        lines.push(json!({
            "kind": "case", "op": "pingpong", "size_bytes": size, "depth": 1, "p50_us": us,
            "p99_us": 2.0 * us, "p999_us": 4.0 * us, "bare_p50_us": 0.9 * us, "ratio": 1.1,
            "percentiles": [[50.0, us], [99.0, 2.0 * us], [99.9, 4.0 * us], [100.0, 9.0 * us]],
            "bare_percentiles": [[50.0, 0.9 * us], [99.99, (7 + number) as f64 * us]],
        }));
    }
    lines.push(json!({
        "kind": "case", "op": "gpu", "size_bytes": 65536, "skipped": "this machine has no CUDA",
    }));
    lines.iter().map(|line| format!("{line}\n")).collect()
}

#[test]
fn one_file_is_text_a_page_pictures_and_csv() {
    let dir = tempfile::tempdir().expect("a directory");
    let at = dir.path();
    fs::write(at.join("a.jsonl"), results("6.1", 1.0)).expect("written");
    let text = out(at, &["a.jsonl"]);
    for part in [
        "fabricast bench: a.jsonl",
        "host node-one",
        "send, depth 16",
        "Medians of 9 runs, with the 95 % interval of the median.",
        "pingpong, depth 1",
        "SKIPPED: gpu, 64 KiB: this machine has no CUDA",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    for line in text.lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
    let words = [
        "a.jsonl", "--html", "a.html", "--svg", "pictures", "--csv", "a.csv",
    ];
    assert_eq!(
        out(at, &words),
        "",
        "what is written into files is not printed"
    );
    let html = fs::read_to_string(at.join("a.html")).expect("a page");
    assert!(
        html.contains("Bandwidth: send, depth 16") && !html.contains("<script"),
        "{html}"
    );
    let pictures = fs::read_dir(at.join("pictures"))
        .expect("a directory")
        .count();
    assert_eq!(pictures, html.matches("<svg ").count());
    // Bandwidth, messages and processor time; the median, and percentiles of four sizes.
    assert_eq!(pictures, 3 + 1 + 4);
    let csv = fs::read_to_string(at.join("a.csv")).expect("a table");
    let mut rows = csv.lines().filter(|line| !line.starts_with('#'));
    assert!(
        rows.next()
            .is_some_and(|head| head.starts_with("op,size_bytes,depth,")),
        "{csv}"
    );
    assert_eq!(rows.count(), 9);
}

#[test]
fn of_two_files_it_is_said_what_has_changed_and_what_differs_besides() {
    let dir = tempfile::tempdir().expect("a directory");
    let at = dir.path();
    fs::write(at.join("a.jsonl"), results("6.1", 1.0)).expect("written");
    let later = results("6.18", 1.5).replace("node-two", "node-three");
    fs::write(at.join("b.jsonl"), later).expect("written");
    let text = out(at, &["a.jsonl", "b.jsonl"]);
    // Words behind each other, wherever a line ends.
    let words: Vec<_> = text.split_whitespace().collect();
    let words = words.join(" ");
    for part in [
        "A is a.jsonl",
        "These are figures of different machines.",
        "client: kernel is 6.1 in A, 6.18 in B",
        "server: host is node-two in A, node-three in B",
        "send, depth 16, 1 MiB: bandwidth 5.90 GB/s [5.81, 5.98] in A, 8.84 GB/s [8.71, 8.97] in \
         B: +50 %, better",
        "send, depth 16, 64 B: the bare loop's bandwidth",
        "12 of 16 figures have changed",
        "figures are of a single run in one of the files",
    ] {
        assert!(words.contains(part), "{part}: {text}");
    }
    for line in text.lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
    let same = out(at, &["a.jsonl", "a.jsonl"]);
    assert!(
        same.contains("Nothing has changed beyond the intervals"),
        "{same}"
    );
    assert!(!same.contains("different machines"), "{same}");
    out(
        at,
        &[
            "a.jsonl",
            "b.jsonl",
            "--html",
            "both.html",
            "--csv",
            "both.csv",
        ],
    );
    let html = fs::read_to_string(at.join("both.html")).expect("a page");
    for part in [
        "fabricast, A",
        "bare loop, B",
        "What has changed",
        "<td>better</td>",
    ] {
        assert!(html.contains(part), "{part}");
    }
    let csv = fs::read_to_string(at.join("both.csv")).expect("a table");
    assert!(csv.contains("\nb.jsonl,send,"), "{csv}");
}

#[test]
fn what_can_t_be_read_or_written_is_named() {
    let dir = tempfile::tempdir().expect("a directory");
    let at = dir.path();
    fs::write(at.join("a.jsonl"), results("6.1", 1.0)).expect("written");
    fs::write(
        at.join("bad.jsonl"),
        "{\"kind\":\"facts\"}\n{\"kind\":\"case\",\"op\":1}\n",
    )
    .expect("written");
    for (words, code, why) in [
        (&["none.jsonl"][..], 1, "none.jsonl: No such file"),
        (&["bad.jsonl"], 1, "bad.jsonl, line 2: \"op\" is no text"),
        (
            &["a.jsonl", "--html", "no/such/dir.html"],
            6,
            "no/such/dir.html: No such file",
        ),
        (&["a.jsonl", "--svg", "a.jsonl"], 6, "a.jsonl: "),
        (&["-", "-"], 2, "standard input can be read once"),
        (&["a.jsonl", "a.jsonl", "a.jsonl"], 2, "unexpected value"),
        (&[], 2, "<FILE>"),
    ] {
        let output = run(at, words);
        let err = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{words:?}: {err}");
        assert!(
            err.contains(why) && output.stdout.is_empty(),
            "{words:?}: {err}"
        );
    }
}
