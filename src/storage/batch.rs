//! `Batch`: many transfers in flight from one thread, each with a cookie, a status and an outcome
//! of its own.
//!
//! ```text
//!  submit(entry, cookie) ──► ┌ io_uring: one ring, registered files and buffers ┐ ──► status ──┐
//!     buffer moves in        └ else a pool of threads, the same semantics       ┘              │
//!                           BatchEvent{cookie, buffer, result}: buffer moves out ◄─────────────┘
//! ```

mod entry;
mod maybe_dangling;
mod on_ring;
mod on_threads;

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use self::on_ring::OnRing;
use self::on_threads::OnThreads;
use super::file::File;
use super::io_buffer::IoBuf;
use super::transfer_route::wants_direct;
use super::uring::probe::probe;
use super::uring::ring::DEPTH_MAX;
use super::{
    BackEnd, BackEndChoice, Defaults, DirectIo, FileError, FileHandle, FileOperation, ThreadPool,
    Transferred,
};
use crate::Error;
use crate::buffer::SharedBufferManager;

pub use self::entry::BatchEntry;

/// How a batch is to work. `None` stands for the setting.
#[derive(Debug, Clone, Default)]
pub struct BatchOptions {
    /// What moves the bytes. Default: io_uring, and where this process may not use it (or the
    /// settings say no), threads.
    pub back_end: BackEndChoice,
    /// Around the page cache or through it. Default: as each file was opened.
    pub direct: Option<DirectIo>,
    /// The threads, where it is threads. Default: the pool of the process.
    pub pool: Option<ThreadPool>,
}

/// The outcome of one entry: the only one.
#[derive(Debug)]
pub struct BatchEvent<B> {
    /// As it was submitted.
    pub cookie: u64,
    /// The buffer, back.
    pub buffer: B,
    /// What was moved, or what went wrong. A read is short only at the end of the file; a cancelled
    /// entry has [`FileErrorKind::Cancelled`](super::FileErrorKind::Cancelled), and what it moved
    /// before is in `done`.
    pub result: Result<Transferred, FileError>,
}

/// Why an entry was not taken.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum BatchRefusedKind {
    /// As many entries are under way as the batch takes: ask for its [`status`](Batch::status)
    /// first. Back-pressure, and no failure.
    #[error("{depth} entries are under way, as many as this batch takes: ask for its status first")]
    Full {
        /// That many.
        depth: usize,
    },
    /// The entry can't be done: a handle that is closed or for the other direction, a range outside
    /// of the buffer, GPU memory.
    #[error(transparent)]
    File(FileError),
}

fabricast_process::debug_as_words!(BatchRefusedKind);

/// An entry that was not taken, with its buffer.
#[derive(thiserror::Error)]
#[error("{kind}")]
pub struct BatchRefused<B> {
    /// Why not.
    pub kind: BatchRefusedKind,
    /// The buffer, unchanged.
    pub buffer: B,
}

fabricast_process::debug_as_words!([B] BatchRefused<B>);

/// Where outcomes go: to the caller, as far as it has room, else they are kept.
struct EventOutput<'a, B> {
    events: &'a mut Vec<BatchEvent<B>>,
    room: usize,
    kept: &'a mut VecDeque<BatchEvent<B>>,
}

impl<B> EventOutput<'_, B> {
    /// `make` is called where the outcome is to lie: it is too long to be moved twice.
    #[inline(always)]
    fn give(&mut self, make: impl FnOnce() -> BatchEvent<B>) {
        if self.room > 0 {
            self.room -= 1;
            self.events.push(make());
        } else {
            self.kept.push_back(make());
        }
    }
}

enum Runner<B: IoBuf> {
    Ring(OnRing<B>),
    Threads(OnThreads<B>),
}

/// Transfers in flight, `depth` at most, between files and buffers of one kind.
///
/// Each accepted entry has exactly one outcome, in any order. Dropping the batch cancels what can
/// be cancelled and tells nobody; the buffers are dropped when nothing touches them any more, which
/// may be later.
///
/// Memory or offsets that are not aligned for direct I/O go through the page cache: a batch makes
/// no copies.
///
/// ```
/// use std::time::{Duration, Instant};
/// use fabricast::storage::{Batch, BatchEntry, BatchOptions, FileHandle};
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("run.dat");
/// # std::fs::write(&path, [7; 10_000])?;
/// let file = FileHandle::open(&path, "r")?;
/// let mut batch = Batch::new(8, BatchOptions::default())?;
/// for block in 0..3 {
///     batch.submit(BatchEntry::read(&file, vec![0; 4096], block * 4096), block)?;
/// }
/// let mut events = Vec::new();
/// batch.status(3, 3, Instant::now() + Duration::from_secs(10), &mut events)?;
/// for event in events {
///     let bytes = event.result?.bytes;
///     assert_eq!(bytes, if event.cookie == 2 { 10_000 - 2 * 4096 } else { 4096 });
///     assert_eq!(event.buffer[..bytes], vec![7; bytes]);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Batch<B: IoBuf> {
    runner: Runner<B>,
    /// Outcomes that nobody had room for yet.
    done: VecDeque<BatchEvent<B>>,
    depth: usize,
    direct: Option<DirectIo>,
    /// Why it is threads.
    io_uring_refused: Option<String>,
}

impl<B: IoBuf> Batch<B> {
    /// A batch for so many entries under way, 1 to 4,096.
    ///
    /// # Errors
    /// [`Error::Config`]: a depth out of its range, or cuFile, which has batches of its own.
    /// [`Error::Os`]: io_uring was asked for by name where it works, and this ring can't be had
    /// (descriptors, memory).
    pub fn new(depth: u32, options: BatchOptions) -> Result<Self, Error> {
        if !(1..=DEPTH_MAX).contains(&depth) {
            return Err(Error::Config {
                field: "depth",
                value: depth.to_string(),
                reason: "must be 1 to 4096 entries",
            });
        }
        let refused = match options.back_end {
            BackEndChoice::CuFile => {
                return Err(Error::Config {
                    field: "back_end",
                    value: "CuFile".to_owned(),
                    reason: "must be Auto, IoUring or Posix: cuFile has batches of its own",
                });
            }
            BackEndChoice::Posix => Some("the batch was made for threads".to_owned()),
            BackEndChoice::Auto if !Defaults::get().io_uring => {
                Some("the setting io_uring is off".to_owned())
            }
            _ => probe().err().map(ToString::to_string),
        };
        let (runner, io_uring_refused) = match refused {
            Some(reason) => (None, Some(reason)),
            None => match OnRing::new(depth) {
                Ok(ring) => (Some(Runner::Ring(ring)), None),
                Err(error) => {
                    tracing::warn!(%error, "a batch goes by threads: no ring can be had");
                    (None, Some(format!("no ring can be had: {error}")))
                }
            },
        };
        let depth = depth as usize;
        let runner = match runner {
            Some(runner) => runner,
            None => {
                let pool = options.pool.map_or_else(ThreadPool::global, Ok)?;
                Runner::Threads(OnThreads::new(depth, pool))
            }
        };
        Ok(Self {
            runner,
            done: VecDeque::with_capacity(depth),
            depth,
            direct: options.direct,
            io_uring_refused,
        })
    }

    /// What moves the bytes.
    pub fn back_end(&self) -> BackEnd {
        match self.runner {
            Runner::Ring(_) => BackEnd::IoUring,
            Runner::Threads(_) => BackEnd::Posix,
        }
    }

    /// Why it is not io_uring, in words; `None` when it is.
    pub fn io_uring_refused(&self) -> Option<&str> {
        self.io_uring_refused.as_deref()
    }

    /// Entries that may be under way at once.
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// Entries whose outcomes [`status`](Self::status) has not given out yet.
    pub fn pending(&self) -> usize {
        self.running() + self.done.len()
    }

    fn running(&self) -> usize {
        match &self.runner {
            Runner::Ring(ring) => ring.in_flight(),
            Runner::Threads(threads) => threads.in_flight(),
        }
    }

    /// Registers a file with the ring: cheaper entries. The batch then keeps the file open until it
    /// is dropped, or [`unregister_file`](Self::unregister_file). Over threads, or with 32 files
    /// there already, it does nothing.
    ///
    /// # Errors
    /// A handle that is closed.
    pub fn register_file(&mut self, file: &FileHandle) -> Result<(), FileError> {
        self.register(file.file(FileOperation::Open)?);
        Ok(())
    }

    pub(super) fn register(&mut self, file: &Arc<File>) {
        if let Runner::Ring(ring) = &mut self.runner {
            ring.register_file(file);
        }
    }

    /// Ends that; entries under way are not concerned. Does nothing for a file that is not
    /// registered.
    ///
    /// # Errors
    /// A handle that is closed.
    pub fn unregister_file(&mut self, file: &FileHandle) -> Result<(), FileError> {
        let file = file.file(FileOperation::Open)?;
        if let Runner::Ring(ring) = &mut self.runner {
            ring.unregister_file(file);
        }
        Ok(())
    }

    /// Registers the memory of a pool with the ring, once, until the batch is dropped: its pages
    /// are pinned, and entries with buffers of this pool are cheaper. Over threads, it does
    /// nothing.
    ///
    /// # Errors
    /// [`Error::Os`]: the limit of lockable memory (RLIMIT_MEMLOCK, `ulimit -l`), or 256 GiB are
    /// registered. Entries work all the same.
    pub fn register_pool(&mut self, pool: &SharedBufferManager) -> Result<(), Error> {
        match &mut self.runner {
            Runner::Ring(ring) => ring
                .register_region(pool.region())
                .map_err(|source| Error::Os {
                    call: "io_uring_register",
                    source,
                }),
            Runner::Threads(_) => Ok(()),
        }
    }

    /// Takes an entry and begins it.
    ///
    /// # Errors
    /// The buffer, with [`BatchRefusedKind::Full`] or what is wrong with the entry.
    pub fn submit(&mut self, entry: BatchEntry<B>, cookie: u64) -> Result<(), BatchRefused<B>> {
        self.queue(entry, cookie)?;
        // What goes wrong here goes wrong in `status`, too, which can say so.
        let _ = self.start();
        Ok(())
    }

    /// Takes an entry, which begins with the next [`start`](Self::start), [`submit`](Self::submit)
    /// or [`status`](Self::status): many of them for one system call.
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    pub fn queue(&mut self, entry: BatchEntry<B>, cookie: u64) -> Result<(), BatchRefused<B>> {
        let asked = self.direct;
        let goes_direct = |file: &File, direction, len| {
            wants_direct(asked.unwrap_or_else(|| file.direct_io()), direction, len)
        };
        let way = match entry.check(goes_direct) {
            Ok(way) => way,
            Err(error) => return Err(refused(BatchRefusedKind::File(*error), entry)),
        };
        // Outcomes that nobody fetches count, or they would grow without a bound.
        let taken = if self.pending() >= self.depth {
            Err(entry)
        } else {
            match &mut self.runner {
                Runner::Ring(ring) => ring.queue(entry, cookie, &way),
                Runner::Threads(threads) => threads.queue(entry, cookie, &way),
            }
        };
        taken.map_err(|entry| refused(BatchRefusedKind::Full { depth: self.depth }, entry))
    }

    /// Begins what was queued.
    ///
    /// # Errors
    /// As [`status`](Self::status).
    pub fn start(&mut self) -> Result<(), Error> {
        match &mut self.runner {
            Runner::Ring(ring) => ring.start().map_err(entered),
            Runner::Threads(threads) => {
                threads.start();
                Ok(())
            }
        }
    }

    /// Waits until `min` entries are over (or all, if fewer are under way), or the deadline, and
    /// appends the outcomes of at most `max` to `events`. Says how many. With `min` 0, it only
    /// looks.
    ///
    /// # Errors
    /// [`Error::Os`]: the kernel refuses the ring; a forked child has none. Entries under way stay
    /// so.
    pub fn status(
        &mut self,
        min: usize,
        max: usize,
        deadline: Instant,
        events: &mut Vec<BatchEvent<B>>,
    ) -> Result<usize, Error> {
        let before = events.len();
        let kept = self.done.len().min(max);
        events.extend(self.done.drain(..kept));
        let missing = min.min(max) - kept.min(min);
        let mut output = EventOutput {
            events,
            room: max - kept,
            kept: &mut self.done,
        };
        let waited = match &mut self.runner {
            Runner::Ring(ring) => ring.wait(missing, deadline, &mut output).map_err(entered),
            Runner::Threads(threads) => {
                threads.wait(missing, deadline, &mut output);
                Ok(())
            }
        };
        let count = events.len() - before;
        // What is over is given out in any case.
        if count == 0 {
            waited?;
        }
        Ok(count)
    }

    /// Asks for the end of the entries with this cookie. Each has its one outcome in any case:
    /// cancelled, or as if nobody had asked.
    pub fn cancel(&mut self, cookie: u64) {
        self.cancel_where(|other| other == cookie);
    }

    /// The same for all entries.
    pub fn cancel_all(&mut self) {
        self.cancel_where(|_| true);
    }

    fn cancel_where(&mut self, wanted: impl Fn(u64) -> bool) {
        match &mut self.runner {
            Runner::Ring(ring) => ring.cancel(wanted),
            Runner::Threads(threads) => threads.cancel(wanted),
        }
    }
}

#[cold]
fn refused<B: IoBuf>(kind: BatchRefusedKind, entry: BatchEntry<B>) -> BatchRefused<B> {
    BatchRefused {
        kind,
        buffer: entry.into_buffer(),
    }
}

impl<B: IoBuf> fmt::Debug for Batch<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch")
            .field("back_end", &self.back_end())
            .field("depth", &self.depth)
            .field("pending", &self.pending())
            .finish_non_exhaustive()
    }
}

fn entered(source: io::Error) -> Error {
    Error::Os {
        call: "io_uring_enter",
        source,
    }
}

#[cfg(all(test, not(loom)))]
#[path = "tests/batch.rs"]
mod tests;
