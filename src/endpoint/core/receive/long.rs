//! Long messages at a receive endpoint: each goes straight into a buffer of a pool of their own, which its sender may write meanwhile.

#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::sync::Arc;

use super::{Conn, ReceiveCore};
use crate::buffer::{Buffer, BufferMut, SharedBufferManager, WakerId};
use crate::endpoint::event::ReceiveEvent;
use crate::endpoint::id::ConnectionId;
use crate::endpoint::link::wait::EndpointWait;
use crate::endpoint::link::{Link, LinkConn};
use crate::endpoint::message::Message;
use crate::endpoint::protocol::wire;
use crate::memory::{Access, RawRegistration};

/// Where long messages go, and who waits for room there.
pub(super) struct LongPool {
    pool: SharedBufferManager,
    waker: WakerId,
    /// Offers that found the pool empty; whoever came first is served first.
    waiting: VecDeque<(ConnectionId, u64)>,
}

impl LongPool {
    pub(super) fn new(pool: SharedBufferManager, wait: &Arc<EndpointWait>) -> Self {
        let waker = Arc::clone(wait);
        let waker = pool.add_waker(Arc::new(move || waker.wake()));
        Self {
            pool,
            waker,
            waiting: VecDeque::new(),
        }
    }

    /// Someone waits for room.
    pub(super) fn is_awaited(&self) -> bool {
        !self.waiting.is_empty()
    }
}

impl Drop for LongPool {
    fn drop(&mut self) {
        self.pool.remove_waker(self.waker);
    }
}

/// A destination that a peer may write now. Field order is drop order: the registration closes before the memory goes.
pub(super) struct LongReceive {
    pub(super) registration: Option<RawRegistration>,
    pub(super) buffer: BufferMut,
    len: usize,
}

/// A message whose turn may not have come yet (RDM form).
pub(super) enum Due<M> {
    Message(M),
    Long(BufferMut, usize),
}

impl<L: Link> ReceiveCore<L> {
    /// The longest message that is taken, where long ones are.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn long_limit(&self) -> Option<u64> {
        let long = self.long.as_ref()?;
        Some(long.pool.slot_size() as u64)
    }

    /// Free slots for long messages.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn long_free(&self) -> usize {
        self.long.as_ref().map_or(0, |long| long.pool.free_count())
    }

    /// The peer has a message of `len` bytes.
    pub(super) fn on_long_offered(&mut self, id: ConnectionId, len: u64) {
        let Some(long) = &mut self.long else {
            return;
        };
        let limit = long.pool.slot_size() as u64;
        if len > limit {
            return self.refuse_long(id, limit);
        }
        long.waiting.push_back((id, len));
        self.feed_long();
    }

    fn refuse_long(&mut self, id: ConnectionId, limit: u64) {
        if let Some(conn) = self.conns.get_mut(id) {
            conn.machine.refuse_long(limit);
            self.touch(id);
        }
    }

    /// Gives destinations to those who wait, as far as the pool goes.
    pub(super) fn feed_long(&mut self) {
        while let Some(long) = &mut self.long {
            let Some(&(id, len)) = long.waiting.front() else {
                return;
            };
            let Some(buffer) = long.pool.try_acquire() else {
                long.pool.arm(long.waker);
                if long.pool.free_count() > 0 {
                    self.wait.wake();
                }
                return;
            };
            long.waiting.pop_front();
            self.grant_long(id, buffer, len as usize);
        }
    }

    /// Opens a destination for the peer.
    fn grant_long(&mut self, id: ConnectionId, mut buffer: BufferMut, len: usize) {
        let virt = self
            .link
            .limits()
            .rma
            .is_some_and(|rma| rma.virtual_addresses);
        let Some(conn) = self.conns.get_mut(id) else {
            return;
        };
        let Some(base) = std::ptr::NonNull::new(buffer.as_mut_ptr()) else {
            return;
        };
        let registrar = conn
            .link
            .registrar()
            .unwrap_or_else(|| self.link.registrar());
        let registration = match registrar.register_window(base, len, Access::WRITE) {
            Ok(registration) => registration,
            Err(error) => {
                tracing::warn!(%error, "a long message can't be taken");
                return self.refuse_long(id, 0);
            }
        };
        let address = if virt { base.as_ptr().addr() as u64 } else { 0 };
        conn.machine.grant_long(address, registration.key);
        conn.long = Some(Box::new(LongReceive {
            registration: Some(registration),
            buffer,
            len,
        }));
        self.touch(id);
    }

    /// The peer says that its long message is whole, and that it writes no more.
    pub(super) fn on_long_whole(
        &mut self,
        id: ConnectionId,
        number: u64,
        events: &mut Vec<ReceiveEvent>,
    ) {
        let rdm = self.shared.is_some();
        let Some(conn) = self.conns.get_mut(id) else {
            return;
        };
        let Some(long) = conn.long.take() else {
            return;
        };
        let LongReceive {
            registration,
            buffer,
            len,
        } = *long;
        drop(registration);
        if rdm {
            return self.put_due(id, number as u32, Due::Long(buffer, len), events);
        }
        self.hand_out_long(id, buffer, len, events);
    }

    /// Hands a long message out, in its turn.
    pub(super) fn hand_out_long(
        &mut self,
        id: ConnectionId,
        buffer: BufferMut,
        len: usize,
        events: &mut Vec<ReceiveEvent>,
    ) {
        let Some(conn) = self.conns.get_mut(id) else {
            return;
        };
        if let Ok(sequence) = conn.machine.on_long_data() {
            // It took no receive: its credit is free again.
            conn.count_reposted();
            self.hand_out(id, sequence, (buffer, len), None, events);
        }
        self.touch(id);
    }

    /// A whole message for the application, if its bytes make sense. `lone`: its header came before it, by itself.
    #[inline]
    pub(super) fn hand_out(
        &mut self,
        id: ConnectionId,
        sequence: u64,
        (buffer, len): (BufferMut, usize),
        lone: Option<Option<Buffer>>,
        events: &mut Vec<ReceiveEvent>,
    ) {
        let Some(conn) = self.conns.get_mut(id) else {
            return;
        };
        let header = match &lone {
            Some(_) => 0..0,
            None => match wire::split(conn.header_mode, &buffer[..len]) {
                Ok((header, _)) => header,
                Err(error) => return conn.machine.violate(error),
            },
        };
        // The first message may come before the event queue says that the connection stands.
        if !conn.established {
            self.tell_established(id, events);
        }
        let lone_header = lone.flatten();
        let size = lone_header.as_ref().map_or(0, |header| header.len());
        self.stats.messages += 1;
        self.stats.bytes += (len + size) as u64;
        // The machine counts what came before.
        let number = sequence + 1;
        let message = Message::new(id, number, header, buffer.freeze(len), lone_header);
        events.push(ReceiveEvent::Message(message));
    }

    /// The connection ends: nobody waits any more. Where its endpoint stays open, a destination that its peer may still write stays in
    /// quarantine; else it goes with the connection, after its endpoint.
    pub(super) fn leave_long(&mut self, id: ConnectionId, conn: &mut Conn<L::Conn>) {
        if let Some(long) = &mut self.long {
            long.waiting.retain(|(waiting, _)| *waiting != id);
        }
        if conn.link.registrar().is_some()
            && let Some(long) = &mut conn.long
        {
            long.registration = None;
        }
        if self.shared.is_some()
            && let Some(long) = conn.long.take()
        {
            let rma = self.link.limits().rma;
            let hold = rma.is_some_and(|rma| rma.holds_registrations);
            let registration = long.registration.filter(|_| hold);
            self.exposed.keep(id, registration, long.buffer.into());
        }
    }
}
