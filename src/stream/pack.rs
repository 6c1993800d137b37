//! Packs: small blocks that follow each other in a stream, and go as one message; and runs of
//! zeros, whose bytes do not go.
//!
//! A block of each of thousands of small files would cost a message, a buffer and two wake-ups. In
//! a pack each block keeps its number, its checksum and its place; what is lost, damaged or kept is
//! still counted block by block.

use super::wire::{PACK_BLOCKS_MAX, Pack, Zeros};
use super::{Block, BlockPlan, Manifest, StreamViolation};

/// Blocks of this size and more have messages of their own: files are read and written around the
/// page cache from there on, for which blocks lie at pages.
const OWN_MESSAGE_FROM: u32 = 64 << 10;

/// What a sender puts into one pack, at most: several threads are to have something to do.
const BLOCKS_MAX: usize = 64;
const BYTES_MAX: usize = 512 << 10;

const _: () = assert!(BLOCKS_MAX <= PACK_BLOCKS_MAX);

/// A block that came in a pack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PackedBlock {
    pub(crate) block: Block,
    /// The checksum that came with it.
    pub(crate) crc: u32,
    /// Where its bytes begin in those of the pack, behind the checksums.
    pub(crate) at: usize,
}

/// The blocks that a peer says it has packed.
///
/// # Errors
/// The stream has no such blocks, their bytes are not as many as came, or there are checksums
/// though none were agreed on.
pub(super) fn unpack(
    pack: &Pack<'_>,
    plan: &BlockPlan,
    has_crc: bool,
) -> Result<Vec<PackedBlock>, StreamViolation> {
    let mut at = 0;
    let mut blocks = Vec::with_capacity(pack.crcs.len());
    for (index, crc) in (pack.first..).zip(pack.crcs) {
        let block = plan.get(index);
        let block = block.ok_or(StreamViolation::NoSuchBlock { index })?;
        let crc = crc.get();
        if !has_crc && crc != 0 {
            let (what, value) = ("the CRC of a block without one", crc.into());
            return Err(StreamViolation::Count { what, value });
        }
        blocks.push(PackedBlock { block, crc, at });
        at += block.len as usize;
    }
    match at == pack.len as usize {
        true => Ok(blocks),
        false => Err(StreamViolation::Count {
            what: "the number of bytes of the blocks of a pack",
            value: pack.len.into(),
        }),
    }
}

/// The blocks that a peer says to be zeros.
///
/// # Errors
/// The stream has no such blocks, or one is of an entry that is not said to have holes: zeros take
/// no room there, whatever their number.
pub(super) fn blocks_of(
    zeros: &Zeros,
    plan: &BlockPlan,
    manifest: &Manifest,
) -> Result<Vec<Block>, StreamViolation> {
    let blocks = (zeros.first..).take(zeros.blocks as usize).map(|index| {
        let block = plan.get(index);
        let block = block.ok_or(StreamViolation::NoSuchBlock { index })?;
        match manifest.is_sparse(block.entry) {
            true => Ok(block),
            false => Err(StreamViolation::Count {
                what: "zeros of a file that is not said to have holes; the block",
                value: index,
            }),
        }
    });
    blocks.collect()
}

/// Which blocks a sender puts into its next pack.
#[derive(Debug)]
pub(super) struct PackBuilder {
    blocks: Vec<Block>,
    bytes: usize,
    /// Bytes that the payload may have.
    room: usize,
}

impl PackBuilder {
    /// A pack that begins with this block; `None`: the block is too large for one.
    pub(super) fn new(first: Block, room: usize) -> Option<Self> {
        let mut this = Self {
            blocks: Vec::new(),
            bytes: 0,
            room,
        };
        this.add(first).then_some(this)
    }

    /// Adds the next block. Whether it has a place in the pack.
    pub(super) fn add(&mut self, block: Block) -> bool {
        let bytes = self.bytes + block.len as usize;
        let payload = Pack::payload_len(self.blocks.len() + 1, bytes);
        let fits = block.len < OWN_MESSAGE_FROM
            && self.blocks.len() < BLOCKS_MAX
            && bytes <= BYTES_MAX
            && payload <= self.room;
        if fits {
            self.blocks.push(block);
            self.bytes = bytes;
        }
        fits
    }

    /// The blocks; `None`: a single one goes by itself.
    pub(super) fn finish(self) -> Option<Vec<Block>> {
        (self.blocks.len() > 1).then_some(self.blocks)
    }
}
