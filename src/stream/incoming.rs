//! `IncomingStream`: the receiver's end of one stream's protocol: what was announced, what is
//! there, what may come, and what the sender is to be told.
//!
//! It does no input and output: the receiver's network thread gives it the messages of the sender
//! and the outcome of each block, and sends the control messages that it asks for.
//!
//! ```text
//!  Manifest ─ last part ─► Deciding ─ accept() ─► Receiving ─ all is there, the digest is right
//!      └────── refuse() ──────┘                     │   ▲                │
//!                              another lap: Missing └───┘                ▼
//!                                                 Complete ◄─ complete() ─ Whole
//! ```
//!
//! What is received is its [`BlockReception`]; what the sender is told in the end, its
//! [`ReceiverVerdict`].

mod admission;
mod content;
mod credit;
mod lap;
mod listing;
mod offered;
mod rails;
mod reception;
mod refusal;
mod reports;
mod stage;
mod verdict;

#[cfg(any(test, fuzzing))]
use std::collections::BTreeMap;
use std::sync::Arc;

use self::admission::{admit, memory_of};
use self::reception::{
    BlockArrival, BlockReception, LapOutcome, ReceptionControl, ReceptionSettings,
};
use self::stage::IncomingStage;
use self::verdict::ReceiverVerdict;
use super::attributes::AttributeList;
use super::block_set::BlockSet;
use super::blocks::{Block, BlockPlan};
use super::content_hash::BlockHash;
#[cfg(any(test, fuzzing))]
use super::content_hash::ContentHash;
use super::error::{RefusalCode, StreamError, StreamViolation};
use super::manifest::{Announced, Manifest, ManifestError, ManifestParser, Owner};
use super::pack::PackedBlock;
use super::wire::{
    AttributePart, BlockHeader, Checks, Complete, Features, Finish, HASH_LEN, ManifestPart,
    Message, Open, OpenFlags, Owners, Pack, RailLost, Same, Zeros,
};

pub(crate) use self::admission::IncomingSettings;
pub(crate) use self::content::HadContent;
pub(crate) use self::refusal::Refusal;

/// What came of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum MessageOutcome {
    /// Nothing that the side has to deal with.
    Nothing,
    /// The manifest is whole: the side opens the sink, then calls
    /// [`IncomingStream::accept_counted`] or [`IncomingStream::refuse`].
    Announced,
    /// A block that is not there yet: to be checked and written, and reported by
    /// [`IncomingStream::on_written`] or [`IncomingStream::on_damaged`].
    Block(Block),
    /// Blocks that came as one, and are not there yet, one at least: to be checked and written, and
    /// reported by [`IncomingStream::on_pack_done`]. The others of the pack came twice.
    Pack(Vec<PackedBlock>),
    /// Blocks that are zeros and are not there yet, one at least: to be written, and reported by
    /// [`IncomingStream::on_pack_done`].
    Zeros(Vec<Block>),
    /// Blocks that lie in files of the same names, with their CRC32C, and are not kept yet, one at
    /// least: to be kept, and reported by [`IncomingStream::on_pack_done`].
    Same(Vec<(Block, u32)>),
    /// A block that is there, or being written: its buffer is free.
    Twice,
    /// The sender has lost this connection, and sends its blocks again: it is to be closed.
    CloseRail(u16),
    /// It is over: see [`IncomingStream::outcome`].
    Over,
}

/// What became of a block of a pack.
#[derive(Debug, Clone, Copy)]
pub(crate) enum PackedOutcome {
    /// It is checked and written; its CRC, and, where the content is hashed, what it adds to that.
    Written(u32, Option<BlockHash>),
    /// It came with other bytes than its CRC tells of; this is what they have.
    Damaged(u32),
}

/// A control message that is being sent, between [`IncomingStream::next_control`] and
/// [`IncomingStream::on_control_sent`].
#[derive(Debug, Clone, Copy)]
enum ReceiverControl {
    Verdict,
    Reception(ReceptionControl),
}

/// How a stream ended at the receiver.
pub(crate) type IncomingOutcome = Result<Complete, StreamError>;

/// The receiver's end of one stream.
#[derive(Debug)]
pub(crate) struct IncomingStream {
    open: Open,
    settings: IncomingSettings,
    state: IncomingStage,
    parser: Option<ManifestParser>,
    /// Whose entries are, as far as it came.
    owners: Vec<Owner>,
    /// Extended attributes of entries, as far as they came.
    attributes: AttributeList,
    manifest: Arc<Manifest>,
    blocks: BlockReception,
    is_paused: bool,
    verdict: ReceiverVerdict,
    pending: Option<ReceiverControl>,
    outcome: Option<IncomingOutcome>,
}

impl IncomingStream {
    /// A stream that a sender opens on a rail. Nothing is allocated for what was only announced.
    ///
    /// # Errors
    ///
    /// Why it is not taken.
    pub(crate) fn new(rail: u16, open: Open, settings: IncomingSettings) -> Result<Self, Refusal> {
        assert!(settings.window > 0, "a receiver has room for a block");
        admit(&open, &settings)?;
        let announced = Announced {
            entries: open.entries,
            manifest_bytes: open.manifest_bytes,
            bytes: open.bytes,
        };
        let links = settings.features.contains(Features::LINKS);
        let sparse = open.flags.contains(OpenFlags::SPARSE);
        let parser = ManifestParser::new(announced, &settings.limits.of_manifest(links, sparse))?;
        let by_write = open.flags.contains(OpenFlags::BY_WRITE);
        let reception = ReceptionSettings {
            stream: open.stream,
            has_crc: open.flags.contains(OpenFlags::CRC32C),
            window: settings.window,
            slots: if by_write { settings.slots } else { 0 },
        };
        let no_blocks = BlockPlan::new(&Manifest::default(), open.block_bytes);
        let mut incoming = Self {
            open,
            settings,
            state: IncomingStage::Manifest,
            parser: Some(parser),
            owners: Vec::new(),
            attributes: AttributeList::default(),
            manifest: Arc::default(),
            blocks: BlockReception::new(rail, open.blocks, no_blocks, reception),
            is_paused: false,
            verdict: ReceiverVerdict::default(),
            pending: None,
            outcome: None,
        };
        if open.entries == 0 {
            incoming.announced_all()?;
        }
        Ok(incoming)
    }

    fn announced_all(&mut self) -> Result<(), Refusal> {
        let Some(parser) = self.parser.take() else {
            return Ok(());
        };
        let mut manifest = parser.finish()?;
        if self.open.flags.contains(OpenFlags::OWNERS) {
            manifest = manifest.with_owners(std::mem::take(&mut self.owners))?;
        }
        if self.open.flags.contains(OpenFlags::ATTRIBUTES) {
            let list = std::mem::take(&mut self.attributes);
            if !list.is_whole() {
                return Err(Refusal::new(
                    RefusalCode::MALFORMED,
                    "the last extended attribute is cut off",
                ));
            }
            manifest = manifest.with_attribute_list(list)?;
        }
        let plan = BlockPlan::new(&manifest, self.open.block_bytes);
        if plan.blocks() != self.open.blocks {
            return Err(ManifestError::NotAsAnnounced {
                what: "blocks",
                announced: self.open.blocks,
                found: plan.blocks(),
            }
            .into());
        }
        self.manifest = Arc::new(manifest);
        self.blocks.content.set_plan(plan);
        self.state = IncomingStage::Deciding;
        Ok(())
    }

    /// What was opened.
    pub(crate) fn open(&self) -> &Open {
        &self.open
    }

    /// Whether the manifest is whole and the side has to decide; so it is at once for a stream
    /// without entries.
    pub(crate) fn is_announced(&self) -> bool {
        self.state == IncomingStage::Deciding
    }

    /// What the stream has; whole once it is announced.
    pub(crate) fn manifest(&self) -> &Arc<Manifest> {
        &self.manifest
    }

    /// The blocks of the stream, once it is announced.
    pub(crate) fn plan(&self) -> &Arc<BlockPlan> {
        self.blocks.content.plan()
    }

    /// Bytes of memory that the state of such a stream takes.
    pub(crate) fn memory_for(open: &Open) -> u64 {
        memory_of(open)
    }

    /// Bytes of memory that this state takes.
    pub(crate) fn memory(&self) -> u64 {
        memory_of(&self.open)
    }

    // ---- decisions of the side ----------------------------------------------------------------

    /// Takes the stream. The sink has these blocks; their part in the digest comes from the CRCs
    /// that it proved them with. Where the content is hashed, these blocks were added.
    ///
    /// # Panics
    ///
    /// When the stream is not announced, or the set is one of another stream.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn accept(
        &mut self,
        have: BlockSet,
        have_digest: u32,
        content: Option<ContentHash>,
    ) {
        let blocks = have
            .ranges(0)
            .flatten()
            .filter_map(|index| self.plan().get(index));
        let bytes = blocks.map(|block| u64::from(block.len)).sum();
        self.accept_counted(HadContent {
            blocks: have,
            bytes,
            unchanged: 0,
            sums: BTreeMap::new(),
            digest_part: have_digest,
            hash: content,
        });
    }

    /// The same where it is known how many bytes they have, as it should be on a thread that must
    /// not count a million blocks.
    pub(crate) fn accept_counted(&mut self, had: HadContent) {
        assert_eq!(
            self.state,
            IncomingStage::Deciding,
            "a stream is accepted once"
        );
        self.blocks.accept(had);
        self.state = IncomingStage::Receiving;
    }

    /// Does not take the stream.
    pub(crate) fn refuse(&mut self, refusal: Refusal) {
        if self.state == IncomingStage::Over {
            return;
        }
        self.state = IncomingStage::Over;
        self.outcome = Some(Err(StreamError::GivenUp {
            code: refusal.code,
            reason: refusal.reason.clone(),
        }));
        self.verdict.refuse(refusal);
    }

    /// Gives the stream up; the sender is told.
    pub(crate) fn fail(&mut self, code: RefusalCode, block: Option<u64>, reason: &str) {
        match self.state {
            IncomingStage::Over => {}
            IncomingStage::Manifest | IncomingStage::Deciding => {
                self.refuse(Refusal::new(code, reason))
            }
            IncomingStage::Receiving | IncomingStage::Whole => {
                self.state = IncomingStage::Over;
                self.verdict.fail(code, block, reason);
                let reason = reason.to_owned();
                self.outcome = Some(Err(StreamError::GivenUp { code, reason }));
            }
        }
    }

    /// The sink is finished: it has all, checked and, as asked, synced, and has removed so much
    /// else.
    ///
    /// # Panics
    ///
    /// When not all is there.
    pub(crate) fn complete(&mut self, mut checks: Checks, deleted: u64) -> Complete {
        assert_eq!(self.state, IncomingStage::Whole, "all blocks are there");
        let blake3 = self.blake3();
        checks.set(Checks::BLAKE3, blake3.is_some());
        let complete = Complete {
            stream: self.open.stream,
            checks,
            digest: self.blocks.content.digest(),
            blocks: self.plan().blocks(),
            bytes: self.plan().bytes(),
            deleted,
            blake3,
        };
        self.state = IncomingStage::Over;
        self.verdict.complete(complete);
        self.outcome = Some(Ok(complete));
        complete
    }

    // ---- what the sender says -------------------------------------------------------------------

    /// Takes what the sender says of this stream, on a rail. Whatever it is, the side looks at
    /// [`is_whole`](Self::is_whole) and [`outcome`](Self::outcome) afterwards.
    ///
    /// # Errors
    ///
    /// The sender does not keep to the protocol: the stream is over then, and the sender is told.
    pub(crate) fn on_message(
        &mut self,
        rail: u16,
        message: &Message<'_>,
    ) -> Result<MessageOutcome, StreamViolation> {
        if self.state == IncomingStage::Over || self.blocks.rails.get(rail).is_lost {
            // What was under way when it ended.
            return Ok(MessageOutcome::Nothing);
        }
        let result = match message {
            Message::Block(block) => self.on_block(rail, block, false),
            Message::Pack(pack) => self.on_pack(rail, pack),
            Message::Zeros(zeros) => self.on_zeros(rail, zeros),
            Message::Placed(placed) => self.on_block(rail, &placed.block, true),
            Message::Same(same) => self.on_same(rail, same),
            Message::Manifest(part) => self.on_manifest(part),
            Message::Owners(owners) => self.on_owners(owners),
            Message::Attributes(part) => self.on_attributes(part),
            Message::Finish(finish) => self.on_finish(rail, finish),
            Message::RailLost(lost) => self.on_rail_lost(lost),
            Message::Pause(pause) => {
                self.is_paused = pause.on;
                Ok(MessageOutcome::Nothing)
            }
            Message::Cancel(cancel) => {
                self.state = IncomingStage::Over;
                self.outcome = Some(Err(cancel.into()));
                Ok(MessageOutcome::Over)
            }
            _ => Err(self.unexpected(message)),
        };
        if let Err(violation) = &result {
            self.fail(RefusalCode::MALFORMED, None, &violation.to_string());
            self.outcome = Some(Err(StreamError::Violation(*violation)));
        }
        result
    }

    fn unexpected(&self, message: &Message<'_>) -> StreamViolation {
        StreamViolation::Unexpected {
            kind: message.kind().0,
            state: self.state.text(),
        }
    }

    fn on_manifest(&mut self, part: &ManifestPart<'_>) -> Result<MessageOutcome, StreamViolation> {
        let Some(parser) = &mut self.parser else {
            return Err(self.unexpected(&Message::Manifest(*part)));
        };
        let refusal = match parser.feed(part.first, part.entries) {
            Ok(()) => return Ok(self.announce()),
            Err(error) => error.into(),
        };
        self.refuse(refusal);
        Ok(MessageOutcome::Over)
    }

    /// Whether the manifest came, and owners where they are to.
    fn is_owned(&self) -> bool {
        let is_whole = self.parser.as_ref().is_some_and(ManifestParser::is_whole);
        let wanted = match self.open.flags.contains(OpenFlags::OWNERS) {
            true => self.open.entries,
            false => 0,
        };
        is_whole && self.owners.len() as u64 == wanted
    }

    /// Goes on where all was said of what comes.
    fn announce(&mut self) -> MessageOutcome {
        let came = self.attributes.encoded().len() as u64;
        if !self.is_owned() || came != u64::from(self.open.attribute_bytes) {
            return MessageOutcome::Nothing;
        }
        match self.announced_all() {
            Ok(()) => MessageOutcome::Announced,
            Err(refusal) => {
                self.refuse(refusal);
                MessageOutcome::Over
            }
        }
    }

    fn on_owners(&mut self, owners: &Owners<'_>) -> Result<MessageOutcome, StreamViolation> {
        let is_whole = self.parser.as_ref().is_some_and(ManifestParser::is_whole);
        if !is_whole || !self.open.flags.contains(OpenFlags::OWNERS) {
            return Err(self.unexpected(&Message::Owners(*owners)));
        }
        let (known, more) = (self.owners.len() as u64, owners.owners.len() as u64);
        if owners.first != known || more > self.open.entries - known {
            let (what, value) = ("the number of the entry of an owner", owners.first);
            return Err(StreamViolation::Count { what, value });
        }
        let said = owners.owners.iter().map(|owner| Owner {
            user: owner.user.get(),
            group: owner.group.get(),
        });
        self.owners.extend(said);
        Ok(self.announce())
    }

    fn on_attributes(
        &mut self,
        part: &AttributePart<'_>,
    ) -> Result<MessageOutcome, StreamViolation> {
        if !self.is_owned() {
            return Err(self.unexpected(&Message::Attributes(*part)));
        }
        let (known, more) = (
            self.attributes.encoded().len() as u64,
            part.bytes.len() as u64,
        );
        // None are announced where none are to come.
        if part.first != known || more > u64::from(self.open.attribute_bytes) - known {
            let (what, value) = ("the first byte of extended attributes", part.first);
            return Err(StreamViolation::Count { what, value });
        }
        if let Err(error) = self.attributes.feed(part.bytes) {
            self.refuse(error.into());
            return Ok(MessageOutcome::Over);
        }
        Ok(self.announce())
    }

    fn on_block(
        &mut self,
        rail: u16,
        header: &BlockHeader,
        is_placed: bool,
    ) -> Result<MessageOutcome, StreamViolation> {
        self.expect_blocks(is_placed, &Message::Block(*header))?;
        let index = match self.blocks.on_block(rail, header)? {
            BlockArrival::New(block) => return Ok(MessageOutcome::Block(block)),
            BlockArrival::Twice(index) => index,
        };
        self.check_resent(index);
        Ok(match self.state {
            IncomingStage::Over => MessageOutcome::Over,
            _ => MessageOutcome::Twice,
        })
    }

    /// Whether blocks may come now, in this way.
    fn expect_blocks(&self, is_placed: bool, message: &Message<'_>) -> Result<(), StreamViolation> {
        let is_by_write = self.open.flags.contains(OpenFlags::BY_WRITE);
        let is_told = self.blocks.is_sender_told();
        match self.state == IncomingStage::Receiving && is_placed == is_by_write && is_told {
            true => Ok(()),
            false => Err(self.unexpected(message)),
        }
    }

    fn on_pack(&mut self, rail: u16, pack: &Pack<'_>) -> Result<MessageOutcome, StreamViolation> {
        self.expect_blocks(false, &Message::Pack(*pack))?;
        let new = self.blocks.on_pack(rail, pack)?;
        self.check_resent(pack.first);
        Ok(match self.state {
            IncomingStage::Over => MessageOutcome::Over,
            _ if new.is_empty() => MessageOutcome::Twice,
            _ => MessageOutcome::Pack(new),
        })
    }

    fn on_zeros(&mut self, rail: u16, zeros: &Zeros) -> Result<MessageOutcome, StreamViolation> {
        self.expect_blocks(false, &Message::Zeros(*zeros))?;
        let new = self.blocks.on_zeros(rail, zeros, &self.manifest)?;
        self.check_resent(zeros.first);
        Ok(match self.state {
            IncomingStage::Over => MessageOutcome::Over,
            _ if new.is_empty() => MessageOutcome::Twice,
            _ => MessageOutcome::Zeros(new),
        })
    }

    fn on_same(&mut self, rail: u16, same: &Same<'_>) -> Result<MessageOutcome, StreamViolation> {
        let is_by_write = self.open.flags.contains(OpenFlags::BY_WRITE);
        self.expect_blocks(is_by_write, &Message::Same(*same))?;
        let new = self.blocks.on_same(rail, same)?;
        self.check_resent(same.first);
        Ok(match self.state {
            IncomingStage::Over => MessageOutcome::Over,
            _ if new.is_empty() => MessageOutcome::Twice,
            _ => MessageOutcome::Same(new),
        })
    }

    /// Gives the stream up when too many blocks came damaged or twice, this one among them.
    fn check_resent(&mut self, index: u64) {
        if self.blocks.resent() > self.settings.limits.resent {
            let reason = "too many blocks came damaged or twice";
            self.fail(RefusalCode::DAMAGED, Some(index), reason);
        }
    }

    fn on_finish(&mut self, rail: u16, finish: &Finish) -> Result<MessageOutcome, StreamViolation> {
        let message = Message::Finish(*finish);
        if finish.blake3.is_some() && !self.open.flags.contains(OpenFlags::BLAKE3) {
            return Err(self.unexpected(&message));
        }
        if self.state == IncomingStage::Whole
            || self.state == IncomingStage::Receiving && finish.lap < self.blocks.lap.number()
        {
            // The verdict on this lap was lost with a connection, or is under way.
            return Ok(MessageOutcome::Nothing);
        }
        let is_receiving = self.state == IncomingStage::Receiving;
        if !is_receiving || !self.blocks.admits_finish(rail, finish) {
            return Err(self.unexpected(&message));
        }
        self.blocks.on_finish(rail, finish)?;
        self.judge()
    }

    fn on_rail_lost(&mut self, lost: &RailLost) -> Result<MessageOutcome, StreamViolation> {
        if self.state == IncomingStage::Manifest || self.state == IncomingStage::Deciding {
            return Err(self.unexpected(&Message::RailLost(*lost)));
        }
        let it = self.blocks.rails.get(lost.rail);
        if it.is_lost {
            // Said anew, because the connection that it was said on was lost, too.
            return match it.said == lost.sent_there {
                true => Ok(MessageOutcome::Nothing),
                false => Err(self.unexpected(&Message::RailLost(*lost))),
            };
        }
        self.blocks.on_rail_lost(lost)?;
        self.on_rail_gone(lost.rail);
        self.judge()?;
        Ok(MessageOutcome::CloseRail(lost.rail))
    }

    /// Takes the next step where a lap is over.
    fn judge(&mut self) -> Result<MessageOutcome, StreamViolation> {
        if self.state != IncomingStage::Receiving {
            return Ok(MessageOutcome::Nothing);
        }
        match self.blocks.judge()? {
            LapOutcome::Open => return Ok(MessageOutcome::Nothing),
            LapOutcome::Whole => self.state = IncomingStage::Whole,
            LapOutcome::Wrong(reason) => self.fail(RefusalCode::DIGEST, None, reason),
        }
        Ok(MessageOutcome::Over)
    }

    // ---- what became of blocks and rails --------------------------------------------------------

    /// A block is checked and written; this is its CRC, and, where the content is hashed, what it
    /// adds to that.
    ///
    /// # Panics
    ///
    /// When it was not to be written.
    pub(crate) fn on_written(&mut self, block: &Block, crc: u32, hash: Option<BlockHash>) {
        self.blocks.on_written(block, crc, hash);
        // It can't be a violation: nobody has said anything.
        let _ = self.judge();
    }

    /// A block came with other bytes than its CRC tells of; this is what they have.
    ///
    /// # Panics
    ///
    /// When it was not to be written.
    pub(crate) fn on_damaged(&mut self, block: &Block, crc: u32) {
        self.blocks.on_damaged(block, crc);
        self.check_resent(block.index);
        let _ = self.judge();
    }

    /// The blocks of a pack that were new are dealt with, and what became of each.
    ///
    /// # Panics
    ///
    /// When they were not to be written.
    pub(crate) fn on_pack_done(&mut self, done: &[(Block, PackedOutcome)]) {
        self.blocks.on_pack_done(done);
        if let Some((block, _)) = done.first() {
            self.check_resent(block.index);
        }
        let _ = self.judge();
    }

    /// A connection of this session is gone. What was said on it last is said again on another,
    /// since nobody knows whether it arrived.
    pub(crate) fn on_rail_gone(&mut self, rail: u16) {
        if !self.blocks.rails.lose_control(rail) {
            return;
        }
        self.pending = None;
        if self.state == IncomingStage::Receiving {
            self.blocks.say_again();
        }
        self.verdict.say_again();
    }

    /// The sender is to hear that a connection is gone: where it has sent nothing since, or its
    /// provider lost that, it does not know.
    pub(crate) fn tell_rail_gone(&mut self, rail: u16) {
        self.blocks.rails.tell_gone(rail);
    }

    /// The connection that control messages go by from now on, if the last one is gone.
    pub(crate) fn set_control_rail(&mut self, rail: u16) {
        self.blocks.rails.set_control(rail);
    }

    /// The rail to send [`next_control`](Self::next_control) on.
    pub(crate) fn control_rail(&self) -> Option<u16> {
        self.blocks.rails.control()
    }

    // ---- what is to be said ---------------------------------------------------------------------

    /// The sender is to be told how far it is, even if there is nothing else to say.
    pub(crate) fn want_progress(&mut self) {
        self.blocks.reports.want_progress();
    }

    /// The sender is to hear that the sink works, though there is nothing new to say.
    pub(crate) fn want_sign_of_life(&mut self) {
        self.blocks.reports.want_sign_of_life();
    }

    /// The next control message for the sender. It is the same, or a newer one, until
    /// [`on_control_sent`](Self::on_control_sent) says that it went out.
    pub(crate) fn next_control(&mut self) -> Option<Message<'_>> {
        self.pending = self.choose();
        match self.pending.as_mut()? {
            ReceiverControl::Verdict => self.verdict.message(self.open.stream),
            ReceiverControl::Reception(control) => self.blocks.message(control),
        }
    }

    fn choose(&self) -> Option<ReceiverControl> {
        self.control_rail()?;
        if self.verdict.is_unsaid() {
            return Some(ReceiverControl::Verdict);
        }
        let control = match self.state {
            IncomingStage::Manifest | IncomingStage::Over => None,
            IncomingStage::Deciding | IncomingStage::Whole => self.blocks.choose_sign_of_life(),
            IncomingStage::Receiving => self.blocks.choose(),
        };
        control.map(ReceiverControl::Reception)
    }

    /// What [`next_control`](Self::next_control) gave has been given to the endpoint.
    ///
    /// # Panics
    ///
    /// When nothing was to be said.
    pub(crate) fn on_control_sent(&mut self) {
        match self.pending.take().expect("something was to be said") {
            ReceiverControl::Verdict => self.verdict.on_said(),
            ReceiverControl::Reception(control) => self.blocks.on_control_sent(control),
        }
    }

    // ---- how it is ------------------------------------------------------------------------------

    /// Whether all is there, and the sink is to be finished: then [`complete`](Self::complete).
    pub(crate) fn is_whole(&self) -> bool {
        self.state == IncomingStage::Whole
    }

    /// How it ended, if it did.
    pub(crate) fn outcome(&self) -> Option<&IncomingOutcome> {
        self.outcome.as_ref()
    }

    /// BLAKE3 of the content, where the sender asked for it and all is there.
    pub(crate) fn blake3(&self) -> Option<[u8; HASH_LEN]> {
        self.blocks.content.blake3()
    }

    /// BLAKE3 of each entry, likewise.
    pub(crate) fn entry_hashes(&self) -> Option<Arc<[[u8; HASH_LEN]]>> {
        self.blocks.content.entry_hashes()
    }

    /// Whether all of it was compared with what the sender read.
    pub(crate) fn is_blake3_compared(&self) -> bool {
        let finish = self.blocks.lap.finish();
        finish.is_some_and(|finish| finish.blake3.is_some())
    }

    /// Whether the sender said that it pauses.
    pub(crate) fn is_paused(&self) -> bool {
        self.is_paused
    }

    /// How it is, in words for a reader who looks for the reason why it does not go on.
    pub(crate) fn describe(&self) -> String {
        let said = |is: bool, text: &'static str| if is { text } else { "" };
        format!(
            "{}{}{}; {}",
            self.state.text(),
            said(self.verdict.is_unsaid(), ", verdict unsaid"),
            said(self.is_paused, ", paused"),
            self.blocks.describe(),
        )
    }

    /// What is checked and written.
    pub(crate) fn have(&self) -> &BlockSet {
        self.blocks.content.have()
    }

    /// Bytes that are checked and written.
    pub(crate) fn bytes(&self) -> u64 {
        self.blocks.content.bytes()
    }

    /// Blocks that came, and how many of them came damaged or twice.
    #[cfg(test)]
    pub(crate) fn arrived(&self) -> (u64, u64) {
        (self.blocks.credit.arrived(), self.blocks.resent())
    }
}

#[cfg(test)]
mod tests;
