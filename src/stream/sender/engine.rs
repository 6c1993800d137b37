//! `Engine`: the thread of a sender that owns its endpoints, and never waits for a file.
//!
//! ```text
//!  one turn:  commands ─► endpoints' events ─► blocks that were read ─► time ─► reads to begin ─► blocks to send
//! ```
//!
//! A block that was read is in one buffer of the pool, whose clones wait at, or are on their way to, each peer that wants it; when the last is
//! gone the buffer is free, and the next block is read into it.

use std::collections::{BTreeMap, HashMap};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::time::{Duration, Instant};

use super::config::{Peer, SendOptions, SenderConfig};
use super::delivery::Delivery;
use super::reading::{Employment, ReadDone, ReadJob};
use super::transfer::Promised;
use crate::buffer::SharedBufferManager;
use crate::clock::Clock;
use crate::endpoint::duplex::DuplexEndpoint;
use crate::endpoint::{ConnectionId, ReceiveEvent};
use crate::event_loop::{EventLoop, Token, Waker};
use crate::fabric::EndpointKind;
use crate::stream::network::{self, Network};
use crate::stream::workers::{Theirs, Workers, guarded};
use crate::stream::{BlockSource, RefusalCode, StreamError, report};
use crate::{Error, PeerAddr};

/// How often deadlines are looked at.
const TICK: Duration = Duration::from_millis(50);

/// How long goodbyes may take when a transfer is over.
const GOODBYE: Duration = Duration::from_secs(2);

/// How long a file may hold a thread when the sender ends.
const LAST_READS: Duration = Duration::from_secs(10);

/// What the sender's handles ask for.
#[derive(Debug)]
pub(super) enum Command {
    Begin(Box<Begin>),
    Pause(u64, bool),
    Cancel(u64),
    Priority(u64, u8),
    Rate(u64, Option<u64>),
    Stop(Instant),
    /// How everything is, in words.
    Describe(SyncSender<String>),
}

/// A transfer that is to begin.
#[derive(Debug)]
pub(super) struct Begin {
    pub(super) id: u64,
    pub(super) source: Theirs<dyn BlockSource>,
    pub(super) peers: Vec<Peer>,
    pub(super) options: SendOptions,
    pub(super) shared: Promised,
}

/// An endpoint.
pub(super) struct Port {
    pub(super) endpoint: DuplexEndpoint,
    token: Token,
    /// It is there for one connection, and goes with it.
    single: bool,
    /// It can't be used any more, which was said.
    failed: bool,
}

/// How connections are made over one network.
pub(super) struct Dock {
    pub(super) network: Network,
    /// The endpoint of all of them. None over FI_EP_RDM: there, a second connection between two endpoints ends the first, so that each needs an
    /// endpoint of its own.
    pub(super) shared: Option<usize>,
}

/// Which rail of which peer of which transfer a connection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Route {
    pub(super) transfer: u64,
    pub(super) lane: usize,
    pub(super) rail: usize,
}

/// What deliveries and lanes use of the engine.
pub(super) struct Tools {
    event_loop: EventLoop,
    pub(super) docks: Vec<Dock>,
    ports: BTreeMap<usize, Port>,
    next_port: usize,
    pub(super) routes: HashMap<ConnectionId, Route>,
    /// For control messages.
    pub(super) control: SharedBufferManager,
    pub(super) config: SenderConfig,
    clock: Clock,
    /// Since when reads are under way, and none has come back.
    pub(super) reads_since: Option<Instant>,
    /// When this turn began.
    pub(super) now: Instant,
}

impl Tools {
    /// Starts to connect from a domain: the port, and the connection.
    pub(super) fn dial(
        &mut self,
        dock: usize,
        addr: &PeerAddr,
        route: Route,
    ) -> Result<(usize, ConnectionId), StreamError> {
        let at = match self.docks[dock].shared {
            Some(port) => port,
            None => {
                let network = &self.docks[dock].network;
                let config = super::duplex(network, &self.config, 1)?;
                let endpoint = network.dialing(&config)?;
                self.add_port(endpoint, true)?
            }
        };
        let port = self.ports.get_mut(&at).ok_or(GONE)?;
        let connection = port.endpoint.dial(addr)?;
        self.routes.insert(connection, route);
        Ok((at, connection))
    }

    /// Whether the provider of a rail can write so many bytes at once, and whether it does that better than messages.
    pub(super) fn writes(&mut self, port: usize, bytes: u32) -> (bool, bool) {
        let can = self
            .endpoint(port)
            .is_some_and(|endpoint| endpoint.can_write(bytes.into()));
        let mut networks = self.docks.iter().map(|dock| &dock.network);
        (can, networks.all(Network::favours_writes))
    }

    /// Which way the bytes of a source take.
    pub(super) fn path(&self, source: &dyn BlockSource) -> String {
        let networks: Vec<_> = self.docks.iter().map(|dock| dock.network.clone()).collect();
        let providers = network::describe(&networks);
        let memory = report::memory(self.config.pinned);
        // It is only shown: a panic there is no reason to end a transfer.
        match guarded(|| source.path()).unwrap_or_default() {
            Some(before) => format!("{before} → {memory}; {providers}"),
            None => format!("{memory}; {providers}"),
        }
    }

    fn add_port(&mut self, endpoint: DuplexEndpoint, single: bool) -> Result<usize, Error> {
        let token = self.event_loop.add_endpoint(&endpoint)?;
        let at = self.next_port;
        self.next_port += 1;
        let port = Port {
            endpoint,
            token,
            single,
            failed: false,
        };
        self.ports.insert(at, port);
        Ok(at)
    }

    pub(super) fn endpoint(&mut self, port: usize) -> Option<&mut DuplexEndpoint> {
        self.ports.get_mut(&port).map(|port| &mut port.endpoint)
    }

    /// Nothing of it is looked at any more; what was sent arrives.
    pub(super) fn leave(&mut self, port: usize, connection: ConnectionId, politely: bool) {
        self.routes.remove(&connection);
        let by = self.now + GOODBYE;
        let Some(endpoint) = self.endpoint(port) else {
            return;
        };
        match politely {
            true => drop(endpoint.close_connection(connection, by)),
            false => endpoint.abort_connection(connection),
        }
    }

    /// Endpoints whose one connection is closed go.
    fn forget_ports(&mut self) {
        let over = |port: &Port| port.single && port.endpoint.connections() == 0;
        let gone: Vec<_> = self.ports.iter().filter(|(_, port)| over(port)).collect();
        let gone: Vec<_> = gone
            .into_iter()
            .map(|(at, port)| (*at, port.token))
            .collect();
        for (at, token) in gone {
            self.event_loop.remove(token);
            self.ports.remove(&at);
        }
    }
}

/// The network thread of a sender.
pub(super) struct Engine {
    tools: Tools,
    pool: SharedBufferManager,
    readers: Option<Workers<ReadJob>>,
    reads: Receiver<ReadDone>,
    /// Reads that are under way.
    reading: usize,
    commands: Receiver<Command>,
    deliveries: BTreeMap<u64, Delivery>,
    /// The delivery that was served last: of equal priorities, the next is first.
    last: u64,
    stop: Option<Instant>,
}

impl Engine {
    pub(super) fn new(
        config: SenderConfig,
        networks: &[Network],
        (pool, control): (SharedBufferManager, SharedBufferManager),
        commands: Receiver<Command>,
        employ: impl FnOnce(Employment) -> Result<Workers<ReadJob>, Error>,
    ) -> Result<(Self, Waker), StreamError> {
        let clock = config.clock.clone();
        let mut event_loop = EventLoop::with(crate::stream::loop_config())?;
        event_loop.add_timer(TICK, Some(TICK));
        let waker = event_loop.waker();
        // A block that is read has a buffer, so that is the bound; and a check for each transfer.
        let bound = 2 * pool.slots() + config.connections as usize;
        let (done, reads) = sync_channel(bound);
        let readers = employ(Employment {
            threads: config.readers,
            bound,
            done,
            waker: waker.clone(),
            clock: clock.clone(),
        })?;
        let mut tools = Tools {
            event_loop,
            docks: Vec::new(),
            ports: BTreeMap::new(),
            next_port: 0,
            routes: HashMap::new(),
            control,
            now: clock.now(),
            clock,
            reads_since: None,
            config,
        };
        for network in networks {
            let shared = match network.kind() {
                EndpointKind::Msg => {
                    let config = super::duplex(network, &tools.config, tools.config.connections)?;
                    Some(tools.add_port(network.dialing(&config)?, false)?)
                }
                EndpointKind::Rdm => None,
            };
            let network = network.clone();
            tools.docks.push(Dock { network, shared });
        }
        let engine = Self {
            tools,
            pool,
            readers: Some(readers),
            reads,
            reading: 0,
            commands,
            deliveries: BTreeMap::new(),
            last: 0,
            stop: None,
        };
        Ok((engine, waker))
    }

    /// Until it is told to stop, and everything is over. Whatever breaks it, transfers end with an error.
    pub(super) fn run(mut self) {
        let reason = match guarded(|| self.run_on()) {
            Ok(reason) => reason,
            Err(text) => {
                tracing::error!(%text, "the thread of a stream sender panicked");
                closing(text)
            }
        };
        self.end(&reason);
    }

    /// Why it ends.
    fn run_on(&mut self) -> StreamError {
        // Whether the last turn did something, which may let the next one do more.
        let mut work = false;
        loop {
            let mut ready = Vec::new();
            let wait = if work { Duration::ZERO } else { TICK };
            let ran = self.tools.event_loop.run_once(Some(wait), |_, event| {
                if let crate::event_loop::LoopEvent::Endpoint(token) = event {
                    ready.push(token);
                }
            });
            if let Err(error) = ran {
                tracing::error!(%error, "the loop of a stream sender failed");
                return StreamError::from(error);
            }
            work = self.turn(&ready);
            if work {
                self.tools.event_loop.mark_busy();
            }
            if self.is_over() {
                return closing("the sender was stopped".to_owned());
            }
        }
    }

    /// Whether it was told to stop, and may.
    fn is_over(&self) -> bool {
        let may = |by| self.deliveries.is_empty() || self.tools.now >= by;
        self.stop.is_some_and(may)
    }

    /// Everything that is not over fails, the goodbyes are said, and the threads that read have ended.
    fn end(mut self, reason: &StreamError) {
        self.each(|delivery, tools| {
            delivery.fail_all(reason, tools);
            false
        });
        let clock = self.tools.clock;
        // Nobody waits for a room in the queue of what was read: it has one for each job.
        if let Some(readers) = self.readers.take() {
            let by = clock.now() + LAST_READS;
            readers.finish(&clock, by);
        }
        for port in self.tools.ports.into_values() {
            let _ = port.endpoint.close(clock.now() + GOODBYE);
        }
    }

    /// Whether it did something.
    fn turn(&mut self, ready: &[Token]) -> bool {
        self.tools.now = self.tools.clock.now();
        let commanded = self.take_commands();
        let mut work = self.poll_ports(ready) | commanded;
        work |= self.take_reads();
        self.each(|delivery, tools| {
            delivery.on_time(tools);
            false
        });
        work |= self.begin_reads();
        work |= self.each(Delivery::pump);
        self.deliveries.retain(|_, delivery| !delivery.is_over());
        self.tools.forget_ports();
        work
    }

    /// Lets a delivery act. It calls code of the user's: when that panics, this transfer ends, and no other. None: it has ended.
    fn act<T>(&mut self, id: u64, act: impl FnOnce(&mut Delivery, &mut Tools) -> T) -> Option<T> {
        let delivery = self.deliveries.get_mut(&id)?;
        let tools = &mut self.tools;
        match guarded(|| act(delivery, tools)) {
            Ok(done) => Some(done),
            Err(reason) => {
                tracing::warn!(%reason, "a transfer is given up");
                let code = RefusalCode::SOURCE;
                delivery.break_off(&StreamError::GivenUp { code, reason }, tools);
                self.deliveries.remove(&id);
                None
            }
        }
    }

    /// The same with all of them; whether one did something.
    fn each(&mut self, act: impl Fn(&mut Delivery, &mut Tools) -> bool) -> bool {
        let (mut from, mut any) = (0, false);
        while let Some((&id, _)) = self.deliveries.range(from..).next() {
            any |= self.act(id, &act).unwrap_or(true);
            from = id + 1;
        }
        any
    }

    fn take_commands(&mut self) -> bool {
        let mut any = false;
        loop {
            let command = match self.commands.try_recv() {
                Ok(command) => command,
                Err(TryRecvError::Empty) => return any,
                Err(TryRecvError::Disconnected) => {
                    // Transfers go on without their handles; with the sender's gone, too, it ends after them.
                    self.stop
                        .get_or_insert(self.tools.now + Duration::from_secs(86_400));
                    return any;
                }
            };
            any = true;
            let delivery = |this: &mut Self, id, act: &dyn Fn(&mut Delivery, &mut Tools)| {
                this.act(id, act);
            };
            match command {
                Command::Begin(begin) => {
                    let id = begin.id;
                    let delivery = Delivery::new(*begin, &mut self.tools);
                    self.deliveries.insert(id, delivery);
                }
                Command::Pause(id, on) => delivery(self, id, &|it, tools| it.pause(on, tools)),
                Command::Cancel(id) => delivery(self, id, &|it, tools| it.cancel(tools)),
                Command::Priority(id, to) => delivery(self, id, &|it, _| it.set_priority(to)),
                Command::Rate(id, rate) => {
                    delivery(self, id, &|it, tools| it.set_rate(rate, tools.now))
                }
                Command::Stop(by) => self.stop = Some(self.stop.map_or(by, |old| old.min(by))),
                // Whoever asked may have given up.
                Command::Describe(to) => drop(to.try_send(self.describe())),
            }
        }
    }

    fn describe(&self) -> String {
        let mut lines = vec![format!(
            "sender: {} reads under way, {} of {} buffers free",
            self.reading,
            self.pool.free_count(),
            self.pool.slots(),
        )];
        for (at, port) in &self.tools.ports {
            let connections = port.endpoint.connections();
            let failed = if port.failed { ", failed" } else { "" };
            lines.push(format!("port {at}: {connections} connections{failed}"));
        }
        let deliveries = self.deliveries.values();
        lines.extend(deliveries.map(|delivery| delivery.describe(self.tools.now)));
        lines.join("\n")
    }

    fn poll_ports(&mut self, ready: &[Token]) -> bool {
        let mut events = Vec::new();
        for port in self.tools.ports.values_mut() {
            // Whoever was sent to may have said something since: a look costs little beside a block.
            if !ready.contains(&port.token) && self.deliveries.is_empty() {
                continue;
            }
            let polled = port.endpoint.poll(&mut events);
            if let Err(error) = polled {
                // For good: it says so at each poll.
                if !std::mem::replace(&mut port.failed, true) {
                    tracing::error!(%error, "an endpoint of a stream sender failed");
                }
            }
        }
        let any = !events.is_empty();
        for event in events {
            self.on_event(event);
        }
        any
    }

    fn on_event(&mut self, event: ReceiveEvent) {
        let connection = match &event {
            ReceiveEvent::Message(message) => message.connection(),
            ReceiveEvent::Connected { connection, .. }
            | ReceiveEvent::Completed { connection, .. }
            | ReceiveEvent::Failed { connection, .. }
            | ReceiveEvent::PeerClosing { connection }
            | ReceiveEvent::Window { connection, .. }
            | ReceiveEvent::Disconnected { connection, .. } => *connection,
            // A refused send is offered again at each turn.
            _ => return,
        };
        let Some(&route) = self.tools.routes.get(&connection) else {
            return;
        };
        self.act(route.transfer, |delivery, tools| {
            delivery.on_event(route, event, tools);
        });
    }

    fn take_reads(&mut self) -> bool {
        let mut any = false;
        while let Ok(done) = self.reads.try_recv() {
            any = true;
            self.reading -= 1;
            self.tools.reads_since = (self.reading > 0).then_some(self.tools.now);
            self.act(done.transfer, |delivery, tools| {
                delivery.on_read(done, tools)
            });
        }
        any
    }

    /// Begins as many reads as there are buffers.
    fn begin_reads(&mut self) -> bool {
        let mut any = false;
        while self.reading < 2 * self.pool.slots() {
            let Some(id) = self.next_reader() else { break };
            let pool = self.pool.clone();
            let job = self.act(id, |delivery, _| {
                let what = delivery.begin_read(&pool)?;
                Some(delivery.job(what))
            });
            // One that ended instead leaves the others their turn.
            let Some(job) = job else { continue };
            let (Some(job), Some(readers)) = (job, &self.readers) else {
                break;
            };
            if readers.give(job).is_err() {
                // There is room for all that may be under way.
                tracing::error!("the queue of the readers of a stream sender is full");
                break;
            }
            self.reading += 1;
            let now = self.tools.now;
            self.tools.reads_since.get_or_insert(now);
            self.last = id;
            any = true;
        }
        any
    }

    /// Of those that have something to read, the one of the highest priority; of several such, the one whose turn it is.
    fn next_reader(&self) -> Option<u64> {
        let slots = self.pool.slots();
        let free = self.pool.free_count() > 0;
        let able = self.deliveries.iter();
        let able = able.filter(|(_, delivery)| delivery.wants_read(free, slots, self.tools.now));
        let best = able.max_by_key(|(id, delivery)| {
            let behind = **id <= self.last;
            (delivery.priority(), !behind, std::cmp::Reverse(**id))
        });
        best.map(|(id, _)| *id)
    }
}

/// For whoever drives it without its thread.
#[cfg(all(test, not(loom)))]
impl Engine {
    /// One turn, in which every endpoint is polled. Whether it did something.
    pub(super) fn turn_all(&mut self) -> bool {
        let ports = self.tools.ports.values();
        let all: Vec<_> = ports.map(|port| port.token).collect();
        self.turn(&all)
    }

    /// When it takes its next turn, whatever happens.
    pub(super) fn due(&self) -> Instant {
        let ports = self.tools.ports.values();
        let first = ports.filter_map(|port| port.endpoint.next_deadline()).min();
        let tick = self.tools.now + TICK;
        first.map_or(tick, |first| first.min(tick))
    }

    /// Connections of its endpoints.
    pub(super) fn connections(&self) -> usize {
        let ports = self.tools.ports.values();
        ports.map(|port| port.endpoint.connections()).sum()
    }

    pub(super) fn has_stopped(&self) -> bool {
        self.is_over()
    }

    pub(super) fn end_now(self) {
        self.end(&closing("the sender was stopped".to_owned()));
    }

    pub(super) fn in_words(&self) -> String {
        self.describe()
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine")
            .field("deliveries", &self.deliveries.len())
            .finish_non_exhaustive()
    }
}

fn closing(reason: String) -> StreamError {
    let code = RefusalCode::CLOSING;
    StreamError::GivenUp { code, reason }
}

/// What a port is not that was given up meanwhile.
const GONE: Error = Error::EndpointFailed("the endpoint of a stream is gone");
