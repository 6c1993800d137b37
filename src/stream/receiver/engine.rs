//! `Engine`: the thread of a receiver that owns its endpoints, and never waits for a sink.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::time::{Duration, Instant};

use super::config::ReceiverConfig;
use super::guest::{Guest, Guests};
use super::news::{Mailbox, News};
use super::session::Session;
use super::writing::{Employment, WriteDone, WriteJob, Writers};
use crate::buffer::SharedBufferManager;
use crate::clock::Clock;
use crate::endpoint::duplex::DuplexEndpoint;
use crate::endpoint::{CloseReason, ConnectionId, Message as Arrived, ReceiveEvent};
use crate::event_loop::{EventLoop, LoopEvent, Token, Waker};
use crate::stream::handshake::Then;
use crate::stream::outbox::Pumped;
use crate::stream::receiving::{Intake, Refusal};
use crate::stream::wire::{BlockHeader, Features, Kind, Message, Reason, Refuse};
use crate::stream::workers::guarded;
use crate::stream::{BlockSink, RefusalCode, StreamError, StreamViolation, report};
use crate::{Error, PeerAddr};

/// How often deadlines are looked at.
const TICK: Duration = Duration::from_millis(50);

/// How long goodbyes may take.
pub(super) const GOODBYE: Duration = Duration::from_secs(1);

/// How long a sink may hold a thread when the receiver ends.
const LAST_WRITES: Duration = Duration::from_secs(30);

/// What the receiver's handle asks for.
#[derive(Debug)]
pub(super) enum Command {
    /// No new streams; those that are not over by then are cut.
    Stop(Instant),
    /// How everything is, in words.
    Describe(SyncSender<String>),
}

pub(super) struct Port {
    pub(super) endpoint: DuplexEndpoint,
    token: Token,
    /// It can't be used any more, which was said.
    failed: bool,
}

/// What guests and sessions use of the engine.
pub(super) struct Tools {
    pub(super) ports: Vec<Port>,
    /// What blocks come by, in words.
    providers: String,
    pub(super) control: SharedBufferManager,
    /// Where senders write by themselves, where they may.
    pub(super) landings: Option<SharedBufferManager>,
    pub(super) config: ReceiverConfig,
    pub(super) writers: Option<Writers>,
    pub(super) news: News,
    clock: Clock,
    /// When this turn began.
    pub(super) now: Instant,
}

impl Tools {
    /// Which way the bytes of a stream take to its sink.
    pub(super) fn path(&self, sink: Option<&dyn BlockSink>) -> String {
        let memory = report::memory(self.config.pinned);
        let providers = &self.providers;
        // It is only shown: a panic there is no reason to end a stream.
        match guarded(|| sink.and_then(BlockSink::path)).unwrap_or_default() {
            Some(behind) => format!("{providers}; {memory} → {behind}"),
            None => format!("{providers}; {memory}"),
        }
    }

    pub(super) fn give(&self, job: WriteJob) {
        let given = self
            .writers
            .as_ref()
            .is_some_and(|writers| writers.give(job));
        if !given {
            tracing::error!("the queue of the writers of a stream receiver is full");
        }
    }
}

/// The network thread of a receiver.
pub(super) struct Engine {
    event_loop: EventLoop,
    tools: Tools,
    guests: Guests,
    sessions: BTreeMap<u64, Session>,
    by_name: HashMap<[u8; 16], u64>,
    next: u64,
    written: Receiver<WriteDone>,
    commands: Receiver<Command>,
    stop: Option<Instant>,
}

impl Engine {
    pub(super) fn new(
        config: ReceiverConfig,
        (endpoints, providers): (Vec<DuplexEndpoint>, String),
        (control, landings, slots): (SharedBufferManager, Option<SharedBufferManager>, usize),
        (news, commands): (Arc<Mailbox>, Receiver<Command>),
        employ: impl FnOnce(Employment) -> Result<Writers, Error>,
    ) -> Result<(Self, Waker), Error> {
        let clock = config.clock.clone();
        let mut event_loop = EventLoop::with(crate::stream::loop_config())?;
        let mut ports = Vec::new();
        for endpoint in endpoints {
            let token = event_loop.add_endpoint(&endpoint)?;
            ports.push(Port {
                endpoint,
                token,
                failed: false,
            });
        }
        event_loop.add_timer(TICK, Some(TICK));
        let waker = event_loop.waker();
        // A block that is to be written has a buffer, or a slot. Each session that is not over has one other job at a time: it is not given the
        // next before the last one is done. What is done and was not looked at may have freed its buffer for another block.
        let sessions = config.limits.streams as usize;
        let (done, written) = sync_channel(2 * slots + sessions);
        let writers = employ(Employment {
            threads: config.writers,
            bounds: (slots, sessions),
            done,
            waker: waker.clone(),
            clock: clock.clone(),
        })?;
        let engine = Self {
            event_loop,
            tools: Tools {
                ports,
                providers,
                control,
                landings,
                config,
                writers: Some(writers),
                news: News::new(news),
                now: clock.now(),
                clock,
            },
            guests: Guests::new(),
            sessions: BTreeMap::new(),
            by_name: HashMap::new(),
            next: 1,
            written,
            commands,
            stop: None,
        };
        Ok((engine, waker))
    }

    /// Until it is told to stop, and everything is over. Whatever breaks it, streams end with news.
    pub(super) fn run(mut self) {
        if let Err(text) = guarded(|| self.run_on()) {
            tracing::error!(%text, "the thread of a stream receiver panicked");
        }
        self.end();
    }

    fn run_on(&mut self) {
        // Whether the last turn did something, which may let the next one do more.
        let mut work = false;
        loop {
            let mut ready = Vec::new();
            let wait = if work { Duration::ZERO } else { TICK };
            let ran = self.event_loop.run_once(Some(wait), |_, event| {
                if let LoopEvent::Endpoint(token) = event {
                    ready.push(token);
                }
            });
            if let Err(error) = ran {
                tracing::error!(%error, "the loop of a stream receiver failed");
                break;
            }
            work = self.turn(&ready);
            if work {
                self.event_loop.mark_busy();
            }
            if self.is_over() {
                break;
            }
        }
    }

    /// Whether it was told to stop, and may.
    fn is_over(&self) -> bool {
        let idle = || self.sessions.values().all(Session::is_over);
        self.stop.is_some_and(|by| self.tools.now >= by || idle())
    }

    fn end(mut self) {
        let ids: Vec<_> = self.sessions.keys().copied().collect();
        for id in ids {
            self.fail(id, RefusalCode::CLOSING, "the receiver ends", None);
        }
        self.pump();
        let clock = self.tools.clock;
        // What is written goes on being written: sinks are told that it is over by the last of their jobs.
        if let Some(writers) = self.tools.writers.take() {
            writers.finish(&clock, clock.now() + LAST_WRITES);
        }
        let ended = self.tools.ports.into_iter();
        ended.for_each(|port| drop(port.endpoint.close(clock.now() + GOODBYE)));
        for done in self.written.try_iter() {
            if let Some(session) = self.sessions.get_mut(&done.session) {
                session.on_last(done);
            }
        }
        for session in self.sessions.values_mut() {
            session.abandon_now();
            session.tell_cut(&mut self.tools.news);
        }
    }

    /// Whether it did something.
    fn turn(&mut self, ready: &[Token]) -> bool {
        self.tools.now = self.tools.clock.now();
        loop {
            match self.commands.try_recv() {
                Ok(Command::Stop(by)) => self.stop = Some(self.stop.map_or(by, |old| old.min(by))),
                // Whoever asked may have given up.
                Ok(Command::Describe(to)) => drop(to.try_send(self.describe())),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => {
                    self.stop.get_or_insert(self.tools.now);
                    break;
                }
            }
        }
        let mut work = self.poll_ports(ready);
        while let Ok(done) = self.written.try_recv() {
            work = true;
            if let Some(session) = self.sessions.get_mut(&done.session) {
                session.on_done(done, &mut self.guests, &mut self.tools);
            }
        }
        self.on_time();
        self.pump();
        self.forget();
        work
    }

    fn describe(&self) -> String {
        let now = self.tools.now;
        let mut lines = vec!["receiver:".to_owned()];
        for (at, port) in self.tools.ports.iter().enumerate() {
            let connections = port.endpoint.connections();
            let failed = if port.failed { ", failed" } else { "" };
            lines.push(format!("port {at}: {connections} connections{failed}"));
        }
        if let Some(pool) = &self.tools.landings {
            let (free, slots) = (pool.free_count(), pool.slots());
            lines.push(format!("{free} of {slots} slots of windows free"));
        }
        let guests = self.guests.iter();
        lines.extend(guests.map(|(connection, guest)| guest.describe(*connection, now)));
        lines.extend(self.sessions.values().map(|session| session.describe(now)));
        lines.join("\n")
    }

    // ---- events --------------------------------------------------------------------------------------------------

    fn poll_ports(&mut self, ready: &[Token]) -> bool {
        let mut any = false;
        for at in 0..self.tools.ports.len() {
            let port = &mut self.tools.ports[at];
            if !ready.contains(&port.token) && self.guests.is_empty() {
                continue;
            }
            let mut events = Vec::new();
            if let Err(error) = port.endpoint.poll(&mut events) {
                // For good: it says so at each poll.
                if !std::mem::replace(&mut port.failed, true) {
                    tracing::error!(%error, "an endpoint of a stream receiver failed");
                }
            }
            any |= !events.is_empty();
            for event in events {
                self.on_event(at, event);
            }
        }
        any
    }

    fn on_event(&mut self, port: usize, event: ReceiveEvent) {
        match event {
            ReceiveEvent::Connected { connection, info } => {
                match Guest::new(port, info.peer, &self.tools) {
                    Ok(guest) => drop(self.guests.insert(connection, guest)),
                    Err(error) => {
                        tracing::error!(%error, "a connection could not be taken");
                        let endpoint = &mut self.tools.ports[port].endpoint;
                        endpoint.abort_connection(connection);
                    }
                }
            }
            ReceiveEvent::Message(message) => self.on_message(message),
            ReceiveEvent::Disconnected { connection, reason } => {
                self.on_disconnected(connection, reason);
            }
            // What this side sends is small, and said anew or not needed: a failed send is followed by the connection's end.
            _ => {}
        }
    }

    fn on_message(&mut self, arrived: Arrived) {
        let connection = arrived.connection();
        let Some(guest) = self.guests.get_mut(&connection) else {
            return;
        };
        guest.last_heard = self.tools.now;
        let (session, rail) = (guest.session, guest.rail);
        // The path of nearly all messages: nothing but the header is looked at here.
        if let Some(id) = session
            && Kind::peek(arrived.header()) == Some(Kind::BLOCK)
        {
            let Some(session) = self.sessions.get_mut(&id) else {
                return;
            };
            let taken = BlockHeader::parse(arrived.header(), arrived.payload().len())
                .map_err(StreamViolation::from)
                .and_then(|header| {
                    let (guests, tools) = (&mut self.guests, &mut self.tools);
                    session.on_block(rail, &header, arrived, guests, tools)
                });
            if let Err(violation) = taken {
                self.on_violation(connection, violation);
            }
            return;
        }
        let Some(id) = session else {
            return self.on_handshake(connection, &arrived);
        };
        let result = Message::parse(arrived.header(), arrived.payload())
            .map_err(StreamViolation::from)
            .and_then(|message| self.on_stream_message(connection, id, &message));
        if let Err(violation) = result {
            self.on_violation(connection, violation);
        }
    }

    fn on_handshake(&mut self, connection: ConnectionId, arrived: &Arrived) {
        let now = self.tools.now;
        let Some(guest) = self.guests.get_mut(&connection) else {
            return;
        };
        if guest.leave_by.is_some() {
            return;
        }
        let agreed = match guest.on_handshake(arrived, now) {
            Then::Wait => return,
            Then::Ready(agreed) => agreed,
            Then::Over(error) => return self.on_failed_handshake(connection, &error),
        };
        let name = agreed.session;
        (guest.rail, guest.rails) = (agreed.rail, agreed.rails);
        guest.hears_of_rails = agreed.features.contains(Features::RAIL_GONE);
        // A rail of a session that is known, or the first of a new one.
        let id = match self.by_name.get(&name) {
            Some(id) => {
                let known = self.sessions.get(id);
                if let Some((code, text)) = known.and_then(|it| it.refuses_rail(agreed.rail)) {
                    return self.refuse(connection, code, text);
                }
                *id
            }
            None => {
                let sessions = self.sessions.values().filter(|session| !session.is_over());
                if sessions.count() >= self.tools.config.limits.streams as usize
                    || self.stop.is_some()
                {
                    let code = match self.stop {
                        Some(_) => RefusalCode::CLOSING,
                        None => RefusalCode::BUSY,
                    };
                    return self.refuse(connection, code, "");
                }
                let id = self.next;
                self.next += 1;
                let session = Session::new(id, name, guest.peer, now);
                self.sessions.insert(id, session);
                self.by_name.insert(name, id);
                id
            }
        };
        guest.session = Some(id);
        let rail = guest.rail;
        if let Some(session) = self.sessions.get_mut(&id) {
            session.on_rail(connection, rail, &mut self.guests, &mut self.tools);
        }
    }

    /// It said what the peer is to hear, if anything.
    fn on_failed_handshake(&mut self, connection: ConnectionId, error: &StreamError) {
        if let Some(guest) = self.guests.get_mut(&connection) {
            tracing::warn!(%error, peer = ?guest.peer, "a stream's handshake failed");
            guest.leave_by.get_or_insert(self.tools.now + GOODBYE);
            let (peer, code) = (guest.peer, code_of(error));
            self.tools.news.refused(peer, code, &error.to_string());
        }
    }

    /// The connection is not taken: it is told why, and left.
    fn refuse(&mut self, connection: ConnectionId, code: RefusalCode, text: &str) {
        let Some(guest) = self.guests.get_mut(&connection) else {
            return;
        };
        guest.outbox.push(&Message::Refuse(Refuse {
            stream: 0,
            code,
            details: [0, 0],
            reason: Reason::new(text),
        }));
        guest.leave_by.get_or_insert(self.tools.now + GOODBYE);
        self.tools.news.refused(guest.peer, code, text);
    }

    fn on_stream_message(
        &mut self,
        connection: ConnectionId,
        id: u64,
        message: &Message<'_>,
    ) -> Result<(), StreamViolation> {
        // Only one stream at a time writes under a key: an older one whose sender may be gone makes room.
        // In a session that has its stream, another Open is none of that: the session says what it is.
        let awaited = self.sessions.get(&id).is_some_and(Session::awaits_open);
        if let Message::Open(open) = message
            && awaited
        {
            let key = open.identity.key;
            let others = self.sessions.values().filter(|other| other.writes(key));
            let other = others
                .map(|other| (other.id(), other.silent_for(self.tools.now)))
                .next();
            if let Some((other, silent)) = other.filter(|(other, _)| *other != id) {
                if silent > SUPERSEDED_AFTER {
                    self.fail(other, RefusalCode::ALREADY, "its sender began anew", None);
                }
                if let Some(session) = self.sessions.get_mut(&id) {
                    let (guests, tools) = (&mut self.guests, &mut self.tools);
                    let refusal = Refusal::new(RefusalCode::ALREADY, UNDER_WAY);
                    session.refuse(open.stream, &refusal, guests, tools);
                }
                return Ok(());
            }
        }
        let Some(rail) = self.guests.get(&connection).map(|guest| guest.rail) else {
            return Ok(());
        };
        let left = match message {
            Message::Open(open) if awaited => self.memory_left(Intake::memory_for(open)),
            _ => 0,
        };
        let (guests, tools) = (&mut self.guests, &mut self.tools);
        match self.sessions.get_mut(&id) {
            Some(session) => session.on_message(rail, message, left, guests, tools),
            None => Ok(()),
        }
    }

    /// Bytes of memory that the account of one more stream may take, which asks for so many. News that nobody fetched make room for it.
    fn memory_left(&self, asked: u64) -> u64 {
        let used: u64 = self.sessions.values().map(Session::memory).sum();
        let left = self.tools.config.limits.memory.saturating_sub(used);
        left - self.tools.news.keep_within(left.saturating_sub(asked))
    }

    fn on_violation(&mut self, connection: ConnectionId, violation: StreamViolation) {
        tracing::warn!(%violation, "a stream's peer does not keep to the protocol");
        let session = self.guests.get(&connection).and_then(|guest| guest.session);
        match session {
            Some(id) => self.fail(
                id,
                RefusalCode::MALFORMED,
                &violation.to_string(),
                Some(violation.into()),
            ),
            None => self.refuse(connection, RefusalCode::MALFORMED, &violation.to_string()),
        }
    }

    fn fail(&mut self, id: u64, code: RefusalCode, text: &str, error: Option<StreamError>) {
        if let Some(session) = self.sessions.get_mut(&id) {
            let error = error.unwrap_or_else(|| StreamError::GivenUp {
                code,
                reason: text.to_owned(),
            });
            session.fail((code, text), None, error, &mut self.guests, &mut self.tools);
        }
    }

    fn on_disconnected(&mut self, connection: ConnectionId, reason: CloseReason) {
        let Some(guest) = self.guests.remove(&connection) else {
            return;
        };
        if let Some(session) = guest.session.and_then(|id| self.sessions.get_mut(&id)) {
            session.on_rail_gone(connection, reason, &mut self.guests, &mut self.tools);
        }
    }

    // ---- time ----------------------------------------------------------------------------------------------------

    fn on_time(&mut self) {
        for session in self.sessions.values_mut() {
            session.on_time(&mut self.guests, &mut self.tools);
        }
        let now = self.tools.now;
        let (mut failed, mut late) = (Vec::new(), Vec::new());
        for (connection, guest) in &mut self.guests {
            if let Some(error) = guest.on_time(now) {
                failed.push((*connection, error));
            } else if guest.is_late(now) {
                late.push((*connection, guest.port));
            }
        }
        for (connection, error) in failed {
            self.on_failed_handshake(connection, &error);
        }
        for (connection, port) in late {
            self.tools.ports[port].endpoint.abort_connection(connection);
        }
    }

    fn pump(&mut self) {
        for session in self.sessions.values_mut() {
            session.speak(&mut self.guests, self.tools.now);
        }
        for (connection, guest) in &mut self.guests {
            let endpoint = &mut self.tools.ports[guest.port].endpoint;
            match guest
                .outbox
                .pump(endpoint, *connection, &self.tools.control)
            {
                Pumped::Dead => endpoint.abort_connection(*connection),
                // What was said last has left: the goodbye follows it.
                Pumped::Empty if guest.leave_by.is_some() && !guest.leaving => {
                    guest.leaving = true;
                    endpoint.close_connection(*connection, self.tools.now + GOODBYE);
                }
                _ => {}
            }
        }
    }

    fn forget(&mut self) {
        let (by_name, guests) = (&mut self.by_name, &self.guests);
        self.sessions.retain(|_, session| {
            let keep = !session.is_over() || session.rails().any(|rail| guests.contains_key(&rail));
            if !keep {
                by_name.remove(&session.name());
            }
            keep
        });
    }
}

/// For whoever drives it without its thread.
#[cfg(all(test, not(loom)))]
impl Engine {
    /// One turn, in which every endpoint is polled. Whether it did something.
    pub(super) fn turn_all(&mut self) -> bool {
        let all: Vec<_> = self.tools.ports.iter().map(|port| port.token).collect();
        self.turn(&all)
    }

    /// When it takes its next turn, whatever happens.
    pub(super) fn due(&self) -> Instant {
        let ports = self.tools.ports.iter();
        let first = ports.filter_map(|port| port.endpoint.next_deadline()).min();
        let tick = self.tools.now + TICK;
        first.map_or(tick, |first| first.min(tick))
    }

    /// Connections of its endpoints, and streams that are not over.
    pub(super) fn busy(&self) -> usize {
        let ports = self.tools.ports.iter();
        let connections: usize = ports.map(|port| port.endpoint.connections()).sum();
        connections + self.sessions.values().filter(|it| !it.is_over()).count()
    }

    pub(super) fn has_stopped(&self) -> bool {
        self.is_over()
    }

    pub(super) fn end_now(self) {
        self.end();
    }

    pub(super) fn in_words(&self) -> String {
        self.describe()
    }
}

/// A stream that writes under a key makes room for another one when nothing was heard of its sender for so long.
const SUPERSEDED_AFTER: Duration = Duration::from_millis(500);

/// What a sender is told then, which tries again by itself.
const UNDER_WAY: &str = "another stream with this key is under way; wait for its end, or cancel it";

/// What kind of failure ended a handshake.
fn code_of(error: &StreamError) -> RefusalCode {
    match error {
        StreamError::Refused { code, .. } | StreamError::GivenUp { code, .. } => *code,
        StreamError::Unproven => RefusalCode::KEY,
        StreamError::Deadline { .. } => RefusalCode::DEADLINE,
        _ => RefusalCode::MALFORMED,
    }
}

/// Who a peer is, where the provider tells.
pub(super) type Who = Option<PeerAddr>;
