//! The messages that a hub sends: what its faces ask for, on one connection or on several.

use std::fmt;
use std::time::Duration;

use super::completion_reader::SentInARow;
use super::outbound::{self, Outbound};
use super::{Hub, Peer};
use crate::buffer::{Given, HeaderSlotManager, Payload};
use crate::clock::Clock;
use crate::endpoint::error::{Blocked, Refused, SendErrorKind};
use crate::endpoint::event::{DeadlinePolicy, Inject, Level};
use crate::endpoint::hub::data_op::DataOp;
use crate::endpoint::hub::event::HubEvent;
use crate::endpoint::hub::frames::NotPacked;
use crate::endpoint::hub::headers::{Header, PreparedHeader};
use crate::endpoint::hub::line::{Line, LineState};
use crate::endpoint::hub::outgoing::{self, PostingContext};
use crate::endpoint::hub::posted::MessageOp;
use crate::endpoint::hub::posting::Posting;
use crate::endpoint::link::iov::IovList;
use crate::endpoint::link::{Link, PostRefused};
use crate::endpoint::staging::StagingRing;
use crate::error::CompletionError;
use crate::fabric::{Packing, Shape};
use crate::id::ConnectionId;
use crate::protocol::connection::{Form, LONG_ANSWERS_MAX, State};
use crate::protocol::credit::CREDIT_MESSAGES_MAX;
use crate::protocol::wire::HeaderMode;

/// RDM form: receives of each connection for the peer's grants, out of the 8 that may be unread:
/// the others find one of those that connections share, or wait at the provider.
const SHARED_GRANTS: u32 = 1;

/// What an endpoint with many connections needs to know in order to send.
pub(crate) struct OutboundSettings {
    pub(crate) headers: HeaderSlotManager,
    pub(crate) header_mode: HeaderMode,
    /// Sends in flight on one connection.
    pub(crate) depth: u32,
    /// Sends in flight on all of them.
    pub(crate) total: u32,
    pub(crate) level: Level,
    /// `None`: the shape that the provider's limit on segments allows.
    pub(crate) shape: Option<Shape>,
    pub(crate) inject: Inject,
    pub(crate) packing: Packing,
    /// The kernel may gather small messages that stream.
    pub(crate) gather: bool,
    pub(crate) deadline: Option<Duration>,
    pub(crate) policy: DeadlinePolicy,
    /// For payloads in a GPU's memory that the provider can't read.
    pub(crate) staging: Option<StagingRing>,
    /// Messages that are too long for a receive of the peer's are sent, too, where it takes them.
    pub(crate) long: bool,
    /// Called with each key whose outcome nobody hears, because the endpoint is dropped.
    pub(crate) on_abandoned: Option<OnAbandoned>,
}

pub(crate) type OnAbandoned = Box<dyn FnMut(ConnectionId, u64) + Send>;

impl OutboundSettings {
    /// Receives of each connection for the peer's grants.
    pub(crate) fn grants(form: Form) -> u32 {
        match form {
            Form::Msg => CREDIT_MESSAGES_MAX as u32,
            Form::Rdm => SHARED_GRANTS,
        }
    }

    /// Receives of each connection for what the peer answers to the offers of long messages. RDM
    /// form: they find one of those that connections share, as grants do.
    pub(crate) fn long_answers(&self, form: Form) -> u32 {
        match form {
            Form::Msg => u32::from(self.long) * LONG_ANSWERS_MAX as u32,
            Form::Rdm => 0,
        }
    }
}

impl fmt::Debug for OutboundSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutboundSettings")
            .field("depth", &self.depth)
            .field("total", &self.total)
            .finish_non_exhaustive()
    }
}

impl<L: Link, E: HubEvent> Hub<L, E> {
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
        outgoing.staging.has_room() || outgoing.staging.arm()
    }

    // ---- one message ----------------------------------------------------------------------------

    /// Posts one message, or gives everything back.
    pub(crate) fn send_data(
        &mut self,
        id: ConnectionId,
        payload: Payload,
        header: &[u8],
        key: u64,
    ) -> Result<(), Refused<Payload>> {
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
    ) -> Result<(), Refused<Payload>> {
        self.send(id, payload, Header::Prepared(header), key)
    }

    fn send(
        &mut self,
        id: ConnectionId,
        payload: Payload,
        header: Header<'_>,
        key: u64,
    ) -> Result<(), Refused<Payload>> {
        match self.sender(id) {
            Some(mut sender) => sender.send(payload, header, key),
            None => Err(self.refuse_unknown(payload, key)),
        }
    }

    /// What sends on a connection, if there is one.
    #[inline]
    pub(crate) fn sender(&mut self, id: ConnectionId) -> Option<PeerSender<'_, L>> {
        Some(PeerSender {
            peer: self.peers.get_mut(id)?,
            id,
            outbound: &mut self.outbound,
            link: &mut self.link,
            clock: self.timer.clock(),
        })
    }

    #[cold]
    pub(super) fn refuse_unknown(&mut self, payload: Payload, key: u64) -> Refused<Payload> {
        let kind = SendErrorKind::NoConnection;
        self.refuse_without_connection(&kind);
        Refused::new(kind, payload, key)
    }

    /// Counts what was refused since there is no connection for it.
    pub(crate) fn refuse_without_connection(&mut self, kind: &SendErrorKind) {
        self.outbound.refuse(None, kind, true);
    }

    /// Something was refused before this connection was made: `Writable` says when it stands.
    pub(crate) fn expect_writable(&mut self, id: ConnectionId) {
        if let Some(peer) = self.peers.get_mut(id) {
            self.outbound.expect_writable(&mut peer.outbound);
        }
    }

    // ---- outcomes -------------------------------------------------------------------------------

    /// Messages are over that went well, and were told. Their connection is looked at where that
    /// may be what it waits for: most have nothing to do then.
    #[inline]
    pub(super) fn on_plain_sent(&mut self, sent: SentInARow) {
        if sent.count > 0 {
            self.outbound.account.count_sent(sent.count);
            self.on_outcomes(sent);
        }
    }

    /// Messages of a connection have their outcomes.
    #[inline]
    fn on_outcomes(&mut self, SentInARow { connection, count }: SentInARow) {
        let id = connection;
        if let Some(peer) = self.peers.get_mut(id) {
            peer.outbound.in_flight -= count;
            peer.machine.on_all_done(count);
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
        events: &mut Vec<E>,
    ) {
        let (id, posted) = (op.connection(), &mut self.outbound.posted);
        match op {
            MessageOp::Data(op) => {
                // Else it waits for its header.
                if let Some(op) = posted.on_payload(op, error.is_some()) {
                    self.on_sent(op, error, events);
                }
            }
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
        events: &mut Vec<E>,
    ) {
        let (id, errno) = (op.connection, error.as_ref().map(|error| error.errno));
        if !self.outbound.on_message_over(op, error, events) {
            return self.on_orphan(id);
        }
        self.on_outcomes(SentInARow {
            connection: id,
            count: 1,
        });
        if let (Some(errno), Some(peer)) = (errno, self.peers.get_mut(id)) {
            peer.machine.on_lost(Some(errno));
            self.touch(id);
        }
    }
}

/// One connection of a hub, with all that its messages go through.
pub(crate) struct PeerSender<'a, L: Link> {
    pub(super) id: ConnectionId,
    pub(super) peer: &'a mut Peer<L::Conn>,
    pub(super) outbound: &'a mut Outbound,
    pub(super) link: &'a mut L,
    pub(super) clock: &'a Clock,
}

impl<L: Link> PeerSender<'_, L> {
    pub(super) fn way(&mut self) -> (&mut Line, Posting<'_, L>) {
        let (line, way) = outbound::way(self.outbound, self.link, (self.id, self.peer));
        (line.get_or_insert_default(), way)
    }

    /// Posts a message, or gives everything back.
    #[inline(always)]
    pub(crate) fn send(
        &mut self,
        given: impl Given,
        mut header: Header<'_>,
        key: u64,
    ) -> Result<(), Refused<Payload>> {
        if self.peer.outbound.packs() {
            match self.place_in_frame(&given, &header) {
                Ok((len, bytes)) => {
                    self.copy_in((len, &bytes), &header);
                    self.keep_packed(given.into_kept(), key);
                    return Ok(());
                }
                Err(NotPacked::Alone) => {}
                Err(NotPacked::Refused(kind)) => {
                    return self.send_otherwise(kind, given.into_payload(), header, key);
                }
            }
        }
        let payload = given.into_payload();
        let (kind, payload) = match self.outbound.admit(self.peer, &payload, header.len()) {
            Ok(len) => match self.post(payload, header.again(), key, len) {
                Ok(()) => return Ok(()),
                Err(refused) => refused,
            },
            Err(kind) => (kind, payload),
        };
        self.send_otherwise(kind, payload, header, key)
    }

    /// A message that can't be posted now, or not as others are, for this reason.
    #[cold]
    pub(super) fn send_otherwise(
        &mut self,
        kind: SendErrorKind,
        payload: Payload,
        header: Header<'_>,
        key: u64,
    ) -> Result<(), Refused<Payload>> {
        let sent = match kind {
            SendErrorKind::TooLong { len, .. } if self.sends_long() => {
                self.offer(payload, header, key, len)
            }
            kind => self.queue(kind, payload, header, key),
        };
        sent.map_err(|(kind, payload)| {
            let of = Some((self.id, &mut self.peer.outbound));
            self.outbound.refuse(of, &kind, true);
            Refused::new(kind, payload, key)
        })
    }

    /// Whether a message that is too long for a receive can go piece by piece.
    fn sends_long(&self) -> bool {
        self.outbound.sends_long() && self.peer.machine.may_offer_long()
    }

    /// Offers a message to the peer, or gives everything back.
    fn offer(
        &mut self,
        payload: Payload,
        header: Header<'_>,
        key: u64,
        len: u64,
    ) -> Result<(), (SendErrorKind, Payload)> {
        if let Err(kind) = self.outbound.may_offer(&self.peer.outbound) {
            return Err((kind, payload));
        }
        let posted = self.outbound.stamp(self.clock);
        let (line, mut way) = self.way();
        line.offer_long(&mut way, (payload, header, key, len), posted)?;
        let own = &mut self.peer.outbound;
        self.outbound.account.count_accepted(own, len);
        // The next poll makes the offer.
        self.outbound.count_waiting(self.id, own);
        Ok(())
    }

    /// Posts a message that was admitted.
    #[inline(always)]
    fn post(
        &mut self,
        payload: Payload,
        header: Header<'_>,
        key: u64,
        len: u64,
    ) -> Result<(), (SendErrorKind, Payload)> {
        let to = (self.id, &mut *self.peer);
        self.outbound.mind_stream(self.link, to, len, self.clock);
        let mut iov = IovList::new();
        let context = self.load(payload, header, key, &mut iov)?;
        let (outgoing, conn) = (&self.outbound.outgoing, Some(&self.peer.link));
        let posted = match outgoing.shape() {
            Shape::TwoMessages => {
                let (line, mut way) = self.way();
                let posted = line.messages.post_new(&mut way, context, iov);
                posted.map(|()| self.on_posted())
            }
            Shape::Iov | Shape::Headroom => {
                let machine = &mut self.peer.machine;
                outgoing.post(self.link, conn, machine, context, &iov)
            }
        };
        match posted {
            Ok(()) => {
                self.outbound
                    .account
                    .count_accepted(&mut self.peer.outbound, len);
                Ok(())
            }
            Err(refused) => Err(self.undo(context, refused)),
        }
    }

    /// Takes all that a message needs that was admitted, and puts it into the slab; its context.
    #[inline(always)]
    pub(super) fn load(
        &mut self,
        payload: Payload,
        header: Header<'_>,
        key: u64,
        iov: &mut IovList,
    ) -> Result<usize, (SendErrorKind, Payload)> {
        let (outbound, peer) = (&mut *self.outbound, &mut *self.peer);
        let lane = PostingContext {
            connection: self.id,
            conn: Some(&peer.link),
            scoped: &mut peer.scoped,
            header_desc: peer.outbound.header_desc(),
            sequence: peer.machine.sent(),
            posted: outbound.stamp(self.clock),
            iov,
        };
        let slab = &mut outbound.posted.messages;
        outbound.outgoing.load(slab, payload, header, key, lane)
    }

    #[cold]
    fn undo(&mut self, context: usize, refused: PostRefused) -> (SendErrorKind, Payload) {
        let MessageOp::Data(mut op) = self.outbound.posted.messages.abort(context) else {
            unreachable!("the context is the one of a message");
        };
        let (_, payload) = self.outbound.outgoing.end(&mut op);
        self.outbound
            .account
            .stats
            .eagain
            .add(u64::from(refused == PostRefused::Again));
        (outgoing::refused_by_provider(refused), payload)
    }

    /// What was accepted is posted, unless it is in the line now: then it waits, or was the end of
    /// its connection.
    pub(super) fn on_posted(&mut self) {
        let own = &mut self.peer.outbound;
        if own.messages() != LineState::Open {
            self.outbound.count_waiting(self.id, own);
        }
    }

    /// A message that can't be posted now for this reason: takes it all the same if it only has to
    /// wait, else gives everything back.
    fn queue(
        &mut self,
        kind: SendErrorKind,
        payload: Payload,
        header: Header<'_>,
        key: u64,
    ) -> Result<(), (SendErrorKind, Payload)> {
        let (outbound, peer) = (&mut *self.outbound, &mut *self.peer);
        let scope = peer.scoped.scope();
        let behind = kind == SendErrorKind::WouldBlock(Blocked::Provider)
            && peer.outbound.messages() == LineState::Gated;
        let staged = outbound.outgoing.staging.must_stage(&payload, scope);
        if !behind && !payload.is_gated() && staged == Ok(false) {
            return Err((kind, payload));
        }
        if let Err(kind) = outbound.may_send(peer) {
            return Err((kind, payload));
        }
        let payload = outbound.outgoing.staging.stage(payload, scope)?;
        let peer_max = peer.machine.peer_receive_size();
        let measured = outbound.outgoing.measure(&payload, header.len(), peer_max);
        let len = match measured {
            Ok(len) => len,
            Err(kind) => return Err((kind, payload.unstaged())),
        };
        let posted = outbound.stamp(self.clock);
        let (line, mut way) = self.way();
        line.messages
            .accept(&mut way, (payload, header, key), posted)?;
        let own = &mut self.peer.outbound;
        self.outbound.account.count_accepted(own, len);
        self.outbound.count_waiting(self.id, own);
        Ok(())
    }
}
