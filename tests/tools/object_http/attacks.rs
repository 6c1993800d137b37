//! Clients that stall, all at the same address as an honest one, which must not wait for them.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use super::{Answer, Serving, content};
use crate::patience::patient;

/// An honest client is answered well before this.
fn soon() -> Duration {
    patient(Duration::from_secs(15))
}

/// Connections that say this, and nothing more.
fn stalled(server: &Serving, count: usize, said: &str) -> Vec<TcpStream> {
    let connect = |_| {
        let mut stream = TcpStream::connect(server.address).expect("it listens");
        stream.write_all(said.as_bytes()).expect("it fits");
        stream
    };
    (0..count).map(connect).collect()
}

/// One request whose answer must come soon; how long it took.
#[track_caller]
fn honest(server: &Serving, method: &str, path: &str, body: &[u8]) -> (Duration, Answer) {
    let started = Instant::now();
    let mut stream = TcpStream::connect(server.address).expect("it listens");
    stream.set_read_timeout(Some(soon())).expect("a socket");
    let len = body.len();
    let mut head = format!("{method} {path} HTTP/1.1\r\nHost: here\r\nConnection: close\r\n");
    head += &format!("Content-Length: {len}\r\n\r\n");
    stream.write_all(head.as_bytes()).expect("it reads");
    stream.write_all(body).expect("it reads");
    let mut bytes = Vec::new();
    if let Err(error) = stream.read_to_end(&mut bytes) {
        let (got, took) = (bytes.len(), started.elapsed());
        panic!("{method} {path}: {got} bytes of an answer, then {error}, after {took:?}");
    }
    (started.elapsed(), Answer::parse(&bytes))
}

/// Puts and gets, as a client that knows nothing of the others.
#[track_caller]
fn is_served(server: &Serving, beside: &str) {
    let bytes = content(300_000);
    let (put, answer) = honest(server, "PUT", "/objects/honest", &bytes);
    assert_eq!(answer.status, 200, "{}", answer.text());
    let (got, answer) = honest(server, "GET", "/objects/honest", &[]);
    assert_eq!((answer.status, answer.body), (200, bytes));
    println!("beside {beside}: put {put:?}, got {got:?}");
}

/// An object of which no socket holds all.
fn put_large(server: &Serving) {
    let file = File::create(server.path("data/large")).expect("a file");
    file.set_len(64 << 20).expect("a file");
}

/// A number of the server's `/proc/PID/status`.
fn status(server: &Serving, field: &str) -> u64 {
    let path = format!("/proc/{}/status", server.child.id());
    let text = fs::read_to_string(path).expect("it runs");
    let line = text.lines().find_map(|line| line.strip_prefix(field));
    let number = line.and_then(|line| line.trim_start_matches(':').split_whitespace().next());
    number.and_then(|number| number.parse().ok()).expect(field)
}

/// How many descriptors the server has.
fn descriptors(server: &Serving) -> usize {
    let path = format!("/proc/{}/fd", server.child.id());
    fs::read_dir(path).expect("it runs").count()
}

#[track_caller]
fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + patient(Duration::from_secs(60));
    while !is_so() {
        assert!(Instant::now() < end, "not within a minute: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn bodies_that_do_not_come_hold_up_nobody() {
    let Some(server) = Serving::start() else {
        return;
    };
    is_served(&server, "nobody");
    let mut attackers = Vec::new();
    for count in [1, 4, 16, 40] {
        let said = "PUT /objects/never HTTP/1.1\r\nHost: here\r\nContent-Length: 2000000\r\n\r\nx";
        attackers.extend(stalled(&server, count - attackers.len(), said));
        is_served(&server, &format!("{count} bodies of one byte"));
    }
}

#[test]
fn replies_that_nobody_reads_hold_up_nobody_and_are_ended() {
    let Some(server) = Serving::start_with(&["--stall", "2"]) else {
        return;
    };
    put_large(&server);
    is_served(&server, "nobody");
    let (before, memory) = (descriptors(&server), status(&server, "VmRSS"));
    let mut attackers = Vec::new();
    for count in [1, 4, 16, 40, 256] {
        let said = "GET /objects/large HTTP/1.1\r\nHost: here\r\n\r\n";
        attackers.extend(stalled(&server, count - attackers.len(), said));
        is_served(&server, &format!("{count} replies that nobody reads"));
    }
    let grown = status(&server, "VmHWM").saturating_sub(memory) / 1024;
    println!("{grown} MiB more were resident");
    assert!(grown < 160, "{grown} MiB");
    wait_until("the server has let go of them", || {
        descriptors(&server) <= before
    });
}

#[test]
fn heads_that_do_not_end_hold_up_nobody() {
    let Some(server) = Serving::start() else {
        return;
    };
    is_served(&server, "nobody");
    let mut attackers = Vec::new();
    for count in [1, 4, 16, 40, 256, 512] {
        let said = "GET /objects/x HTTP/1.1\r\nHost: he";
        attackers.extend(stalled(&server, count - attackers.len(), said));
        is_served(&server, &format!("{count} heads without an end"));
    }
}

#[test]
fn a_body_that_trickles_is_ended() {
    let Some(server) = Serving::start_with(&["--stall", "1"]) else {
        return;
    };
    let said = "PUT /objects/slow HTTP/1.1\r\nHost: here\r\nContent-Length: 2000000\r\n\r\n";
    let mut stream = stalled(&server, 1, said).remove(0);
    let (mut reader, end) = (stream.try_clone().expect("a socket"), soon());
    reader.set_read_timeout(Some(end)).expect("a socket");
    let trickle = std::thread::spawn(move || {
        // Until it is told that nobody reads.
        while stream.write_all(b"x").is_ok() {
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    let mut answer = vec![0; 4096];
    let read = reader.read(&mut answer);
    let _ = reader.shutdown(Shutdown::Both);
    trickle.join().expect("it ends");
    let answer = Answer::parse(&answer[..read.expect("an answer")]);
    assert_eq!(answer.status, 400, "{}", answer.head);
    wait_until("no temporary file is left", || {
        fs::read_dir(server.path("data")).unwrap().count() == 0
    });
}

#[test]
fn tokens_of_deaf_clients_hold_up_nobody() {
    let Some(server) = Serving::start() else {
        return;
    };
    put_large(&server);
    is_served(&server, "nobody");
    let deaf = TcpListener::bind("127.0.0.1:0").expect("a socket");
    let port = deaf.local_addr().expect("a socket").port();
    let provider = server.provider;
    let token = format!("0:4000000:ofi1:{provider}:0200{port:04x}7f0000010000000000000000:1");
    let said =
        format!("GET /objects/large HTTP/1.1\r\nHost: here\r\nx-amz-rdma-token: {token}\r\n\r\n");
    let mut attackers = Vec::new();
    for count in [1, 4, 16, 40, 120] {
        attackers.extend(stalled(&server, count - attackers.len(), &said));
        is_served(&server, &format!("{count} tokens of a deaf port"));
    }
}
