//! Copies of payloads: small messages are copied into frames.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::sync::Arc;

use super::payload::Payload;
use crate::memory::Region;

/// The bytes of a payload, all of which lie in the host's memory and may be sent now.
pub(crate) struct HostBytes<'a> {
    /// The payload, where they may be several runs of it.
    several: Option<&'a Payload>,
    /// Of the one run that they are else.
    start: *const u8,
    len: usize,
}

impl Payload {
    /// Its bytes, if all of them lie in the host's memory and may be sent now.
    #[inline(always)]
    pub(crate) fn host_bytes(&self) -> Option<HostBytes<'_>> {
        match self.one_run() {
            Some((region, start, len)) => HostBytes::of_run(region, start, len),
            None => self.host_bytes_of_each(),
        }
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
            several: Some(self),
            start: std::ptr::null(),
            len: self.len_bytes(),
        })
    }
}

impl<'a> HostBytes<'a> {
    /// Those of one run of a region, if that is the host's.
    #[inline(always)]
    pub(super) fn of_run(region: &'a Arc<Region>, start: usize, len: usize) -> Option<Self> {
        (!region.is_device()).then(|| Self {
            several: None,
            start: region.at(start).as_ptr(),
            len,
        })
    }

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
        if let Some(payload) = self.several {
            return copy_each_to(payload, out);
        }
        // SAFETY: `of_run` was given these bytes as one run of a region that is the host's; the
        // region, which is borrowed, keeps its memory alive. `out` is as long, and nobody else's
        // while it is borrowed. Memory that others write to is copied as they leave it
        // (`RegionSlice`).
        unsafe { std::ptr::copy_nonoverlapping(start, out.as_mut_ptr(), len) };
    }
}

#[cold]
fn copy_each_to(payload: &Payload, out: &mut [u8]) {
    let mut at = 0;
    let mut copy = |from: *const u8, len: usize, _: *mut c_void| {
        let to = out[at..at + len].as_mut_ptr();
        // SAFETY: as in `copy_to`: the payload's runs are the host's, and it is borrowed; the slice
        // has so many bytes.
        unsafe { std::ptr::copy_nonoverlapping(from, to, len) };
        at += len;
    };
    for segment in payload.parts() {
        segment.name_runs(std::ptr::null_mut(), &mut copy);
    }
}
