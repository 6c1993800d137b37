//! `FileHandle`: an open file, and what can be done with it.

use std::path::Path;
use std::sync::Arc;

use super::file::{DirectAlignment, File};
use super::{FileError, FileErrorKind, FileOperation, OpenOptions};

/// An open file.
///
/// ```
/// use fabricast::storage::FileHandle;
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("run.dat");
/// let mut file = FileHandle::open(&path, "w+")?;
/// assert_eq!(file.nbytes()?, 0);
/// file.close();
/// assert!(file.closed());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct FileHandle {
    /// `None` when it was closed.
    file: Option<Arc<File>>,
    path: Arc<Path>,
}

impl FileHandle {
    pub(crate) fn new(file: File) -> Self {
        Self {
            path: Arc::clone(file.path()),
            file: Some(Arc::new(file)),
        }
    }

    /// Opens a file with flags as text: `r`, `w`, `a`, `x`, each with `+` for both directions; see [`OpenFlags::parse`](super::OpenFlags::parse).
    /// More can be said with [`OpenOptions`].
    ///
    /// # Errors
    /// As [`OpenOptions::open`].
    pub fn open(path: impl AsRef<Path>, flags: &str) -> Result<Self, FileError> {
        OpenOptions::new().flags(flags).open(path)
    }

    /// The open file, in the process that opened it.
    pub(crate) fn file(&self, operation: FileOperation) -> Result<&Arc<File>, FileError> {
        let kind = match &self.file {
            None => FileErrorKind::Closed,
            Some(file) => match file.check_owner() {
                Ok(()) => return Ok(file),
                Err(kind) => kind,
            },
        };
        Err(FileError::new(operation, Arc::clone(&self.path), kind))
    }

    /// Where it was opened. Of a descriptor that was given: what the kernel called it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The size in bytes, as it was when this handle last asked. It asks anew after each write, append, truncation and allocation of its own;
    /// what others do to the file, [`refresh`](Self::refresh) finds.
    ///
    /// # Errors
    /// What fstat(2) answers, and a handle that is closed.
    pub fn nbytes(&self) -> Result<u64, FileError> {
        let file = self.file(FileOperation::Stat)?;
        file.size()
            .map_err(|kind| FileError::new(FileOperation::Stat, Arc::clone(&self.path), kind))
    }

    /// The size in bytes, asked for now.
    ///
    /// # Errors
    /// As [`nbytes`](Self::nbytes).
    pub fn refresh(&self) -> Result<u64, FileError> {
        let file = self.file(FileOperation::Stat)?;
        file.refresh_size()
            .map_err(|kind| FileError::new(FileOperation::Stat, Arc::clone(&self.path), kind))
    }

    /// What O_DIRECT asks of offsets and addresses; `None` when it was closed.
    pub fn alignment(&self) -> Option<DirectAlignment> {
        self.file.as_ref().map(|file| file.alignment())
    }

    /// Why transfers do not go around the page cache; `None` when they can, or the handle is closed.
    pub fn direct_refused(&self) -> Option<&str> {
        self.file.as_ref().and_then(|file| file.direct_refused())
    }

    /// Closes the handle. Operations that are under way go on: the descriptors are closed with the last of them.
    pub fn close(&mut self) {
        self.file = None;
    }

    /// Whether it was closed.
    pub fn closed(&self) -> bool {
        self.file.is_none()
    }
}
