//! `AtomicFile`: a whole file that appears, complete and on the device, or not at all.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{CWD, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use super::open::retry;
use super::{FileError, FileErrorKind, FileHandle, FileOperation, OpenOptions};
use crate::random::random_u64;

/// Names that are tried before we give up: each is random, so more than one is news.
const TRIES: u32 = 16;
/// The longest part of the file's name that its temporary one has, in bytes: names may have 255.
const NAME_PART_MAX: usize = 200;

/// A file that is written under a temporary name beside its place, and takes its place with
/// [`commit`](Self::commit). Dropped before that, it is removed.
///
/// A process that is killed meanwhile leaves the temporary file, whose name is `.NAME.RANDOM.tmp`,
/// and the old file as it was.
///
/// ```
/// use fabricast::storage::AtomicFile;
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("checkpoint");
/// let new = AtomicFile::create(&path, 0o664)?;
/// new.file().write(b"block 1", 4096)?;
/// new.file().write(b"block 0", 0)?;
/// assert!(!path.exists());
/// new.commit()?;
/// assert_eq!(std::fs::metadata(&path)?.len(), 4103);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "the file is removed unless it is committed"]
pub struct AtomicFile {
    file: FileHandle,
    target: Arc<Path>,
    temporary: Temporary,
}

impl AtomicFile {
    /// A new, empty file beside `path`, of those permissions less the process's umask. Whatever is
    /// at `path` stays there until the commit.
    ///
    /// # Errors
    /// As [`OpenOptions::open`], with the operation [`FileOperation::Replace`].
    pub fn create(path: impl AsRef<Path>, mode: u32) -> Result<Self, FileError> {
        Self::create_with(path, &OpenOptions::new().mode(mode))
    }

    /// The same, opened as the options say (mode, direct I/O, back end); their flags do not count:
    /// it is read and written.
    ///
    /// # Errors
    /// As [`create`](Self::create).
    pub fn create_with(path: impl AsRef<Path>, options: &OpenOptions) -> Result<Self, FileError> {
        let target: Arc<Path> = path.as_ref().into();
        let options = options.clone().flags("x+");
        for _ in 0..TRIES {
            let path = temporary_name(&target)?;
            match options.open(&path) {
                Ok(file) => {
                    return Ok(Self {
                        file,
                        target,
                        temporary: Temporary(Some(path)),
                    });
                }
                Err(error) if error.errno() == Some(libc::EEXIST) => {}
                Err(error) => return Err(failed(&target, error.kind)),
            }
        }
        let errno = libc::EEXIST;
        Err(failed(&target, FileErrorKind::Os { errno }))
    }

    /// The file, under its temporary name.
    pub fn file(&self) -> &FileHandle {
        &self.file
    }

    /// Puts the file in its place, instead of what is there: brings its bytes to the device,
    /// renames it, and brings the new name to the device. A symbolic link is replaced, not
    /// followed. Who has the old file open keeps it.
    ///
    /// # Errors
    /// [`FileError`]; then nothing has changed and the file is removed. Only when the last step
    /// fails (fsync(2) of the directory), the new file is in its place, but may not outlive a loss
    /// of power.
    pub fn commit(self) -> Result<(), FileError> {
        self.put(RenameFlags::empty())
    }

    /// The same, but only where there is nothing yet.
    ///
    /// # Errors
    /// As [`commit`](Self::commit), and `EEXIST`.
    pub fn commit_new(self) -> Result<(), FileError> {
        self.put(RenameFlags::NOREPLACE)
    }

    /// The same, and nothing is brought to the device: as whole for everybody who looks, and much
    /// faster. After a loss of power there may be the old file, the new one, or an empty one. For
    /// many files that are synced together afterwards (syncfs(2)).
    ///
    /// # Errors
    /// [`FileError`]; then nothing has changed and the file is removed.
    pub fn commit_unsynced(mut self) -> Result<(), FileError> {
        self.rename(RenameFlags::empty())
    }

    /// The same, but only where there is nothing yet.
    ///
    /// # Errors
    /// As [`commit_unsynced`](Self::commit_unsynced), and `EEXIST`.
    pub fn commit_new_unsynced(mut self) -> Result<(), FileError> {
        self.rename(RenameFlags::NOREPLACE)
    }

    /// Whether a file of that name may be one that is written, or was left by a process that was
    /// killed: `.NAME.RANDOM.tmp`, the random part of 16 hexadecimal digits. For whoever lists a
    /// directory.
    ///
    /// ```
    /// use fabricast::storage::AtomicFile;
    /// assert!(AtomicFile::is_temporary(".checkpoint.0123456789abcdef.tmp"));
    /// assert!(!AtomicFile::is_temporary(".checkpoint.tmp"));
    /// ```
    pub fn is_temporary(name: impl AsRef<OsStr>) -> bool {
        let name = name.as_ref().as_bytes();
        let inner = name.strip_prefix(b".").unwrap_or(&[]);
        let inner = inner.strip_suffix(b".tmp").unwrap_or(&[]);
        let Some((name, random)) = inner.split_last_chunk::<17>() else {
            return false;
        };
        let is_digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        !name.is_empty() && random[0] == b'.' && random[1..].iter().all(is_digit)
    }

    fn put(mut self, flags: RenameFlags) -> Result<(), FileError> {
        let target = Arc::clone(&self.target);
        self.file
            .sync_all()
            .map_err(|error| failed(&target, error.kind))?;
        self.rename(flags)?;
        sync_directory(&target).map_err(|errno| failed(&target, errno))
    }

    fn rename(&mut self, flags: RenameFlags) -> Result<(), FileError> {
        let target = &self.target;
        self.file.close();
        if let Some(temporary) = &self.temporary.0 {
            // Without flags by the older call, which every file system has.
            let renamed = if flags.is_empty() {
                rustix::fs::rename(temporary, &**target)
            } else {
                rustix::fs::renameat_with(CWD, temporary, CWD, &**target, flags)
            };
            renamed.map_err(|errno| failed(target, errno))?;
        }
        self.temporary.0 = None;
        Ok(())
    }
}

impl FileHandle {
    /// Writes a whole file at once: afterwards, there is the new one, on the device, or, after an
    /// error, what was there before. In pieces: [`AtomicFile`].
    ///
    /// # Errors
    /// As [`AtomicFile::create`], [`write`](Self::write) and [`AtomicFile::commit`].
    pub fn write_atomically(
        path: impl AsRef<Path>,
        bytes: &[u8],
        mode: u32,
    ) -> Result<(), FileError> {
        let new = AtomicFile::create(path, mode)?;
        let written = new.file().write(bytes, 0);
        written.map_err(|error| FileError {
            operation: FileOperation::Replace,
            path: Arc::clone(&new.target),
            ..error
        })?;
        new.commit()
    }
}

fn failed(target: &Arc<Path>, kind: impl Into<FileErrorKind>) -> FileError {
    FileError::new(FileOperation::Replace, Arc::clone(target), kind)
}

/// Removes the file of that name when it is dropped.
#[derive(Debug)]
struct Temporary(Option<PathBuf>);

impl Drop for Temporary {
    fn drop(&mut self) {
        if let Some(path) = &self.0
            && let Err(error) = rustix::fs::unlink(path)
            // Somebody removed it, with its directory perhaps.
            && error != Errno::NOENT
        {
            tracing::warn!(path = %path.display(), %error, "a temporary file stays");
        }
    }
}

fn temporary_name(target: &Arc<Path>) -> Result<PathBuf, FileError> {
    let errno = libc::EISDIR;
    let name = target.file_name();
    let name = name.ok_or_else(|| failed(target, FileErrorKind::Os { errno }))?;
    let part = &name.as_bytes()[..name.len().min(NAME_PART_MAX)];
    let mut temporary = OsString::from(".");
    temporary.push(OsStr::from_bytes(part));
    temporary.push(format!(".{:016x}.tmp", random_u64()));
    Ok(target.with_file_name(temporary))
}

fn sync_directory(target: &Path) -> rustix::io::Result<()> {
    let parent = target
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or_else(|| Path::new("."));
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = retry(|| rustix::fs::open(parent, flags, Mode::empty()))?;
    retry(|| rustix::fs::fsync(&directory))
}
