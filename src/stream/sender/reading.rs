//! Reading: jobs for the threads that read sources, and what comes back.

use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use crate::Error;
use crate::buffer::{Buffer, BufferMut};
use crate::clock::Clock;
use crate::event_loop::Waker;
use crate::stream::digest::{crc32c, crc32c_of_zeros};
use crate::stream::sums::BlockSums;
use crate::stream::wire::Pack;
use crate::stream::workers::{Guarded, Workers, guarded};
use crate::stream::{Block, BlockPlan, BlockSource, SourceError};

/// What is to be read at once.
pub(super) struct ReadJob {
    pub(super) transfer: u64,
    pub(super) source: Guarded<dyn BlockSource>,
    pub(super) what: ReadWork,
    pub(super) sums: SumsWanted,
}

/// What is computed of a block while it is in the cache.
#[derive(Debug, Clone)]
pub(super) struct SumsWanted {
    pub(super) crc: bool,
    /// The blocks of the stream, if its content is hashed, and this one was not yet.
    pub(super) hashed: Option<Arc<BlockPlan>>,
    /// A peer may have the same.
    pub(super) compared: bool,
}

pub(super) enum ReadWork {
    /// Into a buffer.
    Read(Block, BufferMut),
    /// Several small ones into one buffer, as the payload of a pack.
    Pack(Vec<Block>, BufferMut),
    /// It lies in registered memory already.
    Lent(Block, Buffer),
    /// They are zeros, which nobody reads.
    Zeros(Vec<Block>),
    /// Everything was read: is it still what it was?
    Check,
}

/// What became of it.
pub(super) struct ReadDone {
    pub(super) transfer: u64,
    pub(super) result: Result<ReadOutcome, SourceError>,
    /// Whether it was the check.
    pub(super) is_check: bool,
    pub(super) took: Duration,
}

/// What was read.
pub(super) enum ReadOutcome {
    /// The source is what it was.
    Unchanged,
    Block(Block, BlockSums, Buffer),
    /// Two blocks or more, and the payload of a message that has them.
    Pack(Vec<(Block, BlockSums)>, Buffer),
    Zeros(Vec<(Block, BlockSums)>),
}

/// What readers are employed with.
pub(super) struct ReadersSettings {
    pub(super) threads: u32,
    /// Jobs that may wait.
    pub(super) bound: usize,
    /// Where what was read goes: there is room for each job.
    pub(super) done: SyncSender<ReadDone>,
    pub(super) waker: Waker,
    pub(super) clock: Clock,
}

/// Threads that read, and compute checksums while the bytes are in the cache.
pub(super) fn spawn(with: ReadersSettings) -> Result<Workers<ReadJob>, Error> {
    let ReadersSettings {
        done, waker, clock, ..
    } = with;
    Workers::spawn("stream-read", with.threads, with.bound, move |job| {
        // Nobody listens any more: the sender has ended.
        let _ = done.send(run(job, &clock));
        waker.wake();
    })
}

impl SumsWanted {
    fn of(&self, block: &Block, bytes: &[u8], clock: &Clock) -> BlockSums {
        let crc = if self.crc { crc32c(bytes) } else { 0 };
        let sums = BlockSums::new(crc, self.hashed.as_deref(), block, bytes, clock);
        match self.compared {
            true => sums.with_content(bytes, clock),
            false => sums,
        }
    }

    fn of_zeros(&self, block: &Block, clock: &Clock) -> BlockSums {
        let crc = match self.crc {
            true => crc32c_of_zeros(block.len.into()),
            false => 0,
        };
        let bytes = match self.hashed {
            // Memory that nobody has written to takes no room.
            Some(_) => vec![0; block.len as usize],
            None => Vec::new(),
        };
        BlockSums::new(crc, self.hashed.as_deref(), block, &bytes, clock)
    }
}

pub(super) fn run(job: ReadJob, clock: &Clock) -> ReadDone {
    let began = clock.now();
    let ReadJob {
        transfer,
        source,
        what,
        sums: wanted,
    } = job;
    let is_check = matches!(what, ReadWork::Check);
    let read = guarded(|| match what {
        ReadWork::Check => source.check_unchanged().map(|()| ReadOutcome::Unchanged),
        ReadWork::Lent(block, bytes) => {
            let sums = wanted.of(&block, &bytes, clock);
            Ok(ReadOutcome::Block(block, sums, bytes))
        }
        ReadWork::Read(block, mut buffer) => {
            let into = &mut buffer[..block.len as usize];
            source.read(block.entry, block.offset, into)?;
            let sums = wanted.of(&block, into, clock);
            let bytes = buffer.freeze(block.len as usize);
            Ok(ReadOutcome::Block(block, sums, bytes))
        }
        ReadWork::Pack(blocks, buffer) => read_pack(&*source, blocks, buffer, &wanted, clock),
        ReadWork::Zeros(blocks) => {
            let summed = blocks.into_iter();
            let summed = summed.map(|block| (block, wanted.of_zeros(&block, clock)));
            Ok(ReadOutcome::Zeros(summed.collect()))
        }
    });
    ReadDone {
        transfer,
        result: read.unwrap_or_else(|panic| Err(SourceError::Other(panic))),
        is_check,
        took: clock.since(began),
    }
}

fn read_pack(
    source: &dyn BlockSource,
    blocks: Vec<Block>,
    mut buffer: BufferMut,
    wanted: &SumsWanted,
    clock: &Clock,
) -> Result<ReadOutcome, SourceError> {
    let mut at = Pack::payload_len(blocks.len(), 0);
    let mut read = Vec::with_capacity(blocks.len());
    for block in blocks {
        let into = &mut buffer[at..at + block.len as usize];
        source.read(block.entry, block.offset, into)?;
        let sums = wanted.of(&block, into, clock);
        read.push((block, sums));
        at += block.len as usize;
    }
    Pack::put_crcs(&mut buffer, read.iter().map(|(_, sums)| sums.crc));
    Ok(ReadOutcome::Pack(read, buffer.freeze(at)))
}
