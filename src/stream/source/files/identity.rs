//! `Identity`: what tells one state of a file from another.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

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

/// Whether a file is what it was; a directory (`then` is `None`) is.
///
/// # Errors
/// [`SourceError::Changed`].
pub(super) fn check(path: &Path, then: Option<Identity>, now: Identity) -> Result<(), SourceError> {
    let Some(then) = then else { return Ok(()) };
    if (then.device, then.inode) != (now.device, now.inode) {
        return Err(changed(path, "it was replaced by another file"));
    }
    if then.size != now.size {
        let shorter = now.size < then.size;
        return Err(changed(
            path,
            if shorter {
                "it became shorter"
            } else {
                "it became longer"
            },
        ));
    }
    if then.modified != now.modified {
        return Err(changed(path, "it was written to"));
    }
    Ok(())
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
