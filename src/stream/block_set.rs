//! `BlockSet`: which blocks of a stream are there.

use std::ops::Range;

/// A set of block numbers below a given one: a bit for each.
#[derive(Clone, PartialEq, Eq)]
pub struct BlockSet {
    words: Vec<u64>,
    blocks: u64,
    count: u64,
}

const BITS: u64 = u64::BITS as u64;

impl BlockSet {
    /// An empty set, for blocks 0 to `blocks`, less one. It takes a bit of memory for each.
    ///
    /// # Panics
    ///
    /// When there are more than memory has bits for.
    pub fn new(blocks: u64) -> Self {
        let words = usize::try_from(blocks.div_ceil(BITS)).expect("as many words as memory has");
        Self {
            words: vec![0; words],
            blocks,
            count: 0,
        }
    }

    /// A set of all blocks.
    pub fn full(blocks: u64) -> Self {
        let mut set = Self::new(blocks);
        set.insert_range(0..blocks);
        set
    }

    /// How many blocks the stream has.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// How many of them are in the set.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether all are.
    pub fn is_full(&self) -> bool {
        self.count == self.blocks
    }

    fn place(&self, block: u64) -> (usize, u64) {
        assert!(block < self.blocks, "block {block} of {}", self.blocks);
        ((block / BITS) as usize, 1 << (block % BITS))
    }

    /// Whether this block is in the set. No block is that the stream does not have.
    pub fn contains(&self, block: u64) -> bool {
        block < self.blocks && {
            let (word, bit) = self.place(block);
            self.words[word] & bit != 0
        }
    }

    /// Puts a block into the set; whether it was not there.
    ///
    /// # Panics
    ///
    /// When the stream has no such block.
    pub fn insert(&mut self, block: u64) -> bool {
        let (word, bit) = self.place(block);
        let is_new = self.words[word] & bit == 0;
        self.words[word] |= bit;
        self.count += u64::from(is_new);
        is_new
    }

    /// Takes a block out of the set; whether it was there.
    ///
    /// # Panics
    ///
    /// When the stream has no such block.
    pub fn remove(&mut self, block: u64) -> bool {
        let (word, bit) = self.place(block);
        let was_there = self.words[word] & bit != 0;
        self.words[word] &= !bit;
        self.count -= u64::from(was_there);
        was_there
    }

    /// Puts a run of blocks into the set; how many were not there.
    ///
    /// # Panics
    ///
    /// When the stream does not have them all.
    pub fn insert_range(&mut self, blocks: Range<u64>) -> u64 {
        assert!(
            blocks.end <= self.blocks,
            "blocks up to {} of {}",
            blocks.end,
            self.blocks
        );
        let before = self.count;
        let mut at = blocks.start;
        while at < blocks.end {
            let word = (at / BITS) as usize;
            let end = blocks.end.min((at / BITS + 1) * BITS);
            let mask = u64::MAX >> (BITS - (end - at)) << (at % BITS);
            self.count += u64::from((mask & !self.words[word]).count_ones());
            self.words[word] |= mask;
            at = end;
        }
        self.count - before
    }

    /// The first block from `from` on that is in the set.
    pub fn next(&self, from: u64) -> Option<u64> {
        self.find(from, |word| word)
    }

    /// The first block from `from` on that is not.
    pub fn next_missing(&self, from: u64) -> Option<u64> {
        self.find(from, |word| !word)
    }

    fn find(&self, from: u64, look: impl Fn(u64) -> u64) -> Option<u64> {
        if from >= self.blocks {
            return None;
        }
        let first = (from / BITS) as usize;
        let mut mask = u64::MAX << (from % BITS);
        for (at, word) in self.words.iter().enumerate().skip(first) {
            let found = look(*word) & mask;
            if found != 0 {
                let block = at as u64 * BITS + u64::from(found.trailing_zeros());
                // Behind the last block nothing is in the set, and nothing is missing.
                return (block < self.blocks).then_some(block);
            }
            mask = u64::MAX;
        }
        None
    }

    /// The runs of blocks that are in the set, from block `from` on, in order and with gaps between
    /// them.
    pub fn ranges(&self, from: u64) -> impl Iterator<Item = Range<u64>> + '_ {
        let mut at = from;
        std::iter::from_fn(move || {
            let start = self.next(at)?;
            at = self.next_missing(start).unwrap_or(self.blocks);
            Some(start..at)
        })
    }

    /// The runs of blocks that are not.
    pub fn missing(&self, from: u64) -> impl Iterator<Item = Range<u64>> + '_ {
        let mut at = from;
        std::iter::from_fn(move || {
            let start = self.next_missing(at)?;
            at = self.next(start).unwrap_or(self.blocks);
            Some(start..at)
        })
    }
}

impl std::fmt::Debug for BlockSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of {} blocks", self.count, self.blocks)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone)]
    enum Step {
        Insert(u64),
        Remove(u64),
        Range(u64, u64),
    }

    fn step(blocks: u64) -> impl Strategy<Value = Step> {
        prop_oneof![
            (0..blocks).prop_map(Step::Insert),
            (0..blocks).prop_map(Step::Remove),
            (0..=blocks, 0..=blocks).prop_map(|(a, b)| Step::Range(a.min(b), a.max(b))),
        ]
    }

    fn runs(blocks: impl Iterator<Item = u64>) -> Vec<Range<u64>> {
        let mut runs: Vec<Range<u64>> = Vec::new();
        for block in blocks {
            match runs.last_mut() {
                Some(last) if last.end == block => last.end += 1,
                _ => runs.push(block..block + 1),
            }
        }
        runs
    }

    proptest! {
        #[test]
        fn it_is_a_set(
            (blocks, steps) in (1..300_u64).prop_flat_map(|blocks| {
                (Just(blocks), proptest::collection::vec(step(blocks), 0..40))
            }),
            from in 0..310_u64,
        ) {
            let mut set = BlockSet::new(blocks);
            let mut oracle = BTreeSet::new();
            for step in steps {
                match step {
                    Step::Insert(block) => prop_assert_eq!(set.insert(block), oracle.insert(block)),
                    Step::Remove(block) => {
                        prop_assert_eq!(set.remove(block), oracle.remove(&block))
                    }
                    Step::Range(a, b) => {
                        let before = oracle.len();
                        oracle.extend(a..b);
                        prop_assert_eq!(set.insert_range(a..b), (oracle.len() - before) as u64);
                    }
                }
            }
            prop_assert_eq!(set.count(), oracle.len() as u64);
            prop_assert_eq!(set.is_full(), oracle.len() as u64 == blocks);
            prop_assert_eq!(set.is_empty(), oracle.is_empty());
            for block in 0..blocks + 70 {
                prop_assert_eq!(set.contains(block), oracle.contains(&block));
            }
            prop_assert_eq!(set.next(from), oracle.range(from..).next().copied());
            let lacking = (from..blocks).filter(|block| !oracle.contains(block));
            prop_assert_eq!(set.next_missing(from), lacking.clone().next());
            prop_assert_eq!(
                set.ranges(from).collect::<Vec<_>>(),
                runs(oracle.range(from..).copied())
            );
            prop_assert_eq!(set.missing(from).collect::<Vec<_>>(), runs(lacking));
        }
    }

    #[test]
    fn a_set_of_no_blocks_is_empty_and_full() {
        let set = BlockSet::full(0);
        assert!(set.is_empty() && set.is_full());
        assert_eq!((set.next(0), set.next_missing(0)), (None, None));
        assert!(BlockSet::full(64).is_full() && BlockSet::full(65).is_full());
    }
}
