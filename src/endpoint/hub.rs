//! `Hub`: a link, a clock, and the peers that are connected by it, over any link: one queue, one
//! pool, one slab, many connections.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crate::Error;
use crate::buffer::{BufferMut, SharedBufferManager, WakerId};
use crate::clock::Clock;
use crate::endpoint::core::conn_table::{ConnTable, NOBODY};
use crate::endpoint::core::control::{CONTROL_RETRY, ControlBuffers, GATE_RETRY, post_control};
use crate::endpoint::core::jiffies::Jiffies;
use crate::endpoint::core::marks::Marks;
use crate::endpoint::core::outgoing::DataOp;
use crate::endpoint::event::{ConnectionEvent, ReceiveEvent};
use crate::endpoint::id::ConnectionId;
use crate::endpoint::link::socket::TcpWatch;
use crate::endpoint::link::wait::{EndpointWait, LinkWait};
use crate::endpoint::link::{
    COMPLETION_BATCH, CmData, CmEvent, Completions, ConnKey, Link, LinkCompletion, PEER_WROTE,
    PostRefused,
};
use crate::endpoint::long_messages::LongMessages;
use crate::endpoint::protocol::connection::{
    Action, Arrival, Connection, Form, SUBSCRIPTION_MESSAGES_MAX, State,
};
use crate::endpoint::protocol::liveness::{Backlog, Patience};
use crate::endpoint::protocol::wire::{
    self, ControlBody, ControlKind, HeaderMode, Refusal, RefusalCode,
};
use crate::endpoint::windows::exposed::ExposedWindows;
use crate::endpoint::windows::line::PIECES_IN_FLIGHT;
use crate::endpoint::windows::one_sided::OneSided;
use crate::error::{CompletionError, FabricErrno};
use crate::fabric::AccessEnds;
use crate::in_flight::{ContextError, InFlight};
use crate::stats::ReceiveStats;

mod accepting;
mod closing;
mod dialing;
mod feeding;
mod gates;
mod later;
mod long;
mod peer;
mod sends;
mod shared;
mod subscriptions;
mod windows;

use closing::Mark;
use long::{Due, LongPool};
use peer::{Descriptors, Peer};
use sends::Sends;
pub(crate) use sends::SendsSettings;
use shared::{ORPHANS_MAX, Shared, share};
pub(crate) use subscriptions::SubscriptionNews;
use windows::Account;
pub(crate) use windows::WindowSettings;

/// Receives that each connection keeps posted beyond the credits it granted: for the peer's control
/// messages, and so that a dead peer is noticed while every message is held.
///
/// Fences have none of their own: they go over providers only that hold back what finds no receive
/// (`AccessEnds::BehindFence`), and the buffer of a control message is posted again by the poll
/// that reads it.
pub(crate) const RESERVE: u32 = 2;

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

/// Polls between two looks at the clock while something comes in each of them.
const CLOCK_INTERVAL: u32 = 64;

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
    /// How many receives a connection has.
    pub(crate) fn receives(&self, form: Form) -> Receives {
        let grants = self
            .sends
            .as_ref()
            .map_or(0, |_| SendsSettings::grants(form));
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

/// What this side posts for its application.
enum Operation {
    OneSided(OneSided),
    Data {
        /// Its connection is over, and its outcome was told then.
        told: bool,
        op: DataOp,
    },
}

/// A request that waits for the application's answer.
struct WaitingRequest<R> {
    request: R,
    data: CmData,
    deadline: Instant,
}

/// A link, and every peer that it is connected to: by connections that it accepted, or made.
pub(crate) struct Hub<L: Link> {
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
    /// Of their own: they are larger than receives.
    operations: InFlight<(ConnectionId, Operation)>,
    stats: ReceiveStats,
    polls_without_cm: u32,
    polls_without_clock: u32,
    jiffies: Jiffies,
    clock: Clock,
    backlog: Backlog,
    next_reap: Instant,
    completions: Completions,
    /// Connections whose machine may want something.
    touched: Vec<ConnectionId>,
    /// The provider's queue was full: something is to be offered to it again.
    retry: bool,
    /// The timer is to be set anew: a deadline came or moved to an earlier time, or it ran out.
    timer_stale: bool,
    /// What the timer is set to; none while a deadline may have moved to an earlier time.
    armed: Option<Instant>,
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
    /// One-sided operations of this side.
    account: Account,
    sends: Option<Sends>,
    /// For the layer above, which takes it after each poll.
    subscription_news: Vec<(ConnectionId, SubscriptionNews)>,
    /// When the layer above wants to be polled.
    layer_deadline: Option<Instant>,
    receives: Receives,
    exposed: ExposedWindows,
    /// The last epoch of the domain that the connections were told of.
    fence_asked: u64,
    /// Long messages that wait for an epoch, in its order.
    fencing: VecDeque<(u64, ConnectionId)>,
    long: Option<LongPool>,
    link: L,
}

impl<L: Link> Hub<L> {
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
        let controls = match link.form() {
            Form::Msg => CONTROLS_AT_ONCE * settings.max_connections,
            Form::Rdm => CONTROLS_PER_CONNECTION * (settings.max_connections + ORPHANS_MAX as u32),
        };
        let control = match link.form() {
            Form::Msg => ControlBuffers::new(controls)?,
            Form::Rdm => ControlBuffers::for_hellos(controls)?,
        };
        let shared = share(&link, &pool, &control)?;
        let receives = settings.receives(link.form());
        let total = settings.sends.as_ref().map_or(0, |sends| sends.total);
        let capacity = u32::try_from(pool.slots())
            .unwrap_or(u32::MAX)
            .saturating_add(controls);
        let operations = settings.windows.operations.saturating_add(total);
        let contexts = link.limits().contexts;
        let account = Account::new(settings.windows.operations, contexts);
        let sends = match settings.sends.take() {
            None => None,
            Some(sends) => {
                let waker = Arc::clone(&wait);
                let wake = Arc::new(move || waker.wake());
                let (limits, registrar) = (link.limits(), link.registrar());
                Some(Sends::new(sends, limits, link.form(), registrar, wake)?)
            }
        };
        let pieces = u64::from(PIECES_IN_FLIGHT);
        let in_flight_max = u64::from(capacity) + u64::from(operations) + pieces;
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
            operations: InFlight::second(operations, contexts),
            stats: ReceiveStats::default(),
            polls_without_cm: 0,
            polls_without_clock: 0,
            jiffies: Jiffies::new(&clock),
            clock,
            backlog: Backlog::new(u64::from(capacity) + u64::from(operations)),
            next_reap,
            completions: Vec::with_capacity(COMPLETION_BATCH),
            touched: Vec::new(),
            retry: false,
            timer_stale: false,
            armed: None,
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
            account,
            sends,
            subscription_news: Vec::new(),
            layer_deadline: None,
            receives,
            exposed,
            fence_asked: 0,
            fencing: VecDeque::new(),
            long,
            link,
            settings,
        };
        hub.feed_shared();
        hub.arm_timer();
        Ok(hub)
    }

    pub(crate) fn stats(&self) -> ReceiveStats {
        ReceiveStats {
            in_flight: self.one_sided_in_flight().into(),
            quarantined: self.exposed.quarantined() as u64,
            ..self.stats
        }
    }

    pub(crate) fn wait(&self) -> &Arc<EndpointWait> {
        &self.wait
    }

    /// What it judges deadlines by.
    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }

    pub(crate) fn pool(&self) -> &SharedBufferManager {
        &self.pool
    }

    /// How many there are, those included whose end is not told yet.
    pub(crate) fn connections(&self) -> usize {
        self.peers.len() + self.ending()
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
    pub(crate) fn poll(&mut self, events: &mut Vec<ReceiveEvent>) -> Result<(), Error> {
        self.drive(events);
        self.failed
            .map_or(Ok(()), |reason| Err(Error::EndpointFailed(reason)))
    }

    fn drive(&mut self, events: &mut Vec<ReceiveEvent>) {
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
        if look_at_cm || found > 0 || self.wants_more() {
            self.look_around(found, look_everywhere, look_at_cm, events);
        }
    }

    /// Whether a poll that found nothing has more to do: a deadline may have passed, or something
    /// waits for the application to drop a message or for the provider's queue.
    #[inline]
    fn wants_more(&mut self) -> bool {
        self.retry
            || self.timer_stale
            || !self.touched.is_empty()
            || !self.marks.is_empty()
            || !self.hungry.is_empty()
            || !self.account.blocked.is_empty()
            || self.long.as_ref().is_some_and(LongPool::is_awaited)
            || self.shared.as_ref().is_some_and(|s| s.receives.lacks())
            || self.jiffies.moved(&self.clock)
    }

    /// Everything but the completion queue.
    fn look_around(
        &mut self,
        found: usize,
        look_everywhere: bool,
        look_at_cm: bool,
        events: &mut Vec<ReceiveEvent>,
    ) {
        if look_at_cm {
            self.read_cm(events);
        }
        // One look at the clock for all that is timed; while messages come all the time, not on
        // each poll.
        self.polls_without_clock += 1;
        if look_at_cm || found == 0 || self.polls_without_clock >= CLOCK_INTERVAL {
            self.on_time(events);
        }
        let retried = std::mem::take(&mut self.retry);
        if retried {
            self.touched.append(&mut self.unsent);
            self.post_waiting(events);
            self.drive_lines(events);
        }
        self.feed(events);
        self.feed_long();
        self.act_and_end(events);
        self.mind_fences(look_everywhere, events);
        self.tell_writable(events);
        if found > 0 || look_everywhere || retried {
            self.tell_sends_writable(events);
        }
        self.rest_sends();
        if std::mem::take(&mut self.timer_stale) {
            self.arm_timer();
        } else if self.retry || retried || self.shared.is_some() {
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
    fn read_completions(&mut self, events: &mut Vec<ReceiveEvent>) -> usize {
        self.stats.cq_reads += 1;
        let read = self.link.poll_completions(&mut self.completions);
        let found = self.completions.len();
        self.backlog.on_read(found);
        self.marks.on_read(found);
        if found == 0 {
            self.stats.cq_reads_empty += 1;
        } else {
            let mut completions = std::mem::take(&mut self.completions);
            for completion in completions.drain(..) {
                self.on_completion(completion, events);
            }
            self.completions = completions;
        }
        if let Err(error) = read {
            tracing::error!(%error, "the completion queue broke");
            self.fail("the completion queue broke");
        }
        found
    }

    #[inline]
    fn on_completion(&mut self, completion: LinkCompletion, events: &mut Vec<ReceiveEvent>) {
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
            Err(reason) => match self.operations.finish(context) {
                Ok((id, Operation::OneSided(op))) => {
                    self.on_one_sided(id, op, error.map(|error| *error), events);
                }
                Ok((id, Operation::Data { told, op })) => {
                    self.on_sent(id, op, told, error.map(|error| *error), events);
                }
                Err(_) if context == PEER_WROTE && data.is_some() => {
                    self.marks.on_strange();
                    self.on_peer_wrote(data, events);
                }
                Err(_) => match self.account.later.pieces.finish(context) {
                    Ok(piece) => {
                        self.on_one_sided_piece(piece, error.map(|error| *error), events);
                    }
                    Err(_) => self.on_unknown(context, reason, error),
                },
            },
        }
    }

    /// A completion that names no operation in flight.
    #[cold]
    fn on_unknown(
        &mut self,
        context: usize,
        reason: ContextError,
        error: Option<Box<CompletionError>>,
    ) {
        self.stats.unknown_completions += 1;
        // `ofi_rxm` reports a lost connection with contexts of its own, or twice.
        if self.shared.is_some() && error.is_some() {
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
        events: &mut Vec<ReceiveEvent>,
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
                peer.machine.on_control(cq_data, body, self.clock.now());
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

    fn act_on_touched(&mut self, events: &mut Vec<ReceiveEvent>) {
        while let Some(id) = self.touched.pop() {
            self.act(id, events);
        }
    }

    /// Does what one connection asks for.
    fn act(&mut self, id: ConnectionId, events: &mut Vec<ReceiveEvent>) {
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
                    events.push(ReceiveEvent::Connection(id, ConnectionEvent::Unresponsive))
                }
                Action::Responsive => {
                    events.push(ReceiveEvent::Connection(id, ConnectionEvent::Responsive))
                }
                Action::PeerClosing { .. } => {
                    events.push(ReceiveEvent::Connection(id, ConnectionEvent::PeerClosing))
                }
                Action::Close(reason) => self.close_conn(id, reason, events),
                Action::Connect { data } => self.start_connecting(id, &data),
                // The request is judged before there is a connection.
                Action::Reject { .. } => {}
                Action::ReleaseWindow(window) => self.retire_window(id, window, events),
                Action::FencePassed { epoch } => self.on_fence_passed(id, epoch),
                Action::WindowRevoked(window) => self.on_window_revoked(id, window, events),
                Action::LongOffered { len } => self.on_long_offered(id, len),
                // This side sends none.
                Action::LongGranted { .. } | Action::LongRefused { .. } => {}
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
            // A later one is found when the timer runs out.
            self.timer_stale |=
                deadline.is_some_and(|at| self.armed.is_none_or(|armed| at < armed));
            peer.timed = deadline.is_some();
            self.tell_send_writable(id, events);
        }
    }

    // ---- connections ----------------------------------------------------------------------------

    /// A bounded number of events; what is left makes the endpoint ready again.
    fn read_cm(&mut self, events: &mut Vec<ReceiveEvent>) {
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

    fn on_time(&mut self, events: &mut Vec<ReceiveEvent>) {
        self.polls_without_clock = 0;
        let now = self.clock.now();
        while let Some(id) = self.heard.pop() {
            if let Some(peer) = self.peers.get_mut(id) {
                peer.heard = false;
                peer.machine.tick(now);
                self.touched.push(id);
            }
        }
        if self.armed.is_some_and(|at| now < at) {
            return;
        }
        self.timer_stale = true;
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
        self.check_one_sided_deadlines(now, events);
        self.check_send_deadlines(now, events);
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
        let all = machines.chain(waiting).chain([self.next_reap]);
        let sends = self.sends.as_ref().and_then(Sends::next_late);
        self.armed = all.chain(self.next_late()).chain(sends).min();
        self.set_timer();
    }

    fn set_timer(&self) {
        let pause = match self.sends.as_ref().is_some_and(Sends::waits) {
            true => GATE_RETRY,
            false => CONTROL_RETRY,
        };
        let retry = self.retry.then(|| self.clock.now() + pause);
        let later = self.account.later.pause();
        let retry = retry
            .into_iter()
            .chain(later.map(|pause| self.clock.now() + pause));
        let all = self.armed.into_iter().chain(retry);
        let all = all.chain(self.layer_deadline);
        self.wait
            .set_deadline(all.chain(self.link.next_deadline()).min());
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Posted {
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

impl<L: Link> fmt::Debug for Hub<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hub")
            .field("connections", &self.peers.len())
            .field("in_flight", &self.in_flight.len())
            .finish_non_exhaustive()
    }
}
