//! The file system and the block device under the test file: its name, its request counters, the
//! page cache.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// What the block layer has counted so far.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Requests {
    pub(crate) reads: u64,
    pub(crate) read_bytes: u64,
}

/// The whole device that a file lies on, in sysfs; none for a file system in memory or on the
/// network.
#[derive(Debug)]
pub(crate) struct Disk {
    stat: PathBuf,
}

impl Disk {
    pub(crate) fn of(file: &File) -> Option<Self> {
        let device = file.metadata().ok()?.dev();
        let (major, minor) = (libc::major(device), libc::minor(device));
        let block = std::fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?;
        // Requests of a partition are counted there, too, but merges are the device's.
        let whole = match block.join("partition").exists() {
            true => block.parent()?.to_owned(),
            false => block,
        };
        let stat = whole.join("stat");
        stat.exists().then_some(Self { stat })
    }

    /// Documentation/block/stat.rst: read I/Os, read merges, read sectors (512 bytes), ...
    pub(crate) fn requests(&self) -> io::Result<Requests> {
        let text = std::fs::read_to_string(&self.stat)?;
        let mut numbers = text
            .split_whitespace()
            .map(|number| number.parse().unwrap_or(0));
        let reads = numbers.next().unwrap_or(0);
        let read_bytes = numbers.nth(1).unwrap_or(0) * 512;
        Ok(Requests { reads, read_bytes })
    }
}

/// The name of the file system, for the figures.
pub(crate) fn file_system(path: &Path) -> String {
    let Ok(mounts) = std::fs::read_to_string("/proc/self/mounts") else {
        return "unknown".to_owned();
    };
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let fields = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        Some((fields.next()?, fields.next()?))
    });
    let under = fields.filter(|(mount, _)| path.starts_with(mount));
    let closest = under.max_by_key(|(mount, _)| mount.len());
    closest.map_or_else(|| "unknown".to_owned(), |(_, kind)| kind.to_owned())
}

/// Writes back what is dirty, and drops the file's pages from the cache.
pub(crate) fn drop_cache(file: &File) -> io::Result<()> {
    file.sync_all()?;
    // SAFETY: takes numbers only.
    let errno = unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    if errno != 0 {
        return Err(io::Error::from_raw_os_error(errno));
    }
    Ok(())
}
