//! `FileError`: what was done to which bytes of which file, how far it got, and what stopped it.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

use super::SettingError;

/// What was asked of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FileOperation {
    /// open(2), or taking a descriptor over.
    Open,
    /// Reading.
    Read,
    /// Writing.
    Write,
    /// Writing at the end.
    Append,
    /// fstat(2): size, device, alignment.
    Stat,
    /// fsync(2) and fdatasync(2).
    Sync,
    /// fallocate(2).
    Allocate,
    /// ftruncate(2).
    Truncate,
    /// Replacing a whole file: a temporary one, and rename(2).
    Replace,
    /// Looking into the page cache, or dropping pages from it.
    Cache,
}

impl fmt::Display for FileOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Open => "open",
            Self::Read => "read",
            Self::Write => "write",
            Self::Append => "append",
            Self::Stat => "stat",
            Self::Sync => "sync",
            Self::Allocate => "allocate",
            Self::Truncate => "truncate",
            Self::Replace => "replace",
            Self::Cache => "page cache",
        })
    }
}

/// What stopped an operation on a file.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FileErrorKind {
    /// The system refused.
    #[error("{}{}", io::Error::from_raw_os_error(*errno), advice(*errno))]
    Os {
        /// The system's error number, as errno(3) counts them.
        errno: i32,
    },
    /// It is no file that has offsets.
    #[error("it is {what}: only regular files and block devices have bytes at offsets")]
    NotAFile {
        /// What it is.
        what: &'static str,
    },
    /// The flags of [`OpenOptions`](super::OpenOptions) are none, or exclude each other.
    #[error("flags {flags:?}: {reason}")]
    Flags {
        /// As they were given.
        flags: String,
        /// What is wrong with them.
        reason: &'static str,
    },
    /// A descriptor that was given has a flag with which offsets can't be kept, or that cuFile
    /// refuses.
    #[error("the descriptor was opened with {flag}: {reason}")]
    DescriptorFlag {
        /// The name of the flag.
        flag: &'static str,
        /// What is wrong with it, and what to do.
        reason: &'static str,
    },
    /// The handle was opened for the other direction only.
    #[error(
        "the handle was not opened for {wanted} (flags of `open`: r, w, a, x for one direction, \
         r+, w+, a+, x+ for both)"
    )]
    NotOpenFor {
        /// "reading" or "writing".
        wanted: &'static str,
    },
    /// The range of the buffer is not inside of the buffer.
    #[error("range {start}..{end} of a buffer of {buffer_len} bytes")]
    Range {
        /// The first byte.
        start: usize,
        /// The byte behind the last.
        end: usize,
        /// The length of the buffer, in bytes.
        buffer_len: usize,
    },
    /// The last byte would lie behind the largest offset of a file.
    #[error(
        "offset and length together are more than a file may have (2^63 - 1 bytes): begin further \
         in front, or transfer less"
    )]
    TooLarge,
    /// A write took no byte, and no error came with it.
    #[error(
        "the system took no byte of a write and gave no reason: look for a full device or a quota, \
         then write what is missing"
    )]
    WriteZero,
    /// The handle was closed.
    #[error("the handle is closed: open the file again")]
    Closed,
    /// The handle was made by the process that this one was forked from. Open the file here.
    #[error(
        "the handle was made by process {made_by}, which this process was forked from: open the \
         file again here"
    )]
    Forked {
        /// The process that made it.
        made_by: u32,
    },
    /// As many operations wait for a thread as the pool takes. Wait for one of them, then try
    /// again.
    #[error("as many operations wait for a thread as the pool takes: wait for one of them first")]
    QueueFull,
    /// cuFile or the CUDA driver refused.
    #[error(transparent)]
    CuFile(#[from] super::cufile::CuFileError),
    /// This kind of memory, or this back end, can't be used for it here.
    #[error("{what}: {reason}")]
    Unsupported {
        /// What was asked for.
        what: &'static str,
        /// Why not.
        reason: String,
    },
    /// A setting, of the process or of its environment, is out of its range.
    #[error("setting {0}")]
    Setting(#[from] SettingError),
    /// It was cancelled before it was done, by [`Batch::cancel`](super::Batch::cancel) or because
    /// what it belonged to ended.
    #[error(
        "it was cancelled before it was done: what was moved before is counted, submit the rest \
         again"
    )]
    Cancelled,
    /// A bug: the code that moves the bytes panicked. What it moved before is counted.
    #[error("the transfer panicked: {0}")]
    Panicked(String),
}

fabricast_process::debug_as_words!(FileErrorKind);

/// What the reader of an error can do about it, where that is known; begins with a separator.
fn advice(errno: i32) -> &'static str {
    match errno {
        libc::EACCES => {
            ": look at owner and mode of the file, and of each directory on the way to it (namei \
             -l)"
        }
        libc::ENOENT => {
            ": look at the path; the flags \"w\" and \"a\" make the file, but no directory"
        }
        libc::EINVAL => {
            ": an argument, or the alignment that O_DIRECT asks for here; `DirectIo::Off` does \
             without it"
        }
        libc::EMFILE => {
            ": raise it with `ulimit -n` or LimitNOFILE= (a file takes two descriptors)"
        }
        libc::ENOSPC => ": free some space, then write what is missing",
        libc::EDQUOT => ": the quota of this user or project is used up",
        libc::EFBIG => ": longer than the file system or RLIMIT_FSIZE allows",
        libc::EROFS => ": open it with the flag \"r\"",
        libc::EIO => ": the device or the file system failed, see the kernel's log",
        libc::ESTALE => ": the server no longer knows the file, open it again",
        _ => "",
    }
}

impl FileErrorKind {
    /// From what a system call answered.
    pub(crate) fn os(error: &io::Error) -> Self {
        Self::Os {
            errno: error.raw_os_error().unwrap_or(libc::EIO),
        }
    }
}

impl From<rustix::io::Errno> for FileErrorKind {
    fn from(errno: rustix::io::Errno) -> Self {
        Self::Os {
            errno: errno.raw_os_error(),
        }
    }
}

/// An operation on a file that failed: which one, on what bytes, how many of them were done before,
/// and why.
///
/// ```
/// use fabricast::storage::FileHandle;
/// # let dir = tempfile::tempdir()?;
/// let error = FileHandle::open(dir.path().join("run.dat"), "r").unwrap_err();
/// assert_eq!((error.errno(), error.done), (Some(libc::ENOENT), 0));
/// assert!(error.path.ends_with("run.dat"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct FileError {
    /// What was asked for.
    pub operation: FileOperation,
    /// The file, by the path that it was opened with. A descriptor that was given: the path that
    /// the kernel knew then.
    pub path: Arc<Path>,
    /// The offset in the file, in bytes, where the operation has one.
    pub offset: Option<u64>,
    /// Bytes asked for, where the operation has a length.
    pub len: Option<u64>,
    /// Bytes that were done, from `offset` on without a gap: what a write put into the file, or a
    /// read into memory. What lies behind them is in any state.
    pub done: u64,
    /// What stopped it.
    pub kind: FileErrorKind,
}

impl FileError {
    pub(crate) fn new(
        operation: FileOperation,
        path: impl Into<Arc<Path>>,
        kind: impl Into<FileErrorKind>,
    ) -> Self {
        Self {
            operation,
            path: path.into(),
            offset: None,
            len: None,
            done: 0,
            kind: kind.into(),
        }
    }

    /// With the bytes that it was about.
    pub(crate) fn at(mut self, offset: u64, len: u64) -> Self {
        (self.offset, self.len) = (Some(offset), Some(len));
        self
    }

    /// The system's error number, where the system refused.
    pub fn errno(&self) -> Option<i32> {
        match self.kind {
            FileErrorKind::Os { errno } => Some(errno),
            _ => None,
        }
    }

    /// Back-pressure, and no failure: nothing was begun; try again when other operations are over.
    pub fn is_would_block(&self) -> bool {
        self.kind == FileErrorKind::QueueFull
    }
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.operation)?;
        if let Some(len) = self.len {
            write!(f, " of {len} bytes")?;
        }
        if let Some(offset) = self.offset {
            write!(f, " at {offset}")?;
        }
        write!(f, ", {}", self.path.display())?;
        if self.done > 0 {
            write!(f, ", after {} bytes", self.done)?;
        }
        write!(f, ": {}", self.kind)
    }
}

impl std::error::Error for FileError {}

fabricast_process::debug_as_words!(FileError);

impl From<FileError> for io::Error {
    /// With the kind that the error number stands for, and all of the text.
    fn from(error: FileError) -> Self {
        let kind = match error.kind {
            FileErrorKind::Os { errno } => Self::from_raw_os_error(errno).kind(),
            FileErrorKind::QueueFull => io::ErrorKind::WouldBlock,
            FileErrorKind::WriteZero => io::ErrorKind::WriteZero,
            FileErrorKind::Unsupported { .. } => io::ErrorKind::Unsupported,
            FileErrorKind::Panicked(_) => io::ErrorKind::Other,
            _ => io::ErrorKind::InvalidInput,
        };
        Self::new(kind, error)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn no_space() -> FileError {
        let kind = FileErrorKind::Os {
            errno: libc::ENOSPC,
        };
        let mut error =
            FileError::new(FileOperation::Write, Path::new("/data/run 7"), kind).at(8192, 4096);
        error.done = 512;
        error
    }

    #[test]
    fn the_text_says_what_where_how_far_why_and_what_to_do() {
        let text = no_space().to_string();
        let parts = [
            "write of 4096 bytes at 8192, /data/run 7, after 512 bytes: ",
            "os error 28",
            "free some space",
        ];
        for part in parts {
            assert!(text.contains(part), "{part:?} in {text:?}");
        }
        let closed = FileError::new(FileOperation::Sync, Path::new("x"), FileErrorKind::Closed);
        assert_eq!(
            closed.to_string(),
            "sync, x: the handle is closed: open the file again"
        );
    }

    #[test]
    fn the_most_frequent_errors_say_what_to_do() {
        let os = |errno| FileErrorKind::Os { errno };
        for (kind, word) in [
            (os(libc::EACCES), "owner and mode"),
            (os(libc::ENOENT), "look at the path"),
            (os(libc::EINVAL), "DirectIo::Off"),
            (os(libc::EROFS), "flag \"r\""),
            (FileErrorKind::Closed, "open the file again"),
            (
                FileErrorKind::Forked { made_by: 7 },
                "open the file again here",
            ),
            (FileErrorKind::Cancelled, "submit the rest again"),
            (FileErrorKind::WriteZero, "full device or a quota"),
            (FileErrorKind::NotOpenFor { wanted: "writing" }, "x+"),
        ] {
            assert!(kind.to_string().contains(word), "{kind}");
        }
    }

    #[test]
    fn it_becomes_an_error_of_the_standard_library() {
        let error = io::Error::from(no_space());
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert!(error.to_string().contains("/data/run 7"));
        let full = FileError::new(
            FileOperation::Read,
            Path::new("x"),
            FileErrorKind::QueueFull,
        );
        assert!(full.is_would_block() && full.errno().is_none());
        assert_eq!(io::Error::from(full).kind(), io::ErrorKind::WouldBlock);
    }
}
