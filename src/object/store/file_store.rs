//! `FileStore`: a directory and what lies below it, as objects.

mod beneath;
mod file_object;
mod file_tag;
mod file_upload;
mod kept;
mod kept_upload;
mod walk;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::{AtFlags, FileType, Mode, OFlags};

use super::{
    ListPage, ListQuery, ObjectEtag, ObjectInfo, ObjectName, ObjectNameError, ObjectStore,
    ObjectUpload, PutCondition, StoreError, StoredObject, TakeUp, TakenUp,
};
use crate::storage::{AtomicFile, OpenOptions};
use beneath::Beneath;
use file_object::FileObject;
use file_upload::FileUpload;
pub use kept::KeptLimits;
use kept::KeptUploads;
use kept_upload::KeptUpload;

/// Locks that names share: a condition is judged, and what it allows is done, under the one of the
/// name.
const LOCKS: usize = 64;

/// Serves a directory: an object is a regular file, its name the path from there.
///
/// Nothing outside of the directory can be reached: every name is resolved by the kernel below it,
/// and no symbolic link is followed on the way, nor as the last part of a name. What is put is
/// written to a temporary file beside its place (`.NAME.RANDOM.tmp`, which no list has and no name
/// reaches), brought to the device, and then renamed: who reads sees the old object or the new one,
/// whole. Directories are made as names need them, and go with the last object in them.
///
/// The etag of what was put by a store is the CRC-64/NVME and the size of the content, kept beside
/// it in an extended attribute (`user.fabricast.object`) together with the size and time of the
/// last change of the file: when those are others, somebody has written to the file since, and the
/// etag is made of inode, time of the last change and size instead, as it is for files that were
/// put there by other means, and where the file system has no such attributes. That one changes
/// whenever the file system's clock has moved on between two changes, which takes some
/// milliseconds on most.
///
/// An upload that can be [taken up](ObjectStore::take_up) is written to a hidden directory of the
/// one that is served instead, as far as both are of one file system, and stays there when it is
/// cut, within [`KeptLimits`]: also when this process is killed, but not over a new start of the
/// machine.
///
/// Conditions hold against everything that this store does. Other processes that write to the
/// directory are not held off. `/proc` must be there.
///
/// ```
/// use fabricast::object::{FileStore, ListQuery, ObjectName, ObjectStore};
/// # let dir = tempfile::tempdir()?;
/// std::fs::create_dir(dir.path().join("runs"))?;
/// std::fs::write(dir.path().join("runs/7"), b"events")?;
/// let store = FileStore::open(dir.path())?;
/// assert_eq!(store.head(&ObjectName::new("runs/7")?)?.size, 6);
/// let page = store.list(&ListQuery { limit: 10, ..ListQuery::default() })?;
/// assert_eq!(page.objects[0].name.as_str(), "runs/7");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct FileStore(Arc<ServedDirectory>);

#[derive(Debug)]
struct ServedDirectory {
    beneath: Beneath,
    path: PathBuf,
    options: OpenOptions,
    is_read_only: bool,
    kept: KeptUploads,
    locks: [Mutex<()>; LOCKS],
}

impl FileStore {
    /// Serves a directory that is there, to read and to write.
    ///
    /// # Errors
    /// [`StoreError`]: it is no directory, or can't be opened.
    pub fn open(directory: impl AsRef<Path>) -> Result<Self, StoreError> {
        Self::open_with(directory, &OpenOptions::new(), false)
    }

    /// The same, where nothing can be put or deleted.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_read_only(directory: impl AsRef<Path>) -> Result<Self, StoreError> {
        Self::open_with(directory, &OpenOptions::new(), true)
    }

    /// The same, whose files are opened as the options say (mode of new ones, direct I/O, back
    /// end); their flags do not count.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_with(
        directory: impl AsRef<Path>,
        options: &OpenOptions,
        is_read_only: bool,
    ) -> Result<Self, StoreError> {
        let path = directory.as_ref().to_path_buf();
        Ok(Self(Arc::new(ServedDirectory {
            beneath: Beneath::open(&path)?,
            path,
            options: options.clone(),
            is_read_only,
            kept: KeptUploads::default(),
            locks: [const { Mutex::new(()) }; LOCKS],
        })))
    }

    /// How much is kept of uploads that were cut and may be taken up again.
    pub fn keep_uploads(&self, limits: KeptLimits) {
        self.0.kept.set_limits(limits);
    }

    /// The directory that is served.
    pub fn directory(&self) -> &Path {
        &self.0.path
    }
}

impl ServedDirectory {
    /// Conditions on this name are judged by one thread at a time.
    fn lock(&self, name: &ObjectName) -> MutexGuard<'_, ()> {
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        let index = hasher.finish() as usize % LOCKS;
        self.locks[index]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// An object, opened for reading, and what it is.
    fn open_object(&self, name: &ObjectName) -> Result<(OwnedFd, ObjectInfo), StoreError> {
        check_parts(name)?;
        // Without O_NONBLOCK, the open of a FIFO would wait for a writer.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = self.beneath.open_file(name, flags).map_err(not_there)?;
        let stat = rustix::fs::fstat(&file)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => {}
            FileType::Directory => return Err(StoreError::NotFound),
            _ => return Err(StoreError::NotAnObject),
        }
        let info = file_tag::info_of(&file, &stat);
        Ok((file, info))
    }

    /// Judges a condition by what is there; the lock of the name is held.
    fn check(&self, name: &ObjectName, condition: &PutCondition) -> Result<(), StoreError> {
        let found = match condition {
            PutCondition::Any => return Ok(()),
            _ => match self.open_object(name) {
                Ok((_, info)) => Some(info.etag),
                Err(StoreError::NotFound) => None,
                Err(other) => return Err(other),
            },
        };
        condition.check(found.as_ref())
    }

    fn check_writable(&self) -> Result<(), StoreError> {
        match self.is_read_only {
            true => Err(StoreError::Denied),
            false => Ok(()),
        }
    }
}

/// For who reads: a name that leads through a file names nothing.
fn not_there(error: StoreError) -> StoreError {
    match error {
        StoreError::NameTaken => StoreError::NotFound,
        other => other,
    }
}

/// Names of temporary files are no names of objects.
fn check_parts(name: &ObjectName) -> Result<(), StoreError> {
    let mut at = 0;
    for part in name.parts() {
        if AtomicFile::is_temporary(part) {
            return Err(ObjectNameError::Temporary { at }.into());
        }
        at += part.len() + 1;
    }
    Ok(())
}

impl ObjectStore for FileStore {
    fn head(&self, name: &ObjectName) -> Result<ObjectInfo, StoreError> {
        Ok(self.0.open_object(name)?.1)
    }

    fn open(&self, name: &ObjectName) -> Result<Arc<dyn StoredObject>, StoreError> {
        let (file, info) = self.0.open_object(name)?;
        // Of regular files it says nothing, and cuFile refuses it.
        let flags = rustix::fs::fcntl_getfl(&file)? - OFlags::NONBLOCK;
        rustix::fs::fcntl_setfl(&file, flags)?;
        let path: Arc<Path> = self.0.path.join(name.as_str()).into();
        let file = self.0.options.take_over(path, file, OFlags::RDONLY)?;
        Ok(Arc::new(FileObject { file, info }))
    }

    fn begin(
        &self,
        name: &ObjectName,
        size: u64,
        condition: &PutCondition,
    ) -> Result<Box<dyn ObjectUpload>, StoreError> {
        self.0.check_writable()?;
        check_parts(name)?;
        self.0.check(name, condition)?;
        let upload = FileUpload::begin(&self.0, name, size, condition)?;
        Ok(Box::new(upload))
    }

    fn take_up(&self, asked: &TakeUp<'_>) -> Result<TakenUp, StoreError> {
        self.0.check_writable()?;
        check_parts(asked.name)?;
        self.0.check(asked.name, asked.condition)?;
        match KeptUpload::take_up(&self.0, asked)? {
            Some(taken) => Ok(taken),
            None => {
                let begun = FileUpload::begin(&self.0, asked.name, asked.size, asked.condition)?;
                Ok(TakenUp::begun(Box::new(begun)))
            }
        }
    }

    fn list(&self, query: &ListQuery) -> Result<ListPage, StoreError> {
        self.list_while(query, &|| true)
    }

    fn list_while(
        &self,
        query: &ListQuery,
        is_needed: &dyn Fn() -> bool,
    ) -> Result<ListPage, StoreError> {
        walk::list(&self.0.beneath, query, is_needed)
    }

    fn delete(&self, name: &ObjectName, etag: Option<&ObjectEtag>) -> Result<(), StoreError> {
        self.0.check_writable()?;
        let _lock = self.0.lock(name);
        let (_, info) = self.0.open_object(name)?;
        if etag.is_some_and(|etag| *etag != info.etag) {
            let found = Some(info.etag);
            return Err(StoreError::EtagMismatch { found });
        }
        let (parent, last) = self.0.beneath.open_parent(name).map_err(not_there)?;
        rustix::fs::unlinkat(&parent, last, AtFlags::empty())?;
        self.0.beneath.prune(name);
        sync_directory(&parent)
    }
}

/// Brings names in a directory to the device.
fn sync_directory(directory: &OwnedFd) -> Result<(), StoreError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::openat(directory, ".", flags, Mode::empty());
    match directory.and_then(|directory| rustix::fs::fsync(&directory)) {
        // It was removed with its last object.
        Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(all(test, not(loom)))]
#[path = "tests/file_store.rs"]
mod tests;
