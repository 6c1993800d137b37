//! `Port`: an endpoint of a side, which the side's thread drives itself, or which has a thread of
//! its own.
//!
//! ```text
//!  side's thread ── sends and calls, in order ──► port's thread ── endpoint ── a domain of its own
//!                ◄────────── its events ─────────
//! ```
//!
//! Where the provider copies (tcp), an endpoint's sends and polls take nearly all of a stream's
//! processor time, and one thread for all connections moves as much as one core can copy. So a side
//! with several domains over such a provider gives each port a thread. Blocks and control messages
//! go to it by a queue; whatever else is asked of the endpoint, which is seldom, is a call that
//! waits for its answer.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, TryRecvError, bounded, unbounded};

use super::wire::HEADER_LEN;
use super::workers::guarded;
use crate::Error;
use crate::buffer::Payload;
use crate::endpoint::duplex::DuplexEndpoint;
use crate::endpoint::{Blocked, ConnectionId, ReceiveEvent, SendErrorKind};
use crate::event_loop::{EventLoop, Token, Waker};

/// How long a port's thread sleeps at most. What there is to do wakes it up.
const IDLE: Duration = Duration::from_secs(10);

/// How often sends are offered again that the endpoint had no room for.
const TICK: Duration = Duration::from_millis(50);

/// Sends that wait in the queue of a port's thread, at most. A side has fewer blocks on their way
/// as a rule (`depth` for each connection); what is beyond waits at the side.
const QUEUED_MAX: usize = 1024;

/// How long a call waits for a port's thread. Only a provider that never returns takes so long.
const CALL_MAX: Duration = Duration::from_secs(60);

/// What waits for its turn on a connection.
enum Queued {
    Send(QueuedSend),
    /// The goodbye, which follows what was sent, and is over by then.
    Goodbye(Instant),
}

/// Something that is to be sent on a connection.
struct QueuedSend {
    payload: Payload,
    header: [u8; HEADER_LEN],
    key: u64,
}

/// What a port reports.
pub(super) enum PortEvent {
    /// What its endpoint reports.
    Endpoint(ReceiveEvent),
    /// A send that the port's thread had taken was refused for good: it is not on its way.
    Refused {
        connection: ConnectionId,
        key: u64,
        kind: SendErrorKind,
    },
}

type Call = Box<dyn FnOnce(&mut DuplexEndpoint) + Send>;

/// What a port's thread is to do.
enum Order {
    Queue(ConnectionId, Queued),
    Call(Call),
    /// Say goodbye to everybody by then, and end.
    Close(Instant),
}

/// An endpoint of a side.
pub(super) struct Port {
    driver: Driver,
    /// It is there for one connection, and goes with it.
    pub(super) is_single: bool,
}

// One value for each endpoint: that the two differ in size is no loss.
#[expect(clippy::large_enum_variant)]
enum Driver {
    /// The side's thread.
    Side {
        endpoint: DuplexEndpoint,
        token: Token,
        /// It can't be used any more, which was said.
        has_failed: bool,
    },
    Own(PortThread),
}

impl Port {
    /// A port that the thread of this loop drives.
    pub(super) fn in_loop(
        endpoint: DuplexEndpoint,
        is_single: bool,
        event_loop: &mut EventLoop,
    ) -> Result<Self, Error> {
        let token = event_loop.add_endpoint(&endpoint)?;
        let driver = Driver::Side {
            endpoint,
            token,
            has_failed: false,
        };
        Ok(Self { driver, is_single })
    }

    /// A port with a thread of its own. `side` wakes up whoever takes its events.
    pub(super) fn on_thread(
        endpoint: DuplexEndpoint,
        is_single: bool,
        name: &'static str,
        side: Waker,
    ) -> Result<Self, Error> {
        let thread = PortThread::spawn(endpoint, name, side)?;
        let driver = Driver::Own(thread);
        Ok(Self { driver, is_single })
    }

    /// Where it is in the side's loop, if it is there.
    pub(super) fn token(&self) -> Option<Token> {
        match &self.driver {
            Driver::Side { token, .. } => Some(*token),
            Driver::Own(_) => None,
        }
    }

    /// Connections that are open, or being made, or whose last events were not taken.
    pub(super) fn connections(&self) -> usize {
        match &self.driver {
            Driver::Side { endpoint, .. } => endpoint.connections(),
            Driver::Own(thread) => thread.connections(),
        }
    }

    /// Sends a message, or says why not. A thread of the port's own may find out later:
    /// [`PortEvent::Refused`].
    pub(super) fn send(
        &mut self,
        connection: ConnectionId,
        payload: Payload,
        header: &[u8; HEADER_LEN],
        key: u64,
    ) -> Result<(), SendErrorKind> {
        match &mut self.driver {
            Driver::Side { endpoint, .. } => {
                let sent = endpoint.send(connection, payload, header, key);
                sent.map_err(|refused| refused.kind)
            }
            Driver::Own(thread) => {
                let header = *header;
                let send = QueuedSend {
                    payload,
                    header,
                    key,
                };
                thread.send(connection, send)
            }
        }
    }

    /// Asks something of the endpoint, and waits for the answer. `None`: its thread has ended.
    pub(super) fn call<T: Send + 'static>(
        &mut self,
        call: impl FnOnce(&mut DuplexEndpoint) -> T + Send + 'static,
    ) -> Option<T> {
        match &mut self.driver {
            Driver::Side { endpoint, .. } => Some(call(endpoint)),
            Driver::Own(thread) => thread.call(call),
        }
    }

    /// Ends a connection politely by then: what was sent before arrives.
    pub(super) fn close_connection(&mut self, connection: ConnectionId, by: Instant) {
        match &mut self.driver {
            Driver::Side { endpoint, .. } => {
                endpoint.close_connection(connection, by);
            }
            Driver::Own(thread) => thread.order(Order::Queue(connection, Queued::Goodbye(by))),
        }
    }

    /// Ends a connection at once.
    pub(super) fn abort_connection(&mut self, connection: ConnectionId) {
        match &mut self.driver {
            Driver::Side { endpoint, .. } => endpoint.abort_connection(connection),
            Driver::Own(thread) => thread.order(Order::Call(Box::new(move |endpoint| {
                endpoint.abort_connection(connection);
            }))),
        }
    }

    /// Appends what happened. A port that has connections is asked even if it is not ready: a look
    /// costs little beside a block.
    ///
    /// # Errors
    /// Its thread has ended, though nobody told it to.
    pub(super) fn poll(
        &mut self,
        ready: &[Token],
        side: &str,
        events: &mut Vec<PortEvent>,
    ) -> Result<(), &'static str> {
        match &mut self.driver {
            Driver::Side {
                endpoint,
                token,
                has_failed,
            } => {
                if !ready.contains(token) && endpoint.connections() == 0 {
                    return Ok(());
                }
                let mut happened = Vec::new();
                if let Err(error) = endpoint.poll(&mut happened)
                    // For good: it says so at each poll.
                    && !std::mem::replace(has_failed, true)
                {
                    tracing::error!(%error, "an endpoint of a stream {side} failed");
                }
                events.extend(happened.into_iter().map(PortEvent::Endpoint));
                Ok(())
            }
            Driver::Own(thread) => thread.take_events(events),
        }
    }

    /// Has a thread of its own say goodbye to everybody by then, and end.
    pub(super) fn begin_close(&self, by: Instant) {
        if let Driver::Own(thread) = &self.driver {
            thread.order(Order::Close(by));
        }
    }

    /// Says goodbye to everybody by then, and ends; where it has a thread, behind
    /// [`begin_close`](Self::begin_close).
    pub(super) fn close(self, by: Instant) {
        match self.driver {
            Driver::Side { endpoint, .. } => drop(endpoint.close(by)),
            Driver::Own(thread) => thread.join(),
        }
    }

    /// When it wants to be polled, whatever happens.
    #[cfg(all(test, not(loom)))]
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        match &self.driver {
            Driver::Side { endpoint, .. } => endpoint.next_deadline(),
            Driver::Own(_) => None,
        }
    }

    /// How it is, in words.
    pub(super) fn describe(&self) -> String {
        let connections = self.connections();
        match &self.driver {
            Driver::Side {
                has_failed: true, ..
            } => format!("{connections} connections, failed"),
            Driver::Side { .. } => format!("{connections} connections"),
            Driver::Own(thread) => {
                let queued = thread.shared.queued.load(Ordering::Relaxed);
                format!("{connections} connections, a thread of its own, {queued} sends queued")
            }
        }
    }
}

/// What a port's thread and its side both look at.
#[derive(Default)]
struct PortShared {
    /// Connections of the endpoint, as of the thread's last turn or call.
    connections: AtomicUsize,
    /// Sends that the side gave, and that the endpoint has not taken.
    queued: AtomicUsize,
}

/// The side's handle of a port's thread.
struct PortThread {
    orders: Sender<Order>,
    waker: Waker,
    events: Receiver<PortEvent>,
    shared: Arc<PortShared>,
    thread: Option<JoinHandle<()>>,
}

impl PortThread {
    fn spawn(endpoint: DuplexEndpoint, name: &'static str, side: Waker) -> Result<Self, Error> {
        let mut event_loop = EventLoop::with(super::loop_config())?;
        event_loop.add_endpoint(&endpoint)?;
        let waker = event_loop.waker();
        // Neither has a bound of its own: of sends there are QUEUED_MAX, each call is waited for or
        // ends a connection, and events are as many as what was sent and the buffers that messages
        // arrive in.
        let (orders, to_do) = unbounded();
        let (told, events) = unbounded();
        let shared = Arc::new(PortShared::default());
        let runner = PortRunner {
            endpoint,
            event_loop,
            orders: to_do,
            events: told,
            side,
            shared: Arc::clone(&shared),
            waiting: BTreeMap::new(),
        };
        let builder = std::thread::Builder::new().name("stream-rail".to_owned());
        let thread = builder.spawn(move || {
            if let Err(text) = guarded(|| runner.run(name)) {
                tracing::error!(%text, "the thread of a rail of a stream {name} panicked");
            }
        });
        let thread = thread.map_err(|source| Error::Os {
            call: "pthread_create",
            source,
        })?;
        Ok(Self {
            orders,
            waker,
            events,
            shared,
            thread: Some(thread),
        })
    }

    fn connections(&self) -> usize {
        // What the thread counted last, it counted behind the events of it.
        let connections = self.shared.connections.load(Ordering::Acquire);
        connections.max(usize::from(!self.events.is_empty()))
    }

    fn order(&self, order: Order) {
        // A thread that has ended takes none: the next look at its events says so.
        let _ = self.orders.send(order);
        self.waker.wake();
    }

    fn send(&self, connection: ConnectionId, send: QueuedSend) -> Result<(), SendErrorKind> {
        if self.shared.queued.load(Ordering::Relaxed) >= QUEUED_MAX {
            return Err(SendErrorKind::WouldBlock(Blocked::Depth));
        }
        self.shared.queued.fetch_add(1, Ordering::Relaxed);
        self.order(Order::Queue(connection, Queued::Send(send)));
        Ok(())
    }

    fn call<T: Send + 'static>(
        &self,
        call: impl FnOnce(&mut DuplexEndpoint) -> T + Send + 'static,
    ) -> Option<T> {
        let (way, answer) = bounded(1);
        let shared = Arc::clone(&self.shared);
        self.order(Order::Call(Box::new(move |endpoint| {
            let answer = call(endpoint);
            // A connection that was just dialed counts from now on.
            shared
                .connections
                .store(endpoint.connections(), Ordering::Release);
            // Whoever asked may have given up.
            drop(way.try_send(answer));
        })));
        answer.recv_timeout(CALL_MAX).ok()
    }

    fn take_events(&self, events: &mut Vec<PortEvent>) -> Result<(), &'static str> {
        loop {
            match self.events.try_recv() {
                Ok(event) => events.push(event),
                Err(TryRecvError::Empty) => return Ok(()),
                Err(TryRecvError::Disconnected) => return Err("the thread of a rail has ended"),
            }
        }
    }

    /// Waits until it has ended, as it was told to.
    fn join(mut self) {
        if let Some(thread) = self.thread.take() {
            // What it says of its panic, it said.
            let _ = thread.join();
        }
    }
}

impl Drop for PortThread {
    /// It ends by itself, soon: what is under way is cut.
    fn drop(&mut self) {
        self.order(Order::Close(Instant::now()));
    }
}

/// What a port's thread has.
struct PortRunner {
    endpoint: DuplexEndpoint,
    event_loop: EventLoop,
    orders: Receiver<Order>,
    events: Sender<PortEvent>,
    /// Wakes up the side.
    side: Waker,
    shared: Arc<PortShared>,
    /// What the endpoint had no room for, in order.
    waiting: BTreeMap<ConnectionId, VecDeque<Queued>>,
}

impl PortRunner {
    /// Until it is told to close, or its side is gone.
    fn run(mut self, name: &str) {
        let mut has_failed = false;
        // Whether the last turn did something, which may let the next one do more.
        let mut work = false;
        loop {
            let wait = match work {
                true => Duration::ZERO,
                false if self.waiting.is_empty() => IDLE,
                false => TICK,
            };
            if let Err(error) = self.event_loop.run_once(Some(wait), |_, _| {}) {
                tracing::error!(%error, "the loop of a rail of a stream {name} failed");
                return;
            }
            work = false;
            loop {
                match self.orders.try_recv() {
                    Ok(Order::Queue(connection, next)) => {
                        self.waiting.entry(connection).or_default().push_back(next);
                    }
                    Ok(Order::Call(call)) => call(&mut self.endpoint),
                    Ok(Order::Close(by)) => {
                        self.waiting.clear();
                        drop(self.endpoint.close(by));
                        return;
                    }
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => return,
                }
                work = true;
            }
            let mut happened = Vec::new();
            if let Err(error) = self.endpoint.poll(&mut happened)
                && !std::mem::replace(&mut has_failed, true)
            {
                tracing::error!(%error, "an endpoint of a stream {name} failed");
            }
            if !happened.is_empty() {
                work = true;
                for event in happened {
                    self.report(PortEvent::Endpoint(event));
                }
                self.side.wake();
                self.event_loop.mark_busy();
            }
            // Behind the poll, which may have made room.
            self.send_waiting();
            let connections = self.endpoint.connections();
            self.shared
                .connections
                .store(connections, Ordering::Release);
        }
    }

    fn report(&self, event: PortEvent) {
        // A side that is gone hears nothing.
        let _ = self.events.send(event);
    }

    /// Sends what there is room for, in the order of each connection.
    fn send_waiting(&mut self) {
        let mut refused = Vec::new();
        let (endpoint, shared) = (&mut self.endpoint, &self.shared);
        self.waiting.retain(|&connection, queue| {
            while let Some(next) = queue.pop_front() {
                let QueuedSend {
                    payload,
                    header,
                    key,
                } = match next {
                    Queued::Send(send) => send,
                    Queued::Goodbye(by) => {
                        endpoint.close_connection(connection, by);
                        continue;
                    }
                };
                let Err(back) = endpoint.send(connection, payload, &header, key) else {
                    shared.queued.fetch_sub(1, Ordering::Relaxed);
                    continue;
                };
                let SendErrorKind::WouldBlock(_) = back.kind else {
                    shared.queued.fetch_sub(1, Ordering::Relaxed);
                    refused.push((connection, key, back.kind));
                    continue;
                };
                let payload = back.given;
                queue.push_front(Queued::Send(QueuedSend {
                    payload,
                    header,
                    key,
                }));
                let goodbye = queue.back().and_then(Queued::goodbye);
                if goodbye.is_none_or(|by| Instant::now() < by) {
                    return true;
                }
                // The time for goodbyes is over, and the peer takes nothing.
                shared.queued.fetch_sub(queue.len() - 1, Ordering::Relaxed);
                queue.clear();
                endpoint.abort_connection(connection);
            }
            false
        });
        if refused.is_empty() {
            return;
        }
        for (connection, key, kind) in refused {
            self.report(PortEvent::Refused {
                connection,
                key,
                kind,
            });
        }
        self.side.wake();
    }
}

impl Queued {
    fn goodbye(&self) -> Option<Instant> {
        match self {
            Self::Goodbye(by) => Some(*by),
            Self::Send(_) => None,
        }
    }
}
