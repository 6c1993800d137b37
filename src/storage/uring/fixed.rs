//! `FixedFiles` and `FixedRegions`: what a ring has registered with the kernel, so that an
//! operation need not look it up or pin it again.
//!
//! Both keep what they registered: a slot names the same file or memory until it is taken out, or
//! the ring is closed.

use std::ops::Range;
use std::sync::Arc;

use crate::memory::Region;

/// The most bytes of one registered buffer (io_uring_register(2)).
pub(super) const BUFFER_MAX_BYTES: usize = 1 << 30;

/// A place in a ring's table of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileSlot(u32);

impl FileSlot {
    pub(super) fn index(self) -> u32 {
        self.0
    }
}

/// A place in a ring's table of buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RegionSlot(u16);

impl RegionSlot {
    pub(super) fn index(self) -> u16 {
        self.0
    }
}

/// Which places of the file table are taken.
#[derive(Debug)]
pub(super) struct FixedFiles {
    taken: Box<[bool]>,
}

impl FixedFiles {
    pub(super) fn new(places: u32) -> Self {
        Self {
            taken: (0..places).map(|_| false).collect(),
        }
    }

    /// A free place; `None` when all are taken.
    pub(super) fn free(&self) -> Option<FileSlot> {
        let index = self.taken.iter().position(|taken| !taken)?;
        Some(FileSlot(index as u32))
    }

    pub(super) fn set(&mut self, slot: FileSlot, taken: bool) {
        self.taken[slot.0 as usize] = taken;
    }
}

/// The registered regions, each cut into buffers of [`BUFFER_MAX_BYTES`].
#[derive(Debug)]
pub(super) struct FixedRegions {
    regions: Vec<(Arc<Region>, Range<u16>)>,
    places: u16,
    next: u16,
}

impl FixedRegions {
    pub(super) fn new(places: u16) -> Self {
        Self {
            regions: Vec::new(),
            places,
            next: 0,
        }
    }

    pub(super) fn contains(&self, region: &Arc<Region>) -> bool {
        self.regions
            .iter()
            .any(|(known, _)| Arc::ptr_eq(known, region))
    }

    /// The places that a region would take; `None` when so many are not free.
    pub(super) fn room_for(&self, region: &Region) -> Option<Range<u16>> {
        let buffers = u16::try_from(region.len().div_ceil(BUFFER_MAX_BYTES)).ok()?;
        let end = self.next.checked_add(buffers)?;
        (end <= self.places).then_some(self.next..end)
    }

    /// The kernel took the region at these places.
    pub(super) fn add(&mut self, region: Arc<Region>, places: Range<u16>) {
        self.next = places.end;
        self.regions.push((region, places));
    }

    /// The buffer that all of these bytes lie in.
    #[inline]
    pub(super) fn find(&self, address: usize, len: usize) -> Option<RegionSlot> {
        if len == 0 {
            return None;
        }
        let end = address.checked_add(len)?;
        self.regions.iter().find_map(|(region, places)| {
            let base = region.as_ptr().addr();
            if address < base || end > base + region.len() {
                return None;
            }
            let buffer = (address - base) / BUFFER_MAX_BYTES;
            let last = (end - 1 - base) / BUFFER_MAX_BYTES;
            (last == buffer).then(|| RegionSlot(places.start + buffer as u16))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::HugePages;

    #[test]
    fn files_take_the_first_free_place() {
        let mut files = FixedFiles::new(2);
        let first = files.free().expect("nothing taken");
        files.set(first, true);
        let second = files.free().expect("one is free");
        assert_ne!(first, second);
        files.set(second, true);
        assert_eq!(files.free(), None);
        files.set(first, false);
        assert_eq!(files.free(), Some(first));
    }

    #[test]
    fn memory_is_found_only_where_all_of_it_lies_in_one_buffer() {
        let region = |len| {
            Region::host(len)
                .huge_pages(HugePages::Never)
                .populate(false)
                .build()
                .expect("address space")
        };
        let mut fixed = FixedRegions::new(4);
        let small = region(8192);
        let places = fixed.room_for(&small).expect("four places");
        assert_eq!(places, 0..1);
        fixed.add(Arc::clone(&small), places);
        // Never touched, so it takes no memory.
        let large = region(2 * BUFFER_MAX_BYTES + 4096);
        let places = fixed.room_for(&large).expect("three places");
        assert_eq!(places, 1..4);
        fixed.add(Arc::clone(&large), places);
        assert!(fixed.room_for(&small).is_none() && fixed.contains(&small));

        let base = small.as_ptr().addr();
        let slot = |index| Some(RegionSlot(index));
        assert_eq!(fixed.find(base, 8192), slot(0));
        assert_eq!(fixed.find(base + 8191, 1), slot(0));
        assert_eq!(fixed.find(base, 0), None);
        assert_eq!(fixed.find(base + 1, 8192), None);
        assert_eq!(fixed.find(base.wrapping_sub(1), 2), None);
        assert_eq!(fixed.find(usize::MAX, 2), None);
        let base = large.as_ptr().addr();
        assert_eq!(fixed.find(base + BUFFER_MAX_BYTES - 1, 1), slot(1));
        assert_eq!(fixed.find(base + BUFFER_MAX_BYTES, 4096), slot(2));
        assert_eq!(fixed.find(base + BUFFER_MAX_BYTES - 1, 2), None);
        assert_eq!(fixed.find(base + 2 * BUFFER_MAX_BYTES, 4096), slot(3));
    }
}
