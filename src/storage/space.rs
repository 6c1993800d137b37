//! What changes a file's space and not its bytes: sync, allocate, truncate.

use std::ops::Range;

use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use super::open::retry;
use super::{FileError, FileErrorKind, FileHandle, FileOperation};

/// What [`FileHandle::allocate`] does with a range: fallocate(2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum AllocateMode {
    /// Reserves space, and makes the file as long as the range's end. What is there stays. The
    /// default.
    #[default]
    Extend,
    /// Reserves space, also behind the end of the file, which stays as long as it is.
    KeepSize,
    /// Gives the space back: the range reads as zeros. The file stays as long as it is.
    PunchHole,
    /// Makes the range zeros, and the file as long as the range's end, with space reserved.
    Zero,
}

impl AllocateMode {
    fn flags(self) -> FallocateFlags {
        match self {
            Self::Extend => FallocateFlags::empty(),
            Self::KeepSize => FallocateFlags::KEEP_SIZE,
            Self::PunchHole => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            Self::Zero => FallocateFlags::ZERO_RANGE,
        }
    }
}

impl FileHandle {
    /// Returns when all that was written is on the device, and what is known of the file
    /// (fsync(2)).
    ///
    /// # Errors
    /// What fsync(2) answers. After `EIO`, what was not on the device is lost: the kernel tells it
    /// once.
    pub fn sync_all(&self) -> Result<(), FileError> {
        let operation = FileOperation::Sync;
        let file = self.file(operation)?;
        retry(|| rustix::fs::fsync(file.buffered())).map_err(|errno| self.error(operation, errno))
    }

    /// The same without times and permissions: fdatasync(2).
    ///
    /// # Errors
    /// As [`sync_all`](Self::sync_all).
    pub fn sync_data(&self) -> Result<(), FileError> {
        let operation = FileOperation::Sync;
        let file = self.file(operation)?;
        retry(|| rustix::fs::fdatasync(file.buffered()))
            .map_err(|errno| self.error(operation, errno))
    }

    /// Reserves space for a range of bytes, or gives it back. Writes into space that is reserved
    /// don't fail for lack of it.
    ///
    /// # Errors
    /// [`FileErrorKind::Unsupported`] where the file system can't, and what fallocate(2) answers.
    pub fn allocate(&self, range: Range<u64>, mode: AllocateMode) -> Result<(), FileError> {
        let operation = FileOperation::Allocate;
        let len = range.end.saturating_sub(range.start);
        let failed = |kind: FileErrorKind| self.error(operation, kind).at(range.start, len);
        let file = self.file(operation)?;
        file.check_writable(range.start, len).map_err(failed)?;
        if len == 0 {
            return Ok(());
        }
        let done = retry(|| rustix::fs::fallocate(file.buffered(), mode.flags(), range.start, len));
        file.forget_size();
        match done {
            Ok(()) => Ok(()),
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => Err(failed(FileErrorKind::Unsupported {
                what: "allocating a range",
                reason: format!("this file system has no fallocate(2) for {mode:?}"),
            })),
            Err(errno) => Err(failed(errno.into())),
        }
    }

    /// Makes the file so long: cuts it, or adds zeros that take no space (ftruncate(2)). The next
    /// [`append`](Self::append) goes to the new end.
    ///
    /// # Errors
    /// What ftruncate(2) answers.
    pub fn truncate(&self, len: u64) -> Result<(), FileError> {
        let operation = FileOperation::Truncate;
        let failed = |kind: FileErrorKind| self.error(operation, kind).at(len, 0);
        let file = self.file(operation)?;
        file.check_writable(len, 0).map_err(failed)?;
        let done = retry(|| rustix::fs::ftruncate(file.buffered(), len));
        file.reset_end();
        done.map_err(|errno| failed(errno.into()))
    }
}
