//! `Compared`: files that are at the target with the size that the sender has and another time,
//! whose content is compared with the sender's.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use rustix::fs::{FileType, Mode, OFlags, Stat, fstat, fsync};

use super::dress;
use super::partials::Partials;
use crate::stream::block_set::BlockSet;
use crate::stream::digest::crc32c;
use crate::stream::sink::beneath::{Beneath, OpenDirectories, split};
use crate::stream::sink::{Kept, SinkError, Stop, StreamOffer};
use crate::stream::{Block, Entry, EntryKind};

/// What tells one state of a file from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileState {
    device: u64,
    inode: u64,
    size: i64,
    modified: (i64, u64),
    changed: (i64, u64),
    /// It is this process's to give it rights and times.
    is_own: bool,
}

impl FileState {
    /// Of a regular file.
    fn of(found: &Stat) -> Option<Self> {
        let user = rustix::process::geteuid();
        let is_file = FileType::from_raw_mode(found.st_mode) == FileType::RegularFile;
        is_file.then_some(Self {
            device: found.st_dev,
            inode: found.st_ino,
            size: found.st_size,
            modified: (found.st_mtime, found.st_mtime_nsec),
            changed: (found.st_ctime, found.st_ctime_nsec),
            is_own: user.is_root() || user.as_raw() == found.st_uid,
        })
    }
}

/// A file that was changed so little time before it was read may be changed again without being
/// told from what was read: systems count such times in steps.
const FRESH: Duration = Duration::from_secs(1);

/// A file that is compared.
#[derive(Debug)]
struct ComparedFile {
    state: FileState,
    /// Its state says too little: it is read again.
    is_fresh: bool,
}

impl ComparedFile {
    /// That is about to be read.
    fn new(state: FileState) -> Self {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let settled = now.unwrap_or_default().saturating_sub(FRESH).as_secs();
        Self {
            is_fresh: u64::try_from(state.changed.0).is_ok_and(|changed| changed >= settled),
            state,
        }
    }
}

/// The files that are compared, and which of their blocks are the sender's.
#[derive(Debug)]
pub(super) struct Compared {
    files: BTreeMap<usize, ComparedFile>,
    /// What was read of them: the CRC32C of each block.
    crcs: BTreeMap<u64, u32>,
    /// Blocks that the sender says it has the same.
    same: Mutex<BlockSet>,
    open: OpenDirectories,
}

impl Compared {
    /// Reads the files, and says what lies in them. `unchanged` are kept as they are.
    ///
    /// # Errors
    /// It is to stop. What can't be read is not compared.
    pub(super) fn find(
        directory: &Beneath,
        offer: &StreamOffer,
        unchanged: &BlockSet,
        kept: &mut Kept,
        stop: &Stop,
    ) -> Result<Self, SinkError> {
        let mut this = Self {
            files: BTreeMap::new(),
            crcs: BTreeMap::new(),
            same: Mutex::new(BlockSet::new(offer.plan.blocks())),
            open: OpenDirectories::default(),
        };
        let mut buffer = Vec::new();
        for (number, entry) in offer.manifest.iter().enumerate() {
            stop.check()?;
            if entry.kind != EntryKind::File || unchanged.contains(number as u64) {
                continue;
            }
            let Ok(Some((file, state))) = this.open(directory, &entry) else {
                continue;
            };
            if u64::try_from(state.size) != Ok(entry.size) {
                continue;
            }
            this.files.insert(number, ComparedFile::new(state));
            for index in offer.plan.of_entry(number) {
                stop.check()?;
                let Some(block) = offer.plan.get(index) else {
                    continue;
                };
                // What a stream that was cut has left of it is gone on with.
                if kept.blocks().contains(index) {
                    continue;
                }
                buffer.resize(block.len as usize, 0);
                if file.read_exact_at(&mut buffer, block.offset).is_err() {
                    break;
                }
                this.crcs.insert(index, crc32c(&buffer));
                kept.add_compared(offer, &block, &buffer);
            }
        }
        Ok(this)
    }

    /// The file of an entry, if it is a regular one.
    fn open(
        &self,
        directory: &Beneath,
        entry: &Entry<'_>,
    ) -> io::Result<Option<(File, FileState)>> {
        let (parent, last) = split(entry.name.as_bytes());
        let parent = self.open.get(directory, parent, false)?;
        let file = parent.open_here(last, OFlags::RDONLY, Mode::empty())?;
        let state = FileState::of(&fstat(&file)?);
        Ok(state.map(|state| (File::from(file), state)))
    }

    /// The file of an entry, if it is still what was read.
    fn open_same(
        &self,
        directory: &Beneath,
        (number, entry): (usize, &Entry<'_>),
    ) -> Option<(File, FileState)> {
        let found = self.open(directory, entry).ok().flatten();
        let read = self.files.get(&number).map(|read| read.state);
        found.filter(|(_, state)| read == Some(*state))
    }

    /// The sender has the same block. Whether it is still there, with this CRC32C.
    pub(super) fn keep(
        &self,
        directory: &Beneath,
        offer: &StreamOffer,
        (block, crc): (Block, u32),
    ) -> bool {
        let Some(entry) = offer.manifest.get(block.entry) else {
            return false;
        };
        let is_said = self.crcs.get(&block.index) == Some(&crc);
        let file = self.open_same(directory, (block.entry, &entry));
        let Some((file, _)) = file.filter(|_| is_said) else {
            return false;
        };
        let is_same = !self.is_fresh(block.entry) || is_in(&file, &block, crc, &mut Vec::new());
        if is_same {
            self.lock().insert(block.index);
        }
        is_same
    }

    fn is_fresh(&self, number: usize) -> bool {
        self.files.get(&number).is_none_or(|read| read.is_fresh)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BlockSet> {
        self.same.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All blocks came, or are kept: copies those that are kept to where the others of their files
    /// are. The entries of which nothing came: their files stay.
    ///
    /// # Errors
    /// A file was changed meanwhile, or the system refuses.
    pub(super) fn settle(
        &self,
        directory: &Beneath,
        offer: &StreamOffer,
        partials: &Partials,
        stop: &Stop,
    ) -> Result<BlockSet, SinkError> {
        let same = self.lock().clone();
        let mut stay = BlockSet::new(offer.manifest.len() as u64);
        let mut buffer = Vec::new();
        for (number, read) in &self.files {
            stop.check()?;
            let Some(entry) = offer.manifest.get(*number) else {
                continue;
            };
            let blocks = || offer.plan.of_entry(*number);
            let is_all = blocks().all(|index| same.contains(index));
            if !is_all && !blocks().any(|index| same.contains(index)) {
                continue;
            }
            let Some((file, _)) = self.open_same(directory, (*number, &entry)) else {
                return Err(changed(&entry));
            };
            // What is another user's can't be given times.
            let stays = is_all && read.state.is_own;
            if stays {
                stay.insert(*number as u64);
            }
            if stays && !read.is_fresh {
                continue;
            }
            for index in blocks().filter(|index| same.contains(*index)) {
                stop.check()?;
                let (Some(block), Some(crc)) = (offer.plan.get(index), self.crcs.get(&index))
                else {
                    continue;
                };
                if !is_in(&file, &block, *crc, &mut buffer) {
                    return Err(changed(&entry));
                }
                if !stays {
                    partials.write(block, *crc, &buffer)?;
                }
            }
        }
        Ok(stay)
    }

    /// Sees to it that the files that stay still are what they were.
    ///
    /// # Errors
    /// One was changed meanwhile.
    pub(super) fn check(
        &self,
        directory: &Beneath,
        offer: &StreamOffer,
        stay: &BlockSet,
    ) -> Result<(), SinkError> {
        for number in stay.ranges(0).flatten() {
            let entry = offer.manifest.get(number as usize);
            if let Some(entry) = entry
                && self
                    .open_same(directory, (number as usize, &entry))
                    .is_none()
            {
                return Err(changed(&entry));
            }
        }
        Ok(())
    }

    /// Gives a file that stays the sender's attributes, owner, rights and time, and puts it on the
    /// device if that is asked for.
    ///
    /// # Errors
    /// The system refuses.
    pub(super) fn dress(
        &self,
        directory: &Beneath,
        offer: &StreamOffer,
        (number, entry): (usize, &Entry<'_>),
        sync: bool,
    ) -> Result<(), SinkError> {
        let failed = |error: io::Error| SinkError::os(entry.name.as_bytes(), error);
        let Some((file, _)) = self.open(directory, entry).map_err(failed)? else {
            return Err(changed(entry));
        };
        dress(&file, offer, (number, entry))?;
        match sync {
            true => fsync(&file).map_err(|error| failed(error.into())),
            false => Ok(()),
        }
    }
}

/// Whether a block with this CRC32C lies in a file, in its place.
fn is_in(file: &File, block: &Block, crc: u32, buffer: &mut Vec<u8>) -> bool {
    buffer.resize(block.len as usize, 0);
    let read = file.read_exact_at(buffer, block.offset);
    read.is_ok() && crc32c(buffer) == crc
}

fn changed(entry: &Entry<'_>) -> SinkError {
    let name = &entry.name;
    let text = format!("{name}: it was changed here while the stream came: send it again");
    SinkError::Other(text)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::fs;
    use std::sync::Arc;

    use super::*;
    use crate::stream::sink::BlockSink;
    use crate::stream::{
        BlockPlan, DirectorySink, Manifest, Modified, RelativeName, StreamIdentity,
    };

    const BLOCK: usize = 4;

    /// A file of two blocks whose time nothing here has.
    fn offer() -> StreamOffer {
        let entry = Entry {
            name: RelativeName::new(b"file").expect("a name"),
            kind: EntryKind::File,
            mode: 0o640,
            size: 2 * BLOCK as u64,
            modified: Modified {
                seconds: 1000,
                nanoseconds: 5,
            },
            sparse: false,
        };
        let manifest = Manifest::new([entry]).expect("a manifest");
        StreamOffer {
            identity: StreamIdentity::default(),
            plan: Arc::new(BlockPlan::new(&manifest, BLOCK as u32)),
            manifest: Arc::new(manifest),
            crc32c: true,
            blake3: false,
            sync: true,
            read_back: false,
            restart: false,
            skip_unchanged: true,
            compare_content: true,
            delete: false,
        }
    }

    /// What becomes of `aaaabbbb` where the second block is said to be the same and the first one
    /// comes, or is the same, too; after `early` and before `late`, which somebody does meanwhile.
    fn kept(first_comes: bool, early: impl Fn(&str), late: impl Fn(&str)) -> Result<bool, String> {
        let to = tempfile::tempdir().expect("a directory");
        let path = to.path().join("file");
        fs::write(&path, "aaaabbbb").expect("written");
        let inode = |path: &std::path::Path| {
            use std::os::unix::fs::MetadataExt;
            fs::metadata(path).expect("it is there").ino()
        };
        let before = inode(&path);
        let text = path.to_str().expect("text");
        let (offer, stop) = (offer(), Stop::default());
        let sink = DirectorySink::new(to.path()).expect("it is there");
        let sink = sink.receiving(&offer);
        let had = sink.open(&offer, &stop).expect("opened");
        assert!(had.blocks().is_empty());
        early(text);
        let block = |index| offer.plan.get(index).expect("a block");
        let is_kept = sink.keep(block(1), crc32c(b"bbbb")).expect("no error");
        if !is_kept {
            sink.abandon();
            assert_eq!(fs::read_dir(to.path()).expect("there").count(), 1);
            return Ok(false);
        }
        assert!(!sink.keep(block(1), crc32c(b"bbbc")).expect("no error"));
        let wanted: &[u8] = match first_comes {
            true => {
                sink.write(block(0), crc32c(b"cccc"), b"cccc")
                    .expect("room");
                b"ccccbbbb"
            }
            false => {
                assert!(sink.keep(block(0), crc32c(b"aaaa")).expect("no error"));
                b"aaaabbbb"
            }
        };
        late(text);
        sink.finish(&stop).map_err(|error| error.to_string())?;
        assert_eq!(fs::read(&path).expect("it is there"), wanted);
        let found = rustix::fs::stat(&path).expect("it is there");
        let (time, mode) = ((found.st_mtime, found.st_mtime_nsec), found.st_mode & 0o777);
        assert_eq!((time, mode), ((1000, 5), 0o640));
        assert_eq!(inode(&path) == before, !first_comes, "another file");
        assert_eq!(fs::read_dir(to.path()).expect("there").count(), 1);
        Ok(true)
    }

    #[test]
    fn equal_blocks_are_kept_unless_somebody_changes_the_file() {
        let nothing = |_: &str| {};
        assert_eq!(kept(true, nothing, nothing), Ok(true));
        assert_eq!(kept(false, nothing, nothing), Ok(true));
        let change = |path: &str| fs::write(path, "aaaabbbX").expect("written");
        let replace = |path: &str| {
            fs::rename(path, format!("{path}.old")).expect("renamed");
            std::os::unix::fs::symlink(format!("{path}.old"), path).expect("linked");
            fs::remove_file(format!("{path}.old")).expect("removed");
        };
        let remove = |path: &str| fs::remove_file(path).expect("removed");
        assert_eq!(kept(true, change, nothing), Ok(false));
        assert_eq!(kept(true, replace, nothing), Ok(false));
        for first_comes in [true, false] {
            for late in [&change as &dyn Fn(&str), &replace, &remove] {
                let error = kept(first_comes, nothing, late).expect_err("it was changed");
                assert!(
                    error.contains("changed here while the stream came"),
                    "{error}"
                );
            }
        }
    }
}
