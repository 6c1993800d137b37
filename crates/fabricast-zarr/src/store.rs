//! `FileZarrStore`: a directory, and what all that is done to it shares.

use std::io;
use std::path::{Path, PathBuf};

use fabricast::storage::{FileError, FileErrorKind, FileHandle, OpenOptions};
use zarrs_storage::{StorageError, StoreKey};

use crate::ZarrStoreOptions;
use crate::key_path::key_path;

/// A Zarr store in a directory: the value of the key `a/c/0` is the file `a/c/0` below it.
///
/// It is a store of `zarrs`: readable, writable and listable, in the layout of `zarrs_filesystem`,
/// of `zarr.storage.LocalStore` and of KvikIO's `GDSStore`. Values go by
/// [`FileHandle`]: in tasks on the threads of a pool where they are long, around the page cache and
/// through cuFile where the options say so.
///
/// | call | what it does |
/// |---|---|
/// | `get`, `get_partial` | one open(2), reads into the memory of the `Bytes` |
/// | `get_partial_many` | the same, some of the ranges ahead, on the threads of a pool |
/// | `set` | a temporary file and rename(2): who reads sees the old value or the new one |
/// | `set_partial_many` | in place, part after part; what is not there is made as by `set` |
/// | `erase`, `erase_prefix` | removes the files, and directories that are empty then |
/// | [`read_into`], [`pread_into`], [`write_from`] | buffers of your own, in GPU memory too |
///
/// [`read_into`]: Self::read_into
/// [`pread_into`]: Self::pread_into
/// [`write_from`]: Self::write_from
///
/// A read makes no copy of its own: the bytes are where the kernel put them. Where a file is read
/// around the page cache (`DirectIo`) and `Bytes` are asked for, whose memory is not aligned, they
/// are copied once, out of a bounce buffer. A `set` writes from the memory of the `Bytes`, under
/// the same rule.
///
/// Any number of threads and processes may use one directory. `set`, `erase` and the making of a
/// value are atomic; a part that is set in place while the value is read may be seen in part.
///
/// No key leads out of the directory by its text. Symbolic links that lie in it are followed where
/// a key names them (`set` and `erase` replace and remove the link itself); lists have links to
/// files, and do not enter links to directories. A name in a directory is a file or a directory: so
/// `a` and `a/b` can't both have values, which is an error ([`StorageError::Unsupported`]).
///
/// ```
/// use fabricast_zarr::FileZarrStore;
/// use zarrs_storage::byte_range::ByteRange;
/// use zarrs_storage::{ListableStorageTraits, ReadableStorageTraits, WritableStorageTraits};
/// # let directory = tempfile::tempdir()?;
/// let store = FileZarrStore::create(directory.path().join("run7.zarr"))?;
/// let key = "temperature/c/0/0".try_into()?;
/// store.set(&key, vec![1, 2, 3, 4].into())?;
/// assert_eq!(store.get_partial(&key, ByteRange::Suffix(2))?, Some(vec![3, 4].into()));
/// assert_eq!(store.list()?, [key]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct FileZarrStore {
    root: PathBuf,
    pub(crate) options: ZarrStoreOptions,
    reading: OpenOptions,
    changing: OpenOptions,
}

impl FileZarrStore {
    pub(crate) fn new(root: PathBuf, options: ZarrStoreOptions) -> Self {
        Self {
            root,
            reading: options.files.clone().flags("r"),
            changing: options.files.clone().flags("r+"),
            options,
        }
    }

    /// Opens the store in a directory that is there, with the default options.
    ///
    /// # Errors
    /// As [`ZarrStoreOptions::open`].
    pub fn open(directory: impl AsRef<Path>) -> Result<Self, StorageError> {
        ZarrStoreOptions::new().open(directory)
    }

    /// The same; makes the directory where there is none.
    ///
    /// # Errors
    /// As [`ZarrStoreOptions::open`].
    pub fn create(directory: impl AsRef<Path>) -> Result<Self, StorageError> {
        ZarrStoreOptions::new().create(true).open(directory)
    }

    /// The directory, as an absolute path without links.
    pub fn directory(&self) -> &Path {
        &self.root
    }

    /// Whether it was opened to be read only.
    pub fn is_read_only(&self) -> bool {
        self.options.read_only
    }

    /// Brings all that was written, values and names, to the device: everything on the file system
    /// that the directory lies on (syncfs(2)).
    ///
    /// # Errors
    /// What the system answers; since Linux 5.8, that bytes written before did not get there.
    pub fn sync(&self) -> Result<(), StorageError> {
        let directory = std::fs::File::open(&self.root);
        let synced = directory.and_then(|directory| Ok(rustix::fs::syncfs(&directory)?));
        synced.map_err(|error| failed_at(&self.root, error))
    }

    pub(crate) fn path(&self, key: &StoreKey) -> Result<PathBuf, StorageError> {
        key_path(&self.root, key)
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// The value's file and its length in bytes; `None` where there is none.
    pub(crate) fn open_value(
        &self,
        key: &StoreKey,
    ) -> Result<Option<(FileHandle, u64)>, StorageError> {
        match self.reading.open(self.path(key)?) {
            Ok(file) => {
                let len = file.nbytes().map_err(failed)?;
                Ok(Some((file, len)))
            }
            Err(error) if is_absent(&error) => Ok(None),
            Err(error) => Err(failed(error)),
        }
    }

    /// The value's file, to be changed in place; `None` where there is none.
    pub(crate) fn open_for_change(&self, path: &Path) -> Result<Option<FileHandle>, FileError> {
        match self.changing.open(path) {
            Err(error) if error.errno() == Some(libc::ENOENT) => Ok(None),
            opened => opened.map(Some),
        }
    }
}

/// Whether there is no file there that could have a value: nothing, a directory, or a file in the
/// place of a directory.
fn is_absent(error: &FileError) -> bool {
    match error.kind {
        FileErrorKind::Os { errno } => errno == libc::ENOENT || errno == libc::ENOTDIR,
        FileErrorKind::NotAFile { .. } => true,
        _ => false,
    }
}

pub(crate) fn failed(error: FileError) -> StorageError {
    io::Error::from(error).into()
}

pub(crate) fn failed_at(path: &Path, error: io::Error) -> StorageError {
    let said = format!("{}: {error}", path.display());
    io::Error::new(error.kind(), said).into()
}
