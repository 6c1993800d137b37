//! What the tests of this module share: directories on disk and in memory, files whose bytes tell
//! their place, and what goes wrong on purpose.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::file::{File, FileUse};
use super::{BackEndChoice, CompatMode, DirectIo};

/// A file system in memory, without direct I/O.
const TMPFS: &str = "/dev/shm";

/// Temporary directories: on disk, and in memory where there is such a file system.
pub(super) fn directories() -> Vec<TempDir> {
    let mut directories = vec![TempDir::new().expect("a directory")];
    if Path::new(TMPFS).is_dir() {
        directories.extend(TempDir::new_in(TMPFS));
    }
    directories
}

/// The byte at this place of each file of [`file_of`].
pub(super) fn byte_at(at: u64) -> u8 {
    let mixed = (at ^ at >> 7).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed >> 47) as u8
}

pub(super) fn bytes_of(range: std::ops::Range<u64>) -> Vec<u8> {
    range.map(byte_at).collect()
}

/// A file of so many bytes.
pub(super) fn file_of(directory: &TempDir, len: u64) -> PathBuf {
    let path = directory.path().join("file");
    std::fs::write(&path, bytes_of(0..len)).expect("room for it");
    path
}

/// A deadline that only a hang reaches.
pub(super) fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

/// A file whose direct descriptor refuses each transfer (EINVAL: a name space has no bytes), and
/// whose buffered one is a pipe.
pub(super) fn refusing(directory: &TempDir, pipe: OwnedFd) -> File {
    let path = file_of(directory, 10);
    let fd = std::fs::File::open(&path).expect("it is there");
    let used = FileUse {
        readable: true,
        writable: false,
        direct: DirectIo::Off,
        back_end: BackEndChoice::IoUring,
        compat_mode: CompatMode::On,
        cufile_refuses: None,
    };
    let file = File::new(path.as_path().into(), fd.into(), used).expect("a file");
    let no_bytes = std::fs::File::open("/proc/self/ns/uts").expect("every process is in one");
    file.with_descriptors(pipe, no_bytes.into())
}
