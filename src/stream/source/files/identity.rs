//! `Identity`: what tells one state of a file from another.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::stream::SourceError;

/// What changes when a file does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) device: u64,
    pub(super) inode: u64,
    pub(super) size: u64,
    pub(super) modified: (i64, i64),
}

/// The error of a file that is not what it was.
pub(super) fn changed(path: &Path, how: &'static str) -> SourceError {
    let what = path.display().to_string();
    SourceError::Changed { what, how }
}

/// Whether a file is what it was; a directory (`then` is `None`) is. `path` says where it is.
///
/// # Errors
/// [`SourceError::Changed`].
pub(super) fn check(
    path: impl FnOnce() -> PathBuf,
    then: Option<Identity>,
    now: Identity,
) -> Result<(), SourceError> {
    let Some(then) = then else { return Ok(()) };
    let how = if (then.device, then.inode) != (now.device, now.inode) {
        "it was replaced by another file"
    } else if now.size < then.size {
        "it became shorter"
    } else if now.size > then.size {
        "it became longer"
    } else if then.modified != now.modified {
        "it was written to"
    } else {
        return Ok(());
    };
    Err(changed(&path(), how))
}

impl Identity {
    pub(super) fn of(found: &std::fs::Metadata) -> Self {
        Self {
            device: found.dev(),
            inode: found.ino(),
            size: found.size(),
            modified: (found.mtime(), found.mtime_nsec()),
        }
    }

    pub(super) fn of_stat(found: &rustix::fs::Stat) -> Self {
        Self {
            device: found.st_dev,
            inode: found.st_ino,
            size: found.st_size as u64,
            modified: (found.st_mtime, found.st_mtime_nsec as i64),
        }
    }
}
