//! `StagingClient`: the ring that a GPU's memory goes out by way of, and the endpoint's waker
//! there.

use super::data_op::Run;
use super::pool_waker::PoolWaker;
use crate::buffer::{Payload, WakeFn};
use crate::endpoint::error::SendErrorKind;
use crate::endpoint::staging::{self, StagingRing};
use crate::memory::Scope;

/// An endpoint at a staging ring, if it has one.
#[derive(Debug, Default)]
pub(crate) struct StagingClient(Option<PoolWaker<StagingRing>>);

impl StagingClient {
    /// From now on a GPU's memory goes out by way of this ring.
    pub(crate) fn join(&mut self, ring: &StagingRing, wake: WakeFn) {
        self.0 = Some(PoolWaker::new(ring, wake));
    }

    /// Whether a payload goes out only as a copy.
    ///
    /// # Errors
    /// The payload must be staged, and there is no ring to do it.
    pub(crate) fn must_stage(
        &self,
        payload: &Payload,
        scope: Scope,
    ) -> Result<bool, SendErrorKind> {
        match staging::staged_segment(payload, scope) {
            None => Ok(false),
            Some(_) if self.0.is_some() => Ok(true),
            Some(segment) => Err(SendErrorKind::NotStaged { segment }),
        }
    }

    /// The payload, with slots of the ring to be sent in its place, where it has to be.
    pub(crate) fn stage(
        &self,
        payload: Payload,
        scope: Scope,
    ) -> Result<Payload, (SendErrorKind, Payload)> {
        match (self.must_stage(&payload, scope), &self.0) {
            (Ok(true), Some(waker)) => waker.pool().stage(payload, scope),
            (Err(kind), _) => Err((kind, payload)),
            _ => Ok(payload),
        }
    }

    /// The ring, where there is one.
    pub(crate) fn ring(&self) -> Option<&StagingRing> {
        self.0.as_ref().map(PoolWaker::pool)
    }

    /// Asks the ring to wake the endpoint when a slot is free; true if one is already.
    pub(crate) fn arm(&self) -> bool {
        self.0.as_ref().is_some_and(PoolWaker::arm)
    }

    /// Whether a slot of the ring is free.
    pub(crate) fn has_room(&self) -> bool {
        self.ring().is_some_and(|ring| ring.free_slots() > 0)
    }

    /// A slot for a part of a long message, and the gate that fills it.
    pub(crate) fn piece(&self, run: &Run, at: usize, room: usize) -> Option<(Payload, usize)> {
        let ring = self.ring()?;
        let len = (run.len - at).min(room).min(ring.slot_bytes());
        let piece = ring.piece(run.device?, run.base as u64 + at as u64, len)?;
        Some((piece, len))
    }
}
