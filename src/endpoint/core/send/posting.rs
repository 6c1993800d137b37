//! Sends of more than one post: header and payload as two messages, and batches whose posts the
//! provider may join.
//!
//! What is posted can't be taken back. So once a header is out, or a post was flagged with FI_MORE,
//! what follows it is accepted even if the provider has no room for it: it stalls, and is posted
//! before anything else as soon as there is room.

use std::time::Instant;

use super::{SendCore, SendOp};
use crate::buffer::Payload;
use crate::endpoint::core::outgoing::{self, DataOp};
use crate::endpoint::core::pair::{self, HeaderOp, PairOps, Stalled};
use crate::endpoint::event::SendEvent;
use crate::endpoint::link::iov::IovList;
use crate::endpoint::link::{Link, PostRefused};
use crate::endpoint::protocol::connection::State;
use crate::error::{Blocked, CompletionError, FabricErrno, Refused, SendErrorKind};
use crate::fabric::Shape;

impl PairOps for SendOp {
    fn of_data(op: DataOp) -> Self {
        Self::Data(op)
    }

    fn data(&mut self) -> Option<&mut DataOp> {
        match self {
            Self::Data(op) => Some(op),
            _ => None,
        }
    }

    fn header(&mut self) -> Option<&mut HeaderOp> {
        match self {
            Self::Header(op) => Some(op),
            _ => None,
        }
    }

    fn into_data(self) -> Option<DataOp> {
        Self::into_data(self)
    }
}

/// A message that waits for no gate.
fn waiting(context: usize, data: Option<u64>, iov: IovList) -> Stalled {
    Stalled {
        context,
        data,
        iov,
        gate: None,
    }
}

/// A message of a batch: all is taken for it, its credit too, and it is not posted.
struct Ready {
    context: usize,
    data: Option<u64>,
    iov: IovList,
}

impl<L: Link> SendCore<L> {
    // ---- header and payload as two messages -----------------------------------------------------

    /// Posts a message that is in the slab: its header, and the payload behind it. One without a
    /// payload is a message by itself.
    pub(super) fn post_pair(
        &mut self,
        context: usize,
        iov: IovList,
        len: u64,
    ) -> Result<(), Refused<Payload>> {
        let mut header_iov = IovList::new();
        let desc = self.header_desc.desc();
        let op = self.in_flight.get_mut(context).and_then(PairOps::data);
        let header = op.and_then(|op| self.outgoing.lone_header(op, desc, &mut header_iov));
        let Some(header) = header else {
            return self.post(context, &iov, len);
        };
        let Ok(first) = self.in_flight.begin(SendOp::Header(header)).map_err(drop) else {
            unreachable!("the slab has room for a header with each send");
        };
        pair::tie(&mut self.in_flight, first, context);
        let (link, conn) = (&mut self.link, self.conn.as_ref());
        let posted = self
            .outgoing
            .post_header(link, conn, &mut self.machine, first, &header_iov);
        let data = match posted {
            Ok(data) => Some(data),
            Err(refused) => {
                if let SendOp::Header(header) = self.in_flight.abort(first) {
                    self.outgoing.end_header(header.into_slot());
                }
                return Err(self.undo_post(context, refused));
            }
        };
        self.count_posted(len);
        self.post_or_stall(waiting(context, data, iov), false);
        Ok(())
    }

    /// A header that travelled alone is over; so is the send, if its payload was first.
    pub(super) fn on_header_sent(
        &mut self,
        op: HeaderOp,
        error: Option<Box<CompletionError>>,
        events: &mut Vec<SendEvent>,
    ) {
        let (slot, payload) = pair::on_header(&mut self.in_flight, op);
        self.outgoing.end_header(slot);
        match (payload, error) {
            (Some(op), error) => self.on_sent(op, error, events),
            // The payload has its outcome when the connection ends, of this.
            (None, Some(error)) => self.machine.on_lost(Some(error.errno)),
            (None, None) => {}
        }
    }

    /// A payload whose header travelled alone and is not over, as far as is known.
    pub(super) fn on_payload_sent(
        &mut self,
        op: DataOp,
        error: Option<Box<CompletionError>>,
        events: &mut Vec<SendEvent>,
    ) {
        if let Some(op) = pair::on_payload(&mut self.in_flight, op, error.is_some()) {
            self.on_sent(op, error, events);
        }
    }

    // ---- what has to be posted ------------------------------------------------------------------

    /// Hands over a message that was accepted; it waits behind those that the provider had no room
    /// for.
    fn post_or_stall(&mut self, message: Stalled, more: bool) {
        if self.machine.state() == State::Closed {
            // Lost by the message before; it has its outcome when the connection is closed.
            return;
        }
        if !self.stalled.is_empty() {
            return self.stalled.push_back(message);
        }
        match self.try_post(&message, more) {
            Ok(()) => {}
            Err(PostRefused::Again) => {
                self.stats.eagain += 1;
                self.stalled.push_back(message);
                // The next poll posts it, or sets the timer.
                self.wait.wake();
            }
            Err(PostRefused::Errno(errno)) => self.lose(errno),
        }
    }

    fn try_post(&mut self, message: &Stalled, more: bool) -> Result<(), PostRefused> {
        let Stalled {
            context, data, iov, ..
        } = message;
        let (link, conn) = (&mut self.link, self.conn.as_ref());
        self.outgoing
            .hand_over(link, conn, (*context, *data), iov, more)
    }

    /// A part of what was accepted can't be sent: everything in flight comes back failed.
    fn lose(&mut self, errno: FabricErrno) {
        self.machine.on_lost(Some(errno));
        self.wait.wake();
    }

    /// Offers what stalled to the provider again, as far as its gates are open.
    pub(super) fn post_stalled(&mut self, events: &mut Vec<SendEvent>) {
        if self.gates > 0 {
            self.poll_gates(events);
        }
        while self.stalled.front().is_some_and(|it| it.gate.is_none()) {
            let Some(message) = self.stalled.pop_front() else {
                return;
            };
            match self.try_post(&message, false) {
                Ok(()) => {}
                Err(PostRefused::Again) => return self.stalled.push_front(message),
                Err(PostRefused::Errno(errno)) => {
                    self.clear_stalled();
                    return self.lose(errno);
                }
            }
        }
    }

    /// The provider's endpoint is closed: the sends that it did not report.
    pub(super) fn take_sends(&mut self) -> Vec<DataOp> {
        self.clear_stalled();
        let mut sends = Vec::new();
        for op in self.in_flight.drain() {
            match op {
                SendOp::Data(op) => sends.push(op),
                SendOp::Header(op) => self.outgoing.end_header(op.into_slot()),
                SendOp::ControlSend { .. } | SendOp::ControlReceive { .. } => {}
            }
        }
        sends
    }

    // ---- batches --------------------------------------------------------------------------------

    /// Sends messages until one is refused; each but the last tells the provider that another
    /// follows, where it looks at that.
    ///
    /// A post is flagged only when the next message has all that it needs, so that nothing but the
    /// provider itself can keep that one back.
    pub(crate) fn send_batch<H: AsRef<[u8]>>(
        &mut self,
        messages: impl Iterator<Item = (Payload, H, u64)>,
    ) -> (usize, Option<Refused<Payload>>) {
        // Two messages each would take the flag apart.
        let joins = self.outgoing.uses_more() && self.outgoing.shape() != Shape::TwoMessages;
        let (mut sent, mut ready, mut refused) = (0, None, None);
        for (payload, header, key) in messages {
            if !joins {
                refused = self.send_data(payload, header.as_ref(), key).err();
            } else {
                match self.prepare(payload, header.as_ref(), key) {
                    Ok(next) => {
                        if let Some(last) = ready.replace(next) {
                            self.post_ready(last, true);
                        }
                    }
                    Err((kind, payload)) => {
                        // It may only have to wait, behind that one.
                        if let Some(last) = ready.take() {
                            self.post_ready(last, false);
                        }
                        refused = self.send_later(kind, payload, header.as_ref(), key).err();
                    }
                }
            }
            if refused.is_some() {
                break;
            }
            sent += 1;
        }
        if let Some(last) = ready {
            self.post_ready(last, false);
        }
        (sent, refused)
    }

    /// Everything of [`send_data`](Self::send_data) but the post.
    fn prepare(
        &mut self,
        payload: Payload,
        header: &[u8],
        key: u64,
    ) -> Result<Ready, (SendErrorKind, Payload)> {
        let len = match self.admit(&payload, header.len()) {
            Ok(len) => len,
            Err(kind) => return Err((kind, payload)),
        };
        let mut iov = IovList::new();
        let context = self.load(payload, header, key, &mut iov)?;
        let number = self.machine.on_data_posted();
        debug_assert!(number.is_ok(), "admit asked the same");
        self.count_posted(len);
        let data = outgoing::data_of(&self.machine, number.unwrap_or(0));
        Ok(Ready { context, data, iov })
    }

    fn post_ready(&mut self, ready: Ready, more: bool) {
        let Ready { context, data, iov } = ready;
        self.post_or_stall(waiting(context, data, iov), more);
    }

    /// A message that stalled is before every other.
    pub(super) fn check_stalled(&self) -> Result<(), SendErrorKind> {
        if self.stalled.is_empty() {
            Ok(())
        } else {
            Err(SendErrorKind::WouldBlock(Blocked::Provider))
        }
    }

    /// When a buffer may be free of another header: no endpoint tells another.
    pub(super) fn room_retry(&self) -> Option<Instant> {
        self.room_refused
            .filter(|_| self.blocked == Some(Blocked::HeaderRoom))
            .map(|refused| refused + super::CONTROL_RETRY)
    }
}
