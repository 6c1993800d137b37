//! `OutgoingStream`: what a sender keeps account of for one peer: what the peer has, what is still to be
//! sent, what it may send, how it ended.
//!
//! It says nothing itself and reads nothing itself. Its `SenderSide` asks what it wants next, tells
//! it what was sent on which connection (rail), gives it what the peer says, and sends what it has
//! to say.
//!
//! ```text
//!  Opening ─ Open, Manifest ×n said ─► Opened ─ Accept, Have ×n ─► Sending ◄─────────┐
//!                                                                    │ all sent once  │ Missing ×n
//!                                                                    ▼                │
//!                                             Finish on each rail: the lap is sealed ─┤
//!                                                                Over ◄─ Complete ────┘
//! ```

use std::sync::Arc;

use super::block_set::BlockSet;
use super::blocks::{Block, BlockPlan};
use super::digest::StreamDigest;
use super::error::{RefusalCode, StreamError, StreamViolation};
use super::manifest::Manifest;
use super::wire::{
    Accept, BlockHeader, Cancel, Checks, Complete, Finish, HASH_LEN, ManifestPart, Message, Open,
    OpenFlags, Pause, RAILS_MAX, RailLost, RangeList, Reason,
};

/// The most blocks that a peer is believed to have room for at a time.
const CREDIT_WINDOW_MAX: u64 = 1 << 32;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OutgoingStage {
    /// What is said of the stream: nothing, or `Open` and the manifest up to this entry.
    Opening {
        is_open: bool,
        next: usize,
    },
    /// All was said; the peer has not accepted.
    Opened,
    /// It has accepted, and says what it has: so many blocks are still to come, all from this one
    /// on.
    Having {
        blocks: u64,
        from: u64,
    },
    Sending,
    Over,
}

impl OutgoingStage {
    fn text(self) -> &'static str {
        match self {
            Self::Opening { .. } => "the stream is being opened",
            Self::Opened => "the stream is not accepted yet",
            Self::Having { .. } => "the peer says what it has",
            Self::Sending => "blocks are sent",
            Self::Over => "the stream is over",
        }
    }
}

/// One connection, as far as this stream is concerned.
#[derive(Debug, Clone, Copy, Default)]
struct OutgoingRail {
    is_live: bool,
    is_lost: bool,
    /// Blocks that were sent on it.
    sent: u64,
    /// The last lap whose `Finish` was sent on it.
    finished: Option<u32>,
    /// On which rail the peer was told that this one is lost.
    lost_said_on: Option<u16>,
}

/// What is being said, between [`OutgoingStream::next_control`] and [`OutgoingStream::on_control_sent`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SenderControl {
    Open,
    Part { next: usize },
    Finish,
    RailLost(u16),
    Pause(bool),
    Cancel,
}

/// A sender's account of one stream to one peer.
#[derive(Debug)]
pub(crate) struct OutgoingStream {
    open: Open,
    plan: Arc<BlockPlan>,
    state: OutgoingStage,
    rails: Vec<OutgoingRail>,
    /// The rail that the stream was opened on.
    home: u16,
    /// To be sent, and nobody has begun to.
    wanted: BlockSet,
    /// Being read, or waiting to be sent.
    taken: BlockSet,
    /// In the digest: the peer had them, or they were sent once.
    counted: BlockSet,
    digest: StreamDigest,
    lap: u32,
    /// The side has found the source unchanged since the last block was read.
    may_finish: bool,
    /// The lap ends before all was sent.
    is_cut_short: bool,
    /// `Finish` of this lap was said on some rail: nothing is sent until the peer has judged.
    is_sealed: bool,
    sent: u64,
    resent: u64,
    resent_max: u64,
    granted: u64,
    /// How often the peer has said something new.
    advances: u64,
    had: (u64, u64),
    damaged: u64,
    written: (u64, u64),
    blake3: Option<[u8; HASH_LEN]>,
    is_paused: bool,
    pause_said: bool,
    /// The peer is told once more whether it is paused, so that it hears that this side works.
    is_word_due: bool,
    pending: Option<SenderControl>,
    part: Vec<u8>,
    farewell: Option<(RefusalCode, String)>,
    outcome: Option<Result<Complete, StreamError>>,
}

impl OutgoingStream {
    /// The account of a stream that is about to be opened on the rail `home`.
    ///
    /// # Panics
    ///
    /// When `open` tells of another plan.
    pub(crate) fn new(open: Open, plan: Arc<BlockPlan>, home: u16) -> Self {
        let said = (open.bytes, open.blocks, open.block_bytes);
        let is = (plan.bytes(), plan.blocks(), plan.block_bytes());
        assert_eq!(said, is, "what is opened is what will be sent");
        let blocks = plan.blocks();
        let mut outgoing = Self {
            open,
            plan,
            state: OutgoingStage::Opening {
                is_open: false,
                next: 0,
            },
            rails: Vec::new(),
            home,
            wanted: BlockSet::full(blocks),
            taken: BlockSet::new(blocks),
            counted: BlockSet::new(blocks),
            digest: StreamDigest::new(blocks),
            lap: 0,
            may_finish: false,
            is_cut_short: false,
            is_sealed: false,
            sent: 0,
            resent: 0,
            resent_max: blocks.saturating_add(64),
            granted: 0,
            advances: 0,
            had: (0, 0),
            damaged: 0,
            written: (0, 0),
            blake3: None,
            is_paused: false,
            pause_said: false,
            is_word_due: false,
            pending: None,
            part: Vec::new(),
            farewell: None,
            outcome: None,
        };
        outgoing.add_rail(home);
        outgoing
    }

    /// A connection of this number may carry blocks from now on.
    ///
    /// # Panics
    ///
    /// When there was one of this number before, or the number is none of a rail's.
    pub(crate) fn add_rail(&mut self, rail: u16) {
        assert!(rail < RAILS_MAX, "rail {rail}");
        let at = usize::from(rail);
        if self.rails.len() <= at {
            self.rails.resize(at + 1, OutgoingRail::default());
        }
        let it = &mut self.rails[at];
        assert!(
            !it.is_live && !it.is_lost,
            "the number of a rail is used once"
        );
        it.is_live = true;
    }

    fn rail(&self, rail: u16) -> OutgoingRail {
        let rail = self.rails.get(usize::from(rail));
        rail.copied().unwrap_or_default()
    }

    /// The connection is gone. What it carried last may not have arrived; the peer will say so.
    pub(crate) fn on_rail_lost(&mut self, rail: u16) {
        let Some(it) = self.rails.get_mut(usize::from(rail)) else {
            return;
        };
        (it.is_live, it.is_lost) = (false, true);
        self.pending = None;
        let is_accepted = self.state == OutgoingStage::Sending || self.state == OutgoingStage::Over;
        if rail == self.home && !is_accepted {
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
            OutgoingStage::Sending => self.wanted.next(from),
            _ => None,
        }
    }

    /// Whether this block is to be sent and nobody has taken it.
    pub(crate) fn wants(&self, index: u64) -> bool {
        self.state == OutgoingStage::Sending && self.wanted.contains(index)
    }

    /// Somebody reads this block, or has it to be sent. Whether it was wanted.
    pub(crate) fn take(&mut self, index: u64) -> bool {
        let is_wanted = self.wants(index);
        if is_wanted {
            self.wanted.remove(index);
            self.taken.insert(index);
        }
        is_wanted
    }

    /// A block that was taken is not going to be sent, for now.
    pub(crate) fn give_back(&mut self, index: u64) {
        if self.taken.contains(index) {
            self.taken.remove(index);
            self.wanted.insert(index);
        }
    }

    /// Whether the peer has room for a block, and it is to have it now.
    pub(crate) fn may_send(&self) -> bool {
        let is_open = self.state == OutgoingStage::Sending && !self.is_cut_short && !self.is_sealed;
        is_open && !self.is_paused && self.room() > 0
    }

    /// Whether the peer can be told of a block that was written into its memory, on credit that was
    /// kept for it.
    pub(crate) fn may_place(&self) -> bool {
        self.state == OutgoingStage::Sending && !self.is_sealed
    }

    /// Blocks that the peer has room for.
    pub(crate) fn room(&self) -> u64 {
        self.granted.saturating_sub(self.sent)
    }

    /// What stands in front of a block.
    pub(crate) fn header(&self, block: &Block, crc: u32) -> BlockHeader {
        BlockHeader {
            stream: self.open.stream,
            index: block.index,
            entry: block.entry as u64,
            offset: block.offset,
            len: block.len,
            crc,
        }
    }

    /// A block has been given to the endpoint, whatever becomes of it there.
    ///
    /// # Panics
    ///
    /// When it was not to be sent: not taken, beyond the credit, or on no rail.
    pub(crate) fn on_sent(&mut self, rail: u16, block: &Block, crc: u32) {
        assert!(
            self.taken.remove(block.index),
            "a block is taken before it is sent"
        );
        assert!(self.room() > 0, "a block is sent on credit");
        assert!(self.rail(rail).is_live, "a block is sent on a rail");
        self.sent += 1;
        self.rails[usize::from(rail)].sent += 1;
        match self.counted.insert(block.index) {
            true => self.digest.add(block.index, block.len, crc),
            false => self.resent += 1,
        }
        if self.resent > self.resent_max {
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
        let is_stuck = self.state == OutgoingStage::Sending && self.room() == 0 && self.sent > 0;
        let asks = is_stuck && !self.is_sealed && !self.is_cut_short;
        self.is_cut_short |= asks;
        asks
    }

    /// All was sent, and the side vouches for the source: `Finish` may be said. To be said anew
    /// in each lap.
    pub(crate) fn allow_finish(&mut self) {
        self.may_finish = true;
    }

    /// Whether the peer is being asked for its verdict. Not any more, once it has said what is
    /// missing.
    pub(crate) fn is_finishing(&self) -> bool {
        self.state == OutgoingStage::Sending && (self.may_finish || self.is_cut_short)
    }

    /// Whether all was sent, and the peer has to say whether it has it.
    fn is_lap_over(&self) -> bool {
        let is_sent = self.wanted.is_empty() && self.taken.is_empty();
        self.state == OutgoingStage::Sending && (is_sent || self.is_cut_short)
    }

    // ---- what is to be said ---------------------------------------------------------------------

    /// The next message for this rail, besides blocks; its payload has at most `room` bytes. It is
    /// the same again until [`on_control_sent`](Self::on_control_sent) says that it went out. `manifest` is what
    /// was opened.
    pub(crate) fn next_control(
        &mut self,
        rail: u16,
        room: usize,
        manifest: &Manifest,
    ) -> Option<Message<'_>> {
        self.pending = self.choose(rail);
        let stream = self.open.stream;
        Some(match self.pending? {
            SenderControl::Cancel => {
                let (code, reason) = self.farewell.as_ref()?;
                let (code, reason) = (*code, Reason::new(reason));
                Message::Cancel(Cancel {
                    stream,
                    code,
                    reason,
                })
            }
            SenderControl::Open => Message::Open(self.open),
            SenderControl::Part { next: first } => {
                let (part, next) = manifest.encode_part(first, room);
                self.part = part;
                self.pending = Some(SenderControl::Part { next });
                Message::Manifest(ManifestPart {
                    stream,
                    first: first as u64,
                    entries: &self.part,
                })
            }
            SenderControl::RailLost(lost) => Message::RailLost(RailLost {
                stream,
                rail: lost,
                sent_there: self.rail(lost).sent,
            }),
            SenderControl::Finish => Message::Finish(Finish {
                stream,
                lap: self.lap,
                sent_here: self.rail(rail).sent,
                sent: self.sent,
                digest: self.digest.digest(),
                blake3: self.blake3,
            }),
            SenderControl::Pause(on) => Message::Pause(Pause { stream, on }),
        })
    }

    fn choose(&self, rail: u16) -> Option<SenderControl> {
        if !self.rail(rail).is_live {
            return None;
        }
        if self.farewell.is_some() {
            return Some(SenderControl::Cancel);
        }
        match self.state {
            OutgoingStage::Opening { .. } if rail != self.home => None,
            OutgoingStage::Opening { is_open: false, .. } => Some(SenderControl::Open),
            OutgoingStage::Opening { next, .. } => Some(SenderControl::Part { next }),
            OutgoingStage::Sending => self.choose_sending(rail),
            OutgoingStage::Opened | OutgoingStage::Having { .. } | OutgoingStage::Over => None,
        }
    }

    fn choose_sending(&self, rail: u16) -> Option<SenderControl> {
        if self.is_paused != self.pause_said || self.is_word_due {
            return Some(SenderControl::Pause(self.is_paused));
        }
        let lost = self.rails.iter().position(|it| {
            let is_said = it.lost_said_on.is_some_and(|on| self.rail(on).is_live);
            // Even if it carried nothing: the receiver may say things there, and not have heard of
            // its end.
            it.is_lost && !is_said
        });
        if let Some(lost) = lost {
            return Some(SenderControl::RailLost(lost as u16));
        }
        let may_finish = self.may_finish || self.is_cut_short;
        (may_finish && self.is_lap_over() && self.finishes_on(rail))
            .then_some(SenderControl::Finish)
    }

    /// A lap is finished on each rail that carried blocks, or on one, if none of them is left.
    fn finishes_on(&self, rail: u16) -> bool {
        let it = self.rail(rail);
        if it.finished == Some(self.lap) {
            return false;
        }
        let mut live = self.rails.iter().filter(|rail| rail.is_live);
        let has_carried = live.any(|rail| rail.sent > 0);
        let first = self.rails.iter().position(|rail| rail.is_live);
        it.sent > 0 || !has_carried && first == Some(usize::from(rail))
    }

    /// What [`next_control`](Self::next_control) gave for this rail has been given to the endpoint.
    ///
    /// # Panics
    ///
    /// When nothing was to be said.
    pub(crate) fn on_control_sent(&mut self, rail: u16) {
        match self.pending.take().expect("something was to be said") {
            SenderControl::Open => self.opened_up_to(0),
            SenderControl::Part { next } => self.opened_up_to(next),
            SenderControl::Finish => {
                self.is_sealed = true;
                self.rails[usize::from(rail)].finished = Some(self.lap);
            }
            SenderControl::RailLost(lost) => {
                self.rails[usize::from(lost)].lost_said_on = Some(rail);
            }
            SenderControl::Pause(on) => {
                self.pause_said = on;
                self.is_word_due = false;
            }
            SenderControl::Cancel => self.farewell = None,
        }
    }

    fn opened_up_to(&mut self, next: usize) {
        self.state = match next as u64 == self.open.entries {
            true => OutgoingStage::Opened,
            false => OutgoingStage::Opening {
                is_open: true,
                next,
            },
        };
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
            self.outcome = Some(Err(StreamError::Violation(*violation)));
            self.farewell = Some((RefusalCode::MALFORMED, violation.to_string()));
        }
        result
    }

    fn read(&mut self, message: &Message<'_>) -> Result<(), StreamViolation> {
        match message {
            Message::Accept(accept) => self.on_accept(accept),
            Message::Have(list) => self.on_have(list),
            Message::Credit(credit) => self.on_credit(credit.granted),
            Message::Written(written) => self.on_written(written.blocks, written.bytes),
            Message::Damaged(damaged) => self.on_damaged(damaged.index),
            Message::Missing(list) => self.on_missing(list),
            Message::Complete(complete) => self.on_complete(complete),
            Message::Refuse(refuse) => {
                let is_early = matches!(
                    self.state,
                    OutgoingStage::Opening { .. } | OutgoingStage::Opened
                );
                let error = StreamError::Refused {
                    code: refuse.code,
                    details: refuse.details,
                    reason: refuse.reason.to_string(),
                };
                self.expect(is_early, message)
                    .map(|()| self.end(Err(error)))
            }
            Message::Failed(failed) => {
                self.end(Err(StreamError::Failed {
                    code: failed.code,
                    block: failed.block,
                    reason: failed.reason.to_string(),
                }));
                Ok(())
            }
            Message::Cancel(cancel) => {
                self.end(Err(StreamError::Failed {
                    code: cancel.code,
                    block: None,
                    reason: cancel.reason.to_string(),
                }));
                Ok(())
            }
            // Slots are the side's: it looks at these before.
            Message::Window(_) | Message::Freed(_)
                if self.open.flags.contains(OpenFlags::BY_WRITE) =>
            {
                self.advances += 1;
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
        let may_have = match self.open.flags.contains(OpenFlags::RESTART) {
            true => 0,
            false => self.plan.blocks(),
        };
        if accept.have_blocks > may_have {
            return count("the number of blocks that the peer has", accept.have_blocks);
        }
        if (accept.slots > 0) != self.open.flags.contains(OpenFlags::BY_WRITE) {
            return count("the number of slots", accept.slots.into());
        }
        self.on_credit(accept.granted)?;
        self.advances += 1;
        self.digest.add_part(accept.have_digest);
        self.had.0 = accept.have_blocks;
        self.state = match accept.have_blocks {
            0 => OutgoingStage::Sending,
            blocks => OutgoingStage::Having { blocks, from: 0 },
        };
        Ok(())
    }

    fn on_have(&mut self, list: &RangeList<'_>) -> Result<(), StreamViolation> {
        let OutgoingStage::Having {
            mut blocks,
            mut from,
        } = self.state
        else {
            return self.expect(false, &Message::Have(*list));
        };
        for range in list.ranges.iter() {
            let len = range.end - range.start;
            if range.end > self.plan.blocks() || range.start < from {
                return Err(StreamViolation::NoSuchBlock { index: range.start });
            }
            if len > blocks {
                let what = "a range of more blocks than were announced";
                return Err(StreamViolation::Count { what, value: len });
            }
            (blocks, from) = (blocks - len, range.end);
            self.advances += 1;
            self.counted.insert_range(range.clone());
            for index in range {
                self.wanted.remove(index);
                let block = self.plan.get(index);
                self.had.1 += block.map_or(0, |block| u64::from(block.len));
            }
        }
        self.written = self.had;
        // Each message brings some, and the last one the rest.
        if list.more == (blocks == 0) || list.ranges.len() == 0 {
            let what = "the number of blocks that are said to be there";
            return Err(StreamViolation::Count {
                what,
                value: blocks,
            });
        }
        self.state = match blocks {
            0 => OutgoingStage::Sending,
            _ => OutgoingStage::Having { blocks, from },
        };
        Ok(())
    }

    /// Counts are said anew when a connection was lost: one that is not above the last is old.
    fn on_credit(&mut self, granted: u64) -> Result<(), StreamViolation> {
        if granted.saturating_sub(self.sent) > CREDIT_WINDOW_MAX {
            let what = "the number of blocks that are granted";
            return Err(StreamViolation::Count {
                what,
                value: granted,
            });
        }
        self.advances += u64::from(granted > self.granted);
        self.granted = self.granted.max(granted);
        Ok(())
    }

    fn on_written(&mut self, blocks: u64, bytes: u64) -> Result<(), StreamViolation> {
        if blocks > self.plan.blocks() || bytes > self.plan.bytes() {
            let what = "the number of blocks that are written";
            return Err(StreamViolation::Count {
                what,
                value: blocks,
            });
        }
        let written = (self.written.0.max(blocks), self.written.1.max(bytes));
        self.advances += u64::from(written != self.written);
        self.written = written;
        Ok(())
    }

    fn on_damaged(&mut self, index: u64) -> Result<(), StreamViolation> {
        if !self.counted.contains(index) {
            return Err(StreamViolation::NoSuchBlock { index });
        }
        self.damaged += 1;
        // Behind the `Finish` of a lap it is among what is missing.
        if self.state == OutgoingStage::Sending && !self.is_sealed && !self.taken.contains(index) {
            self.advances += u64::from(self.wanted.insert(index));
            // It is read once more, and the source asked again.
            self.may_finish = false;
        }
        Ok(())
    }

    fn on_missing(&mut self, list: &RangeList<'_>) -> Result<(), StreamViolation> {
        if list.lap < self.lap {
            // Said anew, because a connection was lost.
            return Ok(());
        }
        let is_right =
            self.state == OutgoingStage::Sending && self.is_sealed && list.lap == self.lap;
        self.expect(is_right, &Message::Missing(*list))?;
        if list.ranges.len() == 0 {
            // What lacks nothing is complete; a lap after a lap for nothing would have no end.
            let what = "the number of blocks that are missing";
            return Err(StreamViolation::Count { what, value: 0 });
        }
        for range in list.ranges.iter() {
            if range.end > self.plan.blocks() {
                return Err(StreamViolation::NoSuchBlock { index: range.start });
            }
            for index in range {
                // What is about to be sent is not wanted a second time.
                if !self.taken.contains(index) {
                    self.advances += u64::from(self.wanted.insert(index));
                }
            }
        }
        if !list.more {
            self.lap += 1;
            self.is_sealed = false;
            self.is_cut_short = false;
            self.may_finish = false;
        }
        Ok(())
    }

    fn on_complete(&mut self, complete: &Complete) -> Result<(), StreamViolation> {
        let is_right = self.state == OutgoingStage::Sending && self.is_sealed;
        self.expect(is_right, &Message::Complete(*complete))?;
        let flags = self.open.flags;
        let asked = [
            (OpenFlags::CRC32C, Checks::CRC32C),
            (OpenFlags::BLAKE3, Checks::BLAKE3),
            (OpenFlags::SYNC, Checks::SYNC),
            (OpenFlags::READ_BACK, Checks::READ_BACK),
        ];
        let lacking = asked
            .iter()
            .find(|(flag, check)| flags.contains(*flag) && !complete.checks.contains(*check));
        if let Some((flag, _)) = lacking {
            let what = "the checks: one that was asked for was not done";
            let value = flag.bits().into();
            return Err(StreamViolation::Count { what, value });
        }
        let is_same = complete.digest == self.digest.digest()
            && complete.blocks == self.plan.blocks()
            && complete.bytes == self.plan.bytes()
            && self
                .blake3
                .is_none_or(|hash| complete.blake3.is_none_or(|theirs| theirs == hash));
        if is_same {
            self.written = (complete.blocks, complete.bytes);
            self.end(Ok(*complete));
        } else {
            self.give_up(
                RefusalCode::DIGEST,
                "what the receiver has is not what was sent",
            );
        }
        Ok(())
    }

    fn end(&mut self, outcome: Result<Complete, StreamError>) {
        self.state = OutgoingStage::Over;
        self.outcome.get_or_insert(outcome);
    }

    /// How many blocks may have to be sent again before the stream is given up; as many as there
    /// are, and 64, if nothing else is said.
    #[cfg(test)]
    pub(crate) fn allow_resent(&mut self, blocks: u64) {
        self.resent_max = blocks;
    }

    // ---- control and outcome --------------------------------------------------------------------

    /// Ends the stream; the peer is told.
    pub(crate) fn give_up(&mut self, code: RefusalCode, reason: &str) {
        if self.state == OutgoingStage::Over {
            return;
        }
        // A peer that was told nothing need not be told that it is over.
        let is_known = !matches!(self.state, OutgoingStage::Opening { is_open: false, .. });
        let reason = reason.to_owned();
        if is_known {
            self.farewell = Some((code, reason.clone()));
        }
        self.end(Err(StreamError::GivenUp { code, reason }));
    }

    /// Stops sending, or goes on; the peer is told, so that it waits.
    pub(crate) fn pause(&mut self, on: bool) {
        self.is_paused = on;
    }

    /// The peer is to hear that this side works, though it has no block for it now.
    pub(crate) fn say_that_it_works(&mut self) {
        self.is_word_due = self.state == OutgoingStage::Sending && !self.is_sealed;
    }

    /// How often the peer has said something that was not known: it grants more, it has written
    /// more, or it lacks what was thought to be there. An answer that says the same once more is
    /// none of that.
    pub(crate) fn advances(&self) -> u64 {
        self.advances
    }

    /// How it ended, if it did: what the receiver has checked, or why it has not.
    pub(crate) fn outcome(&self) -> Option<&Result<Complete, StreamError>> {
        self.outcome.as_ref()
    }

    /// Whether the peer has taken the stream, and said what it has.
    pub(crate) fn is_accepted(&self) -> bool {
        self.state == OutgoingStage::Sending
    }

    /// Blocks and bytes that the peer's sink had when it last said so.
    pub(crate) fn written(&self) -> (u64, u64) {
        self.written
    }

    /// How it is, in words for whoever looks for the reason why it does not go on.
    pub(crate) fn describe(&self) -> String {
        let rails = self.rails.iter().enumerate();
        let rails = rails.map(|(number, rail)| {
            let OutgoingRail { sent, finished, .. } = rail;
            let state = if rail.is_live { "live" } else { "gone" };
            format!("{number} {state}, {sent} sent, finished {finished:?}")
        });
        format!(
            "{}; lap {}{}{}{}; {} of {} blocks wanted, {} taken; {} sent of {} granted; {} written \
             there; rails: {}{}",
            self.state.text(),
            self.lap,
            if self.may_finish { ", may finish" } else { "" },
            if self.is_cut_short { ", cut short" } else { "" },
            if self.is_sealed { ", sealed" } else { "" },
            self.wanted.count(),
            self.plan.blocks(),
            self.taken.count(),
            self.sent,
            self.granted,
            self.written.0,
            rails.collect::<Vec<_>>().join("; "),
            if self.is_paused { "; paused" } else { "" },
        )
    }

    /// Blocks that came damaged, as the peer says.
    pub(crate) fn damaged(&self) -> u64 {
        self.damaged
    }

    /// Blocks and bytes that the peer had before the stream began.
    pub(crate) fn had(&self) -> (u64, u64) {
        self.had
    }

    /// Blocks that were sent, those that were sent again included, and how many of them were sent
    /// again.
    #[cfg(test)]
    pub(crate) fn sent(&self) -> (u64, u64) {
        (self.sent, self.resent)
    }
}
