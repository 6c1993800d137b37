//! What comes in on a connection: messages, headers by themselves, control messages, and receives
//! that failed.

use super::Hub;
use crate::buffer::BufferMut;
use crate::endpoint::hub::event::HubEvent;
use crate::endpoint::link::Link;
use crate::error::FabricErrno;
use crate::id::ConnectionId;
use crate::protocol::connection::{Arrival, Form, State};
use crate::protocol::wire;

impl<L: Link, E: HubEvent> Hub<L, E> {
    pub(super) fn on_receive_failed(&mut self, id: ConnectionId, errno: FabricErrno) {
        let Some(peer) = self.peers.get_mut(id) else {
            return;
        };
        peer.receives.posted -= 1;
        if self.link.form() == Form::Rdm {
            // Whoever sends can end a receive like this, with a message that is too long: it says
            // nothing of the peer.
            tracing::debug!(%errno, "a receive failed");
            self.buffers.on_hungry(id, &mut peer.receives);
            return;
        }
        self.touch(id);
        // The event queue knows more of one that is being made: the reason, with the refusal.
        // libfabric 2.x cancels the receives of a refused endpoint. The timeout of the handshake
        // bounds the wait for the event.
        if !self.still_connecting(id)
            && let Some(peer) = self.peers.get_mut(id)
        {
            peer.machine.on_lost(Some(errno));
        }
    }

    #[inline]
    pub(super) fn on_received(
        &mut self,
        id: ConnectionId,
        buffer: BufferMut,
        len: usize,
        data: Option<u64>,
        events: &mut Vec<E>,
    ) {
        // A connection that is closed: what was still in its queue is dropped, the slot goes back
        // to the pool.
        let Some(mut peer) = self.peers.get_mut(id) else {
            return;
        };
        // Shared ones were counted when they were seen to be this connection's.
        if self.shared.is_none() {
            peer.receives.posted -= 1;
        }
        if !peer.liveness.heard {
            peer.liveness.heard = true;
            self.agenda.hear(id);
        }
        let len = len.min(buffer.len());
        if peer.machine.state() == State::Connecting && self.shared.is_none() {
            // The answer came before this message, but by the other queue.
            self.read_answers();
            match self.peers.get_mut(id) {
                Some(same) => peer = same,
                None => return,
            }
        }
        if !peer.established {
            // The answer may be as new as this message, and not told of yet.
            peer.learn_header_mode();
        }
        let arrival = peer.machine.on_message(data);
        // A control message gives its buffer back at once.
        if self.shared.is_none() && !matches!(arrival, Some(Arrival::Control(_))) {
            self.buffers.on_hungry(id, &mut peer.receives);
        }
        match arrival {
            Some(arrival @ (Arrival::Data | Arrival::Payload)) => {
                let alone = arrival == Arrival::Payload;
                let lone_header = peer.lone_header.as_mut().and_then(|header| header.take());
                let received = if alone {
                    peer.machine.on_payload(len as u64)
                } else {
                    peer.machine.on_data(len as u64)
                };
                if let Ok(sequence) = received {
                    let lone = alone.then_some(lone_header);
                    self.hand_out(id, sequence, (buffer, len), lone, events);
                }
            }
            Some(Arrival::Frame) => self.on_frame(id, (buffer, len), events),
            Some(Arrival::Header) => peer.keep_header(buffer, len),
            Some(Arrival::Control(cq_data)) => self.on_control(id, cq_data, (buffer, len), events),
            None => {}
        }
        self.touch(id);
    }

    /// A control message came, which takes no credit.
    fn on_control(
        &mut self,
        id: ConnectionId,
        cq_data: u32,
        (buffer, len): (BufferMut, usize),
        events: &mut Vec<E>,
    ) {
        let Some(peer) = self.peers.get_mut(id) else {
            return;
        };
        let body = &buffer[..len.min(wire::CONTROL_LEN_MAX)];
        peer.machine.on_control(cq_data, body, self.timer.now());
        let whole = peer.machine.take_whole_long();
        self.post_again(id, buffer);
        if let Some(number) = whole {
            self.on_long_whole(id, number, events);
        }
    }
}
