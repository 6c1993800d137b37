//! `Beneath`: one directory, and what lies below it; whatever a name says, nothing outside is
//! reached.
//!
//! Names are relative and have no `..` (`RelativeName`); what is left are symbolic links and mounts
//! that somebody else put there. The kernel is asked not to follow any (openat2(2)); where it does
//! not know that call, each part of a name is opened by itself, without following.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

/// Rights of directories that are made on the way; the umask takes some away.
const DIRECTORY_MODE: u32 = 0o777;

/// The kernel or a sandbox has no openat2(2): asked once.
static NO_OPENAT2: AtomicBool = AtomicBool::new(false);

/// A directory, held open: it stays the same one whatever is renamed meanwhile.
#[derive(Debug)]
pub(crate) struct Beneath(OwnedFd);

impl Beneath {
    /// Opens a directory by its path, which may lead anywhere: it is this process's own.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        Ok(Self(rustix::fs::open(path, flags, Mode::empty())?))
    }

    /// Whether names may be made in it.
    pub(crate) fn check_writable(&self) -> io::Result<()> {
        let access = rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK;
        Ok(rustix::fs::accessat(
            &self.0,
            ".",
            access,
            AtFlags::EACCESS,
        )?)
    }

    /// A directory that is open already.
    pub(crate) fn of(directory: OwnedFd) -> Self {
        Self(directory)
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Opens a file below, no symbolic link being followed on the way or at its end. `mode` is that
    /// of a file that is made (`OFlags::CREATE`).
    ///
    /// The descriptor has no O_NOFOLLOW, which cuFile refuses.
    pub(crate) fn open_file(&self, name: &[u8], flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
        // Opened in one direction, a FIFO would wait for its other end.
        let may_wait = !flags.contains(OFlags::RDWR);
        let mut flags = flags | OFlags::CLOEXEC | OFlags::NOCTTY;
        flags.set(OFlags::NONBLOCK, may_wait);
        let fd = match self.by_openat2(name, flags, mode) {
            Some(opened) => opened?,
            None => {
                let (parent, last) = self.parent(name, false)?;
                let checked = rustix::fs::openat(&parent, last, flags | OFlags::NOFOLLOW, mode)?;
                // The same file once more: a flag of a descriptor can't be taken away.
                let path = format!("/proc/self/fd/{}", checked.as_raw_fd());
                let flags = flags - OFlags::CREATE - OFlags::EXCL - OFlags::TRUNC;
                rustix::fs::open(path, flags, Mode::empty())?
            }
        };
        if may_wait {
            // Of the flags that can be changed it has no other one.
            rustix::fs::fcntl_setfl(&fd, OFlags::empty())?;
        }
        Ok(fd)
    }

    /// Opens what has this name right here; a symbolic link is not followed. `mode` is that of a
    /// file that is made (`OFlags::CREATE`).
    pub(crate) fn open_here(&self, name: &OsStr, flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
        // Whoever put a FIFO there is not waited for; a file has no use for the flag.
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
        Ok(rustix::fs::openat(&self.0, name, flags, mode)?)
    }

    /// What has this name right here; of a symbolic link, itself.
    pub(crate) fn stat_here(&self, name: &OsStr) -> io::Result<Stat> {
        Ok(rustix::fs::statat(
            &self.0,
            name,
            AtFlags::SYMLINK_NOFOLLOW,
        )?)
    }

    /// What lies under a name, if something does; of a symbolic link, itself.
    pub(crate) fn stat(&self, name: &[u8]) -> io::Result<Stat> {
        let (parent, last) = self.parent(name, false)?;
        Ok(rustix::fs::statat(
            &parent,
            last,
            AtFlags::SYMLINK_NOFOLLOW,
        )?)
    }

    /// The directory that a name lies in, made if it is asked for, and the last part of the name.
    pub(crate) fn parent<'a>(
        &self,
        name: &'a [u8],
        make: bool,
    ) -> io::Result<(OwnedFd, &'a OsStr)> {
        let (directory, last) = split(name);
        Ok((self.directory(directory, make)?, last))
    }

    /// A directory below; with all that lead to it, if they are to be made. The empty name is this
    /// one.
    pub(crate) fn directory(&self, name: &[u8], make: bool) -> io::Result<OwnedFd> {
        if name.is_empty() {
            return self.0.try_clone();
        }
        let flags = directory_flags();
        match self.by_openat2(name, flags, Mode::empty()) {
            Some(Ok(fd)) => return Ok(fd),
            Some(Err(error)) if !(make && error.kind() == io::ErrorKind::NotFound) => {
                return Err(error);
            }
            _ => {}
        }
        let mut at = self.0.try_clone()?;
        for part in name.split(|byte| *byte == b'/') {
            let part = OsStr::from_bytes(part);
            if make {
                match rustix::fs::mkdirat(&at, part, Mode::from_raw_mode(DIRECTORY_MODE)) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            at = rustix::fs::openat(&at, part, flags, Mode::empty())?;
        }
        Ok(at)
    }

    /// Opens by openat2(2); `None`: the kernel has no such call.
    fn by_openat2(&self, name: &[u8], flags: OFlags, mode: Mode) -> Option<io::Result<OwnedFd>> {
        if NO_OPENAT2.load(Ordering::Relaxed) {
            return None;
        }
        let resolve =
            ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let name = OsStr::from_bytes(name);
        // EAGAIN: something was renamed meanwhile, and the kernel could not say that nothing
        // escaped.
        for _ in 0..16 {
            match rustix::fs::openat2(&self.0, name, flags, mode, resolve) {
                Ok(fd) => return Some(Ok(fd)),
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(Errno::NOSYS | Errno::PERM) => {
                    NO_OPENAT2.store(true, Ordering::Relaxed);
                    return None;
                }
                Err(error) => return Some(Err(error.into())),
            }
        }
        Some(Err(Errno::AGAIN.into()))
    }
}

/// The directory of a name, which is empty for the outermost one, and what is behind it.
pub(crate) fn split(name: &[u8]) -> (&[u8], &OsStr) {
    let (directory, last) = match name.iter().rposition(|byte| *byte == b'/') {
        Some(at) => (&name[..at], &name[at + 1..]),
        None => (&name[..0], name),
    };
    (directory, OsStr::from_bytes(last))
}

/// Directories that are held open for the next file in them.
const OPEN_MAX: usize = 8;

/// The directories below one that were used last: names that follow each other lie in the same
/// ones, and to lead to each of them anew takes as long as to open a file.
#[derive(Debug, Default)]
pub(crate) struct OpenDirectories(Mutex<VecDeque<(Vec<u8>, Arc<Beneath>)>>);

impl OpenDirectories {
    /// The directory of this name below `outer`, made if that is asked for.
    ///
    /// # Errors
    /// As [`Beneath::directory`].
    pub(crate) fn get(&self, outer: &Beneath, name: &[u8], make: bool) -> io::Result<Arc<Beneath>> {
        let recent = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, found)) = recent().iter().rev().find(|(open, _)| open == name) {
            return Ok(Arc::clone(found));
        }
        let opened = Arc::new(Beneath::of(outer.directory(name, make)?));
        let mut recent = recent();
        let oldest = match recent.len() >= OPEN_MAX {
            true => recent.pop_front(),
            false => None,
        };
        recent.push_back((name.to_vec(), Arc::clone(&opened)));
        drop(recent);
        // Closing it takes its time.
        drop(oldest);
        Ok(opened)
    }
}

fn directory_flags() -> OFlags {
    OFlags::DIRECTORY | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC
}

#[cfg(all(test, not(loom)))]
mod tests {
    use rustix::fs::FileType;

    use super::*;

    fn is_file(stat: &Stat) -> bool {
        FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
    }

    fn with_tree(check: impl Fn(&Beneath, &Path)) {
        let outer = tempfile::tempdir().expect("a directory");
        let inner = outer.path().join("inner");
        std::fs::create_dir(&inner).expect("made");
        std::fs::write(outer.path().join("secret"), b"secret").expect("written");
        let link = |to: &str, name: &str| {
            std::os::unix::fs::symlink(to, inner.join(name)).expect("linked");
        };
        link("..", "up");
        link("../secret", "out");
        std::fs::create_dir(inner.join("sub")).expect("made");
        std::fs::write(inner.join("sub/a file"), b"here").expect("written");
        check(&Beneath::open(&inner).expect("opened"), &inner);
    }

    fn nothing_escapes(beneath: &Beneath, inner: &Path) {
        for name in [&b"up/secret"[..], b"out", b"up/inner/sub/a file"] {
            beneath
                .open_file(name, OFlags::RDONLY, Mode::empty())
                .expect_err("it leads through a link");
        }
        beneath
            .directory(b"up/made", true)
            .expect_err("it leads through a link");
        assert!(!inner.join("../made").exists());
        let file = beneath
            .open_file(b"sub/a file", OFlags::RDONLY, Mode::empty())
            .expect("it is below");
        let flags = rustix::fs::fcntl_getfl(&file).expect("flags");
        let refused = OFlags::NOFOLLOW | OFlags::NONBLOCK;
        assert!(!flags.intersects(refused), "cuFile refuses {flags:?}");
        let made = OFlags::RDWR | OFlags::CREATE;
        beneath
            .open_file(b"out", made, Mode::from_raw_mode(0o600))
            .expect_err("it is a link");
        let file = beneath
            .open_file(b"sub/made", made, Mode::from_raw_mode(0o600))
            .expect("made below");
        rustix::io::write(&file, b"x").expect("it may be written");
        assert_eq!(
            beneath.stat(b"sub/made").expect("there").st_mode & 0o777,
            0o600
        );
        beneath.directory(b"sub/x/y z", true).expect("made");
        assert!(inner.join("sub/x/y z").is_dir());
        beneath
            .directory(b"sub/a file/b", true)
            .expect_err("a file is no directory");
        assert!(is_file(&beneath.stat(b"sub/a file").expect("there")));
        assert!(!is_file(&beneath.stat(b"out").expect("the link itself")));
        beneath.check_writable().expect("it is ours");
    }

    #[test]
    fn links_lead_nowhere_with_and_without_openat2() {
        with_tree(nothing_escapes);
        let had_none = NO_OPENAT2.swap(true, Ordering::Relaxed);
        with_tree(nothing_escapes);
        NO_OPENAT2.store(had_none, Ordering::Relaxed);
    }
}
