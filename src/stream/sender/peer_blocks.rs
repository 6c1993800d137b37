//! `PeerBlocks`: the blocks that are read for a peer, and those that wait to be sent to it.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::buffer::Buffer;
use crate::stream::Block;
use crate::stream::sums::ContentSum;
use crate::stream::wire::PACK_BLOCKS_MAX;

/// A block that was read, and waits.
#[derive(Debug, Clone)]
pub(super) struct ReadyBlock {
    pub(super) block: Block,
    pub(super) bytes: Buffer,
    pub(super) crc: u32,
    /// Where a peer may have the same.
    pub(super) content: Option<ContentSum>,
}

/// Blocks that were read at once, and wait to be sent as one message.
#[derive(Debug, Clone)]
pub(super) struct ReadyPack {
    /// Two or more, with their CRC32C.
    pub(super) blocks: Arc<[(Block, u32)]>,
    /// Of each of them, where a peer may have the same.
    pub(super) contents: Arc<[Option<ContentSum>]>,
    /// The payload of the message.
    pub(super) payload: Buffer,
}

/// What waits to be sent as one message.
#[derive(Debug, Clone)]
pub(super) enum Ready {
    Block(ReadyBlock),
    Pack(ReadyPack),
    /// Blocks of zeros that follow each other, one or more, with their CRC32C.
    Zeros(Arc<[(Block, u32)]>),
    /// Blocks that follow each other, with their CRC32C, and that the peer has.
    Same(Vec<(Block, u32)>),
}

/// What a peer takes in one message, beside a block.
#[derive(Debug, Clone, Copy)]
pub(super) struct Takes {
    pub(super) packs: bool,
    pub(super) zeros: bool,
}

impl Ready {
    /// How many blocks it is, and the number of the first.
    fn run(&self) -> (usize, u64) {
        match self {
            Self::Block(ready) => (1, ready.block.index),
            Self::Pack(ready) => (ready.blocks.len(), ready.blocks[0].0.index),
            Self::Zeros(blocks) => (blocks.len(), blocks[0].0.index),
            Self::Same(blocks) => (blocks.len(), blocks[0].0.index),
        }
    }
}

impl ReadyPack {
    /// Whether the peer has one of its blocks.
    fn has_any(&self, is_same: impl Fn(u64, Option<ContentSum>) -> bool) -> bool {
        let mut blocks = self.blocks.iter().zip(&*self.contents);
        blocks.any(|((block, _), content)| is_same(block.index, *content))
    }

    /// Its blocks, for a peer that takes each by itself.
    fn split(&self) -> impl Iterator<Item = ReadyBlock> {
        let bytes = self.blocks.iter().map(|(block, _)| block.len as usize);
        let mut at = self.payload.len() - bytes.sum::<usize>();
        let blocks = self.blocks.iter().zip(&*self.contents);
        blocks.map(move |(&(block, crc), &content)| {
            let begin = at;
            at += block.len as usize;
            let bytes = self.payload.slice(begin..at);
            ReadyBlock {
                block,
                bytes,
                crc,
                content,
            }
        })
    }
}

/// The blocks of one peer that are not on their way yet.
#[derive(Debug, Default)]
pub(super) struct PeerBlocks {
    /// Read, and not sent yet.
    queue: VecDeque<Ready>,
    /// Being read: how many blocks at once, from the one of this number on.
    assigned: HashMap<u64, usize>,
}

impl PeerBlocks {
    /// So many blocks are being read at once for the peer, from this one on.
    pub(super) fn assign(&mut self, first: u64, blocks: usize) {
        self.assigned.insert(first, blocks);
    }

    /// Blocks were read. Whether they were for the peer, too. `is_same`: whether it has a block of
    /// this content.
    pub(super) fn on_read(
        &mut self,
        ready: Ready,
        takes: Takes,
        is_same: impl Fn(u64, Option<ContentSum>) -> bool,
    ) -> bool {
        let (blocks, first) = ready.run();
        // What an earlier session was to have may have been cut otherwise, and its receiver may
        // have taken what this one does not: what this one is to have is still being read.
        let is_taken = takes.zeros || !matches!(ready, Ready::Zeros(_));
        let is_its = is_taken && self.assigned.get(&first) == Some(&blocks);
        if is_its {
            self.assigned.remove(&first);
            match ready {
                Ready::Pack(pack) if !takes.packs || pack.has_any(&is_same) => {
                    pack.split().for_each(|block| self.add(block, &is_same));
                }
                Ready::Block(block) => self.add(block, &is_same),
                ready => self.queue.push_back(ready),
            }
        }
        is_its
    }

    /// One block is next, or only that the peer has it.
    fn add(&mut self, ready: ReadyBlock, is_same: impl Fn(u64, Option<ContentSum>) -> bool) {
        let ReadyBlock { block, crc, .. } = ready;
        if !is_same(block.index, ready.content) {
            return self.queue.push_back(Ready::Block(ready));
        }
        match self.queue.back_mut() {
            Some(Ready::Same(run))
                if run.len() < PACK_BLOCKS_MAX
                    && run[0].0.index + run.len() as u64 == block.index =>
            {
                run.push((block, crc));
            }
            _ => self.queue.push_back(Ready::Same(vec![(block, crc)])),
        }
    }

    /// Nothing of it is to be sent.
    pub(super) fn clear(&mut self) {
        self.queue.clear();
        self.assigned.clear();
    }

    /// What is sent next.
    pub(super) fn front(&self) -> Option<&Ready> {
        self.queue.front()
    }

    /// What was to be sent next is sent.
    pub(super) fn pop(&mut self) {
        self.queue.pop_front();
    }

    /// How many blocks, or packs of them, are being read.
    pub(super) fn being_read(&self) -> usize {
        self.assigned.len()
    }

    /// How many blocks, or packs of them, wait to be sent.
    pub(super) fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// Whether none is being read, and none waits.
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.assigned.is_empty()
    }
}
