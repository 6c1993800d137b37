//! `BlockReader`: reads a file ahead, block by block, into buffers of a pool.
//!
//! ```text
//!  pool ── try_acquire ──► read block n, n+1, … (at most `ahead`) ──► in order or as they come ─┐
//!    ▲                                                                                          │
//!    └──────── the last handle is dropped ◄──────── Block{index, buffer} ◄──────────────────────┘
//! ```
//!
//! The pool is the window: while it is empty, nothing is read ahead, and nothing fails.

use std::collections::VecDeque;
use std::fmt;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;
use std::time::Instant;

use super::block::AHEAD_MAX;
use super::file::File;
use super::{
    BackEnd, BackEndChoice, Batch, BatchEntry, BatchEvent, BatchOptions, BatchRefusedKind, Block,
    BlockError, BlockErrorKind, DirectIo, FileError, FileHandle, FileOperation, ThreadPool,
};
use crate::Error;
use crate::buffer::{BufferMut, SharedBufferManager};

/// In which order blocks are handed out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BlockOrder {
    /// By their numbers. The default.
    #[default]
    InOrder,
    /// As they come.
    AsCompleted,
}

/// How a reader is to read.
#[derive(Debug, Clone)]
pub struct ReaderOptions {
    /// Bytes of a block, but for the last; at most the slots of the pool have. `None`: what they
    /// have.
    pub block_size: Option<usize>,
    /// Blocks on their way or waiting to be handed out, 1 to 4,096. A pool with fewer buffers is
    /// fine. Default: 8.
    pub ahead: u32,
    /// In which order they are handed out.
    pub order: BlockOrder,
    /// Around the page cache or through it. Default: as the file was opened. Only slots that are
    /// aligned for it
    /// ([`SharedBufferConfig::alignment`](crate::buffer::SharedBufferConfig::alignment), 4,096 is
    /// enough) go around.
    pub direct: Option<DirectIo>,
    /// What moves the bytes. Default: io_uring, or threads.
    pub back_end: BackEndChoice,
    /// The threads, where it is threads. Default: the pool of the process.
    pub pool: Option<ThreadPool>,
}

impl Default for ReaderOptions {
    fn default() -> Self {
        Self {
            block_size: None,
            ahead: 8,
            order: BlockOrder::default(),
            direct: None,
            back_end: BackEndChoice::default(),
            pool: None,
        }
    }
}

impl ReaderOptions {
    /// Bytes of a block, where all settings are in their ranges.
    fn checked_block_size(&self, pool: &SharedBufferManager) -> Result<usize, Error> {
        let block_size = self.block_size.unwrap_or_else(|| pool.slot_size());
        check(
            "block_size",
            block_size as u64,
            1,
            pool.slot_size() as u64,
            "must be 1 byte to the size of the pool's slots",
        )?;
        check(
            "ahead",
            self.ahead.into(),
            1,
            AHEAD_MAX.into(),
            "must be 1 to 4096 blocks",
        )?;
        Ok(block_size)
    }
}

/// A block that is on its way.
#[derive(Debug, Clone, Copy)]
struct PendingRead {
    cookie: u64,
    index: u64,
}

/// The outcome of a block that is not handed out yet.
type Outcome = (u64, Result<Block, BlockError>);

/// Reads the blocks of a file, several ahead.
///
/// With a range that has an end, each block of it has one outcome: itself, or its own error; a file
/// that is too short is one ([`BlockErrorKind::EndOfFile`]). Without an end, the last block is the
/// one that the file ends with, and a file that grows is read on.
///
/// ```
/// use std::time::{Duration, Instant};
/// use fabricast::buffer::SharedBufferManager;
/// use fabricast::storage::{BlockReader, FileHandle, ReaderOptions};
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("run.dat");
/// # std::fs::write(&path, [7; 10_000])?;
/// let file = FileHandle::open(&path, "r")?;
/// let pool = SharedBufferManager::allocate(4, 4096)?;
/// let mut reader = BlockReader::new(&file, .., &pool, ReaderOptions::default())?;
/// let mut bytes = 0;
/// while let Some(block) = reader.next(Instant::now() + Duration::from_secs(10)) {
///     bytes += block?.buffer.len();
/// }
/// assert_eq!(bytes, 10_000);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct BlockReader {
    file: Arc<File>,
    pool: SharedBufferManager,
    batch: Batch<BufferMut>,
    order: BlockOrder,
    ahead: usize,
    start: u64,
    block_size: u64,
    /// Behind the last byte; `None`: the end of the file.
    end: Option<u64>,
    /// The size of the file as it was last seen, where there is no end.
    seen: u64,
    /// The next block to ask for.
    next: u64,
    /// The next block to hand out in order.
    head: u64,
    cookie: u64,
    asked: VecDeque<PendingRead>,
    /// Outcomes to hand out; at most `ahead`, with those on their way.
    ready: VecDeque<Outcome>,
    /// The first block that the file ended in or before, where there is no end.
    over_at: Option<u64>,
    events: Vec<BatchEvent<BufferMut>>,
}

/// The first byte of a range, and the first one behind it where it has an end.
fn bounds(range: &impl RangeBounds<u64>) -> (u64, Option<u64>) {
    let start = match range.start_bound() {
        Bound::Included(&start) => start,
        Bound::Excluded(&before) => before.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(&last) => Some(last.saturating_add(1)),
        Bound::Excluded(&end) => Some(end),
        Bound::Unbounded => None,
    };
    (start, end)
}

impl BlockReader {
    /// A reader of these bytes of a file. It reads nothing before the first [`next`](Self::next).
    ///
    /// # Errors
    /// [`Error::Config`]: a setting out of its range. [`Error::Os`]: the file's size can't be had;
    /// no ring. What [`Batch::new`] answers.
    pub fn new(
        file: &FileHandle,
        range: impl RangeBounds<u64>,
        pool: &SharedBufferManager,
        options: ReaderOptions,
    ) -> Result<Self, Error> {
        let (start, end) = bounds(&range);
        let block_size = options.checked_block_size(pool)?;
        let ahead = options.ahead as usize;
        let mut batch = Batch::new(
            options.ahead,
            BatchOptions {
                back_end: options.back_end,
                direct: options.direct,
                pool: options.pool,
            },
        )?;
        let file = Arc::clone(file.file(FileOperation::Read).map_err(of_file)?);
        batch.register(&file);
        if let Err(error) = batch.register_pool(pool) {
            tracing::debug!(%error, "the buffers of a reader are not registered with its ring");
        }
        let stat = |kind| {
            of_file(FileError::new(
                FileOperation::Stat,
                Arc::clone(file.path()),
                kind,
            ))
        };
        let seen = match end {
            None => file.refresh_size().map_err(stat)?,
            Some(_) => 0,
        };
        Ok(Self {
            file,
            pool: pool.clone(),
            batch,
            order: options.order,
            ahead,
            start,
            block_size: block_size as u64,
            end,
            seen,
            next: 0,
            head: 0,
            cookie: 0,
            asked: VecDeque::with_capacity(ahead),
            ready: VecDeque::with_capacity(ahead),
            over_at: None,
            events: Vec::with_capacity(ahead),
        })
    }

    /// What moves the bytes.
    pub fn back_end(&self) -> BackEnd {
        self.batch.back_end()
    }

    /// The number of the next block that is handed out in order, or of the next one that is asked
    /// for.
    pub fn next_index(&self) -> u64 {
        match self.order {
            BlockOrder::InOrder => self.head,
            BlockOrder::AsCompleted => self.next,
        }
    }

    /// The next block, or what went wrong with it; `None` behind the last.
    ///
    /// An error is the one of that block only: the next call goes on behind it. To try it again,
    /// [`seek_block`](Self::seek_block). An error that [would block](BlockError::is_would_block) is
    /// only the deadline: the next call goes on with the same block.
    pub fn next(&mut self, deadline: Instant) -> Option<Result<Block, BlockError>> {
        let begun = Instant::now();
        loop {
            if let Err(error) = self.look(0, begun) {
                return Some(Err(self.error(self.head, BlockErrorKind::BackEnd(error))));
            }
            let starved = self.ask();
            if let Some(outcome) = self.take() {
                return Some(outcome);
            }
            if self.is_over() {
                return None;
            }
            let now = Instant::now();
            if now >= deadline {
                let waited = now - begun;
                let kind = match self.asked.is_empty() && starved {
                    true => BlockErrorKind::NoBuffer { waited },
                    false => BlockErrorKind::TimedOut { waited },
                };
                return Some(Err(self.error(self.head, kind)));
            }
            if let Err(error) = self.wait(starved, deadline) {
                return Some(Err(self.error(self.head, BlockErrorKind::BackEnd(error))));
            }
        }
    }

    /// Goes on with this block, forwards or backwards. What is on its way is dropped when it comes.
    pub fn seek_block(&mut self, index: u64) {
        self.batch.cancel_all();
        self.asked.clear();
        self.ready.clear();
        (self.next, self.head) = (index, index);
        self.over_at = None;
    }

    /// Where a block begins, and its length; `None` behind the end.
    fn place(&mut self, index: u64) -> Option<(u64, u64)> {
        let offset = index
            .checked_mul(self.block_size)?
            .checked_add(self.start)?;
        let end = match self.end {
            Some(end) => end,
            None => {
                if offset.saturating_add(self.block_size) > self.seen && self.over_at.is_none() {
                    // It may have grown.
                    self.seen = self.file.refresh_size().unwrap_or(self.seen);
                }
                if offset >= self.seen || self.over_at.is_some_and(|over| index >= over) {
                    return None;
                }
                // All of it, in case that it grows until then.
                offset.saturating_add(self.block_size)
            }
        };
        (offset < end).then(|| (offset, self.block_size.min(end - offset)))
    }

    /// Asks for as many blocks as there may be on their way; whether buffers are what more of them
    /// wait for.
    fn ask(&mut self) -> bool {
        let mut starved = false;
        while self.asked.len() + self.ready.len() < self.ahead {
            let index = self.next;
            let Some((offset, len)) = self.place(index) else {
                break;
            };
            let Some(buffer) = self.pool.try_acquire() else {
                starved = true;
                break;
            };
            if !self.ask_for(index, offset, len, buffer) {
                break;
            }
        }
        // What goes wrong here goes wrong when it is waited for.
        let _ = self.batch.start();
        starved
    }

    /// False when the batch is full of what was asked for before a seek.
    fn ask_for(&mut self, index: u64, offset: u64, len: u64, buffer: BufferMut) -> bool {
        let cookie = self.cookie;
        // At most the size of a slot.
        let entry =
            BatchEntry::read_of(Ok(Arc::clone(&self.file)), buffer, offset).range(..len as usize);
        match self.batch.queue(entry, cookie) {
            Ok(()) => self.asked.push_back(PendingRead { cookie, index }),
            Err(refused) => match refused.kind {
                BatchRefusedKind::File(error) => {
                    let error = self.error(index, BlockErrorKind::File(error));
                    self.ready.push_back((index, Err(error)));
                }
                _ => return false,
            },
        }
        self.cookie += 1;
        self.next += 1;
        true
    }

    /// Waits for a block, or, where none is on its way, for a buffer.
    fn wait(&mut self, starved: bool, deadline: Instant) -> Result<(), Error> {
        if self.batch.pending() > 0 {
            return self.look(1, deadline);
        }
        if starved && let Ok(buffer) = self.pool.acquire(deadline) {
            let index = self.next;
            if let Some((offset, len)) = self.place(index) {
                self.ask_for(index, offset, len, buffer);
            }
        }
        Ok(())
    }

    /// Takes in what is over.
    fn look(&mut self, min: usize, deadline: Instant) -> Result<(), Error> {
        let mut events = std::mem::take(&mut self.events);
        let looked = self.batch.status(min, usize::MAX, deadline, &mut events);
        for event in events.drain(..) {
            // Else it was asked for before a seek.
            if let Some(at) = self
                .asked
                .iter()
                .position(|asked| asked.cookie == event.cookie)
                && let Some(PendingRead { index, .. }) = self.asked.remove(at)
            {
                self.take_in(index, event);
            }
        }
        self.events = events;
        looked.map(drop)
    }

    fn take_in(&mut self, index: u64, event: BatchEvent<BufferMut>) {
        let offset = self.start + index * self.block_size;
        let outcome = match event.result {
            Err(error) => Err(self.error(index, BlockErrorKind::File(error))),
            Ok(transferred) => {
                let wanted = self
                    .end
                    .map_or(self.block_size, |end| self.block_size.min(end - offset));
                let missing = wanted - transferred.bytes as u64;
                if missing > 0 && self.end.is_some() {
                    Err(self.error(index, BlockErrorKind::EndOfFile { missing }))
                } else {
                    if missing > 0 {
                        self.ends_in(index, transferred.bytes == 0);
                    }
                    if transferred.bytes == 0 {
                        return;
                    }
                    Ok(Block {
                        index,
                        offset,
                        buffer: event.buffer.freeze(transferred.bytes),
                        transferred,
                    })
                }
            }
        };
        self.ready.push_back((index, outcome));
    }

    /// The file ended in this block, or before it.
    fn ends_in(&mut self, index: u64, before: bool) {
        let over = if before { index } else { index + 1 };
        let over = self.over_at.map_or(over, |known| known.min(over));
        self.over_at = Some(over);
        // What lies behind the end belongs to a file that was longer.
        self.ready.retain(|(index, _)| *index < over);
        self.asked.retain(|asked| asked.index < over);
    }

    fn take(&mut self) -> Option<Result<Block, BlockError>> {
        let at = match self.order {
            BlockOrder::AsCompleted => 0,
            BlockOrder::InOrder => {
                let head = self.head;
                self.ready.iter().position(|(index, _)| *index == head)?
            }
        };
        let (_, outcome) = self.ready.remove(at)?;
        self.head += 1;
        Some(outcome)
    }

    fn is_over(&mut self) -> bool {
        let next = self.next;
        self.asked.is_empty() && self.ready.is_empty() && self.place(next).is_none()
    }

    fn error(&self, index: u64, kind: BlockErrorKind) -> BlockError {
        BlockError {
            index,
            offset: self
                .start
                .saturating_add(index.saturating_mul(self.block_size)),
            kind,
        }
    }
}

impl fmt::Debug for BlockReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockReader")
            .field("file", self.file.path())
            .field("block_size", &self.block_size)
            .field("next_index", &self.next_index())
            .field("on_their_way", &self.asked.len())
            .field("ready", &self.ready.len())
            .finish_non_exhaustive()
    }
}

fn check(
    field: &'static str,
    value: u64,
    least: u64,
    most: u64,
    reason: &'static str,
) -> Result<(), Error> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(Error::Config {
        field,
        value: value.to_string(),
        reason,
    })
}

fn of_file(error: FileError) -> Error {
    Error::Os {
        call: "fstat",
        source: error.into(),
    }
}

#[cfg(all(test, not(loom)))]
#[path = "tests/reader.rs"]
mod tests;
