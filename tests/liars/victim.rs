//! `Victim`: an endpoint of the library's, or two of one domain, with everything that they said;
//! and the memory that is at stake.

use std::sync::Arc;
use std::time::Duration;

use fabricast::buffer::{BufferMut, SharedBufferManager};
use fabricast::endpoint::{
    Access, CloseReason, ConnectionId, LocalWindow, LongMessages, Message, ReceiveConfig,
    WindowEvent,
};
use fabricast::{ConnectionEvent, Domain, PeerAddr, ReceiveEndpoint, ReceiveEvent};

use crate::common::{Offers, SOON, any_port, breathe, drive};
use crate::peer::Liar;
use crate::wire;

/// What an application writes into memory that is its own again.
pub(crate) const OWN: u8 = 0xee;

/// What lies in memory while it is exposed.
pub(crate) const BEFORE: u8 = 0x11;

/// What liars write.
pub(crate) const THEIRS: u8 = 0x77;

/// Polls in which something would happen that must not, if it were to.
pub(crate) const MANY: usize = 400;

/// Nobody is closed for silence in these tests, but where a test says so.
const PATIENT: Duration = Duration::from_secs(100);

/// A receiver that takes windows and long messages, with room for a few liars.
pub(crate) fn config() -> ReceiveConfig {
    ReceiveConfig::default()
        .incoming(|incoming| incoming.slots(256).credits(8))
        .connection(|c| {
            c.max_connections(8)
                .windows(4)
                .unresponsive_after(None)
                .lost_after(Some(PATIENT))
        })
}

/// One slot for long messages.
pub(crate) fn long(bytes: usize) -> (LongMessages, SharedBufferManager) {
    let pool = SharedBufferManager::allocate(1, bytes).expect("memory");
    (LongMessages::new(pool.clone()), pool)
}

/// The victim's endpoints, and what they said.
#[derive(Debug)]
pub(crate) struct Victim {
    /// `None` when it was dropped. They share a domain.
    pub(crate) endpoints: Vec<Option<ReceiveEndpoint>>,
    /// By endpoint.
    pub(crate) connected: Vec<(usize, ConnectionId)>,
    pub(crate) ended: Vec<(usize, ConnectionId, CloseReason)>,
    /// Windows' memory that came back; the application has written [`OWN`] into all of it at once.
    pub(crate) released: Vec<BufferMut>,
    /// With what was in them when they were handed out.
    pub(crate) messages: Vec<(Message, Vec<u8>)>,
    /// The most reads of the completion queue in one poll.
    pub(crate) most_reads: u64,
    /// Polls of all endpoints so far.
    pub(crate) polls: u64,
}

impl Victim {
    /// So many endpoints in one domain. `None`, after a line that says why: there is no libfabric.
    pub(crate) fn new(endpoints: usize, config: &ReceiveConfig) -> Option<Self> {
        let domain = crate::common::domain()?;
        // Liars speak tcp, and relays stand between.
        if !domain.has_sockets() {
            return None;
        }
        Some(Self::over(&domain, endpoints, config))
    }

    /// The same in this domain.
    pub(crate) fn over(domain: &Arc<Domain>, endpoints: usize, config: &ReceiveConfig) -> Self {
        let listen = |_| ReceiveEndpoint::listen(domain, any_port(), config.clone());
        let endpoints = (0..endpoints).map(listen);
        let endpoints = endpoints.map(|endpoint| Some(endpoint.expect("listens")));
        Self {
            endpoints: endpoints.collect(),
            connected: Vec::new(),
            ended: Vec::new(),
            released: Vec::new(),
            messages: Vec::new(),
            most_reads: 0,
            polls: 0,
        }
    }

    pub(crate) fn endpoint(&mut self, n: usize) -> &mut ReceiveEndpoint {
        self.endpoints[n].as_mut().expect("not dropped")
    }

    pub(crate) fn addr(&mut self, n: usize) -> PeerAddr {
        self.endpoint(n).local_addr()
    }

    pub(crate) fn poll(&mut self) {
        self.polls += 1;
        for n in 0..self.endpoints.len() {
            let Some(endpoint) = &mut self.endpoints[n] else {
                continue;
            };
            let before = endpoint.stats().cq_reads;
            let mut events = Vec::new();
            endpoint.poll(&mut events).expect("the endpoint lives");
            self.most_reads = self.most_reads.max(endpoint.stats().cq_reads - before);
            events.into_iter().for_each(|event| self.take(n, event));
        }
    }

    /// Takes what an endpoint said.
    pub(crate) fn take(&mut self, n: usize, event: ReceiveEvent) {
        match event {
            ReceiveEvent::Connection(connection, ConnectionEvent::Connected(_)) => {
                self.connected.push((n, connection))
            }
            ReceiveEvent::Connection(connection, ConnectionEvent::Disconnected(reason)) => {
                self.ended.push((n, connection, reason));
            }
            ReceiveEvent::Window {
                event: WindowEvent::Released { memory, .. },
                ..
            } => {
                let mut buffer = memory.into_buffer_mut().expect("what was exposed");
                buffer.fill(OWN);
                self.released.push(buffer);
            }
            ReceiveEvent::Message(message) => {
                let bytes = message.payload().to_vec();
                self.messages.push((message, bytes));
            }
            _ => {}
        }
    }

    /// Why a connection ended, if it did.
    pub(crate) fn end_of(&self, n: usize, id: ConnectionId) -> Option<CloseReason> {
        let mut ended = self.ended.iter();
        let found = ended.find(|(of, conn, _)| (*of, *conn) == (n, id));
        found.map(|(.., reason)| *reason)
    }

    /// How many bytes of what came back are not what the application wrote there.
    pub(crate) fn changed(&self) -> usize {
        let foreign = |buffer: &BufferMut| buffer.iter().filter(|byte| **byte != OWN).count();
        let windows: usize = self.released.iter().map(foreign).sum();
        let messages = self.messages.iter().map(|(message, bytes)| {
            let pairs = message.payload().iter().zip(bytes);
            pairs.filter(|(now, then)| now != then).count()
        });
        windows + messages.sum::<usize>()
    }
}

/// A liar that is connected to an endpoint, and which connection that is.
#[derive(Debug)]
pub(crate) struct Guest {
    pub(crate) liar: Liar,
    pub(crate) at: usize,
    pub(crate) id: ConnectionId,
}

impl Guest {
    /// Connects, by way of this address or directly.
    pub(crate) fn come(
        victim: &mut Victim,
        at: usize,
        by: Option<PeerAddr>,
        private: &[u8],
    ) -> Self {
        let domain = raw_domain();
        let to = by.unwrap_or_else(|| victim.addr(at));
        let liar = Liar::connect(&domain, to, private);
        Self::connected(victim, at, liar)
    }

    /// One that knows all features, over endpoints of this provider that have no connections;
    /// `domain`: one of its own.
    pub(crate) fn by_number(victim: &mut Victim, domain: &Arc<Domain>, provider: &str) -> Self {
        let hello = wire::hello(wire::HEARTBEATS | wire::WINDOWS | wire::LONG, 4);
        let liar = Liar::say_hello(domain, provider, victim.addr(0), &hello);
        Self::connected(victim, 0, liar)
    }

    fn connected(victim: &mut Victim, at: usize, mut liar: Liar) -> Self {
        let before = victim.connected.len();
        drive("a liar connects", SOON, || {
            victim.poll();
            liar.poll();
            assert!(!liar.over, "refused");
            liar.connected && victim.connected.len() > before
        });
        let id = victim.connected[before].1;
        Self { liar, at, id }
    }

    /// One that offers heartbeats, windows and long messages, as the library does.
    pub(crate) fn polite(victim: &mut Victim, at: usize, by: Option<PeerAddr>) -> Self {
        let features = wire::HEARTBEATS | wire::WINDOWS | wire::LONG;
        Self::come(victim, at, by, &wire::hello(features, 4))
    }

    pub(crate) fn ended(&self, victim: &Victim) -> Option<CloseReason> {
        victim.end_of(self.at, self.id)
    }

    /// Lets it use memory that is full of [`BEFORE`].
    pub(crate) fn expose(
        &self,
        victim: &mut Victim,
        pool: &SharedBufferManager,
        access: Access,
    ) -> LocalWindow {
        let mut buffer = pool.try_acquire().expect("free");
        buffer.fill(BEFORE);
        let endpoint = victim.endpoint(self.at);
        endpoint
            .windows(self.id)
            .expose(buffer, access)
            .expect("exposed")
    }
}

/// A domain of the liar's own: on libfabric 2.x the polls of one endpoint drive all of its domain.
fn raw_domain() -> Arc<Domain> {
    crate::common::domain().expect("there is one already")
}

/// Drives everybody until it is so.
pub(crate) fn until(
    what: &str,
    victim: &mut Victim,
    guests: &mut [&mut Guest],
    mut done: impl FnMut(&mut Victim, &mut [&mut Guest]) -> bool,
) {
    drive(what, SOON, || {
        victim.poll();
        guests.iter_mut().for_each(|guest| guest.liar.poll());
        done(victim, guests)
    });
}

/// Drives everybody for [`MANY`] polls.
pub(crate) fn a_while(victim: &mut Victim, guests: &mut [&mut Guest]) {
    for turn in 0..MANY {
        victim.poll();
        guests.iter_mut().for_each(|guest| guest.liar.poll());
        breathe(turn);
    }
}
