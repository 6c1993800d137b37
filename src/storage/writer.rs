//! `BlockWriter`: writes blocks of a pool at their offsets, several on their way at once.
//!
//! ```text
//!  Buffer ── write(index, offset, buffer) ──► at most `depth` on their way ──► poll, wait ──┐
//!                │                                                               │          │
//!                └ refused, with the buffer, when there are so many              │          │
//!                                    finish: all of them, and fdatasync(2) ◄─────┘          │
//!                                    Written{index, buffer, result} ◄───────────────────────┘
//! ```

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::block::{AHEAD_MAX, Written};
use super::file::File;
use super::{
    BackEnd, BackEndChoice, Batch, BatchEntry, BatchEvent, BatchOptions, BatchRefused, BlockError,
    BlockErrorKind, DirectIo, FileError, FileHandle, FileOperation, ThreadPool,
};
use crate::Error;
use crate::buffer::{Buffer, SharedBufferManager};

/// How a writer is to write.
#[derive(Debug, Clone)]
pub struct WriterOptions {
    /// Blocks on their way, 1 to 4,096. Default: 8.
    pub depth: u32,
    /// Around the page cache or through it. Default: as the file was opened.
    pub direct: Option<DirectIo>,
    /// Whether [`BlockWriter::finish`] waits until the bytes are on the device (fdatasync(2)).
    /// Default: false.
    pub sync: bool,
    /// What moves the bytes. Default: io_uring, or threads.
    pub back_end: BackEndChoice,
    /// The threads, where it is threads. Default: the pool of the process.
    pub pool: Option<ThreadPool>,
}

impl Default for WriterOptions {
    fn default() -> Self {
        Self {
            depth: 8,
            direct: None,
            sync: false,
            back_end: BackEndChoice::default(),
            pool: None,
        }
    }
}

/// A block on its way.
#[derive(Debug, Clone, Copy)]
struct PendingWrite {
    cookie: u64,
    index: u64,
    offset: u64,
}

/// What a writer did, all in all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WriterReport {
    /// Blocks that were written whole.
    pub blocks: u64,
    /// Blocks that failed.
    pub failed: u64,
    /// Bytes that are in the file.
    pub bytes: u64,
    /// Those of them that went around the page cache.
    pub direct_bytes: u64,
}

/// A [`finish`](BlockWriter::finish) that was not one.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum FinishError {
    /// Blocks are still on their way. The same call can be made again.
    #[error("{pending} blocks are still on their way after {waited:?}")]
    TimedOut {
        /// How many.
        pending: usize,
        /// How long this call waited.
        waited: Duration,
    },
    /// Blocks failed: this is the one with the lowest offset. The others are in their events, and
    /// were in those before.
    #[error(
        "{failed} blocks are not whole in the file, the first of them is block {index}: {first}"
    )]
    Blocks {
        /// How many.
        failed: u64,
        /// The number of the one with the lowest offset.
        index: u64,
        /// What became of it.
        first: FileError,
    },
    /// The bytes were written, but the device did not confirm them.
    #[error(transparent)]
    Sync(FileError),
    /// The back end failed.
    #[error(transparent)]
    BackEnd(Error),
}

fabricast_process::debug_as_words!(FinishError);

/// Writes blocks at their offsets, in any order. Blocks must not overlap while they are on their
/// way.
///
/// Each block that was accepted has one [`Written`]. Dropping the writer tells nobody which blocks
/// are in the file: [`finish`](Self::finish) does.
///
/// ```
/// use std::time::{Duration, Instant};
/// use fabricast::buffer::SharedBufferManager;
/// use fabricast::storage::{BlockWriter, FileHandle, WriterOptions};
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("run.dat");
/// let file = FileHandle::open(&path, "w")?;
/// let pool = SharedBufferManager::allocate(4, 4096)?;
/// let mut writer = BlockWriter::new(&file, WriterOptions::default())?;
/// for block in 0..3 {
///     let mut buffer = pool.try_acquire().expect("4 are free");
///     buffer.fill(block as u8);
///     writer.write(block, block * 4096, buffer.freeze(4096))?;
/// }
/// let mut written = Vec::new();
/// let report = writer.finish(Instant::now() + Duration::from_secs(10), &mut written)?;
/// assert_eq!((report.blocks, report.bytes), (3, 3 * 4096));
/// assert_eq!(std::fs::read(&path)?.len(), 3 * 4096);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct BlockWriter {
    file: Arc<File>,
    batch: Batch<Buffer>,
    sync: bool,
    cookie: u64,
    begun: VecDeque<PendingWrite>,
    report: WriterReport,
    /// The failed block with the lowest offset.
    first_failed: Option<(PendingWrite, FileError)>,
    events: Vec<BatchEvent<Buffer>>,
}

impl BlockWriter {
    /// A writer into this file.
    ///
    /// # Errors
    /// [`Error::Config`]: a setting out of its range. [`Error::Os`]: a handle that is closed; no
    /// ring. What [`Batch::new`] answers.
    pub fn new(file: &FileHandle, options: WriterOptions) -> Result<Self, Error> {
        if !(1..=AHEAD_MAX).contains(&options.depth) {
            return Err(Error::Config {
                field: "depth",
                value: options.depth.to_string(),
                reason: "must be 1 to 4096 blocks",
            });
        }
        let mut batch = Batch::new(
            options.depth,
            BatchOptions {
                back_end: options.back_end,
                direct: options.direct,
                pool: options.pool,
            },
        )?;
        let file = file.file(FileOperation::Write).map_err(|error| Error::Os {
            call: "open",
            source: error.into(),
        })?;
        batch.register(file);
        let depth = options.depth as usize;
        Ok(Self {
            file: Arc::clone(file),
            batch,
            sync: options.sync,
            cookie: 0,
            begun: VecDeque::with_capacity(depth),
            report: WriterReport::default(),
            first_failed: None,
            events: Vec::with_capacity(depth),
        })
    }

    /// Registers the memory of a pool that blocks come from: see [`Batch::register_pool`].
    ///
    /// # Errors
    /// As there.
    pub fn register_pool(&mut self, pool: &SharedBufferManager) -> Result<(), Error> {
        self.batch.register_pool(pool)
    }

    /// What moves the bytes.
    pub fn back_end(&self) -> BackEnd {
        self.batch.back_end()
    }

    /// Blocks on their way, or written and not yet told.
    pub fn pending(&self) -> usize {
        self.batch.pending()
    }

    /// What was done so far.
    pub fn report(&self) -> WriterReport {
        self.report
    }

    /// Begins to write all of a buffer at `offset`. `index` is the caller's, and comes back with
    /// the outcome.
    ///
    /// # Errors
    /// The buffer, when as many blocks are on their way as there may be
    /// ([`BatchRefusedKind::Full`](super::BatchRefusedKind::Full): `wait` for one), or it can't be
    /// written there at all.
    pub fn write(
        &mut self,
        index: u64,
        offset: u64,
        buffer: Buffer,
    ) -> Result<(), BatchRefused<Buffer>> {
        let cookie = self.cookie;
        let entry = BatchEntry::write_of(Ok(Arc::clone(&self.file)), buffer, offset);
        self.batch.submit(entry, cookie)?;
        self.cookie += 1;
        self.begun.push_back(PendingWrite {
            cookie,
            index,
            offset,
        });
        Ok(())
    }

    /// Appends the outcomes of blocks that are over, and says how many.
    ///
    /// # Errors
    /// As [`Batch::status`].
    pub fn poll(&mut self, written: &mut Vec<Written>) -> Result<usize, Error> {
        self.wait(0, Instant::now(), written)
    }

    /// The same, and waits until `min` are over (or all, if fewer are on their way), or the
    /// deadline.
    ///
    /// # Errors
    /// As [`Batch::status`].
    pub fn wait(
        &mut self,
        min: usize,
        deadline: Instant,
        written: &mut Vec<Written>,
    ) -> Result<usize, Error> {
        let mut events = std::mem::take(&mut self.events);
        let count = self.batch.status(min, usize::MAX, deadline, &mut events);
        for event in events.drain(..) {
            let at = self
                .begun
                .iter()
                .position(|begun| begun.cookie == event.cookie);
            if let Some(begun) = at.and_then(|at| self.begun.remove(at)) {
                let one = self.take_in(begun, event);
                written.push(one);
            }
        }
        self.events = events;
        count
    }

    fn take_in(&mut self, begun: PendingWrite, event: BatchEvent<Buffer>) -> Written {
        let PendingWrite { index, offset, .. } = begun;
        if let Err(error) = &event.result {
            self.report.failed += 1;
            self.report.bytes += error.done;
            let is_lower = |(first, _): &(PendingWrite, FileError)| offset < first.offset;
            if self.first_failed.as_ref().is_none_or(is_lower) {
                self.first_failed = Some((begun, error.clone()));
            }
        }
        let result = event.result.map_err(|error| BlockError {
            index,
            offset,
            kind: BlockErrorKind::File(error),
        });
        if let Ok(transferred) = &result {
            self.report.blocks += 1;
            self.report.bytes += transferred.bytes as u64;
            self.report.direct_bytes += transferred.direct_bytes as u64;
        }
        Written {
            index,
            offset,
            buffer: event.buffer,
            result,
        }
    }

    /// Waits for all blocks, and, where the options say so, for the device. The writer can be used
    /// on afterwards.
    ///
    /// # Errors
    /// [`FinishError`]; what is over is in `written` in any case.
    pub fn finish(
        &mut self,
        deadline: Instant,
        written: &mut Vec<Written>,
    ) -> Result<WriterReport, FinishError> {
        let begun = Instant::now();
        while self.pending() > 0 {
            let count = self
                .wait(usize::MAX, deadline, written)
                .map_err(FinishError::BackEnd)?;
            if count == 0 && Instant::now() >= deadline {
                return Err(FinishError::TimedOut {
                    pending: self.pending(),
                    waited: begun.elapsed(),
                });
            }
        }
        if let Some((begun, first)) = &self.first_failed {
            return Err(FinishError::Blocks {
                failed: self.report.failed,
                index: begun.index,
                first: first.clone(),
            });
        }
        if self.sync {
            rustix::fs::fdatasync(self.file.buffered()).map_err(|errno| {
                let path = Arc::clone(self.file.path());
                FinishError::Sync(FileError::new(FileOperation::Sync, path, errno))
            })?;
        }
        Ok(self.report)
    }
}

impl fmt::Debug for BlockWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockWriter")
            .field("file", self.file.path())
            .field("pending", &self.pending())
            .field("report", &self.report)
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
#[path = "tests/writer.rs"]
mod tests;
