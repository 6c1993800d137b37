//! `Engine`: how one task of a transfer gets done. One for each back end.

#![allow(unsafe_code)]

use std::sync::atomic::{AtomicBool, Ordering};

use super::file::File;
use super::io_buffer::RawMemory;
use super::posix::Posix;
use super::uring::engine::Uring;
use super::{BackEnd, BackEndChoice, Direction, FileErrorKind, Place, device};

/// One run of bytes to be moved, checked: the file is open for it, and the last byte has an offset
/// that a file may have.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Task<'a> {
    pub(crate) file: &'a File,
    pub(crate) direction: Direction,
    /// As long as the task.
    pub(crate) memory: RawMemory,
    pub(crate) offset: u64,
    /// Around the page cache, where the file allows it: what was asked for, the handle and the
    /// settings have been looked at.
    pub(crate) direct: bool,
    /// The size of bounce buffers, in bytes.
    pub(crate) bounce: usize,
    /// Set when nobody wants the rest of a read any more.
    pub(crate) unwanted: Option<&'a AtomicBool>,
}

impl Task<'_> {
    /// Whether nobody wants the rest.
    pub(crate) fn is_unwanted(&self) -> bool {
        self.unwanted.is_some_and(|it| it.load(Ordering::Relaxed))
    }
}

/// How far a task got.
#[derive(Debug, Default)]
pub(crate) struct TaskOutcome {
    /// Bytes from the start of the task on, without a gap.
    pub(crate) moved: usize,
    /// Those of them that went around the page cache.
    pub(crate) direct: usize,
    /// Those of `direct` that were copied from or to a bounce buffer.
    pub(crate) bounced: usize,
    /// What moved the bytes, where it was not the engine that was asked.
    pub(crate) instead: Option<BackEnd>,
    /// Why it stopped. Without one, a read that is short ended at the end of the file; a write is
    /// never short then.
    pub(crate) error: Option<FileErrorKind>,
}

impl TaskOutcome {
    pub(crate) fn failed(error: impl Into<FileErrorKind>) -> Self {
        Self {
            error: Some(error.into()),
            ..Self::default()
        }
    }
}

/// Moves the bytes of tasks, each on the thread that calls.
pub(crate) trait Engine: Send + Sync {
    fn back_end(&self) -> BackEnd;

    /// Moves all bytes of a task, and returns when nothing touches its memory any more.
    ///
    /// Interrupted calls are made again, short ones go on; a direct transfer that the file refuses
    /// goes through the page cache, and says so ([`File::refuse_direct`]).
    ///
    /// # Safety
    /// Until it returns, the task's memory is good to read (a write), or good to write with nobody
    /// else reading or writing it (a read).
    unsafe fn run(&self, task: &Task<'_>) -> TaskOutcome;

    /// Bytes of one task, when so many were asked for and the transfer has `len`. An engine that
    /// keeps a device busy from one thread takes all of it as one.
    fn task_size(&self, asked: usize, _len: usize) -> usize {
        asked
    }

    /// Whether a task that goes through bounce buffers copies and transfers one after the other:
    /// then transfers are cut, and threads are added, so that one task's copy overlaps with
    /// another's transfer.
    fn copies_alternate(&self) -> bool {
        false
    }
}

/// The engine for a transfer. `Auto` in the host's memory is POSIX: what else a long one may take,
/// [`TransferRoute`](super::transfer_route::TransferRoute) decides.
pub(crate) fn engine_for(
    file: &File,
    choice: BackEndChoice,
    place: Place,
    gds_threshold: usize,
) -> Result<&'static dyn Engine, FileErrorKind> {
    let unsupported = |what, reason: &str| FileErrorKind::Unsupported {
        what,
        reason: reason.into(),
    };
    match (place, choice) {
        (Place::Host { .. }, BackEndChoice::CuFile) => Err(unsupported(
            "cuFile for the host's memory",
            "pread(2), pwrite(2) and io_uring move it without a GPU's driver",
        )),
        (Place::Host { .. }, BackEndChoice::IoUring) if Uring::is_allowed() => Ok(&Uring),
        (Place::Host { .. }, _) => Ok(&Posix),
        (Place::Device { len, .. }, _) => device::engine_for(file, choice, len, gds_threshold),
    }
}
