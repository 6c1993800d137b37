//! The connection on which client and server agree what to run: lines over TCP, none of them while
//! something is timed.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use crate::clock::Deadline;
use crate::error::{Failure, fail};

/// A connection with whole lines.
pub(crate) struct Control {
    reader: BufReader<TcpStream>,
}

impl Control {
    fn new(stream: TcpStream) -> Result<Self, Failure> {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(Duration::from_secs(10)))?;
        Ok(Self {
            reader: BufReader::new(stream),
        })
    }

    pub(crate) fn connect(to: SocketAddr) -> Result<Self, Failure> {
        let stream = TcpStream::connect_timeout(&to, Duration::from_secs(10))
            .map_err(|error| Failure(format!("{to}: {error}")))?;
        Self::new(stream)
    }

    /// Waits for one peer.
    pub(crate) fn accept(listener: &TcpListener, patience: Duration) -> Result<Self, Failure> {
        listener.set_nonblocking(true)?;
        let deadline = Deadline::after(patience);
        loop {
            match listener.accept() {
                Ok((stream, _)) => return Self::new(stream),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    deadline.check("a client")?;
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    pub(crate) fn say(&mut self, line: &str) -> Result<(), Failure> {
        Ok(self
            .reader
            .get_mut()
            .write_all(format!("{line}\n").as_bytes())?)
    }

    /// The next line; none when the peer is gone.
    pub(crate) fn hear(&mut self, patience: Duration) -> Result<Option<String>, Failure> {
        self.reader.get_ref().set_read_timeout(Some(patience))?;
        let mut line = String::new();
        match self.reader.read_line(&mut line) {
            Ok(0) => Ok(None),
            Ok(_) => Ok(Some(line.trim_end().to_owned())),
            Err(error) => fail(format!("waited {patience:?} for the peer's word: {error}")),
        }
    }

    /// The rest of a line that must begin with this word.
    pub(crate) fn expect(&mut self, word: &str, patience: Duration) -> Result<String, Failure> {
        let line = self
            .hear(patience)?
            .ok_or_else(|| Failure::of("the peer is gone"))?;
        match line.split_once(' ') {
            Some((first, rest)) if first == word => Ok(rest.to_owned()),
            Some(("failed", why)) => fail(format!("server: {why}")),
            _ => fail(format!("the peer said `{line}` instead of `{word}`")),
        }
    }
}
