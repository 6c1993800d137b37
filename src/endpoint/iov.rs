//! `IovList`: the segments of one message, on the stack.

use std::ffi::c_void;

use crate::endpoint::link::IOV_MAX;

/// Up to [`IOV_MAX`] segments and their descriptors.
pub(crate) struct IovList {
    iov: [libc::iovec; IOV_MAX],
    desc: [*mut c_void; IOV_MAX],
    len: usize,
}

impl IovList {
    #[inline]
    pub(crate) fn new() -> Self {
        const EMPTY: libc::iovec = libc::iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: 0,
        };
        Self {
            iov: [EMPTY; IOV_MAX],
            desc: [std::ptr::null_mut(); IOV_MAX],
            len: 0,
        }
    }

    /// Adds a segment. The caller has checked the count against the link's limit, which is at most `IOV_MAX`.
    #[inline]
    pub(crate) fn push(&mut self, base: *const u8, len: usize, desc: *mut c_void) {
        self.iov[self.len] = libc::iovec {
            iov_base: base.cast_mut().cast(),
            iov_len: len,
        };
        self.desc[self.len] = desc;
        self.len += 1;
    }

    pub(crate) fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.iov()
            .iter()
            .map(|segment| segment.iov_len as u64)
            .sum()
    }

    pub(crate) fn iov(&self) -> &[libc::iovec] {
        &self.iov[..self.len]
    }

    pub(crate) fn desc(&self) -> &[*mut c_void] {
        &self.desc[..self.len]
    }
}
