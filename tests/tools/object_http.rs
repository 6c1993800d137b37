//! The example `object_http`, as a user runs it: objects over HTTP, in bodies and by token.

mod attacks;
mod checks;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fabricast::Fabric;
use fabricast::fabric::EndpointKind;
use tempfile::TempDir;

use crate::patience::patient;
use crate::provider::{asked_or, node};

/// A server that serves a directory of its own; ended when it is dropped.
struct Serving {
    child: Child,
    program: PathBuf,
    provider: &'static str,
    address: SocketAddr,
    dir: TempDir,
}

impl Serving {
    /// `None`, after a line that says why: the test can't run.
    fn start() -> Option<Self> {
        Self::start_with(&[])
    }

    /// The same, with more arguments.
    fn start_with(arguments: &[&str]) -> Option<Self> {
        let usual = ["tcp", "net"];
        let opens = |provider: &&str| {
            let builder = Fabric::builder().provider(*provider).node(node());
            builder.endpoint_kind(EndpointKind::Rdm).open().is_ok()
        };
        let mut asked = asked_or(EndpointKind::Rdm, &usual).into_iter();
        let Some(provider) = asked.find(|provider| usual.contains(provider) && opens(provider))
        else {
            println!(
                "SKIPPED: neither tcp nor net opens with FI_EP_RDM, or they were not asked for"
            );
            return None;
        };
        let tests = std::env::current_exe().ok()?;
        let program = tests.parent()?.parent()?.join("examples/object_http");
        if !program.exists() {
            println!("SKIPPED: {} is not built", program.display());
            return None;
        }
        let dir = tempfile::tempdir().expect("a directory");
        fs::create_dir(dir.path().join("data")).expect("a directory");
        let mut child = Command::new(&program)
            .arg("serve")
            .arg(dir.path().join("data"))
            .args(["--listen", "127.0.0.1:0", "--provider", provider])
            .args(["--node", node()])
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("piped");
        let read = BufReader::new(stdout).read_line(&mut line);
        let address = line.trim().strip_prefix("listening on http://");
        let address = address.and_then(|address| address.parse().ok());
        let Some(address) = address else {
            let _ = child.kill();
            let _ = child.wait();
            panic!("{read:?}: {line:?}");
        };
        Some(Self {
            child,
            program,
            provider,
            address,
            dir,
        })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// One request, on a connection of its own.
    fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let mut stream = TcpStream::connect(self.address).expect("it listens");
        let patience = Some(patient(Duration::from_secs(60)));
        stream.set_read_timeout(patience).expect("a socket");
        let mut head = format!("{method} {path} HTTP/1.1\r\nHost: here\r\nConnection: close\r\n");
        head += &format!("Content-Length: {}\r\n", body.len());
        for (name, value) in headers {
            head += &format!("{name}: {value}\r\n");
        }
        head += "\r\n";
        stream.write_all(head.as_bytes()).expect("it reads");
        // A request that is refused for its head may not be read to its end.
        let _ = stream.write_all(body);
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).expect("an answer");
        Answer::parse(&bytes)
    }

    /// The example as a client.
    fn client(&self, arguments: &[&str], paths: [&Path; 2]) -> Output {
        let mut command = Command::new(&self.program);
        let [first, second] = paths;
        command.arg(arguments[0]).arg(self.address.to_string());
        command.arg(first).arg(second).args(&arguments[1..]);
        command.args(["--provider", self.provider, "--node", node()]);
        run(&mut command)
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits for its end, not for ever. What it prints fits into the pipes.
fn run(command: &mut Command) -> Output {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    let end = Instant::now() + patient(Duration::from_secs(60));
    while child.try_wait().expect("it is our child").is_none() {
        if Instant::now() > end {
            let _ = child.kill();
            panic!("it does not end: {:?}", child.wait_with_output());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.wait_with_output().expect("it is our child")
}

#[track_caller]
fn says(output: &Output, line: &str) {
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.trim() == line, "{output:?}");
}

struct Answer {
    status: u16,
    head: String,
    body: Vec<u8>,
}

impl Answer {
    fn parse(bytes: &[u8]) -> Self {
        let end = bytes
            .windows(4)
            .position(|four| four == b"\r\n\r\n")
            .expect("a head");
        let head = String::from_utf8(bytes[..end].to_vec()).expect("text");
        let status = head
            .split(' ')
            .nth(1)
            .and_then(|status| status.parse().ok());
        Self {
            status: status.expect("a status"),
            head,
            body: bytes[end + 4..].to_vec(),
        }
    }

    fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().skip(1);
        let mut fields = lines.filter_map(|line| line.split_once(": "));
        fields
            .find(|(field, _)| field.eq_ignore_ascii_case(name))
            .map(|(_, value)| value)
    }

    fn text(&self) -> String {
        String::from_utf8(self.body.clone()).expect("text")
    }
}

/// Bytes that repeat nowhere near.
fn content(len: usize) -> Vec<u8> {
    (0..len as u64)
        .map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8)
        .collect()
}

#[test]
fn objects_go_in_bodies_and_are_listed_and_deleted() {
    let Some(server) = Serving::start() else {
        return;
    };
    let bytes = content(3_000_000);
    let put = server.ask("PUT", "/objects/runs/7%20b", &[], &bytes);
    assert_eq!(put.status, 200, "{}", put.text());
    assert_eq!(fs::read(server.path("data/runs/7 b")).unwrap(), bytes);

    let got = server.ask("GET", "/objects/runs/7%20b", &[], &[]);
    assert_eq!((got.status, got.body), (200, bytes.clone()));
    let part = server.ask(
        "GET",
        "/objects/runs/7%20b",
        &[("Range", "bytes=1048570-1048589")],
        &[],
    );
    assert_eq!(
        (part.status, &part.body[..]),
        (206, &bytes[1_048_570..1_048_590])
    );
    let range = part.header("content-range");
    assert_eq!(range, Some("bytes 1048570-1048589/3000000"));
    let none = server.ask(
        "GET",
        "/objects/runs/7%20b",
        &[("Range", "bytes=3000000-")],
        &[],
    );
    assert_eq!(none.status, 416);

    let head = server.ask("HEAD", "/objects/runs/7%20b", &[], &[]);
    assert_eq!(
        (head.status, head.header("content-length")),
        (200, Some("3000000"))
    );
    assert_eq!(head.header("etag"), put.header("etag"));
    let again = [("If-None-Match", "*")];
    assert_eq!(
        server
            .ask("PUT", "/objects/runs/7%20b", &again, b"x")
            .status,
        412
    );

    let list = server
        .ask("GET", "/objects?list-type=2&delimiter=/", &[], &[])
        .text();
    assert!(
        list.contains("<CommonPrefixes><Prefix>runs/</Prefix>"),
        "{list}"
    );
    let list = server
        .ask("GET", "/objects?list-type=2&prefix=runs/", &[], &[])
        .text();
    assert!(list.contains("<Key>runs/7 b</Key>"), "{list}");
    assert!(list.contains("<Size>3000000</Size>"), "{list}");

    assert_eq!(
        server.ask("DELETE", "/objects/runs/7%20b", &[], &[]).status,
        204
    );
    let gone = server.ask("GET", "/objects/runs/7%20b", &[], &[]);
    assert!(
        gone.status == 404 && gone.text().contains("NoSuchKey"),
        "{}",
        gone.text()
    );
}

#[test]
fn objects_go_by_token_and_not_in_bodies() {
    let Some(server) = Serving::start() else {
        return;
    };
    for len in [1, 5_000_001] {
        let (bytes, file) = (content(len), server.path("source"));
        fs::write(&file, &bytes).unwrap();
        let all = format!("{len} bytes, {len} of them by token");
        let put = server.client(&["put"], [&file, Path::new("a/b")]);
        says(&put, &format!("put {all}"));
        assert_eq!(fs::read(server.path("data/a/b")).unwrap(), bytes);
        let copy = server.path("copy");
        let got = server.client(&["get"], [Path::new("a/b"), &copy]);
        says(&got, &format!("got {all}"));
        assert_eq!(fs::read(copy).unwrap(), bytes);
    }
    let lacks = server.client(&["get"], [Path::new("nothing"), &server.path("copy")]);
    let why = String::from_utf8_lossy(&lacks.stderr).into_owned();
    assert!(!lacks.status.success() && why.contains("404"), "{why}");
}

#[test]
fn a_token_that_can_not_be_used_is_declined_and_the_bytes_go_in_the_body() {
    let Some(server) = Serving::start() else {
        return;
    };
    let bytes = content(2000);
    fs::write(server.path("data/x"), &bytes).unwrap();
    for token in [
        "0:100000:uet1:10.88.0.30:1234",
        "0:100000:ofi2:tcp:02:1",
        "00007f0012345000:00c00000:0012ab34:0001:00beef:1:fe80000000000000506b4b0300a1b2c3",
        "nonsense",
        // Of another provider, of a window that is too short, and of nobody.
        "0:100000:ofi1:verbs;ofi_rxm:020012340a0000010000000000000000:1",
        "0:1:ofi1:net:020012347f0000010000000000000000:1",
        "0:100000:ofi1:net:00:1",
    ] {
        let header = [("x-amz-rdma-token", token)];
        let got = server.ask("GET", "/objects/x", &header, &[]);
        assert_eq!(
            (got.status, got.header("x-amz-rdma-reply")),
            (200, Some("501")),
            "{token}"
        );
        assert_eq!(got.body, bytes, "{token}");
        if token.starts_with("0:1:") {
            continue;
        }
        let put = server.ask("PUT", "/objects/y", &header, &[]);
        assert_eq!(
            (put.status, put.header("x-amz-rdma-reply")),
            (501, Some("501")),
            "{token}"
        );
        assert!(!server.path("data/y").exists(), "{token}");
    }
}

/// A token says where its client is, and the server goes there: only where whoever asks is, unless
/// it was told of other networks.
#[test]
fn a_token_of_somebody_elsewhere_is_declined_and_nobody_is_connected_to() {
    for (arguments, goes) in [(&[][..], false), (&["--clients", "127.0.0.0/8"], true)] {
        let Some(server) = Serving::start_with(arguments) else {
            return;
        };
        fs::write(server.path("data/x"), content(2000)).unwrap();
        let victim = TcpListener::bind("127.0.0.2:0").unwrap();
        victim.set_nonblocking(true).unwrap();
        let port = victim.local_addr().unwrap().port();
        let provider = server.provider;
        let token = format!("0:100000:ofi1:{provider}:0200{port:04x}7f0000020000000000000000:1");
        let came = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| {
                let header = [("x-amz-rdma-token", &*token)];
                let got = server.ask("GET", "/objects/x", &header, &[]);
                (got, server.ask("PUT", "/objects/y", &header, &[]))
            });
            while !asked.is_finished() {
                // Whoever comes is hung up on.
                came.fetch_or(victim.accept().is_ok(), Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(1));
            }
            let (got, put) = asked.join().expect("answers");
            if !goes {
                assert_eq!(got.header("x-amz-rdma-reply"), Some("501"), "{}", got.head);
                assert_eq!((got.status, got.body), (200, content(2000)));
                assert_eq!(put.status, 501, "{}", put.head);
                let why = put.text();
                assert!(
                    why.contains("127.0.0.2") && why.contains("networks"),
                    "{why}"
                );
                assert!(!server.path("data/y").exists());
            }
        });
        assert_eq!(
            came.load(Ordering::Relaxed) || victim.accept().is_ok(),
            goes
        );
    }
    let Some(server) = Serving::start() else {
        return;
    };
    let wrong = run(Command::new(&server.program).args(["serve", "/", "--clients", "10.0.0.0/33"]));
    let why = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert!(
        !wrong.status.success() && why.contains("10.0.0.0/8"),
        "{why}"
    );
}

#[test]
fn nothing_leads_out_of_the_directory() {
    let Some(server) = Serving::start() else {
        return;
    };
    fs::write(server.path("secret"), b"s").unwrap();
    std::os::unix::fs::symlink(server.path("secret"), server.path("data/link")).unwrap();
    for path in [
        "/objects/../secret",
        "/objects/%2e%2e/secret",
        "/objects/a/..%2f..%2fsecret",
        "/objects//etc/passwd",
        "/objects/link",
        "/other/x",
    ] {
        let methods = match path {
            // A link can be replaced, and nothing is written through it.
            "/objects/link" => &["GET", "HEAD"][..],
            _ => &["GET", "PUT", "HEAD", "DELETE"],
        };
        for method in methods {
            let answer = server.ask(method, path, &[], &[]);
            assert!(
                (400..500).contains(&answer.status),
                "{method} {path}: {}",
                answer.head
            );
        }
    }
    assert_eq!(
        server.ask("PUT", "/objects/link", &[], b"replaced").status,
        200
    );
    assert_eq!(fs::read(server.path("data/link")).unwrap(), b"replaced");
    assert_eq!(fs::read(server.path("secret")).unwrap(), b"s");
}

#[test]
fn curl_puts_gets_and_lists() {
    let curl = || Command::new("curl");
    if curl().arg("--version").output().is_err() {
        return println!("SKIPPED: there is no curl");
    }
    let Some(server) = Serving::start() else {
        return;
    };
    let (source, copy) = (server.path("source"), server.path("copy"));
    fs::write(&source, content(1_500_000)).unwrap();
    let url = server.url("/objects/by/curl");
    let put = run(curl().args(["-sSf", "-T"]).arg(&source).arg(&url));
    assert!(put.status.success(), "{put:?}");
    let got = run(curl().args(["-sSf", "-o"]).arg(&copy).arg(&url));
    assert!(got.status.success(), "{got:?}");
    assert_eq!(fs::read(&copy).unwrap(), fs::read(&source).unwrap());
    let list = run(curl().arg("-sSf").arg(server.url("/objects?list-type=2")));
    let list = String::from_utf8_lossy(&list.stdout).into_owned();
    assert!(list.contains("<Key>by/curl</Key>"), "{list}");
}
