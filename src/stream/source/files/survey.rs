//! `Survey`: looks at everything that is to be sent, once: sizes, times, names.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::FileType;

use super::builder::{SourcePart, TreeFilter};
use super::identity::Identity;
use super::{FileSource, ItemPlace, Skipped, SourceItem, TreeRoot};
use crate::storage::{BackEndChoice, DirectIo};
use crate::stream::open_files::OpenFiles;
use crate::stream::sink::beneath::{Beneath, OpenDirectories};
use crate::stream::source::relative;
use crate::stream::{Entry, EntryKind, Manifest, Modified, SourceError};

/// Things that were left out and are remembered by their paths.
const SKIPPED_MAX: usize = 1000;

/// What was found so far.
#[derive(Debug, Default)]
pub(super) struct Survey {
    found: Vec<FoundEntry>,
    roots: Vec<TreeRoot>,
    skipped: u64,
    skipped_paths: Vec<Skipped>,
    filter: TreeFilter,
}

/// One entry of the manifest that is to be.
#[derive(Debug)]
struct FoundEntry {
    name: Vec<u8>,
    kind: EntryKind,
    mode: u32,
    size: u64,
    modified: (i64, i64),
    item: SourceItem,
}

impl FoundEntry {
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
    /// Nothing yet.
    pub(super) fn new(filter: TreeFilter) -> Self {
        Self {
            filter,
            ..Self::default()
        }
    }

    /// The manifest has an order of its own, and the items have it, too.
    pub(super) fn finish(
        mut self,
        direct: DirectIo,
        back_end: BackEndChoice,
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
            back_end,
            open: OpenFiles::default(),
        })
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
        self.found.push(FoundEntry {
            name: name.to_vec(),
            kind: EntryKind::File,
            mode: found.mode(),
            size: range.end - range.start,
            modified: identity.modified,
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
        self.roots.push(TreeRoot {
            directory: root,
            open: OpenDirectories::default(),
            path: path.clone(),
        });
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
        self.found.push(FoundEntry {
            name: joined(top, directory),
            kind: EntryKind::Directory,
            mode: own.st_mode,
            size: 0,
            modified: (own.st_mtime, own.st_mtime_nsec as i64),
            item: SourceItem {
                place: ItemPlace::Below(number, directory.to_vec()),
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
            let below_top: &Path = std::ffi::OsStr::from_bytes(&full).as_ref();
            let takes = |kind| self.filter.takes(below_top, kind);
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory if !takes(EntryKind::Directory) => {}
                FileType::Directory => below.push(full),
                _ if !takes(EntryKind::File) => {}
                FileType::RegularFile => {
                    let identity = Identity::of_stat(&stat);
                    self.found.push(FoundEntry {
                        name: joined(top, &full),
                        kind: EntryKind::File,
                        mode: stat.st_mode,
                        size: identity.size,
                        modified: identity.modified,
                        item: SourceItem {
                            place: ItemPlace::Below(number, full),
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
