//! `Handle`: a file that is registered with cuFile. It keeps the file open, and operations in
//! flight keep it.

#![allow(unsafe_code)]

use std::fmt;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::Arc;

use rustix::fs::{FileType, OFlags};

use super::abi::{Descr, FileOrPointer, HANDLE_TYPE_FD, HANDLE_TYPE_USERSPACE_FS, RawHandle};
use super::driver::Driver;
use super::error::CuFileError;
use super::userspace::{Callbacks, UserspaceFs};
use super::{CuFile, check, lock};

/// A file that is registered with cuFile, `CUfileHandle_t`. A clone is the same registration.
///
/// It is deregistered with `cuFileHandleDeregister` when the last clone is gone and no operation on
/// it is in flight; only then the file is closed.
#[derive(Clone)]
pub struct Handle {
    shared: Arc<RegisteredHandle>,
}

/// The registration. Fields are dropped from the top: the file after the registration, the driver
/// last.
struct RegisteredHandle {
    raw: RawHandle,
    behind: ManuallyDrop<Behind>,
    path: PathBuf,
    driver: Driver,
}

/// What has to live as long as the registration.
enum Behind {
    File(Arc<OwnedFd>),
    Userspace(Box<Callbacks>),
}

// SAFETY: cuFile may be called from any thread; the raw handle is only handed to it.
unsafe impl Send for RegisteredHandle {}
// SAFETY: as above; nothing in it changes.
unsafe impl Sync for RegisteredHandle {}

impl Handle {
    pub(super) fn register(
        cufile: &'static CuFile,
        file: Arc<OwnedFd>,
    ) -> Result<Self, CuFileError> {
        let path = path_of(&file);
        check_flags(&file, &path)?;
        let driver = cufile.driver()?;
        let handle = FileOrPointer {
            fd: file.as_raw_fd(),
        };
        let behind = Behind::File(file);
        Self::finish(driver, HANDLE_TYPE_FD, handle, behind, path)
    }

    pub(super) fn register_userspace(
        cufile: &'static CuFile,
        name: &Path,
        fs: Arc<dyn UserspaceFs>,
    ) -> Result<Self, CuFileError> {
        let driver = cufile.driver()?;
        let callbacks = Callbacks::new(fs);
        let handle = FileOrPointer {
            handle: callbacks.as_handle(),
        };
        let behind = Behind::Userspace(callbacks);
        Self::finish(
            driver,
            HANDLE_TYPE_USERSPACE_FS,
            handle,
            behind,
            name.to_owned(),
        )
    }

    fn finish(
        driver: Driver,
        kind: i32,
        handle: FileOrPointer,
        behind: Behind,
        path: PathBuf,
    ) -> Result<Self, CuFileError> {
        // SAFETY: a struct of numbers and pointers, for which zeros are values. The C header asks
        // for zeros in what is not set, so all of it is zero first.
        let mut descr: Descr = unsafe { std::mem::zeroed() };
        descr.kind = kind;
        // The descriptor is narrower than the union, whose other bytes stay zero.
        if kind == HANDLE_TYPE_FD {
            // SAFETY: `handle` was made of a descriptor.
            descr.handle.fd = unsafe { handle.fd };
        } else {
            descr.handle = handle;
        }
        descr.fs_ops = match &behind {
            Behind::File(_) => ptr::null(),
            Behind::Userspace(callbacks) => callbacks.ops(),
        };
        let register = driver.cufile().library.basic.handle_register;
        let mut raw = ptr::null_mut();
        let alone = lock(&driver.cufile().alone);
        // SAFETY: both are ours. What the descriptor names is kept by `behind`, beside the
        // registration.
        let answer = unsafe { register(&raw mut raw, &raw mut descr) };
        drop(alone);
        check("cuFileHandleRegister", answer).map_err(|error| error.at(&path, None))?;
        Ok(Self {
            shared: Arc::new(RegisteredHandle {
                raw,
                behind: ManuallyDrop::new(behind),
                path,
                driver,
            }),
        })
    }

    /// The file: its path when it was registered, or the name that was given.
    pub fn path(&self) -> &Path {
        &self.shared.path
    }

    /// The descriptor, where the handle is one of a file of the system.
    pub fn file(&self) -> Option<&Arc<OwnedFd>> {
        match &*self.shared.behind {
            Behind::File(file) => Some(file),
            Behind::Userspace(_) => None,
        }
    }

    /// Who it belongs to.
    pub fn cufile(&self) -> &'static CuFile {
        self.shared.driver.cufile()
    }

    /// What can have been read of `done` bytes at an offset: cuFile 1.15 in its compatibility mode
    /// says that all was read where a stream-ordered read of a file with O_DIRECT meets the end of
    /// the file.
    pub(super) fn up_to_end(&self, offset: u64, done: usize) -> usize {
        let size = self.file().and_then(|file| rustix::fs::fstat(file).ok());
        let size =
            size.filter(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile);
        let Some(size) = size.and_then(|stat| u64::try_from(stat.st_size).ok()) else {
            return done;
        };
        let there = usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX);
        done.min(there)
    }

    pub(super) fn raw(&self) -> RawHandle {
        self.shared.raw
    }
}

impl Drop for RegisteredHandle {
    fn drop(&mut self) {
        let cufile = self.driver.cufile();
        if !cufile.owner.is_here() {
            // A forked child: the registration is its parent's. `behind` is leaked with it.
            return;
        }
        // SAFETY: registered once, deregistered here alone; operations in flight hold a `Handle`,
        // so there is none.
        unsafe { (cufile.library.basic.handle_deregister)(self.raw) };
        // SAFETY: the only place that drops it, and `self` is not used again.
        unsafe { ManuallyDrop::drop(&mut self.behind) };
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle")
            .field("path", &self.shared.path)
            .finish_non_exhaustive()
    }
}

/// What the kernel calls the file.
fn path_of(file: &OwnedFd) -> PathBuf {
    let link = format!("/proc/self/fd/{}", file.as_raw_fd());
    std::fs::read_link(&link).unwrap_or_else(|_| PathBuf::from(link))
}

/// Flags of open(2) that cuFile refuses, those first that contain others.
const REFUSED: [(OFlags, &str); 7] = [
    (OFlags::TMPFILE, "O_TMPFILE"),
    (OFlags::PATH, "O_PATH"),
    (OFlags::APPEND, "O_APPEND"),
    (OFlags::NONBLOCK, "O_NONBLOCK"),
    (OFlags::DIRECTORY, "O_DIRECTORY"),
    (OFlags::NOFOLLOW, "O_NOFOLLOW"),
    (OFlags::NOATIME, "O_NOATIME"),
];

fn check_flags(file: &OwnedFd, path: &Path) -> Result<(), CuFileError> {
    let flags = rustix::fs::fcntl_getfl(file.as_fd()).map_err(|errno| CuFileError::Os {
        call: "fcntl",
        errno: errno.raw_os_error(),
    })?;
    match REFUSED.iter().find(|(flag, _)| flags.contains(*flag)) {
        Some((_, flag)) => Err(CuFileError::OpenFlag {
            path: path.to_owned(),
            flag,
        }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::Mode;

    #[test]
    fn flags_that_are_refused_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let name = dir.path().join("file");
        std::fs::write(&name, b"x").unwrap();
        let flag = |at: &Path, flags| {
            let file = rustix::fs::open(at, flags, Mode::from_raw_mode(0o600)).unwrap();
            match check_flags(&file, at) {
                Ok(()) => None,
                Err(CuFileError::OpenFlag { flag, path }) => {
                    assert_eq!(path, at);
                    Some(flag)
                }
                Err(other) => panic!("{other}"),
            }
        };
        for (flags, expected) in [
            (OFlags::RDWR, None),
            (OFlags::RDONLY | OFlags::CLOEXEC, None),
            (OFlags::RDWR | OFlags::APPEND, Some("O_APPEND")),
            (OFlags::RDWR | OFlags::NONBLOCK, Some("O_NONBLOCK")),
            (OFlags::RDWR | OFlags::NOFOLLOW, Some("O_NOFOLLOW")),
            (OFlags::RDWR | OFlags::NOATIME, Some("O_NOATIME")),
            (OFlags::PATH, Some("O_PATH")),
        ] {
            assert_eq!(flag(&name, flags), expected, "{flags:?}");
        }
        let directory = OFlags::RDONLY | OFlags::DIRECTORY;
        assert_eq!(flag(dir.path(), directory), Some("O_DIRECTORY"));
        // Not every file system has it.
        let unnamed = OFlags::RDWR | OFlags::TMPFILE;
        match rustix::fs::open(dir.path(), unnamed, Mode::from_raw_mode(0o600)) {
            Ok(_) => assert_eq!(flag(dir.path(), unnamed), Some("O_TMPFILE")),
            Err(error) => println!("SKIPPED: O_TMPFILE: {error}"),
        }
    }
}
