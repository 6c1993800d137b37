//! `ReceiverSide`: what the network thread does for a receiver.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use super::config::ReceiverConfig;
use super::events::{EventQueue, EventSender};
use super::rail::{RailOwner, Rails, ReceiverRail, features};
use super::receive_slots::ReceiveSlots;
use super::session::Session;
use super::writing::{WriteDone, WriteJob, Writers, WritersSettings};
use crate::buffer::{BufferMut, SharedBufferManager};
use crate::endpoint::duplex::DuplexEndpoint;
use crate::endpoint::{
    CloseReason, ConnectionEvent, ConnectionId, Message as Arrived, ReceiveEvent, SendErrorKind,
};
use crate::metrics::WatchedKind;
use crate::metrics::registry::WatchedCells;
use crate::metrics::stats::StreamCells;
use crate::storage::IoStats;
use crate::stream::auth;
use crate::stream::handshake::AnswerSettings;
use crate::stream::incoming::{IncomingSettings, IncomingStream, Refusal};
use crate::stream::interface::{self, Interface};
use crate::stream::network::{Network, StreamSide};
use crate::stream::wire::{
    BlockHeader, Features, Kind, Message, Open, OpenFlags, PAYLOAD_ROOM_MIN, Ports, Reason, Refuse,
};
use crate::stream::workers::guarded;
use crate::stream::{BlockSink, RefusalCode, StreamError, StreamViolation, report};
use crate::{Error, PeerAddr};

/// How long goodbyes may take.
const GOODBYE: Duration = Duration::from_secs(1);

/// How long a sink may hold a thread when the receiver ends.
const LAST_WRITES: Duration = Duration::from_secs(30);

/// What sessions use of the side.
pub(super) struct ReceiverTools {
    pub(super) network: Network,
    pub(super) rails: Rails,
    /// Where it listens besides, by the port that a sender came to.
    beside: HashMap<usize, Ports>,
    /// What blocks come by, in words.
    providers: String,
    /// Where senders write by themselves, where they may.
    pub(super) slot_pool: Option<SharedBufferManager>,
    pub(super) config: ReceiverConfig,
    /// What all streams count.
    pub(super) watched: WatchedCells<StreamCells>,
    writers: Writers,
    pub(super) events: EventSender,
}

impl ReceiverTools {
    /// When this turn began.
    pub(super) fn now(&self) -> Instant {
        self.network.now
    }

    fn features(&self) -> Features {
        features(self.slot_pool.is_some(), self.config.takes)
    }

    /// The rail of a connection that a sender has made.
    fn answer(
        &self,
        at: (usize, ConnectionId),
        peer: RemotePeer,
    ) -> Result<ReceiverRail, StreamError> {
        let config = &self.config;
        let settings = AnswerSettings {
            features: self.features(),
            streams: 1,
            payload_max: config.stream.block_bytes.max(PAYLOAD_ROOM_MIN),
            ports: self.beside.get(&at.0).copied().unwrap_or_default(),
            key: config.stream.key.clone(),
            nonce: auth::nonce()?,
            deadline: self.now() + config.stream.connect_timeout,
        };
        let owner = RailOwner {
            peer,
            session: None,
        };
        #[cfg_attr(not(test), expect(unused_mut, reason = "tests swallow messages"))]
        let mut rail = ReceiverRail::answering(at, settings, self.now(), owner);
        #[cfg(test)]
        rail.outbox.swallow(config.swallow.clone());
        Ok(rail)
    }

    /// A stream begins, if it is one that is taken; with memory that its sender is to write into.
    /// `memory_left`: bytes that its state may take.
    ///
    /// # Errors
    /// Why it is not taken.
    pub(super) fn open_stream(
        &self,
        rail: u16,
        open: &Open,
        memory_left: u64,
    ) -> Result<(IncomingStream, Vec<BufferMut>), Refusal> {
        let config = &self.config;
        let by_write = open.flags.contains(OpenFlags::BY_WRITE);
        let memory = match self.slot_pool.as_ref().filter(|_| by_write) {
            Some(pool) => ReceiveSlots::take(pool, config.window()),
            None => Vec::new(),
        };
        let settings = IncomingSettings {
            limits: config.limits,
            memory_left,
            features: self.features(),
            payload_max: config.stream.block_bytes.max(PAYLOAD_ROOM_MIN),
            window: config.window().into(),
            slots: memory.len() as u32,
        };
        Ok((IncomingStream::new(rail, *open, settings)?, memory))
    }

    /// Which way the bytes of a stream take to its sink.
    pub(super) fn path(&self, sink: Option<&dyn BlockSink>) -> String {
        let memory = report::memory(self.config.stream.pinned);
        let providers = &self.providers;
        // It is only shown: a panic there is no reason to end a stream.
        match guarded(|| sink.and_then(BlockSink::path)).unwrap_or_default() {
            Some(behind) => format!("{providers}; {memory} → {behind}"),
            None => format!("{providers}; {memory}"),
        }
    }

    /// What was done with the files of a sink, if it has any.
    pub(super) fn io_stats(&self, sink: Option<&dyn BlockSink>) -> IoStats {
        // As above.
        let stats = guarded(|| sink.and_then(BlockSink::io_stats)).unwrap_or_default();
        stats.unwrap_or_default()
    }

    pub(super) fn give(&self, job: WriteJob) {
        if !self.writers.give(job) {
            tracing::error!("the queue of the writers of a stream receiver is full");
        }
    }
}

/// The endpoints that listen at one address, each for a thread of its own if there are several.
pub(super) struct ListeningPlace {
    /// The one at the port that senders are told by whoever starts them.
    pub(super) first: DuplexEndpoint,
    pub(super) beside: Vec<DuplexEndpoint>,
}

impl ListeningPlace {
    /// The ports of those beside the first.
    fn ports(&self) -> Ports {
        let mut ports = Ports::default();
        let addrs = self.beside.iter().filter_map(DuplexEndpoint::local_addr);
        let numbers = addrs
            .filter_map(|addr| addr.socket_addr())
            .map(|at| at.port());
        for (port, number) in ports.iter_mut().zip(numbers) {
            *port = number;
        }
        ports
    }
}

/// The sessions of a receiver, and what their sinks did.
pub(super) struct ReceiverSide {
    tools: ReceiverTools,
    sessions: BTreeMap<u64, Session>,
    by_name: HashMap<[u8; 16], u64>,
    next: u64,
    written: Receiver<WriteDone>,
}

impl ReceiverSide {
    pub(super) fn new(
        config: ReceiverConfig,
        interfaces: &[Interface],
        places: Vec<ListeningPlace>,
        (slot_pool, slots): (Option<SharedBufferManager>, usize),
        events: Arc<EventQueue>,
        employ: impl FnOnce(WritersSettings) -> Result<Writers, Error>,
    ) -> Result<Self, Error> {
        let clock = config.clock.clone();
        let mut network = Network::new("receiver", interfaces.iter(), GOODBYE, clock.clone())?;
        let mut beside = HashMap::new();
        for place in places {
            let on_threads = !place.beside.is_empty();
            let ports = place.ports();
            let first = network.add_port(place.first, false, on_threads)?;
            beside.insert(first, ports);
            for endpoint in place.beside {
                network.add_port(endpoint, false, on_threads)?;
            }
        }
        // A block that is to be written has a buffer, or a slot. Each session that is not over has
        // one other job at a time: it is not given the next before the last one is done. What is
        // done and was not looked at may have freed its buffer for another block.
        let sessions = config.limits.streams as usize;
        let (done, written) = sync_channel(2 * slots + sessions);
        let writers = employ(WritersSettings {
            threads: config.stream.workers(interfaces.len() as u32),
            bounds: (slots, sessions),
            done,
            waker: network.waker(),
            clock,
        })?;
        let name = config.stream.name.as_deref();
        let watched = WatchedCells::new(WatchedKind::StreamReceiver, name);
        Ok(Self {
            tools: ReceiverTools {
                watched,
                network,
                rails: Rails::new(),
                beside,
                providers: interface::describe(interfaces.iter()),
                slot_pool,
                config,
                writers,
                events: EventSender::new(events),
            },
            sessions: BTreeMap::new(),
            by_name: HashMap::new(),
            next: 1,
            written,
        })
    }

    // ---- events ---------------------------------------------------------------------------------

    fn on_connected(&mut self, port: usize, connection: ConnectionId, peer: RemotePeer) {
        match self.tools.answer((port, connection), peer) {
            Ok(rail) => drop(self.tools.rails.insert(connection, rail)),
            Err(error) => {
                tracing::error!(%error, "a connection could not be taken");
                self.tools.network.abort_connection(port, connection);
            }
        }
    }

    fn on_message(&mut self, arrived: Arrived) {
        let connection = arrived.connection();
        let now = self.tools.now();
        let Some(rail) = self.tools.rails.get_mut(&connection) else {
            return;
        };
        rail.last_heard = now;
        let number = rail.number;
        let Some(id) = rail.local.session else {
            return self.on_handshake(connection, &arrived);
        };
        // The path of nearly all messages: nothing but the header is looked at here.
        let taken = match (Kind::peek(arrived.header()), self.sessions.get_mut(&id)) {
            (Some(Kind::BLOCK), Some(session)) => {
                BlockHeader::parse(arrived.header(), arrived.payload().len())
                    .map_err(StreamViolation::from)
                    .and_then(|header| session.on_block(number, &header, arrived, &mut self.tools))
            }
            (Some(Kind::PACK), Some(session)) => session.on_pack(number, arrived, &mut self.tools),
            (Some(Kind::ZEROS), Some(session)) => {
                session.on_zeros(number, arrived, &mut self.tools)
            }
            _ => Message::parse(arrived.header(), arrived.payload())
                .map_err(StreamViolation::from)
                .and_then(|message| self.on_stream_message(number, id, &message)),
        };
        if let Err(violation) = taken {
            self.on_violation(connection, violation);
        }
    }

    fn on_handshake(&mut self, connection: ConnectionId, arrived: &Arrived) {
        let now = self.tools.now();
        let rail = self.tools.rails.get_mut(&connection);
        let Some(rail) = rail.filter(|rail| !rail.is_left()) else {
            return;
        };
        let peer = rail.local.peer;
        let agreed = match rail.on_handshake(arrived, now) {
            Ok(None) => return,
            Ok(Some(agreed)) => agreed,
            Err(error) => return self.on_failed_handshake(connection, &error),
        };
        let name = agreed.session;
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
                    || self.tools.network.stop.is_some()
                {
                    let code = match self.tools.network.stop {
                        Some(_) => RefusalCode::CLOSING,
                        None => RefusalCode::BUSY,
                    };
                    return self.refuse(connection, code, "");
                }
                let id = self.next;
                self.next += 1;
                let session = Session::new(id, name, peer, self.tools.config.timeline, now);
                self.sessions.insert(id, session);
                self.by_name.insert(name, id);
                id
            }
        };
        if let Some(rail) = self.tools.rails.get_mut(&connection) {
            rail.local.session = Some(id);
        }
        if let Some(session) = self.sessions.get_mut(&id) {
            session.on_rail(connection, agreed.rail, &mut self.tools);
        }
    }

    /// Closes a connection whose handshake failed, and which has told its peer why.
    fn on_failed_handshake(&mut self, connection: ConnectionId, error: &StreamError) {
        if let Some(rail) = self.tools.rails.get_mut(&connection) {
            let peer = rail.local.peer;
            tracing::warn!(%error, ?peer, "a stream's handshake failed");
            rail.leave(&self.tools.network);
            let code = code_of(error);
            self.tools.events.refused(peer, code, &error.to_string());
        }
    }

    /// The connection is not taken: it is told why, and left.
    fn refuse(&mut self, connection: ConnectionId, code: RefusalCode, text: &str) {
        let Some(rail) = self.tools.rails.get_mut(&connection) else {
            return;
        };
        rail.outbox.push(&Message::Refuse(Refuse {
            stream: 0,
            code,
            details: [0, 0],
            reason: Reason::new(text),
        }));
        rail.leave(&self.tools.network);
        self.tools.events.refused(rail.local.peer, code, text);
    }

    fn on_stream_message(
        &mut self,
        rail: u16,
        id: u64,
        message: &Message<'_>,
    ) -> Result<(), StreamViolation> {
        // Only one stream at a time writes under a key: an older one whose sender may be gone makes
        // room. In a session that has its stream, another Open is none of that: the session says
        // what it is.
        let awaited = self.sessions.get(&id).is_some_and(Session::awaits_open);
        if let Message::Open(open) = message
            && awaited
        {
            let key = open.identity.key;
            let others = self.sessions.values().filter(|other| other.writes(key));
            let other = others
                .map(|other| (other.id(), other.silent_for(self.tools.now())))
                .next();
            if let Some((other, silent)) = other.filter(|(other, _)| *other != id) {
                if silent > SUPERSEDED_AFTER {
                    self.fail(other, RefusalCode::ALREADY, "its sender began anew", None);
                }
                if let Some(session) = self.sessions.get_mut(&id) {
                    let refusal = Refusal::new(RefusalCode::ALREADY, UNDER_WAY);
                    session.refuse(open.stream, &refusal, &mut self.tools);
                }
                return Ok(());
            }
        }
        let left = match message {
            Message::Open(open) if awaited => self.memory_left(IncomingStream::memory_for(open)),
            _ => 0,
        };
        match self.sessions.get_mut(&id) {
            Some(session) => session.on_message(rail, message, left, &mut self.tools),
            None => Ok(()),
        }
    }

    /// Bytes of memory that one more stream may take for its state, which asks for so many. Events
    /// that nobody fetched make room for it.
    fn memory_left(&self, asked: u64) -> u64 {
        let used: u64 = self.sessions.values().map(Session::memory).sum();
        let left = self.tools.config.limits.memory.saturating_sub(used);
        left - self.tools.events.keep_within(left.saturating_sub(asked))
    }

    fn on_violation(&mut self, connection: ConnectionId, violation: StreamViolation) {
        tracing::warn!(%violation, "a stream's peer does not keep to the protocol");
        let rail = self.tools.rails.get(&connection);
        match rail.and_then(|rail| rail.local.session) {
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
            session.fail((code, text), None, error, &mut self.tools);
        }
    }

    fn on_disconnected(&mut self, connection: ConnectionId, reason: CloseReason) {
        let Some(rail) = self.tools.rails.remove(&connection) else {
            return;
        };
        if let Some(session) = rail.local.session.and_then(|id| self.sessions.get_mut(&id)) {
            session.on_rail_gone(connection, reason, &mut self.tools);
        }
    }

    // ---- time -----------------------------------------------------------------------------------

    fn on_time(&mut self) {
        for session in self.sessions.values_mut() {
            session.on_time(&mut self.tools);
        }
        let now = self.tools.now();
        let mut failed = Vec::new();
        for (connection, rail) in &mut self.tools.rails {
            if let Some(error) = rail.on_time(now) {
                failed.push((*connection, error));
            } else if rail.is_late(now) {
                self.tools.network.abort_connection(rail.port, *connection);
            }
        }
        for (connection, error) in failed {
            self.on_failed_handshake(connection, &error);
        }
    }

    fn pump(&mut self) {
        for session in self.sessions.values_mut() {
            session.speak(&mut self.tools);
        }
        for rail in self.tools.rails.values_mut() {
            rail.pump(&mut self.tools.network);
        }
    }

    fn forget(&mut self) {
        let (by_name, rails) = (&mut self.by_name, &self.tools.rails);
        self.sessions.retain(|_, session| {
            let keep = !session.is_over() || session.rails().any(|rail| rails.contains_key(&rail));
            if !keep {
                by_name.remove(&session.name());
            }
            keep
        });
    }
}

impl StreamSide for ReceiverSide {
    fn network(&self) -> &Network {
        &self.tools.network
    }

    fn network_mut(&mut self) -> &mut Network {
        &mut self.tools.network
    }

    fn on_event(&mut self, port: usize, event: ReceiveEvent) {
        match event {
            ReceiveEvent::Connection(connection, ConnectionEvent::Connected(info)) => {
                self.on_connected(port, connection, info.peer);
            }
            ReceiveEvent::Message(message) => self.on_message(message),
            ReceiveEvent::Connection(connection, ConnectionEvent::Disconnected(reason)) => {
                self.on_disconnected(connection, reason);
            }
            // What this side sends is small, and said anew or not needed: a failed send is followed
            // by the connection's end.
            _ => {}
        }
    }

    // It sends no blocks.
    fn on_refused(&mut self, _: ConnectionId, _: &SendErrorKind) {}

    fn turn(&mut self) -> bool {
        let mut work = false;
        while let Ok(done) = self.written.try_recv() {
            work = true;
            if let Some(session) = self.sessions.get_mut(&done.session) {
                session.on_done(done, &mut self.tools);
            }
        }
        self.on_time();
        self.pump();
        self.forget();
        work
    }

    fn is_idle(&self) -> bool {
        self.sessions.values().all(Session::is_over)
    }

    fn describe(&self) -> String {
        let now = self.tools.now();
        let mut lines = vec!["receiver:".to_owned()];
        lines.extend(self.tools.network.describe());
        if let Some(pool) = &self.tools.slot_pool {
            let (free, slots) = (pool.free_count(), pool.slots());
            lines.push(format!("{free} of {slots} slots of windows free"));
        }
        lines.extend(self.tools.rails.values().map(|rail| rail.describe(now)));
        lines.extend(self.sessions.values().map(|session| session.describe(now)));
        lines.join("\n")
    }

    fn end(mut self, _: &StreamError) {
        let ids: Vec<_> = self.sessions.keys().copied().collect();
        for id in ids {
            self.fail(id, RefusalCode::CLOSING, "the receiver ends", None);
        }
        self.pump();
        // What is written goes on being written: sinks are told that it is over by the last of
        // their jobs.
        let clock = &self.tools.network.clock;
        self.tools.writers.finish(clock, clock.now() + LAST_WRITES);
        self.tools.network.close();
        for done in self.written.try_iter() {
            if let Some(session) = self.sessions.get_mut(&done.session) {
                session.on_last(done);
            }
        }
        for session in self.sessions.values_mut() {
            session.abandon_now();
            session.tell_cut(&mut self.tools.events);
        }
    }
}

/// For whoever drives it without its thread.
#[cfg(all(test, not(loom)))]
impl ReceiverSide {
    /// Streams that are not over.
    pub(super) fn under_way(&self) -> usize {
        let sessions = self.sessions.values();
        sessions.filter(|session| !session.is_over()).count()
    }
}

/// A stream that writes under a key makes room for another one when nothing was heard of its sender
/// for so long.
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

/// The address of a peer, where the provider tells.
pub(super) type RemotePeer = Option<PeerAddr>;
