//! Copies of payloads: small messages are copied into frames.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::sync::Arc;

use super::payload::Payload;
use crate::memory::Region;

/// The bytes of a payload, all of which lie in the host's memory and may be sent now.
pub(crate) struct HostBytes<'a> {
    payload: &'a Payload,
    /// Of the one run that they are; null where they may be several.
    start: *const u8,
    len: usize,
}

impl Payload {
    /// Its bytes, if all of them lie in the host's memory and may be sent now.
    #[inline(always)]
    pub(crate) fn host_bytes(&self) -> Option<HostBytes<'_>> {
        let Some((region, start, len)) = self.one_run() else {
            return self.host_bytes_of_each();
        };
        (!region.is_device()).then(|| HostBytes {
            payload: self,
            start: region.at(start).as_ptr(),
            len,
        })
    }

    #[inline(always)]
    fn one_run(&self) -> Option<(&Arc<Region>, usize, usize)> {
        match &self.0[..] {
            [segment] => segment.one_run(),
            _ => None,
        }
    }

    #[cold]
    fn host_bytes_of_each(&self) -> Option<HostBytes<'_>> {
        (!self.is_gated() && !self.is_device()).then(|| HostBytes {
            payload: self,
            start: std::ptr::null(),
            len: self.len_bytes(),
        })
    }
}

impl HostBytes<'_> {
    /// How many there are.
    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Copies them into as many.
    ///
    /// # Panics
    ///
    /// If there are not as many.
    #[inline(always)]
    pub(crate) fn copy_to(&self, out: &mut [u8]) {
        let (start, len) = (self.start, self.len);
        assert!(
            len == out.len(),
            "{len} bytes of a payload, into {}",
            out.len()
        );
        if start.is_null() {
            return self.copy_each_to(out);
        }
        // SAFETY: `host_bytes` found these bytes in one run of a region that is the host's; the
        // payload, which is borrowed, keeps its memory alive. `out` is as long, and nobody else's
        // while it is borrowed. Memory that others write to is copied as they leave it
        // (`RegionSlice`).
        unsafe { std::ptr::copy_nonoverlapping(start, out.as_mut_ptr(), len) };
    }

    #[cold]
    fn copy_each_to(&self, out: &mut [u8]) {
        let mut at = 0;
        let mut copy = |from: *const u8, len: usize, _: *mut c_void| {
            let to = out[at..at + len].as_mut_ptr();
            // SAFETY: as in `copy_to`; the slice has so many bytes.
            unsafe { std::ptr::copy_nonoverlapping(from, to, len) };
            at += len;
        };
        for segment in &self.payload.0 {
            segment.name_runs(std::ptr::null_mut(), &mut copy);
        }
    }
}
