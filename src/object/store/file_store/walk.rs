//! A list of what lies below a directory, in the order of the bytes of the names.
//!
//! Of each directory on the way, all entries are read and sorted; one that has a directory's name
//! is sorted as if it ended with `/`, as the names in it have that there. What can't be in the
//! list is neither opened nor asked about.
//!
//! However deep a name is, only the innermost directory is open: the others are opened again, by
//! their path below the root, when something in them is asked about.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::super::{ListPage, ListQuery, ListedObject, ObjectName, StoreError};
use super::beneath::Beneath;
use super::file_tag;
use crate::storage::{AtomicFile, retry};

/// Ends before its end when it is needed no more.
pub(super) fn list(
    beneath: &Beneath,
    query: &ListQuery,
    is_needed: &dyn Fn() -> bool,
) -> Result<ListPage, StoreError> {
    let mut walk = Walk {
        beneath,
        query,
        is_needed,
        page: ListPage::default(),
        path: String::new(),
    };
    if query.limit > 0 {
        walk.directory()?;
    }
    Ok(walk.page)
}

/// Whether to go on.
#[derive(PartialEq, Eq)]
enum Next {
    Go,
    Stop,
}

struct Walk<'q> {
    beneath: &'q Beneath,
    query: &'q ListQuery,
    is_needed: &'q dyn Fn() -> bool,
    page: ListPage,
    /// The directory that is being read, as names in it begin: empty, or with `/` at its end.
    path: String,
}

impl Walk<'_> {
    fn directory(&mut self) -> Result<Next, StoreError> {
        let Some(directory) = self.open()? else {
            return Ok(Next::Go);
        };
        let mut entries = self.entries(&directory)?;
        entries.sort_unstable();
        let mut open = Some(directory);
        for entry in entries {
            if !(self.is_needed)() {
                return Ok(Next::Stop);
            }
            if entry.ends_with('/') {
                // Those below it are opened one by one: it need not be, meanwhile.
                open = None;
            } else if open.is_none() {
                open = self.open()?;
            }
            let before = self.path.len();
            self.path.push_str(&entry);
            let next = match &open {
                None if entry.ends_with('/') => self.directory(),
                None => Ok(Next::Go),
                Some(directory) => self.file(directory, &entry),
            };
            self.path.truncate(before);
            if next? == Next::Stop {
                return Ok(Next::Stop);
            }
        }
        Ok(Next::Go)
    }

    /// The directory of the path. `None`: it has gone, is something else by now, or is nobody's
    /// business.
    fn open(&self) -> Result<Option<OwnedFd>, StoreError> {
        match self.beneath.open_directory(&self.path) {
            Ok(directory) => Ok(Some(directory)),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::ACCESS)
                if !self.path.is_empty() =>
            {
                Ok(None)
            }
            Err(errno) => Err(errno.into()),
        }
    }

    /// The entries that can be in the list, or lead to what can; directories end with `/`.
    fn entries(&self, directory: &OwnedFd) -> Result<Vec<String>, StoreError> {
        let mut entries = Vec::new();
        for entry in Dir::read_from(directory)? {
            let entry = entry?;
            if !(self.is_needed)() {
                break;
            }
            // Names that are no UTF-8 can't be said.
            let Ok(name) = entry.file_name().to_str() else {
                continue;
            };
            if matches!(name, "." | "..") || AtomicFile::is_temporary(name) {
                continue;
            }
            let file_type = match entry.file_type() {
                FileType::Unknown => type_of(directory, name)?,
                known => known,
            };
            match file_type {
                FileType::Directory if self.may_lead_on(name) => entries.push(format!("{name}/")),
                FileType::RegularFile if self.query.takes(&format!("{}{name}", self.path)) => {
                    entries.push(name.to_owned());
                }
                _ => {}
            }
        }
        Ok(entries)
    }

    /// Whether names that begin with that of this directory can be in the list.
    fn may_lead_on(&self, name: &str) -> bool {
        let path = format!("{}{name}/", self.path);
        let (prefix, after) = (&self.query.prefix, &self.query.start_after);
        (path.starts_with(prefix) || prefix.starts_with(&path))
            && (path > *after || after.starts_with(&path))
            && path.len() < ObjectName::LEN_MAX
    }

    fn file(&mut self, parent: &OwnedFd, entry: &str) -> Result<Next, StoreError> {
        let Ok(name) = ObjectName::new(&self.path) else {
            return Ok(Next::Go);
        };
        if self.page.objects.len() == self.query.limit {
            self.page.more = true;
            return Ok(Next::Stop);
        }
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::NOFOLLOW;
        let flags = flags | OFlags::CLOEXEC;
        match retry(|| rustix::fs::openat(parent, entry, flags, Mode::empty())) {
            Ok(file) => self.add(name, &file),
            Err(Errno::NOENT | Errno::LOOP | Errno::NXIO | Errno::ACCESS) => Ok(Next::Go),
            Err(errno) => Err(errno.into()),
        }
    }

    fn add(&mut self, name: ObjectName, file: impl AsFd) -> Result<Next, StoreError> {
        let stat = rustix::fs::fstat(&file)?;
        if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile {
            let info = file_tag::info_of(&file, &stat);
            self.page.objects.push(ListedObject {
                name,
                size: info.size,
                etag: info.etag,
                modified: info.modified,
            });
        }
        Ok(Next::Go)
    }
}

/// On a file system that does not say it with the name.
fn type_of(directory: &OwnedFd, name: &str) -> Result<FileType, StoreError> {
    match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(FileType::from_raw_mode(stat.st_mode)),
        Err(Errno::NOENT) => Ok(FileType::Unknown),
        Err(errno) => Err(errno.into()),
    }
}
