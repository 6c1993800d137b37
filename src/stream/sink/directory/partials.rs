//! `Partials`: the files of a stream that is not whole yet, and the journal of what is in them.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use rustix::fs::{
    Advice, AtFlags, FallocateFlags, Mode, OFlags, fadvise, fdatasync, fstat, ftruncate,
};
use rustix::io::Errno;

use super::journal_file::{JOURNAL, JournalFile, read_journal};
use super::links::{LinkTargets, make_link};
use super::{FileAccess, dress};
use crate::buffer::DeviceBuffer;
use crate::clock::Clock;
use crate::storage::{
    BackEnd, DirectIo, Direction, FileError, FileErrorKind, FileHandle, FileOperation, IoOptions,
    IoStats, OpenOptions,
};
use crate::stream::block_set::BlockSet;
use crate::stream::digest::crc32c;
use crate::stream::journal::{JournalError, JournalHeader};
use crate::stream::open_files::{
    DEVICE_FILE_MIN, FileCounts, OpenFile, OpenFiles, direct_for, is_moved_whole,
};
use crate::stream::sink::beneath::{Beneath, OpenDirectories, split};
use crate::stream::sink::{Kept, ReadBack, SinkError, Stop, StreamOffer};
use crate::stream::{Block, CheckedBlock, Entry, EntryKind};

/// Where files lie in the hidden directory.
const TREE: &str = "tree";

/// Files that are made before the first of them is written: one thread makes some while another one
/// writes. They are open at a time, by each thread.
const MADE_AT_ONCE: usize = 32;

/// Zeros of a file with holes are left out where they fill this many bytes, which is as small as
/// what virtual machines' images are made of.
const HOLE: usize = 64 << 10;

/// The rights of its owner that a file needs to be gone on with.
const OWN_MODE: u16 = 0o600;

/// The files of a stream that is not whole yet, as a tree with the names that they are to have.
#[derive(Debug)]
pub(super) struct Partials {
    work: Beneath,
    /// Where the files lie in it, below the directories that they are to have.
    tree: Beneath,
    /// Those below the tree that were used last.
    directories: OpenDirectories,
    offer: StreamOffer,
    files: OpenFiles,
    access: FileAccess,
    links: LinkTargets,
    /// Held while a file is made: the kernel makes one at a time in a directory, and threads that
    /// waited for that in the kernel would spend the processor's time on it.
    making: Mutex<()>,
    /// Entries that are what they are to be under their names: nothing is left to do at the end.
    finished: Mutex<BlockSet>,
    /// Entries that are at the target already, and of which nothing is here.
    left_out: Mutex<BlockSet>,
    journal: Mutex<JournalFile>,
    clock: Clock,
}

impl Partials {
    /// Finds what an earlier stream left, or begins anew. What is done with the files is added to
    /// `counts`.
    pub(super) fn open(
        work: OwnedFd,
        offer: &StreamOffer,
        (access, links, counts): (FileAccess, LinkTargets, Arc<FileCounts>),
        clock: Clock,
    ) -> Result<Self, SinkError> {
        let work = Beneath::of(work);
        let header = JournalHeader::new(offer.identity, &offer.manifest, &offer.plan);
        let known = match read_journal(work.fd(), &header)? {
            _ if offer.restart => None,
            Ok((_, end)) => Some(end),
            Err(JournalError::SourceChanged) => return Err(SinkError::SourceChanged),
            Err(_) => None,
        };
        if known.is_none() {
            clear(&work).map_err(|error| SinkError::os(JOURNAL.as_bytes(), error))?;
        }
        let journal = JournalFile::open(work.fd(), &header, known, clock.clone())?;
        let tree = work.directory(TREE.as_bytes(), true);
        let tree = tree.map_err(|error| SinkError::os(TREE.as_bytes(), error))?;
        Ok(Self {
            work,
            tree: Beneath::of(tree),
            directories: OpenDirectories::default(),
            offer: offer.clone(),
            files: OpenFiles::counting_into(counts),
            access,
            links,
            making: Mutex::new(()),
            finished: Mutex::new(BlockSet::new(offer.manifest.len() as u64)),
            left_out: Mutex::new(BlockSet::new(offer.manifest.len() as u64)),
            journal: Mutex::new(journal),
            clock,
        })
    }

    /// What was done with the files so far.
    pub(super) fn io_stats(&self) -> IoStats {
        self.files.io_stats()
    }

    /// The directory of this name below the tree, made if that is asked for.
    ///
    /// # Errors
    /// As [`Beneath::directory`].
    pub(super) fn directory(&self, name: &[u8], make: bool) -> io::Result<Arc<Beneath>> {
        self.directories.get(&self.tree, name, make)
    }

    /// The tree, whose content is on the device when its file system is synced.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.tree.fd()
    }

    /// Which of the blocks that the journal names are there, byte for byte.
    pub(super) fn prove(&self, stop: &Stop) -> Result<Kept, SinkError> {
        let offer = &self.offer;
        let mut kept = Kept::new(offer);
        self.check_each(stop, |place, crc, bytes| {
            if crc32c(bytes) == crc {
                kept.add_summed(offer, &place, bytes, crc);
            }
        })?;
        Ok(kept)
    }

    /// Reads the blocks that the journal names, as far as they are there; each with the checksum
    /// that it is to have.
    fn check_each(
        &self,
        stop: &Stop,
        mut check: impl FnMut(Block, u32, &[u8]),
    ) -> Result<(), SinkError> {
        let offer = &self.offer;
        let header = JournalHeader::new(offer.identity, &offer.manifest, &offer.plan);
        let Ok((claims, _)) = read_journal(self.work.fd(), &header)? else {
            return Ok(());
        };
        let mut buffer = Vec::new();
        for index in claims.blocks().ranges(0).flatten() {
            stop.check()?;
            if let (Some(place), Some(crc)) = (offer.plan.get(index), claims.crc(index))
                && self.read_block(place, &mut buffer)
            {
                check(place, crc, &buffer);
            }
        }
        Ok(())
    }

    /// Whether all of a block is there.
    fn read_block(&self, place: Block, buffer: &mut Vec<u8>) -> bool {
        buffer.resize(place.len as usize, 0);
        let file = self.file(place.entry, false);
        let read = file.map(|file| file.read(buffer, place.offset));
        matches!(read, Ok(Ok(read)) if read.bytes == buffer.len())
    }

    pub(super) fn write(&self, place: Block, crc: u32, bytes: &[u8]) -> Result<(), SinkError> {
        self.write_all(&[CheckedBlock::new(place, crc, bytes)])
    }

    /// Writes blocks. Small files, each of which is one block, are made with all that they are to
    /// have under their names, and let go of.
    pub(super) fn write_all(&self, blocks: &[CheckedBlock<'_>]) -> Result<(), SinkError> {
        let mut finished = Vec::with_capacity(blocks.len());
        for checked in blocks {
            self.check_link(checked)?;
        }
        for group in blocks.chunks(MADE_AT_ONCE) {
            for (checked, made) in group.iter().zip(self.make_whole_files(group)?) {
                match made {
                    Some((file, entry)) => {
                        self.fill(&file, (checked.block.entry, &entry), checked.bytes)?;
                        finished.push(checked.block.entry);
                    }
                    None => self.write_part(checked.block, checked.bytes)?,
                }
            }
        }
        self.set_finished(finished);
        self.record(blocks.iter().map(|checked| (checked.block, checked.crc)))
    }

    /// Says early that a link is one that is not made, where a block has all of its target.
    fn check_link(&self, checked: &CheckedBlock<'_>) -> Result<(), SinkError> {
        let (manifest, number) = (&self.offer.manifest, checked.block.entry);
        match manifest.is_link(number).then(|| manifest.get(number)) {
            Some(Some(entry)) if entry.size == checked.bytes.len() as u64 => {
                self.links.check(entry.name, checked.bytes)
            }
            _ => Ok(()),
        }
    }

    /// Makes the files of which these blocks are all there is; `None`: it is not one of these.
    fn make_whole_files(
        &self,
        blocks: &[CheckedBlock<'_>],
    ) -> Result<Vec<Option<(File, Entry<'_>)>>, SinkError> {
        let entries = blocks.iter().map(|checked| self.whole_entry(checked));
        let entries: Vec<_> = entries.collect();
        if entries.iter().all(Option::is_none) {
            return Ok(entries.iter().map(|_| None).collect());
        }
        let _making = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        let made = entries.into_iter().map(|entry| {
            let Some(entry) = entry else { return Ok(None) };
            let made = self.make_whole(&entry);
            let made = made.map_err(|error| SinkError::os(entry.name.as_bytes(), error))?;
            Ok(made.map(|file| (file, entry)))
        });
        made.collect()
    }

    /// The entry of a small file of which a block is all there is.
    fn whole_entry(&self, checked: &CheckedBlock<'_>) -> Option<Entry<'_>> {
        let access = (self.access.direct, self.access.back_end);
        let entry = self.offer.manifest.get(checked.block.entry)?;
        let is_all = checked.block.offset == 0 && entry.size == checked.bytes.len() as u64;
        let is_whole = is_all && is_made_with_rights(&entry) && !entry.sparse;
        (is_whole && is_moved_whole(access, Direction::Write, entry.size)).then_some(entry)
    }

    /// A new file; `None`: an earlier stream left one here, which is written as larger files are.
    fn make_whole(&self, entry: &Entry<'_>) -> io::Result<Option<File>> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let mode = Mode::from_raw_mode(entry.mode.into());
        let (directory, last) = split(entry.name.as_bytes());
        let directory = self.directory(directory, true)?;
        match directory.open_here(last, flags, mode) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(None),
            made => Ok(Some(File::from(made?))),
        }
    }

    fn fill(
        &self,
        mut file: &File,
        (number, entry): (usize, &Entry<'_>),
        bytes: &[u8],
    ) -> Result<(), SinkError> {
        let began = Instant::now();
        let written = file.write_all(bytes);
        let written = written.map_err(|error| SinkError::os(entry.name.as_bytes(), error));
        let written = written.and_then(|()| dress(file, &self.offer, (number, entry)));
        let moved = written.as_ref().ok().map(|()| entry.size);
        let counts = self.files.counts();
        counts.add_whole(Direction::Write, began, moved);
        written
    }

    fn set_finished(&self, entries: impl IntoIterator<Item = usize>) {
        let mut finished = self.finished.lock().unwrap_or_else(PoisonError::into_inner);
        for entry in entries {
            finished.insert(entry as u64);
        }
    }

    fn write_part(&self, place: Block, bytes: &[u8]) -> Result<(), SinkError> {
        let file = self.file(place.entry, true)?;
        let options = IoOptions {
            direct: Some(self.access.direct),
            ..IoOptions::default()
        };
        let write = |bytes: &[u8], offset: u64| {
            let written = file.write_with(bytes, offset, &options);
            written.map_err(|error| self.file_error(place.entry, error))
        };
        if !self.offer.manifest.is_sparse(place.entry) {
            write(bytes, place.offset)?;
            return Ok(());
        }
        let ends = (HOLE..bytes.len()).step_by(HOLE).chain([bytes.len()]);
        let mut begin = 0;
        let pieces: Vec<_> = ends
            .map(|end| {
                (
                    end,
                    is_zeros(&bytes[std::mem::replace(&mut begin, end)..end]),
                )
            })
            .collect();
        let mut begin = 0;
        for run in pieces.chunk_by(|(_, a), (_, b)| a == b) {
            let (end, is_hole) = run[run.len() - 1];
            let offset = place.offset + begin as u64;
            if !is_hole || !self.punch(&file, place.entry, offset, end - begin)? {
                write(&bytes[begin..end], offset)?;
            }
            begin = end;
        }
        Ok(())
    }

    /// Makes a hole, whatever was there; whether the file system can.
    fn punch(
        &self,
        file: &OpenFile,
        entry: usize,
        offset: u64,
        len: usize,
    ) -> Result<bool, SinkError> {
        let file = file.file(FileOperation::Write);
        let file = file.map_err(|error| self.file_error(entry, error))?;
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(rustix::fs::fallocate(file.buffered(), flags, offset, len as u64).is_ok())
    }

    /// Writes a block out of a GPU's memory.
    pub(super) fn write_from_device(
        &self,
        place: Block,
        crc: u32,
        from: &DeviceBuffer,
    ) -> Result<BackEnd, SinkError> {
        let file = self.file(place.entry, true)?;
        let options = IoOptions {
            // Nothing else was given the buffer.
            sync_default_stream: Some(false),
            ..IoOptions::default()
        };
        let moved = file.write_from(from, .., place.offset, &options);
        let moved = moved.map_err(|error| self.file_error(place.entry, error))?;
        self.record([(place, crc)])?;
        Ok(moved.back_end)
    }

    fn file_error(&self, entry: usize, error: FileError) -> SinkError {
        let name = self.name(entry);
        match error.kind {
            FileErrorKind::Os { errno } => SinkError::Os { what: name, errno },
            kind => SinkError::Other(format!("{name}: {kind}")),
        }
    }

    /// Blocks are written: the journal says so, some time.
    fn record(&self, blocks: impl IntoIterator<Item = (Block, u32)>) -> Result<(), SinkError> {
        match self.offer.crc32c {
            true => self.journal().record(blocks),
            false => Ok(()),
        }
    }

    /// What was written is in the journal.
    pub(super) fn flush(&self) -> Result<(), SinkError> {
        self.journal().flush()
    }

    fn journal(&self) -> std::sync::MutexGuard<'_, JournalFile> {
        self.journal.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Every block once more, from the device as far as the kernel can be asked for that.
    pub(super) fn read_back(&self, stop: &Stop) -> Result<ReadBack, SinkError> {
        let began = self.clock.now();
        self.sync_each()?;
        let files = self.offer.manifest.iter().enumerate();
        for (number, _) in files.filter(|(_, entry)| entry.size > 0) {
            // It is advice: where it is not taken, the page cache is what is read.
            let drop_pages = |fd: BorrowedFd<'_>| fadvise(fd, 0, None, Advice::DontNeed);
            let _ = self.with_descriptor(number, false, drop_pages)?;
        }
        let mut right = BlockSet::new(self.offer.plan.blocks());
        self.check_each(stop, |place, crc, bytes| {
            if crc32c(bytes) == crc {
                right.insert(place.index);
            }
        })?;
        if !right.is_full() {
            let wrong = self
                .offer
                .plan
                .iter()
                .find(|block| !right.contains(block.index));
            let (entry, block) = wrong.map_or((0, 0), |block| (block.entry, block.index));
            let what = self.name(entry);
            return Err(SinkError::ReadBack { what, block });
        }
        Ok(ReadBack {
            bytes: self.offer.manifest.bytes(),
            took: self.clock.since(began),
        })
    }

    /// These entries are at the target already: nothing of them comes.
    pub(super) fn leave_out(&self, entries: BlockSet) {
        self.set_finished(entries.ranges(0).flatten().map(|number| number as usize));
        *self.left_out.lock().unwrap_or_else(PoisonError::into_inner) = entries;
    }

    /// These are, too: all of them has been found there.
    pub(super) fn leave_out_too(&self, entries: &BlockSet) {
        self.set_finished(entries.ranges(0).flatten().map(|number| number as usize));
        let mut left_out = self.left_out.lock().unwrap_or_else(PoisonError::into_inner);
        for range in entries.ranges(0) {
            left_out.insert_range(range);
        }
    }

    /// The entries that are at the target already.
    pub(super) fn left_out(&self) -> BlockSet {
        let left_out = self.left_out.lock().unwrap_or_else(PoisonError::into_inner);
        left_out.clone()
    }

    pub(super) fn sync_each(&self) -> Result<(), SinkError> {
        let left_out = self.left_out();
        let files = self.offer.manifest.iter().enumerate();
        let files = files.filter(|(number, _)| !left_out.contains(*number as u64));
        // A link is synced with the directory that it lies in.
        for (number, entry) in files.filter(|(_, entry)| entry.size > 0 && !is_link(entry)) {
            let synced = self.with_descriptor(number, false, |fd| fdatasync(fd))?;
            synced.map_err(|error| SinkError::os(entry.name.as_bytes(), error))?;
        }
        Ok(())
    }

    /// The files that are not yet what they are to be under their names.
    pub(super) fn unfinished(&self) -> impl Iterator<Item = (usize, Entry<'_>)> {
        let finished = self.finished.lock().unwrap_or_else(PoisonError::into_inner);
        let finished = finished.clone();
        let entries = self.offer.manifest.iter().enumerate();
        entries.filter(move |(number, entry)| {
            entry.kind != EntryKind::Directory && !finished.contains(*number as u64)
        })
    }

    /// Makes the file of an entry what it is to be under its name: its length, rights and times; of
    /// a link, the link.
    pub(super) fn finish(&self, number: usize, entry: Entry<'_>) -> Result<(), SinkError> {
        if is_link(&entry) {
            return self.finish_link(number, entry);
        }
        let os = |error| SinkError::os(entry.name.as_bytes(), error);
        // One without bytes was never written; any other one is there.
        if entry.size == 0
            && is_made_with_rights(&entry)
            && let Some(file) = self.make_whole(&entry).map_err(os)?
        {
            return dress(&file, &self.offer, (number, &entry));
        }
        let finished = self.with_descriptor(number, entry.size == 0, |fd| {
            let sized = fstat(fd).and_then(|found| match u64::try_from(found.st_size) {
                Ok(size) if size == entry.size => Ok(()),
                _ => ftruncate(fd, entry.size),
            });
            sized.map_err(|error| os(error.into()))?;
            dress(fd, &self.offer, (number, &entry))
        })?;
        finished?;
        self.files.close(number);
        Ok(())
    }

    /// Makes a link of the file that has its target.
    fn finish_link(&self, number: usize, entry: Entry<'_>) -> Result<(), SinkError> {
        // No more than LINK_MAX.
        let mut target = vec![0; entry.size as usize];
        let read = self.with_descriptor(number, false, |fd| {
            File::from(fd.try_clone_to_owned()?).read_exact_at(&mut target, 0)
        })?;
        read.map_err(|error| SinkError::os(entry.name.as_bytes(), error))?;
        self.files.close(number);
        self.links.check(entry.name, &target)?;
        let (directory, last) = split(entry.name.as_bytes());
        let owner = self.offer.manifest.owner(number);
        let made = self.directory(directory, false);
        let made = made.and_then(|directory| make_link(&directory, last, &target, (&entry, owner)));
        made.map_err(|error| SinkError::os(entry.name.as_bytes(), error))
    }

    /// All is where it belongs: what is left goes.
    pub(super) fn remove(&self) {
        // What can't be removed hurts nobody.
        let _ = clear(&self.work);
    }

    fn name(&self, entry: usize) -> String {
        let entry = self.offer.manifest.get(entry);
        entry.map_or_else(String::new, |entry| entry.name.to_string())
    }

    fn file(&self, entry: usize, make: bool) -> Result<Arc<OpenFile>, SinkError> {
        self.files.get(entry, || self.open_file(entry, make))
    }

    fn open_file(&self, entry: usize, make: bool) -> Result<FileHandle, SinkError> {
        let fd = self.open_descriptor(entry, make)?;
        let size = self.offer.manifest.size(entry).unwrap_or(0);
        if make {
            let made = match self.offer.manifest.is_sparse(entry) {
                // Holes are read as zeros up to its end, and take no room.
                true => ftruncate(&fd, size).map_err(io::Error::from),
                false => self.make_room(fd.as_fd(), size),
            };
            made.map_err(|error| SinkError::os(self.name(entry).as_bytes(), error))?;
        }
        // What comes out of a GPU's memory may go around the page cache whatever holds for the
        // host's.
        let direct = match self.access.direct {
            DirectIo::Off if size >= DEVICE_FILE_MIN => DirectIo::Auto,
            direct => direct_for(direct, Direction::Write, size),
        };
        let options = OpenOptions::new().direct(direct);
        let options = options.back_end(self.access.back_end);
        let path = PathBuf::from(self.name(entry)).into();
        let opened = options.take_over(path, fd, OFlags::RDWR);
        opened.map_err(|error| self.file_error(entry, error))
    }

    fn open_descriptor(&self, entry: usize, make: bool) -> Result<OwnedFd, SinkError> {
        let (flags, mode) = match make {
            true => (OFlags::RDWR | OFlags::CREATE, Mode::from_raw_mode(0o600)),
            false => (OFlags::RDWR, Mode::empty()),
        };
        let Some(entry) = self.offer.manifest.get(entry) else {
            return Err(SinkError::Other(format!("there is no entry {entry}")));
        };
        let (directory, last) = split(entry.name.as_bytes());
        let opened = self.directory(directory, make).and_then(|directory| {
            let lock = || self.making.lock().unwrap_or_else(PoisonError::into_inner);
            let _making = make.then(lock);
            match directory.open_file(last.as_bytes(), flags, mode) {
                // It was finished, and could not be placed.
                Err(error) if make && is_link(&entry) && error.raw_os_error() == ELOOP => {
                    rustix::fs::unlinkat(directory.fd(), last, AtFlags::empty())?;
                    directory.open_file(last.as_bytes(), flags, mode)
                }
                opened => opened,
            }
        });
        opened.map_err(|error| SinkError::os(entry.name.as_bytes(), error))
    }

    /// Does something with a file as a whole: by the descriptor that its blocks went through, if
    /// that is still open, so that an error of writing back is not missed.
    fn with_descriptor<T>(
        &self,
        entry: usize,
        make: bool,
        work: impl FnOnce(BorrowedFd<'_>) -> T,
    ) -> Result<T, SinkError> {
        let Some(file) = self.files.find(entry) else {
            return Ok(work(self.open_descriptor(entry, make)?.as_fd()));
        };
        let file = file.file(FileOperation::Stat);
        let file = file.map_err(|error| self.file_error(entry, error))?;
        Ok(work(file.buffered()))
    }

    /// Where the file system can say beforehand whether there is room, it is asked; small files are
    /// not worth the call.
    fn make_room(&self, file: BorrowedFd<'_>, size: u64) -> io::Result<()> {
        if size <= u64::from(self.offer.plan.block_bytes()) || rustix::fs::fstat(file)?.st_size > 0
        {
            return Ok(());
        }
        // Of files in memory the pages are made by who writes them, side by side; beforehand one
        // thread would make all of them.
        let system = rustix::fs::fstatfs(file)?;
        if system.f_type == libc::TMPFS_MAGIC {
            let free = system.f_bavail.saturating_mul(system.f_bsize as u64);
            // Without a limit it has 0 blocks.
            return match system.f_blocks > 0 && free < size {
                true => Err(Errno::NOSPC.into()),
                false => Ok(()),
            };
        }
        match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, size) {
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

const ELOOP: Option<i32> = Some(libc::ELOOP);

/// Whether it is made with the rights that it is to have: not what its owner may not write, which
/// would be left to be gone on with.
fn is_made_with_rights(entry: &Entry<'_>) -> bool {
    entry.kind == EntryKind::File && entry.mode & OWN_MODE == OWN_MODE
}

fn is_link(entry: &Entry<'_>) -> bool {
    entry.kind == EntryKind::Link
}

/// Whether a piece of at most [`HOLE`] bytes has only zeros.
fn is_zeros(piece: &[u8]) -> bool {
    static ZEROS: [u8; HOLE] = [0; HOLE];
    // Most data differs at once.
    *piece == ZEROS[..piece.len()]
}

/// Removes all that is in the hidden directory. However deep its tree is, two directories are open
/// at a time.
pub(super) fn clear(work: &Beneath) -> io::Result<()> {
    // Each behind the one that it lies in.
    let mut directories = vec![Vec::new()];
    let mut at = 0;
    while at < directories.len() {
        let name = directories[at].clone();
        at += 1;
        let directory = Beneath::of(work.directory(&name, false)?);
        for found in rustix::fs::Dir::read_from(directory.fd())? {
            let found = found?;
            let last = found.file_name();
            if [&b"."[..], b".."].contains(&last.to_bytes()) {
                continue;
            }
            match rustix::fs::unlinkat(directory.fd(), last, AtFlags::empty()) {
                Ok(()) => {}
                Err(Errno::ISDIR | Errno::PERM) if name.is_empty() => {
                    directories.push(last.to_bytes().to_vec());
                }
                Err(Errno::ISDIR | Errno::PERM) => {
                    directories.push([&name, &b"/"[..], last.to_bytes()].concat());
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
    for name in directories.iter().skip(1).rev() {
        let (above, last) = split(name);
        let above = work.directory(above, false)?;
        rustix::fs::unlinkat(above, last, AtFlags::REMOVEDIR)?;
    }
    Ok(())
}
