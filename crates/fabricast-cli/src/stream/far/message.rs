//! What the two ends of a remote shell say to each other, one JSON object a line.
//!
//! ```text
//!   far end ── hello ──────────► near end     version, the addresses of the shell's connection
//!   far end ◄── request ──────── near end     key, arguments, where to meet
//!   far end ── listening ──────► near end     of a receiver
//!   far end ── progress, result ► near end    of a sender
//! ```
//!
//! Lines of the far end begin with [`MARK`]: what its shell prints before is not taken for them.
//! The end of the far end's input is the end of the far end.

use std::io::{BufRead, BufReader, Read};
use std::net::IpAddr;
use std::sync::mpsc::{Receiver, sync_channel};

use serde_json::{Value, json};

use crate::failure::{End, Failure};
use crate::stream::devices::NetworkDevice;

/// What lines of a far end begin with.
pub(crate) const MARK: &str = "fabricast-far ";

/// Of this conversation.
const PROTOCOL: u64 = 1;

/// The longest line that is taken, in bytes.
const LINE_MAX: u64 = 1 << 20;

/// Lines that wait to be read, at most.
const LINES_WAITING: usize = 64;

/// The first line of a far end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hello {
    protocol: u64,
    version: String,
    /// Where the shell's connection came in, as the far end sees it.
    pub(crate) came_in: Option<IpAddr>,
    /// Where it came from.
    pub(crate) came_from: Option<IpAddr>,
    /// Those of the far end's machine.
    pub(crate) devices: Vec<NetworkDevice>,
}

impl Hello {
    pub(crate) fn of_this_end() -> Self {
        let connection = std::env::var("SSH_CONNECTION").unwrap_or_default();
        let (came_from, came_in) = ends_of(&connection);
        Self {
            protocol: PROTOCOL,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            came_in,
            came_from,
            devices: NetworkDevice::all(),
        }
    }

    pub(crate) fn to_json(&self) -> Value {
        json!({
            "protocol": self.protocol,
            "version": self.version,
            "came_in": self.came_in.map(|ip| ip.to_string()),
            "came_from": self.came_from.map(|ip| ip.to_string()),
            "devices": NetworkDevice::all_to_json(&self.devices),
        })
    }

    /// # Errors
    /// Why the two don't understand each other.
    pub(crate) fn from_json(value: &Value) -> Result<Self, String> {
        let hello = Self {
            protocol: value["protocol"].as_u64().unwrap_or_default(),
            version: value["version"].as_str().unwrap_or("?").to_owned(),
            came_in: ip(&value["came_in"]),
            came_from: ip(&value["came_from"]),
            devices: NetworkDevice::all_from_json(&value["devices"]),
        };
        let own = env!("CARGO_PKG_VERSION");
        if hello.protocol == PROTOCOL && series(&hello.version) == series(own) {
            return Ok(hello);
        }
        Err(format!(
            "its fabricast is version {:?}, this one {own}: install the same version at both ends, \
             or name another one there with --remote-path",
            hello.version
        ))
    }
}

/// The part of a version that must be the same.
fn series(version: &str) -> Option<(&str, &str)> {
    let mut parts = version.split('.');
    Some((parts.next()?, parts.next()?))
}

/// Client and server of `SSH_CONNECTION`.
fn ends_of(connection: &str) -> (Option<IpAddr>, Option<IpAddr>) {
    let mut words = connection.split(' ');
    let client = words.next().and_then(|word| word.parse().ok());
    let server = words.nth(1).and_then(|word| word.parse().ok());
    (client, server)
}

fn ip(value: &Value) -> Option<IpAddr> {
    value.as_str()?.parse().ok()
}

/// What a far end is to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Send,
    Receive,
    /// The server of a bench.
    Bench,
}

/// What a near end asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) role: Role,
    /// As on a command line, behind the command's name.
    pub(crate) args: Vec<String>,
    /// The bytes of the key.
    pub(crate) key: Vec<u8>,
    /// Addresses of the near end: a receiver listens where it would reach them from.
    pub(crate) meet: Vec<IpAddr>,
    /// What a sender sends.
    pub(crate) paths: Vec<String>,
    /// Where it sends it to.
    pub(crate) to: Vec<String>,
}

impl Request {
    pub(crate) fn to_json(&self) -> Value {
        let meet: Vec<_> = self.meet.iter().map(ToString::to_string).collect();
        json!({
            "role": match self.role {
                Role::Send => "send",
                Role::Receive => "receive",
                Role::Bench => "bench",
            },
            "args": self.args,
            "key": to_hex(&self.key),
            "meet": meet,
            "paths": self.paths,
            "to": self.to,
        })
    }

    /// `None`: it is none.
    pub(crate) fn from_json(value: &Value) -> Option<Self> {
        let role = match value["role"].as_str()? {
            "send" => Role::Send,
            "receive" => Role::Receive,
            "bench" => Role::Bench,
            _ => return None,
        };
        let meet = texts(&value["meet"])?;
        Some(Self {
            role,
            args: texts(&value["args"])?,
            key: from_hex(value["key"].as_str()?)?,
            meet: meet
                .iter()
                .map(|ip| ip.parse().ok())
                .collect::<Option<_>>()?,
            paths: texts(&value["paths"])?,
            to: texts(&value["to"])?,
        })
    }
}

pub(crate) fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The bytes of these digits; `None`: they are none.
pub(crate) fn from_hex(text: &str) -> Option<Vec<u8>> {
    let pairs = text.as_bytes().chunks(2);
    let byte = |pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    pairs.map(byte).collect()
}

/// The texts of an array; `None`: it is none, or has others.
pub(crate) fn texts(value: &Value) -> Option<Vec<String>> {
    let text = |it: &Value| it.as_str().map(str::to_owned);
    value.as_array()?.iter().map(text).collect()
}

/// How a far end says that it failed.
pub(crate) fn failure_to_json(failure: &Failure) -> Value {
    json!({ "failed": failure.to_string(), "exit": failure.end() as u64 })
}

/// The failure in what a far end says, with its name in front; `None`: it says something else.
pub(crate) fn failure_from_json(name: &str, value: &Value) -> Option<Failure> {
    let text = value["failed"].as_str()?;
    let end = End::with_code(value["exit"].as_u64().unwrap_or_default());
    Some(Failure::new(format!("{name}: {text}")).ends(end))
}

/// Reads lines in a thread of its own; the channel is closed behind the last one. A line that is
/// too long is the last.
pub(crate) fn lines_of(from: impl Read + Send + 'static) -> Result<Receiver<Vec<u8>>, Failure> {
    let (give, take) = sync_channel(LINES_WAITING);
    let mut from = BufReader::new(from);
    let read = move || {
        loop {
            let mut line = Vec::new();
            let read = (&mut from).take(LINE_MAX).read_until(b'\n', &mut line);
            if line.pop() != Some(b'\n') || read.is_err() || give.send(line).is_err() {
                return;
            }
        }
    };
    let thread = std::thread::Builder::new().name("far-lines".to_owned());
    thread
        .spawn(read)
        .map_err(|error| Failure::os("a thread", &error))?;
    Ok(take)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_understood() {
        let request = Request {
            role: Role::Receive,
            args: vec!["--dir".to_owned(), "a \"b\"\n".to_owned()],
            key: vec![0, 1, 0xfe],
            meet: vec!["10.0.0.1".parse().expect("an address")],
            paths: Vec::new(),
            to: vec!["127.0.0.1:1".to_owned()],
        };
        let text = request.to_json().to_string();
        assert!(!text.contains('\n'), "one line: {text}");
        let read = serde_json::from_str(&text).expect("JSON");
        assert_eq!(Request::from_json(&read), Some(request));
        assert_eq!(Request::from_json(&json!({ "role": "send" })), None);
        let hello = Hello::of_this_end();
        assert_eq!(Hello::from_json(&hello.to_json()), Ok(hello.clone()));
        for (what, value) in [("protocol", json!(2)), ("version", json!("9.9.0"))] {
            let mut other = hello.to_json();
            other[what] = value;
            let error = Hello::from_json(&other).expect_err("another");
            assert!(error.contains("install the same version"), "{error}");
        }
        assert!(Hello::from_json(&json!(7)).is_err());
    }

    #[test]
    fn the_addresses_of_the_shell_are_those_that_ssh_says() {
        let ip = |text: &str| Some(text.parse().expect("an address"));
        let found = ends_of("10.0.0.1 50000 10.0.0.2 22");
        assert_eq!(found, (ip("10.0.0.1"), ip("10.0.0.2")));
        assert_eq!(ends_of("fe80::1%eth0 1 ::1 22"), (None, ip("::1")));
        assert_eq!(ends_of(""), (None, None));
    }

    #[test]
    fn lines_come_one_by_one_and_none_is_too_long() {
        let mut text = b"a\n\nb\n".to_vec();
        text.resize(3 << 20, b'x');
        let lines: Vec<_> = lines_of(std::io::Cursor::new(text))
            .expect("a thread")
            .iter()
            .collect();
        assert_eq!(lines, [b"a".to_vec(), Vec::new(), b"b".to_vec()]);
    }
}
