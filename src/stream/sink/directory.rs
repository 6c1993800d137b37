//! `DirectorySink`: files below one directory, which have no name until the stream is whole.
//!
//! ```text
//!  DIRECTORY/
//!    .fabricast-KEY/      while the stream is under way, and after it was cut
//!      journal            which blocks are written, and their CRC32C
//!      tree/a/b/file.h5   the files, as they are to lie
//!    a/b/file.h5          at the end: renamed to here; directories that were not here, as a whole
//! ```

mod compared;
mod extra;
mod journal_file;
mod links;
mod partials;
mod unchanged;

use std::cell::Cell;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use rustix::fs::{
    Access, AtFlags, FileType, FlockOperation, Mode, OFlags, RenameFlags, Stat, Timespec,
    Timestamps,
};
use rustix::fs::{Gid, Uid};
use rustix::io::Errno;

use self::compared::Compared;
use self::extra::{NameFilter, Removal};
pub use self::links::LinkTargets;
use self::partials::Partials;
use super::beneath::{Beneath, OpenDirectories, split};
use super::{BlockSink, CheckedBlock, Kept, ReadBack, SinkError, SinkFactory, Stop, StreamOffer};
use crate::buffer::DeviceBuffer;
use crate::clock::Clock;
use crate::cuda::Stream;
use crate::storage::{BackEnd, BackEndChoice, DirectIo, IoStats};
use crate::stream::file_attributes::{check_kind, give_attributes};
use crate::stream::name::HIDDEN_PREFIX;
use crate::stream::open_files::FileCounts;
use crate::stream::{Block, BlockSet, Entry, EntryKind, Owner};

/// More files than this are synced by one syncfs(2).
const SYNC_EACH_MAX: usize = 64;

/// Writes streams below a directory. Whatever names a sender gives, nothing outside is reached: no
/// symbolic link is followed on the way.
///
/// Each stream is written into a hidden directory, `.fabricast-` and its key, with a journal; when
/// all of it is there and checked, it is renamed to where it belongs: first each directory that is
/// not there yet, in one step with all that is in it; then, in one step each, the files of
/// directories that are there. These replace files of the same names. Before the stream is taken,
/// and before the first step, all of these places are looked at: where one can't be replaced, none
/// is. From then on nothing but an error stops it, and that says how many are there
/// ([`SinkError::Placed`]). After a crash in between, each name leads to the old file or to the
/// whole new one; what was renamed comes again, and the rest is kept. A stream that was cut leaves
/// the hidden directory behind, and is resumed from there: what the journal says is believed only
/// after the bytes were read and found right.
///
/// Permissions (the lowest nine bits) and times of modification are the sender's; owners are this
/// process's unless [`owners`](Self::owners) says otherwise, and extended attributes are not kept
/// unless [`attributes`](Self::attributes) says so. Symbolic links are made as the sender has them,
/// but those that lead out of this directory ([`LinkTargets`]).
#[derive(Debug, Clone)]
pub struct DirectorySink {
    directory: Arc<Beneath>,
    access: FileAccess,
    links: LinkTargets,
    /// Whether senders may have removed what is there besides.
    allows_delete: bool,
    protected: NameFilter,
    takes_owners: bool,
    takes_attributes: bool,
}

/// How files are written.
#[derive(Debug, Clone, Copy)]
struct FileAccess {
    /// Whether blocks in the host's memory go around the page cache.
    direct: DirectIo,
    back_end: BackEndChoice,
}

impl DirectorySink {
    /// A directory that exists, and that this process may write to.
    ///
    /// # Errors
    /// What open(2) and access(2) answer.
    pub fn new(path: impl Into<PathBuf>) -> io::Result<Self> {
        let directory = Beneath::open(&path.into())?;
        // Said now, not when the first sender is there.
        directory.check_writable()?;
        Ok(Self {
            directory: Arc::new(directory),
            access: FileAccess {
                direct: DirectIo::Auto,
                back_end: BackEndChoice::Auto,
            },
            links: LinkTargets::default(),
            allows_delete: false,
            protected: NameFilter::default(),
            takes_owners: false,
            takes_attributes: false,
        })
    }

    /// Whether blocks are written around the page cache, as far as they are whole pages. Default:
    /// [`DirectIo::Auto`], as for every [`FileHandle`](crate::storage::FileHandle): what arrives is
    /// on the device sooner and takes less of the processor, and is not in the page cache for who
    /// reads it next. Blocks that go through a GPU's memory
    /// ([`ThroughGpu`](crate::stream::ThroughGpu)) are written from there as [`DirectIo::Auto`]
    /// says at least.
    #[must_use]
    pub fn direct(mut self, direct: DirectIo) -> Self {
        self.access.direct = direct;
        self
    }

    /// What moves the bytes. Default: [`BackEndChoice::Auto`].
    #[must_use]
    pub fn back_end(mut self, back_end: BackEndChoice) -> Self {
        self.access.back_end = back_end;
        self
    }

    /// Which symbolic links are made. Default: [`LinkTargets::Within`].
    #[must_use]
    pub fn links(mut self, links: LinkTargets) -> Self {
        self.links = links;
        self
    }

    /// Whether files, directories and links get the owners that a sender says
    /// ([`FileSourceBuilder::owners`](crate::stream::FileSourceBuilder::owners)), by the numbers
    /// of users and groups: whoever may send can give files to any user of this system then, with
    /// the rights that a mode has (the lowest nine bits, as ever: nothing is set-user-ID). It takes
    /// a process that may do that (CAP_CHOWN). Default: no, and a stream with owners is refused.
    #[must_use]
    pub fn owners(mut self, yes: bool) -> Self {
        self.takes_owners = yes;
        self
    }

    /// Whether files and directories get the extended attributes that a sender says
    /// ([`FileSourceBuilder::attributes`](crate::stream::FileSourceBuilder::attributes)), and lose
    /// others of these kinds: those of `user.`, and access control lists, whose users and groups
    /// are numbers. Whoever may send can give any user of this system access to what he sends then.
    /// Those of `security.` and `trusted.` are never taken: nothing gets capabilities. Default: no,
    /// and a stream that says which there are is refused.
    #[must_use]
    pub fn attributes(mut self, yes: bool) -> Self {
        self.takes_attributes = yes;
        self
    }

    /// Whether a sender may have removed what lies here in directories that it sends, or below
    /// them, and that it does not have
    /// ([`SendOptions::delete`](crate::stream::SendOptions::delete)): whoever may send can empty
    /// any directory here then. Default: no, and a stream that asks for it is refused.
    ///
    /// It is done when all of a stream is in its place, and not if something of it failed. No
    /// symbolic link is followed, and nothing on another file system is touched, nor what keeps the
    /// rest of cut streams, nor what has a name that no stream can have. What can't be removed is
    /// left, and the stream ends with [`SinkError::Delete`]. Two senders that send into one
    /// directory at a time remove what the other one has just put there.
    #[must_use]
    pub fn allow_delete(mut self, yes: bool) -> Self {
        self.allows_delete = yes;
        self
    }

    /// What is not removed, though senders may have things removed: that for which `keep` is true,
    /// and what lies below it. It is given the path below the outermost directory of the stream, as
    /// [`FileSourceBuilder::filter`](crate::stream::FileSourceBuilder::filter) is: what a sender's
    /// filter leaves out is protected where this one answers the opposite. The last one counts.
    #[must_use]
    pub fn protect(
        mut self,
        keep: impl Fn(&Path, EntryKind) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.protected = NameFilter::new(keep);
        self
    }

    /// Removes what cut streams left behind of which nothing was written for so long. Whatever is
    /// under way, in this process or another, stays; so does a hidden directory that has no journal
    /// of this library in it. How many went.
    ///
    /// # Errors
    /// What the system answers when the directory is read. What can't be removed stays.
    pub fn forget_partials(&self, older_than: Duration) -> io::Result<usize> {
        let before = SystemTime::now().checked_sub(older_than);
        let Some(before) = before else { return Ok(0) };
        let mut gone = 0;
        for found in rustix::fs::Dir::read_from(self.directory.fd())? {
            let found = found?;
            let name = found.file_name().to_bytes();
            let hex = name
                .strip_prefix(HIDDEN_PREFIX.as_bytes())
                .unwrap_or_default();
            if hex.len() != 32 || !hex.iter().all(u8::is_ascii_hexdigit) {
                continue;
            }
            // Whoever is at work there has the lock.
            let Ok(work) = lock(&self.directory, name) else {
                continue;
            };
            let work = Beneath::of(work);
            let is_stale = journal_file::is_stale(work.fd(), before);
            if is_stale.unwrap_or(false) && partials::clear(&work).is_ok() {
                let removed = rustix::fs::unlinkat(self.directory.fd(), name, AtFlags::REMOVEDIR);
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
        Ok(Box::new(self.receiving(offer)))
    }

    fn takes_links(&self) -> bool {
        self.links != LinkTargets::None
    }

    fn takes_owners(&self) -> bool {
        self.takes_owners
    }

    fn takes_attributes(&self) -> bool {
        self.takes_attributes
    }

    fn takes_deletions(&self) -> bool {
        self.allows_delete
    }
}

impl DirectorySink {
    fn receiving(&self, offer: &StreamOffer) -> Receiving {
        Receiving {
            directory: Arc::clone(&self.directory),
            access: self.access,
            links: self.links,
            protected: self.protected.clone(),
            deletes: self.allows_delete && offer.delete,
            deleted: AtomicU64::new(0),
            offer: offer.clone(),
            work: Mutex::new(None),
            compared: OnceLock::new(),
            any: AtomicBool::new(false),
            io: Arc::default(),
        }
    }
}

/// One stream.
#[derive(Debug)]
struct Receiving {
    directory: Arc<Beneath>,
    access: FileAccess,
    links: LinkTargets,
    protected: NameFilter,
    /// Whether what is there besides is removed.
    deletes: bool,
    /// Files and directories that were.
    deleted: AtomicU64,
    offer: StreamOffer,
    /// `None`: the sink is not open yet, or the stream is over.
    work: Mutex<Option<Arc<Partials>>>,
    /// Files whose content is compared, where that is asked for, once the sink is open.
    compared: OnceLock<Compared>,
    /// Something was written or kept that a later stream can go on from.
    any: AtomicBool,
    /// What was done with the files that are closed.
    io: Arc<FileCounts>,
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

    /// Whether everything could be put where it belongs, as far as that can be known before the
    /// first rename. `look` is shown what there is, file by file and link by link.
    fn check_targets(
        &self,
        stop: &Stop,
        mut look: impl FnMut(usize, &Entry<'_>, Option<&Stat>) -> Result<(), SinkError>,
    ) -> Result<(), SinkError> {
        let work = rustix::fs::fstat(self.directory.fd());
        let device = work.map_err(|error| SinkError::os(b".", error))?.st_dev;
        let mut checked = None;
        let mut there = None;
        for (number, entry) in self.offer.manifest.iter().enumerate() {
            stop.check()?;
            let name = entry.name.as_bytes();
            let failed = |error: io::Error| SinkError::os(name, error);
            let (parent, last) = match entry.kind {
                EntryKind::Directory => (name, OsStr::new("")),
                EntryKind::File | EntryKind::Link => split(name),
            };
            if checked != Some(parent) {
                there = self.check_parent(parent, device).map_err(failed)?;
                checked = Some(parent);
            }
            if entry.kind == EntryKind::Directory {
                continue;
            }
            let found = match there.as_ref().map(|there| there.stat_here(last)) {
                Some(Ok(found))
                    if FileType::from_raw_mode(found.st_mode) == FileType::Directory =>
                {
                    return Err(SinkError::os(name, Errno::ISDIR));
                }
                Some(Err(error)) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(failed(error));
                }
                found => found.and_then(Result::ok),
            };
            look(number, &entry, found.as_ref())?;
        }
        Ok(())
    }

    /// Whether this process may give what it makes the owners that it is to have: root may, and
    /// others to themselves.
    fn check_owners(&self) -> Result<(), SinkError> {
        let user = rustix::process::geteuid();
        let (manifest, own) = (&self.offer.manifest, user.as_raw());
        let mut owners = (0..).map_while(|number| manifest.owner(number));
        match owners.find(|owner| owner.user != own && !user.is_root()) {
            None => Ok(()),
            Some(Owner { user, .. }) => Err(SinkError::Other(format!(
                "files of user {user}, and user {own} receives them, who can't give files away: \
                 receive as root, or send without owners (--owners)"
            ))),
        }
    }

    /// Whether the file system here knows the kinds of extended attributes that there are to be.
    fn check_attributes(&self) -> Result<(), SinkError> {
        let manifest = &self.offer.manifest;
        if !manifest.has_attributes() {
            return Ok(());
        }
        let mut known: Vec<&[u8]> = Vec::new();
        for (number, entry) in manifest.iter().enumerate() {
            for attribute in manifest.attributes(number).into_iter().flatten() {
                // One of `user.` stands for all of them.
                let kind: &[u8] = match attribute.name.starts_with(b"user.") {
                    true => b"user.",
                    false => attribute.name,
                };
                if !known.contains(&kind) {
                    let checked = check_kind(self.directory.fd(), attribute.name);
                    checked.map_err(|error| SinkError::Other(error.text(entry.name)))?;
                    known.push(kind);
                }
            }
        }
        Ok(())
    }

    /// Directories get their extended attributes where they are made, so that what can't be given
    /// is said before the first of them has its name.
    fn try_directories(&self, partials: &Partials, stop: &Stop) -> Result<(), SinkError> {
        let manifest = &self.offer.manifest;
        if !manifest.has_attributes() {
            return Ok(());
        }
        // One that is made in another inherits nothing that is given to that afterwards.
        self.make_directories(partials)?;
        for (number, entry) in manifest.iter().enumerate() {
            stop.check()?;
            let name = entry.name.as_bytes();
            let mut wanted = manifest.attributes(number).into_iter().flatten().peekable();
            if entry.kind == EntryKind::Directory && wanted.peek().is_some() {
                let fd = partials.directory(name, false);
                let fd = fd.map_err(|error| SinkError::os(name, error))?;
                let given = give_attributes(fd.fd(), wanted);
                given.map_err(|error| SinkError::Other(error.text(entry.name)))?;
            }
        }
        Ok(())
    }

    /// Whether names may be made in a directory, or, while it is not there, in the one above it
    /// that is. The directory, if it is there.
    fn check_parent(&self, parent: &[u8], device: u64) -> io::Result<Option<Beneath>> {
        let mut above = parent;
        let fd = loop {
            match self.directory.directory(above, false) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => above = split(above).0,
                found => break found?,
            }
        };
        let access = Access::WRITE_OK | Access::EXEC_OK;
        rustix::fs::accessat(&fd, ".", access, AtFlags::EACCESS)?;
        match rustix::fs::fstat(&fd)?.st_dev == device {
            true => Ok((above == parent).then(|| Beneath::of(fd))),
            // Nothing can be renamed to there.
            false => Err(Errno::XDEV.into()),
        }
    }

    /// Copies blocks that are kept of files that are here to the others of these files. The entries
    /// of files that stay as a whole.
    fn settle_compared(&self, partials: &Partials, stop: &Stop) -> Result<BlockSet, SinkError> {
        let Some(compared) = self.compared.get() else {
            return Ok(BlockSet::new(0));
        };
        let stay = compared.settle(&self.directory, &self.offer, partials, stop)?;
        partials.leave_out_too(&stay);
        Ok(stay)
    }

    /// Puts everything where it belongs. Nothing stops it but an error, which says how much is
    /// there then. The files that `stay` are there, and get rights and times. `between` is for
    /// tests.
    fn place_all(
        &self,
        partials: &Partials,
        stay: &BlockSet,
        between: impl Fn(usize),
    ) -> Result<(), SinkError> {
        let entries = self.offer.manifest.len() as u64;
        let placed = Cell::new(0);
        let open = OpenDirectories::default();
        let left_out = partials.left_out();
        let all = || {
            let mut moved = self
                .place_directories(partials, &open, &placed)?
                .into_iter();
            let mut skipped = moved.next();
            for (number, entry) in self.offer.manifest.iter().enumerate() {
                while skipped.as_ref().is_some_and(|range| range.end <= number) {
                    skipped = moved.next();
                }
                let is_moved = skipped.as_ref().is_some_and(|range| range.start <= number);
                if entry.kind != EntryKind::Directory && !is_moved {
                    if !left_out.contains(number as u64) {
                        between(number);
                        self.place(partials, &open, entry)?;
                    } else if stay.contains(number as u64)
                        && let Some(compared) = self.compared.get()
                    {
                        let sync = self.offer.sync && !self.syncs_all();
                        compared.dress(&self.directory, &self.offer, (number, &entry), sync)?;
                    }
                    placed.set(placed.get() + 1);
                }
            }
            // Before directories get their times, which this changes.
            let removed = self.remove_extra();
            self.dress_directories()?;
            if self.offer.sync {
                self.sync_names()?;
            }
            removed
        };
        all().map_err(|error| match placed.get() {
            _ if matches!(error, SinkError::Delete { .. }) => error,
            0 => error,
            placed => SinkError::Placed {
                placed,
                entries,
                error: Box::new(error),
            },
        })
    }

    /// All directories, before the first file is replaced: those that are not there yet, with all
    /// that is in them. Which entries that were; they are counted, and directories that were there.
    fn place_directories(
        &self,
        partials: &Partials,
        open: &OpenDirectories,
        placed: &Cell<u64>,
    ) -> Result<Vec<Range<usize>>, SinkError> {
        let manifest = &self.offer.manifest;
        self.make_directories(partials)?;
        let mut moved: Vec<Range<usize>> = Vec::new();
        let mut there: &[u8] = b"";
        let mut next = 0;
        while let Some(entry) = manifest.get(next) {
            let name = entry.name.as_bytes();
            let directory = directory_of(&entry);
            let mut end = next;
            if directory != there {
                let failed = |error| SinkError::os(name, error);
                if let Some(outermost) =
                    self.move_into(partials, open, directory).map_err(failed)?
                {
                    let is_in = |entry: &Entry<'_>| is_in(entry.name.as_bytes(), outermost);
                    while manifest.get(end).as_ref().is_some_and(is_in) {
                        end += 1;
                    }
                    moved.push(next..end);
                } else {
                    there = directory;
                }
            }
            let is_directory = entry.kind == EntryKind::Directory && end == next;
            placed.set(placed.get() + (end - next) as u64 + u64::from(is_directory));
            next = end.max(next + 1);
        }
        Ok(moved)
    }

    /// The directories of all entries, where they are to be moved from.
    fn make_directories(&self, partials: &Partials) -> Result<(), SinkError> {
        let mut made: &[u8] = b"";
        for entry in self.offer.manifest.iter() {
            let directory = directory_of(&entry);
            if directory != made {
                let there = partials.directory(directory, true);
                there.map_err(|error| SinkError::os(entry.name.as_bytes(), error))?;
                made = directory;
            }
        }
        Ok(())
    }

    /// Sees to it that a directory is where it belongs. If it was not, or one on the way to it, the
    /// outermost of these is moved there with all that is in it: the name of that one.
    fn move_into<'a>(
        &self,
        partials: &Partials,
        open: &OpenDirectories,
        name: &'a [u8],
    ) -> io::Result<Option<&'a [u8]>> {
        let ends = name.iter().enumerate().filter(|(_, byte)| **byte == b'/');
        for end in ends.map(|(at, _)| at).chain([name.len()]) {
            let outermost = &name[..end];
            match open.get(&self.directory, outermost, false) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                found => {
                    found?;
                    continue;
                }
            }
            let (above, last) = split(outermost);
            let from = partials.directory(above, false)?;
            let to = open.get(&self.directory, above, false)?;
            let flags = RenameFlags::NOREPLACE;
            match rustix::fs::renameat_with(from.fd(), last, to.fd(), last, flags) {
                Ok(()) => return Ok(Some(outermost)),
                // Somebody has just made it, or the file system can't say whether: what is in it is
                // placed piece by piece.
                Err(Errno::EXIST | Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                    self.directory.directory(outermost, true)?;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(None)
    }

    /// Puts one file where it belongs.
    fn place(
        &self,
        partials: &Partials,
        open: &OpenDirectories,
        entry: Entry<'_>,
    ) -> Result<(), SinkError> {
        let name = entry.name.as_bytes();
        let failed = |error: io::Error| SinkError::os(name, error);
        let (directory, last) = split(name);
        let from = partials.directory(directory, false).map_err(failed)?;
        let to = open.get(&self.directory, directory, true).map_err(failed)?;
        let renamed = rustix::fs::renameat(from.fd(), last, to.fd(), last);
        renamed.map_err(|error| failed(error.into()))
    }

    /// Every link is one, and every file has its length, rights and times, before the first gets
    /// its name.
    fn dress_files(&self, partials: &Partials, stop: &Stop) -> Result<(), SinkError> {
        for (number, entry) in partials.unfinished() {
            stop.check()?;
            partials.finish(number, entry)?;
        }
        Ok(())
    }

    /// Removes what is there besides, where that is asked for and may be.
    fn remove_extra(&self) -> Result<(), SinkError> {
        if !self.deletes {
            return Ok(());
        }
        let removal = Removal::new(&self.directory, &self.offer.manifest, &self.protected)?;
        removal.run(&self.deleted)
    }

    /// Rights and times of directories, when nothing more is made in them; the innermost first.
    fn dress_directories(&self) -> Result<(), SinkError> {
        let manifest = &self.offer.manifest;
        for number in (0..manifest.len()).rev() {
            let entry = manifest.get(number);
            let Some(entry) = entry.filter(|entry| entry.kind == EntryKind::Directory) else {
                continue;
            };
            let name = entry.name.as_bytes();
            let fd = self.directory.directory(name, false);
            let fd = fd.map_err(|error| SinkError::os(name, error))?;
            dress(&fd, &self.offer, (number, &entry))?;
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
        let mut synced = BTreeSet::new();
        for entry in entries.iter() {
            // The names of directories are on the device with those that they lie in.
            let mut name = directory_of(&entry);
            while !name.is_empty() && synced.insert(name) {
                let directory = self.directory.directory(name, false);
                let directory = directory.map_err(|error| failed(name, error))?;
                rustix::fs::fsync(&directory).map_err(|error| failed(name, error.into()))?;
                name = split(name).0;
            }
        }
        rustix::fs::fsync(self.directory.fd()).map_err(|error| failed(b".", error.into()))
    }

    /// Whether content is synced by one call for the file system, and not file by file.
    fn syncs_all(&self) -> bool {
        self.offer.manifest.len() > SYNC_EACH_MAX
    }

    fn sync_content(&self, partials: &Partials) -> Result<(), SinkError> {
        if !self.offer.sync {
            return Ok(());
        }
        match self.syncs_all() {
            true => rustix::fs::syncfs(partials.fd()).map_err(|error| SinkError::os(b".", error)),
            false => partials.sync_each(),
        }
    }
}

impl BlockSink for Receiving {
    fn open(&self, _offer: &StreamOffer, stop: &Stop) -> Result<Kept, SinkError> {
        // Said before anything is sent, as far as it is so by then.
        let entries = match self.offer.skip_unchanged {
            true => self.offer.manifest.len() as u64,
            false => 0,
        };
        let mut alike = BlockSet::new(entries);
        self.check_targets(stop, |number, entry, found| {
            if entries > 0 && found.is_some_and(|found| unchanged::is_as(found, entry)) {
                alike.insert(number as u64);
            }
            Ok(())
        })?;
        self.check_owners()?;
        self.check_attributes()?;
        let files = (self.access, self.links, Arc::clone(&self.io));
        let partials = Partials::open(self.open_work()?, &self.offer, files, Clock::system())?;
        let mut have = partials.prove(stop)?;
        self.any
            .fetch_or(!have.blocks().is_empty(), Ordering::Relaxed);
        if self.offer.skip_unchanged {
            let kept = unchanged::keep(alike, &self.offer, &mut have);
            if self.offer.compare_content {
                let (directory, offer) = (&self.directory, &self.offer);
                let compared = Compared::find(directory, offer, &kept, &mut have, stop)?;
                let _ = self.compared.set(compared);
            }
            partials.leave_out(kept);
        }
        let mut work = self.work.lock().unwrap_or_else(PoisonError::into_inner);
        *work = Some(Arc::new(partials));
        Ok(have)
    }

    fn write(&self, block: Block, crc: u32, bytes: &[u8]) -> Result<(), SinkError> {
        self.partials()?.write(block, crc, bytes)?;
        self.any.store(true, Ordering::Relaxed);
        Ok(())
    }

    fn write_all(&self, blocks: &[CheckedBlock<'_>]) -> Result<(), SinkError> {
        self.partials()?.write_all(blocks)?;
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

    fn keep(&self, block: Block, crc: u32) -> Result<bool, SinkError> {
        let compared = self.compared.get();
        let kept = (block, crc);
        Ok(compared.is_some_and(|it| it.keep(&self.directory, &self.offer, kept)))
    }

    fn io_stats(&self) -> Option<IoStats> {
        let work = self.work.lock().unwrap_or_else(PoisonError::into_inner);
        Some(match &*work {
            Some(partials) => partials.io_stats(),
            None => self.io.total(),
        })
    }

    fn finish(&self, stop: &Stop) -> Result<ReadBack, SinkError> {
        let partials = self.partials()?;
        let unchanged = partials.left_out();
        let stay = self.settle_compared(&partials, stop)?;
        partials.flush()?;
        let read_back = match self.offer.read_back {
            true => partials.read_back(stop)?,
            false => ReadBack::default(),
        };
        let sync_each = self.offer.sync && !self.syncs_all();
        let mut unsettled = Vec::new();
        self.check_targets(stop, |number, entry, found| {
            if unchanged.contains(number as u64) {
                let owner = self.offer.manifest.owner(number);
                let is_settled = unchanged::check(entry, owner, found)?;
                // Their attributes are looked at when they are open.
                if sync_each || !is_settled || self.offer.manifest.has_attributes() {
                    unsettled.push(number);
                }
            }
            Ok(())
        })?;
        self.dress_files(&partials, stop)?;
        self.try_directories(&partials, stop)?;
        self.sync_content(&partials)?;
        stop.check()?;
        unchanged::settle(&self.directory, &self.offer, &unsettled, sync_each)?;
        if let Some(compared) = self.compared.get() {
            compared.check(&self.directory, &self.offer, &stay)?;
        }
        let placed = self.place_all(&partials, &stay, |_| ());
        // What is left of the stream is of use where something of it is not in its place.
        if !matches!(placed, Ok(()) | Err(SinkError::Delete { .. })) {
            return placed.map(|()| read_back);
        }
        let mut work = self.work.lock().unwrap_or_else(PoisonError::into_inner);
        *work = None;
        self.remove(&partials);
        placed.map(|()| read_back)
    }

    fn deleted(&self) -> u64 {
        self.deleted.load(Ordering::Relaxed)
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

/// The directory that an entry lies in; of a directory, itself.
fn directory_of<'a>(entry: &Entry<'a>) -> &'a [u8] {
    match entry.kind {
        EntryKind::Directory => entry.name.as_bytes(),
        EntryKind::File | EntryKind::Link => split(entry.name.as_bytes()).0,
    }
}

/// Whether a name is that of a directory, or of something below it.
fn is_in(name: &[u8], directory: &[u8]) -> bool {
    let rest = name.strip_prefix(directory);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
}

/// Extended attributes, owner, rights and time of modification, as the sender has them.
fn dress(
    fd: impl AsFd,
    offer: &StreamOffer,
    (number, entry): (usize, &Entry<'_>),
) -> Result<(), SinkError> {
    // First, while this process may still write to it.
    give_said_attributes(&fd, offer, (number, entry))?;
    let owner = offer.manifest.owner(number);
    let dressed = dress_in_mode(fd, entry, owner);
    dressed.map_err(|error| SinkError::os(entry.name.as_bytes(), error))
}

/// The extended attributes that the sender says, if it does.
fn give_said_attributes(
    fd: impl AsFd,
    offer: &StreamOffer,
    (number, entry): (usize, &Entry<'_>),
) -> Result<(), SinkError> {
    let Some(wanted) = offer.manifest.attributes(number) else {
        return Ok(());
    };
    let given = give_attributes(fd, wanted);
    given.map_err(|error| SinkError::Other(error.text(entry.name)))
}

/// Owner, rights and time of modification.
fn dress_in_mode(fd: impl AsFd, entry: &Entry<'_>, owner: Option<Owner>) -> io::Result<()> {
    give_owner_and_rights(&fd, entry, owner)?;
    Ok(rustix::fs::futimens(&fd, &times_of(entry))?)
}

/// Owner, if the sender says one, and rights; nothing is done to a file that has them.
fn give_owner_and_rights(fd: impl AsFd, entry: &Entry<'_>, owner: Option<Owner>) -> io::Result<()> {
    // Before the rights, which the kernel may take away with it.
    if let Some(owner) = owner
        && owner != owner_of(&rustix::fs::fstat(&fd)?)
    {
        let (user, group) = ids_of(owner)?;
        rustix::fs::fchown(&fd, Some(user), Some(group))?;
    }
    let rights = unchanged::rights_of(entry);
    if Mode::from_raw_mode(rustix::fs::fstat(&fd)?.st_mode) != rights {
        rustix::fs::fchmod(&fd, rights)?;
    }
    Ok(())
}

fn owner_of(found: &rustix::fs::Stat) -> Owner {
    Owner {
        user: found.st_uid,
        group: found.st_gid,
    }
}

/// The numbers as the system takes them.
///
/// # Errors
/// One stands for nobody: chown(2) would take it for none.
fn ids_of(owner: Owner) -> io::Result<(Uid, Gid)> {
    match [owner.user, owner.group].contains(&u32::MAX) {
        true => Err(Errno::INVAL.into()),
        false => Ok((Uid::from_raw(owner.user), Gid::from_raw(owner.group))),
    }
}

/// The sender's time of modification; it is accessed now.
fn times_of(entry: &Entry<'_>) -> Timestamps {
    Timestamps {
        last_access: Timespec {
            tv_sec: 0,
            tv_nsec: rustix::fs::UTIME_NOW,
        },
        last_modification: Timespec {
            tv_sec: entry.modified.seconds,
            tv_nsec: i64::from(entry.modified.nanoseconds),
        },
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::stream::{BlockPlan, Manifest, Modified, RelativeName, StreamIdentity, crc32c};

    fn offer_of(entries: &[(&'static str, EntryKind, u64)]) -> StreamOffer {
        let entries = entries.iter().map(|(name, kind, size)| Entry {
            name: RelativeName::new(name.as_bytes()).expect("a name"),
            kind: *kind,
            mode: 0o750,
            size: *size,
            modified: Modified::default(),
            sparse: false,
        });
        let manifest = Manifest::new(entries).expect("a manifest");
        StreamOffer {
            identity: StreamIdentity::default(),
            plan: Arc::new(BlockPlan::new(&manifest, 1)),
            manifest: Arc::new(manifest),
            crc32c: true,
            blake3: false,
            sync: true,
            read_back: false,
            restart: false,
            skip_unchanged: false,
            compare_content: false,
            delete: false,
        }
    }

    fn write_all(sink: &Receiving, blocks: impl IntoIterator<Item = Block>) {
        let blocks = blocks.into_iter();
        let blocks = blocks.map(|block| CheckedBlock::new(block, crc32c(b"x"), b"x"));
        sink.write_all(&blocks.collect::<Vec<_>>())
            .expect("written");
    }

    /// Directories that are not there yet come as a whole, others are joined.
    #[test]
    fn a_tree_is_placed_into_what_is_there() {
        use std::os::unix::fs::PermissionsExt;
        let to = tempfile::tempdir().expect("a directory");
        std::fs::create_dir_all(to.path().join("old/sub")).expect("made");
        std::fs::write(to.path().join("old/keep"), b"kept").expect("written");
        std::fs::write(to.path().join("old/c"), b"old").expect("written");
        let (file, directory) = (EntryKind::File, EntryKind::Directory);
        let offer = offer_of(&[
            ("new", directory, 0),
            ("new/a", file, 1),
            ("new/deep/b", file, 2),
            ("new/deep/empty", file, 0),
            ("new/nothing", directory, 0),
            ("new-er", file, 1),
            ("old/c", file, 1),
            ("old/sub", directory, 0),
            ("old/sub/new/d", file, 1),
        ]);
        let sink = DirectorySink::new(to.path()).expect("it is there");
        let sink = sink.receiving(&offer);
        let stop = Stop::default();
        sink.open(&offer, &stop).expect("opened");
        write_all(&sink, offer.plan.iter());
        // An error in the middle counts what came with its directory.
        let partials = sink.partials().expect("open");
        sink.dress_files(&partials, &stop).expect("dressed");
        let in_the_way = to.path().join("old/c");
        let placed = sink.place_all(&partials, &BlockSet::new(0), |number| {
            if number == 6 {
                std::fs::remove_file(&in_the_way).expect("removed");
                std::fs::create_dir(&in_the_way).expect("made");
            }
        });
        // `new` with its four, `old/sub`, `old/sub/new/d`, `new-er`.
        let counted = matches!(
            placed,
            Err(SinkError::Placed {
                placed: 8,
                entries: 9,
                ..
            })
        );
        assert!(counted, "{placed:?}");
        drop(partials);
        sink.abandon();
        // Another attempt goes on from what is still here, and brings the rest again.
        std::fs::remove_dir(&in_the_way).expect("it is empty");
        let kept = sink.open(&offer, &stop).expect("opened");
        assert_eq!(kept.blocks().count(), 1, "old/c");
        let missing = kept.blocks().missing(0).flatten();
        write_all(&sink, missing.filter_map(|index| offer.plan.get(index)));
        sink.finish(&stop).expect("nothing is in the way");
        let mode = |name: &str| {
            let found = std::fs::metadata(to.path().join(name)).expect(name);
            found.permissions().mode() & 0o777
        };
        for entry in offer.manifest.iter() {
            assert_eq!(mode(&entry.name.to_string()), 0o750, "{}", entry.name);
        }
        let content = |name: &str| std::fs::read(to.path().join(name)).expect(name);
        assert_eq!(
            (content("new/deep/b"), content("old/c")),
            (b"xx".to_vec(), b"x".to_vec())
        );
        assert_eq!(content("old/keep"), b"kept");
        assert_eq!(
            std::fs::read_dir(to.path()).expect("there").count(),
            3,
            "nothing else"
        );
    }

    /// Somebody puts a directory in the way when the first file has its name.
    #[test]
    fn an_error_between_two_renames_says_how_many_are_placed() {
        let to = tempfile::tempdir().expect("a directory");
        let entry = |name: &'static [u8]| Entry {
            name: RelativeName::new(name).expect("a name"),
            kind: EntryKind::File,
            mode: 0o644,
            size: 1,
            modified: Modified::default(),
            sparse: false,
        };
        let manifest = Manifest::new([entry(b"a"), entry(b"b"), entry(b"c")]).expect("a manifest");
        let offer = StreamOffer {
            identity: StreamIdentity::default(),
            plan: Arc::new(BlockPlan::new(&manifest, 1)),
            manifest: Arc::new(manifest),
            crc32c: true,
            blake3: false,
            sync: false,
            read_back: false,
            restart: false,
            skip_unchanged: false,
            compare_content: false,
            delete: false,
        };
        let sink = DirectorySink::new(to.path()).expect("it is there");
        let sink = sink.receiving(&offer);
        let stop = Stop::default();
        sink.open(&offer, &stop).expect("opened");
        for block in offer.plan.iter() {
            sink.write(block, crc32c(b"x"), b"x").expect("written");
        }
        let partials = sink.partials().expect("open");
        let checked = sink.check_targets(&stop, |_, _, _| Ok(()));
        checked.expect("nothing is in the way");
        let in_the_way = to.path().join("b");
        let placed = sink.place_all(&partials, &BlockSet::new(0), |number| {
            if number == 1 {
                std::fs::create_dir(&in_the_way).expect("made");
            }
        });
        match placed {
            Err(SinkError::Placed {
                placed: 1,
                entries: 3,
                error,
            }) => assert!(error.to_string().starts_with("b: "), "{error}"),
            other => panic!("{other:?}"),
        }
        assert!(to.path().join("a").is_file() && !to.path().join("c").exists());
        // Another attempt goes on from what is still here.
        drop(partials);
        sink.abandon();
        let error = sink.open(&offer, &stop).expect_err("b is in the way");
        assert!(error.to_string().starts_with("b: "), "{error}");
        std::fs::remove_dir(&in_the_way).expect("it is empty");
        let kept = sink.open(&offer, &stop).expect("opened");
        let missing: Vec<_> = kept.blocks().missing(0).flatten().collect();
        assert_eq!(missing, [0], "it is not here any more");
        let first = offer.plan.get(0).expect("there is one");
        sink.write(first, crc32c(b"x"), b"x").expect("written");
        // What comes in the way meanwhile is said before the first rename.
        std::fs::create_dir(&in_the_way).expect("made");
        let error = sink.finish(&stop).expect_err("b is in the way");
        assert!(!matches!(error, SinkError::Placed { .. }), "{error}");
        std::fs::remove_dir(&in_the_way).expect("it is empty");
        sink.finish(&stop).expect("nothing is in the way");
        assert!(to.path().join("c").is_file());
    }
}
