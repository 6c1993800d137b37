//! `RegionPart`: a range of a region that is named for one call; `Given`: what a message is sent
//! from.

use std::ops::Range;
use std::sync::Arc;

use super::payload::Payload;
use super::payload_copy::HostBytes;
use super::segment::RegionSlice;
use crate::memory::{MemoryError, Region};

/// A range of a region that is named for one call: a [`RegionSlice`] that does not keep the region,
/// and costs no look at how many do.
///
/// It is for who keeps the region anyway and knows a message by its key: where the bytes are copied
/// into a frame, nothing comes back with the outcome but the key. Where they are not, the send
/// makes a slice of it.
#[derive(Clone, Copy)]
pub struct RegionPart<'a> {
    region: &'a Arc<Region>,
    start: usize,
    len: usize,
}

impl Region {
    /// A part of this region, as [`slice`](Self::slice), for one call.
    ///
    /// # Errors
    /// [`MemoryError::OutOfRange`], and [`MemoryError::Claimed`] when the region is in use for
    /// something else.
    #[inline]
    pub fn part(self: &Arc<Self>, range: Range<usize>) -> Result<RegionPart<'_>, MemoryError> {
        let Range { start, end } = range;
        if start > end || end > self.len() {
            let len_bytes = self.len();
            return Err(MemoryError::OutOfRange {
                start,
                end,
                len_bytes,
            });
        }
        self.give_to_slices()?;
        Ok(RegionPart {
            region: self,
            start,
            len: end - start,
        })
    }
}

impl RegionPart<'_> {
    /// The same range, with the region.
    #[inline]
    pub fn to_slice(self) -> RegionSlice {
        RegionSlice::of(Arc::clone(self.region), self.start, self.len)
    }
}

impl std::fmt::Debug for RegionPart<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RegionPart")
            .field("start", &self.start)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

/// What a message is sent from: a payload, or what one can be made of.
pub(crate) trait Given {
    /// Its bytes, if all of them lie in the host's memory and may be sent now.
    fn host_bytes(&self) -> Option<HostBytes<'_>>;

    /// The payload to be sent, or given back.
    fn into_payload(self) -> Payload;

    /// What comes back with the outcome, where the bytes were copied.
    fn into_kept(self) -> Payload;
}

impl Given for Payload {
    #[inline(always)]
    fn host_bytes(&self) -> Option<HostBytes<'_>> {
        Self::host_bytes(self)
    }

    #[inline(always)]
    fn into_payload(self) -> Payload {
        self
    }

    #[inline(always)]
    fn into_kept(self) -> Payload {
        self
    }
}

impl Given for RegionPart<'_> {
    #[inline(always)]
    fn host_bytes(&self) -> Option<HostBytes<'_>> {
        HostBytes::of_run(self.region, self.start, self.len)
    }

    #[inline(always)]
    fn into_payload(self) -> Payload {
        self.to_slice().into()
    }

    #[inline(always)]
    fn into_kept(self) -> Payload {
        Payload::empty()
    }
}
