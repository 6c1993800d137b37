//! The server over `shm`, which is for clients in other processes.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use super::*;
use crate::object::RdmaToken;

const ROLE: &str = "FABRICAST_TEST_OBJECT_ROLE";
const LEN: usize = 3 << 20;

/// The other process, if this is it: lends a window until its parent is gone.
#[test]
fn lends_a_window() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    let fabric = Fabric::builder().provider("shm").open().expect("shm");
    let client = WindowClient::open(&fabric, LEN, crate::endpoint::Access::all());
    client.fill(0xee);
    println!("\n@{}", client.token());
    std::io::stdout().flush().expect("it is heard");
    let mut lines = String::new();
    let mut driven = Some(client.drive());
    let mut stopped = None;
    // Each line stops it, or has it go on.
    while std::io::stdin()
        .read_line(&mut lines)
        .is_ok_and(|bytes| bytes > 0)
    {
        match driven.take() {
            Some(client) => stopped = Some(client.stop()),
            None => driven = stopped.take().map(WindowClient::drive),
        }
        println!("\n@done");
        std::io::stdout().flush().expect("it is heard");
    }
    std::process::exit(0);
}

struct Lender {
    child: Child,
    heard: BufReader<std::process::ChildStdout>,
}

impl Lender {
    fn start() -> (Self, RdmaToken) {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args([
                "--exact",
                "object::server::tests::shm::lends_a_window",
                "--nocapture",
            ])
            .env(ROLE, "lender")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let heard = BufReader::new(child.stdout.take().expect("its output"));
        let mut lender = Self { child, heard };
        let token = lender.hear().parse().expect("a token");
        (lender, token)
    }

    fn hear(&mut self) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            let bytes = self.heard.read_line(&mut line).expect("a line");
            assert!(bytes > 0, "the other process is gone");
            if let Some(said) = line.trim().strip_prefix('@') {
                return said.to_owned();
            }
        }
    }

    /// It stops, or goes on.
    fn toggle(&mut self) {
        let mut ear = self.child.stdin.as_ref().expect("its input");
        ear.write_all(b"\n").expect("it hears");
        assert_eq!(self.hear(), "done");
    }
}

impl Drop for Lender {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.heard.read_to_end(&mut Vec::new());
        let _ = self.child.wait();
    }
}

fn rig() -> Option<Rig> {
    match Fabric::builder().provider("shm").open() {
        Ok(fabric) => Some(Rig::over(&fabric, ObjectServerConfig::default())),
        Err(error) => {
            println!("SKIPPED: {error}");
            None
        }
    }
}

fn get(rig: &mut Rig, token: &RdmaToken, at: usize, len: usize) {
    let payload = rig.filled(len, len as u8).freeze(len);
    let deadline = rig.now() + SOON;
    let get = rig
        .channel
        .handle_get(token, at as u64, payload, 1, deadline);
    get.expect("accepted");
    let event = rig.next(&mut []);
    assert!(matches!(event, ChannelEvent::Written { .. }), "{event:?}");
}

fn put(rig: &mut Rig, token: &RdmaToken, at: usize, len: usize) -> Vec<u8> {
    let into = rig.pool.try_acquire().expect("a free buffer");
    let into = crate::endpoint::Destination::buffer(into, len);
    let deadline = rig.now() + SOON;
    let put = rig.channel.handle_put(token, at as u64, into, 2, deadline);
    put.expect("accepted");
    match rig.next(&mut []) {
        ChannelEvent::Read { into, .. } => into.into_buffer().expect("a buffer")[..len].to_vec(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn bytes_go_both_ways_to_another_process() {
    if std::env::var_os(rig::PROVIDERS).is_some() {
        return;
    }
    let Some(mut rig) = rig() else { return };
    let (_lender, token) = Lender::start();
    let mut wanted = vec![0xee; LEN];
    for (at, len) in [
        (0, 1),
        (4095, 4097),
        (7, 70_001),
        (1 << 20, 2 << 20),
        (LEN - 1, 1),
    ] {
        get(&mut rig, &token, at, len);
        wanted[at..at + len].copy_from_slice(&pattern(len, len as u8));
        let (mut got, half) = (put(&mut rig, &token, 0, LEN / 2), LEN / 2);
        got.extend(put(&mut rig, &token, half, LEN - half));
        assert!(got == wanted, "{len} at {at}");
    }
    // Names that lead nowhere, or here.
    for name in [
        format!("fi_shm://{}:0:0:0:0\0", std::process::id()),
        "fi_shm://../../etc/passwd\0".to_owned(),
    ] {
        let (base, len, key) = (token.base(), token.len(), token.key());
        let hostile = RdmaToken::new(base, len, "shm", name.as_bytes(), key).expect("a token");
        let payload = rig.filled(8, 1).freeze(8);
        let deadline = rig.now() + SHORT;
        match rig.channel.handle_get(&hostile, 0, payload, 3, deadline) {
            Err(refused) => assert!(matches!(refused.kind, TransferErrorKind::Peer { .. })),
            Ok(()) => {
                let event = rig.next(&mut []);
                assert!(
                    matches!(event, ChannelEvent::WriteFailed { .. }),
                    "{event:?}"
                );
            }
        }
    }
    assert_eq!(rig.pool.free_count(), 8);
}

/// The other process stops with a transfer in flight.
#[test]
fn a_process_that_stops_is_cut_off() {
    if std::env::var_os(rig::PROVIDERS).is_some() {
        return;
    }
    let Some(mut rig) = rig() else { return };
    let (mut lender, token) = Lender::start();
    get(&mut rig, &token, 0, 1000);
    lender.toggle();
    let deadline = rig.now() + SHORT;
    let payload = rig.filled(1 << 20, 1).freeze(1 << 20);
    let held = rig.channel.handle_get(&token, 0, payload, 7, deadline);
    held.expect("accepted");
    let into = rig.pool.try_acquire().expect("a free buffer");
    let into = crate::endpoint::Destination::buffer(into, 1 << 20);
    let put = rig.channel.handle_put(&token, 0, into, 8, deadline);
    put.expect("accepted");
    let mut told = 0;
    while told < 2 || rig.channel.stats().late > 0 {
        let event = rig.next(&mut []);
        assert!(matches!(event.key(), 7 | 8), "{event:?}");
        told += usize::from(event.is_outcome());
    }
    rig.events.clear();
    // The other process fills what is read by itself, for as long as it lives.
    let stats = rig.channel.stats();
    assert_eq!(rig.pool.free_count() as u64, 8 - stats.leaked, "{stats:?}");
    assert!(stats.leaked <= 1, "{stats:?}");
    lender.toggle();
    get(&mut rig, &token, 0, 1000);
}

/// The token that the other process goes by, if this is it.
const TOKEN: &str = "FABRICAST_TEST_OBJECT_TOKEN";

/// The other process: writes to where a token says, and tells what became of it.
#[test]
fn goes_where_a_token_says() {
    let Ok(token) = std::env::var(TOKEN) else {
        return;
    };
    let token: RdmaToken = token.parse().expect("a token");
    let mut rig = rig().expect("shm was there before");
    let payload = rig.filled(64, 1).freeze(64);
    let deadline = rig.now() + Duration::from_millis(300);
    match rig.channel.handle_get(&token, 0, payload, 1, deadline) {
        Err(refused) => println!("\n@refused: {}", refused.kind),
        Ok(()) => println!("\n@told: {:?}", rig.next(&mut [])),
    }
    // Its end is not what is looked at.
    std::process::exit(0);
}

/// A region in `/dev/shm` that is removed when it is dropped.
struct MadeRegion {
    path: PathBuf,
    token: RdmaToken,
}

impl MadeRegion {
    /// These bytes, under a name as endpoints have it.
    fn new(of: &RdmaToken, bytes: &[u8]) -> Self {
        let random = crate::random::random_u64();
        let name = format!("fabricast-test-{}-{random:x}", std::process::id());
        let path = Path::new("/dev/shm").join(&name);
        std::fs::write(&path, bytes).expect("written");
        let name = format!("fi_shm://{name}\0");
        let (base, len, key) = (of.base(), of.len(), of.key());
        let token = RdmaToken::new(base, len, "shm", name.as_bytes(), key).expect("a token");
        Self { path, token }
    }

    /// What becomes of a process that goes there: its status, and what it said.
    fn lure(&self) -> (ExitStatus, String) {
        let output = Command::new(std::env::current_exe().expect("this program"))
            .args([
                "--exact",
                "object::server::tests::shm::goes_where_a_token_says",
                "--nocapture",
            ])
            .env(TOKEN, self.token.to_string())
            .stdin(Stdio::null())
            .output()
            .expect("it starts");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let said = text.lines().find_map(|line| line.strip_prefix('@'));
        (output.status, said.unwrap_or_default().to_owned())
    }
}

impl Drop for MadeRegion {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// What a region says of itself, the provider believes. One that is shorter than it says ended the
/// process that went there (SIGBUS over libfabric 1.17, at one page), and is refused before the
/// provider sees it. One whose size is right, and nothing else, may end it (SIGSEGV over 1.17).
#[test]
fn a_region_that_is_shorter_than_it_says_is_refused() {
    if std::env::var_os(rig::PROVIDERS).is_some() || rig().is_none() {
        return;
    }
    let fabric = Fabric::builder().provider("shm").open().expect("shm");
    let honest = WindowClient::open(&fabric, LEN, crate::endpoint::Access::all());
    let token = honest.token();
    let name = String::from_utf8(token.name().to_vec()).expect("text");
    let region = name
        .trim_end_matches('\0')
        .strip_prefix("fi_shm://")
        .expect("a region");
    let bytes = std::fs::read(Path::new("/dev/shm").join(region)).expect("its own region");
    println!("a region of {} bytes", bytes.len());
    let size = (bytes.len() as u64).to_le_bytes();
    let at = (0..512)
        .step_by(8)
        .find(|at| bytes[*at..at + 8] == size)
        .expect("its size");
    println!("the size is at byte {at}");
    for len in [at + 8, 4096, bytes.len() / 2, bytes.len() - 1] {
        let (status, said) = MadeRegion::new(&token, &bytes[..len]).lure();
        println!("{len} of its bytes: {status}; {said}");
        assert!(status.success(), "{status}");
        let why = format!("has {len} bytes, and says {}", bytes.len());
        assert!(
            said.starts_with("refused: ") && said.contains(&why),
            "{said}"
        );
    }
    for (what, bytes) in [("none", &[][..]), ("all", &bytes[..])] {
        let (status, said) = MadeRegion::new(&token, bytes).lure();
        println!("{what} of its bytes: {status}; {said}");
        assert!(
            status.success() && said.contains("WriteFailed"),
            "{status}: {said}"
        );
    }
    // The fact that the documents state: which signal it is, if one, is the provider's matter.
    let mut lying = bytes[..4096].to_vec();
    lying[at..at + 8].copy_from_slice(&4096_u64.to_le_bytes());
    let (status, said) = MadeRegion::new(&token, &lying).lure();
    println!("a region of one page that says so: {status}; {said}");
    let is_told = status.success() && said.contains("WriteFailed");
    let is_killed = matches!(status.signal(), Some(libc::SIGBUS | libc::SIGSEGV));
    assert!(is_told || is_killed, "{status}: {said}");
}
