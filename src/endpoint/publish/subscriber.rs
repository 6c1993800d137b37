//! `SubscribeEndpoint`: gets the publications of the tags that it asks for, from one publisher or
//! several.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::received::ReceivedPublications;
use super::subscribe_core::{SubscribeCore, SubscribeSettings};
use super::subscribe_event::{PublisherId, SubscribeEvent};
use super::wanted::SubscribeError;
use crate::Error;
use crate::buffer::SharedBufferManager;

use crate::clock::Clock;
use crate::endpoint::hub::in_flight_max::InFlightMax;
use crate::endpoint::settings::{ConnectionSettings, IncomingSettings, SettingsOf};

use crate::endpoint::delivery::Deliveries;
use crate::endpoint::hub::{Hub, HubSettings, WindowSettings};
use crate::endpoint::inbox::Inbox;
use crate::endpoint::limits::{self, check_count};
use crate::endpoint::link::fd_limit;
use crate::endpoint::link::provider::ProviderLink;

use crate::metrics::WatchedKind;
use crate::protocol::connection::Form;

use crate::endpoint::link::rdm_hello::HELLO_MESSAGE_MAX;
use crate::event_loop::{WaitHandle, Waitable};
use crate::fabric::{Domain, EndpointKind, PeerAddr};
use crate::process::Here;
use crate::protocol::wire::PUBLICATION_LEN;
use crate::stats::SubscribeStats;

/// The settings of a [`SubscribeEndpoint`]: those of its [connections](ConnectionSettings), of
/// [what comes in](IncomingSettings), and its own:
///
/// | setting | unit | default | range |
/// |---|---|---|---|
/// | `subscriptions` | tags wanted of one publisher | 1,024 | 1 to 65,536 |
///
/// The pool takes `slots × max_message` bytes; each publisher keeps three more receives posted than
/// its credits, and five with long messages.
#[derive(Debug, Clone)]
pub struct SubscribeConfig {
    connection: ConnectionSettings,
    incoming: IncomingSettings,
    subscriptions: u32,
}

impl Default for SubscribeConfig {
    fn default() -> Self {
        Self {
            connection: ConnectionSettings::default(),
            incoming: IncomingSettings::default(),
            subscriptions: 1024,
        }
    }
}

impl SubscribeConfig {
    /// How connections to publishers are made, watched and ended.
    #[must_use]
    pub fn connection(
        mut self,
        set: impl FnOnce(ConnectionSettings) -> ConnectionSettings,
    ) -> Self {
        self.connection = set(self.connection);
        self
    }

    /// What comes in, and into which buffers.
    #[must_use]
    pub fn incoming(mut self, set: impl FnOnce(IncomingSettings) -> IncomingSettings) -> Self {
        self.incoming = set(self.incoming);
        self
    }

    /// Tags that may be wanted of one publisher; it has a limit of its own.
    #[must_use]
    pub fn subscriptions(mut self, tags: u32) -> Self {
        self.subscriptions = tags;
        self
    }

    fn max_publishers(&self) -> u32 {
        self.connection.max_connections_of(SettingsOf::Subscribe)
    }

    /// Buffers of the receive pool.
    fn slots(&self) -> usize {
        self.incoming.slots_or(256)
    }

    fn check(&self) -> Result<(), Error> {
        self.connection.check(SettingsOf::Subscribe)?;
        let reason = "must be 1 to 65536 tags";
        check_count("subscriptions", self.subscriptions, 65_536, reason)?;
        let (each, reason) = match self.incoming.long {
            None => (4, "must be 4 for each of max_connections, to 1048576"),
            Some(_) => (
                6,
                "must be 6 for each of max_connections, as there are long messages, to 1048576",
            ),
        };
        let least = (each * self.max_publishers() as usize, reason);
        self.incoming
            .check(SettingsOf::Subscribe, self.slots(), least)
    }

    fn settings(&self, max_message: usize) -> HubSettings {
        HubSettings {
            credits: self.incoming.credits,
            max_connections: self.max_publishers(),
            max_of_host: None,
            max_message: max_message as u64,
            ask: false,
            accepts: false,
            handshake_timeout: self.connection.connect_timeout,
            close_timeout: self.connection.close_timeout,
            header_mode: None,
            windows: WindowSettings {
                long: self.incoming.long.is_some(),
                ..WindowSettings::none()
            },
            long: self.incoming.long.clone(),
            sends: None,
            publishing: true,
            liveness: self.connection.liveness,
            fence_timeout: self.connection.fence_timeout_of(),
            watch: self.connection.watch,
            watched: self.connection.watched_as(WatchedKind::Subscribe),
        }
    }
}

/// Gets the publications of the tags that it asks for, from one
/// [`PublishEndpoint`](crate::PublishEndpoint) or several.
///
/// All connections share one pool of registered buffers and one queue. What is wanted of a
/// publisher is asked for as soon as it is connected, and again after each new connection
/// ([`ConnectionSettings::reconnect`]). A publication's [`Message`](crate::endpoint::Message) is
/// owned: while it is held, its buffer is not posted again, and a publisher whose credits are used
/// up goes by its policy for slow subscribers; how many publications were dropped is in the next
/// one that comes.
///
/// One thread at a time; [`poll`](Self::poll) drives it. See
/// [`PublishEndpoint`](crate::PublishEndpoint) for an example of both.
#[derive(Debug)]
pub struct SubscribeEndpoint {
    core: Here<SubscribeCore<ProviderLink>>,
    inbox: Inbox<SubscribeEvent>,
    /// What one poll for the inbox brought; kept for its memory.
    came: Vec<SubscribeEvent>,
    /// Behind the core: nothing arrives any more when it goes.
    deliveries: Option<Box<Deliveries<SubscribeEvent>>>,
}

impl SubscribeEndpoint {
    /// An endpoint without publishers.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] for a setting out of its range, [`Error::Memory`] and [`Error::Register`]
    /// for the pool, and what libfabric answers.
    pub fn open(domain: &Arc<Domain>, config: SubscribeConfig) -> Result<Self, Error> {
        config.check()?;
        domain.fabric().owner().check()?;
        fd_limit::check_listener(config.max_publishers())?;
        // Over FI_EP_RDM a hello takes whichever receive is next.
        let (form, slot_min) = match domain.fabric().endpoint_kind() {
            EndpointKind::Msg => (Form::Msg, PUBLICATION_LEN),
            EndpointKind::Rdm => (Form::Rdm, HELLO_MESSAGE_MAX),
        };
        let (share, max_message) = config.incoming.open_pool(config.slots(), slot_min)?;
        let settings = config.settings(max_message);
        let sizes = InFlightMax::of_hub(&settings, form, share.most()).queue_sizes();
        let link = ProviderLink::dial(domain, sizes, &config.connection.endpoint)?;
        let settings_of_layer = SubscribeSettings {
            publishers: config.max_publishers(),
            subscriptions: config.subscriptions,
            reconnect: config.connection.reconnect,
        };
        let deliveries = config.incoming.delivery.map(Deliveries::new).transpose()?;
        let waiter = link.waiter();
        let core = Hub::listen(link, waiter, Clock::system(), share, settings)?;
        Ok(Self {
            core: Here::new(SubscribeCore::new(core, settings_of_layer)),
            inbox: Inbox::new(),
            came: Vec::new(),
            deliveries: deliveries.map(Box::new),
        })
    }

    /// Starts to connect to a publisher. Returns at once;
    /// [`ConnectionEvent::Connected`](crate::endpoint::ConnectionEvent::Connected),
    /// [`ConnectionEvent::Reconnecting`](crate::endpoint::ConnectionEvent::Reconnecting) or
    /// [`ConnectionEvent::Disconnected`](crate::endpoint::ConnectionEvent::Disconnected) follows.
    ///
    /// # Errors
    ///
    /// Nothing was begun: the endpoint has as many publishers as it may, or this one already, or
    /// libfabric refused at once.
    pub fn connect(&mut self, publisher: PeerAddr) -> Result<PublisherId, Error> {
        self.core.owner().check()?;
        self.core.connect(publisher).map_err(fd_limit::explain)
    }

    /// Asks a publisher for the publications of a tag; also before it is connected.
    /// [`SubscribeEvent::Subscribed`] or [`SubscribeEvent::Refused`] follows, unless the tag is
    /// given up before.
    ///
    /// # Errors
    ///
    /// [`SubscribeError`]; nothing was asked.
    pub fn subscribe(&mut self, publisher: PublisherId, tag: u64) -> Result<(), SubscribeError> {
        self.core.owner().check()?;
        self.core.subscribe(publisher, tag)
    }

    /// Asks for them no more. [`SubscribeEvent::Unsubscribed`] follows; until then publications of
    /// the tag may come, afterwards none.
    ///
    /// # Errors
    ///
    /// [`SubscribeError`]; nothing was asked.
    pub fn unsubscribe(&mut self, publisher: PublisherId, tag: u64) -> Result<(), SubscribeError> {
        self.core.owner().check()?;
        self.core.unsubscribe(publisher, tag)
    }

    /// Drives all connections, and appends what happened. Returns how many events were added.
    ///
    /// # Errors
    ///
    /// [`Error::EndpointFailed`] when a queue of the endpoint broke, or reported what can't be:
    /// every connection was closed then, which the events say. [`Error::Forked`]. What concerns one
    /// publisher is an event.
    pub fn poll(&mut self, events: &mut Vec<SubscribeEvent>) -> Result<usize, Error> {
        self.core.owner().check()?;
        let before = events.len();
        self.inbox.tell_rest(events, self.core.core().wait());
        self.poll_core(events)?;
        Ok(events.len() - before)
    }

    fn fill_inbox(&mut self) -> Result<(), Error> {
        let mut came = std::mem::take(&mut self.came);
        let polled = self.poll_core(&mut came);
        self.inbox.push_all(&mut came);
        self.came = came;
        polled
    }

    fn poll_core(&mut self, events: &mut Vec<SubscribeEvent>) -> Result<(), Error> {
        let came = events.len();
        let polled = self.core.poll(events);
        if let Some(deliveries) = &mut self.deliveries {
            deliveries.pass(events, came);
            let next = deliveries.next_look(self.core.core().clock());
            self.core.look_again(next);
        }
        polled
    }

    /// [`poll`](Self::poll) that gives the publications that came behind the events as
    /// [`ReceiveEndpoint::receive`](crate::ReceiveEndpoint::receive) gives messages: borrowed where
    /// they lie.
    ///
    /// # Errors
    ///
    /// As [`poll`](Self::poll), when all that was received before is taken.
    pub fn receive(
        &mut self,
        events: &mut Vec<SubscribeEvent>,
    ) -> Result<ReceivedPublications<'_>, Error> {
        self.core.owner().check()?;
        self.inbox.begin(events);
        let polled = match self.inbox.has_room() {
            true => self.fill_inbox(),
            false => Ok(()),
        };
        let wait = self.core.core().wait();
        let batch = self.inbox.go_on(events, wait, polled)?;
        Ok(ReceivedPublications::new(batch))
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
            .sleep(limits::moment_in(self.core.core().clock(), timeout))
    }

    /// Begins the polite close of one publisher's connection; no other one is made. False: there is
    /// no such publisher.
    pub fn close_connection(&mut self, publisher: PublisherId, deadline: Instant) -> bool {
        self.core.owner().is_here() && self.core.close_connection(publisher, deadline)
    }

    /// Begins the polite close of every connection and returns at once. Done when
    /// [`publishers`](Self::publishers) is 0.
    pub fn begin_close(&mut self, deadline: Instant) {
        self.core.begin_close_all(deadline);
    }

    /// Closes every connection politely. Returns what happened meanwhile, publications included.
    ///
    /// # Errors
    ///
    /// A system call failed.
    pub fn close(mut self, deadline: Instant) -> Result<Vec<SubscribeEvent>, Error> {
        self.core.owner().check()?;
        let mut came = self.core.close(deadline)?;
        if let Some(deliveries) = self.deliveries {
            deliveries.finish(&mut came, self.core.core().clock(), deadline);
        }
        let mut events = Vec::new();
        self.inbox.tell_all(&mut events);
        events.append(&mut came);
        Ok(events)
    }

    /// Publishers that are connected, or will be, or whose end is not told yet.
    pub fn publishers(&self) -> usize {
        self.core.publishers() + self.inbox.ends()
    }

    /// Tags of a publisher that it has granted.
    pub fn subscribed(&self, publisher: PublisherId) -> usize {
        self.core.subscribed(publisher)
    }

    /// The receive pool, with its counters. Register its region with a domain to send messages on
    /// without a copy.
    pub fn pool(&self) -> &SharedBufferManager {
        self.core.core().pool()
    }

    /// Counters.
    pub fn stats(&self) -> SubscribeStats {
        self.core.stats()
    }
}

impl Waitable for SubscribeEndpoint {
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
        let settings: &[Setting<SubscribeConfig>] = &[Setting {
            name: "subscriptions",
            get: |c| c.subscriptions.into(),
            set: |c, v| c.subscriptions(v.count()),
        }];
        compare(
            include_str!("subscriber.rs"),
            "SubscribeConfig",
            settings,
            SubscribeConfig::check,
        );
    }

    /// The ranges themselves are those of the groups' tables.
    #[test]
    fn its_groups_are_checked() {
        let refused = [
            (
                SubscribeConfig::default().connection(|c| c.close_timeout(Duration::ZERO)),
                "close_timeout",
            ),
            (
                SubscribeConfig::default().incoming(|incoming| incoming.credits(0)),
                "credits",
            ),
            (
                SubscribeConfig::default().incoming(|incoming| incoming.slots(63)),
                "slots",
            ),
            (
                SubscribeConfig::default().connection(|c| c.windows(1)),
                "windows",
            ),
        ];
        for (config, named) in refused {
            let error = config.check().expect_err(named).to_string();
            assert!(error.starts_with(&format!("setting {named} = ")), "{error}");
        }
    }
}
