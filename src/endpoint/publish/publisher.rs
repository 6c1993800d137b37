//! `PublishEndpoint`: sends one payload to everybody who has subscribed to its tag.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::core::{PublishCore, PublishSettings};
use super::event::{Publication, PublishError, PublishErrorKind, PublishEvent};
use super::policy::SlowPolicy;
use super::table::SubscriptionLimits;
use crate::Error;
use crate::buffer::{
    HeaderSlotConfig, HeaderSlotManager, Payload, SharedBufferManager, ZeroCopyBufferManager,
};
use crate::clock::Clock;
use crate::endpoint::core::conn_table::CONNECTIONS_MAX;
use crate::endpoint::core::in_flight_max::InFlightMax;
use crate::endpoint::error::SendErrorKind;
use crate::endpoint::event::{ConnectionRequest, DeadlinePolicy, Level};
use crate::endpoint::header_source::{HeaderSource, hold};
use crate::endpoint::hub::{Hub, HubSettings, SendsSettings, WindowSettings};
use crate::endpoint::id::ConnectionId;
use crate::endpoint::limits::{
    PATIENCE, check_count, check_deadline, check_patience, check_timeout, config, moment_in,
};
use crate::endpoint::link::fd_limit;
use crate::endpoint::link::provider::ProviderLink;
use crate::endpoint::link::rdm_hello::HELLO_MESSAGE_MAX;
use crate::endpoint::link::socket::{Keepalive, TcpWatch};
use crate::endpoint::protocol::connection::Form;
use crate::endpoint::protocol::liveness::Patience;
use crate::endpoint::protocol::wire::{
    CONTROL_LEN_MAX, HeaderMode, PUBLICATION_LEN, Refusal, RefusalCode,
};
use crate::endpoint::receive::AcceptPolicy;
use crate::endpoint::staging::StagingRing;
use crate::event_loop::{WaitHandle, Waitable};
use crate::fabric::{Domain, EndpointKind, EndpointSettings, PeerAddr};
use crate::memory::{HeldRegistration, Region};
use crate::process::Here;
use crate::stats::PublishStats;

/// Control buffers beside those of connections: for hellos that are answered, and lost ones.
const SPARE_BUFFERS: u32 = 32;

/// The settings of a [`PublishEndpoint`].
///
/// | setting | unit | default | range |
/// |---|---|---|---|
/// | `publications` | publications that are not over for everybody | 256 | 1 to 65,536 |
/// | `depth` | sends in flight to one subscriber | 16 | 1 to 65,536; see below |
/// | `slow` | what becomes of what a subscriber has no room for | `Drop` | see [`SlowPolicy`] |
/// | `send_deadline` | time on the way to one subscriber | 30 s | 1 ms to 24 h, or none |
/// | `deadline_policy` | | `FailConnection` | |
/// | `header_slots` | slots and bytes | 256 of 128 B | see [`HeaderSlotConfig`]; at least 18 B |
/// | `buffers` | | none | in the place of `header_slots`: see [`ZeroCopyBufferManager`] |
/// | `header_mode` | | `Prefixed` | |
/// | `level` | | `Sent` | |
/// | `subscriptions` | subscriptions of all connections together | 65,536 | 1 to 1,048,576 |
/// | `subscriptions_per_connection` | | 1,024 | 1 to 65,536 |
/// | `max_connections` | subscribers at once | 64 | 1 to 65,536 |
/// | `accept` | | `All` | |
/// | `tell_sent` | tell each subscriber's good outcome, too | no | |
/// | `handshake_timeout` | time | 5 s | 1 ms to 1 h |
/// | `close_timeout` | time | 5 s | 1 ms to 1 h |
/// | `unresponsive_after` | time | 5 s | 10 ms to 1 h, or none |
/// | `lost_after` | time | 60 s | 10 ms to 24 h and above `unresponsive_after`, or none |
/// | `keepalive` | | none | see [`Keepalive`] |
/// | `tcp_user_timeout` | time | the system's | 1 ms to 24 h |
/// | `endpoint` | | the provider's own | see [`EndpointSettings`] |
///
/// `depth` times `max_connections` is at most 1,048,576.
///
/// A publication takes one header slot until it waits for nobody and is on its way to nobody,
/// however many subscribers there are: at most `publications` of them.
pub struct PublishConfig {
    publications: u32,
    depth: u32,
    slow: SlowPolicy,
    send_deadline: Option<Duration>,
    deadline_policy: DeadlinePolicy,
    data: Option<Arc<Region>>,
    headers: HeaderSource,
    header_mode: HeaderMode,
    level: Level,
    limits: SubscriptionLimits,
    max_connections: u32,
    accept: AcceptPolicy,
    tell_sent: bool,
    handshake_timeout: Duration,
    close_timeout: Duration,
    patience: Patience,
    watch: TcpWatch,
    endpoint: EndpointSettings,
    staging: Option<StagingRing>,
    on_abandoned: Option<Box<dyn FnMut(u64) + Send>>,
}

impl Default for PublishConfig {
    fn default() -> Self {
        Self {
            publications: 256,
            depth: 16,
            slow: SlowPolicy::Drop,
            send_deadline: Some(Duration::from_secs(30)),
            deadline_policy: DeadlinePolicy::FailConnection,
            data: None,
            headers: HeaderSource::Own(HeaderSlotConfig {
                slots: 256,
                slot_size: 128,
            }),
            header_mode: HeaderMode::Prefixed,
            level: Level::Sent,
            limits: SubscriptionLimits {
                per_connection: 1024,
                in_all: 65_536,
            },
            max_connections: 64,
            accept: AcceptPolicy::All,
            tell_sent: false,
            handshake_timeout: Duration::from_secs(5),
            close_timeout: Duration::from_secs(5),
            patience: PATIENCE,
            watch: TcpWatch::default(),
            endpoint: EndpointSettings::default(),
            staging: None,
            on_abandoned: None,
        }
    }
}

impl PublishConfig {
    /// Publications that are not over for every subscriber, at most; one more is refused with
    /// `WouldBlock`.
    #[must_use]
    pub fn publications(mut self, publications: u32) -> Self {
        self.publications = publications;
        self
    }

    /// Sends in flight to one subscriber, at most; what its credits allow counts, too.
    #[must_use]
    pub fn depth(mut self, sends: u32) -> Self {
        self.depth = sends;
        self
    }

    /// What becomes of a publication for a subscriber that has no room;
    /// [`PublishEndpoint::set_slow_policy`] sets it for single ones.
    #[must_use]
    pub fn slow(mut self, policy: SlowPolicy) -> Self {
        self.slow = policy;
        self
    }

    /// How long a posted publication may be on its way to one subscriber; `None` waits for ever,
    /// and a subscriber that is stopped in the middle of one holds its buffer until its silence
    /// ends the connection.
    #[must_use]
    pub fn send_deadline(mut self, deadline: Option<Duration>) -> Self {
        self.send_deadline = deadline;
        self
    }

    /// What happens when it takes longer: that subscriber's connection fails, or it is told as
    /// [`PublishEvent::Late`].
    #[must_use]
    pub fn deadline_policy(mut self, policy: DeadlinePolicy) -> Self {
        self.deadline_policy = policy;
        self
    }

    /// Header slots of this endpoint's own. A slot has 16 bytes of the publication, and 2 of its
    /// length in mode `Prefixed`, beside the header.
    #[must_use]
    pub fn header_slots(mut self, config: HeaderSlotConfig) -> Self {
        self.headers = HeaderSource::Own(config);
        self
    }

    /// Header slots shared with other endpoints of the same domain.
    #[must_use]
    pub fn shared_headers(mut self, headers: &HeaderSlotManager) -> Self {
        self.headers = HeaderSource::Shared(headers.clone());
        self
    }

    /// Data and header slots in one: the endpoint registers the data with its domain as it opens,
    /// for as long as it lives, and takes its header slots from there. Both are shared with the
    /// other endpoints that use it.
    #[must_use]
    pub fn buffers(mut self, buffers: &ZeroCopyBufferManager) -> Self {
        self.data = Some(Arc::clone(buffers.region()));
        self.shared_headers(buffers.headers())
    }

    /// How subscribers tell headers from payloads; they learn it when they connect. The length in
    /// `Fixed` is that of the headers given to [`publish`](PublishEndpoint::publish).
    #[must_use]
    pub fn header_mode(mut self, mode: HeaderMode) -> Self {
        self.header_mode = mode;
        self
    }

    /// What `Sent` says.
    #[must_use]
    pub fn level(mut self, level: Level) -> Self {
        self.level = level;
        self
    }

    /// Subscriptions of all subscribers together; one more is refused, and the subscriber is told
    /// so.
    #[must_use]
    pub fn subscriptions(mut self, subscriptions: u32) -> Self {
        self.limits.in_all = subscriptions;
        self
    }

    /// Subscriptions of one subscriber.
    #[must_use]
    pub fn subscriptions_per_connection(mut self, subscriptions: u32) -> Self {
        self.limits.per_connection = subscriptions;
        self
    }

    /// Subscribers at once; one more is refused.
    #[must_use]
    pub fn max_connections(mut self, connections: u32) -> Self {
        self.max_connections = connections;
        self
    }

    /// Who decides about connection requests.
    #[must_use]
    pub fn accept(mut self, policy: AcceptPolicy) -> Self {
        self.accept = policy;
        self
    }

    /// Tells [`PublishEvent::Peer`] for each subscriber of each publication, not only for those
    /// that did not get it.
    #[must_use]
    pub fn tell_sent(mut self, tell: bool) -> Self {
        self.tell_sent = tell;
        self
    }

    /// How long a subscriber may take from its first byte to an established connection.
    #[must_use]
    pub fn handshake_timeout(mut self, timeout: Duration) -> Self {
        self.handshake_timeout = timeout;
        self
    }

    /// How long the goodbye may take when the subscriber begins it.
    #[must_use]
    pub fn close_timeout(mut self, timeout: Duration) -> Self {
        self.close_timeout = timeout;
        self
    }

    /// Reports a subscriber of which nothing was heard for so long as
    /// [`PublishEvent::Unresponsive`]; nothing else follows.
    #[must_use]
    pub fn unresponsive_after(mut self, silence: Option<Duration>) -> Self {
        self.patience.unresponsive = silence;
        self
    }

    /// Closes the connection of a subscriber of which nothing was heard for so long
    /// ([`CloseReason::PeerSilent`](crate::endpoint::CloseReason::PeerSilent)).
    #[must_use]
    pub fn lost_after(mut self, silence: Option<Duration>) -> Self {
        self.patience.lost = silence;
        self
    }

    /// Has the kernel probe idle connections. TCP only.
    #[must_use]
    pub fn keepalive(mut self, keepalive: Option<Keepalive>) -> Self {
        self.watch.keepalive = keepalive;
        self
    }

    /// Has the kernel close a connection when what it sent there is not acknowledged for so long
    /// (`TCP_USER_TIMEOUT`, tcp(7)). TCP only.
    #[must_use]
    pub fn tcp_user_timeout(mut self, timeout: Option<Duration>) -> Self {
        self.watch.user_timeout = timeout;
        self
    }

    /// What the endpoint asks of the provider.
    #[must_use]
    pub fn endpoint(mut self, settings: EndpointSettings) -> Self {
        self.endpoint = settings;
        self
    }

    /// Publishes payloads that lie in a GPU's memory by way of this ring, where the fabric takes
    /// none; endpoints may share one. A publication is copied once, for all its subscribers.
    /// Without a ring such a payload is refused.
    #[must_use]
    pub fn staging(mut self, ring: &StagingRing) -> Self {
        self.staging = Some(ring.clone());
        self
    }

    /// Called with the key of each publication that is not over when the endpoint is dropped, from
    /// within the drop: a panic of it is logged, and goes no further.
    #[must_use]
    pub fn on_abandoned(mut self, hear: impl FnMut(u64) + Send + 'static) -> Self {
        self.on_abandoned = Some(Box::new(hear));
        self
    }

    fn check(&self) -> Result<(), Error> {
        let count = "must be 1 to 65536";
        check_count("publications", self.publications, 65_536, count)?;
        check_count("depth", self.depth, 65_536, "must be 1 to 65536 sends")?;
        let connections = self.max_connections;
        check_count("max_connections", connections, CONNECTIONS_MAX, count)?;
        let reason = "times max_connections must be at most 1048576";
        if u64::from(self.depth) * u64::from(self.max_connections) > 1 << 20 {
            return Err(config("depth", self.depth.to_string(), reason));
        }
        let reason = "must be 1 to 1048576";
        check_count("subscriptions", self.limits.in_all, 1 << 20, reason)?;
        let (field, limit) = ("subscriptions_per_connection", self.limits.per_connection);
        check_count(field, limit, 65_536, count)?;
        check_deadline("send_deadline", self.send_deadline)?;
        self.slow.check()?;
        check_patience(&self.patience)?;
        self.watch.check()?;
        check_timeout("handshake_timeout", self.handshake_timeout)?;
        check_timeout("close_timeout", self.close_timeout)
    }

    /// What goes over the wire: with the publication's own bytes.
    fn wire_mode(&self) -> Result<HeaderMode, Error> {
        Ok(match self.header_mode {
            HeaderMode::Fixed(len) => {
                let len = len.checked_add(PUBLICATION_LEN as u16).ok_or_else(|| {
                    let reason = "leaves no room for the 16 bytes of a publication";
                    config("header_mode", self.header_mode.to_string(), reason)
                })?;
                HeaderMode::Fixed(len)
            }
            other => other,
        })
    }

    fn make_headers(&self) -> Result<HeaderSlotManager, Error> {
        let headers = self.headers.manager()?;
        if headers.slot_size() < PUBLICATION_LEN + self.header_mode.overhead() {
            let reason = "must be at least 18 bytes, for what stands in front of a header";
            let size = headers.slot_size().to_string();
            return Err(config("header_slots", size, reason));
        }
        Ok(headers)
    }

    fn settings(&mut self, headers: HeaderSlotManager) -> Result<HubSettings, Error> {
        Ok(HubSettings {
            depth: 0,
            max_connections: self.max_connections,
            max_message: 0,
            ask: self.accept == AcceptPolicy::Ask,
            accepts: true,
            handshake_timeout: self.handshake_timeout,
            close_timeout: self.close_timeout,
            header_mode: None,
            windows: WindowSettings::none(),
            long: None,
            sends: Some(SendsSettings {
                headers,
                header_mode: self.wire_mode()?,
                depth: self.depth,
                total: self.depth * self.max_connections,
                level: self.level,
                shape: None,
                deadline: self.send_deadline,
                policy: self.deadline_policy,
                staging: self.staging.clone(),
                on_abandoned: None,
            }),
            publishing: true,
            patience: self.patience,
            watch: self.watch,
        })
    }
}

impl std::fmt::Debug for PublishConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PublishConfig")
            .field("publications", &self.publications)
            .field("depth", &self.depth)
            .field("slow", &self.slow)
            .finish_non_exhaustive()
    }
}

/// Sends one payload to everybody who has subscribed to its tag, without a copy of its own.
///
/// Subscribers connect by a [`SubscribeEndpoint`](crate::SubscribeEndpoint) and subscribe to tags,
/// numbers of the application's. A publication is a [`Payload`], mostly a
/// [`Buffer`](crate::buffer::Buffer), with a header: the header goes into one registered slot and
/// the payload from where it lies, to all of them. Each accepted publication has one
/// [`PublishEvent::Published`], when it is over for the last of them, which brings the payload
/// back; [`PublishEvent::Peer`] before it says who did not get it, and why.
///
/// What lies in a GPU's memory is copied once where the provider can't reach it
/// ([`PublishConfig::staging`]), and all sends share the copy. A payload that is to go
/// [after](Payload::after) an event is accepted at once, and keeps its place at each subscriber;
/// what is published behind it waits for it there, and nowhere else. The wait counts as time on the
/// way: for `send_deadline`, and for a policy that disconnects who is too slow. An event, or a
/// copy, that fails is the end of the publication, for each subscriber and in words.
///
/// A subscriber that has no room does not hold up the others: see [`SlowPolicy`].
///
/// One thread at a time; [`poll`](Self::poll) drives it, by hand or from an
/// [`EventLoop`](crate::event_loop::EventLoop).
///
/// ```
/// use std::time::{Duration, Instant};
/// use fabricast::buffer::SharedBufferManager;
/// use fabricast::endpoint::{PublishConfig, SubscribeConfig};
/// use fabricast::{Fabric, PublishEndpoint, PublishEvent, SubscribeEndpoint, SubscribeEvent};
///
/// let domain = Fabric::builder().provider("tcp").node("127.0.0.1").open()?.open_domain()?;
/// let pool = SharedBufferManager::allocate(16, 64 * 1024)?;
/// pool.region().register(&domain)?;
/// let mut publisher =
///     PublishEndpoint::listen(&domain, "127.0.0.1:0".parse()?, PublishConfig::default())?;
///
/// let mut subscriber = SubscribeEndpoint::open(&domain, SubscribeConfig::default())?;
/// let at = subscriber.connect(publisher.local_addr())?;
/// subscriber.subscribe(at, 0x1007)?;
///
/// let (mut told, mut came) = (Vec::new(), Vec::new());
/// let mut done = 0;
/// let deadline = Instant::now() + Duration::from_secs(10);
/// while done < 2 && Instant::now() < deadline {
///     publisher.poll(&mut told)?;
///     subscriber.poll(&mut came)?;
///     for event in told.drain(..) {
///         match event {
///             PublishEvent::Subscribed { tag, .. } => {
///                 let mut buffer = pool.try_acquire().expect("16 are free");
///                 buffer[..5].copy_from_slice(b"hello");
///                 let publication = publisher.publish(tag, buffer.freeze(5), b"event 7", 42)?;
///                 assert_eq!((publication.posted, publication.dropped), (1, 0));
///             }
///             PublishEvent::Published { key, payload, outcomes } => {
///                 let payload = payload.into_buffer().expect("what was published");
///                 assert_eq!((key, &payload[..], outcomes.sent), (42, &b"hello"[..], 1));
///                 done += 1;
///             }
///             _ => {}
///         }
///     }
///     for event in came.drain(..) {
///         if let SubscribeEvent::Publication { tag, missed, message, .. } = event {
///             assert_eq!((tag, missed), (0x1007, 0));
///             assert_eq!((message.header(), message.payload()), (&b"event 7"[..], &b"hello"[..]));
///             done += 1;
///         }
///     }
/// }
/// assert_eq!(done, 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct PublishEndpoint {
    core: Here<PublishCore<ProviderLink>>,
    local: PeerAddr,
    /// The region of [`PublishConfig::buffers`].
    _data: Option<Here<HeldRegistration>>,
}

impl PublishEndpoint {
    /// Listens for subscribers at an address of this machine. Port 0 and [`PeerAddr::any`] let the
    /// system choose; [`local_addr`](Self::local_addr) says which it is.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] for a setting out of its range, [`Error::Address`] for one that is not
    /// local or in use, [`Error::TooFewDescriptors`] when the process may not open two for each of
    /// `max_connections`, [`Error::Memory`] and [`Error::Register`] for the control buffers, the
    /// header slots and the region of [`PublishConfig::buffers`].
    pub fn listen(
        domain: &Arc<Domain>,
        addr: PeerAddr,
        mut config: PublishConfig,
    ) -> Result<Self, Error> {
        config.check()?;
        domain.fabric().owner().check()?;
        fd_limit::check_listener(config.max_connections)?;
        let (form, slot_size) = match domain.fabric().endpoint_kind() {
            EndpointKind::Msg => (Form::Msg, CONTROL_LEN_MAX),
            // A hello takes whichever receive is next.
            EndpointKind::Rdm => (Form::Rdm, HELLO_MESSAGE_MAX),
        };
        let headers = config.make_headers()?;
        if let Some(ring) = &config.staging {
            ring.register(domain)?;
        }
        let data = hold(config.data.as_ref(), domain)?;
        let settings = config.settings(headers.clone())?;
        let receives = settings.receives(form).max;
        let slots = receives * config.max_connections + SPARE_BUFFERS;
        let pool = SharedBufferManager::allocate(slots, slot_size)?;
        let sizes = InFlightMax::of_receiver(&settings, form, pool.slots()).queue_sizes();
        let link = ProviderLink::listen(domain, &addr, sizes, &config.endpoint)?;
        let local = link.local_addr().unwrap_or(addr);
        let waiter = link.waiter();
        let core = Hub::listen(link, waiter, Clock::system(), pool, settings)?;
        let settings = PublishSettings {
            publications: config.publications,
            limits: config.limits,
            slow: config.slow,
            tell_sent: config.tell_sent,
            headers,
            on_abandoned: config.on_abandoned,
        };
        Ok(Self {
            core: Here::new(PublishCore::new(core, settings)),
            local,
            _data: data,
        })
    }

    /// Where it listens, with the real port.
    pub fn local_addr(&self) -> PeerAddr {
        self.local
    }

    /// Posts a payload to everybody who has subscribed to the tag, and says what became of it at
    /// once. Never blocks. A subscriber that it can't be posted to is dealt with by its
    /// [`SlowPolicy`], and is no error.
    ///
    /// `header` is copied, and may be empty. `key` is the caller's own, and comes back with the
    /// payload in [`PublishEvent::Published`].
    ///
    /// # Errors
    ///
    /// Nothing was posted to anybody, and payload and key are in the error: nobody has subscribed
    /// to the tag, back-pressure, a header that does not fit, or a GPU's memory that has to be
    /// staged and can't be.
    pub fn publish(
        &mut self,
        tag: u64,
        payload: impl Into<Payload>,
        header: &[u8],
        key: u64,
    ) -> Result<Publication, PublishError> {
        let payload = payload.into();
        let owner = self.core.owner();
        if owner.is_here() {
            return self.core.publish(tag, payload, header, key);
        }
        let made_by = owner.pid();
        let kind = PublishErrorKind::Refused(SendErrorKind::Forked { made_by });
        Err(PublishError { kind, payload, key })
    }

    /// Drives all connections, and appends what happened. Returns how many events were added.
    ///
    /// # Errors
    ///
    /// [`Error::EndpointFailed`] when a queue of the endpoint broke, or reported what can't be:
    /// every connection was closed then, which the events say. [`Error::Forked`]. What concerns one
    /// subscriber is an event.
    pub fn poll(&mut self, events: &mut Vec<PublishEvent>) -> Result<usize, Error> {
        self.core.owner().check()?;
        let before = events.len();
        self.core.poll(events)?;
        Ok(events.len() - before)
    }

    /// Sleeps until there may be something to poll for, or until the time given.
    ///
    /// # Errors
    ///
    /// A system call failed.
    pub fn wait(&self, timeout: Duration) -> Result<(), Error> {
        self.core.owner().check()?;
        self.core
            .core()
            .wait()
            .sleep(moment_in(self.core.core().clock(), timeout))
    }

    /// What becomes of publications for one subscriber when it has no room, instead of what the
    /// setting says. False: there is no such subscriber.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] for a policy out of its range.
    pub fn set_slow_policy(
        &mut self,
        connection: ConnectionId,
        policy: SlowPolicy,
    ) -> Result<bool, Error> {
        policy.check()?;
        self.core.owner().check()?;
        Ok(self.core.set_policy(connection, policy))
    }

    /// Accepts a request ([`AcceptPolicy::Ask`]). False: it is gone.
    pub fn accept(&mut self, request: ConnectionRequest) -> bool {
        self.core.owner().is_here() && self.core.answer(request.connection, None)
    }

    /// Refuses a request; the subscriber is told so, with two numbers of the application's own.
    /// False: it is gone.
    pub fn refuse(&mut self, request: ConnectionRequest, details: [u64; 2]) -> bool {
        let refusal = Refusal::new(RefusalCode::BY_APPLICATION, details);
        self.core.owner().is_here() && self.core.answer(request.connection, Some(refusal))
    }

    /// How many have subscribed to a tag.
    pub fn subscribers(&self, tag: u64) -> usize {
        self.core.subscribers(tag)
    }

    /// Publications that wait for a subscriber, by its [`SlowPolicy`].
    pub fn waiting(&self, connection: ConnectionId) -> usize {
        self.core.waiting(connection)
    }

    /// The tags that a subscriber has subscribed to, in no order.
    pub fn tags(&self, connection: ConnectionId) -> impl Iterator<Item = u64> {
        self.core.tags(connection)
    }

    /// Begins the polite close of one subscriber's connection: what was posted to it arrives, what
    /// waits for it is dropped. False: there is no such connection.
    pub fn close_connection(&mut self, connection: ConnectionId, deadline: Instant) -> bool {
        self.core.owner().is_here() && self.core.begin_close(connection, deadline)
    }

    /// Begins the polite close of every connection and returns at once: nothing is published any
    /// more, what was posted arrives, what waits for a slow subscriber is dropped. Done when
    /// [`connections`](Self::connections) is 0.
    pub fn begin_close(&mut self, deadline: Instant) {
        self.core.begin_close_all(deadline);
    }

    /// Closes every connection politely, and stops listening. Returns what happened meanwhile:
    /// every publication is over then.
    ///
    /// # Errors
    ///
    /// A system call failed.
    pub fn close(mut self, deadline: Instant) -> Result<Vec<PublishEvent>, Error> {
        self.core.owner().check()?;
        self.core.close(deadline)
    }

    /// Connections open now.
    pub fn connections(&self) -> usize {
        self.core.core().connections()
    }

    /// Counters.
    pub fn stats(&self) -> PublishStats {
        self.core.stats()
    }
}

impl Waitable for PublishEndpoint {
    fn wait_handle(&self) -> WaitHandle {
        WaitHandle::new(self.core.core().wait())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::endpoint::documented_settings::{Setting, compare};

    #[test]
    fn the_table_of_settings_is_what_the_code_does() {
        let settings: &[Setting<PublishConfig>] = &[
            Setting {
                name: "publications",
                get: |c| c.publications.into(),
                set: |c, v| c.publications(v.count()),
            },
            Setting {
                name: "depth",
                get: |c| c.depth.into(),
                set: |c, v| c.max_connections(1).depth(v.count()),
            },
            Setting {
                name: "send_deadline",
                get: |c| c.send_deadline.into(),
                set: |c, v| c.send_deadline(v.limit()),
            },
            Setting {
                name: "subscriptions",
                get: |c| c.limits.in_all.into(),
                set: |c, v| c.subscriptions(v.count()),
            },
            Setting {
                name: "subscriptions_per_connection",
                get: |c| c.limits.per_connection.into(),
                set: |c, v| c.subscriptions_per_connection(v.count()),
            },
            Setting {
                name: "max_connections",
                get: |c| c.max_connections.into(),
                set: |c, v| c.depth(1).max_connections(v.count()),
            },
            Setting {
                name: "handshake_timeout",
                get: |c| c.handshake_timeout.into(),
                set: |c, v| c.handshake_timeout(v.time()),
            },
            Setting {
                name: "close_timeout",
                get: |c| c.close_timeout.into(),
                set: |c, v| c.close_timeout(v.time()),
            },
            Setting {
                name: "unresponsive_after",
                get: |c| c.patience.unresponsive.into(),
                set: |c, v| c.lost_after(None).unresponsive_after(v.limit()),
            },
            Setting {
                name: "lost_after",
                get: |c| c.patience.lost.into(),
                set: |c, v| c.unresponsive_after(None).lost_after(v.limit()),
            },
            Setting {
                name: "tcp_user_timeout",
                get: |c| c.watch.user_timeout.into(),
                set: |c, v| c.tcp_user_timeout(v.limit()),
            },
        ];
        compare(
            include_str!("publisher.rs"),
            "PublishConfig",
            settings,
            PublishConfig::check,
        );
    }
}
