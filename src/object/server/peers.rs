//! `ServerPeers`: the clients that a channel knows, and what waits for each. Pure.
//!
//! Clients choose their names, so there are never more than so many here: those of which a transfer
//! is here stay, the others leave by age, the oldest first where there is no room.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::{Duration, Instant};

use crate::endpoint::PeerAddr;
use crate::object::server::engine::{GenerationId, Reached};

/// How a client is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PeerReach {
    /// Nobody asked yet.
    Unknown,
    /// The provider was asked for it, in this generation.
    Asked(GenerationId),
    Known(Reached),
}

/// Waits between two tries, at first and at most. Each is twice the one before, so that who answers
/// late waits twice as long at most, and who never does costs little.
const RETRY_FIRST: Duration = Duration::from_micros(20);
const RETRY_MAX: Duration = Duration::from_millis(16);

/// One client.
#[derive(Debug)]
pub(super) struct ServerPeer {
    pub(super) addr: PeerAddr,
    pub(super) reach: PeerReach,
    /// Its transfers of which something is still to be posted, in their order; and some that are
    /// over.
    pub(super) line: VecDeque<usize>,
    /// A transfer of it was late, or ended a connection: it shares an endpoint only with others of
    /// its kind.
    pub(super) late: bool,
    /// It is among those that are ready, or that wait for their next try.
    pub(super) is_queued: bool,
    /// When its next try is due, and how long it waits then.
    pub(super) retry_at: Option<Instant>,
    retry_after: Duration,
    /// Transfers of it that are here.
    users: u32,
    idle_since: Instant,
}

impl ServerPeer {
    /// Nothing could be posted: how long it waits now.
    pub(super) fn back_off(&mut self) -> Duration {
        let wait = self.retry_after;
        self.retry_after = (2 * wait).min(RETRY_MAX);
        wait
    }

    /// Something was posted, or is over.
    pub(super) fn went(&mut self) {
        self.retry_after = RETRY_FIRST;
    }
}

/// The clients of one channel.
#[derive(Debug)]
pub(super) struct ServerPeers {
    by_addr: HashMap<PeerAddr, u32>,
    slots: Vec<Option<ServerPeer>>,
    free: Vec<u32>,
    /// Those without a transfer, by when they had their last one.
    idle: BTreeSet<(Instant, u32)>,
    max: u32,
}

impl ServerPeers {
    pub(super) fn new(max: u32) -> Self {
        Self {
            by_addr: HashMap::new(),
            slots: Vec::new(),
            free: Vec::new(),
            idle: BTreeSet::new(),
            max,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.by_addr.len()
    }

    pub(super) fn find(&self, addr: &PeerAddr) -> Option<u32> {
        self.by_addr.get(addr).copied()
    }

    pub(super) fn get(&self, peer: u32) -> Option<&ServerPeer> {
        self.slots.get(peer as usize)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, peer: u32) -> Option<&mut ServerPeer> {
        self.slots.get_mut(peer as usize)?.as_mut()
    }

    /// Whether there is room for this client.
    pub(super) fn has_room(&self, addr: &PeerAddr) -> bool {
        let known = self.by_addr.contains_key(addr);
        known || self.len() < self.max as usize || !self.idle.is_empty()
    }

    /// One transfer more of a client, for which there [is room](Self::has_room); and who had to
    /// leave for that.
    pub(super) fn enter(&mut self, addr: PeerAddr, now: Instant) -> (u32, Option<ServerPeer>) {
        if let Some(peer) = self.find(&addr) {
            if let Some(it) = self.get_mut(peer) {
                it.users += 1;
                let idle_since = it.idle_since;
                self.idle.remove(&(idle_since, peer));
            }
            return (peer, None);
        }
        let left = match self.len() < self.max as usize {
            true => None,
            false => self.idle.first().copied().and_then(|it| self.remove(it)),
        };
        let it = ServerPeer {
            addr,
            reach: PeerReach::Unknown,
            line: VecDeque::new(),
            late: false,
            is_queued: false,
            retry_at: None,
            retry_after: RETRY_FIRST,
            users: 1,
            idle_since: now,
        };
        let peer = match self.free.pop() {
            Some(peer) => {
                self.slots[peer as usize] = Some(it);
                peer
            }
            None => {
                self.slots.push(Some(it));
                (self.slots.len() - 1) as u32
            }
        };
        self.by_addr.insert(addr, peer);
        (peer, left)
    }

    /// One transfer less.
    pub(super) fn leave(&mut self, peer: u32, now: Instant) {
        let Some(it) = self.get_mut(peer) else {
            return;
        };
        it.users = it.users.saturating_sub(1);
        if it.users == 0 {
            it.idle_since = now;
            it.line.clear();
            self.idle.insert((now, peer));
        }
    }

    /// One that has been idle since then, or longer.
    pub(super) fn expire(&mut self, since: Instant) -> Option<(u32, ServerPeer)> {
        let oldest = self.idle.first().copied().filter(|(at, _)| *at <= since)?;
        Some((oldest.1, self.remove(oldest)?))
    }

    fn remove(&mut self, idle: (Instant, u32)) -> Option<ServerPeer> {
        self.idle.remove(&idle);
        let it = self.slots.get_mut(idle.1 as usize)?.take()?;
        self.by_addr.remove(&it.addr);
        self.free.push(idle.1);
        Some(it)
    }
}

#[cfg(all(test, not(loom)))]
#[path = "tests/peers.rs"]
mod tests;
