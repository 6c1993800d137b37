//! Receives: buffers of the pool, posted for the connections that want some, in turn.

#![allow(unsafe_code)]

use super::peer::Peer;
use super::{Hub, Op};
use crate::buffer::BufferMut;
use crate::endpoint::event::ReceiveEvent;
use crate::endpoint::hub::event::{HubEvent, Tell};
use crate::endpoint::link::Link;
use crate::id::ConnectionId;
use crate::protocol::connection::State;

/// Whether a receive was posted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum PostedReceive {
    Yes,
    PoolEmpty,
    No,
}

impl<L: Link, E: HubEvent> Hub<L, E> {
    /// Posts receives for the connections that want some, in turn, as far as the pool goes.
    pub(super) fn feed(&mut self, events: &mut Vec<E>) {
        if self.shared.is_some() {
            self.feed_shared();
        }
        for _ in 0..self.buffers.hungry.len() {
            let Some(id) = self.buffers.hungry.pop_front() else {
                return;
            };
            let Some(mut peer) = self.peers.take(id) else {
                continue;
            };
            let last = self.feed_conn(&mut peer, id);
            peer.receives.hungry = last != PostedReceive::Yes;
            peer.receives.starved &= last == PostedReceive::PoolEmpty;
            self.peers.put(id, peer);
            match last {
                PostedReceive::Yes => {}
                // Offered again: the peer may have no credit left to wake us with.
                PostedReceive::No => {
                    self.buffers.hungry.push_back(id);
                    self.agenda.retry = true;
                }
                PostedReceive::PoolEmpty => {
                    self.buffers.hungry.push_front(id);
                    return self.starve(events);
                }
            }
        }
    }

    pub(super) fn feed_conn(
        &mut self,
        peer: &mut Peer<L::Conn>,
        id: ConnectionId,
    ) -> PostedReceive {
        let before = peer.receives.posted;
        let mut last = PostedReceive::Yes;
        while peer.receives.lack() && last == PostedReceive::Yes {
            last = self.give_receive(peer, id);
        }
        if peer.receives.posted > before {
            peer.count_reposted();
            self.touch(id);
        }
        last
    }

    /// The pool is empty: those that wait for it are told, once. Those that came last were not told
    /// yet, and no others: so each connection is looked at once, not each one at each poll.
    pub(super) fn starve(&mut self, events: &mut Vec<E>) {
        self.buffers.arm(&self.wait);
        let first = self.buffers.hungry.front().copied();
        for &id in first.iter().chain(self.buffers.hungry.iter().skip(1).rev()) {
            match self.peers.get_mut(id) {
                Some(peer) if !peer.receives.starved => {
                    peer.receives.starved = true;
                    self.stats.starved.add(1);
                    events.tell(ReceiveEvent::Starved { connection: id });
                }
                Some(_) if Some(id) != first => return,
                _ => {}
            }
        }
    }

    pub(super) fn post_receive(
        &mut self,
        peer: &mut Peer<L::Conn>,
        id: ConnectionId,
    ) -> PostedReceive {
        match self.buffers.try_acquire() {
            Some(buffer) => self.post_buffer(peer, id, buffer),
            None => PostedReceive::PoolEmpty,
        }
    }

    /// A control message gives its buffer back to its connection at once: the reserve must not go
    /// to another one that starves, or this peer's next word would find no room.
    #[cold]
    pub(super) fn post_again(&mut self, id: ConnectionId, buffer: BufferMut) {
        let Some(mut peer) = self.peers.take(id) else {
            return;
        };
        if peer.machine.state() != State::Closed {
            if self.shared.is_some() {
                self.post_shared_again(&mut peer, buffer);
            } else if self.post_buffer(&mut peer, id, buffer) != PostedReceive::Yes {
                self.buffers.on_hungry(id, &mut peer.receives);
            }
        }
        self.peers.put(id, peer);
    }

    pub(super) fn post_buffer(
        &mut self,
        peer: &mut Peer<L::Conn>,
        id: ConnectionId,
        mut buffer: BufferMut,
    ) -> PostedReceive {
        let (base, len, desc) = (
            buffer.as_mut_ptr(),
            buffer.len(),
            peer.descriptors.pool.desc(),
        );
        let Ok(context) = self.in_flight.begin(Op::Receive {
            connection: id,
            buffer,
        }) else {
            return PostedReceive::No;
        };
        // SAFETY: the slab owns the buffer, which keeps the memory alive and registered and gives
        // nobody else access, until its completion was read or the endpoint was closed.
        match unsafe { self.link.post_receive(&peer.link, base, len, desc, context) } {
            Ok(()) => {
                peer.receives.posted += 1;
                PostedReceive::Yes
            }
            Err(_) => {
                drop(self.in_flight.abort(context));
                PostedReceive::No
            }
        }
    }
}
