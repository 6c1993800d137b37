//! `SubscribeCore`: what a subscriber does, over any link. A layer above [`Hub`], which connects
//! and receives.

use std::time::{Duration, Instant};

use super::subscribe_event::{AboutPublication, PublisherId, SubscribeEvent};
use super::wanted::{SubscribeError, TagEvent, Wanted};
use crate::Error;
use crate::endpoint::delivery::{DeviceMessage, MessageEvent};
use crate::endpoint::event::{ConnectionEvent, ReceiveEvent};
use crate::endpoint::hub::{Hub, SubscriptionEvent};
use crate::endpoint::link::Link;
use crate::endpoint::message::Message;
use crate::endpoint::reconnect::{self, ReconnectPolicy, Redial};
use crate::fabric::PeerAddr;
use crate::id::{ConnectionId, IdMap};
use crate::metrics::registry::WatchedCells;
use crate::protocol::connection::{CloseReason, Violation};
use crate::protocol::wire::{HeaderMode, PUBLICATION_LEN, PublicationPrefix, SubscriptionRequest};
use crate::stats::{SubscribeCells, SubscribeStats};

/// What the layer needs to know; checked by the public configuration.
#[derive(Debug, Clone)]
pub(crate) struct SubscribeSettings {
    pub(crate) publishers: u32,
    /// Tags that may be wanted of one publisher.
    pub(crate) subscriptions: u32,
    pub(crate) reconnect: ReconnectPolicy,
}

/// One publisher.
struct Publisher {
    addr: PeerAddr,
    connection: Option<ConnectionId>,
    wanted: Wanted,
    redial: Redial,
    /// Connected now / at some time.
    stands: bool,
    stood: bool,
    /// Where the tag and the number are in a message: in the header, or in front of all.
    raw: bool,
}

/// A subscriber.
pub(crate) struct SubscribeCore<L: Link> {
    core: Hub<L>,
    settings: SubscribeSettings,
    publishers: IdMap<PublisherId, Publisher>,
    by_connection: IdMap<ConnectionId, PublisherId>,
    /// Events that the next poll reports.
    later: Vec<SubscribeEvent>,
    closing: bool,
    /// When a layer above has something to look at.
    look: Option<Instant>,
    stats: WatchedCells<SubscribeCells>,
    raw: Vec<ReceiveEvent>,
    subscription_events: Vec<(ConnectionId, SubscriptionEvent)>,
}

impl<L: Link> SubscribeCore<L> {
    /// Over a core that connects, receives, and speaks of subscriptions.
    pub(crate) fn new(core: Hub<L>, settings: SubscribeSettings) -> Self {
        Self {
            stats: WatchedCells::beside(core.watched()),
            core,
            settings,
            publishers: IdMap::default(),
            by_connection: IdMap::default(),
            later: Vec::new(),
            closing: false,
            look: None,
            raw: Vec::new(),
            subscription_events: Vec::new(),
        }
    }

    pub(crate) fn core(&self) -> &Hub<L> {
        &self.core
    }

    pub(crate) fn stats(&self) -> SubscribeStats {
        self.stats.read()
    }

    /// Publishers that are connected, or will be.
    pub(crate) fn publishers(&self) -> usize {
        self.publishers.len()
    }

    /// Tags of a publisher that are subscribed to.
    pub(crate) fn subscribed(&self, publisher: PublisherId) -> usize {
        let found = self.publishers.get(&publisher);
        found.map_or(0, |found| found.wanted.subscribed())
    }

    // ---- publishers and tags --------------------------------------------------------------------

    /// Starts to connect.
    pub(crate) fn connect(&mut self, addr: PeerAddr) -> Result<PublisherId, Error> {
        if self.closing {
            return Err(Error::Closed(CloseReason::ClosedLocally));
        }
        if self.publishers.values().any(|known| known.addr == addr) {
            return Err(Error::Address {
                address: addr.to_string(),
                reason: "this endpoint is connected to it already, or connects to it".to_owned(),
            });
        }
        let limit = self.settings.publishers;
        if self.publishers.len() >= limit as usize {
            return Err(Error::TooManyConnections { limit });
        }
        let connection = self.core.dial(&addr)?;
        let id = PublisherId::next();
        let publisher = Publisher {
            addr,
            connection: Some(connection),
            wanted: Wanted::new(self.settings.subscriptions),
            redial: Redial::new(self.settings.reconnect, crate::random::random_u64()),
            stands: false,
            stood: false,
            raw: false,
        };
        self.publishers.insert(id, publisher);
        self.by_connection.insert(connection, id);
        Ok(id)
    }

    /// Asks for the publications of a tag, now or as soon as the publisher is connected.
    pub(crate) fn subscribe(
        &mut self,
        publisher: PublisherId,
        tag: u64,
    ) -> Result<(), SubscribeError> {
        let found = self.publishers.get_mut(&publisher);
        let found = found.ok_or(SubscribeError::NoPublisher)?;
        found.wanted.subscribe(tag)?;
        self.ask_at_once(publisher);
        Ok(())
    }

    /// Asks for them no more.
    pub(crate) fn unsubscribe(
        &mut self,
        publisher: PublisherId,
        tag: u64,
    ) -> Result<(), SubscribeError> {
        let found = self.publishers.get_mut(&publisher);
        let found = found.ok_or(SubscribeError::NoPublisher)?;
        if let Some(event) = found.wanted.unsubscribe(tag)? {
            self.tell_tag(publisher, tag, event);
            self.core.wait().wake();
        }
        self.ask_at_once(publisher);
        Ok(())
    }

    fn ask_at_once(&mut self, publisher: PublisherId) {
        // What the core says meanwhile is looked at by the next poll.
        let mut raw = std::mem::take(&mut self.raw);
        self.ask(publisher, &mut raw);
        if !raw.is_empty() {
            self.core.wait().wake();
        }
        self.raw = raw;
    }

    /// Sends the next request, if one is in line and none is under way.
    fn ask(&mut self, publisher: PublisherId, raw: &mut Vec<ReceiveEvent>) {
        let Some(found) = self.publishers.get_mut(&publisher) else {
            return;
        };
        if let Some(connection) = found.connection
            && self.core.may_ask_subscription(connection)
            && let Some(request) = found.wanted.next_request()
        {
            self.core.ask_subscription(connection, request, raw);
        }
    }

    fn tell_tag(&mut self, publisher: PublisherId, tag: u64, event: TagEvent) {
        self.later.push(match event {
            TagEvent::On => SubscribeEvent::Subscribed { publisher, tag },
            TagEvent::Off => SubscribeEvent::Unsubscribed { publisher, tag },
            TagEvent::Refused(outcome) => SubscribeEvent::Refused {
                publisher,
                tag,
                outcome,
            },
        });
    }

    // ---- polling --------------------------------------------------------------------------------

    /// Drives all connections and appends what happened; an error when the endpoint has failed, for
    /// good.
    pub(crate) fn poll(&mut self, events: &mut Vec<SubscribeEvent>) -> Result<(), Error> {
        self.connect_again();
        let mut raw = std::mem::take(&mut self.raw);
        let polled = self.core.poll(&mut raw);
        // First: an answer says from which number on gaps are gaps, and the first publications may
        // have come with it.
        self.core
            .take_subscription_events(&mut self.subscription_events);
        while let Some((connection, event)) = self.subscription_events.pop() {
            self.on_subscription_event(connection, event, &mut raw);
        }
        events.append(&mut self.later);
        let mut more = Vec::new();
        for event in raw.drain(..) {
            self.on_event(event, events, &mut more);
        }
        raw.append(&mut more);
        if !raw.is_empty() {
            self.core.wait().wake();
        }
        self.raw = raw;
        events.append(&mut self.later);
        polled
    }

    fn on_subscription_event(
        &mut self,
        connection: ConnectionId,
        event: SubscriptionEvent,
        raw: &mut Vec<ReceiveEvent>,
    ) {
        let SubscriptionEvent::Answered(request, answer) = event else {
            return;
        };
        let Some(&publisher) = self.by_connection.get(&connection) else {
            return;
        };
        let SubscriptionRequest { tag, .. } = request;
        let found = self.publishers.get_mut(&publisher);
        if let Some(event) = found.and_then(|found| found.wanted.on_answer(request, answer)) {
            self.tell_tag(publisher, tag, event);
        }
        self.ask(publisher, raw);
    }

    fn on_event(
        &mut self,
        event: ReceiveEvent,
        events: &mut Vec<SubscribeEvent>,
        more: &mut Vec<ReceiveEvent>,
    ) {
        let publisher = |connection| self.by_connection.get(&connection).copied();
        let told = match event {
            ReceiveEvent::Message(message) => return self.on_message(message, events),
            ReceiveEvent::DeviceMessage(message) => {
                return self.on_device_message(message, events);
            }
            ReceiveEvent::Connection(connection, ConnectionEvent::Connected(info)) => {
                let Some(id) = publisher(connection) else {
                    return;
                };
                self.on_connected(id, info.header_mode, more);
                SubscribeEvent::Connection(id, ConnectionEvent::Connected(info))
            }
            ReceiveEvent::Connection(connection, ConnectionEvent::Disconnected(reason)) => {
                return self.on_disconnected(connection, reason, events);
            }
            ReceiveEvent::Starved { connection } => match publisher(connection) {
                Some(publisher) => SubscribeEvent::Starved { publisher },
                None => return,
            },
            ReceiveEvent::Connection(connection, event) => match publisher(connection) {
                Some(publisher) => SubscribeEvent::Connection(publisher, event),
                None => return,
            },
            // A subscriber sends nothing but requests, and has no windows.
            _ => return,
        };
        events.push(told);
    }

    fn on_connected(&mut self, id: PublisherId, mode: HeaderMode, more: &mut Vec<ReceiveEvent>) {
        let Some(found) = self.publishers.get_mut(&id) else {
            return;
        };
        found.raw = mode == HeaderMode::Raw;
        found.stands = true;
        self.stats.connected.add(1);
        self.stats
            .reconnects
            .add(u64::from(std::mem::replace(&mut found.stood, true)));
        found.redial.on_connected(self.core.clock().now());
        self.ask(id, more);
    }

    fn on_message(&mut self, mut message: Message, events: &mut Vec<SubscribeEvent>) {
        let connection = message.connection();
        let Some((publisher, raw)) = self.publisher_of(connection) else {
            return;
        };
        let Some(about) = self.on_publication(connection, publisher, message.front(raw)) else {
            return;
        };
        message.cut_front(raw, PUBLICATION_LEN);
        self.stats
            .bytes
            .add((message.header().len() + message.payload().len()) as u64);
        events.push(SubscribeEvent::message(message, about));
    }

    /// A long publication that came into a GPU's memory by itself: its front came to the host,
    /// whatever the header mode is.
    fn on_device_message(&mut self, mut message: DeviceMessage, events: &mut Vec<SubscribeEvent>) {
        let connection = message.connection();
        let Some((publisher, _)) = self.publisher_of(connection) else {
            return;
        };
        let Some(about) = self.on_publication(connection, publisher, message.header()) else {
            return;
        };
        message.cut_front(PUBLICATION_LEN);
        self.stats
            .bytes
            .add((message.header().len() + message.payload().len()) as u64);
        events.push(SubscribeEvent::delivered(message, about));
    }

    /// The publisher of a connection, and whether what it sends is raw.
    fn publisher_of(&self, connection: ConnectionId) -> Option<(PublisherId, bool)> {
        let publisher = *self.by_connection.get(&connection)?;
        Some((publisher, self.publishers.get(&publisher)?.raw))
    }

    /// A publication came, with this front. `None`: the front is none, which is the end of the
    /// connection, or its tag is not subscribed to.
    fn on_publication(
        &mut self,
        connection: ConnectionId,
        publisher: PublisherId,
        front: &[u8],
    ) -> Option<AboutPublication> {
        let PublicationPrefix { tag, number } = match PublicationPrefix::parse(front) {
            Ok(front) => front,
            Err(error) => {
                let reason = CloseReason::Violation(Violation::from(error));
                self.core.abort_connection(connection, reason);
                return None;
            }
        };
        let found = self.publishers.get_mut(&publisher)?;
        let Some(missed) = found.wanted.on_publication(tag, number) else {
            self.stats.strays.add(1);
            return None;
        };
        self.stats.received.add(1);
        self.stats.missed.add(missed);
        Some(AboutPublication {
            publisher,
            tag,
            number,
            missed,
        })
    }

    // ---- the end of a connection, and the next one ----------------------------------------------

    fn on_disconnected(
        &mut self,
        connection: ConnectionId,
        reason: CloseReason,
        events: &mut Vec<SubscribeEvent>,
    ) {
        let Some(publisher) = self.by_connection.remove(&connection) else {
            return;
        };
        if let Some(found) = self.publishers.get_mut(&publisher) {
            found.connection = None;
            self.stats
                .connected
                .sub(u64::from(std::mem::take(&mut found.stands)));
        }
        self.on_end(publisher, reason, events);
    }

    /// There is no connection: the next attempt, or the end.
    fn on_end(
        &mut self,
        publisher: PublisherId,
        reason: CloseReason,
        events: &mut Vec<SubscribeEvent>,
    ) {
        let Some(found) = self.publishers.get_mut(&publisher) else {
            return;
        };
        let now = self.core.clock().now();
        let Some((attempt, after)) = found.redial.on_end(now, &reason) else {
            self.publishers.remove(&publisher);
            return events.push(SubscribeEvent::Connection(
                publisher,
                ConnectionEvent::Disconnected(reason),
            ));
        };
        found
            .wanted
            .start_again(|tag| events.push(SubscribeEvent::Unsubscribed { publisher, tag }));
        events.push(SubscribeEvent::Connection(
            publisher,
            ConnectionEvent::Reconnecting {
                attempt,
                after,
                reason,
            },
        ));
        self.arm();
    }

    fn arm(&mut self) {
        let attempts = self
            .publishers
            .values()
            .filter_map(|known| known.redial.at());
        let next = attempts.chain(self.look).min();
        self.core.set_layer_deadline(next);
    }

    /// Has a sleeper come back by then: a layer above has something to look at.
    pub(crate) fn look_again(&mut self, at: Option<Instant>) {
        if self.look != at {
            self.look = at;
            self.arm();
        }
    }

    /// Begins the attempts that are due.
    fn connect_again(&mut self) {
        let waits = |known: &Publisher| known.redial.at().is_some();
        if !self.publishers.values().any(waits) {
            return;
        }
        let now = self.core.clock().now();
        let due = self.publishers.iter_mut();
        let due = due.filter_map(|(id, known)| known.redial.take_due(now).then_some(*id));
        let ids: Vec<_> = due.collect();
        for id in ids {
            self.dial_again(id);
        }
        self.arm();
    }

    fn dial_again(&mut self, id: PublisherId) {
        let Some(found) = self.publishers.get_mut(&id) else {
            return;
        };
        match self.core.dial(&found.addr) {
            Ok(connection) => {
                found.connection = Some(connection);
                self.by_connection.insert(connection, id);
            }
            Err(error) => {
                tracing::debug!(%error, "an attempt to connect again failed at once");
                let reason = CloseReason::ConnectFailed(reconnect::errno_of(&error));
                let mut events = std::mem::take(&mut self.later);
                self.on_end(id, reason, &mut events);
                self.later = events;
            }
        }
    }

    /// Begins the polite close of one publisher's connection. False: there is no such publisher.
    pub(crate) fn close_connection(&mut self, publisher: PublisherId, deadline: Instant) -> bool {
        let Some(found) = self.publishers.get_mut(&publisher) else {
            return false;
        };
        found.redial.stop();
        match found.connection {
            Some(connection) => self.core.begin_close(connection, deadline),
            None => {
                self.publishers.remove(&publisher);
                let reason = CloseReason::ClosedLocally;
                self.later.push(SubscribeEvent::Connection(
                    publisher,
                    ConnectionEvent::Disconnected(reason),
                ));
                self.core.wait().wake();
                true
            }
        }
    }

    /// Begins the polite close of every connection.
    pub(crate) fn begin_close_all(&mut self, deadline: Instant) {
        self.closing = true;
        let ids: Vec<_> = self.publishers.keys().copied().collect();
        for id in ids {
            self.close_connection(id, deadline);
        }
    }

    /// Polls until every connection is closed; what arrived meanwhile.
    pub(crate) fn close(&mut self, deadline: Instant) -> Result<Vec<SubscribeEvent>, Error> {
        let mut events = Vec::new();
        self.begin_close_all(deadline);
        while self.core.connections() > 0 || !self.raw.is_empty() {
            // A failed endpoint closes its connections, too.
            let _ = self.poll(&mut events);
            if self.core.connections() > 0 {
                let step = self.core.clock().now() + Duration::from_millis(100);
                self.core.wait().sleep(step)?;
            }
        }
        events.append(&mut self.later);
        Ok(events)
    }
}

impl<L: Link> std::fmt::Debug for SubscribeCore<L> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SubscribeCore")
            .field("core", &self.core)
            .field("publishers", &self.publishers.len())
            .finish_non_exhaustive()
    }
}
