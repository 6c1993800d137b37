//! `OpenFlags` and `OpenOptions`: how a file is opened.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use super::file::{File, FileUse, access, no_file, reopen};
use super::{
    BackEndChoice, CompatMode, Defaults, DirectIo, FileError, FileErrorKind, FileHandle,
    FileOperation,
};

/// What a file is opened for: the flags of fopen(3), as KvikIO has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct OpenFlags {
    /// May be read.
    pub read: bool,
    /// May be written.
    pub write: bool,
    /// Is made where there is none.
    pub create: bool,
    /// Is made, and an error where there is one.
    pub create_new: bool,
    /// Loses what is in it.
    pub truncate: bool,
}

impl OpenFlags {
    /// From text: `r` (read), `w` (write; made or emptied), `a` (write; made, kept), `x` (write;
    /// made, must not exist), each with `+` for both directions.
    ///
    /// `a` is for [`append`](FileHandle::append); the descriptor has no O_APPEND, since with it
    /// pwrite(2) ignores offsets.
    ///
    /// # Errors
    /// What is wrong with the text.
    pub fn parse(flags: &str) -> Result<Self, FileErrorKind> {
        let wrong = |reason| FileErrorKind::Flags {
            flags: flags.into(),
            reason,
        };
        let (mode, both) = match flags.as_bytes() {
            [mode] => (*mode, false),
            [mode, b'+'] => (*mode, true),
            _ => return Err(wrong("must be r, w, a or x, with or without a + behind it")),
        };
        let write = Self {
            write: true,
            read: both,
            ..Self::default()
        };
        match mode {
            b'r' => Ok(Self {
                read: true,
                write: both,
                ..Self::default()
            }),
            b'w' => Ok(Self {
                create: true,
                truncate: true,
                ..write
            }),
            b'a' => Ok(Self {
                create: true,
                ..write
            }),
            b'x' => Ok(Self {
                create_new: true,
                ..write
            }),
            _ => Err(wrong("must begin with r, w, a or x")),
        }
    }

    fn check(self) -> Result<OFlags, &'static str> {
        if !self.read && !self.write {
            return Err("neither for reading nor for writing");
        }
        let changes = self.create || self.create_new || self.truncate;
        if changes && !self.write {
            return Err("create, create_new and truncate need write");
        }
        let mut flags = access(self.read, self.write);
        flags.set(OFlags::CREATE, self.create || self.create_new);
        flags.set(OFlags::EXCL, self.create_new);
        flags.set(OFlags::TRUNC, self.truncate);
        Ok(flags)
    }

    /// As text, for errors.
    fn words(self) -> String {
        let all = [
            (self.read, "read"),
            (self.write, "write"),
            (self.create, "create"),
            (self.create_new, "create_new"),
            (self.truncate, "truncate"),
        ];
        let set: Vec<_> = all
            .iter()
            .filter(|(on, _)| *on)
            .map(|(_, name)| *name)
            .collect();
        set.join(", ")
    }
}

/// Describes how a file is to be opened.
///
/// ```
/// use fabricast::storage::{DirectIo, OpenOptions};
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("run.dat");
/// let options = OpenOptions::new().read(true).write(true).create_new(true).direct(DirectIo::Off);
/// let file = options.open(&path)?;
/// file.write(b"event", 0)?;
/// assert_eq!(file.nbytes()?, 5);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
#[must_use = "nothing is opened before `open`"]
pub struct OpenOptions {
    flags: Result<OpenFlags, FileErrorKind>,
    mode: u32,
    direct: DirectIo,
    back_end: BackEndChoice,
    compat_mode: Option<CompatMode>,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl OpenOptions {
    /// For nothing yet: ask for [`read`](Self::read) or [`write`](Self::write), or give
    /// [`flags`](Self::flags).
    pub fn new() -> Self {
        Self {
            flags: Ok(OpenFlags::default()),
            mode: 0o664,
            direct: DirectIo::default(),
            back_end: BackEndChoice::default(),
            compat_mode: None,
        }
    }

    /// All flags at once, as text: see [`OpenFlags::parse`]. What is wrong with it, `open` says.
    pub fn flags(mut self, flags: &str) -> Self {
        self.flags = OpenFlags::parse(flags);
        self
    }

    fn set(mut self, set: impl FnOnce(&mut OpenFlags)) -> Self {
        if let Ok(flags) = &mut self.flags {
            set(flags);
        }
        self
    }

    /// May be read. Default: no.
    pub fn read(self, yes: bool) -> Self {
        self.set(|flags| flags.read = yes)
    }

    /// May be written. Default: no.
    pub fn write(self, yes: bool) -> Self {
        self.set(|flags| flags.write = yes)
    }

    /// Is made where there is none. Default: no.
    pub fn create(self, yes: bool) -> Self {
        self.set(|flags| flags.create = yes)
    }

    /// Is made, and an error where there is one. Default: no.
    pub fn create_new(self, yes: bool) -> Self {
        self.set(|flags| flags.create_new = yes)
    }

    /// Loses what is in it. Default: no.
    pub fn truncate(self, yes: bool) -> Self {
        self.set(|flags| flags.truncate = yes)
    }

    /// The permissions of a file that is made, less the process's umask. Default: 0664. Range: 0
    /// to 07777.
    pub fn mode(mut self, mode: u32) -> Self {
        self.mode = mode;
        self
    }

    /// Around the page cache or through it. Default: [`DirectIo::Auto`].
    pub fn direct(mut self, direct: DirectIo) -> Self {
        self.direct = direct;
        self
    }

    /// Which back end moves the bytes. Default: [`BackEndChoice::Auto`].
    pub fn back_end(mut self, back_end: BackEndChoice) -> Self {
        self.back_end = back_end;
        self
    }

    pub(crate) fn mode_of(&self) -> u32 {
        self.mode
    }

    /// Whether GPU memory is moved without cuFile. Default: the setting `compat_mode` at the time
    /// of opening.
    pub fn compat_mode(mut self, mode: CompatMode) -> Self {
        self.compat_mode = Some(mode);
        self
    }

    /// Opens it.
    ///
    /// # Errors
    /// [`FileErrorKind::Flags`] for flags that are none, [`FileErrorKind::NotAFile`] for a
    /// directory, a FIFO, a socket or a terminal, and what open(2) answers;
    /// [`FileErrorKind::Setting`] for a variable of the environment that makes no sense;
    /// [`FileErrorKind::Unsupported`] where compatibility mode is off and cuFile can't be used.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<FileHandle, FileError> {
        let path: Arc<Path> = path.as_ref().into();
        let failed =
            |kind: FileErrorKind| FileError::new(FileOperation::Open, Arc::clone(&path), kind);
        let flags = self.flags.clone().map_err(failed)?;
        Defaults::check().map_err(|error| failed(error.into()))?;
        let fd = self.open_fd(&path, flags).map_err(failed)?;
        let used = self.used(flags.read, flags.write);
        File::new(Arc::clone(&path), fd, used).map(FileHandle::new)
    }

    fn used(&self, readable: bool, writable: bool) -> FileUse {
        FileUse {
            readable,
            writable,
            direct: self.direct,
            back_end: self.back_end,
            compat_mode: self
                .compat_mode
                .unwrap_or_else(|| Defaults::get().compat_mode),
            cufile_refuses: None,
        }
    }

    fn open_fd(&self, path: &Path, flags: OpenFlags) -> Result<OwnedFd, FileErrorKind> {
        let wrong = |reason| FileErrorKind::Flags {
            flags: flags.words(),
            reason,
        };
        let oflags = flags.check().map_err(wrong)?;
        if self.mode > 0o7777 {
            return Err(wrong("mode: 0 to 07777"));
        }
        // O_NONBLOCK: the open of a FIFO without a writer would wait for one.
        let oflags = oflags | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
        let fd = match retry(|| rustix::fs::open(path, oflags, Mode::from_raw_mode(self.mode))) {
            Ok(fd) => fd,
            // What a directory, a FIFO without a reader and a socket answer.
            Err(errno @ (Errno::ISDIR | Errno::NXIO)) => {
                let file_type =
                    rustix::fs::stat(path).map(|stat| FileType::from_raw_mode(stat.st_mode));
                return Err(match file_type.ok().and_then(no_file) {
                    Some(what) => FileErrorKind::NotAFile { what },
                    None => errno.into(),
                });
            }
            Err(errno) => return Err(errno.into()),
        };
        let now = rustix::fs::fcntl_getfl(&fd)?;
        rustix::fs::fcntl_setfl(&fd, now - OFlags::NONBLOCK)?;
        Ok(fd)
    }

    /// Takes a descriptor over that is open already; its own flags say whether it may be read and
    /// written, and those given here do not count.
    ///
    /// A descriptor with O_DIRECT stays the direct one, and another is opened for the page cache.
    /// Its position is neither used nor moved.
    ///
    /// # Errors
    /// [`FileErrorKind::DescriptorFlag`] for O_APPEND (pwrite(2) would ignore every offset), O_PATH
    /// and O_DIRECTORY; [`FileErrorKind::NotAFile`] as for [`open`](Self::open). Flags that only
    /// cuFile refuses (O_NONBLOCK, O_NOFOLLOW, O_NOATIME, O_TMPFILE) put the handle into
    /// compatibility mode, or are the error `DescriptorFlag` where that is off.
    pub fn from_fd(&self, fd: OwnedFd) -> Result<FileHandle, FileError> {
        let path = path_of(&fd);
        match rustix::fs::fcntl_getfl(&fd) {
            Ok(flags) => self.take_over(path, fd, flags),
            Err(errno) => Err(FileError::new(FileOperation::Open, path, errno)),
        }
    }

    /// [`from_fd`](Self::from_fd) for a descriptor of which it is known what it was opened by, and
    /// with which flags: the kernel is not asked.
    ///
    /// # Errors
    /// As [`from_fd`](Self::from_fd).
    pub(crate) fn take_over(
        &self,
        path: Arc<Path>,
        fd: OwnedFd,
        flags: OFlags,
    ) -> Result<FileHandle, FileError> {
        let failed =
            |kind: FileErrorKind| FileError::new(FileOperation::Open, Arc::clone(&path), kind);
        Defaults::check().map_err(|error| failed(error.into()))?;
        if let Some((flag, reason)) = refused_flag(flags) {
            return Err(failed(FileErrorKind::DescriptorFlag { flag, reason }));
        }
        let readable = matches!(flags & OFlags::RWMODE, OFlags::RDONLY | OFlags::RDWR);
        let writable = matches!(flags & OFlags::RWMODE, OFlags::WRONLY | OFlags::RDWR);
        let mut used = self.used(readable, writable);
        used.cufile_refuses = flag_that_cufile_refuses(flags);
        if let Some(flag) = used.cufile_refuses
            && used.compat_mode == CompatMode::Off
        {
            let reason =
                "cuFile refuses it; open the file without, or let it have compatibility mode";
            return Err(failed(FileErrorKind::DescriptorFlag { flag, reason }));
        }
        let fd = if flags.contains(OFlags::DIRECT) {
            reopen(&fd, access(readable, writable)).map_err(|errno| failed(errno.into()))?
        } else {
            fd
        };
        File::new(Arc::clone(&path), fd, used).map(FileHandle::new)
    }
}

/// A system call again, as long as a signal interrupts it.
pub(crate) fn retry<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

/// What the kernel calls the file that a descriptor stands for; the number of the descriptor where
/// it does not say.
fn path_of(fd: &OwnedFd) -> Arc<Path> {
    let link = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let path: io::Result<PathBuf> = std::fs::read_link(&link);
    path.unwrap_or_else(|_| link.into()).into()
}

/// Flags with which no offset can be kept, or no byte be moved.
fn refused_flag(flags: OFlags) -> Option<(&'static str, &'static str)> {
    if flags.contains(OFlags::APPEND) {
        let reason = "Linux ignores the offset of a write then; open it without, and use `append`";
        return Some(("O_APPEND", reason));
    }
    if flags.contains(OFlags::PATH) {
        return Some(("O_PATH", "it can be neither read nor written"));
    }
    // O_TMPFILE has the bit of O_DIRECTORY.
    if flags.contains(OFlags::DIRECTORY) && !flags.contains(OFlags::TMPFILE) {
        return Some(("O_DIRECTORY", "a directory has no bytes at offsets"));
    }
    None
}

fn flag_that_cufile_refuses(flags: OFlags) -> Option<&'static str> {
    let refused = [
        (OFlags::NONBLOCK, "O_NONBLOCK"),
        (OFlags::NOFOLLOW, "O_NOFOLLOW"),
        (OFlags::NOATIME, "O_NOATIME"),
        (OFlags::TMPFILE, "O_TMPFILE"),
    ];
    let found = refused.iter().find(|(flag, _)| flags.contains(*flag));
    found.map(|(_, name)| *name)
}
