//! Writing: jobs for the threads that check blocks and give them to sinks, and what comes of them.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use crate::Error;
use crate::buffer::BufferMut;
use crate::clock::Clock;
use crate::endpoint::Message;
use crate::endpoint::volatile_buffer::VolatileBuffer;
use crate::event_loop::Waker;
use crate::stream::digest::{Crc32c, crc32c, crc32c_of_zeros};
use crate::stream::pack::PackedBlock;
use crate::stream::sink::{BlockSink, CheckedBlock, Kept, ReadBack, SinkError, Stop, StreamOffer};
use crate::stream::sums::BlockSums;
use crate::stream::workers::{Guarded, Workers, guarded};
use crate::stream::{Block, BlockPlan};

/// Something that a sink is to do.
pub(super) struct WriteJob {
    pub(super) session: u64,
    pub(super) sink: Guarded<dyn BlockSink>,
    pub(super) what: WriteWork,
}

pub(super) enum WriteWork {
    /// With memory that the sender is to write into.
    Open(StreamOffer, Stop, Vec<BufferMut>),
    Write(ArrivedBlock),
    WriteAll(ArrivedPack),
    WriteZeros(ArrivedZeros),
    /// What lies in files of the same names.
    Keep(Vec<(Block, u32)>),
    Finish(Stop),
    Abandon,
}

/// A block that came.
pub(super) struct ArrivedBlock {
    pub(super) block: Block,
    /// Its checksum, if it is to be checked.
    pub(super) crc: Option<u32>,
    /// The blocks of the stream, if its content is to be hashed.
    pub(super) hashed: Option<Arc<BlockPlan>>,
    pub(super) bytes: BlockBytes,
}

/// Blocks that came as one message.
pub(super) struct ArrivedPack {
    /// Those that are to be written.
    pub(super) blocks: Vec<PackedBlock>,
    /// Their checksums are to be checked.
    pub(super) has_crc: bool,
    /// As of a block.
    pub(super) hashed: Option<Arc<BlockPlan>>,
    pub(super) message: Message,
    /// Where their bytes begin in the message.
    pub(super) bytes_at: usize,
}

/// Blocks that are zeros, whose bytes did not come.
pub(super) struct ArrivedZeros {
    pub(super) blocks: Vec<Block>,
    /// They have checksums.
    pub(super) has_crc: bool,
    /// As of a block.
    pub(super) hashed: Option<Arc<BlockPlan>>,
    /// What said so. Dropping it gives its buffer back to the endpoint.
    pub(super) _message: Message,
}

/// Where the bytes of a block are.
pub(super) enum BlockBytes {
    /// Dropping it gives its buffer back to the endpoint.
    Message(Message),
    /// Written there by the sender, who may go on writing.
    Slot(Arc<VolatileBuffer>),
}

/// What became of it.
pub(super) struct WriteDone {
    pub(super) session: u64,
    pub(super) did: WriteOutcome,
    pub(super) took: Duration,
}

pub(super) enum WriteOutcome {
    Opened(Result<Kept, SinkError>, Vec<Arc<VolatileBuffer>>),
    Written(Block, Result<BlockSums, BlockWriteError>),
    WrittenAll(Result<Vec<CheckedSums>, SinkError>),
    Kept(Result<Vec<CheckedSums>, SinkError>),
    Finished(Result<ReadBack, SinkError>),
    Abandoned,
}

/// A block of a pack: its sums, or the CRC32C that it should not have.
pub(super) type CheckedSums = (Block, Result<BlockSums, u32>);

/// Why a block was not written.
#[derive(Debug)]
pub(super) enum BlockWriteError {
    /// Its bytes have another checksum than the one that came with it.
    Crc(u32),
    Sink(SinkError),
}

/// What writers are employed with.
pub(super) struct WritersSettings {
    pub(super) threads: u32,
    /// Jobs that may wait: blocks, and what takes long.
    pub(super) bounds: (usize, usize),
    /// Where what was done is told: there is room for each job.
    pub(super) done: SyncSender<WriteDone>,
    pub(super) waker: Waker,
    pub(super) clock: Clock,
}

/// Threads for blocks, and two for what takes long: opening, finishing.
pub(super) struct Writers {
    blocks: Workers<WriteJob>,
    long: Workers<WriteJob>,
}

impl Writers {
    pub(super) fn spawn(with: WritersSettings) -> Result<Self, Error> {
        let WritersSettings {
            done, waker, clock, ..
        } = with;
        let (bound, sessions) = with.bounds;
        let run = move |job| {
            // Nobody listens any more: the receiver has ended.
            let _ = done.send(run(job, &clock));
            waker.wake();
        };
        Ok(Self {
            blocks: Workers::spawn("stream-write", with.threads, bound, run.clone())?,
            long: Workers::spawn("stream-sink", 2, sessions, run)?,
        })
    }

    /// None: whoever calls does the jobs. The queue of blocks, and that of what takes long.
    #[cfg(all(test, not(loom)))]
    pub(super) fn by_hand(
        (bound, sessions): (usize, usize),
    ) -> (Self, [crossbeam_channel::Receiver<WriteJob>; 2]) {
        let (blocks, queue) = Workers::by_hand(bound);
        let (long, long_queue) = Workers::by_hand(sessions);
        (Self { blocks, long }, [queue, long_queue])
    }

    /// False: the queue is full, which its bound rules out.
    pub(super) fn give(&self, job: WriteJob) -> bool {
        let workers = match job.what {
            WriteWork::Write(..)
            | WriteWork::WriteAll(..)
            | WriteWork::WriteZeros(..)
            | WriteWork::Keep(..) => &self.blocks,
            _ => &self.long,
        };
        workers.give(job).is_ok()
    }

    pub(super) fn finish(self, clock: &Clock, by: Instant) {
        self.blocks.finish(clock, by);
        self.long.finish(clock, by);
    }
}

pub(super) fn run(job: WriteJob, clock: &Clock) -> WriteDone {
    let began = clock.now();
    let WriteJob {
        session,
        sink,
        what,
    } = job;
    let panicked = |text| SinkError::Other(text);
    let did = match what {
        WriteWork::Open(offer, stop, memory) => {
            let opened = guarded(|| sink.open(&offer, &stop));
            let opened = opened.unwrap_or_else(|text| Err(panicked(text)));
            let opened = opened.map(|kept| kept.or_none_of(&offer));
            // Clearing it takes its time, too.
            let memory = memory.into_iter().map(VolatileBuffer::new);
            WriteOutcome::Opened(opened, memory.map(Arc::new).collect())
        }
        WriteWork::Finish(stop) => {
            let finished = guarded(|| sink.finish(&stop));
            WriteOutcome::Finished(finished.unwrap_or_else(|text| Err(panicked(text))))
        }
        WriteWork::Abandon => {
            if let Err(text) = guarded(|| sink.abandon()) {
                tracing::warn!(%text, "a sink panicked");
            }
            WriteOutcome::Abandoned
        }
        WriteWork::Write(arriving) => {
            WriteOutcome::Written(arriving.block, write(&*sink, &arriving, clock))
        }
        WriteWork::WriteAll(pack) => WriteOutcome::WrittenAll(write_all(&*sink, &pack, clock)),
        WriteWork::WriteZeros(zeros) => {
            WriteOutcome::WrittenAll(write_zeros(&*sink, &zeros, clock))
        }
        WriteWork::Keep(blocks) => WriteOutcome::Kept(keep(&*sink, &blocks)),
    };
    WriteDone {
        session,
        did,
        took: clock.since(began),
    }
}

fn write(
    sink: &dyn BlockSink,
    arriving: &ArrivedBlock,
    clock: &Clock,
) -> Result<BlockSums, BlockWriteError> {
    match &arriving.bytes {
        BlockBytes::Message(message) => {
            let bytes = message.payload();
            let crc = arriving.crc.map_or(0, |_| crc32c(bytes));
            check_and_write(sink, arriving, (bytes, crc), clock)
        }
        BlockBytes::Slot(slot_memory) => COPY.with_borrow_mut(|copy| {
            let len = arriving.block.len as usize;
            copy.resize(len + ALIGNMENT, 0);
            let at = copy.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT);
            let copy = &mut copy[at..at + len];
            let crc = copy_out(slot_memory, copy, arriving.crc.is_some());
            check_and_write(sink, arriving, (copy, crc), clock)
        }),
    }
}

/// Checks each block of a pack, and writes those that are right.
fn write_all(
    sink: &dyn BlockSink,
    pack: &ArrivedPack,
    clock: &Clock,
) -> Result<Vec<CheckedSums>, SinkError> {
    let all = &pack.message.payload()[pack.bytes_at..];
    let mut right = Vec::with_capacity(pack.blocks.len());
    let mut done = Vec::with_capacity(pack.blocks.len());
    for packed in &pack.blocks {
        let block = packed.block;
        let bytes = &all[packed.at..packed.at + block.len as usize];
        let crc = if pack.has_crc { crc32c(bytes) } else { 0 };
        if crc != packed.crc {
            done.push((block, Err(crc)));
            continue;
        }
        let sums = BlockSums::new(crc, pack.hashed.as_deref(), &block, bytes, clock);
        done.push((block, Ok(sums)));
        right.push(CheckedBlock::new(block, crc, bytes));
    }
    let written = guarded(|| sink.write_all(&right));
    let written = written.unwrap_or_else(|text| Err(SinkError::Other(text)));
    written.map(|()| done)
}

/// Writes blocks of zeros, each as if its bytes had come: a sink that makes holes of zeros makes
/// them of these.
fn write_zeros(
    sink: &dyn BlockSink,
    zeros: &ArrivedZeros,
    clock: &Clock,
) -> Result<Vec<CheckedSums>, SinkError> {
    let longest = zeros.blocks.iter().map(|block| block.len).max();
    // Memory that nobody has written to takes no room: its pages are one of the kernel's.
    let bytes = vec![0; longest.unwrap_or(0) as usize];
    let mut checked = Vec::with_capacity(zeros.blocks.len());
    let mut done = Vec::with_capacity(zeros.blocks.len());
    for &block in &zeros.blocks {
        let bytes = &bytes[..block.len as usize];
        let crc = match zeros.has_crc {
            true => crc32c_of_zeros(block.len.into()),
            false => 0,
        };
        let sums = BlockSums::new(crc, zeros.hashed.as_deref(), &block, bytes, clock);
        done.push((block, Ok(sums)));
        checked.push(CheckedBlock::new(block, crc, bytes));
    }
    let written = guarded(|| sink.write_all(&checked));
    let written = written.unwrap_or_else(|text| Err(SinkError::Other(text)));
    written.map(|()| done)
}

/// Keeps blocks that lie in files of the same names; those that do not any more are as damaged.
fn keep(sink: &dyn BlockSink, blocks: &[(Block, u32)]) -> Result<Vec<CheckedSums>, SinkError> {
    let mut done = Vec::with_capacity(blocks.len());
    for &(block, crc) in blocks {
        let kept = guarded(|| sink.keep(block, crc));
        let sums = BlockSums {
            crc,
            ..BlockSums::default()
        };
        done.push(
            match kept.unwrap_or_else(|text| Err(SinkError::Other(text)))? {
                true => (block, Ok(sums)),
                false => (block, Err(!crc)),
            },
        );
    }
    Ok(done)
}

thread_local! {
    /// The copy of a block that its sender may still change: this is checked and written.
    static COPY: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Where the copy begins: direct I/O writes it without another one.
const ALIGNMENT: usize = 4096;

/// Bytes that are copied, and then looked at while they are in the cache.
const PIECE: usize = 32 << 10;

/// Copies a block out of memory that its sender writes: one pass, with its checksum, if that is
/// wanted.
fn copy_out(slot_memory: &VolatileBuffer, copy: &mut [u8], sum: bool) -> u32 {
    let mut crc = sum.then(Crc32c::new);
    for (number, piece) in copy.chunks_mut(PIECE).enumerate() {
        slot_memory.copy_out(number * PIECE, piece);
        if let Some(crc) = &mut crc {
            crc.update(piece);
        }
    }
    crc.map_or(0, |crc| crc.finish())
}

fn check_and_write(
    sink: &dyn BlockSink,
    arriving: &ArrivedBlock,
    (bytes, crc): (&[u8], u32),
    clock: &Clock,
) -> Result<BlockSums, BlockWriteError> {
    if arriving.crc.is_some_and(|said| said != crc) {
        return Err(BlockWriteError::Crc(crc));
    }
    let hashed = arriving.hashed.as_deref();
    let sums = BlockSums::new(crc, hashed, &arriving.block, bytes, clock);
    let written = guarded(|| sink.write(arriving.block, crc, bytes));
    let written = written.unwrap_or_else(|text| Err(SinkError::Other(text)));
    written.map(|()| sums).map_err(BlockWriteError::Sink)
}
