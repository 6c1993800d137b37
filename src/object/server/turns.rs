//! `PeerTurns`: whose turn it is to post. Pure.

use std::collections::{BTreeSet, VecDeque};
use std::time::Instant;

use crate::object::server::peers::ServerPeers;

/// Clients with something to post, each in one place at most: ready, one after the other; or
/// waiting for its next try.
#[derive(Debug, Default)]
pub(super) struct PeerTurns {
    ready: VecDeque<u32>,
    later: BTreeSet<(Instant, u32)>,
}

impl PeerTurns {
    /// A client has something to post, as far as it is concerned.
    pub(super) fn ready(&mut self, peers: &mut ServerPeers, peer: u32) {
        let Some(it) = peers.get_mut(peer) else {
            return;
        };
        if let Some(at) = it.retry_at.take() {
            self.later.remove(&(at, peer));
            it.is_queued = false;
        }
        if !it.is_queued {
            it.is_queued = true;
            self.ready.push_back(peer);
        }
    }

    /// A client that was taken out by [`next`](Self::next) could post nothing.
    pub(super) fn later(&mut self, peers: &mut ServerPeers, peer: u32, now: Instant) {
        let Some(it) = peers.get_mut(peer) else {
            return;
        };
        let at = now + it.back_off();
        it.retry_at = Some(at);
        it.is_queued = true;
        self.later.insert((at, peer));
    }

    /// The next that is ready.
    pub(super) fn next(&mut self, peers: &mut ServerPeers) -> Option<u32> {
        let peer = self.ready.pop_front()?;
        if let Some(it) = peers.get_mut(peer) {
            it.is_queued = false;
        }
        Some(peer)
    }

    /// Those whose next try is due are ready.
    pub(super) fn wake(&mut self, peers: &mut ServerPeers, now: Instant) {
        while let Some((_, peer)) = self.later.first().copied().filter(|(at, _)| *at <= now) {
            self.ready(peers, peer);
        }
    }

    /// Something is over: the one that waits longest may find room now.
    pub(super) fn hurry(&mut self, peers: &mut ServerPeers) {
        if let Some((_, peer)) = self.later.first().copied() {
            self.ready(peers, peer);
        }
    }

    pub(super) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// When the next try is due.
    pub(super) fn next_try(&self) -> Option<Instant> {
        self.later.first().map(|(at, _)| *at)
    }

    /// A client is no more.
    pub(super) fn forget(&mut self, peer: u32, retry_at: Option<Instant>) {
        if let Some(at) = retry_at {
            self.later.remove(&(at, peer));
        }
        self.ready.retain(|it| *it != peer);
    }
}
