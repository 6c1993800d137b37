//! `Survey`: looks at everything that is to be sent, once: sizes, times, names.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};

use super::builder::{SourceLinks, SourcePart, TreeFilter};
use super::identity::Identity;
use super::{FileSource, ItemPlace, Skipped, SourceItem, TreeRoot};
use crate::storage::{BackEndChoice, DirectIo};
use crate::stream::attributes::ATTRIBUTE_BYTES_MAX;
use crate::stream::file_attributes::{NamedValue, read_attributes};
use crate::stream::open_files::OpenFiles;
use crate::stream::sink::beneath::{Beneath, OpenDirectories};
use crate::stream::source::relative;
use crate::stream::{Attribute, Entry, EntryKind, Manifest, Modified, Owner, SourceError};

/// Things that were left out and are remembered by their paths.
const SKIPPED_MAX: usize = 1000;

/// What was found so far.
#[derive(Debug, Default)]
pub(super) struct Survey {
    found: Vec<FoundEntry>,
    roots: Vec<SurveyRoot>,
    skipped: u64,
    skipped_paths: Vec<Skipped>,
    filter: TreeFilter,
    links: SourceLinks,
    says_attributes: bool,
    /// Bytes of the extended attributes that were found.
    attribute_bytes: u64,
}

/// A directory that is held open, and the name of what is in it.
#[derive(Debug)]
struct SurveyRoot {
    root: TreeRoot,
    name: Vec<u8>,
}

/// A directory that is still to be looked into.
#[derive(Debug)]
struct PendingDirectory {
    root: u32,
    /// Its name below the root.
    below: Vec<u8>,
    above: Option<Rc<DirectoriesAbove>>,
}

/// A directory and those that lead to it, as device and inode: a followed link to one of them would
/// lead around for ever.
#[derive(Debug)]
struct DirectoriesAbove {
    id: (u64, u64),
    above: Option<Rc<Self>>,
}

impl DirectoriesAbove {
    fn contains(&self, id: (u64, u64)) -> bool {
        let mut at = Some(self);
        while let Some(directory) = at {
            if directory.id == id {
                return true;
            }
            at = directory.above.as_deref();
        }
        false
    }
}

/// Something that a directory has.
#[derive(Debug)]
struct FoundName {
    /// In the stream.
    name: Vec<u8>,
    path: PathBuf,
    root: u32,
    /// Its name below the root.
    below: Vec<u8>,
    stat: Stat,
}

/// One entry of the manifest that is to be.
#[derive(Debug)]
struct FoundEntry {
    name: Vec<u8>,
    kind: EntryKind,
    mode: u32,
    owner: Owner,
    attributes: Vec<NamedValue>,
    size: u64,
    modified: (i64, i64),
    sparse: bool,
    item: SourceItem,
}

impl FoundEntry {
    fn entry(&self) -> Result<Entry<'_>, SourceError> {
        Ok(Entry {
            name: relative(OsStr::from_bytes(&self.name).as_ref(), &self.name)?,
            kind: self.kind,
            mode: (self.mode & 0o777) as u16,
            size: self.size,
            modified: Modified {
                seconds: self.modified.0,
                nanoseconds: u32::try_from(self.modified.1).unwrap_or(0),
            },
            sparse: self.sparse,
        })
    }
}

impl Survey {
    /// Nothing yet.
    pub(super) fn new(filter: TreeFilter, links: SourceLinks, says_attributes: bool) -> Self {
        Self {
            filter,
            links,
            says_attributes,
            ..Self::default()
        }
    }

    /// The manifest has an order of its own, and the items have it, too.
    pub(super) fn finish(
        mut self,
        direct: DirectIo,
        back_end: BackEndChoice,
        says_owners: bool,
    ) -> Result<FileSource, SourceError> {
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
        let entries: Result<Vec<_>, _> = self.found.iter().map(FoundEntry::entry).collect();
        let manifest = Manifest::new(entries?);
        let owners = self.found.iter().map(|found| found.owner).collect();
        let manifest = manifest.and_then(|manifest| match says_owners {
            true => manifest.with_owners(owners),
            false => Ok(manifest),
        });
        let attributes = self.found.iter().enumerate().flat_map(|(number, found)| {
            let named = found.attributes.iter();
            named.map(move |(name, value)| (number, Attribute { name, value }))
        });
        let manifest = manifest.and_then(|manifest| match self.says_attributes {
            true => manifest.with_attributes(attributes),
            false => Ok(manifest),
        });
        let manifest = manifest.map_err(|error| SourceError::Manifest(error.to_string()))?;
        let mut stamp = StampMaker::default();
        for found in &self.found {
            if let Some(identity) = &found.item.identity {
                stamp.add(identity, &(found.item.start..found.item.start + found.size));
            }
        }
        let mut source = FileSource {
            manifest,
            holes: BTreeMap::new(),
            items: self.found.into_iter().map(|found| found.item).collect(),
            roots: self.roots.into_iter().map(|root| root.root).collect(),
            stamp: stamp.finish(),
            skipped: self.skipped,
            skipped_paths: self.skipped_paths,
            filtered: self.filter.is_some(),
            direct,
            back_end,
            open: OpenFiles::default(),
        };
        source.find_holes();
        Ok(source)
    }

    pub(super) fn add_file(&mut self, part: &SourcePart) -> Result<(), SourceError> {
        let path = &part.path;
        let found = std::fs::metadata(path).map_err(|error| SourceError::os(path, &error))?;
        if !found.is_file() {
            return Err(SourceError::NoFile {
                path: path.as_path().into(),
            });
        }
        // Said now, not when half of the others are there.
        let file = File::open(path).map_err(|error| SourceError::os(path, &error))?;
        let attributes = self.attributes_of(file, path)?;
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
        self.found.push(FoundEntry {
            name: name.to_vec(),
            kind: EntryKind::File,
            mode: found.mode(),
            owner: Owner {
                user: found.uid(),
                group: found.gid(),
            },
            attributes,
            size: range.end - range.start,
            modified: identity.modified,
            sparse: has_holes(found.blocks(), found.len()),
            item: SourceItem {
                place: ItemPlace::Path(path.clone()),
                start: range.start,
                identity: Some(identity),
            },
        });
        Ok(())
    }

    pub(super) fn add_tree(&mut self, part: &SourcePart) -> Result<(), SourceError> {
        let path = &part.path;
        // The name of "." or "a/.." is that of what it leads to.
        let full = std::fs::canonicalize(path).map_err(|error| SourceError::os(path, &error))?;
        let top = full.file_name().map_or(&b"root"[..], OsStrExt::as_bytes);
        let root = self.open_root(path.clone(), top.to_vec())?;
        let mut pending = vec![PendingDirectory {
            root,
            below: Vec::new(),
            above: None,
        }];
        while let Some(directory) = pending.pop() {
            pending.extend(self.add_directory(&directory, top.len())?);
        }
        Ok(())
    }

    /// A directory by its path, which may lead anywhere: its number.
    fn open_root(&mut self, path: PathBuf, name: Vec<u8>) -> Result<u32, SourceError> {
        let directory = Beneath::open(&path).map_err(|error| SourceError::os(&path, &error))?;
        self.roots.push(SurveyRoot {
            name,
            root: TreeRoot {
                directory,
                open: OpenDirectories::default(),
                path,
            },
        });
        Ok(self.roots.len() as u32 - 1)
    }

    /// A directory and the files in it; the directories in it. The tree's own name has `top` bytes.
    fn add_directory(
        &mut self,
        of: &PendingDirectory,
        top: usize,
    ) -> Result<Vec<PendingDirectory>, SourceError> {
        let at = &self.roots[of.root as usize];
        let path = at.root.path.join(OsStr::from_bytes(&of.below));
        let name = joined(&at.name, &of.below);
        let failed = |error: io::Error| SourceError::os(&path, &error);
        let fd = at.root.directory.directory(&of.below, false);
        let fd = fd.map_err(failed)?;
        let own = rustix::fs::fstat(&fd).map_err(|error| failed(error.into()))?;
        let attributes = self.attributes_of(&fd, &path)?;
        self.found.push(FoundEntry {
            name: name.clone(),
            kind: EntryKind::Directory,
            mode: own.st_mode,
            owner: owner_of(&own),
            attributes,
            size: 0,
            modified: (own.st_mtime, own.st_mtime_nsec as i64),
            sparse: false,
            item: SourceItem {
                place: ItemPlace::Below(of.root, of.below.clone()),
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
        let above = Rc::new(DirectoriesAbove {
            id: (own.st_dev, own.st_ino),
            above: of.above.clone(),
        });
        let mut below = Vec::new();
        for last in names {
            let path = path.join(OsStr::from_bytes(&last));
            let stat = rustix::fs::statat(&fd, OsStr::from_bytes(&last), NOFOLLOW);
            let stat = stat.map_err(|error| SourceError::os(&path, &error.into()))?;
            let found = FoundName {
                name: joined(&name, &last),
                root: of.root,
                below: joined(&of.below, &last),
                path,
                stat,
            };
            below.extend(self.add_name(found, (&fd, &last), &above, top)?);
        }
        Ok(below)
    }

    /// Something in a directory: the directory, if it is one.
    fn add_name(
        &mut self,
        mut found: FoundName,
        (fd, last): (&OwnedFd, &[u8]),
        above: &Rc<DirectoriesAbove>,
        top: usize,
    ) -> Result<Option<PendingDirectory>, SourceError> {
        let is_link = FileType::from_raw_mode(found.stat.st_mode) == FileType::Symlink;
        let mut leads_nowhere = false;
        if is_link && self.links == SourceLinks::Follow {
            match rustix::fs::statat(fd, OsStr::from_bytes(last), AtFlags::empty()) {
                Ok(to) => found.stat = to,
                Err(_) => leads_nowhere = true,
            }
        }
        let kind = FileType::from_raw_mode(found.stat.st_mode);
        let entry_kind = match kind {
            FileType::Directory => EntryKind::Directory,
            FileType::Symlink => EntryKind::Link,
            _ => EntryKind::File,
        };
        let below_top: &Path = OsStr::from_bytes(&found.name[top + 1..]).as_ref();
        if !self.filter.takes(below_top, entry_kind) {
            return Ok(None);
        }
        match kind {
            FileType::Directory if is_link => {
                if above.contains((found.stat.st_dev, found.stat.st_ino)) {
                    self.skip(found.path, "a symbolic link to a directory that it lies in");
                    return Ok(None);
                }
                return Ok(Some(PendingDirectory {
                    root: self.open_root(found.path, found.name)?,
                    below: Vec::new(),
                    above: Some(Rc::clone(above)),
                }));
            }
            FileType::Directory => {
                return Ok(Some(PendingDirectory {
                    root: found.root,
                    below: found.below,
                    above: Some(Rc::clone(above)),
                }));
            }
            FileType::RegularFile => {
                let size = found.stat.st_size as u64;
                let attributes = self.attributes_at((fd, last), is_link, &found.path)?;
                self.push(found, EntryKind::File, size, is_link);
                if let Some(pushed) = self.found.last_mut() {
                    pushed.attributes = attributes;
                }
            }
            FileType::Symlink if self.links == SourceLinks::Keep => {
                let target = rustix::fs::readlinkat(fd, OsStr::from_bytes(last), Vec::new());
                let target = target.map_err(|error| SourceError::os(&found.path, &error.into()))?;
                match target.as_bytes().len() as u64 {
                    size @ 1..=EntryKind::LINK_MAX => {
                        self.push(found, EntryKind::Link, size, false)
                    }
                    _ => self.skip(found.path, "a symbolic link that is too long"),
                }
            }
            _ if leads_nowhere => self.skip(found.path, "a symbolic link that leads nowhere"),
            kind => self.skip(found.path, words_of(kind)),
        }
        Ok(None)
    }

    /// `is_followed`: it is what a link leads to.
    fn push(&mut self, found: FoundName, kind: EntryKind, size: u64, is_followed: bool) {
        let identity = Identity::of_stat(&found.stat);
        let has_holes = has_holes(found.stat.st_blocks as u64, identity.size);
        self.found.push(FoundEntry {
            name: found.name,
            kind,
            mode: found.stat.st_mode,
            owner: owner_of(&found.stat),
            attributes: Vec::new(),
            size,
            modified: identity.modified,
            sparse: kind == EntryKind::File && has_holes,
            item: SourceItem {
                place: match is_followed {
                    true => ItemPlace::Path(found.path),
                    false => ItemPlace::Below(found.root, found.below),
                },
                start: 0,
                identity: Some(identity),
            },
        });
    }

    /// The extended attributes of a file in a directory, where they are said.
    fn attributes_at(
        &mut self,
        (fd, last): (&OwnedFd, &[u8]),
        is_followed: bool,
        path: &Path,
    ) -> Result<Vec<NamedValue>, SourceError> {
        if !self.says_attributes {
            return Ok(Vec::new());
        }
        // A FIFO that is there meanwhile is not waited for.
        let mut flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
        flags.set(OFlags::NOFOLLOW, !is_followed);
        let file = rustix::fs::openat(fd, OsStr::from_bytes(last), flags, Mode::empty());
        let file = file.map_err(|error| SourceError::os(path, &error.into()))?;
        self.attributes_of(file, path)
    }

    /// Those of what is open.
    fn attributes_of(
        &mut self,
        file: impl AsFd,
        path: &Path,
    ) -> Result<Vec<NamedValue>, SourceError> {
        if !self.says_attributes {
            return Ok(Vec::new());
        }
        let found = read_attributes(file);
        let found = found.map_err(|error| SourceError::os(path, &error.into()))?;
        let lens = found.iter().map(|(name, value)| name.len() + value.len());
        self.attribute_bytes += lens.sum::<usize>() as u64;
        match self.attribute_bytes <= ATTRIBUTE_BYTES_MAX {
            true => Ok(found),
            // Said before they fill the memory.
            false => Err(SourceError::Other(format!(
                "{}: with those of this one, extended attributes have more than {} MiB: send \
                 fewer files at a time, or without --xattrs (FileSourceBuilder::attributes)",
                path.display(),
                ATTRIBUTE_BYTES_MAX >> 20
            ))),
        }
    }

    fn skip(&mut self, path: PathBuf, what: &'static str) {
        self.skipped += 1;
        if self.skipped_paths.len() < SKIPPED_MAX {
            self.skipped_paths.push(Skipped { path, what });
        }
    }
}

fn owner_of(found: &Stat) -> Owner {
    Owner {
        user: found.st_uid,
        group: found.st_gid,
    }
}

/// Whether a file of this size, which takes so many units of 512 bytes, has holes; a compressed one
/// seems to.
fn has_holes(units: u64, size: u64) -> bool {
    units.saturating_mul(512) < size
}

const NOFOLLOW: AtFlags = AtFlags::SYMLINK_NOFOLLOW;

/// What is neither sent nor looked into.
fn words_of(kind: FileType) -> &'static str {
    match kind {
        FileType::Symlink => "a symbolic link",
        FileType::Fifo => "a FIFO",
        FileType::Socket => "a socket",
        FileType::CharacterDevice | FileType::BlockDevice => "a device",
        _ => "neither a regular file nor a directory",
    }
}

fn joined(directory: &[u8], name: &[u8]) -> Vec<u8> {
    match (directory, name) {
        ([], name) => name.to_vec(),
        (directory, []) => directory.to_vec(),
        _ => [directory, b"/", name].concat(),
    }
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
