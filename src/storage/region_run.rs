//! `RegionRun`: a reservation or a fragment of a ring, or a slice of a region, as the buffer of an
//! operation on a file: bytes go between a file and the memory that the network sends from, without
//! a copy.

#![allow(unsafe_code)]

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use super::io_buffer::{IoBuf, IoBufMut, Place};
use crate::buffer::{RegionSlice, Reservation, RingFragment};
use crate::memory::Region;

/// One run of bytes in a region, and who owns it: a [`Reservation`], to read a file into; a
/// [`RingFragment`], to write to a file; a [`RegionSlice`], for both.
///
/// It is an [`IoBuf`], and of a reservation or a slice an [`IoBufMut`]. Those types are not, for
/// two reasons. A piece of a ring may wrap around the end of its region, and is two runs then:
/// [`FileHandle::readv`](super::FileHandle::readv) into [`Reservation::segments_mut`] and
/// [`FileHandle::writev`](super::FileHandle::writev) of [`RingFragment::as_slices`] move such a
/// piece. And of memory that others may write to, or of a slice, of which there may be many over
/// the same bytes, only the caller knows that nobody else uses it: that is what the `unsafe`
/// constructors ask for.
///
/// ```
/// use fabricast::buffer::{RingConfig, RingRegion};
/// use fabricast::memory::Region;
/// use fabricast::storage::{FileHandle, IoOptions, RegionRun};
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("run.dat");
/// # std::fs::write(&path, b"one two")?;
/// let file = FileHandle::open(&path, "r")?;
/// let mut ring = RingRegion::new(Region::host(4096).build()?, RingConfig::default())?;
/// let run = RegionRun::new(ring.reserve(1000)?).expect("host memory, and no wrap-around");
/// let (run, moved) = file.pread(run, .., 0, &IoOptions::default()).wait().into_result()?;
/// let fragment = run.into_inner().commit(moved.bytes);
/// assert_eq!(fragment.as_slices().expect("a host ring").0, b"one two");
/// // And now it is sent.
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct RegionRun<T> {
    owner: T,
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: an address in a region that the owner keeps; the bytes are the owner's, which may go to
// other threads.
unsafe impl<T: Send> Send for RegionRun<T> {}
// SAFETY: as above; through a shared `RegionRun` nobody gets at the bytes.
unsafe impl<T: Sync> Sync for RegionRun<T> {}

/// A piece of a ring.
trait RingPiece {
    fn ranges(&self) -> (Range<usize>, Range<usize>);
    fn region(&self) -> &Arc<Region>;
}

impl RingPiece for Reservation {
    fn ranges(&self) -> (Range<usize>, Range<usize>) {
        self.ranges()
    }

    fn region(&self) -> &Arc<Region> {
        self.region()
    }
}

impl RingPiece for RingFragment {
    fn ranges(&self) -> (Range<usize>, Range<usize>) {
        self.ranges()
    }

    fn region(&self) -> &Arc<Region> {
        self.region()
    }
}

/// Over host memory, the ring's only, or over memory that the caller vouches for.
fn piece<P: RingPiece>(owner: P, vouched_for: bool) -> Result<RegionRun<P>, P> {
    let (first, second) = owner.ranges();
    if !second.is_empty() || !(vouched_for || owner.region().is_host()) {
        return Err(owner);
    }
    let start = owner.region().at(first.start);
    Ok(RegionRun {
        owner,
        start,
        len: first.len(),
    })
}

impl RegionRun<Reservation> {
    /// The bytes of a reservation over host memory.
    ///
    /// # Errors
    /// Gives it back when it wraps around the end of the region, or others may write to the memory.
    pub fn new(reservation: Reservation) -> Result<Self, Reservation> {
        piece(reservation, false)
    }

    /// The bytes of a reservation over external memory.
    ///
    /// # Errors
    /// Gives it back when it wraps around the end of the region.
    ///
    /// # Safety
    /// The memory is the host's, and good to write. As long as this lives nobody else reads or
    /// writes these bytes: no DMA engine, no one-sided operation, no send of a slice over them.
    pub unsafe fn external(reservation: Reservation) -> Result<Self, Reservation> {
        piece(reservation, true)
    }
}

impl RegionRun<RingFragment> {
    /// The bytes of a fragment over host memory.
    ///
    /// # Errors
    /// Gives it back when it wraps around the end of the region, or others may write to the memory.
    pub fn of_fragment(fragment: RingFragment) -> Result<Self, RingFragment> {
        piece(fragment, false)
    }

    /// The bytes of a fragment over external memory.
    ///
    /// # Errors
    /// Gives it back when it wraps around the end of the region.
    ///
    /// # Safety
    /// The memory is the host's. As long as this lives nobody writes these bytes: the DMA engine
    /// that filled them is done.
    pub unsafe fn of_external_fragment(fragment: RingFragment) -> Result<Self, RingFragment> {
        piece(fragment, true)
    }
}

impl RegionRun<RegionSlice> {
    /// The bytes of a slice.
    ///
    /// # Safety
    /// The memory is the host's, and good to write where a file is read into it. As long as this
    /// lives nobody else reads or writes these bytes: not through another slice or its address, no
    /// DMA engine, no operation of the network.
    pub unsafe fn of_slice(slice: RegionSlice) -> Self {
        let start = slice.region().at(slice.offset());
        let len = slice.len();
        Self {
            owner: slice,
            start,
            len,
        }
    }
}

impl<T> RegionRun<T> {
    /// Who owns the bytes.
    pub fn get(&self) -> &T {
        &self.owner
    }

    /// Who owned the bytes: to commit a reservation, or to send what was read.
    pub fn into_inner(self) -> T {
        self.owner
    }

    /// The length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn here(&self) -> Place {
        Place::Host {
            ptr: self.start,
            len: self.len,
        }
    }
}

// SAFETY: a run inside of a region that the reservation keeps, mapped and initialised (host memory
// is mapped zeroed, external memory was vouched for); the ring has handed the bytes to this
// reservation alone, and others were vouched for.
unsafe impl IoBuf for RegionRun<Reservation> {
    fn place(&self) -> Place {
        self.here()
    }
}

// SAFETY: as above; a shared reference to the reservation gives no bytes.
unsafe impl IoBufMut for RegionRun<Reservation> {
    fn place_mut(&mut self) -> Place {
        self.here()
    }
}

// SAFETY: as for a reservation; nobody writes to a fragment, which was committed.
unsafe impl IoBuf for RegionRun<RingFragment> {
    fn place(&self) -> Place {
        self.here()
    }
}

// SAFETY: the slice keeps its region; who made this vouches for the rest.
unsafe impl IoBuf for RegionRun<RegionSlice> {
    fn place(&self) -> Place {
        self.here()
    }
}

// SAFETY: as above.
unsafe impl IoBufMut for RegionRun<RegionSlice> {
    fn place_mut(&mut self) -> Place {
        self.here()
    }
}

#[cfg(all(test, not(loom)))]
#[path = "tests/region_run.rs"]
mod tests;
