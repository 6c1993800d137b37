//! `Transfer`: the handle on one transfer, for whoever began it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::config::Peer;
use super::outgoing_transfer::OutgoingTransfer;
use super::side::{SenderSide, SenderTools};
use crate::stream::network::Orders;
use crate::stream::{RefusalCode, StreamError, StreamReport};

/// How far a peer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct PeerProgress {
    /// Bytes that the peer's sink has, those from an earlier, cut stream included.
    pub written: u64,
    /// Bytes that were sent in this transfer, those that were sent again included.
    pub sent: u64,
    /// Bytes in all.
    pub total: u64,
    /// It is over, one way or the other.
    pub over: bool,
}

/// What became of a transfer at one peer.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PeerOutcome {
    /// Which.
    pub peer: Peer,
    /// Why it does not have the content; `Ok`: it has, checked.
    pub result: Result<(), StreamError>,
    /// How it went.
    pub report: StreamReport,
}

/// One transfer, which goes on whether this is held or not.
#[derive(Debug)]
pub struct Transfer {
    pub(super) id: u64,
    pub(super) shared: Arc<Shared>,
    pub(super) orders: Arc<Orders<SenderSide>>,
}

/// What the thread of the network tells, and whoever waits reads.
#[derive(Debug)]
pub(super) struct Shared {
    names: Vec<Peer>,
    peers: Vec<Counters>,
    total: u64,
    outcomes: Mutex<Vec<Option<PeerOutcome>>>,
    changed: Condvar,
    wishes: Mutex<Wishes>,
}

/// What was asked of a transfer, and its thread has not seen yet: of each thing the last that was
/// said, so that who asks often asks for no more than that.
#[derive(Debug, Default)]
struct Wishes {
    paused: Option<bool>,
    priority: Option<u8>,
    rate: Option<Option<u64>>,
    cancelled: bool,
    /// The thread was told to look.
    told: bool,
}

impl Wishes {
    fn fulfil(self, transfer: &mut OutgoingTransfer, tools: &mut SenderTools) {
        if let Some(priority) = self.priority {
            transfer.set_priority(priority);
        }
        if let Some(rate) = self.rate {
            transfer.set_rate(rate, tools.now());
        }
        if let Some(paused) = self.paused {
            transfer.pause(paused, tools);
        }
        if self.cancelled {
            transfer.cancel(tools);
        }
    }
}

#[derive(Debug, Default)]
struct Counters {
    written: AtomicU64,
    sent: AtomicU64,
}

impl Shared {
    pub(super) fn new(peers: &[Peer], total: u64) -> Self {
        Self {
            names: peers.to_vec(),
            peers: peers.iter().map(|_| Counters::default()).collect(),
            total,
            outcomes: Mutex::new(peers.iter().map(|_| None).collect()),
            changed: Condvar::new(),
            wishes: Mutex::default(),
        }
    }

    fn wishes(&self) -> MutexGuard<'_, Wishes> {
        self.wishes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes of all of it.
    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// Wherever it is not over, it ends with this error.
    pub(super) fn end_all(&self, error: &StreamError) {
        for (place, peer) in self.lock().iter_mut().zip(&self.names) {
            place.get_or_insert_with(|| PeerOutcome {
                peer: peer.clone(),
                result: Err(error.clone()),
                report: StreamReport::default(),
            });
        }
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Option<PeerOutcome>>> {
        self.outcomes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn tell(&self, peer: usize, written: u64, sent: u64) {
        if let Some(counters) = self.peers.get(peer) {
            counters.written.store(written, Ordering::Relaxed);
            counters.sent.store(sent, Ordering::Relaxed);
        }
    }

    pub(super) fn end(&self, peer: usize, outcome: PeerOutcome) {
        if let Some(place) = self.lock().get_mut(peer) {
            place.get_or_insert(outcome);
        }
        self.changed.notify_all();
    }
}

/// The network thread holds this while it carries a transfer out. When it is dropped, peers that
/// have no outcome get one, so that nobody waits for ever.
#[derive(Debug)]
pub(super) struct OutcomeGuard(pub(super) Arc<Shared>);

impl std::ops::Deref for OutcomeGuard {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}

impl Drop for OutcomeGuard {
    fn drop(&mut self) {
        self.0.end_all(&StreamError::GivenUp {
            code: RefusalCode::CLOSING,
            reason: "the sender has ended".to_owned(),
        });
    }
}

impl Transfer {
    /// How far each peer is, in the order in which they were given.
    pub fn progress(&self) -> Vec<PeerProgress> {
        let over: Vec<_> = self.shared.lock().iter().map(Option::is_some).collect();
        let peers = self.shared.peers.iter().zip(over);
        let progress = peers.map(|(counters, over)| PeerProgress {
            written: counters.written.load(Ordering::Relaxed),
            sent: counters.sent.load(Ordering::Relaxed),
            total: self.shared.total,
            over,
        });
        progress.collect()
    }

    /// Whether it is over at every peer.
    pub fn is_over(&self) -> bool {
        self.shared.lock().iter().all(Option::is_some)
    }

    /// Waits until it is over at every peer: what became of it, in the order in which the peers
    /// were given. None: not by then.
    pub fn wait(&self, deadline: Instant) -> Option<Vec<PeerOutcome>> {
        let mut outcomes = self.shared.lock();
        loop {
            if outcomes.iter().all(Option::is_some) {
                return Some(outcomes.iter().flatten().cloned().collect());
            }
            let left = deadline.checked_duration_since(Instant::now())?;
            let waited = self.shared.changed.wait_timeout(outcomes, left);
            outcomes = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Sends no further block until [`resume`](Self::resume). Peers are told, and wait.
    pub fn pause(&self) {
        self.ask(|wishes| wishes.paused = Some(true));
    }

    /// Goes on after [`pause`](Self::pause).
    pub fn resume(&self) {
        self.ask(|wishes| wishes.paused = Some(false));
    }

    /// Ends it. Peers are told; what they have they keep, for a later transfer of the same source.
    pub fn cancel(&self) {
        self.ask(|wishes| wishes.cancelled = true);
    }

    /// Of two transfers that could send, the one with the higher number does.
    pub fn set_priority(&self, priority: u8) {
        self.ask(|wishes| wishes.priority = Some(priority));
    }

    /// Bytes a second at most, all peers together; none: no limit.
    pub fn set_rate(&self, bytes_per_second: Option<u64>) {
        self.ask(|wishes| wishes.rate = Some(bytes_per_second));
    }

    fn ask(&self, wish: impl FnOnce(&mut Wishes)) {
        let mut wishes = self.shared.wishes();
        wish(&mut wishes);
        if std::mem::replace(&mut wishes.told, true) {
            return;
        }
        drop(wishes);
        let (id, shared) = (self.id, Arc::clone(&self.shared));
        self.orders.give(move |side| {
            // Also of one that is over: nobody is left to be told then.
            let wishes = std::mem::take(&mut *shared.wishes());
            side.act(id, |transfer, tools| wishes.fulfil(transfer, tools));
        });
    }
}
