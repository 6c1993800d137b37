//! Reading: jobs for the threads that read sources, and what comes back.

use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use crate::Error;
use crate::buffer::{Buffer, BufferMut};
use crate::event_loop::Waker;
use crate::stream::digest::crc32c;
use crate::stream::workers::{Workers, guarded};
use crate::stream::{Block, BlockSource, SourceError};

/// One block that is to be read.
pub(super) struct ReadJob {
    pub(super) transfer: u64,
    pub(super) source: Arc<dyn BlockSource>,
    pub(super) what: What,
    pub(super) crc: bool,
}

pub(super) enum What {
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
    pub(super) crc: u32,
}

/// Threads that read, and compute checksums while the bytes are in the cache.
pub(super) fn spawn(
    threads: u32,
    bound: usize,
    done: SyncSender<ReadDone>,
    waker: Waker,
) -> Result<Workers<ReadJob>, Error> {
    Workers::spawn("stream-read", threads, bound, move |job| {
        // Nobody listens any more: the sender has ended.
        let _ = done.send(run(job));
        waker.wake();
    })
}

fn run(job: ReadJob) -> ReadDone {
    let began = Instant::now();
    let ReadJob {
        transfer,
        source,
        what,
        crc,
    } = job;
    let checksum = |bytes: &[u8]| if crc { crc32c(bytes) } else { 0 };
    let (block, result) = match what {
        What::Check => {
            let checked = guarded(|| source.check_unchanged());
            let checked = checked.unwrap_or_else(|panic| Err(SourceError::Other(panic)));
            let nothing = ReadBlock {
                bytes: None,
                crc: 0,
            };
            (None, checked.map(|()| nothing))
        }
        What::Lent(block, bytes) => {
            let crc = checksum(&bytes);
            let read = ReadBlock {
                bytes: Some(bytes),
                crc,
            };
            (Some(block), Ok(read))
        }
        What::Read(block, mut buffer) => {
            let len = block.len as usize;
            let read = guarded(|| source.read(block.entry, block.offset, &mut buffer[..len]));
            let read = read.unwrap_or_else(|panic| Err(SourceError::Other(panic)));
            let read = read.map(|()| {
                let crc = checksum(&buffer[..len]);
                ReadBlock {
                    bytes: Some(buffer.freeze(len)),
                    crc,
                }
            });
            (Some(block), read)
        }
    };
    ReadDone {
        transfer,
        block,
        result,
        took: began.elapsed(),
    }
}
