//! `Intake`: what a receiver keeps account of for one stream.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::block_set::BlockSet;
use super::digest::StreamDigest;
use super::manifest::{Announced, ManifestParser};
use super::outbox::Outbox;
use super::wire::{
    Accept, BlockHeader, Checks, Complete, Credit, Damaged, Finish, ManifestPart, Message, Open,
    OpenFlags, RangeList, RangesBuilder, Written,
};
use super::{Block, BlockPlan, Limits, Manifest, RefusalCode, StreamViolation};

pub(crate) enum Taken {
    New(Block),
    /// It is there, or being written.
    Twice,
}

#[derive(Debug)]
pub(crate) struct Intake {
    open: Open,
    parser: Option<ManifestParser>,
    manifest: Arc<Manifest>,
    plan: Arc<BlockPlan>,
    described: bool,
    /// Written, or being written.
    taken: BlockSet,
    written: u64,
    written_bytes: u64,
    digest: StreamDigest,
    window: u64,
    received: u64,
    /// Blocks that came and are over: written, damaged or doubled.
    settled: u64,
    granted: u64,
    told_written: u64,
    came_on: HashMap<u16, u64>,
    finishes: HashMap<u16, Finish>,
    lost: HashMap<u16, u64>,
    say: VecDeque<Say>,
    missing_from: Option<u64>,
    lap: u32,
    paused: bool,
}

#[derive(Debug)]
enum Say {
    Accept,
    Have(u64),
    Damaged(u64, u32),
}

impl Intake {
    pub(crate) fn new(open: Open, limits: &Limits) -> Result<Self, (RefusalCode, String)> {
        let announced = Announced {
            entries: open.entries,
            manifest_bytes: open.manifest_bytes,
            bytes: open.bytes,
        };
        if open.block_bytes > limits.block_bytes || open.blocks > limits.blocks {
            return Err((RefusalCode::BLOCKS, String::new()));
        }
        if open
            .flags
            .intersects(OpenFlags::BLAKE3 | OpenFlags::BY_WRITE)
        {
            return Err((RefusalCode::FEATURE, String::new()));
        }
        let parser = ManifestParser::new(announced, &limits.of_manifest());
        let parser = parser.map_err(|error| {
            let code = if open.bytes > limits.bytes {
                RefusalCode::BYTES
            } else {
                RefusalCode::ENTRIES
            };
            (code, error.to_string())
        })?;
        let empty = Manifest::default();
        let described = open.entries == 0;
        Ok(Self {
            open,
            parser: Some(parser),
            plan: Arc::new(BlockPlan::new(&empty, open.block_bytes)),
            manifest: Arc::new(empty),
            described,
            taken: BlockSet::new(0),
            written: 0,
            written_bytes: 0,
            digest: StreamDigest::new(0),
            window: 0,
            received: 0,
            settled: 0,
            granted: 0,
            told_written: 0,
            came_on: HashMap::new(),
            finishes: HashMap::new(),
            lost: HashMap::new(),
            say: VecDeque::new(),
            missing_from: None,
            lap: 0,
            paused: false,
        })
    }

    pub(crate) fn open(&self) -> &Open {
        &self.open
    }

    pub(crate) fn manifest(&self) -> Arc<Manifest> {
        Arc::clone(&self.manifest)
    }

    pub(crate) fn plan(&self) -> Arc<BlockPlan> {
        Arc::clone(&self.plan)
    }

    pub(crate) fn is_described(&self) -> bool {
        self.described
    }

    pub(crate) fn has_crc(&self) -> bool {
        self.open.flags.contains(OpenFlags::CRC32C)
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.paused
    }

    pub(crate) fn written_bytes(&self) -> u64 {
        self.written_bytes
    }

    pub(crate) fn on_manifest(&mut self, part: &ManifestPart<'_>) -> Result<(), StreamViolation> {
        let Some(parser) = &mut self.parser else {
            let state = "the manifest was whole";
            return Err(StreamViolation::Unexpected { kind: 4, state });
        };
        parser.feed(part.first, part.entries)?;
        if parser.is_whole() {
            let manifest = self.parser.take().expect("it is there").finish()?;
            self.plan = Arc::new(BlockPlan::new(&manifest, self.open.block_bytes));
            if self.plan.blocks() != self.open.blocks {
                let (what, value) = ("blocks", self.open.blocks);
                return Err(StreamViolation::Count { what, value });
            }
            self.manifest = Arc::new(manifest);
            self.described = true;
        }
        Ok(())
    }

    pub(crate) fn accept(&mut self, kept: &[(u64, u32)], window: u32) {
        let blocks = self.plan.blocks();
        self.taken = BlockSet::new(blocks);
        self.digest = StreamDigest::new(blocks);
        for (index, crc) in kept {
            if let Some(block) = self.plan.get(*index)
                && self.taken.insert(*index)
            {
                self.digest.add(block.index, block.len, *crc);
                self.written += 1;
                self.written_bytes += u64::from(block.len);
            }
        }
        self.window = window.into();
        self.granted = self.window;
        self.say.push_back(Say::Accept);
        if !self.taken.is_empty() {
            self.say.push_back(Say::Have(0));
        }
    }

    pub(crate) fn on_block(
        &mut self,
        rail: u16,
        header: &BlockHeader,
    ) -> Result<Taken, StreamViolation> {
        let index = header.index;
        let block = self.plan.get(index).filter(|block| {
            (block.entry as u64, block.offset, block.len)
                == (header.entry, header.offset, header.len)
        });
        let block = block.ok_or(StreamViolation::NoSuchBlock { index })?;
        self.received += 1;
        if self.received > self.granted {
            let (sent, granted) = (self.received, self.granted);
            return Err(StreamViolation::OverCredit { sent, granted });
        }
        *self.came_on.entry(rail).or_default() += 1;
        match self.taken.insert(index) {
            true => Ok(Taken::New(block)),
            false => {
                self.settled += 1;
                Ok(Taken::Twice)
            }
        }
    }

    pub(crate) fn on_written(&mut self, index: u64, crc: u32) {
        self.settled += 1;
        self.written += 1;
        if let Some(block) = self.plan.get(index) {
            self.written_bytes += u64::from(block.len);
            self.digest.add(index, block.len, crc);
        }
    }

    pub(crate) fn on_damaged(&mut self, index: u64, found: u32) {
        self.settled += 1;
        self.taken.remove(index);
        self.say.push_back(Say::Damaged(index, found));
    }

    pub(crate) fn on_message(
        &mut self,
        rail: u16,
        message: &Message<'_>,
    ) -> Result<(), StreamViolation> {
        match message {
            Message::Finish(finish) => {
                self.finishes.insert(rail, *finish);
            }
            Message::RailLost(lost) => {
                let gone = lost
                    .sent_there
                    .saturating_sub(self.came_on.get(&lost.rail).copied().unwrap_or(0));
                self.lost.insert(lost.rail, gone);
                // They will not come, and were counted.
                self.received += gone;
                self.settled += gone;
            }
            Message::Pause(pause) => self.paused = pause.on,
            other => {
                let kind = other.kind().0;
                let state = "a stream was received";
                return Err(StreamViolation::Unexpected { kind, state });
            }
        }
        self.look_for_missing();
        Ok(())
    }

    /// Everything that was sent in this lap came, or is lost.
    fn lap_is_over(&self) -> bool {
        let Some(last) = self.finishes.values().find(|finish| finish.lap == self.lap) else {
            return false;
        };
        self.received >= last.sent && self.settled == self.received
    }

    fn look_for_missing(&mut self) {
        if self.lap_is_over()
            && !self.taken.is_full()
            && self.say.is_empty()
            && self.missing_from.is_none()
        {
            self.missing_from = Some(0);
        }
    }

    pub(crate) fn is_whole(&self) -> bool {
        self.taken.is_full() && self.written == self.plan.blocks() && self.lap_is_over()
    }

    pub(crate) fn complete(&self, checks: Checks) -> Complete {
        Complete {
            stream: self.open.stream,
            checks,
            digest: self.digest.digest(),
            blocks: self.plan.blocks(),
            bytes: self.manifest.bytes(),
            blake3: None,
        }
    }

    pub(crate) fn say_next(&mut self, progress: bool, outbox: &mut Outbox) -> bool {
        let stream = self.open.stream;
        match self.say.pop_front() {
            Some(Say::Accept) => {
                outbox.push(&Message::Accept(Accept {
                    stream,
                    granted: self.granted,
                    have_blocks: self.taken.count(),
                    have_ranges: self.taken.ranges(0).count() as u64,
                    have_digest: self.digest.part(),
                    slots: 0,
                }));
                return true;
            }
            Some(Say::Have(from)) => {
                let mut list = RangesBuilder::default();
                let mut next = None;
                for range in self.taken.ranges(from) {
                    if list.len() == RangesBuilder::ROOM {
                        next = Some(range.start);
                        break;
                    }
                    list.push(range);
                }
                let more = next.map_or(0, |from| self.taken.ranges(from).count() as u64);
                outbox.push(&Message::Have(RangeList {
                    stream,
                    lap: 0,
                    more,
                    ranges: list.ranges(),
                }));
                if let Some(from) = next {
                    self.say.push_front(Say::Have(from));
                }
                return true;
            }
            Some(Say::Damaged(index, crc)) => {
                outbox.push(&Message::Damaged(Damaged { stream, index, crc }));
                return true;
            }
            None => {}
        }
        let grant = self.settled + self.window;
        if grant >= self.granted + (self.window / 4).max(1) {
            self.granted = grant;
            outbox.push(&Message::Credit(Credit {
                stream,
                granted: grant,
            }));
            return true;
        }
        self.look_for_missing();
        if let Some(from) = self.missing_from.take() {
            let mut list = RangesBuilder::default();
            let mut next = None;
            for range in self.taken.missing(from) {
                if list.len() == RangesBuilder::ROOM {
                    next = Some(range.start);
                    break;
                }
                list.push(range);
            }
            let more = next.map_or(0, |from| self.taken.missing(from).count() as u64);
            outbox.push(&Message::Missing(RangeList {
                stream,
                lap: self.lap,
                more,
                ranges: list.ranges(),
            }));
            self.missing_from = next;
            if next.is_none() {
                self.lap += 1;
            }
            return true;
        }
        if progress && self.told_written != self.written {
            self.told_written = self.written;
            outbox.push(&Message::Written(Written {
                stream,
                blocks: self.written,
                bytes: self.written_bytes,
            }));
        }
        false
    }
}
