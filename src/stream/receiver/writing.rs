//! Writing: jobs for the threads that check blocks and give them to sinks, and what comes of them.

use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use crate::Error;
use crate::endpoint::Message;
use crate::event_loop::Waker;
use crate::stream::Block;
use crate::stream::digest::crc32c;
use crate::stream::sink::{BlockSink, Kept, SinkError, Stop, StreamOffer};
use crate::stream::workers::{Workers, guarded};

/// Something that a sink is to do.
pub(super) struct WriteJob {
    pub(super) session: u64,
    pub(super) sink: Arc<dyn BlockSink>,
    pub(super) what: What,
}

pub(super) enum What {
    Open(StreamOffer, Stop),
    /// The block, and its checksum if it is to be checked. Dropping the message gives its buffer back to the endpoint.
    Write(Block, Option<u32>, Message),
    Finish(Stop),
    Abandon,
}

/// What became of it.
pub(super) struct WriteDone {
    pub(super) session: u64,
    pub(super) did: Did,
    pub(super) took: Duration,
}

pub(super) enum Did {
    Opened(Result<Kept, SinkError>),
    Written(Block, Result<u32, Damage>),
    /// Bytes that were read back.
    Finished(Result<u64, SinkError>),
    Abandoned,
}

/// Why a block was not written.
#[derive(Debug)]
pub(super) enum Damage {
    /// Its bytes have another checksum than the one that came with it.
    Crc(u32),
    Sink(SinkError),
}

/// Threads for blocks, and one for what takes long: opening, finishing.
pub(super) struct Writers {
    blocks: Workers<WriteJob>,
    long: Workers<WriteJob>,
}

impl Writers {
    pub(super) fn spawn(
        threads: u32,
        (bound, sessions): (usize, usize),
        done: SyncSender<WriteDone>,
        waker: Waker,
    ) -> Result<Self, Error> {
        let run = move |job| {
            // Nobody listens any more: the receiver has ended.
            let _ = done.send(run(job));
            waker.wake();
        };
        Ok(Self {
            blocks: Workers::spawn("stream-write", threads, bound, run.clone())?,
            long: Workers::spawn("stream-sink", 2, 4 * sessions, run)?,
        })
    }

    /// False: the queue is full, which its bound rules out.
    pub(super) fn give(&self, job: WriteJob) -> bool {
        let workers = match job.what {
            What::Write(..) => &self.blocks,
            _ => &self.long,
        };
        workers.give(job).is_ok()
    }

    pub(super) fn finish(self, by: Instant) {
        self.blocks.finish(by);
        self.long.finish(by);
    }
}

fn run(job: WriteJob) -> WriteDone {
    let began = Instant::now();
    let WriteJob {
        session,
        sink,
        what,
    } = job;
    let panicked = |text| SinkError::Other(text);
    let did = match what {
        What::Open(offer, stop) => {
            let opened = guarded(|| sink.open(&offer, &stop));
            Did::Opened(opened.unwrap_or_else(|text| Err(panicked(text))))
        }
        What::Finish(stop) => {
            let finished = guarded(|| sink.finish(&stop));
            Did::Finished(finished.unwrap_or_else(|text| Err(panicked(text))))
        }
        What::Abandon => {
            if let Err(text) = guarded(|| sink.abandon()) {
                tracing::warn!(%text, "a sink panicked");
            }
            Did::Abandoned
        }
        What::Write(block, crc, message) => {
            Did::Written(block, write(&*sink, block, crc, &message))
        }
    };
    WriteDone {
        session,
        did,
        took: began.elapsed(),
    }
}

fn write(
    sink: &dyn BlockSink,
    block: Block,
    crc: Option<u32>,
    message: &Message,
) -> Result<u32, Damage> {
    let bytes = message.payload();
    let found = match crc {
        Some(said) => {
            let found = crc32c(bytes);
            if found != said {
                return Err(Damage::Crc(found));
            }
            found
        }
        None => 0,
    };
    let written = guarded(|| sink.write(block, found, bytes));
    let written = written.unwrap_or_else(|text| Err(SinkError::Other(text)));
    written.map(|()| found).map_err(Damage::Sink)
}
