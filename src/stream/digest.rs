//! Checksums: CRC32C of a block, and the digest of a stream, which is made from those of its blocks
//! in whatever order they come.
//!
//! The digest is the CRC32C of a list with 16 bytes for each block: its number (8 bytes), its
//! length (4) and its CRC32C (4), little-endian, in the order of the numbers. A CRC is linear: each
//! of the records has a part in it that depends on its bytes and on its distance from the end, and
//! the parts are added (exclusive or). So neither side keeps the list, nor needs an order.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{Immutable, IntoBytes};

/// CRC32C (Castagnoli) of some bytes, as iSCSI and NVMe have it.
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// The CRC32C of bytes that come piece by piece.
#[derive(Debug)]
pub(crate) struct Crc32c(crc_fast::Digest);

impl Crc32c {
    pub(crate) fn new() -> Self {
        Self(crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi))
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub(crate) fn finish(&self) -> u32 {
        self.0.finalize() as u32
    }
}

/// The polynomial, reflected: bit 31 is the coefficient of x^0.
const POLYNOMIAL: u32 = 0x82f6_3b78;
const ONE: u32 = 1 << 31;
const BITS_OF_RECORD: u32 = 128;

/// x^(2^k), for each k that is needed.
const POWERS: [u32; 72] = {
    let mut powers = [ONE >> 1; 72];
    let mut k = 1;
    while k < powers.len() {
        powers[k] = multiply(powers[k - 1], powers[k - 1]);
        k += 1;
    }
    powers
};

/// The product of two polynomials, modulo the one of CRC32C.
const fn multiply(a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    let mut bit = ONE;
    while bit != 0 {
        if a & bit != 0 {
            product ^= b;
        }
        // Times x.
        b = (b >> 1) ^ (POLYNOMIAL & (b & 1).wrapping_neg());
        bit >>= 1;
    }
    product
}

/// What a CRC is multiplied by when this many records follow.
fn shift_by(records: u64) -> u32 {
    shift(BITS_OF_RECORD, records)
}

/// The same for as many units of so many bits, a power of two of at most 256.
fn shift(bits: u32, units: u64) -> u32 {
    let first = bits.trailing_zeros() as usize;
    let mut product = ONE;
    let mut left = units;
    while left != 0 {
        product = multiply(product, POWERS[first + left.trailing_zeros() as usize]);
        left &= left - 1;
    }
    product
}

/// The CRC32C of so many zeros, which nobody has to look at.
pub(crate) fn crc32c_of_zeros(bytes: u64) -> u32 {
    multiply(u32::MAX, shift(u8::BITS, bytes)) ^ u32::MAX
}

#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct BlockRecord {
    index: U64,
    len: U32,
    crc: U32,
}

/// The digest of a stream in the making.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamDigest {
    blocks: u64,
    /// The sum of the parts.
    part: u32,
}

impl StreamDigest {
    /// The digest of a stream of `blocks` blocks, none of which is known yet.
    pub fn new(blocks: u64) -> Self {
        Self { blocks, part: 0 }
    }

    /// Adds a block. To add one a second time takes it out again.
    ///
    /// # Panics
    ///
    /// When the stream has no such block.
    pub fn add(&mut self, index: u64, len: u32, crc: u32) {
        assert!(index < self.blocks, "block {index} of {}", self.blocks);
        let record = BlockRecord {
            index: index.into(),
            len: len.into(),
            crc: crc.into(),
        };
        // A CRC begins with all bits set and ends with all inverted, which is the same for all
        // records of a length.
        let bare = crc32c(record.as_bytes()) ^ crc32c(&[0; 16]);
        self.part ^= multiply(bare, shift_by(self.blocks - 1 - index));
    }

    /// Adds the parts of blocks that somebody else has added up.
    pub fn add_part(&mut self, part: u32) {
        self.part ^= part;
    }

    /// The sum of the parts of the blocks so far.
    pub fn part(&self) -> u32 {
        self.part
    }

    /// The digest, once all blocks were added.
    pub fn digest(&self) -> u32 {
        // That of as many records of zeros, and what the records add to it.
        let zeros = multiply(u32::MAX, shift_by(self.blocks)) ^ u32::MAX;
        zeros ^ self.part
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The list itself.
    fn oracle(blocks: &[(u32, u32)]) -> u32 {
        let mut list = Vec::new();
        for (index, (len, crc)) in blocks.iter().enumerate() {
            list.extend_from_slice(&(index as u64).to_le_bytes());
            list.extend_from_slice(&len.to_le_bytes());
            list.extend_from_slice(&crc.to_le_bytes());
        }
        crc32c(&list)
    }

    #[test]
    fn known_values() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(StreamDigest::new(0).digest(), 0);
        let mut one = StreamDigest::new(1);
        one.add(0, 9, 0xe306_9283);
        let record = [0, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0x83, 0x92, 0x06, 0xe3];
        assert_eq!(one.digest(), crc32c(&record));
    }

    #[test]
    fn streams_have_up_to_all_the_blocks_that_can_be_counted() {
        // The records in front of the last two are all of zeros, but for their number: only the
        // difference is looked at.
        let mut a = StreamDigest::new(u64::MAX);
        let mut b = a;
        a.add(u64::MAX - 1, 1, 2);
        b.add(u64::MAX - 1, 1, 3);
        let last = |crc| {
            let record = BlockRecord {
                index: (u64::MAX - 1).into(),
                len: 1.into(),
                crc: U32::new(crc),
            };
            crc32c(record.as_bytes())
        };
        assert_eq!(a.digest() ^ b.digest(), last(2) ^ last(3));
        a.add(0, 1, 1);
        assert_ne!(a.part(), b.part());
    }

    #[test]
    fn zeros_have_the_checksum_of_their_number() {
        for len in [0, 1, 7, 4096, 100_001, 1 << 20] {
            assert_eq!(crc32c_of_zeros(len as u64), crc32c(&vec![0; len]), "{len}");
        }
    }

    proptest! {
        #[test]
        fn the_order_does_not_matter(
            blocks in proptest::collection::vec(any::<(u32, u32)>(), 0..70),
            keys in proptest::collection::vec(any::<u32>(), 70),
            cut in any::<prop::sample::Index>(),
        ) {
            let mut order: Vec<usize> = (0..blocks.len()).collect();
            order.sort_by_key(|index| keys[*index]);
            let (here, there) = order.split_at(cut.index(blocks.len() + 1));
            let mut digests = [StreamDigest::new(blocks.len() as u64); 2];
            for (digest, indices) in digests.iter_mut().zip([here, there]) {
                for index in indices {
                    digest.add(*index as u64, blocks[*index].0, blocks[*index].1);
                }
            }
            let [mut all, part] = digests;
            all.add_part(part.part());
            prop_assert_eq!(all.digest(), oracle(&blocks));
        }
    }
}
