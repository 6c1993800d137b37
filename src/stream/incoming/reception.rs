//! `BlockReception`: what is received of one stream: its blocks, over all its connections, lap by
//! lap, and what the sender is to be told of them.

use super::content::{HadContent, IncomingContent};
use super::credit::ReceiveCredit;
use super::lap::IncomingLap;
use super::listing::Listing;
use super::offered::OfferedSums;
use super::rails::IncomingRails;
use super::reports::ProgressReports;
use crate::stream::content_hash::BlockHash;
use crate::stream::incoming::PackedOutcome;
use crate::stream::pack::{PackedBlock, blocks_of, unpack};
use crate::stream::wire::{
    Accept, BlockHeader, Credit, Damaged, Finish, Message, Pack, RailLost, RangesBuilder, Same,
    Sums, Written, Zeros,
};
use crate::stream::{Block, BlockPlan, Manifest, StreamViolation};

/// A control message about what is received.
#[derive(Debug, Clone, Copy)]
pub(super) enum ReceptionControl {
    Accept,
    Have(Listing),
    /// Of the blocks from this one on.
    Sums(u64),
    RailGone(u16),
    Credit(u64),
    Written(u64),
    Damaged,
    Missing(Listing),
}

/// What a block is that came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BlockArrival {
    /// The block has to be checked and written.
    New(Block),
    /// The block is there already, or is being written.
    Twice(u64),
}

/// How a lap stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LapOutcome {
    /// The lap goes on, or another one has begun.
    Open,
    /// All blocks are there, and they are right.
    Whole,
    /// All blocks are there, and they are not what the sender sent: why.
    Wrong(&'static str),
}

/// What the sender opened, as far as its blocks are concerned.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReceptionSettings {
    /// The number of the stream, for what is said of it.
    pub(super) stream: u32,
    pub(super) has_crc: bool,
    /// Blocks that may be under way at a time.
    pub(super) window: u64,
    /// Slots that blocks are written into (RMA); 0: they come as messages.
    pub(super) slots: u32,
}

/// The blocks of one stream.
#[derive(Debug)]
pub(super) struct BlockReception {
    settings: ReceptionSettings,
    pub(super) content: IncomingContent,
    pub(super) rails: IncomingRails,
    pub(super) credit: ReceiveCredit,
    pub(super) lap: IncomingLap,
    pub(super) reports: ProgressReports,
    offered: OfferedSums,
    ranges: RangesBuilder,
    /// Blocks that came damaged or twice.
    resent: u64,
}

impl BlockReception {
    /// The reception of a stream of `blocks` blocks, which was opened on a rail.
    pub(super) fn new(rail: u16, blocks: u64, plan: BlockPlan, with: ReceptionSettings) -> Self {
        Self {
            settings: with,
            content: IncomingContent::new(plan, blocks),
            rails: IncomingRails::new(rail),
            credit: ReceiveCredit::new(with.window),
            lap: IncomingLap::default(),
            reports: ProgressReports::default(),
            offered: OfferedSums::default(),
            ranges: RangesBuilder::default(),
            resent: 0,
        }
    }

    /// The stream is accepted with what the sink has of it.
    ///
    /// # Panics
    /// When the set is one of another stream.
    pub(super) fn accept(&mut self, mut had: HadContent) {
        self.offered = OfferedSums::new(std::mem::take(&mut had.sums));
        let has_some = !had.blocks.is_empty();
        self.content.accept(had);
        self.reports.accept(has_some);
    }

    // ---- what the sender says -------------------------------------------------------------------

    /// A block came on a rail.
    ///
    /// # Errors
    /// It is none of this stream's, has a checksum that it should not have, or goes beyond the
    /// credit.
    pub(super) fn on_block(
        &mut self,
        rail: u16,
        header: &BlockHeader,
    ) -> Result<BlockArrival, StreamViolation> {
        let index = header.index;
        let block = self.content.plan().get(index);
        let block = block
            .filter(|block| {
                let is = (block.entry as u64, block.offset, block.len);
                is == (header.entry, header.offset, header.len)
            })
            .ok_or(StreamViolation::NoSuchBlock { index })?;
        if !self.settings.has_crc && header.crc != 0 {
            let (what, value) = ("the CRC of a block without one", header.crc.into());
            return Err(StreamViolation::Count { what, value });
        }
        self.rails.get_mut(rail)?.arrived += 1;
        self.credit.on_arrived();
        if self.content.is_known(index) {
            self.credit.release();
            self.resent += 1;
            return Ok(BlockArrival::Twice(index));
        }
        self.credit.take()?;
        self.content.take(index);
        Ok(BlockArrival::New(block))
    }

    /// A pack came on a rail: those of its blocks that are to be checked and written.
    ///
    /// # Errors
    /// As [`on_block`](Self::on_block).
    pub(super) fn on_pack(
        &mut self,
        rail: u16,
        pack: &Pack<'_>,
    ) -> Result<Vec<PackedBlock>, StreamViolation> {
        let came = unpack(pack, self.content.plan(), self.settings.has_crc)?;
        self.take_new(rail, came, |packed| packed.block.index)
    }

    /// Blocks are said on a rail to be zeros: those of them that are to be written.
    ///
    /// # Errors
    /// They are none of this stream's, their files are not said to have holes, or they go beyond
    /// the credit.
    pub(super) fn on_zeros(
        &mut self,
        rail: u16,
        zeros: &Zeros,
        manifest: &Manifest,
    ) -> Result<Vec<Block>, StreamViolation> {
        let came = blocks_of(zeros, self.content.plan(), manifest)?;
        self.take_new(rail, came, |block| block.index)
    }

    /// Blocks came on a rail in one message: those that are not here yet are taken.
    fn take_new<T>(
        &mut self,
        rail: u16,
        mut came: Vec<T>,
        index: impl Fn(&T) -> u64,
    ) -> Result<Vec<T>, StreamViolation> {
        self.rails.get_mut(rail)?.arrived += 1;
        self.credit.on_arrived();
        let all = came.len();
        came.retain(|it| !self.content.is_known(index(it)));
        self.resent += (all - came.len()) as u64;
        if came.is_empty() {
            self.credit.release();
            return Ok(came);
        }
        self.credit.take()?;
        for it in &came {
            self.content.take(index(it));
        }
        Ok(came)
    }

    /// The sender says on a rail that blocks are those whose sums it was told: the ones that are to
    /// be kept, with their CRC32C.
    ///
    /// # Errors
    /// As [`on_block`](Self::on_block), and where it was told no sum.
    pub(super) fn on_same(
        &mut self,
        rail: u16,
        same: &Same<'_>,
    ) -> Result<Vec<(Block, u32)>, StreamViolation> {
        let mut new = Vec::with_capacity(same.crcs.len());
        for (index, crc) in (same.first..).zip(same.crcs) {
            let block = self.content.plan().get(index);
            let block = block.filter(|_| self.offered.has(index));
            let block = block.ok_or(StreamViolation::NoSuchBlock { index })?;
            new.push((block, crc.get()));
        }
        self.rails.get_mut(rail)?.arrived += 1;
        self.credit.on_arrived();
        let came = new.len();
        new.retain(|(block, _)| !self.content.is_known(block.index));
        self.resent += (came - new.len()) as u64;
        if new.is_empty() {
            self.credit.release();
            return Ok(new);
        }
        self.credit.take()?;
        for (block, _) in &new {
            self.content.take(block.index);
        }
        Ok(new)
    }

    /// Whether the sender knows all that it has to know before it sends.
    pub(super) fn is_sender_told(&self) -> bool {
        self.reports.is_sender_told() && self.offered.first_unsaid().is_none()
    }

    /// Blocks that came damaged or twice.
    pub(super) fn resent(&self) -> u64 {
        self.resent
    }

    /// Whether the sender may say on a rail that it is through with the lap. Whatever was missing
    /// after the last one, it knows.
    pub(super) fn admits_finish(&mut self, rail: u16, finish: &Finish) -> bool {
        if !self.is_sender_told() || finish.lap != self.lap.number() {
            return false;
        }
        self.lap.forget_missing();
        self.lap.admits(finish) && self.rails.get(rail).finished != Some(finish.lap)
    }

    /// The sender is through with the lap on a rail.
    ///
    /// # Errors
    /// Its counts can't be right.
    pub(super) fn on_finish(&mut self, rail: u16, finish: &Finish) -> Result<(), StreamViolation> {
        self.settle(rail, finish.sent_here)?;
        self.rails.get_mut(rail)?.finished = Some(finish.lap);
        self.lap.set_finish(*finish);
        Ok(())
    }

    /// The sender says how many blocks it sent on a rail: those that did not arrive are lost.
    fn settle(&mut self, rail: u16, said: u64) -> Result<(), StreamViolation> {
        let (sent, granted) = (said, self.credit.granted());
        if sent > granted {
            return Err(StreamViolation::OverCredit { sent, granted });
        }
        let lost = self.rails.settle(rail, said)?;
        self.credit.on_lost(lost);
        Ok(())
    }

    /// The sender has lost a rail, on which it had sent so many blocks.
    ///
    /// # Errors
    /// Its count can't be right.
    pub(super) fn on_rail_lost(&mut self, lost: &RailLost) -> Result<(), StreamViolation> {
        self.settle(lost.rail, lost.sent_there)?;
        self.rails.on_lost(lost.rail)
    }

    /// Judges a lap once all of it has arrived, or is known to be lost, and is written: is the
    /// stream whole, and what is missing?
    ///
    /// # Errors
    /// The counts of the sender can't be right.
    pub(super) fn judge(&mut self) -> Result<LapOutcome, StreamViolation> {
        let Some(finish) = self.lap.finish() else {
            return Ok(LapOutcome::Open);
        };
        let said = self.rails.said();
        if said > finish.sent {
            let what = "the number of blocks that were sent on a connection";
            return Err(StreamViolation::Count { what, value: said });
        }
        let is_settled = self.rails.have_finished(self.lap.number());
        if said < finish.sent || !is_settled || self.content.taken() > 0 {
            return Ok(LapOutcome::Open);
        }
        self.credit.settle(finish.sent);
        if !self.content.have().is_full() {
            self.lap.begin_next(self.credit.arrived());
            self.reports.forget_damaged();
            // A sender that has ended the lap early has no room left, as far as it knows.
            self.credit.tell_again();
            return Ok(LapOutcome::Open);
        }
        if self.content.digest() != finish.digest {
            let reason = "the digest of the blocks is not that of the source";
            return Ok(LapOutcome::Wrong(reason));
        }
        let (ours, theirs) = (self.content.blake3(), finish.blake3);
        if ours.is_some() && theirs.is_some() && ours != theirs {
            let reason = "the content has another BLAKE3 hash than the source";
            return Ok(LapOutcome::Wrong(reason));
        }
        Ok(LapOutcome::Whole)
    }

    // ---- what became of blocks and rails --------------------------------------------------------

    /// A block is checked and written.
    ///
    /// # Panics
    /// When it was not to be written.
    pub(super) fn on_written(&mut self, block: &Block, crc: u32, hash: Option<BlockHash>) {
        self.content.on_written(block, crc, hash);
        self.credit.on_done();
    }

    /// A block came damaged; this is its CRC32C.
    ///
    /// # Panics
    /// When it was not to be written.
    pub(super) fn on_damaged(&mut self, block: &Block, crc: u32) {
        self.set_damaged(block, crc);
        self.credit.on_done();
    }

    fn set_damaged(&mut self, block: &Block, crc: u32) {
        self.content.on_damaged(block);
        self.reports.add_damaged(block.index, crc);
        self.resent += 1;
    }

    /// The blocks of a pack that were to be written, or zeros, are dealt with.
    ///
    /// # Panics
    /// When they were not to be written.
    pub(super) fn on_pack_done(&mut self, done: &[(Block, PackedOutcome)]) {
        for (block, outcome) in done {
            match outcome {
                PackedOutcome::Written(crc, hash) => self.content.on_written(block, *crc, *hash),
                PackedOutcome::Damaged(crc) => self.set_damaged(block, *crc),
            }
        }
        self.credit.on_done();
    }

    /// What was said on the connection that is gone is said again, while blocks are received.
    pub(super) fn say_again(&mut self) {
        if !self.reports.is_accept_unsaid() {
            self.credit.tell_again();
            self.reports.say_written_again();
        }
        self.lap.say_missing_again(self.credit.arrived());
    }

    // ---- what is to be said ---------------------------------------------------------------------

    /// The next control message while blocks are received.
    pub(super) fn choose(&self) -> Option<ReceptionControl> {
        if self.reports.is_accept_unsaid() {
            return Some(ReceptionControl::Accept);
        }
        if let Some(listing) = self.reports.having() {
            return Some(ReceptionControl::Have(listing));
        }
        if let Some(first) = self.offered.first_unsaid() {
            return Some(ReceptionControl::Sums(first));
        }
        if let Some(rail) = self.rails.untold() {
            return Some(ReceptionControl::RailGone(rail));
        }
        if let Some(granted) = self.credit.due() {
            return Some(ReceptionControl::Credit(granted));
        }
        if let Some(listing) = self.lap.missing() {
            return Some(ReceptionControl::Missing(listing));
        }
        if self.reports.damaged().is_some() {
            return Some(ReceptionControl::Damaged);
        }
        let blocks = self.content.have().count();
        let is_due = self.reports.is_written_due(blocks);
        is_due.then_some(ReceptionControl::Written(blocks))
    }

    /// The next control message while the sink works on the stream as a whole: that it does.
    pub(super) fn choose_sign_of_life(&self) -> Option<ReceptionControl> {
        let is_due = self.reports.is_sign_of_life_due();
        is_due.then(|| ReceptionControl::Written(self.content.have().count()))
    }

    /// The message of a choice. Of a list, the choice is then what is left behind this part of it.
    pub(super) fn message(&mut self, control: &mut ReceptionControl) -> Option<Message<'_>> {
        let stream = self.settings.stream;
        Some(match control {
            ReceptionControl::Accept => Message::Accept(Accept {
                stream,
                granted: self.credit.window(),
                have_blocks: self.content.have().count(),
                have_digest: self.content.first_part(),
                slots: self.settings.slots,
                unchanged: self.content.unchanged(),
                compared: self.offered.count(),
            }),
            ReceptionControl::Have(listing) => {
                let ranges = self.content.have().ranges(listing.from);
                listing.fill(&mut self.ranges, ranges);
                Message::Have(listing.message(stream, &self.ranges))
            }
            ReceptionControl::Sums(first) => Message::Sums(Sums {
                stream,
                first: *first,
                sums: self.offered.run_from(*first),
            }),
            ReceptionControl::Missing(listing) => {
                let ranges = self.content.have().missing(listing.from);
                listing.fill(&mut self.ranges, ranges);
                Message::Missing(listing.message(stream, &self.ranges))
            }
            ReceptionControl::RailGone(rail) => Message::RailLost(RailLost {
                stream,
                rail: *rail,
                sent_there: self.rails.get(*rail).arrived,
            }),
            ReceptionControl::Credit(granted) => Message::Credit(Credit {
                stream,
                granted: *granted,
            }),
            ReceptionControl::Written(blocks) => Message::Written(Written {
                stream,
                blocks: *blocks,
                bytes: self.content.bytes(),
            }),
            ReceptionControl::Damaged => {
                let (index, crc) = self.reports.damaged()?;
                Message::Damaged(Damaged { stream, index, crc })
            }
        })
    }

    /// The message of a choice has been given to the endpoint.
    pub(super) fn on_control_sent(&mut self, control: ReceptionControl) {
        match control {
            ReceptionControl::Accept => {
                self.credit.on_accept_sent();
                self.reports.on_accept_sent(self.content.have().count());
            }
            ReceptionControl::Have(listing) => self.reports.on_having_sent(listing.rest()),
            ReceptionControl::Sums(first) => self.offered.on_said(first),
            ReceptionControl::Missing(listing) => self.lap.on_missing_sent(listing.rest()),
            ReceptionControl::RailGone(gone) => self.rails.on_told(gone),
            ReceptionControl::Credit(granted) => {
                self.credit.on_credit_sent(granted);
                // A sender that goes on may as well know how far it is.
                self.reports.want_progress();
            }
            ReceptionControl::Written(blocks) => self.reports.on_written_sent(blocks),
            ReceptionControl::Damaged => self.reports.on_damaged_sent(),
        }
    }

    /// How it is, in words.
    pub(super) fn describe(&self) -> String {
        let said = |is: bool, text: &'static str| if is { text } else { "" };
        format!(
            "lap {}{}{}; {} of {} blocks here, {} being written; {} arrived, {} lost, {} granted; \
             control rail {:?}; rails: {}",
            self.lap.number(),
            said(self.lap.finish().is_some(), ", finished by the sender"),
            said(self.reports.is_accept_unsaid(), ", Accept unsaid"),
            self.content.have().count(),
            self.content.plan().blocks(),
            self.content.taken(),
            self.credit.arrived(),
            self.credit.lost(),
            self.credit.granted(),
            self.rails.control(),
            self.rails.describe(),
        )
    }
}
