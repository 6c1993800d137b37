//! `FileObject`: a file that is read as an object.

use super::super::{ObjectInfo, StoreCompletion, StoredObject};
use crate::buffer::BufferMut;
use crate::storage::{FileHandle, IoOptions};

/// An open file: whatever takes its place meanwhile, this one is read to its end.
#[derive(Debug)]
pub(super) struct FileObject {
    pub(super) file: FileHandle,
    pub(super) info: ObjectInfo,
}

impl StoredObject for FileObject {
    fn info(&self) -> &ObjectInfo {
        &self.info
    }

    fn read(&self, at: u64, len: usize, buffer: BufferMut, done: StoreCompletion<BufferMut>) {
        let read = self.file.pread(buffer, ..len, at, &IoOptions::default());
        read.on_done(move |outcome| {
            let moved = outcome.result.map(|moved| moved.bytes);
            done.end(outcome.buffer, moved.map_err(Into::into));
        });
    }
}
