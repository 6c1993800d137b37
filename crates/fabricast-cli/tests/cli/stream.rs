//! `fabricast send`, `recv` and `demo`: real processes, real files, and what can go wrong with
//! both.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::patience::patient;
use crate::program;
use crate::provider::{any_port, nobodys_port};

/// No process of these tests may take longer.
pub(crate) static PATIENCE: LazyLock<Duration> = LazyLock::new(|| patient(Duration::from_secs(60)));
const BLOCK: usize = 64 * 1024;

/// The provider to use.
pub(crate) fn provider() -> &'static str {
    crate::over().expect("the program is there")
}

/// A process of ours; ended when it is dropped.
pub(crate) struct Process(pub(crate) Child);

pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Process {
    pub(crate) fn start(program: &Path, arguments: &[&str]) -> Self {
        Self::start_command(Command::new(program).args(arguments))
    }

    pub(crate) fn start_command(command: &mut Command) -> Self {
        let command = command.stdin(Stdio::null()).stdout(Stdio::piped());
        Self(command.stderr(Stdio::piped()).spawn().expect("it starts"))
    }

    pub(crate) fn kill(&mut self) {
        self.0.kill().expect("it is our child");
    }

    pub(crate) fn status(&mut self) -> ExitStatus {
        let deadline = Instant::now() + *PATIENCE;
        loop {
            if let Some(status) = self.0.try_wait().expect("it is our child") {
                return status;
            }
            assert!(
                Instant::now() < deadline,
                "it has not ended within {:?}",
                *PATIENCE
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits for the end. What it prints in these tests fits into the pipes.
    pub(crate) fn end(mut self) -> Ended {
        let status = self.status();
        let (mut stdout, mut stderr) = (String::new(), String::new());
        if let Some(mut pipe) = self.0.stdout.take() {
            pipe.read_to_string(&mut stdout).expect("text");
        }
        if let Some(mut pipe) = self.0.stderr.take() {
            pipe.read_to_string(&mut stderr).expect("text");
        }
        Ended {
            status,
            stdout,
            stderr,
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Ended {
    /// It failed, with this exit code and one line that says why.
    #[track_caller]
    pub(crate) fn assert_failed(&self, code: i32, why: &str) {
        let Self {
            status,
            stdout,
            stderr,
        } = self;
        assert_eq!(
            status.code(),
            Some(code),
            "stdout: {stdout} stderr: {stderr}"
        );
        let line = stderr.lines().find(|line| line.starts_with("fabricast: "));
        assert!(
            line.is_some_and(|line| line.contains(why)),
            "want {why:?}, stderr: {stderr}"
        );
        let errors = stderr
            .lines()
            .filter(|line| line.starts_with("fabricast: "));
        assert_eq!(errors.count(), 1, "stderr: {stderr}");
    }

    #[track_caller]
    pub(crate) fn assert_ok(&self) {
        assert!(
            self.status.success(),
            "{} stderr: {}",
            self.status,
            self.stderr
        );
    }
}

/// The one address in the first object of a receiver.
fn listening(line: &str) -> Option<&str> {
    assert_eq!(value(line, "type"), "listening", "{line}");
    let (_, behind) = line.split_once("\"addresses\":[\"")?;
    behind.split('"').next()
}

/// A receiver, the directory that it writes to, and where it listens.
pub(crate) struct Running {
    pub(crate) process: Process,
    pub(crate) address: String,
    stdout: BufReader<ChildStdout>,
}

impl Running {
    pub(crate) fn start(program: &Path, dir: &Path, more: &[&str]) -> Self {
        let mut command = Command::new(program);
        let listen = any_port().to_string();
        command.args(["recv", "--listen", &listen, "--provider", provider()]);
        command.args(["--block", "64K", "--dir"]);
        command.arg(dir).args(more);
        Self::start_command(&mut command)
    }

    pub(crate) fn start_command(command: &mut Command) -> Self {
        let mut process = Process::start_command(command);
        let mut stdout = BufReader::new(process.0.stdout.take().expect("a pipe"));
        let mut line = String::new();
        stdout.read_line(&mut line).expect("text");
        let address = match line.starts_with('{') {
            true => listening(&line),
            false => line.trim_end().strip_prefix("listening on "),
        };
        let Some(address) = address.map(str::to_owned) else {
            panic!("it did not start: {}", process.end().stderr);
        };
        Self {
            process,
            address,
            stdout,
        }
    }

    /// A sender to it, which is not told yet what it is to send.
    pub(crate) fn sender(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.args(["send", "--provider", provider(), "--block", "64K"]);
        command.args(["--to", &self.address]);
        command
    }

    pub(crate) fn send(&self, program: &Path, files: &[&Path]) -> Process {
        Process::start_command(self.sender(program).args(files))
    }

    /// The same, so that a long file takes a quarter of a minute.
    fn send_slowly(&self, program: &Path, file: &Path) -> Process {
        let mut command = Command::new(program);
        command.args(["send", "--provider", provider(), "--rate", "4M"]);
        command.args(["--retry-for", "1", "--to", &self.address]);
        Process::start_command(command.arg(file))
    }
}

/// Bytes of which no two blocks are equal.
pub(crate) fn content(len: usize) -> Vec<u8> {
    let words = (0..len.div_ceil(8) as u64).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    bytes.truncate(len);
    bytes
}

pub(crate) fn file(dir: &TempDir, name: &str, len: usize) -> PathBuf {
    let path = dir.path().join(name);
    fs::write(&path, content(len)).expect("room in the temporary directory");
    path
}

pub(crate) fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).expect("a directory");
    let name = |entry: std::io::Result<fs::DirEntry>| entry.expect("an entry").file_name();
    let mut names: Vec<_> = entries
        .map(|entry| name(entry).to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

pub(crate) fn temp() -> TempDir {
    tempfile::tempdir().expect("a temporary directory")
}

#[test]
fn files_of_every_size_arrive_whole() {
    let Some(program) = program() else { return };
    let (from, to) = (temp(), temp());
    let receiver = Running::start(&program, to.path(), &["--once"]);
    let sizes = [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, (10 << 20) + 3];
    let files: Vec<_> = sizes
        .iter()
        .map(|&len| file(&from, &format!("f{len}"), len))
        .collect();
    let paths: Vec<_> = files.iter().map(PathBuf::as_path).collect();
    let sent = receiver.send(&program, &paths).end();
    sent.assert_ok();
    receiver.process.end().assert_ok();
    for (len, path) in sizes.into_iter().zip(&files) {
        let arrived = to.path().join(path.file_name().expect("a name"));
        assert!(
            fs::read(&arrived).expect("it arrived") == content(len),
            "{len} bytes differ"
        );
    }
    assert_eq!(names(to.path()).len(), sizes.len(), "and nothing else");
    for key in [
        "bytes",
        "seconds",
        "rate",
        "provider",
        "libfabric",
        "shape",
        "path",
    ] {
        assert!(
            sent.stdout.lines().any(|line| line.starts_with(key)),
            "{key}: {}",
            sent.stdout
        );
    }
    // Only of TCP is there something to say.
    let says = sent
        .stdout
        .lines()
        .any(|line| line.starts_with("congestion"));
    let row = fabricast::fabric::PROVIDERS
        .iter()
        .find(|row| row.name == provider());
    assert_eq!(says, row.is_some_and(|row| row.over_tcp), "{}", sent.stdout);
}

/// The addresses of `shm` are texts of its own, without an IP address.
fn has_shm() -> bool {
    let builder = fabricast::Fabric::builder().provider("shm");
    let kind = fabricast::fabric::EndpointKind::Rdm;
    let opened = builder.endpoint_kind(kind).open();
    if let Err(error) = &opened {
        println!("SKIPPED: {error}");
    }
    opened.is_ok()
}

#[test]
fn it_listens_and_connects_where_addresses_are_no_ip_addresses() {
    let Some(program) = program() else { return };
    if !has_shm() {
        return;
    }
    let mut at_node = Command::new(&program);
    at_node.args(["recv", "--provider", "shm", "--rdm", "--listen"]);
    let refused = Process::start_command(at_node.arg("127.0.0.1:0")).end();
    refused.assert_failed(1, "endpoints of provider shm have names");
    let (from, to) = (temp(), temp());
    let over = ["--provider", "shm", "--rdm", "--block", "64K"];
    let mut recv = Command::new(&program);
    recv.args(["recv", "--once", "--listen", "any", "--dir"]);
    let receiver = Running::start_command(recv.arg(to.path()).args(over));
    assert!(receiver.address.contains("://"), "{}", receiver.address);
    let sent = file(&from, "file", 1_000_000);
    let mut send = Command::new(&program);
    send.args(["send", "--to", &receiver.address]).args(over);
    Process::start_command(send.arg(&sent)).end().assert_ok();
    receiver.process.end().assert_ok();
    let arrived = fs::read(to.path().join("file")).expect("it arrived");
    assert!(arrived == content(1_000_000), "its content differs");
}

#[test]
fn what_is_skipped_is_said_and_strictly_nothing_is() {
    let Some(program) = program() else { return };
    let (from, to) = (temp(), temp());
    let top = from.path().join("tree");
    fs::create_dir(&top).expect("room");
    fs::write(top.join("file"), content(5)).expect("room");
    std::os::unix::fs::symlink("file", top.join("link")).expect("linked");
    let _socket = std::os::unix::net::UnixListener::bind(top.join("socket")).expect("bound");
    let made = Command::new("mkfifo").arg(top.join("fifo")).status();
    assert!(made.expect("mkfifo is there").success());
    let receiver = Running::start(&program, to.path(), &[]);
    let send = |more: &[&str]| {
        let mut command = receiver.sender(&program);
        command.args(["--links", "skip"]).args(more);
        Process::start_command(command.arg(&top)).end()
    };
    let said = |ended: &Ended| {
        for (name, what) in [
            ("link", "a symbolic link"),
            ("socket", "a socket"),
            ("fifo", "a FIFO"),
        ] {
            let line = format!("skipped {}: {what}", top.join(name).display());
            let stderr = &ended.stderr;
            assert!(stderr.lines().any(|it| it == line), "{line}: {stderr}");
        }
        let count = ended.stderr.matches("skipped ").count();
        assert_eq!(count, 3, "{}", ended.stderr);
    };
    let strict = send(&["--strict"]);
    strict.assert_failed(9, "--strict: 3 of what is to be sent");
    said(&strict);
    assert!(names(to.path()).is_empty(), "nothing was sent");
    let sent = send(&[]);
    sent.assert_ok();
    said(&sent);
    assert_eq!(names(&to.path().join("tree")), ["file"]);
    for name in ["link", "socket", "fifo"] {
        fs::remove_file(top.join(name)).expect("it is ours");
    }
    let sent = send(&["--strict"]);
    sent.assert_ok();
    assert!(!sent.stderr.contains("skipped"), "{}", sent.stderr);
}

#[test]
fn hashes_lie_beside_what_arrives_and_files_are_compared_with_them() {
    let Some(program) = program() else { return };
    let (from, to) = (temp(), temp());
    let top = from.path().join("tree");
    fs::create_dir_all(top.join("deep")).expect("room");
    fs::write(top.join("file"), content(3_000_000)).expect("room");
    fs::write(top.join("deep/a\nb\\"), content(5)).expect("room");
    fs::write(top.join("empty"), "").expect("room");
    std::os::unix::fs::symlink("file", top.join("link")).expect("linked");
    let other = file(&from, "other", 100_000);
    let receiver = Running::start(&program, to.path(), &["--sums"]);
    let mut command = receiver.sender(&program);
    command.arg("--sums").args([&top, &other]);
    Process::start_command(&mut command).end().assert_ok();
    let lists = [to.path().join("tree.b3"), to.path().join("other.b3")];
    let verify = |more: &[&str]| {
        let mut command = Command::new(&program);
        command.arg("verify").args(&lists).args(more);
        Process::start_command(&mut command).end()
    };
    // It has heard that its stream has arrived, before what lies beside it is written.
    let patience = Instant::now() + Duration::from_secs(60);
    while !lists.iter().all(|list| list.exists()) {
        assert!(
            Instant::now() < patience,
            "no lists: {:?}",
            names(to.path())
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(names(to.path()), ["other", "other.b3", "tree", "tree.b3"]);
    let lines = fs::read_to_string(&lists[0]).expect("text");
    assert_eq!(lines.lines().count(), 3, "the link has none: {lines}");
    assert!(lines.contains("  tree/deep/a\\nb\\\\\n"), "{lines}");
    let same = verify(&[]);
    same.assert_ok();
    let text = "4 files, 3.10 MB: all are what their hashes say";
    assert_eq!(same.stdout.trim(), text);
    // The same size and time, and another byte.
    let damaged = to.path().join("tree/file");
    let time = fs::metadata(&damaged).and_then(|about| about.modified());
    let mut bytes = fs::read(&damaged).expect("there");
    bytes[2_999_999] ^= 1;
    fs::write(&damaged, bytes).expect("room");
    let file = fs::File::options()
        .write(true)
        .open(&damaged)
        .expect("there");
    file.set_modified(time.expect("it has one")).expect("ours");
    fs::remove_file(to.path().join("tree/empty")).expect("there");
    let different = verify(&[]);
    let text = "of 4 files 1 are not what their hashes say, and 1 can't be read";
    different.assert_failed(10, text);
    let mut lines: Vec<_> = different.stdout.lines().collect();
    lines.sort_unstable();
    assert!(lines[0].ends_with("tree/empty: No such file or directory (os error 2)"));
    assert!(lines[1].ends_with("tree/file: it is not what its hash says"));
    assert_eq!(lines.len(), 2);
    let json = verify(&["--json", "--threads", "1"]);
    assert!(json.stdout.contains("\"differ\":1"), "{}", json.stdout);
    fs::write(&lists[1], "no list\n").expect("room");
    verify(&[]).assert_failed(5, "other.b3, line 1: want 64 hexadecimal digits");
}

#[test]
fn links_are_sent_as_links_unless_another_way_is_asked_for() {
    use std::os::unix::fs::symlink;
    let Some(program) = program() else { return };
    let (from, to) = (temp(), temp());
    let top = from.path().join("tree");
    fs::create_dir(&top).expect("room");
    fs::write(top.join("file"), content(5)).expect("room");
    symlink("file", top.join("link")).expect("linked");
    let send = |receiver: &Running, more: &[&str]| {
        Process::start_command(receiver.sender(&program).args(more).arg(&top)).end()
    };
    let there = to.path().join("tree/link");
    let receiver = Running::start(&program, to.path(), &[]);
    let listed = send(&receiver, &["--dry-run"]);
    assert!(listed.stdout.contains("tree/link@\n"), "{}", listed.stdout);
    send(&receiver, &["--strict"]).assert_ok();
    assert_eq!(fs::read_link(&there).expect("a link"), Path::new("file"));
    send(&receiver, &["--links", "follow", "--strict"]).assert_ok();
    assert!(fs::symlink_metadata(&there).expect("there").is_file());
    // One that leads out is made where that is asked for.
    symlink("/etc/hostname", top.join("out")).expect("linked");
    let refused = send(&receiver, &[]);
    refused.assert_failed(6, "tree/out: a symbolic link to /etc/hostname");
    assert!(
        refused.stderr.contains("fabricast recv --any-links"),
        "{}",
        refused.stderr
    );
    drop(receiver);
    let receiver = Running::start(&program, to.path(), &["--any-links"]);
    send(&receiver, &[]).assert_ok();
    let out = fs::read_link(to.path().join("tree/out")).expect("a link");
    assert_eq!(out, Path::new("/etc/hostname"));
}

#[test]
fn what_is_excluded_is_not_sent_and_a_dry_run_says_what_is() {
    let Some(program) = program() else { return };
    let (from, to) = (temp(), temp());
    let top = from.path().join("tree");
    for directory in ["cache", "raw/deep", ".fabricast-0123"] {
        fs::create_dir_all(top.join(directory)).expect("room");
    }
    for name in [
        "a.tmp",
        "b.dat",
        "cache/c.dat",
        "raw/keep.tmp",
        "raw/deep/d.tmp",
    ] {
        fs::write(top.join(name), content(5)).expect("room");
    }
    // Nothing is skipped, as it is not asked for.
    std::os::unix::fs::symlink("b.dat", top.join("link.tmp")).expect("linked");
    let receiver = Running::start(&program, to.path(), &[]);
    let send = |more: &[&str]| {
        let mut command = receiver.sender(&program);
        command.arg("--strict");
        command.args([
            "--exclude",
            "*.tmp",
            "--exclude",
            "cache/",
            "--exclude",
            ".*",
        ]);
        command.args(["--include", "/raw/*.tmp"]).args(more);
        Process::start_command(command.arg(&top)).end()
    };
    let listed = send(&["--dry-run"]);
    listed.assert_ok();
    let lines: Vec<_> = listed.stdout.lines().collect();
    let wanted = [
        "tree/",
        "tree/b.dat",
        "tree/raw/",
        "tree/raw/deep/",
        "tree/raw/keep.tmp",
    ];
    assert_eq!(lines[..lines.len() - 1], wanted, "{}", listed.stdout);
    let total = lines.last().expect("a line");
    assert!(
        total.starts_with("5 files and directories, 10 B"),
        "{total}"
    );
    assert!(names(to.path()).is_empty(), "nothing was sent");
    send(&[]).assert_ok();
    assert_eq!(names(&to.path().join("tree")), ["b.dat", "raw"]);
    assert_eq!(names(&to.path().join("tree/raw")), ["deep", "keep.tmp"]);
    assert!(names(&to.path().join("tree/raw/deep")).is_empty());
    let again = send(&["--skip-unchanged"]);
    again.assert_ok();
    let lines: Vec<_> = again.stdout.lines().collect();
    let said = "unchanged    2 files: 10 bytes were there";
    assert!(lines.contains(&said), "{}", again.stdout);
}

/// A new checkout: other times, nearly the same content.
#[test]
fn content_is_compared_where_that_is_asked_for() {
    let Some(program) = program() else { return };
    let (from, to) = (temp(), temp());
    let top = from.path().join("tree");
    let make = |last: &str| {
        let _ = fs::remove_dir_all(&top);
        fs::create_dir(&top).expect("room");
        for number in 0..50 {
            fs::write(top.join(number.to_string()), content(1000 + number)).expect("room");
        }
        fs::write(top.join("long"), content(20 * BLOCK)).expect("room");
        fs::write(top.join("last"), last).expect("room");
    };
    make("before");
    let receiver = Running::start(&program, to.path(), &[]);
    let send = |more: &[&str]| {
        let mut command = receiver.sender(&program);
        Process::start_command(command.args(more).arg(&top)).end()
    };
    send(&[]).assert_ok();
    make("behind");
    let by_time = send(&["--skip-unchanged=time", "--json", "--dry-run"]);
    by_time.assert_ok();
    let sent = send(&["--skip-unchanged=content"]);
    sent.assert_ok();
    let equal = (0..50).map(|number| 1000 + number).sum::<usize>() + 20 * BLOCK;
    let line = format!("equal        {equal} bytes of other files");
    assert!(
        sent.stdout.lines().any(|it| it == line),
        "{line}: {}",
        sent.stdout
    );
    let arrived = fs::read(to.path().join("tree/last")).expect("it arrived");
    assert_eq!(arrived, b"behind");
    let time = |path: &Path| fs::metadata(path).expect("a file").modified().ok();
    for name in ["0", "long", "last"] {
        assert_eq!(
            time(&top.join(name)),
            time(&to.path().join("tree").join(name)),
            "{name}"
        );
    }
    // Now the times are the same, too.
    let again = send(&["--skip-unchanged=content"]);
    again.assert_ok();
    assert!(
        again.stdout.contains("unchanged    52 files"),
        "{}",
        again.stdout
    );
    let unknown = send(&["--skip-unchanged=size"]);
    assert_eq!(unknown.status.code(), Some(2), "{}", unknown.stderr);
}

/// A name of which receivers would believe that it is theirs.
#[test]
fn a_name_of_a_hidden_directory_is_refused_with_advice() {
    let Some(program) = program() else { return };
    let from = temp();
    let top = from.path().join("tree");
    fs::create_dir_all(top.join(".fabricast-0123")).expect("room");
    let text = top.to_str().expect("text");
    let ended = Process::start(&program, &["send", text, "--to", "127.0.0.1:1"]).end();
    ended.assert_failed(5, "rename it, or leave it out");
    assert!(ended.stderr.contains("forget_partials"), "{}", ended.stderr);
}

#[test]
fn the_demo_compares_checksums() {
    let Some(program) = program() else { return };
    let dir = temp();
    let place = dir.path().to_str().expect("text");
    let ended = Process::start(
        &program,
        &[
            "demo",
            "--provider",
            provider(),
            "--size",
            "3M",
            "--dir",
            place,
        ],
    )
    .end();
    ended.assert_ok();
    assert!(
        ended.stdout.contains("the checksums are equal"),
        "{}",
        ended.stdout
    );
    let told = ended.stdout.matches("bottleneck").count();
    assert_eq!(told, 1, "it is said once: {}", ended.stdout);
    assert!(names(dir.path()).is_empty(), "it cleans up");
}

#[test]
fn the_demo_meets_where_addresses_are_no_ip_addresses() {
    let Some(program) = program() else { return };
    if !has_shm() {
        return;
    }
    let over = ["demo", "--provider", "shm", "--rdm", "--size", "3M"];
    let ended = Process::start(&program, &over).end();
    ended.assert_ok();
    assert!(
        ended.stdout.contains("the checksums are equal"),
        "{}",
        ended.stdout
    );
}

#[test]
fn without_a_gpu_it_is_said_what_is_missing() {
    let Some(program) = program() else { return };
    let place = temp();
    let sent = file(&place, "file", 1);
    let mut demo = Command::new(&program);
    demo.args(["demo", "--gpu"]).arg(&sent);
    demo.env("FABRICAST_CUDA", "/nowhere/libcuda.so.1");
    let ended = Process::start_command(&mut demo).end();
    ended.assert_failed(
        1,
        "--gpu: a region of device memory: the CUDA driver cannot be loaded: tried /nowhere",
    );
}

#[test]
fn a_source_that_cannot_be_sent_is_named() {
    let Some(program) = program() else { return };
    let dir = temp();
    let missing = dir.path().join("missing");
    for (path, why) in [
        (missing.as_path(), "No such file"),
        (Path::new("/dev/null"), "neither a regular file"),
    ] {
        let text = path.to_str().expect("text");
        let ended = Process::start(&program, &["send", text, "--to", "127.0.0.1:1"]).end();
        ended.assert_failed(5, why);
        assert!(ended.stderr.contains(text), "{}", ended.stderr);
    }
    let demo = Process::start(&program, &["demo", missing.to_str().expect("text")]).end();
    assert_eq!(demo.status.code(), Some(1), "{}", demo.stderr);
    assert!(demo.stderr.contains("No such file"), "{}", demo.stderr);
}

#[test]
fn no_permission_to_read_or_write_is_said() {
    let Some(program) = program() else { return };
    if rustix::process::geteuid().is_root() {
        println!("SKIPPED: root may read and write everything");
        return;
    }
    let dir = temp();
    let secret = file(&dir, "secret", 10);
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o000)).expect("it is ours");
    let text = secret.to_str().expect("text");
    Process::start(&program, &["send", text, "--to", "127.0.0.1:1"])
        .end()
        .assert_failed(5, "Permission");
    let closed = dir.path().join("closed");
    fs::create_dir(&closed).expect("room");
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o500)).expect("it is ours");
    let text = closed.to_str().expect("text");
    let receiver = ["recv", "--listen", "127.0.0.1:0", "--dir", text];
    Process::start(&program, &receiver)
        .end()
        .assert_failed(6, "Permission");
}

#[test]
fn nobody_listens() {
    let Some(program) = program() else { return };
    let dir = temp();
    let path = file(&dir, "f", 10);
    let to = nobodys_port().to_string();
    let text = path.to_str().expect("text");
    Process::start(
        &program,
        &["send", text, "--provider", provider(), "--to", &to],
    )
    .end()
    .assert_failed(3, "could not connect");
}

/// A limit on the size of files stands in for a full disk where we may not mount one.
#[test]
fn a_receiver_without_room_says_so_to_the_sender() {
    let Some(program) = program() else { return };
    let (from, to) = (temp(), temp());
    let path = file(&from, "large", 8 << 20);
    // The shell sets the limit (512-byte units in sh), and ignores the signal that would kill the
    // receiver.
    let script = r#"trap '' XFSZ; ulimit -f 2048
        exec "$0" recv --once --listen $LISTEN --provider "$OVER" --block 64K --dir "$1""#;
    let mut command = Command::new("sh");
    command.args(["-c", script]).arg(&program).arg(to.path());
    command
        .env("LISTEN", any_port().to_string())
        .env("OVER", provider());
    let receiver = Running::start_command(&mut command);
    receiver
        .send(&program, &[&path])
        .end()
        .assert_failed(6, "File too large");
    receiver.process.end().assert_failed(6, "File too large");
    let left = names(to.path());
    if says_beforehand(&to) {
        assert!(left.is_empty(), "{left:?}");
    } else {
        // What was written until then is kept for who goes on with it.
        let hidden = |name: &String| name.starts_with(".fabricast-");
        assert!(left.iter().all(hidden), "{left:?}");
    }
}

/// Whether the file system says that there is no room before anything is written (fallocate). One
/// in memory is not asked: whoever writes a file there makes its pages.
fn says_beforehand(dir: &TempDir) -> bool {
    let file = tempfile::tempfile_in(dir.path()).expect("room");
    let system = rustix::fs::fstatfs(&file).expect("a file system");
    let mode = rustix::fs::FallocateFlags::KEEP_SIZE;
    let works = rustix::fs::fallocate(&file, mode, 0, 4096).is_ok();
    works && system.f_type != libc::TMPFS_MAGIC
}

#[test]
fn a_full_disk_is_said_to_the_sender() {
    let Some(program) = program() else { return };
    let (from, to) = (temp(), temp());
    let path = file(&from, "large", 8 << 20);
    let mount = "mount -t tmpfs -o size=1M none";
    let may = Command::new("unshare")
        .args(["-m", "sh", "-c", &format!("{mount} /mnt")])
        .output();
    if !may.is_ok_and(|output| output.status.success()) {
        println!("SKIPPED: no file system may be mounted in a namespace of our own");
        return;
    }
    // What the receiver leaves is looked at in its own namespace, and said by the shell's exit
    // code.
    let script = format!(
        r#"{mount} "$1"
           "$0" recv --once --listen $LISTEN --provider "$OVER" --block 64K --dir "$1"; code=$?
           test -z "$(ls -A "$1")" || exit 9; exit $code"#
    );
    let mut command = Command::new("unshare");
    command
        .args(["-m", "sh", "-c", &script])
        .arg(&program)
        .arg(to.path())
        .env("LISTEN", any_port().to_string())
        .env("OVER", provider());
    let receiver = Running::start_command(&mut command);
    receiver
        .send(&program, &[&path])
        .end()
        .assert_failed(6, "No space left");
    receiver.process.end().assert_failed(6, "No space left");
}

/// A file that takes a while. Holes would take none.
pub(crate) fn long_file(dir: &TempDir) -> PathBuf {
    let path = dir.path().join("long");
    fs::write(&path, vec![1; 64 << 20]).expect("room");
    path
}

#[test]
fn a_receiver_killed_midway() {
    let Some(program) = program() else { return };
    let (from, to) = (temp(), temp());
    let path = long_file(&from);
    let mut receiver = Running::start(&program, to.path(), &["--once"]);
    let sender = receiver.send_slowly(&program, &path);
    // In the middle: what is kept of a stream is there as soon as it is accepted.
    wait_for_stream(to.path());
    receiver.process.kill();
    let killed = receiver.process.status();
    assert_eq!(killed.signal(), Some(9));
    let begin = Instant::now();
    let ended = sender.end();
    assert_eq!(ended.status.code(), Some(3), "{}", ended.stderr);
    // Behind lines of progress, if it came so far.
    let last = ended.stderr.lines().last().unwrap_or_default();
    assert!(last.starts_with("fabricast: "), "{}", ended.stderr);
    println!("over {:?} after it was killed", begin.elapsed());
    assert!(
        !to.path().join("long").exists(),
        "no file under the final name"
    );
}

#[test]
fn a_sender_killed_midway() {
    let Some(program) = program() else { return };
    let (from, to) = (temp(), temp());
    let path = long_file(&from);
    let receiver = Running::start(&program, to.path(), &["--once"]);
    let mut sender = receiver.send_slowly(&program, &path);
    wait_for_stream(to.path());
    sender.kill();
    sender.status();
    let ended = receiver.process.end();
    assert_eq!(ended.status.code(), Some(3), "{}", ended.stderr);
    // Behind lines of progress, if it came so far.
    let last = ended.stderr.lines().last().unwrap_or_default();
    assert!(last.starts_with("fabricast: "), "{}", ended.stderr);
    assert!(
        !to.path().join("long").exists(),
        "no file under the final name"
    );
}

/// What is kept of a stream is there as soon as it is accepted.
pub(crate) fn wait_for_stream(to: &Path) {
    let deadline = Instant::now() + *PATIENCE;
    while names(to).is_empty() {
        assert!(Instant::now() < deadline, "no sender came");
        std::thread::sleep(Duration::from_micros(200));
    }
}

#[test]
fn a_tree_goes_to_two_receivers_and_a_cut_stream_goes_on() {
    let Some(program) = program() else { return };
    let (from, first, second) = (temp(), temp(), temp());
    let top = from.path().join("tree");
    fs::create_dir_all(top.join("a b/empty")).expect("room");
    fs::write(top.join("a b/file"), content(300_000)).expect("room");
    fs::write(top.join("other"), content(5)).expect("room");
    let key = from.path().join("key");
    fs::write(&key, content(32)).expect("room");
    let key = key.to_str().expect("text");
    let receivers =
        [&first, &second].map(|dir| Running::start(&program, dir.path(), &["--key", key]));
    let mut command = Command::new(&program);
    command.args(["send", "--json", "--provider", provider(), "--block", "64K"]);
    command.args(["--key", key]);
    for receiver in &receivers {
        command.args(["--to", &receiver.address]);
    }
    let sent = Process::start_command(command.arg(&top)).end();
    sent.assert_ok();
    assert_eq!(sent.stdout.lines().count(), 2, "{}", sent.stdout);
    for line in sent.stdout.lines() {
        assert!(
            line.starts_with('{') && line.contains("\"bottleneck\":"),
            "{line}"
        );
    }
    for dir in [&first, &second] {
        let tree = dir.path().join("tree");
        assert!(fs::read(tree.join("a b/file")).expect("it arrived") == content(300_000));
        assert_eq!(names(&tree), ["a b", "other"]);
        assert_eq!(names(&tree.join("a b")), ["empty", "file"]);
        assert_eq!(names(dir.path()), ["tree"], "and nothing else");
    }
    // Without the key nothing is taken.
    let mut command = Command::new(&program);
    command
        .args([
            "send",
            "--provider",
            provider(),
            "--to",
            &receivers[0].address,
        ])
        .arg(&top);
    Process::start_command(&mut command)
        .end()
        .assert_failed(4, "key");
}

/// Nearly all of it is holes, which are not sent; what was announced is kept when both sides are
/// killed.
#[test]
fn a_file_with_holes_goes_on_after_a_kill() {
    use std::os::unix::fs::{FileExt, MetadataExt};
    let Some(program) = program() else { return };
    let (from, to) = (temp(), temp());
    let path = from.path().join("image");
    let image = fs::File::create(&path).expect("room");
    image.set_len(8 << 30).expect("sparse files");
    let pieces = [0, 3 << 30, (8 << 30) - (2 << 20)];
    for at in pieces {
        image.write_all_at(&content(2 << 20), at).expect("room");
    }
    let room = |path: &Path| fs::metadata(path).expect("there").blocks() * 512;
    if room(&path) > 100 << 20 {
        return println!("SKIPPED: the file system of temporary files has no holes");
    }
    let mut receiver = Running::start(&program, to.path(), &[]);
    let mut command = receiver.sender(&program);
    command.args(["--rate", "1M"]);
    let mut cut = Process::start_command(command.arg(&path));
    wait_for_stream(to.path());
    let work = to.path().join(&names(to.path())[0]);
    let journal_len = || fs::metadata(work.join("journal")).map_or(0, |about| about.len());
    let deadline = Instant::now() + *PATIENCE;
    // More blocks are in it than have data: 96, with 16 bytes each.
    while journal_len() < 8192 {
        assert!(Instant::now() < deadline, "nothing is written");
        std::thread::sleep(Duration::from_millis(5));
    }
    receiver.process.kill();
    cut.kill();
    receiver.process.status();
    cut.status();
    assert!(!to.path().join("image").exists(), "not under its name yet");
    let receiver = Running::start(&program, to.path(), &[]);
    let sent = receiver.send(&program, &[&path]).end();
    sent.assert_ok();
    assert!(sent.stdout.contains("resumed "), "{}", sent.stdout);
    let there = to.path().join("image");
    let arrived = fs::File::open(&there).expect("it arrived");
    assert_eq!(arrived.metadata().expect("there").len(), 8 << 30);
    for at in pieces {
        let mut bytes = vec![0; 2 << 20];
        arrived
            .read_exact_at(&mut bytes, at)
            .expect("it is long enough");
        assert!(bytes == content(2 << 20), "at {at}");
    }
    // And there is nothing else.
    assert!(room(&there) < 8 << 20, "{}", room(&there));
}

#[test]
fn a_stranger_does_not_end_a_receiver_of_one_stream() {
    let Some(program) = program() else { return };
    let (from, to) = (temp(), temp());
    let (path, key) = (file(&from, "file", 1000), file(&from, "key", 32));
    let with_key = ["--key", key.to_str().expect("text")];
    let words = [&["--once"], &with_key[..]].concat();
    let receiver = Running::start(&program, to.path(), &words);
    let send = |words: &[&str]| {
        let mut command = receiver.sender(&program);
        Process::start_command(command.args(words).arg(&path)).end()
    };
    send(&[]).assert_failed(4, "key");
    send(&with_key).assert_ok();
    let ended = receiver.process.end();
    ended.assert_ok();
    let said = "fabricast: refused: the peer does not have the key\n";
    assert_eq!(ended.stderr, said);
}

#[test]
fn the_same_command_again_goes_on_where_a_stream_was_cut() {
    let Some(program) = program() else { return };
    let (from, to) = (temp(), temp());
    let path = file(&from, "long", 16 << 20);
    let receiver = Running::start(&program, to.path(), &[]);
    let mut command = receiver.sender(&program);
    command.args(["--rate", "16M"]);
    let mut cut = Process::start_command(command.arg(&path));
    wait_for_stream(to.path());
    // Some blocks are in the journal.
    let work = to.path().join(&names(to.path())[0]);
    let journal_len = || fs::metadata(work.join("journal")).map_or(0, |about| about.len());
    let deadline = Instant::now() + *PATIENCE;
    while journal_len() < 1000 {
        assert!(Instant::now() < deadline, "nothing is written");
        std::thread::sleep(Duration::from_millis(5));
    }
    cut.kill();
    cut.status();
    assert!(!to.path().join("long").exists(), "not under its name yet");
    let sent = receiver.send(&program, &[&path]).end();
    sent.assert_ok();
    assert!(sent.stdout.contains("resumed "), "{}", sent.stdout);
    assert!(fs::read(to.path().join("long")).expect("it arrived") == content(16 << 20));
    assert_eq!(names(to.path()), ["long"]);
}

/// The value of a key in one of our JSON lines, up to the next comma or brace.
fn value<'a>(line: &'a str, key: &str) -> &'a str {
    let behind = line.split(&format!("\"{key}\":")).nth(1);
    let behind = behind.unwrap_or_else(|| panic!("{key}: {line}"));
    match behind.strip_prefix('"') {
        Some(text) => text.split('"').next().unwrap_or_default(),
        None => behind.split([',', '}']).next().unwrap_or_default(),
    }
}

#[test]
fn programs_hear_of_progress_and_of_each_receiver_what_became_of_it() {
    let Some(program) = program() else { return };
    let (from, to) = (temp(), temp());
    let path = file(&from, "file", 6 << 20);
    // It speaks JSON, too: where it listens is in its first object.
    let mut receiver = Running::start(&program, to.path(), &["--json"]);
    let nobody = nobodys_port().to_string();
    let mut command = Command::new(&program);
    command.args(["send", "--json", "--provider", provider(), "--block", "64K"]);
    command.args(["--limit-rate", "2M", "--connect-timeout", "3"]);
    command.args(["--to", &receiver.address, "--to", &nobody]);
    let ended = Process::start_command(command.arg(&path)).end();
    // One of two has it.
    ended.assert_failed(3, &nobody);
    assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
    let lines: Vec<_> = ended.stdout.lines().collect();
    let of = |kind: &'static str| lines.iter().filter(move |line| value(line, "type") == kind);
    assert!(of("progress").count() >= 2, "{}", ended.stdout);
    for line in of("progress").filter(|line| value(line, "peer") == receiver.address) {
        assert_eq!(value(line, "total"), (6 << 20).to_string(), "{line}");
        assert_eq!(value(line, "of_files"), "1", "{line}");
    }
    let results: Vec<_> = of("result").collect();
    assert_eq!(results.len(), 2, "{}", ended.stdout);
    let (good, bad) = (results[0], results[1]);
    assert_eq!(value(good, "peer"), receiver.address);
    assert_eq!(value(good, "ok"), "true");
    assert!(good.contains("\"bottleneck\":"), "{good}");
    assert_eq!(value(bad, "peer"), nobody);
    assert_eq!(value(bad, "ok"), "false");
    assert_eq!(value(bad, "code"), "unreachable");
    assert_eq!(value(bad, "exit"), "3");
    assert!(value(bad, "error").contains("nobody listens"), "{bad}");
    assert!(value(bad, "todo").contains("fabricast recv"), "{bad}");
    assert!(!bad.contains("bottleneck"), "{bad}");
    let mut line = String::new();
    receiver.stdout.read_line(&mut line).expect("text");
    assert_eq!(value(&line, "type"), "result", "{line}");
    assert_eq!(value(&line, "ok"), "true", "{line}");
}

#[test]
fn lines_of_progress_name_their_receiver_and_fit() {
    let Some(program) = program() else { return };
    let (from, to) = (temp(), temp());
    let path = file(&from, "file", 6 << 20);
    let receiver = Running::start(&program, to.path(), &[]);
    let send = |more: &[&str]| {
        let mut command = Command::new(&program);
        command.args(["send", "--provider", provider(), "--block", "64K"]);
        command.args(["--limit-rate", "2M", "--to", &receiver.address]);
        Process::start_command(command.args(more).arg(&path)).end()
    };
    let sent = send(&[]);
    sent.assert_ok();
    assert!(sent.stderr.lines().count() >= 1, "{}", sent.stderr);
    for line in sent.stderr.lines() {
        assert!(line.starts_with(&receiver.address), "{line}");
        assert!(
            line.contains("of 1 files") && line.contains("MB/s"),
            "{line}"
        );
        assert!(line.chars().count() <= 80, "{line}");
    }
    fs::remove_file(to.path().join("file")).expect("it arrived");
    let quiet = send(&["--quiet"]);
    quiet.assert_ok();
    assert_eq!((quiet.stdout.as_str(), quiet.stderr.as_str()), ("", ""));
}

#[test]
fn a_receiver_that_comes_back_is_sent_the_rest() {
    let Some(program) = program() else { return };
    let (from, to) = (temp(), temp());
    let path = file(&from, "long", 16 << 20);
    // Of the addresses of this machine one that nobody else has: its port is free a second later.
    let port = nobodys_port().to_string();
    let start = || {
        let mut command = Command::new(&program);
        command.args(["recv", "--listen", &port, "--provider", provider()]);
        command.args(["--block", "64K", "--dir"]).arg(to.path());
        Running::start_command(&mut command)
    };
    let mut receiver = start();
    let mut command = Command::new(&program);
    command.args(["send", "--provider", provider(), "--block", "64K"]);
    command.args(["--limit-rate", "8M", "--to", &receiver.address]);
    let mut sender = Process::start_command(command.arg(&path));
    wait_for_stream(to.path());
    receiver.process.kill();
    receiver.process.status();
    // Longer than three attempts take.
    std::thread::sleep(Duration::from_millis(1500));
    assert!(
        sender.0.try_wait().expect("it is ours").is_none(),
        "it gave up"
    );
    let _receiver = start();
    sender.end().assert_ok();
    assert!(fs::read(to.path().join("long")).expect("it arrived") == content(16 << 20));
}

#[test]
fn who_is_not_there_is_given_up_when_that_was_asked_for() {
    let Some(program) = program() else { return };
    let dir = temp();
    let path = file(&dir, "f", 10);
    let text = path.to_str().expect("text");
    let to = nobodys_port().to_string();
    let send = |time: &str| {
        let begin = Instant::now();
        let over = ["--provider", provider(), "--connect-timeout", time];
        let words = [&["send", text, "--to", &to], &over[..]].concat();
        Process::start(&program, &words)
            .end()
            .assert_failed(3, "could not connect");
        begin.elapsed()
    };
    let (short, long) = (send("100ms"), send("3s"));
    assert!(long > Duration::from_secs(3), "{long:?}");
    println!("100 ms: {short:?}, 3 s: {long:?}");
}

#[test]
fn standard_input_goes_to_standard_output() {
    let Some(program) = program() else { return };
    let (from, spool) = (temp(), temp());
    let sent = content(3_000_001);
    let path = file(&from, "input", sent.len());
    let mut command = Command::new(&program);
    let listen = any_port().to_string();
    command.args([
        "recv",
        "-o",
        "-",
        "--listen",
        &listen,
        "--provider",
        provider(),
    ]);
    let out = fs::File::create(from.path().join("output")).expect("room");
    command.env("TMPDIR", spool.path()).stdin(Stdio::null());
    let mut child = command
        .stdout(out)
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut stderr = BufReader::new(child.stderr.take().expect("a pipe"));
    let mut receiver = Process(child);
    let mut line = String::new();
    stderr.read_line(&mut line).expect("text");
    let address = line
        .trim_end()
        .strip_prefix("listening on ")
        .expect("it listens");
    let mut command = Command::new(&program);
    command.args(["send", "-", "--name", "dir/name", "--provider", provider()]);
    command
        .args(["--to", address])
        .stdin(fs::File::open(&path).expect("it is there"));
    let command = command.stdout(Stdio::null()).stderr(Stdio::piped());
    Process(command.spawn().expect("it starts"))
        .end()
        .assert_ok();
    assert!(receiver.status().success());
    assert!(fs::read(from.path().join("output")).expect("it arrived") == sent);
    assert!(names(spool.path()).is_empty(), "nothing is left");
}

#[test]
fn a_port_alone_is_all_addresses_of_this_machine() {
    let Some(program) = program() else { return };
    let (from, to) = (temp(), temp());
    if !fabricast::fabric::provider(provider()).is_some_and(|row| row.over_tcp) {
        return println!("SKIPPED: this provider listens at devices");
    }
    let mut command = Command::new(&program);
    command.args([
        "recv",
        "--once",
        "--listen",
        "*:0",
        "--provider",
        provider(),
    ]);
    let receiver = Running::start_command(command.arg("--dir").arg(to.path()));
    let port = receiver.address.rsplit(':').next().expect("a port");
    let path = file(&from, "file", 100);
    let address = format!("127.0.0.1:{port}");
    let mut command = Command::new(&program);
    command.args(["send", "--provider", provider(), "--to", &address]);
    Process::start_command(command.arg(&path)).end().assert_ok();
    receiver.process.end().assert_ok();
}

#[test]
fn an_interrupted_receiver_says_so() {
    let Some(program) = program() else { return };
    let to = temp();
    for (signal, code) in [
        (rustix::process::Signal::INT, 130),
        (rustix::process::Signal::TERM, 143),
    ] {
        let receiver = Running::start(&program, to.path(), &[]);
        let pid = rustix::process::Pid::from_raw(receiver.process.0.id() as i32);
        rustix::process::kill_process(pid.expect("it runs"), signal).expect("it is ours");
        receiver.process.end().assert_failed(code, "interrupted");
    }
}

/// What `--help` promises, one after the other.
#[test]
fn exit_codes_are_those_that_the_help_lists() {
    let Some(program) = program() else { return };
    let help = Process::start(&program, &["--help"]).end();
    for code in [
        "  0  everything",
        "  2  a wrong",
        "  3  a receiver",
        "  4  a receiver",
        "  5  what is sent",
        "  6  what arrives",
        "130  after",
        "143  after",
    ] {
        assert!(help.stdout.contains(code), "{code}: {}", help.stdout);
    }
    for word in ["not encrypted", "key proves"] {
        assert!(help.stdout.contains(word), "{word}: {}", help.stdout);
    }
    let (from, to) = (temp(), temp());
    let path = file(&from, "file", 100_000);
    let text = path.to_str().expect("text");
    let code = |words: &[&str]| Process::start(&program, words).end().status.code();
    assert_eq!(code(&["send"]), Some(2));
    assert_eq!(code(&["send", text]), Some(2), "no receiver");
    let nobody = nobodys_port().to_string();
    let send = |file: &str, to: &str| {
        let words = ["send", file, "--to", to, "--provider", provider()];
        code(&words)
    };
    let soon = ["--connect-timeout", "100ms", "--provider", provider()];
    let gone = [&["send", text, "--to", &nobody], &soon[..]].concat();
    assert_eq!(code(&gone), Some(3));
    assert_eq!(send("/nowhere", &nobody), Some(5));
    let limited = Running::start(&program, to.path(), &["--max-size", "1000"]);
    assert_eq!(send(text, &limited.address), Some(4));
    // Something of another kind has its name.
    fs::create_dir(to.path().join("file")).expect("room");
    fs::write(to.path().join("file/in"), b"").expect("room");
    let receiver = Running::start(&program, to.path(), &[]);
    assert_eq!(send(text, &receiver.address), Some(6));
}
