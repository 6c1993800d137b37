//! `SendCore`: what a send endpoint does, over any link. A layer above a [`Hub`] with one peer,
//! which it connects to, and again after the end of a connection.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use crate::Error;
use crate::buffer::{Given, HeaderSlotManager, Payload, SharedBufferManager};
use crate::clock::Clock;
use crate::endpoint::error::{Blocked, Refused, SendErrorKind, WindowError};
use crate::endpoint::event::{ConnectionEvent, ConnectionInfo, Level, SendEvent};
use crate::endpoint::hub::headers::Header;
use crate::endpoint::hub::{Hub, HubSettings, OutboundSettings, WindowSettings};
use crate::endpoint::link::Link;
use crate::endpoint::link::rdm_hello::HELLO_MESSAGE_MAX;
use crate::endpoint::link::wait::{EndpointWait, LinkWait};
use crate::endpoint::reconnect::{Redial, errno_of};
use crate::endpoint::send::SendStatus;
use crate::endpoint::settings::{ConnectionSettings, SettingsOf};
use crate::endpoint::windows::destination::Destination;
use crate::endpoint::windows::window::{LocalWindow, RemoteWindow, WindowMemory, WindowPlace};
use crate::fabric::PeerAddr;
use crate::id::{ConnectionId, EndpointId};
use crate::memory::Access;
use crate::metrics::WatchedKind;
use crate::metrics::registry::WatchedPlace;
use crate::protocol::connection::{CloseReason, Form, State};
use crate::protocol::wire::{CONTROL_LEN_MAX, WindowDescriptor};
use crate::stats::SendStats;

/// The settings of a hub that connects to one peer and sends to it. One-sided operations count as
/// sends.
pub(crate) fn settings(sends: OutboundSettings, connection: &ConnectionSettings) -> HubSettings {
    HubSettings {
        credits: 0,
        max_connections: 1,
        max_of_host: None,
        max_message: 0,
        ask: false,
        accepts: false,
        handshake_timeout: connection.connect_timeout,
        close_timeout: connection.close_timeout,
        header_mode: None,
        windows: WindowSettings {
            windows: connection.windows_of(SettingsOf::Send),
            uses_peers: true,
            operations: 0,
            deadline: sends.deadline,
            policy: sends.policy,
            long: false,
        },
        long: None,
        sends: Some(sends),
        publishing: false,
        liveness: connection.liveness,
        fence_timeout: connection.fence_timeout_of(),
        watch: connection.watch,
        watched: connection.watched_as(WatchedKind::Send),
    }
}

/// A hub, and the one peer that it sends to.
pub(crate) struct SendCore<L: Link> {
    hub: Hub<L, SendEvent>,
    peer: PeerAddr,
    /// The one that there is, or was.
    connection: ConnectionId,
    /// The connection is established.
    stands: bool,
    /// Why it ended.
    ended: Option<CloseReason>,
    redial: Redial,
    /// Something was refused between two connections.
    refused: bool,
    /// Events that the next poll reports.
    early: Vec<SendEvent>,
}

impl<L: Link> SendCore<L> {
    /// Starts to connect.
    pub(crate) fn connect(
        link: L,
        waiter: Arc<dyn LinkWait>,
        clock: Clock,
        peer: PeerAddr,
        settings: HubSettings,
        redial: Redial,
    ) -> Result<Self, Error> {
        // Nothing but the peer's control messages comes in.
        let bytes = match link.form() {
            Form::Msg => CONTROL_LEN_MAX,
            // A hello may come to any address.
            Form::Rdm => HELLO_MESSAGE_MAX,
        };
        let pool = SharedBufferManager::allocate(settings.control_buffers(&link), bytes)?;
        let mut hub = Hub::listen(link, waiter, clock, pool, settings)?;
        let (mut early, connection) = (Vec::new(), hub.dial(&peer)?);
        hub.begin(&mut early);
        Ok(Self {
            hub,
            peer,
            connection,
            stands: false,
            ended: None,
            redial,
            refused: false,
            early,
        })
    }

    /// The connection that there is, or was.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn connection(&self) -> ConnectionId {
        self.connection
    }

    #[cfg(all(test, not(loom)))]
    pub(crate) fn hub(&mut self) -> &mut Hub<L, SendEvent> {
        &mut self.hub
    }

    pub(crate) fn id(&self) -> EndpointId {
        self.hub.id()
    }

    pub(crate) fn stats(&self) -> SendStats {
        let hub = self.hub.stats();
        SendStats {
            cq_reads: hub.cq_reads,
            cq_reads_empty: hub.cq_reads_empty,
            stray_writes: hub.stray_writes,
            unknown_completions: hub.unknown_completions,
            leaked: hub.leaked,
            ..self.hub.send_stats()
        }
    }

    pub(crate) fn watched(&self) -> &WatchedPlace {
        self.hub.watched()
    }

    pub(crate) fn wait(&self) -> &Arc<EndpointWait> {
        self.hub.wait()
    }

    /// The clock by which deadlines are judged.
    pub(crate) fn clock(&self) -> &Clock {
        self.hub.clock()
    }

    pub(crate) fn conn(&self) -> Option<&L::Conn> {
        self.hub.conn(self.connection)
    }

    pub(crate) fn headers(&self) -> &HeaderSlotManager {
        self.hub.headers()
    }

    pub(crate) fn state(&self) -> State {
        self.hub.state(self.connection)
    }

    /// Why there is no connection, and will be none.
    pub(crate) fn close_reason(&self) -> Option<CloseReason> {
        let reason = self.ended;
        let reason = reason.or_else(|| self.hub.close_reason(self.connection));
        reason.filter(|_| self.redial.at().is_none())
    }

    /// What whoever waited for the connection is told of its end.
    pub(crate) fn error_of_end(&self, reason: CloseReason) -> Error {
        match reason.is_of_connecting() || self.hub.stats().connections == 0 {
            true => Error::NotConnected {
                peer: self.peer.to_string(),
                reason,
            },
            false => Error::Closed(reason),
        }
    }

    /// What was agreed; means something once the connection stands.
    pub(crate) fn info(&self) -> Option<ConnectionInfo> {
        self.hub.info(self.connection)
    }

    /// How what goes out stands.
    pub(crate) fn status(&self) -> SendStatus {
        self.hub.send_status(self.connection)
    }

    /// Keys of what has no outcome yet.
    pub(crate) fn pending(&self) -> Vec<u64> {
        self.hub.pending_on(self.connection)
    }

    // ---- sending --------------------------------------------------------------------------------

    /// Posts one message, or gives everything back.
    #[inline]
    pub(crate) fn send_data(
        &mut self,
        payload: Payload,
        header: &[u8],
        key: u64,
    ) -> Result<(), Refused<Payload>> {
        self.send_given(payload, header, key)
    }

    /// The same, of whatever a message is sent from.
    #[inline(always)]
    pub(crate) fn send_given(
        &mut self,
        given: impl Given,
        header: &[u8],
        key: u64,
    ) -> Result<(), Refused<Payload>> {
        match self.hub.sender(self.connection) {
            Some(mut sender) => sender.send(given, Header::Bytes(header), key),
            None => Err(self.refuse(given.into_payload(), key)),
        }
    }

    /// Sends messages until one is refused; each but the last tells the provider that another
    /// follows, where it looks at that.
    pub(crate) fn send_batch<G: Given, H: AsRef<[u8]>>(
        &mut self,
        mut messages: impl Iterator<Item = (G, H, u64)>,
    ) -> (usize, Option<Refused<Payload>>) {
        if let Some(mut sender) = self.hub.sender(self.connection) {
            return sender.send_batch(messages);
        }
        let first = messages.next();
        let refused = first.map(|(given, _, key)| self.refuse(given.into_payload(), key));
        (0, refused)
    }

    /// There is no connection.
    #[cold]
    fn refuse<T>(&mut self, given: T, key: u64) -> Refused<T> {
        let kind = if self.redial.at().is_some() {
            self.refused = true;
            SendErrorKind::WouldBlock(Blocked::Connecting)
        } else {
            // Its end may not be told yet.
            let ended = self.close_reason().or_else(|| Some(end_of(&self.early)?.1));
            ended.map_or(SendErrorKind::NoConnection, SendErrorKind::Closed)
        };
        self.hub.refuse_without_connection(&kind);
        Refused::new(kind, given, key)
    }

    // ---- windows --------------------------------------------------------------------------------

    pub(crate) fn open_window(
        &self,
        descriptor: &WindowDescriptor,
    ) -> Result<RemoteWindow, WindowError> {
        self.hub.open_window(self.connection, descriptor)
    }

    /// Posts a write, or gives everything back.
    pub(crate) fn write(
        &mut self,
        payload: Payload,
        place: WindowPlace<'_>,
        data: Option<u32>,
        level: Level,
        key: u64,
    ) -> Result<(), Refused<Payload>> {
        match self.hub.is_empty() {
            false => self.hub.write(payload, place, data, level, key),
            true => Err(self.refuse(payload, key)),
        }
    }

    /// Posts a read, or gives everything back.
    pub(crate) fn read(
        &mut self,
        into: Destination,
        place: WindowPlace<'_>,
        key: u64,
    ) -> Result<(), Refused<Destination>> {
        match self.hub.is_empty() {
            false => self.hub.read(into, place, key),
            true => Err(self.refuse(into, key)),
        }
    }

    pub(crate) fn expose(
        &mut self,
        memory: WindowMemory,
        access: Access,
    ) -> Result<LocalWindow, Refused<WindowMemory, WindowError>> {
        self.hub.expose(self.connection, memory, access)
    }

    /// Begins to take a window back; false: there is nothing to take back any more.
    pub(crate) fn revoke(
        &mut self,
        window: LocalWindow,
        deadline: Instant,
    ) -> Result<bool, Refused<LocalWindow, WindowError>> {
        self.hub.revoke(window, deadline)
    }

    /// How many windows this side exposes, those that wait for their end included.
    pub(crate) fn windows(&self) -> usize {
        self.hub.windows()
    }

    // ---- polling --------------------------------------------------------------------------------

    /// Posts what was packed.
    pub(crate) fn flush(&mut self) {
        self.hub.flush();
    }

    /// Drives the connection and appends what happened.
    pub(crate) fn poll(&mut self, events: &mut Vec<SendEvent>) -> Result<(), Error> {
        let before = events.len();
        if self.ended.is_some() {
            self.connect_again(events);
        }
        if !self.early.is_empty() {
            events.append(&mut self.early);
        }
        self.hub.drive(events);
        if !self.stands || self.hub.is_empty() {
            self.look_at_connection(events, before);
        }
        Ok(())
    }

    /// Whether the connection came to stand, or ended, among these events.
    #[cold]
    fn look_at_connection(&mut self, events: &mut Vec<SendEvent>, before: usize) {
        let connected = |event: &SendEvent| {
            matches!(event, SendEvent::Connection(ConnectionEvent::Connected(_)))
        };
        if !self.stands && events[before..].iter().any(connected) {
            self.stands = true;
            self.redial.on_connected(self.clock().now());
        }
        if self.ended.is_none()
            && let Some((at, reason)) = end_of(&events[before..])
        {
            events.remove(before + at);
            self.on_end(reason, events);
        }
    }

    // ---- the end of a connection, and the next one ----------------------------------------------

    /// There is no connection: the next attempt, or the end.
    fn on_end(&mut self, reason: CloseReason, events: &mut Vec<SendEvent>) {
        (self.stands, self.ended) = (false, Some(reason));
        if self.hub.stats().leaked > 0 {
            // Its queues are not free of the last connection.
            self.redial.stop();
        }
        let next = self.redial.on_end(self.clock().now(), &reason);
        self.hub.set_layer_deadline(self.redial.at());
        events.push(SendEvent::Connection(match next {
            Some((attempt, after)) => ConnectionEvent::Reconnecting {
                attempt,
                after,
                reason,
            },
            None => ConnectionEvent::Disconnected(reason),
        }));
    }

    /// Begins the next attempt, if it is time: another connection to the same peer, over the same
    /// queues.
    #[cold]
    fn connect_again(&mut self, events: &mut Vec<SendEvent>) {
        if !self.redial.take_due(self.clock().now()) {
            return;
        }
        self.hub.set_layer_deadline(None);
        if let Err(error) = self.dial_again() {
            tracing::debug!(%error, "an attempt to connect again failed at once");
            self.on_end(CloseReason::ConnectFailed(errno_of(&error)), events);
        }
    }

    /// Begins to connect to the same peer, over the same queues, when the last connection is over.
    pub(crate) fn dial_again(&mut self) -> Result<(), Error> {
        self.connection = self.hub.dial(&self.peer)?;
        self.ended = None;
        if std::mem::take(&mut self.refused) {
            self.hub.expect_writable(self.connection);
        }
        self.hub.begin(&mut self.early);
        Ok(())
    }

    /// Begins the polite close: what is in flight completes, both sides say goodbye. `poll` until
    /// `Disconnected`. Nothing is tried any more.
    pub(crate) fn begin_close(&mut self, deadline: Instant) {
        if self.redial.stop() {
            // There is no connection that could say goodbye.
            let reason = CloseReason::ClosedLocally;
            self.ended = Some(reason);
            let end = ConnectionEvent::Disconnected(reason);
            self.early.push(SendEvent::Connection(end));
            self.hub.set_layer_deadline(None);
        }
        self.hub.begin_close(self.connection, deadline);
        // The next poll reports the end of what waited for a connection.
        self.hub.wait().wake();
    }

    /// Polls until the connection is closed.
    pub(crate) fn close(&mut self, deadline: Instant) -> Result<Vec<SendEvent>, Error> {
        self.begin_close(deadline);
        let mut events = std::mem::take(&mut self.early);
        events.append(&mut self.hub.close(deadline)?);
        if let Some((_, reason)) = end_of(&events) {
            self.ended = Some(reason);
        }
        Ok(events)
    }
}

/// Where among these the end of a connection is, and why it ended.
fn end_of(events: &[SendEvent]) -> Option<(usize, CloseReason)> {
    let events = events.iter().enumerate().rev();
    events.into_iter().find_map(|(at, event)| match event {
        SendEvent::Connection(ConnectionEvent::Disconnected(reason)) => Some((at, *reason)),
        _ => None,
    })
}

impl<L: Link> fmt::Debug for SendCore<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendCore")
            .field("peer", &self.peer)
            .field("state", &self.state())
            .field("hub", &self.hub)
            .finish_non_exhaustive()
    }
}
