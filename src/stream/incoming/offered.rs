//! `OfferedSums`: what a sink has in place of blocks, in files of the same names, as the sender is
//! told it.

use std::collections::BTreeMap;

use crate::stream::sums::ContentSum;
use crate::stream::wire::SUMS_MAX;

/// The sums of blocks, and how far they are said.
#[derive(Debug, Default)]
pub(super) struct OfferedSums {
    sums: BTreeMap<u64, ContentSum>,
    /// The first block that the sender was not told of.
    unsaid: Option<u64>,
    /// Those of one message.
    run: Vec<ContentSum>,
}

impl OfferedSums {
    pub(super) fn new(sums: BTreeMap<u64, ContentSum>) -> Self {
        Self {
            unsaid: sums.keys().next().copied(),
            sums,
            run: Vec::new(),
        }
    }

    /// How many blocks have one.
    pub(super) fn count(&self) -> u64 {
        self.sums.len() as u64
    }

    /// Whether a block has one.
    pub(super) fn has(&self, block: u64) -> bool {
        self.sums.contains_key(&block)
    }

    /// The first block whose sum the sender was not told.
    pub(super) fn first_unsaid(&self) -> Option<u64> {
        self.unsaid
    }

    /// The sums of blocks that follow each other from this one on, as many as a message has room
    /// for.
    pub(super) fn run_from(&mut self, first: u64) -> &[ContentSum] {
        let from = self.sums.range(first..).zip(first..);
        let run = from.map_while(|((block, sum), wanted)| (*block == wanted).then_some(*sum));
        self.run = run.take(SUMS_MAX).collect();
        &self.run
    }

    /// The sums from this block on were said.
    pub(super) fn on_said(&mut self, first: u64) {
        let next = first + self.run.len() as u64;
        self.unsaid = self.sums.range(next..).next().map(|(block, _)| *block);
    }
}
