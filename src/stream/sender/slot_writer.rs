//! `SlotWriter`: writes blocks (RMA) into the slots that the peer of one rail has granted, and says
//! which of them the peer is to be told of.

use std::collections::{BTreeMap, VecDeque};

use super::peer_blocks::ReadyBlock;
use crate::buffer::Payload;
use crate::endpoint::{RemoteWindow, SendErrorKind, WindowDescriptor, WindowError};
use crate::stream::slots::SlotBook;
use crate::stream::wire::Window;
use crate::stream::{Block, RefusalCode, StreamError, StreamViolation};

/// A block in a slot, or on its way there.
#[derive(Debug, Clone, Copy)]
pub(super) struct InSlot {
    pub(super) block: Block,
    pub(super) crc: u32,
    pub(super) slot: u32,
}

#[derive(Debug, Default)]
pub(super) struct SlotWriter {
    windows: Vec<RemoteWindow>,
    slots: SlotBook,
    /// Writes in flight, by the number of the block.
    writing: BTreeMap<u64, InSlot>,
    /// It is there, and the peer was not told.
    written: VecDeque<InSlot>,
}

impl SlotWriter {
    /// The peer lets slots be written.
    pub(super) fn on_window(
        &mut self,
        window: &Window<'_>,
        block_bytes: u32,
        open: impl FnOnce(WindowDescriptor) -> Option<Result<RemoteWindow, WindowError>>,
    ) -> Result<(), StreamError> {
        let is_of_no_use = |error: &dyn std::fmt::Display| StreamError::GivenUp {
            code: RefusalCode::FEATURE,
            reason: format!("the window of the receiver is of no use: {error}"),
        };
        let descriptor = WindowDescriptor::parse(window.descriptor);
        let descriptor = descriptor.map_err(|error| is_of_no_use(&error))?;
        let remote = match open(descriptor) {
            Some(Ok(remote)) => remote,
            // The connection is over, which its own event says next: that is no reason to give up
            // the transfer.
            None | Some(Err(WindowError::NotConnected)) => return Ok(()),
            Some(Err(error)) => return Err(is_of_no_use(&error)),
        };
        self.slots.add(window, remote.len(), block_bytes)?;
        self.windows.push(remote);
        Ok(())
    }

    /// A slot may be written again.
    pub(super) fn on_freed(&mut self, slot: u32) -> Result<(), StreamViolation> {
        self.slots.on_freed(slot)
    }

    /// Whether a block can be written now.
    pub(super) fn has_room(&self) -> bool {
        self.slots.has_free()
    }

    /// Begins to write a block; the endpoint says when it is there, or that it never will be.
    /// `write`: into a window from an offset on, with the block's number as key.
    pub(super) fn write(
        &mut self,
        ready: &ReadyBlock,
        write: impl FnOnce(Payload, RemoteWindow, u64, u64) -> Result<(), SendErrorKind>,
    ) -> Result<(), SendErrorKind> {
        let Some((slot, place)) = self.slots.take() else {
            return Err(SendErrorKind::WouldBlock(crate::endpoint::Blocked::Credits));
        };
        let payload = ready.bytes.clone().into();
        let window = self.windows[place.window].clone();
        let (block, crc) = (ready.block, ready.crc);
        match write(payload, window, place.offset, block.index) {
            Ok(()) => {
                self.writing
                    .insert(block.index, InSlot { block, crc, slot });
                Ok(())
            }
            Err(refused) => {
                self.slots.give_back(slot);
                Err(refused)
            }
        }
    }

    /// A write is done, and confirmed.
    pub(super) fn on_written(&mut self, index: u64) {
        self.written.extend(self.writing.remove(&index));
    }

    /// The next block that the peer can be told of; [`on_placed`](Self::on_placed) says that it
    /// was.
    pub(super) fn to_place(&self) -> Option<InSlot> {
        self.written.front().copied()
    }

    pub(super) fn on_placed(&mut self) {
        if let Some(placed) = self.written.pop_front() {
            self.slots.on_placed(placed.slot);
        }
    }

    /// How it is, in words.
    pub(super) fn describe(&self) -> String {
        let (slots, free) = self.slots.counts();
        let (writing, written) = (self.writing.len(), self.written.len());
        format!(
            "{free} of {slots} slots free, {writing} being written, {written} written that the \
             peer was not told of"
        )
    }

    /// Blocks that the peer was not told of.
    pub(super) fn unplaced(&self) -> usize {
        self.writing.len() + self.written.len()
    }

    /// The rail is gone: the blocks that its peer was not told of are to be sent anew.
    pub(super) fn lose(&mut self) -> Vec<u64> {
        let writing = std::mem::take(&mut self.writing).into_keys();
        let written = self.written.drain(..).map(|placed| placed.block.index);
        writing.chain(written).collect()
    }
}
