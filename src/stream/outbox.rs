//! `Outbox`: control messages of a connection that wait for room, in order.

use std::collections::VecDeque;

use super::wire::{HEADER_LEN, Message};
use crate::buffer::{Payload, SharedBufferManager};
use crate::endpoint::SendErrorKind;

/// The key of every control message: nobody asks which one it was.
pub(super) const CONTROL_KEY: u64 = u64::MAX;

/// Messages that may wait on one connection. What is said often (credit, progress) is said anew
/// only when the last is gone, so that only a peer that does not read gets so far: its connection
/// is given up.
const WAITING_MAX: usize = 4096;

/// Control messages that wait for room.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    waiting: VecDeque<Packed>,
    overflown: bool,
    #[cfg(test)]
    swallow: Option<Swallow>,
}

/// Messages that are never sent, for tests: so many of this kind.
#[cfg(test)]
#[derive(Debug, Clone)]
pub(super) struct Swallow {
    pub(super) kind: super::wire::Kind,
    pub(super) left: std::sync::Arc<std::sync::atomic::AtomicU32>,
}

#[cfg(test)]
impl Swallow {
    fn takes(&self, message: &Message<'_>) -> bool {
        use std::sync::atomic::Ordering::Relaxed;
        let less = |left: u32| left.checked_sub(1);
        message.kind() == self.kind && self.left.fetch_update(Relaxed, Relaxed, less).is_ok()
    }
}

#[derive(Debug)]
struct Packed {
    header: [u8; HEADER_LEN],
    payload: Vec<u8>,
}

/// What became of a look at an outbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Pumped {
    /// Nothing waits.
    Empty,
    /// The rest waits for room.
    Blocked,
    /// The connection can't be sent on any more.
    Dead,
}

impl Outbox {
    #[cfg(test)]
    pub(super) fn swallow(&mut self, swallow: Option<Swallow>) {
        self.swallow = swallow;
    }

    pub(super) fn push(&mut self, message: &Message<'_>) {
        #[cfg(test)]
        if self.swallow.as_ref().is_some_and(|it| it.takes(message)) {
            return;
        }
        if self.waiting.len() >= WAITING_MAX {
            self.overflown = true;
            return;
        }
        let mut header = [0; HEADER_LEN];
        let payload = message.encode(&mut header).to_vec();
        self.waiting.push_back(Packed { header, payload });
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The same by an endpoint that whoever calls has.
    #[cfg(all(test, not(loom)))]
    pub(super) fn pump_by(
        &mut self,
        endpoint: &mut crate::endpoint::duplex::DuplexEndpoint,
        connection: crate::endpoint::ConnectionId,
        pool: &SharedBufferManager,
    ) -> Pumped {
        self.pump(pool, |payload, header| {
            let sent = endpoint.send(connection, payload, header, CONTROL_KEY);
            sent.map_err(|refused| refused.kind)
        })
    }

    /// Sends what can be sent now, out of buffers of the pool.
    pub(super) fn pump(
        &mut self,
        pool: &SharedBufferManager,
        mut send: impl FnMut(Payload, &[u8; HEADER_LEN]) -> Result<(), SendErrorKind>,
    ) -> Pumped {
        if self.overflown {
            return Pumped::Dead;
        }
        while let Some(next) = self.waiting.front() {
            let payload = match next.payload.len() {
                0 => Payload::empty(),
                len => match pool.try_acquire() {
                    Some(mut buffer) => {
                        buffer[..len].copy_from_slice(&next.payload);
                        buffer.freeze(len).into()
                    }
                    None => return Pumped::Blocked,
                },
            };
            match send(payload, &next.header) {
                Ok(()) => drop(self.waiting.pop_front()),
                Err(SendErrorKind::WouldBlock(_)) => return Pumped::Blocked,
                Err(kind) => {
                    tracing::debug!(%kind, "a control message of a stream could not be sent");
                    return Pumped::Dead;
                }
            }
        }
        Pumped::Empty
    }
}
