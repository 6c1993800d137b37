//! Memory for both sides alike: mapped by hand, with large pages where the kernel gives some.

#![allow(unsafe_code)]

use std::io;

/// The size of a large page.
const LARGE: usize = 2 << 20;

/// One anonymous mapping, in large pages as far as the kernel has them.
pub(crate) struct Memory {
    base: *mut u8,
    mapped: (*mut libc::c_void, usize),
    len: usize,
}

// SAFETY: it only owns the mapping; who writes to it borrows it mutably.
unsafe impl Send for Memory {}

impl Memory {
    /// `len` bytes that begin at a large page, all of them touched.
    pub(crate) fn new(len: usize) -> io::Result<Self> {
        let bytes = len + LARGE;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let skip = start.align_offset(LARGE);
        let base = start.cast::<u8>().wrapping_add(skip);
        // SAFETY: within the mapping; the advice changes no content, and it is fine if it is not
        // taken.
        unsafe { libc::madvise(base.cast(), len, libc::MADV_HUGEPAGE) };
        let mut this = Self {
            base,
            mapped: (start, bytes),
            len,
        };
        this.bytes().fill(0);
        Ok(this)
    }

    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: `len` bytes of the mapping behind its first large page, zeroed by the kernel, and
        // borrowed as this value is.
        unsafe { std::slice::from_raw_parts_mut(self.base, self.len) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the whole mapping, which nobody borrows any more.
        unsafe { libc::munmap(self.mapped.0, self.mapped.1) };
    }
}
