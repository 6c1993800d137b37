//! The messages that a hub sends: what its faces ask for, on one connection or on several.

use std::fmt;
use std::time::Duration;

use super::Hub;
use super::outbound::ReadyMessage;
use crate::buffer::{HeaderSlotManager, Payload};
use crate::endpoint::core::outgoing::{DataOp, Header, PreparedHeader};
use crate::endpoint::core::posted::MessageOp;
use crate::endpoint::event::{DeadlinePolicy, Level, ReceiveEvent};
use crate::endpoint::id::ConnectionId;
use crate::endpoint::link::Link;
use crate::endpoint::protocol::connection::{Form, State};
use crate::endpoint::protocol::credit::CREDIT_MESSAGES_MAX;
use crate::endpoint::protocol::wire::HeaderMode;
use crate::endpoint::staging::StagingRing;
use crate::error::{Blocked, CompletionError, SendError, SendErrorKind};
use crate::fabric::Shape;
use crate::stats::SendStats;

/// RDM form: receives of each connection for the peer's grants, out of the 8 that may be unread:
/// the others find one of those that connections share, or wait at the provider.
const SHARED_GRANTS: u32 = 1;

/// What an endpoint with many connections needs to know in order to send.
pub(crate) struct SendsSettings {
    pub(crate) headers: HeaderSlotManager,
    pub(crate) header_mode: HeaderMode,
    /// Sends in flight on one connection.
    pub(crate) depth: u32,
    /// Sends in flight on all of them.
    pub(crate) total: u32,
    pub(crate) level: Level,
    /// None: what the provider's limit on segments allows.
    pub(crate) shape: Option<Shape>,
    pub(crate) deadline: Option<Duration>,
    pub(crate) policy: DeadlinePolicy,
    /// For payloads in a GPU's memory that the provider can't read.
    pub(crate) staging: Option<StagingRing>,
    /// Called with each key whose outcome nobody hears, because the endpoint is dropped.
    pub(crate) on_abandoned: Option<OnAbandoned>,
}

pub(crate) type OnAbandoned = Box<dyn FnMut(ConnectionId, u64) + Send>;

impl SendsSettings {
    /// Receives of each connection for the peer's grants.
    pub(crate) fn grants(form: Form) -> u32 {
        match form {
            Form::Msg => CREDIT_MESSAGES_MAX as u32,
            Form::Rdm => SHARED_GRANTS,
        }
    }
}

impl fmt::Debug for SendsSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendsSettings")
            .field("depth", &self.depth)
            .field("total", &self.total)
            .finish_non_exhaustive()
    }
}

impl<L: Link> Hub<L> {
    // ---- headers for several messages -----------------------------------------------------------

    /// A header for messages on several connections: one slot, filled once. To be dropped by
    /// [`drop_header`](Self::drop_header).
    ///
    /// # Errors
    ///
    /// It is too long, or of another length than the header mode asks for, or no slot is free: then
    /// `wait` wakes when one is.
    pub(crate) fn prepare_header(
        &mut self,
        header: &[u8],
        key: u64,
    ) -> Result<PreparedHeader, SendErrorKind> {
        if !self.outbound.sends_messages() {
            return Err(SendErrorKind::NoConnection);
        }
        let prepared = self.outbound.outgoing.prepare_header(header, key);
        if let Err(kind) = &prepared {
            self.outbound.refuse(None, kind, true);
        }
        prepared
    }

    /// No further message will have this header: its slot is free when the last one that has it is
    /// over.
    pub(crate) fn drop_header(&mut self, header: PreparedHeader) {
        self.outbound.outgoing.drop_header(header);
    }

    /// A payload that goes out on several connections: staged once, where it has to be.
    pub(crate) fn stage_for_many(
        &mut self,
        payload: Payload,
    ) -> Result<Payload, (SendErrorKind, Payload)> {
        let scope = self.link.registrar().scope();
        self.outbound.stage_for_many(payload, scope)
    }

    /// Whether a slot is free to stage something in. If not, `wait` wakes when one is.
    pub(crate) fn has_staging(&self) -> bool {
        let outgoing = &self.outbound.outgoing;
        outgoing.has_staging() || outgoing.arm_staging()
    }

    // ---- one message ----------------------------------------------------------------------------

    /// Posts one message, or gives everything back.
    pub(crate) fn send_data(
        &mut self,
        id: ConnectionId,
        payload: Payload,
        header: &[u8],
        key: u64,
    ) -> Result<(), SendError> {
        self.send(id, payload, Header::Bytes(header), key)
    }

    /// As [`send_data`](Self::send_data), with a header that messages on other connections have,
    /// too.
    pub(crate) fn send_prepared(
        &mut self,
        id: ConnectionId,
        payload: Payload,
        header: &mut PreparedHeader,
        key: u64,
    ) -> Result<(), SendError> {
        self.send(id, payload, Header::Prepared(header), key)
    }

    fn send(
        &mut self,
        id: ConnectionId,
        payload: Payload,
        mut header: Header<'_>,
        key: u64,
    ) -> Result<(), SendError> {
        let Some(peer) = self.peers.get_mut(id) else {
            return Err(self.refuse_unknown(payload, key));
        };
        let (kind, payload) = match self.outbound.admit(peer, &payload, header.len()) {
            Ok(len) => {
                let message = (payload, header.again(), key, len);
                let to = (id, peer);
                match self
                    .outbound
                    .post_message(&mut self.link, self.timer.clock(), to, message)
                {
                    Ok(false) => return Ok(()),
                    Ok(true) => {
                        self.look_again(id);
                        return Ok(());
                    }
                    Err(refused) => refused,
                }
            }
            Err(kind) => (kind, payload),
        };
        self.send_later(id, kind, (payload, header, key))
    }

    /// A message that can't be posted now for this reason: takes it all the same if it only has to
    /// wait, else gives everything back.
    #[cold]
    fn send_later(
        &mut self,
        id: ConnectionId,
        kind: SendErrorKind,
        (payload, header, key): (Payload, Header<'_>, u64),
    ) -> Result<(), SendError> {
        let Some(peer) = self.peers.get_mut(id) else {
            return Err(self.refuse_unknown(payload, key));
        };
        let (outbound, link) = (&mut self.outbound, &mut self.link);
        let to = (id, &mut *peer);
        let queued =
            outbound.queue_message(link, self.timer.clock(), to, kind, (payload, header, key));
        let Err((kind, payload)) = queued else {
            self.look_again(id);
            return Ok(());
        };
        outbound.refuse(Some((id, &mut peer.outbound)), &kind, true);
        self.retry_refused(&kind);
        Err(SendError { kind, payload, key })
    }

    fn refuse_unknown(&mut self, payload: Payload, key: u64) -> SendError {
        let kind = SendErrorKind::NoConnection;
        self.outbound.refuse(None, &kind, true);
        SendError { kind, payload, key }
    }

    /// Something was refused that is to be offered again, though nobody wakes us.
    pub(super) fn retry_refused(&mut self, kind: &SendErrorKind) {
        match kind {
            // There may be nothing in flight whose completion wakes anybody.
            SendErrorKind::WouldBlock(Blocked::Provider) => self.retry = true,
            // Another endpoint may hold the room, which tells nobody when it is free.
            SendErrorKind::WouldBlock(Blocked::HeaderRoom) => {
                self.retry = true;
                self.set_timer();
            }
            _ => {}
        }
    }

    /// Something waits in the line of a connection, or ended it: the next poll looks at it, and
    /// sets the timer.
    pub(super) fn look_again(&mut self, id: ConnectionId) {
        self.retry = true;
        self.touch(id);
        self.wait.wake();
    }

    // ---- batches --------------------------------------------------------------------------------

    /// Sends messages on a connection until one is refused; each but the last tells the provider
    /// that another follows, where it looks at that.
    ///
    /// A post is flagged only when the next message has all that it needs, so that nothing but the
    /// provider itself can keep that one back.
    #[cfg_attr(
        any(not(test), loom),
        expect(dead_code, reason = "no face of a hub sends batches yet")
    )]
    pub(crate) fn send_batch<H: AsRef<[u8]>>(
        &mut self,
        id: ConnectionId,
        messages: impl Iterator<Item = (Payload, H, u64)>,
    ) -> (usize, Option<SendError>) {
        // Two messages each would take the flag apart.
        let outgoing = &self.outbound.outgoing;
        let joins = outgoing.uses_more() && outgoing.shape() != Shape::TwoMessages;
        let (mut sent, mut ready, mut refused) = (0, None, None);
        for (payload, header, key) in messages {
            let header = header.as_ref();
            if !joins {
                refused = self.send_data(id, payload, header, key).err();
            } else {
                match self.prepare(id, payload, header, key) {
                    Ok(next) => {
                        if let Some(last) = ready.replace(next) {
                            self.post_ready(id, last, true);
                        }
                    }
                    Err((kind, payload)) => {
                        // It may only have to wait, behind that one.
                        if let Some(last) = ready.take() {
                            self.post_ready(id, last, false);
                        }
                        let message = (payload, Header::Bytes(header), key);
                        refused = self.send_later(id, kind, message).err();
                    }
                }
            }
            if refused.is_some() {
                break;
            }
            sent += 1;
        }
        if let Some(last) = ready {
            self.post_ready(id, last, false);
        }
        (sent, refused)
    }

    fn prepare(
        &mut self,
        id: ConnectionId,
        payload: Payload,
        header: &[u8],
        key: u64,
    ) -> Result<ReadyMessage, (SendErrorKind, Payload)> {
        let Some(peer) = self.peers.get_mut(id) else {
            return Err((SendErrorKind::NoConnection, payload));
        };
        let (link, to) = (&mut self.link, (id, peer));
        self.outbound
            .prepare(link, self.timer.clock(), to, (payload, header, key))
    }

    fn post_ready(&mut self, id: ConnectionId, ready: ReadyMessage, more: bool) {
        let Some(peer) = self.peers.get_mut(id) else {
            return;
        };
        let (link, to) = (&mut self.link, (id, peer));
        if self.outbound.post_ready(link, to, ready, more) {
            self.look_again(id);
        }
    }

    // ---- outcomes -------------------------------------------------------------------------------

    /// A message is over, and has its outcome. Its connection is looked at where that may be what
    /// it waits for: most have nothing to do then.
    #[inline]
    pub(super) fn on_plain_sent(&mut self, id: ConnectionId) {
        if let Some(peer) = self.peers.get_mut(id) {
            peer.outbound.in_flight -= 1;
            peer.machine.on_data_done();
            if peer.outbound.waits_alone() || peer.machine.state() != State::Established {
                self.touch(id);
            }
        }
    }

    /// A message, or a part of one, is over that is no plain send.
    pub(super) fn on_message_over(
        &mut self,
        op: MessageOp,
        error: Option<CompletionError>,
        events: &mut Vec<ReceiveEvent>,
    ) {
        let (id, posted) = (op.connection(), &mut self.outbound.posted);
        match op {
            MessageOp::Data(op) => match posted.on_payload(op, error.is_some()) {
                Some(op) => self.on_sent(op, error, events),
                // It waits for its header.
                None => {}
            },
            MessageOp::Header(op) => {
                let (slot, payload) = posted.on_header(op);
                self.outbound.outgoing.end_header(slot);
                match self.peers.get_mut(id) {
                    None => self.on_orphan(id),
                    Some(peer) => {
                        // The payload has its outcome when the connection ends, of this.
                        if let Some(error) = &error {
                            peer.machine.on_lost(Some(error.errno));
                            self.touch(id);
                        }
                    }
                }
                if let Some(op) = payload {
                    self.on_sent(op, error, events);
                }
            }
        }
    }

    /// A message is over.
    pub(super) fn on_sent(
        &mut self,
        op: DataOp,
        error: Option<CompletionError>,
        events: &mut Vec<ReceiveEvent>,
    ) {
        let (id, errno) = (op.connection, error.as_ref().map(|error| error.errno));
        if !self.outbound.on_message_over(op, error, events) {
            return self.on_orphan(id);
        }
        self.on_plain_sent(id);
        if let (Some(errno), Some(peer)) = (errno, self.peers.get_mut(id)) {
            peer.machine.on_lost(Some(errno));
            self.touch(id);
        }
    }

    // ---- about them -----------------------------------------------------------------------------

    pub(crate) fn send_stats(&self) -> SendStats {
        match self.outbound.sends_messages() {
            true => self.outbound.stats,
            false => SendStats::default(),
        }
    }

    /// Sends on a connection that have no outcome yet.
    pub(crate) fn sends_in_flight(&self, id: ConnectionId) -> u32 {
        self.peers.get(id).map_or(0, |peer| peer.outbound.in_flight)
    }

    /// Keys of sends that have no outcome yet.
    pub(crate) fn pending_sends(&self) -> Vec<(ConnectionId, u64)> {
        let sends = self.outbound.posted.sends();
        sends.map(|op| (op.connection, op.key)).collect()
    }
}
