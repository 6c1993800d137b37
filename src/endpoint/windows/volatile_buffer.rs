//! `VolatileBuffer`: memory of this side that a peer writes into by itself, and that this side
//! copies out of meanwhile.
//!
//! A window is not revoked between two messages that the peer puts into it: that would cost two
//! messages and a registration each time. So the peer may write whenever it likes, also while this
//! side reads, and no reference to the bytes is ever made: they are read as volatile, once, into
//! memory of this side's own, and whatever is checked or kept is that copy.

#![allow(unsafe_code)]

use std::fmt;
use std::ptr::NonNull;

use crate::buffer::BufferMut;
use crate::memory::volatile;

/// A buffer whose bytes may change at any time. One handle is the window's, as long as a peer can
/// reach it; others are of those who copy out of it.
pub(crate) struct VolatileBuffer {
    base: NonNull<u8>,
    len: usize,
    /// Keeps the slot of its pool, and is never looked at again.
    _buffer: BufferMut,
}

// SAFETY: it is an address of memory that the buffer keeps, which may be moved to another thread;
// what is there is only ever read as volatile.
unsafe impl Send for VolatileBuffer {}
// SAFETY: as above; reads by several threads at once do not change anything.
unsafe impl Sync for VolatileBuffer {}

impl VolatileBuffer {
    /// Takes a buffer. What its last owner left there goes: a peer that says that it wrote, and did
    /// not, gets nothing of it.
    pub(crate) fn new(mut buffer: BufferMut) -> Self {
        buffer.fill(0);
        Self::landed(buffer)
    }

    /// Takes a buffer that a peer has written, and may still write.
    pub(crate) fn landed(mut buffer: BufferMut) -> Self {
        Self {
            base: buffer.place(0),
            len: buffer.size(),
            _buffer: buffer,
        }
    }

    /// The length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Its first byte.
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Copies what is there at this moment, from an offset on.
    ///
    /// # Panics
    ///
    /// If it has fewer bytes.
    pub(crate) fn copy_out(&self, from: usize, into: &mut [u8]) {
        let fits = from
            .checked_add(into.len())
            .is_some_and(|end| end <= self.len);
        assert!(fits, "{} bytes from {from} on, of {}", into.len(), self.len);
        // SAFETY: within the buffer, by the assertion, which the handle keeps; no reference to it
        // is made as long as this lives.
        unsafe { volatile::copy_out(self.base.as_ptr().wrapping_add(from), into) };
    }
}

impl fmt::Debug for VolatileBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VolatileBuffer")
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::buffer::SharedBufferManager;

    #[test]
    fn what_is_there_is_copied_whatever_the_place_and_nothing_is_left_of_before() {
        let pool = SharedBufferManager::allocate(1, 300).expect("a pool");
        pool.try_acquire().expect("one is free").fill(0xaa);
        let buffer = VolatileBuffer::new(pool.try_acquire().expect("one is free"));
        let mut all = vec![1; 300];
        buffer.copy_out(0, &mut all);
        assert_eq!(all, [0; 300]);
        let pattern: Vec<u8> = (0..300).map(|at| (at % 251) as u8).collect();
        for (at, byte) in pattern.iter().enumerate() {
            // SAFETY: as a peer does, within the buffer.
            unsafe {
                buffer
                    .base()
                    .as_ptr()
                    .wrapping_add(at)
                    .write_volatile(*byte)
            };
        }
        for (from, len) in [
            (0, 300),
            (1, 299),
            (7, 33),
            (8, 32),
            (31, 1),
            (299, 1),
            (300, 0),
        ] {
            let mut part = vec![0; len];
            buffer.copy_out(from, &mut part);
            assert_eq!(
                part,
                pattern[from..from + len],
                "{len} bytes from {from} on"
            );
        }
        assert_eq!(pool.free_count(), 0);
        drop(buffer);
        assert_eq!(pool.free_count(), 1);
    }

    #[test]
    #[should_panic(expected = "of 64")]
    fn nothing_behind_the_end_is_read() {
        let pool = SharedBufferManager::allocate(1, 64).expect("a pool");
        let buffer = VolatileBuffer::new(pool.try_acquire().expect("one is free"));
        buffer.copy_out(60, &mut [0; 5]);
    }
}
