//! `Target`: a file on its way in. It has no name until it is whole and its checksum is right.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crc_fast::{CrcAlgorithm, Digest};
use rustix::fs::{AtFlags, CWD, FallocateFlags, Mode, OFlags};
use rustix::io::Errno;

use crate::failure::describe;

/// The directory that files are received into. Held open, so that it stays the same one whatever is renamed meanwhile.
#[derive(Debug, Clone)]
pub(crate) struct Directory(Arc<OwnedFd>);

impl Directory {
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty())?;
        // Said now, not when the first sender is there.
        rustix::fs::accessat(&fd, ".", rustix::fs::Access::WRITE_OK, AtFlags::EACCESS)?;
        Ok(Self(Arc::new(fd)))
    }
}

/// A file that is being received.
pub(crate) struct Target {
    directory: Directory,
    file: File,
    /// Its name for the time being, where the file system has no files without a name.
    temporary: Option<OsString>,
    name: OsString,
    size: u64,
    written: u64,
    blocks: u64,
    digest: Digest,
}

impl Target {
    /// Makes room for `size` bytes, where the file system can say beforehand whether there is.
    pub(crate) fn create(directory: &Directory, name: OsString, size: u64) -> Result<Self, String> {
        let at = |error: Errno| format!("{name:?}: {}", describe(&error.into()));
        let (file, temporary) = create_unnamed(directory).map_err(at)?;
        let target = Self {
            directory: directory.clone(),
            file,
            temporary,
            name: name.clone(),
            size,
            written: 0,
            blocks: 0,
            digest: Digest::new(CrcAlgorithm::Crc32Iscsi),
        };
        if size > 0 {
            match rustix::fs::fallocate(&target.file, FallocateFlags::empty(), 0, size) {
                // Not every file system can; then a write will say that it is full.
                Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
                Err(error) => return Err(at(error)),
            }
        }
        Ok(target)
    }

    /// Takes the next block: it must be exactly where the last one ended, and within the size that was announced.
    pub(crate) fn write(&mut self, index: u64, offset: u64, bytes: &[u8]) -> Result<(), String> {
        let left = self.size - self.written;
        if index != self.blocks || offset != self.written || bytes.len() as u64 > left {
            return Err(format!(
                "{:?}: block {index} at {offset} with {} bytes is not the next one",
                self.name,
                bytes.len()
            ));
        }
        self.digest.update(bytes);
        self.file
            .write_all_at(bytes, offset)
            .map_err(|e| self.failed(&e))?;
        self.written += bytes.len() as u64;
        self.blocks += 1;
        Ok(())
    }

    /// Gives the file its name, if all of it is there and right. Returns its checksum.
    pub(crate) fn finish(mut self, crc: u32, sync: bool) -> Result<u32, String> {
        if self.written != self.size {
            return Err(format!(
                "{:?}: {} of {} bytes came",
                self.name, self.written, self.size
            ));
        }
        let ours = self.digest.finalize() as u32;
        if ours != crc {
            return Err(format!(
                "{:?}: CRC32C {ours:08x} arrived, {crc:08x} was sent",
                self.name
            ));
        }
        if sync {
            self.file.sync_all().map_err(|e| self.failed(&e))?;
        }
        self.publish().map_err(|e| self.failed(&e.into()))?;
        Ok(ours)
    }

    /// One step for whoever looks: the name has the whole new file, or what it had before.
    fn publish(&mut self) -> Result<(), Errno> {
        let directory = &*self.directory.0;
        if self.temporary.is_none() {
            // A link does not replace a file, a rename does: so it gets a name of its own first.
            let name = temporary_name();
            let file = format!("/proc/self/fd/{}", self.file.as_raw_fd());
            rustix::fs::linkat(CWD, file, directory, &name, AtFlags::SYMLINK_FOLLOW)?;
            self.temporary = Some(name);
        }
        if let Some(temporary) = &self.temporary {
            rustix::fs::renameat(directory, temporary, directory, &self.name)?;
        }
        self.temporary = None;
        Ok(())
    }

    pub(crate) fn name(&self) -> &OsStr {
        &self.name
    }

    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    pub(crate) fn written(&self) -> u64 {
        self.written
    }

    fn failed(&self, error: &io::Error) -> String {
        format!("{:?}: {}", self.name, describe(error))
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary {
            // What is left to do about a failure here is nothing; the next one has another name.
            let _ = rustix::fs::unlinkat(&*self.directory.0, temporary, AtFlags::empty());
        }
    }
}

/// A file that vanishes by itself when this process does, however it ends; else one with a temporary name.
fn create_unnamed(directory: &Directory) -> Result<(File, Option<OsString>), Errno> {
    let mode = Mode::from_raw_mode(0o644);
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    match rustix::fs::openat(&*directory.0, ".", flags | OFlags::TMPFILE, mode) {
        Ok(fd) => return Ok((fd.into(), None)),
        // What file systems and kernels without it answer.
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL | Errno::NOENT) => {}
        Err(error) => return Err(error),
    }
    let name = temporary_name();
    let flags = flags | OFlags::CREATE | OFlags::EXCL;
    let fd = rustix::fs::openat(&*directory.0, &name, flags, mode)?;
    Ok((fd.into(), Some(name)))
}

fn temporary_name() -> OsString {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let nth = NEXT.fetch_add(1, Ordering::Relaxed);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let nanos = now.unwrap_or_default().as_nanos();
    // Unlike any that an earlier life of this process may have left behind.
    format!(".stream-{}-{nth}-{nanos:x}.part", std::process::id()).into()
}
