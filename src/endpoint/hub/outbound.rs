//! `Outbound`: what a hub sends, writes and reads, on all of its connections: one account, with one
//! bound, one deadline and one outcome for each key.
//!
//! Each accepted key has its outcome before its connection's end is reported. In the RDM form the
//! provider may keep what was posted on a connection that is over: its keys come back failed then,
//! without what was given, which follows (`Released`) when the provider is done.

use std::ffi::c_void;
use std::sync::Arc;
use std::time::Instant;

use super::peer::Peer;
use super::sends::{OnAbandoned, SendsSettings};
use super::{HubSettings, WindowSettings};
use crate::Error;
use crate::buffer::{HeaderSlotConfig, HeaderSlotManager, Payload, WakerId};
use crate::clock::Clock;
use crate::contain::contain;
use crate::endpoint::error::{Blocked, SendErrorKind};
use crate::endpoint::event::{Inject, Level, ReceiveEvent};
use crate::endpoint::hub::conn_table::ConnTable;
use crate::endpoint::hub::control::{CONTROL_RETRY, HeldDescriptor};
use crate::endpoint::hub::deadlines::{Deadlines, LateOp};
use crate::endpoint::hub::event::{HubEvent, Tell};
use crate::endpoint::hub::line::{Driven, Line, LineState, Over, Posting};
use crate::endpoint::hub::long_send::LongSend;
use crate::endpoint::hub::outgoing::{self, DataOp, Outgoing};
use crate::endpoint::hub::posted::{MessageOp, OrphanedLong, Posted};
use crate::endpoint::hub::scoped::ScopedRegistrations;
use crate::endpoint::link::Link;
use crate::endpoint::link::wait::EndpointWait;
use crate::endpoint::staging::StagingRing;
use crate::endpoint::windows::one_sided::{Local, OneSided};
use crate::endpoint::windows::window::WindowEvent;
use crate::error::{CompletionError, FabricErrno};
use crate::fabric::Shape;
use crate::id::{ConnectionId, EndpointId};
use crate::memory::{Registrar, Scope};
use crate::protocol::wire::{HeaderMode, WindowId};
use crate::stats::SendStats;

/// What goes out on all connections of a hub.
pub(super) struct Outbound {
    /// In flight on one connection.
    depth: u32,
    /// In flight on all of them.
    total: u32,
    /// Messages are sent, too.
    sends_messages: bool,
    /// Those that are too long for a receive, too, where the peer takes them.
    sends_long: bool,
    pub(super) deadlines: Deadlines,
    pub(super) outgoing: Outgoing,
    pub(super) posted: Posted,
    /// Accepted, and the provider is not done: with those whose outcome was told because their
    /// connection is over.
    held: u32,
    /// One-sided operations so far.
    operations: u64,
    pub(super) stats: SendStats,
    /// Connections on which something was refused for now, because of what all of them share.
    refused: Vec<ConnectionId>,
    /// Connections with something in their line.
    waiting: Vec<ConnectionId>,
    /// When something was refused because another header is in front of its buffer.
    room_refused: Option<Instant>,
    /// The provider took something not, or something waits: the next poll offers it again.
    pub(super) retry: bool,
    headers_waker: WakerId,
    /// RDM form: held until the endpoint is closed, since sends may outlive their connections.
    shared_desc: Option<HeldDescriptor>,
    on_abandoned: Option<OnAbandoned>,
    wait: Arc<EndpointWait>,
}

/// What goes out on one connection.
pub(super) struct PeerOutbound {
    /// Of the header slots; none where no messages are sent. Boxed, as is the line: a listener has
    /// many connections on which it only receives.
    header_desc: Option<Box<HeldDescriptor>>,
    pub(super) in_flight: u32,
    /// From the first time on that something waits.
    line: Option<Box<Line>>,
    /// In the list of connections with something in their line.
    queued: bool,
    /// Why the last one was refused, if it may be taken later.
    refused: Option<BlockedOn>,
    /// In the list of those that wait for something shared.
    listed: bool,
}

#[derive(Clone, Copy)]
struct BlockedOn {
    why: Blocked,
    /// It is to be told when there is a credit, too.
    credit: bool,
}

impl PeerOutbound {
    pub(super) fn header_desc(&self) -> *mut c_void {
        let desc = self.header_desc.as_ref();
        desc.map_or(std::ptr::null_mut(), |desc| desc.desc())
    }

    /// Whether a message that is given now may be posted.
    #[inline]
    pub(super) fn messages(&self) -> LineState {
        let line = self.line.as_ref();
        line.map_or(LineState::Open, |line| line.messages())
    }

    /// The same for a one-sided operation.
    #[inline]
    pub(super) fn operations(&self) -> LineState {
        let line = self.line.as_ref();
        line.map_or(LineState::Open, |line| line.operations())
    }

    /// The connection is over.
    pub(super) fn take_line(&mut self) -> Option<Box<Line>> {
        self.line.take()
    }

    pub(super) fn line(&mut self) -> Option<&mut Line> {
        self.line.as_deref_mut()
    }

    /// The long message that is under way.
    pub(super) fn long(&self) -> Option<&LongSend> {
        self.line.as_ref()?.long()
    }

    /// For something that has to wait.
    pub(super) fn open_line(&mut self) -> &mut Line {
        self.line.get_or_insert_default()
    }

    /// What waits, if anything ever did.
    pub(super) fn waits(&self) -> Option<&Line> {
        self.line.as_deref()
    }

    /// Why the last one was refused, if it may be taken later.
    pub(super) fn blocked(&self) -> Option<Blocked> {
        self.refused.map(|refused| refused.why)
    }

    /// Nothing that uses the header slots is posted, or will be.
    pub(super) fn release(&mut self) {
        if let Some(desc) = &mut self.header_desc {
            desc.release();
        }
    }

    /// The connection's endpoint would not close.
    pub(super) fn leak(&mut self) {
        if let Some(desc) = &mut self.header_desc {
            desc.leak();
        }
    }

    /// Something was refused, which waits for nothing but what happens on this connection.
    #[inline]
    pub(super) fn waits_alone(&self) -> bool {
        self.refused.is_some() && !self.listed
    }
}

/// The line of a connection, if it has one, and what it posts with.
#[inline]
pub(super) fn way<'a, L: Link>(
    outbound: &'a mut Outbound,
    link: &'a mut L,
    (connection, peer): (ConnectionId, &'a mut Peer<L::Conn>),
) -> (&'a mut Option<Box<Line>>, Posting<'a, L>) {
    let header_desc = peer.outbound.header_desc();
    let way = Posting {
        link,
        conn: &peer.link,
        connection,
        machine: &mut peer.machine,
        scoped: &mut peer.scoped,
        header_desc,
        outgoing: &mut outbound.outgoing,
        posted: &mut outbound.posted,
        eagain: &mut outbound.stats.eagain,
    };
    (&mut peer.outbound.line, way)
}

impl Outbound {
    /// Of a hub with such settings; takes those of its messages out of them.
    pub(super) fn new<L: Link>(
        settings: &mut HubSettings,
        link: &L,
        wait: &Arc<EndpointWait>,
        clock: &Clock,
    ) -> Result<Self, Error> {
        let (depth, total) = settings.outbound();
        let one_sided_pieces = settings.one_sided_pieces();
        let (limits, sends_messages) = (link.limits(), settings.sends.is_some());
        let (_, long_pieces) = settings.long_pieces();
        let sends_long = long_pieces > 0 && limits.rma.is_some();
        let sends = settings.sends.take();
        let sends = sends.map_or_else(|| SendsSettings::none(&settings.windows), Ok)?;
        let shape = outgoing::choose_shape(sends.shape, limits)?;
        let headers = sends.headers;
        let shared_desc = match link.shares_endpoint() && sends_messages {
            true => Some(HeldDescriptor::new(headers.region(), link.registrar())?),
            false => None,
        };
        let waker = Arc::clone(wait);
        let headers_waker = headers.add_waker(Arc::new(move || waker.wake()));
        let outgoing = Outgoing::new(
            EndpointId::next(),
            headers,
            sends.header_mode,
            sends.level,
            (shape, sends.inject),
            limits,
            None,
        );
        let messages = total * (1 + u32::from(shape == Shape::TwoMessages));
        let pieces = one_sided_pieces + long_pieces;
        let mut outbound = Self {
            depth,
            total,
            sends_messages,
            sends_long,
            deadlines: Deadlines::new(sends.deadline, sends.policy, clock),
            outgoing,
            posted: Posted::new(messages, total, pieces, limits.contexts),
            held: 0,
            operations: 0,
            stats: SendStats::default(),
            refused: Vec::new(),
            waiting: Vec::new(),
            room_refused: None,
            retry: false,
            headers_waker,
            shared_desc,
            on_abandoned: sends.on_abandoned,
            wait: Arc::clone(wait),
        };
        if let Some(ring) = &sends.staging {
            outbound.stage_in(ring);
        }
        Ok(outbound)
    }

    /// Where a GPU's memory goes out by way of the host.
    pub(super) fn stage_in(&mut self, ring: &StagingRing) {
        let waker = Arc::clone(&self.wait);
        self.outgoing.stage_in(ring, Arc::new(move || waker.wake()));
    }

    /// What a new connection needs.
    pub(super) fn join(
        &self,
        scoped: &mut ScopedRegistrations,
        registrar: &dyn Registrar,
    ) -> Result<PeerOutbound, Error> {
        let region = self.outgoing.headers().region();
        let held = self.sends_messages.then(|| scoped.hold(region, registrar));
        Ok(PeerOutbound {
            header_desc: held.transpose()?.map(Box::new),
            in_flight: 0,
            line: None,
            queued: false,
            refused: None,
            listed: false,
        })
    }

    pub(super) fn sends_messages(&self) -> bool {
        self.sends_messages
    }

    pub(super) fn sends_long(&self) -> bool {
        self.sends_long
    }

    /// Headers travel alone.
    pub(super) fn has_two_messages(&self) -> bool {
        self.sends_messages && self.outgoing.shape() == Shape::TwoMessages
    }

    // ---- admission ------------------------------------------------------------------------------

    /// Whether there is room in the account for one more on a connection.
    #[inline]
    pub(super) fn has_room(&self, own: &PeerOutbound) -> Result<(), SendErrorKind> {
        match own.in_flight < self.depth && self.held < self.total {
            true => Ok(()),
            false => Err(SendErrorKind::WouldBlock(Blocked::Depth)),
        }
    }

    /// Whether a message would be accepted, whatever its size.
    pub(super) fn may_send<C>(&self, peer: &Peer<C>) -> Result<(), SendErrorKind> {
        self.may_take(peer)?;
        self.has_room(&peer.outbound)?;
        match peer.outbound.messages() {
            LineState::Open | LineState::Gated => Ok(()),
            LineState::Full => Err(SendErrorKind::WouldBlock(Blocked::Provider)),
        }
    }

    /// Whether a message that is too long for a receive would be offered to the peer, as far as
    /// this side is concerned. It would overtake those that wait, and is not given before they are
    /// gone.
    pub(super) fn may_offer(&self, own: &PeerOutbound) -> Result<(), SendErrorKind> {
        self.has_room(own)?;
        match own.messages() {
            LineState::Open => Ok(()),
            LineState::Full => Err(SendErrorKind::WouldBlock(Blocked::Provider)),
            LineState::Gated => Err(SendErrorKind::WouldBlock(Blocked::Gate)),
        }
    }

    #[inline]
    pub(super) fn may_take<C>(&self, peer: &Peer<C>) -> Result<(), SendErrorKind> {
        if !self.sends_messages {
            return Err(SendErrorKind::NoConnection);
        }
        let may = peer.machine.may_send();
        may.map_err(|blocked| outgoing::refusal(blocked, peer.machine.close_reason()))
    }

    /// Everything that can be said of a message before anything is taken for it. Gives its length
    /// in bytes.
    #[inline(always)]
    pub(super) fn admit<C>(
        &self,
        peer: &Peer<C>,
        payload: &Payload,
        header_len: usize,
    ) -> Result<u64, SendErrorKind> {
        self.may_take(peer)?;
        // What can never be is said first: who is blocked tries again.
        let peer_max = peer.machine.peer_receive_size();
        let len = self.outgoing.measure(payload, header_len, peer_max)?;
        self.has_room(&peer.outbound)?;
        match peer.outbound.messages() {
            LineState::Open => Ok(len),
            LineState::Full | LineState::Gated => Err(SendErrorKind::WouldBlock(Blocked::Provider)),
        }
    }

    /// Something was refused. `credit`: it needs one.
    pub(super) fn refuse(
        &mut self,
        of: Option<(ConnectionId, &mut PeerOutbound)>,
        kind: &SendErrorKind,
        credit: bool,
    ) {
        let &SendErrorKind::WouldBlock(why) = kind else {
            self.stats.refused += 1;
            return;
        };
        self.stats.would_block += 1;
        if let Some((id, own)) = of {
            own.refused = Some(BlockedOn { why, credit });
            if self.is_shared(why, own) && !std::mem::replace(&mut own.listed, true) {
                self.refused.push(id);
            }
        }
        match why {
            Blocked::Staging if self.outgoing.arm_staging() => self.wait.wake(),
            Blocked::HeaderSlots => self.arm_headers(),
            // There may be nothing in flight whose completion wakes anybody.
            Blocked::Provider => self.retry = true,
            // Another endpoint may hold the room, which tells nobody when it is free. The next poll
            // sets the timer.
            Blocked::HeaderRoom => {
                self.room_refused = Some(self.wait.clock().now());
                self.retry = true;
                self.wait.wake();
            }
            _ => {}
        }
    }

    /// Something was refused before a connection was made: it is to be told when it may be taken.
    pub(super) fn expect_writable(&mut self, own: &mut PeerOutbound) {
        let why = Blocked::Connecting;
        own.refused = Some(BlockedOn { why, credit: true });
    }

    /// Something was refused, for want of what all connections share.
    #[inline]
    pub(super) fn has_refused(&self) -> bool {
        !self.refused.is_empty()
    }

    /// Whether that waits for what all connections share.
    fn is_shared(&self, why: Blocked, own: &PeerOutbound) -> bool {
        match why {
            Blocked::Credits | Blocked::Connecting | Blocked::LongMessage | Blocked::Gate => false,
            Blocked::Depth => own.in_flight < self.depth,
            _ => true,
        }
    }

    /// Another endpoint may hold all the slots: its release must wake us. Released between the
    /// refusal and the arming: nobody would.
    fn arm_headers(&self) {
        if self.outgoing.headers().arm(self.headers_waker) {
            self.wait.wake();
        }
    }

    /// Tells a connection on which something was refused that it may be taken, if it may.
    pub(super) fn tell_writable<C, E: HubEvent>(
        &mut self,
        (id, peer): (ConnectionId, &mut Peer<C>),
        events: &mut Vec<E>,
    ) {
        let was_listed = peer.outbound.listed;
        if self.judge(peer) {
            events.tell(ReceiveEvent::Writable { connection: id });
        }
        if peer.outbound.listed && !was_listed {
            self.refused.push(id);
        }
    }

    /// What is shared may be free again: tells whose operations wait for it.
    pub(super) fn tell_shared<C, E: HubEvent>(
        &mut self,
        peers: &mut ConnTable<Peer<C>>,
        events: &mut Vec<E>,
    ) {
        if self.refused.is_empty() || self.held >= self.total {
            return;
        }
        let mut refused = std::mem::take(&mut self.refused);
        let mut waits_for_room = false;
        refused.retain(|&id| {
            let Some(peer) = peers.get_mut(id) else {
                return false;
            };
            if self.judge(peer) {
                events.tell(ReceiveEvent::Writable { connection: id });
            }
            waits_for_room |= peer.outbound.blocked() == Some(Blocked::HeaderRoom);
            peer.outbound.listed
        });
        self.refused = refused;
        self.retry |= waits_for_room;
    }

    /// Whether what was refused on a connection may be taken now; if not, what it waits for.
    fn judge<C>(&self, peer: &mut Peer<C>) -> bool {
        let Some(BlockedOn { why, credit }) = peer.outbound.refused else {
            peer.outbound.listed = false;
            return false;
        };
        let may = match credit {
            true => self.may_send(peer),
            false => {
                super::windows::may_use(peer, false).and_then(|()| self.has_room(&peer.outbound))
            }
        };
        let own = &mut peer.outbound;
        match may {
            // A slot that woke us may be another endpoint's again: then wait for the next one.
            Ok(()) if why == Blocked::HeaderSlots && self.outgoing.headers().free_count() == 0 => {
                own.listed = true;
                self.arm_headers();
                false
            }
            // Told too early, it would be refused again and again.
            Ok(()) if why == Blocked::HeaderRoom && !self.may_have_room() => {
                own.listed = true;
                false
            }
            Ok(())
                if why == Blocked::Staging
                    && !self.outgoing.has_staging()
                    && !self.outgoing.arm_staging() =>
            {
                own.listed = true;
                false
            }
            // A long message waits until all that were before it are gone.
            Ok(()) if why == Blocked::Gate && own.messages() != LineState::Open => {
                own.listed = false;
                false
            }
            Ok(()) => {
                (own.refused, own.listed) = (None, false);
                true
            }
            Err(SendErrorKind::WouldBlock(why)) => {
                own.refused = Some(BlockedOn { why, credit });
                own.listed = self.is_shared(why, own);
                false
            }
            // It is closing: that is told otherwise.
            Err(_) => {
                (own.refused, own.listed) = (None, false);
                false
            }
        }
    }

    /// Whether a buffer may be free of another header: no endpoint tells another.
    fn may_have_room(&self) -> bool {
        let refused = self.room_refused;
        refused.is_none_or(|refused| self.wait.clock().now() >= refused + CONTROL_RETRY)
    }

    // ---- one-sided operations -------------------------------------------------------------------

    /// The time that a post of now counts its deadline from, where there is one.
    #[inline]
    pub(super) fn stamp(&mut self, clock: &Clock) -> Option<Instant> {
        self.deadlines.stamp(clock, self.stats.in_flight == 0)
    }

    /// An operation that is about to be posted, or to wait.
    pub(super) fn operation(
        &mut self,
        clock: &Clock,
        connection: ConnectionId,
        (key, window): (u64, WindowId),
        (local, recent): (Local, bool),
    ) -> OneSided {
        self.operations += 1;
        OneSided {
            connection,
            key,
            window,
            local,
            sequence: self.operations,
            posted: self.stamp(clock),
            told: false,
            recent,
        }
    }

    // ---- the account ----------------------------------------------------------------------------

    /// One more has an outcome to come.
    #[inline]
    pub(super) fn count_accepted(&mut self, own: &mut PeerOutbound, len: u64) {
        own.in_flight += 1;
        self.held += 1;
        let stats = &mut self.stats;
        stats.posted += 1;
        stats.in_flight += 1;
        stats.bytes += len;
        stats.in_flight_max = stats.in_flight_max.max(stats.in_flight);
    }

    /// Something was put into the line of a connection: the next poll looks at it, and sets the
    /// timer.
    pub(super) fn count_waiting(&mut self, id: ConnectionId, own: &mut PeerOutbound) {
        if !std::mem::replace(&mut own.queued, true) {
            self.waiting.push(id);
        }
        self.retry = true;
        self.wait.wake();
    }

    /// One has its outcome.
    #[inline]
    fn count_told(&mut self, failed: bool) {
        self.stats.in_flight -= 1;
        match failed {
            false => self.stats.completed += 1,
            true => self.stats.failed += 1,
        }
    }

    // ---- outcomes -------------------------------------------------------------------------------

    /// A message is over that went well, as most do, and the slab has it: its connection. Told, and
    /// not counted yet.
    #[inline(always)]
    pub(super) fn on_plain<E: HubEvent>(
        &mut self,
        context: usize,
        events: &mut Vec<E>,
    ) -> Option<ConnectionId> {
        let mut finished = self.posted.messages.finish_in_place(context).ok()?;
        let op = match finished.op() {
            Some(MessageOp::Data(op)) if op.header.is_none() && !op.told => op,
            _ => {
                finished.keep();
                return None;
            }
        };
        let connection = op.connection;
        let (key, payload) = self.outgoing.end(op);
        finished.clear_away();
        events.push(E::completed(connection, key, payload));
        Some(connection)
    }

    /// So many messages are over that went well.
    #[inline]
    pub(super) fn count_sent(&mut self, count: u32) {
        self.held -= count;
        self.stats.in_flight -= u64::from(count);
        self.stats.completed += u64::from(count);
    }

    /// A message is over, and the provider is done with it. False: its outcome was told before.
    pub(super) fn on_message_over<E: HubEvent>(
        &mut self,
        mut op: DataOp,
        error: Option<CompletionError>,
        events: &mut Vec<E>,
    ) -> bool {
        let (connection, told) = (op.connection, op.told);
        let (key, payload) = self.outgoing.end(&mut op);
        self.held -= 1;
        if told {
            // Its connection is over; now its address may go, too.
            events.tell(ReceiveEvent::Released {
                connection,
                key,
                payload,
            });
            return false;
        }
        self.tell_message(connection, (key, payload), error, events);
        true
    }

    /// The same of a long one.
    pub(super) fn on_long_over<E: HubEvent>(
        &mut self,
        long: LongSend,
        error: Option<CompletionError>,
        events: &mut Vec<E>,
    ) {
        let connection = long.connection();
        let over = long.end(&mut self.outgoing);
        self.held -= 1;
        self.tell_message(connection, over, error, events);
    }

    /// The same of a long one whose connection is over.
    pub(super) fn on_orphan_over<E: HubEvent>(
        &mut self,
        orphan: OrphanedLong,
        error: Option<CompletionError>,
        events: &mut Vec<E>,
    ) {
        if !orphan.told {
            return self.on_long_over(*orphan.send, error, events);
        }
        let connection = orphan.send.connection();
        let (key, payload) = orphan.send.end(&mut self.outgoing);
        self.held -= 1;
        events.tell(ReceiveEvent::Released {
            connection,
            key,
            payload,
        });
    }

    fn tell_message<E: HubEvent>(
        &mut self,
        connection: ConnectionId,
        (key, payload): (u64, Payload),
        error: Option<CompletionError>,
        events: &mut Vec<E>,
    ) {
        self.count_told(error.is_some());
        events.tell(match error {
            None => ReceiveEvent::Completed {
                connection,
                key,
                payload,
            },
            Some(error) => ReceiveEvent::Failed {
                connection,
                key,
                payload,
                error,
                kept: false,
            },
        });
    }

    /// An operation is over, and has its outcome.
    pub(super) fn on_operation_over<E: HubEvent>(
        &mut self,
        op: OneSided,
        error: Option<CompletionError>,
        events: &mut Vec<E>,
    ) {
        self.count_over(error.is_some());
        events.tell(told(op.connection, op.finish(error)));
    }

    /// The provider is done with one, and it has its outcome.
    pub(super) fn count_over(&mut self, failed: bool) {
        self.held -= 1;
        self.count_told(failed);
    }

    /// An operation whose outcome was told before is over.
    pub(super) fn on_told_over(&mut self, op: &mut OneSided) {
        self.outgoing.end_one_sided(op);
        self.held -= 1;
    }

    /// RDM form: the connection is over, and the provider keeps what was posted on it. That stays
    /// in the slab, and the outcomes are told now.
    pub(super) fn tell_kept<E: HubEvent>(&mut self, id: ConnectionId, events: &mut Vec<E>) {
        let message = "the connection is over; the provider still has what was given";
        let error = CompletionError {
            provider_message: message.to_owned(),
            ..CompletionError::new(libc::ECANCELED)
        };
        self.tell_posted(id, (&error, true), events);
    }

    /// The connection's endpoint would not close: what was posted is leaked. How many posts.
    pub(super) fn tell_leaked<E: HubEvent>(
        &mut self,
        id: ConnectionId,
        errno: FabricErrno,
        events: &mut Vec<E>,
    ) -> u64 {
        let error = CompletionError {
            provider_message: "fi_close refused; what was given is leaked".to_owned(),
            ..CompletionError::new(errno.get())
        };
        self.leak_leases();
        self.tell_posted(id, (&error, false), events)
    }

    /// The outcomes of what stays in the slab. How many.
    fn tell_posted<E: HubEvent>(
        &mut self,
        id: ConnectionId,
        (error, kept): (&CompletionError, bool),
        events: &mut Vec<E>,
    ) -> u64 {
        let mut messages = Vec::new();
        for op in self.posted.messages.iter_mut() {
            if let MessageOp::Data(op) = op
                && op.connection == id
                && !std::mem::replace(&mut op.told, true)
            {
                messages.push((op.sequence, op.key));
            }
        }
        messages.sort_unstable();
        // Nothing was sent behind it.
        for orphan in &mut self.posted.orphans {
            if orphan.send.connection() == id && !std::mem::replace(&mut orphan.told, true) {
                messages.push((u64::MAX, orphan.send.key));
            }
        }
        let mut operations = Vec::new();
        for op in self.posted.one_sided.iter_mut() {
            if op.connection == id && !std::mem::replace(&mut op.told, true) {
                operations.push((op.sequence, op.key, op.is_write()));
            }
        }
        operations.sort_unstable();
        let count = messages.len() + operations.len();
        for (_, key) in messages {
            self.count_told(true);
            events.tell(ReceiveEvent::Failed {
                connection: id,
                key,
                payload: Payload::empty(),
                error: error.clone(),
                kept,
            });
        }
        for (_, key, write) in operations {
            self.count_told(true);
            events.tell(told(id, OneSided::leaked(key, write, error.clone())));
        }
        count as u64
    }

    // ---- waiting --------------------------------------------------------------------------------

    /// Connections with something in their line; each is to be [driven](Self::drive), or over.
    pub(super) fn take_waiting(&mut self) -> Vec<ConnectionId> {
        std::mem::take(&mut self.waiting)
    }

    /// Posts what may be posted of what waits on a connection.
    pub(super) fn drive<L: Link>(
        &mut self,
        link: &mut L,
        (id, peer): (ConnectionId, &mut Peer<L::Conn>),
    ) -> Driven {
        let (line, mut way) = way(self, link, (id, peer));
        let driven = line.as_mut().map(|line| line.drive(&mut way));
        let driven = driven.unwrap_or_default();
        peer.outbound.in_flight -= (driven.unposted.len() + driven.over.len()) as u32;
        let line = peer.outbound.line.as_ref();
        peer.outbound.queued = line.is_some_and(|line| !line.is_empty());
        if peer.outbound.queued {
            self.waiting.push(id);
        }
        driven
    }

    /// Tells what ended in a line.
    pub(super) fn tell_driven<E: HubEvent>(&mut self, driven: Driven, events: &mut Vec<E>) {
        for (op, error) in driven.unposted {
            self.on_message_over(op, Some(error), events);
        }
        self.tell_over(driven.over, events);
    }

    /// Tells the operations that ended in a line.
    pub(super) fn tell_over<E: HubEvent>(&mut self, over: Vec<Over>, events: &mut Vec<E>) {
        for Over { op, error } in over {
            self.on_operation_over(op, error, events);
        }
    }

    /// How long until the lines are to be looked at again, if nobody else says so.
    pub(super) fn pause<C>(&self, peers: &ConnTable<Peer<C>>) -> Option<std::time::Duration> {
        let waiting = self.waiting.iter().filter_map(|&id| peers.get(id));
        let lines = waiting.filter_map(|peer| peer.outbound.line.as_ref());
        lines.filter_map(|line| line.pause()).min()
    }

    /// What is late now.
    pub(super) fn take_late<C>(
        &mut self,
        now: Instant,
        peers: &mut ConnTable<Peer<C>>,
    ) -> Vec<LateOp> {
        if !self.deadlines.are_due(now) {
            return Vec::new();
        }
        let mut scan = self.deadlines.scan(now);
        self.posted.timed().for_each(|op| scan.look(op));
        for &id in &self.waiting {
            let peer = peers.get_mut(id);
            if let Some(line) = peer.and_then(|peer| peer.outbound.line()) {
                line.timed().for_each(|op| scan.look(op));
            }
        }
        self.deadlines.end_scan(scan)
    }

    // ---- the end --------------------------------------------------------------------------------

    /// The endpoint would not close: what the provider may still touch stays as it is.
    pub(super) fn leak_leases(&mut self) {
        self.outgoing.leak();
        if let Some(desc) = &mut self.shared_desc {
            desc.leak();
        }
    }

    /// A key is over whose outcome nobody hears.
    pub(super) fn abandon(&mut self, connection: ConnectionId, key: u64) {
        if let Some(hear) = &mut self.on_abandoned {
            contain("on_abandoned", || hear(connection, key));
        }
    }

    /// The endpoint is dropped.
    pub(super) fn stop(&mut self) {
        self.outgoing.headers().remove_waker(self.headers_waker);
        self.outgoing.leave_staging();
    }

    /// A payload that goes out on several connections: staged once, where it has to be.
    pub(super) fn stage_for_many(
        &self,
        payload: Payload,
        scope: Scope,
    ) -> Result<Payload, (SendErrorKind, Payload)> {
        if !self.sends_messages || !payload.is_device() {
            return Ok(payload);
        }
        let staged = self.outgoing.stage(payload, scope);
        if let Err((SendErrorKind::WouldBlock(Blocked::Staging), _)) = &staged
            && self.outgoing.arm_staging()
        {
            self.wait.wake();
        }
        staged
    }
}

impl SendsSettings {
    /// No messages are sent: the account has one-sided operations only.
    fn none(windows: &WindowSettings) -> Result<Self, Error> {
        let headers = HeaderSlotManager::new(HeaderSlotConfig {
            slots: 1,
            ..HeaderSlotConfig::default()
        })?;
        Ok(Self {
            headers,
            header_mode: HeaderMode::Raw,
            depth: 0,
            total: 0,
            level: Level::Sent,
            shape: None,
            inject: Inject::Auto,
            deadline: windows.deadline,
            policy: windows.policy,
            staging: None,
            long: false,
            on_abandoned: None,
        })
    }
}

pub(super) fn told(connection: ConnectionId, event: WindowEvent) -> ReceiveEvent {
    ReceiveEvent::Window { connection, event }
}
