//! Values that are set, changed, renamed and erased.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use fabricast::storage::{AtomicFile, FileError, FileErrorKind, FileHandle, FileOperation};
use zarrs_storage::{
    AtomicRenameStorageTraits, Bytes, OffsetBytesIterator, StorageError, StoreKey, StorePrefix,
    WritableStorageTraits,
};

use crate::FileZarrStore;
use crate::key_path::prefix_path;
use crate::store::{failed, failed_at};

/// How often a directory may be taken away, or a value be made and erased by others, while one is
/// set, before that is an error.
const TRIES: u32 = 100;

impl WritableStorageTraits for FileZarrStore {
    fn set(&self, key: &StoreKey, value: Bytes) -> Result<(), StorageError> {
        self.replace(key, |file| file.write_parallel(&value, 0, &self.options.io))?;
        Ok(())
    }

    fn set_partial_many(
        &self,
        key: &StoreKey,
        offset_values: OffsetBytesIterator<'_>,
    ) -> Result<(), StorageError> {
        let path = self.path_to_write(key)?;
        let parts: Vec<(u64, Bytes)> = offset_values.collect();
        if parts.is_empty() {
            return Ok(());
        }
        let write = |file: &FileHandle| {
            parts.iter().try_for_each(|(offset, part)| {
                let written = file.write_parallel(part, *offset, &self.options.io);
                written.map(|_| ())
            })
        };
        let done = again(&path, || match self.open_for_change(&path)? {
            Some(file) => {
                write(&file)?;
                match self.options.durable {
                    true => file.sync_data().map(Some),
                    false => Ok(Some(())),
                }
            }
            None => match self.make(&path, true, &mut |file| write(file)) {
                // Somebody else made it meanwhile: in there, then.
                Err(error) if error.errno() == Some(libc::EEXIST) => Ok(None),
                made => made.map(Some),
            },
        });
        done.map_err(|error| explained(key, error))?;
        self.sync_names(&path)
    }

    fn erase(&self, key: &StoreKey) -> Result<(), StorageError> {
        let path = self.path_to_write(key)?;
        match fs::remove_file(&path) {
            Ok(()) => self.after_removal(&path),
            Err(error) if is_no_value(&error) => Ok(()),
            Err(error) => Err(failed_at(&path, error)),
        }
    }

    fn erase_prefix(&self, prefix: &StorePrefix) -> Result<(), StorageError> {
        self.check_writable()?;
        let path = prefix_path(self.root(), prefix)?;
        if path == self.root() {
            for entry in fs::read_dir(&path).map_err(|error| failed_at(&path, error))? {
                let entry = entry.map_err(|error| failed_at(&path, error))?.path();
                remove_all(&entry).map_err(|error| failed_at(&entry, error))?;
            }
            return self.sync_directory(&path);
        }
        // A file of that name is a value itself, and not below the prefix.
        if !path.is_dir() {
            return Ok(());
        }
        remove_all(&path).map_err(|error| failed_at(&path, error))?;
        self.after_removal(&path)
    }

    fn supports_set_partial(&self) -> bool {
        true
    }
}

impl AtomicRenameStorageTraits for FileZarrStore {
    fn rename(&self, source: &StoreKey, destination: &StoreKey) -> Result<(), StorageError> {
        let (from, to) = (
            self.path_to_write(source)?,
            self.path_to_write(destination)?,
        );
        // Only values have names that can be changed.
        if !from.is_file() {
            return Err(failed_at(&from, io::Error::from_raw_os_error(libc::ENOENT)));
        }
        let mut tries = TRIES;
        while let Err(error) = fs::rename(&from, &to) {
            tries -= 1;
            if tries == 0 || error.raw_os_error() != Some(libc::ENOENT) || !from.exists() {
                return Err(failed_at(&to, error));
            }
            make_parent(&to).map_err(|error| failed_at(&to, error))?;
        }
        self.sync_names(&to)?;
        self.after_removal(&from)
    }
}

impl FileZarrStore {
    fn check_writable(&self) -> Result<(), StorageError> {
        match self.options.read_only {
            true => Err(StorageError::ReadOnly),
            false => Ok(()),
        }
    }

    fn path_to_write(&self, key: &StoreKey) -> Result<PathBuf, StorageError> {
        self.check_writable()?;
        self.path(key)
    }

    /// A new file, filled, in the place of the value. It may be filled more than once: where its
    /// directory is taken away meanwhile.
    pub(crate) fn replace<T>(
        &self,
        key: &StoreKey,
        mut fill: impl FnMut(&FileHandle) -> Result<T, FileError>,
    ) -> Result<T, StorageError> {
        let path = self.path_to_write(key)?;
        let filled = self.make(&path, false, &mut fill);
        let filled = filled.map_err(|error| explained(key, error))?;
        self.sync_names(&path)?;
        Ok(filled)
    }

    /// A new file, filled; where there may be none yet, `EEXIST` says that there is one.
    fn make<T>(
        &self,
        path: &Path,
        only_new: bool,
        fill: &mut dyn FnMut(&FileHandle) -> Result<T, FileError>,
    ) -> Result<T, FileError> {
        let mut once = || -> Result<T, FileError> {
            let new = AtomicFile::create_with(path, &self.options.files)?;
            let filled = fill(new.file())?;
            if self.options.durable {
                new.file().sync_all()?;
            }
            match only_new {
                true => new.commit_new_unsynced(),
                false => new.commit_unsynced(),
            }?;
            Ok(filled)
        };
        again(path, || match once() {
            // The directory is not there yet, or not any more.
            Err(error) if error.errno() == Some(libc::ENOENT) => match make_parent(path) {
                Ok(()) => Ok(None),
                Err(why) => Err(FileError {
                    kind: FileErrorKind::Os {
                        errno: why.raw_os_error().unwrap_or(libc::EIO),
                    },
                    ..error
                }),
            },
            made => made.map(Some),
        })
    }

    /// Directories in which nothing is left are no prefixes any more.
    fn after_removal(&self, path: &Path) -> Result<(), StorageError> {
        let mut directory = path.parent().filter(|parent| *parent != self.root());
        while let Some(empty) = directory {
            if !empty.starts_with(self.root()) || fs::remove_dir(empty).is_err() {
                break;
            }
            directory = empty.parent().filter(|parent| *parent != self.root());
        }
        self.sync_directory(directory.unwrap_or_else(|| self.root()))
    }

    /// The name of a file, and those of the directories that it lies in.
    fn sync_names(&self, path: &Path) -> Result<(), StorageError> {
        let directories = path.ancestors().skip(1);
        let mut inside = directories.take_while(|directory| directory.starts_with(self.root()));
        inside.try_for_each(|directory| self.sync_directory(directory))
    }

    fn sync_directory(&self, path: &Path) -> Result<(), StorageError> {
        if !self.options.durable {
            return Ok(());
        }
        let synced = fs::File::open(path).and_then(|directory| directory.sync_all());
        match synced {
            // Somebody else has removed it since, and what was in it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            synced => synced.map_err(|error| failed_at(path, error)),
        }
    }
}

/// Again, as long as it says `None`, but not for ever.
fn again<T>(
    path: &Path,
    mut once: impl FnMut() -> Result<Option<T>, FileError>,
) -> Result<T, FileError> {
    for _ in 0..TRIES {
        if let Some(done) = once()? {
            return Ok(done);
        }
    }
    Err(FileError {
        operation: FileOperation::Replace,
        path: path.into(),
        offset: None,
        len: None,
        done: 0,
        kind: FileErrorKind::Os {
            errno: libc::EAGAIN,
        },
    })
}

/// Makes the directory of a file, and those above it. Others may take them away meanwhile, so that
/// it is tried again where the file can't be made then.
fn make_parent(path: &Path) -> io::Result<()> {
    let gone = |error: &io::Error| match error.kind() {
        io::ErrorKind::NotFound => true,
        // It was there when it was made, and was not when it was looked at: unless a file is in
        // its place.
        io::ErrorKind::AlreadyExists => !path.ancestors().skip(1).any(Path::is_file),
        _ => false,
    };
    match path.parent().map_or(Ok(()), fs::create_dir_all) {
        Err(error) if gone(&error) => Ok(()),
        made => made,
    }
}

/// Removes a file, a link, or a directory with all that is in it, also while others write there.
fn remove_all(path: &Path) -> io::Result<()> {
    let mut tries = TRIES;
    loop {
        let removed = match fs::symlink_metadata(path) {
            Ok(found) if found.is_dir() => fs::remove_dir_all(path),
            Ok(_) => fs::remove_file(path),
            Err(error) => Err(error),
        };
        tries -= 1;
        match removed {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty && tries > 0 => {}
            removed => return removed,
        }
    }
}

/// Whether nothing of that name could have been a value.
fn is_no_value(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ENOENT | libc::ENOTDIR | libc::EISDIR)
    )
}

/// An error, with what it means for keys.
fn explained(key: &StoreKey, error: FileError) -> StorageError {
    let in_the_way = match error.kind {
        FileErrorKind::NotAFile { .. } => true,
        FileErrorKind::Os { errno } => {
            [libc::ENOTDIR, libc::EISDIR, libc::EEXIST, libc::ENOTEMPTY].contains(&errno)
        }
        _ => false,
    };
    if in_the_way {
        return StorageError::Unsupported(format!(
            "key {key}: there are keys below it, or it lies below a key; in a directory a name is \
             a file or a directory, never both ({error})"
        ));
    }
    failed(error)
}
