//! `OpenFiles`: the files of a stream that are held open for their next block, on either side.

use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::storage::stats::{IoCounters, Record};
use crate::storage::{BackEnd, BackEndChoice, Defaults, DirectIo, Direction, FileHandle, IoStats};

/// Files that are held open for the next block of theirs.
const OPEN_MAX: usize = 32;

/// The files of a stream that were used last, by the numbers of their entries, and what was done
/// with all of them.
#[derive(Debug, Default)]
pub(super) struct OpenFiles {
    /// The one that was used last is at the end.
    slots: Mutex<VecDeque<(usize, Arc<OpenFileSlot>)>>,
    counts: Arc<FileCounts>,
}

/// What was done with the files of a stream that are not held open.
#[derive(Debug)]
pub(super) struct FileCounts {
    closed: Mutex<IoStats>,
    /// Small files, each of which was read or written at once.
    whole: IoCounters,
}

/// The place of one file. While a thread opens it, others that need this file wait, and those that
/// need another one do not.
#[derive(Debug, Default)]
struct OpenFileSlot(Mutex<Option<Arc<OpenFile>>>);

/// A file of a stream. Its counters go to those of the stream when it is closed.
#[derive(Debug)]
pub(super) struct OpenFile {
    handle: FileHandle,
    counts: Arc<FileCounts>,
}

impl OpenFiles {
    /// With the counters of files that were closed in a place that outlives this value.
    pub(super) fn counting_into(counts: Arc<FileCounts>) -> Self {
        Self {
            slots: Mutex::default(),
            counts,
        }
    }

    /// Where what is done with files is counted that are not held open.
    pub(super) fn counts(&self) -> &FileCounts {
        &self.counts
    }

    /// The file of an entry, which `open` opens if it is not open. The file that was used longest
    /// ago may be closed for it.
    ///
    /// # Errors
    /// What `open` answers; the next call tries again.
    pub(super) fn get<E>(
        &self,
        entry: usize,
        open: impl FnOnce() -> Result<FileHandle, E>,
    ) -> Result<Arc<OpenFile>, E> {
        let slot = self.slot(entry);
        let mut file = locked(&slot.0);
        if let Some(file) = &*file {
            return Ok(Arc::clone(file));
        }
        let opened = Arc::new(OpenFile {
            handle: open()?,
            counts: Arc::clone(&self.counts),
        });
        *file = Some(Arc::clone(&opened));
        Ok(opened)
    }

    /// The file of an entry, if it is open.
    pub(super) fn find(&self, entry: usize) -> Option<Arc<OpenFile>> {
        let slots = locked(&self.slots);
        let found = slots.iter().find(|(number, _)| *number == entry);
        let (_, slot) = found?;
        let slot = Arc::clone(slot);
        drop(slots);
        locked(&slot.0).clone()
    }

    fn slot(&self, entry: usize) -> Arc<OpenFileSlot> {
        let mut slots = locked(&self.slots);
        let known = slots.iter().position(|(number, _)| *number == entry);
        let found = known.and_then(|at| slots.remove(at));
        let (_, slot) = found.unwrap_or_default();
        let oldest = match slots.len() >= OPEN_MAX {
            true => slots.pop_front(),
            false => None,
        };
        slots.push_back((entry, Arc::clone(&slot)));
        drop(slots);
        // Closing a file takes its time.
        drop(oldest);
        slot
    }

    /// Closes the file of an entry, as soon as no thread uses it any more.
    pub(super) fn close(&self, entry: usize) {
        let mut slots = locked(&self.slots);
        let known = slots.iter().position(|(number, _)| *number == entry);
        let closed = known.and_then(|at| slots.remove(at));
        drop(slots);
        drop(closed);
    }

    /// What was done with the files so far. It waits for no file: what one counts that is being
    /// opened or closed just now may be missing.
    pub(super) fn io_stats(&self) -> IoStats {
        let slots = locked(&self.slots);
        let mut stats = self.counts.total();
        for (_, slot) in &*slots {
            if let Ok(file) = slot.0.try_lock()
                && let Some(file) = &*file
            {
                stats += &file.stats();
            }
        }
        stats
    }
}

impl Default for FileCounts {
    fn default() -> Self {
        Self {
            closed: Mutex::default(),
            whole: IoCounters::new(),
        }
    }
}

impl FileCounts {
    /// Counts that a whole file was moved, or was not; since when.
    pub(super) fn add_whole(&self, direction: Direction, began: Instant, moved: Option<u64>) {
        self.whole.record(&Record {
            direction,
            back_end: BackEnd::Posix,
            bytes: moved.unwrap_or(0),
            direct_bytes: 0,
            bounced_bytes: 0,
            elapsed: began.elapsed(),
            failed: moved.is_none(),
        });
    }

    pub(super) fn total(&self) -> IoStats {
        let mut total = locked(&self.closed).clone();
        total += &self.whole.snapshot();
        total
    }
}

impl Deref for OpenFile {
    type Target = FileHandle;

    fn deref(&self) -> &FileHandle {
        &self.handle
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        let stats = self.handle.stats();
        if stats != IoStats::default() {
            *locked(&self.counts.closed) += &stats;
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Below this many bytes a file is not opened for the sake of a GPU's memory alone: a copy through
/// the host's memory takes less time than to register it with cuFile.
pub(super) const DEVICE_FILE_MIN: u64 = 1 << 20;

/// Files up to this size are read and written at once, by a descriptor that is closed at once: to
/// hold them open for a second block, and to look for the best way to move them, takes longer than
/// to move them.
const WHOLE_MAX: u64 = 64 << 10;

/// Whether the whole of a file of `size` bytes is moved at once, by pread or pwrite.
pub(super) fn is_moved_whole(
    (direct, back_end): (DirectIo, BackEndChoice),
    direction: Direction,
    size: u64,
) -> bool {
    let is_plain = matches!(back_end, BackEndChoice::Auto | BackEndChoice::Posix);
    is_plain && size <= WHOLE_MAX && direct_for(direct, direction, size) == DirectIo::Off
}

/// How a file of `size` bytes is to be opened for a stream that asks for `direct` in a direction: a
/// second descriptor (O_DIRECT) takes calls of its own, which a file that will not use it is
/// spared.
pub(super) fn direct_for(direct: DirectIo, direction: Direction, size: u64) -> DirectIo {
    let settings = Defaults::get();
    let by_itself = match direction {
        Direction::Read => settings.auto_direct_io_read,
        Direction::Write => settings.auto_direct_io_write,
    };
    let least = match direct {
        // Only whole pages go around the page cache.
        DirectIo::On => rustix::param::page_size() as u64,
        DirectIo::Auto if by_itself => settings.auto_direct_io_threshold as u64,
        DirectIo::Auto => DEVICE_FILE_MIN,
        DirectIo::Off => return DirectIo::Off,
    };
    match size >= least {
        true => direct,
        false => DirectIo::Off,
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::storage::{FileError, Settings};

    #[test]
    fn the_file_that_was_used_longest_ago_is_closed_and_stays_counted() {
        let directory = tempfile::tempdir().expect("a directory");
        let files = OpenFiles::default();
        let opened = std::cell::Cell::new(0);
        let get = |entry: usize| {
            let path = directory.path().join(entry.to_string());
            files.get(entry, || {
                opened.set(opened.get() + 1);
                FileHandle::open(path, "w")
            })
        };
        for entry in 0..=OPEN_MAX {
            let file = get(entry).expect("opened");
            file.write(&[7; 10], 0).expect("written");
        }
        assert_eq!(opened.get(), OPEN_MAX + 1);
        assert_eq!(files.io_stats().write.operations(), OPEN_MAX as u64 + 1);
        get(1).expect("it is open");
        assert_eq!(opened.get(), OPEN_MAX + 1, "one of the last 32 is open");
        get(0).expect("opened once more");
        get(1).expect("it is open");
        get(2).expect("opened once more: it was used longest ago");
        assert_eq!(opened.get(), OPEN_MAX + 3);
        files.close(2);
        get(2).expect("opened once more");
        assert_eq!(opened.get(), OPEN_MAX + 4);
        let stats = files.io_stats();
        assert_eq!(stats.write.bytes(), 10 * (OPEN_MAX as u64 + 1));
        assert_eq!(stats.write.latency.count(), OPEN_MAX as u64 + 1);
        // Whoever still uses a file keeps it, and it is counted when it is closed.
        let held = get(5).expect("opened");
        files.close(5);
        held.write(&[7; 10], 0).expect("written");
        drop(held);
        assert_eq!(files.io_stats().write.operations(), OPEN_MAX as u64 + 2);
    }

    #[test]
    fn a_file_that_could_not_be_opened_is_tried_again_and_one_is_opened_once() {
        let files = OpenFiles::default();
        let refused: Result<_, &str> = files.get(3, || Err("not now"));
        assert_eq!(refused.err(), Some("not now"));
        let file = tempfile::NamedTempFile::new().expect("a file");
        let opened = std::sync::atomic::AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    files.get(3, || -> Result<_, FileError> {
                        opened.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                        FileHandle::open(file.path(), "r")
                    })
                });
            }
        });
        assert_eq!(opened.into_inner(), 1);
    }

    #[test]
    fn a_file_that_is_too_short_to_go_around_the_page_cache_has_one_descriptor() {
        let page = rustix::param::page_size() as u64;
        let write = Direction::Write;
        assert_eq!(direct_for(DirectIo::On, write, page), DirectIo::On);
        assert_eq!(direct_for(DirectIo::On, write, page - 1), DirectIo::Off);
        assert_eq!(direct_for(DirectIo::Off, write, u64::MAX), DirectIo::Off);
        // As the settings are where nobody changed them: writes go around it by themselves, and
        // reads do not.
        let settings = Settings::default();
        assert!(settings.auto_direct_io_write && !settings.auto_direct_io_read);
        let least = settings.auto_direct_io_threshold as u64;
        assert_eq!(direct_for(DirectIo::Auto, write, least), DirectIo::Auto);
        assert_eq!(direct_for(DirectIo::Auto, write, least - 1), DirectIo::Off);
        let (read, least) = (Direction::Read, DEVICE_FILE_MIN);
        assert_eq!(direct_for(DirectIo::Auto, read, least), DirectIo::Auto);
        assert_eq!(direct_for(DirectIo::Auto, read, least - 1), DirectIo::Off);
    }
}
