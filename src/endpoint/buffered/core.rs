//! `BufferedCore`: what a buffered endpoint does, over anything that sends whole buffers.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::Error;
use crate::buffer::{BufferMut, Payload, SharedBufferManager};
use crate::clock::Clock;
use crate::coalesce::{Format, Packer, Placed, total_len};
use crate::contain::{contain, say};
use crate::endpoint::buffered::buffer_sender::BufferSender;
use crate::endpoint::buffered::event::{BufferError, BufferedEvent, Carried, PushError};
use crate::endpoint::buffered::fill_gate::not_copied;
use crate::endpoint::buffered::manifest::Manifest;
use crate::endpoint::buffered::packing::{FlushReason, Packed, Packing};
use crate::endpoint::error::{Blocked, Refused, SendErrorKind};
use crate::endpoint::event::{ConnectionEvent, SendEvent};
use crate::endpoint::hub::control::CONTROL_RETRY;
use crate::endpoint::hub::pool_waker::PoolWaker;
use crate::endpoint::link::wait::EndpointWait;
use crate::metrics::registry::WatchedCells;
use crate::protocol::connection::CloseReason;
use crate::stats::{BufferedCells, BufferedStats};

/// Called for each buffer whose outcome nobody will hear.
pub(crate) type OnAbandoned = Box<dyn FnMut(Carried) + Send>;

pub(crate) struct BufferedSettings {
    pub(crate) format: Format,
    /// Sends in flight: the sender's depth.
    pub(crate) depth: u32,
    /// Full buffers that wait for the sender.
    pub(crate) waiting: u32,
    pub(crate) flush_interval: Option<Duration>,
    pub(crate) on_abandoned: Option<OnAbandoned>,
}

/// Packs messages into buffers of a pool, and sends those.
pub(crate) struct BufferedCore<O: BufferSender> {
    sender: O,
    pool: SharedBufferManager,
    pool_waker: PoolWaker<SharedBufferManager>,
    settings: BufferedSettings,
    packing: Packing,
    manifest: Manifest,
    /// Messages accepted, sent or failed so far: the number of the next one.
    stats: WatchedCells<BufferedCells>,
    /// What the sender's last refusal waits for.
    sender_blocked: Blocked,
    /// A push or a buffer was refused as back-pressure: tell when it has passed.
    refused: bool,
    /// The caller closes: with the sender, as soon as nothing is unsent, or at that time.
    closing: Option<Instant>,
    closing_sender: bool,
    /// The peer closes: nothing can be sent on this connection any more.
    peer_closing: bool,
    /// What happened within calls that report no events.
    outbox: Vec<BufferedEvent>,
    heard: Vec<SendEvent>,
    wait: Arc<EndpointWait>,
}

impl<O: BufferSender> BufferedCore<O> {
    pub(crate) fn new(
        sender: O,
        wait: Arc<EndpointWait>,
        pool: SharedBufferManager,
        settings: BufferedSettings,
        stats: WatchedCells<BufferedCells>,
    ) -> Self {
        let packing = Packing::new(&settings, pool.slot_size(), &wait);
        Self {
            sender,
            pool_waker: PoolWaker::of(&pool, &wait),
            pool,
            packing,
            manifest: Manifest::new(settings.depth),
            settings,
            stats,
            sender_blocked: Blocked::Connecting,
            refused: false,
            closing: None,
            closing_sender: false,
            peer_closing: false,
            outbox: Vec::new(),
            heard: Vec::with_capacity(64),
            wait,
        }
    }

    pub(crate) fn sender(&self) -> &O {
        &self.sender
    }

    #[cfg(test)]
    pub(crate) fn sender_mut(&mut self) -> &mut O {
        &mut self.sender
    }

    /// What it judges deadlines by.
    pub(crate) fn clock(&self) -> &Clock {
        self.wait.clock()
    }

    pub(crate) fn wait(&self) -> &Arc<EndpointWait> {
        &self.wait
    }

    pub(crate) fn pool(&self) -> &SharedBufferManager {
        &self.pool
    }

    pub(crate) fn stats(&self) -> BufferedStats {
        let stats = self.stats.read();
        BufferedStats {
            pending: stats.accepted - stats.confirmed - stats.failed,
            ..stats
        }
    }

    // ---- small messages -------------------------------------------------------------------------

    /// Packs a message, and gives its number.
    #[inline(always)]
    pub(crate) fn push(&mut self, tag: u64, status: u8, bytes: &[u8]) -> Result<u64, PushError> {
        if self.packing.push(tag, status, bytes) {
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
        let len = total_len(segments);
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
        self.packing.fill_from(payload, &placed);
        Ok(self.commit(&placed, len))
    }

    /// Finds room for a message that is written in place. Until it is committed, nothing was
    /// packed.
    pub(crate) fn place(&mut self, tag: u64, status: u8, len: usize) -> Result<Placed, PushError> {
        match self.packing.place(tag, status, len) {
            Some(placed) => Ok(placed),
            None => self.make_room(tag, status, len),
        }
    }

    /// The open buffer's packer, after `place` found room there.
    pub(crate) fn packer(&mut self) -> &mut Packer<BufferMut> {
        self.packing.packer()
    }

    /// The bytes of a message that has its place.
    pub(crate) fn placed(&self, placed: &Placed) -> &[u8] {
        self.packing.placed(placed)
    }

    pub(crate) fn commit(&mut self, placed: &Placed, len: usize) -> u64 {
        self.packer().commit(placed, len);
        self.packed()
    }

    /// A place was not used after all.
    pub(crate) fn discard_place(&mut self) {
        self.packing.discard_place();
    }

    /// One message more lies in the open buffer.
    #[inline]
    fn packed(&mut self) -> u64 {
        let number = self.stats.accepted.read();
        self.stats.accepted.add(1);
        if self.packing.is_full() {
            self.stats.full.add(1);
            self.close_open();
        }
        number
    }

    /// The open buffer does not take this message, or there is none.
    #[cold]
    fn make_room(&mut self, tag: u64, status: u8, len: usize) -> Result<Placed, PushError> {
        let max = self.packing.check_len(tag, status, len)?;
        if let Some(reason) = self.sender.close_reason() {
            return Err(PushError::Closed(reason));
        }
        if self.closing.is_some() || self.peer_closing {
            return Err(PushError::Closing);
        }
        if !self.sender.is_connected() {
            return Err(self.refuse(Blocked::Connecting));
        }
        if self.packing.has_open() {
            if self.is_line_full() {
                self.send_waiting();
            }
            if self.is_line_full() {
                return Err(self.refuse(self.sender_blocked));
            }
            self.stats.full.add(1);
            self.close_open();
        }
        let Some(buffer) = self.pool.try_acquire() else {
            return Err(self.refuse(Blocked::Buffers));
        };
        self.packing.begin(buffer, (tag, status, len), max)
    }

    /// As many buffers wait as may.
    fn is_line_full(&self) -> bool {
        self.packing.waiting() >= self.settings.waiting as usize
    }

    fn refuse(&mut self, blocked: Blocked) -> PushError {
        self.stats.would_block.add(1);
        self.refused = true;
        // Freed between the refusal and the arming: nobody else would wake us.
        if blocked == Blocked::Buffers && self.pool_waker.arm() {
            self.wait.wake();
        }
        PushError::WouldBlock(blocked)
    }

    /// Has what is packed leave as soon as it can. True: nothing is left here.
    pub(crate) fn flush(&mut self) -> bool {
        self.send_waiting();
        self.packing.leave_soon();
        self.send_open_if_due();
        self.packing.is_empty()
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
            SendErrorKind::WouldBlock(self.sender_blocked)
        } else {
            match self.manifest.put(Carried::Buffer { key }) {
                None => SendErrorKind::WouldBlock(Blocked::Depth),
                Some(index) => match self.sender.send(buffer.freeze(len).into(), index) {
                    Ok(()) => {
                        self.stats.buffers.add(1);
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
            self.sender_blocked = blocked;
            self.refuse(blocked);
        }
        Refused::new(kind, buffer, key)
    }

    // ---- sending --------------------------------------------------------------------------------

    /// Takes the open buffer out: it is sent, or waits, or fails.
    fn close_open(&mut self) {
        if self.packing.close_open() {
            self.send_waiting();
        }
    }

    /// Offers the sender what waits, oldest first, until it takes no more.
    fn send_waiting(&mut self) {
        while let Some((packed, carried)) = self.packing.take_next() {
            if let Err(packed) = self.send_packed(packed, carried) {
                self.packing.put_back(packed);
                return;
            }
        }
    }

    /// Sends a buffer, or gives it back because the sender does not take it now.
    fn send_packed(&mut self, packed: Packed, carried: Carried) -> Result<(), Packed> {
        let Packed { payload, count } = packed;
        let Some(index) = self.manifest.put(carried) else {
            self.sender_blocked = Blocked::Depth;
            return Err(Packed { payload, count });
        };
        let bytes = payload.len_bytes() as u64;
        let refused = match self.sender.send(payload, index) {
            Ok(()) => {
                self.stats.buffers.add(1);
                self.stats.bytes.add(bytes);
                self.packing.on_gone(count);
                return Ok(());
            }
            Err(refused) => refused,
        };
        self.manifest.take(index);
        let payload = refused.given;
        match refused.kind {
            SendErrorKind::WouldBlock(blocked) => {
                self.sender_blocked = blocked;
                Err(Packed { payload, count })
            }
            kind => {
                self.fail_unsent(Packed { payload, count }, carried, kind);
                Ok(())
            }
        }
    }

    /// The oldest messages that were not sent never will be.
    fn fail_unsent(&mut self, packed: Packed, carried: Carried, kind: SendErrorKind) {
        self.packing.on_gone(packed.count);
        self.stats.failed.add(u64::from(packed.count));
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
        self.packing.close_open();
        while let Some((packed, carried)) = self.packing.take_next() {
            self.fail_unsent(packed, carried, SendErrorKind::Closed(reason));
        }
    }

    /// Sends the open buffer if its time has come.
    fn send_open_if_due(&mut self) {
        match self.packing.leaves() {
            None => return,
            Some(FlushReason::Flush) => self.stats.flushed.add(1),
            Some(FlushReason::Time) => self.stats.timed.add(1),
        }
        self.close_open();
    }

    // ---- polling --------------------------------------------------------------------------------

    pub(crate) fn poll(&mut self, events: &mut Vec<BufferedEvent>) -> Result<(), Error> {
        let mut heard = std::mem::take(&mut self.heard);
        let polled = self.sender.poll(&mut heard);
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
            self.packing.begin_copies();
            self.send_open_if_due();
            self.close_sender_if_due();
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
                self.stats.confirmed.add(carried.messages());
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
                self.stats.failed.add(carried.messages());
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
                self.packing.set_peer(info.max_message);
                self.peer_closing = false;
            }
            ConnectionEvent::PeerClosing => {
                self.peer_closing = true;
                // Offered to the sender, it is refused, and fails at once.
                self.packing.leave_soon();
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
        let taken = self.sender.is_connected() && self.closing.is_none() && !self.is_line_full();
        taken && (self.pool.free_count() > 0 || self.pool_waker.arm())
    }

    fn arm_timer(&self) {
        let retry = || Some(self.clock().now() + CONTROL_RETRY);
        let due = match self.packing.waiting() {
            0 => self.packing.due(),
            // Everything else that blocks ends with an event that wakes a sleeper.
            _ if self.sender_blocked == Blocked::Provider => retry(),
            _ => self.closing,
        };
        self.wait
            .set_packer_deadline(due.filter(|_| !self.closing_sender));
    }

    // ---- closing --------------------------------------------------------------------------------

    /// Begins the polite close: what is packed is sent first.
    pub(crate) fn begin_close(&mut self, deadline: Instant) {
        self.closing.get_or_insert(deadline);
        // It may wait for once beyond the bound: nothing more comes.
        self.close_open();
        self.close_sender_if_due();
        self.wait.wake();
    }

    /// Closes the sender when there is nothing left to send, or no time.
    fn close_sender_if_due(&mut self) {
        let Some(deadline) = self.closing.filter(|_| !self.closing_sender) else {
            return;
        };
        if self.packing.is_empty() || !self.sender.is_connected() || self.clock().now() >= deadline
        {
            self.closing_sender = true;
            self.sender.begin_close(deadline);
        }
    }

    /// Polls until the connection is closed.
    pub(crate) fn close(&mut self, deadline: Instant) -> Result<Vec<BufferedEvent>, Error> {
        let mut events = Vec::new();
        self.begin_close(deadline);
        loop {
            self.poll(&mut events)?;
            if self.sender.close_reason().is_some() {
                return Ok(events);
            }
            // The deadline ends the loop; the step bounds a wake-up that a provider may lose.
            self.wait
                .sleep(self.clock().now() + Duration::from_millis(100))?;
        }
    }
}

impl<O: BufferSender> Drop for BufferedCore<O> {
    /// The rude end: what nobody will hear of is told to the hook, oldest first.
    fn drop(&mut self) {
        // So that what is copied into it is over before it goes back to its pool.
        self.packing.close_open();
        let mut abandon = |carried| {
            if let Some(hear) = &mut self.settings.on_abandoned {
                contain("on_abandoned", || hear(carried));
            }
        };
        self.manifest.in_flight().into_iter().for_each(&mut abandon);
        let mut unsent = 0;
        while let Some((packed, carried)) = self.packing.take_next() {
            self.packing.on_gone(packed.count);
            unsent += carried.messages();
            abandon(carried);
        }
        if unsent > 0 {
            say(|| {
                tracing::warn!(
                    unsent,
                    "dropped with messages that were packed and not sent: \
                    `close` has them arrive"
                );
            });
        }
    }
}

impl<O: BufferSender> fmt::Debug for BufferedCore<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BufferedCore")
            .field("format", &self.settings.format)
            .field("connected", &self.sender.is_connected())
            .field("waiting", &self.packing.waiting())
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}
