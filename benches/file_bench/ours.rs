//! Our side: the same with the library.

use std::time::{Duration, Instant};

use fabricast::buffer::{SharedBufferConfig, SharedBufferManager};
use fabricast::memory::{HugePages, Region};
use fabricast::storage::{
    BackEndChoice, Batch, BatchEntry, BatchOptions, BlockReader, DirectIo, FileHandle, IoOptions,
    OpenOptions, ReaderOptions,
};

use crate::Failure;
use crate::case::Bench;
use crate::host::Chance;
use crate::plain::RANDOM_BYTES;

/// How long a block may take before something is wrong.
const PATIENCE: Duration = Duration::from_secs(60);
/// Blocks that a reader has on their way.
const AHEAD: u32 = 8;

/// Opens the test file for both directions.
pub(crate) fn open(bench: &Bench, direct: bool) -> Result<FileHandle, Failure> {
    let direct = if direct { DirectIo::On } else { DirectIo::Off };
    Ok(OpenOptions::new()
        .flags("r+")
        .direct(direct)
        .open(&bench.path)?)
}

/// How a pass is done.
#[derive(Clone, Copy)]
pub(crate) struct Pass {
    pub(crate) write: bool,
    pub(crate) uring: bool,
}

/// One pass over the file.
pub(crate) fn pass(
    bench: &Bench,
    file: &FileHandle,
    memory: &mut [u8],
    how: Pass,
) -> Result<(), Failure> {
    let options = IoOptions {
        task_size: Some(bench.block),
        pool: Some(bench.pool.clone()),
        back_end: Some(if how.uring {
            BackEndChoice::IoUring
        } else {
            BackEndChoice::Posix
        }),
        ..IoOptions::default()
    };
    let moved = match how.write {
        true => file.write_parallel(memory, 0, &options)?,
        false => file.read_parallel(memory, 0, &options)?,
    };
    if moved.bytes != memory.len() {
        return Err(format!("{} of {} bytes", moved.bytes, memory.len()).into());
    }
    Ok(())
}

/// A pool of blocks, in large pages or not.
pub(crate) fn pool(
    slots: u32,
    size: usize,
    huge_pages: HugePages,
) -> Result<SharedBufferManager, Failure> {
    let region = Region::host(slots as usize * size)
        .huge_pages(huge_pages)
        .build()?;
    let config = SharedBufferConfig {
        slots: Some(slots),
        alignment: 4096,
        ..SharedBufferConfig::new(size)
    };
    Ok(SharedBufferManager::new(region, config)?)
}

/// A pool for [`read_blocks`].
pub(crate) fn block_pool(
    bench: &Bench,
    huge_pages: HugePages,
) -> Result<SharedBufferManager, Failure> {
    pool(AHEAD, bench.block, huge_pages)
}

/// One pass over the file, block by block.
pub(crate) fn read_blocks(
    bench: &Bench,
    file: &FileHandle,
    pool: &SharedBufferManager,
) -> Result<(), Failure> {
    let options = ReaderOptions {
        ahead: AHEAD,
        pool: Some(bench.pool.clone()),
        ..ReaderOptions::default()
    };
    let mut reader = BlockReader::new(file, ..bench.size as u64, pool, options)?;
    let mut bytes = 0;
    while let Some(block) = reader.next(Instant::now() + PATIENCE) {
        bytes += block?.buffer.len();
    }
    if bytes != bench.size {
        return Err(format!("{bytes} of {} bytes", bench.size).into());
    }
    Ok(())
}

/// Random reads with so many in flight, registered file and buffers, until the time is over; how
/// many, and in how many seconds.
pub(crate) fn random(bench: &Bench, direct: bool) -> Result<(u64, f64), Failure> {
    let file = open(bench, direct)?;
    let pool = pool(bench.depth as u32, RANDOM_BYTES, HugePages::Try)?;
    let mut batch = Batch::new(bench.depth as u32, BatchOptions::default())?;
    batch.register_file(&file)?;
    batch.register_pool(&pool)?;
    let blocks = (bench.size / RANDOM_BYTES) as u64;
    let mut chance = Chance::new();
    while let Some(buffer) = pool.try_acquire() {
        let offset = chance.next() % blocks * RANDOM_BYTES as u64;
        batch.queue(BatchEntry::read(&file, buffer, offset), 0)?;
    }
    let begun = Instant::now();
    let mut done = 0;
    let mut events = Vec::with_capacity(bench.depth);
    while batch.pending() > 0 {
        let now = Instant::now();
        batch.status(1, bench.depth, now + PATIENCE, &mut events)?;
        done += events.len() as u64;
        let over = (now - begun).as_secs_f64() >= bench.seconds;
        for event in events.drain(..) {
            if event.result?.bytes != RANDOM_BYTES {
                return Err("a random read was short".into());
            }
            if !over {
                let offset = chance.next() % blocks * RANDOM_BYTES as u64;
                batch.queue(BatchEntry::read(&file, event.buffer, offset), 0)?;
            }
        }
    }
    Ok((done, begun.elapsed().as_secs_f64()))
}
