//! `PeerBlocks`: the blocks that are read for a peer, and those that wait to be sent to it.

use std::collections::{HashSet, VecDeque};

use crate::buffer::Buffer;
use crate::stream::Block;

/// A block that was read, and waits.
#[derive(Debug, Clone)]
pub(super) struct ReadyBlock {
    pub(super) block: Block,
    pub(super) bytes: Buffer,
    pub(super) crc: u32,
}

/// The blocks of one peer that are not on their way yet.
#[derive(Debug, Default)]
pub(super) struct PeerBlocks {
    /// Read, and not sent yet.
    queue: VecDeque<ReadyBlock>,
    /// Being read.
    assigned: HashSet<u64>,
}

impl PeerBlocks {
    /// A block is being read for the peer.
    pub(super) fn assign(&mut self, index: u64) {
        self.assigned.insert(index);
    }

    /// A block was read. Whether it was for the peer, too.
    pub(super) fn on_read(&mut self, ready: ReadyBlock) -> bool {
        let is_its = self.assigned.remove(&ready.block.index);
        if is_its {
            self.queue.push_back(ready);
        }
        is_its
    }

    /// Nothing of it is to be sent.
    pub(super) fn clear(&mut self) {
        self.queue.clear();
        self.assigned.clear();
    }

    /// The block that is sent next.
    pub(super) fn front(&self) -> Option<&ReadyBlock> {
        self.queue.front()
    }

    /// The block that was sent next is sent.
    pub(super) fn pop(&mut self) {
        self.queue.pop_front();
    }

    /// How many blocks are being read.
    pub(super) fn being_read(&self) -> usize {
        self.assigned.len()
    }

    /// How many blocks wait to be sent.
    pub(super) fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// Whether none is being read, and none waits.
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.assigned.is_empty()
    }
}
