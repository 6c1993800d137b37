//! `OutgoingStream`: the sender's end of one stream's protocol, for one peer: what the peer has,
//! what is still to be sent, what may be sent, and how it ended.
//!
//! It does no input and output: the sender's network thread asks it what it wants next, tells it
//! what was sent on which connection (rail), gives it the messages of the peer, and sends the
//! control messages that it asks for.
//!
//! ```text
//!  Opening ─ Open, Manifest ×n said ─► Opened ─ Accept, Have ×n ─► Sending ◄─────────┐
//!                                                                    │ all sent once  │ Missing ×n
//!                                                                    ▼                │
//!                                             Finish on each rail: the lap is sealed ─┤
//!                                                                Over ◄─ Complete ────┘
//! ```

mod blocks;
mod completion;
mod control;
mod credit;
mod ending;
mod had_blocks;
mod lap;
mod pause;
mod peer_progress;
mod rails;
mod stage;

use std::sync::Arc;

use zerocopy::little_endian::U32;

use self::blocks::OutgoingBlocks;
use self::completion::check_asked;
use self::control::SenderControl;
use self::credit::SendCredit;
use self::ending::SenderEnding;
use self::had_blocks::HadBlocks;
use self::lap::OutgoingLap;
use self::pause::PauseNotice;
use self::peer_progress::RemoteProgress;
use self::rails::OutgoingRails;
use self::stage::OutgoingStage;
use super::blocks::{Block, BlockPlan};
use super::error::{RefusalCode, StreamError, StreamViolation};
use super::manifest::{Manifest, Owner};
use super::sums::ContentSum;
use super::wire::{
    Accept, AttributePart, BlockHeader, Complete, Finish, HASH_LEN, ManifestPart, Message,
    OWNERS_MAX, Open, OpenFlags, OwnerWire, Owners, Pack, Pause, RailLost, RangeList, Same, Sums,
    Zeros,
};

/// The sender's end of one stream to one peer.
#[derive(Debug)]
pub(crate) struct OutgoingStream {
    open: Open,
    state: OutgoingStage,
    rails: OutgoingRails,
    blocks: OutgoingBlocks,
    credit: SendCredit,
    lap: OutgoingLap,
    remote: RemoteProgress,
    /// Blocks whose sums the peer says before it is sent any.
    compared: u64,
    pause: PauseNotice,
    blake3: Option<[u8; HASH_LEN]>,
    /// What [`next_control`](Self::next_control) gave, until it went out.
    pending: Option<SenderControl>,
    /// The part of the manifest, or of extended attributes, that is being sent.
    part: Vec<u8>,
    /// The owners that are being sent.
    owners: Vec<OwnerWire>,
    ending: SenderEnding,
}

impl OutgoingStream {
    /// A stream that is about to be opened on a rail.
    ///
    /// # Panics
    ///
    /// When `open` tells of another plan.
    pub(crate) fn new(open: Open, plan: Arc<BlockPlan>, rail: u16) -> Self {
        let said = (open.bytes, open.blocks, open.block_bytes);
        let is = (plan.bytes(), plan.blocks(), plan.block_bytes());
        assert_eq!(said, is, "what is opened is what will be sent");
        Self {
            open,
            state: OutgoingStage::Opening {
                is_open: false,
                next: 0,
            },
            rails: OutgoingRails::new(rail),
            blocks: OutgoingBlocks::new(plan),
            credit: SendCredit::default(),
            lap: OutgoingLap::default(),
            remote: RemoteProgress::default(),
            compared: 0,
            pause: PauseNotice::default(),
            blake3: None,
            pending: None,
            part: Vec::new(),
            owners: Vec::new(),
            ending: SenderEnding::default(),
        }
    }

    /// A connection of this number may carry blocks from now on.
    ///
    /// # Panics
    ///
    /// When there was one of this number before, or the number is none of a rail's.
    pub(crate) fn add_rail(&mut self, rail: u16) {
        self.rails.add(rail);
    }

    /// The connection is gone. What it carried last may not have arrived; the peer will say so.
    pub(crate) fn on_rail_lost(&mut self, rail: u16) {
        if !self.rails.on_lost(rail) {
            return;
        }
        self.pending = None;
        let is_accepted = self.state == OutgoingStage::Sending || self.state == OutgoingStage::Over;
        if rail == self.rails.first() && !is_accepted {
            // How much of the opening arrived is not known: it is begun anew, as another stream, or
            // not at all.
            let reason = "its connection was lost before the stream was accepted";
            self.give_up(RefusalCode::LOST, reason);
        }
    }

    // ---- what is to be sent ---------------------------------------------------------------------

    /// The first block from `from` on that is to be sent and that nobody has taken. Nothing before
    /// the peer has said what it has.
    pub(crate) fn first_wanted(&self, from: u64) -> Option<u64> {
        match self.state {
            OutgoingStage::Sending => self.blocks.wanted().next(from),
            _ => None,
        }
    }

    /// Whether this block is to be sent and nobody has taken it.
    pub(crate) fn wants(&self, index: u64) -> bool {
        self.state == OutgoingStage::Sending && self.blocks.wanted().contains(index)
    }

    /// Somebody reads this block, or has it to be sent. Whether it was wanted.
    pub(crate) fn take(&mut self, index: u64) -> bool {
        let is_wanted = self.wants(index);
        if is_wanted {
            self.blocks.take(index);
        }
        is_wanted
    }

    /// A block that was taken is not going to be sent, for now.
    pub(crate) fn give_back(&mut self, index: u64) {
        self.blocks.give_back(index);
    }

    /// Whether the peer has room for a message with blocks, and it is to have it now.
    pub(crate) fn may_send(&self) -> bool {
        let is_open = self.state == OutgoingStage::Sending && self.lap.is_open();
        is_open && !self.pause.is_paused && self.room() > 0
    }

    /// Whether the peer can be told of a block that was written into its memory, on credit that was
    /// kept for it.
    pub(crate) fn may_place(&self) -> bool {
        self.state == OutgoingStage::Sending && !self.lap.is_sealed
    }

    /// Messages with blocks that the peer has room for.
    pub(crate) fn room(&self) -> u64 {
        self.credit.room()
    }

    /// What stands in front of a block.
    pub(crate) fn header(&self, block: &Block, crc: u32) -> BlockHeader {
        BlockHeader::new(self.open.stream, block, crc)
    }

    /// What stands in front of blocks that follow each other, whose payload this is.
    ///
    /// # Panics
    ///
    /// When the payload does not begin with their checksums.
    pub(crate) fn pack_header<'a>(&self, blocks: &[(Block, u32)], payload: &'a [u8]) -> Pack<'a> {
        let (crcs, bytes) = Pack::split(payload, blocks.len()).expect("checksums, then bytes");
        Pack {
            stream: self.open.stream,
            first: blocks.first().map_or(0, |(block, _)| block.index),
            crcs,
            // No more than a block's.
            len: bytes.len() as u32,
        }
    }

    /// What says that blocks, which follow each other, are zeros.
    ///
    /// # Panics
    ///
    /// When there are none.
    pub(crate) fn zeros(&self, blocks: &[(Block, u32)]) -> Zeros {
        Zeros {
            stream: self.open.stream,
            first: blocks[0].0.index,
            // No more than `ZEROS_BLOCKS_MAX`.
            blocks: blocks.len() as u32,
        }
    }

    /// What says that the peer has blocks, which follow each other, with these CRC32C.
    pub(crate) fn same_header<'a>(&self, blocks: &[(Block, u32)], crcs: &'a [U32]) -> Same<'a> {
        Same {
            stream: self.open.stream,
            first: blocks.first().map_or(0, |(block, _)| block.index),
            crcs,
        }
    }

    /// Whether the peer has said the sum of this block, and it may be that of what was read.
    pub(crate) fn compares(&self, index: u64) -> bool {
        self.blocks.sum(index).is_some()
    }

    /// Whether the peer has what was read of a block, in a file of the same name.
    pub(crate) fn is_same(&self, index: u64, content: Option<ContentSum>) -> bool {
        content.is_some() && self.blocks.sum(index) == content
    }

    /// The peer is told, on a rail, that it has these blocks, which follow each other.
    ///
    /// # Panics
    ///
    /// As [`on_sent`](Self::on_sent).
    pub(crate) fn on_same_sent(&mut self, rail: u16, blocks: &[(Block, u32)]) {
        self.on_pack_sent(rail, blocks);
        for (block, _) in blocks {
            self.blocks.on_same_sent(block);
        }
    }

    /// Bytes of the blocks that the peer was told to keep.
    pub(crate) fn equal_bytes(&self) -> u64 {
        self.blocks.equal_bytes()
    }

    /// A block has been given to the endpoint, whatever becomes of it there.
    ///
    /// # Panics
    ///
    /// When it was not to be sent: not taken, beyond the credit, or on no rail.
    pub(crate) fn on_sent(&mut self, rail: u16, block: &Block, crc: u32) {
        self.on_pack_sent(rail, &[(*block, crc)]);
    }

    /// The same for the blocks of a pack, or zeros, with their CRC32C.
    ///
    /// # Panics
    ///
    /// As [`on_sent`](Self::on_sent).
    pub(crate) fn on_pack_sent(&mut self, rail: u16, blocks: &[(Block, u32)]) {
        assert!(self.room() > 0, "a block is sent on credit");
        self.rails.on_sent(rail);
        for (block, crc) in blocks {
            self.blocks.on_sent(block, *crc);
        }
        self.credit.sent += 1;
        if self.blocks.are_too_many_resent() {
            self.give_up(RefusalCode::DAMAGED, "too many blocks had to be sent again");
        }
    }

    /// The BLAKE3 of the content, if all of it was read; before `Finish` is allowed, if the peer is
    /// to compare.
    pub(crate) fn set_blake3(&mut self, hash: [u8; HASH_LEN]) {
        self.blake3 = Some(hash);
    }

    /// Whether the peer was told the BLAKE3 of what this side read.
    pub(crate) fn has_blake3(&self) -> bool {
        self.blake3.is_some()
    }

    /// Nothing has moved for a while though there is something to send: the lap ends here, and the
    /// peer says what it lacks. It can't grant room for blocks that it does not know to be lost,
    /// and a grant may be lost itself; over connections that keep what they are given, it never
    /// comes to this. Whether the peer is asked now.
    pub(crate) fn inquire(&mut self) -> bool {
        let is_sending = self.state == OutgoingStage::Sending;
        let is_stuck = is_sending && self.room() == 0 && self.credit.sent > 0;
        let asks = is_stuck && self.lap.is_open();
        self.lap.is_cut_short |= asks;
        asks
    }

    /// All was sent, and the side vouches for the source: `Finish` may be said. To be said anew
    /// in each lap.
    pub(crate) fn allow_finish(&mut self) {
        self.lap.may_finish = true;
    }

    /// Whether the peer is being asked for its verdict. Not any more, once it has said what is
    /// missing.
    pub(crate) fn is_finishing(&self) -> bool {
        self.state == OutgoingStage::Sending && self.lap.may_end()
    }

    /// Whether all was sent, and the peer has to say whether it has it.
    fn is_lap_over(&self) -> bool {
        let is_sent = self.blocks.are_sent();
        self.state == OutgoingStage::Sending && (is_sent || self.lap.is_cut_short)
    }

    // ---- what is to be said ---------------------------------------------------------------------

    /// The next control message for this rail; its payload has at most `room` bytes. It is the same
    /// again until [`on_control_sent`](Self::on_control_sent) says that it went out. `manifest` is
    /// what was opened.
    pub(crate) fn next_control(
        &mut self,
        rail: u16,
        room: usize,
        manifest: &Manifest,
    ) -> Option<Message<'_>> {
        self.pending = self.choose(rail);
        let stream = self.open.stream;
        Some(match self.pending? {
            SenderControl::Cancel => self.ending.message(stream)?,
            SenderControl::Open => Message::Open(self.open),
            SenderControl::Part { next: first } => {
                let says_sparse = self.open.flags.contains(OpenFlags::SPARSE);
                let (part, next) = manifest.encode_part(first, room, says_sparse);
                self.part = part;
                self.pending = Some(SenderControl::Part { next });
                Message::Manifest(ManifestPart {
                    stream,
                    first: first as u64,
                    entries: &self.part,
                })
            }
            SenderControl::Owners { next: first } => {
                let most = OWNERS_MAX.min(room / size_of::<OwnerWire>());
                let owners = (first..).map_while(|entry| manifest.owner(entry));
                let owners = owners.take(most).map(|Owner { user, group }| OwnerWire {
                    user: user.into(),
                    group: group.into(),
                });
                self.owners = owners.collect();
                let next = first + self.owners.len();
                self.pending = Some(SenderControl::Owners { next });
                Message::Owners(Owners {
                    stream,
                    first: first as u64,
                    owners: &self.owners,
                })
            }
            SenderControl::Attributes { next: first } => {
                let rest = manifest.encoded_attributes().get(first..)?;
                self.part = rest[..rest.len().min(room)].to_vec();
                let next = first + self.part.len();
                self.pending = Some(SenderControl::Attributes { next });
                Message::Attributes(AttributePart {
                    stream,
                    first: first as u64,
                    bytes: &self.part,
                })
            }
            SenderControl::RailLost(lost) => Message::RailLost(RailLost {
                stream,
                rail: lost,
                sent_there: self.rails.get(lost).sent,
            }),
            SenderControl::Finish => Message::Finish(Finish {
                stream,
                lap: self.lap.number,
                sent_here: self.rails.get(rail).sent,
                sent: self.credit.sent,
                digest: self.blocks.digest(),
                blake3: self.blake3,
            }),
            SenderControl::Pause(on) => Message::Pause(Pause { stream, on }),
        })
    }

    fn choose(&self, rail: u16) -> Option<SenderControl> {
        if !self.rails.get(rail).is_live {
            return None;
        }
        if self.ending.is_unsaid() {
            return Some(SenderControl::Cancel);
        }
        match self.state {
            OutgoingStage::Opening { .. } if rail != self.rails.first() => None,
            OutgoingStage::Opening { is_open: false, .. } => Some(SenderControl::Open),
            OutgoingStage::Opening { next, .. } => Some(SenderControl::Part { next }),
            OutgoingStage::Owning { next } if rail == self.rails.first() => {
                Some(SenderControl::Owners { next })
            }
            OutgoingStage::Attributing { next } if rail == self.rails.first() => {
                Some(SenderControl::Attributes { next })
            }
            OutgoingStage::Sending => self.choose_sending(rail),
            OutgoingStage::Owning { .. }
            | OutgoingStage::Attributing { .. }
            | OutgoingStage::Opened
            | OutgoingStage::Having(_)
            | OutgoingStage::Comparing { .. }
            | OutgoingStage::Over => None,
        }
    }

    fn choose_sending(&self, rail: u16) -> Option<SenderControl> {
        if let Some(on) = self.pause.due() {
            return Some(SenderControl::Pause(on));
        }
        if let Some(lost) = self.rails.untold() {
            return Some(SenderControl::RailLost(lost));
        }
        let may_end = self.lap.may_end() && self.is_lap_over();
        let is_due = may_end && self.rails.finishes_on(rail, self.lap.number);
        is_due.then_some(SenderControl::Finish)
    }

    /// What [`next_control`](Self::next_control) gave for this rail has been given to the endpoint.
    ///
    /// # Panics
    ///
    /// When nothing was to be said.
    pub(crate) fn on_control_sent(&mut self, rail: u16) {
        match self.pending.take().expect("something was to be said") {
            SenderControl::Open => self.state = OutgoingStage::opened_up_to(0, &self.open),
            SenderControl::Part { next } => {
                self.state = OutgoingStage::opened_up_to(next, &self.open);
            }
            SenderControl::Owners { next } => {
                self.state = OutgoingStage::owned_up_to(next, &self.open);
            }
            SenderControl::Attributes { next } => {
                self.state = OutgoingStage::attributed_up_to(next, &self.open);
            }
            SenderControl::Finish => {
                self.lap.is_sealed = true;
                self.rails.on_finished(rail, self.lap.number);
            }
            SenderControl::RailLost(lost) => self.rails.on_told(lost, rail),
            SenderControl::Pause(on) => self.pause.on_said(on),
            SenderControl::Cancel => self.ending.on_said(),
        }
    }

    // ---- what the peer says ---------------------------------------------------------------------

    /// Takes what the peer says of this stream.
    ///
    /// # Errors
    ///
    /// The peer does not keep to the protocol: the stream is over then, and the peer is told.
    pub(crate) fn on_message(&mut self, message: &Message<'_>) -> Result<(), StreamViolation> {
        if self.state == OutgoingStage::Over {
            // What was under way when it ended.
            return Ok(());
        }
        let result = self.read(message);
        if let Err(violation) = &result {
            self.state = OutgoingStage::Over;
            let reason = violation.to_string();
            let error = StreamError::Violation(*violation);
            self.ending.set_violation(error, reason);
        }
        result
    }

    fn read(&mut self, message: &Message<'_>) -> Result<(), StreamViolation> {
        match message {
            Message::Accept(accept) => self.on_accept(accept),
            Message::Have(list) => self.on_have(list),
            Message::Sums(sums) => self.on_sums(sums),
            Message::Credit(credit) => self.on_credit(credit.granted),
            Message::Written(written) => self.on_written(written.blocks, written.bytes),
            Message::Damaged(damaged) => self.on_damaged(damaged.index),
            Message::Missing(list) => self.on_missing(list),
            Message::Complete(complete) => self.on_complete(complete),
            Message::Refuse(refuse) => {
                let is_early = matches!(
                    self.state,
                    OutgoingStage::Opening { .. }
                        | OutgoingStage::Owning { .. }
                        | OutgoingStage::Attributing { .. }
                        | OutgoingStage::Opened
                );
                self.expect(is_early, message)?;
                self.end(Err(refuse.into()));
                Ok(())
            }
            Message::Failed(failed) => {
                self.end(Err(failed.into()));
                Ok(())
            }
            Message::Cancel(cancel) => {
                self.end(Err(cancel.into()));
                Ok(())
            }
            // Slots are the side's: it looks at these before.
            Message::Window(_) | Message::Freed(_)
                if self.open.flags.contains(OpenFlags::BY_WRITE) =>
            {
                self.remote.advances += 1;
                Ok(())
            }
            _ => self.expect(false, message),
        }
    }

    fn expect(&self, is_right: bool, message: &Message<'_>) -> Result<(), StreamViolation> {
        match is_right {
            true => Ok(()),
            false => Err(StreamViolation::Unexpected {
                kind: message.kind().0,
                state: self.state.text(),
            }),
        }
    }

    fn on_accept(&mut self, accept: &Accept) -> Result<(), StreamViolation> {
        self.expect(
            self.state == OutgoingStage::Opened,
            &Message::Accept(*accept),
        )?;
        let count = |what, value| Err(StreamViolation::Count { what, value });
        let flags = self.open.flags;
        let keeps = flags.contains(OpenFlags::SKIP_UNCHANGED);
        let may_have = match flags.contains(OpenFlags::RESTART) && !keeps {
            true => 0,
            false => self.blocks.plan().blocks(),
        };
        let may_keep = if keeps { self.open.entries } else { 0 };
        if accept.unchanged > may_keep {
            return count("the number of files that the peer keeps", accept.unchanged);
        }
        if accept.have_blocks > may_have {
            return count("the number of blocks that the peer has", accept.have_blocks);
        }
        let may_compare = match flags.contains(OpenFlags::COMPARE) {
            true => self.blocks.plan().blocks() - accept.have_blocks,
            false => 0,
        };
        if accept.compared > may_compare {
            let what = "the number of blocks that the peer compares";
            return count(what, accept.compared);
        }
        if (accept.slots > 0) != self.open.flags.contains(OpenFlags::BY_WRITE) {
            return count("the number of slots", accept.slots.into());
        }
        self.on_credit(accept.granted)?;
        self.remote.advances += 1;
        self.blocks.add_digest_part(accept.have_digest);
        self.remote.had.0 = accept.have_blocks;
        self.remote.unchanged = accept.unchanged;
        self.compared = accept.compared;
        self.state = match accept.have_blocks {
            0 => OutgoingStage::comparing(self.compared),
            blocks => OutgoingStage::Having(HadBlocks::new(blocks)),
        };
        Ok(())
    }

    fn on_have(&mut self, list: &RangeList<'_>) -> Result<(), StreamViolation> {
        let OutgoingStage::Having(mut had) = self.state else {
            return self.expect(false, &Message::Have(*list));
        };
        for range in list.ranges.iter() {
            had.on_range(&range, self.blocks.plan().blocks())?;
            self.remote.advances += 1;
            self.remote.had.1 += self.blocks.on_had(range);
        }
        self.remote.written = self.remote.had;
        had.check(list)?;
        self.state = match had.is_whole() {
            true => OutgoingStage::comparing(self.compared),
            false => OutgoingStage::Having(had),
        };
        Ok(())
    }

    fn on_sums(&mut self, sums: &Sums<'_>) -> Result<(), StreamViolation> {
        let OutgoingStage::Comparing { left, from } = self.state else {
            return self.expect(false, &Message::Sums(*sums));
        };
        if sums.first < from {
            return Err(StreamViolation::NoSuchBlock { index: sums.first });
        }
        let said = sums.sums.len() as u64;
        let Some(left) = left.checked_sub(said) else {
            let what = "sums of more blocks than were announced";
            return Err(StreamViolation::Count { what, value: said });
        };
        for (index, sum) in (sums.first..).zip(sums.sums) {
            self.blocks.on_sum(index, *sum)?;
        }
        self.remote.advances += 1;
        let from = sums.first + said;
        self.state = match left {
            0 => OutgoingStage::Sending,
            left => OutgoingStage::Comparing { left, from },
        };
        Ok(())
    }

    fn on_credit(&mut self, granted: u64) -> Result<(), StreamViolation> {
        let is_more = self.credit.on_granted(granted)?;
        self.remote.advances += u64::from(is_more);
        Ok(())
    }

    fn on_written(&mut self, blocks: u64, bytes: u64) -> Result<(), StreamViolation> {
        let plan = self.blocks.plan();
        if blocks > plan.blocks() || bytes > plan.bytes() {
            let what = "the number of blocks that are written";
            let value = blocks;
            return Err(StreamViolation::Count { what, value });
        }
        self.remote.on_written(blocks, bytes);
        Ok(())
    }

    fn on_damaged(&mut self, index: u64) -> Result<(), StreamViolation> {
        if !self.blocks.is_counted(index) {
            return Err(StreamViolation::NoSuchBlock { index });
        }
        self.remote.damaged += 1;
        // Behind the `Finish` of a lap it is among what is missing.
        if self.may_place() && !self.blocks.is_taken(index) {
            self.remote.advances += u64::from(self.blocks.want_again(index));
            // It is read once more, and the source asked again.
            self.lap.may_finish = false;
        }
        Ok(())
    }

    fn on_missing(&mut self, list: &RangeList<'_>) -> Result<(), StreamViolation> {
        if list.lap < self.lap.number {
            // Said anew, because a connection was lost.
            return Ok(());
        }
        let is_sealed = self.state == OutgoingStage::Sending && self.lap.is_sealed;
        let is_right = is_sealed && list.lap == self.lap.number;
        self.expect(is_right, &Message::Missing(*list))?;
        if list.ranges.len() == 0 {
            // What lacks nothing is complete; a lap after a lap for nothing would have no end.
            let what = "the number of blocks that are missing";
            return Err(StreamViolation::Count { what, value: 0 });
        }
        for range in list.ranges.iter() {
            self.remote.advances += self.blocks.on_missing(range)?;
        }
        if !list.more {
            self.lap.begin_next();
        }
        Ok(())
    }

    fn on_complete(&mut self, complete: &Complete) -> Result<(), StreamViolation> {
        let is_right = self.state == OutgoingStage::Sending && self.lap.is_sealed;
        self.expect(is_right, &Message::Complete(*complete))?;
        check_asked(self.open.flags, complete)?;
        self.remote.deleted = complete.deleted;
        let blake3 = self.blake3.zip(complete.blake3);
        if self.blocks.are_those_of(complete) && blake3.is_none_or(|(ours, theirs)| ours == theirs)
        {
            self.remote.written = (complete.blocks, complete.bytes);
            self.end(Ok(*complete));
        } else {
            let reason = "what the receiver has is not what was sent";
            self.give_up(RefusalCode::DIGEST, reason);
        }
        Ok(())
    }

    fn end(&mut self, outcome: Result<Complete, StreamError>) {
        self.state = OutgoingStage::Over;
        self.ending.set(outcome);
    }

    /// How many blocks may have to be sent again before the stream is given up; as many as there
    /// are, and 64, if nothing else is said.
    #[cfg(test)]
    pub(crate) fn allow_resent(&mut self, blocks: u64) {
        self.blocks.allow_resent(blocks);
    }

    // ---- control and outcome --------------------------------------------------------------------

    /// Ends the stream; the peer is told.
    pub(crate) fn give_up(&mut self, code: RefusalCode, reason: &str) {
        if self.state == OutgoingStage::Over {
            return;
        }
        // A peer that was told nothing need not be told that it is over.
        let is_known = !matches!(self.state, OutgoingStage::Opening { is_open: false, .. });
        if is_known {
            self.ending.tell(code, reason);
        }
        let reason = reason.to_owned();
        self.end(Err(StreamError::GivenUp { code, reason }));
    }

    /// Stops sending, or goes on; the peer is told, so that it waits.
    pub(crate) fn pause(&mut self, on: bool) {
        self.pause.is_paused = on;
    }

    /// The peer is to hear that this side works, though it has no block for it now.
    pub(crate) fn want_sign_of_life(&mut self) {
        self.pause.is_sign_of_life_due = self.may_place();
    }

    /// How often the peer has said something that was not known: it grants more, it has written
    /// more, or it lacks what was thought to be there. An answer that says the same once more is
    /// none of that.
    pub(crate) fn advances(&self) -> u64 {
        self.remote.advances
    }

    /// How it ended, if it did: what the receiver has checked, or why it has not.
    pub(crate) fn outcome(&self) -> Option<&Result<Complete, StreamError>> {
        self.ending.outcome()
    }

    /// Whether the peer has taken the stream, and said what it has.
    pub(crate) fn is_accepted(&self) -> bool {
        self.state == OutgoingStage::Sending
    }

    /// Blocks and bytes that the peer's sink had when it last said so.
    pub(crate) fn written(&self) -> (u64, u64) {
        self.remote.written
    }

    /// How it is, in words for a reader who looks for the reason why it does not go on.
    pub(crate) fn describe(&self) -> String {
        let paused = if self.pause.is_paused { "; paused" } else { "" };
        format!(
            "{}; {}; {} of {} blocks wanted, {} taken; {} sent of {} granted; {} written there; \
             rails: {}{paused}",
            self.state.text(),
            self.lap.describe(),
            self.blocks.wanted().count(),
            self.blocks.plan().blocks(),
            self.blocks.taken(),
            self.credit.sent,
            self.credit.granted,
            self.remote.written.0,
            self.rails.describe(),
        )
    }

    /// Blocks that came damaged, as the peer says.
    pub(crate) fn damaged(&self) -> u64 {
        self.remote.damaged
    }

    /// Files that the peer keeps as they are.
    pub(crate) fn unchanged(&self) -> u64 {
        self.remote.unchanged
    }

    /// What the peer has removed.
    pub(crate) fn deleted(&self) -> u64 {
        self.remote.deleted
    }

    /// Blocks and bytes that the peer had before the stream began.
    pub(crate) fn had(&self) -> (u64, u64) {
        self.remote.had
    }

    /// Messages with blocks that were sent, and how many blocks were sent again.
    #[cfg(test)]
    pub(crate) fn sent(&self) -> (u64, u64) {
        (self.credit.sent, self.blocks.resent())
    }
}
