//! `FileMemory`: memory of C's that a transfer of a file reads or writes.

#![allow(unsafe_code)] // Memory that C answers for.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;

use fabricast::Region;
use fabricast::storage::{IoBuf, IoBufMut, Place};

use crate::handle::REGIONS;
use crate::pointer;
use crate::region::{fcast_region, offset_of};
use crate::status::Failure;

/// Bytes that a transfer uses until it is over: of a region, which it keeps, or at an address.
pub(crate) struct FileMemory {
    place: Place,
    /// The region that the bytes are in; `None`: the caller keeps them.
    region: Option<Arc<Region>>,
}

// SAFETY: an address and a length; whoever made this has promised that the bytes may be used by any
// thread (`new`).
unsafe impl Send for FileMemory {}

impl FileMemory {
    /// `len` bytes at `data`, which are in the region unless that is {0}.
    ///
    /// # Errors
    ///
    /// No such region, or the bytes are not in it; null where there are some.
    ///
    /// # Safety
    ///
    /// Until the value is dropped, the bytes are mapped (those of a region while the region is),
    /// good to read and, where a file is read into them, to write by any thread, and nobody else
    /// writes to them, or, where a file is read into them, reads them.
    pub(crate) unsafe fn new(
        region: fcast_region,
        data: *mut c_void,
        len: usize,
    ) -> Result<Self, Failure> {
        if region.id == 0 {
            let start = match NonNull::new(data.cast::<u8>()) {
                Some(start) => start,
                None if len == 0 => NonNull::dangling(),
                None => return Err(pointer::null("data")),
            };
            return Ok(Self::host(start, len, None));
        }
        let region = Arc::clone(&*REGIONS.share(region.id)?);
        let offset = offset_of(&region, data.addr(), len)?;
        if region.is_device() {
            let base = region.address();
            return Ok(Self {
                place: Place::Device { base, offset, len },
                region: Some(region),
            });
        }
        let start = NonNull::new(region.as_ptr().wrapping_add(offset));
        let start = start.unwrap_or(NonNull::dangling());
        Ok(Self::host(start, len, Some(region)))
    }

    fn host(ptr: NonNull<u8>, len: usize, region: Option<Arc<Region>>) -> Self {
        let place = Place::Host { ptr, len };
        Self { place, region }
    }

    /// Whether the caller keeps the bytes, so that no transfer may outlive what C knows of it.
    pub(crate) fn is_callers(&self) -> bool {
        self.region.is_none()
    }
}

// SAFETY: `new` was promised all of it.
unsafe impl IoBuf for FileMemory {
    fn place(&self) -> Place {
        self.place
    }
}

// SAFETY: as above; a value is made for one transfer, which reads a file or writes it.
unsafe impl IoBufMut for FileMemory {
    fn place_mut(&mut self) -> Place {
        self.place
    }
}

#[cfg(test)]
#[path = "tests/file_memory.rs"]
mod tests;
