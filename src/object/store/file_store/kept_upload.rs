//! `KeptUpload`: an object that is being written to where it stays when it is cut.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{CWD, OFlags, RenameFlags};

use super::super::{
    ObjectInfo, ObjectUpload, PutCondition, StoreCompletion, StoreError, TakeUp, TakenUp,
};
use super::file_upload::{UploadWay, seal, write};
use super::kept::{UploadFiles, is_same_device};
use super::{ServedDirectory, sync_directory};
use crate::buffer::Buffer;
use crate::storage::FileHandle;

/// How often the object's directory is made anew, when others remove it meanwhile.
const TRIES: u32 = 16;

/// An upload that may be cut.
#[derive(Debug)]
pub(super) struct KeptUpload {
    condition: PutCondition,
    size: u64,
    /// `None` once it is committed, or at its end.
    open: Option<(FileHandle, UploadFiles)>,
    way: UploadWay,
}

impl KeptUpload {
    /// `None`: nothing can be kept for this object.
    pub(super) fn take_up(
        store: &Arc<ServedDirectory>,
        asked: &TakeUp<'_>,
    ) -> Result<Option<TakenUp>, StoreError> {
        let way = UploadWay {
            store: Arc::clone(store),
            name: asked.name.clone(),
        };
        // What is in the way of the object is told now.
        let (parent, _) = store.beneath.make_parent(asked.name)?;
        let mode = store.options.mode_of();
        let Some(files) = store.kept.take_up(&store.beneath, asked, mode)? else {
            return Ok(None);
        };
        if !is_same_device(&parent, &files.bytes)? {
            files.forget();
            return Ok(None);
        }
        let copy = rustix::io::fcntl_dupfd_cloexec(&files.bytes, 0)?;
        let path: Arc<Path> = store.path.join(asked.name.as_str()).into();
        let file = store.options.take_over(path, copy, OFlags::RDWR)?;
        let (there, crc64) = (files.known.there, files.known.crc64);
        let upload = Box::new(Self {
            condition: asked.condition.clone(),
            size: asked.size,
            open: Some((file, files)),
            way,
        });
        Ok(Some(TakenUp {
            upload,
            there,
            crc64,
        }))
    }

    fn place(&self, files: &UploadFiles) -> Result<OwnedFd, StoreError> {
        let flags = match self.condition {
            PutCondition::Absent => RenameFlags::NOREPLACE,
            PutCondition::Any | PutCondition::Matches(_) => RenameFlags::empty(),
        };
        let (from, mut tries) = (files.path(), TRIES);
        loop {
            let (parent, last) = self.way.store.beneath.make_parent(&self.way.name)?;
            let to = format!("/proc/self/fd/{}/{last}", parent.as_raw_fd());
            let renamed = match flags.is_empty() {
                // By the older call, which every file system has.
                true => rustix::fs::rename(&from, &to),
                false => rustix::fs::renameat_with(CWD, &from, CWD, &to, flags),
            };
            match renamed {
                Ok(()) => return Ok(parent),
                // The directory went with the last object in it.
                Err(rustix::io::Errno::NOENT) if tries > 0 => tries -= 1,
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

impl ObjectUpload for KeptUpload {
    fn write(&mut self, at: u64, bytes: Buffer, done: StoreCompletion<Buffer>) {
        match &self.open {
            Some((file, _)) => write(file, at, bytes, done),
            None => done.end(bytes, Err(StoreError::Lost)),
        }
    }

    fn mark(&mut self, there: u64, crc64: u64) {
        if let Some((_, files)) = &mut self.open
            && let Err(error) = files.mark(there, crc64)
        {
            // It goes on; who takes it up begins where the last mark was.
            tracing::warn!(%error, "how far an upload is can't be written down");
        }
    }

    fn commit(mut self: Box<Self>, crc64: u64) -> Result<ObjectInfo, StoreError> {
        let Some((file, files)) = self.open.take() else {
            return Err(StoreError::Lost);
        };
        let info = seal(&file, self.size, crc64)?;
        file.sync_all()?;
        let store = &self.way.store;
        let _lock = store.lock(&self.way.name);
        store.check(&self.way.name, &self.condition)?;
        let parent = self.place(&files)?;
        files.forget();
        sync_directory(&parent)?;
        Ok(info)
    }
}

impl Drop for KeptUpload {
    fn drop(&mut self) {
        // Nobody has it any more, or it is an object: what is kept is within its limits then.
        if let Some((_, files)) = &self.open
            && files.known.there == 0
        {
            files.forget();
        }
        drop(self.open.take());
        self.way.store.kept.sweep(&self.way.store.beneath);
    }
}
