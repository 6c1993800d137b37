//! `fabricast bench`: real processes on this machine, and where there can be some, in two network
//! namespaces.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::far::{end_of, plain_shell, shell_in, text};
use crate::machines::Machines;
use crate::program;
use crate::provider::{any_port, nobodys_port, node};
use crate::stream::{PATIENCE, Process, Running, provider, temp};

/// A short measurement: `more` says of what, and where.
fn bench(program: &Path, more: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(["bench", "--seconds", "0.02", "--runs", "1"]);
    command.args(["--provider", provider()]).args(more);
    command
}

fn local(program: &Path, more: &[&str]) -> Command {
    let mut command = bench(program, &["--local", "--node", node()]);
    command.args(more);
    command
}

fn records(text: &str) -> Vec<Value> {
    let lines = text.lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect()
}

/// The facts, and the cases.
#[track_caller]
fn measured(text: &str) -> (Value, Vec<Value>) {
    let mut all = records(text);
    assert!(!all.is_empty(), "nothing was written");
    let facts = all.remove(0);
    assert_eq!(facts["kind"], "facts", "{facts}");
    for case in &all {
        assert_eq!(case["kind"], "case", "{case}");
    }
    (facts, all)
}

fn key(dir: &TempDir, name: &str, byte: u8) -> PathBuf {
    let path = dir.path().join(name);
    fs::write(&path, [byte; 32]).expect("room");
    path
}

/// A server with a key, at a port that the system chooses.
fn server(program: &Path, at: &str, key: &Path, more: &[&str]) -> Running {
    let mut command = Command::new(program);
    command.args(["bench", "--listen", at, "--key", text(key)]);
    Running::start_command(command.args(more))
}

const OPERATIONS: [&str; 9] = [
    "send",
    "packed",
    "pingpong",
    "latency",
    "coalesced",
    "rma-write",
    "rma-read",
    "publish",
    "stream",
];

/// Those over endpoints without connections, by the provider that has them.
const WITHOUT_CONNECTIONS: [&str; 4] = ["rdm", "object-get", "object-put", "object-request"];

fn assert_measured(case: &Value) {
    let op = case["op"].as_str().expect("a name");
    assert_eq!(case["skipped"], Value::Null, "{case}");
    let is_rate = |key: &str| case[key].as_f64().is_some_and(|rate| rate > 0.0);
    assert!(is_rate("gb_per_s") && is_rate("msgs_per_s"), "{case}");
    assert!(is_rate("cpu_s_per_gb"), "{case}");
    let has_bare = !["latency", "stream"].contains(&op);
    assert_eq!(is_rate("bare_gb_per_s"), has_bare, "{case}");
    assert_eq!(is_rate("ratio"), has_bare, "{case}");
    let runs = case["runs"].as_array().expect("runs");
    assert_eq!(runs.len(), 1);
    assert!(runs[0]["gb_per_s"].is_f64(), "{case}");
    assert_eq!(runs[0]["bare_gb_per_s"].is_f64(), has_bare, "{case}");
    let is_timed = ["pingpong", "latency", "coalesced", "object-request"].contains(&op);
    let percentiles = &case["percentiles"];
    assert_eq!(percentiles.is_array(), is_timed, "{case}");
    if let Some(all) = percentiles.as_array() {
        let points: Vec<_> = all.iter().map(|it| (&it[0], &it[1])).collect();
        assert_eq!(points[0].0, 50.0);
        assert_eq!(points[points.len() - 1].0, 100.0);
        assert!(points.is_sorted_by_key(|(_, us)| us.as_f64()), "{case}");
    }
}

#[test]
fn each_operation_is_measured_on_this_machine() {
    let Some(program) = program() else { return };
    let dir = temp();
    let [json, csv, html] = ["a.jsonl", "a.csv", "a.html"].map(|name| dir.path().join(name));
    let all = OPERATIONS.join(",");
    let options = ["--op", &all, "--json", text(&json), "--csv", text(&csv)];
    // A block of a stream has more bytes than a packed message.
    let mut command = local(&program, &options);
    let ended = end_of(command.args(["--size", "64,8K", "--html", text(&html)]));
    ended.assert_ok();
    let page = fs::read_to_string(&html).expect("written");
    assert!(
        page.contains("<svg") && page.contains("rma-write"),
        "no chart"
    );
    let (facts, cases) = measured(&fs::read_to_string(json).expect("written"));
    assert_eq!(facts["format"], 1);
    assert_eq!(facts["loopback"], true);
    assert_eq!(facts["provider"], provider());
    for (node, role) in facts["nodes"]
        .as_array()
        .expect("two")
        .iter()
        .zip(["client", "server"])
    {
        assert_eq!(node["role"], role);
        for key in ["host", "fabricast", "libfabric", "kernel", "cpu", "device"] {
            assert!(node[key].is_string(), "{key}: {node}");
        }
        assert!(node["mtu"].as_u64() > Some(0), "{node}");
    }
    assert_eq!(cases.len(), 2 * OPERATIONS.len());
    for (at, case) in cases.iter().enumerate() {
        let (op, size) = (OPERATIONS[at / 2], [64, 8192][at % 2]);
        assert_eq!(case["op"], op);
        assert_eq!(case["size_bytes"], size);
        let row = fabricast::fabric::provider(provider()).expect("a row");
        let fits = match op {
            "packed" => size + 16 <= row.pack_below,
            "stream" => size >= 8192,
            _ => true,
        };
        match fits {
            true => assert_measured(case),
            false => assert!(
                case["skipped"].is_string() && case["gb_per_s"].is_null(),
                "{case}"
            ),
        }
        assert!(ended.stdout.contains(op), "{}", ended.stdout);
    }
    assert!(ended.stdout.contains("no bare loop"), "{}", ended.stdout);
    for line in ended.stdout.lines() {
        assert!(line.chars().count() <= 80, "{line:?}");
    }
    let csv = fs::read_to_string(csv).expect("written");
    assert!(csv.starts_with("# "), "{csv}");
    let rows = csv.lines().filter(|line| !line.starts_with('#'));
    assert_eq!(rows.count(), 1 + cases.len());
}

#[test]
fn operations_without_connections_are_measured_or_skipped_with_the_reason() {
    let Some(program) = program() else { return };
    let all = WITHOUT_CONNECTIONS.join(",");
    let mut command = Command::new(&program);
    command.args(["bench", "--local", "--seconds", "0.02", "--runs", "1"]);
    command.args(["--op", &all, "--size", "64", "--json", "-"]);
    let ended = end_of(&mut command);
    ended.assert_ok();
    let (_, cases) = measured(&ended.stdout);
    assert_eq!(cases.len(), WITHOUT_CONNECTIONS.len());
    for (case, op) in cases.iter().zip(WITHOUT_CONNECTIONS) {
        assert_eq!(case["op"], op);
        assert_measured(case);
    }
    let options = ["--provider", "none-such", "--op", "send", "--json", "-"];
    let mut command = Command::new(&program);
    let ended = end_of(
        command
            .args(["bench", "--local", "--size", "64"])
            .args(options),
    );
    ended.assert_ok();
    let (_, cases) = measured(&ended.stdout);
    let why = cases[0]["skipped"].as_str().expect("a reason");
    assert!(why.contains("none-such"), "{why}");
}

#[test]
fn several_processes_and_both_directions_add_up() {
    let Some(program) = program() else { return };
    let options = ["--op", "send,pingpong", "--size", "1K", "--processes", "2"];
    let ended = end_of(local(&program, &options).args(["--both", "--json", "-"]));
    ended.assert_ok();
    let (facts, cases) = measured(&ended.stdout);
    assert_eq!(cases.len(), 2);
    for case in &cases {
        assert_eq!(case["pairs_of_processes"], 2);
        assert_eq!(case["directions"], 2);
        assert_measured(case);
    }
    assert!(facts["notes"].is_array());
}

#[test]
fn a_server_serves_who_has_its_key_and_nobody_else() {
    let Some(program) = program() else { return };
    let dir = temp();
    let [right, wrong] = [key(&dir, "right", 1), key(&dir, "wrong", 2)];
    let at = any_port().to_string();
    let mut server = server(&program, &at, &right, &["--once"]);
    let to = server.address.clone();
    let ask = |more: &[&str]| {
        let words = [
            &["--to", &to, "--op", "send", "--size", "64", "--json", "-"],
            more,
        ]
        .concat();
        end_of(&mut bench(&program, &words))
    };
    ask(&["--key", text(&wrong)]).assert_failed(4, "does not have the key");
    ask(&[]).assert_failed(4, "wants a key");
    // Bytes of anybody: they are answered or cut off, and nobody else has to wait for it.
    let long = vec![b'x'; 1 << 20];
    let silent = [(); 4].map(|()| TcpStream::connect(&to).expect("it listens"));
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"\0\xff\n", &long] {
        let mut stream = TcpStream::connect(&to).expect("it listens");
        stream.set_read_timeout(Some(*PATIENCE)).expect("a time");
        // It may have heard enough before it has heard all.
        let _ = stream.write_all(bytes);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.len() < 1000 && answer.starts_with(b"fabricast-bench "));
    }
    let ended = ask(&["--key", text(&right)]);
    ended.assert_ok();
    assert_measured(&measured(&ended.stdout).1[0]);
    drop(silent);
    assert!(
        server.process.status().success(),
        "--once ends after one client"
    );
}

#[test]
fn nobody_listens_beyond_loopback_without_a_key() {
    let Some(program) = program() else { return };
    for at in ["0.0.0.0:0", ":0", "[::]:0"] {
        let ended = end_of(Command::new(&program).args(["bench", "--listen", at]));
        ended.assert_failed(2, "the same --key");
    }
    let to = nobodys_port().to_string();
    end_of(&mut bench(&program, &["--to", &to])).assert_failed(3, "refused");
    end_of(&mut bench(&program, &["--to", "no-such-host.invalid"]))
        .assert_failed(2, "no known host");
    end_of(&mut bench(&program, &["host:/dir"])).assert_failed(2, "no host");
}

#[test]
fn names_and_ipv6_addresses_are_places() {
    let Some(program) = program() else { return };
    if TcpListener::bind("[::1]:0").is_err() {
        println!("SKIPPED: no IPv6 on the loopback interface");
        return;
    }
    if !fabricast::fabric::provider(provider()).is_some_and(|row| row.over_tcp) {
        println!("SKIPPED: this provider has no device at loopback addresses");
        return;
    }
    let dir = temp();
    let key = key(&dir, "key", 1);
    let ops = "send,pingpong,publish,rma-write,coalesced,latency";
    for (at, name) in [("[::1]:0", "[::1]"), ("localhost:0", "localhost")] {
        let server = server(&program, at, &key, &[]);
        let port = server.address.rsplit(':').next().expect("a port");
        let to = format!("{name}:{port}");
        let options = [
            "--to",
            &to,
            "--key",
            text(&key),
            "--op",
            ops,
            "--size",
            "64",
            "--json",
            "-",
        ];
        let ended = end_of(&mut bench(&program, &options));
        ended.assert_ok();
        let (_, cases) = measured(&ended.stdout);
        assert_eq!(cases.len(), 6);
        cases.iter().for_each(assert_measured);
    }
}

#[test]
fn a_server_is_started_by_a_shell_and_ends_with_its_client() {
    let Some(program) = program() else { return };
    let dir = temp();
    let shell = plain_shell(dir.path());
    let ask = |shell: &Path, path: &Path| {
        let words = ["host1", "--rsh", text(shell), "--remote-path", text(path)];
        let mut command = bench(&program, &words);
        command.args(["--op", "send", "--size", "64", "--json", "-"]);
        end_of(&mut command)
    };
    let ended = ask(&shell, &program);
    ended.assert_ok();
    assert_measured(&measured(&ended.stdout).1[0]);
    let hosts = fs::read_to_string(dir.path().join("hosts")).expect("the shell was called");
    assert_eq!(hosts, "host1\n");
    ask(&shell, Path::new("/no/such/fabricast")).assert_failed(3, "--remote-path");
    // Of another version: named, with what to do.
    let other = shell_in(
        dir.path(),
        r#"echo 'fabricast-far {"protocol":1,"version":"9.9.9","devices":[]}'; cat >/dev/null"#,
    );
    ask(&other, &program).assert_failed(4, "9.9.9");
}

/// The processes that this one has started.
fn children(pid: u32) -> Vec<i32> {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let text = fs::read_to_string(path).unwrap_or_default();
    text.split_whitespace()
        .map(|pid| pid.parse().expect("a number"))
        .collect()
}

#[test]
fn a_server_that_is_killed_in_the_middle_is_said_and_nothing_measured_is_lost() {
    let Some(program) = program() else { return };
    let dir = temp();
    let key = key(&dir, "key", 1);
    let json = dir.path().join("a.jsonl");
    let server = server(&program, &any_port().to_string(), &key, &[]);
    if children(std::process::id()).is_empty() {
        println!("SKIPPED: this kernel does not say which processes a process has started");
        return;
    }
    let to = server.address.clone();
    let mut command = Command::new(&program);
    command.args([
        "bench",
        "--to",
        &to,
        "--key",
        text(&key),
        "--json",
        text(&json),
    ]);
    command.args(["--provider", provider(), "--only", "ours", "--op", "send"]);
    command.args(["--size", "64,4K", "--seconds", "0.5", "--runs", "1"]);
    let client = Process::start_command(&mut command);
    let deadline = Instant::now() + *PATIENCE;
    // The first case is done, and the second one has begun.
    while fs::read_to_string(&json)
        .unwrap_or_default()
        .lines()
        .count()
        < 2
    {
        assert!(Instant::now() < deadline, "no case is done");
        std::thread::sleep(Duration::from_millis(5));
    }
    let of_server = children(server.process.0.id());
    assert_eq!(of_server.len(), 1, "one process for one client");
    // SAFETY: takes numbers only; it is a child of our child's, which has not waited for it yet.
    assert_eq!(unsafe { libc::kill(of_server[0], libc::SIGKILL) }, 0);
    client.end().assert_failed(3, "the server is gone");
    let (_, cases) = measured(&fs::read_to_string(&json).expect("written"));
    assert_eq!(cases.len(), 1);
    assert!(cases[0]["gb_per_s"].is_f64(), "{}", cases[0]);
    // Who listens goes on.
    let options = [
        "--to",
        &to,
        "--key",
        text(&key),
        "--op",
        "send",
        "--size",
        "64",
    ];
    end_of(&mut bench(&program, &options)).assert_ok();
}

#[test]
fn two_tasks_of_slurm_meet() {
    let Some(program) = program() else { return };
    let shared = temp();
    let task = |number: u32, count: u32| {
        let mut command = bench(&program, &["--slurm", text(shared.path()), "--json", "-"]);
        command.args(["--op", "send", "--size", "64"]);
        command
            .env("SLURM_PROCID", number.to_string())
            .env("SLURM_NTASKS", count.to_string())
            .env("SLURM_JOB_ID", "4711")
            .env("SLURM_STEP_ID", "0")
            .env_remove("SLURM_RESTART_COUNT");
        Process::start_command(&mut command)
    };
    let server = task(1, 2);
    let client = task(0, 2).end();
    client.assert_ok();
    let (_, cases) = measured(&client.stdout);
    assert_measured(&cases[0]);
    let ended = server.end();
    ended.assert_ok();
    assert_eq!(ended.stdout, "");
    let left = fs::read_dir(shared.path()).expect("it is there").count();
    assert_eq!(left, 0, "nothing is left");
    task(0, 3).end().assert_failed(2, "between two");
}

#[test]
fn the_lines_to_paste_are_printed() {
    let Some(program) = program() else { return };
    let mut command = Command::new(&program);
    let ended = end_of(command.args(["bench", "host1", "--print", "--op", "send"]));
    ended.assert_ok();
    let lines: Vec<_> = ended
        .stdout
        .lines()
        .filter(|it| it.starts_with("  "))
        .collect();
    let [there, here] = lines[..] else {
        panic!("two lines: {}", ended.stdout);
    };
    assert!(
        there.contains("fabricast bench --listen host1:7473 --key "),
        "{there}"
    );
    assert!(
        here.contains("fabricast bench --to host1:7473 --key "),
        "{here}"
    );
    assert!(here.ends_with("--op send"), "{here}");
    let key = |line: &str| line.split_whitespace().nth(3).map(str::to_owned);
    assert_eq!(key(there), key(here));
}

#[test]
fn two_machines_are_measured_by_one_command() {
    let Some(program) = program() else { return };
    let Some(machines) = Machines::start(2) else {
        return;
    };
    machines.join([(0, "one", "10.81.0.1"), (1, "one", "10.81.0.2")]);
    let dir = temp();
    let key = key(&dir, "key", 1);
    let mut command = machines.command(1, &program);
    command.args(["bench", "--listen", "10.81.0.2:0", "--key", text(&key)]);
    let server = Running::start_command(&mut command);
    let mut command = machines.command(0, &program);
    command.args(["bench", "--to", &server.address, "--key", text(&key)]);
    command.args([
        "--seconds",
        "0.02",
        "--runs",
        "1",
        "--size",
        "64",
        "--json",
        "-",
    ]);
    command.args([
        "--op",
        "send,pingpong,rma-read,publish,latency,rdm,object-request",
    ]);
    let ended = end_of(&mut command);
    ended.assert_ok();
    let (facts, cases) = measured(&ended.stdout);
    for (node, ip) in facts["nodes"]
        .as_array()
        .expect("two")
        .iter()
        .zip(["10.81.0.1", "10.81.0.2"])
    {
        assert_eq!(node["address"], ip);
        assert_eq!(node["device"], "one");
    }
    assert_eq!(cases.len(), 7);
    cases.iter().for_each(assert_measured);
}

/// What stalls for a moment is seen by all that was due meanwhile, and not by one message alone.
#[test]
fn a_stalled_server_is_in_the_percentiles() {
    let Some(program) = program() else { return };
    if children(std::process::id()).is_empty() && !Path::new("/proc/self/task").exists() {
        println!("SKIPPED: this kernel does not say which processes a process has started");
        return;
    }
    let dir = temp();
    let key = key(&dir, "key", 1);
    let server = server(&program, &any_port().to_string(), &key, &[]);
    let mut command = Command::new(&program);
    command.args([
        "bench",
        "--to",
        &server.address,
        "--key",
        text(&key),
        "--json",
        "-",
    ]);
    command.args(["--provider", provider(), "--op", "latency", "--size", "64"]);
    command.args(["--rate", "2000", "--seconds", "0.8", "--runs", "1"]);
    let client = Process::start_command(&mut command);
    let deadline = Instant::now() + *PATIENCE;
    let of_server = loop {
        if let [pid] = children(server.process.0.id())[..] {
            break pid;
        }
        assert!(Instant::now() < deadline, "no client comes");
        std::thread::sleep(Duration::from_millis(5));
    };
    // Again and again until it is over: some of it is while it is timed, whenever that is.
    let mut client = client;
    while client.0.try_wait().expect("ours").is_none() {
        for signal in [libc::SIGSTOP, libc::SIGCONT] {
            if children(server.process.0.id()).contains(&of_server) {
                // SAFETY: takes numbers only; it was there a moment ago.
                unsafe { libc::kill(of_server, signal) };
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        assert!(Instant::now() < deadline, "it does not end");
    }
    let ended = client.end();
    ended.assert_ok();
    let (_, cases) = measured(&ended.stdout);
    let percentiles = cases[0]["percentiles"].as_array().expect("times");
    let at = |share: f64| {
        let found = percentiles.iter().find(|point| point[0] == share);
        found.and_then(|point| point[1].as_f64()).expect("a time")
    };
    // Half of the time it stands still: a quarter of all messages is late by 50 ms and more.
    assert!(at(90.0) > 10_000.0, "p90 {} us", at(90.0));
    assert!(at(100.0) > 50_000.0, "max {} us", at(100.0));
}
