//! `KeptUploads`: uploads that were cut, as files of a hidden directory, until they are taken up.
//!
//! An upload is two files: the bytes, and a record of what is known of them. While somebody has
//! it, the first is locked (flock(2)), by every descriptor of it, so until the last write to it is
//! over. The record counts only while the kernel runs that wrote it: what a process had written is
//! there when the process was killed, and need not be after a loss of power.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::super::{ChecksumKind, ObjectChecksum, StoreError, TakeUp, UploadKey};
use super::beneath::Beneath;
use crate::storage::retry;

/// The directory: a name that no object can have, and that no list shows.
const DIRECTORY: &str = ".uploads.0000000000000000.tmp";
/// What is behind the key in the name of a record.
const RECORD: &str = ".record";
/// The first line of a record.
const VERSION: &str = "fabricast upload 1";
/// The longest record that is read, in bytes: a name has 1,024, and an owner fewer.
const RECORD_MAX: usize = 4096;

/// How much a [`FileStore`](super::FileStore) keeps of uploads that were cut, until their clients
/// take them up. One client (a host; of IPv6, a network of 64 bits) has at most half of the number
/// and half of the bytes. What is above goes, the oldest first.
///
/// | setting | default | range |
/// |---|---|---|
/// | `count` | 256 | 0 to 1,024 |
/// | `bytes` | 1 TiB | any |
/// | `age` | 24 h | any |
///
/// Uploads that are under way do not count. With a `count` of 0, nothing is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptLimits {
    pub(super) count: u32,
    pub(super) bytes: u64,
    pub(super) age: Duration,
}

impl Default for KeptLimits {
    fn default() -> Self {
        Self {
            count: 256,
            bytes: 1 << 40,
            age: Duration::from_secs(24 * 3600),
        }
    }
}

impl KeptLimits {
    /// How many uploads; more than 1,024 are 1,024.
    #[must_use]
    pub fn count(mut self, uploads: u32) -> Self {
        self.count = uploads.min(1024);
        self
    }

    /// Bytes of all of them together.
    #[must_use]
    pub fn bytes(mut self, bytes: u64) -> Self {
        self.bytes = bytes;
        self
    }

    /// How long after the last byte.
    #[must_use]
    pub fn age(mut self, age: Duration) -> Self {
        self.age = age;
        self
    }
}

/// What is known of an upload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct UploadRecord {
    name: String,
    owner: String,
    size: u64,
    /// Bytes that are there, and their checksum.
    pub(super) there: u64,
    pub(super) crc64: u64,
}

impl UploadRecord {
    pub(super) fn of(asked: &TakeUp<'_>) -> Self {
        Self {
            name: asked.name.as_str().to_owned(),
            // Lines are what a record is made of.
            owner: asked.owner.replace('\n', " "),
            size: asked.size,
            there: 0,
            crc64: 0,
        }
    }

    /// Of the same length for every number of bytes, so that one write replaces another.
    fn text(&self) -> String {
        let Self {
            there, crc64, size, ..
        } = self;
        let (boot, owner, name) = (boot(), &self.owner, &self.name);
        let body = format!("{boot}\n{size:020}\n{there:020}\n{crc64:016x}\n{owner}\n{name}");
        format!("{VERSION} {:08x}\n{body}", sum_of(&body))
    }

    /// `None`: it is no record, or was written before the machine started anew.
    fn parse(text: &str) -> Option<Self> {
        let (head, body) = text.split_once('\n')?;
        let sum = head.strip_prefix(VERSION)?.strip_prefix(' ')?;
        if u64::from_str_radix(sum, 16) != Ok(sum_of(body)) {
            return None;
        }
        let mut lines = body.splitn(6, '\n');
        let mut line = || lines.next();
        let is_same_boot = line()? == boot();
        let (size, there) = (line()?.parse().ok()?, line()?.parse().ok()?);
        let crc64 = u64::from_str_radix(line()?, 16).ok()?;
        let (owner, name) = (line()?.to_owned(), line()?.to_owned());
        let record = Self {
            name,
            owner,
            size,
            there,
            crc64,
        };
        (is_same_boot && there <= size).then_some(record)
    }
}

fn sum_of(body: &str) -> u64 {
    ObjectChecksum::of(ChecksumKind::Crc32c, body.as_bytes()).value
}

/// Which run of the kernel this is.
fn boot() -> &'static str {
    static BOOT: OnceLock<String> = OnceLock::new();
    BOOT.get_or_init(|| {
        let read = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
        match read {
            Ok(id) => id.trim().to_owned(),
            // Nothing is believed that another process has written.
            Err(_) => format!("{:016x}", crate::random::random_u64()),
        }
    })
}

/// The files of an upload that somebody has.
#[derive(Debug)]
pub(super) struct UploadFiles {
    directory: Arc<OwnedFd>,
    key: UploadKey,
    /// Locked. Whoever writes has a descriptor of the same open file.
    pub(super) bytes: OwnedFd,
    record: OwnedFd,
    pub(super) known: UploadRecord,
}

impl UploadFiles {
    /// Writes down that so many bytes are there.
    pub(super) fn mark(&mut self, there: u64, crc64: u64) -> Result<(), StoreError> {
        (self.known.there, self.known.crc64) = (there, crc64);
        self.write_down()
    }

    fn write_down(&self) -> Result<(), StoreError> {
        let text = self.known.text();
        let written = retry(|| rustix::io::pwrite(&self.record, text.as_bytes(), 0))?;
        match written == text.len() {
            true => Ok(()),
            false => Err(StoreError::NoSpace),
        }
    }

    /// What a path of the bytes is, for whoever renames them.
    pub(super) fn path(&self) -> String {
        use std::os::fd::AsRawFd;
        format!("/proc/self/fd/{}/{}", self.directory.as_raw_fd(), self.key)
    }

    /// There is nothing left to go on with.
    pub(super) fn forget(&self) {
        remove(&self.directory, &self.key.to_string());
    }
}

/// Removes both files of an upload, as far as they are there.
fn remove(directory: &OwnedFd, key: &str) {
    let record = format!("{key}{RECORD}");
    for name in [key, &*record] {
        let _ = rustix::fs::unlinkat(directory, name, AtFlags::empty());
    }
}

/// An upload that nobody has.
struct Idle {
    key: String,
    owner: Option<String>,
    bytes: u64,
    changed: SystemTime,
    /// Held while it is judged: a descriptor each.
    _lock: OwnedFd,
}

/// The directory.
#[derive(Debug, Default)]
pub(super) struct KeptUploads {
    limits: Mutex<KeptLimits>,
}

const FILE: OFlags = OFlags::RDWR.union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);

impl KeptUploads {
    fn limits(&self) -> KeptLimits {
        let limits = self.limits.lock();
        limits.unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set_limits(&self, limits: KeptLimits) {
        *self.limits.lock().unwrap_or_else(PoisonError::into_inner) = limits;
    }

    fn directory(beneath: &Beneath, is_made: bool) -> Result<OwnedFd, StoreError> {
        loop {
            match beneath.open_directory(DIRECTORY) {
                Err(Errno::NOENT) if is_made => beneath.make_private(DIRECTORY)?,
                opened => return Ok(opened?),
            }
        }
    }

    /// Goes on with an upload, or begins it; `None`: nothing is kept here.
    pub(super) fn take_up(
        &self,
        beneath: &Beneath,
        asked: &TakeUp<'_>,
        mode: u32,
    ) -> Result<Option<UploadFiles>, StoreError> {
        if self.limits().count == 0 {
            return Ok(None);
        }
        self.sweep(beneath);
        // Whoever ends the last upload removes the directory.
        for _ in 0..TRIES {
            let directory = Arc::new(Self::directory(beneath, true)?);
            match Self::open(&directory, asked, mode) {
                Err(StoreError::NotFound) => {}
                opened => return opened.map(Some),
            }
        }
        Err(StoreError::Busy)
    }

    fn open(
        directory: &Arc<OwnedFd>,
        asked: &TakeUp<'_>,
        mode: u32,
    ) -> Result<UploadFiles, StoreError> {
        let open = |name: &str| {
            let mode = Mode::from_raw_mode(mode);
            retry(|| rustix::fs::openat(directory, name, FILE | OFlags::CREATE, mode))
        };
        let key = asked.key.to_string();
        let bytes = open(&key)?;
        lock(&bytes)?;
        if !is_at(directory, &key, &bytes)? {
            // It was removed, or has become its object, before it was locked.
            return Err(StoreError::NotFound);
        }
        let record = open(&format!("{key}{RECORD}"))?;
        let fresh = UploadRecord::of(asked);
        let found = read(&record).and_then(|text| UploadRecord::parse(&text));
        let len = u64::try_from(rustix::fs::fstat(&bytes)?.st_size).unwrap_or(0);
        let is_same = |found: &UploadRecord| {
            (&found.name, found.size) == (&fresh.name, fresh.size) && found.there <= len
        };
        let found = found.filter(|found| is_same(found) && !asked.anew);
        if found.is_none() {
            rustix::fs::ftruncate(&bytes, 0)?;
            rustix::fs::ftruncate(&record, 0)?;
        }
        let files = UploadFiles {
            directory: Arc::clone(directory),
            key: *asked.key,
            bytes,
            record,
            known: found.unwrap_or(fresh),
        };
        files.write_down()?;
        Ok(files)
    }

    /// Removes what is too old or too much.
    pub(super) fn sweep(&self, beneath: &Beneath) {
        let Ok(directory) = Self::directory(beneath, false) else {
            return;
        };
        let limits = self.limits();
        let mut idle = idle(&directory).unwrap_or_default();
        // The newest first.
        idle.sort_by_key(|upload| std::cmp::Reverse(upload.changed));
        let now = SystemTime::now();
        let mut all = Held::default();
        let mut of_owner: HashMap<Option<&str>, Held> = HashMap::new();
        for upload in &idle {
            let age = now.duration_since(upload.changed).unwrap_or_default();
            let its = of_owner.entry(upload.owner.as_deref()).or_default();
            let has_room = all.has_room(upload, limits.count, limits.bytes)
                && its.has_room(upload, limits.count.div_ceil(2), limits.bytes / 2);
            match upload.owner.is_some() && age < limits.age && has_room {
                true => [&mut all, its]
                    .into_iter()
                    .for_each(|held| held.add(upload)),
                false => remove(&directory, &upload.key),
            }
        }
        // Only while it is empty.
        if all.count == 0 {
            beneath.remove_empty(DIRECTORY);
        }
    }
}

const TRIES: u32 = 16;

/// What is kept, of one owner or of all.
#[derive(Debug, Default)]
struct Held {
    count: u32,
    bytes: u64,
}

impl Held {
    fn has_room(&self, upload: &Idle, count: u32, bytes: u64) -> bool {
        self.count < count && self.bytes.saturating_add(upload.bytes) <= bytes
    }

    fn add(&mut self, upload: &Idle) {
        self.count += 1;
        self.bytes += upload.bytes;
    }
}

/// All that nobody has.
fn idle(directory: &OwnedFd) -> rustix::io::Result<Vec<Idle>> {
    let mut found = Vec::new();
    for entry in rustix::fs::Dir::read_from(directory)? {
        let entry = entry?;
        let Ok(key) = entry.file_name().to_str() else {
            continue;
        };
        if key.parse::<UploadKey>().is_err() {
            // A record without its bytes is of no use.
            if let Some(bytes) = key.strip_suffix(RECORD)
                && rustix::fs::statat(directory, bytes, AtFlags::SYMLINK_NOFOLLOW).is_err()
            {
                let _ = rustix::fs::unlinkat(directory, key, AtFlags::empty());
            }
            continue;
        }
        let opened = retry(|| rustix::fs::openat(directory, key, FILE, Mode::empty()));
        let Ok(lock_of) = opened else { continue };
        let Ok(stat) = rustix::fs::fstat(&lock_of) else {
            continue;
        };
        if lock(&lock_of).is_err() {
            continue;
        }
        let record = format!("{key}{RECORD}");
        let record = retry(|| rustix::fs::openat(directory, &*record, FILE, Mode::empty()));
        let record = record
            .ok()
            .and_then(|record| UploadRecord::parse(&read(&record)?));
        let changed = super::file_tag::time_of(super::file_tag::modified_ns(&stat));
        found.push(Idle {
            key: key.to_owned(),
            owner: record.map(|record| record.owner),
            bytes: super::file_tag::size_of_file(&stat),
            changed: changed.unwrap_or(SystemTime::UNIX_EPOCH),
            _lock: lock_of,
        });
    }
    Ok(found)
}

/// # Errors
/// [`StoreError::UploadTaken`]: somebody has it.
fn lock(file: &OwnedFd) -> Result<(), StoreError> {
    match retry(|| rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive)) {
        Err(Errno::WOULDBLOCK) => Err(StoreError::UploadTaken),
        locked => Ok(locked?),
    }
}

/// Whether a file still has that name.
fn is_at(directory: &OwnedFd, name: &str, file: impl AsFd) -> Result<bool, StoreError> {
    let ours = rustix::fs::fstat(file)?;
    match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(there) => Ok((there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)),
        Err(Errno::NOENT) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

fn read(record: &OwnedFd) -> Option<String> {
    let mut bytes = vec![0; RECORD_MAX];
    let len = retry(|| rustix::io::pread(record, &mut bytes[..], 0)).ok()?;
    bytes.truncate(len);
    String::from_utf8(bytes).ok()
}

/// Whether files of both directories can be renamed into each other.
pub(super) fn is_same_device(one: impl AsFd, other: impl AsFd) -> Result<bool, StoreError> {
    let (one, other) = (rustix::fs::fstat(one)?, rustix::fs::fstat(other)?);
    Ok(one.st_dev == other.st_dev)
}
