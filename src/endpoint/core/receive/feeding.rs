//! Receives: buffers of the pool, posted for the connections that want some, in turn.

#![allow(unsafe_code)]

use super::conn::Conn;
use super::{Op, Posted, ReceiveCore};
use crate::buffer::BufferMut;
use crate::endpoint::event::ReceiveEvent;
use crate::endpoint::id::ConnectionId;
use crate::endpoint::link::Link;
use crate::endpoint::protocol::connection::State;

impl<L: Link> ReceiveCore<L> {
    pub(super) fn arm_pool(&mut self) {
        self.pool.arm(self.pool_waker);
        if self.pool.free_count() > 0 {
            self.wait.wake();
        }
    }

    /// Posts receives for the connections that want some, in turn, as far as the pool goes.
    pub(super) fn feed(&mut self, events: &mut Vec<ReceiveEvent>) {
        if self.shared.is_some() {
            self.feed_shared();
        }
        for _ in 0..self.hungry.len() {
            let Some(id) = self.hungry.pop_front() else {
                return;
            };
            let Some(mut conn) = self.conns.take(id) else {
                continue;
            };
            let last = self.feed_conn(&mut conn, id);
            conn.hungry = last != Posted::Yes;
            conn.starved &= last == Posted::PoolEmpty;
            self.conns.put(id, conn);
            match last {
                Posted::Yes => {}
                // Offered again: the peer may have no credit left to wake us with.
                Posted::No => {
                    self.hungry.push_back(id);
                    self.retry = true;
                }
                Posted::PoolEmpty => {
                    self.hungry.push_front(id);
                    return self.starve(events);
                }
            }
        }
    }

    pub(super) fn feed_conn(&mut self, conn: &mut Conn<L::Conn>, id: ConnectionId) -> Posted {
        let before = conn.posted;
        let mut last = Posted::Yes;
        while conn.posted < conn.target && last == Posted::Yes {
            last = self.give_receive(conn, id);
        }
        if conn.posted > before {
            conn.count_reposted();
            self.touch(id);
        }
        last
    }

    /// The pool is empty: those that wait for it are told, once. Those that came last were not told yet, and no others:
    /// so each connection is looked at once, not each one at each poll.
    pub(super) fn starve(&mut self, events: &mut Vec<ReceiveEvent>) {
        self.arm_pool();
        let first = self.hungry.front().copied();
        for &id in first.iter().chain(self.hungry.iter().skip(1).rev()) {
            match self.conns.get_mut(id) {
                Some(conn) if !conn.starved => {
                    conn.starved = true;
                    self.stats.starved += 1;
                    events.push(ReceiveEvent::Starved { connection: id });
                }
                Some(_) if Some(id) != first => return,
                _ => {}
            }
        }
    }

    pub(super) fn post_receive(&mut self, conn: &mut Conn<L::Conn>, id: ConnectionId) -> Posted {
        match self.pool.try_acquire() {
            Some(buffer) => self.post_buffer(conn, id, buffer),
            None => Posted::PoolEmpty,
        }
    }

    /// A control message gives its buffer back to its connection at once: the reserve must not go to another one that
    /// starves, or this peer's next word would find no room.
    #[cold]
    pub(super) fn post_again(&mut self, id: ConnectionId, buffer: BufferMut) {
        let Some(mut conn) = self.conns.take(id) else {
            return;
        };
        if conn.machine.state() != State::Closed {
            if self.shared.is_some() {
                self.post_shared_again(&mut conn, buffer);
            } else {
                self.post_buffer(&mut conn, id, buffer);
            }
        }
        self.conns.put(id, conn);
    }

    pub(super) fn post_buffer(
        &mut self,
        conn: &mut Conn<L::Conn>,
        id: ConnectionId,
        mut buffer: BufferMut,
    ) -> Posted {
        let (base, len, desc) = (
            buffer.as_mut_ptr(),
            buffer.len(),
            conn.descriptors.pool.desc(),
        );
        let Ok(context) = self.in_flight.begin(Op::Receive { conn: id, buffer }) else {
            return Posted::No;
        };
        // SAFETY: the slab owns the buffer, which keeps the memory alive and registered and gives nobody else access,
        // until its completion was read or the endpoint was closed.
        match unsafe { self.link.post_receive(&conn.link, base, len, desc, context) } {
            Ok(()) => {
                conn.posted += 1;
                Posted::Yes
            }
            Err(_) => {
                drop(self.in_flight.abort(context));
                Posted::No
            }
        }
    }
}
