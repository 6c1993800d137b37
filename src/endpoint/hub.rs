//! `Hub`: a link, a clock, and the peers that are connected by it, over any link: one queue, one
//! pool, one slab, many connections.

use crate::Error;
use crate::buffer::{BufferMut, SharedBufferManager, WakerId};
use crate::clock::Clock;
use crate::endpoint::event::{ConnectionEvent, ReceiveEvent};
use crate::endpoint::hub::conn_table::{ConnTable, NOBODY};
use crate::endpoint::hub::control::{CONTROL_RETRY, ControlBuffers, post_control};
use crate::endpoint::hub::event::{HubEvent, Tell};
use crate::endpoint::hub::line::PIECES_IN_FLIGHT;
use crate::endpoint::hub::long_send::PIECES_MAX;
use crate::endpoint::hub::marks::Marks;
use crate::endpoint::hub::posted::PieceOp;
use crate::endpoint::link::backlog::Backlog;
use crate::endpoint::link::socket::TcpWatch;
use crate::endpoint::link::wait::{EndpointWait, LinkWait};
use crate::endpoint::link::{
    COMPLETION_BATCH, CmData, CmEvent, Completions, ConnKey, Link, LinkCompletion, PEER_WROTE,
    PostRefused,
};
use crate::endpoint::long_messages::LongMessages;
use crate::endpoint::windows::exposed::ExposedWindows;
use crate::error::{CompletionError, FabricErrno};
use crate::fabric::AccessEnds;
use crate::id::ConnectionId;
use crate::in_flight::{ContextError, InFlight};
use crate::protocol::connection::{
    Action, Arrival, Connection, Form, SUBSCRIPTION_MESSAGES_MAX, State,
};
use crate::protocol::credit::HEARTBEAT_MESSAGES_MAX;
use crate::protocol::liveness::Patience;
use crate::protocol::wire::{self, ControlBody, ControlKind, HeaderMode, Refusal, RefusalCode};
use crate::stats::{OneSidedStats, ReceiveStats, SendStats};
use closing::Mark;
use long_receive::{Due, LongPool};
use outbound::Outbound;
use peer::{Descriptors, Peer};
use shared::{ORPHANS_MAX, Shared, share};
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::marker::PhantomData;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use timer::HubTimer;

mod accepting;
mod closing;
mod coarse_clock;
pub(crate) mod conn_table;
pub(crate) mod control;
mod deadlines;
mod dialing;
pub(crate) mod event;
mod feeding;
pub(crate) mod in_flight_max;
mod later;
pub(crate) mod line;
mod long_receive;
mod long_send;
mod long_sends;
mod marks;
mod outbound;
pub(crate) mod outgoing;
mod pair;
mod peer;
pub(crate) mod posted;
mod recent_lease;
pub(crate) mod scoped;
mod sends;
mod shared;
mod shared_receives;
mod status;
mod subscriptions;
#[cfg(all(test, not(loom)))]
mod tests;
mod timer;
mod windows;

pub(crate) use sends::SendsSettings;
pub(crate) use subscriptions::SubscriptionNews;
pub(crate) use windows::WindowSettings;

/// Receives that each connection keeps posted beyond the credits it granted: for the peer's control
/// messages, and so that a dead peer is noticed while every message is held.
///
/// Fences have none of their own: they go over providers only that hold back what finds no receive
/// (`AccessEnds::BehindFence`), and the buffer of a control message is posted again by the poll
/// that reads it.
pub(crate) const RESERVE: u32 = 2;

// Grants have receives of their own.
const _: () = assert!(RESERVE as usize >= HEARTBEAT_MESSAGES_MAX);

/// Control messages of one connection that are on the way at once, for which there are buffers: the
/// next one waits until the last one is sent. It costs nothing, since they leave in order, and a
/// thousand connections little memory.
const CONTROLS_AT_ONCE: u32 = 1;

/// With the refusal that ends a connection of the RDM form, which waits for nothing.
pub(crate) const CONTROLS_PER_CONNECTION: u32 = CONTROLS_AT_ONCE + 1;

/// Between two looks at the event queue: as many reads of the completion queue that find something,
/// or fewer empty ones, each of which counts for [`EMPTY_READ`]. A look costs a system call on tcp.
const CM_INTERVAL: u32 = 1024;
const EMPTY_READ: u32 = 16;

/// Events of the connection manager that one poll takes, at most: who asks for connections can ask
/// without an end.
const CM_EVENTS_MAX: usize = 64;

/// Events that are kept for later, at most, while answers of this side's own connections are looked
/// for; requests beyond are refused.
const CM_LATER_MAX: usize = 1024;

/// Reads of the completion queue in one poll, beyond its first, for connections whose end waits for
/// what lies in it.
const MARK_READS_MAX: usize = 16;

const EVENT_QUEUE_BROKE: &str = "the event queue broke";

/// What a hub needs to know; checked by the public configuration.
pub(crate) struct HubSettings {
    pub(crate) depth: u32,
    pub(crate) max_connections: u32,
    pub(crate) max_message: u64,
    pub(crate) ask: bool,
    /// Takes connections; else it only makes some.
    pub(crate) accepts: bool,
    pub(crate) handshake_timeout: Duration,
    pub(crate) close_timeout: Duration,
    pub(crate) header_mode: Option<HeaderMode>,
    pub(crate) windows: WindowSettings,
    /// Where messages go that are too long for a receive; with `windows.long`.
    pub(crate) long: Option<LongMessages>,
    /// None: it sends nothing.
    pub(crate) sends: Option<SendsSettings>,
    /// Its peers subscribe, or publish; others are refused.
    pub(crate) publishing: bool,
    pub(crate) patience: Patience,
    pub(crate) watch: TcpWatch,
}

/// Receives of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Receives {
    /// Beyond the credits.
    pub(crate) reserve: u32,
    /// The fewest that a connection is worth opening with.
    pub(crate) min: u32,
    /// The most.
    pub(crate) max: u32,
}

impl Receives {
    /// Those of a connection on which a credit stands for so many.
    pub(crate) fn with(self, per_credit: u32) -> Self {
        let scaled = |receives: u32| self.reserve + (receives - self.reserve) * per_credit;
        Self {
            reserve: self.reserve,
            min: scaled(self.min),
            max: scaled(self.max),
        }
    }
}

impl HubSettings {
    /// How much may be in flight for the application on one connection, and on all of them:
    /// messages, and one-sided operations where there are windows.
    pub(crate) fn outbound(&self) -> (u32, u32) {
        let operations = match self.windows.enabled() {
            true => self.windows.operations,
            false => 0,
        };
        let (depth, total) = self
            .sends
            .as_ref()
            .map_or((0, 0), |it| (it.depth, it.total));
        (
            depth.saturating_add(operations),
            total.saturating_add(operations),
        )
    }

    /// Pieces of one-sided operations in flight at once. An endpoint that has no ring to stage them in
    /// as it opens has none.
    pub(crate) fn one_sided_pieces(&self) -> u32 {
        let sends = self.sends.as_ref();
        let staged = sends.is_none_or(|sends| sends.staging.is_some());
        u32::from(staged || !self.windows.uses_peers) * PIECES_IN_FLIGHT
    }

    /// Pieces of long messages in flight at once: of one connection, which sends one message at a
    /// time, and of all.
    pub(crate) fn long_pieces(&self) -> (u32, u32) {
        let Some(sends) = self.sends.as_ref().filter(|sends| sends.long) else {
            return (0, 0);
        };
        let messages = sends.total.min(self.max_connections);
        (PIECES_MAX, PIECES_MAX.saturating_mul(messages))
    }

    /// Only control messages come in, and the pool that they come into is the one that they are sent
    /// from, too: it has room for both.
    fn has_one_pool(&self) -> bool {
        self.depth == 0 && !self.accepts
    }

    /// Control messages that may be on the way at once, on all connections of such a link.
    fn controls<L: Link>(&self, link: &L) -> u32 {
        match (link.form(), link.shares_endpoint()) {
            (Form::Msg, _) => CONTROLS_AT_ONCE * self.max_connections,
            (Form::Rdm, false) => CONTROLS_PER_CONNECTION * self.max_connections,
            (Form::Rdm, true) => {
                CONTROLS_PER_CONNECTION * (self.max_connections + ORPHANS_MAX as u32)
            }
        }
    }

    /// Buffers of an endpoint into which only control messages come.
    pub(crate) fn control_buffers<L: Link>(&self, link: &L) -> u32 {
        self.max_connections * self.receives(link.form()).max + self.controls(link)
    }

    /// How many receives a connection has.
    pub(crate) fn receives(&self, form: Form) -> Receives {
        let sends = self.sends.as_ref();
        let grants = sends.map_or(0, |sends| {
            SendsSettings::grants(form) + sends.long_answers(form)
        });
        let subscriptions = match self.publishing {
            true => SUBSCRIPTION_MESSAGES_MAX as u32,
            false => 0,
        };
        let reserve = self.windows.reserve() + grants + subscriptions;
        Receives {
            reserve,
            min: reserve + self.depth.min(1),
            max: reserve + self.depth,
        }
    }
}

/// An operation in flight, with what must stay alive until it is over.
enum Op {
    Receive {
        connection: ConnectionId,
        buffer: BufferMut,
    },
    ControlSend {
        connection: ConnectionId,
        kind: ControlKind,
        _buffer: BufferMut,
    },
}

/// Messages of one connection that are over and went well, counted together.
#[derive(Clone, Copy)]
struct SentInARow {
    connection: ConnectionId,
    count: u32,
}

impl Default for SentInARow {
    fn default() -> Self {
        Self {
            connection: NOBODY,
            count: 0,
        }
    }
}

/// A request that waits for the application's answer.
struct WaitingRequest<R> {
    request: R,
    data: CmData,
    deadline: Instant,
}

/// A link, and every peer that it is connected to: by connections that it accepted, or made.
pub(crate) struct Hub<L: Link, E: HubEvent = ReceiveEvent> {
    settings: HubSettings,
    peers: ConnTable<Peer<L::Conn>>,
    by_key: HashMap<ConnKey, ConnectionId>,
    waiting: HashMap<ConnectionId, WaitingRequest<L::Request>>,
    /// Whoever came first is served first; those behind the first that starves were told, but for
    /// the last ones.
    hungry: VecDeque<ConnectionId>,
    /// Connections with a control message that the provider's full queue did not take.
    unsent: Vec<ConnectionId>,
    in_flight: InFlight<Op>,
    stats: ReceiveStats,
    polls_without_cm: u32,
    timer: HubTimer,
    backlog: Backlog,
    next_reap: Instant,
    completions: Completions,
    /// Connections whose machine may want something.
    touched: Vec<ConnectionId>,
    /// The provider's queue was full: something is to be offered to it again.
    retry: bool,
    /// Events of the connection manager that were read while completions were looked at.
    cm_later: VecDeque<CmEvent<L::Request>>,
    /// Ends of connections that wait for what lies in the completion queue.
    marks: Marks<Mark>,
    /// Connections that this side made.
    dialed: u32,
    /// Connections that were heard since the last look at the clock.
    heard: Vec<ConnectionId>,
    closing: bool,
    /// Why the endpoint failed, for good.
    failed: Option<&'static str>,
    /// An endpoint would not close: the slab holds operations that the provider may still touch.
    leaked: bool,
    /// Those of the domain, while a connection has them.
    descriptors: Weak<Descriptors>,
    /// In the RDM form.
    shared: Option<Shared<L::Conn>>,
    pool: SharedBufferManager,
    pool_waker: WakerId,
    control: ControlBuffers,
    wait: Arc<EndpointWait>,
    outbound: Outbound,
    /// For the layer above, which takes it after each poll.
    subscription_news: Vec<(ConnectionId, SubscriptionNews)>,
    receives: Receives,
    exposed: ExposedWindows,
    /// The last epoch of the domain that the connections were told of.
    fence_asked: u64,
    /// Long messages that wait for an epoch, in its order.
    fencing: VecDeque<(u64, ConnectionId)>,
    long: Option<LongPool>,
    link: L,
    /// What its face calls events.
    face: PhantomData<fn() -> E>,
}

impl<L: Link, E: HubEvent> Hub<L, E> {
    pub(crate) fn listen(
        link: L,
        waiter: Arc<dyn LinkWait>,
        clock: Clock,
        pool: SharedBufferManager,
        mut settings: HubSettings,
    ) -> Result<Self, Error> {
        let wait = Arc::new(EndpointWait::new(waiter, clock.clone())?);
        let waker = Arc::clone(&wait);
        let pool_waker = pool.add_waker(Arc::new(move || waker.wake()));
        let controls = settings.controls(&link);
        let control = match (link.form(), settings.has_one_pool()) {
            (_, true) => ControlBuffers::of(&pool),
            (Form::Msg, false) => ControlBuffers::new(controls)?,
            (Form::Rdm, false) => ControlBuffers::for_hellos(controls)?,
        };
        let shared = share(&link, &pool, &control)?;
        let receives = settings.receives(link.form());
        let capacity = u32::try_from(pool.slots())
            .unwrap_or(u32::MAX)
            .saturating_add(controls);
        let contexts = link.limits().contexts;
        let outbound = Outbound::new(&mut settings, &link, &wait, &clock)?;
        let in_flight_max = u64::from(capacity) + outbound.posted.capacity();
        let next_reap = clock.now() + settings.handshake_timeout;
        let (windows, rma) = (settings.windows.windows, link.limits().rma.as_ref());
        let exposed = ExposedWindows::new(windows, &wait, link.ledger(), rma);
        let long = settings
            .long
            .clone()
            .filter(|_| link.limits().rma.is_some());
        let copies = rma.is_some_and(|rma| rma.access_ends == AccessEnds::WithEndpoint);
        let long = long.map(|long| LongPool::new(long, copies, &wait));
        let long = long.transpose()?;
        let mut hub = Self {
            peers: ConnTable::new(),
            by_key: HashMap::new(),
            waiting: HashMap::new(),
            hungry: VecDeque::new(),
            unsent: Vec::new(),
            in_flight: InFlight::new(capacity, contexts),
            stats: ReceiveStats::default(),
            polls_without_cm: 0,
            timer: HubTimer::new(clock),
            backlog: Backlog::new(in_flight_max),
            next_reap,
            completions: Vec::with_capacity(COMPLETION_BATCH),
            touched: Vec::new(),
            retry: false,
            cm_later: VecDeque::new(),
            marks: Marks::new(in_flight_max),
            dialed: 0,
            heard: Vec::new(),
            closing: false,
            failed: None,
            leaked: false,
            descriptors: Weak::new(),
            shared,
            pool,
            pool_waker,
            control,
            wait,
            outbound,
            subscription_news: Vec::new(),
            receives,
            exposed,
            fence_asked: 0,
            fencing: VecDeque::new(),
            long,
            link,
            settings,
            face: PhantomData,
        };
        hub.feed_shared();
        hub.arm_timer();
        Ok(hub)
    }

    pub(crate) fn stats(&self) -> ReceiveStats {
        // Messages have stats of their own.
        let one_sided = match self.outbound.sends_messages() {
            true => SendStats::default(),
            false => self.outbound.stats,
        };
        ReceiveStats {
            one_sided: OneSidedStats {
                posted: one_sided.posted,
                completed: one_sided.completed,
                failed: one_sided.failed,
                in_flight: one_sided.in_flight,
            },
            quarantined: self.exposed.quarantined() as u64,
            ..self.stats
        }
    }

    pub(crate) fn wait(&self) -> &Arc<EndpointWait> {
        &self.wait
    }

    /// What it judges deadlines by.
    pub(crate) fn clock(&self) -> &Clock {
        self.timer.clock()
    }

    pub(crate) fn pool(&self) -> &SharedBufferManager {
        &self.pool
    }

    /// How many there are, those included whose end is not told yet.
    pub(crate) fn connections(&self) -> usize {
        self.peers.len() + self.ending()
    }

    /// There is no connection, but for those whose end is not told yet.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.peers.len() == 0
    }

    /// How often a connection was looked at.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn looks(&self) -> u64 {
        self.peers.looks()
    }

    pub(crate) fn conn(&self, id: ConnectionId) -> Option<&L::Conn> {
        self.peers.get(id).map(|peer| &peer.link)
    }

    // ---- polling --------------------------------------------------------------------------------

    /// Drives all connections and appends what happened; an error when the endpoint has failed, for
    /// good.
    pub(crate) fn poll(&mut self, events: &mut Vec<E>) -> Result<(), Error> {
        self.drive(events);
        self.failed
            .map_or(Ok(()), |reason| Err(Error::EndpointFailed(reason)))
    }

    fn drive(&mut self, events: &mut Vec<E>) {
        let look_everywhere = self.wait.begin_poll();
        if let Some(reason) = self.failed {
            // Whoever still asks is refused, as long as there is a queue to hear of it.
            if reason != EVENT_QUEUE_BROKE {
                self.read_cm(events);
            }
            // Nothing is timed any more: who sleeps until a deadline that was armed before, and is
            // over, would never sleep again.
            self.wait.set_deadline(None);
            // It may have failed outside a poll.
            return self.act_and_end(events);
        }
        if look_everywhere {
            self.revoke_abandoned();
        }
        let found = self.read_completions(events);
        let asked = self.take_asked();
        let look_at_cm = look_everywhere || asked || self.cm_is_due(found);
        if look_at_cm || self.wants_more(found) {
            return self.look_around(found, look_everywhere, look_at_cm, events);
        }
        // With none in flight, no registration is kept open.
        self.outbound.outgoing.rest();
    }

    /// Whether a poll that found so many completions has more to do than to report sends that are
    /// done: a connection wants something, a deadline may have passed, or something waits for the
    /// application to drop a message, for what sends have in common, or for the provider's queue.
    #[inline]
    fn wants_more(&mut self, found: usize) -> bool {
        self.retry
            || self.outbound.retry
            || self.timer.is_stale()
            || !self.touched.is_empty()
            || !self.marks.is_empty()
            || !self.hungry.is_empty()
            || self.outbound.deadlines.has_moved()
            || self.long.as_ref().is_some_and(LongPool::is_awaited)
            || self.shared.as_ref().is_some_and(|s| s.receives.lacks())
            || found > 0 && self.outbound.has_refused()
            || self.timer.wants_look(found)
    }

    /// Everything but the completion queue.
    fn look_around(
        &mut self,
        found: usize,
        look_everywhere: bool,
        look_at_cm: bool,
        events: &mut Vec<E>,
    ) {
        if look_at_cm {
            self.read_cm(events);
        }
        // One look at the clock for all that is timed; while messages come all the time, not on
        // each poll.
        if self.timer.begin_look(look_at_cm || found == 0) {
            self.on_time(events);
        }
        let retried = std::mem::take(&mut self.retry) | std::mem::take(&mut self.outbound.retry);
        if retried {
            self.touched.append(&mut self.unsent);
            self.drive_lines(events);
        }
        self.feed(events);
        self.feed_long();
        self.act_and_end(events);
        self.mind_fences(look_everywhere, events);
        if found > 0 || look_everywhere || retried {
            self.outbound.tell_shared(&mut self.peers, events);
        }
        // With none in flight, no registration is kept open.
        self.outbound.outgoing.rest();
        if self.outbound.deadlines.take_moved() | self.timer.take_stale() {
            self.arm_timer();
        } else if self.retry || self.outbound.retry || retried || self.shared.is_some() {
            self.set_timer();
        }
    }

    fn cm_is_due(&mut self, found: usize) -> bool {
        self.polls_without_cm += if found > 0 { 1 } else { EMPTY_READ };
        let handshakes =
            self.by_key.len() as u64 > self.stats.connections.saturating_sub(self.stats.closed);
        if handshakes || !self.cm_later.is_empty() || self.polls_without_cm >= CM_INTERVAL {
            self.polls_without_cm = 0;
            return true;
        }
        false
    }

    /// One batch of completions.
    fn read_completions(&mut self, events: &mut Vec<E>) -> usize {
        self.stats.cq_reads += 1;
        let read = self.link.poll_completions(&mut self.completions);
        let found = self.completions.len();
        self.backlog.on_read(found);
        self.marks.on_read(found);
        if found == 0 {
            self.stats.cq_reads_empty += 1;
        } else {
            let mut completions = std::mem::take(&mut self.completions);
            let mut sent = SentInARow::default();
            for completion in completions.drain(..) {
                // What most of them are, where messages are sent.
                if completion.error.is_none()
                    && let Some(id) = self.outbound.on_plain(completion.context, events)
                {
                    if sent.connection != id {
                        self.on_plain_sent(std::mem::take(&mut sent));
                        sent.connection = id;
                    }
                    sent.count += 1;
                    continue;
                }
                self.on_plain_sent(std::mem::take(&mut sent));
                self.on_completion(completion, events);
            }
            self.on_plain_sent(sent);
            self.completions = completions;
        }
        if let Err(error) = read {
            tracing::error!(%error, "the completion queue broke");
            self.fail("the completion queue broke");
        }
        found
    }

    #[inline]
    fn on_completion(&mut self, completion: LinkCompletion, events: &mut Vec<E>) {
        let LinkCompletion {
            context,
            len,
            data,
            error,
        } = completion;
        match self.in_flight.finish(context) {
            // RDM form: those that all connections share.
            Ok(Op::Receive {
                connection: NOBODY,
                buffer,
            }) => self.on_shared(buffer, len, data, error, events),
            Ok(Op::Receive {
                connection: id,
                buffer,
            }) => match error {
                None => self.on_received(id, buffer, len, data, events),
                Some(error) => self.on_receive_failed(id, error.errno),
            },
            Ok(Op::ControlSend {
                connection: id,
                kind,
                ..
            }) => {
                let Some(peer) = self.peers.get_mut(id) else {
                    return self.on_orphan(id);
                };
                peer.controls -= 1;
                match error {
                    None => peer.machine.on_control_done(kind),
                    Some(error) => peer.machine.on_lost(Some(error.errno)),
                }
                self.touch(id);
            }
            Err(reason) => self.on_outbound_over(context, (reason, data), error, events),
        }
    }

    /// A completion of what this side posted for its application.
    #[inline]
    fn on_outbound_over(
        &mut self,
        context: usize,
        (reason, data): (ContextError, Option<u64>),
        error: Option<Box<CompletionError>>,
        events: &mut Vec<E>,
    ) {
        if error.is_none() && self.on_one_sided_done(context, events) {
            return;
        }
        let error = error.map(|error| *error);
        let posted = &mut self.outbound.posted;
        if let Ok(op) = posted.messages.finish(context) {
            return self.on_message_over(op, error, events);
        }
        match posted.one_sided.finish(context) {
            Ok(op) => self.on_one_sided(op, error, events),
            Err(_) if context == PEER_WROTE && data.is_some() => {
                self.marks.on_strange();
                self.on_peer_wrote(data, events);
            }
            Err(_) => match posted.pieces.finish(context) {
                Ok(PieceOp::OneSided(piece)) => self.on_one_sided_piece(piece, error, events),
                Ok(PieceOp::Long(piece)) => self.on_long_piece(piece, error, events),
                Err(_) => self.on_unknown(context, reason, error),
            },
        }
    }

    /// A completion that names no operation in flight.
    #[cold]
    fn on_unknown(&mut self, context: usize, reason: ContextError, error: Option<CompletionError>) {
        self.stats.unknown_completions += 1;
        // `ofi_rxm` reports a lost connection with contexts of its own, or twice.
        if self.link.form() == Form::Rdm && error.is_some() {
            return tracing::debug!(
                context,
                ?reason,
                ?error,
                "a failure that names no operation"
            );
        }
        tracing::error!(context, ?reason, "a completion that names no operation");
        self.fail("a completion named no operation in flight");
    }

    fn on_receive_failed(&mut self, id: ConnectionId, errno: FabricErrno) {
        let Some(peer) = self.peers.get_mut(id) else {
            return;
        };
        peer.posted -= 1;
        if self.link.form() == Form::Rdm {
            // Whoever sends can end a receive like this, with a message that is too long: it says
            // nothing of the peer.
            tracing::debug!(%errno, "a receive failed");
            if !std::mem::replace(&mut peer.hungry, true) {
                self.hungry.push_back(id);
            }
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
    fn on_received(
        &mut self,
        id: ConnectionId,
        buffer: BufferMut,
        len: usize,
        data: Option<u64>,
        events: &mut Vec<E>,
    ) {
        // A connection that is closed: what was still in its queue is dropped, the slot goes back
        // to the pool.
        let Some(peer) = self.peers.get_mut(id) else {
            return;
        };
        // Shared ones were counted when they were seen to be this connection's.
        if self.shared.is_none() {
            peer.posted -= 1;
            if !peer.hungry {
                peer.hungry = true;
                self.hungry.push_back(id);
            }
        }
        if !peer.heard {
            peer.heard = true;
            self.heard.push(id);
        }
        let len = len.min(buffer.len());
        let mut peer = peer;
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
        match peer.machine.on_message(data) {
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
            Some(Arrival::Header) => {
                // Kept for its payload: two receives stand for a credit of such a peer.
                let taken = peer.machine.on_header(len as u64);
                **peer.lone_header.get_or_insert_default() =
                    taken.ok().map(|()| buffer.freeze(len));
            }
            Some(Arrival::Control(cq_data)) => {
                let body = &buffer[..len.min(wire::CONTROL_LEN_MAX)];
                peer.machine.on_control(cq_data, body, self.timer.now());
                let whole = peer.machine.take_whole_long();
                self.post_again(id, buffer);
                if let Some(number) = whole {
                    self.on_long_whole(id, number, events);
                }
            }
            None => {}
        }
        self.touch(id);
    }

    fn touch(&mut self, id: ConnectionId) {
        if self.touched.last() != Some(&id) {
            self.touched.push(id);
        }
    }

    fn act_on_touched(&mut self, events: &mut Vec<E>) {
        while let Some(id) = self.touched.pop() {
            self.act(id, events);
        }
    }

    /// Does what one connection asks for.
    fn act(&mut self, id: ConnectionId, events: &mut Vec<E>) {
        let unsent = self.peers.get_mut(id).and_then(Peer::take_unsent);
        if let Some((cq_data, body)) = unsent.map(|unsent| *unsent) {
            self.send_control(id, cq_data, &body);
        }
        while let Some(action) = self.peers.get_mut(id).and_then(|peer| peer.next_action()) {
            match action {
                Action::Accept { data } => self.accept_link(id, &data),
                Action::SendControl { cq_data, body } => self.send_control(id, cq_data, &body),
                Action::Established => self.tell_established(id, events),
                Action::Unresponsive => {
                    events.tell(ReceiveEvent::Connection(id, ConnectionEvent::Unresponsive))
                }
                Action::Responsive => {
                    events.tell(ReceiveEvent::Connection(id, ConnectionEvent::Responsive))
                }
                Action::PeerClosing { .. } => {
                    events.tell(ReceiveEvent::Connection(id, ConnectionEvent::PeerClosing))
                }
                Action::Close(reason) => self.close_conn(id, reason, events),
                Action::Connect { data } => self.start_connecting(id, &data),
                // The request is judged before there is a connection.
                Action::Reject { .. } => {}
                Action::ReleaseWindow(window) => self.retire_window(id, window, events),
                Action::FencePassed { epoch } => self.on_fence_passed(id, epoch),
                Action::WindowRevoked(window) => self.on_window_revoked(id, window, events),
                Action::LongOffered { len } => self.on_long_offered(id, len),
                Action::LongGranted { base, key } => self.on_long_granted(id, (base, key)),
                Action::LongRefused { limit } => self.on_long_refused(id, limit, events),
                Action::SubscriptionAsked(request) => {
                    self.subscription_news
                        .push((id, SubscriptionNews::Asked(request)));
                }
                Action::SubscriptionAnswered { request, answer } => {
                    let news = SubscriptionNews::Answered(request, answer);
                    self.subscription_news.push((id, news));
                }
            }
        }
        if let Some(peer) = self.peers.get_mut(id) {
            let deadline = peer.next_deadline();
            self.timer.on_deadline(deadline);
            peer.timed = deadline.is_some();
            if peer.outbound.waits_alone() {
                self.outbound.tell_writable((id, peer), events);
            }
        }
    }

    // ---- connections ----------------------------------------------------------------------------

    /// A bounded number of events; what is left makes the endpoint ready again.
    fn read_cm(&mut self, events: &mut Vec<E>) {
        self.polls_without_cm = 0;
        for _ in 0..CM_EVENTS_MAX {
            let event = match self.cm_later.pop_front() {
                Some(event) => event,
                None => match self.link.poll_cm() {
                    Ok(Some(event)) => event,
                    Ok(None) => return,
                    Err(error) => {
                        tracing::error!(%error, "the event queue broke");
                        return self.fail(EVENT_QUEUE_BROKE);
                    }
                },
            };
            match event {
                CmEvent::Request { request, data } => self.on_request(request, data, events),
                CmEvent::Connected { conn, data } => {
                    self.with_key(conn, |machine| machine.on_connected(data.as_slice()))
                }
                CmEvent::Refused { conn, errno, data } => {
                    self.with_key(conn, |machine| machine.on_refused(errno, data.as_slice()));
                }
                CmEvent::Shutdown { conn } => {
                    // The peer's last messages, and its goodbye, may still be in the queue.
                    if let Some(&id) = self.by_key.get(&conn) {
                        self.marks.leave(Mark::Gone(id));
                    }
                }
            }
        }
        self.wait.wake();
    }

    fn with_key(&mut self, key: ConnKey, f: impl FnOnce(&mut Connection)) {
        let Some(&id) = self.by_key.get(&key) else {
            return;
        };
        if let Some(peer) = self.peers.get_mut(id) {
            f(&mut peer.machine);
            self.touch(id);
        }
    }

    // ---- control messages -----------------------------------------------------------------------

    fn send_control(&mut self, id: ConnectionId, cq_data: u32, body: &ControlBody) {
        if let Some(peer) = self.peers.get_mut(id)
            && peer.controls >= CONTROLS_AT_ONCE
            && peer.machine.state() != State::Closed
        {
            // Offered again when that is sent (`on_completion`).
            peer.unsent = Some(Box::new((cq_data, *body)));
            return;
        }
        let sent = self.try_send_control(id, cq_data, body);
        let Some(peer) = self.peers.get_mut(id) else {
            return;
        };
        match sent {
            Err(PostRefused::Again) if peer.machine.state() != State::Closed => {
                peer.unsent = Some(Box::new((cq_data, *body)));
                self.unsent.push(id);
                self.retry = true;
            }
            Err(PostRefused::Errno(errno)) => peer.machine.on_lost(Some(errno)),
            Ok(()) => peer.controls += 1,
            Err(PostRefused::Again) => {}
        }
    }

    fn try_send_control(
        &mut self,
        id: ConnectionId,
        cq_data: u32,
        body: &ControlBody,
    ) -> Result<(), PostRefused> {
        let Some(peer) = self.peers.get(id) else {
            return Err(PostRefused::Errno(FabricErrno::new(libc::ENOTCONN)));
        };
        post_control(
            &mut self.link,
            &peer.link,
            &mut self.in_flight,
            (&self.control, &peer.descriptors.control),
            (cq_data, body),
            |kind, _buffer| Op::ControlSend {
                connection: id,
                kind,
                _buffer,
            },
        )
    }

    // ---- time -----------------------------------------------------------------------------------

    fn on_time(&mut self, events: &mut Vec<E>) {
        let now = self.timer.now();
        while let Some(id) = self.heard.pop() {
            if let Some(peer) = self.peers.get_mut(id) {
                peer.heard = false;
                peer.machine.tick(now);
                self.touched.push(id);
            }
        }
        // The timer does not know of a deadline that came since it was set.
        if !self.timer.has_passed(now) && !self.outbound.deadlines.are_due(now) {
            return;
        }
        for (id, peer) in self.peers.iter_mut() {
            if peer.next_deadline().is_some_and(|at| at <= now) {
                peer.ask_kernel(&mut self.link);
                if !self.backlog.is_read() {
                    peer.machine.postpone(now);
                }
                peer.machine.tick(now);
                peer.give_up_on_early(now);
                let limit = self.settings.patience.lost;
                peer.give_up_on_owed(now, limit, self.backlog.is_read());
                self.touched.push(id);
            }
        }
        let late: Vec<_> = self
            .waiting
            .iter()
            .filter(|(_, waiting)| waiting.deadline <= now)
            .map(|(id, _)| *id)
            .collect();
        for id in late {
            self.answer(
                id,
                Some(Refusal::new(RefusalCode::UNANSWERED, [0, 0])),
                events,
            );
        }
        self.check_deadlines(now, events);
        if now >= self.next_reap {
            self.stats.reaped += self
                .link
                .reap_half_open(now, self.settings.handshake_timeout);
            self.next_reap = now + self.settings.handshake_timeout / 2;
        }
    }

    fn arm_timer(&mut self) {
        let machines = self
            .peers
            .iter()
            .filter_map(|(_, peer)| peer.next_deadline());
        let waiting = self.waiting.values().map(|waiting| waiting.deadline);
        let reap = self.settings.accepts.then_some(self.next_reap);
        let all = machines.chain(waiting).chain(reap);
        let first = all.chain(self.outbound.deadlines.next()).min();
        self.timer.arm(first);
        self.set_timer();
    }

    fn set_timer(&self) {
        let line = self.outbound.pause(&self.peers);
        let retry = self.retry || self.outbound.retry;
        let pause = line.or_else(|| retry.then_some(CONTROL_RETRY));
        let retry = pause.map(|pause| self.timer.now() + pause);
        let all = [self.timer.next(), retry, self.link.next_deadline()];
        self.wait.set_deadline(all.into_iter().flatten().min());
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum PostedReceive {
    Yes,
    PoolEmpty,
    No,
}

impl Op {
    fn connection(&self) -> ConnectionId {
        match self {
            Self::Receive { connection, .. } | Self::ControlSend { connection, .. } => *connection,
        }
    }
}

impl<L: Link, E: HubEvent> fmt::Debug for Hub<L, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hub")
            .field("connections", &self.peers.len())
            .field("in_flight", &self.in_flight.len())
            .finish_non_exhaustive()
    }
}
