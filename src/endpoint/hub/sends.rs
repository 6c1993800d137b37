//! Sends of an endpoint with many connections: messages that it posts on any of them.
//!
//! Each accepted key has one outcome, before its connection's end is reported. In the RDM form the
//! provider may keep what was sent on a connection that is over: its keys come back failed then,
//! without their payloads, which follow (`Released`) when the provider is done.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Hub, Operation};
use crate::Error;
use crate::buffer::{HeaderSlotManager, Payload, WakerId};
use crate::clock::Clock;
use crate::contain::contain;
use crate::endpoint::core::control::HeldDescriptor;
use crate::endpoint::core::outgoing::{
    self, DataOp, Header, Outgoing, PostingContext, PreparedHeader,
};
use crate::endpoint::core::pair::Stalled;
use crate::endpoint::core::scoped::ScopedRegistrations;
use crate::endpoint::event::{DeadlinePolicy, Inject, Level, ReceiveEvent};
use crate::endpoint::id::{ConnectionId, EndpointId};
use crate::endpoint::link::iov::IovList;
use crate::endpoint::link::{Link, LinkConn, LinkLimits, PostRefused};
use crate::endpoint::protocol::connection::{CloseReason, Form};
use crate::endpoint::protocol::credit::CREDIT_MESSAGES_MAX;
use crate::endpoint::protocol::wire::HeaderMode;
use crate::endpoint::staging::StagingRing;
use crate::error::{Blocked, CompletionError, FabricErrno, Refused, SendErrorKind};
use crate::in_flight::InFlight;
use crate::memory::Registrar;
use crate::stats::{self, SendStats};

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

/// The sends of all connections.
pub(super) struct Sends {
    settings: SendsSettings,
    outgoing: Outgoing,
    /// In the slab, with those whose outcome was told because their connection is over.
    held: u32,
    stats: SendStats,
    next_late: Option<Instant>,
    /// Connections on which a send was refused for now, because of something that all of them
    /// share.
    blocked: Vec<ConnectionId>,
    /// Connections with sends that wait for a gate.
    waiting: Vec<ConnectionId>,
    headers_waker: WakerId,
    /// RDM form: held until the endpoint is closed, since sends may outlive their connections.
    shared_desc: Option<HeldDescriptor>,
}

/// The sends of one connection.
pub(super) struct ConnSends {
    header_desc: HeldDescriptor,
    pub(super) in_flight: u32,
    /// So many may be in flight before one more is looked at closely: as many as the depth, or none
    /// while some wait in `queue`.
    limit: u32,
    /// Sends that were accepted and are not posted: behind a gate.
    queue: VecDeque<Stalled>,
    /// Why the last one was refused, if it may be taken later.
    blocked: Option<Blocked>,
    /// In the list of those that wait for something shared.
    listed: bool,
}

impl ConnSends {
    pub(super) fn header_desc(&self) -> *mut c_void {
        self.header_desc.desc()
    }

    // ---- those that wait for a gate, or behind one ----------------------------------------------

    pub(super) fn has_queue(&self) -> bool {
        !self.queue.is_empty()
    }

    pub(super) fn queued(&mut self, at: usize) -> Option<&mut Stalled> {
        self.queue.get_mut(at)
    }

    pub(super) fn queued_from(&mut self, at: usize) -> impl Iterator<Item = &mut Stalled> {
        self.queue.range_mut(at..)
    }

    pub(super) fn remove_queued(&mut self, at: usize) -> Option<Stalled> {
        self.queue.remove(at)
    }

    /// The first, if its gate is open.
    pub(super) fn next_open(&self) -> Option<&Stalled> {
        self.queue.front().filter(|message| message.gate.is_none())
    }

    /// The first is posted.
    pub(super) fn pop_queue(&mut self) {
        self.queue.pop_front();
    }

    pub(super) fn drain_queue(&mut self) -> impl Iterator<Item = Stalled> {
        self.queue.drain(..)
    }

    /// The connection's endpoint would not close.
    pub(super) fn leak(&mut self) {
        self.header_desc.leak();
    }
}

impl Sends {
    pub(super) fn new(
        settings: SendsSettings,
        limits: &LinkLimits,
        form: Form,
        registrar: &dyn Registrar,
        wake: crate::buffer::WakeFn,
    ) -> Result<Self, Error> {
        // Two messages on each of many connections are not built: their first choices need none.
        let shape = outgoing::choose_shape(None, limits)?;
        let headers = settings.headers.clone();
        let shared_desc = match form {
            Form::Msg => None,
            Form::Rdm => Some(HeldDescriptor::new(headers.region(), registrar)?),
        };
        let staging = settings.staging.clone().map(|ring| {
            let waker = ring.add_waker(Arc::clone(&wake));
            (ring, waker)
        });
        let headers_waker = headers.add_waker(wake);
        let (mode, level) = (settings.header_mode, settings.level);
        Ok(Self {
            outgoing: Outgoing::new(
                EndpointId::next(),
                headers,
                mode,
                level,
                (shape, Inject::Auto),
                limits,
                staging,
            ),
            settings,
            held: 0,
            stats: SendStats::default(),
            next_late: None,
            blocked: Vec::new(),
            waiting: Vec::new(),
            headers_waker,
            shared_desc,
        })
    }

    /// What a new connection needs in order to send.
    pub(super) fn join(
        &self,
        scoped: &mut ScopedRegistrations,
        registrar: &dyn Registrar,
    ) -> Result<ConnSends, Error> {
        Ok(ConnSends {
            header_desc: scoped.hold(self.outgoing.headers().region(), registrar)?,
            in_flight: 0,
            limit: self.settings.depth,
            queue: VecDeque::new(),
            blocked: None,
            listed: false,
        })
    }

    // ---- those that wait for a gate, or behind one ----------------------------------------------

    /// Whether a send that has to wait would be taken.
    pub(super) fn may_queue(&self, own: &ConnSends) -> bool {
        own.in_flight < self.settings.depth && self.held < self.settings.total
    }

    /// One more that waits: it lets no other pass.
    pub(super) fn queue(&mut self, id: ConnectionId, own: &mut ConnSends, message: Stalled) {
        if own.queue.is_empty() {
            self.waiting.push(id);
        }
        own.queue.push_back(message);
        own.in_flight += 1;
        own.limit = 0;
    }

    /// Nothing waits on a connection any more.
    pub(super) fn reopen(&self, own: &mut ConnSends) {
        own.limit = self.settings.depth;
    }

    /// Whether a connection has something that waits.
    pub(super) fn waits(&self) -> bool {
        !self.waiting.is_empty()
    }

    pub(super) fn take_waiting(&mut self) -> Vec<ConnectionId> {
        std::mem::take(&mut self.waiting)
    }

    pub(super) fn put_waiting(&mut self, waiting: Vec<ConnectionId>) {
        self.waiting = waiting;
    }

    pub(super) fn load_gated<C: LinkConn, T>(
        &mut self,
        slab: (&mut InFlight<T>, impl FnOnce(DataOp) -> T),
        payload: Payload,
        header: Header<'_>,
        key: u64,
        lane: PostingContext<'_, C>,
    ) -> Result<usize, (SendErrorKind, Payload)> {
        self.outgoing.load_gated(slab, payload, header, key, lane)
    }

    pub(super) fn count_again(&mut self) {
        self.stats.eagain += 1;
    }

    pub(super) fn header_mode(&self) -> HeaderMode {
        self.outgoing.header_mode()
    }

    pub(super) fn outgoing(&self) -> &Outgoing {
        &self.outgoing
    }

    /// When the oldest send may be late.
    pub(super) fn next_late(&self) -> Option<Instant> {
        self.next_late.filter(|_| self.stats.in_flight > 0)
    }

    /// The time that a send of now counts its deadline from, where there is one.
    pub(super) fn posted_at(&mut self, clock: &Clock) -> Option<Instant> {
        let deadline = self.settings.deadline?;
        let now = clock.now();
        if self.stats.in_flight == 0 {
            self.next_late = None;
        }
        self.next_late.get_or_insert(now + deadline);
        Some(now)
    }

    pub(super) fn count_posted(&mut self, len: u64) {
        self.held += 1;
        let stats = &mut self.stats;
        stats.posted += 1;
        stats.in_flight += 1;
        stats.bytes += len;
        stats.in_flight_max = stats.in_flight_max.max(stats.in_flight);
    }

    fn count_refused(&mut self, kind: &SendErrorKind) {
        match kind {
            SendErrorKind::WouldBlock(_) => self.stats.would_block += 1,
            _ => self.stats.refused += 1,
        }
    }

    /// The endpoint would not close: what the provider may still touch stays as it is.
    fn leak(&mut self) {
        self.outgoing.leak();
        if let Some(desc) = &mut self.shared_desc {
            desc.leak();
        }
    }
}

impl<L: Link> Hub<L> {
    // ---- posting --------------------------------------------------------------------------------

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
        let Some(sends) = &mut self.sends else {
            return Err(SendErrorKind::NoConnection);
        };
        let prepared = sends.outgoing.prepare_header(header, key);
        if let Err(kind) = &prepared {
            sends.count_refused(kind);
            if *kind == SendErrorKind::WouldBlock(Blocked::HeaderSlots) {
                self.arm_headers();
            }
        }
        prepared
    }

    /// No further message will have this header: its slot is free when the last one that has it is
    /// over.
    pub(crate) fn drop_header(&mut self, header: PreparedHeader) {
        if let Some(sends) = &self.sends {
            sends.outgoing.drop_header(header);
        }
    }

    /// Whether a message could be posted on a connection, whatever its size.
    ///
    /// # Errors
    ///
    /// What stands in the way.
    pub(crate) fn may_send(&self, id: ConnectionId) -> Result<(), SendErrorKind> {
        match self.may_post(id) {
            Err(SendErrorKind::WouldBlock(Blocked::Depth)) => self.may_queue(id),
            may => may,
        }
    }

    /// The same, of one that waits for nothing.
    fn may_post(&self, id: ConnectionId) -> Result<(), SendErrorKind> {
        let peer = self.peers.get(id).ok_or(SendErrorKind::NoConnection)?;
        let (Some(sends), Some(own)) = (&self.sends, &peer.sends) else {
            return Err(SendErrorKind::NoConnection);
        };
        let reason = peer.machine.close_reason();
        let may = peer.machine.may_send();
        may.map_err(|blocked| outgoing::refusal(blocked, reason))?;
        if own.in_flight >= own.limit || sends.held >= sends.settings.total {
            return Err(SendErrorKind::WouldBlock(Blocked::Depth));
        }
        Ok(())
    }

    /// Everything that can be said of a message before anything is taken for it. Gives its length
    /// in bytes.
    fn admit_send(
        &self,
        id: ConnectionId,
        payload: &Payload,
        header_len: usize,
    ) -> Result<u64, SendErrorKind> {
        let may = self.may_post(id);
        match (&self.sends, self.peers.get(id)) {
            (Some(sends), Some(peer)) => {
                // What can never be is said first: who is blocked tries again. Before the peer has
                // said what it takes, nothing can be.
                if may.is_ok() || may == Err(SendErrorKind::WouldBlock(Blocked::Depth)) {
                    let peer_max = peer.machine.peer_receive_size();
                    let len = sends.outgoing.measure(payload, header_len, peer_max)?;
                    return may.map(|()| len);
                }
                may.map(|()| 0)
            }
            _ => Err(SendErrorKind::NoConnection),
        }
    }

    fn send(
        &mut self,
        id: ConnectionId,
        payload: Payload,
        mut header: Header<'_>,
        key: u64,
    ) -> Result<(), Refused<Payload>> {
        let (kind, payload) = match self.admit_send(id, &payload, header.len()) {
            Ok(len) => match self.post_data(id, payload, header.again(), key, len) {
                Ok(()) => return Ok(()),
                Err(refused) => refused,
            },
            Err(kind) => (kind, payload),
        };
        let sent = self.send_later(id, kind, payload, header, key);
        sent.map_err(|(kind, payload)| {
            self.refuse_send(id, &kind);
            Refused {
                kind,
                given: payload,
                key,
            }
        })
    }

    fn post_data(
        &mut self,
        id: ConnectionId,
        payload: Payload,
        header: Header<'_>,
        key: u64,
        len: u64,
    ) -> Result<(), (SendErrorKind, Payload)> {
        let (Some(sends), Some(peer)) = (&mut self.sends, self.peers.get_mut(id)) else {
            return Err((SendErrorKind::NoConnection, payload));
        };
        let Some(own) = &mut peer.sends else {
            return Err((SendErrorKind::NoConnection, payload));
        };
        let mut iov = IovList::new();
        let lane = PostingContext {
            conn: Some(&peer.link),
            scoped: &mut peer.scoped,
            header_desc: own.header_desc.desc(),
            sequence: peer.machine.sent(),
            posted: sends.posted_at(&self.clock),
            iov: &mut iov,
        };
        let wrap = |op| (id, Operation::Data { told: false, op });
        let slab = (&mut self.operations, wrap);
        let context = sends.outgoing.load(slab, payload, header, key, lane)?;
        let (link, to) = (&mut self.link, Some(&peer.link));
        let posted = sends
            .outgoing
            .post(link, to, &mut peer.machine, context, &iov);
        if let Err(refused) = posted {
            return Err(self.undo_send(context, refused));
        }
        own.in_flight += 1;
        sends.count_posted(len);
        let late = sends.next_late();
        self.timer_stale |= late.is_some_and(|at| self.armed.is_none_or(|armed| at < armed));
        Ok(())
    }

    /// Takes a post back that the provider did not take.
    #[cold]
    fn undo_send(&mut self, context: usize, refused: PostRefused) -> (SendErrorKind, Payload) {
        let ((_, Operation::Data { mut op, .. }), Some(sends)) =
            (self.operations.abort(context), &mut self.sends)
        else {
            unreachable!("the context is the one of `post_data`");
        };
        let (_, payload) = sends.outgoing.end(&mut op);
        if refused == PostRefused::Again {
            sends.stats.eagain += 1;
            // Offered again: there may be nothing in flight whose completion wakes anybody.
            self.retry = true;
        }
        (outgoing::refused_by_provider(refused), payload)
    }

    fn refuse_send(&mut self, id: ConnectionId, kind: &SendErrorKind) {
        let Some(sends) = &mut self.sends else { return };
        sends.count_refused(kind);
        let &SendErrorKind::WouldBlock(blocked) = kind else {
            return;
        };
        if let Some(own) = self.peers.get_mut(id).and_then(|peer| peer.sends.as_mut()) {
            own.blocked = Some(blocked);
            let shared = match blocked {
                Blocked::Credits | Blocked::Connecting => false,
                Blocked::Depth => own.in_flight < sends.settings.depth,
                _ => true,
            };
            if shared && !std::mem::replace(&mut own.listed, true) {
                sends.blocked.push(id);
            }
        }
        if blocked == Blocked::Staging && sends.outgoing.arm_staging() {
            self.wait.wake();
        }
        if blocked == Blocked::HeaderSlots {
            self.arm_headers();
        }
        if blocked == Blocked::HeaderRoom {
            // Another endpoint may hold the room, which tells nobody when it is free.
            self.retry = true;
            self.set_timer();
        }
    }

    /// Another endpoint may hold all the slots: its release must wake us. Released between the
    /// refusal and the arming: nobody would.
    fn arm_headers(&self) {
        if let Some(sends) = &self.sends
            && sends.outgoing.headers().arm(sends.headers_waker)
        {
            self.wait.wake();
        }
    }

    // ---- outcomes -------------------------------------------------------------------------------

    /// A send is over.
    pub(super) fn on_sent(
        &mut self,
        id: ConnectionId,
        mut op: DataOp,
        told: bool,
        error: Option<CompletionError>,
        events: &mut Vec<ReceiveEvent>,
    ) {
        let Some(sends) = &mut self.sends else { return };
        let (key, payload) = sends.outgoing.end(&mut op);
        sends.held -= 1;
        if told {
            // Its connection is over; now its address may go, too.
            events.push(ReceiveEvent::Released {
                connection: id,
                key,
                payload,
            });
            return self.on_orphan(id);
        }
        if let Some(peer) = self.peers.get_mut(id) {
            if let Some(own) = &mut peer.sends {
                own.in_flight -= 1;
            }
            peer.machine.on_data_done();
            if let Some(error) = &error {
                peer.machine.on_lost(Some(error.errno));
            }
            self.touch(id);
        }
        self.tell_sent(id, key, payload, error.map(|error| (error, false)), events);
    }

    /// The same of one that was accepted, and that the connection knows nothing of.
    pub(super) fn on_unposted(
        &mut self,
        id: ConnectionId,
        mut op: DataOp,
        error: CompletionError,
        events: &mut Vec<ReceiveEvent>,
    ) {
        let Some(sends) = &mut self.sends else { return };
        let (key, payload) = sends.outgoing.end(&mut op);
        sends.held -= 1;
        if let Some(own) = self.peers.get_mut(id).and_then(|peer| peer.sends.as_mut()) {
            own.in_flight -= 1;
        }
        self.touch(id);
        self.tell_sent(id, key, payload, Some((error, false)), events);
    }

    /// The outcome of a send. With an error: whether the provider still has its payload.
    fn tell_sent(
        &mut self,
        connection: ConnectionId,
        key: u64,
        payload: Payload,
        error: Option<(CompletionError, bool)>,
        events: &mut Vec<ReceiveEvent>,
    ) {
        let Some(sends) = &mut self.sends else { return };
        sends.stats.in_flight -= 1;
        events.push(match error {
            None => {
                sends.stats.completed += 1;
                ReceiveEvent::Completed {
                    connection,
                    key,
                    payload,
                }
            }
            Some((error, kept)) => {
                sends.stats.failed += 1;
                ReceiveEvent::Failed {
                    connection,
                    key,
                    payload,
                    error,
                    kept,
                }
            }
        });
    }

    /// The provider's endpoint is closed: what it did not report is over.
    pub(super) fn fail_sends(
        &mut self,
        id: ConnectionId,
        mut ops: Vec<DataOp>,
        reason: CloseReason,
        events: &mut Vec<ReceiveEvent>,
    ) {
        ops.sort_unstable_by_key(|op| op.sequence);
        for op in ops {
            let cancelled = CompletionError::ended(reason);
            self.on_sent(id, op, false, Some(cancelled), events);
        }
    }

    /// The provider keeps what was sent on a connection that is over: the operations stay in the
    /// slab, and their outcomes are told now. How many.
    fn tell_kept(
        &mut self,
        id: ConnectionId,
        error: impl Fn() -> (CompletionError, bool),
        events: &mut Vec<ReceiveEvent>,
    ) -> u64 {
        let mut keys = Vec::new();
        for (peer, op) in self.operations.iter_mut() {
            if let Operation::Data { told, op } = op
                && *peer == id
                && !std::mem::replace(told, true)
            {
                keys.push((op.sequence, op.key));
            }
        }
        keys.sort_unstable();
        let told = keys.len() as u64;
        for (_, key) in keys {
            self.tell_sent(id, key, Payload::empty(), Some(error()), events);
        }
        told
    }

    /// RDM form: the endpoint goes on, with the sends of a connection that is over in flight.
    pub(super) fn orphan_sends(&mut self, id: ConnectionId, events: &mut Vec<ReceiveEvent>) {
        let error = || {
            let message = "the connection is over; the provider still has the payload";
            let error = CompletionError {
                provider_message: message.to_owned(),
                ..CompletionError::new(libc::ECANCELED)
            };
            (error, true)
        };
        self.tell_kept(id, error, events);
    }

    /// The connection's endpoint would not close: its payloads are leaked. How many.
    pub(super) fn leak_sends(
        &mut self,
        id: ConnectionId,
        errno: FabricErrno,
        events: &mut Vec<ReceiveEvent>,
    ) -> u64 {
        let error = || {
            let error = CompletionError {
                provider_message: "fi_close refused; the payload is leaked".to_owned(),
                ..CompletionError::new(errno.get())
            };
            (error, false)
        };
        let leaked = self.tell_kept(id, error, events);
        if let Some(sends) = &mut self.sends {
            sends.leak();
        }
        leaked
    }

    // ---- time and wake-ups ----------------------------------------------------------------------

    /// Looks at each send in flight when the oldest may be late.
    pub(super) fn check_send_deadlines(&mut self, now: Instant, events: &mut Vec<ReceiveEvent>) {
        let Some(sends) = &mut self.sends else { return };
        let (Some(deadline), Some(next)) = (sends.settings.deadline, sends.next_late()) else {
            return;
        };
        if now < next {
            return;
        }
        let mut earliest = None;
        let mut late = Vec::new();
        for (peer, op) in self.operations.iter_mut() {
            let Operation::Data { told: false, op } = op else {
                continue;
            };
            let Some(due) = op.posted.map(|posted| posted + deadline) else {
                continue;
            };
            if now < due {
                earliest = Some(earliest.map_or(due, |at: Instant| at.min(due)));
            } else {
                op.posted = None;
                late.push((*peer, op.sequence, op.key));
            }
        }
        // With none in flight that is not late yet, the next post sets the time.
        sends.next_late = earliest;
        self.timer_stale = true;
        late.sort_unstable();
        let notify = sends.settings.policy == DeadlinePolicy::Notify;
        for (connection, _, key) in late {
            if notify {
                events.push(ReceiveEvent::Late { connection, key });
            } else if let Some(peer) = self.peers.get_mut(connection) {
                peer.machine.abort(CloseReason::SendDeadline { deadline });
                self.touch(connection);
            }
        }
    }

    /// Something happened on a connection: what blocked its sends may have passed.
    pub(super) fn tell_send_writable(&mut self, id: ConnectionId, events: &mut Vec<ReceiveEvent>) {
        let own = self.peers.get(id).and_then(|peer| peer.sends.as_ref());
        let waits = own.is_some_and(|own| own.blocked.is_some() && !own.listed);
        if waits
            && self.judge_blocked(id, true, events)
            && let Some(sends) = &mut self.sends
        {
            sends.blocked.push(id);
        }
    }

    /// What is shared may be free again: tells whose sends waited for it.
    pub(super) fn tell_sends_writable(&mut self, events: &mut Vec<ReceiveEvent>) {
        let Some(sends) = &mut self.sends else { return };
        if sends.blocked.is_empty() || sends.held >= sends.settings.total {
            return;
        }
        let mut blocked = std::mem::take(&mut sends.blocked);
        let slots = sends.outgoing.headers().free_count() > 0;
        blocked.retain(|&id| self.judge_blocked(id, slots, events));
        let wants_slot = !slots && !blocked.is_empty();
        if let Some(sends) = &mut self.sends {
            sends.blocked = blocked;
        }
        if wants_slot {
            self.arm_headers();
        }
    }

    /// Whether a connection whose send was refused still waits for what all share.
    fn judge_blocked(
        &mut self,
        id: ConnectionId,
        slots: bool,
        events: &mut Vec<ReceiveEvent>,
    ) -> bool {
        let may = self.may_send(id);
        let own = self.peers.get_mut(id).and_then(|peer| peer.sends.as_mut());
        let (Some(own), Some(sends)) = (own, &self.sends) else {
            return false;
        };
        own.listed = match may {
            // A slot that woke us may be another endpoint's again: then wait for the next one.
            Ok(()) if own.blocked == Some(Blocked::HeaderSlots) && !slots => true,
            Ok(())
                if own.blocked == Some(Blocked::Staging)
                    && !sends.outgoing.has_staging()
                    && !sends.outgoing.arm_staging() =>
            {
                true
            }
            Ok(()) => {
                own.blocked = None;
                events.push(ReceiveEvent::Writable { connection: id });
                false
            }
            Err(SendErrorKind::WouldBlock(blocked)) => {
                own.blocked = Some(blocked);
                blocked == Blocked::Depth && own.in_flight < sends.settings.depth
            }
            // It is closing: that is told otherwise.
            Err(_) => {
                own.blocked = None;
                false
            }
        };
        own.listed
    }

    /// With no send in flight, no registration is kept open.
    pub(super) fn rest_sends(&mut self) {
        if let Some(sends) = &mut self.sends {
            sends.outgoing.rest();
        }
    }

    // ---- about them -----------------------------------------------------------------------------

    pub(crate) fn send_stats(&self) -> SendStats {
        self.sends.as_ref().map(|s| s.stats).unwrap_or_default()
    }

    /// Sends on a connection that have no outcome yet.
    pub(crate) fn sends_in_flight(&self, id: ConnectionId) -> u32 {
        let peer = self.peers.get(id).and_then(|peer| peer.sends.as_ref());
        peer.map_or(0, |sends| sends.in_flight)
    }

    /// Keys of sends that have no outcome yet.
    pub(crate) fn pending_sends(&self) -> Vec<(ConnectionId, u64)> {
        let owed = self.operations.iter().filter_map(|(peer, op)| match op {
            Operation::Data { told: false, op } => Some((*peer, op.key)),
            _ => None,
        });
        owed.collect()
    }

    // ---- the rude end ---------------------------------------------------------------------------

    /// The endpoint is dropped: operations are over whose outcome nobody hears. Slots and payloads
    /// are free again.
    pub(super) fn abandon_ops(&mut self, ops: Vec<(ConnectionId, Operation)>) {
        let rma = self.link.limits().rma;
        let mut abandoned = 0;
        for (peer, op) in ops {
            match (op, &mut self.sends) {
                // Given up, too, where the provider goes on reading after the close.
                (Operation::OneSided(op), _) => drop(op.give_back(rma.as_ref())),
                (Operation::Data { told, mut op }, Some(sends)) => {
                    let (key, _) = sends.outgoing.end(&mut op);
                    if !told {
                        abandoned += 1;
                        if let Some(hear) = &mut sends.settings.on_abandoned {
                            contain("on_abandoned", || hear(peer, key));
                        }
                    }
                }
                (Operation::Data { .. }, None) => unreachable!("posted by `sends`"),
            }
        }
        stats::count_abandoned(abandoned);
    }

    /// As [`abandon_ops`](Self::abandon_ops) for those that the provider may still touch: they stay
    /// in the slab, which is never freed.
    pub(super) fn abandon_leaked(&mut self, only: Option<ConnectionId>) {
        let Some(sends) = &mut self.sends else { return };
        sends.leak();
        let mut abandoned = 0;
        for (peer, op) in self.operations.iter_mut() {
            if let Operation::Data { told, op } = op
                && only.is_none_or(|only| only == *peer)
                && !std::mem::replace(told, true)
            {
                abandoned += 1;
                if let Some(hear) = &mut sends.settings.on_abandoned {
                    contain("on_abandoned", || hear(*peer, op.key));
                }
            }
        }
        stats::count_abandoned(abandoned);
    }

    pub(super) fn stop_sends(&mut self) {
        if let Some(sends) = &mut self.sends {
            sends.outgoing.headers().remove_waker(sends.headers_waker);
            sends.outgoing.leave_staging();
        }
    }
}
