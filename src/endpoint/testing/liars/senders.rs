//! The same for endpoints that send: two of one domain, whose receivers lie together. They grant,
//! revoke, fence and count as they like, answer what they should or something else, serve the
//! one-sided operations that an endpoint began piece by piece, refuse them, or let them stand; and
//! they use the keys of the windows that either endpoint exposed.
//!
//! Besides what is asserted of all: each accepted operation has one outcome, and nobody reads its
//! payload or fills its destination after that.
//!
//! The fuzz target `lying_receivers` and the tests of the cores run it.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use super::crowd::{Crowd, Input, Liar, control, control2, kinds, mark, remember};
use super::{CONNECTIONS_MAX, LONG, SLOT, WINDOW_SLOTS, free_slots, slots_of};
use crate::buffer::{BufferMut, HeaderSlotConfig, HeaderSlotManager, SharedBufferManager};
use crate::clock::Clock;
use crate::endpoint::event::{ConnectionEvent, DeadlinePolicy, Inject, Level, Packing, SendEvent};
use crate::endpoint::hub::{HubSettings, OutboundSettings};
use crate::endpoint::link::fake::{FakeLink, FakeWait, Net, NetConfig, addr_of};
use crate::endpoint::link::{LinkConn, RemoteRange};
use crate::endpoint::reconnect::{ReconnectPolicy, Redial};
use crate::endpoint::send::core::{self, SendCore};
use crate::endpoint::settings::ConnectionSettings;
use crate::endpoint::windows::destination::Destination;
use crate::endpoint::windows::window::{LocalWindow, RemoteWindow, WindowEvent};
use crate::memory::Access;
use crate::protocol::liveness::LivenessTimeouts;
use crate::protocol::wire::{self, HeaderMode, Hello, HelloKind, WindowDescriptor, WindowId};

/// Senders of the domain.
const SENDERS: usize = 2;

/// Operations of a sender in flight.
const DEPTH: u32 = 4;

/// Memory for what is sent, written and read: so many slots of so many bytes. A receiver takes
/// messages of [`SLOT`] bytes; what is longer is offered.
const PAYLOADS: u32 = 6;
const PAYLOAD: usize = 2 * SLOT;

/// How liars call themselves.
const INCARNATION: u64 = 9;
const CONNECTION: u64 = 3;

/// Keys from here on are those of long messages.
const LONG_KEYS: u64 = 1 << 32;

/// What an execution did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SendersReached {
    pub(crate) connections: u64,
    pub(crate) released: u64,
    /// Sends that completed, the long ones among them, and one-sided operations.
    pub(crate) sent: u64,
    pub(crate) long_messages: u64,
    pub(crate) operations: u64,
    /// Windows of liars that they revoked.
    pub(crate) revoked: u64,
    pub(crate) fences: u64,
    /// Pieces of the liars' operations that moved.
    pub(crate) pieces: u64,
}

/// An application's endpoint.
#[derive(Default)]
struct Owner {
    core: Option<SendCore<FakeLink>>,
    connected: bool,
}

struct World {
    crowd: Crowd,
    owners: [Owner; SENDERS],
    /// Where liars listen.
    ears: FakeLink,
    headers: HeaderSlotManager,
    /// Memory for windows, and where its slots lie.
    pool: SharedBufferManager,
    slots: Vec<usize>,
    handles: Vec<LocalWindow>,
    released: Vec<BufferMut>,
    payloads: SharedBufferManager,
    payload_slots: Vec<usize>,
    /// Windows of liars that an application knows.
    remote: Vec<(usize, RemoteWindow)>,
    /// Keys that are owed an outcome.
    owed: HashSet<u64>,
    keys: u64,
    abandoned: Arc<Mutex<Vec<u64>>>,
    came: usize,
    reached: SendersReached,
}

/// Runs the bytes; what they reached.
///
/// # Panics
///
/// When somebody touches memory that was given back, an operation has no outcome or two, or memory
/// is not back when all connections are gone.
pub(crate) fn exercise(bytes: &[u8]) -> SendersReached {
    let mut input = Input(bytes);
    let mut world = World::new(&mut input);
    while !input.0.is_empty() {
        world.step(&mut input);
        world.crowd.net.check();
    }
    world.end();
    let Crowd { fences, pieces, .. } = world.crowd;
    SendersReached {
        fences,
        pieces,
        ..world.reached
    }
}

fn settings(abandoned: &Arc<Mutex<Vec<u64>>>, headers: &HeaderSlotManager) -> HubSettings {
    let abandoned = Arc::clone(abandoned);
    let sends = OutboundSettings {
        headers: headers.clone(),
        header_mode: HeaderMode::Raw,
        depth: DEPTH,
        total: DEPTH,
        level: Level::Sent,
        shape: None,
        inject: Inject::Auto,
        packing: Packing::Auto,
        gather: true,
        deadline: None,
        policy: DeadlinePolicy::FailConnection,
        staging: None,
        long: true,
        on_abandoned: Some(Box::new(move |_, key| {
            abandoned.lock().expect("no panic").push(key);
        })),
    };
    let mut connection = ConnectionSettings::default()
        .connect_timeout(LONG)
        .close_timeout(LONG)
        .windows(WINDOW_SLOTS);
    connection.liveness = LivenessTimeouts {
        unresponsive: None,
        lost: None,
    };
    core::settings(sends, &connection)
}

impl World {
    fn new(input: &mut Input<'_>) -> Self {
        let net = Net::new(NetConfig::default());
        let pool = SharedBufferManager::allocate(WINDOW_SLOTS, SLOT).expect("memory");
        let payloads = SharedBufferManager::allocate(PAYLOADS, PAYLOAD).expect("memory");
        let registered = payloads.region().register_with(net.near());
        registered.expect("a net registers anything");
        let headers = HeaderSlotManager::new(HeaderSlotConfig {
            slots: 2 * DEPTH,
            slot_size: 64,
        });
        let mut world = Self {
            owners: Default::default(),
            ears: net.listen_by_hand(),
            crowd: Crowd::new(net),
            headers: headers.expect("memory"),
            slots: slots_of(&pool),
            pool,
            handles: Vec::new(),
            released: Vec::new(),
            payload_slots: slots_of(&payloads),
            payloads,
            remote: Vec::new(),
            owed: HashSet::new(),
            keys: 0,
            abandoned: Arc::default(),
            came: 0,
            reached: SendersReached::default(),
        };
        for at in 0..SENDERS {
            world.dial(at, input);
        }
        world
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.byte() % 32 {
            0..=5 if self.crowd.advance(input) => self.poll(),
            0..=5 => {}
            6..=10 => self.hear(input),
            11..=13 => self.crowd.say_as_receiver(input),
            14 if input.byte().is_multiple_of(8) => self.crowd.say_nonsense(input),
            15..=17 => self.crowd.touch(input),
            18 => self.expose(input),
            19 => self.revoke(input),
            20 => drop(self.released.pop()),
            21..=22 => self.send(input),
            23..=24 => self.operate(input),
            25 if input.byte().is_multiple_of(8) => self.leave(input),
            26 => {
                let at = input.below(SENDERS);
                self.dial(at, input);
            }
            27 if input.byte().is_multiple_of(32) => self.drop_endpoint(input),
            28 if input.byte().is_multiple_of(32) => self.deny(input),
            _ => self.poll(),
        }
        self.refresh();
    }

    // ---- the liars ------------------------------------------------------------------------------

    fn hear(&mut self, input: &mut Input<'_>) {
        let heard = self.crowd.hear(input);
        if let Some((which, kinds::BYE)) = heard
            && !input.byte().is_multiple_of(32)
        {
            let bye = control(kinds::BYE, 1, 0, 0);
            let conn = self.crowd.liars[which].conn;
            self.crowd.net.say(conn, Some(mark(kinds::BYE)), &bye);
        }
    }

    /// Whoever asks is answered, mostly as an honest peer would.
    fn answer_requests(&mut self, input: &mut Input<'_>) {
        let net = &self.crowd.net;
        self.crowd.liars.retain(|liar| net.stands(liar.conn));
        while let Some((initiator, _)) = self.ears.take_request() {
            let how = input.byte();
            if how >= 252 {
                let words = input.word().to_le_bytes();
                self.crowd.net.refuse_by_hand(initiator, &words);
                continue;
            }
            let known = wire::FEATURE_HEARTBEAT
                | wire::FEATURE_WINDOWS
                | wire::FEATURE_LONG
                | wire::FEATURE_FRAMES;
            let hello = Hello {
                kind: HelloKind::Ack,
                header_mode: HeaderMode::Raw,
                version: wire::VERSION,
                oldest: wire::OLDEST,
                // Mostly all; else any.
                features: if how < 224 { known } else { u32::from(how) },
                receive_size: SLOT as u64,
                receive_depth: DEPTH,
                credits: DEPTH,
                incarnation: INCARNATION,
                connection: CONNECTION,
            };
            let taken = self.crowd.net.accept_by_hand(initiator, &hello.encode());
            if let Some((link, conn)) = taken {
                self.crowd.liars.push(Liar::new(link, conn, DEPTH));
            }
        }
    }

    /// A liar goes, or its endpoint says goodbye.
    fn leave(&mut self, input: &mut Input<'_>) {
        if input.bit() {
            if self.crowd.hang_up(input) {
                self.poll();
            }
            return;
        }
        let at = input.below(SENDERS);
        let soon = input.byte().is_multiple_of(8);
        if let Some(core) = &mut self.owners[at].core {
            let now = Instant::now();
            core.begin_close(if soon { now } else { now + LONG });
        }
    }

    fn deny(&mut self, input: &mut Input<'_>) {
        if let Some(which) = self.crowd.liar(input)
            && self.crowd.net.deny_by_hand(self.crowd.liars[which].conn)
        {
            self.poll();
        }
    }

    // ---- the applications -----------------------------------------------------------------------

    /// An endpoint connects, or connects anew.
    fn dial(&mut self, at: usize, input: &mut Input<'_>) {
        if self.came >= CONNECTIONS_MAX {
            return;
        }
        let peer = addr_of(self.ears.id());
        match &mut self.owners[at].core {
            Some(core) if core.conn().is_none() && core.stats().leaked == 0 => {
                core.dial_again().expect("a net connects")
            }
            Some(_) => return,
            none => {
                let link = self.crowd.net.link();
                let settings = settings(&self.abandoned, &self.headers);
                let waiter = Arc::new(FakeWait);
                let core = SendCore::connect(
                    link,
                    waiter,
                    Clock::system(),
                    peer,
                    settings,
                    Redial::new(ReconnectPolicy::off(), 0),
                );
                *none = Some(core.expect("a net connects"));
            }
        }
        self.came += 1;
        self.poll();
        self.answer_requests(input);
        self.poll();
    }

    fn poll(&mut self) {
        for at in 0..SENDERS {
            let mut events = Vec::new();
            if let Some(core) = &mut self.owners[at].core {
                // Else the event queue is looked at now and then only.
                core.wait().wake();
                core.poll(&mut events).expect("the endpoint lives");
            }
            events.into_iter().for_each(|event| self.take(at, event));
        }
        self.refresh();
    }

    fn take(&mut self, at: usize, event: SendEvent) {
        match event {
            SendEvent::Connection(ConnectionEvent::Connected(_)) => {
                self.reached.connections += 1;
                self.owners[at].connected = true;
            }
            SendEvent::Connection(ConnectionEvent::Disconnected(_)) => {
                self.owners[at].connected = false;
                self.remote.retain(|(of, _)| *of != at);
            }
            SendEvent::Completed { key, .. } => {
                self.settle(key);
                self.reached.sent += 1;
                self.reached.long_messages += u64::from(key >= LONG_KEYS);
            }
            SendEvent::Failed { key, .. } => self.settle(key),
            SendEvent::Window(event) => self.take_of_window(event),
            _ => {}
        }
    }

    fn take_of_window(&mut self, event: WindowEvent) {
        if let Some(key) = event.outcome_of() {
            self.settle(key);
        }
        match event {
            WindowEvent::Written { .. } | WindowEvent::Read { .. } => self.reached.operations += 1,
            WindowEvent::Revoked { .. } => self.reached.revoked += 1,
            WindowEvent::Released { memory, .. } => {
                self.reached.released += 1;
                let buffer = memory.into_buffer_mut().expect("what was exposed");
                self.released.push(buffer);
            }
            _ => {}
        }
    }

    /// The outcome of an operation.
    fn settle(&mut self, key: u64) {
        assert!(self.owed.remove(&key), "key {key} is owed no outcome");
    }

    /// What is the application's, and what is free.
    fn refresh(&mut self) {
        let abandoned = std::mem::take(&mut *self.abandoned.lock().expect("no panic"));
        abandoned.into_iter().for_each(|key| self.settle(key));
        let windows = self.released.iter().map(|buffer| buffer.index() as usize);
        let windows = windows.chain(free_slots(&self.pool));
        let windows = windows.map(|slot| (self.slots[slot], SLOT));
        let payloads = free_slots(&self.payloads).into_iter();
        let payloads = payloads.map(|slot| (self.payload_slots[slot], PAYLOAD));
        self.crowd.net.set_given_back(windows.chain(payloads));
    }

    fn next_key(&mut self, first: u64) -> u64 {
        self.keys += 1;
        first + self.keys
    }

    /// A message, or one that is too long for a receive.
    fn send(&mut self, input: &mut Input<'_>) {
        let (at, len) = (input.below(SENDERS), 1 + input.below(PAYLOAD));
        let Some(buffer) = self.payloads.try_acquire() else {
            return;
        };
        let key = self.next_key(if len > SLOT { LONG_KEYS } else { 0 });
        if let Some(core) = &mut self.owners[at].core
            && core.send_data(buffer.freeze(len).into(), &[], key).is_ok()
        {
            self.owed.insert(key);
        }
    }

    /// A write to a window of a liar's, or a read.
    fn operate(&mut self, input: &mut Input<'_>) {
        let (at, how, offset) = (input.below(SENDERS), input.byte(), input.byte());
        let Some(core) = &self.owners[at].core else {
            return;
        };
        let descriptor = WindowDescriptor {
            access: Access::all(),
            connection: CONNECTION,
            incarnation: INCARNATION,
            window: WindowId(1 + u64::from(how >> 5)),
            base: 0,
            len: 2 * PAYLOAD as u64,
            key: input.byte().into(),
            mark: 7,
        };
        if let Ok(window) = core.open_window(&descriptor) {
            remember(&mut self.remote, (at, window));
        }
        let known = self.remote.iter().rfind(|(of, _)| *of == at);
        let (Some((_, window)), Some(buffer)) = (known.cloned(), self.payloads.try_acquire())
        else {
            return;
        };
        let (key, len) = (self.next_key(0), 1 + input.below(PAYLOAD));
        let Some(core) = &mut self.owners[at].core else {
            return;
        };
        let place = window.at(offset.into());
        let taken = match how % 4 {
            0..=1 => {
                let into = Destination::buffer(buffer, len);
                core.read(into, place, key).is_ok()
            }
            2 => {
                let payload = buffer.freeze(len).into();
                core.write(payload, place, None, Level::Sent, key).is_ok()
            }
            _ => {
                let payload = buffer.freeze(len).into();
                let taken = core.write(payload, place, Some(5), Level::Delivered, key);
                taken.is_ok()
            }
        };
        if taken {
            self.owed.insert(key);
        }
    }

    fn expose(&mut self, input: &mut Input<'_>) {
        let at = input.below(SENDERS);
        let access = match input.byte() % 3 {
            0 => Access::READ,
            1 => Access::WRITE,
            _ => Access::all(),
        };
        let Some(core) = &mut self.owners[at].core else {
            return;
        };
        // What came back before is as good as what is free.
        let Some(buffer) = self.released.pop().or_else(|| self.pool.try_acquire()) else {
            return;
        };
        match core.expose(buffer.into(), access) {
            Ok(window) => {
                let told = window.descriptor();
                remember(&mut self.crowd.known.marks, told.mark);
                let range = RemoteRange {
                    addr: told.base,
                    len: told.len as usize,
                    key: told.key,
                };
                remember(&mut self.crowd.known.ranges, range);
                self.handles.push(window);
            }
            Err(refused) => {
                let buffer = refused.given.into_buffer_mut().expect("what was given");
                self.released.push(buffer);
            }
        }
    }

    /// Takes a window back, or drops its handle.
    fn revoke(&mut self, input: &mut Input<'_>) {
        if self.handles.is_empty() {
            return;
        }
        let window = self.handles.swap_remove(input.below(self.handles.len()));
        let deadline = match input.byte() % 8 {
            0 => Instant::now(),
            1 => return drop(window),
            _ => Instant::now() + LONG,
        };
        let mine = |owner: &&mut Owner| {
            let core = owner.core.as_ref();
            core.is_some_and(|core| core.connection() == window.connection())
        };
        if let Some(core) = self
            .owners
            .iter_mut()
            .find(mine)
            .and_then(|it| it.core.as_mut())
        {
            core.revoke(window, deadline).expect("its own window");
        }
        self.poll();
    }

    fn drop_endpoint(&mut self, input: &mut Input<'_>) {
        self.drop_at(input.below(SENDERS));
    }

    fn drop_at(&mut self, at: usize) {
        self.owners[at] = Owner::default();
        self.remote.retain(|(of, _)| *of != at);
        self.refresh();
    }

    /// All hang up, and everything is back; or the endpoints are dropped before.
    fn end(&mut self) {
        if self.crowd.pieces.is_multiple_of(2) {
            (0..SENDERS).for_each(|at| self.drop_at(at));
        }
        self.refresh();
        self.crowd.all_hang_up();
        for owner in &self.owners {
            if let Some(conn) = owner.core.as_ref().and_then(|core| core.conn()) {
                self.crowd.net.shut_down(conn.key());
            }
        }
        self.crowd.net.check();
        self.handles.clear();
        (0..4).for_each(|_| self.poll());
        self.crowd.net.check();
        for owner in &self.owners {
            assert!(!owner.connected, "its peer is gone");
        }
        assert!(self.owed.is_empty(), "without an outcome: {:?}", self.owed);
        self.released.clear();
        for (what, pool) in [("windows", &self.pool), ("payloads", &self.payloads)] {
            let (free, all) = (pool.free_count(), pool.slots());
            assert_eq!(free, all, "{what} when all connections are gone");
        }
        (0..SENDERS).for_each(|at| self.drop_at(at));
        self.crowd.liars.clear();
        self.crowd.net.check();
    }
}

/// What a peer says that receives.
impl Crowd {
    /// What has its place now.
    fn say_as_receiver(&mut self, input: &mut Input<'_>) {
        let Some(which) = self.speaker(input) else {
            return;
        };
        let (how, n) = (input.byte(), u64::from(input.byte()));
        if how.is_multiple_of(16) {
            return self.lie_as_receiver(which, input);
        }
        let liar = &mut self.liars[which];
        let body = match (how % 8, liar.offered) {
            (0, _) if !liar.asking => {
                liar.asking = true;
                liar.questions += 1;
                control(kinds::HEARTBEAT, 0, 0, liar.questions)
            }
            (1, _) if !liar.fencing => {
                liar.fencing = true;
                control(kinds::FENCE, 0, 0, n)
            }
            (2, _) if !liar.revoking => {
                liar.revoking = true;
                liar.revoked += 1;
                control(kinds::REVOKE, 0, 0, liar.revoked)
            }
            (3, Some((number, _))) => {
                liar.offered = None;
                control(kinds::LONG_REFUSED, 0, number, n)
            }
            (4.., Some((number, _))) => {
                liar.offered = None;
                control2(kinds::LONG_GRANT, number, n, n)
            }
            (3.., _) => {
                liar.allowed += 1 + n % 4;
                control(kinds::CREDIT, 0, 0, liar.allowed)
            }
            _ => return,
        };
        self.net.say(liar.conn, Some(mark(body[4])), &body);
    }

    /// A control message that nearly fits, or does not.
    fn lie_as_receiver(&mut self, which: usize, input: &mut Input<'_>) {
        let (how, known) = (input.byte(), input.one_of(&self.known.heard));
        let (_, number, value) = known.unwrap_or_default();
        let small = u64::from(input.byte() % 8);
        let liar = &mut self.liars[which];
        let body = match how % 16 {
            0 => control(kinds::CREDIT, 0, 0, small),
            1 => control(kinds::CREDIT, 0, 0, value << small),
            2 => control(kinds::BYE, 0, 0, small.saturating_sub(4)),
            3 => control(kinds::HEARTBEAT, small as u16 & 1, 0, value),
            4 => control(kinds::REVOKE, 0, 0, small),
            5 => control(kinds::REVOKE_ACK, 0, 0, value),
            6 => control(kinds::REVOKE_ACK, 0, 0, small),
            7 | 8 => control2(kinds::LONG_GRANT, small, value, number),
            9 => control(kinds::LONG_REFUSED, 0, small, value),
            10 => control(kinds::FENCED, 0, number, value),
            11 => control(kinds::FENCED, 0, 0, small),
            12 => control(kinds::FENCE, 0, small, small),
            13 => control(kinds::LONG_OFFER, 0, small, value),
            14 => control(kinds::LONG_DONE, 0, small, 0),
            _ => control(kinds::REVOKED, 0, 0, small),
        };
        self.net.say(liar.conn, Some(mark(body[4])), &body);
    }
}
