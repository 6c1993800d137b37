//! Two connections of one domain whose peers lie together: bytes drive endpoints over the fake
//! link, their applications and the liars, and a model of memory says what may be touched.
//!
//! The liars know all keys, marks, numbers and nonces that either of them was told; they say any
//! control message with any field at any time, begin writes and reads with any key on either
//! connection, and let them go on piece by piece, as late as they like. What the model asserts: no
//! byte of memory is written or read by a peer while it is the application's (released, handed out
//! as a message) or free in its pool. When all connections are gone, all memory is back.
//!
//! The fuzz target `two_connections` and the tests of the cores run it.

mod crowd;
pub(crate) mod senders;

use std::sync::Arc;
use std::time::{Duration, Instant};

use crowd::{Crowd, Input, Liar, control, kinds, mark, remember};

use crate::buffer::{BufferMut, SharedBufferManager};
use crate::clock::Clock;
use crate::endpoint::event::{ConnectionEvent, DeadlinePolicy, ReceiveEvent};
use crate::endpoint::hub::{Hub, HubSettings, WindowSettings};
use crate::endpoint::limits::FENCE_TIMEOUT_DEFAULT;
use crate::endpoint::link::RemoteRange;
use crate::endpoint::link::fake::{FakeLink, FakeWait, Net, NetConfig};
use crate::endpoint::link::socket::TcpWatch;
use crate::endpoint::long_messages::LongMessages;
use crate::endpoint::message::Message;
use crate::endpoint::windows::window::{LocalWindow, WindowEvent};
use crate::id::ConnectionId;
use crate::memory::Access;
use crate::protocol::liveness::LivenessTimeouts;
use crate::protocol::wire::{self, HeaderMode, Hello, HelloKind};

/// Longer than any execution takes.
const LONG: Duration = Duration::from_secs(60);

/// Of the slots that windows and long messages lie in.
const SLOT: usize = 64;

const WINDOW_SLOTS: u32 = 3;
const LONG_SLOTS: u32 = 2;

/// Messages that a liar may send ahead.
const DEPTH: u32 = 4;

/// Connections that an execution sees at most.
const CONNECTIONS_MAX: usize = 10;

/// What a liar has posted and what has not moved, at most.
const QUEUED_MAX: usize = 24;

/// What liars remember, of each sort.
const KNOWN_MAX: usize = 16;

/// What an execution did, for those who want to know whether it reaches anything.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Reached {
    pub(crate) connections: u64,
    pub(crate) released: u64,
    pub(crate) long_messages: u64,
    pub(crate) fences: u64,
    /// Pieces of operations that moved.
    pub(crate) pieces: u64,
}

/// An application's endpoint.
struct Owner {
    core: Option<Hub<FakeLink>>,
    /// Its number at the net.
    link: usize,
    connections: Vec<ConnectionId>,
    long: SharedBufferManager,
    /// Where the slots of `long` lie, by index.
    slots: Vec<usize>,
}

struct World {
    crowd: Crowd,
    owners: Vec<Owner>,
    /// Memory for windows, and where its slots lie.
    pool: SharedBufferManager,
    slots: Vec<usize>,
    handles: Vec<LocalWindow>,
    released: Vec<BufferMut>,
    messages: Vec<Message>,
    came: usize,
    reached: Reached,
}

/// Runs the bytes; what they reached.
///
/// # Panics
///
/// When a peer touches memory that it may not, or memory is not back when all connections are gone.
pub(crate) fn exercise(bytes: &[u8]) -> Reached {
    let mut input = Input(bytes);
    let mut world = World::new(&mut input);
    while !input.0.is_empty() {
        world.step(&mut input);
        world.crowd.net.check();
    }
    world.end();
    let Crowd { fences, pieces, .. } = world.crowd;
    Reached {
        fences,
        pieces,
        ..world.reached
    }
}

/// The addresses of all slots of a pool, by index.
fn slots_of(pool: &SharedBufferManager) -> Vec<usize> {
    let mut all: Vec<_> = std::iter::from_fn(|| pool.try_acquire()).collect();
    all.sort_by_key(BufferMut::index);
    all.iter_mut()
        .map(|buffer| buffer.as_mut_ptr().addr())
        .collect()
}

fn settings(long: &SharedBufferManager) -> HubSettings {
    HubSettings {
        credits: DEPTH,
        max_connections: 3,
        max_of_host: None,
        max_message: SLOT as u64,
        ask: false,
        accepts: true,
        handshake_timeout: LONG,
        close_timeout: LONG,
        header_mode: None,
        windows: WindowSettings {
            windows: WINDOW_SLOTS,
            uses_peers: false,
            operations: 2,
            deadline: None,
            policy: DeadlinePolicy::FailConnection,
            long: true,
        },
        long: Some(LongMessages::new(long.clone())),
        sends: None,
        publishing: false,
        liveness: LivenessTimeouts {
            unresponsive: None,
            lost: None,
        },
        fence_timeout: FENCE_TIMEOUT_DEFAULT,
        watch: TcpWatch::default(),
        watched: crate::metrics::registry::WatchedAs::of(crate::metrics::WatchedKind::Duplex),
    }
}

impl Owner {
    fn new(net: &Net) -> Self {
        let link = net.listen();
        let id = link.id();
        let long = SharedBufferManager::allocate(LONG_SLOTS, SLOT).expect("memory");
        let slots = slots_of(&long);
        let pool = SharedBufferManager::allocate(64, 128).expect("memory");
        let settings = settings(&long);
        let core = Hub::listen(link, Arc::new(FakeWait), Clock::system(), pool, settings);
        Self {
            core: Some(core.expect("listens")),
            link: id,
            connections: Vec::new(),
            long,
            slots,
        }
    }
}

/// The slots of a pool that nobody holds.
fn free_slots(pool: &SharedBufferManager) -> Vec<usize> {
    let free: Vec<_> = std::iter::from_fn(|| pool.try_acquire()).collect();
    free.iter().map(|buffer| buffer.index() as usize).collect()
}

impl World {
    /// One endpoint, or two of the same domain.
    fn new(input: &mut Input<'_>) -> Self {
        let net = Net::new(NetConfig::default());
        let owners = (0..1 + usize::from(input.bit())).map(|_| Owner::new(&net));
        let owners = owners.collect();
        let pool = SharedBufferManager::allocate(WINDOW_SLOTS, SLOT).expect("memory");
        let slots = slots_of(&pool);
        let mut world = Self {
            crowd: Crowd::new(net),
            owners,
            pool,
            slots,
            handles: Vec::new(),
            released: Vec::new(),
            messages: Vec::new(),
            came: 0,
            reached: Reached::default(),
        };
        world.come(input);
        world.come(input);
        world
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.byte() % 32 {
            0..=6 if self.crowd.advance(input) => self.poll(),
            0..=6 => {}
            7..=10 => drop(self.crowd.hear(input)),
            11..=14 => self.crowd.say_as_sender(input),
            15 if input.byte().is_multiple_of(8) => self.crowd.say_nonsense(input),
            16 => self.crowd.say_data(input),
            17..=20 => self.crowd.touch(input),
            21 => self.expose(input),
            22 => self.revoke(input),
            23 => self.let_go(input),
            24 => self.close(input),
            25 if input.byte().is_multiple_of(4) => {
                if self.crowd.hang_up(input) {
                    self.poll();
                }
            }
            26 => self.come(input),
            27 if input.byte().is_multiple_of(32) => self.drop_endpoint(input),
            _ => self.poll(),
        }
    }

    // ---- the liars ------------------------------------------------------------------------------

    /// One more connects; at most two do at a time.
    fn come(&mut self, input: &mut Input<'_>) {
        let net = &self.crowd.net;
        self.crowd.liars.retain_mut(|liar| {
            liar.link.was_accepted();
            net.stands(liar.conn) || net.other_end(liar.conn).is_none()
        });
        let at = input.below(self.owners.len());
        if self.crowd.liars.len() >= 2
            || self.came >= CONNECTIONS_MAX
            || self.owners[at].core.is_none()
        {
            return;
        }
        let flags = input.byte();
        let known = wire::FEATURE_HEARTBEAT
            | wire::FEATURE_WINDOWS
            | wire::FEATURE_LONG
            | wire::FEATURE_FRAMES;
        let hello = Hello {
            kind: HelloKind::Hello,
            header_mode: HeaderMode::Raw,
            version: wire::VERSION,
            oldest: wire::OLDEST,
            // Mostly all; else any.
            features: if flags < 224 { known } else { u32::from(flags) },
            receive_size: SLOT as u64,
            receive_depth: 4,
            credits: 4,
            incarnation: 9,
            connection: 3,
        };
        let (link, conn) = self.crowd.net.ask_at(self.owners[at].link, &hello.encode());
        self.came += 1;
        self.crowd.liars.push(Liar::new(link, conn, DEPTH));
        self.poll();
        self.poll();
    }

    // ---- the applications -----------------------------------------------------------------------

    fn poll(&mut self) {
        for at in 0..self.owners.len() {
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

    fn take(&mut self, at: usize, event: ReceiveEvent) {
        match event {
            ReceiveEvent::Connection(connection, ConnectionEvent::Connected(_)) => {
                self.reached.connections += 1;
                self.owners[at].connections.push(connection);
            }
            ReceiveEvent::Connection(connection, ConnectionEvent::Disconnected(_)) => {
                self.owners[at].connections.retain(|id| *id != connection);
            }
            ReceiveEvent::Window {
                event: WindowEvent::Released { memory, .. },
                ..
            } => {
                self.reached.released += 1;
                let buffer = memory.into_buffer_mut().expect("what was exposed");
                self.released.push(buffer);
            }
            ReceiveEvent::Message(message) => {
                let slots = &self.owners[at].slots;
                let is_long = slot_at(slots, message.payload().as_ptr().addr()).is_some();
                self.reached.long_messages += u64::from(is_long);
                self.messages.push(message);
            }
            _ => {}
        }
    }

    /// What is the application's, and what is free.
    fn refresh(&self) {
        let mut own: Vec<usize> = Vec::new();
        let windows = self.released.iter().map(|buffer| buffer.index() as usize);
        let windows = windows.chain(free_slots(&self.pool));
        own.extend(windows.map(|slot| self.slots[slot]));
        for owner in &self.owners {
            let messages = self.messages.iter();
            let held = messages.filter_map(|m| slot_at(&owner.slots, m.payload().as_ptr().addr()));
            let held = held.chain(free_slots(&owner.long));
            own.extend(held.map(|slot| owner.slots[slot]));
        }
        self.crowd
            .net
            .set_given_back(own.into_iter().map(|base| (base, SLOT)));
    }

    fn expose(&mut self, input: &mut Input<'_>) {
        let at = input.below(self.owners.len());
        let access = match input.byte() % 3 {
            0 => Access::READ,
            1 => Access::WRITE,
            _ => Access::all(),
        };
        let owner = &mut self.owners[at];
        let (Some(core), Some(id)) = (&mut owner.core, input.one_of(&owner.connections)) else {
            return;
        };
        // What came back before is as good as what is free.
        let Some(buffer) = self.released.pop().or_else(|| self.pool.try_acquire()) else {
            return;
        };
        match core.expose(id, buffer.into(), access) {
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
        self.refresh();
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
        let mut window = Some(window);
        for owner in &mut self.owners {
            if let Some(core) = &mut owner.core
                && window
                    .as_ref()
                    .is_some_and(|window| owner.connections.contains(&window.connection()))
                && let Some(window) = window.take()
            {
                core.revoke(window, deadline).expect("its own window");
            }
        }
        self.poll();
    }

    /// Lets memory go that was given back.
    fn let_go(&mut self, input: &mut Input<'_>) {
        if input.bit() {
            self.messages.truncate(input.below(3));
        } else {
            self.released.pop();
        }
        self.refresh();
    }

    fn close(&mut self, input: &mut Input<'_>) {
        let at = input.below(self.owners.len());
        let owner = &mut self.owners[at];
        let deadline = match input.byte() % 8 {
            0 => Instant::now() + LONG,
            1 => Instant::now(),
            _ => return,
        };
        if let (Some(core), Some(id)) = (&mut owner.core, input.one_of(&owner.connections)) {
            core.begin_close(id, deadline);
        }
    }

    fn drop_endpoint(&mut self, input: &mut Input<'_>) {
        let at = input.below(self.owners.len());
        self.owners[at].core = None;
        self.owners[at].connections.clear();
        self.refresh();
    }

    /// All hang up, and everything is back; or the endpoints are dropped before.
    fn end(&mut self) {
        let rude = self.crowd.pieces.is_multiple_of(2);
        for at in 0..self.owners.len() {
            if rude {
                self.owners[at].core = None;
                self.owners[at].connections.clear();
            }
        }
        self.refresh();
        self.crowd.all_hang_up();
        self.crowd.net.check();
        self.handles.clear();
        (0..4).for_each(|_| self.poll());
        self.crowd.net.check();
        self.messages.clear();
        self.released.clear();
        assert_eq!(
            self.pool.free_count(),
            self.pool.slots(),
            "memory of windows when all connections are gone"
        );
        for owner in &mut self.owners {
            let long = &owner.long;
            assert_eq!(
                long.free_count(),
                long.slots(),
                "memory of long messages when all connections are gone"
            );
            assert!(owner.connections.is_empty(), "{:?}", owner.connections);
            owner.core = None;
        }
        self.crowd.liars.clear();
        self.crowd.net.check();
    }
}

/// What a peer says that sends.
impl Crowd {
    /// What has its place now.
    fn say_as_sender(&mut self, input: &mut Input<'_>) {
        let Some(which) = self.speaker(input) else {
            return;
        };
        let (how, n) = (input.byte(), u64::from(input.byte()));
        if how.is_multiple_of(16) {
            return self.lie_as_sender(which, input);
        }
        let liar = &mut self.liars[which];
        let body = match how % 4 {
            0 if !liar.asking => {
                liar.asking = true;
                liar.questions += 1;
                control(kinds::HEARTBEAT, 0, 0, liar.questions)
            }
            1 if !liar.fencing => {
                liar.fencing = true;
                control(kinds::FENCE, 0, 0, n)
            }
            _ if liar.granted => {
                (liar.granted, liar.offering) = (false, false);
                control(kinds::LONG_DONE, 0, liar.said.saturating_sub(1), 0)
            }
            _ if !liar.offering && liar.said < liar.allowed => {
                liar.offering = true;
                liar.said += 1;
                control(kinds::LONG_OFFER, 0, liar.said - 1, 1 + n % SLOT as u64)
            }
            _ => return,
        };
        self.net.say(liar.conn, Some(mark(body[4])), &body);
    }

    /// A control message that nearly fits, or does not.
    fn lie_as_sender(&mut self, which: usize, input: &mut Input<'_>) {
        let (how, known) = (input.byte(), input.one_of(&self.known.heard));
        let (_, number, value) = known.unwrap_or_default();
        let small = u64::from(input.byte() % 8);
        let liar = &mut self.liars[which];
        let body = match how % 16 {
            0 => control(kinds::CREDIT, 0, 0, 2 + small),
            1 if how >= 208 => control(kinds::BYE, 0, 0, liar.said),
            2 => {
                liar.questions += 1;
                control(kinds::HEARTBEAT, 0, 0, liar.questions)
            }
            3 => control(kinds::REVOKE, 0, 0, small),
            4 => control(kinds::REVOKE_ACK, 0, 0, value),
            5 => control(kinds::REVOKE_ACK, 0, 0, small),
            6..=8 => {
                liar.said += 1;
                control(kinds::LONG_OFFER, 0, liar.said - 1, 1 + small * 8)
            }
            9..=11 => control(kinds::LONG_DONE, 0, liar.said.saturating_sub(1), 0),
            12 => control(kinds::FENCED, 0, number, value),
            13 => control(kinds::FENCE, 0, small, small),
            14 => control(kinds::REVOKED, 0, 0, small),
            _ => control(kinds::LONG_DONE, 0, small, 0),
        };
        self.net.say(liar.conn, Some(mark(body[4])), &body);
    }
}

/// The slot in which an address lies.
fn slot_at(slots: &[usize], address: usize) -> Option<usize> {
    slots
        .iter()
        .position(|base| (*base..*base + SLOT).contains(&address))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Executions without a word from outside.
    const EXECUTIONS: u64 = 3_000;

    /// The longest list of what happens.
    const BYTES_MAX: u64 = 600;

    /// SplitMix64.
    struct Random(u64);

    impl Random {
        fn next(&mut self) -> u64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = self.0;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        }

        fn bytes(&mut self) -> Vec<u8> {
            let len = self.next() % BYTES_MAX;
            (0..len).map(|_| self.next() as u8).collect()
        }
    }

    fn from_environment(name: &str) -> Option<u64> {
        let text = std::env::var(name).ok()?;
        Some(text.parse().expect("a number"))
    }

    /// Says which execution it was that broke a promise.
    struct Seed(u64);

    impl Drop for Seed {
        fn drop(&mut self) {
            if std::thread::panicking() {
                let seed = self.0;
                println!("again: FABRICAST_SEED={seed} FABRICAST_EXECUTIONS=1");
            }
        }
    }

    /// How many executions are asked for, and the seed of the first; each has the next one.
    /// FABRICAST_SEED repeats a run, FABRICAST_EXECUTIONS says how many.
    fn asked() -> (u64, u64) {
        let seed = from_environment("FABRICAST_SEED").unwrap_or_else(crate::random::random_u64);
        let few = match crate::soak::is_soak() {
            true => 1_000_000,
            false => EXECUTIONS,
        };
        let executions = from_environment("FABRICAST_EXECUTIONS").unwrap_or(few);
        println!("seed {seed}, {executions} executions");
        (executions, seed)
    }

    /// Runs as many as are asked for, and adds up what they reached; how many there were.
    fn run(mut one: impl FnMut(&[u8])) -> u64 {
        let (executions, seed) = asked();
        for n in 0..executions {
            let this = Seed(seed.wrapping_add(n));
            one(&Random(this.0).bytes());
        }
        executions
    }

    #[test]
    fn two_connections_of_liars_touch_no_memory_that_was_given_back() {
        let mut all = Reached::default();
        let executions = run(|bytes| {
            let reached = exercise(bytes);
            all.connections += reached.connections;
            all.released += reached.released;
            all.long_messages += reached.long_messages;
            all.fences += reached.fences;
            all.pieces += reached.pieces;
        });
        println!("{all:?}");
        if executions >= EXECUTIONS {
            let enough = executions / 50;
            assert!(
                all.connections > executions
                    && all.released > enough
                    && all.long_messages > enough
                    && all.fences > enough
                    && all.pieces > executions,
                "it reaches too little to say anything: {all:?}"
            );
        }
    }

    #[test]
    fn two_receivers_that_lie_touch_no_memory_that_was_given_back() {
        let mut all = senders::SendersReached::default();
        let executions = run(|bytes| {
            let reached = senders::exercise(bytes);
            all.connections += reached.connections;
            all.released += reached.released;
            all.sent += reached.sent;
            all.long_messages += reached.long_messages;
            all.operations += reached.operations;
            all.revoked += reached.revoked;
            all.fences += reached.fences;
            all.pieces += reached.pieces;
        });
        println!("{all:?}");
        if executions >= EXECUTIONS {
            let enough = executions / 50;
            assert!(
                all.connections > executions
                    && all.released > enough
                    && all.sent > enough
                    && all.long_messages > enough
                    && all.operations > enough
                    && all.revoked > enough
                    && all.fences > enough
                    && all.pieces > executions,
                "it reaches too little to say anything: {all:?}"
            );
        }
    }
}
