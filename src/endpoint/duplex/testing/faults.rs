//! What networks do to messages, for tests: they are lost, doubled, damaged, overtaken, and
//! connections break.
//!
//! A layer between a [`DuplexEndpoint`](super::DuplexEndpoint) and its core, on the side that
//! sends: the core, the provider and the peer never know. To whoever sends, a message that is lost
//! was sent.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{DuplexLink, Hub};
use crate::buffer::{Payload, SharedBufferManager};
use crate::endpoint::ConnectionId;
use crate::endpoint::error::Refused;
use crate::endpoint::event::{ConnectionEvent, ReceiveEvent};
use crate::error::Error;
use crate::memory::Registrar;
use crate::protocol::connection::CloseReason;

/// Where all choices come from: a simple generator.
#[derive(Debug, Clone)]
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    /// A number below `n`.
    pub(crate) fn roll(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % n
    }

    /// Never, for 0.
    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        n > 0 && self.roll(n) == 0
    }
}

/// How often things go wrong: one in so many messages; 0 never.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Faults {
    pub(crate) drop: u64,
    pub(crate) double: u64,
    pub(crate) damage: u64,
    pub(crate) swap: u64,
    pub(crate) cut: u64,
}

/// What goes wrong with which messages.
#[derive(Debug, Clone)]
pub(crate) struct FaultConfig {
    pub(crate) faults: Faults,
    /// All endpoints with these faults have it in common: each is to meet others.
    pub(crate) dice: Arc<Mutex<Dice>>,
    /// By its header: all others are left alone.
    pub(crate) concerns: fn(&[u8]) -> bool,
}

/// The key of a message that was not asked for.
const GHOST: u64 = u64::MAX - 1;

/// How long a message waits for another one to overtake it.
const HELD: Duration = Duration::from_millis(2);

/// Messages with bytes of their own at a time, and their longest payload.
const COPIES: u32 = 16;
const COPY_BYTES: usize = 64 << 10;

/// A message that the next one overtakes.
#[derive(Debug)]
struct Held {
    connection: ConnectionId,
    payload: Payload,
    header: Vec<u8>,
    key: u64,
    until: Instant,
}

impl Held {
    /// It was sent, as far as its sender can see.
    fn done(self) -> ReceiveEvent {
        ReceiveEvent::Completed {
            connection: self.connection,
            key: self.key,
            payload: self.payload,
        }
    }
}

/// The faults of one endpoint.
#[derive(Debug)]
pub(super) struct FaultLayer {
    config: FaultConfig,
    copies: SharedBufferManager,
    held: Option<Held>,
    /// What was not sent, and is said to be.
    lost: Vec<ReceiveEvent>,
}

type Core = Hub<DuplexLink>;

impl FaultLayer {
    pub(super) fn new(config: FaultConfig, registrar: &dyn Registrar) -> Result<Self, Error> {
        let copies = SharedBufferManager::allocate_with_headroom(COPIES, COPY_BYTES, 64)?;
        copies.region().register_with(registrar)?;
        Ok(Self {
            config,
            copies,
            held: None,
            lost: Vec::new(),
        })
    }

    fn dice(&self) -> MutexGuard<'_, Dice> {
        let dice = self.config.dice.lock();
        dice.unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn send(
        &mut self,
        core: &mut Core,
        connection: ConnectionId,
        payload: Payload,
        header: &[u8],
        key: u64,
    ) -> Result<(), Refused<Payload>> {
        if !(self.config.concerns)(header) {
            return core.send_data(connection, payload, header, key);
        }
        let faults = self.config.faults;
        if self.dice().one_in(faults.cut) {
            // What is sent next finds out.
            core.abort_connection(connection, CloseReason::ClosedLocally);
        } else if self.dice().one_in(faults.drop) {
            self.lost.push(ReceiveEvent::Completed {
                connection,
                key,
                payload,
            });
            return Ok(());
        } else if self.held.is_none() && self.dice().one_in(faults.swap) {
            self.held = Some(Held {
                connection,
                payload,
                header: header.to_vec(),
                key,
                until: core.clock().now() + HELD,
            });
            return Ok(());
        }
        let (is_doubled, is_damaged) = {
            let mut dice = self.dice();
            (dice.one_in(faults.double), dice.one_in(faults.damage))
        };
        let double = is_doubled.then(|| self.copied(&payload, |_| {})).flatten();
        let damaged = is_damaged.then(|| self.damaged(&payload)).flatten();
        core.send_data(connection, damaged.unwrap_or(payload), header, key)?;
        if let Some(double) = double {
            // Without room for it, it is not doubled.
            let _ = core.send_data(connection, double, header, GHOST);
        }
        if self
            .held
            .as_ref()
            .is_some_and(|it| it.connection == connection)
        {
            self.let_go(core);
        }
        Ok(())
    }

    pub(super) fn poll(
        &mut self,
        core: &mut Core,
        events: &mut Vec<ReceiveEvent>,
    ) -> Result<(), Error> {
        if self
            .held
            .as_ref()
            .is_some_and(|it| core.clock().now() >= it.until)
        {
            self.let_go(core);
        }
        // What is said of a connection comes before its end.
        events.append(&mut self.lost);
        let first = events.len();
        let polled = core.poll(events);
        let held = self.held.as_ref().map(|it| it.connection);
        let end = events[first..].iter().position(|event| {
            matches!(event, ReceiveEvent::Connection(connection, ConnectionEvent::Disconnected(_))
                if held == Some(*connection))
        });
        if let (Some(end), Some(held)) = (end, self.held.take_if(|_| end.is_some())) {
            events.insert(first + end, held.done());
        }
        events.retain(|event| match event {
            ReceiveEvent::Completed { key, .. }
            | ReceiveEvent::Failed { key, .. }
            | ReceiveEvent::Released { key, .. } => *key != GHOST,
            _ => true,
        });
        polled
    }

    /// What was overtaken goes on its way, if there is room.
    fn let_go(&mut self, core: &mut Core) {
        let Some(held) = self.held.take() else { return };
        let sent = core.send_data(held.connection, held.payload, &held.header, held.key);
        if let Err(refused) = sent {
            let again = refused.is_would_block();
            let held = Held {
                payload: refused.given,
                ..held
            };
            match again {
                true => self.held = Some(held),
                false => self.lost.push(held.done()),
            }
        }
    }

    /// A copy of it but for one bit; none: it has no bytes, or all copies are under way.
    fn damaged(&self, payload: &Payload) -> Option<Payload> {
        let bit = self.dice().roll(8 * (payload.len_bytes() as u64).max(1));
        if payload.len_bytes() == 0 {
            return None;
        }
        self.copied(payload, |bytes| bytes[(bit / 8) as usize] ^= 1 << (bit % 8))
    }

    /// A copy, with this done to it; none: all copies are under way.
    fn copied(&self, payload: &Payload, change: impl FnOnce(&mut [u8])) -> Option<Payload> {
        let mut copy = self.copies.try_acquire()?;
        let mut len = 0;
        for segment in payload.segments() {
            let bytes = segment.as_bytes()?;
            copy[len..len + bytes.len()].copy_from_slice(bytes);
            len += bytes.len();
        }
        change(&mut copy[..len]);
        Some(copy.freeze(len).into())
    }
}
