//! Reading: jobs for the threads that read sources, and what comes back.

use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use crate::Error;
use crate::buffer::{Buffer, BufferMut};
use crate::clock::Clock;
use crate::event_loop::Waker;
use crate::stream::digest::crc32c;
use crate::stream::sums::BlockSums;
use crate::stream::workers::{Guarded, Workers, guarded};
use crate::stream::{Block, BlockPlan, BlockSource, SourceError};

/// One block that is to be read.
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
}

pub(super) enum ReadWork {
    /// Into a buffer.
    Read(Block, BufferMut),
    /// It lies in registered memory already.
    Lent(Block, Buffer),
    /// Everything was read: is it still what it was?
    Check,
}

/// What became of it.
pub(super) struct ReadDone {
    pub(super) transfer: u64,
    /// None: the check.
    pub(super) block: Option<Block>,
    pub(super) result: Result<ReadBlock, SourceError>,
    pub(super) took: Duration,
}

/// A block that was read.
pub(super) struct ReadBlock {
    /// None: nothing was to be read.
    pub(super) bytes: Option<Buffer>,
    pub(super) sums: BlockSums,
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
        BlockSums::new(crc, self.hashed.as_deref(), block, bytes, clock)
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
    let (block, result) = match what {
        ReadWork::Check => {
            let checked = guarded(|| source.check_unchanged());
            let checked = checked.unwrap_or_else(|panic| Err(SourceError::Other(panic)));
            let nothing = ReadBlock {
                bytes: None,
                sums: BlockSums::default(),
            };
            (None, checked.map(|()| nothing))
        }
        ReadWork::Lent(block, bytes) => {
            let sums = wanted.of(&block, &bytes, clock);
            let read = ReadBlock {
                bytes: Some(bytes),
                sums,
            };
            (Some(block), Ok(read))
        }
        ReadWork::Read(block, mut buffer) => {
            let len = block.len as usize;
            let read = guarded(|| source.read(block.entry, block.offset, &mut buffer[..len]));
            let read = read.unwrap_or_else(|panic| Err(SourceError::Other(panic)));
            let read = read.map(|()| {
                let sums = wanted.of(&block, &buffer[..len], clock);
                ReadBlock {
                    bytes: Some(buffer.freeze(len)),
                    sums,
                }
            });
            (Some(block), read)
        }
    };
    ReadDone {
        transfer,
        block,
        result,
        took: clock.since(began),
    }
}
