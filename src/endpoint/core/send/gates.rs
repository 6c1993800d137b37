//! Sends that wait: for a producer's event, for a copy out of a GPU's memory, or behind such a one.
//!
//! Such a send is accepted as any other is: key, credit, header slot, leases and deadline are its
//! own. It waits among those that stalled, in order, and is posted when its gate is open. A gate
//! that fails is the end of its send alone, since nothing of it went out.

use std::num::NonZeroUsize;

use super::{SendCore, SendOp};
use crate::buffer::{GateError, Payload};
use crate::endpoint::core::outgoing::{self, DataOp, Header, PostingContext};
use crate::endpoint::core::pair::{self, PairOps, Stalled};
use crate::endpoint::event::SendEvent;
use crate::endpoint::link::Link;
use crate::endpoint::link::iov::IovList;
use crate::endpoint::protocol::connection::Form;
use crate::endpoint::protocol::wire;
use crate::error::{Blocked, CompletionError, Refused, SendErrorKind};
use crate::fabric::Shape;

/// Gates that are looked at in one go, from the first message on. Copies are done in their order,
/// so looking further brings little; those behind begin theirs in time.
const GATES_AHEAD: usize = 16;

impl<L: Link> SendCore<L> {
    // ---- accepting ------------------------------------------------------------------------------

    /// A message that can't be posted now for this reason: takes it all the same if it only has to
    /// wait, else gives everything back.
    #[cold]
    pub(super) fn send_later(
        &mut self,
        kind: SendErrorKind,
        payload: Payload,
        header: &[u8],
        key: u64,
    ) -> Result<(), Refused<Payload>> {
        let behind = self.gates > 0 && kind == SendErrorKind::WouldBlock(Blocked::Provider);
        let staged = self.outgoing.must_stage(&payload, self.scoped.scope());
        if !behind && !payload.is_gated() && staged == Ok(false) {
            return Err(self.refuse(kind, payload, key));
        }
        let (payload, len) = match self.admit_later(payload, header.len()) {
            Ok(admitted) => admitted,
            Err((kind, payload)) => return Err(self.refuse(kind, payload, key)),
        };
        let mut iov = IovList::new();
        let gated = payload.is_gated();
        let posted = self.posted_at();
        let lane = PostingContext {
            conn: self.conn.as_ref(),
            scoped: &mut self.scoped,
            header_desc: self.header_desc.desc(),
            sequence: self.machine.sent(),
            posted,
            iov: &mut iov,
        };
        let slab = (&mut self.in_flight, SendOp::Data);
        let loaded = self
            .outgoing
            .load_gated(slab, payload, Header::Bytes(header), key, lane);
        let context = match loaded {
            Ok(context) => context,
            Err((kind, payload)) => return Err(self.refuse(kind, payload.unstaged(), key)),
        };
        self.queue(context, iov, gated);
        self.count_posted(len);
        // The next poll looks at the gate, or sets the timer.
        self.wait.wake();
        Ok(())
    }

    /// As `admit`, of a message that may wait behind others; with what it is staged in.
    fn admit_later(
        &mut self,
        payload: Payload,
        header_len: usize,
    ) -> Result<(Payload, u64), (SendErrorKind, Payload)> {
        if let Err(blocked) = self.machine.may_send() {
            return Err((self.blocked(blocked), payload));
        }
        if self.data_in_flight >= self.settings.depth {
            return Err((SendErrorKind::WouldBlock(Blocked::Depth), payload));
        }
        let payload = self.outgoing.stage(payload, self.scoped.scope())?;
        let peer_max = self.machine.peer_receive_size();
        match self.outgoing.measure(&payload, header_len, peer_max) {
            Ok(len) => Ok((payload, len)),
            Err(SendErrorKind::TooLong { .. }) if self.sends_long() && !self.stalled.is_empty() => {
                // It would overtake them: it waits until they are gone.
                let kind = SendErrorKind::WouldBlock(Blocked::Gate);
                Err((kind, payload.unstaged()))
            }
            Err(kind) => Err((kind, payload.unstaged())),
        }
    }

    /// Takes the credit of a message that is in the slab, and has it wait. Its gate is asked at
    /// once, so that a copy begins.
    fn queue(&mut self, context: usize, iov: IovList, gated: bool) {
        let gate = NonZeroUsize::new(context).filter(|_| gated);
        self.gates += u32::from(gated);
        let (gate, data) = match self.queue_header(context, gate) {
            // The gate is the header's, so that nothing is out before it is open.
            Some(data) => (None, Some(data)),
            None => {
                let number = self.machine.on_data_posted();
                debug_assert!(number.is_ok(), "`admit_later` asked the same");
                (gate, outgoing::data_of(&self.machine, number.unwrap_or(0)))
            }
        };
        self.stalled.push_back(Stalled {
            context,
            data,
            iov,
            gate,
        });
        if gated && let Some(op) = self.in_flight.get_mut(context).and_then(PairOps::data) {
            // What it says is heard at the next poll, in the order of the messages.
            let _ = op.poll_gate();
        }
    }

    /// The same for a header that travels alone; the CQ data of its payload.
    fn queue_header(&mut self, context: usize, gate: Option<NonZeroUsize>) -> Option<u64> {
        if self.outgoing.shape() != Shape::TwoMessages {
            return None;
        }
        let (mut iov, desc) = (IovList::new(), self.header_desc.desc());
        let op = self.in_flight.get_mut(context).and_then(PairOps::data)?;
        let header = self.outgoing.lone_header(op, desc, &mut iov)?;
        let Ok(first) = self.in_flight.begin(SendOp::Header(header)).map_err(drop) else {
            unreachable!("the slab has room for a header with each send");
        };
        pair::tie(&mut self.in_flight, first, context);
        let number = self.machine.on_pair_posted();
        debug_assert!(number.is_ok(), "`admit_later` asked the same");
        let [data, payload_data] = self.machine.pair_data(number.unwrap_or(0));
        self.stalled.push_back(Stalled {
            context: first,
            data: Some(data),
            iov,
            gate,
        });
        Some(payload_data)
    }

    // ---- waiting --------------------------------------------------------------------------------

    /// Looks at the gates of the first that wait.
    pub(super) fn poll_gates(&mut self, events: &mut Vec<SendEvent>) {
        let (mut at, mut asked, mut closed) = (0, 0, false);
        while asked < GATES_AHEAD && at < self.stalled.len() {
            let Some(gate) = self.stalled[at].gate else {
                at += 1;
                continue;
            };
            asked += 1;
            let op = self.in_flight.get_mut(gate.get()).and_then(PairOps::data);
            let said = match closed {
                true => op.map_or(Ok(true), DataOp::advance_gate),
                false => op.map_or(Ok(true), DataOp::poll_gate),
            };
            match said {
                Ok(true) => {
                    self.stalled[at].gate = None;
                    self.gates -= 1;
                    at += 1;
                }
                Ok(false) => {
                    closed = true;
                    at += 1;
                }
                Err(error) => self.fail_gated(at, gate.get(), &error, events),
            }
        }
    }

    /// The gate of a message will not open: it was never posted, and those behind it take its
    /// number.
    #[cold]
    fn fail_gated(
        &mut self,
        at: usize,
        context: usize,
        error: &GateError,
        events: &mut Vec<SendEvent>,
    ) {
        self.gates -= 1;
        let first = self.stalled.remove(at).map(|message| message.context);
        let lone = first.filter(|&first| first != context);
        match lone.map(|first| self.in_flight.abort(first)) {
            Some(SendOp::Header(header)) => {
                self.stalled.remove(at);
                self.outgoing.end_header(header.into_slot());
                self.machine.on_pair_undone();
            }
            _ => self.machine.on_post_undone(),
        }
        self.move_up(at, 1 + u32::from(lone.is_some()));
        let SendOp::Data(mut op) = self.in_flight.abort(context) else {
            unreachable!("the context is the one that was asked");
        };
        let (key, payload) = self.outgoing.end(&mut op);
        self.data_in_flight -= 1;
        self.stats.failed += 1;
        self.eventful = true;
        events.push(SendEvent::Failed {
            key,
            payload,
            error: CompletionError::gate(error),
        });
    }

    /// What waits from there on was numbered when it was accepted, with a message that is gone.
    fn move_up(&mut self, at: usize, by: u32) {
        let numbered = self.link.form() == Form::Rdm;
        for message in self.stalled.range_mut(at..) {
            if numbered {
                message.data = message.data.map(|data| wire::renumbered(data, by));
            }
            let op = self.in_flight.get_mut(message.context);
            if let Some(op) = op.and_then(PairOps::data) {
                op.sequence -= 1;
            }
        }
    }

    /// The connection is over: nothing waits any more.
    pub(super) fn clear_stalled(&mut self) {
        self.stalled.clear();
        self.gates = 0;
    }
}
