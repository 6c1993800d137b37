//! `DirectorySink`: files below one directory, which have no name until the stream is whole.
//!
//! ```text
//!  DIRECTORY/
//!    .fabricast-KEY/      while the stream is under way, and after it was cut
//!      journal            which blocks are written, and their CRC32C
//!      0, 1, 7, …         the files, by their number in the manifest
//!    a/b/file.h5          at the end: renamed to here, one by one
//! ```

mod partials;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, Timespec, Timestamps};
use rustix::io::Errno;

use self::partials::Partials;
use super::beneath::Beneath;
use super::{BlockSink, Kept, ReadBack, SinkError, SinkFactory, Stop, StreamOffer};
use crate::buffer::DeviceBuffer;
use crate::cuda::Stream;
use crate::storage::BackEnd;
use crate::stream::Block;
use crate::stream::name::HIDDEN_PREFIX;
use crate::stream::{Entry, EntryKind};

/// More files than this are synced by one syncfs(2).
const SYNC_EACH_MAX: usize = 64;

/// Writes streams below a directory. Whatever names a sender gives, nothing outside is reached: no symbolic link is followed on the way.
///
/// Each stream is written into a hidden directory, `.fabricast-` and its key, with a journal; when all of it is there and checked, its files are
/// renamed to where they belong, in one step each. They replace files of the same names. A stream that was cut leaves the hidden directory
/// behind, and is resumed from there: what the journal says is believed only after the bytes were read and found right.
///
/// Permissions (the lowest nine bits) and times of modification are the sender's; owners are this process's.
#[derive(Debug, Clone)]
pub struct DirectorySink(Arc<Beneath>);

impl DirectorySink {
    /// A directory that exists, and that this process may write to.
    ///
    /// # Errors
    /// What open(2) and access(2) answer.
    pub fn new(path: impl Into<PathBuf>) -> io::Result<Self> {
        let directory = Beneath::open(&path.into())?;
        // Said now, not when the first sender is there.
        directory.check_writable()?;
        Ok(Self(Arc::new(directory)))
    }

    /// Removes what cut streams left behind of which nothing was written for so long. Whatever is under way, in this process or another, stays; so
    /// does a hidden directory that has no journal of this library in it. How many went.
    ///
    /// # Errors
    /// What the system answers when the directory is read. What can't be removed stays.
    pub fn forget_partials(&self, older_than: Duration) -> io::Result<usize> {
        let before = SystemTime::now().checked_sub(older_than);
        let Some(before) = before else { return Ok(0) };
        let mut gone = 0;
        for found in rustix::fs::Dir::read_from(self.0.fd())? {
            let found = found?;
            let name = found.file_name().to_bytes();
            let hex = name
                .strip_prefix(HIDDEN_PREFIX.as_bytes())
                .unwrap_or_default();
            if hex.len() != 32 || !hex.iter().all(u8::is_ascii_hexdigit) {
                continue;
            }
            // Whoever is at work there has the lock.
            let Ok(work) = lock(&self.0, name) else {
                continue;
            };
            let is_stale = partials::is_stale(work.as_fd(), before);
            if is_stale.unwrap_or(false) && partials::clear(work.as_fd()).is_ok() {
                let removed = rustix::fs::unlinkat(self.0.fd(), name, AtFlags::REMOVEDIR);
                gone += usize::from(removed.is_ok());
            }
        }
        Ok(gone)
    }
}

/// A hidden directory that is there, with a lock on it that ends with this process at the latest.
fn lock(directory: &Beneath, name: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let work = rustix::fs::openat(directory.fd(), name, flags, Mode::empty())?;
    rustix::fs::flock(&work, FlockOperation::NonBlockingLockExclusive)?;
    // It may have been removed before the lock was had.
    let (held, named) = (rustix::fs::fstat(&work)?, directory.stat(name));
    match named.is_ok_and(|named| (named.st_dev, named.st_ino) == (held.st_dev, held.st_ino)) {
        true => Ok(work),
        false => Err(Errno::WOULDBLOCK),
    }
}

impl SinkFactory for DirectorySink {
    fn make(&self, offer: &StreamOffer) -> Result<Box<dyn BlockSink>, SinkError> {
        Ok(Box::new(Receiving {
            directory: Arc::clone(&self.0),
            offer: offer.clone(),
            work: Mutex::new(None),
            any: AtomicBool::new(false),
        }))
    }
}

/// One stream.
#[derive(Debug)]
struct Receiving {
    directory: Arc<Beneath>,
    offer: StreamOffer,
    /// None: not open, or over.
    work: Mutex<Option<Arc<Partials>>>,
    /// Something was written or kept that a later stream can go on from.
    any: AtomicBool,
}

impl Receiving {
    fn work_name(&self) -> String {
        let hex: String = self
            .offer
            .identity
            .key
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        format!("{HIDDEN_PREFIX}{hex}")
    }

    fn partials(&self) -> Result<Arc<Partials>, SinkError> {
        let work = self.work.lock().unwrap_or_else(PoisonError::into_inner);
        work.clone().ok_or(SinkError::Stopped)
    }

    /// The hidden directory, with a lock on it that ends with this process at the latest.
    fn open_work(&self) -> Result<OwnedFd, SinkError> {
        let name = self.work_name();
        let failed = |error: Errno| SinkError::os(name.as_bytes(), error);
        match rustix::fs::mkdirat(self.directory.fd(), &name, Mode::from_raw_mode(0o700)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(failed(error)),
        }
        match lock(&self.directory, name.as_bytes()) {
            Ok(work) => Ok(work),
            // Or somebody has just removed it.
            Err(Errno::WOULDBLOCK | Errno::NOENT) => Err(SinkError::Busy),
            Err(error) => Err(failed(error)),
        }
    }

    /// The hidden directory goes. What is in the way stays, and hurts nobody.
    fn remove(&self, partials: &Partials) {
        partials.remove();
        let _ = rustix::fs::unlinkat(self.directory.fd(), self.work_name(), AtFlags::REMOVEDIR);
    }

    /// Puts one entry where it belongs.
    fn place(&self, partials: &Partials, number: usize, entry: Entry<'_>) -> Result<(), SinkError> {
        let name = entry.name.as_bytes();
        let failed = |error: io::Error| SinkError::os(name, error);
        if entry.kind == EntryKind::Directory {
            self.directory.directory(name, true).map_err(failed)?;
            return Ok(());
        }
        let (parent, last) = self.directory.parent(name, true).map_err(failed)?;
        let own = partials.finished(number, entry)?;
        let renamed = rustix::fs::renameat(partials.fd(), &own, &parent, last);
        renamed.map_err(|error| failed(error.into()))?;
        Ok(())
    }

    /// Rights and times of directories, when nothing more is made in them; the innermost first.
    fn dress_directories(&self) -> Result<(), SinkError> {
        let manifest = &self.offer.manifest;
        let entries = (0..manifest.len())
            .rev()
            .filter_map(|number| manifest.get(number));
        for entry in entries.filter(|entry| entry.kind == EntryKind::Directory) {
            let name = entry.name.as_bytes();
            let fd = self.directory.directory(name, false);
            let fd = fd.map_err(|error| SinkError::os(name, error))?;
            dress(&fd, &entry).map_err(|error| SinkError::os(name, error))?;
        }
        Ok(())
    }

    /// The names are on the device, too.
    fn sync_names(&self) -> Result<(), SinkError> {
        let failed = |name: &[u8], error: io::Error| SinkError::os(name, error);
        let entries = &self.offer.manifest;
        if entries.len() > SYNC_EACH_MAX {
            let synced = rustix::fs::syncfs(self.directory.fd());
            return synced.map_err(|error| failed(b".", error.into()));
        }
        for entry in entries.iter() {
            let name = entry.name.as_bytes();
            let parent = match entry.kind {
                EntryKind::Directory => self.directory.directory(name, false),
                EntryKind::File => self.directory.parent(name, false).map(|(parent, _)| parent),
            };
            let parent = parent.map_err(|error| failed(name, error))?;
            rustix::fs::fsync(&parent).map_err(|error| failed(name, error.into()))?;
        }
        rustix::fs::fsync(self.directory.fd()).map_err(|error| failed(b".", error.into()))
    }

    fn sync_content(&self, partials: &Partials) -> Result<(), SinkError> {
        if !self.offer.sync {
            return Ok(());
        }
        match self.offer.manifest.len() > SYNC_EACH_MAX {
            true => rustix::fs::syncfs(partials.fd()).map_err(|error| SinkError::os(b".", error)),
            false => partials.sync_each(),
        }
    }
}

impl BlockSink for Receiving {
    fn open(&self, _offer: &StreamOffer, stop: &Stop) -> Result<Kept, SinkError> {
        let partials = Partials::open(self.open_work()?, &self.offer)?;
        let have = partials.prove(stop)?;
        self.any
            .fetch_or(!have.blocks.is_empty(), Ordering::Relaxed);
        let mut work = self.work.lock().unwrap_or_else(PoisonError::into_inner);
        *work = Some(Arc::new(partials));
        Ok(have)
    }

    fn write(&self, block: Block, crc: u32, bytes: &[u8]) -> Result<(), SinkError> {
        self.partials()?.write(block, crc, bytes)?;
        self.any.store(true, Ordering::Relaxed);
        Ok(())
    }

    fn write_from_device(
        &self,
        block: Block,
        crc: u32,
        from: &DeviceBuffer,
        _stream: &Stream,
    ) -> Result<BackEnd, SinkError> {
        let way = self.partials()?.write_from_device(block, crc, from)?;
        self.any.store(true, Ordering::Relaxed);
        Ok(way)
    }

    fn finish(&self, stop: &Stop) -> Result<ReadBack, SinkError> {
        let partials = self.partials()?;
        partials.flush()?;
        let read_back = match self.offer.read_back {
            true => partials.read_back(stop)?,
            false => ReadBack::default(),
        };
        self.sync_content(&partials)?;
        let entries = self.offer.manifest.iter().enumerate();
        for (number, entry) in entries {
            stop.check()?;
            self.place(&partials, number, entry)?;
        }
        self.dress_directories()?;
        if self.offer.sync {
            self.sync_names()?;
        }
        let mut work = self.work.lock().unwrap_or_else(PoisonError::into_inner);
        *work = None;
        self.remove(&partials);
        Ok(read_back)
    }

    fn abandon(&self) {
        let mut work = self.work.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(partials) = work.take() {
            if !self.any.load(Ordering::Relaxed) {
                return self.remove(&partials);
            }
            // What is lost with the journal's last lines is only sent again.
            let _ = partials.flush();
        }
    }
}

/// Rights and time of modification, as the sender has them.
fn dress(fd: impl AsFd, entry: &Entry<'_>) -> io::Result<()> {
    rustix::fs::fchmod(&fd, Mode::from_raw_mode(u32::from(entry.mode & 0o777)))?;
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: rustix::fs::UTIME_NOW,
    };
    let modified = Timespec {
        tv_sec: entry.modified.seconds,
        tv_nsec: i64::from(entry.modified.nanoseconds),
    };
    let times = Timestamps {
        last_access: now,
        last_modification: modified,
    };
    Ok(rustix::fs::futimens(&fd, &times)?)
}
