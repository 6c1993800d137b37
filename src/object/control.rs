//! `ControlPort`: requests and answers over connections of our own endpoints, on either side.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::Error;
use crate::buffer::{Payload, SharedBufferManager};
use crate::clock::Clock;
use crate::endpoint::duplex::{DuplexConfig, DuplexEndpoint};
use crate::endpoint::{ConnectionId, ReceiveEvent, SendErrorKind};
use crate::event_loop::{WaitHandle, Waitable};
use crate::fabric::{Domain, PeerAddr};
use crate::object::wire::HEADER_LEN;

/// The key of every message: nobody asks which one it was.
const KEY: u64 = 0;
/// Messages granted to the other side at once, and sends in flight.
const CREDITS: u32 = 16;
/// Buffers for what is sent, more than one connection has in flight.
const OUTGOING: u32 = 64;
/// How long a polite close may take.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// What a port is opened with.
#[derive(Debug, Clone)]
pub(super) struct ControlConfig {
    pub(super) connections: u32,
    /// Of those that come from one host, if there is such a limit.
    pub(super) of_host: Option<u32>,
    /// The longest payload that comes, in bytes.
    pub(super) incoming: usize,
    /// The longest payload that goes, in bytes.
    pub(super) outgoing: usize,
    pub(super) connect_timeout: Duration,
    /// How long a peer may be silent.
    pub(super) lost_after: Duration,
}

impl ControlConfig {
    fn duplex(&self, domain: &Arc<Domain>) -> Result<DuplexConfig, Error> {
        let kind = domain.fabric().endpoint_kind();
        let receives = DuplexConfig::receives(kind, CREDITS, 0);
        let slots = receives.saturating_mul(self.connections).saturating_add(16);
        let pool = SharedBufferManager::allocate(slots, HEADER_LEN + self.incoming)?;
        pool.region().register(domain)?;
        Ok(DuplexConfig {
            header_len: HEADER_LEN as u16,
            pool,
            credits: CREDITS,
            depth: CREDITS,
            max_connections: self.connections,
            max_of_host: self.of_host,
            connect_timeout: self.connect_timeout,
            close_timeout: CLOSE_TIMEOUT,
            send_deadline: self.lost_after,
            lost_after: self.lost_after,
            // Never asked: there are no windows, and the domain is this endpoint's own.
            fence_timeout: self.lost_after,
            windows: 0,
            writes: 0,
            fill_long_ways: false,
            long: None,
            clock: Clock::system(),
            #[cfg(test)]
            faults: None,
        })
    }
}

/// A message that is ready to go.
#[derive(Debug)]
pub(super) struct ControlMessage {
    pub(super) header: [u8; HEADER_LEN],
    pub(super) payload: Vec<u8>,
}

/// What became of messages that wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flushed {
    /// None waits any more.
    Empty,
    /// The rest waits for room.
    Blocked,
    /// The connection can't be sent on any more.
    Dead,
}

/// An endpoint for messages about objects, and the buffers that they leave in.
#[derive(Debug)]
pub(super) struct ControlPort {
    endpoint: DuplexEndpoint,
    outgoing: SharedBufferManager,
}

impl ControlPort {
    /// Takes connections at this address.
    pub(super) fn listen(
        domain: &Arc<Domain>,
        addr: PeerAddr,
        config: &ControlConfig,
    ) -> Result<Self, Error> {
        let endpoint = DuplexEndpoint::listen(domain, addr, &config.duplex(domain)?)?;
        Self::new(domain, endpoint, config)
    }

    /// Only dials.
    pub(super) fn dialing(domain: &Arc<Domain>, config: &ControlConfig) -> Result<Self, Error> {
        let endpoint = DuplexEndpoint::dialing(domain, &config.duplex(domain)?)?;
        Self::new(domain, endpoint, config)
    }

    fn new(
        domain: &Arc<Domain>,
        endpoint: DuplexEndpoint,
        config: &ControlConfig,
    ) -> Result<Self, Error> {
        let room = config.outgoing;
        // Some providers put the header in front of the payload.
        let outgoing = SharedBufferManager::allocate_with_headroom(OUTGOING, room, HEADER_LEN)?;
        outgoing.region().register(domain)?;
        Ok(Self { endpoint, outgoing })
    }

    pub(super) fn local_addr(&self) -> Option<PeerAddr> {
        self.endpoint.local_addr()
    }

    pub(super) fn dial(&mut self, peer: &PeerAddr) -> Result<ConnectionId, Error> {
        self.endpoint.dial(peer)
    }

    pub(super) fn poll(&mut self, events: &mut Vec<ReceiveEvent>) -> Result<(), Error> {
        self.endpoint.poll(events)
    }

    /// Sends of these what can be sent now, in order.
    pub(super) fn flush(
        &mut self,
        connection: ConnectionId,
        waiting: &mut VecDeque<ControlMessage>,
    ) -> Flushed {
        while let Some(next) = waiting.front() {
            match self.send(connection, next) {
                Flushed::Empty => drop(waiting.pop_front()),
                other => return other,
            }
        }
        Flushed::Empty
    }

    fn send(&mut self, connection: ConnectionId, message: &ControlMessage) -> Flushed {
        let len = message.payload.len();
        let payload = match len {
            0 => Payload::empty(),
            _ => match self.outgoing.try_acquire() {
                Some(mut buffer) => {
                    buffer[..len].copy_from_slice(&message.payload);
                    buffer.freeze(len).into()
                }
                None => return Flushed::Blocked,
            },
        };
        match self
            .endpoint
            .send(connection, payload, &message.header, KEY)
        {
            Ok(()) => Flushed::Empty,
            Err(refused) if matches!(refused.kind, SendErrorKind::WouldBlock(_)) => {
                Flushed::Blocked
            }
            Err(refused) => {
                tracing::debug!(kind = %refused.kind, "a message about objects can't be sent");
                Flushed::Dead
            }
        }
    }

    /// Ends a connection at once.
    pub(super) fn abort(&mut self, connection: ConnectionId) {
        self.endpoint.abort_connection(connection);
    }

    /// Closes every connection politely.
    pub(super) fn close(self, deadline: Instant) {
        // What it reports is of nobody's business any more.
        let _ = self.endpoint.close(deadline);
    }
}

impl Waitable for ControlPort {
    fn wait_handle(&self) -> WaitHandle {
        self.endpoint.wait_handle()
    }
}
