//! `object`: a server and clients as processes, over what this machine's libfabric has.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::patience::patient;

/// The demo's lines, as JSON.
fn demo(words: &[&str]) -> Option<Vec<Value>> {
    let program = crate::example("object")?;
    let output = Command::new(program)
        .args(["demo", "--json"])
        .args(words)
        .output()
        .expect("it runs");
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    if err.contains("no provider") {
        println!("SKIPPED: {err}");
        return None;
    }
    assert!(output.status.success(), "{out}{err}");
    let line = |line: &str| serde_json::from_str(line).expect("JSON");
    Some(out.lines().map(line).collect())
}

#[test]
fn what_is_put_is_listed_and_comes_back() {
    for words in [
        &["--bytes", "1500001"][..],
        &["--bytes", "1", "--provider", "shm"],
    ] {
        let Some(lines) = demo(words) else {
            continue;
        };
        let bytes: u64 = words[1].parse().expect("a number");
        let [put, listed, got, deleted] = &lines[..] else {
            panic!("{lines:?}");
        };
        for (line, operation) in [(put, "put"), (got, "get"), (deleted, "delete")] {
            assert_eq!(line["operation"], operation);
        }
        assert_eq!(put["etag"], got["etag"]);
        assert_eq!(
            (&put["checked"], &got["checked"]),
            (&true.into(), &true.into())
        );
        for (line, field) in [
            (put, "moved_bytes"),
            (got, "moved_bytes"),
            (listed, "size_bytes"),
        ] {
            assert_eq!(line[field], bytes, "{field}");
        }
    }
}

/// A server with metrics, ended when it is dropped.
struct Serving(std::process::Child);

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn the_metrics_file_stays_one_report() {
    let Some(program) = crate::example("object") else {
        return;
    };
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("m.prom");
    let child = Command::new(program)
        .args(["serve", "--listen", "127.0.0.1:0", "--dir"])
        .arg(dir.path().join("data"))
        .arg("--metrics")
        .arg(&path)
        .stdout(Stdio::null())
        .spawn();
    let mut serving = Serving(child.expect("it starts"));
    let end = Instant::now() + patient(Duration::from_secs(60));
    let mut seen = BTreeSet::new();
    // Each report is a file of its own, or is longer than those before it.
    while seen.len() < 3 {
        assert!(Instant::now() < end, "{} reports", seen.len());
        assert_eq!(serving.0.try_wait().expect("it is our child"), None);
        std::thread::sleep(Duration::from_millis(20));
        let Ok(file) = fs::metadata(&path) else {
            continue;
        };
        if seen.insert((file.mtime(), file.mtime_nsec())) {
            let text = fs::read_to_string(&path).expect("a file");
            let mut heads = BTreeSet::new();
            for line in text.lines().filter(|line| line.starts_with('#')) {
                let name: Vec<_> = line.split(' ').take(3).collect();
                assert!(heads.insert(name), "second line for a metric: {line}");
            }
            assert!(!heads.is_empty() || text.is_empty(), "{text}");
        }
    }
}
