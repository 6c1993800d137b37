//! How events of the hub's connections become events of peers.

use super::peers::{ConnectionStage, PeerLoss};
use super::{ConnectionlessEndpoint, ConnectionlessEvent, PeerId};
use crate::Error;
use crate::endpoint::event::{ConnectionEvent, ConnectionInfo, ReceiveEvent};
use crate::endpoint::hub::received_frame::PlacedFrame;
use crate::id::ConnectionId;

impl ConnectionlessEndpoint {
    /// Drives the core, and appends what came.
    pub(super) fn poll_core(&mut self, events: &mut Vec<ConnectionlessEvent>) -> Result<(), Error> {
        let before = events.len();
        let mut said = std::mem::take(&mut self.came.said);
        let polled = self.core.poll(&mut said);
        self.tell(said.drain(..), events);
        self.came.said = said;
        self.end_leaving(events);
        if let Some(deliveries) = &mut self.deliveries {
            deliveries.pass(events, before);
            let next = deliveries.next_look(self.core.clock());
            self.core.set_layer_deadline(next);
        }
        polled
    }

    /// Drives the core, and puts what came into the inbox: frames as they are, where nothing else
    /// becomes of messages.
    pub(super) fn fill_inbox(&mut self) -> Result<(), Error> {
        let mut told = std::mem::take(&mut self.came.told);
        let polled = match self.deliveries {
            Some(_) => self.poll_core(&mut told),
            None => self.poll_core_frames(&mut told),
        };
        self.inbox.push_all(&mut told);
        self.came.told = told;
        polled
    }

    /// Leaves what was told behind the last frame.
    fn poll_core_frames(&mut self, told: &mut Vec<ConnectionlessEvent>) -> Result<(), Error> {
        let mut said = std::mem::take(&mut self.came.said);
        let mut frames = std::mem::take(&mut self.came.frames);
        let polled = self.core.poll_frames(&mut said, &mut frames);
        let mut before = 0;
        let mut rest = said.drain(..);
        for PlacedFrame { behind, frame } in frames.drain(..) {
            self.tell(rest.by_ref().take(behind - before), told);
            self.inbox.push_all(told);
            before = behind;
            // One of a peer that is not known is dropped, as its messages would be.
            if let Some(about) = self.peers.about(frame.connection()) {
                self.inbox.push_frame(frame, about);
            }
        }
        self.tell(rest, told);
        (self.came.said, self.came.frames) = (said, frames);
        self.end_leaving(told);
        polled
    }

    pub(super) fn tell(
        &mut self,
        said: impl Iterator<Item = ReceiveEvent>,
        events: &mut Vec<ConnectionlessEvent>,
    ) {
        let mut answers = Vec::new();
        for event in said {
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
            self.tell(answers.into_iter(), events);
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
