//! `Gate`: what a send waits for before it is posted; `Gated`: the payload of such a send. They
//! know no GPU.
//!
//! ```text
//!  given ─► gates, one after the other: a producer's event ─► a copy to `wire` ─► open ─┐
//!    ▲                                                                                  │
//!    │      over, failed or dropped ◄── posted, from `wire` or as given ◄───────────────┘
//!    └────────┘ settled: nothing that a gate began touches the payload any more
//! ```

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use smallvec::SmallVec;

use super::payload::Payload;
use crate::contain::say;
use crate::stats;

/// What a send waits for. It is polled by the endpoint that has the send, on whatever thread drives
/// that.
pub(crate) trait Gate: Send + Sync + fmt::Debug {
    /// Moves on what it waits for; true when the send may go. It is not asked again after that, nor
    /// after an error.
    ///
    /// # Errors
    /// It will never open: the send fails.
    fn poll(&mut self) -> Result<bool, GateError>;

    /// Nothing is gained by asking before those in front of it are open: what it waits for is under
    /// way, and done in its turn.
    fn has_begun(&self) -> bool {
        false
    }

    /// Returns when nothing that it began touches the payload any more. It may wait for a copy that
    /// is under way, which is short; never for anything that might not come.
    ///
    /// # Errors
    /// That can't be told: the payload is given up.
    fn settle(&mut self) -> Result<(), GateError> {
        Ok(())
    }
}

/// Why a gate does not open, in words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct GateError(pub(crate) String);

/// Gates that are asked one after the other.
#[derive(Debug, Default)]
struct Gates {
    gates: SmallVec<[Box<dyn Gate>; 1]>,
    /// How many of them are open.
    passed: usize,
    /// What one of them said that never will be.
    failed: Option<GateError>,
}

impl Gates {
    fn of(gate: Box<dyn Gate>) -> Self {
        let mut gates = Self::default();
        gates.gates.push(gate);
        gates
    }

    fn poll(&mut self) -> Result<bool, GateError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        while let Some(gate) = self.gates.get_mut(self.passed) {
            match gate.poll() {
                Ok(true) => self.passed += 1,
                Ok(false) => return Ok(false),
                Err(error) => {
                    self.failed = Some(error.clone());
                    return Err(error);
                }
            }
        }
        Ok(true)
    }

    /// Whether what it waits for is under way.
    fn has_begun(&self) -> bool {
        let next = self.gates.get(self.passed);
        next.is_some_and(|gate| gate.has_begun())
    }

    fn settle(&mut self) -> Result<(), GateError> {
        let mut settled = Ok(());
        for mut gate in self.gates.drain(..) {
            if let Err(error) = gate.settle() {
                // It may own what the copy needs.
                std::mem::forget(gate);
                settled = Err(error);
            }
        }
        settled
    }
}

/// How long an answer of gates that several payloads have is good: asking the driver costs about a
/// microsecond, and all of them ask.
const GOOD_FOR: Duration = Duration::from_micros(4);

/// The gates of a payload that others [share](Gated::share).
#[derive(Debug)]
struct Joint {
    gates: Arc<Mutex<(Gates, Option<Instant>)>>,
    /// Whose payload keeps what the gates touch until they are settled; the others have nothing to
    /// wait for.
    owner: bool,
}

impl Joint {
    fn lock(&self) -> MutexGuard<'_, (Gates, Option<Instant>)> {
        self.gates.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn other(&self) -> Self {
        Self {
            gates: Arc::clone(&self.gates),
            owner: false,
        }
    }
}

impl Gate for Joint {
    fn poll(&mut self) -> Result<bool, GateError> {
        let (gates, closed_until) = &mut *self.lock();
        let now = Instant::now();
        if closed_until.is_some_and(|until| now < until) {
            return Ok(false);
        }
        let said = gates.poll();
        *closed_until = (said == Ok(false)).then(|| now + GOOD_FOR);
        said
    }

    fn has_begun(&self) -> bool {
        self.lock().0.has_begun()
    }

    fn settle(&mut self) -> Result<(), GateError> {
        match self.owner {
            true => self.lock().0.settle(),
            false => Ok(()),
        }
    }
}

/// A payload with what has to happen before it is sent.
#[derive(Debug)]
pub(crate) struct Gated {
    /// As the caller gave it, and gets it back.
    given: Payload,
    /// What is sent in its place: host memory, which a gate fills from `given`.
    wire: Option<Payload>,
    gates: Gates,
    /// The only one of `gates`, since others share them.
    joint: Option<Joint>,
}

impl Gated {
    pub(super) fn new(given: Payload, gate: Box<dyn Gate>) -> Self {
        Self {
            given,
            wire: None,
            gates: Gates::of(gate),
            joint: None,
        }
    }

    /// One more, which is asked when those before it are open.
    pub(super) fn push(&mut self, gate: Box<dyn Gate>) {
        self.gates.gates.push(gate);
    }

    /// From now on `wire` is sent, which `gate` fills.
    pub(super) fn set_wire(&mut self, wire: Payload) {
        debug_assert!(self.wire.is_none(), "staged twice");
        self.wire = Some(wire);
    }

    /// Takes back what [`set_wire`](Self::set_wire) and the `push` with it did. No gate was polled.
    pub(super) fn unstage(&mut self) {
        debug_assert_eq!(self.gates.passed, 0, "a copy may have begun");
        if self.wire.take().is_some() {
            self.gates.gates.pop();
        }
    }

    /// Without a gate it is a payload like any other.
    pub(super) fn is_plain(&self) -> bool {
        self.gates.gates.is_empty() && self.wire.is_none()
    }

    /// Another payload of what is sent of this one, when the same gates are open. This one has to
    /// stay until that is over.
    pub(super) fn share(&mut self) -> Payload {
        let joint = self.joint.get_or_insert_with(|| {
            let gates = std::mem::take(&mut self.gates);
            let gates = Arc::new(Mutex::new((gates, None)));
            let own = Joint { gates, owner: true };
            let other = own.other();
            self.gates = Gates::of(Box::new(own));
            other
        });
        let gate = Box::new(joint.other());
        self.wire_mut().share().behind(gate)
    }

    pub(super) fn given(&self) -> &Payload {
        &self.given
    }

    pub(super) fn given_mut(&mut self) -> &mut Payload {
        &mut self.given
    }

    /// What is sent.
    pub(super) fn wire(&self) -> &Payload {
        self.wire.as_ref().unwrap_or(&self.given)
    }

    pub(super) fn wire_mut(&mut self) -> &mut Payload {
        self.wire.as_mut().unwrap_or(&mut self.given)
    }

    /// Whether it may be sent now.
    pub(super) fn poll(&mut self) -> Result<bool, GateError> {
        self.gates.poll()
    }

    /// As [`poll`](Self::poll), of one that others are in front of: what is under way is not asked
    /// about.
    pub(super) fn advance(&mut self) -> Result<bool, GateError> {
        match self.gates.has_begun() {
            true => Ok(false),
            false => self.poll(),
        }
    }

    /// What the caller gave; nothing of ours touches it any more. Empty if that can't be told: then
    /// it is leaked.
    pub(super) fn into_given(mut self) -> Payload {
        self.settle();
        // It may have handles on what was given.
        self.wire = None;
        std::mem::take(&mut self.given).unshared()
    }

    fn settle(&mut self) {
        if let Err(error) = self.gates.settle() {
            // Before anything is said of it.
            std::mem::forget(std::mem::take(&mut self.given));
            std::mem::forget(self.wire.take());
            stats::count_leaked(1);
            say(|| tracing::error!(%error, "a payload is leaked: a copy may be under way"));
        }
    }
}

impl Drop for Gated {
    fn drop(&mut self) {
        // Only while an endpoint has it can a copy be under way: that is over in a moment, and
        // until then the memory may not go back to its owners. So this may wait, as a lane to the
        // GPU does.
        self.settle();
    }
}

#[cfg(all(test, not(loom)))]
#[path = "tests/gate.rs"]
mod tests;
