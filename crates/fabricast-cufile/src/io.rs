//! Blocking reads and writes.

#![allow(unsafe_code)]

use std::ffi::c_void;

use super::abi::RawIoVec;
use super::error::{CuFileError, Failure};
use super::handle::Handle;
use super::signed;

/// Most buffers of one call, as for readv(2).
const IOVECS_MAX: usize = 1024;

/// One buffer of several, `CUfileIOVec_t`: memory of a GPU or of the host.
#[derive(Clone, Copy, Debug)]
pub struct IoVec {
    /// Where it begins.
    pub base: *mut c_void,
    /// Its length in bytes.
    pub len: usize,
}

impl Handle {
    /// Reads into memory of a GPU or of the host, `cuFileRead`: `len` bytes of the file from
    /// `file_offset` on, to `buffer_offset` behind `base`. Blocks until it is done. Says how many
    /// bytes came: fewer than asked at the end of the file, or where the system gave fewer.
    ///
    /// Memory that is registered is named by the base of its registration. For memory of a GPU, its
    /// context is current in this thread
    /// ([`CuFile::ensure_context`](super::CuFile::ensure_context)), and what other work of the
    /// default stream does to the memory is not waited for.
    ///
    /// # Errors
    ///
    /// The system's errno or cuFile's status, with path and offset; EINTR, too, is an error.
    ///
    /// # Safety
    ///
    /// `len` bytes from `base + buffer_offset` are valid for writes, and nobody reads or writes
    /// them until this returns.
    pub unsafe fn read(
        &self,
        base: *mut c_void,
        buffer_offset: usize,
        len: usize,
        file_offset: u64,
    ) -> Result<usize, CuFileError> {
        let (at, behind) = self.checked(len, file_offset, buffer_offset)?;
        if len == 0 {
            return Ok(0);
        }
        let read = self.cufile().library.basic.read;
        // SAFETY: the caller vouches for the memory; the handle is registered as long as `self`
        // lives.
        let done = unsafe { read(self.raw(), base, len, at, behind) };
        self.outcome("cuFileRead", done, len, file_offset)
    }

    /// Writes from memory of a GPU or of the host, `cuFileWrite`; else as [`read`](Self::read). A
    /// count that is short means that the rest was not written.
    ///
    /// # Errors
    ///
    /// As for [`read`](Self::read).
    ///
    /// # Safety
    ///
    /// `len` bytes from `base + buffer_offset` are valid for reads, and nobody writes them until
    /// this returns.
    pub unsafe fn write(
        &self,
        base: *const c_void,
        buffer_offset: usize,
        len: usize,
        file_offset: u64,
    ) -> Result<usize, CuFileError> {
        let (at, behind) = self.checked(len, file_offset, buffer_offset)?;
        if len == 0 {
            return Ok(0);
        }
        let write = self.cufile().library.basic.write;
        // SAFETY: the caller vouches for the memory; the handle is registered as long as `self`
        // lives.
        let done = unsafe { write(self.raw(), base, len, at, behind) };
        self.outcome("cuFileWrite", done, len, file_offset)
    }

    /// Reads into memory of the host: from cuFile 1.7 on.
    ///
    /// # Errors
    ///
    /// As for [`read`](Self::read).
    pub fn read_host(&self, into: &mut [u8], file_offset: u64) -> Result<usize, CuFileError> {
        let (base, len) = (into.as_mut_ptr(), into.len());
        // SAFETY: the slice is borrowed until the call is over, and it blocks until all is done.
        unsafe { self.read(base.cast(), 0, len, file_offset) }
    }

    /// Writes from memory of the host: from cuFile 1.7 on.
    ///
    /// # Errors
    ///
    /// As for [`read`](Self::read).
    pub fn write_host(&self, from: &[u8], file_offset: u64) -> Result<usize, CuFileError> {
        // SAFETY: the slice is borrowed until the call is over, and it blocks until all is done.
        unsafe { self.write(from.as_ptr().cast(), 0, from.len(), file_offset) }
    }

    /// Reads into several buffers, one after the other, `cuFileReadv`: from cuFile 1.19 on.
    ///
    /// # Errors
    ///
    /// As for [`read`](Self::read); [`CuFileError::Lacks`] before 1.19; [`CuFileError::Value`] for
    /// more than 1024 buffers.
    ///
    /// # Safety
    ///
    /// As for [`read`](Self::read), of each buffer; no two of them overlap.
    pub unsafe fn readv(&self, into: &[IoVec], file_offset: u64) -> Result<usize, CuFileError> {
        let (vectors, len, at) = self.vectors(into, file_offset)?;
        let readv = self.cufile().library.vectors.as_ref();
        let lacks = || self.cufile().lacks("cuFileReadv", Some("1.19"));
        let readv = readv.ok_or_else(lacks)?.readv;
        if len == 0 {
            return Ok(0);
        }
        // SAFETY: the caller vouches for the memory; the array has the length that is said, and
        // lives until this is over.
        let done = unsafe { readv(self.raw(), vectors.as_ptr(), vectors.len(), at, 0) };
        self.outcome("cuFileReadv", done, len, file_offset)
    }

    /// Writes from several buffers, one after the other, `cuFileWritev`: from cuFile 1.19 on.
    ///
    /// # Errors
    ///
    /// As for [`readv`](Self::readv).
    ///
    /// # Safety
    ///
    /// As for [`write`](Self::write), of each buffer.
    pub unsafe fn writev(&self, from: &[IoVec], file_offset: u64) -> Result<usize, CuFileError> {
        let (vectors, len, at) = self.vectors(from, file_offset)?;
        let writev = self.cufile().library.vectors.as_ref();
        let lacks = || self.cufile().lacks("cuFileWritev", Some("1.19"));
        let writev = writev.ok_or_else(lacks)?.writev;
        if len == 0 {
            return Ok(0);
        }
        // SAFETY: the caller vouches for the memory; the array has the length that is said, and
        // lives until this is over.
        let done = unsafe { writev(self.raw(), vectors.as_ptr(), vectors.len(), at, 0) };
        self.outcome("cuFileWritev", done, len, file_offset)
    }

    /// The offsets as C has them, if all of it can be counted.
    pub(super) fn checked(
        &self,
        len: usize,
        file_offset: u64,
        buffer_offset: usize,
    ) -> Result<(i64, i64), CuFileError> {
        self.cufile().check_owner()?;
        if len > isize::MAX as usize {
            return Err(CuFileError::value(
                "len",
                len,
                "bytes",
                "more than 2^63 - 1",
            ));
        }
        let end = file_offset.saturating_add(len as u64);
        signed("end of the range in the file", end)?;
        let behind = signed("buffer_offset", buffer_offset as u64)?;
        Ok((signed("file_offset", file_offset)?, behind))
    }

    fn vectors(
        &self,
        vectors: &[IoVec],
        file_offset: u64,
    ) -> Result<(Vec<RawIoVec>, usize, i64), CuFileError> {
        if vectors.len() > IOVECS_MAX {
            let reason = "there are at most 1024";
            return Err(CuFileError::value("buffers", vectors.len(), "", reason));
        }
        let sum = |sum: usize, one: &IoVec| sum.saturating_add(one.len);
        let len = vectors.iter().fold(0, sum);
        let (at, _) = self.checked(len, file_offset, 0)?;
        // A buffer without bytes may have no address.
        let vectors = vectors.iter().filter(|vector| vector.len > 0);
        let vectors = vectors.map(|vector| RawIoVec {
            base: vector.base,
            len: vector.len,
        });
        Ok((vectors.collect(), len, at))
    }

    /// What a blocking call returned.
    fn outcome(
        &self,
        call: &'static str,
        done: isize,
        len: usize,
        file_offset: u64,
    ) -> Result<usize, CuFileError> {
        match usize::try_from(done) {
            Ok(done) if done <= len => Ok(done),
            Ok(_) => Err(Failure::Nonsense(done as i64)),
            Err(_) => Err(Failure::of_call(done)),
        }
        .map_err(|failure| CuFileError::call(call, failure).at(self.path(), Some(file_offset)))
    }
}
