//! `SendEndpointBuffered`: copies messages into network buffers, many small ones into one, and
//! sends those.

pub(crate) mod core;
#[cfg(all(test, not(loom)))]
mod core_tests;
pub(crate) mod event;
mod filling;

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::Error;
use crate::buffer::{BufferMut, HeaderSlotConfig, Payload, SharedBufferManager};
use crate::coalesce::{Format, Placed};
use crate::endpoint::buffered::core::{
    BufferedCore, BufferedSettings, BufferedWait, OnAbandoned, Outlet,
};
use crate::endpoint::buffered::event::{BufferedEvent, Carried, PushError};
use crate::endpoint::error::Refused;
use crate::endpoint::event::{ConnectionEvent, ConnectionInfo, SendEvent};
use crate::endpoint::limits::{check_count, check_size, config, moment_in};
use crate::endpoint::send::{SendConfig, SendEndpointZeroCopy};
use crate::endpoint::settings::{ConnectionSettings, OutgoingSettings, SettingsOf};
use crate::event_loop::{WaitHandle, Waitable};
use crate::fabric::{Domain, PeerAddr};
use crate::id::EndpointId;
use crate::process::Here;
use crate::protocol::connection::CloseReason;
use crate::protocol::wire::HeaderMode;
use crate::stats::{BufferedStats, SendStats};

/// The settings of a [`SendEndpointBuffered`]: those of its [connection](ConnectionSettings), of
/// [what goes out](OutgoingSettings), and its own:
///
/// | setting | unit | default | range |
/// |---|---|---|---|
/// | `format` | | `Compact` | |
/// | `buffers` | count | 32 | 1 to 65,536 |
/// | `buffer_size` | bytes | 65,536 | 64 to 1 GiB |
/// | `pool` | | one of its own, of the two above | |
/// | `flush_interval` | time | 1 ms | 1 µs to 1 h, or none |
/// | `waiting` | packed buffers that wait to be sent | 8 | 1 to 65,536 |
///
/// The peer's [`max_message`](crate::endpoint::IncomingSettings::max_message) should be at least
/// the buffer size; where it is less, less of each buffer is used.
///
/// A packed buffer has no header: its header mode is always [`HeaderMode::Raw`], and there are no
/// header slots to set.
pub struct BufferedConfig {
    connection: ConnectionSettings,
    outgoing: OutgoingSettings,
    format: Format,
    buffers: u32,
    buffer_size: usize,
    pool: Option<SharedBufferManager>,
    flush_interval: Option<Duration>,
    waiting: u32,
    on_abandoned: Option<OnAbandoned>,
}

impl Default for BufferedConfig {
    fn default() -> Self {
        Self {
            connection: ConnectionSettings::default(),
            outgoing: OutgoingSettings::default(),
            format: Format::Compact,
            buffers: 32,
            buffer_size: 64 * 1024,
            pool: None,
            flush_interval: Some(Duration::from_millis(1)),
            waiting: 8,
            on_abandoned: None,
        }
    }
}

impl BufferedConfig {
    /// How the connection is made, watched and ended.
    #[must_use]
    pub fn connection(
        mut self,
        set: impl FnOnce(ConnectionSettings) -> ConnectionSettings,
    ) -> Self {
        self.connection = set(self.connection);
        self
    }

    /// What goes out, and how.
    #[must_use]
    pub fn outgoing(mut self, set: impl FnOnce(OutgoingSettings) -> OutgoingSettings) -> Self {
        self.outgoing = set(self.outgoing);
        self
    }

    /// How small messages lie in a buffer. The receiver must be told the same.
    #[must_use]
    pub fn format(mut self, format: Format) -> Self {
        self.format = format;
        self
    }

    /// How many buffers the endpoint has.
    #[must_use]
    pub fn buffers(mut self, count: u32) -> Self {
        self.buffers = count;
        self
    }

    /// Bytes of a buffer.
    #[must_use]
    pub fn buffer_size(mut self, bytes: usize) -> Self {
        self.buffer_size = bytes;
        self
    }

    /// Buffers of this pool instead, shared with other endpoints; it is registered with the domain.
    /// `buffers` and `buffer_size` are its own.
    #[must_use]
    pub fn pool(mut self, pool: &SharedBufferManager) -> Self {
        self.pool = Some(pool.clone());
        self
    }

    /// How long a message waits for others, counted from the first in its buffer; `None`: until the
    /// buffer is full or [`flush`](SendEndpointBuffered::flush). It is kept as well as the endpoint
    /// is polled, and a sleeping loop wakes for it. While the peer or the provider takes nothing,
    /// it can't be kept, and buffers fill up instead.
    #[must_use]
    pub fn flush_interval(mut self, time: Option<Duration>) -> Self {
        self.flush_interval = time;
        self
    }

    /// How many packed buffers may wait for credits or for sends in flight; beyond, a push is
    /// refused.
    #[must_use]
    pub fn waiting(mut self, buffers: u32) -> Self {
        self.waiting = buffers;
        self
    }

    /// Called for each buffer, and for what is packed and not sent, when the endpoint is dropped
    /// before their outcome is known; from within the drop: a panic of it is logged, and goes no
    /// further.
    #[must_use]
    pub fn on_abandoned(mut self, hear: impl FnMut(Carried) + Send + 'static) -> Self {
        self.on_abandoned = Some(Box::new(hear));
        self
    }

    fn check(&self) -> Result<(), Error> {
        self.connection.check(SettingsOf::Buffered)?;
        self.outgoing.check(SettingsOf::Buffered)?;
        let count = "must be 1 to 65536";
        check_count("buffers", self.buffers, 65_536, count)?;
        check_count("waiting", self.waiting, 65_536, count)?;
        let size = self
            .pool
            .as_ref()
            .map_or(self.buffer_size, SharedBufferManager::slot_size);
        check_size("buffer_size", size)?;
        let range = Duration::from_micros(1)..=Duration::from_secs(3600);
        match self.flush_interval {
            Some(time) if !range.contains(&time) => Err(config(
                "flush_interval",
                format!("{time:?}"),
                "must be 1 µs to 1 h, or none",
            )),
            _ => Ok(()),
        }
    }
}

impl fmt::Debug for BufferedConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BufferedConfig")
            .field("format", &self.format)
            .field("buffers", &self.buffers)
            .field("buffer_size", &self.buffer_size)
            .field("flush_interval", &self.flush_interval)
            .field("waiting", &self.waiting)
            .field("outgoing", &self.outgoing)
            .finish_non_exhaustive()
    }
}

impl Outlet for SendEndpointZeroCopy {
    #[inline]
    fn send(&mut self, payload: Payload, key: u64) -> Result<(), Refused<Payload>> {
        self.send_data(payload, &[], key)
    }

    #[inline]
    fn poll(&mut self, events: &mut Vec<SendEvent>) -> Result<(), Error> {
        Self::poll(self, events).map(drop)
    }

    fn is_connected(&self) -> bool {
        Self::is_connected(self)
    }

    fn close_reason(&self) -> Option<CloseReason> {
        Self::close_reason(self)
    }

    fn begin_close(&mut self, deadline: Instant) {
        Self::begin_close(self, deadline);
    }
}

/// Copies messages into network buffers and sends those to one peer: many small messages in one
/// buffer.
///
/// A small message has a tag, a status and bytes. [`push`](Self::push) packs it behind the others
/// and returns; the buffer leaves when it is full, on [`flush`](Self::flush), or when the flush
/// interval is over. The receiver takes it apart with
/// [`Message::coalesced`](crate::endpoint::Message::coalesced) in the same [`Format`]. Besides,
/// whole buffers: [`get_buffer`](Self::get_buffer), fill, [`send_buffer`](Self::send_buffer).
/// Everything leaves in the order of the calls.
///
/// Each accepted message has exactly one outcome, told by buffer: [`BufferedEvent::Completed`] and
/// [`BufferedEvent::Failed`] say which messages ([`Carried`]), by the numbers that `push` gave.
/// Where nothing can leave, a push is refused as back-pressure before anything is lost, and
/// [`BufferedEvent::Writable`] says when to go on.
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
        let send = SendConfig::of(config.connection, outgoing);
        let outlet = SendEndpointZeroCopy::connect(domain, peer, send)?;
        let wait = BufferedWait::new(outlet.endpoint_wait());
        Ok(Self {
            core: Here::new(BufferedCore::new(outlet, wait, pool, settings)),
        })
    }

    /// This endpoint's identity: unique in the process.
    pub fn id(&self) -> EndpointId {
        self.core.outlet().id()
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
    /// [`Error::Closed`] with the reason, within the connect timeout.
    pub fn wait_connected(&mut self) -> Result<ConnectionInfo, Error> {
        let mut events = Vec::new();
        loop {
            self.poll(&mut events)?;
            for event in events.drain(..) {
                match event {
                    BufferedEvent::Connection(ConnectionEvent::Connected(info)) => return Ok(info),
                    BufferedEvent::Connection(ConnectionEvent::Disconnected(reason)) => {
                        return Err(Error::Closed(reason));
                    }
                    _ => {}
                }
            }
            if let Some(reason) = self.close_reason() {
                return Err(Error::Closed(reason));
            }
            self.wait(Duration::from_millis(100))?;
        }
    }

    /// True while messages are taken (back-pressure apart).
    pub fn is_connected(&self) -> bool {
        self.core.outlet().is_connected()
    }

    /// Why the connection is closed, once it is, for good.
    pub fn close_reason(&self) -> Option<CloseReason> {
        self.core.outlet().close_reason()
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
        self.core.outlet().stats()
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::endpoint::documented_settings::{Setting, compare};

    #[test]
    fn the_table_of_settings_is_what_the_code_does() {
        let settings: &[Setting<BufferedConfig>] = &[
            Setting {
                name: "buffers",
                get: |c| c.buffers.into(),
                set: |c, v| c.buffers(v.count()),
            },
            Setting {
                name: "buffer_size",
                get: |c| c.buffer_size.into(),
                set: |c, v| c.buffer_size(v.bytes()),
            },
            Setting {
                name: "flush_interval",
                get: |c| c.flush_interval.into(),
                set: |c, v| c.flush_interval(v.limit()),
            },
            Setting {
                name: "waiting",
                get: |c| c.waiting.into(),
                set: |c, v| c.waiting(v.count()),
            },
        ];
        compare(
            include_str!("mod.rs"),
            "BufferedConfig",
            settings,
            BufferedConfig::check,
        );
    }

    /// The ranges themselves are those of the groups' tables.
    #[test]
    fn its_groups_are_checked() {
        let refused = [
            (
                BufferedConfig::default().connection(|c| c.close_timeout(Duration::ZERO)),
                "close_timeout",
            ),
            (
                BufferedConfig::default().outgoing(|out| out.depth(0)),
                "depth",
            ),
            (
                BufferedConfig::default().outgoing(|out| out.header_mode(HeaderMode::Prefixed)),
                "header_mode",
            ),
        ];
        for (config, named) in refused {
            let error = config.check().expect_err(named).to_string();
            assert!(error.starts_with(&format!("setting {named} = ")), "{error}");
        }
    }
}
