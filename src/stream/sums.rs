//! `BlockSums`: what is computed of the bytes of a block while they are in the cache, on either
//! side.

use std::time::Duration;

use super::content_hash::BlockHash;
use super::{Block, BlockPlan};
use crate::clock::Clock;

/// What tells the content of a block from any other: the first half of its BLAKE3 hash.
pub(crate) type ContentSum = [u8; 16];

/// The sum of these bytes.
pub(super) fn content_sum(bytes: &[u8]) -> ContentSum {
    let hash = blake3::hash(bytes);
    let (sum, _) = hash.as_bytes().split_first_chunk().expect("32 bytes");
    *sum
}

/// The checksums of one block.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct BlockSums {
    /// 0 where nobody asked for it.
    pub(super) crc: u32,
    pub(super) hash: Option<BlockHash>,
    /// Where a peer may have the same.
    pub(super) content: Option<ContentSum>,
    /// What computing the hash took.
    pub(super) hash_time: Duration,
}

impl BlockSums {
    /// Of a block whose CRC32C is known; `hashed`: the blocks of the stream, if its content is
    /// hashed.
    pub(super) fn new(
        crc: u32,
        hashed: Option<&BlockPlan>,
        block: &Block,
        bytes: &[u8],
        clock: &Clock,
    ) -> Self {
        let began = clock.now();
        let hash = hashed.map(|plan| BlockHash::new(plan, block, bytes));
        Self {
            crc,
            hash,
            content: None,
            hash_time: hash.map_or(Duration::ZERO, |_| clock.since(began)),
        }
    }

    /// The same with the sum of the content.
    pub(super) fn with_content(self, bytes: &[u8], clock: &Clock) -> Self {
        let began = clock.now();
        Self {
            content: Some(content_sum(bytes)),
            hash_time: self.hash_time + clock.since(began),
            ..self
        }
    }
}
