//! Sends of a connection that wait: for a producer's event, for a copy out of a GPU's memory, or
//! behind such a one.
//!
//! As those of an endpoint with one connection (`send/gates.rs`): accepted like any other, posted
//! in order when the gate is open. A connection that has such sends lets none pass
//! (`ConnSends::limit`), so that the others need not ask.

use std::num::NonZeroUsize;

use super::sends::Sends;
use super::{Hub, Operation, Peer};
use crate::buffer::{GateError, Payload};
use crate::endpoint::core::outgoing::{self, DataOp, Header, PostingContext};
use crate::endpoint::core::pair::Stalled;
use crate::endpoint::error::{Blocked, SendErrorKind};
use crate::endpoint::event::ReceiveEvent;
use crate::endpoint::id::ConnectionId;
use crate::endpoint::link::iov::IovList;
use crate::endpoint::link::{Link, PostRefused};
use crate::endpoint::protocol::connection::{Form, State};
use crate::endpoint::protocol::wire;
use crate::error::CompletionError;
use crate::in_flight::InFlight;
use crate::memory::Scope;

/// As at an endpoint with one connection.
const GATES_AHEAD: usize = 16;

type Operations = InFlight<(ConnectionId, Operation)>;

fn data(operations: &mut Operations, context: usize) -> Option<&mut DataOp> {
    match operations.get_mut(context) {
        Some((_, Operation::Data { op, .. })) => Some(op),
        _ => None,
    }
}

impl<L: Link> Hub<L> {
    // ---- accepting ------------------------------------------------------------------------------

    /// Whether a message that has to wait for others would be taken.
    #[cold]
    pub(super) fn may_queue(&self, id: ConnectionId) -> Result<(), SendErrorKind> {
        let own = self.peers.get(id).and_then(|peer| peer.sends.as_ref());
        match (own, &self.sends) {
            (Some(own), Some(sends)) if sends.may_queue(own) => Ok(()),
            _ => Err(SendErrorKind::WouldBlock(Blocked::Depth)),
        }
    }

    /// A payload that goes out on several connections: staged once, where it has to be.
    pub(crate) fn stage_for_many(
        &mut self,
        payload: Payload,
    ) -> Result<Payload, (SendErrorKind, Payload)> {
        let scope = self.link.registrar().scope();
        let Some(sends) = self.sends.as_mut().filter(|_| payload.is_device()) else {
            return Ok(payload);
        };
        let staged = sends.outgoing().stage(payload, scope);
        if let Err((SendErrorKind::WouldBlock(Blocked::Staging), _)) = &staged
            && sends.outgoing().arm_staging()
        {
            self.wait.wake();
        }
        staged
    }

    /// Whether a slot is free to stage something in. If not, `wait` wakes when one is.
    pub(crate) fn has_staging(&self) -> bool {
        let outgoing = self.sends.as_ref().map(Sends::outgoing);
        outgoing.is_some_and(|it| it.has_staging() || it.arm_staging())
    }

    /// A message that can't be posted now for this reason: takes it all the same if it only has to
    /// wait, else gives the payload back.
    #[cold]
    pub(super) fn send_later(
        &mut self,
        id: ConnectionId,
        kind: SendErrorKind,
        payload: Payload,
        header: Header<'_>,
        key: u64,
    ) -> Result<(), (SendErrorKind, Payload)> {
        let Some((behind, scope)) = self.queue_of(id) else {
            return Err((kind, payload));
        };
        let staged = match &self.sends {
            Some(sends) => sends.outgoing().must_stage(&payload, scope),
            None => Ok(false),
        };
        if !behind && !payload.is_gated() && staged == Ok(false) {
            return Err((kind, payload));
        }
        if let Err(kind) = self.may_send(id) {
            return Err((kind, payload));
        }
        let (Some(sends), Some(peer)) = (&mut self.sends, self.peers.get_mut(id)) else {
            return Err((kind, payload));
        };
        let Some(own) = &mut peer.sends else {
            return Err((kind, payload));
        };
        let peer_max = peer.machine.peer_receive_size();
        let payload = sends.outgoing().stage(payload, scope)?;
        let len = match sends.outgoing().measure(&payload, header.len(), peer_max) {
            Ok(len) => len,
            Err(kind) => return Err((kind, payload.unstaged())),
        };
        let mut iov = IovList::new();
        let gated = payload.is_gated();
        let lane = PostingContext {
            conn: Some(&peer.link),
            scoped: &mut peer.scoped,
            header_desc: own.header_desc(),
            sequence: peer.machine.sent(),
            posted: sends.posted_at(&self.clock),
            iov: &mut iov,
        };
        let slab = (&mut self.operations, |op| {
            (id, Operation::Data { told: false, op })
        });
        let context = sends
            .load_gated(slab, payload, header, key, lane)
            .map_err(|(kind, payload)| (kind, payload.unstaged()))?;
        let number = peer.machine.on_data_posted();
        debug_assert!(number.is_ok(), "`may_send` asked the same");
        let message = Stalled {
            context,
            data: outgoing::data_of(&peer.machine, number.unwrap_or(0)),
            iov,
            gate: NonZeroUsize::new(context).filter(|_| gated),
        };
        sends.count_posted(len);
        sends.queue(id, own, message);
        let late = sends.next_late();
        self.timer_stale |= late.is_some_and(|at| self.armed.is_none_or(|armed| at < armed));
        if gated && let Some(op) = data(&mut self.operations, context) {
            // So that a copy begins. What it says is heard at the next poll, in the order of the
            // messages.
            let _ = op.poll_gate();
        }
        self.retry = true;
        // The next poll looks at the gate, and sets the timer.
        self.wait.wake();
        Ok(())
    }

    /// Whether sends wait on a connection, and where it has its registrations.
    fn queue_of(&self, id: ConnectionId) -> Option<(bool, Scope)> {
        let peer = self.peers.get(id)?;
        let own = peer.sends.as_ref()?;
        Some((own.has_queue(), peer.scoped.scope()))
    }

    // ---- waiting --------------------------------------------------------------------------------

    /// Looks at the gates that sends wait for, and posts those that are open.
    pub(super) fn post_waiting(&mut self, events: &mut Vec<ReceiveEvent>) {
        let Some(sends) = self.sends.as_mut().filter(|sends| sends.waits()) else {
            return;
        };
        let mut waiting = sends.take_waiting();
        waiting.retain(|&id| self.post_queue(id, events));
        self.retry |= !waiting.is_empty();
        if let Some(sends) = &mut self.sends {
            sends.put_waiting(waiting);
        }
    }

    /// Posts what one connection has waiting; whether something still waits.
    fn post_queue(&mut self, id: ConnectionId, events: &mut Vec<ReceiveEvent>) -> bool {
        self.poll_gates(id, events);
        let (Some(sends), Some(peer)) = (&mut self.sends, self.peers.get_mut(id)) else {
            return false;
        };
        let Some(own) = &mut peer.sends else {
            return false;
        };
        if peer.machine.state() == State::Closed {
            // Its end is on the way, and gives them their outcomes.
            return false;
        }
        while let Some(message) = own.next_open() {
            let (link, to) = (&mut self.link, Some(&peer.link));
            let of = (message.context, message.data);
            let outgoing = sends.outgoing();
            match outgoing.hand_over(link, to, of, &message.iov, false) {
                Ok(()) => own.pop_queue(),
                Err(PostRefused::Again) => {
                    sends.count_again();
                    return true;
                }
                Err(PostRefused::Errno(errno)) => {
                    peer.machine.on_lost(Some(errno));
                    self.touch(id);
                    return false;
                }
            }
        }
        if own.has_queue() {
            return true;
        }
        sends.reopen(own);
        self.touch(id);
        false
    }

    fn poll_gates(&mut self, id: ConnectionId, events: &mut Vec<ReceiveEvent>) {
        let (mut at, mut asked, mut closed) = (0, 0, false);
        while asked < GATES_AHEAD {
            let own = self.peers.get_mut(id).and_then(|peer| peer.sends.as_mut());
            let Some(message) = own.and_then(|own| own.queued(at)) else {
                return;
            };
            let Some(gate) = message.gate else {
                at += 1;
                continue;
            };
            asked += 1;
            let op = data(&mut self.operations, gate.get());
            let said = match closed {
                true => op.map_or(Ok(true), DataOp::advance_gate),
                false => op.map_or(Ok(true), DataOp::poll_gate),
            };
            match said {
                Ok(true) => {
                    message.gate = None;
                    at += 1;
                }
                Ok(false) => {
                    closed = true;
                    at += 1;
                }
                Err(error) => self.fail_gated(id, at, &error, events),
            }
        }
    }

    /// The gate of a message will not open: it was never posted, and those behind it take its
    /// number.
    #[cold]
    fn fail_gated(
        &mut self,
        id: ConnectionId,
        at: usize,
        error: &GateError,
        events: &mut Vec<ReceiveEvent>,
    ) {
        let numbered = self.link.form() == Form::Rdm;
        let Some(peer) = self.peers.get_mut(id) else {
            return;
        };
        let Some(message) = peer.sends.as_mut().and_then(|own| own.remove_queued(at)) else {
            return;
        };
        peer.machine.on_post_undone();
        let behind = peer.sends.iter_mut().flat_map(|own| own.queued_from(at));
        for message in behind {
            if numbered {
                message.data = message.data.map(|data| wire::renumbered(data, 1));
            }
            if let Some(op) = data(&mut self.operations, message.context) {
                op.sequence -= 1;
            }
        }
        if let (_, Operation::Data { op, .. }) = self.operations.abort(message.context) {
            self.on_unposted(id, op, CompletionError::gate(error), events);
        }
    }

    // ---- the end --------------------------------------------------------------------------------

    /// The connection is over: what it had waiting was never posted, and is nobody's but ours.
    pub(super) fn take_queued(&mut self, peer: &mut Peer<L::Conn>) -> Vec<DataOp> {
        let Some(own) = &mut peer.sends else {
            return Vec::new();
        };
        let mut ops = Vec::new();
        for message in own.drain_queue() {
            if let Ok((_, Operation::Data { op, .. })) = self.operations.finish(message.context) {
                ops.push(op);
            }
        }
        own.in_flight -= ops.len() as u32;
        ops
    }
}
