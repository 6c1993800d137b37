//! The page cache: how much of a file is in it, and getting it out of there.
//!
//! For measurements, and for data that is read once and not again. A direct transfer (O_DIRECT)
//! does not fill it in the first place.

#![allow(unsafe_code)]

use std::fs;
use std::io;
use std::ops::{Bound, Range, RangeBounds};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;

use rustix::fs::{Advice, Mode, OFlags};
use rustix::io::Errno;

use super::open::retry;
use super::{FileError, FileErrorKind, FileHandle, FileOperation};
use crate::mapping;

/// How much of a file is mapped at once where the kernel has no cachestat(2), in bytes; a byte a
/// page is kept for it.
const WINDOW: u64 = 1 << 30;

/// How much of a file, or of a part of it, is in the page cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Residency {
    /// The size of a page, in bytes.
    pub page_bytes: u64,
    /// Pages that the part has.
    pub pages: u64,
    /// Of these, pages that are in the page cache.
    pub resident: u64,
    /// Of these, pages that are not written to the device yet; nothing where the kernel does not
    /// say (before Linux 6.5).
    pub dirty: Option<u64>,
    /// Of the resident ones, pages that are just being written to the device; nothing as above.
    pub writeback: Option<u64>,
}

/// How much of a file is in the page cache.
///
/// By cachestat(2), or where the kernel does not have it (before Linux 6.5) by mincore(2): that one
/// claims that everything is there, for files that this process neither owns nor may write.
///
/// ```
/// use fabricast::storage::page_cache;
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("run.dat");
/// std::fs::write(&path, vec![7; 100_000])?;
/// page_cache::drop_file(&path)?;
/// let residency = page_cache::residency(&path)?;
/// assert_eq!(residency.pages, 100_000_u64.div_ceil(residency.page_bytes));
/// println!("{} of {} pages are in the page cache", residency.resident, residency.pages);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// What open(2), fstat(2), cachestat(2) or mincore(2) answer.
pub fn residency(path: impl AsRef<Path>) -> Result<Residency, FileError> {
    let path = path.as_ref();
    open(path)
        .and_then(|fd| residency_of(fd.as_fd(), 0..u64::MAX))
        .map_err(|kind| FileError::new(FileOperation::Cache, path, kind))
}

/// Writes what is dirty of a file to its device (fdatasync(2)) and drops its pages from the page
/// cache (posix_fadvise(2)).
///
/// Pages that somebody has mapped or locked stay, and so do the files of a file system in memory,
/// which are nowhere else; [`residency`] says what is left.
///
/// # Errors
///
/// What open(2), fdatasync(2) or posix_fadvise(2) answer.
pub fn drop_file(path: impl AsRef<Path>) -> Result<(), FileError> {
    let path = path.as_ref();
    open(path)
        .and_then(|fd| drop_range_of(fd.as_fd(), 0..u64::MAX))
        .map_err(|kind| FileError::new(FileOperation::Cache, path, kind))
}

impl FileHandle {
    /// How much of these bytes of the file is in the page cache; see [`residency`].
    ///
    /// # Errors
    ///
    /// As [`residency`], and a handle that is closed.
    pub fn residency(&self, bytes: impl RangeBounds<u64>) -> Result<Residency, FileError> {
        let operation = FileOperation::Cache;
        let file = self.file(operation)?;
        residency_of(file.buffered(), half_open(&bytes)).map_err(|kind| self.error(operation, kind))
    }

    /// Writes what is dirty of the file to its device, and drops these bytes from the page cache,
    /// as far as they are whole pages; see [`drop_file`].
    ///
    /// # Errors
    ///
    /// As [`drop_file`], and a handle that is closed.
    pub fn drop_page_cache(&self, bytes: impl RangeBounds<u64>) -> Result<(), FileError> {
        let operation = FileOperation::Cache;
        let file = self.file(operation)?;
        drop_range_of(file.buffered(), half_open(&bytes))
            .map_err(|kind| self.error(operation, kind))
    }
}

/// The range from its first byte to the one behind its last.
fn half_open(range: &impl RangeBounds<u64>) -> Range<u64> {
    let start = match range.start_bound() {
        Bound::Included(start) => *start,
        Bound::Excluded(before) => before.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(last) => last.saturating_add(1),
        Bound::Excluded(end) => *end,
        Bound::Unbounded => u64::MAX,
    };
    start..end
}

/// What [`drop_system`] drops.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Dropped {
    /// The page cache.
    #[default]
    Pages,
    /// What is known of names and inodes.
    Names,
    /// Both.
    PagesAndNames,
}

/// Drops the page cache of the whole machine: for all files and all processes, which are slower for
/// a while. For root only; clean pages only, so everything is written to its device first
/// (sync(2)), which may take long.
///
/// # Errors
///
/// What the kernel answers to a write to /proc/sys/vm/drop_caches: EACCES for anybody but root,
/// EROFS in most containers.
pub fn drop_system(what: Dropped) -> Result<(), FileError> {
    drop_by(
        Path::new("/proc/sys/vm/drop_caches"),
        what,
        rustix::fs::sync,
    )
}

fn drop_by(path: &Path, what: Dropped, sync: impl FnOnce()) -> Result<(), FileError> {
    let failed = |kind| FileError::new(FileOperation::Cache, path, kind);
    // Asked first: without the right to do it, nobody waits for the sync.
    let file = fs::OpenOptions::new().write(true).open(path);
    let mut file = file.map_err(|error| failed(refused(&error)))?;
    sync();
    let number = match what {
        Dropped::Pages => "1",
        Dropped::Names => "2",
        Dropped::PagesAndNames => "3",
    };
    io::Write::write_all(&mut file, number.as_bytes()).map_err(|error| failed(refused(&error)))
}

fn refused(error: &io::Error) -> FileErrorKind {
    match error.raw_os_error() {
        Some(libc::EACCES | libc::EPERM | libc::EROFS) => FileErrorKind::Unsupported {
            what: "dropping the page cache of the machine",
            reason: format!(
                "{error}: only root may, outside of a container; `drop_file` needs no such right"
            ),
        },
        _ => FileErrorKind::os(error),
    }
}

fn open(path: &Path) -> Result<std::os::fd::OwnedFd, FileErrorKind> {
    // O_NONBLOCK: nobody waits at a FIFO.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    retry(|| rustix::fs::open(path, flags, Mode::empty())).map_err(FileErrorKind::from)
}

/// The same for a part of an open file; bytes behind its end don't count.
pub(super) fn residency_of(
    fd: BorrowedFd<'_>,
    range: Range<u64>,
) -> Result<Residency, FileErrorKind> {
    let page_bytes = rustix::param::page_size() as u64;
    let size = u64::try_from(rustix::fs::fstat(fd)?.st_size).unwrap_or(0);
    // Whole pages: the first and the last count when a byte of them is in the range.
    let (start, end) = if range.start < range.end.min(size) {
        (range.start / page_bytes * page_bytes, range.end.min(size))
    } else {
        (0, 0)
    };
    let mut residency = Residency {
        page_bytes,
        pages: (end - start).div_ceil(page_bytes),
        ..Residency::default()
    };
    if residency.pages == 0 {
        return Ok(residency);
    }
    match cachestat(fd, start, end - start) {
        Ok(told) => {
            // On a file system with larger blocks the kernel counts whole ones: more than there are
            // in the range.
            residency.resident = told.cached.min(residency.pages);
            residency.dirty = Some(told.dirty.min(residency.pages));
            residency.writeback = Some(told.writeback.min(residency.pages));
        }
        // Not there, not for this file system, or forbidden by a filter or by the rights on the
        // file: mincore(2) may know.
        Err(Errno::NOSYS | Errno::OPNOTSUPP | Errno::PERM) => {
            residency.resident = resident_by_mincore(fd, start, end)?;
        }
        Err(errno) => return Err(errno.into()),
    }
    Ok(residency)
}

/// The same for a part of an open file; pages that the range has only a part of stay.
pub(super) fn drop_range_of(fd: BorrowedFd<'_>, range: Range<u64>) -> Result<(), FileErrorKind> {
    retry(|| rustix::fs::fdatasync(fd))?;
    // 0 means "to the end". The largest offset is 2^63 - 1.
    let len = range.end.saturating_sub(range.start);
    let len = if range.end > i64::MAX as u64 { 0 } else { len };
    if range.is_empty() {
        return Ok(());
    }
    let len = std::num::NonZeroU64::new(len);
    retry(|| rustix::fs::fadvise(fd, range.start, len, Advice::DontNeed))?;
    Ok(())
}

/// What cachestat(2) writes; `struct cachestat` of <linux/mman.h>.
#[repr(C)]
#[derive(Default)]
struct Cachestat {
    cached: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// What cachestat(2) is asked about; `struct cachestat_range`.
#[repr(C)]
struct CachestatRange {
    offset: u64,
    len: u64,
}

const _: () = assert!(size_of::<Cachestat>() == 40);

/// Its number is the same on all architectures, as all that were added since 2019; alpha is not one
/// that this library is for.
const CACHESTAT: libc::c_long = 451;

fn cachestat(fd: BorrowedFd<'_>, offset: u64, len: u64) -> Result<Cachestat, Errno> {
    let range = CachestatRange { offset, len };
    let mut told = Cachestat::default();
    // SAFETY: the call reads one struct and writes the other, both of which are this function's and
    // have the kernel's layout, checked above for size; the descriptor is open while it is
    // borrowed.
    let rc = unsafe {
        libc::syscall(
            CACHESTAT,
            fd.as_raw_fd(),
            &raw const range,
            &raw mut told,
            0,
        )
    };
    if rc == 0 {
        Ok(told)
    } else {
        let error = io::Error::last_os_error();
        Err(Errno::from_io_error(&error).unwrap_or(Errno::IO))
    }
}

/// By windows: a file may be larger than what can be mapped.
fn resident_by_mincore(fd: BorrowedFd<'_>, start: u64, end: u64) -> Result<u64, FileErrorKind> {
    let mut resident = 0;
    let mut at = start;
    while at < end {
        let len = WINDOW.min(end - at);
        resident += resident_in_window(fd, at, len as usize)?;
        at += len;
    }
    Ok(resident)
}

fn resident_in_window(fd: BorrowedFd<'_>, at: u64, len: usize) -> Result<u64, FileErrorKind> {
    let mut pages = vec![0_u8; len.div_ceil(rustix::param::page_size())];
    // No byte of it is ever touched, so the file may shrink meanwhile.
    let window = mapping::of_file(fd, at, len).map_err(|error| FileErrorKind::os(&error))?;
    // SAFETY: the mapping was just made and is as long as that; the vector has a byte for each page
    // of it.
    let rc = unsafe { libc::mincore(window.as_ptr().cast(), len, pages.as_mut_ptr()) };
    let error = (rc != 0).then(io::Error::last_os_error);
    // SAFETY: the mapping is this function's, and nothing refers to it any more.
    unsafe { mapping::unmap(window, len) }.map_err(|error| FileErrorKind::os(&error))?;
    match error {
        Some(error) => Err(FileErrorKind::os(&error)),
        // The other bits are reserved.
        None => Ok(pages.iter().filter(|page| **page & 1 != 0).count() as u64),
    }
}

#[cfg(all(test, not(loom)))]
#[path = "tests/page_cache.rs"]
mod tests;
