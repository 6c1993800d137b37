//! `Mover`: a thread that owns a channel, and moves pieces for requests that wait for them.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::time::{Duration, Instant};

use fabricast::buffer::{Buffer, BufferMut};
use fabricast::object::{ChannelEvent, ObjectChannel, ObjectServer, RdmaToken};
use tokio::sync::oneshot;

use crate::Failure;

/// A client that does not answer is given up after this long.
const BUDGET: Duration = Duration::from_secs(10);

/// How long the thread sleeps on the channel before it looks for new pieces.
const NAP: Duration = Duration::from_micros(500);

/// What became of a piece: the buffer where it came back, and why it failed.
type Moved<B> = Result<B, NotMoved>;

/// Why a piece was not moved.
#[derive(Debug)]
pub(crate) struct NotMoved {
    pub(crate) reason: String,
    /// Whether the client's memory may have been touched, or may be still.
    pub(crate) posted: bool,
}

impl NotMoved {
    fn before(reason: impl ToString) -> Self {
        let (reason, posted) = (reason.to_string(), false);
        Self { reason, posted }
    }
}

/// One piece of an object.
enum Piece {
    /// To the client.
    Write(Buffer, oneshot::Sender<Moved<Buffer>>),
    /// From the client; so many bytes.
    Read(BufferMut, usize, oneshot::Sender<Moved<BufferMut>>),
}

/// A piece, the token of its request, and where in the token's window it lies.
struct Job {
    token: RdmaToken,
    at: u64,
    piece: Piece,
}

/// Who waits for a piece.
enum Waiter {
    Write(oneshot::Sender<Moved<Buffer>>),
    Read(oneshot::Sender<Moved<BufferMut>>),
}

/// The way to the thread, which ends when all of these are dropped.
#[derive(Clone)]
pub(crate) struct Mover(Sender<Job>);

impl Mover {
    pub(crate) fn start(server: &ObjectServer) -> Result<Self, Failure> {
        let (jobs, waiting) = channel();
        let channel = server.channel()?;
        let name = std::thread::Builder::new().name("mover".to_owned());
        name.spawn(move || MoverThread::new(channel).run(&waiting))?;
        Ok(Self(jobs))
    }

    /// Writes a piece into the client's window.
    pub(crate) async fn write(&self, token: &RdmaToken, at: u64, bytes: Buffer) -> Moved<Buffer> {
        let (done, outcome) = oneshot::channel();
        self.send(token, at, Piece::Write(bytes, done));
        outcome.await.unwrap_or_else(|_| Err(gone()))
    }

    /// Reads a piece of the client's window.
    pub(crate) async fn read(
        &self,
        token: &RdmaToken,
        at: u64,
        into: BufferMut,
        len: usize,
    ) -> Moved<BufferMut> {
        let (done, outcome) = oneshot::channel();
        self.send(token, at, Piece::Read(into, len, done));
        outcome.await.unwrap_or_else(|_| Err(gone()))
    }

    fn send(&self, token: &RdmaToken, at: u64, piece: Piece) {
        let token = token.clone();
        // Where the thread is gone, the sender of the outcome is dropped, which is an answer.
        let _ = self.0.send(Job { token, at, piece });
    }
}

fn gone() -> NotMoved {
    let reason = "the mover is gone".to_owned();
    NotMoved {
        reason,
        posted: true,
    }
}

struct MoverThread {
    channel: ObjectChannel,
    waiters: HashMap<u64, Waiter>,
    last: u64,
}

impl MoverThread {
    fn new(channel: ObjectChannel) -> Self {
        let (waiters, last) = (HashMap::new(), 0);
        Self {
            channel,
            waiters,
            last,
        }
    }

    fn run(mut self, jobs: &Receiver<Job>) {
        let mut events = Vec::new();
        loop {
            let got = match self.waiters.is_empty() {
                // Buffers that come back late, and clients that leave, need a turn as well.
                true => jobs.recv_timeout(Duration::from_millis(100)),
                false => jobs.try_recv().map_err(|error| match error {
                    TryRecvError::Empty => RecvTimeoutError::Timeout,
                    TryRecvError::Disconnected => RecvTimeoutError::Disconnected,
                }),
            };
            let is_job = match got {
                Ok(job) => {
                    self.begin(job);
                    true
                }
                Err(RecvTimeoutError::Timeout) => false,
                Err(RecvTimeoutError::Disconnected) => break,
            };
            if let Err(error) = self.channel.poll(&mut events) {
                eprintln!("object_http: {error}");
                break;
            }
            let idle = events.is_empty() && !is_job && !self.waiters.is_empty();
            events.drain(..).for_each(|event| self.end(event));
            if idle && self.channel.wait(NAP).is_err() {
                break;
            }
        }
        self.channel.close(Instant::now() + Duration::from_secs(1));
    }

    fn begin(&mut self, Job { token, at, piece }: Job) {
        self.last += 1;
        let (key, deadline) = (self.last, Instant::now() + BUDGET);
        match piece {
            Piece::Write(bytes, done) => {
                match self.channel.handle_get(&token, at, bytes, key, deadline) {
                    Ok(()) => drop(self.waiters.insert(key, Waiter::Write(done))),
                    Err(refused) => drop(done.send(Err(NotMoved::before(refused.kind)))),
                }
            }
            Piece::Read(into, len, done) => {
                let into = fabricast::endpoint::Destination::buffer(into, len);
                match self.channel.handle_put(&token, at, into, key, deadline) {
                    Ok(()) => drop(self.waiters.insert(key, Waiter::Read(done))),
                    Err(refused) => drop(done.send(Err(NotMoved::before(refused.kind)))),
                }
            }
        }
    }

    fn end(&mut self, event: ChannelEvent) {
        if !event.is_outcome() {
            return;
        }
        let lost = || NotMoved::before("another kind of buffer came back");
        match (self.waiters.remove(&event.key()), event) {
            (Some(Waiter::Write(done)), ChannelEvent::Written { payload, .. }) => {
                let _ = done.send(payload.into_buffer().map_err(|_| lost()));
            }
            (Some(Waiter::Read(done)), ChannelEvent::Read { into, .. }) => {
                let _ = done.send(into.into_buffer().map_err(|_| lost()));
            }
            (Some(Waiter::Write(done)), ChannelEvent::WriteFailed { error, .. }) => {
                let (reason, posted) = (error.kind.to_string(), error.posted);
                let _ = done.send(Err(NotMoved { reason, posted }));
            }
            (Some(Waiter::Read(done)), ChannelEvent::ReadFailed { error, .. }) => {
                let (reason, posted) = (error.kind.to_string(), error.posted);
                let _ = done.send(Err(NotMoved { reason, posted }));
            }
            _ => {}
        }
    }
}
