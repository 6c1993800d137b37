//! `IovList`: the segments of one message, on the stack.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::mem::MaybeUninit;

use crate::endpoint::link::IOV_MAX;

/// Up to [`IOV_MAX`] segments and their descriptors. Only the first `len` of each are written: most
/// messages have two, and zeroing the others would cost more than all else here.
pub(crate) struct IovList {
    iov: [MaybeUninit<libc::iovec>; IOV_MAX],
    desc: [MaybeUninit<*mut c_void>; IOV_MAX],
    len: usize,
    /// A segment is a device's memory.
    no_inject: bool,
}

impl IovList {
    #[inline]
    pub(crate) fn new() -> Self {
        Self {
            iov: [const { MaybeUninit::uninit() }; IOV_MAX],
            desc: [const { MaybeUninit::uninit() }; IOV_MAX],
            len: 0,
            no_inject: false,
        }
    }

    /// Adds a segment. The caller has checked the count against the link's limit, which is at most
    /// `IOV_MAX`.
    #[inline]
    pub(crate) fn push(&mut self, base: *const u8, len: usize, desc: *mut c_void) {
        self.iov[self.len].write(libc::iovec {
            iov_base: base.cast_mut().cast(),
            iov_len: len,
        });
        self.desc[self.len].write(desc);
        self.len += 1;
    }

    /// Begins the first segment so many bytes earlier. The caller has put a header there, in the
    /// same region.
    pub(crate) fn extend_front(&mut self, bytes: usize) {
        debug_assert_eq!(self.len, 1, "one run of memory");
        // SAFETY: `push` wrote the first, and the list has one.
        let first = unsafe { self.iov[0].assume_init_mut() };
        first.iov_base = first.iov_base.cast::<u8>().wrapping_sub(bytes).cast();
        first.iov_len += bytes;
    }

    /// The bytes of all segments.
    #[inline]
    pub(crate) fn len_bytes(&self) -> usize {
        self.iov().iter().map(|segment| segment.iov_len).sum()
    }

    /// None of it may be copied by the processor.
    pub(crate) fn forbid_inject(&mut self) {
        self.no_inject = true;
    }

    #[inline]
    pub(crate) fn may_inject(&self) -> bool {
        !self.no_inject
    }

    pub(crate) fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn iov(&self) -> &[libc::iovec] {
        let written = &self.iov[..self.len];
        // SAFETY: `push` wrote the first `len`, and nothing else raises `len`.
        unsafe { std::slice::from_raw_parts(written.as_ptr().cast(), written.len()) }
    }

    pub(crate) fn desc(&self) -> &[*mut c_void] {
        let written = &self.desc[..self.len];
        // SAFETY: `push` wrote the first `len`, and nothing else raises `len`.
        unsafe { std::slice::from_raw_parts(written.as_ptr().cast(), written.len()) }
    }
}
