//! Copies of payloads: small messages are copied into frames.

#![allow(unsafe_code)]

use std::ffi::c_void;

use super::payload::Payload;

impl Payload {
    /// Its length in bytes, if all of it lies in the host's memory and may be sent now.
    #[inline(always)]
    pub(crate) fn host_bytes(&self) -> Option<usize> {
        if let [segment] = &self.0[..]
            && let Some((region, _, len)) = segment.one_run()
        {
            return (!region.is_device()).then_some(len);
        }
        self.host_bytes_of_each()
    }

    #[cold]
    fn host_bytes_of_each(&self) -> Option<usize> {
        (!self.is_gated() && !self.is_device()).then(|| self.len_bytes())
    }

    /// Copies its bytes, which [`host_bytes`](Self::host_bytes) counted, into as many.
    ///
    /// # Panics
    ///
    /// If there are not as many.
    #[inline(always)]
    pub(crate) fn copy_to(&self, out: &mut [u8]) {
        if let [segment] = &self.0[..]
            && let Some((region, start, len)) = segment.one_run()
        {
            let is_all = len == out.len() && !region.is_device();
            assert!(is_all, "{len} bytes of a payload, into {}", out.len());
            // SAFETY: the segment keeps its region's memory alive, which is the host's and has
            // these bytes; `out` is as long, and nobody else's while it is borrowed. Memory that
            // others write to is copied as they leave it (`RegionSlice`).
            return unsafe {
                std::ptr::copy_nonoverlapping(region.at(start).as_ptr(), out.as_mut_ptr(), len);
            };
        }
        self.copy_each_to(out);
    }

    #[cold]
    fn copy_each_to(&self, out: &mut [u8]) {
        assert_eq!(self.host_bytes(), Some(out.len()), "the bytes of a payload");
        let mut at = 0;
        let mut copy = |from: *const u8, len: usize, _: *mut c_void| {
            let to = out[at..at + len].as_mut_ptr();
            // SAFETY: as in `copy_to`; the slice has so many bytes.
            unsafe { std::ptr::copy_nonoverlapping(from, to, len) };
            at += len;
        };
        for segment in &self.0 {
            segment.name_runs(std::ptr::null_mut(), &mut copy);
        }
    }
}
