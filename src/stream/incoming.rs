//! `IncomingStream`: what a receiver keeps account of for one stream: what was announced, what is there,
//! what may come, what to tell the sender.
//!
//! It says nothing itself and writes nothing itself. Its `ReceiverSide` gives it what the sender
//! says and what became of each block, and sends what it has to say.
//!
//! ```text
//!  Manifest ─ last part ─► Deciding ─ accept() ─► Receiving ─ all is there, the digest is right
//!      └────── refuse() ──────┘                     │   ▲                │
//!                              another lap: Missing └───┘                ▼
//!                                                 Complete ◄─ complete() ─ Whole
//! ```

use std::collections::VecDeque;
use std::sync::Arc;

use super::block_set::BlockSet;
use super::blocks::{Block, BlockPlan};
use super::content_hash::{BlockHash, ContentHash};
use super::digest::StreamDigest;
use super::error::{RefusalCode, StreamError, StreamViolation};
use super::limits::Limits;
use super::manifest::{Announced, EntryProblem, Manifest, ManifestError, ManifestParser};
use super::wire::{
    Accept, BlockHeader, Checks, Complete, Credit, Damaged, Failed, Features, Finish, HASH_LEN,
    ManifestPart, Message, Open, OpenFlags, RAILS_MAX, RailLost, RangeList, RangesBuilder, Reason,
    Refuse, Written,
};

/// Why a stream is not taken, for the sender.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) code: RefusalCode,
    /// By code: what was asked for, and the limit.
    pub(crate) details: [u64; 2],
    pub(crate) reason: String,
}

impl Refusal {
    pub(crate) fn new(code: RefusalCode, reason: impl Into<String>) -> Self {
        Self {
            code,
            details: [0; 2],
            reason: reason.into(),
        }
    }

    fn limit(code: RefusalCode, asked: u64, limit: u64) -> Result<(), Self> {
        match asked <= limit {
            true => Ok(()),
            false => Err(Self {
                code,
                details: [asked, limit],
                reason: format!("{asked} are asked for, the limit is {limit}"),
            }),
        }
    }

    /// What is said of this stream.
    pub(crate) fn message(&self, stream: u32) -> Message<'_> {
        Message::Refuse(Refuse {
            stream,
            code: self.code,
            details: self.details,
            reason: Reason::new(&self.reason),
        })
    }
}

impl From<ManifestError> for Refusal {
    fn from(error: ManifestError) -> Self {
        let code = match error {
            ManifestError::Entry {
                problem: EntryProblem::Name(_) | EntryProblem::BelowFile | EntryProblem::Twice,
                ..
            } => RefusalCode::NAMES,
            // The other limits were looked at before the manifest came.
            ManifestError::Limit { .. } => RefusalCode::ENTRIES,
            _ => RefusalCode::MALFORMED,
        };
        Self::new(code, error.to_string())
    }
}

/// What a receiver is ready to do for a stream.
#[derive(Debug, Clone)]
pub(crate) struct IncomingSettings {
    pub(crate) limits: Limits,
    /// Bytes of memory that accounts of streams may still take.
    pub(crate) memory_left: u64,
    /// What was agreed on in the handshake.
    pub(crate) features: Features,
    /// The longest payload that was agreed on.
    pub(crate) payload_max: u32,
    /// Blocks that may be under way at a time; at least 1.
    pub(crate) window: u64,
    /// RMA: slots of the window that blocks are written into.
    pub(crate) slots: u32,
}

/// What came of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MessageOutcome {
    /// Nothing that the side has to deal with.
    Nothing,
    /// The manifest is whole: the side opens the sink, then calls [`IncomingStream::accept_counted`] or
    /// [`IncomingStream::refuse`].
    Announced,
    /// A block that is not there yet: to be checked and written, and reported by
    /// [`IncomingStream::on_written`] or [`IncomingStream::on_damaged`].
    Block(Block),
    /// A block that is there, or being written: its buffer is free.
    Twice,
    /// The sender has lost this connection, and sends its blocks again: it is to be closed.
    CloseRail(u16),
    /// It is over: see [`IncomingStream::outcome`].
    Over,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum IncomingStage {
    Manifest,
    Deciding,
    Receiving,
    /// All is there; the sink is being finished.
    Whole,
    Over,
}

impl IncomingStage {
    fn text(self) -> &'static str {
        match self {
            Self::Manifest => "the manifest is not whole",
            Self::Deciding => "the stream is not accepted yet",
            Self::Receiving => "blocks are received",
            Self::Whole => "all blocks are there",
            Self::Over => "the stream is over",
        }
    }
}

/// One connection, as far as this stream is concerned.
#[derive(Debug, Clone, Copy, Default)]
struct IncomingRail {
    arrived: u64,
    /// Blocks that were sent on it and will never arrive.
    lost: u64,
    /// Blocks that were sent on it up to the end of the lap, as the sender says.
    said: u64,
    finished: Option<u32>,
    is_lost: bool,
}

/// A list of blocks that is being said.
#[derive(Debug, Clone, Copy)]
struct Listing {
    lap: u32,
    /// The first block that was not looked at.
    from: u64,
    /// Whether there are ranges behind it.
    more: bool,
}

impl Listing {
    fn new(lap: u32) -> Self {
        Self {
            lap,
            from: 0,
            more: true,
        }
    }
}

/// What is being said, between [`IncomingStream::next_control`] and [`IncomingStream::on_control_sent`].
#[derive(Debug, Clone, Copy)]
enum ReceiverControl {
    Refuse,
    Accept,
    Have(Listing),
    RailGone(u16),
    Credit(u64),
    Written(u64),
    Damaged,
    Missing(Listing),
    Complete,
    Failed,
}

/// Blocks beyond its window that a receiver deals with, where a network brings them late or twice.
const LATE_MAX: u64 = 64;

/// How a stream ended at the receiver.
pub(crate) type IncomingOutcome = Result<Complete, StreamError>;

/// A receiver's account of one stream.
#[derive(Debug)]
pub(crate) struct IncomingStream {
    open: Open,
    settings: IncomingSettings,
    state: IncomingStage,
    parser: Option<ManifestParser>,
    manifest: Arc<Manifest>,
    plan: Arc<BlockPlan>,
    rails: Vec<IncomingRail>,
    /// The rail that the sender is told things on.
    home: Option<u16>,
    /// Rails that are gone here and that the sender has not said to be lost, and whether it was
    /// told on the rail that is home.
    gone: Vec<(u16, bool)>,
    /// Checked and written.
    have: BlockSet,
    /// Being checked and written.
    taken: BlockSet,
    bytes: u64,
    digest: StreamDigest,
    have_digest: u32,
    /// Where the sender asked for it.
    content: Option<ContentHash>,
    arrived: u64,
    lost: u64,
    /// Blocks whose buffers are free again, or that will never arrive.
    released: u64,
    resent: u64,
    lap: u32,
    /// What the sender said at the end of the lap.
    finish: Option<Finish>,
    is_paused: bool,
    is_accept_unsaid: bool,
    having: Option<Listing>,
    missing: Option<Listing>,
    /// The last list of what is missing, for the case that the connection that it was said on is
    /// lost.
    last_missing: Option<(u32, u64)>,
    damaged: VecDeque<(u64, u32)>,
    /// Blocks that the sender may have sent, all in all.
    granted: u64,
    /// It was told so on a connection that is lost, or may not have heard of it.
    is_credit_stale: bool,
    written_said: u64,
    wants_progress: bool,
    /// The sender is told once more how far it is, so that it hears that the sink works.
    is_word_due: bool,
    is_verdict_unsaid: bool,
    refusal: Option<Refusal>,
    failure: Option<(RefusalCode, Option<u64>, String)>,
    complete: Option<Complete>,
    ranges: RangesBuilder,
    pending: Option<ReceiverControl>,
    outcome: Option<IncomingOutcome>,
}

impl IncomingStream {
    /// The account of a stream that a sender opens on a rail. Nothing is allocated for what was
    /// only announced.
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
        let parser = ManifestParser::new(announced, &settings.limits.of_manifest())?;
        let mut incoming = Self {
            open,
            settings,
            state: IncomingStage::Manifest,
            parser: Some(parser),
            manifest: Arc::default(),
            plan: Arc::new(BlockPlan::new(&Manifest::default(), open.block_bytes)),
            rails: Vec::new(),
            home: Some(rail),
            gone: Vec::new(),
            have: BlockSet::new(0),
            taken: BlockSet::new(0),
            bytes: 0,
            digest: StreamDigest::new(open.blocks),
            have_digest: 0,
            content: None,
            arrived: 0,
            lost: 0,
            released: 0,
            resent: 0,
            lap: 0,
            finish: None,
            is_paused: false,
            is_accept_unsaid: false,
            having: None,
            missing: None,
            last_missing: None,
            damaged: VecDeque::new(),
            granted: 0,
            is_credit_stale: false,
            written_said: 0,
            wants_progress: false,
            is_word_due: false,
            is_verdict_unsaid: false,
            refusal: None,
            failure: None,
            complete: None,
            ranges: RangesBuilder::default(),
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
        let manifest = parser.finish()?;
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
        self.plan = Arc::new(plan);
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
        &self.plan
    }

    /// Bytes of memory that the account of such a stream takes.
    pub(crate) fn memory_for(open: &Open) -> u64 {
        memory_of(open)
    }

    /// Bytes of memory that this account takes.
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
            .filter_map(|index| self.plan.get(index));
        let bytes = blocks.map(|block| u64::from(block.len)).sum();
        self.accept_counted((have, bytes), have_digest, content);
    }

    /// The same where it is known how many bytes they have, as it should be on a thread that must
    /// not count a million blocks.
    pub(crate) fn accept_counted(
        &mut self,
        (have, bytes): (BlockSet, u64),
        have_digest: u32,
        content: Option<ContentHash>,
    ) {
        assert_eq!(
            self.state,
            IncomingStage::Deciding,
            "a stream is accepted once"
        );
        assert_eq!(
            have.blocks(),
            self.plan.blocks(),
            "the set is this stream's"
        );
        self.bytes = bytes;
        self.digest.add_part(have_digest);
        self.have_digest = have_digest;
        self.content = content;
        self.taken = BlockSet::new(have.blocks());
        self.having = (!have.is_empty()).then(|| Listing::new(0));
        self.have = have;
        self.is_accept_unsaid = true;
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
        self.refusal = Some(refusal);
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
                self.failure = Some((code, block, reason.to_owned()));
                self.is_verdict_unsaid = true;
                let reason = reason.to_owned();
                self.outcome = Some(Err(StreamError::GivenUp { code, reason }));
            }
        }
    }

    /// The sink is finished: it has all, checked and, as asked, synced.
    ///
    /// # Panics
    ///
    /// When not all is there.
    pub(crate) fn complete(&mut self, mut checks: Checks) -> Complete {
        assert_eq!(self.state, IncomingStage::Whole, "all blocks are there");
        let blake3 = self.blake3();
        checks.set(Checks::BLAKE3, blake3.is_some());
        let complete = Complete {
            stream: self.open.stream,
            checks,
            digest: self.digest.digest(),
            blocks: self.plan.blocks(),
            bytes: self.plan.bytes(),
            blake3,
        };
        self.state = IncomingStage::Over;
        self.complete = Some(complete);
        self.is_verdict_unsaid = true;
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
        if self.state == IncomingStage::Over || self.rail(rail).is_lost {
            // What was under way when it ended.
            return Ok(MessageOutcome::Nothing);
        }
        let result = match message {
            Message::Block(block) => self.on_block(rail, block, false),
            Message::Placed(placed) => self.on_block(rail, &placed.block, true),
            Message::Manifest(part) => self.on_manifest(part),
            Message::Finish(finish) => self.on_finish(rail, finish),
            Message::RailLost(lost) => self.on_rail_lost(lost),
            Message::Pause(pause) => {
                self.is_paused = pause.on;
                Ok(MessageOutcome::Nothing)
            }
            Message::Cancel(cancel) => {
                self.state = IncomingStage::Over;
                self.outcome = Some(Err(StreamError::Failed {
                    code: cancel.code,
                    block: None,
                    reason: cancel.reason.to_string(),
                }));
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
            Ok(()) if !parser.is_whole() => return Ok(MessageOutcome::Nothing),
            Ok(()) => match self.announced_all() {
                Ok(()) => return Ok(MessageOutcome::Announced),
                Err(refusal) => refusal,
            },
            Err(error) => error.into(),
        };
        self.refuse(refusal);
        Ok(MessageOutcome::Over)
    }

    fn on_block(
        &mut self,
        rail: u16,
        header: &BlockHeader,
        is_placed: bool,
    ) -> Result<MessageOutcome, StreamViolation> {
        let is_by_write = self.open.flags.contains(OpenFlags::BY_WRITE);
        let is_told = self.having.is_none() && !self.is_accept_unsaid;
        if self.state != IncomingStage::Receiving || is_placed != is_by_write || !is_told {
            let message = Message::Block(*header);
            return Err(self.unexpected(&message));
        }
        let index = header.index;
        let block = self
            .plan
            .get(index)
            .filter(|block| {
                let is = (block.entry as u64, block.offset, block.len);
                is == (header.entry, header.offset, header.len)
            })
            .ok_or(StreamViolation::NoSuchBlock { index })?;
        if !self.open.flags.contains(OpenFlags::CRC32C) && header.crc != 0 {
            let (what, value) = ("the CRC of a block without one", header.crc.into());
            return Err(StreamViolation::Count { what, value });
        }
        self.rail_mut(rail)?.arrived += 1;
        self.arrived += 1;
        if self.have.contains(index) || self.taken.contains(index) {
            self.released += 1;
            self.count_resent(index);
            return Ok(match self.state {
                IncomingStage::Over => MessageOutcome::Over,
                _ => MessageOutcome::Twice,
            });
        }
        self.check_credit()?;
        self.taken.insert(index);
        Ok(MessageOutcome::Block(block))
    }

    /// No more blocks are dealt with at a time than there is room for, and some: blocks that come
    /// late or twice, damaged maybe, have made room that they did not take, and that is not the
    /// sender's doing.
    fn check_credit(&self) -> Result<(), StreamViolation> {
        let window = self.settings.window;
        if self.taken.count() < window.saturating_add(LATE_MAX) {
            return Ok(());
        }
        let granted = self.granted;
        Err(StreamViolation::OverCredit {
            sent: self.arrived + self.lost,
            granted,
        })
    }

    fn count_resent(&mut self, index: u64) {
        self.resent += 1;
        if self.resent > self.settings.limits.resent {
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
            || self.state == IncomingStage::Receiving && finish.lap < self.lap
        {
            // The verdict on this lap was lost with a connection, or is under way.
            return Ok(MessageOutcome::Nothing);
        }
        let is_told = self.having.is_none() && !self.is_accept_unsaid;
        if self.state != IncomingStage::Receiving || !is_told || finish.lap != self.lap {
            return Err(self.unexpected(&message));
        }
        // Who has come to this lap knows what was missing after the last one, even if that was
        // about to be said again.
        self.missing = None;
        let said = (finish.sent, finish.digest, finish.blake3);
        let before = self.finish.map(|it| (it.sent, it.digest, it.blake3));
        if before.is_some_and(|before| before != said) {
            return Err(self.unexpected(&message));
        }
        if self.rail(rail).finished == Some(self.lap) {
            return Err(self.unexpected(&message));
        }
        self.settle(rail, finish.sent_here)?;
        self.rail_mut(rail)?.finished = Some(self.lap);
        self.finish = Some(*finish);
        self.judge()
    }

    /// The sender says how many blocks it sent on a rail: those that did not arrive are lost.
    fn settle(&mut self, rail: u16, said: u64) -> Result<(), StreamViolation> {
        let (sent, granted) = (said, self.granted);
        if sent > granted {
            return Err(StreamViolation::OverCredit { sent, granted });
        }
        let it = self.rail_mut(rail)?;
        if said < it.said {
            let what = "the number of blocks that were sent on a connection";
            return Err(StreamViolation::Count { what, value: said });
        }
        it.said = said;
        let lost = said.saturating_sub(it.arrived + it.lost);
        it.lost += lost;
        self.lost += lost;
        self.released += lost;
        Ok(())
    }

    fn on_rail_lost(&mut self, lost: &RailLost) -> Result<MessageOutcome, StreamViolation> {
        if self.state == IncomingStage::Manifest || self.state == IncomingStage::Deciding {
            return Err(self.unexpected(&Message::RailLost(*lost)));
        }
        let it = self.rail(lost.rail);
        if it.is_lost {
            // Said anew, because the connection that it was said on was lost, too.
            return match it.said == lost.sent_there {
                true => Ok(MessageOutcome::Nothing),
                false => Err(self.unexpected(&Message::RailLost(*lost))),
            };
        }
        self.settle(lost.rail, lost.sent_there)?;
        self.rail_mut(lost.rail)?.is_lost = true;
        self.gone.retain(|(rail, _)| *rail != lost.rail);
        self.on_rail_gone(lost.rail);
        self.judge()?;
        Ok(MessageOutcome::CloseRail(lost.rail))
    }

    /// Once all of a lap has arrived, or is known to be lost, and is written: is it whole, and what
    /// is missing?
    fn judge(&mut self) -> Result<MessageOutcome, StreamViolation> {
        let Some(finish) = self
            .finish
            .filter(|_| self.state == IncomingStage::Receiving)
        else {
            return Ok(MessageOutcome::Nothing);
        };
        let said: u64 = self.rails.iter().map(|rail| rail.said).sum();
        if said > finish.sent {
            let what = "the number of blocks that were sent on a connection";
            return Err(StreamViolation::Count { what, value: said });
        }
        let is_settled = self.rails.iter().all(|rail| {
            rail.is_lost || rail.said + rail.arrived == 0 || rail.finished == Some(self.lap)
        });
        if said < finish.sent || !is_settled || !self.taken.is_empty() {
            return Ok(MessageOutcome::Nothing);
        }
        // Whatever was counted as lost or came twice: all that was sent is dealt with.
        self.released = finish.sent;
        if !self.have.is_full() {
            self.missing = Some(Listing::new(self.lap));
            self.last_missing = Some((self.lap, self.arrived));
            self.damaged.clear();
            // A sender that has ended the lap early has no room left, as far as it knows: the last
            // grant may be lost.
            self.is_credit_stale = true;
            self.lap += 1;
            self.finish = None;
            return Ok(MessageOutcome::Nothing);
        }
        if self.digest.digest() != finish.digest {
            let reason = "the digest of the blocks is not that of the source";
            self.fail(RefusalCode::DIGEST, None, reason);
            return Ok(MessageOutcome::Over);
        }
        if let (Some(ours), Some(theirs)) = (self.blake3(), finish.blake3)
            && ours != theirs
        {
            let reason = "the content has another BLAKE3 hash than the source";
            self.fail(RefusalCode::DIGEST, None, reason);
            return Ok(MessageOutcome::Over);
        }
        self.state = IncomingStage::Whole;
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
        assert!(
            self.taken.remove(block.index),
            "a block that came is written"
        );
        self.released += 1;
        self.have.insert(block.index);
        self.bytes += u64::from(block.len);
        self.digest.add(block.index, block.len, crc);
        if let (Some(content), Some(hash)) = (&mut self.content, hash) {
            content.add(block, hash);
        }
        // It can't be a violation: nobody has said anything.
        let _ = self.judge();
    }

    /// A block came with other bytes than its CRC tells of; this is what they have.
    ///
    /// # Panics
    ///
    /// When it was not to be written.
    pub(crate) fn on_damaged(&mut self, block: &Block, crc: u32) {
        assert!(
            self.taken.remove(block.index),
            "a block that came is damaged"
        );
        self.released += 1;
        self.damaged.push_back((block.index, crc));
        self.count_resent(block.index);
        let _ = self.judge();
    }

    /// A connection of this session is gone. What was said on it last is said again on another,
    /// since nobody knows whether it arrived.
    pub(crate) fn on_rail_gone(&mut self, rail: u16) {
        if self.home != Some(rail) {
            return;
        }
        self.home = None;
        self.pending = None;
        self.gone
            .iter_mut()
            .for_each(|(_, is_said)| *is_said = false);
        let is_accepted = !self.is_accept_unsaid && self.state == IncomingStage::Receiving;
        if is_accepted {
            self.is_credit_stale = true;
            self.written_said = 0;
        }
        if let Some((lap, arrived)) = self.last_missing
            && arrived == self.arrived
            && self.finish.is_none()
            && self.state == IncomingStage::Receiving
        {
            self.missing = Some(Listing::new(lap));
        }
        if self.complete.is_some() || self.failure.is_some() {
            self.is_verdict_unsaid = true;
        }
    }

    /// The sender is to hear that a connection is gone: where it has sent nothing since, or its
    /// provider lost that, it does not know.
    pub(crate) fn tell_rail_gone(&mut self, rail: u16) {
        let is_known = self.rail(rail).is_lost || self.gone.iter().any(|(it, _)| *it == rail);
        if !is_known {
            self.gone.push((rail, false));
        }
    }

    /// The connection that things are said on from now on, if the last one is gone.
    pub(crate) fn set_home(&mut self, rail: u16) {
        self.home.get_or_insert(rail);
    }

    /// The rail to send [`next_control`](Self::next_control) on.
    pub(crate) fn home(&self) -> Option<u16> {
        self.home
    }

    fn rail(&self, rail: u16) -> IncomingRail {
        let rail = self.rails.get(usize::from(rail));
        rail.copied().unwrap_or_default()
    }

    fn rail_mut(&mut self, rail: u16) -> Result<&mut IncomingRail, StreamViolation> {
        if rail >= RAILS_MAX {
            let (what, value) = ("the number of a connection", rail.into());
            return Err(StreamViolation::Count { what, value });
        }
        let at = usize::from(rail);
        if self.rails.len() <= at {
            self.rails.resize(at + 1, IncomingRail::default());
        }
        Ok(&mut self.rails[at])
    }

    // ---- what is to be said ---------------------------------------------------------------------

    /// The sender is to be told how far it is, even if there is nothing else to say.
    pub(crate) fn want_progress(&mut self) {
        self.wants_progress = true;
    }

    /// The sender is to hear that the sink works, though there is nothing new to say.
    pub(crate) fn say_that_it_works(&mut self) {
        self.is_word_due = true;
    }

    /// The next message for the sender. It is the same, or a newer one, until
    /// [`on_control_sent`](Self::on_control_sent) says that it went out.
    pub(crate) fn next_control(&mut self) -> Option<Message<'_>> {
        self.pending = self.choose();
        let stream = self.open.stream;
        Some(match self.pending? {
            ReceiverControl::Refuse => self.refusal.as_ref()?.message(stream),
            ReceiverControl::Accept => Message::Accept(Accept {
                stream,
                granted: self.settings.window,
                have_blocks: self.have.count(),
                have_digest: self.have_digest,
                slots: self.slots(),
            }),
            ReceiverControl::Have(listing) => {
                let listing = fill(&mut self.ranges, listing, self.have.ranges(listing.from));
                self.pending = Some(ReceiverControl::Have(listing));
                Message::Have(list(stream, &listing, &self.ranges))
            }
            ReceiverControl::Missing(listing) => {
                let listing = fill(&mut self.ranges, listing, self.have.missing(listing.from));
                self.pending = Some(ReceiverControl::Missing(listing));
                Message::Missing(list(stream, &listing, &self.ranges))
            }
            ReceiverControl::RailGone(rail) => Message::RailLost(RailLost {
                stream,
                rail,
                sent_there: self.rail(rail).arrived,
            }),
            ReceiverControl::Credit(granted) => Message::Credit(Credit { stream, granted }),
            ReceiverControl::Written(blocks) => Message::Written(Written {
                stream,
                blocks,
                bytes: self.bytes,
            }),
            ReceiverControl::Damaged => {
                let (index, crc) = *self.damaged.front()?;
                Message::Damaged(Damaged { stream, index, crc })
            }
            ReceiverControl::Complete => Message::Complete(self.complete?),
            ReceiverControl::Failed => {
                let (code, block, reason) = self.failure.as_ref()?;
                Message::Failed(Failed {
                    stream,
                    code: *code,
                    block: *block,
                    reason: Reason::new(reason),
                })
            }
        })
    }

    fn slots(&self) -> u32 {
        match self.open.flags.contains(OpenFlags::BY_WRITE) {
            true => self.settings.slots,
            false => 0,
        }
    }

    fn choose(&self) -> Option<ReceiverControl> {
        self.home?;
        if self.refusal.is_some() {
            return Some(ReceiverControl::Refuse);
        }
        if self.is_verdict_unsaid {
            let is_complete = self.complete.is_some();
            return Some(if is_complete {
                ReceiverControl::Complete
            } else {
                ReceiverControl::Failed
            });
        }
        let blocks = self.have.count();
        if matches!(self.state, IncomingStage::Deciding | IncomingStage::Whole) {
            return self.is_word_due.then_some(ReceiverControl::Written(blocks));
        }
        if self.state != IncomingStage::Receiving {
            return None;
        }
        if self.is_accept_unsaid {
            return Some(ReceiverControl::Accept);
        }
        if let Some(listing) = self.having {
            return Some(ReceiverControl::Have(listing));
        }
        if let Some((rail, _)) = self.gone.iter().find(|(_, is_said)| !is_said) {
            return Some(ReceiverControl::RailGone(*rail));
        }
        let granted = self.granted.max(self.released + self.settings.window);
        if self.is_credit_due(granted) {
            return Some(ReceiverControl::Credit(granted));
        }
        if let Some(listing) = self.missing {
            return Some(ReceiverControl::Missing(listing));
        }
        if !self.damaged.is_empty() {
            return Some(ReceiverControl::Damaged);
        }
        let is_due = self.is_word_due || self.wants_progress && blocks != self.written_said;
        is_due.then_some(ReceiverControl::Written(blocks))
    }

    /// A quarter of the window at a time, or whatever there is when the sender can't go on.
    fn is_credit_due(&self, granted: u64) -> bool {
        let used = self.arrived + self.lost;
        let newly = granted - self.granted;
        let quarter = (self.settings.window / 4).max(1);
        self.is_credit_stale || newly >= quarter || newly > 0 && used >= self.granted
    }

    /// What [`next_control`](Self::next_control) gave has been given to the endpoint.
    ///
    /// # Panics
    ///
    /// When nothing was to be said.
    pub(crate) fn on_control_sent(&mut self) {
        let more = |listing: Listing| listing.more.then_some(listing);
        match self.pending.take().expect("something was to be said") {
            ReceiverControl::Refuse => self.refusal = None,
            ReceiverControl::Accept => {
                self.is_accept_unsaid = false;
                self.granted = self.settings.window;
                self.written_said = self.have.count();
            }
            ReceiverControl::Have(listing) => self.having = more(listing),
            ReceiverControl::Missing(listing) => self.missing = more(listing),
            ReceiverControl::RailGone(gone) => {
                let told = self.gone.iter_mut().find(|(rail, _)| *rail == gone);
                if let Some((_, is_said)) = told {
                    *is_said = true;
                }
            }
            ReceiverControl::Credit(granted) => {
                self.granted = granted;
                self.is_credit_stale = false;
                // A sender that goes on may as well know how far it is.
                self.wants_progress = true;
            }
            ReceiverControl::Written(blocks) => {
                self.written_said = blocks;
                self.wants_progress = false;
                self.is_word_due = false;
            }
            ReceiverControl::Damaged => {
                self.damaged.pop_front();
            }
            ReceiverControl::Complete | ReceiverControl::Failed => self.is_verdict_unsaid = false,
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
        self.content.as_ref().and_then(ContentHash::finish)
    }

    /// Whether all of it was compared with what the sender read.
    pub(crate) fn is_blake3_compared(&self) -> bool {
        self.finish.is_some_and(|finish| finish.blake3.is_some())
    }

    /// Whether the sender said that it pauses.
    pub(crate) fn is_paused(&self) -> bool {
        self.is_paused
    }

    /// How it is, in words for whoever looks for the reason why it does not go on.
    pub(crate) fn describe(&self) -> String {
        let rails = self.rails.iter().enumerate();
        let rails = rails.map(|(number, rail)| {
            let IncomingRail {
                arrived,
                said,
                finished,
                ..
            } = rail;
            format!("{number}: {arrived} arrived of {said} said, finished {finished:?}")
        });
        format!(
            "{}; lap {}{}{}{}; {} of {} blocks here, {} being written; {} arrived, {} lost, {} \
             granted; home {:?}; rails: {}{}",
            self.state.text(),
            self.lap,
            if self.finish.is_some() {
                ", finished by the sender"
            } else {
                ""
            },
            if self.is_accept_unsaid {
                ", Accept unsaid"
            } else {
                ""
            },
            if self.is_verdict_unsaid {
                ", verdict unsaid"
            } else {
                ""
            },
            self.have.count(),
            self.plan.blocks(),
            self.taken.count(),
            self.arrived,
            self.lost,
            self.granted,
            self.home,
            rails.collect::<Vec<_>>().join("; "),
            if self.is_paused { "; paused" } else { "" },
        )
    }

    /// What is checked and written.
    pub(crate) fn have(&self) -> &BlockSet {
        &self.have
    }

    /// Bytes that are checked and written.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Blocks that came, and how many of them came damaged or twice.
    #[cfg(test)]
    pub(crate) fn arrived(&self) -> (u64, u64) {
        (self.arrived, self.resent)
    }
}

fn list<'a>(stream: u32, listing: &Listing, ranges: &'a RangesBuilder) -> RangeList<'a> {
    RangeList {
        stream,
        lap: listing.lap,
        more: listing.more,
        ranges: ranges.ranges(),
    }
}

/// Puts as many ranges into the builder as it has room for; what is left then.
fn fill(
    builder: &mut RangesBuilder,
    listing: Listing,
    ranges: impl Iterator<Item = std::ops::Range<u64>>,
) -> Listing {
    let mut listing = listing;
    let mut ranges = ranges.peekable();
    *builder = RangesBuilder::default();
    for range in ranges.by_ref().take(RangesBuilder::ROOM) {
        listing.from = range.end;
        builder.push(range);
    }
    listing.more = ranges.peek().is_some();
    listing
}

/// What can be judged before the manifest comes.
fn admit(open: &Open, settings: &IncomingSettings) -> Result<(), Refusal> {
    let limits = &settings.limits;
    let needed = [
        (OpenFlags::BLAKE3, Features::BLAKE3),
        (OpenFlags::READ_BACK, Features::READ_BACK),
        (OpenFlags::BY_WRITE, Features::BY_WRITE),
    ];
    for (flag, feature) in needed {
        if open.flags.contains(flag) && !settings.features.contains(feature) {
            let reason = format!("{flag:?} was not agreed on");
            return Err(Refusal::new(RefusalCode::FEATURE, reason));
        }
    }
    if open.flags.contains(OpenFlags::READ_BACK) && !open.flags.contains(OpenFlags::CRC32C) {
        let reason = "READ_BACK compares with the sums of CRC32C, which was not asked for";
        return Err(Refusal::new(RefusalCode::FEATURE, reason));
    }
    if open.flags.contains(OpenFlags::BLAKE3) && !ContentHash::can_hash(open.block_bytes) {
        let reason = "with BLAKE3, block_bytes is a power of two and at least 1024";
        return Err(Refusal::new(RefusalCode::BLOCKS, reason));
    }
    if open.flags.contains(OpenFlags::BY_WRITE) && settings.slots == 0 {
        let reason = "no window is left to write into";
        return Err(Refusal::new(RefusalCode::BUSY, reason));
    }
    let block_bytes = limits.block_bytes.min(settings.payload_max);
    Refusal::limit(
        RefusalCode::BLOCKS,
        open.block_bytes.into(),
        block_bytes.into(),
    )?;
    Refusal::limit(RefusalCode::BYTES, open.bytes, limits.bytes)?;
    Refusal::limit(RefusalCode::ENTRIES, open.entries, limits.entries)?;
    Refusal::limit(RefusalCode::BLOCKS, open.blocks, limits.blocks)?;
    let least = open
        .entries
        .saturating_mul(super::manifest::ENTRY_LEN as u64);
    let names = open.manifest_bytes.saturating_sub(least);
    Refusal::limit(RefusalCode::NAMES, names, limits.name_bytes)?;
    Refusal::limit(RefusalCode::BUSY, memory_of(open), settings.memory_left)
}

/// Bytes of memory that the account of a stream takes.
fn memory_of(open: &Open) -> u64 {
    let account = Limits::memory_of(open.entries, open.manifest_bytes, open.blocks);
    match open.flags.contains(OpenFlags::BLAKE3) {
        true => account.saturating_add(ContentHash::memory_of(open.entries, open.blocks)),
        false => account,
    }
}

#[cfg(test)]
mod tests;
