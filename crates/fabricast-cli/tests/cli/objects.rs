//! `serve`, `get`, `put`, `ls` and `rm`, as real processes.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::patience::patient;

/// A server, ended when it is dropped.
struct Server {
    child: Child,
    addr: String,
}

impl Server {
    fn start(dir: &Path, words: &[&str]) -> Option<Self> {
        Self::start_at(dir, "127.0.0.1:0", words)
    }

    /// `None`, after a line that says why: the test can't run.
    fn start_at(dir: &Path, listen: &str, words: &[&str]) -> Option<Self> {
        let mut child = Command::new(env!("CARGO_BIN_EXE_fabricast"))
            .args(["serve", "--listen", listen])
            .args(words)
            .arg(dir)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut line = String::new();
        let stdout = child.stdout.as_mut().expect("it is piped");
        BufReader::new(stdout).read_line(&mut line).expect("UTF-8");
        let Some((_, addr)) = line.trim().split_once("fc://") else {
            let mut said = String::new();
            let stderr = child.stderr.as_mut().expect("it is piped");
            stderr.read_to_string(&mut said).expect("UTF-8");
            let _ = child.wait();
            assert!(said.contains("FI_EP_RDM"), "{line}{said}");
            println!("SKIPPED: {said}");
            return None;
        };
        let addr = addr.trim_end_matches('/').to_owned();
        Some(Self { child, addr })
    }

    fn url(&self, key: &str) -> String {
        format!("fc://{}/{key}", self.addr)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn fabricast(words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fabricast"));
    command.args(words).stdin(Stdio::null());
    command.output().expect("it runs")
}

/// What it says, if it succeeds.
fn said(words: &[&str]) -> String {
    let output = fabricast(words);
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words:?}: {err}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// The exit code and the line on stderr, where it fails.
fn fails(words: &[&str]) -> (i32, String) {
    let output = fabricast(words);
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{words:?}");
    (output.status.code().expect("no signal"), err)
}

fn content(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 251) as u8).collect()
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

#[test]
fn what_is_put_is_listed_got_and_removed() {
    let room = tempfile::tempdir().expect("a directory");
    let Some(server) = Server::start(&room.path().join("objects"), &[]) else {
        return;
    };
    let (from, back) = (room.path().join("from"), room.path().join("back"));
    fs::create_dir(&back).expect("made");
    for (key, len) in [("run/a b.h5", 3 << 20), ("run/ü/empty", 0), ("run/one", 1)] {
        let bytes = content(len);
        fs::write(&from, &bytes).expect("written");
        said(&["put", text(&from), &server.url(key)]);
        said(&["get", &server.url(key), text(&back)]);
        let name = key.rsplit('/').next().expect("a name");
        assert!(
            fs::read(back.join(name)).expect("it is there") == bytes,
            "{key}"
        );
    }
    let listed = said(&["ls", &server.url("run/")]);
    assert!(listed.contains("3145728  run/a b.h5"), "{listed}");
    assert!(
        listed.contains("PRE  run/ü/") && !listed.contains("empty"),
        "{listed}"
    );
    let listed = said(&["ls", "--recursive", "--json", &server.url("")]);
    assert_eq!(listed.lines().count(), 3, "{listed}");
    assert!(listed.contains("\"key\":\"run/ü/empty\""), "{listed}");
    said(&["rm", &server.url("run/one")]);
    for word in ["get", "rm"] {
        let (code, words) = fails(&[word, &server.url("run/")]);
        assert!(
            code == 2 && words.contains("--recursive"),
            "{code}: {words}"
        );
    }
    let (code, words) = fails(&["get", &server.url("run/one"), text(&back.join("no"))]);
    assert_eq!(words.matches("there is no object").count(), 1, "{words}");
    assert_eq!(code, 7, "{words}");
    assert!(!back.join("no").exists());
    let would = said(&["rm", "--recursive", "--dryrun", &server.url("run/")]);
    assert_eq!(would.lines().count(), 2, "{would}");
    said(&["rm", "--recursive", &server.url("run/")]);
    assert_eq!(said(&["ls", "--recursive", &server.url("")]), "");
    // No other files are left behind.
    let left = fs::read_dir(&back).expect("it is there").count();
    assert_eq!(left, 3);
}

#[test]
fn a_directory_goes_there_and_back() {
    let room = tempfile::tempdir().expect("a directory");
    let Some(server) = Server::start(&room.path().join("objects"), &[]) else {
        return;
    };
    let (tree, back) = (room.path().join("tree"), room.path().join("back"));
    fs::create_dir_all(tree.join("x/y")).expect("made");
    for at in 0..20 {
        fs::write(tree.join(format!("x/y/{at}")), content(at * 1000)).expect("written");
    }
    fs::write(tree.join("top"), b"top").expect("written");
    said(&["put", "--recursive", text(&tree), &server.url("t/")]);
    said(&["get", "--recursive", &server.url("t/"), text(&back)]);
    for name in ["top", "x/y/0", "x/y/19"] {
        let [one, other] = [&tree, &back].map(|top| fs::read(top.join(name)).expect("there"));
        assert!(one == other, "{name}");
    }
    let (code, words) = fails(&["get", "--recursive", &server.url("nothing/"), text(&back)]);
    assert_eq!(code, 7, "{words}");
}

#[test]
fn ranges_and_conditions_are_those_of_http() {
    let room = tempfile::tempdir().expect("a directory");
    let Some(server) = Server::start(&room.path().join("objects"), &[]) else {
        return;
    };
    let (from, url) = (room.path().join("from"), server.url("x"));
    let bytes = content(100_000);
    fs::write(&from, &bytes).expect("written");
    said(&["put", "--if-none-match", "*", text(&from), &url]);
    let (code, words) = fails(&["put", "--if-none-match", "*", text(&from), &url]);
    assert_eq!(code, 8, "{words}");
    for (range, wanted) in [
        ("bytes=0-99", &bytes[..100]),
        ("bytes=99990-", &bytes[99_990..]),
        ("bytes=-7", &bytes[99_993..]),
    ] {
        let output = fabricast(&["get", &url, "-", "--range", range]);
        assert!(
            output.status.success() && output.stdout == wanted,
            "{range}"
        );
    }
    let (code, _) = fails(&["get", &url, "-", "--range", "bytes=100000-"]);
    assert_eq!(code, 2);
    let listed = said(&["ls", "--json", &url]);
    let (_, etag) = listed.split_once("\"etag\":\"").expect("an etag");
    let (etag, _) = etag.split_once('"').expect("its end");
    let to = room.path().join("to");
    said(&["get", &url, text(&to), "--if-match", etag]);
    let (code, words) = fails(&["get", &url, text(&to), "--if-none-match", etag]);
    assert_eq!(code, 8, "{words}");
    let (code, words) = fails(&["rm", &url, "--if-match", "another"]);
    assert_eq!(code, 8, "{words}");
    let output = fabricast(&["rm", "--json", &server.url("nothing")]);
    let json = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        json.contains("\"ok\":false") && json.contains("\"code\":\"absent\""),
        "{json}"
    );
    assert_eq!(output.status.code(), Some(7));
}

#[test]
fn a_get_that_is_killed_goes_on() {
    let room = tempfile::tempdir().expect("a directory");
    let Some(server) = Server::start(&room.path().join("objects"), &[]) else {
        return;
    };
    let (from, back) = (room.path().join("from"), room.path().join("back"));
    let (bytes, url) = (content(48 << 20), server.url("large"));
    fs::write(&from, &bytes).expect("written");
    fs::create_dir(&back).expect("made");
    said(&["put", text(&from), &url]);
    let words = ["get", &url, text(&back), "--memory", "256K"];
    let partial = || {
        let files = fs::read_dir(&back).expect("it is there");
        let found = files.filter_map(|file| file.ok()?.metadata().ok()).next();
        found.map_or(0, |it| it.len())
    };
    let mut child = Command::new(env!("CARGO_BIN_EXE_fabricast"))
        .args(words)
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    let end = Instant::now() + patient(Duration::from_secs(60));
    while partial() < 1 << 20 {
        assert!(Instant::now() < end, "nothing came");
        std::thread::sleep(Duration::from_millis(1));
    }
    child.kill().expect("it runs");
    child.wait().expect("it ends");
    let there = partial();
    let output = fabricast(&words);
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{err}");
    // It may have been done before it was killed.
    if there < bytes.len() as u64 {
        assert!(
            err.contains("bytes are there from a get that was cut"),
            "{err}"
        );
    }
    assert!(fs::read(back.join("large")).expect("it is there") == bytes);
    assert_eq!(fs::read_dir(&back).expect("it is there").count(), 1);
}

/// A put of a file that is larger than its memory, with state of its own.
struct LargePut {
    room: tempfile::TempDir,
    bytes: Vec<u8>,
}

impl LargePut {
    fn new() -> Self {
        let room = tempfile::tempdir().expect("a directory");
        let bytes = content(48 << 20);
        fs::write(room.path().join("from"), &bytes).expect("written");
        Self { room, bytes }
    }

    fn objects(&self) -> PathBuf {
        self.room.path().join("objects")
    }

    fn command(&self, url: &str, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fabricast"));
        command
            .arg("put")
            .arg(self.room.path().join("from"))
            .args([url, "--memory", "256K"])
            .args(words)
            .env("XDG_STATE_HOME", self.room.path().join("state"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Bytes of the upload that are there, as far as the server's files say.
    fn there(&self) -> u64 {
        let kept = self.objects().join(".uploads.0000000000000000.tmp");
        let files = fs::read_dir(kept).into_iter().flatten().flatten();
        let lens = files.filter_map(|file| Some(file.metadata().ok()?.len()));
        lens.max().unwrap_or(0)
    }

    /// Until some of it is there.
    fn wait(&self, child: &mut Child) {
        let end = Instant::now() + patient(Duration::from_secs(60));
        while self.there() < 4 << 20 {
            let ended = child.try_wait().expect("it is our child");
            assert_eq!(ended, None, "before it was cut");
            assert!(Instant::now() < end, "nothing came");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The object is there, and nothing beside it: neither at the server, nor of the state.
    fn assert_is_whole(&self) {
        assert!(fs::read(self.objects().join("large")).expect("it is there") == self.bytes);
        let count = |dir: PathBuf| fs::read_dir(dir).expect("it is there").count();
        assert_eq!(count(self.objects()), 1);
        assert_eq!(count(self.room.path().join("state/fabricast/puts")), 0);
    }
}

const GOES_ON: &str = "bytes are there from a put that was cut";

#[test]
fn a_put_that_is_killed_goes_on_with_the_next_one() {
    let put = LargePut::new();
    let Some(server) = Server::start(&put.objects(), &[]) else {
        return;
    };
    let url = server.url("large");
    let cut = || {
        let mut child = put.command(&url, &[]).spawn().expect("it starts");
        put.wait(&mut child);
        child.kill().expect("it runs");
        child.wait().expect("it ends");
        assert!(!put.objects().join("large").exists());
    };
    let again = |words: &[&str], goes_on| {
        let output = put.command(&url, words).output().expect("it runs");
        let err = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{err}");
        assert_eq!(err.contains(GOES_ON), goes_on, "{words:?}: {err}");
        put.assert_is_whole();
        fs::remove_file(put.objects().join("large")).expect("removed");
    };
    cut();
    again(&[], true);
    cut();
    again(&["--restart"], false);
    // Another file of that name is another upload.
    cut();
    fs::write(put.room.path().join("from"), &put.bytes).expect("written");
    let output = put.command(&url, &[]).output().expect("it runs");
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !err.contains(GOES_ON), "{err}");
    assert!(fs::read(put.objects().join("large")).expect("it is there") == put.bytes);
}

#[test]
fn a_put_goes_on_when_its_server_was_killed_and_is_there_again() {
    let put = LargePut::new();
    let Some(server) = Server::start(&put.objects(), &[]) else {
        return;
    };
    let (url, addr) = (server.url("large"), server.addr.clone());
    let mut child = put
        .command(&url, &["--retry-for", "5m"])
        .spawn()
        .expect("it starts");
    put.wait(&mut child);
    // SIGKILL.
    drop(server);
    let there = put.there();
    let _server = Server::start_at(&put.objects(), &addr, &[]).expect("it did before");
    let output = child.wait_with_output().expect("it ends");
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{err}");
    assert!(
        err.contains("trying again") && err.contains(GOES_ON),
        "{there}: {err}"
    );
    put.assert_is_whole();
}

#[test]
fn a_put_without_a_server_ends_when_it_was_told_to() {
    let put = LargePut::new();
    let Some(server) = Server::start(&put.objects(), &[]) else {
        return;
    };
    let url = server.url("large");
    let mut child = put
        .command(&url, &["--retry-for", "0"])
        .spawn()
        .expect("it starts");
    put.wait(&mut child);
    drop(server);
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(3), "{output:?}");
}

#[test]
fn a_server_says_who_may_do_what() {
    let room = tempfile::tempdir().expect("a directory");
    let objects = room.path().join("objects");
    let (code, words) = fails(&["serve", text(&objects), "--listen", "0.0.0.0:0"]);
    assert_eq!(code, 2, "{words}");
    assert!(words.contains("--anyone") && !objects.exists(), "{words}");
    let Some(server) = Server::start(&objects, &["--read-only"]) else {
        return;
    };
    fs::write(objects.join("x"), b"x").expect("written");
    assert_eq!(said(&["get", &server.url("x"), "-"]), "x");
    let (code, words) = fails(&["put", text(&objects.join("x")), &server.url("y")]);
    assert_eq!(code, 4, "{words}");
    let (code, words) = fails(&["rm", &server.url("x")]);
    assert_eq!(code, 4, "{words}");
    let addr = server.addr.clone();
    drop(server);
    let (code, words) = fails(&["get", &format!("fc://{addr}/x"), "-"]);
    assert_eq!(code, 3, "{words}");
}

#[test]
fn a_server_that_is_asked_to_end_says_goodbye() {
    let room = tempfile::tempdir().expect("a directory");
    let Some(mut server) = Server::start(&room.path().join("objects"), &[]) else {
        return;
    };
    let pid = rustix::process::Pid::from_child(&server.child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it runs");
    let status = server.child.wait().expect("it ends");
    assert_eq!(status.code(), Some(0));
}

#[test]
fn the_metrics_file_stays_one_report() {
    let room = tempfile::tempdir().expect("a directory");
    let path = room.path().join("m.prom");
    let words = ["--metrics", text(&path)];
    let Some(mut server) = Server::start(&room.path().join("objects"), &words) else {
        return;
    };
    let end = Instant::now() + patient(Duration::from_secs(60));
    let mut seen = BTreeSet::new();
    // Each report is a file of its own, or is longer than those before it.
    while seen.len() < 3 {
        assert!(Instant::now() < end, "{} reports", seen.len());
        assert_eq!(server.child.try_wait().expect("it is our child"), None);
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
