//! How events of the hub's connections become events of peers.

use super::peers::{ConnectionStage, PeerLoss};
use super::{ConnectionlessEndpoint, ConnectionlessEvent, PeerId};
use crate::endpoint::event::{ConnectionEvent, ConnectionInfo, ReceiveEvent};
use crate::id::ConnectionId;

impl ConnectionlessEndpoint {
    pub(super) fn tell(
        &mut self,
        inbox: &mut Vec<ReceiveEvent>,
        events: &mut Vec<ConnectionlessEvent>,
    ) {
        let mut answers = Vec::new();
        for event in inbox.drain(..) {
            if let ReceiveEvent::Request(request) = event {
                let refusal = self.peers.refusal(request.peer, self.accept_unknown);
                let connection = request.connection;
                self.core.answer(connection, refusal, &mut answers);
            } else {
                let told = match event {
                    ReceiveEvent::Connection(connection, event) => {
                        self.on_connection(connection, event, &mut answers)
                    }
                    event => ConnectionlessEvent::of(event, &mut self.peers),
                };
                let forgotten = told.as_ref().and_then(|told| self.forgotten_by(told));
                events.extend(told);
                events.extend(forgotten.map(|peer| ConnectionlessEvent::Removed { peer }));
            }
        }
        if !answers.is_empty() {
            self.tell(&mut answers, events);
        }
    }

    /// The peer that was not added by the application, and is forgotten with this event.
    fn forgotten_by(&self, told: &ConnectionlessEvent) -> Option<PeerId> {
        match told {
            &ConnectionlessEvent::Connection(peer, ConnectionEvent::Disconnected(_)) => {
                self.peers.get(peer).is_none().then_some(peer)
            }
            _ => None,
        }
    }

    fn on_connection(
        &mut self,
        connection: ConnectionId,
        event: ConnectionEvent,
        more: &mut Vec<ReceiveEvent>,
    ) -> Option<ConnectionlessEvent> {
        match event {
            ConnectionEvent::Connected(info) => self.on_connected(connection, info),
            ConnectionEvent::Disconnected(_) => match self.peers.on_disconnected(connection)? {
                PeerLoss::Down(peer) => Some(ConnectionlessEvent::Connection(peer, event)),
                PeerLoss::GoesOn(connection) => {
                    more.push(ReceiveEvent::Writable { connection });
                    None
                }
            },
            ConnectionEvent::PeerClosing => {
                let peer = self.peers.of(connection)?;
                let closing = ConnectionStage::Closing;
                self.peers.set_stage(peer, connection, closing);
                None
            }
            ConnectionEvent::Unresponsive | ConnectionEvent::Responsive => {
                let peer = self.peers.of(connection)?;
                Some(ConnectionlessEvent::Connection(peer, event))
            }
            // Not of a hub's connection.
            ConnectionEvent::Late | ConnectionEvent::Reconnecting { .. } => None,
        }
    }

    fn on_connected(
        &mut self,
        connection: ConnectionId,
        info: ConnectionInfo,
    ) -> Option<ConnectionlessEvent> {
        let addr = info.peer?;
        let known = self.peers.of(connection).or_else(|| self.peers.at(&addr));
        let peer = known.or_else(|| self.peers.add(addr, false))?;
        let was_up = self.peers.get(peer)?.is_up();
        self.peers.set_stage(peer, connection, ConnectionStage::Up);
        if self.peers.get(peer)?.leaving {
            let deadline = self.core.clock().now() + self.close_timeout;
            self.core.begin_close(connection, deadline);
            return None;
        }
        let event = ConnectionEvent::Connected(info);
        (!was_up).then_some(ConnectionlessEvent::Connection(peer, event))
    }

    /// Peers that are being removed go with their last connection.
    pub(super) fn end_leaving(&mut self, events: &mut Vec<ConnectionlessEvent>) {
        let gone = self.peers.take_gone().into_iter();
        events.extend(gone.map(|peer| ConnectionlessEvent::Removed { peer }));
    }
}
