//! Who the peers of a connectionless endpoint are, and by which connections they are reached.

use std::collections::HashMap;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::endpoint::connectionless::event::PeerId;
use crate::endpoint::hub::conn_table::ConnTable;
use crate::fabric::PeerAddr;
use crate::id::{ConnectionId, IdMap};
use crate::protocol::wire::{Refusal, RefusalCode};

/// How a connection with a peer stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionStage {
    /// This side said hello.
    Dialing,
    Up,
    /// One of the two sides says goodbye.
    Closing,
}

/// One peer.
#[derive(Debug)]
pub(super) struct AddedPeer {
    pub(super) addr: PeerAddr,
    /// Mostly one; two if both sides began at the same time.
    conns: SmallVec<[(ConnectionId, ConnectionStage); 2]>,
    /// Where sends go, as long as it lasts: so they stay in order.
    sends_on: Option<ConnectionId>,
    /// The application named it; else it came by itself, and is forgotten when it goes.
    pub(super) added: bool,
    /// The peer is being removed.
    pub(super) leaving: bool,
    /// Payloads that the provider kept.
    pub(super) kept: u32,
    pub(super) held: Arc<()>,
}

impl AddedPeer {
    /// The connection that a message goes by: an established one, else the one that is being made,
    /// else one that closes.
    pub(super) fn usable_connection(&mut self) -> Option<(ConnectionId, ConnectionStage)> {
        let of = |conn: Option<ConnectionId>| self.conns.iter().find(|(id, _)| Some(*id) == conn);
        if let Some(found) = of(self.sends_on).filter(|(_, stage)| *stage == ConnectionStage::Up) {
            return Some(*found);
        }
        let best = self.conns.iter().min_by_key(|(_, stage)| match stage {
            ConnectionStage::Up => 0,
            ConnectionStage::Dialing => 1,
            ConnectionStage::Closing => 2,
        });
        let best = best.copied();
        self.sends_on = best
            .filter(|(_, stage)| *stage == ConnectionStage::Up)
            .map(|(id, _)| id);
        best
    }

    pub(super) fn is_up(&self) -> bool {
        self.conns
            .iter()
            .any(|(_, stage)| *stage == ConnectionStage::Up)
    }

    pub(super) fn connections(&self) -> impl Iterator<Item = ConnectionId> + '_ {
        self.conns.iter().map(|(id, _)| *id)
    }

    /// Messages that the application holds.
    pub(super) fn messages_held(&self) -> u32 {
        u32::try_from(Arc::strong_count(&self.held) - 1).unwrap_or(u32::MAX)
    }
}

/// The peer of a connection, which may be over.
#[derive(Clone, Copy, Debug)]
struct ConnectionPeer {
    peer: PeerId,
    /// Payloads that the provider kept of it.
    kept: u32,
    over: bool,
}

/// What the end of a connection is for its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PeerLoss {
    /// The peer has another connection: sends that waited for the lost one may go by this one.
    GoesOn(ConnectionId),
    Down(PeerId),
}

/// All peers.
#[derive(Debug)]
pub(super) struct Peers {
    table: ConnTable<AddedPeer>,
    by_addr: HashMap<PeerAddr, PeerId>,
    by_conn: IdMap<ConnectionId, ConnectionPeer>,
    limit: u32,
    /// How many are being removed.
    leaving: u32,
}

impl Peers {
    pub(super) fn new(limit: u32) -> Self {
        Self {
            table: ConnTable::new(),
            by_addr: HashMap::new(),
            by_conn: IdMap::default(),
            limit,
            leaving: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    pub(super) fn is_full(&self) -> bool {
        self.table.len() >= self.limit as usize
    }

    pub(super) fn limit(&self) -> u32 {
        self.limit
    }

    pub(super) fn get(&self, id: PeerId) -> Option<&AddedPeer> {
        self.table.get(id.0)
    }

    pub(super) fn get_mut(&mut self, id: PeerId) -> Option<&mut AddedPeer> {
        self.table.get_mut(id.0)
    }

    pub(super) fn at(&self, addr: &PeerAddr) -> Option<PeerId> {
        self.by_addr.get(addr).copied()
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = PeerId> {
        self.table.ids().into_iter().map(PeerId)
    }

    /// The peer of a connection, as long as the provider keeps something of the connection.
    pub(super) fn of(&self, conn: ConnectionId) -> Option<PeerId> {
        self.by_conn.get(&conn).map(|of| of.peer)
    }

    /// What is said of messages that came by a connection.
    pub(super) fn about(&self, conn: ConnectionId) -> Option<(PeerId, Arc<()>)> {
        let peer = self.of(conn)?;
        Some((peer, Arc::clone(&self.get(peer)?.held)))
    }

    /// A peer more; `None` when there is no place, which a check of `is_full` comes before.
    pub(super) fn add(&mut self, addr: PeerAddr, added: bool) -> Option<PeerId> {
        let id = PeerId(self.table.reserve()?);
        let peer = AddedPeer {
            addr,
            conns: SmallVec::new(),
            sends_on: None,
            added,
            leaving: false,
            kept: 0,
            held: Arc::new(()),
        };
        self.table.put(id.0, Box::new(peer));
        self.by_addr.insert(addr, id);
        Some(id)
    }

    /// A peer is to be removed; its connections.
    pub(super) fn leave(&mut self, id: PeerId) -> Option<Vec<ConnectionId>> {
        let peer = self.table.get_mut(id.0)?;
        if !std::mem::replace(&mut peer.leaving, true) {
            self.leaving += 1;
        }
        Some(peer.connections().collect())
    }

    /// Removes the peers that are to be and have no connection any more.
    pub(super) fn take_gone(&mut self) -> Vec<PeerId> {
        if self.leaving == 0 {
            return Vec::new();
        }
        let is_gone = |peer: &AddedPeer| peer.leaving && peer.conns.is_empty();
        let gone = self.table.iter().filter(|(_, peer)| is_gone(peer));
        let gone: Vec<_> = gone.map(|(id, _)| PeerId(id)).collect();
        for &id in &gone {
            self.leaving -= 1;
            self.remove(id);
        }
        gone
    }

    pub(super) fn remove(&mut self, id: PeerId) {
        if let Some(peer) = self.table.remove(id.0) {
            self.by_addr.remove(&peer.addr);
        }
    }

    /// A connection with a peer is at this stage.
    pub(super) fn set_stage(&mut self, id: PeerId, conn: ConnectionId, stage: ConnectionStage) {
        let Some(peer) = self.table.get_mut(id.0) else {
            return;
        };
        match peer.conns.iter_mut().find(|(known, _)| *known == conn) {
            Some((_, known)) => *known = stage,
            None => peer.conns.push((conn, stage)),
        }
        self.by_conn.entry(conn).or_insert(ConnectionPeer {
            peer: id,
            kept: 0,
            over: false,
        });
    }

    /// A connection is over. Whose it was.
    pub(super) fn end(&mut self, conn: ConnectionId) -> Option<PeerId> {
        let of = self.by_conn.get_mut(&conn)?;
        of.over = true;
        let (id, kept) = (of.peer, of.kept);
        if kept == 0 {
            self.by_conn.remove(&conn);
        }
        if let Some(peer) = self.table.get_mut(id.0) {
            peer.conns.retain(|(known, _)| *known != conn);
        }
        Some(id)
    }

    /// Why whoever says hello from there is not taken, if so. `takes_all`: those that nobody added,
    /// too, as long as there is room.
    pub(super) fn refusal(&self, from: Option<PeerAddr>, takes_all: bool) -> Option<Refusal> {
        let known = from.and_then(|addr| self.get(self.at(&addr)?));
        match known {
            Some(peer) if peer.leaving => Some(Refusal::new(RefusalCode::CLOSING, [0, 0])),
            Some(_) => None,
            None if !takes_all => Some(Refusal::new(RefusalCode::BY_APPLICATION, [0, 0])),
            None if self.is_full() => {
                let details = [self.limit.into(), 0];
                Some(Refusal::new(RefusalCode::TOO_MANY_CONNECTIONS, details))
            }
            None => None,
        }
    }

    /// A connection with a peer is over, and what that means.
    pub(super) fn on_disconnected(&mut self, conn: ConnectionId) -> Option<PeerLoss> {
        let id = self.end(conn)?;
        let peer = self.get_mut(id)?;
        match peer.usable_connection() {
            Some((other, ConnectionStage::Up)) => return Some(PeerLoss::GoesOn(other)),
            // The peer's end is that of its last connection.
            Some((_, ConnectionStage::Dialing | ConnectionStage::Closing)) => return None,
            None => {}
        }
        if peer.leaving {
            // `take_gone` says so.
            return None;
        }
        if !peer.added && peer.connections().next().is_none() {
            self.remove(id);
        }
        Some(PeerLoss::Down(id))
    }

    /// The provider kept a payload of a connection.
    pub(super) fn keep(&mut self, conn: ConnectionId) {
        let Some(of) = self.by_conn.get_mut(&conn) else {
            return;
        };
        of.kept += 1;
        if let Some(peer) = self.table.get_mut(of.peer.0) {
            peer.kept += 1;
        }
    }

    /// The provider is done with one. Whose it was.
    pub(super) fn release(&mut self, conn: ConnectionId) -> Option<PeerId> {
        let of = self.by_conn.get_mut(&conn)?;
        let id = of.peer;
        of.kept = of.kept.saturating_sub(1);
        if of.kept == 0 && of.over {
            self.by_conn.remove(&conn);
        }
        if let Some(peer) = self.table.get_mut(id.0) {
            peer.kept = peer.kept.saturating_sub(1);
        }
        Some(id)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn addr(port: u16) -> PeerAddr {
        std::net::SocketAddr::from(([10, 0, 0, 1], port)).into()
    }

    fn conn(n: u64) -> ConnectionId {
        ConnectionId(n)
    }

    #[test]
    fn sends_stay_on_one_connection_while_it_lasts() {
        let mut peers = Peers::new(2);
        let id = peers.add(addr(1), true).unwrap();
        assert_eq!(peers.get_mut(id).unwrap().usable_connection(), None);
        peers.set_stage(id, conn(1), ConnectionStage::Dialing);
        assert_eq!(
            peers.get_mut(id).unwrap().usable_connection(),
            Some((conn(1), ConnectionStage::Dialing))
        );
        peers.set_stage(id, conn(2), ConnectionStage::Up);
        assert_eq!(
            peers.get_mut(id).unwrap().usable_connection(),
            Some((conn(2), ConnectionStage::Up))
        );
        peers.set_stage(id, conn(1), ConnectionStage::Up);
        assert_eq!(
            peers.get_mut(id).unwrap().usable_connection(),
            Some((conn(2), ConnectionStage::Up))
        );
        peers.set_stage(id, conn(2), ConnectionStage::Closing);
        assert_eq!(
            peers.get_mut(id).unwrap().usable_connection(),
            Some((conn(1), ConnectionStage::Up))
        );
        assert_eq!(peers.end(conn(1)), Some(id));
        assert_eq!(
            peers.get_mut(id).unwrap().usable_connection(),
            Some((conn(2), ConnectionStage::Closing))
        );
        assert!(!peers.get(id).unwrap().is_up());
        assert_eq!((peers.end(conn(2)), peers.end(conn(2))), (Some(id), None));
    }

    #[test]
    fn what_the_provider_keeps_is_counted_beyond_the_end() {
        let mut peers = Peers::new(1);
        let id = peers.add(addr(1), false).unwrap();
        assert!(peers.is_full());
        peers.set_stage(id, conn(1), ConnectionStage::Up);
        peers.keep(conn(1));
        peers.keep(conn(1));
        peers.end(conn(1));
        assert_eq!(
            (peers.of(conn(1)), peers.get(id).unwrap().kept),
            (Some(id), 2)
        );
        assert_eq!(peers.release(conn(1)), Some(id));
        peers.remove(id);
        assert_eq!((peers.at(&addr(1)), peers.len()), (None, 0));
        assert_eq!(
            (peers.release(conn(1)), peers.release(conn(1))),
            (Some(id), None)
        );
    }
}
