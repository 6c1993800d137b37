//! `Hub`: a link, a clock, and the peers that are connected by it, over any link: one queue, one
//! pool, one slab, many connections.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use self::agenda::Agenda;
use self::buffers::HubBuffers;
use self::cm_queue::{CmQueue, EVENT_QUEUE_BROKE};
use self::completion_reader::CompletionReader;
use self::connection_log::ConnectionLog;
use self::directory::Directory;
use self::fencing::Fencing;
use self::frames::Frames;
use self::hub_state::HubState;
use self::long_pool::LongPool;
use self::outbound::Outbound;
use self::peer::Peer;
use self::shared::{Shared, share};
use self::timer::HubTimer;
use crate::Error;
use crate::buffer::{BufferMut, PartsHeld, PoolShare, SharedBufferManager};
use crate::clock::Clock;
use crate::endpoint::event::{ConnectionEvent, ReceiveEvent};
use crate::endpoint::hub::conn_table::ConnTable;
use crate::endpoint::hub::event::{HubEvent, Tell};
use crate::endpoint::link::Link;
use crate::endpoint::link::wait::{EndpointWait, LinkWait};
use crate::endpoint::windows::exposed::ExposedWindows;
use crate::fabric::AccessEnds;
use crate::id::ConnectionId;
use crate::in_flight::InFlight;
use crate::metrics::registry::{WatchedAs, WatchedCells, WatchedPlace};
use crate::metrics::stats::{EndpointCells, ReceivesCounted};
use crate::protocol::connection::Action;
use crate::protocol::wire::ControlKind;
use crate::stats::{OneSidedStats, PackedReceives, ReceiveStats, SendStats};

mod accepting;
mod agenda;
pub(crate) mod batch;
mod buffers;
mod closing;
mod cm_queue;
mod coarse_clock;
mod completion_reader;
pub(crate) mod conn_table;
mod connection_log;
pub(crate) mod control;
mod data_op;
mod deadlines;
mod dialing;
mod directory;
pub(crate) mod event;
mod feeding;
mod fencing;
pub(crate) mod frame_reader;
mod frame_receive;
mod frames;
mod gathering;
pub(crate) mod headers;
mod hub_state;
pub(crate) mod in_flight_max;
mod lateness;
mod later;
mod leases;
pub(crate) mod line;
mod long_buffer;
mod long_pool;
mod long_receive;
mod long_send;
mod marks;
mod outbound;
pub(crate) mod outgoing;
mod pair;
mod peer;
mod peer_controls;
mod peer_operations;
mod peer_receives;
pub(crate) mod pool_waker;
pub(crate) mod posted;
mod posting;
mod received;
pub(crate) mod received_frame;
mod recent_lease;
pub(crate) mod scoped;
mod sends;
mod settings;
mod shared;
mod shared_receives;
mod staging_client;
mod status;
mod subscriptions;
#[cfg(all(test, not(loom)))]
mod tests;
mod timer;
mod windows;

pub(crate) use sends::{OnAbandoned, OutboundSettings};
pub(crate) use settings::{CONTROLS_PER_CONNECTION, HubSettings, RESERVE, Receives};
pub(crate) use subscriptions::SubscriptionEvent;
pub(crate) use windows::WindowSettings;

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

/// A link, and every peer that it is connected to: by connections that it accepted, or made.
pub(crate) struct Hub<L: Link, E: HubEvent = ReceiveEvent> {
    settings: HubSettings,
    peers: ConnTable<Peer<L::Conn>>,
    directory: Directory,
    agenda: Agenda,
    cm: CmQueue<L::Request>,
    in_flight: InFlight<Op>,
    cq: CompletionReader,
    stats: ReceivesCounted,
    /// Its entry among all that is watched.
    watched: WatchedCells<EndpointCells>,
    timer: HubTimer,
    state: HubState,
    log: ConnectionLog,
    /// In the RDM form.
    shared: Option<Shared<L::Conn>>,
    buffers: HubBuffers,
    wait: Arc<EndpointWait>,
    outbound: Outbound,
    /// For the layer above, which takes it after each poll.
    subscription_events: Vec<(ConnectionId, SubscriptionEvent)>,
    exposed: ExposedWindows,
    fencing: Fencing,
    long: Option<LongPool>,
    link: L,
    /// The face's type of events.
    face: PhantomData<fn() -> E>,
}

impl<L: Link, E: HubEvent> Hub<L, E> {
    pub(crate) fn listen(
        mut link: L,
        waiter: Arc<dyn LinkWait>,
        clock: Clock,
        pool: impl Into<PoolShare>,
        mut settings: HubSettings,
    ) -> Result<Self, Error> {
        link.read_clock(&clock);
        let wait = Arc::new(EndpointWait::new(waiter, clock.clone())?);
        let buffers = HubBuffers::new(pool.into(), &settings, &link, &wait)?;
        let shared = share(&link, &buffers.share, &buffers.control)?;
        let capacity = u32::try_from(buffers.share.most())
            .unwrap_or(u32::MAX)
            .saturating_add(settings.controls(&link));
        let WatchedAs { kind, name } = settings.watched.clone();
        let watched = WatchedCells::<EndpointCells>::new(kind, name.as_deref());
        let cells = watched.share();
        let outbound = Outbound::new(&mut settings, &link, &wait, &clock, cells)?;
        let limits = link.limits();
        let (windows, rma) = (settings.windows.windows, limits.rma.as_ref());
        let long = settings.long.clone().filter(|_| rma.is_some());
        let copies = rma.is_some_and(|rma| rma.access_ends == AccessEnds::WithEndpoint);
        let long = long.map(|long| LongPool::new(long, copies, &wait));
        let mut hub = Self {
            peers: ConnTable::new(),
            directory: Directory::default(),
            agenda: Agenda::default(),
            cq: CompletionReader::new(u64::from(capacity) + outbound.posted.capacity()),
            cm: CmQueue::new(clock.now() + settings.handshake_timeout),
            in_flight: InFlight::new(capacity, limits.contexts),
            stats: ReceivesCounted(watched.share()),
            watched,
            log: ConnectionLog::new(clock.now()),
            timer: HubTimer::new(clock),
            state: HubState::default(),
            shared,
            buffers,
            outbound,
            subscription_events: Vec::new(),
            exposed: ExposedWindows::new(windows, &wait, link.ledger(), rma),
            fencing: Fencing::default(),
            long: long.transpose()?,
            wait,
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
            false => self.outbound.account.stats.read(),
        };
        let stats = self.stats.read();
        let parts = match stats.packed.frames {
            0 => PartsHeld::default(),
            _ => self.buffers.share.pool().parts_held(),
        };
        ReceiveStats {
            packed: PackedReceives {
                frames_held: parts.buffers,
                messages_held: parts.handles,
                ..stats.packed
            },
            one_sided: OneSidedStats {
                posted: one_sided.posted,
                completed: one_sided.completed,
                failed: one_sided.failed,
                in_flight: one_sided.in_flight,
            },
            quarantined: self.exposed.quarantined() as u64,
            ..stats
        }
    }

    /// Its entry among all that is watched.
    pub(crate) fn watched(&self) -> &WatchedPlace {
        self.watched.place()
    }

    pub(crate) fn wait(&self) -> &Arc<EndpointWait> {
        &self.wait
    }

    /// The clock by which the hub judges deadlines.
    pub(crate) fn clock(&self) -> &Clock {
        self.timer.clock()
    }

    pub(crate) fn pool(&self) -> &SharedBufferManager {
        self.buffers.share.pool()
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

    /// [Drives](Self::drive) all connections; an error when the endpoint has failed, for good.
    pub(crate) fn poll(&mut self, events: &mut Vec<E>) -> Result<(), Error> {
        self.drive(events);
        self.state
            .failed
            .map_or(Ok(()), |reason| Err(Error::EndpointFailed(reason)))
    }

    /// Drives all connections and appends what happened. An endpoint that failed has ended its
    /// connections, and says so by their events.
    #[inline(always)]
    pub(crate) fn drive(&mut self, events: &mut Vec<E>) {
        let look_everywhere = self.wait.begin_poll();
        if let Some(reason) = self.state.failed {
            // Whoever still asks is refused, as long as there is a queue to hear of it.
            if reason != EVENT_QUEUE_BROKE {
                self.read_cm(events);
            }
            // Nothing is timed any more: who sleeps until a deadline that was armed before, and is
            // over, would never sleep again.
            self.wait.set_deadline(None);
            // Nor is anything posted any more.
            self.wait.set_unsent(false);
            self.outbound.forget_gathering();
            // It may have failed outside a poll.
            self.act_and_end(events);
            return self.give_up_ended(reason, events);
        }
        if look_everywhere {
            self.revoke_abandoned();
        }
        if self.outbound.frames.as_ref().is_some_and(Frames::has_open) {
            self.flush();
        }
        if self.outbound.is_gathering() {
            self.let_go_gathered();
        }
        let found = self.read_completions(events);
        let is_due = self.cm.is_due(found, self.directory.has_handshakes());
        let look_at_cm = look_everywhere || is_due;
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
        !self.agenda.is_empty()
            || self.outbound.retry
            || self.timer.is_stale()
            || !self.cq.marks.is_empty()
            || !self.buffers.hungry.is_empty()
            || self.outbound.deadlines.has_moved()
            || self.long.as_ref().is_some_and(LongPool::is_awaited)
            || self.shared.as_ref().is_some_and(|s| s.receives.lacks())
            || found > 0 && self.outbound.has_refused()
            || self.timer.wants_look(found)
    }

    /// Everything but the completion queue.
    #[inline(never)]
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
        let retried =
            std::mem::take(&mut self.agenda.retry) | std::mem::take(&mut self.outbound.retry);
        if retried {
            self.agenda.touch_unsent();
            self.drive_lines(events);
        }
        if !self.buffers.hungry.is_empty() || self.shared.is_some() {
            self.feed(events);
        }
        self.feed_long();
        self.act_on_touched(events);
        if !self.cq.marks.is_empty() {
            self.act_and_end(events);
        }
        self.mind_fences(look_everywhere, events);
        if found > 0 || look_everywhere || retried {
            self.outbound.tell_shared(&mut self.peers, events);
        }
        // With none in flight, no registration is kept open.
        self.outbound.outgoing.rest();
        if self.outbound.deadlines.take_moved() | self.timer.take_stale() {
            self.arm_timer();
        } else if self.agenda.retry || self.outbound.retry || retried || self.shared.is_some() {
            self.set_timer();
        }
    }

    fn touch(&mut self, id: ConnectionId) {
        self.agenda.touch(id);
    }

    fn act_on_touched(&mut self, events: &mut Vec<E>) {
        while let Some(id) = self.agenda.pop_touched() {
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
                    self.subscription_events
                        .push((id, SubscriptionEvent::Asked(request)));
                }
                Action::SubscriptionAnswered { request, answer } => {
                    self.tell_answer(id, SubscriptionEvent::Answered(request, answer));
                }
            }
        }
        self.leave_domain(id);
        if let Some(peer) = self.peers.get_mut(id) {
            let deadline = peer.next_deadline();
            self.timer.on_deadline(deadline);
            peer.liveness.timed = deadline.is_some();
            if peer.outbound.waits_alone() {
                self.outbound.tell_writable((id, peer), events);
            }
        }
    }
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
