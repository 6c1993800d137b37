//! `ChannelCore`: what a channel does. Safe code: what the provider may touch is the engine's.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use crate::Error;
use crate::buffer::Payload;
use crate::clock::Clock;
use crate::endpoint::link::wait::EndpointWait;
use crate::endpoint::{Destination, PeerAddr};
use crate::object::server::ServerParts;
use crate::object::server::admission::Admitted;
use crate::object::server::contacts::{Asked, FirstContacts};
use crate::object::server::engine::{GenerationId, PostedPiece, TransferEngine};
use crate::object::server::error::TransferErrorKind;
use crate::object::server::event::ChannelEvent;
use crate::object::server::lanes::ChannelLanes;
use crate::object::server::peers::{PeerReach, ServerPeer, ServerPeers};
use crate::object::server::queue_watch::QueueWatch;
use crate::object::server::stats::ChannelStats;
use crate::object::server::transfer::{ObjectTransfer, TransferTarget, unread, unwritten};
use crate::object::server::turns::PeerTurns;

/// What one try to post for a client came to.
enum Advance {
    /// Something was posted or is over; there may be more.
    Went,
    /// Nothing can be done now.
    Blocked,
    /// A thread will say when.
    Asked,
    /// Nothing is left.
    Empty,
}

/// See the module.
#[derive(Debug)]
pub(super) struct ChannelCore {
    pub(super) parts: Arc<ServerParts>,
    pub(super) engine: TransferEngine,
    pub(super) watch: Arc<QueueWatch>,
    /// What loops ask.
    pub(super) wait: Arc<EndpointWait>,
    pub(super) peers: ServerPeers,
    pub(super) contacts: FirstContacts,
    pub(super) turns: PeerTurns,
    pub(super) lanes: ChannelLanes,
    /// Of transfers whose outcome was not told.
    pub(super) deadlines: BTreeSet<(Instant, usize)>,
    /// Transfers of which something changed, to be looked at.
    pub(super) over: Vec<usize>,
    /// What is to be told.
    pub(super) outbox: VecDeque<ChannelEvent>,
    /// Late transfers came, or went: retiring endpoints are looked at.
    pub(super) sweep: bool,
    pub(super) counts: ChannelStats,
    pub(super) clock: Clock,
    /// Sleeps since something was over.
    pub(super) rests: u32,
}

impl ChannelCore {
    pub(super) fn open(parts: &Arc<ServerParts>) -> Result<Self, Error> {
        let config = &parts.config;
        let contacts = FirstContacts::new(&parts.domain, config.first_contacts)?;
        let watch = Arc::new(QueueWatch::new(contacts.bell())?);
        let (rma, names) = (&parts.rma, &parts.names);
        let mut engine = TransferEngine::new(&parts.domain, rma, config.depth, names, &watch)?;
        let mut lanes = ChannelLanes::new(config.retiring);
        lanes.set(false, engine.open()?);
        Ok(Self {
            engine,
            wait: Arc::new(EndpointWait::new(Arc::clone(&watch) as _, Clock::system())?),
            watch,
            lanes,
            peers: ServerPeers::new(config.peers),
            contacts,
            turns: PeerTurns::default(),
            deadlines: BTreeSet::new(),
            over: Vec::new(),
            outbox: VecDeque::new(),
            sweep: false,
            counts: ChannelStats::default(),
            clock: Clock::system(),
            rests: 0,
            parts: Arc::clone(parts),
        })
    }

    // ---- what is accepted -----------------------------------------------------------------------

    pub(super) fn write(
        &mut self,
        to: &Admitted,
        payload: Payload,
        names: (u64, Instant),
    ) -> Result<(), (TransferErrorKind, Payload)> {
        let scope = self.parts.scope();
        let transfer = ObjectTransfer::write(payload, scope, to.target(), names)?;
        match self.accept(transfer, to) {
            Ok(()) => Ok(()),
            Err((kind, transfer)) => Err((kind, unwritten(*transfer).unwrap_or_default())),
        }
    }

    pub(super) fn read(
        &mut self,
        from: &Admitted,
        into: Destination,
        names: (u64, Instant),
    ) -> Result<(), (TransferErrorKind, Destination)> {
        let scope = self.parts.scope();
        let transfer = ObjectTransfer::read(into, scope, from.target(), names)?;
        self.accept(transfer, from).map_err(|(kind, transfer)| {
            let into = unread(*transfer).expect("a read that nobody leaked has its destination");
            (kind, into)
        })
    }

    fn accept(
        &mut self,
        mut transfer: ObjectTransfer,
        to: &Admitted,
    ) -> Result<(), (TransferErrorKind, Box<ObjectTransfer>)> {
        let now = self.clock.now();
        // Asked before, so neither is refused here.
        if !self.peers.has_room(&to.peer) {
            let limit = self.parts.config.peers;
            let kind = TransferErrorKind::PeersInUse { limit };
            return Err((kind, Box::new(transfer)));
        }
        let (peer, left) = self.peers.enter(to.peer, now);
        if let Some(left) = left {
            self.forget(peer, &left);
        }
        transfer.target = TransferTarget {
            peer,
            ..to.target()
        };
        let deadline = transfer.deadline;
        transfer.began = Some(now);
        let id = match self.engine.begin(transfer) {
            Ok(id) => id,
            Err(transfer) => {
                self.peers.leave(peer, now);
                let depth = self.parts.config.depth;
                return Err((TransferErrorKind::Full { depth }, transfer));
            }
        };
        self.deadlines.insert((deadline, id));
        self.counts.accepted += 1;
        if let Some(it) = self.peers.get_mut(peer) {
            it.line.push_back(id);
            // Others of its are in front of it, and wait for their next try.
            if it.retry_at.is_none() {
                self.turns.ready(&mut self.peers, peer);
            }
        }
        self.pump(now);
        self.settle(now);
        Ok(())
    }

    // ---- a turn ---------------------------------------------------------------------------------

    /// Everything that there is to do now; never waits.
    pub(super) fn turn(&mut self) {
        let now = self.clock.now();
        self.take_answers();
        self.read_queues();
        self.settle(now);
        self.cut_off(now);
        self.pump(now);
        self.settle(now);
        self.sweep(now);
        let idle_after = self.parts.config.idle_after;
        while let Some(since) = now.checked_sub(idle_after)
            && let Some((peer, left)) = self.peers.expire(since)
        {
            self.forget(peer, &left);
        }
    }

    fn read_queues(&mut self) {
        let mut place = 0;
        while let Some(generation) = self.engine.generation_at(place) {
            match self.engine.read(generation, &mut self.over) {
                true => place += 1,
                // Another one takes its place.
                false => self.give_up(generation),
            }
        }
    }

    /// A client left.
    fn forget(&mut self, peer: u32, left: &ServerPeer) {
        if left.is_queued {
            self.turns.forget(peer, left.retry_at);
        }
        if let PeerReach::Known(reached) = left.reach {
            self.engine.forget(reached);
        }
    }

    fn take_answers(&mut self) {
        for answer in self.contacts.take() {
            let peer = self.peers.find(&answer.addr);
            let it = peer.and_then(|peer| Some((peer, self.peers.get_mut(peer)?)));
            let asked = PeerReach::Asked(answer.generation);
            match (it.filter(|(_, it)| it.reach == asked), answer.reached) {
                (Some((peer, it)), Ok(reached)) => {
                    it.reach = PeerReach::Known(reached);
                    self.turns.ready(&mut self.peers, peer);
                }
                (Some((peer, _)), Err(reason)) => self.unreachable(peer, reason),
                // It left meanwhile.
                (None, Ok(reached)) => self.engine.forget(reached),
                (None, Err(_)) => {}
            }
        }
    }

    /// Nothing that waits for this client can be posted.
    fn unreachable(&mut self, peer: u32, reason: Arc<str>) {
        if let Some(it) = self.peers.get_mut(peer) {
            it.reach = PeerReach::Unknown;
        }
        self.fail_line(peer, &TransferErrorKind::Contact { reason });
    }

    fn fail_line(&mut self, peer: u32, kind: &TransferErrorKind) {
        let it = self.peers.get_mut(peer);
        for id in it
            .map(|it| std::mem::take(&mut it.line))
            .unwrap_or_default()
        {
            self.engine.fail(id, kind.clone());
            self.over.push(id);
        }
    }

    /// Posts what can be posted, one piece for each client in its turn.
    fn pump(&mut self, now: Instant) {
        self.turns.wake(&mut self.peers, now);
        while let Some(peer) = self.turns.next(&mut self.peers) {
            match self.advance(peer) {
                Advance::Went => {
                    if let Some(it) = self.peers.get_mut(peer) {
                        it.went();
                    }
                    self.turns.ready(&mut self.peers, peer);
                }
                Advance::Blocked => self.turns.later(&mut self.peers, peer, now),
                Advance::Asked | Advance::Empty => {}
            }
        }
    }

    /// Posts one piece for a client.
    fn advance(&mut self, peer: u32) -> Advance {
        let Some(id) = self.front(peer) else {
            return Advance::Empty;
        };
        match self.engine.poll_gate(id) {
            Ok(true) => {}
            Ok(false) => return Advance::Blocked,
            Err(kind) => return self.stop(id, kind),
        }
        let Some(it) = self.peers.get(peer) else {
            return Advance::Empty;
        };
        let (late, addr, reach) = (it.late, it.addr, it.reach);
        let generation = match self.lane(late) {
            Ok(generation) => generation,
            Err(error) => {
                let reason = error.to_string().into();
                self.fail_line(peer, &TransferErrorKind::Endpoint { reason });
                return Advance::Empty;
            }
        };
        let to = match reach {
            PeerReach::Known(reached) if reached.generation == generation => reached,
            PeerReach::Asked(_) => return Advance::Asked,
            PeerReach::Known(_) | PeerReach::Unknown => {
                return self.contact(peer, addr, generation);
            }
        };
        match self.engine.post(id, to) {
            PostedPiece::Went { last } => {
                if last && let Some(it) = self.peers.get_mut(peer) {
                    it.line.pop_front();
                }
                Advance::Went
            }
            PostedPiece::Again => {
                self.counts.eagain += 1;
                Advance::Blocked
            }
            PostedPiece::Refused(kind) => self.stop(id, kind),
        }
    }

    /// What is next of a client; what is over leaves its line.
    fn front(&mut self, peer: u32) -> Option<usize> {
        let it = self.peers.get_mut(peer)?;
        while let Some(&id) = it.line.front() {
            if self
                .engine
                .get(id)
                .is_some_and(|transfer| !transfer.is_stopped())
            {
                return Some(id);
            }
            it.line.pop_front();
        }
        None
    }

    fn stop(&mut self, id: usize, kind: TransferErrorKind) -> Advance {
        self.engine.fail(id, kind);
        self.over.push(id);
        Advance::Went
    }

    /// The endpoint that takes new transfers of such clients.
    fn lane(&mut self, late: bool) -> Result<GenerationId, Error> {
        if let Some(generation) = self.lanes.of(late) {
            return Ok(generation);
        }
        let generation = self.engine.open()?;
        self.lanes.set(late, generation);
        Ok(generation)
    }

    fn contact(&mut self, peer: u32, addr: PeerAddr, generation: GenerationId) -> Advance {
        let Some(av) = self.engine.av(generation) else {
            return Advance::Blocked;
        };
        let asked = match self.contacts.ask(addr, generation, av) {
            Asked::Now(Err(_)) if self.make_room(generation) => return Advance::Went,
            asked => asked,
        };
        let Some(it) = self.peers.get_mut(peer) else {
            return Advance::Empty;
        };
        match asked {
            Asked::Now(Ok(reached)) => {
                it.reach = PeerReach::Known(reached);
                self.engine.take_in(generation);
                Advance::Went
            }
            Asked::Now(Err(reason)) => {
                self.unreachable(peer, reason);
                Advance::Empty
            }
            Asked::Later => {
                it.reach = PeerReach::Asked(generation);
                Advance::Asked
            }
            Asked::Full => Advance::Blocked,
        }
    }

    /// An address vector that is full is left to those that are in it: another endpoint takes the
    /// next ones. False: it is not full, or as many retire as may.
    fn make_room(&mut self, generation: GenerationId) -> bool {
        if !self.engine.is_crowded(generation) {
            return false;
        }
        self.lanes.retire(generation);
        self.sweep = true;
        self.lanes.retiring().contains(&generation)
    }

    // ---- the end --------------------------------------------------------------------------------

    /// Closes everything; each transfer has its outcome afterwards.
    pub(super) fn end(&mut self) {
        let now = self.clock.now();
        for generation in self.engine.generations().collect::<Vec<_>>() {
            let closed = TransferErrorKind::Closed;
            self.engine.close(generation, &closed, &mut self.over);
            self.lanes.remove(generation);
        }
        for id in self.engine.ids() {
            self.engine.fail(id, TransferErrorKind::Closed);
            self.over.push(id);
        }
        self.settle(now);
    }

    pub(super) fn stats(&self) -> ChannelStats {
        let counts = &self.counts;
        ChannelStats {
            open: counts.accepted - counts.done - counts.failed,
            endpoints: self.engine.generations().count() as u64,
            peers: self.peers.len() as u64,
            contacts: self.contacts.pending() as u64,
            ..*counts
        }
    }
}
