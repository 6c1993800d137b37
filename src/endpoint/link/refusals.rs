//! `Refusals`: what is said to those whom a listener without connections does not accept.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::clock::Clock;
use crate::endpoint::link::peer_book::PeerBook;
use crate::endpoint::link::refusal_slot::RefusalSlot;
use crate::endpoint::link::{CmData, Completions, PostRefused};
use crate::fabric::{Domain, Ep, FiAddr, PeerAddr};
use crate::protocol::wire::{self, ControlKind};

/// Refusals that wait for the provider to take them; more are not told, and the refused time out.
const REFUSALS_MAX: usize = 64;

/// How long a refusal is offered to a provider that has no way to the peer yet.
const REFUSAL_PATIENCE: Duration = Duration::from_secs(2);

/// The pause between two such offers.
const REFUSAL_RETRY: Duration = Duration::from_millis(1);

/// The refusals of one link that the provider has not taken yet, or not sent.
#[derive(Debug)]
pub(crate) struct Refusals {
    waiting: VecDeque<Refusing>,
    /// For those that are not injected; made with the first one.
    slot: Option<Box<RefusalSlot<Refusing>>>,
    /// Most bytes that the provider takes by `fi_inject`.
    inject_size: usize,
    /// Contexts of operations are cells of the core's: there is none for an operation of the link.
    needs_cells: bool,
    domain: Arc<Domain>,
}

/// A refusal under way.
#[derive(Debug)]
pub(crate) struct Refusing {
    pub(crate) peer: PeerAddr,
    pub(crate) number: FiAddr,
    /// Under which the peer wants to be addressed.
    pub(crate) index: u32,
    pub(crate) data: CmData,
    deadline: Instant,
}

impl Refusing {
    /// One that is offered from now on.
    pub(crate) fn new(
        peer: PeerAddr,
        number: FiAddr,
        index: u32,
        data: &[u8],
        now: Instant,
    ) -> Self {
        Self {
            peer,
            number,
            index,
            data: CmData::new(data),
            deadline: now + REFUSAL_PATIENCE,
        }
    }
}

impl Refusals {
    pub(crate) fn new(domain: &Arc<Domain>, inject_size: usize, needs_cells: bool) -> Self {
        Self {
            waiting: VecDeque::new(),
            slot: None,
            inject_size,
            needs_cells,
            domain: Arc::clone(domain),
        }
    }

    /// Whether one of so many bytes can be taken.
    pub(crate) fn takes(&mut self, data: &[u8]) -> bool {
        self.waiting.len() < REFUSALS_MAX && self.can_send(data)
    }

    /// To be called when `takes` agreed; `send` follows.
    pub(crate) fn push(&mut self, refusing: Refusing) {
        self.waiting.push_back(refusing);
    }

    /// Whether so many bytes can be sent without an operation of the core's.
    fn can_send(&mut self, data: &[u8]) -> bool {
        if data.len() <= self.inject_size {
            return true;
        }
        // A cell would have to live as long as the operation: no provider that wants some has asked
        // for it yet.
        if self.needs_cells {
            return false;
        }
        if self.slot.is_none() {
            self.slot = RefusalSlot::new(&self.domain).map(Box::new);
        }
        self.slot.is_some()
    }

    /// Whether completions that were read may be of this one's sends.
    #[inline]
    pub(crate) fn has_sends(&self) -> bool {
        self.slot.is_some()
    }

    /// Takes the completion of a refusal out of what was read behind that place.
    #[cold]
    pub(crate) fn on_completions(
        &mut self,
        out: &mut Completions,
        from: usize,
        book: &mut PeerBook,
        now: Instant,
    ) {
        let slot = self.slot.as_mut();
        if let Some(refusing) = slot.and_then(|slot| slot.take_completion(out, from)) {
            book.give_back(refusing.peer, now);
        }
    }

    /// Offers what waits to the provider.
    pub(crate) fn send(&mut self, ep: Option<&Ep>, book: &mut PeerBook, now: Instant) {
        for _ in 0..self.waiting.len() {
            let (Some(ep), Some(refusing)) = (ep, self.waiting.pop_front()) else {
                return;
            };
            if let Some(over) = self.send_one(ep, refusing, now) {
                book.give_back(over.peer, now);
            }
        }
    }

    /// Gives back what is over: sent, or not to be told any more.
    fn send_one(&mut self, ep: &Ep, refusing: Refusing, now: Instant) -> Option<Refusing> {
        let (to, data) = (refusing.number, refusing.data);
        let mark = wire::cq_data(ControlKind::REFUSAL, refusing.index);
        let (sent, refusing) = if data.as_slice().len() > self.inject_size {
            let Some(slot) = &mut self.slot else {
                return Some(refusing);
            };
            match slot.send(ep, (to, mark), data.as_slice(), refusing) {
                Ok(()) => return None,
                Err((refused, refusing)) => (Err(refused), refusing),
            }
        } else {
            (ep.inject(to, mark, data.as_slice()), refusing)
        };
        if sent == Err(PostRefused::Again) && now < refusing.deadline {
            self.waiting.push_back(refusing);
            return None;
        }
        Some(refusing)
    }

    /// When they are to be offered again.
    pub(crate) fn next_deadline(&self, clock: &Clock) -> Option<Instant> {
        (!self.waiting.is_empty()).then(|| clock.now() + REFUSAL_RETRY)
    }

    /// The endpoint is about to be closed: nobody is told any more.
    pub(crate) fn clear(&mut self) {
        self.waiting.clear();
    }

    /// The endpoint was closed, or could not be.
    pub(crate) fn on_closed(&mut self, closed: bool) {
        if let Some(slot) = &mut self.slot {
            match closed {
                true => drop(slot.end()),
                false => slot.leak(),
            }
        }
    }
}
