//! `PublishCore`: what a publisher does, over any link. A layer above [`Hub`], which accepts the
//! subscribers and posts.
//!
//! One publication is one header slot, filled once, and one payload, of which every send has a
//! handle. Each subscriber has a queue ([`SubscriberQueues`]): what the provider has no room for
//! waits there or is dropped, as the policy says.
//!
//! What has to be staged is copied once, and what waits for an event waits once: every send has a
//! handle on the copy, and on the gates ([`Payload::share`]). The sends wait where all do, in the
//! core, each in its place among those of its subscriber.

use std::time::{Duration, Instant};

use super::account::{Outcome, Publications, Ticket};
use super::event::{Publication, PublishEvent};
use super::header::PublicationHeader;
use super::held::PublicationHold;
use super::outbox::Outbox;
use super::policy::{DropReason, Offered, PeerOutcome, SlowPolicy};
use super::settings::PublishSettings;
use super::subscriber_queue::Lag;
use super::subscriber_queues::{Overdue, SubscriberQueues};
use super::table::SubscriptionTable;
use crate::Error;
use crate::buffer::Payload;
use crate::contain::contain;
use crate::endpoint::error::{Blocked, Refused, SendErrorKind};
use crate::endpoint::event::{ConnectionEvent, ReceiveEvent};
use crate::endpoint::hub::batch::JoinedMessages;
use crate::endpoint::hub::headers::PreparedHeader;
use crate::endpoint::hub::{Hub, SubscriptionEvent};
use crate::endpoint::link::Link;
use crate::error::CompletionError;
use crate::id::ConnectionId;
use crate::protocol::wire::{Refusal, SubscriptionOutcome};
use crate::stats::PublishStats;

/// A publisher.
pub(crate) struct PublishCore<L: Link> {
    pub(super) core: Hub<L>,
    settings: PublishSettings,
    table: SubscriptionTable,
    pub(super) account: Publications<PublicationHold>,
    pub(super) queues: SubscriberQueues,
    outbox: Outbox,
    /// Why the last publication was refused, if it may be taken later.
    blocked: Option<Blocked>,
    closing: bool,
    /// When the last publication, or look at the clock, was.
    pub(super) now: Instant,
    raw: Vec<ReceiveEvent>,
    requests: Vec<(ConnectionId, SubscriptionEvent)>,
    header: PublicationHeader,
    members: Vec<ConnectionId>,
    /// What a batch that is under way has not posted yet.
    pub(super) joined: Option<JoinedMessages>,
}

impl<L: Link> PublishCore<L> {
    /// Over a core that listens, sends, and speaks of subscriptions.
    pub(crate) fn new(core: Hub<L>, settings: PublishSettings) -> Self {
        Self {
            now: core.clock().now(),
            table: SubscriptionTable::new(settings.limits),
            account: Publications::new(settings.publications),
            queues: SubscriberQueues::default(),
            outbox: Outbox::new(settings.tell_sent, core.watched()),
            blocked: None,
            closing: false,
            raw: Vec::new(),
            requests: Vec::new(),
            header: PublicationHeader::default(),
            members: Vec::new(),
            joined: None,
            core,
            settings,
        }
    }

    pub(crate) fn core(&self) -> &Hub<L> {
        &self.core
    }

    pub(crate) fn stats(&self) -> PublishStats {
        PublishStats {
            open: self.account.len() as u64,
            subscriptions: self.table.len().into(),
            ..self.outbox.stats.read()
        }
    }

    fn count_subscriptions(&self) {
        let subscriptions = self.table.len().into();
        self.outbox.stats.subscriptions.set(subscriptions);
    }

    pub(crate) fn subscribers(&self, tag: u64) -> usize {
        self.table.subscribers(tag)
    }

    /// Publications that wait for a subscriber.
    pub(crate) fn waiting(&self, connection: ConnectionId) -> usize {
        self.queues.waiting(connection)
    }

    pub(crate) fn tags(&self, connection: ConnectionId) -> impl Iterator<Item = u64> {
        self.table.tags(connection)
    }

    /// False: there is no such subscriber.
    pub(crate) fn set_policy(&mut self, connection: ConnectionId, policy: SlowPolicy) -> bool {
        let is_there = self.queues.set_policy(connection, policy, self.now);
        if is_there {
            self.core.wait().wake();
        }
        is_there
    }

    // ---- publishing -----------------------------------------------------------------------------

    /// Posts one payload to everybody who has subscribed to the tag, or gives everything back.
    pub(crate) fn publish(
        &mut self,
        tag: u64,
        payload: Payload,
        header: &[u8],
        key: u64,
    ) -> Result<Publication, Refused<Payload>> {
        match self.admit(tag, payload, header, key) {
            Ok((number, payload, prepared)) => Ok(self.post_to_all(number, payload, prepared, key)),
            Err((kind, payload)) => {
                if let SendErrorKind::WouldBlock(blocked) = kind {
                    self.outbox.stats.would_block.add(1);
                    self.blocked = Some(blocked);
                }
                Err(Refused::new(kind, payload, key))
            }
        }
    }

    /// What can be said without looking at any subscriber: the publication's number, the payload
    /// with what it is staged in, and the header in its slot.
    fn admit(
        &mut self,
        tag: u64,
        payload: Payload,
        header: &[u8],
        key: u64,
    ) -> Result<(u64, Payload, PreparedHeader), (SendErrorKind, Payload)> {
        let (number, prepared) = match self.admit_header(tag, header, key) {
            Ok(admitted) => admitted,
            Err(kind) => return Err((kind, payload)),
        };
        match self.core.stage_for_many(payload) {
            Ok(payload) => {
                self.table.count_publication(tag);
                Ok((number, payload, prepared))
            }
            Err((kind, payload)) => {
                self.core.drop_header(prepared);
                Err((kind, payload))
            }
        }
    }

    fn admit_header(
        &mut self,
        tag: u64,
        header: &[u8],
        key: u64,
    ) -> Result<(u64, PreparedHeader), SendErrorKind> {
        if self.closing {
            return Err(SendErrorKind::Closing);
        }
        let Some((number, members)) = self.table.members(tag) else {
            self.outbox.stats.without_subscribers.add(1);
            return Err(SendErrorKind::NoSubscribers { tag });
        };
        if self.account.is_full() {
            return Err(SendErrorKind::WouldBlock(Blocked::Depth));
        }
        self.members.clear();
        self.members.extend_from_slice(members);
        let composed = self.header.compose(tag, number, header);
        let prepared = self.core.prepare_header(composed, key);
        let prepared = prepared.map_err(|kind| PublicationHeader::explain(kind, header.len()))?;
        Ok((number, prepared))
    }

    fn post_to_all(
        &mut self,
        number: u64,
        mut payload: Payload,
        mut header: PreparedHeader,
        key: u64,
    ) -> Publication {
        self.now = self.core.clock().now();
        let mut told = Publication {
            number,
            posted: 0,
            waiting: 0,
            dropped: 0,
        };
        let ticket = self.account.open(key, PublicationHold::nothing());
        let members = std::mem::take(&mut self.members);
        for &connection in &members {
            match self.post_or_park(connection, &mut payload, &mut header, ticket) {
                Offered::Posted => told.posted += 1,
                Offered::Waits => told.waiting += 1,
                Offered::Dropped(reason) => {
                    told.dropped += 1;
                    self.account.add_dropped(ticket);
                    self.outbox
                        .tell_peer(key, connection, PeerOutcome::Dropped(reason));
                }
            }
        }
        self.members = members;
        let mut header = Some(header);
        if told.waiting == 0
            && let Some(header) = header.take()
        {
            self.core.drop_header(header);
        }
        if let Some((_, held)) = self.account.get(ticket) {
            *held = PublicationHold { payload, header };
        }
        self.account.seal(ticket);
        self.outbox.stats.published.add(1);
        self.outbox.stats.posted.add(u64::from(told.posted));
        if told.posted + told.waiting == 0 {
            // Nothing will complete: the end is told by the next poll, which is to come.
            self.core.wait().wake();
        }
        self.arm();
        told
    }

    pub(super) fn cut_off(&mut self, connection: ConnectionId, lag: Lag) {
        if !self.core.is_open(connection) {
            return;
        }
        self.outbox.stats.cut_off.add(1);
        let reason = lag.close_reason();
        self.core.abort_connection(connection, reason);
    }

    // ---- polling --------------------------------------------------------------------------------

    /// Drives all connections and appends what happened; an error when the endpoint has failed, for
    /// good.
    pub(crate) fn poll(&mut self, events: &mut Vec<PublishEvent>) -> Result<(), Error> {
        self.outbox.drain_into(events);
        let mut raw = std::mem::take(&mut self.raw);
        let polled = self.core.poll(&mut raw);
        self.absorb(&mut raw);
        self.core.take_subscription_events(&mut self.requests);
        while let Some((connection, event)) = self.requests.pop() {
            self.on_subscription_event(connection, event, &mut raw);
            self.absorb(&mut raw);
        }
        self.raw = raw;
        self.look_at_lanes();
        self.outbox.drain_into(events);
        self.report(events);
        self.arm();
        polled
    }

    fn report(&mut self, events: &mut Vec<PublishEvent>) {
        while let Some(over) = self.account.report() {
            self.outbox.stats.over.add(1);
            events.push(PublishEvent::Published {
                key: over.key,
                payload: over.held.into_payload(),
                outcomes: over.outcomes,
            });
        }
        let Some(blocked) = self.blocked.filter(|_| !self.closing) else {
            return;
        };
        let free = !self.account.is_full() && self.settings.headers.free_count() > 0;
        if free && (blocked != Blocked::Staging || self.core.has_staging()) {
            self.blocked = None;
            events.push(PublishEvent::Writable);
        }
    }

    fn absorb(&mut self, raw: &mut Vec<ReceiveEvent>) {
        for event in raw.drain(..) {
            self.on_event(event);
        }
    }

    fn on_event(&mut self, event: ReceiveEvent) {
        let told = match event {
            ReceiveEvent::Completed {
                connection, key, ..
            } => return self.on_sent(connection, key, None),
            ReceiveEvent::Failed {
                connection,
                key,
                error,
                ..
            } => return self.on_sent(connection, key, Some(error)),
            ReceiveEvent::Writable { connection } => return self.fill(connection),
            ReceiveEvent::Connection(connection, event) => {
                self.on_connection(connection, &event);
                PublishEvent::Connection(connection, event)
            }
            ReceiveEvent::Late { connection, key } => {
                let Some((key, _)) = self.account.get(Ticket::from_key(key)) else {
                    return;
                };
                PublishEvent::Late { key, connection }
            }
            ReceiveEvent::Request(request) => PublishEvent::Request(request),
            // A clone whose outcome was told when its connection ended; the buffer that came back
            // with that is whole now.
            ReceiveEvent::Released { .. } => return,
            // A publisher takes no data and has no windows.
            ReceiveEvent::Message(_)
            | ReceiveEvent::DeviceMessage(_)
            | ReceiveEvent::Undelivered { .. }
            | ReceiveEvent::Window { .. }
            | ReceiveEvent::Starved { .. } => return,
        };
        self.outbox.push(told);
    }

    fn on_connection(&mut self, connection: ConnectionId, event: &ConnectionEvent) {
        match event {
            ConnectionEvent::Connected(_) => {
                self.queues.add(connection, self.settings.slow);
            }
            ConnectionEvent::PeerClosing => self.empty_lane(connection),
            ConnectionEvent::Disconnected(_) => {
                self.empty_lane(connection);
                let count = self.table.remove(connection);
                self.count_subscriptions();
                if count > 0 {
                    let gone = PublishEvent::SubscriptionsGone { connection, count };
                    self.outbox.push(gone);
                }
            }
            ConnectionEvent::Unresponsive
            | ConnectionEvent::Responsive
            | ConnectionEvent::Late
            | ConnectionEvent::Reconnecting { .. } => {}
        }
    }

    /// A send of a publication is over.
    fn on_sent(&mut self, connection: ConnectionId, key: u64, error: Option<CompletionError>) {
        let ticket = Ticket::from_key(key);
        if let Some((queue, _)) = self.queues.get_mut(connection) {
            queue.on_done(ticket);
        }
        let Some((key, _)) = self.account.get(ticket) else {
            return;
        };
        let (outcome, told) = match error {
            None => (Outcome::Sent, PeerOutcome::Sent),
            Some(error) => (Outcome::Failed, PeerOutcome::Failed(error)),
        };
        self.outbox.tell_peer(key, connection, told);
        self.account.settle(ticket, outcome);
    }

    fn on_subscription_event(
        &mut self,
        connection: ConnectionId,
        event: SubscriptionEvent,
        raw: &mut Vec<ReceiveEvent>,
    ) {
        // The connection may be over since, and its subscriptions were counted out.
        let SubscriptionEvent::Asked(request) = event else {
            return;
        };
        if !self.core.is_open(connection) {
            return;
        }
        let tag = request.tag;
        let (outcome, next) = self.table.ask(connection, request);
        self.count_subscriptions();
        if outcome == SubscriptionOutcome::DONE {
            self.outbox.push(match request.on {
                true => PublishEvent::Subscribed { connection, tag },
                false => PublishEvent::Unsubscribed { connection, tag },
            });
        } else if !outcome.is_granted() {
            self.outbox.stats.refused.add(1);
        }
        self.core
            .answer_subscription(connection, outcome, next, raw);
    }

    // ---- queues --------------------------------------------------------------------------------

    /// Posts what waits for a subscriber, as far as it has room.
    fn fill(&mut self, connection: ConnectionId) {
        while let Some((queue, due)) = self.queues.get_mut(connection)
            && let Some((ticket, since)) = queue.next()
        {
            let Some((key, held)) = self.account.get(ticket) else {
                queue.take_next();
                continue;
            };
            let Some(header) = &mut held.header else {
                debug_assert!(false, "what waits has its header");
                return;
            };
            let posted =
                self.core
                    .send_prepared(connection, held.payload.share(), header, ticket.key());
            match posted.map_err(|refused| refused.kind) {
                Ok(()) => {
                    queue.take_next();
                    queue.on_posted(ticket, since);
                    due.note(queue);
                    self.outbox.stats.posted.add(1);
                    self.end_wait(ticket);
                }
                Err(SendErrorKind::WouldBlock(_)) => return,
                Err(kind) => {
                    queue.take_next();
                    self.drop_waiting(connection, key, ticket, DropReason::of(kind));
                }
            }
        }
    }

    /// What waited for one subscriber waits no more; with the last of them, the header's slot goes.
    fn end_wait(&mut self, ticket: Ticket) {
        let last = self.account.wait_over(ticket);
        if let Some(header) = last.and_then(|held| held.header.take()) {
            self.core.drop_header(header);
        }
    }

    fn drop_waiting(
        &mut self,
        connection: ConnectionId,
        key: u64,
        ticket: Ticket,
        reason: DropReason,
    ) {
        self.end_wait(ticket);
        self.outbox
            .tell_peer(key, connection, PeerOutcome::Dropped(reason));
        self.account.settle(ticket, Outcome::Dropped);
    }

    fn drop_ticket(&mut self, connection: ConnectionId, ticket: Ticket, reason: DropReason) {
        if let Some((key, _)) = self.account.get(ticket) {
            self.drop_waiting(connection, key, ticket, reason);
        }
    }

    /// Nothing more is posted to a subscriber.
    fn empty_lane(&mut self, connection: ConnectionId) {
        let Some(mut queue) = self.queues.remove(connection) else {
            return;
        };
        while let Some(ticket) = queue.take_next() {
            self.drop_ticket(connection, ticket, DropReason::Closing);
        }
    }

    /// What waited for too long is dropped, or ends the connection, by the policies. Looks at each
    /// queue when one may be due.
    fn look_at_lanes(&mut self) {
        let Some(due) = self.queues.due() else { return };
        self.now = self.core.clock().now();
        if self.now < due {
            return;
        }
        let Overdue { late, slow } = self.queues.take_overdue(self.now);
        for (connection, ticket) in late {
            self.drop_ticket(connection, ticket, DropReason::Late);
        }
        for (connection, lag) in slow {
            self.cut_off(connection, lag);
        }
    }

    fn arm(&mut self) {
        self.core.set_layer_deadline(self.queues.due());
    }

    // ---- connections and the end ----------------------------------------------------------------

    /// Accepts or refuses a request that waited: true if it was still there.
    pub(crate) fn answer(&mut self, connection: ConnectionId, refusal: Option<Refusal>) -> bool {
        let mut raw = std::mem::take(&mut self.raw);
        let answered = self.core.answer(connection, refusal, &mut raw);
        self.absorb(&mut raw);
        self.raw = raw;
        answered
    }

    #[cfg(all(test, not(loom)))]
    pub(crate) fn abort_for_test(
        &mut self,
        connection: ConnectionId,
        reason: crate::protocol::connection::CloseReason,
    ) {
        self.core.abort_connection(connection, reason);
    }

    /// Begins the polite close of one subscriber's connection; what waits for it is dropped.
    pub(crate) fn begin_close(&mut self, connection: ConnectionId, deadline: Instant) -> bool {
        self.empty_lane(connection);
        self.core.begin_close(connection, deadline)
    }

    /// Begins the polite close of every connection: nothing is published any more, what waits is
    /// dropped, what was posted arrives.
    pub(crate) fn begin_close_all(&mut self, deadline: Instant) {
        self.closing = true;
        for connection in self.queues.connections() {
            self.empty_lane(connection);
        }
        self.core.begin_close_all(deadline);
    }

    /// Polls until every connection is closed.
    pub(crate) fn close(&mut self, deadline: Instant) -> Result<Vec<PublishEvent>, Error> {
        let mut events = Vec::new();
        self.begin_close_all(deadline);
        while self.core.connections() > 0 {
            // A failed endpoint closes its connections, too.
            let _ = self.poll(&mut events);
            if self.core.connections() > 0 {
                let step = self.core.clock().now() + Duration::from_millis(100);
                self.core.wait().sleep(step)?;
            }
        }
        self.outbox.drain_into(&mut events);
        self.report(&mut events);
        Ok(events)
    }
}

impl<L: Link> Drop for PublishCore<L> {
    /// Slots of headers that waited may be shared with other endpoints.
    fn drop(&mut self) {
        for (key, held) in self.account.drain() {
            if let Some(header) = held.header {
                self.core.drop_header(header);
            }
            if let Some(hear) = &mut self.settings.on_abandoned {
                contain("on_abandoned", || hear(key));
            }
        }
    }
}

impl<L: Link> std::fmt::Debug for PublishCore<L> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PublishCore")
            .field("core", &self.core)
            .field("open", &self.account.len())
            .field("subscriptions", &self.table.len())
            .finish_non_exhaustive()
    }
}
