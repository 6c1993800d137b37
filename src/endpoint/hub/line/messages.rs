//! `MessageLine`: messages that wait, which lie in the slab meanwhile.

use std::time::Instant;

use super::{Driven, LineState, Queue, Waiting};
use crate::buffer::{GateError, Payload};
use crate::endpoint::error::SendErrorKind;
use crate::endpoint::hub::data_op::DataOp;
use crate::endpoint::hub::headers::Header;
use crate::endpoint::hub::outgoing::Outgoing;
use crate::endpoint::hub::posted::{MessageOp, Posted};
use crate::endpoint::hub::posting::Posting;
use crate::endpoint::link::iov::IovList;
use crate::endpoint::link::{Link, PostRefused};
use crate::protocol::connection::{Form, State};
use crate::protocol::wire;

/// A message of a batch: all is taken for it, its credit too, and it is not posted.
pub(crate) struct ReadyMessage {
    /// Its context, and its CQ data.
    pub(crate) message: (usize, Option<u64>),
    pub(crate) iov: IovList,
}

/// A message that waits.
struct WaitingMessage {
    context: usize,
    data: Option<u64>,
    /// The message whose gate it waits for: itself, or that with the payload of this header.
    gate: usize,
}

impl WaitingMessage {
    fn poll_gate(&self, posted: &mut Posted, behind: bool) -> Result<bool, GateError> {
        let op = posted.data(self.gate);
        op.map_or(Ok(true), |op| op.poll_gate(behind))
    }
}

/// The messages of one connection that wait, in the order in which they were given.
#[derive(Default)]
pub(crate) struct MessageLine {
    waiting: Queue<WaitingMessage>,
}

impl MessageLine {
    /// Whether a message that is given now may be posted.
    #[inline]
    pub(crate) fn state(&self) -> LineState {
        self.waiting.state()
    }

    /// One waits for a gate.
    pub(super) fn has_closed(&self) -> bool {
        self.waiting.has_closed()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.0.is_empty()
    }

    /// Takes a message that lies in the slab, and whose credit is taken. `gate`: the context of
    /// the message whose gate it waits for.
    fn push(
        &mut self,
        (context, data): (usize, Option<u64>),
        iov: IovList,
        gate: Option<usize>,
        posted: &mut Posted,
    ) {
        let (gate, open) = (gate.unwrap_or(context), gate.is_none());
        let what = WaitingMessage {
            context,
            data,
            gate,
        };
        if !open {
            // So that a copy begins. What it says is heard at the next look, in the order of all.
            let _ = what.poll_gate(posted, false);
        }
        self.waiting.0.push_back(Waiting { what, iov, open });
    }

    /// Posts a message that lies in the slab, and that nobody has counted: takes its credit. A
    /// header that travels alone goes first, and its payload is accepted with it.
    ///
    /// # Errors
    /// The provider did not take it: it is still in the slab, alone, and its credit free.
    pub(crate) fn post_new<L: Link>(
        &mut self,
        way: &mut Posting<'_, L>,
        context: usize,
        iov: IovList,
    ) -> Result<(), PostRefused> {
        let mut header_iov = IovList::new();
        let first = way.begin_header(context, &mut header_iov);
        let (outgoing, conn) = (&*way.outgoing, Some(way.conn));
        let Some(first) = first else {
            return outgoing.post(way.link, conn, way.machine, context, &iov);
        };
        match outgoing.post_header(way.link, conn, way.machine, first, &header_iov) {
            Ok(data) => {
                self.post_or_wait(way, (context, Some(data)), iov, false);
                Ok(())
            }
            Err(refused) => {
                way.posted.abort_header(first, way.outgoing);
                Err(refused)
            }
        }
    }

    /// Takes all that a message needs which has to wait, its credit too, and has it wait, for its
    /// own gate or behind others. `posted`: when its deadline begins.
    #[cold]
    pub(crate) fn accept<L: Link>(
        &mut self,
        way: &mut Posting<'_, L>,
        (payload, header, key): (Payload, Header<'_>, u64),
        posted: Option<Instant>,
    ) -> Result<(), (SendErrorKind, Payload)> {
        let (mut iov, gated) = (IovList::new(), payload.is_gated());
        let (outgoing, slabs, with) = way.loading(posted, &mut iov);
        let slab = &mut slabs.messages;
        let loaded = outgoing.load_gated(slab, payload, header, key, with);
        let context = loaded.map_err(|(kind, payload)| (kind, payload.unstaged()))?;
        let mut gate = gated.then_some(context);
        let mut header_iov = IovList::new();
        let data = match way.begin_header(context, &mut header_iov) {
            Some(first) => {
                let number = way.machine.on_pair_posted();
                debug_assert!(number.is_ok(), "admission asked the same");
                let [data, payload_data] = way.machine.pair_data(number.unwrap_or(0));
                // The gate is the header's, so that nothing is out before it is open.
                let gate = gate.take();
                self.push((first, Some(data)), header_iov, gate, way.posted);
                Some(payload_data)
            }
            None => way.take_credit(),
        };
        self.push((context, data), iov, gate, way.posted);
        Ok(())
    }

    /// Posts a message whose credit was taken. It waits where others are in front of it, and where
    /// the provider has no room for it; and where the connection is lost, by this or before: then
    /// it has its outcome with that.
    pub(crate) fn post_or_wait<L: Link>(
        &mut self,
        way: &mut Posting<'_, L>,
        message: (usize, Option<u64>),
        iov: IovList,
        more: bool,
    ) {
        if self.state() == LineState::Open && way.machine.state() != State::Closed {
            let conn = Some(way.conn);
            match way.outgoing.hand_over(way.link, conn, message, &iov, more) {
                Ok(()) => return,
                Err(PostRefused::Again) => way.eagain.add(1),
                Err(PostRefused::Errno(errno)) => way.machine.on_lost(Some(errno)),
            }
        }
        self.push(message, iov, None, way.posted);
    }

    pub(super) fn post_open<L: Link>(&mut self, way: &mut Posting<'_, L>, driven: &mut Driven) {
        while let Some((at, error)) = self
            .waiting
            .poll_gates(|message, behind| message.poll_gate(way.posted, behind))
        {
            let op = self.fail(at, way);
            driven.unposted.extend(op.map(|op| (op, error)));
        }
        while let Some(first) = self.waiting.pop_open() {
            let WaitingMessage { context, data, .. } = first.what;
            let (message, conn) = ((context, data), Some(way.conn));
            let posted = way
                .outgoing
                .hand_over(way.link, conn, message, &first.iov, false);
            let Err(refused) = posted else { continue };
            self.waiting.0.push_front(first);
            match refused {
                PostRefused::Again => way.eagain.add(1),
                PostRefused::Errno(errno) => way.machine.on_lost(Some(errno)),
            }
            return;
        }
    }

    /// The gate of a message will not open: it was never posted, and those behind it take its
    /// number.
    #[cold]
    fn fail<L: Link>(&mut self, at: usize, way: &mut Posting<'_, L>) -> Option<DataOp> {
        let WaitingMessage { context, gate, .. } = self.waiting.0.remove(at)?.what;
        let alone = context != gate;
        if alone {
            // Its payload is behind it.
            self.waiting.0.remove(at);
            way.machine.on_pair_undone();
            way.posted.abort_header(context, way.outgoing);
        } else {
            way.machine.on_post_undone();
        }
        self.move_up(at, 1 + u32::from(alone), way);
        match way.posted.messages.abort(gate) {
            MessageOp::Data(op) => Some(op),
            MessageOp::Header(_) => unreachable!("a header has no gate"),
        }
    }

    /// What waits from there on was numbered when it was accepted, with a message that is gone.
    fn move_up<L: Link>(&mut self, at: usize, by: u32, way: &mut Posting<'_, L>) {
        let numbered = way.link.form() == Form::Rdm;
        for waiting in self.waiting.0.range_mut(at..) {
            let message = &mut waiting.what;
            if numbered {
                message.data = message.data.map(|data| wire::renumbered(data, by));
            }
            if let Some(op) = way.posted.data(message.context) {
                op.sequence -= 1;
            }
        }
    }

    /// The connection is over: the messages that wait were never posted, and are nobody's but ours.
    pub(crate) fn end(&mut self, posted: &mut Posted, outgoing: &Outgoing) -> Vec<DataOp> {
        let mut messages = Vec::new();
        for waiting in self.waiting.0.drain(..) {
            match posted.messages.finish(waiting.what.context) {
                // Where the header is out, the provider has that alone.
                Ok(MessageOp::Data(op)) => messages.extend(posted.on_payload(op, true)),
                Ok(MessageOp::Header(op)) => outgoing.end_header(posted.on_header(op).0),
                Err(_) => {}
            }
        }
        messages
    }
}
