//! `IoBuf` and `IoBufMut`: memory that an operation on a file owns until it is over.
//!
//! # Safety
//! A place is an address and a length, and stays true as long as the operation holds the buffer
//! that it was asked of: that is what the two traits promise.

#![allow(unsafe_code)]

use std::ops::{Bound, Range, RangeBounds};
use std::ptr::NonNull;
use std::sync::Arc;

use super::FileErrorKind;
use crate::buffer::{Buffer, BufferMut};
use crate::cuda::Context;

/// Where bytes lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// In the host's memory.
    Host {
        /// The first byte.
        ptr: NonNull<u8>,
        /// Bytes.
        len: usize,
    },
    /// In a GPU's memory.
    Device {
        /// Where the allocation starts (a `CUdeviceptr`): what is registered with cuFile.
        base: u64,
        /// Where in the allocation the first byte is, in bytes.
        offset: usize,
        /// Bytes.
        len: usize,
    },
}

impl Place {
    /// The length in bytes.
    pub fn len(self) -> usize {
        match self {
            Self::Host { len, .. } | Self::Device { len, .. } => len,
        }
    }

    /// Whether it has no bytes.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }
}

/// Memory that can be written to a file. An operation owns it and gives it back with its outcome.
///
/// A ring's pieces and slices of regions go in a [`RegionRun`](super::RegionRun), GPU memory in a
/// [`DeviceMemory`](super::DeviceMemory).
///
/// # Safety
/// From the first call of `place` until the value is dropped or used in any other way, wherever the
/// value is moved meanwhile:
/// * all bytes of the place are mapped, initialised, and good to read by any thread;
/// * nobody writes to them.
pub unsafe trait IoBuf: Send + 'static {
    /// Where the bytes are. The same each time.
    fn place(&self) -> Place;
}

/// Memory that a file can be read into.
///
/// # Safety
/// As [`IoBuf`], and from the first call of `place_mut` on, until the value is dropped or used in
/// any other way:
/// * all bytes of the place are good to write by any thread, and any bytes may be written there;
/// * nobody else reads or writes them.
pub unsafe trait IoBufMut: IoBuf {
    /// Where the bytes are, for writing. The place that [`IoBuf::place`] says.
    fn place_mut(&mut self) -> Place;
}

fn shared(bytes: &[u8]) -> Place {
    Place::Host {
        ptr: NonNull::from(bytes).cast(),
        len: bytes.len(),
    }
}

fn unique(bytes: &mut [u8]) -> Place {
    Place::Host {
        ptr: NonNull::from(&mut *bytes).cast(),
        len: bytes.len(),
    }
}

// SAFETY: a slot of a pool, whose only handle this is; the slot stays where it is when the handle
// moves.
unsafe impl IoBuf for BufferMut {
    fn place(&self) -> Place {
        shared(self)
    }
}

// SAFETY: as above; nobody else has a handle on the slot.
unsafe impl IoBufMut for BufferMut {
    fn place_mut(&mut self) -> Place {
        unique(self)
    }
}

// SAFETY: a frozen slot: nobody writes to it while any handle on it lives (`BufferMut` is made from
// the last one only).
unsafe impl IoBuf for Buffer {
    fn place(&self) -> Place {
        shared(self)
    }
}

// SAFETY: the vector's own allocation, which stays where it is when the vector moves; its first
// `len` bytes are initialised.
unsafe impl IoBuf for Vec<u8> {
    fn place(&self) -> Place {
        shared(self)
    }
}

/// The bytes that the vector has (its length, not its capacity).
// SAFETY: as above; a vector owns its bytes alone.
unsafe impl IoBufMut for Vec<u8> {
    fn place_mut(&mut self) -> Place {
        unique(self)
    }
}

// SAFETY: as for a vector.
unsafe impl IoBuf for Box<[u8]> {
    fn place(&self) -> Place {
        shared(self)
    }
}

// SAFETY: as for a vector.
unsafe impl IoBufMut for Box<[u8]> {
    fn place_mut(&mut self) -> Place {
        unique(self)
    }
}

// SAFETY: shared, so nobody has a `&mut` to it while this handle lives; it stays where it is.
unsafe impl IoBuf for Arc<[u8]> {
    fn place(&self) -> Place {
        shared(self)
    }
}

// SAFETY: never written, never freed.
unsafe impl IoBuf for &'static [u8] {
    fn place(&self) -> Place {
        shared(self)
    }
}

/// A place, or a part of one, on its way to the thread that moves the bytes.
///
/// It keeps nothing alive: whoever makes one sees to it that the buffer outlives the transfer (the
/// operation owns it, or a call that borrows it does not return before).
#[derive(Debug, Clone, Copy)]
pub(crate) struct RawMemory {
    place: Place,
    /// Of GPU memory, once it was looked up.
    context: Option<Context>,
}

// SAFETY: an address and a length; whoever reads or writes there says why that is sound.
unsafe impl Send for RawMemory {}
// SAFETY: as above.
unsafe impl Sync for RawMemory {}

impl RawMemory {
    /// All of a place.
    pub(crate) fn new(place: Place) -> Self {
        Self {
            place,
            context: None,
        }
    }

    /// Bytes that are borrowed for reading.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        Self::new(shared(bytes))
    }

    /// Bytes that are borrowed for writing.
    pub(crate) fn of_mut(bytes: &mut [u8]) -> Self {
        Self::new(unique(bytes))
    }

    /// The same, whose CUDA context is known.
    pub(crate) fn in_context(self, context: Option<Context>) -> Self {
        Self { context, ..self }
    }

    pub(crate) fn context(self) -> Option<Context> {
        self.context
    }

    pub(crate) fn place(self) -> Place {
        self.place
    }

    pub(crate) fn len(self) -> usize {
        self.place.len()
    }

    /// The part `start .. start + len`.
    ///
    /// # Panics
    /// When that is not inside.
    #[inline]
    pub(crate) fn part(self, start: usize, len: usize) -> Self {
        let end = start.checked_add(len);
        assert!(
            end.is_some_and(|end| end <= self.len()),
            "{len} bytes at {start} of {}",
            self.len()
        );
        let place = match self.place {
            Place::Host { ptr, .. } => Place::Host {
                // SAFETY: `start` is inside of the place (just asserted), which is one allocation.
                ptr: unsafe { ptr.add(start) },
                len,
            },
            Place::Device { base, offset, .. } => Place::Device {
                base,
                offset: offset + start,
                len,
            },
        };
        Self { place, ..self }
    }

    /// Its first byte, when it lies in the host's memory.
    pub(crate) fn host(self) -> Option<NonNull<u8>> {
        match self.place {
            Place::Host { ptr, .. } => Some(ptr),
            Place::Device { .. } => None,
        }
    }
}

/// A range of a buffer of `buffer_len` bytes, checked: start and length.
#[inline]
pub(crate) fn checked_range(
    range: &impl RangeBounds<usize>,
    buffer_len: usize,
) -> Result<(usize, usize), FileErrorKind> {
    let Range { start, end } = ends_of(range, buffer_len);
    if start > end || end > buffer_len {
        return Err(FileErrorKind::Range {
            start,
            end,
            buffer_len,
        });
    }
    Ok((start, end - start))
}

/// The same, not checked.
#[inline]
pub(crate) fn ends_of(range: &impl RangeBounds<usize>, buffer_len: usize) -> Range<usize> {
    let start = match range.start_bound() {
        Bound::Included(&start) => start,
        Bound::Excluded(&before) => before.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(&last) => last.saturating_add(1),
        Bound::Excluded(&end) => end,
        Bound::Unbounded => buffer_len,
    };
    start..end
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::buffer::SharedBufferManager;

    fn host(place: Place) -> (usize, usize) {
        match place {
            Place::Host { ptr, len } => (ptr.addr().get(), len),
            Place::Device { .. } => panic!("{place:?}"),
        }
    }

    /// Moves the value and asks again.
    fn stays<B: IoBufMut>(mut buffer: B) -> (usize, usize) {
        let before = host(buffer.place());
        assert_eq!(before, host(buffer.place_mut()));
        let moved = Box::new(buffer);
        assert_eq!(before, host(moved.place()));
        before
    }

    #[test]
    fn bytes_stay_where_they_are_when_their_owner_moves() {
        let mut vec = Vec::with_capacity(100);
        vec.resize(10, 1);
        let start = vec.as_ptr().addr();
        assert_eq!(stays(vec), (start, 10), "its length, not its capacity");
        assert_eq!(stays(vec![0; 7].into_boxed_slice()).1, 7);
        assert_eq!(stays(Vec::new()).1, 0);
        let pool = SharedBufferManager::allocate(1, 4096).unwrap();
        let buffer = pool.try_acquire().unwrap();
        let start = buffer.as_ptr().addr();
        assert_eq!(stays(buffer), (start, 4096));
        let frozen = pool.try_acquire().unwrap().freeze(100).slice(10..30);
        assert_eq!(host(frozen.place()), (start + 10, 20));
        let shared: Arc<[u8]> = Arc::from([1, 2, 3]);
        assert_eq!(host(shared.place()), (shared.as_ptr().addr(), 3));
        let text: &'static [u8] = b"text";
        assert_eq!(host(text.place()), (text.as_ptr().addr(), 4));
    }

    #[test]
    fn parts_of_memory() {
        let mut bytes = [0; 16];
        let start = bytes.as_ptr().addr();
        let memory = RawMemory::of_mut(&mut bytes).part(4, 8).part(2, 6);
        assert_eq!(host(memory.place()), (start + 6, 6));
        let device = RawMemory::new(Place::Device {
            base: 1 << 40,
            offset: 100,
            len: 50,
        });
        assert!(device.host().is_none());
        let Place::Device { base, offset, len } = device.part(10, 40).place() else {
            panic!("still on the device");
        };
        assert_eq!((base, offset, len), (1 << 40, 110, 40));
    }

    #[test]
    fn ranges_are_inside_or_refused() {
        assert_eq!(checked_range(&(..), 10), Ok((0, 10)));
        assert_eq!(checked_range(&(3..), 10), Ok((3, 7)));
        assert_eq!(checked_range(&(3..=9), 10), Ok((3, 7)));
        assert_eq!(checked_range(&(10..10), 10), Ok((10, 0)));
        #[expect(clippy::reversed_empty_ranges, reason = "what callers may get wrong")]
        let wrong = [5..3, 0..11, 11..11, usize::MAX..usize::MAX];
        for range in wrong {
            assert!(matches!(
                checked_range(&range, 10),
                Err(FileErrorKind::Range { start, buffer_len: 10, .. }) if start == range.start
            ));
        }
    }
}
