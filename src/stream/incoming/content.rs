//! `IncomingContent`: which blocks of a stream are here, and which are being written.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::stream::block_set::BlockSet;
use crate::stream::content_hash::{BlockHash, ContentHash};
use crate::stream::digest::StreamDigest;
use crate::stream::sums::ContentSum;
use crate::stream::wire::HASH_LEN;
use crate::stream::{Block, BlockPlan};

/// The blocks of one stream.
#[derive(Debug)]
pub(super) struct IncomingContent {
    plan: Arc<BlockPlan>,
    /// Checked and written.
    have: BlockSet,
    /// Being checked and written.
    taken: BlockSet,
    /// Bytes of the blocks that are checked and written.
    bytes: u64,
    digest: StreamDigest,
    /// The part of the digest that the sink had when the stream began.
    first_part: u32,
    /// Files that the sink keeps as they are.
    unchanged: u64,
    /// Where the sender asked for it.
    hash: Option<ContentHash>,
}

/// What a sink has when a stream begins.
#[derive(Debug)]
pub(crate) struct HadContent {
    pub(crate) blocks: BlockSet,
    /// Of these blocks.
    pub(crate) bytes: u64,
    /// Files that are kept as they are.
    pub(crate) unchanged: u64,
    /// What blocks are that lie in files of the same names.
    pub(crate) sums: BTreeMap<u64, ContentSum>,
    /// Of the blocks that were read; those of unchanged files have none.
    pub(crate) digest_part: u32,
    /// Where the content is hashed: the blocks were added.
    pub(crate) hash: Option<ContentHash>,
}

impl IncomingContent {
    /// Nothing of a plan, before the stream is accepted.
    pub(super) fn new(plan: BlockPlan, blocks: u64) -> Self {
        Self {
            plan: Arc::new(plan),
            have: BlockSet::new(0),
            taken: BlockSet::new(0),
            bytes: 0,
            digest: StreamDigest::new(blocks),
            first_part: 0,
            unchanged: 0,
            hash: None,
        }
    }

    /// The manifest is whole: this is how its files are cut.
    pub(super) fn set_plan(&mut self, plan: BlockPlan) {
        self.plan = Arc::new(plan);
    }

    /// The stream is accepted with what the sink has of it.
    ///
    /// # Panics
    /// When the set is one of another stream.
    pub(super) fn accept(&mut self, had: HadContent) {
        assert_eq!(
            had.blocks.blocks(),
            self.plan.blocks(),
            "the set is this stream's"
        );
        self.bytes = had.bytes;
        self.unchanged = had.unchanged;
        self.digest.add_part(had.digest_part);
        self.first_part = had.digest_part;
        self.hash = had.hash;
        self.taken = BlockSet::new(had.blocks.blocks());
        self.have = had.blocks;
    }

    pub(super) fn plan(&self) -> &Arc<BlockPlan> {
        &self.plan
    }

    /// Blocks that are checked and written.
    pub(super) fn have(&self) -> &BlockSet {
        &self.have
    }

    /// Bytes of the blocks that are checked and written.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The part of the digest that the sink had when the stream began.
    pub(super) fn first_part(&self) -> u32 {
        self.first_part
    }

    /// Files that the sink keeps as they are.
    pub(super) fn unchanged(&self) -> u64 {
        self.unchanged
    }

    pub(super) fn digest(&self) -> u32 {
        self.digest.digest()
    }

    /// BLAKE3 of the content, where the sender asked for it and all is there.
    pub(super) fn blake3(&self) -> Option<[u8; HASH_LEN]> {
        self.hash.as_ref().and_then(ContentHash::finish)
    }

    /// BLAKE3 of each entry, likewise.
    pub(super) fn entry_hashes(&self) -> Option<Arc<[[u8; HASH_LEN]]>> {
        self.hash.as_ref().and_then(ContentHash::of_entries)
    }

    /// How many blocks are being checked and written.
    pub(super) fn taken(&self) -> u64 {
        self.taken.count()
    }

    /// Whether a block is here, or is being checked and written.
    pub(super) fn is_known(&self, index: u64) -> bool {
        self.have.contains(index) || self.taken.contains(index)
    }

    /// A block came that is to be checked and written.
    pub(super) fn take(&mut self, index: u64) {
        self.taken.insert(index);
    }

    /// A block is checked and written.
    ///
    /// # Panics
    /// When it was not taken.
    pub(super) fn on_written(&mut self, block: &Block, crc: u32, hash: Option<BlockHash>) {
        assert!(
            self.taken.remove(block.index),
            "a block that came is written"
        );
        self.have.insert(block.index);
        self.bytes += u64::from(block.len);
        self.digest.add(block.index, block.len, crc);
        if let (Some(content), Some(hash)) = (&mut self.hash, hash) {
            content.add(block, hash);
        }
    }

    /// A block came damaged, and is not here.
    ///
    /// # Panics
    /// When it was not taken.
    pub(super) fn on_damaged(&mut self, block: &Block) {
        assert!(
            self.taken.remove(block.index),
            "a block that came is damaged"
        );
    }
}
