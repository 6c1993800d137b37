//! What becomes of a one-sided operation that can't be posted as it was given: which way its bytes
//! take. The hub puts it into the line of its connection.

#![allow(unsafe_code)]

use crate::buffer::{LeasedPayload, Leases, Payload};
use crate::endpoint::error::SendErrorKind;
use crate::endpoint::event::Level;
use crate::endpoint::hub::control::HeldDescriptor;
use crate::endpoint::staging::{StagingRing, staged_segment};
use crate::endpoint::windows::destination::Destination;
use crate::endpoint::windows::one_sided::{Local, PostMode};
use crate::endpoint::windows::staged_transfer::{LocalMemory, Slots, StagedTransfer};
use crate::endpoint::windows::window::WindowPlace;
use crate::memory::Scope;

/// The way of a write.
pub(crate) enum Later {
    /// It is posted at once, as soon as its gate is open; what is staged of it is in slots then.
    Whole(Payload),
    /// It goes piece by piece.
    Pieces(Payload, Slots),
}

impl Later {
    /// That of a payload, in the scope of its connection, to a provider that takes so many bytes at
    /// once.
    ///
    /// # Errors
    /// It has to be staged, and there is no ring; or there is no slot now; or the ring is too
    /// small.
    pub(crate) fn of(
        ring: Option<&StagingRing>,
        payload: Payload,
        scope: Scope,
        max_bytes: u64,
    ) -> Result<Self, (SendErrorKind, Payload)> {
        let Some(segment) = staged_segment(&payload, scope) else {
            return Ok(Self::Whole(payload));
        };
        let Some(ring) = ring else {
            return Err((SendErrorKind::NotStaged { segment }, payload));
        };
        match ring.outward(&payload, max_bytes) {
            None => ring.stage(payload, scope).map(Self::Whole),
            Some(Ok(slots)) => Ok(Self::Pieces(payload, slots)),
            Some(Err(kind)) => Err((kind, payload)),
        }
    }
}

/// What a read into memory goes through that has to be staged.
///
/// # Errors
/// There is no ring, or no slot now.
pub(crate) fn staged_read(
    ring: Option<&StagingRing>,
    into: &Destination,
    max_bytes: u64,
) -> Result<Slots, SendErrorKind> {
    let ring = ring.ok_or(SendErrorKind::NotStaged { segment: 0 })?;
    ring.inward(into, max_bytes)
}

/// Where a write goes, what it tells the peer, and when it is done.
pub(crate) type Target<'a> = (WindowPlace<'a>, Option<u32>, Level);

/// The local side of a write that goes piece by piece.
pub(crate) fn pieces_of_write(
    payload: Payload,
    slots: Slots,
    desc: HeldDescriptor,
    how: &PostMode,
) -> Local {
    let mut leases = Leases::elsewhere(desc.scope());
    if payload.is_gated() {
        leases = leases.of_gated();
    }
    // SAFETY: there is no lease.
    let payload = unsafe { LeasedPayload::new(payload, leases) };
    let (given, last_alone) = (LocalMemory::Write(payload), how.immediate.is_some());
    Local::Staged(Box::new(StagedTransfer::new(
        given,
        how.remote.len,
        slots,
        desc,
        last_alone,
    )))
}

/// The same of a read.
pub(crate) fn pieces_of_read(into: Destination, slots: Slots, desc: HeldDescriptor) -> Local {
    let (len, given) = (into.len(), LocalMemory::Read(into));
    Local::Staged(Box::new(StagedTransfer::new(
        given, len, slots, desc, false,
    )))
}
