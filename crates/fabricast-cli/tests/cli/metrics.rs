//! `--metrics` and `top`: what real processes count, as somebody else reads it.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::stream::{PATIENCE, Process, provider};
use crate::{program, provider::any_port};

/// A receiver that serves its metrics: its process, where it listens, and where they are.
struct Watched {
    process: Process,
    address: String,
    metrics: String,
}

/// None, after a line that says why: the test can't run.
fn watched(into: &std::path::Path, runtime: &std::path::Path) -> Option<Watched> {
    let program = program()?;
    let mut command = Command::new(program);
    command
        .args(["recv", "--listen", &any_port().to_string()])
        .args([
            "--provider",
            provider(),
            "--metrics",
            "127.0.0.1:0",
            "--dir",
        ])
        .arg(into)
        .env("XDG_RUNTIME_DIR", runtime);
    let mut process = Process::start_command(&mut command);
    let said = |pipe: &mut dyn Read, begin: &str| {
        let (mut line, mut reader) = (String::new(), BufReader::new(pipe));
        reader.read_line(&mut line).expect("text");
        let rest = line.trim_end().strip_prefix(begin);
        rest.unwrap_or_else(|| panic!("{line:?}")).to_owned()
    };
    let metrics = said(
        process.0.stderr.as_mut().expect("a pipe"),
        "metrics: http://",
    );
    let address = said(process.0.stdout.as_mut().expect("a pipe"), "listening on ");
    Some(Watched {
        process,
        address,
        metrics: metrics
            .strip_suffix("/metrics")
            .expect("the path")
            .to_owned(),
    })
}

/// The text that is served there.
fn scrape(addr: &str) -> String {
    let mut stream = TcpStream::connect(addr).expect("it listens");
    stream.set_read_timeout(Some(*PATIENCE)).expect("a timeout");
    write!(stream, "GET /metrics HTTP/1.0\r\n\r\n").expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("text");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    assert!(head.starts_with("HTTP/1.0 200 "), "{head}");
    body.to_owned()
}

/// The sum of the samples of this name whose labels have this in them.
fn sum(text: &str, name: &str, labels: &str) -> f64 {
    let lines = text
        .lines()
        .filter(|line| line.starts_with(&format!("{name}{{")));
    let lines = lines.filter(|line| line.contains(labels));
    lines
        .map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap())
        .sum()
}

const BYTES: usize = 3_000_000;

#[test]
fn what_a_receiver_serves_is_what_was_sent_to_it() {
    let room = tempfile::tempdir().expect("a directory");
    fs::set_permissions(room.path(), fs::Permissions::from_mode(0o700)).expect("ours");
    let (from, to) = (room.path().join("file"), room.path().join("to"));
    fs::create_dir(&to).expect("a directory");
    fs::write(&from, vec![3; BYTES]).expect("a file");
    let Some(receiver) = watched(&to, room.path()) else {
        return;
    };
    let kept = room.path().join("sender.prom");
    let status = Command::new(program().expect("it is there"))
        .args(["send", "--provider", provider(), "--to", &receiver.address])
        .arg("--metrics")
        .args([&kept, &from])
        .stdout(Stdio::null())
        .status()
        .expect("it runs");
    assert!(status.success());
    // The receiver counts its end a moment after it has told the sender.
    let end = Instant::now() + *PATIENCE;
    let text = loop {
        let text = scrape(&receiver.metrics);
        if sum(&text, "fabricast_stream_ended_total", "complete") == 1.0 || Instant::now() > end {
            break text;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let all = BYTES as f64;
    assert_eq!(
        sum(
            &text,
            "fabricast_stream_begun_total",
            "kind=\"stream_receiver\""
        ),
        1.0
    );
    assert_eq!(
        sum(
            &text,
            "fabricast_stream_ended_total",
            "outcome=\"complete\""
        ),
        1.0
    );
    assert_eq!(sum(&text, "fabricast_stream_content_bytes_total", ""), all);
    // With some bytes of the journal.
    let written = sum(&text, "fabricast_file_bytes_total", "direction=\"write\"");
    assert!((all..all + 4096.0).contains(&written), "{written}");
    assert!(
        sum(
            &text,
            "fabricast_endpoint_received_bytes_total",
            "kind=\"duplex\""
        ) >= all
    );
    let sent = fs::read_to_string(&kept).expect("the sender's file");
    assert!(sent.ends_with("# EOF\n"));
    assert_eq!(sum(&sent, "fabricast_stream_sent_bytes_total", ""), all);
    assert_eq!(
        sum(&sent, "fabricast_file_bytes_total", "direction=\"read\""),
        all
    );

    checked_by_promtool(&text);
    top_shows_it(&receiver, room.path());
}

/// In lines of 80 columns at most, and as JSON; found by the number of the process, too.
fn top_shows_it(receiver: &Watched, runtime: &std::path::Path) {
    let top = |words: &[&str]| {
        let output = Command::new(program().expect("it is there"))
            .args(["top", "--once", "--interval", "0.1"])
            .args(words)
            .env("XDG_RUNTIME_DIR", runtime)
            .output()
            .expect("it runs");
        let err = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{words:?}: {err}");
        String::from_utf8(output.stdout).expect("text")
    };
    let shown = top(&[&receiver.metrics]);
    for word in [
        "ENDPOINTS",
        "duplex-1",
        "STREAMS",
        "stream_receiver-1",
        "POOLS",
    ] {
        assert!(shown.contains(word), "{word}: {shown}");
    }
    assert!(
        shown.lines().all(|line| line.chars().count() <= 80),
        "{shown}"
    );
    let pid = receiver.process.0.id().to_string();
    let shown = top(&["--pid", &pid, "--json"]);
    let object: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
    assert_eq!(object["type"], "top");
    assert!(
        object["tables"]["streams"]
            .as_array()
            .is_some_and(|it| !it.is_empty())
    );
}

#[test]
fn top_says_why_it_shows_nothing() {
    let Some(program) = program() else {
        return;
    };
    let nowhere = crate::provider::nobodys_port().to_string();
    let own = std::process::id().to_string();
    for words in [["--once", nowhere.as_str()], ["--pid", own.as_str()]] {
        let output = Command::new(&program)
            .arg("top")
            .args(words)
            .output()
            .expect("it runs");
        assert_eq!(output.status.code(), Some(3), "{words:?}: {output:?}");
        assert!(!output.stderr.is_empty());
    }
    let output = Command::new(&program).arg("top").output().expect("it runs");
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn an_address_that_is_taken_is_said_before_anything_begins() {
    let Some(program) = program() else {
        return;
    };
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("listens");
    let addr = taken.local_addr().expect("bound").to_string();
    let output = Command::new(program)
        .args(["recv", "--listen", "127.0.0.1:0", "--metrics", &addr])
        .output()
        .expect("it runs");
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{err}");
    assert!(err.contains(&addr), "{err}");
}

/// `promtool check metrics` of what was served, and `check rules` of the alerts.
fn checked_by_promtool(text: &str) {
    let tool = || {
        let mut tool = Command::new("promtool");
        tool.stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        tool
    };
    let Ok(mut check) = tool().args(["check", "metrics"]).spawn() else {
        println!("SKIPPED: no promtool (Debian: apt install prometheus)");
        return;
    };
    // It reads the older text, which has no units and another end, and calls a counter by all of
    // its name.
    let mut older = String::new();
    let mut counters = std::collections::BTreeSet::new();
    for line in text.lines() {
        if let Some(name) = line
            .strip_prefix("# TYPE ")
            .and_then(|it| it.strip_suffix(" counter"))
        {
            counters.insert(name);
        }
        let words: Vec<_> = line.splitn(4, ' ').collect();
        match words.as_slice() {
            ["#", "UNIT" | "EOF", ..] => {}
            ["#", "TYPE", name, "info"] => older.push_str(&format!("# TYPE {name}_info gauge\n")),
            ["#", "HELP", "fabricast_build", rest] => {
                older.push_str(&format!("# HELP fabricast_build_info {rest}\n"))
            }
            ["#", what, name, rest]
                if counters.contains(name) || (*what == "HELP" && counters.contains(name)) =>
            {
                older.push_str(&format!("# {what} {name}_total {rest}\n"));
            }
            _ => {
                older.push_str(line);
                older.push('\n');
            }
        }
    }
    check
        .stdin
        .take()
        .expect("a pipe")
        .write_all(older.as_bytes())
        .expect("it reads");
    let output = check.wait_with_output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    // 3: what it would call otherwise. Wrong text is 1.
    assert!(matches!(output.status.code(), Some(0 | 3)), "{said}");
    assert!(!said.contains("error"), "{said}");
    let rules = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics/alerts.yml");
    let output = tool()
        .args(["check", "rules", rules])
        .output()
        .expect("it runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stdout)
    );
}
