//! `BlockPlan`: how the files of a manifest are cut into blocks.

use super::Manifest;

/// A run of bytes of one file: what is read, sent, checked and written at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Block {
    /// Its number in the stream.
    pub index: u64,
    /// The number of its file in the manifest.
    pub entry: usize,
    /// Where in the file it begins, in bytes.
    pub offset: u64,
    /// Its bytes: at least 1, and the same for all blocks of a file but the last one.
    pub len: u32,
}

/// A file that has blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileRun {
    /// The number of its first block.
    first: u64,
    entry: usize,
    size: u64,
}

/// Where each block of a stream lies. Blocks are numbered file by file, in the order of the
/// manifest; files without bytes, and directories, have none.
///
/// It takes 24 bytes of memory for each file that is not empty, however many blocks there are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockPlan {
    block_bytes: u32,
    runs: Vec<FileRun>,
    blocks: u64,
    bytes: u64,
}

impl BlockPlan {
    /// Cuts the files of a manifest into blocks of `block_bytes`.
    ///
    /// # Panics
    ///
    /// When `block_bytes` is 0.
    pub fn new(manifest: &Manifest, block_bytes: u32) -> Self {
        assert!(block_bytes > 0, "blocks have bytes");
        let mut runs = Vec::new();
        let mut blocks = 0;
        for entry in 0..manifest.len() {
            let size = manifest.size(entry).unwrap_or(0);
            if size > 0 {
                let first = blocks;
                runs.push(FileRun { first, entry, size });
                // No overflow: there are at most as many blocks as bytes, and those can be counted.
                blocks += size.div_ceil(block_bytes.into());
            }
        }
        Self {
            block_bytes,
            runs,
            blocks,
            bytes: manifest.bytes(),
        }
    }

    /// Bytes of a block that is not the last one of its file.
    pub fn block_bytes(&self) -> u32 {
        self.block_bytes
    }

    /// How many blocks there are.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Bytes of all blocks.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The block of this number, if there is one; in O(log(files)).
    pub fn get(&self, index: u64) -> Option<Block> {
        if index >= self.blocks {
            return None;
        }
        // The first run begins with block 0, so there is one in front of the first that begins
        // behind.
        let run = self.runs[self.runs.partition_point(|run| run.first <= index) - 1];
        let offset = (index - run.first) * u64::from(self.block_bytes);
        Some(Block {
            index,
            entry: run.entry,
            offset,
            len: (run.size - offset).min(self.block_bytes.into()) as u32,
        })
    }

    /// The blocks of a file; none, if it is empty, a directory, or there is no such entry.
    pub fn of_entry(&self, entry: usize) -> std::ops::Range<u64> {
        match self.runs.binary_search_by_key(&entry, |run| run.entry) {
            Ok(at) => {
                let end = self.runs.get(at + 1).map_or(self.blocks, |next| next.first);
                self.runs[at].first..end
            }
            Err(_) => 0..0,
        }
    }

    /// The block that has this byte of a file.
    pub fn at(&self, entry: usize, offset: u64) -> Option<Block> {
        let blocks = self.of_entry(entry);
        let index = blocks
            .start
            .checked_add(offset / u64::from(self.block_bytes))?;
        let block = self.get(index).filter(|_| blocks.contains(&index))?;
        (offset - block.offset < block.len.into()).then_some(block)
    }

    /// All blocks, in the order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = Block> + '_ {
        self.runs.iter().enumerate().flat_map(move |(at, run)| {
            let end = self.runs.get(at + 1).map_or(self.blocks, |next| next.first);
            (run.first..end).map(move |index| {
                let offset = (index - run.first) * u64::from(self.block_bytes);
                let len = (run.size - offset).min(self.block_bytes.into()) as u32;
                let entry = run.entry;
                Block {
                    index,
                    entry,
                    offset,
                    len,
                }
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::manifest::{Entry, EntryKind, Modified};
    use super::super::name::RelativeName;
    use super::*;

    fn manifest(sizes: &[Option<u64>]) -> Manifest {
        let names: Vec<String> = (0..sizes.len()).map(|n| format!("{n:06}")).collect();
        let entries = names.iter().zip(sizes).map(|(name, size)| Entry {
            name: RelativeName::new(name.as_bytes()).unwrap(),
            kind: match size {
                Some(_) => EntryKind::File,
                None => EntryKind::Directory,
            },
            mode: 0o644,
            size: size.unwrap_or(0),
            modified: Modified::default(),
            sparse: false,
        });
        Manifest::new(entries).unwrap()
    }

    /// One byte after the other.
    fn oracle(manifest: &Manifest, block_bytes: u32) -> Vec<Block> {
        let mut blocks: Vec<Block> = Vec::new();
        for (entry, file) in manifest.iter().enumerate() {
            for offset in 0..file.size {
                match blocks.last_mut() {
                    Some(last) if last.entry == entry && last.len < block_bytes => last.len += 1,
                    _ => blocks.push(Block {
                        index: blocks.len() as u64,
                        entry,
                        offset,
                        len: 1,
                    }),
                }
            }
        }
        blocks
    }

    #[test]
    fn the_largest_stream_is_cut() {
        let plan = BlockPlan::new(&manifest(&[Some(0), Some(u64::MAX)]), 1);
        assert_eq!(plan.blocks(), u64::MAX);
        let last = plan.get(u64::MAX - 1).unwrap();
        assert_eq!((last.entry, last.offset, last.len), (1, u64::MAX - 1, 1));
        assert_eq!(plan.get(u64::MAX), None);
        assert_eq!(plan.at(1, u64::MAX), None);
        assert_eq!(plan.at(1, u64::MAX - 1), Some(last));
    }

    proptest! {
        #[test]
        fn blocks_are_those_of_the_oracle(
            sizes in proptest::collection::vec(proptest::option::weighted(0.8, 0..50_u64), 0..12),
            block_bytes in 1..20_u32,
        ) {
            let manifest = manifest(&sizes);
            let plan = BlockPlan::new(&manifest, block_bytes);
            let expected = oracle(&manifest, block_bytes);
            prop_assert_eq!(plan.blocks(), expected.len() as u64);
            prop_assert_eq!(
                plan.bytes(),
                expected
                    .iter()
                    .map(|block| u64::from(block.len))
                    .sum::<u64>()
            );
            prop_assert_eq!(&plan.iter().collect::<Vec<_>>(), &expected);
            for block in &expected {
                prop_assert_eq!(plan.get(block.index), Some(*block));
                prop_assert!(plan.of_entry(block.entry).contains(&block.index));
                for offset in block.offset..block.offset + u64::from(block.len) {
                    prop_assert_eq!(plan.at(block.entry, offset), Some(*block));
                }
            }
            for entry in 0..sizes.len() + 1 {
                let count = expected.iter().filter(|block| block.entry == entry).count();
                prop_assert_eq!(plan.of_entry(entry).count(), count);
                let size = sizes.get(entry).copied().flatten().unwrap_or(0);
                prop_assert_eq!(plan.at(entry, size), None);
            }
            prop_assert_eq!(plan.get(plan.blocks()), None);
        }
    }
}
