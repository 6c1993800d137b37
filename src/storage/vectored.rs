//! Vectored transfers: one run of a file, many pieces of memory, as few system calls as can be
//! (preadv(2), pwritev(2)).

#![allow(unsafe_code)]

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::AsRawFd;
use std::time::Instant;

use super::file::File;
use super::plan::Rules;
use super::stats::Record;
use super::{BackEnd, Direction, FileError, FileErrorKind, FileHandle, FileOperation, Transferred};

/// Pieces of one system call: what Linux takes (`UIO_MAXIOV`).
const PIECES_MAX: usize = 1024;

impl FileHandle {
    /// Reads into several pieces of memory, one after the other, on this thread. Short at the end
    /// of the file.
    ///
    /// It goes around the page cache where the handle says so and all of it is aligned: the offset,
    /// and each piece's address and length. Else all of it goes through the page cache, also where
    /// the handle says [`DirectIo::On`](super::DirectIo::On), and [`Transferred::direct_bytes`] is
    /// 0: pieces are never copied to a bounce buffer, since on one thread nothing overlaps with
    /// such a copy. For memory that is not aligned, [`read_parallel`](Self::read_parallel) of each
    /// piece goes around the page cache.
    ///
    /// # Errors
    /// [`FileError`], with the bytes that were read before it.
    pub fn readv(
        &self,
        pieces: &mut [IoSliceMut<'_>],
        offset: u64,
    ) -> Result<Transferred, FileError> {
        // SAFETY: `IoSliceMut` has the layout of an `iovec` on Unix (its documentation promises
        // it).
        let vectors = unsafe { std::slice::from_raw_parts(pieces.as_ptr().cast(), pieces.len()) };
        // SAFETY: the pieces are borrowed for us alone.
        unsafe { self.vectored(FileOperation::Read, vectors, offset) }
    }

    /// Writes several pieces of memory, one after the other, on this thread: all of them.
    ///
    /// It goes around the page cache where [`readv`](Self::readv) would, and all of it is in whole
    /// pages; else through it, as there.
    ///
    /// # Errors
    /// [`FileError`], with the bytes that are in the file.
    pub fn writev(&self, pieces: &[IoSlice<'_>], offset: u64) -> Result<Transferred, FileError> {
        // SAFETY: `IoSlice` has the layout of an `iovec` on Unix (its documentation promises it).
        let vectors = unsafe { std::slice::from_raw_parts(pieces.as_ptr().cast(), pieces.len()) };
        // SAFETY: the pieces are borrowed, so that nobody writes there.
        unsafe { self.vectored(FileOperation::Write, vectors, offset) }
    }

    /// # Safety
    /// What the vectors point to is good to write (a read) or to read (a write) until this returns.
    unsafe fn vectored(
        &self,
        operation: FileOperation,
        vectors: &[libc::iovec],
        offset: u64,
    ) -> Result<Transferred, FileError> {
        let begun = Instant::now();
        let lens = vectors.iter().map(|vector| vector.iov_len);
        let len = lens.fold(0, usize::saturating_add);
        let failed = |kind: FileErrorKind| self.error(operation, kind).at(offset, len as u64);
        let file = self.file(operation)?;
        let direction = match operation {
            FileOperation::Read => Direction::Read,
            _ => Direction::Write,
        };
        file.check(direction, offset, len).map_err(failed)?;
        let mut run = VectoredRun {
            file,
            direction,
            vectors,
            offset,
            moved: 0,
            direct: 0,
        };
        // SAFETY: the caller's promise.
        let error = unsafe { run.all(len) };
        if direction == Direction::Write {
            file.forget_size();
        }
        let (bytes, direct_bytes) = (run.moved, run.direct);
        file.counters().record(&Record {
            direction,
            back_end: BackEnd::Posix,
            bytes: bytes as u64,
            direct_bytes: direct_bytes as u64,
            bounced_bytes: 0,
            elapsed: begun.elapsed(),
            failed: error.is_some(),
        });
        match error {
            Some(kind) => Err(FileError {
                done: bytes as u64,
                ..failed(kind)
            }),
            None => Ok(Transferred {
                bytes,
                direct_bytes,
                ..Transferred::new(BackEnd::Posix)
            }),
        }
    }
}

struct VectoredRun<'a> {
    file: &'a File,
    direction: Direction,
    vectors: &'a [libc::iovec],
    offset: u64,
    moved: usize,
    direct: usize,
}

impl VectoredRun<'_> {
    /// Moves all of it; why not, if not.
    ///
    /// # Safety
    /// As for [`FileHandle::vectored`].
    unsafe fn all(&mut self, len: usize) -> Option<FileErrorKind> {
        let mut direct = self.may_go_direct(len);
        while self.moved < len {
            // SAFETY: the caller's promise.
            match unsafe { self.call(direct) } {
                Ok(0) if direct => direct = false,
                Ok(0) if self.direction == Direction::Read => return None,
                Ok(0) => return Some(FileErrorKind::WriteZero),
                Ok(moved) => {
                    self.moved += moved;
                    self.direct += if direct { moved } else { 0 };
                    // A short one may have ended anywhere: the rest goes through the page cache.
                    direct &= moved.is_multiple_of(self.rules().boundary());
                }
                Err(error) => match error.raw_os_error() {
                    Some(libc::EINTR) => {}
                    Some(libc::EINVAL | libc::EOPNOTSUPP) if direct => {
                        let direction = self.direction;
                        let reason = format!("a direct vectored {direction} was refused: {error}");
                        self.file.refuse_direct(reason);
                        direct = false;
                    }
                    _ => return Some(FileErrorKind::os(&error)),
                },
            }
        }
        None
    }

    fn rules(&self) -> Rules {
        Rules {
            direction: self.direction,
            direct: true,
            alignment: self.file.alignment(),
            page: rustix::param::page_size(),
        }
    }

    fn may_go_direct(&self, len: usize) -> bool {
        let wanted =
            super::transfer_route::wants_direct(self.file.used().direct, self.direction, len);
        if !wanted || self.file.direct().is_none() {
            return false;
        }
        let rules = self.rules();
        self.offset.is_multiple_of(rules.grain() as u64)
            && self.vectors.iter().all(|vector| {
                vector.iov_len.is_multiple_of(rules.grain())
                    && rules.is_aligned(vector.iov_base.addr())
            })
    }

    /// One system call, from where it stands.
    ///
    /// # Safety
    /// As for [`FileHandle::vectored`].
    unsafe fn call(&self, direct: bool) -> io::Result<usize> {
        let fd = match self.file.direct() {
            Some(fd) if direct => fd,
            _ => self.file.buffered(),
        };
        let (mut skip, mut first) = (self.moved, 0);
        while self.vectors[first].iov_len <= skip {
            skip -= self.vectors[first].iov_len;
            first += 1;
        }
        // Checked when it was accepted.
        let at = (self.offset + self.moved as u64) as i64;
        // Most calls move all of it, and the vectors are as the caller made them; else the first is
        // cut.
        let mut cut: smallvec::SmallVec<[libc::iovec; 16]> = smallvec::SmallVec::new();
        let rest = &self.vectors[first..];
        let mut vectors = &rest[..rest.len().min(PIECES_MAX)];
        if skip > 0 {
            cut.extend_from_slice(vectors);
            cut[0] = libc::iovec {
                iov_base: vectors[0].iov_base.wrapping_byte_add(skip),
                iov_len: vectors[0].iov_len - skip,
            };
            vectors = &cut;
        }
        // At most `PIECES_MAX`.
        let (fd, count) = (fd.as_raw_fd(), vectors.len() as i32);
        let moved = match self.direction {
            // SAFETY: the caller's promise; the vectors outlive the call.
            Direction::Read => unsafe { libc::preadv64(fd, vectors.as_ptr(), count, at) },
            // SAFETY: as above.
            Direction::Write => unsafe { libc::pwritev64(fd, vectors.as_ptr(), count, at) },
        };
        usize::try_from(moved).map_err(|_| io::Error::last_os_error())
    }
}
