//! `Beneath`: files and directories below one directory, and nothing else.
//!
//! openat2(2) resolves a whole name in the kernel (Linux 5.6). Where it is not there, or a filter
//! of system calls refuses it, a name is opened part by part, each without following a link. Names
//! have neither `..` nor empty parts, so the second way leads nowhere else either.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::{ObjectName, StoreError};
use crate::storage::retry;

/// How often the way to a new object is made anew, when others remove directories meanwhile.
const TRIES: u32 = 16;

/// A directory that everything is opened below.
#[derive(Debug)]
pub(super) struct Beneath {
    root: OwnedFd,
    /// openat2(2) is refused here.
    by_parts: AtomicBool,
}

const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY);

impl Beneath {
    pub(super) fn open(root: &Path) -> Result<Self, StoreError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = retry(|| rustix::fs::open(root, flags, Mode::empty()));
        let root = root.map_err(|errno| match errno {
            Errno::NOTDIR => StoreError::Failed("what is to be served is no directory".into()),
            errno => errno.into(),
        })?;
        let by_parts = AtomicBool::new(false);
        Ok(Self { root, by_parts })
    }

    /// A directory, to be listed: its parts with `/` behind each; none is the root itself.
    pub(super) fn open_directory(&self, path: &str) -> rustix::io::Result<OwnedFd> {
        let parts: Vec<_> = path.split_terminator('/').collect();
        self.open_below(&parts, OFlags::RDONLY | OFlags::DIRECTORY)
    }

    /// Makes a directory for this user alone; one that is there stays as it is.
    pub(super) fn make_private(&self, name: &str) -> Result<(), StoreError> {
        let mode = Mode::from_raw_mode(0o700);
        match retry(|| rustix::fs::mkdirat(&self.root, name, mode)) {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Removes a directory, if it is empty.
    pub(super) fn remove_empty(&self, name: &str) {
        let _ = rustix::fs::unlinkat(&self.root, name, AtFlags::REMOVEDIR);
    }

    /// A file of that name.
    pub(super) fn open_file(
        &self,
        name: &ObjectName,
        flags: OFlags,
    ) -> Result<OwnedFd, StoreError> {
        let parts: Vec<_> = name.parts().collect();
        Ok(self.open_below(&parts, flags)?)
    }

    /// The directory that a name's last part is in, and that part.
    pub(super) fn open_parent<'n>(
        &self,
        name: &'n ObjectName,
    ) -> Result<(OwnedFd, &'n str), StoreError> {
        let mut parts: Vec<_> = name.parts().collect();
        let last = parts.pop().unwrap_or_default();
        Ok((self.open_below(&parts, DIRECTORY)?, last))
    }

    /// The same; directories that are missing are made.
    pub(super) fn make_parent<'n>(
        &self,
        name: &'n ObjectName,
    ) -> Result<(OwnedFd, &'n str), StoreError> {
        let mut parts: Vec<_> = name.parts().collect();
        let last = parts.pop().unwrap_or_default();
        let mut made = Err(Errno::NOENT);
        for _ in 0..TRIES {
            made = self.open_below(&parts, DIRECTORY);
            if !matches!(made, Err(Errno::NOENT)) {
                break;
            }
            self.make_directories(&parts)?;
        }
        Ok((made?, last))
    }

    fn make_directories(&self, parts: &[&str]) -> Result<(), StoreError> {
        for end in 1..=parts.len() {
            let (last, before) = parts[..end].split_last().unwrap_or((&"", &[]));
            let made = self.open_below(before, DIRECTORY).and_then(|parent| {
                let mode = Mode::from_raw_mode(0o777);
                retry(|| rustix::fs::mkdirat(&parent, *last, mode))
            });
            match made {
                // NOENT: somebody removed what was just made; the caller tries again.
                Ok(()) | Err(Errno::EXIST | Errno::NOENT) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    /// Removes the directories of a name that are empty, from the innermost on.
    pub(super) fn prune(&self, name: &ObjectName) {
        let parts: Vec<_> = name.parts().collect();
        for end in (1..parts.len()).rev() {
            let Ok(parent) = self.open_below(&parts[..end - 1], DIRECTORY) else {
                return;
            };
            // Not empty: then the ones above are not, either.
            if rustix::fs::unlinkat(&parent, parts[end - 1], AtFlags::REMOVEDIR).is_err() {
                return;
            }
        }
    }

    fn open_below(&self, parts: &[&str], flags: OFlags) -> rustix::io::Result<OwnedFd> {
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        if !self.by_parts.load(Ordering::Relaxed) {
            match self.open_at_once(parts, flags) {
                Err(Errno::NOSYS | Errno::PERM) => self.by_parts.store(true, Ordering::Relaxed),
                opened => return opened,
            }
        }
        self.open_by_parts(parts, flags)
    }

    fn open_at_once(&self, parts: &[&str], flags: OFlags) -> rustix::io::Result<OwnedFd> {
        let path = match parts {
            [] => ".".into(),
            parts => parts.join("/"),
        };
        let resolve =
            ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        // AGAIN: a rename elsewhere made the kernel unsure.
        loop {
            match rustix::fs::openat2(&self.root, &path, flags, Mode::empty(), resolve) {
                Err(Errno::INTR | Errno::AGAIN) => {}
                opened => return opened,
            }
        }
    }

    fn open_by_parts(&self, parts: &[&str], flags: OFlags) -> rustix::io::Result<OwnedFd> {
        let Some((last, before)) = parts.split_last() else {
            return retry(|| rustix::fs::openat(&self.root, ".", flags, Mode::empty()));
        };
        let step = DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let mut at = None;
        for part in before {
            let from = at.as_ref().unwrap_or(&self.root);
            at = Some(retry(|| {
                rustix::fs::openat(from, *part, step, Mode::empty())
            })?);
        }
        let from = at.as_ref().unwrap_or(&self.root);
        retry(|| rustix::fs::openat(from, *last, flags, Mode::empty()))
    }

    /// As it is where openat2(2) is refused.
    #[cfg(all(test, not(loom)))]
    pub(super) fn without_openat2(&self) {
        self.by_parts.store(true, Ordering::Relaxed);
    }
}
