//! `PublishEndpoint`: sends one payload to everybody who has subscribed to its tag.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::core::PublishCore;
use super::event::{Publication, PublishEvent};
use super::policy::SlowPolicy;
use super::settings::PublishSettings;
use super::table::SubscriptionLimits;
use crate::Error;
use crate::buffer::{HeaderSlotManager, Payload, SharedBufferManager};
use crate::clock::Clock;
use crate::endpoint::error::{BatchError, Refused};

use crate::endpoint::event::ConnectionRequest;
use crate::endpoint::header_source::HeaderSource;
use crate::endpoint::hub::in_flight_max::InFlightMax;
use crate::endpoint::hub::{Hub, HubSettings, OutboundSettings, WindowSettings};
use crate::endpoint::limits::{check_count, config, moment_in};
use crate::endpoint::link::fd_limit;
use crate::endpoint::link::provider::ProviderLink;
use crate::endpoint::settings::{ConnectionSettings, OutgoingSettings, SettingsOf};
use crate::id::ConnectionId;

use crate::metrics::WatchedKind;
use crate::protocol::connection::Form;

use crate::endpoint::link::rdm_hello::HELLO_MESSAGE_MAX;
use crate::protocol::wire::{CONTROL_LEN_MAX, HeaderMode, PUBLICATION_LEN, Refusal, RefusalCode};

use crate::event_loop::{WaitHandle, Waitable};
use crate::fabric::{Domain, EndpointKind, PeerAddr};
use crate::memory::HeldRegistration;
use crate::process::Here;
use crate::stats::PublishStats;

/// Control buffers beside those of connections: for hellos that are answered, and lost ones.
const SPARE_BUFFERS: u32 = 32;

/// The settings of a [`PublishEndpoint`]: those of its [connections](ConnectionSettings), of [what
/// goes out](OutgoingSettings), and its own:
///
/// | setting | unit | default | range |
/// |---|---|---|---|
/// | `publications` | publications that are not over for everybody | 256 | 1 to 65,536 |
/// | `slow` | what becomes of what a subscriber has no room for | `Drop` | see [`SlowPolicy`] |
/// | `subscriptions` | subscriptions of all connections together | 65,536 | 1 to 1,048,576 |
/// | `subscriptions_per_connection` | | 1,024 | 1 to 65,536 |
/// | `tell_sent` | tell each subscriber's good outcome, too | no | |
///
/// `depth` times `max_connections` is at most 1,048,576.
///
/// A publication takes one header slot until it waits for nobody and is on its way to nobody,
/// however many subscribers there are: at most `publications` of them.
pub struct PublishConfig {
    connection: ConnectionSettings,
    outgoing: OutgoingSettings,
    publications: u32,
    slow: SlowPolicy,
    limits: SubscriptionLimits,
    tell_sent: bool,
    pub(super) on_abandoned: Option<Box<dyn FnMut(u64) + Send>>,
}

impl Default for PublishConfig {
    fn default() -> Self {
        Self {
            connection: ConnectionSettings::default(),
            outgoing: OutgoingSettings::default(),
            publications: 256,
            slow: SlowPolicy::Drop,
            limits: SubscriptionLimits {
                per_connection: 1024,
                in_all: 65_536,
            },
            tell_sent: false,
            on_abandoned: None,
        }
    }
}

impl PublishConfig {
    /// Which subscribers may connect, and how their connections are watched and ended.
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

    /// Publications that are not over for every subscriber, at most; one more is refused with
    /// `WouldBlock`.
    #[must_use]
    pub fn publications(mut self, publications: u32) -> Self {
        self.publications = publications;
        self
    }

    /// What becomes of a publication for a subscriber that has no room;
    /// [`PublishEndpoint::set_slow_policy`] sets it for single ones.
    #[must_use]
    pub fn slow(mut self, policy: SlowPolicy) -> Self {
        self.slow = policy;
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

    /// Tells [`PublishEvent::Peer`] for each subscriber of each publication, not only for those
    /// that did not get it.
    #[must_use]
    pub fn tell_sent(mut self, tell: bool) -> Self {
        self.tell_sent = tell;
        self
    }

    /// Called with the key of each publication that is not over when the endpoint is dropped, from
    /// within the drop: a panic of it is logged, and goes no further.
    #[must_use]
    pub fn on_abandoned(mut self, hear: impl FnMut(u64) + Send + 'static) -> Self {
        self.on_abandoned = Some(Box::new(hear));
        self
    }

    fn max_connections(&self) -> u32 {
        self.connection.max_connections_of(SettingsOf::Publish)
    }

    fn depth(&self) -> u32 {
        self.outgoing.depth_of(SettingsOf::Publish)
    }

    fn check(&self) -> Result<(), Error> {
        self.connection.check(SettingsOf::Publish)?;
        self.outgoing.check(SettingsOf::Publish)?;
        let count = "must be 1 to 65536";
        check_count("publications", self.publications, 65_536, count)?;
        let reason = "times max_connections must be at most 1048576";
        if u64::from(self.depth()) * u64::from(self.max_connections()) > 1 << 20 {
            return Err(config("depth", self.depth().to_string(), reason));
        }
        let reason = "must be 1 to 1048576";
        check_count("subscriptions", self.limits.in_all, 1 << 20, reason)?;
        let (field, limit) = ("subscriptions_per_connection", self.limits.per_connection);
        check_count(field, limit, 65_536, count)?;
        self.slow.check()
    }

    /// What goes over the wire: with the publication's own bytes.
    fn wire_mode(&self) -> Result<HeaderMode, Error> {
        let mode = self.outgoing.mode();
        Ok(match mode {
            HeaderMode::Fixed(len) => {
                let len = len.checked_add(PUBLICATION_LEN as u16).ok_or_else(|| {
                    let reason = "leaves no room for the 16 bytes of a publication";
                    config("header_mode", mode.to_string(), reason)
                })?;
                HeaderMode::Fixed(len)
            }
            other => other,
        })
    }

    fn make_headers(&self, source: &HeaderSource) -> Result<HeaderSlotManager, Error> {
        let headers = source.manager()?;
        if headers.slot_size() < PUBLICATION_LEN + self.outgoing.mode().overhead() {
            let reason = "must be at least 18 bytes, for what stands in front of a header";
            let size = headers.slot_size().to_string();
            return Err(config("headers", size, reason));
        }
        Ok(headers)
    }

    fn settings(&self, headers: HeaderSlotManager) -> Result<HubSettings, Error> {
        Ok(HubSettings {
            credits: 0,
            max_connections: self.max_connections(),
            max_of_host: None,
            max_message: 0,
            ask: self.connection.asks(),
            accepts: true,
            handshake_timeout: self.connection.connect_timeout,
            close_timeout: self.connection.close_timeout,
            header_mode: None,
            windows: WindowSettings::none(),
            long: None,
            sends: Some(OutboundSettings {
                header_mode: self.wire_mode()?,
                total: self.depth() * self.max_connections(),
                ..self.outgoing.outbound_of(SettingsOf::Publish, headers)
            }),
            publishing: true,
            liveness: self.connection.liveness,
            fence_timeout: self.connection.fence_timeout_of(),
            watch: self.connection.watch,
            watched: self.connection.watched_as(WatchedKind::Publish),
        })
    }
}

impl std::fmt::Debug for PublishConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PublishConfig")
            .field("publications", &self.publications)
            .field("outgoing", &self.outgoing)
            .field("slow", &self.slow)
            .finish_non_exhaustive()
    }
}

/// Sends one payload to everybody who has subscribed to its tag, from where it lies.
///
/// Subscribers connect by a [`SubscribeEndpoint`](crate::SubscribeEndpoint) and subscribe to tags,
/// numbers of the application's. A publication is a [`Payload`], mostly a
/// [`Buffer`](crate::buffer::Buffer), with a header: the header goes into one registered slot and
/// the payload from where it lies, to all of them. Each accepted publication has one
/// [`PublishEvent::Published`], when it is over for the last of them, which brings the payload
/// back; [`PublishEvent::Peer`] before it says who did not get it, and why.
///
/// What lies in a GPU's memory is copied once where the provider can't reach it
/// ([`OutgoingSettings::staging`]), and all sends share the copy. A payload that is to go
/// [after](Payload::after) an event is accepted at once, and keeps its place at each subscriber;
/// what is published behind it waits for it there, and nowhere else. The wait counts as time on the
/// way: for `deadline`, and for a policy that disconnects who is too slow. An event, or a
/// copy, that fails is the end of the publication, for each subscriber and in words.
///
/// A publication that is longer than a subscriber's receive buffers goes to it all the same where
/// it takes [`long_messages`](crate::endpoint::IncomingSettings::long_messages): piece by piece,
/// from the one buffer, into memory that the subscriber grants for it. For the others it is too
/// long, and [dropped](crate::endpoint::DropReason::Refused). A long one in a GPU's memory that has
/// to be staged needs a ring whose slots have room for all of it, since the copy is one for all.
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
    pub(super) core: Here<PublishCore<ProviderLink>>,
    local: PeerAddr,
    /// The region of [`HeaderSource::WithData`].
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
    /// header slots and the region of
    /// [`HeaderSource::WithData`].
    pub fn listen(
        domain: &Arc<Domain>,
        addr: PeerAddr,
        config: PublishConfig,
    ) -> Result<Self, Error> {
        config.check()?;
        domain.fabric().owner().check()?;
        fd_limit::check_listener(config.max_connections())?;
        let (form, slot_size) = match domain.fabric().endpoint_kind() {
            EndpointKind::Msg => (Form::Msg, CONTROL_LEN_MAX),
            // A hello takes whichever receive is next.
            EndpointKind::Rdm => (Form::Rdm, HELLO_MESSAGE_MAX),
        };
        let source = config.outgoing.headers_of(SettingsOf::Publish);
        let headers = config.make_headers(&source)?;
        if let Some(ring) = &config.outgoing.staging {
            ring.register(domain)?;
        }
        let data = source.hold(domain)?;
        let settings = config.settings(headers.clone())?;
        let receives = settings.receives(form).max;
        let slots = receives * config.max_connections() + SPARE_BUFFERS;
        let pool = SharedBufferManager::allocate(slots, slot_size)?;
        let sizes = InFlightMax::of_hub(&settings, form, pool.slots()).queue_sizes();
        let link = ProviderLink::listen(domain, &addr, sizes, &config.connection.endpoint)?;
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
    ) -> Result<Publication, Refused<Payload>> {
        let payload = payload.into();
        match self.core.owner().check() {
            Ok(()) => self.core.publish(tag, payload, header, key),
            Err(forked) => Err(Refused::new(forked, payload, key)),
        }
    }

    /// Publishes several, as [`publish`](Self::publish) each: tag, payload, header, key. Where the
    /// provider joins posts ([`Provider::uses_more`](crate::fabric::Provider::uses_more)), those of
    /// one subscriber go to the card together; everywhere else this is a loop. Appends to `told`
    /// what became of each at once.
    ///
    /// All of them are taken, or all in front of the first one that is refused: that one comes back
    /// in the error, and the rest was not taken from the iterator. What was taken is on its way
    /// when this returns, or lies in a frame ([`Packing`](crate::endpoint::Packing)), and each has
    /// its one [`PublishEvent::Published`].
    ///
    /// # Errors
    ///
    /// [`BatchError`]: why it stopped, with the publication that was refused, and how many were
    /// taken before it.
    pub fn publish_batch<P: Into<Payload>, H: AsRef<[u8]>>(
        &mut self,
        publications: impl IntoIterator<Item = (u64, P, H, u64)>,
        told: &mut Vec<Publication>,
    ) -> Result<usize, BatchError> {
        let publications = publications
            .into_iter()
            .map(|(tag, payload, header, key)| (tag, payload.into(), header, key));
        match self.core.owner().check() {
            Ok(()) => BatchError::or_sent(self.core.publish_batch(publications, told)),
            Err(forked) => {
                let messages = publications.map(|(_, payload, header, key)| (payload, header, key));
                BatchError::at_first(forked, messages)
            }
        }
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

    /// Accepts a request ([`AcceptPolicy::Ask`](crate::endpoint::AcceptPolicy::Ask)). False: it is
    /// gone.
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
    use crate::endpoint::testing::documented_settings::{Setting, compare};

    #[test]
    fn the_table_of_settings_is_what_the_code_does() {
        let settings: &[Setting<PublishConfig>] = &[
            Setting {
                name: "publications",
                get: |c| c.publications.into(),
                set: |c, v| c.publications(v.count()),
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
        ];
        compare(
            include_str!("publisher.rs"),
            "PublishConfig",
            settings,
            PublishConfig::check,
        );
    }

    /// The ranges themselves are those of the groups' tables.
    #[test]
    fn its_groups_are_checked() {
        let refused = [
            (
                PublishConfig::default().connection(|c| c.close_timeout(Duration::ZERO)),
                "close_timeout",
            ),
            (
                PublishConfig::default().outgoing(|out| out.depth(0)),
                "depth",
            ),
            (
                PublishConfig::default().outgoing(|out| out.depth(16_385)),
                "depth",
            ),
            (
                PublishConfig::default().outgoing(|out| out.inject(crate::endpoint::Inject::Auto)),
                "inject",
            ),
        ];
        for (config, named) in refused {
            let error = config.check().expect_err(named).to_string();
            assert!(error.starts_with(&format!("setting {named} = ")), "{error}");
        }
    }
}
