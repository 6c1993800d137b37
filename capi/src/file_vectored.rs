//! Vectored transfers of files: one run of a file, many pieces of memory.

#![allow(unsafe_code)] // Functions that C calls.

use std::io::{IoSlice, IoSliceMut};

use crate::buffered::fcast_bytes;
use crate::call::call;
use crate::file::{FILES, fcast_file, fcast_file_moved};
use crate::pointer::{self, Out};
use crate::ring::fcast_span;
use crate::status::{Failure, fcast_status};

/// Reads a run of a file into several pieces of the host's memory, one after the other, such as the
/// spans of fcast_ring_reserve; on this thread, and waits for it. It is short at the end of the
/// file alone. It goes around the page cache where the file says so and all is aligned: the offset,
/// and each piece's address and length; else through it. Any thread. Statuses: as of
/// fcast_file_read.
///
/// # Safety
///
/// `pieces`: NULL, or `count` of them, whose bytes are writable; no two of them overlap, and nobody
/// else uses them meanwhile. `moved`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_file_readv(
    file: fcast_file,
    pieces: *const fcast_span,
    count: usize,
    offset: u64,
    moved: *mut fcast_file_moved,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(moved, "moved") }?;
        // SAFETY: the caller's promise.
        let pieces = unsafe { pointer::array(pieces, count, "pieces") }?;
        let mut places = Vec::with_capacity(count);
        for piece in pieces {
            // SAFETY: the caller's promise.
            places.push(unsafe { place_of(piece) }?);
        }
        let done = FILES.share(file.id)?.readv(&mut places, offset)?;
        out.set(done.into());
        Ok(())
    })
}

/// # Safety
///
/// The bytes are writable, and nobody else uses them, for as long as `'a`.
unsafe fn place_of<'a>(piece: &fcast_span) -> Result<IoSliceMut<'a>, Failure> {
    let data = piece.data.cast::<u8>();
    // SAFETY: the caller's promise; checks that there can be so many.
    let places = unsafe { pointer::array_out(data, piece.len, "a piece") }?;
    let (start, len) = (places.as_mut_ptr().cast::<u8>(), places.len());
    // SAFETY: the same bytes, into which the system writes: memory of C's, whose bytes are whatever
    // they are.
    Ok(IoSliceMut::new(unsafe {
        std::slice::from_raw_parts_mut(start, len)
    }))
}

/// Writes several pieces of the host's memory to a run of a file, one after the other: all of them,
/// on this thread, and waits for it. It goes around the page cache as fcast_file_readv, where all
/// is in whole pages. Any thread. Statuses: as of fcast_file_read.
///
/// # Safety
///
/// `pieces`: NULL, or `count` of them, whose bytes are readable and nobody writes to meanwhile;
/// `moved`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_file_writev(
    file: fcast_file,
    pieces: *const fcast_bytes,
    count: usize,
    offset: u64,
    moved: *mut fcast_file_moved,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(moved, "moved") }?;
        // SAFETY: the caller's promise.
        let pieces = unsafe { pointer::array(pieces, count, "pieces") }?;
        let mut bytes = Vec::with_capacity(count);
        for piece in pieces {
            // SAFETY: the caller's promise.
            let of = unsafe { pointer::bytes(piece.data.cast::<u8>(), piece.len, "a piece") }?;
            bytes.push(IoSlice::new(of));
        }
        let done = FILES.share(file.id)?.writev(&bytes, offset)?;
        out.set(done.into());
        Ok(())
    })
}
