//! The server over `shm`, which is for clients in other processes.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};

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
