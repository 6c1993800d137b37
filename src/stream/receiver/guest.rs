//! `Guest`: one connection of a receiver.

use std::collections::BTreeMap;
use std::time::Instant;

use super::engine::{Tools, Who};
use crate::endpoint::{ConnectionId, Message as Arrived};
use crate::stream::StreamError;
use crate::stream::auth;
use crate::stream::handshake::{AnswerSettings, Answering, Step, Then};
use crate::stream::outbox::Outbox;
use crate::stream::wire::{Features, PAYLOAD_ROOM_MIN};

/// What a receiver can do, with windows or without.
pub(super) fn features(windows: bool) -> Features {
    let mut features = Features::all();
    features.set(Features::BY_WRITE, windows);
    features
}

/// By connection, and in their order: who is served when does not depend on how a table hashes.
pub(super) type Guests = BTreeMap<ConnectionId, Guest>;

pub(super) struct Guest {
    pub(super) port: usize,
    pub(super) peer: Who,
    handshake: Answering,
    /// Once the handshake is over.
    pub(super) session: Option<u64>,
    pub(super) rail: u16,
    /// Connections that its sender wants for the session.
    pub(super) rails: u16,
    /// Its sender hears of connections that are gone here.
    pub(super) hears_of_rails: bool,
    pub(super) outbox: Outbox,
    pub(super) last_heard: Instant,
    /// It is told its last words, and left by then.
    pub(super) leave_by: Option<Instant>,
    pub(super) leaving: bool,
}

impl Guest {
    pub(super) fn new(port: usize, peer: Who, tools: &Tools) -> Result<Self, StreamError> {
        let config = &tools.config;
        let handshake = Answering::new(AnswerSettings {
            features: features(tools.landings.is_some()),
            streams: 1,
            payload_max: config.block_bytes.max(PAYLOAD_ROOM_MIN),
            key: config.key.clone(),
            nonce: auth::nonce()?,
            deadline: tools.now + config.handshake_timeout,
        });
        #[cfg(not(test))]
        let outbox = Outbox::default();
        #[cfg(test)]
        let outbox = Outbox::swallowing(config.swallow.clone());
        Ok(Self {
            port,
            peer,
            handshake,
            session: None,
            rail: 0,
            rails: 1,
            hears_of_rails: false,
            outbox,
            last_heard: tools.now,
            leave_by: None,
            leaving: false,
        })
    }

    /// How it is, in words.
    pub(super) fn describe(&self, connection: ConnectionId, now: Instant) -> String {
        let silent = now.saturating_duration_since(self.last_heard);
        let session = match self.session {
            Some(session) => format!("rail {} of session {session}", self.rail),
            None => "in its handshake".to_owned(),
        };
        format!(
            "connection {connection} (port {}): {session}, heard of {silent:.1?} ago, {} messages wait for room{}",
            self.port,
            self.outbox.len(),
            if self.leave_by.is_some() {
                ", is left"
            } else {
                ""
            },
        )
    }

    /// Answers; what is left to do is in the answer.
    pub(super) fn on_handshake(&mut self, arrived: &Arrived, now: Instant) -> Then {
        let (header, payload) = (arrived.header(), arrived.payload());
        let step = self.handshake.on_message(header, payload, now);
        self.say(step)
    }

    /// Why it has taken too long to say who it is, if it has.
    pub(super) fn on_time(&mut self, now: Instant) -> Option<StreamError> {
        if self.leave_by.is_some() {
            return None;
        }
        let step = self.handshake.on_time(now)?;
        match self.say(step) {
            Then::Over(error) => Some(error),
            _ => None,
        }
    }

    fn say(&mut self, step: Step) -> Then {
        if let Some(say) = &step.say {
            self.outbox.push(say);
        }
        step.then
    }

    /// It has had its time for the last words.
    pub(super) fn is_late(&self, now: Instant) -> bool {
        self.leave_by.is_some_and(|by| now >= by)
    }
}
