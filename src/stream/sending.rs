//! `Outlay`: what a sender keeps account of for one peer.

use std::collections::HashMap;
use std::sync::Arc;

use super::block_set::BlockSet;
use super::digest::StreamDigest;
use super::wire::{BlockHeader, Finish, Message, Open, RailLost};
use super::{Block, BlockPlan, StreamError, StreamViolation};

#[derive(Debug)]
pub(crate) struct Outlay {
    open: Open,
    plan: Arc<BlockPlan>,
    /// Had, taken, or sent.
    gone: BlockSet,
    /// Blocks whose checksum is in the digest.
    summed: BlockSet,
    digest: StreamDigest,
    sent: u64,
    sent_on: HashMap<u16, u64>,
    granted: u64,
    /// Ranges of Have that are still to come; none: Accept did not come.
    awaited: Option<u64>,
    lap: u32,
    written: u64,
    damaged: u64,
    complete: bool,
}

impl Outlay {
    pub(crate) fn new(open: Open, plan: Arc<BlockPlan>) -> Self {
        let blocks = plan.blocks();
        Self {
            open,
            plan,
            gone: BlockSet::new(blocks),
            summed: BlockSet::new(blocks),
            digest: StreamDigest::new(blocks),
            sent: 0,
            sent_on: HashMap::new(),
            granted: 0,
            awaited: None,
            lap: 0,
            written: 0,
            damaged: 0,
            complete: false,
        }
    }

    pub(crate) fn is_accepted(&self) -> bool {
        self.awaited == Some(0)
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.complete
    }

    pub(crate) fn written(&self) -> u64 {
        self.written
    }

    pub(crate) fn damaged(&self) -> u64 {
        self.damaged
    }

    pub(crate) fn first_wanted(&self, from: u64) -> Option<u64> {
        self.gone.next_missing(from)
    }

    pub(crate) fn take(&mut self, index: u64) -> bool {
        self.gone.insert(index)
    }

    /// It was not sent, or may not have arrived.
    pub(crate) fn give_back(&mut self, index: u64) {
        if index < self.plan.blocks() {
            self.gone.remove(index);
        }
    }

    pub(crate) fn may_send(&self) -> bool {
        self.sent < self.granted
    }

    pub(crate) fn header(&self, block: Block, crc: u32) -> BlockHeader {
        BlockHeader {
            stream: self.open.stream,
            index: block.index,
            entry: block.entry as u64,
            offset: block.offset,
            len: block.len,
            crc,
        }
    }

    pub(crate) fn on_sent(&mut self, rail: u16, block: Block, crc: u32) {
        self.sent += 1;
        *self.sent_on.entry(rail).or_default() += 1;
        if self.summed.insert(block.index) {
            self.digest.add(block.index, block.len, crc);
        }
    }

    pub(crate) fn on_rail_lost(&mut self, rail: u16) -> RailLost {
        RailLost {
            stream: self.open.stream,
            rail,
            sent_there: self.sent_on.get(&rail).copied().unwrap_or(0),
        }
    }

    /// None: nothing was ever sent there, and others say it.
    pub(crate) fn finish(&mut self, rail: u16) -> Option<Finish> {
        Some(Finish {
            stream: self.open.stream,
            lap: self.lap,
            sent_here: self.sent_on.get(&rail).copied().unwrap_or(0),
            sent: self.sent,
            digest: self.digest.digest(),
            blake3: None,
        })
    }

    pub(crate) fn on_message(
        &mut self,
        _rail: u16,
        message: &Message<'_>,
    ) -> Result<(), StreamError> {
        let count = |what, value| StreamError::from(StreamViolation::Count { what, value });
        match message {
            Message::Accept(accept) if self.awaited.is_none() => {
                self.awaited = Some(accept.have_ranges);
                self.granted = accept.granted;
                self.digest.add_part(accept.have_digest);
            }
            Message::Have(list) if self.awaited.is_some_and(|left| left > 0) => {
                let came = list.ranges.len() as u64;
                let left = self.awaited.unwrap_or(0);
                self.awaited = Some(
                    left.checked_sub(came)
                        .ok_or_else(|| count("have_ranges", came))?,
                );
                for range in list.ranges.iter() {
                    if range.end > self.plan.blocks() {
                        return Err(count("have", range.end));
                    }
                    for index in range.clone() {
                        self.summed.insert(index);
                        self.written +=
                            self.plan.get(index).map_or(0, |block| u64::from(block.len));
                    }
                    self.gone.insert_range(range);
                }
            }
            Message::Credit(credit) => self.granted = self.granted.max(credit.granted),
            Message::Written(written) => self.written = self.written.max(written.bytes),
            Message::Damaged(damaged) if damaged.index < self.plan.blocks() => {
                self.damaged += 1;
                self.gone.remove(damaged.index);
            }
            Message::Missing(list) => {
                for range in list.ranges.iter() {
                    if range.end > self.plan.blocks() {
                        return Err(count("missing", range.end));
                    }
                    for index in range {
                        self.gone.remove(index);
                    }
                }
                if list.more == 0 {
                    self.lap += 1;
                }
            }
            Message::Complete(complete) => {
                if complete.digest != self.digest.digest() {
                    return Err(StreamError::GivenUp {
                        code: super::RefusalCode::DIGEST,
                        reason: String::new(),
                    });
                }
                self.complete = true;
            }
            Message::Refuse(refuse) => {
                return Err(StreamError::Refused {
                    code: refuse.code,
                    details: refuse.details,
                    reason: refuse.reason.to_string(),
                });
            }
            Message::Failed(failed) => {
                return Err(StreamError::Failed {
                    code: failed.code,
                    block: failed.block,
                    reason: failed.reason.to_string(),
                });
            }
            other => {
                let kind = other.kind().0;
                let state = "a stream was sent";
                return Err(StreamViolation::Unexpected { kind, state }.into());
            }
        }
        Ok(())
    }
}
