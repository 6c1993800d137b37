//! Objects in the body of an HTTP response: a TCP socket that stays, a request in one piece, a
//! response of a head and a body, both ends in a loop that knows no other. The least that a server
//! without RDMA could do.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};

use crate::case::{Arrived, Case, Pacer, Sent};
use crate::control::{Control, accept};
use crate::error::{Failure, fail};
use crate::object;
use crate::object_request;

const REQUEST: &[u8] = b"GET /object HTTP/1.1\r\nHost: bench\r\nAccept: */*\r\n\r\n";
/// What a head ends with.
const END: &[u8] = b"\r\n\r\n";
/// Bytes of the longest head.
const HEAD_MAX: usize = 4096;

/// One read or write of a socket that does not block; none where it would.
fn some(done: std::io::Result<usize>) -> Result<Option<usize>, Failure> {
    match done {
        Ok(0) => fail("the peer is gone"),
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn set_up(stream: &TcpStream) -> Result<(), Failure> {
    stream.set_nodelay(true)?;
    Ok(stream.set_nonblocking(true)?)
}

/// Where the head ends, once it is all there.
fn head_len(bytes: &[u8]) -> Option<usize> {
    let at = bytes.windows(END.len()).position(|window| window == END)?;
    Some(at + END.len())
}

/// Answers requests until the client is done.
pub(crate) fn answer(case: &Case, control: &mut Control) -> Result<Arrived, Failure> {
    let listener = TcpListener::bind((case.node.as_str(), 0))?;
    control.say(&format!("ready {}", listener.local_addr()?))?;
    let mut stream = accept(&listener, object::patience(case))?;
    set_up(&stream)?;
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nContent-Length: {}\r\n\r\n",
        case.size
    );
    let mut response = head.into_bytes();
    response.resize(response.len() + case.size, 7);
    let (mut asked, mut sent) = (Vec::new(), response.len());
    let mut room = [0; HEAD_MAX];
    object::serve(case, control, || {
        if sent < response.len() {
            let some = some(stream.write(&response[sent..]))?.unwrap_or(0);
            sent += some;
            return Ok(some);
        }
        // What the client closes when it is done, is no failure.
        let bytes = match stream.read(&mut room) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
            Err(error) => return Err(error.into()),
        };
        asked.extend_from_slice(&room[..bytes]);
        if head_len(&asked).is_some() {
            asked.clear();
            sent = 0;
        }
        Ok(bytes)
    })
}

/// Reads one response into `body`, of which `head` is read before.
fn read(
    stream: &mut TcpStream,
    (head, body): (&mut [u8], &mut [u8]),
    pacer: &mut Pacer,
) -> Result<(), Failure> {
    let mut have = 0;
    let begin = loop {
        let found = some(stream.read(&mut head[have..]))?.unwrap_or(0);
        pacer.on_poll(found)?;
        have += found;
        if let Some(begin) = head_len(&head[..have]) {
            break begin;
        }
        if have == head.len() {
            return fail("a head without an end");
        }
    };
    let text = std::str::from_utf8(&head[..begin])?;
    let len = text
        .lines()
        .find_map(|line| line.strip_prefix("Content-Length: "));
    if len.and_then(|len| len.parse().ok()) != Some(body.len()) {
        return fail("a response of another length");
    }
    let mut got = have - begin;
    body[..got].copy_from_slice(&head[begin..have]);
    while got < body.len() {
        let found = some(stream.read(&mut body[got..]))?.unwrap_or(0);
        pacer.on_poll(found)?;
        got += found;
    }
    Ok(())
}

/// One request at a time, for the time of the case.
pub(crate) fn run(
    case: &Case,
    to: &str,
    control: &mut Control,
) -> Result<(Sent, Arrived), Failure> {
    let mut stream = TcpStream::connect(to)?;
    set_up(&stream)?;
    let mut head = [0; HEAD_MAX];
    let mut body = vec![0; case.size];
    object_request::drive(case, control, |pacer| {
        // A request goes into an empty socket whole.
        match some(stream.write(REQUEST))? {
            Some(bytes) if bytes == REQUEST.len() => {}
            _ => return fail("half a request"),
        }
        // No more of the body in the head than there is.
        let most = HEAD_MAX.min(128 + case.size);
        read(&mut stream, (&mut head[..most], &mut body), pacer)
    })
}
