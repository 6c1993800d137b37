//! The connection on which client and server agree what to run: lines over TCP, none of them while
//! something is timed.

use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use rustix::net::sockopt;

use crate::clock::Deadline;
use crate::error::{Failure, Kind, fail};

/// The longest line that is taken of a peer that has proven nothing, in bytes.
const STRANGE_MAX: usize = 1 << 10;
/// The longest one of a peer that has.
const LINE_MAX: usize = 1 << 20;
/// How long a line may take to be sent.
const SEND: Duration = Duration::from_secs(10);

/// A connection with whole lines.
#[derive(Debug)]
pub struct Control {
    reader: BufReader<TcpStream>,
    line_max: usize,
}

impl Control {
    /// The lines of this connection. They must be short until [`Self::trust`].
    ///
    /// # Errors
    /// When the system takes an option of the socket's not.
    pub fn over(stream: TcpStream) -> Result<Self, Failure> {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(SEND))?;
        // A peer whose machine is gone says nothing: the kernel finds out in a minute.
        sockopt::set_socket_keepalive(&stream, true)?;
        sockopt::set_tcp_keepidle(&stream, Duration::from_secs(30))?;
        sockopt::set_tcp_keepintvl(&stream, Duration::from_secs(10))?;
        sockopt::set_tcp_keepcnt(&stream, 3)?;
        Ok(Self {
            reader: BufReader::new(stream),
            line_max: STRANGE_MAX,
        })
    }

    /// From now on long lines are taken: the peer is known.
    pub fn trust(&mut self) {
        self.line_max = LINE_MAX;
    }

    /// Connects within some seconds.
    ///
    /// # Errors
    /// When nobody answers.
    pub fn connect(to: SocketAddr) -> Result<Self, Failure> {
        let stream = TcpStream::connect_timeout(&to, Duration::from_secs(10))
            .map_err(|error| Failure::new(format!("{to}: {error}")).is(Kind::Unreachable))?;
        Self::over(stream)
    }

    /// Waits for one peer.
    ///
    /// # Errors
    /// When none comes within `patience`.
    pub fn accept(listener: &TcpListener, patience: Duration) -> Result<Self, Failure> {
        Self::over(accept(listener, patience)?)
    }

    /// Sends a line.
    ///
    /// # Errors
    /// When the peer is gone.
    pub fn say(&mut self, line: &str) -> Result<(), Failure> {
        let sent = self
            .reader
            .get_mut()
            .write_all(format!("{line}\n").as_bytes());
        sent.map_err(|error| Failure::from(error).is(Kind::Unreachable))
    }

    /// The next line; none when the peer is gone.
    ///
    /// # Errors
    /// When it does not come in time, or is too long, or no text.
    pub fn hear(&mut self, patience: Duration) -> Result<Option<String>, Failure> {
        let until = Instant::now() + patience;
        let mut line = Vec::new();
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let text = format!("waited {patience:?} for the peer's word");
                return Err(Failure::new(text).is(Kind::Unreachable));
            }
            self.reader.get_ref().set_read_timeout(Some(left))?;
            let bytes = match self.reader.fill_buf() {
                Ok([]) => return Ok(None),
                Ok(bytes) => bytes,
                Err(error) if is_for_now(error.kind()) => continue,
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(None),
                Err(error) => return Err(Failure::from(error).is(Kind::Unreachable)),
            };
            let end = bytes.iter().position(|&byte| byte == b'\n');
            let taken = end.unwrap_or(bytes.len());
            line.extend_from_slice(&bytes[..taken]);
            self.reader.consume(end.map_or(taken, |end| end + 1));
            if line.len() > self.line_max {
                return Err(Failure::new(format!(
                    "the peer says a line of more than {} bytes: it is no fabricast bench",
                    self.line_max
                ))
                .is(Kind::Refused));
            }
            if end.is_some() {
                let text = String::from_utf8(line);
                let text = text.map_err(|_| {
                    Failure::of("the peer says no text: it is no fabricast bench").is(Kind::Refused)
                })?;
                return Ok(Some(text.trim_end().to_owned()));
            }
        }
    }

    /// The rest of a line that must begin with this word.
    ///
    /// # Errors
    /// When it begins with another, or the peer is gone.
    pub fn expect(&mut self, word: &str, patience: Duration) -> Result<String, Failure> {
        let line = self
            .hear(patience)?
            .ok_or_else(|| Failure::of("the peer is gone").is(Kind::Unreachable))?;
        match line.split_once(' ').unwrap_or((&line, "")) {
            (first, rest) if first == word => Ok(rest.to_owned()),
            ("failed", why) => fail(format!("server: {why}")),
            _ => Err(
                Failure::new(format!("the peer said {line:?} instead of {word:?}"))
                    .is(Kind::Refused),
            ),
        }
    }

    /// Whether the peer is gone, or says within that time why it goes.
    pub(crate) fn last_words(&mut self, patience: Duration) -> Option<Failure> {
        let gone = || Failure::of("the server is gone").is(Kind::Unreachable);
        loop {
            match self.hear(patience) {
                Ok(None) => return Some(gone()),
                Ok(Some(line)) => {
                    if let Some(why) = line.strip_prefix("failed ") {
                        return Some(Failure::new(format!("server: {why}")));
                    }
                }
                Err(_) => return None,
            }
        }
    }

    /// The address of this end.
    ///
    /// # Errors
    /// When the connection has none any more.
    pub fn local_ip(&self) -> Result<IpAddr, Failure> {
        Ok(plain(self.reader.get_ref().local_addr()?.ip()))
    }

    /// The address of the other end.
    ///
    /// # Errors
    /// When the connection has none any more.
    pub fn peer_ip(&self) -> Result<IpAddr, Failure> {
        Ok(plain(self.reader.get_ref().peer_addr()?.ip()))
    }

    /// The connection itself, for another process.
    ///
    /// # Errors
    /// When the peer has said more than it was asked for.
    pub fn into_stream(self) -> Result<TcpStream, Failure> {
        match self.reader.buffer() {
            [] => Ok(self.reader.into_inner()),
            _ => fail("the peer says more than it was asked for"),
        }
    }
}

/// An IPv4 address that came in by a socket of IPv6, as what it is.
fn plain(ip: IpAddr) -> IpAddr {
    ip.to_canonical()
}

fn is_for_now(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
    )
}

/// Waits for one connection.
pub(crate) fn accept(listener: &TcpListener, patience: Duration) -> Result<TcpStream, Failure> {
    listener.set_nonblocking(true)?;
    let deadline = Deadline::after(patience);
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false)?;
                return Ok(stream);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                deadline.check("a client")?;
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(error) => return Err(error.into()),
        }
    }
}
