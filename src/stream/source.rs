//! `BlockSource`: where the bytes of a stream come from.

mod device;
mod files;
mod memory;

use std::io;
use std::path::{Path, PathBuf};

use super::{Entry, EntryKind, Manifest, Modified, NameError, RelativeName};
use crate::buffer::{Buffer, DeviceBuffer};
use crate::cuda::{CudaError, Stream};
use crate::memory::MemoryError;
use crate::storage::{BackEnd, FileError, IoStats};

pub use device::DeviceSource;
pub use files::{FileSource, FileSourceBuilder, Skipped, SourceLinks};
pub use memory::BufferSource;

/// Something that a stream is made of: entries, each of which is read in blocks, in any order, by
/// several threads at once.
///
/// [`FileSource`], [`BufferSource`] and [`DeviceSource`] are what this library brings. A source of
/// your own says what it has ([`manifest`](Self::manifest)), tells one state of it from another
/// ([`stamp`](Self::stamp)), and fills memory.
///
/// ```
/// use fabricast::stream::{BlockSource, Manifest, SourceError};
///
/// /// A megabyte of zeros.
/// #[derive(Debug)]
/// struct Zeros(Manifest);
///
/// impl BlockSource for Zeros {
///     fn manifest(&self) -> &Manifest {
///         &self.0
///     }
///     fn stamp(&self) -> [u8; 16] {
///         [0; 16]
///     }
///     fn read(&self, _entry: usize, _offset: u64, into: &mut [u8]) -> Result<(), SourceError> {
///         into.fill(0);
///         Ok(())
///     }
/// }
/// ```
pub trait BlockSource: Send + Sync + std::fmt::Debug + 'static {
    /// Its entries: names and sizes. They do not change while the source exists.
    fn manifest(&self) -> &Manifest;

    /// What tells the content of now from another one under the same names, as sizes and times do.
    /// A stream that was cut is resumed only with the stamp that it began with.
    fn stamp(&self) -> [u8; 16];

    /// Fills `into` with the bytes of an entry from an offset on. Called by several threads at
    /// once.
    ///
    /// # Errors
    /// Why the bytes can't be had: the stream fails with it.
    fn read(&self, entry: usize, offset: u64, into: &mut [u8]) -> Result<(), SourceError>;

    /// The same bytes where they lie in memory that is registered already with every domain that
    /// they go out by: then nothing is read.
    fn lend(&self, entry: usize, offset: u64, len: usize) -> Option<Buffer> {
        let _ = (entry, offset, len);
        None
    }

    /// Whether these bytes of an entry are known to be zeros, as those in a hole of a file are.
    /// Asked of entries that are said to have holes ([`Entry::sparse`](super::Entry)), by the
    /// thread that sends: it must not wait for a file. Such bytes are not read, and not sent to a
    /// receiver that takes word of them.
    fn is_hole(&self, entry: usize, offset: u64, len: usize) -> bool {
        let _ = (entry, offset, len);
        false
    }

    /// Fills a buffer in a GPU's memory, all of its length, with the bytes of an entry from an
    /// offset on: what [`ThroughGpu`](super::ThroughGpu) does with a source. `host` is as long, and
    /// may be used on the way; so may the stream. Called by several threads at once. Which way they
    /// came.
    ///
    /// Unless a source has a better way, they are [`read`](Self::read) into `host` and copied.
    ///
    /// # Errors
    /// As for [`read`](Self::read).
    fn read_to_device(
        &self,
        entry: usize,
        offset: u64,
        into: &mut DeviceBuffer,
        host: &mut [u8],
        stream: &Stream,
    ) -> Result<BackEnd, SourceError> {
        self.read(entry, offset, host)?;
        into.copy_from_host(host, stream)?;
        Ok(BackEnd::Staged)
    }

    /// What the bytes pass before they are in the memory that they are sent from, for reports;
    /// `None`: nothing but the host's memory.
    fn path(&self) -> Option<String> {
        None
    }

    /// What was done with files so far, for reports; `None`: there are none.
    fn io_stats(&self) -> Option<IoStats> {
        None
    }

    /// Asked when all was read: whether it is still what [`stamp`](Self::stamp) said.
    ///
    /// # Errors
    /// [`SourceError::Changed`]: the stream fails, and nothing of it appears at the sink.
    fn check_unchanged(&self) -> Result<(), SourceError> {
        Ok(())
    }

    /// What the manifest does not have though it is there, for who would remove at a receiver what
    /// is not in the manifest ([`SendOptions::delete`](super::SendOptions::delete)).
    fn left_out(&self) -> LeftOut {
        LeftOut::Nothing
    }
}

/// What the manifest of a source does not have though it is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LeftOut {
    /// Nothing.
    Nothing,
    /// What a filter says ([`FileSourceBuilder::filter`]).
    ByFilter,
    /// So many things that are not sent ([`FileSource::skipped`]).
    Skipped(u64),
}

/// Why the bytes of a source can't be had.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// A file can't be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// The system refused.
    #[error("{path}: {}", io::Error::from_raw_os_error(*errno))]
    Os {
        /// The file or directory.
        path: PathBuf,
        /// The system's error number, as errno(3) counts them.
        errno: i32,
    },
    /// The source is not what it was when the stream began.
    #[error("{what}: {how} while it was sent")]
    Changed {
        /// The name of the entry.
        what: String,
        /// In which way.
        how: &'static str,
    },
    /// The path is neither a regular file nor a directory.
    #[error("{path}: it is neither a regular file nor a directory")]
    NoFile {
        /// The file or directory.
        path: PathBuf,
    },
    /// A name can't be sent, or there are two of it.
    #[error("{path}: {reason}")]
    Name {
        /// The file or directory.
        path: PathBuf,
        /// What is wrong with its name.
        reason: NameError,
    },
    /// The entries can't be sent together.
    #[error("{0}")]
    Manifest(String),
    /// The CUDA driver refused.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// There is nothing to send.
    #[error("no files to send")]
    Empty,
    /// What a source of the user's says.
    #[error("{0}")]
    Other(String),
}

fabricast_process::debug_as_words!(SourceError);

impl From<MemoryError> for SourceError {
    fn from(error: MemoryError) -> Self {
        Self::Other(error.to_string())
    }
}

impl SourceError {
    fn os(path: &Path, error: &io::Error) -> Self {
        Self::Os {
            path: path.into(),
            errno: error.raw_os_error().unwrap_or(libc::EIO),
        }
    }
}

fn relative<'a>(path: &Path, name: &'a [u8]) -> Result<RelativeName<'a>, SourceError> {
    RelativeName::new(name).map_err(|reason| SourceError::Name {
        path: path.into(),
        reason,
    })
}

/// A manifest of one entry that is no file here.
fn single(name: &str, size: u64) -> Result<Manifest, SourceError> {
    let entry = Entry {
        kind: EntryKind::File,
        mode: 0o644,
        size,
        modified: Modified::default(),
        name: relative(Path::new(name), name.as_bytes())?,
        sparse: false,
    };
    Manifest::new([entry]).map_err(|error| SourceError::Manifest(error.to_string()))
}
