//! The writer: one thread for each sender, which checks what it says and writes its files.
//!
//! Dropping a message gives its buffer back to the endpoint, from this thread: a disk that is slow holds buffers, the
//! endpoint grants nothing, and the sender waits.

use std::ffi::OsString;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::thread::JoinHandle;
use std::time::Duration;

use fabricast::endpoint::{ConnectionId, Message};
use fabricast::event_loop::Waker;

use crate::target::{Directory, Target};
use crate::wire::{Outcome, Reply, Request, file_name};

/// What a writer tells the network thread.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// The sender said where it takes replies.
    Hello { connection: ConnectionId, port: u16 },
    /// A file has ended, one way or the other: tell the sender.
    Reply {
        connection: ConnectionId,
        reply: Reply,
    },
    /// The thread ends.
    Over {
        connection: ConnectionId,
        said_hello: bool,
        result: Result<(), String>,
    },
}

/// What all writers share.
#[derive(Clone)]
pub(crate) struct WriterConfig {
    pub(crate) directory: Directory,
    /// Bytes of the largest file.
    pub(crate) max_size: u64,
    /// Write through to the disk before a file gets its name.
    pub(crate) sync: bool,
    /// How long a sender may say nothing.
    pub(crate) patience: Duration,
    pub(crate) verdicts: SyncSender<Verdict>,
    pub(crate) waker: Waker,
}

/// Starts the thread for one sender. It ends when the other end of `inbox` is dropped.
pub(crate) fn spawn(
    config: WriterConfig,
    connection: ConnectionId,
    inbox: Receiver<Message>,
) -> std::io::Result<JoinHandle<()>> {
    let writer = Writer {
        config,
        connection,
        inbox,
        token: None,
        file: 0,
    };
    std::thread::Builder::new()
        .name(format!("writer-{connection}"))
        .spawn(move || writer.run())
}

struct Writer {
    config: WriterConfig,
    connection: ConnectionId,
    inbox: Receiver<Message>,
    token: Option<u64>,
    /// The number that the next file, or the one on its way, must have.
    file: u32,
}

/// Why no more messages are read.
enum Stop {
    /// The connection is gone.
    Closed,
    /// The sender is told, and then the connection is closed.
    Failed(String),
}

impl From<String> for Stop {
    fn from(reason: String) -> Self {
        Self::Failed(reason)
    }
}

impl From<&'static str> for Stop {
    fn from(reason: &'static str) -> Self {
        Self::Failed(format!("the sender sent {reason}"))
    }
}

impl Writer {
    fn run(mut self) {
        let result = match self.receive() {
            Ok(()) => Ok(()),
            Err(reason) => {
                self.reply(Outcome::Failed {
                    reason: reason.clone(),
                });
                Err(reason)
            }
        };
        // What the sender had sent ahead is dropped, so that the goodbye behind it gets through.
        self.inbox.iter().for_each(drop);
        self.tell(Verdict::Over {
            connection: self.connection,
            said_hello: self.token.is_some(),
            result,
        });
    }

    /// Receives files until the connection is gone.
    fn receive(&mut self) -> Result<(), String> {
        match self.hello() {
            Ok(()) => {}
            Err(Stop::Closed) => return Ok(()),
            Err(Stop::Failed(reason)) => return Err(reason),
        }
        loop {
            let mut target = match self.open() {
                Ok(target) => target,
                Err(Stop::Closed) => return Ok(()),
                Err(Stop::Failed(reason)) => return Err(reason),
            };
            let crc = match self.fill(&mut target) {
                Ok(crc) => crc,
                Err(Stop::Closed) => return Err(cut_short(&target)),
                Err(Stop::Failed(reason)) => return Err(reason),
            };
            self.finish(target, crc)?;
        }
    }

    fn hello(&mut self) -> Result<(), Stop> {
        let (request, _message) = self.next()?;
        let Request::Hello { port, token } = request else {
            return Err("no Hello first".into());
        };
        self.token = Some(token);
        self.tell(Verdict::Hello {
            connection: self.connection,
            port,
        });
        Ok(())
    }

    fn open(&mut self) -> Result<Target, Stop> {
        let (request, message) = self.next()?;
        let size = match request {
            Request::Open { file, size } if file == self.file => size,
            _ => return Err("something else than the next file".into()),
        };
        let name = file_name(message.payload())?;
        self.check_size(&name, size)?;
        Ok(Target::create(&self.config.directory, name, size)?)
    }

    fn check_size(&self, name: &OsString, size: u64) -> Result<(), Stop> {
        let max = self.config.max_size;
        if size > max {
            let reason = format!("{name:?}: {size} bytes, the receiver takes up to {max}");
            return Err(Stop::Failed(reason));
        }
        Ok(())
    }

    /// Writes the blocks of one file. Returns the checksum that the sender has.
    fn fill(&self, target: &mut Target) -> Result<u32, Stop> {
        loop {
            let (request, message) = self.next()?;
            match request {
                Request::Block {
                    file,
                    index,
                    offset,
                } if file == self.file => target.write(index, offset, message.payload())?,
                Request::Close { file, crc } if file == self.file => return Ok(crc),
                _ => return Err("something else than a block of the file".into()),
            }
        }
    }

    fn finish(&mut self, target: Target, crc: u32) -> Result<(), String> {
        let (name, size) = (target.name().to_owned(), target.size());
        let crc = target.finish(crc, self.config.sync)?;
        crate::say(format_args!(
            "received {name:?}: {size} bytes, crc32c {crc:08x}"
        ));
        self.reply(Outcome::Written { size, crc });
        self.file += 1;
        Ok(())
    }

    /// The next message; dropping it gives its buffer back.
    fn next(&self) -> Result<(Request, Message), Stop> {
        let message = match self.inbox.recv_timeout(self.config.patience) {
            Ok(message) => message,
            Err(RecvTimeoutError::Disconnected) => return Err(Stop::Closed),
            Err(RecvTimeoutError::Timeout) => {
                let reason = format!("the sender sent nothing for {:?}", self.config.patience);
                return Err(Stop::Failed(reason));
            }
        };
        let request = Request::parse(message.header(), message.payload().len())?;
        Ok((request, message))
    }

    fn reply(&self, outcome: Outcome) {
        self.tell(Verdict::Reply {
            connection: self.connection,
            reply: Reply {
                // Without a Hello there is nowhere to send it: the network thread then closes the connection.
                token: self.token.unwrap_or(0),
                file: self.file,
                outcome,
            },
        });
    }

    fn tell(&self, verdict: Verdict) {
        // The network thread never waits for a writer, so this wait is short; when it has ended, nobody wants to know.
        let _ = self.config.verdicts.send(verdict);
        self.config.waker.wake();
    }
}

fn cut_short(target: &Target) -> String {
    format!(
        "{:?}: the connection ended after {} of {} bytes",
        target.name(),
        target.written(),
        target.size()
    )
}
