//! `Rail`: one connection of a session, on either side, from its handshake to its last words.

use std::fmt::Display;
use std::time::Instant;

use super::StreamError;
use super::handshake::{Agreed, AnswerSettings, Answering, DialSettings, Dialing, Step, Then};
use super::network::Network;
use super::outbox::{Outbox, Pumped};
use super::wire::Features;
use crate::endpoint::{ConnectionId, Message as Arrived};

/// How far it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RailStage {
    /// The connection is being made.
    Connecting,
    Handshake,
    Ready,
    Gone,
}

/// The side of the handshake that is this one.
enum Handshake {
    Dialing(Dialing),
    Answering(Answering),
}

/// One connection. `L`: what only this side keeps with it.
pub(super) struct Rail<L> {
    pub(super) port: usize,
    connection: ConnectionId,
    /// Its number in the session; before the handshake is over, only the side that dials has one.
    pub(super) number: u16,
    stage: RailStage,
    handshake: Handshake,
    agreed: Option<Agreed>,
    pub(super) outbox: Outbox,
    pub(super) last_heard: Instant,
    /// The peer is told the last words; the connection is gone by this time.
    leave_by: Option<Instant>,
    /// The peer was told the last words.
    is_told: bool,
    pub(super) local: L,
}

impl<L> Rail<L> {
    /// A connection that this side has begun to make.
    pub(super) fn dialing(
        at: (usize, ConnectionId),
        settings: DialSettings,
        now: Instant,
        local: L,
    ) -> Self {
        let number = settings.rail;
        let (dialing, hello) = Dialing::new(settings);
        let mut rail = Self::new(at, Handshake::Dialing(dialing), now, local);
        rail.stage = RailStage::Connecting;
        rail.number = number;
        // It is the first that is said once there is a connection.
        rail.outbox.push(&hello);
        rail
    }

    /// A connection that the other side has made.
    pub(super) fn answering(
        at: (usize, ConnectionId),
        settings: AnswerSettings,
        now: Instant,
        local: L,
    ) -> Self {
        let answering = Answering::new(settings);
        Self::new(at, Handshake::Answering(answering), now, local)
    }

    fn new(
        (port, connection): (usize, ConnectionId),
        handshake: Handshake,
        now: Instant,
        local: L,
    ) -> Self {
        Self {
            port,
            connection,
            number: 0,
            stage: RailStage::Handshake,
            handshake,
            agreed: None,
            outbox: Outbox::default(),
            last_heard: now,
            leave_by: None,
            is_told: false,
            local,
        }
    }

    /// The connection; `None`: it is gone.
    pub(super) fn connection(&self) -> Option<ConnectionId> {
        (!self.is_gone()).then_some(self.connection)
    }

    pub(super) fn is_ready(&self) -> bool {
        self.stage == RailStage::Ready
    }

    pub(super) fn is_gone(&self) -> bool {
        self.stage == RailStage::Gone
    }

    /// What was agreed on in the handshake, once it is over.
    pub(super) fn agreed(&self) -> Option<&Agreed> {
        self.agreed.as_ref()
    }

    /// Whether both sides can do this.
    pub(super) fn can(&self, feature: Features) -> bool {
        self.agreed()
            .is_some_and(|agreed| agreed.features.contains(feature))
    }

    /// The provider has connected it.
    pub(super) fn on_connected(&mut self) {
        self.stage = RailStage::Handshake;
    }

    /// What both agree on, once the handshake is over.
    ///
    /// # Errors
    /// Why it has failed; the peer's last words are in the outbox.
    pub(super) fn on_handshake(
        &mut self,
        arrived: &Arrived,
        now: Instant,
    ) -> Result<Option<Agreed>, StreamError> {
        let (header, payload) = (arrived.header(), arrived.payload());
        let step = match &mut self.handshake {
            Handshake::Dialing(it) => it.on_message(header, payload, now),
            Handshake::Answering(it) => it.on_message(header, payload, now),
        };
        self.on_step(step)
    }

    /// Why the handshake has taken too long, if it has.
    pub(super) fn on_time(&mut self, now: Instant) -> Option<StreamError> {
        if self.is_ready() || self.is_gone() || self.is_left() {
            return None;
        }
        let step = match &mut self.handshake {
            Handshake::Dialing(it) => it.on_time(now),
            Handshake::Answering(it) => it.on_time(now),
        };
        self.on_step(step?).err()
    }

    fn on_step(&mut self, step: Step) -> Result<Option<Agreed>, StreamError> {
        if let Some(say) = &step.say {
            self.outbox.push(say);
        }
        match step.then {
            Then::Wait => Ok(None),
            Then::Ready(agreed) => {
                self.number = agreed.rail;
                self.stage = RailStage::Ready;
                self.agreed = Some(agreed);
                Ok(Some(agreed))
            }
            Then::Over(error) => Err(error),
        }
    }

    /// Whether it is told its last words.
    pub(super) fn is_left(&self) -> bool {
        self.leave_by.is_some()
    }

    /// Begins the last words. The connection gets no more time, whatever is said meanwhile.
    pub(super) fn leave(&mut self, network: &Network) {
        self.leave_by.get_or_insert_with(|| network.goodbye_by());
    }

    /// Whether the time for the last words is over.
    pub(super) fn is_late(&self, now: Instant) -> bool {
        self.leave_by.is_some_and(|by| now >= by)
    }

    /// The connection is gone, or is left to its end. Whether it was ready.
    pub(super) fn on_gone(&mut self) -> bool {
        std::mem::replace(&mut self.stage, RailStage::Gone) == RailStage::Ready
    }

    /// Sends what waits, as far as there is room.
    pub(super) fn pump(&mut self, network: &mut Network) {
        if matches!(self.stage, RailStage::Connecting | RailStage::Gone) {
            return;
        }
        match network.pump(self.port, self.connection, &mut self.outbox) {
            Pumped::Dead => network.abort_connection(self.port, self.connection),
            // What was said last has left: the goodbye follows it.
            Pumped::Empty if self.is_left() && !self.is_told => {
                self.is_told = true;
                network.close_connection(self.port, self.connection);
            }
            _ => {}
        }
    }

    /// How it is, in words.
    pub(super) fn describe(&self, now: Instant) -> String
    where
        L: Display,
    {
        let silent = now.saturating_duration_since(self.last_heard);
        let what = match self.stage {
            RailStage::Connecting => "Connecting",
            RailStage::Handshake => "in its handshake",
            RailStage::Ready => "Ready",
            RailStage::Gone => "Gone",
        };
        let left = if self.is_left() { ", is left" } else { "" };
        format!(
            "rail {} (connection {}, port {}): {what}, heard of {silent:.1?} ago, {} messages wait \
             for room{left}{}",
            self.number,
            self.connection,
            self.port,
            self.outbox.len(),
            self.local,
        )
    }
}
