//! `OutgoingBlocks`: which blocks of a stream are to be sent, which are being sent, and which were.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use crate::stream::block_set::BlockSet;
use crate::stream::digest::StreamDigest;
use crate::stream::sums::ContentSum;
use crate::stream::wire::Complete;
use crate::stream::{Block, BlockPlan, StreamViolation};

/// The blocks of one stream.
#[derive(Debug)]
pub(super) struct OutgoingBlocks {
    plan: Arc<BlockPlan>,
    /// To be sent, and nobody has begun to.
    wanted: BlockSet,
    /// Being read, or waiting to be sent.
    taken: BlockSet,
    /// In the digest: the peer had them, or they were sent once.
    counted: BlockSet,
    digest: StreamDigest,
    /// What the peer has in place of blocks, in files of the same names.
    sums: HashMap<u64, ContentSum>,
    /// The peer was told to keep what it has of these.
    equal: BlockSet,
    equal_bytes: u64,
    resent: u64,
    resent_max: u64,
}

impl OutgoingBlocks {
    /// All of a plan are to be sent.
    pub(super) fn new(plan: Arc<BlockPlan>) -> Self {
        let blocks = plan.blocks();
        Self {
            plan,
            wanted: BlockSet::full(blocks),
            taken: BlockSet::new(blocks),
            counted: BlockSet::new(blocks),
            digest: StreamDigest::new(blocks),
            sums: HashMap::new(),
            equal: BlockSet::new(0),
            equal_bytes: 0,
            resent: 0,
            resent_max: blocks.saturating_add(64),
        }
    }

    pub(super) fn plan(&self) -> &BlockPlan {
        &self.plan
    }

    pub(super) fn digest(&self) -> u32 {
        self.digest.digest()
    }

    /// Whether what a receiver has are these blocks.
    pub(super) fn are_those_of(&self, complete: &Complete) -> bool {
        let said = (complete.digest, complete.blocks, complete.bytes);
        said == (self.digest(), self.plan.blocks(), self.plan.bytes())
    }

    /// Blocks that are to be sent, and nobody has begun to.
    pub(super) fn wanted(&self) -> &BlockSet {
        &self.wanted
    }

    /// How many blocks are being read, or wait to be sent.
    pub(super) fn taken(&self) -> u64 {
        self.taken.count()
    }

    /// Whether a block is being read, or waits to be sent.
    pub(super) fn is_taken(&self, index: u64) -> bool {
        self.taken.contains(index)
    }

    /// Whether a block was sent, or the peer had it.
    pub(super) fn is_counted(&self, index: u64) -> bool {
        self.counted.contains(index)
    }

    /// Whether all that is to be sent was sent.
    pub(super) fn are_sent(&self) -> bool {
        self.wanted.is_empty() && self.taken.is_empty()
    }

    /// Somebody reads a block that is wanted.
    pub(super) fn take(&mut self, index: u64) {
        self.wanted.remove(index);
        self.taken.insert(index);
    }

    /// A block that was taken is not going to be sent, for now.
    pub(super) fn give_back(&mut self, index: u64) {
        if self.taken.remove(index) {
            self.wanted.insert(index);
        }
    }

    /// A block is to be sent again. Whether it was not wanted anyway.
    pub(super) fn want_again(&mut self, index: u64) -> bool {
        self.forget_sum(index);
        self.wanted.insert(index)
    }

    /// A block was sent.
    ///
    /// # Panics
    /// When it was not taken.
    pub(super) fn on_sent(&mut self, block: &Block, crc: u32) {
        assert!(
            self.taken.remove(block.index),
            "a block is taken before it is sent"
        );
        match self.counted.insert(block.index) {
            true => self.digest.add(block.index, block.len, crc),
            false => self.resent += 1,
        }
    }

    /// Whether so many blocks had to be sent again that something is wrong.
    pub(super) fn are_too_many_resent(&self) -> bool {
        self.resent > self.resent_max
    }

    /// The peer's part of the digest: that of the blocks that it has.
    pub(super) fn add_digest_part(&mut self, part: u32) {
        self.digest.add_part(part);
    }

    /// The peer has these blocks: they are not sent. How many bytes they are.
    pub(super) fn on_had(&mut self, range: Range<u64>) -> u64 {
        self.counted.insert_range(range.clone());
        let bytes = range.map(|index| {
            self.wanted.remove(index);
            let block = self.plan.get(index);
            block.map_or(0, |block| u64::from(block.len))
        });
        bytes.sum()
    }

    /// What the peer has in place of a block.
    ///
    /// # Errors
    /// There is no such block, or the peer has said that it has it.
    pub(super) fn on_sum(&mut self, index: u64, sum: ContentSum) -> Result<(), StreamViolation> {
        if !self.wanted.contains(index) {
            return Err(StreamViolation::NoSuchBlock { index });
        }
        if self.equal.blocks() == 0 {
            self.equal = BlockSet::new(self.plan.blocks());
        }
        self.sums.insert(index, sum);
        Ok(())
    }

    /// What the peer has in place of a block, if it has said so.
    pub(super) fn sum(&self, index: u64) -> Option<ContentSum> {
        self.sums.get(&index).copied()
    }

    /// The peer was told that a block is what it has.
    pub(super) fn on_same_sent(&mut self, block: &Block) {
        if self.equal.insert(block.index) {
            self.equal_bytes += u64::from(block.len);
        }
    }

    /// Bytes of blocks that the peer was told to keep.
    pub(super) fn equal_bytes(&self) -> u64 {
        self.equal_bytes
    }

    /// What the peer has is not it, or it does not know: the block itself is sent.
    fn forget_sum(&mut self, index: u64) {
        self.sums.remove(&index);
        if self.equal.contains(index) {
            self.equal.remove(index);
            let block = self.plan.get(index);
            self.equal_bytes -= block.map_or(0, |block| u64::from(block.len));
        }
    }

    /// The peer lacks these blocks. How many of them nobody knew of.
    ///
    /// # Errors
    /// There are no such blocks.
    pub(super) fn on_missing(&mut self, range: Range<u64>) -> Result<u64, StreamViolation> {
        if range.end > self.plan.blocks() {
            return Err(StreamViolation::NoSuchBlock { index: range.start });
        }
        let mut newly = 0;
        for index in range {
            // What is about to be sent is not wanted a second time.
            if !self.taken.contains(index) {
                self.forget_sum(index);
                newly += u64::from(self.wanted.insert(index));
            }
        }
        Ok(newly)
    }

    /// How many blocks may have to be sent again before the stream is given up; as many as there
    /// are, and 64, if nothing else is said.
    #[cfg(test)]
    pub(super) fn allow_resent(&mut self, blocks: u64) {
        self.resent_max = blocks;
    }

    #[cfg(test)]
    pub(super) fn resent(&self) -> u64 {
        self.resent
    }
}
