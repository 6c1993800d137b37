//! `SendCore`: what a send endpoint does, over any link.

#![allow(unsafe_code)]

use crate::Error;
use crate::buffer::{BufferMut, HeaderSlotManager, Payload};
use crate::clock::Clock;
use crate::contain::{contain, say};
use crate::endpoint::core::control::{
    CONTROL_RECEIVES, CONTROL_RETRY, CONTROL_SENDS, ControlBuffers, HeldDescriptor, post_control,
};
use crate::endpoint::core::deadlines::Deadlines;
use crate::endpoint::core::jiffies::Jiffies;
use crate::endpoint::core::line::{Line, LineState, PIECES_IN_FLIGHT};
use crate::endpoint::core::long_send::PIECES_MAX;
use crate::endpoint::core::outgoing::{self, DataOp, Header, Outgoing, PostingContext};
use crate::endpoint::core::posted::{MessageOp, PieceOp, Posted};
use crate::endpoint::core::scoped::ScopedRegistrations;
use crate::endpoint::error::{Blocked, Refused, SendErrorKind};
use crate::endpoint::event::{
    ConnectionEvent, ConnectionInfo, DeadlinePolicy, Inject, Level, SendEvent,
};
use crate::endpoint::link::backlog::Backlog;
use crate::endpoint::link::iov::IovList;
use crate::endpoint::link::socket::{KernelWatch, TcpWatch};
use crate::endpoint::link::wait::{EndpointWait, LinkWait};
use crate::endpoint::link::{
    COMPLETION_BATCH, CloseFailed, CmEvent, Completions, Link, LinkCompletion, LinkConn,
    LinkLimits, PEER_WROTE, PostRefused,
};
use crate::endpoint::staging::StagingRing;
use crate::endpoint::windows::exposed::ExposedWindows;
use crate::endpoint::windows::one_sided::OneSided;
use crate::error::{CompletionError, FabricErrno};
use crate::fabric::PeerAddr;
use crate::fabric::Shape;
use crate::id::EndpointId;
use crate::in_flight::{ContextError, ContextKind, InFlight};
use crate::protocol::connection::{
    self, Action, Arrival, CloseReason, Connection, Form, LocalParams, State,
};
use crate::protocol::liveness::{KernelBytes, Patience};
use crate::protocol::wire::{
    self, ByeReason, CONTROL_LEN_MAX, ControlBody, ControlKind, HeaderMode,
};
use crate::stats::{self, SendStats};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

mod later;
mod posting;
mod status;
mod windows;

pub use status::SendStatus;

/// Empty reads of the completion queue between two looks at the event queue. The latter costs a
/// system call on tcp, and what it brings is rare; a sleeper that was woken looks at once.
const CM_INTERVAL: u32 = 64;

/// Events of the connection manager that one poll takes, at most.
const CM_EVENTS_MAX: usize = 64;

/// Reads of the completion queue, beyond one for each operation in flight, when the connection
/// ends: for writes of its peer that wait there.
const STRANGE_READS_MAX: usize = 256;

/// Polls between two looks at the clock while something comes in each of them and no send is timed.
const CLOCK_INTERVAL: u32 = 64;

/// What the core needs to know; checked by the public configuration.
pub(crate) struct SendSettings {
    pub(crate) depth: u32,
    pub(crate) level: Level,
    pub(crate) connect_timeout: Duration,
    pub(crate) close_timeout: Duration,
    pub(crate) send_deadline: Option<Duration>,
    pub(crate) deadline_policy: DeadlinePolicy,
    pub(crate) header_mode: HeaderMode,
    /// None: what the provider's limit on segments allows.
    pub(crate) shape: Option<Shape>,
    pub(crate) inject: Inject,
    /// Windows that this side may expose at once.
    pub(crate) windows: u32,
    pub(crate) patience: Patience,
    pub(crate) watch: TcpWatch,
    /// For payloads in a GPU's memory that the provider can't read.
    pub(crate) staging: Option<StagingRing>,
    pub(crate) on_abandoned: Option<Box<dyn FnMut(u64) + Send>>,
}

impl SendSettings {
    /// Pieces in flight at once, of long messages and one-sided operations.
    pub(crate) fn pieces(&self) -> u32 {
        let one_sided = u32::from(self.staging.is_some()) * PIECES_IN_FLIGHT;
        PIECES_MAX + one_sided
    }
}

/// A receive or a control message in flight, with what must stay alive until it is over.
enum ControlOp {
    Send {
        kind: ControlKind,
        _buffer: BufferMut,
    },
    Receive {
        buffer: BufferMut,
    },
}

/// One connection to one peer, and the sends on it.
pub(crate) struct SendCore<L: Link> {
    id: EndpointId,
    settings: SendSettings,
    machine: Connection,
    /// The provider's endpoint; gone once it is closed. Closed before anything below is dropped
    /// (`Drop`).
    conn: Option<L::Conn>,
    peer_addr: PeerAddr,
    in_flight: InFlight<ControlOp>,
    posted: Posted,
    /// Sends and one-sided operations in flight, control messages not counted.
    data_in_flight: u32,
    outgoing: Outgoing,
    stats: SendStats,
    /// What the last refused send waits for; tell when it has passed.
    blocked: Option<Blocked>,
    /// A control message that the provider's full queue did not take.
    unsent: Option<(u32, ControlBody)>,
    /// When a send was refused because another header was in front of its buffer.
    room_refused: Option<Instant>,
    /// The transport is gone; what it delivered before has still to be read.
    shut_down: bool,
    /// The time of the last look at the clock.
    now: Instant,
    deadlines: Deadlines,
    polls_without_cm: u32,
    polls_without_clock: u32,
    jiffies: Jiffies,
    clock: Clock,
    /// What a connection that ended while it was begun has to tell: in the next poll.
    early: Vec<SendEvent>,
    /// More came than sends that are done: the connection may want something.
    eventful: bool,
    /// When the machine wants to be looked at, as of the last poll.
    machine_deadline: Option<Instant>,
    kernel_bytes: KernelBytes,
    backlog: Backlog,
    kernel_watch: KernelWatch,
    /// There is no connection, but another one will be made.
    between: bool,
    completions: Completions,
    header_desc: HeldDescriptor,
    control_desc: HeldDescriptor,
    scoped: ScopedRegistrations,
    control: ControlBuffers,
    wait: Arc<EndpointWait>,
    headers_waker: crate::buffer::WakerId,
    /// One-sided operations posted so far.
    one_sided_posts: u64,
    /// What was accepted and can't be posted yet, or goes piece by piece.
    line: Line,
    exposed: ExposedWindows,
    /// The last epoch that the machine was told of.
    fence_asked: u64,
    link: L,
}

impl<L: Link> SendCore<L> {
    /// Makes the connection's endpoint and starts to connect.
    pub(crate) fn connect(
        mut link: L,
        waiter: Arc<dyn LinkWait>,
        clock: Clock,
        peer: PeerAddr,
        headers: HeaderSlotManager,
        settings: SendSettings,
    ) -> Result<Self, Error> {
        let shape = outgoing::choose_shape(settings.shape, link.limits())?;
        let now = clock.now();
        let control = ControlBuffers::for_hellos(CONTROL_RECEIVES + CONTROL_SENDS)?;
        let conn = link.prepare_connect(&peer)?;
        let mut scoped = ScopedRegistrations::new(&conn, link.registrar());
        let registrar = conn.registrar().unwrap_or_else(|| link.registrar());
        let header_desc = scoped.hold(headers.region(), registrar)?;
        let control_desc = scoped.hold(control.region(), registrar)?;
        let connection = crate::endpoint::hello_connection(link.form(), conn.key());
        let params = local_params(&settings, shape, link.limits(), connection);
        let machine = Connection::initiate(link.form(), params, now);
        let wait = Arc::new(EndpointWait::new(waiter, clock.clone())?);
        let rma = link.limits().rma.as_ref();
        let exposed = ExposedWindows::new(settings.windows, &wait, link.ledger(), rma);
        let waker = Arc::clone(&wait);
        let headers_waker = headers.add_waker(Arc::new(move || waker.wake()));
        let id = EndpointId::next();
        let (mode, level) = (settings.header_mode, settings.level);
        let how = (shape, settings.inject);
        let staging = settings.staging.clone().map(|ring| {
            let waker = Arc::clone(&wait);
            let waker = ring.add_waker(Arc::new(move || waker.wake()));
            (ring, waker)
        });
        let outgoing = Outgoing::new(id, headers, mode, level, how, link.limits(), staging);
        let sends = settings.depth * (1 + u32::from(shape == Shape::TwoMessages));
        let controls = CONTROL_RECEIVES + CONTROL_SENDS;
        let contexts = link.limits().contexts;
        let mut core = Self {
            id,
            machine,
            conn: Some(conn),
            peer_addr: peer,
            in_flight: InFlight::new(controls, contexts),
            posted: Posted::new(sends, settings.depth, settings.pieces(), contexts),
            data_in_flight: 0,
            outgoing,
            stats: SendStats::default(),
            blocked: None,
            unsent: None,
            room_refused: None,
            shut_down: false,
            now,
            deadlines: Deadlines::new(settings.send_deadline, settings.deadline_policy, &clock),
            polls_without_cm: 0,
            polls_without_clock: 0,
            jiffies: Jiffies::new(&clock),
            clock,
            early: Vec::new(),
            eventful: true,
            machine_deadline: None,
            kernel_bytes: KernelBytes::default(),
            backlog: Backlog::new((controls + sends).into()),
            kernel_watch: KernelWatch::NotAsked,
            between: false,
            completions: Vec::with_capacity(COMPLETION_BATCH),
            header_desc,
            control_desc,
            scoped,
            control,
            wait,
            headers_waker,
            one_sided_posts: 0,
            line: Line::default(),
            exposed,
            fence_asked: 0,
            link,
            settings,
        };
        core.start();
        Ok(core)
    }

    /// What a connection begins with: receives for the peer's control messages, and the hello.
    fn start(&mut self) {
        for _ in 0..CONTROL_RECEIVES {
            self.post_control_receive();
        }
        // The provider may refuse it at once, as tcp does an address that its own has no way to:
        // the next poll tells.
        let mut early = std::mem::take(&mut self.early);
        self.act(&mut early);
        self.early = early;
        self.arm_timer();
        if !self.early.is_empty() {
            self.wait.wake();
        }
    }

    /// Whether another connection can be made in the place of the one that ended.
    pub(crate) fn can_reconnect(&self) -> bool {
        self.conn.is_none() && self.stats.leaked == 0
    }

    /// Between two connections, sends are refused as back-pressure.
    pub(crate) fn set_between(&mut self, between: bool) {
        self.between = between;
    }

    /// Makes another connection to the same peer, over the same queues, after the last one ended.
    pub(crate) fn reconnect(&mut self) -> Result<(), Error> {
        debug_assert!(self.can_reconnect(), "asked first");
        let conn = self.link.prepare_connect(&self.peer_addr)?;
        let mut scoped = ScopedRegistrations::new(&conn, self.link.registrar());
        let registrar = conn.registrar().unwrap_or_else(|| self.link.registrar());
        self.header_desc = scoped.hold(self.outgoing.headers().region(), registrar)?;
        self.control_desc = scoped.hold(self.control.region(), registrar)?;
        self.scoped = scoped;
        self.conn = Some(conn);
        self.now = self.clock.now();
        let key = self.conn.as_ref().map_or(0, LinkConn::key);
        let connection = crate::endpoint::hello_connection(self.link.form(), key);
        let params = local_params(
            &self.settings,
            self.outgoing.shape(),
            self.link.limits(),
            connection,
        );
        self.machine = Connection::initiate(self.link.form(), params, self.now);
        self.unsent = None;
        self.line.clear_messages();
        self.shut_down = false;
        self.deadlines.forget();
        self.kernel_bytes = KernelBytes::default();
        self.start();
        Ok(())
    }

    pub(crate) fn id(&self) -> EndpointId {
        self.id
    }

    pub(crate) fn stats(&self) -> SendStats {
        SendStats {
            in_flight: u64::from(self.data_in_flight),
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

    pub(crate) fn conn(&self) -> Option<&L::Conn> {
        self.conn.as_ref()
    }

    pub(crate) fn headers(&self) -> &HeaderSlotManager {
        self.outgoing.headers()
    }

    pub(crate) fn state(&self) -> State {
        self.machine.state()
    }

    pub(crate) fn close_reason(&self) -> Option<CloseReason> {
        self.machine.close_reason()
    }

    /// Keys of sends in flight.
    pub(crate) fn pending(&self) -> Vec<u64> {
        let one_sided = self.posted.one_sided.iter().chain(self.line.ops());
        let one_sided = one_sided.map(|op| op.key);
        let long = self.line.long().map(|long| long.key);
        let data = self.posted.sends();
        data.map(|op| op.key).chain(one_sided).chain(long).collect()
    }

    // ---- sending --------------------------------------------------------------------------------

    /// Posts one message, or gives everything back.
    #[inline]
    pub(crate) fn send_data(
        &mut self,
        payload: Payload,
        header: &[u8],
        key: u64,
    ) -> Result<(), Refused<Payload>> {
        let len = match self.admit(&payload, header.len()) {
            Ok(len) => len,
            Err(SendErrorKind::TooLong { len, .. }) if self.sends_long() => {
                return self.send_long((payload, header, key, len));
            }
            Err(kind) => return self.send_later(kind, payload, header, key),
        };
        let mut iov = IovList::new();
        let context = match self.load(payload, header, key, &mut iov) {
            Ok(context) => context,
            Err((kind, payload)) => return self.send_later(kind, payload, header, key),
        };
        match self.outgoing.shape() {
            Shape::TwoMessages => self.post_pair(context, iov, len),
            Shape::Iov | Shape::Headroom => self.post(context, &iov, len),
        }
    }

    /// Takes all that a message needs that was admitted, and puts it into the slab; its context.
    #[inline]
    fn load(
        &mut self,
        payload: Payload,
        header: &[u8],
        key: u64,
        iov: &mut IovList,
    ) -> Result<usize, (SendErrorKind, Payload)> {
        let posted = self.posted_at();
        let lane = PostingContext {
            connection: self.connection_id(),
            conn: self.conn.as_ref(),
            scoped: &mut self.scoped,
            header_desc: self.header_desc.desc(),
            sequence: self.machine.sent(),
            posted,
            iov,
        };
        let slab = &mut self.posted.messages;
        self.outgoing
            .load(slab, payload, Header::Bytes(header), key, lane)
    }

    /// Everything that can be said of a message before anything is taken for it. Gives its length
    /// in bytes.
    #[inline]
    fn admit(&self, payload: &Payload, header_len: usize) -> Result<u64, SendErrorKind> {
        self.machine
            .may_send()
            .map_err(|blocked| self.blocked(blocked))?;
        if self.line.messages() != LineState::Open {
            // What waits is before every other.
            return Err(SendErrorKind::WouldBlock(Blocked::Provider));
        }
        let peer_max = self.machine.peer_receive_size();
        let len = self.outgoing.measure(payload, header_len, peer_max)?;
        if self.data_in_flight >= self.settings.depth {
            return Err(SendErrorKind::WouldBlock(Blocked::Depth));
        }
        Ok(len)
    }

    fn blocked(&self, blocked: connection::SendBlocked) -> SendErrorKind {
        match outgoing::refusal(blocked, self.machine.close_reason()) {
            SendErrorKind::Closed(_) if self.between => {
                SendErrorKind::WouldBlock(Blocked::Connecting)
            }
            kind => kind,
        }
    }

    /// The time that a send of now counts its deadline from, where there is one.
    #[inline]
    fn posted_at(&mut self) -> Option<Instant> {
        let alone = self.data_in_flight == 0;
        self.deadlines.stamp(&self.clock, alone)
    }

    #[inline]
    fn post(&mut self, context: usize, iov: &IovList, len: u64) -> Result<(), Refused<Payload>> {
        let (link, conn) = (&mut self.link, self.conn.as_ref());
        match self
            .outgoing
            .post(link, conn, &mut self.machine, context, iov)
        {
            Ok(()) => {
                self.count_posted(len);
                Ok(())
            }
            Err(refused) => Err(self.undo_post(context, refused)),
        }
    }

    #[inline]
    fn count_posted(&mut self, len: u64) {
        self.data_in_flight += 1;
        self.stats.posted += 1;
        self.stats.bytes += len;
        self.stats.in_flight_max = self.stats.in_flight_max.max(self.data_in_flight.into());
    }

    /// Takes a post back that the provider did not take.
    #[cold]
    fn undo_post(&mut self, context: usize, refused: PostRefused) -> Refused<Payload> {
        let MessageOp::Data(mut op) = self.posted.messages.abort(context) else {
            unreachable!("the context is the one of `post`");
        };
        let (key, payload) = self.outgoing.end(&mut op);
        self.stats.eagain += u64::from(refused == PostRefused::Again);
        self.refuse(outgoing::refused_by_provider(refused), payload, key)
    }

    #[cold]
    fn refuse(&mut self, kind: SendErrorKind, payload: Payload, key: u64) -> Refused<Payload> {
        if let SendErrorKind::WouldBlock(blocked) = kind {
            self.stats.would_block += 1;
            self.blocked = Some(blocked);
            // Another endpoint may hold all the slots: its release must wake us. Released between
            // the refusal and the arming: nobody would.
            if blocked == Blocked::HeaderSlots && self.outgoing.headers().arm(self.headers_waker) {
                self.wait.wake();
            }
            if blocked == Blocked::Staging && self.outgoing.arm_staging() {
                self.wait.wake();
            }
            if blocked == Blocked::HeaderRoom {
                // The next poll sets the timer.
                self.room_refused = Some(self.clock.now());
                self.wait.wake();
            }
        } else {
            self.stats.refused += 1;
        }
        Refused {
            kind,
            given: payload,
            key,
        }
    }

    // ---- polling --------------------------------------------------------------------------------

    /// Drives the connection and appends what happened.
    pub(crate) fn poll(&mut self, events: &mut Vec<SendEvent>) -> Result<(), Error> {
        let look_everywhere = self.wait.begin_poll();
        if self.conn.is_none() {
            events.append(&mut self.early);
            self.release_passed(events);
            return Ok(());
        }
        if look_everywhere {
            self.revoke_abandoned();
            self.ask_fence();
        }
        let found = self.read_completions(events);
        let look_at_cm = look_everywhere || self.cm_is_due(found);
        if look_at_cm || self.wants_more(found) {
            self.look_around(found, look_at_cm, events);
            return Ok(());
        }
        if self.data_in_flight == 0 {
            self.outgoing.rest();
        }
        if found > 0 {
            self.tell_writable(events);
        }
        Ok(())
    }

    /// Whether a poll that found so many completions has more to do than to report sends that are
    /// done. Most have not, and what they don't look at counts in each message.
    #[inline]
    fn wants_more(&mut self, found: usize) -> bool {
        let waits = self.eventful
            || self.deadlines.has_moved()
            || self.shut_down
            || self.blocked.is_some_and(may_pass_by_itself)
            || self.unsent.is_some()
            || !self.line.is_empty();
        if waits || self.polls_without_clock + 1 >= CLOCK_INTERVAL {
            return true;
        }
        if found == 0 || self.deadlines.next().is_some() {
            return self.jiffies.moved(&self.clock);
        }
        self.polls_without_clock += 1;
        false
    }

    /// Everything but the completion queue.
    fn look_around(&mut self, found: usize, look_at_cm: bool, events: &mut Vec<SendEvent>) {
        if look_at_cm {
            self.read_cm();
        }
        if !self.line.is_empty() {
            self.drive_line(events);
        }
        let eventful = std::mem::take(&mut self.eventful);
        if std::mem::take(&mut self.shut_down) {
            // The peer's goodbye may still be in the queue.
            self.read_out(|this| this.machine.state() == State::Closed, events);
            self.machine.on_lost(None);
        }
        let due = self.look_at_clock(found == 0 || look_at_cm);
        if eventful
            || found > 0
            || look_at_cm
            || due
            || self.unsent.is_some()
            || self.machine.state() != State::Established
        {
            self.act(events);
        }
        self.release_passed(events);
        if self.data_in_flight == 0 {
            self.outgoing.rest();
        }
        self.check_deadlines(events);
        self.tell_writable(events);
        self.arm_timer();
    }

    /// Looks at the clock once for all that is timed; while messages come all the time and no send
    /// is timed, not on each poll. True: a deadline of the connection passed.
    #[inline]
    fn look_at_clock(&mut self, idle: bool) -> bool {
        let sends = self.deadlines.next().is_some();
        self.polls_without_clock += 1;
        let machine = idle || self.polls_without_clock >= CLOCK_INTERVAL;
        let timed = machine && self.machine_deadline.is_some();
        if !sends && !timed {
            return false;
        }
        self.now = self.clock.now();
        let due = self.machine_deadline.is_some_and(|at| at <= self.now);
        if due || machine {
            self.tick(due);
        }
        due
    }

    fn tick(&mut self, due: bool) {
        self.polls_without_clock = 0;
        if due {
            self.ask_kernel();
            if !self.backlog.is_read() {
                self.machine.postpone(self.now);
            }
        }
        self.machine.tick(self.now);
    }

    /// Before a silent peer is judged: part of a message may have come.
    #[cold]
    fn ask_kernel(&mut self) {
        if let (Some(since), Some(conn)) = (self.machine.silent_since(), &mut self.conn)
            && let Some(count) = self.link.bytes_received(conn)
            && self.kernel_bytes.came(since, count)
        {
            self.machine.on_bytes();
        }
    }

    fn cm_is_due(&mut self, found: usize) -> bool {
        if self.machine.state() != State::Established {
            return true;
        }
        self.polls_without_cm = if found > 0 {
            0
        } else {
            self.polls_without_cm + 1
        };
        self.polls_without_cm.is_multiple_of(CM_INTERVAL) && found == 0
    }

    /// One batch of completions.
    fn read_completions(&mut self, events: &mut Vec<SendEvent>) -> usize {
        self.stats.cq_reads += 1;
        let read = self.link.poll_completions(&mut self.completions);
        let found = self.completions.len();
        self.backlog.on_read(found);
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
            self.machine
                .abort(CloseReason::EndpointFailed("the completion queue broke"));
        }
        found
    }

    /// Reads what is in the queue now: until it is at its end, or `over`, or as often as what is in
    /// flight can fill it. So a peer that fills it as fast as it is read does not keep this poll.
    fn read_out(&mut self, over: impl Fn(&Self) -> bool, events: &mut Vec<SendEvent>) {
        let in_flight = self.in_flight.len() + self.posted.len();
        for _ in 0..in_flight + STRANGE_READS_MAX {
            if over(self) || self.read_completions(events) == 0 {
                return;
            }
        }
    }

    #[inline]
    fn on_completion(&mut self, completion: LinkCompletion, events: &mut Vec<SendEvent>) {
        let LinkCompletion {
            context,
            len,
            data,
            error,
        } = completion;
        let Ok(mut finished) = self.posted.messages.finish_in_place(context) else {
            if error.is_some() || !self.on_one_sided_done(context, events) {
                self.on_other(context, (len, data), error, events);
            }
            return;
        };
        match (finished.op(), &error) {
            // What most of them are, without a move.
            (Some(MessageOp::Data(op)), None) if op.header.is_none() => {
                let (key, payload) = self.outgoing.end(op);
                finished.clear_away();
                self.count_sent();
                events.push(SendEvent::Completed { key, payload });
            }
            _ => {
                let op = finished.into_op();
                self.eventful = true;
                self.on_over(op, error, events);
            }
        }
    }

    /// A completion of another slab's.
    fn on_other(
        &mut self,
        context: usize,
        (len, data): (usize, Option<u64>),
        error: Option<Box<CompletionError>>,
        events: &mut Vec<SendEvent>,
    ) {
        self.eventful = true;
        if let Ok(op) = self.in_flight.finish(context) {
            return self.on_control_over(op, len, data, error);
        }
        match self.posted.one_sided.finish(context) {
            Ok(op) => self.on_one_sided(op, error.map(|error| *error), events),
            Err(_) if context == PEER_WROTE && data.is_some() => self.on_peer_wrote(data, events),
            Err(reason) => match self.posted.pieces.finish(context) {
                Ok(PieceOp::Long(_)) => self.on_long_piece(error, events),
                Ok(PieceOp::OneSided(piece)) => {
                    self.on_one_sided_piece(piece, error.map(|error| *error), events);
                }
                Err(_) => self.on_unknown(context, reason, error),
            },
        }
    }

    fn on_control_over(
        &mut self,
        op: ControlOp,
        len: usize,
        data: Option<u64>,
        error: Option<Box<CompletionError>>,
    ) {
        match (op, error) {
            (ControlOp::Send { kind, .. }, None) => self.machine.on_control_done(kind),
            (ControlOp::Send { .. }, Some(error)) => self.machine.on_lost(Some(error.errno)),
            (ControlOp::Receive { buffer }, None) => self.on_control(&buffer, len, data),
            (ControlOp::Receive { .. }, Some(error)) => self.on_control_receive_failed(error.errno),
        }
    }

    /// A message, or a part of one, is over that is no plain send.
    fn on_over(
        &mut self,
        op: Option<MessageOp>,
        error: Option<Box<CompletionError>>,
        events: &mut Vec<SendEvent>,
    ) {
        match op {
            // Its header travelled alone and is not over, as far as is known.
            Some(MessageOp::Data(op)) => {
                if let Some(op) = self.posted.on_payload(op, error.is_some()) {
                    self.on_sent(op, error, events);
                }
            }
            Some(MessageOp::Header(op)) => {
                let (slot, payload) = self.posted.on_header(op);
                self.outgoing.end_header(slot);
                match (payload, error) {
                    (Some(op), error) => self.on_sent(op, error, events),
                    // The payload has its outcome when the connection ends, of this.
                    (None, Some(error)) => self.machine.on_lost(Some(error.errno)),
                    (None, None) => {}
                }
            }
            None => {}
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
        if self.link.form() == Form::Rdm && error.is_some() {
            return tracing::debug!(
                context,
                ?reason,
                ?error,
                "a failure that names no operation"
            );
        }
        tracing::error!(context, ?reason, "a completion that names no operation");
        self.machine.abort(CloseReason::EndpointFailed(
            "a completion named no operation in flight",
        ));
    }

    /// While connecting, the event queue knows more: the reason, with the refusal. libfabric 2.x
    /// cancels the receives of a refused endpoint, and the completion queue is read first. The
    /// connect timeout bounds the wait for the event.
    #[cold]
    fn on_control_receive_failed(&mut self, errno: FabricErrno) {
        if self.link.form() == Form::Rdm {
            // Whoever sends can end a receive like this, with a message that is too long: it says
            // nothing of the peer.
            tracing::debug!(%errno, "a control receive failed");
            return self.post_control_receive();
        }
        if self.machine.state() == State::Connecting {
            self.read_cm();
        }
        if self.machine.state() != State::Connecting {
            self.machine.on_lost(Some(errno));
        }
    }

    #[inline]
    fn count_sent(&mut self) {
        self.data_in_flight -= 1;
        self.machine.on_data_done();
        self.stats.completed += 1;
    }

    fn on_sent(
        &mut self,
        mut op: DataOp,
        error: Option<Box<CompletionError>>,
        events: &mut Vec<SendEvent>,
    ) {
        let (key, payload) = self.outgoing.end(&mut op);
        match error {
            None => {
                self.count_sent();
                events.push(SendEvent::Completed { key, payload });
            }
            Some(error) => {
                self.data_in_flight -= 1;
                self.machine.on_data_done();
                self.stats.failed += 1;
                self.machine.on_lost(Some(error.errno));
                let error = error.because(self.machine.close_reason());
                events.push(SendEvent::Failed {
                    key,
                    payload,
                    error,
                });
            }
        }
    }

    fn on_control(&mut self, buffer: &BufferMut, len: usize, data: Option<u64>) {
        if self.machine.state() == State::Connecting {
            // The answer came before this message, but by the other queue.
            self.read_cm();
        }
        let body = &buffer[..len.min(buffer.len())];
        match self.machine.on_message(data) {
            Some(Arrival::Control(cq_data)) => {
                self.machine.on_control(cq_data, body, self.clock.now());
            }
            // Nobody sends data to a sender: it granted no credit.
            Some(Arrival::Data) => drop(self.machine.on_data(len as u64)),
            Some(Arrival::Header) => drop(self.machine.on_header(len as u64)),
            Some(Arrival::Payload) => drop(self.machine.on_payload(len as u64)),
            None => {}
        }
        self.post_control_receive();
    }

    /// A bounded number of events; what is left makes the endpoint ready again.
    fn read_cm(&mut self) {
        self.polls_without_cm = 0;
        for _ in 0..CM_EVENTS_MAX {
            let event = match self.link.poll_cm() {
                Ok(Some(event)) => event,
                Ok(None) => return,
                Err(error) => {
                    tracing::error!(%error, "the event queue broke");
                    return self
                        .machine
                        .abort(CloseReason::EndpointFailed("the event queue broke"));
                }
            };
            let Some(key) = self.conn.as_ref().map(LinkConn::key) else {
                return;
            };
            match event {
                CmEvent::Connected { conn, data } if conn == key => {
                    self.machine.on_connected(data.as_slice())
                }
                CmEvent::Refused { conn, errno, data } if conn == key => {
                    self.machine.on_refused(errno, data.as_slice());
                }
                CmEvent::Shutdown { conn } if conn == key => self.shut_down = true,
                _ => {}
            }
        }
        self.wait.wake();
    }

    /// While one control message waits there is no next one.
    fn next_action(&mut self) -> Option<Action> {
        match self.unsent {
            Some(_) => self.machine.next_news(),
            None => self.machine.next_action(),
        }
    }

    /// Does what the connection asks for.
    fn act(&mut self, events: &mut Vec<SendEvent>) {
        if let Some((cq_data, body)) = self.unsent.take() {
            self.send_control(cq_data, &body);
        }
        while let Some(action) = self.next_action() {
            match action {
                Action::Connect { data } => self.start_connecting(&data),
                Action::SendControl { cq_data, body } => self.send_control(cq_data, &body),
                Action::Established => {
                    if let Some(conn) = &self.conn {
                        self.kernel_watch = self.link.watch(conn, &self.settings.watch);
                    }
                    events.push(SendEvent::Connection(ConnectionEvent::Connected(
                        self.info(),
                    )));
                }
                Action::Unresponsive => {
                    events.push(SendEvent::Connection(ConnectionEvent::Unresponsive))
                }
                Action::Responsive => {
                    events.push(SendEvent::Connection(ConnectionEvent::Responsive))
                }
                Action::PeerClosing { .. } => {
                    events.push(SendEvent::Connection(ConnectionEvent::PeerClosing))
                }
                Action::Close(reason) => self.close_link(reason, events),
                // Only the listening side accepts and rejects.
                Action::Accept { .. } | Action::Reject { .. } => {}
                Action::ReleaseWindow(window) => self.retire_window(window, events),
                Action::FencePassed { epoch } => self.on_fence_passed(epoch),
                Action::WindowRevoked(window) => self.on_window_revoked(window, events),
                // Not offered by this side.
                Action::SubscriptionAsked(_) | Action::SubscriptionAnswered { .. } => {}
                Action::LongGranted { base, key } => {
                    if let Some((line, mut way)) = self.way() {
                        line.on_long_granted((base, key), &mut way);
                    }
                }
                Action::LongRefused { limit } => self.on_long_refused(limit, events),
                // Whoever takes no messages is offered none: the machine sees to it.
                Action::LongOffered { .. } => self.machine.refuse_long(0),
            }
        }
    }

    fn start_connecting(&mut self, data: &[u8]) {
        let Some(conn) = &self.conn else { return };
        if let Err(error) = self.link.connect(conn, &self.peer_addr, data) {
            let errno = match error {
                Error::Fabric { errno, .. } => errno,
                _ => FabricErrno::new(libc::EIO),
            };
            self.machine.on_refused(errno, &[]);
        }
    }

    /// What was agreed; means something once the connection stands.
    pub(crate) fn info(&self) -> ConnectionInfo {
        let peer = self.machine.peer();
        ConnectionInfo {
            peer: Some(self.peer_addr),
            peer_incarnation: peer.map_or(0, |hello| hello.incarnation),
            max_message: self.outgoing.max_message(self.machine.peer_receive_size()),
            credits: peer.map_or(0, |hello| hello.credits),
            header_mode: self.settings.header_mode,
            shape: self.outgoing.shape(),
            inject: self.outgoing.inject(),
            kernel_watch: self.kernel_watch,
        }
    }

    fn post_control_receive(&mut self) {
        let Some(mut buffer) = self.control.take() else {
            return;
        };
        let (base, len, desc) = (buffer.as_mut_ptr(), buffer.len(), self.control_desc.desc());
        let Ok(context) = self.in_flight.begin(ControlOp::Receive { buffer }) else {
            return;
        };
        let Some(conn) = &self.conn else {
            drop(self.in_flight.abort(context));
            return;
        };
        // SAFETY: the slab owns the buffer until its completion was read or the endpoint was
        // closed.
        if let Err(refused) = unsafe { self.link.post_receive(conn, base, len, desc, context) } {
            // Fewer control buffers: the peer's control messages wait in the provider.
            tracing::debug!(?refused, "control receive not posted");
            drop(self.in_flight.abort(context));
        }
    }

    /// A control message that the provider has no room for waits; one that it refuses ends the
    /// connection.
    fn send_control(&mut self, cq_data: u32, body: &ControlBody) {
        match self.try_send_control(cq_data, body) {
            Err(PostRefused::Again) if self.machine.state() != State::Closed => {
                self.unsent = Some((cq_data, *body));
            }
            Err(PostRefused::Errno(errno)) => self.machine.on_lost(Some(errno)),
            Ok(()) | Err(PostRefused::Again) => {}
        }
    }

    fn try_send_control(&mut self, cq_data: u32, body: &ControlBody) -> Result<(), PostRefused> {
        let Some(conn) = &self.conn else {
            return Err(PostRefused::Errno(FabricErrno::new(libc::ENOTCONN)));
        };
        post_control(
            &mut self.link,
            conn,
            &mut self.in_flight,
            (&self.control, &self.control_desc),
            (cq_data, body),
            |kind, _buffer| ControlOp::Send { kind, _buffer },
        )
    }

    // ---- deadlines and wake-ups -----------------------------------------------------------------

    /// Looks at each send in flight when the oldest may be late.
    fn check_deadlines(&mut self, events: &mut Vec<SendEvent>) {
        // `now` is fresh: `look_at_clock` was here, since a send is timed.
        if !self.deadlines.are_due(self.now) {
            return;
        }
        let mut scan = self.deadlines.scan(self.now);
        let all = self.posted.timed().chain(self.line.timed());
        all.for_each(|op| scan.look(op));
        let late = self.deadlines.end_scan(scan);
        if self.deadlines.policy == DeadlinePolicy::Notify {
            return events.extend(late.iter().map(|op| SendEvent::Late { key: op.key }));
        }
        if let Some(deadline) = self.deadlines.limit().filter(|_| !late.is_empty()) {
            self.machine.abort(CloseReason::SendDeadline { deadline });
            self.act(events);
        }
    }

    #[inline]
    fn tell_writable(&mut self, events: &mut Vec<SendEvent>) {
        if let Some(blocked) = self.blocked {
            self.judge_blocked(blocked, events);
        }
    }

    fn judge_blocked(&mut self, blocked: Blocked, events: &mut Vec<SendEvent>) {
        let may = match blocked {
            // A one-sided operation needs no credit.
            Blocked::Depth | Blocked::Provider => self.machine.may_use_window(),
            _ => self.machine.may_send(),
        };
        if may.is_err() || self.data_in_flight >= self.settings.depth {
            return;
        }
        // Told too early, it would be refused again and again.
        let queue = match self.line.messages() {
            LineState::Open => false,
            LineState::Full => true,
            LineState::Gated => blocked == Blocked::Gate,
        };
        if queue || self.room_retry().is_some_and(|at| self.clock.now() < at) {
            return;
        }
        // A slot that woke us may be another endpoint's again: then wait for the next one.
        if blocked == Blocked::HeaderSlots
            && self.outgoing.headers().free_count() == 0
            && !self.outgoing.headers().arm(self.headers_waker)
        {
            return;
        }
        if blocked == Blocked::Staging
            && !self.outgoing.has_staging()
            && !self.outgoing.arm_staging()
        {
            return;
        }
        self.blocked = None;
        events.push(SendEvent::Writable);
    }

    fn arm_timer(&mut self) {
        let machine = self.machine.next_deadline();
        self.machine_deadline = machine;
        let late = self.deadlines.next();
        self.deadlines.take_moved();
        let unsent = self.unsent.as_ref();
        let retry = unsent.map(|_| self.clock.now() + CONTROL_RETRY);
        let line = self.line.pause().map(|pause| self.clock.now() + pause);
        let all = [machine, late, retry, line, self.room_retry()];
        self.wait.set_deadline(all.into_iter().flatten().min());
    }

    // ---- closing --------------------------------------------------------------------------------

    /// Begins the polite close: what is in flight completes, both sides say goodbye. `poll` until
    /// `Disconnected`.
    pub(crate) fn begin_close(&mut self, deadline: Instant) {
        self.machine.close(ByeReason::DONE, deadline);
        self.machine_deadline = self.machine.next_deadline();
        // Done by the next poll, which the caller is about to make: have it look at everything.
        self.wait.wake();
    }

    /// Polls until the connection is closed.
    pub(crate) fn close(&mut self, deadline: Instant) -> Result<Vec<SendEvent>, Error> {
        let mut events = Vec::new();
        self.begin_close(deadline);
        while self.conn.is_some() {
            self.poll(&mut events)?;
            if self.conn.is_some() {
                // The machine's own deadline ends the loop; the step bounds a wake-up that a
                // provider may lose.
                self.wait
                    .sleep(self.clock.now() + Duration::from_millis(100))?;
            }
        }
        events.append(&mut self.early);
        self.leave_windows(&mut events);
        Ok(events)
    }

    /// Closes the provider's endpoint and gives every operation its outcome.
    fn close_link(&mut self, reason: CloseReason, events: &mut Vec<SendEvent>) {
        let Some(conn) = self.conn.take() else { return };
        self.release_drained();
        self.close_scoped_windows(&conn);
        match self.link.close(conn) {
            Ok(()) => {
                // What the provider still reports is the better outcome; after `close` it reports
                // no more than it has.
                self.read_out(|_| false, events);
                self.fail_in_flight(reason, events);
                self.release_registrations();
                self.retire_windows(events);
            }
            Err(CloseFailed(errno)) => {
                let waiting = self.line.end_operations(&mut self.outgoing);
                self.leak(errno, events);
                // Of these the provider has nothing but slots.
                self.fail_line(waiting, &CompletionError::ended(reason), events);
            }
        }
        events.push(SendEvent::Connection(ConnectionEvent::Disconnected(reason)));
        self.wait.set_deadline(None);
        let sent = self.machine.sent();
        say(|| tracing::info!(%reason, sent, "connection closed"));
    }

    /// The provider's endpoint is closed: what it did not report is over.
    fn fail_in_flight(&mut self, reason: CloseReason, events: &mut Vec<SendEvent>) {
        let cancelled = || CompletionError::ended(reason);
        for op in self.take_sends() {
            self.on_sent(op, Some(Box::new(cancelled())), events);
        }
        self.drop_pieces();
        for op in self.posted.take_one_sided(None) {
            self.on_one_sided_unreported(op, cancelled(), events);
        }
        let waiting = self.line.end_operations(&mut self.outgoing);
        self.data_in_flight -= waiting.len() as u32;
        self.fail_line(waiting, &cancelled(), events);
        if self.line.long().is_some() {
            self.machine.on_data_done();
            self.end_long(Some(cancelled()), events);
        }
    }

    /// The provider's endpoint is closed: the sends that it did not report. Nothing else is in
    /// flight any more.
    fn take_sends(&mut self) -> Vec<DataOp> {
        self.in_flight.drain().for_each(drop);
        self.line.clear_messages();
        self.posted.take_messages(None, &self.outgoing)
    }

    /// The same for what pieces hold, which is free.
    fn drop_pieces(&mut self) {
        let rma = self.link.limits().rma;
        self.posted.drop_pieces(None, rma.as_ref());
    }

    /// The provider may still read the buffers of operations in flight, for ever: their memory is
    /// given up.
    fn leak(&mut self, errno: FabricErrno, events: &mut Vec<SendEvent>) {
        let leaked = self.forget_in_flight();
        self.stats.leaked += leaked.operations;
        self.stats.failed += (leaked.keys.len() + leaked.one_sided.len()) as u64;
        self.data_in_flight = 0;
        let error = || CompletionError {
            provider_message: "fi_close refused; the payload is leaked".to_owned(),
            ..CompletionError::new(errno.get())
        };
        for key in leaked.keys {
            events.push(SendEvent::Failed {
                key,
                payload: Payload::empty(),
                error: error(),
            });
        }
        for (_, key, write) in leaked.one_sided {
            events.push(SendEvent::Window(OneSided::leaked(key, write, error())));
        }
    }

    /// Registrations that belong to the endpoint are closed before it, when nothing uses them any
    /// more. Receives for control messages are always posted, so theirs are closed behind it.
    fn release_drained(&mut self) {
        if self.data_in_flight == 0 {
            self.outgoing.rest();
            self.header_desc.release();
            self.scoped.close();
        }
    }

    /// The endpoint is closed: nothing of ours is registered for it any more.
    fn release_registrations(&mut self) {
        self.outgoing.rest();
        self.header_desc.release();
        self.control_desc.release();
        self.scoped.close();
    }

    /// RDM form: no transport tells the peer that this side is gone, so a last message does, if it
    /// is taken at once.
    fn tell_peer(&mut self) {
        if self.link.form() == Form::Msg || self.machine.state() == State::Closed {
            return;
        }
        self.machine.abort(CloseReason::EndpointFailed("dropped"));
        if let Some(Action::SendControl { cq_data, body }) = self.machine.next_action() {
            let _ = self.try_send_control(cq_data, &body);
        }
    }

    /// Leaks every operation: nothing that the provider may touch is freed, deregistered or given
    /// back, the cells that it writes to included.
    fn forget_in_flight(&mut self) -> Leaked {
        let empty = InFlight::new(0, ContextKind::Opaque);
        let in_flight = std::mem::replace(&mut self.in_flight, empty);
        let mut ops: Vec<_> = self
            .posted
            .sends()
            .map(|op| (op.sequence, op.key))
            .collect();
        ops.sort_unstable();
        let operations = self.posted.one_sided.iter();
        let keys = operations.map(|op| (op.sequence, op.key, op.is_write()));
        let mut keys: Vec<_> = keys.collect();
        keys.sort_unstable();
        let long_key = self.line.leak_long();
        let messages = self.posted.messages.len() + self.posted.one_sided.len();
        let operations = in_flight.len() + messages + usize::from(long_key.is_some());
        let operations = operations as u64 + self.leak_windows();
        std::mem::forget(in_flight);
        self.posted.leak();
        self.outgoing.leak();
        self.header_desc.leak();
        self.control_desc.leak();
        self.scoped.leak();
        stats::count_leaked(operations);
        Leaked {
            operations,
            keys: ops
                .into_iter()
                .map(|(_, key)| key)
                .chain(long_key)
                .collect(),
            one_sided: keys,
        }
    }
}

/// Whether what blocked a send may pass without a completion or a control message.
fn may_pass_by_itself(blocked: Blocked) -> bool {
    !matches!(blocked, Blocked::Depth | Blocked::Credits)
}

/// What an endpoint gave up that would not close.
struct Leaked {
    operations: u64,
    keys: Vec<u64>,
    /// Sequence, key, whether it was a write.
    one_sided: Vec<(u64, u64, bool)>,
}

fn local_params(
    settings: &SendSettings,
    shape: Shape,
    limits: &LinkLimits,
    connection: u64,
) -> LocalParams {
    let two_messages = match shape {
        Shape::TwoMessages => wire::FEATURE_TWO_MESSAGES,
        Shape::Iov | Shape::Headroom => 0,
    };
    let mut features =
        wire::FEATURE_HEARTBEAT | wire::FEATURE_WINDOWS | two_messages | limits.features();
    if limits.rma.is_some() {
        features |= wire::FEATURE_LONG;
    }
    LocalParams {
        header_mode: settings.header_mode,
        require_header_mode: None,
        features,
        require_features: two_messages,
        receive_size: 0,
        receive_depth: 0,
        credits: 0,
        incarnation: crate::endpoint::incarnation(),
        connection,
        connect_timeout: settings.connect_timeout,
        close_timeout: settings.close_timeout,
        max_credit_window: wire::CREDIT_WINDOW_MAX,
        patience: settings.patience,
    }
}

impl<L: Link> Drop for SendCore<L> {
    /// The rude end: tells nobody, waits for nothing. Payloads go back to their pools, keys to
    /// `on_abandoned`.
    fn drop(&mut self) {
        self.outgoing.headers().remove_waker(self.headers_waker);
        self.outgoing.leave_staging();
        self.tell_peer();
        let closed = self.conn.take().map_or(Ok(()), |conn| {
            self.release_drained();
            self.close_scoped_windows(&conn);
            self.link.close(conn)
        });
        // Before anything that was given is dropped, which is code of others and may panic.
        let leaked = closed.is_err().then(|| self.forget_in_flight());
        let waiting = self.line.end_operations(&mut self.outgoing);
        let waiting: Vec<_> = waiting.into_iter().map(|op| op.key).collect();
        let mut keys: Vec<_> = match leaked {
            None => {
                let sends = self.take_sends().into_iter();
                let mut keys: Vec<_> = sends.map(|mut op| self.outgoing.end(&mut op).0).collect();
                let rma = self.link.limits().rma;
                for mut op in self.posted.take_one_sided(None) {
                    self.outgoing.end_one_sided(&mut op);
                    keys.push(op.key);
                    drop(op.give_back(rma.as_ref()));
                }
                self.drop_pieces();
                let long = self.line.end_long(&mut self.outgoing);
                keys.extend(long.map(|(key, _)| key));
                keys
            }
            Some(leaked) => {
                let one_sided = leaked.one_sided.into_iter().map(|(_, key, _)| key);
                leaked.keys.into_iter().chain(one_sided).collect()
            }
        };
        keys.extend(waiting);
        stats::count_abandoned(keys.len() as u64);
        if let Some(on_abandoned) = &mut self.settings.on_abandoned {
            for key in keys {
                contain("on_abandoned", || on_abandoned(key));
            }
        }
    }
}

impl<L: Link> fmt::Debug for SendCore<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendCore")
            .field("id", &self.id)
            .field("peer", &self.peer_addr)
            .field("state", &self.machine.state())
            .field("in_flight", &self.data_in_flight)
            .finish_non_exhaustive()
    }
}

// The bytes of a control message fit a control buffer.
const _: () = assert!(CONTROL_LEN_MAX >= wire::HELLO_LEN);
