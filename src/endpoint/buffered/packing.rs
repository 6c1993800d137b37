//! `Packing`: messages on their way into buffers, and buffers on their way to the sender.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::buffer::{BufferMut, Payload};
use crate::coalesce::{Format, Packer, Placed};
use crate::endpoint::buffered::core::BufferedSettings;
use crate::endpoint::buffered::event::{Carried, PushError, SmallMessageLimit};
use crate::endpoint::buffered::fill_gate::FillGate;
use crate::endpoint::link::wait::EndpointWait;
use crate::endpoint::staging::CopyLanes;

/// The buffer that is being filled. It has one message at least, except within a call.
struct FillingBuffer {
    packer: Packer<BufferMut>,
    /// When it leaves though it is not full.
    due: Option<Instant>,
    /// It is to leave as soon as it can.
    now: bool,
    /// Of the messages in it that are copied out of a device's memory.
    filling: Option<FillGate>,
}

impl FillingBuffer {
    /// Ends packing; none if there is nothing in it. What is still copied into it is waited for
    /// when it is sent, or given back.
    fn pack(self) -> Option<Packed> {
        let count = self.packer.count();
        if count == 0 {
            return None;
        }
        let payload = Payload::from(self.packer.freeze());
        let payload = match self.filling.filter(|filling| !filling.is_empty()) {
            Some(filling) => payload.behind(Box::new(filling)),
            None => payload,
        };
        Some(Packed { payload, count })
    }
}

/// A buffer that is packed and was not sent yet.
pub(super) struct Packed {
    pub(super) payload: Payload,
    pub(super) count: u32,
}

/// Why the open buffer is to leave though it is not full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FlushReason {
    /// The caller asked for it.
    Flush,
    /// Its time has come.
    Time,
}

/// All that was not given to the sender yet.
pub(super) struct Packing {
    format: Format,
    flush_interval: Option<Duration>,
    slot_size: usize,
    /// Bytes of a buffer that are used: all of it, or what the peer takes.
    limit: usize,
    open: Option<FillingBuffer>,
    /// Buffers that are packed and wait for the sender, oldest first.
    waiting: VecDeque<Packed>,
    /// For messages in a device's memory.
    lanes: CopyLanes,
    /// The number of the first message that was not given to the sender.
    unsent: u64,
    wait: Arc<EndpointWait>,
}

impl Packing {
    pub(super) fn new(
        settings: &BufferedSettings,
        slot_size: usize,
        wait: &Arc<EndpointWait>,
    ) -> Self {
        Self {
            format: settings.format,
            flush_interval: settings.flush_interval,
            slot_size,
            limit: slot_size,
            open: None,
            waiting: VecDeque::with_capacity(settings.waiting as usize + 1),
            lanes: CopyLanes::default(),
            unsent: 0,
            wait: Arc::clone(wait),
        }
    }

    /// The peer takes messages of so many bytes.
    pub(super) fn set_peer(&mut self, max_message: u64) {
        let peer = usize::try_from(max_message).unwrap_or(usize::MAX);
        self.limit = self.slot_size.min(peer);
    }

    // ---- the open buffer ------------------------------------------------------------------------

    /// Packs a message, if there is room for it in the open buffer.
    #[inline]
    pub(super) fn push(&mut self, tag: u64, status: u8, bytes: &[u8]) -> bool {
        let open = self.open.as_mut();
        open.is_some_and(|open| open.packer.push(tag, status, bytes).is_ok())
    }

    /// A place for a message, if there is room for it in the open buffer.
    pub(super) fn place(&self, tag: u64, status: u8, len: usize) -> Option<Placed> {
        self.open.as_ref()?.packer.place(tag, status, len).ok()
    }

    /// The open buffer's packer, after a place was found there.
    pub(super) fn packer(&mut self) -> &mut Packer<BufferMut> {
        let open = self.open.as_mut();
        &mut open.expect("a place was found in it").packer
    }

    /// The bytes of a message that has its place.
    pub(super) fn placed(&self, placed: &Placed) -> &[u8] {
        let open = self.open.as_ref();
        open.map_or(&[], |open| open.packer.bytes(placed))
    }

    /// What lies in a place comes out of a payload, now or when it can be copied.
    pub(super) fn fill_from(&mut self, payload: Payload, placed: &Placed) {
        let lanes = &self.lanes;
        if let Some(open) = &mut self.open {
            let filling = open
                .filling
                .get_or_insert_with(|| FillGate::new(lanes.clone()));
            filling.add(payload, &mut open.packer, placed);
        }
    }

    /// Begins what can be copied by now.
    pub(super) fn begin_copies(&mut self) {
        let open = self.open.as_mut();
        if let Some(filling) = open.and_then(|open| open.filling.as_mut()) {
            filling.begin();
        }
    }

    /// A place was not used after all.
    pub(super) fn discard_place(&mut self) {
        let open = self.open.as_ref();
        if open.is_some_and(|open| open.packer.is_empty()) {
            self.open = None;
            self.wait.set_packer_deadline(None);
        }
    }

    /// Begins a buffer with a place for a message, which [fits](Self::check_len); `max` would.
    pub(super) fn begin(
        &mut self,
        buffer: BufferMut,
        (tag, status, len): (u64, u8, usize),
        max: usize,
    ) -> Result<Placed, PushError> {
        let packer = Packer::with_limit(self.format, buffer, self.limit);
        let placed = packer.place(tag, status, len);
        let now = || self.wait.clock().now();
        let due = self.flush_interval.map(|time| now() + time);
        self.open = Some(FillingBuffer {
            packer,
            due,
            now: false,
            filling: None,
        });
        self.wait.set_packer_deadline(due);
        placed.map_err(|_| PushError::TooLong {
            len,
            max,
            whose: SmallMessageLimit::Buffer,
        })
    }

    /// Whether a message fits an empty buffer at all; the most that does.
    pub(super) fn check_len(&self, tag: u64, status: u8, len: usize) -> Result<usize, PushError> {
        let sizes = (self.slot_size, self.limit);
        SmallMessageLimit::check_len(self.format, sizes, (tag, status, len))
    }

    pub(super) fn has_open(&self) -> bool {
        self.open.is_some()
    }

    /// No message more goes into the open buffer.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        let open = self.open.as_ref();
        open.is_some_and(|open| open.packer.free() < Format::HEAD_MIN)
    }

    /// The open buffer is to leave as soon as it can.
    pub(super) fn leave_soon(&mut self) {
        if let Some(open) = &mut self.open {
            open.now = true;
        }
    }

    /// Whether the open buffer is to leave, and why. While others wait in front of it, it could not
    /// and goes on being filled.
    pub(super) fn leaves(&self) -> Option<FlushReason> {
        let open = self.open.as_ref()?;
        if !self.waiting.is_empty() || open.packer.is_empty() {
            None
        } else if open.now {
            Some(FlushReason::Flush)
        } else {
            let is_due = open.due.is_some_and(|due| due <= self.wait.clock().now());
            is_due.then_some(FlushReason::Time)
        }
    }

    /// When the open buffer is to leave, if there is something in it.
    pub(super) fn due(&self) -> Option<Instant> {
        let open = self.open.as_ref()?;
        open.due.filter(|_| !open.packer.is_empty())
    }

    /// Puts the open buffer behind those that wait. False: there is nothing in it.
    pub(super) fn close_open(&mut self) -> bool {
        let Some(open) = self.open.take() else {
            return false;
        };
        self.wait.set_packer_deadline(None);
        let packed = open.pack();
        let is_some = packed.is_some();
        self.waiting.extend(packed);
        is_some
    }

    // ---- buffers that wait ----------------------------------------------------------------------

    /// Buffers that wait for the sender.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Nothing is left here.
    pub(super) fn is_empty(&self) -> bool {
        self.open.is_none() && self.waiting.is_empty()
    }

    /// The oldest buffer that waits, and what it carries.
    pub(super) fn take_next(&mut self) -> Option<(Packed, Carried)> {
        let packed = self.waiting.pop_front()?;
        let carried = Carried::Messages {
            first: self.unsent,
            count: packed.count.into(),
        };
        Some((packed, carried))
    }

    /// The one that was taken is not sent yet.
    pub(super) fn put_back(&mut self, packed: Packed) {
        self.waiting.push_front(packed);
    }

    /// The messages of the one that was taken are sent, or never will be.
    pub(super) fn on_gone(&mut self, count: u32) {
        self.unsent += u64::from(count);
    }
}
