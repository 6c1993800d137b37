//! Random numbers with a seed that is printed, and buffers at chosen addresses.

use std::ops::Range;

/// Xorshift: the same numbers for the same seed, everywhere.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// 0 to `end - 1`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() >> 16) as usize % end
    }

    pub(crate) fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    pub(crate) fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    pub(crate) fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let number = self.next().to_ne_bytes();
            chunk.copy_from_slice(&number[..chunk.len()]);
        }
    }
}

/// A vector, and a range of it of `len` bytes whose first one is `over` bytes behind a page.
pub(crate) fn at_address(len: usize, over: usize) -> (Vec<u8>, Range<usize>) {
    let buffer = vec![0xEE; len + 2 * 4096];
    let start = buffer.as_ptr().addr().next_multiple_of(4096) + over - buffer.as_ptr().addr();
    (buffer, start..start + len)
}
