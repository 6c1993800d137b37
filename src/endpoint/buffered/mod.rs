//! `SendEndpointBuffered`: copies messages into network buffers, many small ones into one, and
//! sends those.

pub(crate) mod buffer_sender;
mod config;
pub(crate) mod core;
pub(crate) mod event;
mod fill_gate;
mod manifest;
mod packing;
#[cfg(all(test, not(loom)))]
mod tests;

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::Error;
use crate::buffer::{BufferMut, HeaderSlotConfig, Payload, SharedBufferManager};
use crate::coalesce::Placed;
use crate::endpoint::buffered::core::{BufferedCore, BufferedSettings};
use crate::endpoint::buffered::event::{BufferedEvent, PushBatchError, PushError};
use crate::endpoint::error::Refused;
use crate::endpoint::event::{ConnectionEvent, ConnectionInfo};
use crate::endpoint::limits::moment_in;
use crate::endpoint::send::{SendConfig, SendEndpointZeroCopy};
use crate::endpoint::settings::SettingsOf;
use crate::event_loop::{WaitHandle, Waitable};
use crate::fabric::{Domain, Packing, PeerAddr};
use crate::id::EndpointId;
use crate::metrics::WatchedKind;
use crate::metrics::registry::WatchedCells;
use crate::process::Here;
use crate::protocol::connection::CloseReason;
use crate::protocol::wire::HeaderMode;
use crate::stats::{BufferedStats, SendStats};

pub use config::BufferedConfig;

/// Copies messages into network buffers and sends those to one peer: many small messages in one
/// buffer.
///
/// A small message has a tag, a status and bytes. [`push`](Self::push) packs it behind the others
/// and returns; the buffer leaves when it is full, on [`flush`](Self::flush), or when the flush
/// interval is over. The receiver takes it apart with
/// [`Message::coalesced`](crate::endpoint::Message::coalesced) in the same
/// [`Format`](crate::coalesce::Format). Besides, whole buffers: [`get_buffer`](Self::get_buffer),
/// fill, [`send_buffer`](Self::send_buffer). Everything leaves in the order of the calls.
///
/// Each accepted message has exactly one outcome, told by buffer: [`BufferedEvent::Completed`] and
/// [`BufferedEvent::Failed`] say which messages ([`Carried`](crate::endpoint::Carried)), by the
/// numbers that `push` gave. Where nothing can leave, a push is refused as back-pressure before
/// anything is lost, and [`BufferedEvent::Writable`] says when to go on.
///
/// One thread at a time; [`poll`](Self::poll) drives it, by hand or from an
/// [`EventLoop`](crate::event_loop::EventLoop), which wakes for the flush interval. The published
/// interface that it follows: netio3-backend's `SendEndpointBuffered`, and the coalescing of
/// netio3.
///
/// ```
/// use std::time::{Duration, Instant};
/// use fabricast::coalesce::Format;
/// use fabricast::endpoint::{BufferedConfig, Carried, ReceiveConfig};
/// use fabricast::{BufferedEvent, Fabric, ReceiveEndpoint, ReceiveEvent, SendEndpointBuffered};
///
/// let domain = Fabric::builder().provider("tcp").node("127.0.0.1").open()?.open_domain()?;
/// let mut receiver =
///     ReceiveEndpoint::listen(&domain, "127.0.0.1:0".parse()?, ReceiveConfig::default())?;
/// let mut sender =
///     SendEndpointBuffered::connect(&domain, receiver.local_addr(), BufferedConfig::default())?;
///
/// let (mut sent, mut received) = (Vec::new(), Vec::new());
/// let (mut pushed, mut confirmed, mut arrived) = (0, 0, 0);
/// while confirmed < 1000 || arrived < 1000 {
///     // Refused while the connection is being made, or while the peer takes nothing.
///     while pushed < 1000 && sender.push(0xe1, 0, b"fragment").is_ok() {
///         pushed += 1;
///     }
///     sender.poll(&mut sent)?;
///     receiver.poll(&mut received)?;
///     for event in sent.drain(..) {
///         if let BufferedEvent::Completed { carried, .. } = event {
///             confirmed += carried.messages();
///         }
///     }
///     for event in received.drain(..) {
///         if let ReceiveEvent::Message(message) = event {
///             for small in message.coalesced(Format::Compact) {
///                 let small = small?;
///                 assert_eq!((small.tag, small.status, small.bytes), (0xe1, 0, &b"fragment"[..]));
///                 arrived += 1;
///             }
///         }
///     }
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct SendEndpointBuffered {
    core: Here<BufferedCore<SendEndpointZeroCopy>>,
}

impl SendEndpointBuffered {
    /// Starts to connect to a [`ReceiveEndpoint`](crate::ReceiveEndpoint). Returns at once;
    /// [`ConnectionEvent::Connected`] or
    /// [`ConnectionEvent::Disconnected`] follows,
    /// within the connect timeout.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] for a setting out of its range, [`Error::Memory`] and [`Error::Register`]
    /// for the buffers, and what libfabric answers. Whatever concerns the peer is reported by an
    /// event instead.
    pub fn connect(
        domain: &Arc<Domain>,
        peer: PeerAddr,
        config: BufferedConfig,
    ) -> Result<Self, Error> {
        config.check()?;
        let pool = match &config.pool {
            Some(pool) => pool.clone(),
            None => SharedBufferManager::allocate(config.buffers, config.buffer_size)?,
        };
        pool.region().register(domain)?;
        let depth = config.outgoing.depth_of(SettingsOf::Buffered);
        let settings = BufferedSettings {
            format: config.format,
            depth,
            waiting: config.waiting,
            flush_interval: config.flush_interval,
            on_abandoned: config.on_abandoned,
        };
        // Raw: a buffer needs no slot. One is the least that there may be.
        let slots = HeaderSlotConfig {
            slots: 1,
            slot_size: 64,
        };
        let outgoing = config.outgoing.depth(depth);
        let outgoing = outgoing.header_mode(HeaderMode::Raw).headers(slots);
        // What is in a buffer is packed already.
        let outgoing = outgoing.packing(Packing::Off);
        let mut connection = config.connection;
        connection.kind = Some(WatchedKind::Buffered);
        let send = SendConfig::of(connection, outgoing);
        let sender = SendEndpointZeroCopy::connect(domain, peer, send)?;
        let wait = sender.endpoint_wait();
        let stats = WatchedCells::beside(sender.watched());
        Ok(Self {
            core: Here::new(BufferedCore::new(sender, wait, pool, settings, stats)),
        })
    }

    /// This endpoint's identity: unique in the process.
    pub fn id(&self) -> EndpointId {
        self.core.sender().id()
    }

    // ---- small messages -------------------------------------------------------------------------

    /// Packs a small message behind the others. Gives its number: messages are numbered from 0 as
    /// they are accepted.
    ///
    /// # Errors
    ///
    /// Nothing of it was packed: back-pressure ([`PushError::is_would_block`]), or a message that
    /// can't be sent.
    #[inline]
    pub fn push(&mut self, tag: u64, status: u8, bytes: &[u8]) -> Result<u64, PushError> {
        self.core.owner().check()?;
        self.core.push(tag, status, bytes)
    }

    /// Packs several messages, as [`push`](Self::push) each: tag, status, bytes. How many there
    /// were; their numbers follow each other.
    ///
    /// # Errors
    ///
    /// [`PushBatchError`]: why it stopped, and how many were packed before that. What comes behind
    /// the refused message was not taken from the iterator.
    #[inline]
    pub fn push_batch<'m>(
        &mut self,
        messages: impl IntoIterator<Item = (u64, u8, &'m [u8])>,
    ) -> Result<usize, PushBatchError> {
        let forked = self.core.owner().check();
        let core = &mut *self.core;
        PushBatchError::or_pushed(forked, messages, |tag, status, bytes| {
            core.push(tag, status, bytes)
        })
    }

    /// The same with a message that lies in several pieces, which are copied one behind the other.
    ///
    /// # Errors
    ///
    /// As [`push`](Self::push).
    pub fn push_segments(
        &mut self,
        tag: u64,
        status: u8,
        segments: &[&[u8]],
    ) -> Result<u64, PushError> {
        self.core.owner().check()?;
        self.core.push_segments(tag, status, segments)
    }

    /// The same with a message that lies in a GPU's memory, all or some of its segments, and that
    /// may be [to be read after](Payload::after) an event. It is accepted at once and keeps its
    /// place among the others; its bytes are copied there in the meantime, by a stream of the
    /// endpoint's own, and its buffer is sent when they have arrived. Nothing needs a registration.
    ///
    /// The payload is kept until it is copied, and dropped then: a
    /// [`DeviceBuffer`](crate::buffer::DeviceBuffer) is back in its pool. Who keeps the memory
    /// otherwise may overwrite it when the message has its outcome. An event, or a copy, that
    /// fails, fails the buffer with all messages in it, which comes back in
    /// [`BufferedEvent::Failed`]; the others can be read there, in its own place is whatever lay
    /// there before.
    ///
    /// It does not wait for the GPU where the buffers are [pinned](crate::Region::pinned): give the
    /// endpoint such a [pool](BufferedConfig::pool). With other memory the CUDA driver copies
    /// before it returns, in this call or, where there is an event, in a later poll: as long as the
    /// copy takes, and never for the event.
    ///
    /// # Errors
    ///
    /// As [`push`](Self::push), and [`PushError::NotCopied`]; with the payload.
    pub fn push_payload(
        &mut self,
        tag: u64,
        status: u8,
        payload: impl Into<Payload>,
    ) -> Result<u64, Refused<Payload, PushError>> {
        let payload = payload.into();
        match self.core.owner().check() {
            Ok(()) => self.core.push_payload(tag, status, payload),
            Err(forked) => Err(Refused::without_key(forked, payload)),
        }
    }

    /// Room for a small message of up to `len` bytes, to be written in place: fill it, then
    /// [`commit`](MessageSlot::commit). Dropped, it leaves nothing behind.
    ///
    /// # Errors
    ///
    /// As [`push`](Self::push).
    pub fn reserve(
        &mut self,
        tag: u64,
        status: u8,
        len: usize,
    ) -> Result<MessageSlot<'_>, PushError> {
        self.core.owner().check()?;
        let placed = self.core.place(tag, status, len)?;
        Ok(MessageSlot {
            core: &mut self.core,
            placed,
        })
    }

    /// Has everything that is packed leave now. True: it has; false: the peer or the provider takes
    /// no more at the moment, and it leaves at a later poll, as soon as it can.
    pub fn flush(&mut self) -> bool {
        self.core.owner().is_here() && self.core.flush()
    }

    // ---- whole buffers --------------------------------------------------------------------------

    /// A network buffer to fill; `None` while all are in flight or held
    /// ([`BufferedEvent::Writable`] says when there is one).
    pub fn get_buffer(&mut self) -> Option<BufferMut> {
        if !self.core.owner().is_here() {
            return None;
        }
        self.core.get_buffer()
    }

    /// Sends the first `len` bytes of a buffer as one network message, behind all that was pushed
    /// before. `key` comes back with the outcome.
    ///
    /// The receiver gets it as it is. Where it takes small messages from the same connection, it
    /// must tell them from this one.
    ///
    /// # Errors
    ///
    /// Nothing was sent, and buffer and key are in the error.
    ///
    /// # Panics
    ///
    /// If `len` is more than the buffer's size.
    pub fn send_buffer(
        &mut self,
        buffer: BufferMut,
        len: usize,
        key: u64,
    ) -> Result<(), Refused<BufferMut>> {
        match self.core.owner().check() {
            Ok(()) => self.core.send_buffer(buffer, len, key),
            Err(forked) => Err(Refused::new(forked, buffer, key)),
        }
    }

    // ---- driving --------------------------------------------------------------------------------

    /// Drives the endpoint: offers what waits, sends what is due, and appends what happened.
    /// Returns how many events were added.
    ///
    /// # Errors
    ///
    /// A system call failed, or [`Error::Forked`]. What concerns the connection is an event.
    pub fn poll(&mut self, events: &mut Vec<BufferedEvent>) -> Result<usize, Error> {
        self.core.owner().check()?;
        let before = events.len();
        self.core.poll(events)?;
        Ok(events.len() - before)
    }

    /// Sleeps until there may be something to poll for, the flush interval included, or until the
    /// time given.
    ///
    /// # Errors
    ///
    /// A system call failed, or [`Error::Forked`].
    pub fn wait(&self, timeout: Duration) -> Result<(), Error> {
        self.core.owner().check()?;
        self.core
            .wait()
            .sleep(moment_in(self.core.clock(), timeout))
    }

    /// Polls until the connection stands.
    ///
    /// # Errors
    ///
    /// [`Error::NotConnected`] with the reason, within the connect timeout; [`Error::Closed`] where
    /// the connection stood, and is over.
    pub fn wait_connected(&mut self) -> Result<ConnectionInfo, Error> {
        let mut events = Vec::new();
        loop {
            self.poll(&mut events)?;
            for event in events.drain(..) {
                match event {
                    BufferedEvent::Connection(ConnectionEvent::Connected(info)) => return Ok(info),
                    BufferedEvent::Connection(ConnectionEvent::Disconnected(reason)) => {
                        return Err(self.core.sender().error_of_end(reason));
                    }
                    _ => {}
                }
            }
            if let Some(reason) = self.close_reason() {
                return Err(self.core.sender().error_of_end(reason));
            }
            self.wait(Duration::from_millis(100))?;
        }
    }

    /// True while messages are taken (back-pressure apart).
    pub fn is_connected(&self) -> bool {
        self.core.sender().is_connected()
    }

    /// Why the connection is closed, once it is, for good.
    pub fn close_reason(&self) -> Option<CloseReason> {
        self.core.sender().close_reason()
    }

    /// Begins the polite close and returns at once: no new messages; what is packed is sent, then
    /// both sides say goodbye, and
    /// [`ConnectionEvent::Disconnected`] is the
    /// last event of [`poll`](Self::poll). At the deadline it comes in any case.
    pub fn begin_close(&mut self, deadline: Instant) {
        if self.core.owner().is_here() {
            self.core.begin_close(deadline);
        }
    }

    /// Closes politely and waits for it: all that was pushed arrives, unless the deadline passes
    /// first. Returns the outcomes; the last event is
    /// [`ConnectionEvent::Disconnected`].
    ///
    /// # Errors
    ///
    /// A system call failed, or [`Error::Forked`].
    pub fn close(mut self, deadline: Instant) -> Result<Vec<BufferedEvent>, Error> {
        self.core.owner().check()?;
        self.core.close(deadline)
    }

    /// The pool of buffers, with its counters.
    pub fn pool(&self) -> &SharedBufferManager {
        self.core.pool()
    }

    /// Counters of small messages and buffers.
    pub fn stats(&self) -> BufferedStats {
        self.core.stats()
    }

    /// Counters of the connection: its sends are buffers.
    pub fn send_stats(&self) -> SendStats {
        self.core.sender().stats()
    }
}

impl fmt::Debug for SendEndpointBuffered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendEndpointBuffered")
            .field("core", &*self.core)
            .finish()
    }
}

impl Waitable for SendEndpointBuffered {
    fn wait_handle(&self) -> WaitHandle {
        WaitHandle::new(self.core.wait())
    }
}

/// Room for a small message in the buffer that is being packed; dereferences to its bytes, which
/// are whatever lay there before.
#[must_use = "dropped, it leaves nothing behind; `commit` it"]
pub struct MessageSlot<'a> {
    core: &'a mut BufferedCore<SendEndpointZeroCopy>,
    placed: Placed,
}

impl MessageSlot<'_> {
    /// Makes the first `len` bytes the message, and gives its number.
    ///
    /// # Panics
    ///
    /// If `len` is more than was reserved.
    pub fn commit(self, len: usize) -> u64 {
        let placed = self.placed;
        self.core.commit(&placed, len)
    }
}

impl Deref for MessageSlot<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.core.placed(&self.placed)
    }
}

impl DerefMut for MessageSlot<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.core.packer().bytes_mut(&self.placed)
    }
}

impl Drop for MessageSlot<'_> {
    fn drop(&mut self) {
        self.core.discard_place();
    }
}

impl fmt::Debug for MessageSlot<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MessageSlot")
            .field("len", &self.placed.range().len())
            .finish_non_exhaustive()
    }
}
