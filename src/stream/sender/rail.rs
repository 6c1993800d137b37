//! What a sender keeps with each connection of a peer: the blocks that are on their way by it.

use std::fmt::{Display, Formatter, Result};

use super::slot_writer::SlotWriter;
use crate::stream::network::CONTROL_ROOM;
use crate::stream::rail::Rail;
use crate::stream::wire::CONTROL_PAYLOAD_MAX;

/// The blocks of a connection.
#[derive(Debug, Default)]
pub(super) struct RailBlocks {
    /// Blocks on their way.
    pub(super) in_flight: usize,
    /// Where blocks go by RMA write.
    pub(super) slot_writer: Option<Box<SlotWriter>>,
    /// The last block was refused for now; until the next turn.
    pub(super) blocked: bool,
}

/// One connection of a peer.
pub(super) type SenderRail = Rail<RailBlocks>;

impl SenderRail {
    /// The longest payload that the receiver takes, once it has said so.
    pub(super) fn payload_max(&self) -> Option<u32> {
        self.agreed().map(|agreed| agreed.payload_max)
    }

    /// Whether a block may go by it: what was said before goes first, but a write overtakes.
    pub(super) fn may_send(&self, depth: usize) -> bool {
        let blocks = &self.local;
        let has_room = match blocks.slot_writer {
            None => self.outbox.is_empty(),
            Some(_) => self.has_slot(),
        };
        self.is_ready() && !blocks.blocked && blocks.in_flight < depth && has_room
    }

    /// Whether a block could be written. The slots of a connection that is gone are of no use.
    pub(super) fn has_slot(&self) -> bool {
        let slot_writer = self.local.slot_writer.as_ref().filter(|_| self.is_ready());
        slot_writer.is_some_and(|slot_writer| slot_writer.has_room())
    }

    /// Blocks that were written, or are, and that the peer was not told of.
    pub(super) fn unplaced(&self) -> usize {
        let slot_writer = self.local.slot_writer.as_ref();
        slot_writer.map_or(0, |slot_writer| slot_writer.unplaced())
    }

    /// Bytes that a control message may have.
    pub(super) fn control_room(&self) -> usize {
        let most = self.payload_max();
        CONTROL_ROOM.min(most.map_or(CONTROL_PAYLOAD_MAX, |max| max as usize))
    }
}

impl Display for RailBlocks {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, ", {} blocks in flight", self.in_flight)?;
        if self.blocked {
            f.write_str(", blocked")?;
        }
        match &self.slot_writer {
            Some(slot_writer) => write!(f, ", {}", slot_writer.describe()),
            None => Ok(()),
        }
    }
}
