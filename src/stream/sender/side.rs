//! `SenderSide`: what the network thread does for a sender.
//!
//! ```text
//!  one turn:  orders ─► endpoints' events ─► blocks that were read ─► time ─┐
//!                                      blocks to send ◄─ reads to begin ◄────┘
//! ```
//!
//! A block that was read is in one buffer of the pool, whose clones wait at, or are on their way
//! to, each peer that wants it; when the last is gone the buffer is free, and the next block is
//! read into it.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use super::config::{Peer, SendOptions, SenderConfig};
use super::outgoing_transfer::OutgoingTransfer;
use super::rail::SenderRail;
use super::reading::{ReadDone, ReadJob, ReadersSettings};
use super::transfer::OutcomeGuard;
use crate::buffer::SharedBufferManager;
use crate::endpoint::{ConnectionEvent, ConnectionId, ReceiveEvent, SendErrorKind};
use crate::fabric::EndpointKind;
use crate::id::IdMap;
use crate::metrics::WatchedKind;
use crate::metrics::registry::WatchedCells;
use crate::metrics::stats::StreamCells;
use crate::storage::IoStats;
use crate::stream::interface::{self, Interface};
use crate::stream::network::{Network, StreamSide};
use crate::stream::workers::{Guarded, Workers, guarded};
use crate::stream::{BlockSource, RefusalCode, StreamError, report};
use crate::{Error, PeerAddr};

/// How long goodbyes may take when a transfer is over.
const GOODBYE: Duration = Duration::from_secs(2);

/// How long a file may hold a thread when the sender ends.
const LAST_READS: Duration = Duration::from_secs(10);

/// A transfer that is to begin.
#[derive(Debug)]
pub(super) struct NewTransfer {
    pub(super) id: u64,
    pub(super) source: Guarded<dyn BlockSource>,
    pub(super) peers: Vec<Peer>,
    pub(super) options: SendOptions,
    pub(super) shared: OutcomeGuard,
}

/// How connections are made by one interface.
pub(super) struct Dialer {
    /// One for each thread.
    lanes: Vec<Lane>,
}

/// How connections are made by one thread.
struct Lane {
    interface: Interface,
    /// The endpoint of all of them. None over FI_EP_RDM: there, a second connection between two
    /// endpoints ends the first, so that each needs an endpoint of its own.
    shared: Option<usize>,
}

impl Dialer {
    fn interfaces(&self) -> impl Iterator<Item = &Interface> {
        self.lanes.iter().map(|lane| &lane.interface)
    }
}

/// Which rail of which peer of which transfer a connection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Route {
    pub(super) transfer: u64,
    pub(super) peer: usize,
    pub(super) rail: usize,
}

/// What transfers and peers use of the side.
pub(super) struct SenderTools {
    pub(super) network: Network,
    pub(super) dialers: Vec<Dialer>,
    pub(super) routes: IdMap<ConnectionId, Route>,
    pub(super) config: SenderConfig,
    /// What all transfers count.
    pub(super) watched: WatchedCells<StreamCells>,
    /// Since when reads are under way, and none has come back.
    pub(super) reads_since: Option<Instant>,
}

impl SenderTools {
    fn new(
        config: SenderConfig,
        interfaces: Vec<Vec<Interface>>,
        mut network: Network,
    ) -> Result<Self, StreamError> {
        let mut dialers = Vec::new();
        for lanes in interfaces {
            let on_threads = lanes.len() > 1;
            let mut dialer = Dialer { lanes: Vec::new() };
            for interface in lanes {
                let shared = match interface.kind() {
                    EndpointKind::Msg => {
                        let config = super::duplex(&interface, &config, config.stream.connections)?;
                        let endpoint = interface.dialing(&config)?;
                        Some(network.add_port(endpoint, false, on_threads)?)
                    }
                    EndpointKind::Rdm => None,
                };
                dialer.lanes.push(Lane { interface, shared });
            }
            dialers.push(dialer);
        }
        let name = config.stream.name.as_deref();
        Ok(Self {
            network,
            dialers,
            routes: IdMap::default(),
            watched: WatchedCells::new(WatchedKind::StreamSender, name),
            config,
            reads_since: None,
        })
    }

    /// When this turn began.
    pub(super) fn now(&self) -> Instant {
        self.network.now
    }

    /// Threads that connections are made by, by the interface that has most.
    pub(super) fn lanes(&self) -> usize {
        let lanes = self.dialers.iter().map(|dialer| dialer.lanes.len());
        lanes.max().unwrap_or(1)
    }

    /// Starts to connect by an interface and one of its threads: the port, and the connection.
    pub(super) fn dial(
        &mut self,
        (dialer, lane): (usize, usize),
        addr: &PeerAddr,
        route: Route,
    ) -> Result<(usize, ConnectionId), StreamError> {
        let lanes = &self.dialers[dialer].lanes;
        let lane = &lanes[lane % lanes.len()];
        let port = match lane.shared {
            Some(port) => port,
            None => {
                let config = super::duplex(&lane.interface, &self.config, 1)?;
                let endpoint = lane.interface.dialing(&config)?;
                self.network.add_port(endpoint, true, lanes.len() > 1)?
            }
        };
        let addr = *addr;
        let dialed = self.network.call(port, move |it| it.dial(&addr));
        let connection = dialed.ok_or(GONE)??;
        self.routes.insert(connection, route);
        Ok((port, connection))
    }

    /// Whether the provider of a rail can write so many bytes at once, and whether it does that
    /// better than messages.
    pub(super) fn writes(&mut self, port: usize, bytes: u32) -> (bool, bool) {
        let can = self
            .network
            .call(port, move |it| it.can_write(bytes.into()));
        let mut interfaces = self.dialers.iter().flat_map(Dialer::interfaces);
        (
            can.unwrap_or(false),
            interfaces.all(Interface::favours_writes),
        )
    }

    /// Which way the bytes of a source take.
    pub(super) fn path(&self, source: &dyn BlockSource) -> String {
        let providers = interface::describe(self.dialers.iter().flat_map(Dialer::interfaces));
        let memory = report::memory(self.config.stream.pinned);
        // It is only shown: a panic there is no reason to end a transfer.
        match guarded(|| source.path()).unwrap_or_default() {
            Some(before) => format!("{before} → {memory}; {providers}"),
            None => format!("{memory}; {providers}"),
        }
    }

    /// What was done with the files of a source, if it has any.
    pub(super) fn io_stats(&self, source: &dyn BlockSource) -> IoStats {
        // As above.
        let stats = guarded(|| source.io_stats()).unwrap_or_default();
        stats.unwrap_or_default()
    }

    /// Nothing of it is looked at any more; what was sent arrives, if that is polite. Whether it
    /// was ready.
    pub(super) fn leave(&mut self, rail: &mut SenderRail, politely: bool) -> bool {
        if let Some(connection) = rail.connection() {
            self.routes.remove(&connection);
            match politely {
                true => self.network.close_connection(rail.port, connection),
                false => self.network.abort_connection(rail.port, connection),
            }
        }
        rail.on_gone()
    }
}

/// The transfers of a sender, and what they are read with.
pub(super) struct SenderSide {
    tools: SenderTools,
    pool: SharedBufferManager,
    readers: Workers<ReadJob>,
    reads: Receiver<ReadDone>,
    /// Reads that are under way.
    reading: usize,
    transfers: BTreeMap<u64, OutgoingTransfer>,
    /// The transfer that was served last: of equal priorities, the next is first.
    last: u64,
}

impl SenderSide {
    pub(super) fn new(
        config: SenderConfig,
        interfaces: Vec<Vec<Interface>>,
        pool: SharedBufferManager,
        employ: impl FnOnce(ReadersSettings) -> Result<Workers<ReadJob>, Error>,
    ) -> Result<Self, StreamError> {
        let clock = config.clock.clone();
        let network = Network::new(
            "sender",
            interfaces.iter().flatten(),
            GOODBYE,
            clock.clone(),
        )?;
        let lanes = interfaces.iter().map(Vec::len).sum::<usize>();
        // A block that is read has a buffer, so that is the bound; and a check for each transfer.
        let bound = 2 * pool.slots() + config.stream.connections as usize;
        let (done, reads) = sync_channel(bound);
        let readers = employ(ReadersSettings {
            threads: config.stream.workers(lanes as u32),
            bound,
            done,
            waker: network.waker(),
            clock,
        })?;
        Ok(Self {
            tools: SenderTools::new(config, interfaces, network)?,
            pool,
            readers,
            reads,
            reading: 0,
            transfers: BTreeMap::new(),
            last: 0,
        })
    }

    pub(super) fn begin(&mut self, begin: NewTransfer) {
        let id = begin.id;
        let transfer = OutgoingTransfer::new(begin, &mut self.tools);
        self.transfers.insert(id, transfer);
    }

    /// Lets a transfer act. It calls code of the user's: when that panics, this transfer ends, and
    /// no other. None: it has ended.
    pub(super) fn act<T>(
        &mut self,
        id: u64,
        act: impl FnOnce(&mut OutgoingTransfer, &mut SenderTools) -> T,
    ) -> Option<T> {
        let transfer = self.transfers.get_mut(&id)?;
        let tools = &mut self.tools;
        match guarded(|| act(transfer, tools)) {
            Ok(done) => Some(done),
            Err(reason) => {
                tracing::warn!(%reason, "a transfer is given up");
                let code = RefusalCode::SOURCE;
                transfer.break_off(&StreamError::GivenUp { code, reason }, tools);
                self.transfers.remove(&id);
                None
            }
        }
    }

    /// The same with all of them; whether one did something.
    fn each(&mut self, act: impl Fn(&mut OutgoingTransfer, &mut SenderTools) -> bool) -> bool {
        let (mut from, mut any) = (0, false);
        while let Some((&id, _)) = self.transfers.range(from..).next() {
            any |= self.act(id, &act).unwrap_or(true);
            from = id + 1;
        }
        any
    }

    fn take_reads(&mut self) -> bool {
        let mut any = false;
        while let Ok(done) = self.reads.try_recv() {
            any = true;
            self.reading -= 1;
            self.tools.reads_since = (self.reading > 0).then_some(self.tools.now());
            self.act(done.transfer, |transfer, tools| {
                transfer.on_read(done, tools)
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
            let job = self.act(id, |transfer, _| {
                let what = transfer.begin_read(&pool)?;
                Some(transfer.job(what))
            });
            // One that ended instead leaves the others their turn.
            let Some(job) = job else { continue };
            let Some(job) = job else { break };
            if self.readers.give(job).is_err() {
                // There is room for all that may be under way.
                tracing::error!("the queue of the readers of a stream sender is full");
                break;
            }
            self.reading += 1;
            let now = self.tools.now();
            self.tools.reads_since.get_or_insert(now);
            self.last = id;
            any = true;
        }
        any
    }

    /// Of those that have something to read, the one of the highest priority; of several such, the
    /// one whose turn it is.
    fn next_reader(&self) -> Option<u64> {
        let slots = self.pool.slots();
        let free = self.pool.free_count() > 0;
        let able = self.transfers.iter();
        let able = able.filter(|(_, transfer)| transfer.wants_read(free, slots, self.tools.now()));
        let best = able.max_by_key(|(id, transfer)| {
            let behind = **id <= self.last;
            (transfer.priority(), !behind, std::cmp::Reverse(**id))
        });
        best.map(|(id, _)| *id)
    }
}

impl StreamSide for SenderSide {
    fn network(&self) -> &Network {
        &self.tools.network
    }

    fn network_mut(&mut self) -> &mut Network {
        &mut self.tools.network
    }

    fn on_event(&mut self, _: usize, event: ReceiveEvent) {
        let connection = match &event {
            ReceiveEvent::Message(message) => message.connection(),
            ReceiveEvent::Connection(connection, ConnectionEvent::Connected(_))
            | ReceiveEvent::Completed { connection, .. }
            | ReceiveEvent::Failed { connection, .. }
            | ReceiveEvent::Connection(connection, ConnectionEvent::PeerClosing)
            | ReceiveEvent::Window { connection, .. }
            | ReceiveEvent::Connection(connection, ConnectionEvent::Disconnected(_)) => *connection,
            // A refused send is offered again at each turn.
            _ => return,
        };
        let Some(&route) = self.tools.routes.get(&connection) else {
            return;
        };
        self.act(route.transfer, |transfer, tools| {
            transfer.on_event(route, event, tools);
        });
    }

    fn on_refused(&mut self, connection: ConnectionId, kind: &SendErrorKind) {
        if let Some(&route) = self.tools.routes.get(&connection) {
            self.act(route.transfer, |transfer, _| {
                transfer.on_refused(route, kind)
            });
        }
    }

    fn turn(&mut self) -> bool {
        let mut work = self.take_reads();
        self.each(|transfer, tools| {
            transfer.on_time(tools);
            false
        });
        work |= self.begin_reads();
        work |= self.each(OutgoingTransfer::pump);
        self.transfers.retain(|_, transfer| !transfer.is_over());
        work
    }

    fn is_idle(&self) -> bool {
        self.transfers.is_empty()
    }

    fn describe(&self) -> String {
        let mut lines = vec![format!(
            "sender: {} reads under way, {} of {} buffers free",
            self.reading,
            self.pool.free_count(),
            self.pool.slots(),
        )];
        lines.extend(self.tools.network.describe());
        let transfers = self.transfers.values();
        lines.extend(transfers.map(|transfer| transfer.describe(self.tools.now())));
        lines.join("\n")
    }

    fn end(mut self, reason: &StreamError) {
        self.each(|transfer, tools| {
            transfer.fail_all(reason, tools);
            false
        });
        // Nobody waits for a room in the queue of what was read: it has one for each job.
        let clock = &self.tools.network.clock;
        self.readers.finish(clock, clock.now() + LAST_READS);
        self.tools.network.close();
    }
}

/// What a port is not that was given up meanwhile.
const GONE: Error = Error::EndpointFailed("the endpoint of a stream is gone");
