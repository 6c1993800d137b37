//! `SubscribeEndpoint`: gets the publications of the tags that it asks for, from one publisher or
//! several.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::subscribe_core::{SubscribeCore, SubscribeSettings};
use super::subscribe_event::{PublisherId, SubscribeEvent};
use super::wanted::SubscribeError;
use crate::Error;
use crate::buffer::SharedBufferManager;
use crate::clock::Clock;
use crate::endpoint::core::in_flight_max::InFlightMax;
use crate::endpoint::core::reconnect::ReconnectPolicy;
use crate::endpoint::delivery::{Deliveries, DeviceDelivery, receive_pool};
use crate::endpoint::hub::{Hub, HubSettings, WindowSettings};
use crate::endpoint::limits::{
    self, PATIENCE, check_count, check_patience, check_size, check_timeout, config,
};
use crate::endpoint::link::fd_limit;
use crate::endpoint::link::provider::ProviderLink;
use crate::endpoint::link::rdm_hello::HELLO_MESSAGE_MAX;
use crate::endpoint::link::socket::{Keepalive, TcpWatch};
use crate::endpoint::protocol::connection::Form;
use crate::endpoint::protocol::liveness::Patience;
use crate::endpoint::protocol::wire::PUBLICATION_LEN;
use crate::event_loop::{WaitHandle, Waitable};
use crate::fabric::{Domain, EndpointKind, EndpointSettings, PeerAddr};
use crate::process::Here;
use crate::stats::SubscribeStats;

/// The settings of a [`SubscribeEndpoint`].
///
/// | setting | unit | default | range |
/// |---|---|---|---|
/// | `max_message` | bytes of the largest message, with header and 18 more | 65,536 | 64 to 1 GiB |
/// | `slots` | buffers of the receive pool | 256 | 4 × `max_publishers` to 1,048,576 |
/// | `depth` | publications granted to each publisher at once | 32 | 1 to 65,536 |
/// | `max_publishers` | publishers at once | 16 | 1 to 4,096 |
/// | `subscriptions` | tags wanted of one publisher | 1,024 | 1 to 65,536 |
/// | `reconnect` | | off | see [`ReconnectPolicy`] |
/// | `connect_timeout` | time | 5 s | 1 ms to 1 h |
/// | `close_timeout` | time | 5 s | 1 ms to 1 h |
/// | `unresponsive_after` | time | 5 s | 10 ms to 1 h, or none |
/// | `lost_after` | time | 60 s | 10 ms to 24 h and above `unresponsive_after`, or none |
/// | `keepalive` | | none | see [`Keepalive`] |
/// | `tcp_user_timeout` | time | the system's | 1 ms to 24 h |
/// | `endpoint` | | the provider's own | see [`EndpointSettings`] |
///
/// The pool takes `slots × max_message` bytes; each publisher keeps three more receives posted than
/// its depth.
#[derive(Debug, Clone)]
pub struct SubscribeConfig {
    max_message: usize,
    slots: u32,
    depth: u32,
    max_publishers: u32,
    subscriptions: u32,
    reconnect: ReconnectPolicy,
    connect_timeout: Duration,
    close_timeout: Duration,
    pool: Option<SharedBufferManager>,
    patience: Patience,
    watch: TcpWatch,
    endpoint: EndpointSettings,
    delivery: Option<DeviceDelivery>,
}

impl Default for SubscribeConfig {
    fn default() -> Self {
        Self {
            max_message: 64 * 1024,
            slots: 256,
            depth: 32,
            max_publishers: 16,
            subscriptions: 1024,
            reconnect: ReconnectPolicy::off(),
            connect_timeout: Duration::from_secs(5),
            close_timeout: Duration::from_secs(5),
            pool: None,
            patience: PATIENCE,
            watch: TcpWatch::default(),
            endpoint: EndpointSettings::default(),
            delivery: None,
        }
    }
}

impl SubscribeConfig {
    /// Bytes of the largest message: header and payload, and 16 or 18 bytes of the publication.
    /// Publishers learn it when they are connected to; a longer publication is dropped for this
    /// subscriber.
    #[must_use]
    pub fn max_message(mut self, bytes: usize) -> Self {
        self.max_message = bytes;
        self
    }

    /// Buffers of the receive pool, which all connections share.
    #[must_use]
    pub fn slots(mut self, slots: u32) -> Self {
        self.slots = slots;
        self
    }

    /// A pool of the caller's instead: `max_message` and `slots` are its own. It must not be used
    /// for anything else.
    #[must_use]
    pub fn pool(mut self, pool: &SharedBufferManager) -> Self {
        self.pool = Some(pool.clone());
        self
    }

    /// Publications that each publisher may send ahead: its credits. One that comes when they are
    /// used up is dealt with by the publisher's policy for slow subscribers.
    #[must_use]
    pub fn depth(mut self, publications: u32) -> Self {
        self.depth = publications;
        self
    }

    /// Publishers at once.
    #[must_use]
    pub fn max_publishers(mut self, publishers: u32) -> Self {
        self.max_publishers = publishers;
        self
    }

    /// Tags that may be wanted of one publisher; it has a limit of its own.
    #[must_use]
    pub fn subscriptions(mut self, tags: u32) -> Self {
        self.subscriptions = tags;
        self
    }

    /// What happens when a connection ends, or can't be made. After each new one, what is wanted is
    /// subscribed to again.
    #[must_use]
    pub fn reconnect(mut self, policy: ReconnectPolicy) -> Self {
        self.reconnect = policy;
        self
    }

    /// How long making a connection may take, answer of the publisher included.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// How long the goodbye may take when the publisher begins it.
    #[must_use]
    pub fn close_timeout(mut self, timeout: Duration) -> Self {
        self.close_timeout = timeout;
        self
    }

    /// Reports a publisher of which nothing was heard for so long as
    /// [`SubscribeEvent::Unresponsive`]; nothing else follows.
    #[must_use]
    pub fn unresponsive_after(mut self, silence: Option<Duration>) -> Self {
        self.patience.unresponsive = silence;
        self
    }

    /// Ends the connection to a publisher of which nothing was heard for so long
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

    /// Copies the payloads of publications to a GPU's memory: they come as
    /// [`SubscribeEvent::DevicePublication`]. As
    /// [`ReceiveConfig::deliver_to`](crate::endpoint::ReceiveConfig::deliver_to).
    #[must_use]
    pub fn deliver_to(mut self, delivery: DeviceDelivery) -> Self {
        self.delivery = Some(delivery);
        self
    }

    fn check(&self) -> Result<(), Error> {
        check_size("max_message", self.max_message)?;
        let largest = self.pool.as_ref().map(SharedBufferManager::slot_size);
        if let Some(delivery) = &self.delivery {
            delivery.check(largest.unwrap_or(self.max_message))?;
        }
        let reason = "must be 1 to 65536 publications";
        check_count("depth", self.depth, 65_536, reason)?;
        let publishers = self.max_publishers;
        check_count("max_publishers", publishers, 4096, "must be 1 to 4096")?;
        let reason = "must be 1 to 65536 tags";
        check_count("subscriptions", self.subscriptions, 65_536, reason)?;
        let pool = self.pool.as_ref().map(SharedBufferManager::slots);
        let slots = pool.unwrap_or(self.slots as usize);
        if slots < 4 * self.max_publishers as usize || slots > 1 << 20 {
            let reason = "must be 4 for each of max_publishers, to 1048576";
            return Err(config("slots", slots.to_string(), reason));
        }
        check_patience(&self.patience)?;
        self.watch.check()?;
        self.reconnect.check()?;
        check_timeout("connect_timeout", self.connect_timeout)?;
        check_timeout("close_timeout", self.close_timeout)
    }

    fn settings(&self, max_message: usize) -> HubSettings {
        HubSettings {
            depth: self.depth,
            max_connections: self.max_publishers,
            max_message: max_message as u64,
            ask: false,
            accepts: false,
            handshake_timeout: self.connect_timeout,
            close_timeout: self.close_timeout,
            header_mode: None,
            windows: WindowSettings::none(),
            long: None,
            sends: None,
            publishing: true,
            patience: self.patience,
            watch: self.watch,
        }
    }
}

/// Gets the publications of the tags that it asks for, from one
/// [`PublishEndpoint`](crate::PublishEndpoint) or several.
///
/// All connections share one pool of registered buffers and one queue. What is wanted of a
/// publisher is asked for as soon as it is connected, and again after each new connection
/// ([`SubscribeConfig::reconnect`]). A publication's [`Message`](crate::endpoint::Message) is
/// owned: while it is held, its buffer is not posted again, and a publisher whose credits are used
/// up goes by its policy for slow subscribers; how many publications were dropped is in the next
/// one that comes.
///
/// One thread at a time; [`poll`](Self::poll) drives it. See
/// [`PublishEndpoint`](crate::PublishEndpoint) for an example of both.
#[derive(Debug)]
pub struct SubscribeEndpoint {
    core: Here<SubscribeCore<ProviderLink>>,
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
        fd_limit::check_listener(config.max_publishers)?;
        // Over FI_EP_RDM a hello takes whichever receive is next.
        let (form, slot_min) = match domain.fabric().endpoint_kind() {
            EndpointKind::Msg => (Form::Msg, PUBLICATION_LEN),
            EndpointKind::Rdm => (Form::Rdm, HELLO_MESSAGE_MAX),
        };
        let pool = match &config.pool {
            Some(pool) => pool.clone(),
            None => {
                let slot_size = config.max_message.max(slot_min);
                receive_pool(config.delivery.as_ref(), config.slots, slot_size)?
            }
        };
        if pool.slot_size() < slot_min {
            let reason = "over FI_EP_RDM its slots must have 114 bytes, for hellos";
            let size = pool.slot_size().to_string();
            return Err(limits::config("pool", size, reason));
        }
        let max_message = match config.pool {
            Some(_) => pool.slot_size(),
            None => config.max_message.min(pool.slot_size()),
        };
        let settings = config.settings(max_message);
        let sizes = InFlightMax::of_receiver(&settings, form, pool.slots()).queue_sizes();
        let link = ProviderLink::dial(domain, sizes, &config.endpoint)?;
        let deliveries = config.delivery.map(Deliveries::new).transpose()?;
        let waiter = link.waiter();
        let core = Hub::listen(link, waiter, Clock::system(), pool, settings)?;
        let settings = SubscribeSettings {
            publishers: config.max_publishers,
            subscriptions: config.subscriptions,
            reconnect: config.reconnect,
        };
        Ok(Self {
            core: Here::new(SubscribeCore::new(core, settings)),
            deliveries: deliveries.map(Box::new),
        })
    }

    /// Starts to connect to a publisher. Returns at once; [`SubscribeEvent::Connected`],
    /// [`SubscribeEvent::Reconnecting`] or [`SubscribeEvent::Disconnected`] follows.
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
        self.check_here()?;
        self.core.subscribe(publisher, tag)
    }

    /// Asks for them no more. [`SubscribeEvent::Unsubscribed`] follows; until then publications of
    /// the tag may come, afterwards none.
    ///
    /// # Errors
    ///
    /// [`SubscribeError`]; nothing was asked.
    pub fn unsubscribe(&mut self, publisher: PublisherId, tag: u64) -> Result<(), SubscribeError> {
        self.check_here()?;
        self.core.unsubscribe(publisher, tag)
    }

    fn check_here(&self) -> Result<(), SubscribeError> {
        let owner = self.core.owner();
        if owner.is_here() {
            return Ok(());
        }
        let made_by = owner.pid();
        Err(SubscribeError::Forked { made_by })
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
        let polled = self.core.poll(events);
        if let Some(deliveries) = &mut self.deliveries {
            deliveries.pass(events, before);
            let next = deliveries.next_look(self.core.core().clock());
            self.core.look_again(next);
        }
        polled?;
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
            .sleep(limits::moment_in(self.core.core().clock(), timeout))
    }

    /// Begins the polite close of one publisher's connection; no other one is made. False: there is
    /// no such publisher.
    pub fn disconnect(&mut self, publisher: PublisherId, deadline: Instant) -> bool {
        self.core.owner().is_here() && self.core.disconnect(publisher, deadline)
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
        let mut events = self.core.close(deadline)?;
        if let Some(deliveries) = self.deliveries {
            deliveries.finish(&mut events, self.core.core().clock(), deadline);
        }
        Ok(events)
    }

    /// Publishers that are connected, or will be.
    pub fn publishers(&self) -> usize {
        self.core.publishers()
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
    use crate::endpoint::documented_settings::{Setting, compare};

    #[test]
    fn the_table_of_settings_is_what_the_code_does() {
        let settings: &[Setting<SubscribeConfig>] = &[
            Setting {
                name: "max_message",
                get: |c| c.max_message.into(),
                set: |c, v| c.max_message(v.bytes()),
            },
            Setting {
                name: "slots",
                get: |c| c.slots.into(),
                set: |c, v| c.slots(v.count()),
            },
            Setting {
                name: "depth",
                get: |c| c.depth.into(),
                set: |c, v| c.depth(v.count()),
            },
            Setting {
                name: "max_publishers",
                get: |c| c.max_publishers.into(),
                set: |c, v| c.slots(1 << 20).max_publishers(v.count()),
            },
            Setting {
                name: "subscriptions",
                get: |c| c.subscriptions.into(),
                set: |c, v| c.subscriptions(v.count()),
            },
            Setting {
                name: "connect_timeout",
                get: |c| c.connect_timeout.into(),
                set: |c, v| c.connect_timeout(v.time()),
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
            include_str!("subscriber.rs"),
            "SubscribeConfig",
            settings,
            SubscribeConfig::check,
        );
    }
}
