//! Mapping, advising and unmapping memory through libc's functions: the only place that does.
//!
//! Providers that cache registrations (verbs, efa) learn that memory is gone from libfabric, which
//! patches libc's `mmap`, `munmap`, `mremap` and `madvise` in place (`memhooks`,
//! docs/internals/memory.md). Of a bare system call, as rustix makes them, they hear nothing: the
//! cache keeps the old pages pinned, and what is mapped at the same address next is given the old
//! registration. The card then reads and writes pages that nobody sees. So rustix is built without
//! its functions for memory, and clippy refuses them by name (clippy.toml).

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};

/// What of `flags` [`anonymous`] looks at: huge pages, and their size.
const HUGE_PAGES: libc::c_int = libc::MAP_HUGETLB | libc::MAP_HUGE_MASK << libc::MAP_HUGE_SHIFT;

/// New memory, zeroed, for this process alone: `len` bytes at an address that the kernel chooses,
/// readable and writable.
///
/// Of `huge_pages` only the flags that ask for them count (`MAP_HUGETLB`, `MAP_HUGE_2MB`).
///
/// # Errors
///
/// What mmap(2) answers.
pub fn anonymous(len: usize, huge_pages: libc::c_int) -> io::Result<NonNull<u8>> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | (huge_pages & HUGE_PAGES);
    map(len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
}

/// `len` bytes of a file from `at`, a multiple of the page size, shared and readable, at an address
/// that the kernel chooses.
///
/// Who touches them is ended by SIGBUS where the file has become shorter.
///
/// # Errors
///
/// What mmap(2) answers; EOVERFLOW for an offset that the system's type has no room for.
pub fn of_file(file: BorrowedFd<'_>, at: u64, len: usize) -> io::Result<NonNull<u8>> {
    let at =
        libc::off_t::try_from(at).map_err(|_| io::Error::from_raw_os_error(libc::EOVERFLOW))?;
    map(len, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), at)
}

/// Without `MAP_FIXED`, which the callers above have no way to ask for.
fn map(
    len: usize,
    access: libc::c_int,
    flags: libc::c_int,
    file: libc::c_int,
    at: libc::off_t,
) -> io::Result<NonNull<u8>> {
    // SAFETY: a new mapping at an address of the kernel's choice touches nobody's memory.
    let start = unsafe { libc::mmap(ptr::null_mut(), len, access, flags, file, at) };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(start.cast()).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}

/// Gives whole pages back, and tells libfabric's caches.
///
/// # Errors
///
/// What munmap(2) answers: all of it stays mapped.
///
/// # Safety
///
/// * The pages are the caller's: mapped by a function of this file, and not unmapped yet.
/// * Nobody uses an address in them any more, this process, a device or a peer.
pub unsafe fn unmap(start: NonNull<u8>, len: usize) -> io::Result<()> {
    // SAFETY: the caller's promise.
    told(unsafe { libc::munmap(start.as_ptr().cast(), len) })
}

/// Gives advice for whole pages, and tells libfabric's caches where it takes pages away.
///
/// # Errors
///
/// What madvise(2) answers.
///
/// # Safety
///
/// * The pages are the caller's: mapped by a function of this file, and not unmapped yet.
/// * Advice that changes their content (`MADV_DONTNEED`, `MADV_FREE`, `MADV_REMOVE`) only where
///   nobody, a device included, uses them meanwhile.
pub unsafe fn advise(start: NonNull<u8>, len: usize, advice: libc::c_int) -> io::Result<()> {
    // SAFETY: the caller's promise.
    told(unsafe { libc::madvise(start.as_ptr().cast(), len, advice) })
}

/// How much [`is_mapped`] asks for at once, in bytes: the answer has a byte for each page of it.
const ASKED_AT_ONCE: usize = 256 << 20;

/// Whether all of a range is mapped now. Touches none of it, and blocks for no page.
pub fn is_mapped(start: NonNull<u8>, len: usize) -> bool {
    let page = rustix::param::page_size();
    let end = start.addr().get().saturating_add(len);
    let mut at = start.addr().get() / page * page;
    let mut pages = vec![0_u8; ASKED_AT_ONCE.min(end - at).div_ceil(page)];
    while at < end {
        let some = ASKED_AT_ONCE.min(end - at);
        let from = ptr::without_provenance_mut(at);
        // SAFETY: takes any address, and answers ENOMEM where nothing is mapped; there is a byte
        // for each page.
        let rc = unsafe { libc::mincore(from, some, pages.as_mut_ptr()) };
        // Any other refusal says nothing about the range.
        if rc != 0 && io::Error::last_os_error().raw_os_error() == Some(libc::ENOMEM) {
            return false;
        }
        at += some;
    }
    true
}

fn told(rc: libc::c_int) -> io::Result<()> {
    if rc == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forked::in_a_child;

    /// In a child, where there is no other thread: one that maps memory would fill the hole. The
    /// allocator, which `is_mapped` asks for its pages, works after a fork (glibc).
    #[test]
    fn a_hole_is_not_mapped() {
        let code = in_a_child(|| look_into_a_hole().unwrap_or(-1));
        assert_eq!(code, 0, "what went wrong, by bits");
    }

    fn look_into_a_hole() -> io::Result<i32> {
        let page = rustix::param::page_size();
        let start = anonymous(4 * page, 0)?;
        // SAFETY: inside of the mapping.
        let [second, third] = [1, 2].map(|n| unsafe { start.add(n * page) });
        let whole = is_mapped(start, 4 * page);
        // SAFETY: this test's own pages, in which nobody has an address.
        unsafe { unmap(third, page) }?;
        let hole = !is_mapped(start, 4 * page) && !is_mapped(third, 1);
        // A part that begins and ends within a page, up to the hole and one byte into it.
        let [from, len] = [page / 2, 2 * page - page / 2];
        // SAFETY: inside of the mapping.
        let from = unsafe { start.add(from) };
        let edge = is_mapped(from, len) && !is_mapped(from, len + 1);
        // SAFETY: as above; a hole is no failure.
        unsafe { unmap(start, 4 * page) }?;
        let gone = !is_mapped(second, page);
        let wrong = [whole, hole, edge, gone].map(|right| i32::from(!right));
        Ok(wrong[0] | wrong[1] << 1 | wrong[2] << 2 | wrong[3] << 3)
    }
}
