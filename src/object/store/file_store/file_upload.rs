//! `FileUpload`: an object that is being written to a temporary file.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use super::super::{
    ObjectInfo, ObjectName, ObjectUpload, PutCondition, StoreCompletion, StoreError,
};
use super::{ServedDirectory, file_tag};
use crate::buffer::Buffer;
use crate::storage::{AtomicFile, FileHandle, IoOptions};

/// How often a temporary file is tried for, when others remove the directory meanwhile.
const TRIES: u32 = 16;

/// A temporary file that takes its place with the commit.
#[derive(Debug)]
pub(super) struct FileUpload {
    condition: PutCondition,
    size: u64,
    /// Dropped before the directory, by whose descriptor it is named.
    file: AtomicFile,
    _directory: OwnedFd,
    /// Last: the directories are empty when the file has gone.
    way: UploadWay,
}

/// Where the object goes. Dropped, it removes the directories on the way that are empty, which
/// those are that were made for an object that did not come.
#[derive(Debug)]
pub(super) struct UploadWay {
    pub(super) store: Arc<ServedDirectory>,
    pub(super) name: ObjectName,
}

impl Drop for UploadWay {
    fn drop(&mut self) {
        self.store.beneath.prune(&self.name);
    }
}

impl FileUpload {
    pub(super) fn begin(
        store: &Arc<ServedDirectory>,
        name: &ObjectName,
        size: u64,
        condition: &PutCondition,
    ) -> Result<Self, StoreError> {
        let mut tries = TRIES;
        loop {
            match Self::create(store, name) {
                // The directory went with the last object in it.
                Err(StoreError::NotFound) if tries > 0 => tries -= 1,
                Err(error) => return Err(error),
                Ok((file, directory)) => {
                    return Ok(Self {
                        condition: condition.clone(),
                        size,
                        file,
                        _directory: directory,
                        way: UploadWay {
                            store: Arc::clone(store),
                            name: name.clone(),
                        },
                    });
                }
            }
        }
    }

    fn create(
        store: &ServedDirectory,
        name: &ObjectName,
    ) -> Result<(AtomicFile, OwnedFd), StoreError> {
        let (directory, last) = store.beneath.make_parent(name)?;
        // The directory that is open, wherever its name leads by now.
        let path = format!("/proc/self/fd/{}/{last}", directory.as_raw_fd());
        let file = AtomicFile::create_with(path, &store.options)?;
        Ok((file, directory))
    }
}

/// Begins to write a piece.
pub(super) fn write(file: &FileHandle, at: u64, bytes: Buffer, done: StoreCompletion<Buffer>) {
    let written = file.pwrite(bytes, .., at, &IoOptions::default());
    written.on_done(move |outcome| {
        let moved = outcome.result.map(|moved| moved.bytes);
        done.end(outcome.buffer, moved.map_err(Into::into));
    });
}

/// Brings the bytes to the device, and writes down what they are.
pub(super) fn seal(file: &FileHandle, size: u64, crc64: u64) -> Result<ObjectInfo, StoreError> {
    file.sync_data()?;
    let gone = || StoreError::Failed("the temporary file was closed".into());
    let fd = file.descriptor().ok_or_else(gone)?;
    let stat = rustix::fs::fstat(fd)?;
    let found = file_tag::size_of_file(&stat);
    if found != size {
        return Err(StoreError::Failed(format!(
            "{found} bytes were written of {size}"
        )));
    }
    Ok(file_tag::write(fd, &stat, crc64))
}

impl ObjectUpload for FileUpload {
    fn write(&mut self, at: u64, bytes: Buffer, done: StoreCompletion<Buffer>) {
        write(self.file.file(), at, bytes, done);
    }

    fn commit(self: Box<Self>, crc64: u64) -> Result<ObjectInfo, StoreError> {
        let info = seal(self.file.file(), self.size, crc64)?;
        // Descriptor and way stay until the file has its name.
        let Self {
            condition,
            file,
            _directory,
            way,
            ..
        } = *self;
        let _lock = way.store.lock(&way.name);
        way.store.check(&way.name, &condition)?;
        match condition {
            PutCondition::Absent => file.commit_new()?,
            PutCondition::Any | PutCondition::Matches(_) => file.commit()?,
        }
        Ok(info)
    }
}
