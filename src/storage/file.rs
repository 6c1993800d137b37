//! `File`: an open file. Two descriptors, what O_DIRECT asks of offsets and addresses there, and
//! what is known of its size.

use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use rustix::fs::{FileType, Mode, OFlags, StatxFlags};

use super::compat::CompatRefused;
use super::device::Route;
use super::stats::IoCounters;
use super::{
    BackEndChoice, CompatMode, DirectIo, Direction, FileError, FileErrorKind, FileOperation,
};
use crate::process::Owner;
use crate::sync::{Mutex, lock};

/// The largest offset that a file may have, in bytes.
const OFFSET_MAX: u64 = i64::MAX as u64;
/// An alignment beyond this is not believed, in bytes.
const ALIGNMENT_MAX: u32 = 1 << 20;
/// The size is to be asked for.
const UNKNOWN: u64 = u64::MAX;
/// File systems that keep their files in memory (statfs(2)): tmpfs and ramfs.
const IN_MEMORY: [u64; 2] = [0x0102_1994, 0x8584_58f6];

/// What O_DIRECT asks for on one file (statx(2), `STATX_DIOALIGN`); a page for both where the
/// kernel does not say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct DirectAlignment {
    /// Addresses are multiples of this many bytes. A power of two.
    pub memory: u32,
    /// Offsets and lengths are multiples of this many bytes. A power of two.
    pub offset: u32,
}

impl DirectAlignment {
    pub(crate) fn new(memory: u32, offset: u32) -> Option<Self> {
        let fine = |bytes: u32| bytes.is_power_of_two() && bytes <= ALIGNMENT_MAX;
        (fine(memory) && fine(offset)).then_some(Self { memory, offset })
    }

    fn page() -> Self {
        // A page is far below 4 GiB everywhere.
        let page = rustix::param::page_size() as u32;
        Self {
            memory: page,
            offset: page,
        }
    }
}

/// What a file is opened for, and how it is to be used; from [`OpenOptions`](super::OpenOptions).
#[derive(Debug, Clone, Copy)]
pub(crate) struct FileUse {
    pub(crate) readable: bool,
    pub(crate) writable: bool,
    pub(crate) direct: DirectIo,
    pub(crate) back_end: BackEndChoice,
    pub(crate) compat_mode: CompatMode,
    /// A flag of the descriptor that cuFile refuses.
    pub(crate) cufile_refuses: Option<&'static str>,
}

/// An open file. Held by its handle and by each operation on it: the last of them closes both
/// descriptors.
pub(crate) struct File {
    path: Arc<Path>,
    buffered: OwnedFd,
    direct: Option<OwnedFd>,
    /// Why there is no direct descriptor, or why it is not used any more.
    refused: OnceLock<String>,
    alignment: DirectAlignment,
    /// Of the file system that it lies on; of a block device, its own.
    device: (u32, u32),
    is_block_device: bool,
    used: FileUse,
    size: AtomicU64,
    /// The end of the last range that was reserved for an append; 0 before.
    append_end: Mutex<u64>,
    counters: IoCounters,
    /// How GPU memory gets there, once that was asked for.
    route: OnceLock<Result<Route, CompatRefused>>,
    owner: Owner,
}

impl File {
    /// Takes an open descriptor, which has neither O_DIRECT nor O_APPEND, and opens the direct one.
    pub(crate) fn new(
        path: Arc<Path>,
        buffered: OwnedFd,
        used: FileUse,
    ) -> Result<Self, FileError> {
        let failed =
            |kind: FileErrorKind| FileError::new(FileOperation::Open, Arc::clone(&path), kind);
        let wanted = StatxFlags::BASIC_STATS | StatxFlags::DIOALIGN;
        let stat = rustix::fs::statx(&buffered, c"", rustix::fs::AtFlags::EMPTY_PATH, wanted)
            .map_err(|errno| failed(errno.into()))?;
        let file_type = FileType::from_raw_mode(stat.stx_mode.into());
        let is_block_device = file_type == FileType::BlockDevice;
        if let Some(what) = no_file(file_type) {
            return Err(failed(FileErrorKind::NotAFile { what }));
        }
        let told = stat.stx_mask & StatxFlags::DIOALIGN.bits() != 0;
        let alignment = if told {
            DirectAlignment::new(stat.stx_dio_mem_align, stat.stx_dio_offset_align)
        } else {
            Some(DirectAlignment::page())
        };
        let refused = OnceLock::new();
        let direct = match open_direct(&buffered, used, alignment) {
            Ok(fd) => Some(fd),
            Err(reason) => {
                refuse(&path, &refused, reason, used.direct != DirectIo::Off);
                None
            }
        };
        let device = if is_block_device {
            (stat.stx_rdev_major, stat.stx_rdev_minor)
        } else {
            (stat.stx_dev_major, stat.stx_dev_minor)
        };
        let file = Self {
            path,
            buffered,
            direct,
            refused,
            alignment: alignment.unwrap_or_else(DirectAlignment::page),
            device,
            is_block_device,
            used,
            size: AtomicU64::new(UNKNOWN),
            append_end: Mutex::new(0),
            counters: IoCounters::new(),
            route: OnceLock::new(),
            owner: Owner::current(),
        };
        // Without compatibility mode there is no file without cuFile; else nobody pays for cuFile
        // before it is needed.
        if file.used.compat_mode == CompatMode::Off
            && let Err(kind) = file.route()
        {
            let path = Arc::clone(&file.path);
            return Err(FileError::new(FileOperation::Open, path, kind));
        }
        Ok(file)
    }

    pub(crate) fn path(&self) -> &Arc<Path> {
        &self.path
    }

    /// The descriptor that goes through the page cache.
    pub(crate) fn buffered(&self) -> BorrowedFd<'_> {
        self.buffered.as_fd()
    }

    /// The descriptor with O_DIRECT, where there is one and nothing was found against it.
    #[inline]
    pub(crate) fn direct(&self) -> Option<BorrowedFd<'_>> {
        if self.refused.get().is_some() {
            return None;
        }
        self.direct.as_ref().map(AsFd::as_fd)
    }

    /// Why transfers do not go around the page cache.
    pub(crate) fn direct_refused(&self) -> Option<&str> {
        self.refused.get().map(String::as_str)
    }

    /// The kernel refused an aligned direct transfer: from now on, this file goes through the page
    /// cache.
    #[cold]
    pub(crate) fn refuse_direct(&self, reason: String) {
        refuse(&self.path, &self.refused, reason, true);
    }

    pub(crate) fn alignment(&self) -> DirectAlignment {
        self.alignment
    }

    /// How bytes get between this file and GPU memory; looked for at the first call, which may take
    /// half a second.
    pub(crate) fn route(&self) -> Result<&Route, FileErrorKind> {
        let mode = self.used.compat_mode;
        let route = self.route.get_or_init(|| Route::find(self, mode));
        route
            .as_ref()
            .map_err(|refused| FileErrorKind::Unsupported {
                what: "cuFile",
                reason: refused.to_string(),
            })
    }

    /// Major and minor number of the device that the bytes are on.
    pub(crate) fn device(&self) -> (u32, u32) {
        self.device
    }

    pub(crate) fn used(&self) -> FileUse {
        self.used
    }

    /// Whether transfers are to go around the page cache, as the file was opened.
    pub(crate) fn direct_io(&self) -> DirectIo {
        self.used.direct
    }

    pub(crate) fn counters(&self) -> &IoCounters {
        &self.counters
    }

    /// # Errors
    /// [`FileErrorKind::Forked`] in a child of the process that opened it.
    #[inline]
    pub(crate) fn check_owner(&self) -> Result<(), FileErrorKind> {
        if self.owner.is_here() {
            Ok(())
        } else {
            Err(FileErrorKind::Forked {
                made_by: self.owner.pid(),
            })
        }
    }

    /// Whether these bytes may be transferred that way at all.
    #[inline]
    pub(crate) fn check(
        &self,
        direction: Direction,
        offset: u64,
        len: usize,
    ) -> Result<(), FileErrorKind> {
        self.check_owner()?;
        let (allowed, wanted) = match direction {
            Direction::Read => (self.used.readable, "reading"),
            Direction::Write => (self.used.writable, "writing"),
        };
        if !allowed {
            return Err(FileErrorKind::NotOpenFor { wanted });
        }
        match offset.checked_add(len as u64) {
            Some(end) if end <= OFFSET_MAX => Ok(()),
            _ => Err(FileErrorKind::TooLarge),
        }
    }

    /// Whether the space of these bytes may be changed.
    pub(crate) fn check_writable(&self, offset: u64, len: u64) -> Result<(), FileErrorKind> {
        let len = usize::try_from(len).map_err(|_| FileErrorKind::TooLarge)?;
        self.check(Direction::Write, offset, len)
    }

    /// The size, asked for when it is not known.
    pub(crate) fn size(&self) -> Result<u64, FileErrorKind> {
        match self.size.load(Ordering::Relaxed) {
            UNKNOWN => self.refresh_size(),
            size => Ok(size),
        }
    }

    /// The size, asked for now.
    pub(crate) fn refresh_size(&self) -> Result<u64, FileErrorKind> {
        let size = if self.is_block_device {
            // fstat(2) says 0 for it. Nobody reads at the descriptor's own position.
            rustix::fs::seek(&self.buffered, rustix::fs::SeekFrom::End(0))?
        } else {
            u64::try_from(rustix::fs::fstat(&self.buffered)?.st_size).unwrap_or(0)
        };
        self.size.store(size, Ordering::Relaxed);
        Ok(size)
    }

    /// The size may have changed.
    pub(crate) fn forget_size(&self) {
        self.size.store(UNKNOWN, Ordering::Relaxed);
    }

    /// Reserves `len` bytes behind the end of the file and behind what was reserved before, and
    /// says where they begin.
    pub(crate) fn reserve_end(&self, len: u64) -> Result<u64, FileErrorKind> {
        let mut end = lock(&self.append_end);
        let offset = (*end).max(self.refresh_size()?);
        let behind = offset
            .checked_add(len)
            .filter(|behind| *behind <= OFFSET_MAX)
            .ok_or(FileErrorKind::TooLarge)?;
        *end = behind;
        Ok(offset)
    }

    /// The file was cut: the next append begins at its end again.
    pub(crate) fn reset_end(&self) {
        *lock(&self.append_end) = 0;
        self.forget_size();
    }
}

#[cfg(all(test, not(loom)))]
impl File {
    /// With other descriptors than those of the file, as if O_DIRECT were to be had.
    pub(crate) fn with_descriptors(self, buffered: OwnedFd, direct: OwnedFd) -> Self {
        Self {
            buffered,
            direct: Some(direct),
            refused: OnceLock::new(),
            alignment: DirectAlignment::page(),
            ..self
        }
    }
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("File")
            .field("path", &self.path)
            .field("used", &self.used)
            .field("alignment", &self.alignment)
            .field("direct_refused", &self.direct_refused())
            .finish_non_exhaustive()
    }
}

/// What it is, when it has no bytes at offsets.
pub(super) fn no_file(file_type: FileType) -> Option<&'static str> {
    match file_type {
        FileType::RegularFile | FileType::BlockDevice => None,
        FileType::Directory => Some("a directory"),
        FileType::Fifo => Some("a FIFO"),
        FileType::Socket => Some("a socket"),
        FileType::CharacterDevice => Some("a character device"),
        FileType::Symlink => Some("a symbolic link"),
        _ => Some("of an unknown kind"),
    }
}

/// Opens the file that a descriptor stands for once more, with flags of its own; not by path, where
/// another file may be by now.
pub(super) fn reopen(fd: &OwnedFd, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let flags = flags | OFlags::CLOEXEC | OFlags::NOCTTY;
    rustix::fs::openat(rustix::fs::CWD, path, flags, Mode::empty())
}

/// The flag for the access that a file is opened for.
pub(super) fn access(readable: bool, writable: bool) -> OFlags {
    match (readable, writable) {
        (true, true) => OFlags::RDWR,
        (false, true) => OFlags::WRONLY,
        _ => OFlags::RDONLY,
    }
}

fn open_direct(
    buffered: &OwnedFd,
    used: FileUse,
    alignment: Option<DirectAlignment>,
) -> Result<OwnedFd, String> {
    if used.direct == DirectIo::Off {
        return Err("the handle was opened with DirectIo::Off".into());
    }
    if alignment.is_none() {
        return Err(
            "the file system says that this file has no direct I/O (statx, STATX_DIOALIGN)".into(),
        );
    }
    // The type's sign and width differ between architectures; the numbers fit in 32 bits.
    let magic =
        rustix::fs::fstatfs(buffered).map_or(0, |statfs| statfs.f_type as u64 & 0xffff_ffff);
    if IN_MEMORY.contains(&magic) {
        return Err(
            "the file system keeps its files in memory: there is nothing around the page cache"
                .into(),
        );
    }
    let flags = access(used.readable, used.writable) | OFlags::DIRECT;
    reopen(buffered, flags).map_err(|errno| format!("open with O_DIRECT: {errno}"))
}

/// Says why a file goes through the page cache: as a warning the first time in this process, since
/// many files may have the same reason.
fn refuse(path: &Path, refused: &OnceLock<String>, reason: String, is_news: bool) {
    static WARNED: AtomicBool = AtomicBool::new(false);
    if refused.set(reason).is_err() || !is_news {
        return;
    }
    let reason = refused.get().map_or("", String::as_str);
    if WARNED.swap(true, Ordering::Relaxed) {
        tracing::debug!(path = %path.display(), reason, "no direct I/O");
    } else {
        tracing::warn!(path = %path.display(), reason, "no direct I/O: through the page cache \
            instead (said once)");
    }
}
