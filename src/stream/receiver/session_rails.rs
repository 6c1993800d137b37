//! `SessionRails`: the connections of one session, by their numbers.

use std::collections::BTreeSet;

use super::rail::{Rails, ReceiverRail};
use super::side::ReceiverTools;
use crate::endpoint::ConnectionId;
use crate::stream::RefusalCode;
use crate::stream::incoming::IncomingStream;
use crate::stream::wire::{Features, Message};

/// Control messages that wait on a connection at once.
const WAITING: usize = 8;

/// The connections that a sender has made for a session.
#[derive(Debug, Default)]
pub(super) struct SessionRails {
    /// Connections, and the number that each has in the session.
    rails: Vec<(ConnectionId, u16)>,
    /// The numbers that there were.
    numbers: BTreeSet<u16>,
}

impl SessionRails {
    pub(super) fn add(&mut self, connection: ConnectionId, number: u16) {
        self.rails.push((connection, number));
        self.numbers.insert(number);
    }

    /// Why there can be no connection of this number, if so. `is_over`: the session is.
    pub(super) fn refuses(
        &self,
        number: u16,
        is_over: bool,
    ) -> Option<(RefusalCode, &'static str)> {
        if self.numbers.contains(&number) {
            let text = "there is or was a connection of this number in the session";
            return Some((RefusalCode::ALREADY, text));
        }
        is_over.then_some((RefusalCode::LOST, "the session is over"))
    }

    pub(super) fn connections(&self) -> impl Iterator<Item = ConnectionId> + '_ {
        self.rails.iter().map(|(connection, _)| *connection)
    }

    /// Connections with their numbers.
    pub(super) fn numbered(&self) -> Vec<(ConnectionId, u16)> {
        self.rails.clone()
    }

    /// The numbers of the connections, in the order in which they were made.
    pub(super) fn numbers(&self) -> Vec<u16> {
        self.rails.iter().map(|(_, number)| *number).collect()
    }

    /// One of the connections that are there.
    pub(super) fn any<'a>(&self, rails: &'a mut Rails) -> Option<&'a mut ReceiverRail> {
        let there = self.connections().find(|rail| rails.contains_key(rail))?;
        rails.get_mut(&there)
    }

    /// The connection of this number, if that is there.
    pub(super) fn get<'a>(
        &self,
        number: u16,
        rails: &'a mut Rails,
    ) -> Option<&'a mut ReceiverRail> {
        let (rail, _) = self.rails.iter().find(|(_, it)| *it == number)?;
        rails.get_mut(rail)
    }

    /// Whether one of the connections that are there can do this.
    pub(super) fn any_can(&self, feature: Features, rails: &Rails) -> bool {
        let mut there = self.connections().filter_map(|rail| rails.get(&rail));
        there.any(|rail| rail.can(feature))
    }

    /// Whether one of the connections is there.
    pub(super) fn is_any_there(&self, rails: &Rails) -> bool {
        self.connections().any(|rail| rails.contains_key(&rail))
    }

    /// The number of a connection.
    pub(super) fn number_of(&self, connection: ConnectionId) -> Option<u16> {
        let found = self.rails.iter().find(|(rail, _)| *rail == connection);
        found.map(|(_, number)| *number)
    }

    /// A connection is gone.
    pub(super) fn remove(&mut self, connection: ConnectionId) {
        self.rails.retain(|(rail, _)| *rail != connection);
    }

    /// Puts into an outbox what the sender is to hear of its stream, unless that is still full of
    /// the last.
    pub(super) fn say(&self, incoming: &mut IncomingStream, rails: &mut Rails) {
        let number = incoming.control_rail();
        let Some(number) = number.or_else(|| self.any(rails).map(|rail| rail.number)) else {
            return;
        };
        incoming.set_control_rail(number);
        let Some(rail) = self.get(number, rails) else {
            return;
        };
        // The last word is not put off: the connection is closed behind it.
        while (rail.outbox.len() < WAITING || incoming.outcome().is_some())
            && let Some(message) = incoming.next_control()
        {
            rail.outbox.push(&message);
            incoming.on_control_sent();
        }
    }

    /// Says something on one of the connections.
    pub(super) fn tell(&self, message: &Message<'_>, rails: &mut Rails) {
        if let Some(rail) = self.any(rails) {
            rail.outbox.push(message);
        }
    }

    /// Says something on the connection of a number, if that is there.
    pub(super) fn tell_on(&self, message: Option<(u16, Message<'_>)>, rails: &mut Rails) {
        if let Some((number, message)) = message
            && let Some(rail) = self.get(number, rails)
        {
            rail.outbox.push(&message);
        }
    }

    /// All connections are closed once what waits on them was said.
    pub(super) fn leave(&self, tools: &mut ReceiverTools) {
        for connection in self.connections() {
            if let Some(rail) = tools.rails.get_mut(&connection) {
                rail.leave(&tools.network);
            }
        }
    }

    /// The sender has lost a connection: whatever still came on it was sent again.
    pub(super) fn abort(&self, number: u16, tools: &mut ReceiverTools) {
        if let Some(rail) = self.get(number, &mut tools.rails)
            && let (port, Some(connection)) = (rail.port, rail.connection())
        {
            tools.network.abort_connection(port, connection);
        }
    }
}
