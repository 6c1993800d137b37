//! `PublishBufferedCore`: packs what is pushed, tag by tag, publishes what is to leave, and tells
//! by what was in them what becomes of publications.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::config::OnUnpublished;
use super::event::{PublishBufferedEvent, PublishedContent};
use super::tag_batches::{PackedBatch, TagBatches};
use crate::Error;
use crate::buffer::{Buffer, Payload, SharedBufferManager};
use crate::coalesce::{Format, Packer, total_len};
use crate::contain::contain;
use crate::endpoint::buffered::event::{PushError, SmallMessageLimit};
use crate::endpoint::error::{Blocked, MessageLimit, Refused, SendErrorKind};
use crate::endpoint::hub::pool_waker::PoolWaker;
use crate::endpoint::link::wait::EndpointWait;
use crate::endpoint::publish::{Publication, PublishEndpoint, PublishEvent};
use crate::id::IdMap;
use crate::metrics::registry::WatchedCells;
use crate::stats::{BufferedCells, BufferedStats};

/// What the core needs to know; checked by the public configuration.
pub(super) struct PublishBufferedSettings {
    pub(super) format: Format,
    pub(super) flush_interval: Option<Duration>,
    pub(super) tags: usize,
    pub(super) on_abandoned: Option<OnUnpublished>,
}

pub(super) struct PublishBufferedCore {
    endpoint: PublishEndpoint,
    wait: Arc<EndpointWait>,
    pool: SharedBufferManager,
    waker: PoolWaker<SharedBufferManager>,
    batches: TagBatches,
    /// Publications that are not over, by the key that the publisher knows: whose, and what.
    on_the_way: IdMap<u64, (u64, PublishedContent)>,
    next_key: u64,
    settings: PublishBufferedSettings,
    stats: WatchedCells<BufferedCells>,
    /// Not told yet: buffers that could not be published. Each is one of the pool's.
    failed: Vec<PublishBufferedEvent>,
    /// What one poll of the publisher brought; kept for its memory.
    told: Vec<PublishEvent>,
    /// Somebody was refused who is to hear when to go on.
    refused: bool,
    /// The publisher was what refused, and has not said that it takes something again.
    publisher_is_full: bool,
    closing: Option<Instant>,
    /// The publisher closes.
    closes: bool,
}

impl PublishBufferedCore {
    pub(super) fn new(
        endpoint: PublishEndpoint,
        pool: SharedBufferManager,
        settings: PublishBufferedSettings,
    ) -> Self {
        let wait = Arc::clone(endpoint.core.core().wait());
        Self {
            waker: PoolWaker::of(&pool, &wait),
            stats: WatchedCells::beside(endpoint.core.core().watched()),
            endpoint,
            wait,
            pool,
            batches: TagBatches::default(),
            on_the_way: IdMap::default(),
            next_key: 0,
            settings,
            failed: Vec::new(),
            told: Vec::new(),
            refused: false,
            publisher_is_full: false,
            closing: None,
            closes: false,
        }
    }

    pub(super) fn endpoint(&self) -> &PublishEndpoint {
        &self.endpoint
    }

    pub(super) fn endpoint_mut(&mut self) -> &mut PublishEndpoint {
        &mut self.endpoint
    }

    pub(super) fn wait(&self) -> &Arc<EndpointWait> {
        &self.wait
    }

    pub(super) fn pool(&self) -> &SharedBufferManager {
        &self.pool
    }

    pub(super) fn stats(&self) -> BufferedStats {
        let stats = self.stats.read();
        BufferedStats {
            pending: stats.accepted - stats.confirmed - stats.failed,
            ..stats
        }
    }

    // ---- small messages -------------------------------------------------------------------------

    pub(super) fn push(
        &mut self,
        tag: u64,
        status: u8,
        segments: &[&[u8]],
    ) -> Result<u64, PushError> {
        if self.closing.is_some() {
            return Err(PushError::Closing);
        }
        if self.endpoint.subscribers(tag) == 0 {
            return Err(PushError::NoSubscribers { tag });
        }
        let pushed = match self.batches.push(tag, status, segments) {
            Some(number) => Ok(number),
            None => self.push_first(tag, status, segments),
        };
        self.stats.accepted.add(u64::from(pushed.is_ok()));
        pushed
    }

    /// Begins a buffer with this message; one of its tag that is full leaves before it.
    #[cold]
    fn push_first(&mut self, tag: u64, status: u8, segments: &[&[u8]]) -> Result<u64, PushError> {
        let (len, size) = (total_len(segments), self.pool.slot_size());
        let format = self.settings.format;
        // A message that no buffer takes is refused before anything leaves for it.
        let max = SmallMessageLimit::check_len(format, (size, size), (tag, status, len))?;
        if self.batches.has(tag) {
            self.stats.full.add(1);
            self.leave(tag).map_err(PushError::WouldBlock)?;
        } else if self.batches.len() >= self.settings.tags {
            self.batches.leave_oldest();
            self.send_leaving();
            if self.batches.len() >= self.settings.tags {
                return Err(PushError::WouldBlock(self.refuse(Blocked::Depth)));
            }
        }
        let Some(buffer) = self.pool.try_acquire() else {
            // So that one comes back, however long the others may wait.
            self.batches.leave_oldest();
            self.send_leaving();
            return Err(PushError::WouldBlock(self.refuse(Blocked::Buffers)));
        };
        let mut packer = Packer::new(format, buffer);
        let packed = packer.push_segments(tag, status, segments);
        packed.map_err(|_| PushError::TooLong {
            len,
            max,
            whose: SmallMessageLimit::Buffer,
        })?;
        let now = self.wait.clock().now();
        let interval = self.settings.flush_interval;
        let due = interval.and_then(|interval| now.checked_add(interval));
        let number = self.batches.begin(tag, packer, due);
        self.arm_timer();
        Ok(number)
    }

    /// Has the buffer of a tag leave now; an error when it can't yet.
    fn leave(&mut self, tag: u64) -> Result<(), Blocked> {
        self.batches.leave(tag);
        self.send_leaving();
        match self.batches.has(tag) {
            true => Err(self.refuse(Blocked::Depth)),
            false => Ok(()),
        }
    }

    /// Counts a refusal, after which the caller is told when to go on.
    fn refuse(&mut self, blocked: Blocked) -> Blocked {
        self.stats.would_block.add(1);
        self.refused = true;
        // Freed between the refusal and the arming: nobody else would wake us.
        if blocked == Blocked::Buffers && self.waker.arm() {
            self.wait.wake();
        }
        blocked
    }

    /// Has all that is packed leave. True: it has.
    pub(super) fn flush(&mut self) -> bool {
        self.stats.flushed.add(self.batches.leave_all());
        self.send_leaving();
        self.arm_timer();
        self.batches.is_empty()
    }

    /// The same of one tag.
    pub(super) fn flush_tag(&mut self, tag: u64) -> bool {
        self.stats.flushed.add(u64::from(self.batches.has(tag)));
        self.batches.leave(tag);
        self.send_leaving();
        self.arm_timer();
        !self.batches.has(tag)
    }

    // ---- publishing -----------------------------------------------------------------------------

    /// Publishes what leaves, until the publisher takes no more.
    fn send_leaving(&mut self) {
        while let Some(batch) = self.batches.take_next() {
            if let Some(batch) = self.send_batch(batch) {
                return self.batches.put_back(batch);
            }
        }
    }

    /// Publishes a buffer, or fails it; gives it back when it has to wait.
    fn send_batch(&mut self, batch: PackedBatch) -> Option<PackedBatch> {
        let (tag, content, bytes) = (batch.tag, batch.content(), batch.buffer.len() as u64);
        let Err(refused) = self.post(tag, batch.buffer.into(), b"", content) else {
            self.stats.buffers.add(1);
            self.stats.bytes.add(bytes);
            return None;
        };
        let waits = refused.is_would_block();
        match refused.given.into_buffer() {
            Ok(buffer) if waits => return Some(PackedBatch { buffer, ..batch }),
            given => self.fail(tag, content, given.ok(), refused.kind),
        }
        None
    }

    fn fail(
        &mut self,
        tag: u64,
        content: PublishedContent,
        buffer: Option<Buffer>,
        error: SendErrorKind,
    ) {
        self.stats.failed.add(content.messages());
        self.failed.push(PublishBufferedEvent::Failed {
            tag,
            content,
            buffer,
            error,
        });
        // Whoever sleeps is to hear of it.
        self.wait.wake();
    }

    /// Gives a payload to the publisher, by a key of its own.
    fn post(
        &mut self,
        tag: u64,
        payload: Payload,
        header: &[u8],
        content: PublishedContent,
    ) -> Result<Publication, Refused<Payload>> {
        let key = self.next_key;
        let published = self.endpoint.publish(tag, payload, header, key);
        match &published {
            Ok(_) => {
                self.next_key += 1;
                self.on_the_way.insert(key, (tag, content));
            }
            Err(refused) => self.publisher_is_full |= refused.is_would_block(),
        }
        published
    }

    /// Publishes a payload of the caller's, behind what is packed of its tag.
    pub(super) fn publish(
        &mut self,
        tag: u64,
        payload: Payload,
        header: &[u8],
        key: u64,
    ) -> Result<Publication, Refused<Payload>> {
        if let Err(kind) = self.make_way(tag) {
            return Err(Refused::new(kind, payload, key));
        }
        let content = PublishedContent::Payload { key };
        self.post(tag, payload, header, content).map_err(|refused| {
            self.refused |= refused.is_would_block();
            self.stats
                .would_block
                .add(u64::from(refused.is_would_block()));
            Refused { key, ..refused }
        })
    }

    /// The same of a copy.
    pub(super) fn publish_copied(
        &mut self,
        tag: u64,
        bytes: &[u8],
        header: &[u8],
        key: u64,
    ) -> Result<Publication, SendErrorKind> {
        let (len, max) = (bytes.len(), self.pool.slot_size());
        if len > max {
            return Err(SendErrorKind::TooLong {
                len: len as u64,
                max: max as u64,
                whose: MessageLimit::Buffer,
            });
        }
        self.make_way(tag)?;
        if self.endpoint.subscribers(tag) == 0 {
            return Err(SendErrorKind::NoSubscribers { tag });
        }
        let Some(mut buffer) = self.pool.try_acquire() else {
            self.batches.leave_oldest();
            self.send_leaving();
            return Err(SendErrorKind::WouldBlock(self.refuse(Blocked::Buffers)));
        };
        buffer[..len].copy_from_slice(bytes);
        let published = self.publish(tag, buffer.freeze(len).into(), header, key);
        self.stats.buffers.add(u64::from(published.is_ok()));
        published.map_err(|refused| refused.kind)
    }

    /// What was pushed before, of the same tag, leaves before.
    fn make_way(&mut self, tag: u64) -> Result<(), SendErrorKind> {
        if self.closing.is_some() {
            return Err(SendErrorKind::Closing);
        }
        if self.batches.has(tag) {
            self.stats.flushed.add(1);
            self.leave(tag).map_err(SendErrorKind::WouldBlock)?;
            self.arm_timer();
        }
        Ok(())
    }

    // ---- driving --------------------------------------------------------------------------------

    pub(super) fn poll(&mut self, events: &mut Vec<PublishBufferedEvent>) -> Result<(), Error> {
        let mut told = std::mem::take(&mut self.told);
        let polled = self.endpoint.poll(&mut told);
        for event in told.drain(..) {
            events.extend(self.translate(event));
        }
        self.told = told;
        self.stats
            .timed
            .add(self.batches.leave_due(self.wait.clock().now()));
        self.send_leaving();
        self.close_if_due();
        events.append(&mut self.failed);
        if self.refused && self.is_writable() {
            self.refused = false;
            events.push(PublishBufferedEvent::Writable);
        }
        self.arm_timer();
        polled.map(drop)
    }

    fn is_writable(&self) -> bool {
        let waits = self.publisher_is_full || self.batches.has_leaving() || self.closing.is_some();
        !waits && (self.pool.free_count() > 0 || self.waker.arm())
    }

    fn translate(&mut self, event: PublishEvent) -> Option<PublishBufferedEvent> {
        Some(match event {
            PublishEvent::Request(request) => PublishBufferedEvent::Request(request),
            PublishEvent::Connection(id, event) => PublishBufferedEvent::Connection(id, event),
            PublishEvent::Subscribed { connection, tag } => {
                PublishBufferedEvent::Subscribed { connection, tag }
            }
            PublishEvent::Unsubscribed { connection, tag } => {
                PublishBufferedEvent::Unsubscribed { connection, tag }
            }
            PublishEvent::SubscriptionsGone { connection, count } => {
                PublishBufferedEvent::SubscriptionsGone { connection, count }
            }
            PublishEvent::Peer {
                key,
                connection,
                outcome,
            } => {
                let &(tag, content) = self.on_the_way.get(&key)?;
                PublishBufferedEvent::Peer {
                    tag,
                    content,
                    connection,
                    outcome,
                }
            }
            PublishEvent::Late { key, connection } => {
                let &(tag, content) = self.on_the_way.get(&key)?;
                PublishBufferedEvent::Late {
                    tag,
                    content,
                    connection,
                }
            }
            PublishEvent::Published {
                key,
                payload,
                outcomes,
            } => {
                let (tag, content) = self.on_the_way.remove(&key)?;
                self.stats.confirmed.add(content.messages());
                PublishBufferedEvent::Published {
                    tag,
                    content,
                    payload,
                    outcomes,
                }
            }
            PublishEvent::Writable => {
                self.publisher_is_full = false;
                return None;
            }
        })
    }

    fn arm_timer(&self) {
        let due = match self.closing {
            Some(deadline) => Some(deadline).filter(|_| !self.closes),
            None => self.batches.due(),
        };
        self.wait.set_packer_deadline(due);
    }

    // ---- closing --------------------------------------------------------------------------------

    /// Begins the polite close: what is packed is published first.
    pub(super) fn begin_close(&mut self, deadline: Instant) {
        self.closing.get_or_insert(deadline);
        self.flush();
        self.close_if_due();
        self.wait.wake();
    }

    /// Closes the publisher when nothing is left to publish, or no time, or nobody to publish for.
    fn close_if_due(&mut self) {
        let Some(deadline) = self.closing.filter(|_| !self.closes) else {
            return;
        };
        let is_over = self.wait.clock().now() >= deadline || self.endpoint.connections() == 0;
        if !self.batches.is_empty() && !is_over {
            return;
        }
        self.closes = true;
        while let Some(batch) = self.batches.take_next() {
            let content = batch.content();
            self.fail(
                batch.tag,
                content,
                Some(batch.buffer),
                SendErrorKind::Closing,
            );
        }
        self.endpoint.begin_close(deadline);
    }

    /// Polls until every connection is closed.
    pub(super) fn close(&mut self, deadline: Instant) -> Result<Vec<PublishBufferedEvent>, Error> {
        let mut events = Vec::new();
        self.begin_close(deadline);
        loop {
            // A failed endpoint closes its connections, too.
            let _ = self.poll(&mut events);
            if self.closes && self.endpoint.connections() == 0 {
                // What ended with the last of them.
                let _ = self.poll(&mut events);
                return Ok(events);
            }
            // The deadline ends the loop; the step bounds a wake-up that a provider may lose.
            let step = self.wait.clock().now() + Duration::from_millis(100);
            self.wait.sleep(step)?;
        }
    }
}

impl Drop for PublishBufferedCore {
    /// The rude end: what nobody will hear of is told to the hook.
    fn drop(&mut self) {
        let Some(hear) = &mut self.settings.on_abandoned else {
            return;
        };
        let mut keys: Vec<_> = self.on_the_way.keys().copied().collect();
        keys.sort_unstable();
        for key in keys {
            let (tag, content) = self.on_the_way[&key];
            contain("on_abandoned", || hear(tag, content));
        }
        self.batches.leave_all();
        while let Some(batch) = self.batches.take_next() {
            contain("on_abandoned", || hear(batch.tag, batch.content()));
        }
    }
}
