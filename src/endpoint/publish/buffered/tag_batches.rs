//! `TagBatches`: small messages that are packed and not published yet, a buffer for each tag. Knows
//! no network.
//!
//! ```text
//!  begin ─► open, in the order of `order` ─ full, due, flushed ─► in `leaving` ─► take_next
//!                                                                     ▲               │
//!                                                                     └─── put_back ──┘ sealed
//! ```

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Instant;

use super::event::PublishedContent;
use crate::buffer::{Buffer, BufferMut};
use crate::coalesce::Packer;

/// The buffer of a tag.
enum BatchState {
    Open(Packer<BufferMut>),
    /// It was offered once, and takes nothing more.
    Sealed(Buffer),
}

struct TagBatch {
    number: u64,
    messages: u64,
    state: BatchState,
}

/// A buffer that leaves.
pub(super) struct PackedBatch {
    pub(super) tag: u64,
    pub(super) number: u64,
    pub(super) messages: u64,
    pub(super) buffer: Buffer,
}

impl PackedBatch {
    /// What is in it.
    pub(super) fn content(&self) -> PublishedContent {
        PublishedContent::Messages {
            batch: self.number,
            count: self.messages,
        }
    }
}

/// One for each tag that has any, in the order in which they began.
#[derive(Default)]
pub(super) struct TagBatches {
    by_tag: HashMap<u64, TagBatch>,
    /// Those that nothing has leave yet, by number: the tag, and until when they may wait.
    order: BTreeMap<u64, (u64, Option<Instant>)>,
    /// The tags of the others, in the order in which they leave.
    leaving: VecDeque<u64>,
    next: u64,
}

impl TagBatches {
    pub(super) fn len(&self) -> usize {
        self.by_tag.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_tag.is_empty()
    }

    /// Whether some wait to be published that should be by now.
    pub(super) fn has_leaving(&self) -> bool {
        !self.leaving.is_empty()
    }

    pub(super) fn has(&self, tag: u64) -> bool {
        self.by_tag.contains_key(&tag)
    }

    /// By when the next one has to leave.
    pub(super) fn due(&self) -> Option<Instant> {
        // All wait equally long: the first to begin is the first that is due.
        self.order.first_key_value().and_then(|(_, (_, due))| *due)
    }

    /// Begins one, with its first message in it.
    pub(super) fn begin(
        &mut self,
        tag: u64,
        packer: Packer<BufferMut>,
        due: Option<Instant>,
    ) -> u64 {
        let number = self.next;
        self.next += 1;
        let batch = TagBatch {
            number,
            messages: packer.count().into(),
            state: BatchState::Open(packer),
        };
        debug_assert!(!self.has(tag), "one for each tag");
        self.by_tag.insert(tag, batch);
        self.order.insert(number, (tag, due));
        number
    }

    /// Packs a message behind those of its tag, and gives the number of the buffer. `None`: it does
    /// not fit, or there is no such buffer.
    #[inline]
    pub(super) fn push(&mut self, tag: u64, status: u8, segments: &[&[u8]]) -> Option<u64> {
        let batch = self.by_tag.get_mut(&tag)?;
        let BatchState::Open(packer) = &mut batch.state else {
            return None;
        };
        packer.push_segments(tag, status, segments).ok()?;
        batch.messages += 1;
        Some(batch.number)
    }

    /// Has the buffer of a tag leave.
    pub(super) fn leave(&mut self, tag: u64) {
        if let Some(batch) = self.by_tag.get(&tag)
            && self.order.remove(&batch.number).is_some()
        {
            self.leaving.push_back(tag);
        }
    }

    /// Has the one leave that began first.
    pub(super) fn leave_oldest(&mut self) {
        if let Some(&(tag, _)) = self.order.values().next() {
            self.leave(tag);
        }
    }

    /// Has those leave whose time is over, and says how many.
    pub(super) fn leave_due(&mut self, now: Instant) -> u64 {
        let mut left = 0;
        while self.due().is_some_and(|due| due <= now) {
            self.leave_oldest();
            left += 1;
        }
        left
    }

    /// Has all of them leave, and says how many more that are.
    pub(super) fn leave_all(&mut self) -> u64 {
        let left = self.order.len() as u64;
        while !self.order.is_empty() {
            self.leave_oldest();
        }
        left
    }

    /// The next one that leaves.
    pub(super) fn take_next(&mut self) -> Option<PackedBatch> {
        let tag = self.leaving.pop_front()?;
        let batch = self.by_tag.remove(&tag)?;
        Some(PackedBatch {
            tag,
            number: batch.number,
            messages: batch.messages,
            buffer: match batch.state {
                BatchState::Open(packer) => packer.freeze(),
                BatchState::Sealed(buffer) => buffer,
            },
        })
    }

    /// It could not leave: it is the next one again.
    pub(super) fn put_back(&mut self, batch: PackedBatch) {
        self.leaving.push_front(batch.tag);
        let sealed = TagBatch {
            number: batch.number,
            messages: batch.messages,
            state: BatchState::Sealed(batch.buffer),
        };
        self.by_tag.insert(batch.tag, sealed);
    }
}
