//! `Listing`: a list of blocks that is said in several messages.

use std::ops::Range;

use crate::stream::wire::{RangeList, RangesBuilder};

/// How far a list of blocks is said.
#[derive(Debug, Clone, Copy)]
pub(super) struct Listing {
    pub(super) lap: u32,
    /// The first block that was not looked at.
    pub(super) from: u64,
    /// Whether there are ranges behind it.
    pub(super) more: bool,
}

impl Listing {
    pub(super) fn new(lap: u32) -> Self {
        Self {
            lap,
            from: 0,
            more: true,
        }
    }

    /// Puts the next ranges into the builder, as many as a message has room for. The listing is
    /// then what is left behind them.
    pub(super) fn fill(
        &mut self,
        builder: &mut RangesBuilder,
        ranges: impl Iterator<Item = Range<u64>>,
    ) {
        let mut ranges = ranges.peekable();
        *builder = RangesBuilder::default();
        for range in ranges.by_ref().take(RangesBuilder::ROOM) {
            self.from = range.end;
            builder.push(range);
        }
        self.more = ranges.peek().is_some();
    }

    /// The message of the ranges that [`fill`](Self::fill) has put into the builder.
    pub(super) fn message<'a>(&self, stream: u32, ranges: &'a RangesBuilder) -> RangeList<'a> {
        RangeList {
            stream,
            lap: self.lap,
            more: self.more,
            ranges: ranges.ranges(),
        }
    }

    /// The rest of the listing that is still to be sent, if any.
    pub(super) fn rest(self) -> Option<Self> {
        self.more.then_some(self)
    }
}
