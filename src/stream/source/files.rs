//! `FileSource`: one file, a range of one, a list, or everything below a directory.

mod builder;
mod holes;
mod identity;
mod survey;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use self::holes::FileHoles;
use self::identity::{Identity, changed, check};
use super::{BlockSource, LeftOut, SourceError};
use crate::buffer::DeviceBuffer;
use crate::cuda::Stream;
use crate::storage::{
    BackEnd, BackEndChoice, DirectIo, Direction, FileHandle, IoOptions, IoStats, OpenOptions,
};
use crate::stream::Manifest;
use crate::stream::open_files::{OpenFile, OpenFiles, direct_for, is_moved_whole};
use crate::stream::sink::beneath::{Beneath, OpenDirectories, split};

pub use self::builder::{FileSourceBuilder, SourceLinks};

/// Files and directories that are sent.
///
/// A file goes under the last part of its path, a tree under that of its directory. Device files,
/// FIFOs and sockets in a tree are left out, and [counted](Self::skipped); so are symbolic links,
/// unless [it is asked](FileSourceBuilder::links) that they be kept or followed. What is
/// read is what was there when the source was built: a file that changed since fails the stream.
///
/// ```no_run
/// use fabricast::stream::FileSource;
/// let source = FileSource::builder().file("run1.h5").tree("calibration").build()?;
/// # Ok::<(), fabricast::stream::SourceError>(())
/// ```
#[derive(Debug)]
pub struct FileSource {
    manifest: Manifest,
    items: Vec<SourceItem>,
    /// Of the files that have some, by entry.
    holes: BTreeMap<usize, FileHoles>,
    roots: Vec<TreeRoot>,
    stamp: [u8; 16],
    skipped: u64,
    skipped_paths: Vec<Skipped>,
    /// A filter has chosen what is sent.
    filtered: bool,
    direct: DirectIo,
    back_end: BackEndChoice,
    open: OpenFiles,
}

/// Smaller files are not looked into: where files are compressed, each seems to have holes.
const HOLES_FROM: u64 = 64 << 10;

/// Holes that are known of all files together, at most: what is behind them is read.
const HOLES_MAX: usize = 1 << 20;

/// A directory that is sent with everything below it.
#[derive(Debug)]
struct TreeRoot {
    directory: Beneath,
    /// Those below it that were used last.
    open: OpenDirectories,
    path: PathBuf,
}

/// What an entry is on this side.
#[derive(Debug)]
struct SourceItem {
    place: ItemPlace,
    /// Where its bytes begin in the file.
    start: u64,
    /// The file's identity; `None`: a directory, whose content is in other entries.
    identity: Option<Identity>,
}

/// Something in a tree that is not sent.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Skipped {
    /// Where it is.
    pub path: PathBuf,
    /// The kind of file, in words: "a symbolic link".
    pub what: &'static str,
}

/// How it is opened.
#[derive(Debug)]
enum ItemPlace {
    Path(PathBuf),
    /// Below a directory that is held open: its number, and the name from there.
    Below(u32, Vec<u8>),
}

impl FileSource {
    /// Nothing yet.
    pub fn builder() -> FileSourceBuilder {
        FileSourceBuilder::default()
    }

    /// One file.
    ///
    /// # Errors
    /// As [`FileSourceBuilder::build`].
    pub fn file(path: impl Into<PathBuf>) -> Result<Self, SourceError> {
        Self::builder().file(path).build()
    }

    /// Everything below a directory.
    ///
    /// # Errors
    /// As [`FileSourceBuilder::build`].
    pub fn tree(path: impl Into<PathBuf>) -> Result<Self, SourceError> {
        Self::builder().tree(path).build()
    }

    /// How many things in trees are no files and no directories, and were left out.
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    /// The first 1,000 of them.
    pub fn skipped_paths(&self) -> &[Skipped] {
        &self.skipped_paths
    }

    fn item(&self, entry: usize) -> Result<&SourceItem, SourceError> {
        let item = self.items.get(entry);
        item.ok_or_else(|| SourceError::Other(format!("there is no entry {entry}")))
    }

    fn path_of(&self, item: &SourceItem) -> PathBuf {
        match &item.place {
            ItemPlace::Path(path) => path.clone(),
            ItemPlace::Below(_, name) => OsStr::from_bytes(name).into(),
        }
    }

    /// The error of something that was there when the source was built.
    fn failed(&self, item: &SourceItem, error: &io::Error) -> SourceError {
        let path = self.path_of(item);
        match error.raw_os_error() {
            Some(libc::ENOENT) => changed(&path, "it was removed"),
            _ => SourceError::os(&path, error),
        }
    }

    /// The directory that a name below a root lies in, and the last part of the name.
    fn parent_of<'a>(&self, root: u32, name: &'a [u8]) -> io::Result<(Arc<Beneath>, &'a OsStr)> {
        let root = &self.roots[root as usize];
        let (directory, last) = split(name);
        Ok((root.open.get(&root.directory, directory, false)?, last))
    }

    fn opened(&self, entry: usize) -> Result<Arc<OpenFile>, SourceError> {
        self.open.get(entry, || self.open_item(self.item(entry)?))
    }

    fn open_descriptor(&self, item: &SourceItem) -> io::Result<(OwnedFd, PathBuf)> {
        Ok(match &item.place {
            ItemPlace::Path(path) => (File::open(path)?.into(), path.clone()),
            ItemPlace::Below(root, name) => {
                let root = &self.roots[*root as usize];
                let fd = root
                    .directory
                    .open_file(name, OFlags::RDONLY, Mode::empty())?;
                (fd, root.path.join(OsStr::from_bytes(name)))
            }
        })
    }

    /// Looks where the files have holes that seem to have some. One that can't be opened, or is not
    /// what it was, is found out when it is read.
    fn find_holes(&mut self) {
        let mut left = HOLES_MAX;
        for entry in 0..self.items.len() {
            let item = &self.items[entry];
            let size = item.identity.map_or(0, |identity| identity.size);
            if !self.manifest.is_sparse(entry) || size < HOLES_FROM || left == 0 {
                continue;
            }
            let Ok((fd, _)) = self.open_descriptor(item) else {
                continue;
            };
            let now = rustix::fs::fstat(&fd)
                .ok()
                .map(|now| Identity::of_stat(&now));
            let Some(now) = now.filter(|now| item.identity == Some(*now)) else {
                continue;
            };
            let holes = FileHoles::of(fd.as_fd(), now.size, left);
            left -= holes.len();
            self.holes.insert(entry, holes);
        }
    }

    fn open_item(&self, item: &SourceItem) -> Result<FileHandle, SourceError> {
        let failed = |error: io::Error| self.failed(item, &error);
        let (fd, full) = self.open_descriptor(item).map_err(failed)?;
        let now = rustix::fs::fstat(&fd).map_err(|errno| failed(errno.into()))?;
        let now = Identity::of_stat(&now);
        check(|| self.path_of(item), item.identity, now)?;
        let direct = direct_for(self.direct, Direction::Read, now.size);
        let options = OpenOptions::new().direct(direct).back_end(self.back_end);
        Ok(options.take_over(full.into(), fd, OFlags::RDONLY)?)
    }

    /// Whether a read is that of a whole small file.
    fn is_whole(&self, item: &SourceItem, offset: u64, len: usize) -> bool {
        let size = item.identity.map_or(0, |identity| identity.size);
        offset == 0
            && item.start == 0
            && size == len as u64
            && is_moved_whole((self.direct, self.back_end), Direction::Read, size)
    }

    /// Reads a whole small file. It is looked at when it was read: what was read is then what was
    /// there when the source was built.
    fn read_whole(&self, item: &SourceItem, into: &mut [u8]) -> Result<(), SourceError> {
        let began = Instant::now();
        let failed = |error: io::Error| self.failed(item, &error);
        let fd: OwnedFd = match &item.place {
            ItemPlace::Path(path) => File::open(path).map_err(failed)?.into(),
            ItemPlace::Below(root, name) => {
                let (parent, last) = self.parent_of(*root, name).map_err(failed)?;
                let fd = parent.open_here(last, OFlags::RDONLY, Mode::empty());
                fd.map_err(failed)?
            }
        };
        let read = read_up_to(fd.as_fd(), into);
        let bytes = read.as_ref().ok().map(|bytes| *bytes as u64);
        let counts = self.open.counts();
        counts.add_whole(Direction::Read, began, bytes);
        let now = rustix::fs::fstat(&fd).map_err(|errno| failed(errno.into()))?;
        check(
            || self.path_of(item),
            item.identity,
            Identity::of_stat(&now),
        )?;
        match read.map_err(failed)? == into.len() {
            true => Ok(()),
            false => Err(changed(&self.path_of(item), "it became shorter")),
        }
    }

    /// Reads a part of what a link points to.
    fn read_link(
        &self,
        item: &SourceItem,
        offset: u64,
        into: &mut [u8],
    ) -> Result<(), SourceError> {
        let failed = |error: io::Error| self.failed(item, &error);
        let ItemPlace::Below(root, name) = &item.place else {
            return Err(failed(io::ErrorKind::InvalidInput.into()));
        };
        let (parent, last) = self.parent_of(*root, name).map_err(failed)?;
        let target = match rustix::fs::readlinkat(parent.fd(), last, Vec::new()) {
            // It is no link any more.
            Err(Errno::INVAL) => {
                let how = "it was replaced by another file";
                return Err(changed(&self.path_of(item), how));
            }
            target => target.map_err(|error| failed(error.into()))?,
        };
        check(|| self.path_of(item), item.identity, self.look(item)?)?;
        let part = target.as_bytes().get(offset as usize..);
        match part.and_then(|part| part.get(..into.len())) {
            Some(part) => {
                into.copy_from_slice(part);
                Ok(())
            }
            None => Err(changed(&self.path_of(item), "it became shorter")),
        }
    }

    fn look(&self, item: &SourceItem) -> Result<Identity, SourceError> {
        let found = match &item.place {
            ItemPlace::Path(path) => std::fs::metadata(path).map(|found| Identity::of(&found)),
            ItemPlace::Below(root, name) => self
                .parent_of(*root, name)
                .and_then(|(parent, last)| parent.stat_here(last))
                .map(|found| Identity::of_stat(&found)),
        };
        found.map_err(|error| self.failed(item, &error))
    }
}

impl BlockSource for FileSource {
    fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    fn stamp(&self) -> [u8; 16] {
        self.stamp
    }

    fn read(&self, entry: usize, offset: u64, into: &mut [u8]) -> Result<(), SourceError> {
        let item = self.item(entry)?;
        if self.manifest.is_link(entry) {
            return self.read_link(item, offset, into);
        }
        if self.is_whole(item, offset, into.len()) {
            return self.read_whole(item, into);
        }
        let read = self.opened(entry)?.read(into, item.start + offset)?;
        match read.bytes == into.len() {
            true => Ok(()),
            false => Err(changed(&self.path_of(item), "it became shorter")),
        }
    }

    fn is_hole(&self, entry: usize, offset: u64, len: usize) -> bool {
        let (Some(holes), Some(item)) = (self.holes.get(&entry), self.items.get(entry)) else {
            return false;
        };
        let begin = item.start + offset;
        holes.contain(&(begin..begin + len as u64))
    }

    fn read_to_device(
        &self,
        entry: usize,
        offset: u64,
        into: &mut DeviceBuffer,
        host: &mut [u8],
        stream: &Stream,
    ) -> Result<BackEnd, SourceError> {
        let item = self.item(entry)?;
        if self.manifest.is_link(entry) {
            self.read_link(item, offset, host)?;
            into.copy_from_host(host, stream)?;
            return Ok(BackEnd::Staged);
        }
        let options = IoOptions {
            // Nothing else was given the buffer.
            sync_default_stream: Some(false),
            ..IoOptions::default()
        };
        let file = self.opened(entry)?;
        let moved = file.read_into(into, .., item.start + offset, &options)?;
        match moved.bytes == into.len() {
            true => Ok(moved.back_end),
            false => Err(changed(&self.path_of(item), "it became shorter")),
        }
    }

    fn io_stats(&self) -> Option<IoStats> {
        Some(self.open.io_stats())
    }

    fn check_unchanged(&self) -> Result<(), SourceError> {
        for item in &self.items {
            if item.identity.is_some() {
                check(|| self.path_of(item), item.identity, self.look(item)?)?;
            }
        }
        Ok(())
    }

    fn left_out(&self) -> LeftOut {
        match self.skipped {
            0 if self.filtered => LeftOut::ByFilter,
            0 => LeftOut::Nothing,
            skipped => LeftOut::Skipped(skipped),
        }
    }
}

/// As many bytes as are asked for, or as there are.
fn read_up_to(fd: BorrowedFd<'_>, into: &mut [u8]) -> io::Result<usize> {
    let mut read = 0;
    while read < into.len() {
        match rustix::io::read(fd, &mut into[read..]) {
            Ok(0) => break,
            Ok(bytes) => read += bytes,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(read)
}
