//! `ProgressReports`: what a sender is told while its blocks come: that it is accepted, what is
//! here already, what was written, what came damaged.

use std::collections::VecDeque;

use super::listing::Listing;

/// The reports of one stream's progress that are still to be sent.
#[derive(Debug, Default)]
pub(super) struct ProgressReports {
    is_accept_unsaid: bool,
    /// The list of blocks that the sink had, as far as it is still to be said.
    having: Option<Listing>,
    /// Blocks that came damaged, with the CRC32C that they have.
    damaged: VecDeque<(u64, u32)>,
    /// Blocks that were written when the sender was told last.
    written_said: u64,
    wants_progress: bool,
    /// The sender is told once more how far it is, so that it hears that the sink works.
    is_sign_of_life_due: bool,
}

impl ProgressReports {
    /// The stream is accepted, and the sink has something of it, or nothing.
    pub(super) fn accept(&mut self, has_some: bool) {
        self.is_accept_unsaid = true;
        self.having = has_some.then(|| Listing::new(0));
    }

    pub(super) fn is_accept_unsaid(&self) -> bool {
        self.is_accept_unsaid
    }

    /// The sender was told that it is accepted, and how many blocks are here.
    pub(super) fn on_accept_sent(&mut self, blocks: u64) {
        self.is_accept_unsaid = false;
        self.written_said = blocks;
    }

    /// Whether the sender knows what is here, and so may send.
    pub(super) fn is_sender_told(&self) -> bool {
        self.having.is_none() && !self.is_accept_unsaid
    }

    /// The list of what the sink had, as far as it is still to be said.
    pub(super) fn having(&self) -> Option<Listing> {
        self.having
    }

    /// A part of the list was said; this is the rest.
    pub(super) fn on_having_sent(&mut self, rest: Option<Listing>) {
        self.having = rest;
    }

    /// A block came damaged; this is its CRC32C.
    pub(super) fn add_damaged(&mut self, index: u64, crc: u32) {
        self.damaged.push_back((index, crc));
    }

    /// The next damaged block that the sender was not told of.
    pub(super) fn damaged(&self) -> Option<(u64, u32)> {
        self.damaged.front().copied()
    }

    pub(super) fn on_damaged_sent(&mut self) {
        self.damaged.pop_front();
    }

    /// Damaged blocks are among those that are missing at the end of a lap.
    pub(super) fn forget_damaged(&mut self) {
        self.damaged.clear();
    }

    /// The sender is to be told how far it is, even if there is nothing else to say.
    pub(super) fn want_progress(&mut self) {
        self.wants_progress = true;
    }

    /// The sender is to hear that the sink works, though there is nothing new to say.
    pub(super) fn want_sign_of_life(&mut self) {
        self.is_sign_of_life_due = true;
    }

    pub(super) fn is_sign_of_life_due(&self) -> bool {
        self.is_sign_of_life_due
    }

    /// Whether the sender is to be told that so many blocks are written.
    pub(super) fn is_written_due(&self, blocks: u64) -> bool {
        self.is_sign_of_life_due || self.wants_progress && blocks != self.written_said
    }

    pub(super) fn on_written_sent(&mut self, blocks: u64) {
        self.written_said = blocks;
        self.wants_progress = false;
        self.is_sign_of_life_due = false;
    }

    /// The sender may not have heard what was said last.
    pub(super) fn say_written_again(&mut self) {
        self.written_said = 0;
    }
}
