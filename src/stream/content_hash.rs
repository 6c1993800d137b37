//! `ContentHash`: BLAKE3 of files from their blocks, in whatever order those come.
//!
//! BLAKE3 is a tree over chunks of 1024 bytes. A block whose size is a power of two, and that lies
//! at a multiple of it, is a whole subtree: its chaining value can be computed on its own, and two
//! neighbours make their parent's. So each file gets the hash that `b3sum` shows, and only what has
//! no neighbour yet takes memory: 32 bytes for each gap.

use std::collections::HashMap;
use std::sync::Arc;

use blake3::hazmat::{
    ChainingValue, HasherExt, Mode, merge_subtrees_non_root, merge_subtrees_root,
};

use super::blocks::{Block, BlockPlan};
use super::wire::HASH_LEN;

/// The smallest blocks of which content can be hashed, in bytes.
pub const HASHED_BLOCK_MIN: u32 = 1024;

/// Bytes of memory that a file takes, and a block that waits for its sibling, where lists and
/// tables have grown to twice what they need.
const FILE_MEMORY: u64 = 96;
const WAITING_MEMORY: u64 = 128;

/// The hash of one block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BlockHash {
    /// The block is one of several of its file.
    Part(ChainingValue),
    /// The block is the whole file.
    Whole([u8; HASH_LEN]),
}

impl BlockHash {
    /// Hashes the bytes of a block of this plan.
    pub(crate) fn new(plan: &BlockPlan, block: &Block, bytes: &[u8]) -> Self {
        if plan.of_entry(block.entry) == (block.index..block.index + 1) {
            return Self::Whole(*blake3::hash(bytes).as_bytes());
        }
        let mut hasher = blake3::Hasher::new();
        hasher.set_input_offset(block.offset);
        hasher.update(bytes);
        Self::Part(hasher.finalize_non_root())
    }
}

/// A subtree that is known, and whose sibling is not: of so many blocks (2^level), the `at`th of
/// those of its level in its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Node {
    first_block: u64,
    level: u32,
    at: u64,
}

/// The hash of a stream's content in the making.
#[derive(Debug)]
pub(crate) struct ContentHash {
    waiting: HashMap<Node, ChainingValue>,
    /// For each file: how many blocks are lacking, then its hash.
    files: Vec<File>,
    blocks_left: u64,
}

#[derive(Debug, Clone, Copy)]
struct File {
    blocks: u64,
    first: u64,
    hash: [u8; HASH_LEN],
}

impl ContentHash {
    /// Whether blocks of this size are subtrees.
    pub(crate) fn can_hash(block_bytes: u32) -> bool {
        block_bytes.is_power_of_two() && block_bytes >= HASHED_BLOCK_MIN
    }

    /// For a stream with this plan, and as many entries; those without bytes have the hash of
    /// nothing.
    ///
    /// # Panics
    ///
    /// When blocks of this size are no subtrees.
    pub(crate) fn new(plan: &BlockPlan, entries: usize) -> Self {
        assert!(Self::can_hash(plan.block_bytes()), "blocks are subtrees");
        let hash = *blake3::hash(&[]).as_bytes();
        let files = (0..entries).map(|entry| {
            let blocks = plan.of_entry(entry);
            File {
                blocks: blocks.end - blocks.start,
                first: blocks.start,
                hash,
            }
        });
        Self {
            waiting: HashMap::new(),
            files: files.collect(),
            blocks_left: plan.blocks(),
        }
    }

    /// Bytes of memory that it takes at most: every second block, none of which has its sibling.
    pub(crate) fn memory_of(entries: u64, blocks: u64) -> u64 {
        let files = entries.saturating_mul(FILE_MEMORY);
        files.saturating_add((blocks / 2).saturating_mul(WAITING_MEMORY))
    }

    /// Adds a block, once.
    pub(crate) fn add(&mut self, block: &Block, hash: BlockHash) {
        self.blocks_left -= 1;
        let file = self.files[block.entry];
        match hash {
            BlockHash::Whole(hash) => self.files[block.entry].hash = hash,
            BlockHash::Part(value) => self.join(block.entry, file, block.index - file.first, value),
        }
    }

    /// Goes up from a block for as long as there are siblings.
    fn join(&mut self, entry: usize, file: File, at: u64, mut value: ChainingValue) {
        let (mut level, mut at) = (0, at);
        loop {
            // Of this level, and of which the last one may be smaller than the others.
            let nodes = file.blocks.div_ceil(1 << level);
            let is_last = at + 1 == nodes;
            if is_last && at % 2 == 0 {
                // It has no sibling here: it is its own parent.
                (level, at) = (level + 1, at / 2);
                continue;
            }
            let node = |at| Node {
                first_block: file.first,
                level,
                at,
            };
            let Some(sibling) = self.waiting.remove(&node(at ^ 1)) else {
                self.waiting.insert(node(at), value);
                return;
            };
            let (left, right) = match at % 2 {
                0 => (value, sibling),
                _ => (sibling, value),
            };
            if nodes == 2 {
                let root = merge_subtrees_root(&left, &right, Mode::Hash);
                self.files[entry].hash = *root.as_bytes();
                return;
            }
            value = merge_subtrees_non_root(&left, &right, Mode::Hash);
            (level, at) = (level + 1, at / 2);
        }
    }

    /// The hashes of all entries, in the order of the manifest, once all blocks were added.
    pub(crate) fn of_entries(&self) -> Option<Arc<[[u8; HASH_LEN]]>> {
        let hashes = self.files.iter().map(|file| file.hash);
        (self.blocks_left == 0).then(|| hashes.collect())
    }

    /// The hash of the content, once all blocks were added: that of the one file, or of the hashes
    /// of all entries, one behind the other in the order of the manifest.
    pub(crate) fn finish(&self) -> Option<[u8; HASH_LEN]> {
        if self.blocks_left > 0 {
            return None;
        }
        if let [file] = self.files[..] {
            return Some(file.hash);
        }
        let mut hasher = blake3::Hasher::new();
        for file in &self.files {
            hasher.update(&file.hash);
        }
        Some(*hasher.finalize().as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::manifest::{Entry, EntryKind, Manifest, Modified};
    use super::super::name::RelativeName;
    use super::*;

    #[test]
    fn blocks_of_powers_of_two_are_subtrees() {
        assert!(ContentHash::can_hash(1024) && ContentHash::can_hash(1 << 20));
        assert!(!ContentHash::can_hash(512) && !ContentHash::can_hash(3 << 10));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// In any order each file has the hash of its bytes, and nothing is kept that has a
        /// neighbour.
        #[test]
        fn files_have_the_hashes_of_b3sum(
            sizes in proptest::collection::vec(
                prop_oneof![
                    Just(0_usize),
                    1..30_000_usize,
                    Just(1024),
                    Just(4096),
                    Just(16_384),
                ],
                0..5,
            ),
            power in 0..4_u32,
            keys in proptest::collection::vec(any::<u32>(), 40),
        ) {
            let contents: Vec<Vec<u8>> = sizes
                .iter()
                .enumerate()
                .map(|(n, len)| {
                    (0..*len)
                        .map(|at| (at * 31 + n) as u8 ^ (at >> 8) as u8)
                        .collect()
                })
                .collect();
            let names: Vec<String> = (0..sizes.len()).map(|n| format!("{n}")).collect();
            let manifest = Manifest::new(names.iter().zip(&contents).map(|(name, bytes)| Entry {
                name: RelativeName::new(name.as_bytes()).unwrap(),
                kind: EntryKind::File,
                mode: 0o644,
                size: bytes.len() as u64,
                modified: Modified::default(),
                sparse: false,
            }))
            .unwrap();
            let plan = BlockPlan::new(&manifest, 1024 << power);
            let mut hash = ContentHash::new(&plan, manifest.len());
            let mut blocks: Vec<Block> = plan.iter().collect();
            blocks.sort_by_key(|block| keys[block.index as usize % keys.len()]);
            for block in blocks {
                prop_assert_eq!(hash.finish(), None);
                let begin = block.offset as usize;
                let bytes = &contents[block.entry][begin..begin + block.len as usize];
                hash.add(&block, BlockHash::new(&plan, &block, bytes));
            }
            prop_assert!(hash.waiting.is_empty());
            let each: Vec<[u8; 32]> = contents
                .iter()
                .map(|bytes| *blake3::hash(bytes).as_bytes())
                .collect();
            for (entry, expected) in each.iter().enumerate() {
                prop_assert_eq!(hash.files[entry].hash, *expected);
            }
            let expected = match &each[..] {
                [one] => *one,
                all => *blake3::hash(&all.concat()).as_bytes(),
            };
            prop_assert_eq!(hash.finish(), Some(expected));
        }
    }
}
