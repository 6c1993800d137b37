//! The example `stream`, as a user runs it: real processes, real files, and what can go wrong with both.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use fabricast::buffer::SharedBufferManager;
use fabricast::endpoint::{HeaderMode, SendConfig};
use fabricast::{Fabric, SendEndpointZeroCopy};
use tempfile::TempDir;

/// No process of these tests may take longer.
const PATIENCE: Duration = Duration::from_secs(60);
const BLOCK: usize = 64 * 1024;

/// Where cargo puts examples: beside the directory of the tests.
fn program() -> Option<PathBuf> {
    let tests = std::env::current_exe().ok()?;
    let program = tests.parent()?.parent()?.join("examples/stream");
    if program.exists() {
        return Some(program);
    }
    println!(
        "SKIPPED: {} is not built (cargo build --example stream)",
        program.display()
    );
    None
}

/// A process of ours; ended when it is dropped.
struct Process(Child);

struct Ended {
    status: ExitStatus,
    stdout: String,
    stderr: String,
}

impl Process {
    fn start(program: &Path, arguments: &[&str]) -> Self {
        Self::start_command(Command::new(program).args(arguments))
    }

    fn start_command(command: &mut Command) -> Self {
        let command = command.stdin(Stdio::null()).stdout(Stdio::piped());
        Self(command.stderr(Stdio::piped()).spawn().expect("it starts"))
    }

    fn kill(&mut self) {
        self.0.kill().expect("it is our child");
    }

    fn status(&mut self) -> ExitStatus {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.0.try_wait().expect("it is our child") {
                return status;
            }
            assert!(
                Instant::now() < deadline,
                "it has not ended within {PATIENCE:?}"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits for the end. What it prints in these tests fits into the pipes.
    fn end(mut self) -> Ended {
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
    /// It failed, with exit code 1 and one line that says why.
    #[track_caller]
    fn assert_failed(&self, why: &str) {
        let Self {
            status,
            stdout,
            stderr,
        } = self;
        assert_eq!(status.code(), Some(1), "stdout: {stdout} stderr: {stderr}");
        let line = stderr.lines().find(|line| line.starts_with("stream: "));
        assert!(
            line.is_some_and(|line| line.contains(why)),
            "want {why:?}, stderr: {stderr}"
        );
        let errors = stderr.lines().filter(|line| line.starts_with("stream: "));
        assert_eq!(errors.count(), 1, "stderr: {stderr}");
    }

    #[track_caller]
    fn assert_ok(&self) {
        assert!(
            self.status.success(),
            "{} stderr: {}",
            self.status,
            self.stderr
        );
    }
}

/// A receiver, the directory that it writes to, and where it listens.
struct Running {
    process: Process,
    address: String,
    _stdout: BufReader<ChildStdout>,
}

impl Running {
    fn start(program: &Path, dir: &Path, more: &[&str]) -> Self {
        let mut command = Command::new(program);
        command.args(["recv", "--listen", "127.0.0.1:0", "--block", "64K", "--dir"]);
        command.arg(dir).args(more);
        Self::start_command(&mut command)
    }

    fn start_command(command: &mut Command) -> Self {
        let mut process = Process::start_command(command);
        let mut stdout = BufReader::new(process.0.stdout.take().expect("a pipe"));
        let mut line = String::new();
        stdout.read_line(&mut line).expect("text");
        let address = line.trim_end().strip_prefix("listening on ");
        let address = address.map(str::to_owned);
        let Some(address) = address else {
            panic!("it did not start: {}", process.end().stderr);
        };
        Self {
            process,
            address,
            _stdout: stdout,
        }
    }

    fn send(&self, program: &Path, files: &[&Path]) -> Process {
        let mut command = Command::new(program);
        command.args(["send", "--block", "64K", "--to", &self.address]);
        Process::start_command(command.args(files))
    }
}

/// Bytes of which no two blocks are equal.
fn content(len: usize) -> Vec<u8> {
    let words = (0..len.div_ceil(8) as u64).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    bytes.truncate(len);
    bytes
}

fn file(dir: &TempDir, name: &str, len: usize) -> PathBuf {
    let path = dir.path().join(name);
    fs::write(&path, content(len)).expect("room in the temporary directory");
    path
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).expect("a directory");
    let name = |entry: std::io::Result<fs::DirEntry>| entry.expect("an entry").file_name();
    let mut names: Vec<_> = entries
        .map(|entry| name(entry).to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

fn temp() -> TempDir {
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
        "congestion",
    ] {
        assert!(
            sent.stdout.lines().any(|line| line.starts_with(key)),
            "{key}: {}",
            sent.stdout
        );
    }
}

#[test]
fn the_demo_compares_checksums() {
    let Some(program) = program() else { return };
    let dir = temp();
    let place = dir.path().to_str().expect("text");
    let ended = Process::start(&program, &["demo", "--size", "3M", "--dir", place]).end();
    ended.assert_ok();
    assert!(
        ended.stdout.contains("the checksums are equal"),
        "{}",
        ended.stdout
    );
    assert!(names(dir.path()).is_empty(), "it cleans up");
}

#[test]
fn a_source_that_cannot_be_sent_is_named() {
    let Some(program) = program() else { return };
    let dir = temp();
    let missing = dir.path().join("missing");
    for (path, why) in [
        (missing.as_path(), "No such file"),
        (dir.path(), "Is a directory"),
    ] {
        let text = path.to_str().expect("text");
        let ended = Process::start(&program, &["send", text, "--to", "127.0.0.1:1"]).end();
        ended.assert_failed(why);
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
        .assert_failed("Permission");
    let closed = dir.path().join("closed");
    fs::create_dir(&closed).expect("room");
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o500)).expect("it is ours");
    let text = closed.to_str().expect("text");
    let receiver = ["recv", "--listen", "127.0.0.1:0", "--dir", text];
    Process::start(&program, &receiver)
        .end()
        .assert_failed("Permission");
}

#[test]
fn nobody_listens() {
    let Some(program) = program() else { return };
    let dir = temp();
    let path = file(&dir, "f", 10);
    // A port that was free a moment ago.
    let free = std::net::TcpListener::bind("127.0.0.1:0")
        .expect("a port")
        .local_addr();
    let to = free.expect("an address").to_string();
    let text = path.to_str().expect("text");
    Process::start(&program, &["send", text, "--to", &to])
        .end()
        .assert_failed("could not connect");
}

/// A limit on the size of files stands in for a full disk where we may not mount one.
#[test]
fn a_receiver_without_room_says_so_to_the_sender() {
    let Some(program) = program() else { return };
    let (from, to) = (temp(), temp());
    let path = file(&from, "large", 8 << 20);
    // The shell sets the limit (512-byte units in sh), and ignores the signal that would kill the receiver.
    let script = r#"trap '' XFSZ; ulimit -f 2048; exec "$0" recv --once --listen 127.0.0.1:0 --block 64K --dir "$1""#;
    let mut command = Command::new("sh");
    command.args(["-c", script]).arg(&program).arg(to.path());
    let receiver = Running::start_command(&mut command);
    receiver
        .send(&program, &[&path])
        .end()
        .assert_failed("File too large");
    receiver.process.end().assert_failed("File too large");
    assert!(names(to.path()).is_empty(), "{:?}", names(to.path()));
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
    // What the receiver leaves is looked at in its own namespace, and said by the shell's exit code.
    let script = format!(
        r#"{mount} "$1"; "$0" recv --once --listen 127.0.0.1:0 --block 64K --dir "$1"; code=$?
           test -z "$(ls -A "$1")" || exit 9; exit $code"#
    );
    let mut command = Command::new("unshare");
    command
        .args(["-m", "sh", "-c", &script])
        .arg(&program)
        .arg(to.path());
    let receiver = Running::start_command(&mut command);
    receiver
        .send(&program, &[&path])
        .end()
        .assert_failed("No space left");
    receiver.process.end().assert_failed("No space left");
}

/// A file that takes a while: sparse, so that it costs no disk here; and a receiver that is stopped, so that the
/// transfer is under way for as long as the test likes.
fn long_file(dir: &TempDir) -> PathBuf {
    let path = dir.path().join("long");
    let file = fs::File::create(&path).expect("room");
    file.set_len(64 << 20).expect("sparse files");
    path
}

fn signal(process: &Process, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_child(&process.0);
    rustix::process::kill_process(pid, signal).expect("it is our child");
}

#[test]
fn a_receiver_killed_midway() {
    let Some(program) = program() else { return };
    let (from, to) = (temp(), temp());
    let path = long_file(&from);
    let mut receiver = Running::start(&program, to.path(), &["--once"]);
    let sender = receiver.send(&program, &[&path]);
    // Stopped right away or a little later, it can't finish: the sender is still there when it is killed.
    signal(&receiver.process, rustix::process::Signal::STOP);
    std::thread::sleep(Duration::from_millis(300));
    receiver.process.kill();
    let killed = receiver.process.status();
    assert_eq!(killed.signal(), Some(9));
    let begin = Instant::now();
    let ended = sender.end();
    assert_eq!(ended.status.code(), Some(1), "{}", ended.stderr);
    assert!(ended.stderr.starts_with("stream: "), "{}", ended.stderr);
    assert!(
        begin.elapsed() < Duration::from_secs(15),
        "{:?}",
        begin.elapsed()
    );
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
    // A reader that waits for a buffer each time, and a receiver that is stopped: the end can't be reached.
    let mut sender = receiver.send(&program, &[&path]);
    wait_for_connection(&receiver.process);
    signal(&receiver.process, rustix::process::Signal::STOP);
    std::thread::sleep(Duration::from_millis(100));
    sender.kill();
    sender.status();
    signal(&receiver.process, rustix::process::Signal::CONT);
    let ended = receiver.process.end();
    assert_eq!(ended.status.code(), Some(1), "{}", ended.stderr);
    assert!(ended.stderr.starts_with("stream: "), "{}", ended.stderr);
    assert!(names(to.path()).is_empty(), "{:?}", names(to.path()));
}

/// A writer thread is there as soon as there is a sender.
fn wait_for_connection(receiver: &Process) {
    let tasks = format!("/proc/{}/task", receiver.0.id());
    let deadline = Instant::now() + PATIENCE;
    while !fs::read_dir(&tasks)
        .expect("it runs")
        .flatten()
        .any(|task| is_writer(&task.path()))
    {
        assert!(Instant::now() < deadline, "no sender came");
        std::thread::sleep(Duration::from_micros(200));
    }
}

fn is_writer(task: &Path) -> bool {
    fs::read_to_string(task.join("comm")).is_ok_and(|name| name.starts_with("writer-"))
}

/// A header as the example's wire.rs lays it out, made by hand: a peer need not be our program.
fn header(kind: u8, port: u16, payload_len: u32, offset: u64, size: u64) -> [u8; 64] {
    let mut bytes = [0; 64];
    bytes[..4].copy_from_slice(b"FCS1");
    bytes[4] = kind;
    bytes[6..8].copy_from_slice(&port.to_le_bytes());
    bytes[12..16].copy_from_slice(&payload_len.to_le_bytes());
    bytes[24..32].copy_from_slice(&offset.to_le_bytes());
    bytes[32..40].copy_from_slice(&size.to_le_bytes());
    bytes
}

const HELLO: u8 = 1;
const OPEN: u8 = 2;
const BLOCK_KIND: u8 = 3;

/// Sends messages as they are given, until the receiver has had enough.
fn misbehave(address: &str, messages: &[([u8; 64], &[u8])]) {
    let fabric = Fabric::builder()
        .provider("tcp")
        .node("127.0.0.1")
        .open()
        .expect("tcp");
    let domain = fabric.open_domain().expect("a domain");
    let pool = SharedBufferManager::allocate(8, 4096).expect("memory");
    pool.region().register(&domain).expect("registered");
    let config = SendConfig::default().header_mode(HeaderMode::Fixed(64));
    let to = address.parse().expect("an address");
    let mut sender = SendEndpointZeroCopy::connect(&domain, to, config).expect("an endpoint");
    sender.wait_connected().expect("the receiver is there");
    for (header, payload) in messages {
        let mut buffer = pool.try_acquire().expect("8 are enough");
        buffer[..payload.len()].copy_from_slice(payload);
        if sender
            .send_data(buffer.freeze(payload.len()), header, 0)
            .is_err()
        {
            break;
        }
    }
    let deadline = Instant::now() + PATIENCE;
    let mut events = Vec::new();
    while sender.close_reason().is_none() {
        assert!(
            Instant::now() < deadline,
            "the receiver keeps the connection"
        );
        sender.poll(&mut events).expect("it works");
        sender.wait(Duration::from_millis(10)).expect("it works");
    }
}

#[test]
fn a_hostile_sender_writes_nothing_anywhere() {
    let Some(program) = program() else { return };
    let outer = temp();
    let inner = outer.path().join("inner");
    fs::create_dir(&inner).expect("room");
    let hello = (header(HELLO, 9, 0, 0, 0), &b""[..]);
    let open = |name: &'static [u8], size| (header(OPEN, 0, name.len() as u32, 0, size), name);
    let block = |offset| (header(BLOCK_KIND, 0, 8, offset, 0), &b"8 bytes!"[..]);
    let long = [b'x'; 256];
    let attacks = [
        ("not Open first", vec![hello, block(0)]),
        ("no Hello", vec![open(b"f", 8)]),
        ("a path upwards", vec![hello, open(b"../f", 8), block(0)]),
        ("the parent", vec![hello, open(b"..", 8), block(0)]),
        (
            "an absolute path",
            vec![hello, open(b"/tmp/f", 8), block(0)],
        ),
        ("no name", vec![hello, open(b"", 8)]),
        ("a line break", vec![hello, open(b"f\ng", 8)]),
        (
            "a long name",
            vec![hello, (header(OPEN, 0, 256, 0, 8), &long[..])],
        ),
        (
            "larger than allowed",
            vec![hello, open(b"f", u64::MAX), block(0)],
        ),
        ("beyond its size", vec![hello, open(b"f", 7), block(0)]),
        ("at another offset", vec![hello, open(b"f", 16), block(8)]),
        (
            "a wrong length",
            vec![hello, (header(OPEN, 0, 7, 0, 8), &b"f"[..])],
        ),
        ("garbage", vec![hello, ([0xff; 64], &b"f"[..])]),
    ];
    let receiver = Running::start(&program, &inner, &["--max-size", "1G"]);
    for (what, messages) in attacks {
        misbehave(&receiver.address, &messages);
        assert_eq!(names(outer.path()), ["inner"], "{what}");
        assert!(names(&inner).is_empty(), "{what}: {:?}", names(&inner));
    }
    // And it goes on serving.
    let from = temp();
    receiver
        .send(&program, &[&file(&from, "good", 100)])
        .end()
        .assert_ok();
    assert_eq!(names(&inner), ["good"]);
}
