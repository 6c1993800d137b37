//! `Rail`: one connection of a lane, from its handshake on.

use std::time::Instant;

use super::engine::Tools;
use super::placing::Placing;
use crate::endpoint::{ConnectionId, Message as Arrived};
use crate::stream::StreamError;
use crate::stream::auth;
use crate::stream::handshake::{Agreed, DialSettings, Dialing, Then};
use crate::stream::outbox::{Outbox, Pumped};
use crate::stream::wire::{CONTROL_PAYLOAD_MAX, Features, Message};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RailStage {
    Connecting,
    Handshake,
    Ready,
    Gone,
}

/// One connection.
pub(super) struct Rail {
    pub(super) port: usize,
    /// None: gone.
    pub(super) connection: Option<ConnectionId>,
    /// Its number in the session.
    pub(super) number: u16,
    pub(super) stage: RailStage,
    handshake: Dialing,
    /// What is said first.
    hello: Message<'static>,
    agreed: Option<Agreed>,
    pub(super) outbox: Outbox,
    /// Blocks on their way.
    pub(super) in_flight: usize,
    /// Where blocks go by RMA write.
    pub(super) placing: Option<Box<Placing>>,
    /// The last block was refused for now; until the next turn.
    pub(super) blocked: bool,
}

impl Rail {
    pub(super) fn new(
        port: usize,
        connection: ConnectionId,
        (number, rails): (u16, u16),
        session: [u8; 16],
        tools: &Tools,
    ) -> Result<Self, StreamError> {
        let (handshake, hello) = Dialing::new(DialSettings {
            session,
            rail: number,
            rails,
            features: Features::all(),
            key: tools.config.key.clone(),
            nonce: auth::nonce()?,
            deadline: tools.now + tools.config.connect_timeout,
        });
        #[cfg(not(test))]
        let outbox = Outbox::default();
        #[cfg(test)]
        let outbox = Outbox::swallowing(tools.config.swallow.clone());
        Ok(Self {
            port,
            connection: Some(connection),
            number,
            stage: RailStage::Connecting,
            handshake,
            hello,
            agreed: None,
            outbox,
            in_flight: 0,
            placing: None,
            blocked: false,
        })
    }

    pub(super) fn is_ready(&self) -> bool {
        self.stage == RailStage::Ready
    }

    pub(super) fn payload_max(&self) -> Option<u32> {
        self.agreed.as_ref().map(|agreed| agreed.payload_max)
    }

    /// Whether the receiver lets blocks be written.
    pub(super) fn takes_writes(&self) -> bool {
        let agreed = self.agreed.as_ref();
        agreed.is_some_and(|agreed| agreed.features.contains(Features::BY_WRITE))
    }

    /// Whether a block may go by it: what was said before goes first, but a write overtakes.
    pub(super) fn may_send(&self, depth: usize) -> bool {
        let has_room = match &self.placing {
            None => self.outbox.is_empty(),
            Some(_) => self.has_slot(),
        };
        self.is_ready() && !self.blocked && self.in_flight < depth && has_room
    }

    /// Whether a block could be written. The slots of a connection that is gone are of no use.
    pub(super) fn has_slot(&self) -> bool {
        let placing = self.placing.as_ref().filter(|_| self.is_ready());
        placing.is_some_and(|placing| placing.has_room())
    }

    /// Blocks that were written, or are, and that the peer was not told of.
    pub(super) fn unplaced(&self) -> usize {
        self.placing
            .as_ref()
            .map_or(0, |placing| placing.unplaced())
    }

    /// Whether the receiver says so while its sink works.
    pub(super) fn hears_of_work(&self) -> bool {
        let agreed = self.agreed.as_ref();
        agreed.is_some_and(|agreed| agreed.features.contains(Features::WORKING))
    }

    /// Whether the receiver says which connections are gone.
    pub(super) fn hears_of_rails(&self) -> bool {
        let agreed = self.agreed.as_ref();
        agreed.is_some_and(|agreed| agreed.features.contains(Features::RAIL_GONE))
    }

    /// Bytes that a control message may have.
    pub(super) fn control_room(&self) -> usize {
        CONTROL_ROOM.min(
            self.payload_max()
                .map_or(CONTROL_PAYLOAD_MAX, |max| max as usize),
        )
    }

    pub(super) fn on_connected(&mut self) {
        self.stage = RailStage::Handshake;
        self.outbox.push(&self.hello);
    }

    /// True: it is ready.
    pub(super) fn on_handshake(
        &mut self,
        arrived: &Arrived,
        now: Instant,
    ) -> Result<bool, StreamError> {
        let (header, payload) = (arrived.header(), arrived.payload());
        let step = self.handshake.on_message(header, payload, now);
        if let Some(say) = &step.say {
            self.outbox.push(say);
        }
        match step.then {
            Then::Wait => Ok(false),
            Then::Ready(agreed) => {
                self.agreed = Some(agreed);
                self.stage = RailStage::Ready;
                Ok(true)
            }
            Then::Over(error) => Err(error),
        }
    }

    /// Why it has taken too long, if it has.
    pub(super) fn on_time(&mut self, now: Instant) -> Option<StreamError> {
        if matches!(self.stage, RailStage::Ready | RailStage::Gone) {
            return None;
        }
        let step = self.handshake.on_time(now)?;
        if let Some(say) = &step.say {
            self.outbox.push(say);
        }
        match step.then {
            Then::Over(error) => Some(error),
            _ => None,
        }
    }

    /// How it is, in words.
    pub(super) fn describe(&self) -> String {
        let connection = match &self.connection {
            Some(connection) => connection.to_string(),
            None => "gone".to_owned(),
        };
        let placing = self.placing.as_ref();
        let placing = placing.map_or(String::new(), |placing| format!(", {}", placing.describe()));
        format!(
            "rail {} ({connection}, port {}): {:?}, {} blocks in flight, {} messages wait for room{}{placing}",
            self.number,
            self.port,
            self.stage,
            self.in_flight,
            self.outbox.len(),
            if self.blocked { ", blocked" } else { "" },
        )
    }

    pub(super) fn pump(&mut self, tools: &mut Tools) -> Pumped {
        self.blocked = false;
        let Some(connection) = self.connection else {
            return Pumped::Empty;
        };
        if self.stage == RailStage::Connecting {
            return Pumped::Empty;
        }
        let control = tools.control.clone();
        match tools.endpoint(self.port) {
            Some(endpoint) => self.outbox.pump(endpoint, connection, &control),
            None => Pumped::Empty,
        }
    }
}

/// Bytes of a slot for control messages.
pub(super) const CONTROL_ROOM: usize = 16 * 1024;
