//! `PublishEndpointBuffered`: copies what is published into network buffers, many small messages of
//! a tag into one.

mod config;
mod core;
mod event;
mod tag_batches;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use self::core::{PublishBufferedCore, PublishBufferedSettings};
use super::policy::SlowPolicy;
use super::{Publication, PublishEndpoint};
use crate::Error;
use crate::buffer::{Payload, SharedBufferManager};
use crate::endpoint::buffered::event::{PushBatchError, PushError};
use crate::endpoint::error::{Refused, SendErrorKind};
use crate::endpoint::event::ConnectionRequest;
use crate::endpoint::limits::moment_in;
use crate::event_loop::{WaitHandle, Waitable};
use crate::fabric::{Domain, PeerAddr};
use crate::id::ConnectionId;
use crate::process::Here;
use crate::stats::BufferedStats;

pub use config::PublishBufferedConfig;
pub use event::{PublishBufferedEvent, PublishedContent};

/// Room in front of the buffers for a header slot of the usual size and what stands before it,
/// where the provider takes one segment only.
const HEADROOM: usize = 128;

/// Copies what is published into network buffers: many small messages of a tag into one buffer,
/// which goes to everybody who has subscribed to the tag.
///
/// * [`push`](Self::push) packs a message behind the others of its tag and returns; the buffer is
///   published when it is full, on [`flush`](Self::flush), or when the flush interval is over.
///   Subscribers take it apart with
///   [`Message::coalesced`](crate::endpoint::Message::coalesced) in the same
///   [`Format`](crate::coalesce::Format).
/// * [`publish_copied`](Self::publish_copied) copies one payload and publishes it at once.
/// * [`publish`](Self::publish) is the one of a [`PublishEndpoint`], without a copy.
///
/// What is published of one tag leaves in the order of the calls, whichever they are. Subscribers
/// must tell a buffer of small messages from a payload of the other two, by its tag or by a header:
/// that of packed messages is empty.
///
/// Each accepted message has exactly one outcome, told by buffer:
/// [`PublishBufferedEvent::Published`] and [`PublishBufferedEvent::Failed`] say which messages
/// ([`PublishedContent`]), by the number that `push` gave. A subscriber that has no room misses
/// whole buffers, by its [`SlowPolicy`]. Where nothing can leave, a push is refused as
/// back-pressure before anything is lost, and [`PublishBufferedEvent::Writable`] says when to go
/// on.
///
/// One thread at a time; [`poll`](Self::poll) drives it, by hand or from an
/// [`EventLoop`](crate::event_loop::EventLoop), which wakes for the flush interval.
///
/// ```
/// use fabricast::coalesce::Format;
/// use fabricast::endpoint::{PublishBufferedConfig, SubscribeConfig};
/// use fabricast::{
///     Fabric, PublishBufferedEvent, PublishEndpointBuffered, SubscribeEndpoint, SubscribeEvent,
/// };
///
/// let domain = Fabric::builder().provider("tcp").node("127.0.0.1").open()?.open_domain()?;
/// let config = PublishBufferedConfig::default();
/// let mut publisher =
///     PublishEndpointBuffered::listen(&domain, "127.0.0.1:0".parse()?, config)?;
/// let mut subscriber = SubscribeEndpoint::open(&domain, SubscribeConfig::default())?;
/// let at = subscriber.connect(publisher.endpoint().local_addr())?;
/// subscriber.subscribe(at, 0x1007)?;
///
/// let (mut told, mut came) = (Vec::new(), Vec::new());
/// let (mut pushed, mut confirmed, mut arrived) = (0, 0, 0);
/// while confirmed < 1000 || arrived < 1000 {
///     // Refused until somebody has subscribed, and while no buffer is free.
///     while pushed < 1000 && publisher.push(0x1007, 0, b"fragment").is_ok() {
///         pushed += 1;
///     }
///     publisher.poll(&mut told)?;
///     subscriber.poll(&mut came)?;
///     for event in told.drain(..) {
///         if let PublishBufferedEvent::Published { content, outcomes, .. } = event {
///             assert_eq!(outcomes.sent, 1);
///             confirmed += content.messages();
///         }
///     }
///     for event in came.drain(..) {
///         if let SubscribeEvent::Publication { message, .. } = event {
///             for small in message.coalesced(Format::Compact) {
///                 assert_eq!(small?.bytes, b"fragment");
///                 arrived += 1;
///             }
///         }
///     }
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct PublishEndpointBuffered {
    core: Here<PublishBufferedCore>,
}

impl PublishEndpointBuffered {
    /// Listens for subscribers at an address of this machine, as [`PublishEndpoint::listen`].
    ///
    /// # Errors
    ///
    /// As there, and [`Error::Config`], [`Error::Memory`] and [`Error::Register`] for the buffers.
    pub fn listen(
        domain: &Arc<Domain>,
        addr: PeerAddr,
        config: PublishBufferedConfig,
    ) -> Result<Self, Error> {
        config.check()?;
        let pool = match &config.pool {
            Some(pool) => pool.clone(),
            None => {
                let (buffers, size) = (config.buffers, config.buffer_size);
                SharedBufferManager::allocate_with_headroom(buffers, size, HEADROOM)?
            }
        };
        let endpoint = PublishEndpoint::listen(domain, addr, config.publishing)?;
        pool.region().register(domain)?;
        let settings = PublishBufferedSettings {
            format: config.format,
            flush_interval: config.flush_interval,
            tags: config.tags as usize,
            on_abandoned: config.on_abandoned,
        };
        Ok(Self {
            core: Here::new(PublishBufferedCore::new(endpoint, pool, settings)),
        })
    }

    /// The publisher below: its address, subscribers, connections and counters. Its publications
    /// are buffers.
    pub fn endpoint(&self) -> &PublishEndpoint {
        self.core.endpoint()
    }

    // ---- publishing -----------------------------------------------------------------------------

    /// Packs a small message behind the others of its tag. Gives the number of their buffer, which
    /// the outcome names: buffers are numbered from 0 as they begin.
    ///
    /// # Errors
    ///
    /// Nothing of it was packed: nobody has subscribed to the tag, back-pressure
    /// ([`PushError::is_would_block`]), or a message that can't be sent.
    #[inline]
    pub fn push(&mut self, tag: u64, status: u8, bytes: &[u8]) -> Result<u64, PushError> {
        self.push_segments(tag, status, &[bytes])
    }

    /// Packs several messages, as [`push`](Self::push) each: tag, status, bytes. How many there
    /// were.
    ///
    /// # Errors
    ///
    /// [`PushBatchError`]: why it stopped, and how many were packed before that. What comes behind
    /// the refused message was not taken from the iterator.
    pub fn push_batch<'m>(
        &mut self,
        messages: impl IntoIterator<Item = (u64, u8, &'m [u8])>,
    ) -> Result<usize, PushBatchError> {
        let forked = self.core.owner().check();
        let core = &mut *self.core;
        PushBatchError::or_pushed(forked, messages, |tag, status, bytes| {
            core.push(tag, status, &[bytes])
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
        self.core.push(tag, status, segments)
    }

    /// Publishes everything that is packed now. True: it is published; false: as many publications
    /// are not over as may be, and the rest leaves at a later poll, as soon as it can.
    pub fn flush(&mut self) -> bool {
        self.core.owner().is_here() && self.core.flush()
    }

    /// The same of one tag.
    pub fn flush_tag(&mut self, tag: u64) -> bool {
        self.core.owner().is_here() && self.core.flush_tag(tag)
    }

    /// Copies a payload into a buffer and publishes it at once, behind what was pushed of its tag.
    /// `key` is the caller's own, and comes back in [`PublishBufferedEvent::Published`].
    ///
    /// # Errors
    ///
    /// Nothing was published: nobody has subscribed to the tag, back-pressure
    /// ([`SendErrorKind::WouldBlock`]), a payload longer than a buffer, or a header that does not
    /// fit.
    pub fn publish_copied(
        &mut self,
        tag: u64,
        bytes: &[u8],
        header: &[u8],
        key: u64,
    ) -> Result<Publication, SendErrorKind> {
        self.core.owner().check()?;
        self.core.publish_copied(tag, bytes, header, key)
    }

    /// Publishes a payload from where it lies, as [`PublishEndpoint::publish`] does, behind what
    /// was pushed of its tag. The payload comes back in [`PublishBufferedEvent::Published`].
    ///
    /// # Errors
    ///
    /// As there; payload and key are in the error.
    pub fn publish(
        &mut self,
        tag: u64,
        payload: impl Into<Payload>,
        header: &[u8],
        key: u64,
    ) -> Result<Publication, Refused<Payload>> {
        let payload = payload.into();
        match self.core.owner().check() {
            Ok(()) => self.core.publish(tag, payload, header, key),
            Err(forked) => Err(Refused::new(forked, payload, key)),
        }
    }

    // ---- driving --------------------------------------------------------------------------------

    /// Drives all connections, publishes what is due, and appends what happened. Returns how many
    /// events were added.
    ///
    /// # Errors
    ///
    /// As [`PublishEndpoint::poll`].
    pub fn poll(&mut self, events: &mut Vec<PublishBufferedEvent>) -> Result<usize, Error> {
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
        let wait = self.core.wait();
        wait.sleep(moment_in(wait.clock(), timeout))
    }

    // ---- subscribers ----------------------------------------------------------------------------

    /// As [`PublishEndpoint::set_slow_policy`].
    ///
    /// # Errors
    ///
    /// [`Error::Config`] for a policy out of its range.
    pub fn set_slow_policy(
        &mut self,
        connection: ConnectionId,
        policy: SlowPolicy,
    ) -> Result<bool, Error> {
        self.core.endpoint_mut().set_slow_policy(connection, policy)
    }

    /// Accepts a request ([`AcceptPolicy::Ask`](crate::endpoint::AcceptPolicy::Ask)). False: it is
    /// gone.
    pub fn accept(&mut self, request: ConnectionRequest) -> bool {
        self.core.endpoint_mut().accept(request)
    }

    /// Refuses a request; the subscriber is told so, with two numbers of the application's own.
    /// False: it is gone.
    pub fn refuse(&mut self, request: ConnectionRequest, details: [u64; 2]) -> bool {
        self.core.endpoint_mut().refuse(request, details)
    }

    /// As [`PublishEndpoint::close_connection`].
    pub fn close_connection(&mut self, connection: ConnectionId, deadline: Instant) -> bool {
        let endpoint = self.core.endpoint_mut();
        endpoint.close_connection(connection, deadline)
    }

    // ---- closing --------------------------------------------------------------------------------

    /// Begins the polite close and returns at once: nothing new is taken, what is packed is
    /// published, then every connection is closed. What could not be published by the deadline has
    /// failed. Done when the [publisher](Self::endpoint) has no connections.
    pub fn begin_close(&mut self, deadline: Instant) {
        if self.core.owner().is_here() {
            self.core.begin_close(deadline);
        }
    }

    /// Closes politely and waits for it. Returns what happened meanwhile: every message has its
    /// outcome then.
    ///
    /// # Errors
    ///
    /// A system call failed, or [`Error::Forked`].
    pub fn close(mut self, deadline: Instant) -> Result<Vec<PublishBufferedEvent>, Error> {
        self.core.owner().check()?;
        self.core.close(deadline)
    }

    /// The pool of buffers, with its counters.
    pub fn pool(&self) -> &SharedBufferManager {
        self.core.pool()
    }

    /// Counters of small messages and buffers: those are confirmed whose publication is over,
    /// whatever its outcome for single subscribers.
    pub fn stats(&self) -> BufferedStats {
        self.core.stats()
    }
}

impl fmt::Debug for PublishEndpointBuffered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PublishEndpointBuffered")
            .field("endpoint", self.endpoint())
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

impl Waitable for PublishEndpointBuffered {
    fn wait_handle(&self) -> WaitHandle {
        WaitHandle::new(self.core.wait())
    }
}
