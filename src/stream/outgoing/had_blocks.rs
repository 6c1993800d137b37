//! `HadBlocks`: the list of blocks that a peer had before a stream began, as it is said.

use std::ops::Range;

use crate::stream::StreamViolation;
use crate::stream::wire::RangeList;

/// The part of the list that is still to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct HadBlocks {
    /// Blocks that are still to be named.
    left: u64,
    /// All of them are from this one on.
    from: u64,
}

impl HadBlocks {
    /// A list of so many blocks.
    pub(super) fn new(blocks: u64) -> Self {
        Self {
            left: blocks,
            from: 0,
        }
    }

    /// The next range, in a stream of so many blocks.
    ///
    /// # Errors
    /// There are no such blocks, they are not behind those before, or they are too many.
    pub(super) fn on_range(
        &mut self,
        range: &Range<u64>,
        blocks: u64,
    ) -> Result<(), StreamViolation> {
        let len = range.end - range.start;
        if range.end > blocks || range.start < self.from {
            return Err(StreamViolation::NoSuchBlock { index: range.start });
        }
        if len > self.left {
            let what = "a range of more blocks than were announced";
            return Err(StreamViolation::Count { what, value: len });
        }
        (self.left, self.from) = (self.left - len, range.end);
        Ok(())
    }

    /// Checks a message whose ranges were taken: each brings some, and the last one the rest.
    ///
    /// # Errors
    /// The list has no range, or the last range comes too early or too late.
    pub(super) fn check(&self, list: &RangeList<'_>) -> Result<(), StreamViolation> {
        if list.more == self.is_whole() || list.ranges.len() == 0 {
            let what = "the number of blocks that are said to be there";
            let value = self.left;
            return Err(StreamViolation::Count { what, value });
        }
        Ok(())
    }

    /// Whether all blocks were named.
    pub(super) fn is_whole(&self) -> bool {
        self.left == 0
    }
}
