//! `BlockSums`: what is computed of the bytes of a block while they are in the cache, on either
//! side.

use std::time::Duration;

use super::content_hash::BlockHash;
use super::{Block, BlockPlan};
use crate::clock::Clock;

/// The checksums of one block.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct BlockSums {
    /// 0 where nobody asked for it.
    pub(super) crc: u32,
    pub(super) hash: Option<BlockHash>,
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
            hash_time: hash.map_or(Duration::ZERO, |_| clock.since(began)),
        }
    }
}
