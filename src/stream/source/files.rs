//! `FileSource`: one file, a range of one, a list, or everything below a directory.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{FileType, OFlags};

use super::{BlockSource, SourceError};
use crate::buffer::DeviceBuffer;
use crate::cuda::Stream;
use crate::storage::{BackEnd, DirectIo, FileHandle, IoOptions, OpenOptions};
use crate::stream::sink::beneath::Beneath;
use crate::stream::{Entry, EntryKind, Manifest, Modified, RelativeName};

/// Files that are held open for the next block of theirs.
const OPEN_MAX: usize = 32;

/// From so many bytes on a file is worth a [`FileHandle`], with O_DIRECT and its back ends; below,
/// one pread(2) has it all.
const HANDLE_FROM: u64 = 1 << 20;

/// Files and directories that are sent.
///
/// A file goes under the last part of its path, a tree under that of its directory. Symbolic links
/// in a tree, device files, FIFOs and sockets are left out, and [counted](Self::skipped). What is
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
    items: Vec<Item>,
    roots: Vec<Beneath>,
    stamp: [u8; 16],
    skipped: u64,
    skipped_paths: Vec<Skipped>,
    direct: DirectIo,
    open: Mutex<VecDeque<(usize, Arc<Opened>)>>,
}

/// What an entry is on this side.
#[derive(Debug)]
struct Item {
    place: Place,
    /// Where its bytes begin in the file.
    start: u64,
    /// None: a directory, whose content is in other entries.
    identity: Option<Identity>,
}

/// Something in a tree that is not sent.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Skipped {
    /// Where it is.
    pub path: PathBuf,
    /// What it is, in words: "a symbolic link".
    pub what: &'static str,
}

/// Things that were left out and are remembered by their paths.
const SKIPPED_MAX: usize = 1000;

/// How it is opened.
#[derive(Debug)]
enum Place {
    Path(PathBuf),
    /// Below a directory that is held open: its number, and the name from there.
    Below(u32, Vec<u8>),
}

/// What changes when a file does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
}

#[derive(Debug)]
enum Opened {
    Small(File),
    Large(FileHandle),
}

impl FileSource {
    /// Nothing yet.
    pub fn builder() -> FileSourceBuilder {
        FileSourceBuilder {
            parts: Vec::new(),
            direct: DirectIo::Auto,
        }
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

    fn item(&self, entry: usize) -> Result<&Item, SourceError> {
        let item = self.items.get(entry);
        item.ok_or_else(|| SourceError::Other(format!("there is no entry {entry}")))
    }

    fn path_of(&self, item: &Item) -> PathBuf {
        match &item.place {
            Place::Path(path) => path.clone(),
            Place::Below(_, name) => std::ffi::OsStr::from_bytes(name).into(),
        }
    }

    fn opened(&self, entry: usize) -> Result<Arc<Opened>, SourceError> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = open.iter().position(|(known, _)| *known == entry)
            && let Some(found) = open.remove(at)
        {
            let opened = Arc::clone(&found.1);
            open.push_back(found);
            return Ok(opened);
        }
        drop(open);
        let opened = Arc::new(self.open_item(self.item(entry)?)?);
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        // Another thread was faster: one handle is enough, and this one was not used.
        if let Some((_, theirs)) = open.iter().find(|(known, _)| *known == entry) {
            return Ok(Arc::clone(theirs));
        }
        if open.len() >= OPEN_MAX {
            open.pop_front();
        }
        open.push_back((entry, Arc::clone(&opened)));
        Ok(opened)
    }

    fn open_item(&self, item: &Item) -> Result<Opened, SourceError> {
        let path = self.path_of(item);
        let failed = |error: io::Error| match error.raw_os_error() {
            Some(libc::ENOENT) => changed(&path, "it was removed"),
            _ => SourceError::os(&path, &error),
        };
        let fd: OwnedFd = match &item.place {
            Place::Path(path) => File::open(path).map_err(failed)?.into(),
            Place::Below(root, name) => self.roots[*root as usize]
                .open_file(name, OFlags::RDONLY)
                .map_err(failed)?,
        };
        let file = File::from(fd);
        let now = Identity::of(&file.metadata().map_err(failed)?);
        check(&path, item.identity, now)?;
        if now.size < HANDLE_FROM {
            return Ok(Opened::Small(file));
        }
        let options = OpenOptions::new().direct(self.direct);
        Ok(Opened::Large(options.from_fd(file.into())?))
    }

    fn look(&self, item: &Item) -> Result<Identity, SourceError> {
        let path = self.path_of(item);
        let failed = |error: &io::Error| match error.raw_os_error() {
            Some(libc::ENOENT) => changed(&path, "it was removed"),
            _ => SourceError::os(&path, error),
        };
        match &item.place {
            Place::Path(path) => {
                let found = std::fs::metadata(path).map_err(|error| failed(&error))?;
                Ok(Identity::of(&found))
            }
            Place::Below(root, name) => {
                let found = self.roots[*root as usize].stat(name);
                Ok(Identity::of_stat(&found.map_err(|error| failed(&error))?))
            }
        }
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
        let offset = item.start + offset;
        let opened = self.opened(entry)?;
        let done = match &*opened {
            Opened::Small(file) => match file.read_exact_at(into, offset) {
                Ok(()) => true,
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => false,
                Err(error) => return Err(SourceError::os(&self.path_of(item), &error)),
            },
            Opened::Large(file) => file.read(into, offset)?.bytes == into.len(),
        };
        match done {
            true => Ok(()),
            false => Err(changed(&self.path_of(item), "it became shorter")),
        }
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
        let opened = self.opened(entry)?;
        let Opened::Large(file) = &*opened else {
            self.read(entry, offset, host)?;
            into.copy_from_host(host, stream)?;
            return Ok(BackEnd::Staged);
        };
        let options = IoOptions {
            // Nothing else was given the buffer.
            sync_default_stream: Some(false),
            ..IoOptions::default()
        };
        let moved = file.read_into(into, .., item.start + offset, &options)?;
        match moved.bytes == into.len() {
            true => Ok(moved.back_end),
            false => Err(changed(&self.path_of(item), "it became shorter")),
        }
    }

    fn check_unchanged(&self) -> Result<(), SourceError> {
        for item in &self.items {
            if item.identity.is_some() {
                check(&self.path_of(item), item.identity, self.look(item)?)?;
            }
        }
        Ok(())
    }
}

fn changed(path: &Path, how: &'static str) -> SourceError {
    let what = path.display().to_string();
    SourceError::Changed { what, how }
}

fn check(path: &Path, then: Option<Identity>, now: Identity) -> Result<(), SourceError> {
    let Some(then) = then else { return Ok(()) };
    if (then.device, then.inode) != (now.device, now.inode) {
        return Err(changed(path, "it was replaced by another file"));
    }
    if then.size != now.size {
        let shorter = now.size < then.size;
        return Err(changed(
            path,
            if shorter {
                "it became shorter"
            } else {
                "it became longer"
            },
        ));
    }
    if then.modified != now.modified {
        return Err(changed(path, "it was written to"));
    }
    Ok(())
}

impl Identity {
    fn of(found: &std::fs::Metadata) -> Self {
        Self {
            device: found.dev(),
            inode: found.ino(),
            size: found.size(),
            modified: (found.mtime(), found.mtime_nsec()),
        }
    }

    fn of_stat(found: &rustix::fs::Stat) -> Self {
        Self {
            device: found.st_dev,
            inode: found.st_ino,
            size: found.st_size as u64,
            modified: (found.st_mtime, found.st_mtime_nsec as i64),
        }
    }
}

/// What a [`FileSource`] is to be made of.
#[derive(Debug, Clone)]
pub struct FileSourceBuilder {
    parts: Vec<Part>,
    direct: DirectIo,
}

#[derive(Debug, Clone)]
struct Part {
    path: PathBuf,
    /// None: the last part of its path.
    name: Option<String>,
    range: Option<Range<u64>>,
    tree: bool,
}

impl FileSourceBuilder {
    /// A file, under the last part of its path.
    #[must_use]
    pub fn file(self, path: impl Into<PathBuf>) -> Self {
        self.part(path.into(), None, None, false)
    }

    /// A file, under another name: relative, with '/' between its parts.
    #[must_use]
    pub fn file_as(self, path: impl Into<PathBuf>, name: impl Into<String>) -> Self {
        self.part(path.into(), Some(name.into()), None, false)
    }

    /// Some bytes of a file, as a file of their own.
    #[must_use]
    pub fn range(self, path: impl Into<PathBuf>, bytes: Range<u64>) -> Self {
        self.part(path.into(), None, Some(bytes), false)
    }

    /// A directory, and everything below it.
    #[must_use]
    pub fn tree(self, path: impl Into<PathBuf>) -> Self {
        self.part(path.into(), None, None, true)
    }

    /// A file or a directory with everything below it, whichever is there.
    #[must_use]
    pub fn path(self, path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        let tree = path.is_dir();
        self.part(path, None, None, tree)
    }

    /// Whether large files are read around the page cache.
    #[must_use]
    pub fn direct(mut self, direct: DirectIo) -> Self {
        self.direct = direct;
        self
    }

    fn part(
        mut self,
        path: PathBuf,
        name: Option<String>,
        range: Option<Range<u64>>,
        tree: bool,
    ) -> Self {
        self.parts.push(Part {
            path,
            name,
            range,
            tree,
        });
        self
    }

    /// Looks at everything once: sizes, times, names.
    ///
    /// # Errors
    /// A path that is not there or can't be read, a name that can't be sent or comes twice, or
    /// nothing at all.
    pub fn build(self) -> Result<FileSource, SourceError> {
        if self.parts.is_empty() {
            return Err(SourceError::Empty);
        }
        let mut survey = Survey::default();
        for part in &self.parts {
            match part.tree {
                true => survey.add_tree(part)?,
                false => survey.add_file(part)?,
            }
        }
        survey.finish(self.direct)
    }
}

/// What was found so far.
#[derive(Debug, Default)]
struct Survey {
    found: Vec<Found>,
    roots: Vec<Beneath>,
    skipped: u64,
    skipped_paths: Vec<Skipped>,
}

/// One entry of the manifest that is to be.
#[derive(Debug)]
struct Found {
    name: Vec<u8>,
    kind: EntryKind,
    mode: u32,
    size: u64,
    modified: (i64, i64),
    item: Item,
}

impl Found {
    fn entry(&self) -> Result<Entry<'_>, SourceError> {
        Ok(Entry {
            name: relative(std::ffi::OsStr::from_bytes(&self.name).as_ref(), &self.name)?,
            kind: self.kind,
            mode: (self.mode & 0o777) as u16,
            size: self.size,
            modified: Modified {
                seconds: self.modified.0,
                nanoseconds: u32::try_from(self.modified.1).unwrap_or(0),
            },
        })
    }
}

impl Survey {
    /// The manifest has an order of its own, and the items have it, too.
    fn finish(mut self, direct: DirectIo) -> Result<FileSource, SourceError> {
        for found in &self.found {
            found.entry()?;
        }
        self.found.sort_by(|a, b| {
            let (a, b) = (
                a.name.split(|byte| *byte == b'/'),
                b.name.split(|byte| *byte == b'/'),
            );
            a.cmp(b)
        });
        let entries: Result<Vec<_>, _> = self.found.iter().map(Found::entry).collect();
        let manifest = Manifest::new(entries?);
        let manifest = manifest.map_err(|error| SourceError::Manifest(error.to_string()))?;
        let mut stamp = StampMaker::default();
        for found in &self.found {
            if let Some(identity) = &found.item.identity {
                stamp.add(identity, &(found.item.start..found.item.start + found.size));
            }
        }
        Ok(FileSource {
            manifest,
            items: self.found.into_iter().map(|found| found.item).collect(),
            roots: self.roots,
            stamp: stamp.finish(),
            skipped: self.skipped,
            skipped_paths: self.skipped_paths,
            direct,
            open: Mutex::new(VecDeque::new()),
        })
    }

    fn add_file(&mut self, part: &Part) -> Result<(), SourceError> {
        let path = &part.path;
        let found = std::fs::metadata(path).map_err(|error| SourceError::os(path, &error))?;
        if !found.is_file() {
            return Err(SourceError::NoFile {
                path: path.as_path().into(),
            });
        }
        // Said now, not when half of the others are there.
        File::open(path).map_err(|error| SourceError::os(path, &error))?;
        let name = part.name.as_deref().map(str::as_bytes);
        let last = path.file_name().unwrap_or(path.as_os_str()).as_bytes();
        let name = name.unwrap_or(last);
        let identity = Identity::of(&found);
        let whole = 0..identity.size;
        let range = part.range.clone().unwrap_or(whole);
        if range.start > range.end || range.end > identity.size {
            return Err(SourceError::Other(format!(
                "{}: bytes {} to {} of a file of {}",
                path.display(),
                range.start,
                range.end,
                identity.size
            )));
        }
        self.found.push(Found {
            name: name.to_vec(),
            kind: EntryKind::File,
            mode: found.mode(),
            size: range.end - range.start,
            modified: identity.modified,
            item: Item {
                place: Place::Path(path.clone()),
                start: range.start,
                identity: Some(identity),
            },
        });
        Ok(())
    }

    fn add_tree(&mut self, part: &Part) -> Result<(), SourceError> {
        let path = &part.path;
        let failed = |error: io::Error| SourceError::os(path, &error);
        // The name of "." or "a/.." is that of what it leads to.
        let full = std::fs::canonicalize(path).map_err(failed)?;
        let root = Beneath::open(path).map_err(failed)?;
        let top = full
            .file_name()
            .map_or(&b"root"[..], OsStrExt::as_bytes)
            .to_vec();
        let number = self.roots.len() as u32;
        let mut directories = vec![Vec::new()];
        while let Some(directory) = directories.pop() {
            let below = self.add_directory(path, &root, number, (&top, &directory))?;
            directories.extend(below);
        }
        self.roots.push(root);
        Ok(())
    }

    /// A directory and the files in it; the names of the directories in it.
    fn add_directory(
        &mut self,
        base: &Path,
        root: &Beneath,
        number: u32,
        (top, directory): (&[u8], &[u8]),
    ) -> Result<Vec<Vec<u8>>, SourceError> {
        let path = base.join(std::ffi::OsStr::from_bytes(directory));
        let failed = |error: io::Error| SourceError::os(&path, &error);
        let fd = root.directory(directory, false).map_err(failed)?;
        let own = rustix::fs::fstat(&fd).map_err(|error| failed(error.into()))?;
        self.found.push(Found {
            name: joined(top, directory),
            kind: EntryKind::Directory,
            mode: own.st_mode,
            size: 0,
            modified: (own.st_mtime, own.st_mtime_nsec as i64),
            item: Item {
                place: Place::Below(number, directory.to_vec()),
                start: 0,
                identity: None,
            },
        });
        let mut names = Vec::new();
        for found in rustix::fs::Dir::read_from(&fd).map_err(|error| failed(error.into()))? {
            let found = found.map_err(|error| failed(error.into()))?;
            let name = found.file_name().to_bytes();
            if name != b"." && name != b".." {
                names.push(name.to_vec());
            }
        }
        let mut below = Vec::new();
        for name in names {
            let full = joined(directory, &name);
            let path = path.join(std::ffi::OsStr::from_bytes(&name));
            let flags = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
            let stat = rustix::fs::statat(&fd, std::ffi::OsStr::from_bytes(&name), flags);
            let stat = stat.map_err(|error| SourceError::os(&path, &error.into()))?;
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory => below.push(full),
                FileType::RegularFile => {
                    let identity = Identity::of_stat(&stat);
                    self.found.push(Found {
                        name: joined(top, &full),
                        kind: EntryKind::File,
                        mode: stat.st_mode,
                        size: identity.size,
                        modified: identity.modified,
                        item: Item {
                            place: Place::Below(number, full),
                            start: 0,
                            identity: Some(identity),
                        },
                    });
                }
                kind => self.skip(path, kind),
            }
        }
        Ok(below)
    }
}

impl Survey {
    fn skip(&mut self, path: PathBuf, kind: FileType) {
        self.skipped += 1;
        if self.skipped_paths.len() < SKIPPED_MAX {
            let what = match kind {
                FileType::Symlink => "a symbolic link",
                FileType::Fifo => "a FIFO",
                FileType::Socket => "a socket",
                FileType::CharacterDevice | FileType::BlockDevice => "a device",
                _ => "neither a regular file nor a directory",
            };
            self.skipped_paths.push(Skipped { path, what });
        }
    }
}

fn joined(directory: &[u8], name: &[u8]) -> Vec<u8> {
    match (directory, name) {
        ([], name) => name.to_vec(),
        (directory, []) => directory.to_vec(),
        _ => [directory, b"/", name].concat(),
    }
}

fn relative<'a>(path: &Path, name: &'a [u8]) -> Result<RelativeName<'a>, SourceError> {
    RelativeName::new(name).map_err(|reason| SourceError::Name {
        path: path.into(),
        reason,
    })
}

/// A manifest of one entry that is no file here.
pub(super) fn single(name: &str, size: u64) -> Result<Manifest, SourceError> {
    let entry = Entry {
        kind: EntryKind::File,
        mode: 0o644,
        size,
        modified: Modified::default(),
        name: relative(Path::new(name), name.as_bytes())?,
    };
    Manifest::new([entry]).map_err(|error| SourceError::Manifest(error.to_string()))
}

/// What tells one state of many files from another.
#[derive(Debug, Default)]
struct StampMaker(blake3::Hasher);

impl StampMaker {
    fn add(&mut self, identity: &Identity, range: &Range<u64>) {
        let numbers = [
            identity.device,
            identity.inode,
            identity.size,
            identity.modified.0 as u64,
            identity.modified.1 as u64,
            range.start,
            range.end,
        ];
        for number in numbers {
            self.0.update(&number.to_le_bytes());
        }
    }

    fn finish(&self) -> [u8; 16] {
        let mut stamp = [0; 16];
        stamp.copy_from_slice(&self.0.finalize().as_bytes()[..16]);
        stamp
    }
}
