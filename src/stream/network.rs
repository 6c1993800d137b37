//! `NetworkThread`: the thread of a sender or a receiver that owns its ports, and never waits for a
//! file.
//!
//! ```text
//!  one turn:  orders ─► events of endpoints ─► what the workers did ─► time ─┐
//!                                                 messages and blocks to send ◄─┘
//! ```
//!
//! The thread is the same on both sides. What a side does in its turns is its [`StreamSide`]; what
//! it has of the network is its [`Network`].

use std::collections::BTreeMap;
use std::fmt::{Debug, Formatter};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::interface::Interface;
use super::outbox::{CONTROL_KEY, Outbox, Pumped};
use super::port::{Port, PortEvent};
use super::wire::HEADER_LEN;
use super::workers::guarded;
use super::{RefusalCode, StreamError};
use crate::Error;
use crate::buffer::{Payload, SharedBufferManager};
use crate::clock::Clock;
use crate::endpoint::duplex::DuplexEndpoint;
use crate::endpoint::{ConnectionId, ReceiveEvent, SendErrorKind};
use crate::event_loop::{EventLoop, LoopEvent, Token, Waker};

/// How often deadlines are looked at.
const TICK: Duration = Duration::from_millis(50);

/// The same while there is neither a connection nor anything under way: then there are none, and
/// whatever happens wakes the thread.
const IDLE_TICK: Duration = Duration::from_secs(1);

/// Buffers for control messages; each peer uses few at a time.
const CONTROL_SLOTS: u32 = 64;

/// Questions for words that wait for a thread, at most: who asks may have given up on the others.
pub(super) const DESCRIPTIONS_MAX: usize = 16;

/// Bytes of a buffer for control messages.
pub(super) const CONTROL_ROOM: usize = 16 * 1024;

/// Buffers for control messages.
pub(super) fn control_pool<'a>(
    interfaces: impl Iterator<Item = &'a Interface>,
) -> Result<SharedBufferManager, Error> {
    let pool =
        SharedBufferManager::allocate_with_headroom(CONTROL_SLOTS, CONTROL_ROOM, HEADER_LEN)?;
    for interface in interfaces {
        interface.register(pool.region())?;
    }
    Ok(pool)
}

/// The endpoints of a side, and its time.
pub(super) struct Network {
    /// What its side is called where something is said of it.
    name: &'static str,
    event_loop: EventLoop,
    ports: BTreeMap<usize, Port>,
    next_port: usize,
    /// For control messages.
    control: SharedBufferManager,
    pub(super) clock: Clock,
    /// When this turn began.
    pub(super) now: Instant,
    /// How long goodbyes may take.
    goodbye: Duration,
    /// By when everything is to be over, once the side was told to stop.
    pub(super) stop: Option<Instant>,
}

impl Network {
    pub(super) fn new<'a>(
        name: &'static str,
        interfaces: impl Iterator<Item = &'a Interface>,
        goodbye: Duration,
        clock: Clock,
    ) -> Result<Self, Error> {
        let event_loop = EventLoop::with(super::loop_config())?;
        let control = control_pool(interfaces)?;
        Ok(Self {
            name,
            event_loop,
            ports: BTreeMap::new(),
            next_port: 0,
            control,
            now: clock.now(),
            clock,
            goodbye,
            stop: None,
        })
    }

    pub(super) fn waker(&self) -> Waker {
        self.event_loop.waker()
    }

    /// When a goodbye that is said now has had its time.
    pub(super) fn goodbye_by(&self) -> Instant {
        self.now + self.goodbye
    }

    /// Takes an endpoint in. One that `is_single` goes when its last connection is gone; one
    /// `on_thread` has a thread of its own.
    pub(super) fn add_port(
        &mut self,
        endpoint: DuplexEndpoint,
        is_single: bool,
        on_thread: bool,
    ) -> Result<usize, Error> {
        let number = self.next_port;
        self.next_port += 1;
        let port = match on_thread {
            true => Port::on_thread(endpoint, is_single, self.name, self.waker())?,
            false => Port::in_loop(endpoint, is_single, &mut self.event_loop)?,
        };
        self.ports.insert(number, port);
        Ok(number)
    }

    /// Asks something of the endpoint of a port, and waits for the answer. `None`: it has gone
    /// with its connection, or its thread has ended.
    pub(super) fn call<T: Send + 'static>(
        &mut self,
        port: usize,
        call: impl FnOnce(&mut DuplexEndpoint) -> T + Send + 'static,
    ) -> Option<T> {
        self.ports.get_mut(&port)?.call(call)
    }

    /// Sends a message, or says why not. `None`: the port has gone with its connection.
    pub(super) fn send(
        &mut self,
        (port, connection): (usize, ConnectionId),
        payload: Payload,
        header: &[u8; HEADER_LEN],
        key: u64,
    ) -> Option<Result<(), SendErrorKind>> {
        let port = self.ports.get_mut(&port)?;
        Some(port.send(connection, payload, header, key))
    }

    /// Sends of an outbox what can be sent now.
    pub(super) fn pump(
        &mut self,
        port: usize,
        connection: ConnectionId,
        outbox: &mut Outbox,
    ) -> Pumped {
        let port = self.ports.get_mut(&port);
        port.map_or(Pumped::Empty, |port| {
            outbox.pump(&self.control, |payload, header| {
                port.send(connection, payload, header, CONTROL_KEY)
            })
        })
    }

    /// Ends a connection politely: what was sent arrives.
    pub(super) fn close_connection(&mut self, port: usize, connection: ConnectionId) {
        let by = self.goodbye_by();
        if let Some(port) = self.ports.get_mut(&port) {
            port.close_connection(connection, by);
        }
    }

    /// Ends a connection at once.
    pub(super) fn abort_connection(&mut self, port: usize, connection: ConnectionId) {
        if let Some(port) = self.ports.get_mut(&port) {
            port.abort_connection(connection);
        }
    }

    /// What happened at each port.
    ///
    /// # Errors
    /// A port's thread has ended.
    fn poll(&mut self, ready: &[Token]) -> Result<Vec<(usize, Vec<PortEvent>)>, &'static str> {
        let mut all = Vec::new();
        for (number, port) in &mut self.ports {
            let mut events = Vec::new();
            port.poll(ready, self.name, &mut events)?;
            if !events.is_empty() {
                all.push((*number, events));
            }
        }
        Ok(all)
    }

    /// Endpoints whose one connection is closed go.
    fn forget_ports(&mut self) {
        let event_loop = &mut self.event_loop;
        self.ports.retain(|_, port| {
            let is_over = port.is_single && port.connections() == 0;
            if is_over && let Some(token) = port.token() {
                event_loop.remove(token);
            }
            !is_over
        });
    }

    /// Every endpoint goes, once its goodbyes are said.
    pub(super) fn close(&mut self) {
        let by = self.clock.now() + self.goodbye;
        // All of them at once, where they have threads.
        for port in self.ports.values() {
            port.begin_close(by);
        }
        for port in std::mem::take(&mut self.ports).into_values() {
            port.close(self.clock.now() + self.goodbye);
        }
    }

    /// How its ports are, in words.
    pub(super) fn describe(&self) -> impl Iterator<Item = String> + '_ {
        let ports = self.ports.iter();
        ports.map(|(number, port)| format!("port {number}: {}", port.describe()))
    }
}

/// What the thread does for its side.
pub(super) trait StreamSide: Send + 'static {
    fn network(&self) -> &Network;

    fn network_mut(&mut self) -> &mut Network;

    fn on_event(&mut self, port: usize, event: ReceiveEvent);

    /// A block that a port's thread had taken was refused for good.
    fn on_refused(&mut self, connection: ConnectionId, kind: &SendErrorKind);

    /// The rest of a turn, behind orders and events. Whether it did something.
    fn turn(&mut self) -> bool;

    /// Whether everything that was begun is over.
    fn is_idle(&self) -> bool;

    /// How everything is, in words.
    fn describe(&self) -> String;

    /// Everything that is not over fails, the goodbyes are said, and its workers have ended.
    fn end(self, reason: &StreamError);
}

/// What a thread is to do with its side.
type Order<S> = Box<dyn FnOnce(&mut S) + Send>;

/// The thread of a side.
pub(super) struct NetworkThread<S: StreamSide> {
    side: S,
    orders: Receiver<Order<S>>,
}

impl<S: StreamSide> NetworkThread<S> {
    /// A thread that is not spawned yet, and its handle.
    pub(super) fn new(side: S) -> (ThreadHandle<S>, Self) {
        let (queue, orders) = channel();
        let network = side.network();
        let handle = ThreadHandle {
            orders: Arc::new(Orders {
                queue,
                waker: network.waker(),
                waiting: Arc::default(),
                describing: Arc::default(),
            }),
            clock: network.clock.clone(),
            thread: None,
        };
        (handle, Self { side, orders })
    }

    /// Until it is told to stop, and everything is over. Whatever breaks it, its side is told to
    /// end.
    fn run(mut self) {
        let reason = guarded(|| self.run_on()).unwrap_or_else(|text| {
            let name = self.side.network().name;
            tracing::error!(%text, "the thread of a stream {name} panicked");
            closing(text)
        });
        self.side.end(&reason);
    }

    /// Why it ends.
    fn run_on(&mut self) -> StreamError {
        // Whether the last turn did something, which may let the next one do more.
        let mut work = false;
        loop {
            let mut ready = Vec::new();
            let wait = match work {
                true => Duration::ZERO,
                false => self.tick(),
            };
            let network = self.side.network_mut();
            let ran = network.event_loop.run_once(Some(wait), |_, event| {
                if let LoopEvent::Endpoint(token) = event {
                    ready.push(token);
                }
            });
            if let Err(error) = ran {
                tracing::error!(%error, "the loop of a stream {} failed", network.name);
                return StreamError::from(error);
            }
            work = match self.turn(&ready) {
                Ok(work) => work,
                Err(reason) => return closing(reason.to_owned()),
            };
            if work {
                self.side.network_mut().event_loop.mark_busy();
            }
            if self.is_over() {
                return self.was_stopped();
            }
        }
    }

    /// How long it may sleep.
    fn tick(&self) -> Duration {
        let mut ports = self.side.network().ports.values();
        let is_alone = ports.all(|port| port.connections() == 0);
        match is_alone && self.side.is_idle() {
            true => IDLE_TICK,
            false => TICK,
        }
    }

    fn was_stopped(&self) -> StreamError {
        closing(format!("the {} was stopped", self.side.network().name))
    }

    /// Whether it was told to stop, and may.
    fn is_over(&self) -> bool {
        let network = self.side.network();
        let may = |by| network.now >= by || self.side.is_idle();
        network.stop.is_some_and(may)
    }

    /// Whether it did something.
    ///
    /// # Errors
    /// It can't go on.
    fn turn(&mut self, ready: &[Token]) -> Result<bool, &'static str> {
        let network = self.side.network_mut();
        network.now = network.clock.now();
        let mut work = false;
        while let Ok(order) = self.orders.try_recv() {
            work = true;
            order(&mut self.side);
        }
        for (port, events) in self.side.network_mut().poll(ready)? {
            work = true;
            for event in events {
                self.on_event(port, event);
            }
        }
        work |= self.side.turn();
        self.side.network_mut().forget_ports();
        Ok(work)
    }

    fn on_event(&mut self, port: usize, event: PortEvent) {
        match event {
            PortEvent::Endpoint(event) => self.side.on_event(port, event),
            // Whatever comes behind it would come out of turn.
            PortEvent::Refused {
                connection,
                key: CONTROL_KEY,
                kind,
            } => {
                tracing::debug!(%kind, "a control message of a stream could not be sent");
                self.side.network_mut().abort_connection(port, connection);
            }
            PortEvent::Refused {
                connection, kind, ..
            } => self.side.on_refused(connection, &kind),
        }
    }
}

/// The side, for tests that drive it without a thread.
#[cfg(all(test, not(loom)))]
impl<S: StreamSide> NetworkThread<S> {
    pub(super) fn side(&self) -> &S {
        &self.side
    }

    /// One turn, in which every endpoint is polled. Whether it did something.
    pub(super) fn turn_all(&mut self) -> bool {
        let ports = self.side.network().ports.values();
        let all: Vec<_> = ports.filter_map(Port::token).collect();
        self.turn(&all).expect("no port has a thread")
    }

    /// When it takes its next turn, whatever happens.
    pub(super) fn due(&self) -> Instant {
        let network = self.side.network();
        let ports = network.ports.values();
        let first = ports.filter_map(Port::next_deadline).min();
        let tick = network.now + TICK;
        first.map_or(tick, |first| first.min(tick))
    }

    /// Connections of its endpoints.
    pub(super) fn connections(&self) -> usize {
        let ports = self.side.network().ports.values();
        ports.map(Port::connections).sum()
    }

    pub(super) fn has_stopped(&self) -> bool {
        self.is_over()
    }

    pub(super) fn end_now(self) {
        let reason = self.was_stopped();
        self.side.end(&reason);
    }
}

/// The way of orders to a thread, which wakes up for each.
///
/// The queue itself has no bound, since nobody who gives an order may wait, and none may be lost.
/// What there can be in it is bounded by who gives some: one for each transfer that was begun and
/// that the thread has not seen yet, one for each transfer of which something is wanted, however
/// often (`Wishes`), [`DESCRIPTIONS_MAX`], and two to stop.
pub(super) struct Orders<S> {
    queue: Sender<Order<S>>,
    waker: Waker,
    /// How many wait, and how many of those are questions for words.
    waiting: Arc<AtomicUsize>,
    describing: Arc<AtomicUsize>,
}

impl<S> Orders<S> {
    pub(super) fn give(&self, order: impl FnOnce(&mut S) + Send + 'static) {
        let waiting = Arc::clone(&self.waiting);
        waiting.fetch_add(1, Ordering::Relaxed);
        // A thread that is gone takes none: there is nothing left to do about it.
        let _ = self.queue.send(Box::new(move |side| {
            waiting.fetch_sub(1, Ordering::Relaxed);
            order(side);
        }));
        self.waker.wake();
    }

    /// How many the thread has not taken.
    #[cfg(all(test, not(loom)))]
    pub(super) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }
}

impl<S> Debug for Orders<S> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Orders").finish_non_exhaustive()
    }
}

/// What a sender or a receiver holds of its thread.
pub(super) struct ThreadHandle<S> {
    pub(super) orders: Arc<Orders<S>>,
    clock: Clock,
    thread: Option<JoinHandle<()>>,
}

impl<S: StreamSide> ThreadHandle<S> {
    pub(super) fn spawn(&mut self, thread: NetworkThread<S>, name: &str) -> Result<(), Error> {
        let builder = std::thread::Builder::new().name(name.to_owned());
        let spawned = builder.spawn(move || thread.run());
        self.thread = Some(spawned.map_err(|source| Error::Os {
            call: "pthread_create",
            source,
        })?);
        Ok(())
    }

    /// How everything is, in words. None: the thread did not answer within that time, or as many
    /// questions as may wait do already.
    pub(super) fn describe(&self, timeout: Duration) -> Option<String> {
        let describing = Arc::clone(&self.orders.describing);
        if describing.fetch_add(1, Ordering::Relaxed) >= DESCRIPTIONS_MAX {
            describing.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        let (way, words) = sync_channel(1);
        self.orders.give(move |side| {
            describing.fetch_sub(1, Ordering::Relaxed);
            // Whoever asked may have given up.
            drop(way.try_send(side.describe()));
        });
        words.recv_timeout(timeout).ok()
    }

    /// What is not over by then is cut.
    fn stop_by(&self, by: Instant) {
        self.orders.give(move |side| {
            let stop = &mut side.network_mut().stop;
            *stop = Some(stop.map_or(by, |old| old.min(by)));
        });
    }

    /// What is not over is cut, soon, and nobody waits for that.
    pub(super) fn cut(&self) {
        self.stop_by(self.clock.now());
    }

    /// Returns when the thread has ended, a little after the deadline at the latest.
    pub(super) fn stop(&mut self, deadline: Instant) {
        self.stop_by(deadline);
        if let Some(thread) = self.thread.take() {
            // What it says of its panic, it said on stderr.
            let _ = thread.join();
        }
    }
}

impl<S> Debug for ThreadHandle<S> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        self.thread.fmt(f)
    }
}

fn closing(reason: String) -> StreamError {
    let code = RefusalCode::CLOSING;
    StreamError::GivenUp { code, reason }
}
