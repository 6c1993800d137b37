//! `AccessLedger`: when memory that peers could reach by a key is nobody's any more. Pure: numbers,
//! no libfabric, no clock.
//!
//! A key is good over every connection of its domain, and closing its registration ends nothing
//! that a provider has begun: it looked the key up when it read the head of a write, and goes on
//! writing. So memory behind a closed key waits. An *epoch* begins behind the close, and is passed
//! by each connection that existed then: once its peer has answered a question that was asked after
//! the epoch began (a fence: the answer comes behind all that the peer wrote before), or once its
//! endpoint is closed. When all have passed, the memory is free.
//!
//! ```text
//!  close the registration ─► begin() = e ─► every participant: pass(≥ e), or dropped ─┐
//!                                      passed() ≥ e: the memory is free ◄─────────────┘
//! ```
//!
//! A participant that has said its last word can't be asked any more, and passes by its end alone:
//! it is *leaving*. Memory waits for it as for any other. But who holds its own last word back
//! until an epoch is passed would wait for ever for somebody who waits for that word, so it waits
//! for those that stay only ([`AccessLedger::passed_by_staying`]).
//!
//! The ledger is one lock, taken by connections that come and go, by fences and by revocations, and
//! never by a poll that has nothing to do with them: whoever must do something is woken.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use smallvec::SmallVec;

/// Calls whoever polls an endpoint.
type Wake = Arc<dyn Fn() + Send + Sync>;

/// The epochs of one domain.
pub(crate) struct AccessLedger {
    /// Epochs begun so far.
    epoch: AtomicU64,
    /// All up to this one were passed by every participant.
    passed: AtomicU64,
    /// All up to this one were passed by every participant that is not leaving.
    passed_by_staying: AtomicU64,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    /// All participants, and those of them that are not leaving.
    participants: Census,
    staying: Census,
    watchers: Vec<Watch>,
    next_watcher: u64,
    /// Memory whose endpoint is gone, by the epoch that it waits for.
    limbo: BTreeMap<u64, Vec<Box<dyn Any + Send>>>,
}

/// How many have passed which epoch last.
#[derive(Default)]
struct Census(BTreeMap<u64, usize>);

impl Census {
    fn add(&mut self, epoch: u64) {
        *self.0.entry(epoch).or_default() += 1;
    }

    fn remove(&mut self, epoch: u64) {
        if let Some(count) = self.0.get_mut(&epoch) {
            *count -= 1;
            if *count == 0 {
                self.0.remove(&epoch);
            }
        }
        if self.0.is_empty() {
            // An empty map keeps its room.
            self.0 = BTreeMap::new();
        }
    }

    /// What the slowest has passed.
    fn slowest(&self) -> Option<u64> {
        self.0.first_key_value().map(|(passed, _)| *passed)
    }
}

/// Whom to wake, and for which epochs besides those that begin.
struct Watch {
    id: u64,
    wake: Wake,
    passed: Option<u64>,
    passed_by_staying: Option<u64>,
}

/// What is to be done once the lock is free: memory may wake somebody when it goes, or be the last
/// that holds something.
#[derive(Default)]
struct After {
    wake: SmallVec<[Wake; 4]>,
    free: Vec<Vec<Box<dyn Any + Send>>>,
}

impl Drop for After {
    fn drop(&mut self) {
        self.free.clear();
        self.wake.drain(..).for_each(|wake| wake());
    }
}

impl Inner {
    fn add(&mut self, epoch: u64, leaving: bool) {
        self.participants.add(epoch);
        if !leaving {
            self.staying.add(epoch);
        }
    }

    fn remove(&mut self, epoch: u64, leaving: bool) {
        self.participants.remove(epoch);
        if !leaving {
            self.staying.remove(epoch);
        }
    }

    /// What everybody has passed: memory that waited for it is free, and who waits for it is told.
    fn settle(&mut self, ledger: &AccessLedger) -> After {
        let epoch = ledger.epoch.load(Ordering::Relaxed);
        let passed = self.participants.slowest().unwrap_or(epoch);
        let by_staying = self.staying.slowest().unwrap_or(epoch);
        // Release pairs with the Acquire of `passed`: who sees it sees all that was done before.
        ledger.passed.store(passed, Ordering::Release);
        // Likewise, though nothing is freed by this one.
        ledger
            .passed_by_staying
            .store(by_staying, Ordering::Release);
        let mut after = After::default();
        while let Some(first) = self.limbo.first_entry().filter(|it| *it.key() <= passed) {
            after.free.push(first.remove());
        }
        for watch in &mut self.watchers {
            let all = watch.passed.take_if(|epoch| *epoch <= passed);
            let staying = watch.passed_by_staying.take_if(|it| *it <= by_staying);
            if all.or(staying).is_some() {
                after.wake.push(Arc::clone(&watch.wake));
            }
        }
        after
    }
}

impl AccessLedger {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            epoch: AtomicU64::new(0),
            passed: AtomicU64::new(0),
            passed_by_staying: AtomicU64::new(0),
            inner: Mutex::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection begins: its peer may use the domain's keys from now on. It has passed what
    /// began before.
    pub(crate) fn join(self: &Arc<Self>) -> Participant {
        let mut inner = self.lock();
        let epoch = self.epoch.load(Ordering::Relaxed);
        inner.add(epoch, false);
        Participant {
            passed: AtomicU64::new(epoch),
            leaving: AtomicBool::new(false),
            ledger: Arc::clone(self),
        }
    }

    /// Somebody who is woken when an epoch begins.
    pub(crate) fn watch(self: &Arc<Self>, wake: Wake) -> Watcher {
        let mut inner = self.lock();
        inner.next_watcher += 1;
        let id = inner.next_watcher;
        inner.watchers.push(Watch {
            id,
            wake,
            passed: None,
            passed_by_staying: None,
        });
        Watcher {
            id,
            ledger: Arc::clone(self),
        }
    }

    /// Epochs begun so far.
    pub(crate) fn epoch(&self) -> u64 {
        // Acquire: who asks a peer for this epoch does so after the registrations before it were
        // closed.
        self.epoch.load(Ordering::Acquire)
    }

    /// The last epoch that every participant has passed.
    pub(crate) fn passed(&self) -> u64 {
        self.passed.load(Ordering::Acquire)
    }

    /// The last epoch that every participant has passed which is not leaving. Nothing is free by
    /// that: those that leave may still write.
    pub(crate) fn passed_by_staying(&self) -> u64 {
        self.passed_by_staying.load(Ordering::Acquire)
    }

    /// Keeps memory until the epoch is passed.
    pub(crate) fn keep(&self, epoch: u64, memory: Box<dyn Any + Send>) {
        let mut inner = self.lock();
        if self.passed() < epoch {
            inner.limbo.entry(epoch).or_default().push(memory);
        } else {
            drop(inner);
            drop(memory);
        }
    }
}

impl Drop for AccessLedger {
    fn drop(&mut self) {
        let inner = self.inner.get_mut().unwrap_or_else(PoisonError::into_inner);
        // Those of endpoints that would not close never leave: their peers may use the memory for
        // ever.
        if inner.participants.slowest().is_some() {
            std::mem::forget(std::mem::take(&mut inner.limbo));
        }
    }
}

impl fmt::Debug for AccessLedger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AccessLedger")
            .field("epoch", &self.epoch)
            .field("passed", &self.passed)
            .field("passed_by_staying", &self.passed_by_staying)
            .finish_non_exhaustive()
    }
}

/// An endpoint of the provider's, through which a peer may use the domain's keys. Dropped when that
/// is closed; forgotten where it can't be.
#[derive(Debug)]
pub(crate) struct Participant {
    passed: AtomicU64,
    /// Changed under the ledger's lock only.
    leaving: AtomicBool,
    ledger: Arc<AccessLedger>,
}

impl Participant {
    /// The epoch that its peer is to be asked for, if there is one that it has not passed.
    pub(crate) fn lags(&self) -> Option<u64> {
        let epoch = self.ledger.epoch();
        (self.passed.load(Ordering::Relaxed) < epoch).then_some(epoch)
    }

    /// Its peer has answered what was asked after this epoch began: what it had under way before is
    /// over.
    pub(crate) fn pass(&self, epoch: u64) {
        let mut inner = self.ledger.lock();
        let before = self.passed.load(Ordering::Relaxed);
        let epoch = epoch.min(self.ledger.epoch());
        if epoch > before {
            self.passed.store(epoch, Ordering::Relaxed);
            let leaving = self.leaving.load(Ordering::Relaxed);
            inner.remove(before, leaving);
            inner.add(epoch, leaving);
            let after = inner.settle(&self.ledger);
            drop(inner);
            drop(after);
        }
    }

    /// Its peer is asked nothing any more, so that it passes what begins from now on by its end
    /// only. For ever; again is fine.
    pub(crate) fn leave(&self) {
        if self.leaving.load(Ordering::Relaxed) {
            return;
        }
        let mut inner = self.ledger.lock();
        if !self.leaving.swap(true, Ordering::Relaxed) {
            inner.staying.remove(self.passed.load(Ordering::Relaxed));
            let after = inner.settle(&self.ledger);
            drop(inner);
            drop(after);
        }
    }
}

impl Drop for Participant {
    fn drop(&mut self) {
        let mut inner = self.ledger.lock();
        let leaving = self.leaving.load(Ordering::Relaxed);
        inner.remove(self.passed.load(Ordering::Relaxed), leaving);
        let after = inner.settle(&self.ledger);
        drop(inner);
        drop(after);
    }
}

/// An endpoint of ours: it is woken when an epoch begins, since its connections may have to pass
/// it, and when one is passed that it waits for.
#[derive(Debug)]
pub(crate) struct Watcher {
    id: u64,
    ledger: Arc<AccessLedger>,
}

impl Watcher {
    pub(crate) fn ledger(&self) -> &AccessLedger {
        &self.ledger
    }

    /// An epoch begins, behind the close of a registration. All but the caller are woken, who looks
    /// at its connections by itself.
    pub(crate) fn begin(&self) -> u64 {
        let mut inner = self.ledger.lock();
        // Release pairs with the Acquire of `epoch`.
        let epoch = self.ledger.epoch.fetch_add(1, Ordering::Release) + 1;
        let mut after = inner.settle(&self.ledger);
        if self.ledger.passed() < epoch {
            let others = inner.watchers.iter().filter(|watch| watch.id != self.id);
            after
                .wake
                .extend(others.map(|watch| Arc::clone(&watch.wake)));
        }
        drop(inner);
        drop(after);
        epoch
    }

    /// Has the caller woken when this epoch is passed; false: it is. One at a time, the last one
    /// counts.
    pub(crate) fn wait_for(&self, epoch: u64) -> bool {
        let mut inner = self.ledger.lock();
        if self.ledger.passed() >= epoch {
            return false;
        }
        if let Some(watch) = inner.watchers.iter_mut().find(|it| it.id == self.id) {
            watch.passed = Some(epoch);
        }
        true
    }

    /// The same for those participants only that are not leaving.
    pub(crate) fn wait_for_staying(&self, epoch: u64) -> bool {
        let mut inner = self.ledger.lock();
        if self.ledger.passed_by_staying() >= epoch {
            return false;
        }
        if let Some(watch) = inner.watchers.iter_mut().find(|it| it.id == self.id) {
            watch.passed_by_staying = Some(epoch);
        }
        true
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let mut inner = self.ledger.lock();
        let at = inner.watchers.iter().position(|it| it.id == self.id);
        let gone = at.map(|at| inner.watchers.swap_remove(at));
        drop(inner);
        drop(gone);
    }
}

#[cfg(all(test, not(loom)))]
#[path = "tests/ledger.rs"]
mod tests;
