//! Going through a directory and all below it.

use std::fs::{self, DirEntry};
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use fabricast::storage::AtomicFile;
use zarrs_storage::StorageError;

use crate::store::failed_at;

/// What a name in a directory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Entry {
    /// A file: it has a value.
    Value,
    /// A directory, and no link to one.
    Directory,
}

/// What there is in one directory, in any order: for each, its name, and what it is. What is no
/// name of a key is left out: names that are not text, files that are being written, devices.
/// Nothing, where there is no such directory.
pub(crate) fn entries(directory: &Path) -> Result<Vec<(String, Entry)>, StorageError> {
    let failed = |error| failed_at(directory, error);
    let listed = match fs::read_dir(directory) {
        Ok(listed) => listed,
        Err(error) => return absent_or(error).map_err(failed),
    };
    let mut found = Vec::new();
    for entry in listed {
        let entry = entry.map_err(failed)?;
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        if AtomicFile::is_temporary(&name) {
            continue;
        }
        if let Some(kind) = kind(&entry).map_err(failed)? {
            found.push((name, kind));
        }
    }
    Ok(found)
}

fn absent_or<T: Default>(error: io::Error) -> io::Result<T> {
    match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENOTDIR) => Ok(T::default()),
        _ => Err(error),
    }
}

fn kind(entry: &DirEntry) -> io::Result<Option<Entry>> {
    let told = match entry.file_type() {
        Ok(told) => told,
        Err(error) => return absent_or(error),
    };
    if told.is_dir() {
        return Ok(Some(Entry::Directory));
    }
    let is_value = told.is_file() || (told.is_symlink() && entry.path().is_file());
    Ok(is_value.then_some(Entry::Value))
}

/// Visits each value below a directory, with its key; `prefix` is that of the directory. Whether
/// the visitor broke it off.
pub(crate) fn walk(
    directory: &Path,
    prefix: &str,
    mut visit: impl FnMut(&Path, String) -> Result<ControlFlow<()>, StorageError>,
) -> Result<ControlFlow<()>, StorageError> {
    let mut left: Vec<(PathBuf, String)> = vec![(directory.into(), prefix.into())];
    while let Some((directory, prefix)) = left.pop() {
        for (name, entry) in entries(&directory)? {
            let path = directory.join(&name);
            match entry {
                Entry::Directory => left.push((path, format!("{prefix}{name}/"))),
                Entry::Value => {
                    if visit(&path, format!("{prefix}{name}"))?.is_break() {
                        return Ok(ControlFlow::Break(()));
                    }
                }
            }
        }
    }
    Ok(ControlFlow::Continue(()))
}

/// Whether there is a value below a directory.
pub(crate) fn has_value(directory: &Path) -> Result<bool, StorageError> {
    let walked = walk(directory, "", |_, _| Ok(ControlFlow::Break(())))?;
    Ok(walked.is_break())
}
