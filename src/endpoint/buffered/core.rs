//! `BufferedCore`: what a buffered endpoint does, over anything that sends whole buffers.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use smallvec::SmallVec;

use crate::Error;
use crate::buffer::{BufferMut, Payload, SharedBufferManager, WakerId};
use crate::clock::Clock;
use crate::coalesce::{Format, Packer, Placed};
use crate::contain::contain;
use crate::endpoint::buffered::event::{
    BufferError, BufferedEvent, Carried, PushError, SmallMessageLimit,
};
use crate::endpoint::buffered::filling::{Filling, not_copied};
use crate::endpoint::core::control::CONTROL_RETRY;
use crate::endpoint::error::{Blocked, Refused, SendErrorKind};
use crate::endpoint::event::{ConnectionEvent, SendEvent};
use crate::endpoint::link::wait::EndpointWait;
use crate::endpoint::staging::CopyLanes;
use crate::event_loop::WaitSource;
use crate::protocol::connection::CloseReason;
use crate::stats::BufferedStats;

/// What sends the buffers: `SendEndpointZeroCopy`, or a fake one.
pub(crate) trait Outlet {
    fn send(&mut self, payload: Payload, key: u64) -> Result<(), Refused<Payload>>;
    fn poll(&mut self, events: &mut Vec<SendEvent>) -> Result<(), Error>;
    fn is_connected(&self) -> bool;
    fn close_reason(&self) -> Option<CloseReason>;
    fn begin_close(&mut self, deadline: Instant);
}

/// Called for each buffer whose outcome nobody will hear.
pub(crate) type OnAbandoned = Box<dyn FnMut(Carried) + Send>;

pub(crate) struct BufferedSettings {
    pub(crate) format: Format,
    /// Sends in flight: the outlet's depth.
    pub(crate) depth: u32,
    /// Full buffers that wait for the outlet.
    pub(crate) waiting: u32,
    pub(crate) flush_interval: Option<Duration>,
    pub(crate) on_abandoned: Option<OnAbandoned>,
}

/// The buffer that is being filled. It has one message at least, except within a call.
struct FillingBuffer {
    packer: Packer<BufferMut>,
    /// When it leaves though it is not full.
    due: Option<Instant>,
    /// It is to leave as soon as it can.
    now: bool,
    /// Of the messages in it that are copied out of a device's memory.
    filling: Option<Filling>,
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
struct Packed {
    payload: Payload,
    count: u32,
}

/// What each send in flight carries, by the key that the outlet knows it by.
struct Manifest {
    entries: Vec<Option<Carried>>,
    free: Vec<u32>,
}

impl Manifest {
    fn new(depth: u32) -> Self {
        Self {
            entries: (0..depth).map(|_| None).collect(),
            free: (0..depth).rev().collect(),
        }
    }

    fn put(&mut self, carried: Carried) -> Option<u64> {
        let index = self.free.pop()?;
        self.entries[index as usize] = Some(carried);
        Some(index.into())
    }

    /// The outlet gives every key back once.
    fn take(&mut self, key: u64) -> Option<Carried> {
        let carried = self.entries.get_mut(usize::try_from(key).ok()?)?.take()?;
        self.free.push(key as u32);
        Some(carried)
    }

    fn get(&self, key: u64) -> Option<Carried> {
        self.entries.get(usize::try_from(key).ok()?).copied()?
    }
}

/// The outlet's wait, with the time by which the open buffer must leave.
pub(crate) struct BufferedWait {
    inner: Arc<EndpointWait>,
    /// Nanoseconds after `base`; `u64::MAX` is never.
    due_ns: AtomicU64,
    base: Instant,
}

impl BufferedWait {
    pub(crate) fn new(inner: Arc<EndpointWait>) -> Self {
        Self {
            due_ns: AtomicU64::new(u64::MAX),
            base: inner.clock().now(),
            inner,
        }
    }

    fn set_due(&self, due: Option<Instant>) {
        let ns = due.map_or(u64::MAX, |at| {
            u64::try_from(at.saturating_duration_since(self.base).as_nanos()).unwrap_or(u64::MAX)
        });
        self.due_ns.store(ns, Ordering::Release);
    }

    fn due(&self) -> Option<Instant> {
        match self.due_ns.load(Ordering::Acquire) {
            u64::MAX => None,
            ns => Some(self.base + Duration::from_nanos(ns)),
        }
    }

    pub(crate) fn wake(&self) {
        self.inner.wake();
    }

    pub(crate) fn sleep(&self, until: Instant) -> Result<(), Error> {
        self.inner
            .sleep(self.due().map_or(until, |due| due.min(until)))
    }
}

impl fmt::Debug for BufferedWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BufferedWait").finish_non_exhaustive()
    }
}

impl WaitSource for BufferedWait {
    fn fds(&self) -> SmallVec<[std::os::fd::RawFd; 3]> {
        self.inner.fds()
    }

    fn prepare_wait(&self) -> Result<bool, Error> {
        self.inner.prepare_wait()
    }

    fn next_deadline(&self) -> Option<Instant> {
        [self.inner.next_deadline(), self.due()]
            .into_iter()
            .flatten()
            .min()
    }
}

/// Packs messages into buffers of a pool, and sends those.
pub(crate) struct BufferedCore<O: Outlet> {
    outlet: O,
    pool: SharedBufferManager,
    pool_waker: WakerId,
    settings: BufferedSettings,
    /// Bytes of a buffer that are used: all of it, or what the peer takes.
    limit: usize,
    open: Option<FillingBuffer>,
    /// Buffers that are packed and wait for the outlet, oldest first.
    waiting: VecDeque<Packed>,
    manifest: Manifest,
    /// For messages in a device's memory.
    lanes: CopyLanes,
    /// Messages accepted, sent or failed so far: the number of the next one.
    stats: BufferedStats,
    /// The number of the first message that was not given to the outlet.
    unsent: u64,
    /// What the outlet's last refusal waits for.
    outlet_blocked: Blocked,
    /// A push or a buffer was refused as back-pressure: tell when it has passed.
    refused: bool,
    /// The caller closes: with the outlet, as soon as nothing is unsent, or at that time.
    closing: Option<Instant>,
    closing_outlet: bool,
    /// The peer closes: nothing can be sent on this connection any more.
    peer_closing: bool,
    /// What happened within calls that report no events.
    outbox: Vec<BufferedEvent>,
    heard: Vec<SendEvent>,
    wait: Arc<BufferedWait>,
}

impl<O: Outlet> BufferedCore<O> {
    pub(crate) fn new(
        outlet: O,
        wait: BufferedWait,
        pool: SharedBufferManager,
        settings: BufferedSettings,
    ) -> Self {
        let wait = Arc::new(wait);
        let waker = Arc::clone(&wait);
        Self {
            outlet,
            limit: pool.slot_size(),
            pool_waker: pool.add_waker(Arc::new(move || waker.wake())),
            pool,
            open: None,
            waiting: VecDeque::with_capacity(settings.waiting as usize + 1),
            manifest: Manifest::new(settings.depth),
            lanes: CopyLanes::default(),
            settings,
            stats: BufferedStats::default(),
            unsent: 0,
            outlet_blocked: Blocked::Connecting,
            refused: false,
            closing: None,
            closing_outlet: false,
            peer_closing: false,
            outbox: Vec::new(),
            heard: Vec::with_capacity(64),
            wait,
        }
    }

    pub(crate) fn outlet(&self) -> &O {
        &self.outlet
    }

    #[cfg(test)]
    pub(crate) fn outlet_mut(&mut self) -> &mut O {
        &mut self.outlet
    }

    /// What it judges deadlines by.
    pub(crate) fn clock(&self) -> &Clock {
        self.wait.inner.clock()
    }

    pub(crate) fn wait(&self) -> &Arc<BufferedWait> {
        &self.wait
    }

    pub(crate) fn pool(&self) -> &SharedBufferManager {
        &self.pool
    }

    pub(crate) fn stats(&self) -> BufferedStats {
        let BufferedStats {
            accepted,
            confirmed,
            failed,
            ..
        } = self.stats;
        BufferedStats {
            pending: accepted - confirmed - failed,
            ..self.stats
        }
    }

    // ---- small messages -------------------------------------------------------------------------

    /// Packs a message, and gives its number.
    #[inline]
    pub(crate) fn push(&mut self, tag: u64, status: u8, bytes: &[u8]) -> Result<u64, PushError> {
        if let Some(open) = &mut self.open
            && open.packer.push(tag, status, bytes).is_ok()
        {
            return Ok(self.packed());
        }
        let placed = self.make_room(tag, status, bytes.len())?;
        self.packer().fill(&placed, &[bytes]);
        Ok(self.commit(&placed, bytes.len()))
    }

    pub(crate) fn push_segments(
        &mut self,
        tag: u64,
        status: u8,
        segments: &[&[u8]],
    ) -> Result<u64, PushError> {
        let lens = segments.iter().map(|segment| segment.len());
        let len = lens.fold(0_usize, usize::saturating_add);
        let placed = self.place(tag, status, len)?;
        self.packer().fill(&placed, segments);
        Ok(self.commit(&placed, len))
    }

    /// As [`push`](Self::push), of bytes that may lie in a device's memory, and may have to be
    /// waited for.
    pub(crate) fn push_payload(
        &mut self,
        tag: u64,
        status: u8,
        payload: Payload,
    ) -> Result<u64, Refused<Payload, PushError>> {
        let len = payload.len_bytes();
        let placed = match not_copied(&payload) {
            Some(segment) => Err(PushError::NotCopied { segment }),
            None => self.place(tag, status, len),
        };
        let placed = match placed {
            Ok(placed) => placed,
            Err(kind) => return Err(Refused::without_key(kind, payload)),
        };
        let lanes = &self.lanes;
        if let Some(open) = &mut self.open {
            let filling = open
                .filling
                .get_or_insert_with(|| Filling::new(lanes.clone()));
            filling.add(payload, &mut open.packer, &placed);
        }
        Ok(self.commit(&placed, len))
    }

    /// Finds room for a message that is written in place. Until it is committed, nothing was
    /// packed.
    pub(crate) fn place(&mut self, tag: u64, status: u8, len: usize) -> Result<Placed, PushError> {
        if let Some(open) = &self.open
            && let Ok(placed) = open.packer.place(tag, status, len)
        {
            return Ok(placed);
        }
        self.make_room(tag, status, len)
    }

    /// The open buffer's packer, after `place` found room there.
    pub(crate) fn packer(&mut self) -> &mut Packer<BufferMut> {
        let open = self.open.as_mut();
        &mut open.expect("a place was found in it").packer
    }

    /// The bytes of a message that has its place.
    pub(crate) fn placed(&self, placed: &Placed) -> &[u8] {
        let open = self.open.as_ref();
        open.map_or(&[], |open| open.packer.bytes(placed))
    }

    pub(crate) fn commit(&mut self, placed: &Placed, len: usize) -> u64 {
        self.packer().commit(placed, len);
        self.packed()
    }

    /// A place was not used after all.
    pub(crate) fn discard_place(&mut self) {
        if self
            .open
            .as_ref()
            .is_some_and(|open| open.packer.is_empty())
        {
            self.open = None;
            self.wait.set_due(None);
        }
    }

    /// One message more lies in the open buffer.
    #[inline]
    fn packed(&mut self) -> u64 {
        let number = self.stats.accepted;
        self.stats.accepted += 1;
        if let Some(open) = &self.open
            && open.packer.free() < Format::HEAD_MIN
        {
            self.stats.full += 1;
            self.close_open();
        }
        number
    }

    /// The open buffer does not take this message, or there is none.
    #[cold]
    fn make_room(&mut self, tag: u64, status: u8, len: usize) -> Result<Placed, PushError> {
        let max = self.check_len(tag, status, len)?;
        if let Some(reason) = self.outlet.close_reason() {
            return Err(PushError::Closed(reason));
        }
        if self.closing.is_some() || self.peer_closing {
            return Err(PushError::Closing);
        }
        if !self.outlet.is_connected() {
            return Err(self.refuse(Blocked::Connecting));
        }
        if self.open.is_some() {
            if self.waiting.len() >= self.settings.waiting as usize {
                self.send_waiting();
            }
            if self.waiting.len() >= self.settings.waiting as usize {
                return Err(self.refuse(self.outlet_blocked));
            }
            self.stats.full += 1;
            self.close_open();
        }
        let Some(buffer) = self.pool.try_acquire() else {
            return Err(self.refuse(Blocked::Buffers));
        };
        let packer = Packer::with_limit(self.settings.format, buffer, self.limit);
        let placed = packer.place(tag, status, len);
        let due = self
            .settings
            .flush_interval
            .map(|time| self.clock().now() + time);
        self.open = Some(FillingBuffer {
            packer,
            due,
            now: false,
            filling: None,
        });
        self.wait.set_due(due);
        // `check_len` saw that it fits an empty buffer.
        placed.map_err(|_| PushError::TooLong {
            len,
            max,
            whose: SmallMessageLimit::Buffer,
        })
    }

    /// Whether a message fits an empty buffer at all; the most that does.
    fn check_len(&self, tag: u64, status: u8, len: usize) -> Result<usize, PushError> {
        let format = self.settings.format;
        let room = self.limit.saturating_sub(format.buffer_header());
        let head = format.first_message(tag, status, 0);
        let max = room.saturating_sub(head).min(format.max_message());
        if len <= max && head <= room {
            return Ok(max);
        }
        let whose = if max == format.max_message() {
            SmallMessageLimit::Format
        } else if self.limit < self.pool.slot_size() {
            SmallMessageLimit::Peer
        } else {
            SmallMessageLimit::Buffer
        };
        Err(PushError::TooLong { len, max, whose })
    }

    fn refuse(&mut self, blocked: Blocked) -> PushError {
        self.stats.would_block += 1;
        self.refused = true;
        // Freed between the refusal and the arming: nobody else would wake us.
        if blocked == Blocked::Buffers && self.pool.arm(self.pool_waker) {
            self.wait.wake();
        }
        PushError::WouldBlock(blocked)
    }

    /// Has what is packed leave as soon as it can. True: nothing is left here.
    pub(crate) fn flush(&mut self) -> bool {
        self.send_waiting();
        if let Some(open) = &mut self.open {
            open.now = true;
            self.send_open_if_due();
        }
        self.open.is_none() && self.waiting.is_empty()
    }

    // ---- whole buffers --------------------------------------------------------------------------

    pub(crate) fn get_buffer(&mut self) -> Option<BufferMut> {
        let buffer = self.pool.try_acquire();
        if buffer.is_none() {
            self.refuse(Blocked::Buffers);
        }
        buffer
    }

    /// Sends a buffer of the caller's, behind everything that was pushed before.
    pub(crate) fn send_buffer(
        &mut self,
        buffer: BufferMut,
        len: usize,
        key: u64,
    ) -> Result<(), Refused<BufferMut>> {
        assert!(len <= buffer.len(), "{len} of {} bytes", buffer.len());
        let ordered = self.closing.is_some() || self.flush();
        let kind = if self.closing.is_some() {
            SendErrorKind::Closing
        } else if !ordered {
            SendErrorKind::WouldBlock(self.outlet_blocked)
        } else {
            match self.manifest.put(Carried::Buffer { key }) {
                None => SendErrorKind::WouldBlock(Blocked::Depth),
                Some(index) => match self.outlet.send(buffer.freeze(len).into(), index) {
                    Ok(()) => {
                        self.stats.buffers += 1;
                        return Ok(());
                    }
                    Err(Refused {
                        kind,
                        given: payload,
                        ..
                    }) => {
                        self.manifest.take(index);
                        let back = payload.into_buffer().ok();
                        let buffer = back.and_then(|buffer| buffer.try_into_mut().ok());
                        let buffer = buffer.expect("refused, a payload comes back as it was");
                        return Err(self.refuse_buffer(kind, buffer, key));
                    }
                },
            }
        };
        Err(self.refuse_buffer(kind, buffer, key))
    }

    fn refuse_buffer(
        &mut self,
        kind: SendErrorKind,
        buffer: BufferMut,
        key: u64,
    ) -> Refused<BufferMut> {
        if let SendErrorKind::WouldBlock(blocked) = kind {
            self.outlet_blocked = blocked;
            self.refuse(blocked);
        }
        Refused::new(kind, buffer, key)
    }

    // ---- sending --------------------------------------------------------------------------------

    /// Takes the open buffer out: it is sent, or waits, or fails.
    fn close_open(&mut self) {
        let Some(open) = self.open.take() else {
            return;
        };
        self.wait.set_due(None);
        if let Some(packed) = open.pack() {
            self.waiting.push_back(packed);
            self.send_waiting();
        }
    }

    /// Offers the outlet what waits, oldest first, until it takes no more.
    fn send_waiting(&mut self) {
        while let Some(packed) = self.waiting.pop_front() {
            if let Err(packed) = self.send_packed(packed) {
                self.waiting.push_front(packed);
                return;
            }
        }
    }

    /// Sends a buffer, or gives it back because the outlet does not take it now.
    fn send_packed(&mut self, packed: Packed) -> Result<(), Packed> {
        let Packed { payload, count } = packed;
        let carried = Carried::Messages {
            first: self.unsent,
            count: count.into(),
        };
        let Some(index) = self.manifest.put(carried) else {
            self.outlet_blocked = Blocked::Depth;
            return Err(Packed { payload, count });
        };
        let bytes = payload.len_bytes() as u64;
        let refused = match self.outlet.send(payload, index) {
            Ok(()) => {
                self.stats.buffers += 1;
                self.stats.bytes += bytes;
                self.unsent += u64::from(count);
                return Ok(());
            }
            Err(refused) => refused,
        };
        self.manifest.take(index);
        let payload = refused.given;
        match refused.kind {
            SendErrorKind::WouldBlock(blocked) => {
                self.outlet_blocked = blocked;
                Err(Packed { payload, count })
            }
            kind => {
                self.fail_unsent(Packed { payload, count }, kind);
                Ok(())
            }
        }
    }

    /// The oldest messages that were not sent never will be.
    fn fail_unsent(&mut self, packed: Packed, kind: SendErrorKind) {
        let count = u64::from(packed.count);
        let carried = Carried::Messages {
            first: self.unsent,
            count,
        };
        self.unsent += count;
        self.stats.failed += count;
        self.outbox.push(BufferedEvent::Failed {
            carried,
            buffer: packed.payload.into_buffer().ok(),
            error: BufferError::Refused(kind),
        });
        // A sleeper must hear of it.
        self.wait.wake();
    }

    /// Nothing is sent any more.
    fn fail_all_unsent(&mut self, reason: CloseReason) {
        self.waiting
            .extend(self.open.take().and_then(FillingBuffer::pack));
        self.wait.set_due(None);
        while let Some(packed) = self.waiting.pop_front() {
            self.fail_unsent(packed, SendErrorKind::Closed(reason));
        }
    }

    /// Sends the open buffer if its time has come. While others wait in front of it, it could not
    /// leave and goes on being filled.
    fn send_open_if_due(&mut self) {
        let Some(open) = &self.open else { return };
        if !self.waiting.is_empty() || open.packer.is_empty() {
            return;
        }
        if open.now {
            self.stats.flushed += 1;
            self.close_open();
        } else if open.due.is_some_and(|due| due <= self.clock().now()) {
            self.stats.timed += 1;
            self.close_open();
        }
    }

    // ---- polling --------------------------------------------------------------------------------

    pub(crate) fn poll(&mut self, events: &mut Vec<BufferedEvent>) -> Result<(), Error> {
        let mut heard = std::mem::take(&mut self.heard);
        let polled = self.outlet.poll(&mut heard);
        let mut end = None;
        for event in heard.drain(..) {
            match event {
                SendEvent::Connection(ConnectionEvent::Disconnected(reason)) => end = Some(reason),
                other => self.on_event(other, events),
            }
        }
        self.heard = heard;
        polled?;
        if end.is_none() {
            self.send_waiting();
            if let Some(filling) = self.open.as_mut().and_then(|open| open.filling.as_mut()) {
                filling.begin();
            }
            self.send_open_if_due();
            self.close_outlet_if_due();
        }
        if let Some(reason) = end {
            self.fail_all_unsent(reason);
        }
        events.append(&mut self.outbox);
        let over = |reason| BufferedEvent::Connection(ConnectionEvent::Disconnected(reason));
        events.extend(end.map(over));
        if self.refused && self.is_writable() {
            self.refused = false;
            events.push(BufferedEvent::Writable);
        }
        self.arm_timer();
        Ok(())
    }

    #[inline]
    fn on_event(&mut self, event: SendEvent, events: &mut Vec<BufferedEvent>) {
        events.push(match event {
            SendEvent::Completed { key, payload } => {
                let Some(carried) = self.manifest.take(key) else {
                    return;
                };
                self.stats.confirmed += carried.messages();
                let buffer = payload.into_buffer().ok();
                BufferedEvent::Completed { carried, buffer }
            }
            SendEvent::Failed {
                key,
                payload,
                error,
            } => {
                let Some(carried) = self.manifest.take(key) else {
                    return;
                };
                self.stats.failed += carried.messages();
                BufferedEvent::Failed {
                    carried,
                    buffer: payload.into_buffer().ok(),
                    error: BufferError::Completion(error),
                }
            }
            SendEvent::Late { key } => match self.manifest.get(key) {
                Some(carried) => BufferedEvent::Late { carried },
                None => return,
            },
            // What waits is offered at every poll; whether the caller was refused is known here. A
            // buffered endpoint has no windows.
            SendEvent::Writable | SendEvent::Window(_) => return,
            SendEvent::Connection(event) => {
                self.on_connection(&event);
                BufferedEvent::Connection(event)
            }
        });
    }

    fn on_connection(&mut self, event: &ConnectionEvent) {
        match event {
            ConnectionEvent::Connected(info) => {
                let peer = usize::try_from(info.max_message).unwrap_or(usize::MAX);
                self.limit = self.pool.slot_size().min(peer);
                self.peer_closing = false;
            }
            ConnectionEvent::PeerClosing => {
                self.peer_closing = true;
                // Offered to the outlet, it is refused, and fails at once.
                if let Some(open) = &mut self.open {
                    open.now = true;
                }
            }
            ConnectionEvent::Unresponsive
            | ConnectionEvent::Responsive
            | ConnectionEvent::Late
            | ConnectionEvent::Reconnecting { .. }
            | ConnectionEvent::Disconnected(_) => {}
        }
    }

    /// A push would be taken now.
    fn is_writable(&self) -> bool {
        let taken = self.outlet.is_connected()
            && self.closing.is_none()
            && self.waiting.len() < self.settings.waiting as usize;
        taken && (self.pool.free_count() > 0 || self.pool.arm(self.pool_waker))
    }

    fn arm_timer(&self) {
        let retry = || Some(self.clock().now() + CONTROL_RETRY);
        let due = match (&self.open, self.waiting.is_empty()) {
            // Everything else that blocks ends with an event that wakes a sleeper.
            (_, false) if self.outlet_blocked == Blocked::Provider => retry(),
            (_, false) => self.closing,
            (Some(open), true) => open.due.filter(|_| !open.packer.is_empty()),
            (None, true) => None,
        };
        self.wait.set_due(due.filter(|_| !self.closing_outlet));
    }

    // ---- closing --------------------------------------------------------------------------------

    /// Begins the polite close: what is packed is sent first.
    pub(crate) fn begin_close(&mut self, deadline: Instant) {
        self.closing.get_or_insert(deadline);
        // It may wait for once beyond the bound: nothing more comes.
        self.close_open();
        self.close_outlet_if_due();
        self.wait.wake();
    }

    /// Closes the outlet when there is nothing left to send, or no time.
    fn close_outlet_if_due(&mut self) {
        let Some(deadline) = self.closing.filter(|_| !self.closing_outlet) else {
            return;
        };
        let nothing_left = self.open.is_none() && self.waiting.is_empty();
        if nothing_left || !self.outlet.is_connected() || self.clock().now() >= deadline {
            self.closing_outlet = true;
            self.outlet.begin_close(deadline);
        }
    }

    /// Polls until the connection is closed.
    pub(crate) fn close(&mut self, deadline: Instant) -> Result<Vec<BufferedEvent>, Error> {
        let mut events = Vec::new();
        self.begin_close(deadline);
        loop {
            self.poll(&mut events)?;
            if self.outlet.close_reason().is_some() {
                return Ok(events);
            }
            // The deadline ends the loop; the step bounds a wake-up that a provider may lose.
            self.wait
                .sleep(self.clock().now() + Duration::from_millis(100))?;
        }
    }
}

impl<O: Outlet> Drop for BufferedCore<O> {
    /// The rude end: what nobody will hear of is told to the hook, oldest first.
    fn drop(&mut self) {
        self.pool.remove_waker(self.pool_waker);
        // So that what is copied into it is over before it goes back to its pool.
        self.waiting
            .extend(self.open.take().and_then(FillingBuffer::pack));
        let Some(hear) = &mut self.settings.on_abandoned else {
            return;
        };
        let mut in_flight: Vec<_> = self.manifest.entries.iter().flatten().copied().collect();
        in_flight.sort_unstable();
        for carried in in_flight {
            contain("on_abandoned", || hear(carried));
        }
        let mut first = self.unsent;
        for packed in &self.waiting {
            let count = u64::from(packed.count);
            contain("on_abandoned", || hear(Carried::Messages { first, count }));
            first += count;
        }
    }
}

impl<O: Outlet> fmt::Debug for BufferedCore<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BufferedCore")
            .field("format", &self.settings.format)
            .field("connected", &self.outlet.is_connected())
            .field("waiting", &self.waiting.len())
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}
