//! `DataOp` and `LongOp`: what is held of a message until it is over.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::num::NonZeroUsize;
use std::time::Instant;

use crate::buffer::{GateError, LeasedPayload, Leases, Payload, TakenSlot};
use crate::cuda::Device;
use crate::endpoint::hub::control::HeldDescriptor;
use crate::endpoint::hub::frames::PackedMessages;
use crate::id::ConnectionId;

/// A data message in flight, with everything that must stay alive until it is over.
///
/// Ended by [`Outgoing::end`](super::outgoing::Outgoing::end); dropped otherwise, its header slot
/// stays taken.
pub(crate) struct DataOp {
    pub(crate) connection: ConnectionId,
    pub(crate) key: u64,
    pub(super) payload: LeasedPayload,
    /// Given back to the endpoint's manager by whoever takes the operation out of the slab.
    pub(super) slot: Option<TakenSlot>,
    /// Its number on the connection: failed sends are reported in the order in which they were
    /// posted.
    pub(crate) sequence: u64,
    /// When it was posted; kept only where there is a deadline, and until it was found late.
    pub(crate) posted: Option<Instant>,
    /// Its outcome was told, as its connection is over, though the provider may still have it.
    pub(crate) told: bool,
    /// Its registration is kept open by the hub's
    /// [`RecentLease`](super::recent_lease::RecentLease).
    pub(super) recent: bool,
    /// Shape `TwoMessages`: the header that travels in front of it, by its context, until that is
    /// over.
    pub(crate) header: Option<NonZeroUsize>,
    /// It is a frame, with these messages, whose keys have the outcomes; none are left when those
    /// were told.
    pub(super) packed: Option<Box<PackedMessages>>,
}

impl DataOp {
    /// The keys that have an outcome with it.
    pub(crate) fn keys(&self) -> impl Iterator<Item = u64> {
        let packed = self.packed.as_ref();
        let own = packed.is_none().then_some(self.key);
        let packed = packed.into_iter().flat_map(|packed| packed.iter());
        own.into_iter().chain(packed.map(|message| message.key))
    }

    /// Whether it may be posted now, as far as it is concerned. `behind`: others are in front of
    /// it, and what is under way is not asked about.
    ///
    /// # Errors
    /// The message can never be sent.
    pub(crate) fn poll_gate(&mut self, behind: bool) -> Result<bool, GateError> {
        match behind {
            true => self.payload.advance_gate(),
            false => self.payload.poll_gate(),
        }
    }
}

impl DataOp {
    /// What is held of a message without a byte.
    pub(crate) fn empty(key: u64, scope: crate::memory::Scope) -> Self {
        // SAFETY: there is no lease.
        let payload = unsafe { LeasedPayload::new(Payload::empty(), Leases::elsewhere(scope)) };
        Self {
            connection: ConnectionId(0),
            key,
            payload,
            slot: None,
            sequence: 0,
            posted: None,
            told: false,
            recent: false,
            header: None,
            packed: None,
        }
    }
}

/// The same for a message that goes piece by piece, with where its bytes lie, in their order.
///
/// Ended by [`Outgoing::end_long`](super::outgoing::Outgoing::end_long).
pub(crate) struct LongOp {
    pub(super) payload: LeasedPayload,
    pub(super) slot: Option<TakenSlot>,
    /// Valid as long as the two above.
    pub(crate) runs: Vec<Run>,
    /// A part of it goes through the staging ring: the registration of that, and then of its other
    /// parts.
    pub(crate) staged: Vec<HeldDescriptor>,
}

impl LongOp {
    /// Whether its pieces may be written now.
    ///
    /// # Errors
    /// The pieces can never be sent.
    pub(crate) fn poll_gate(&mut self) -> Result<bool, GateError> {
        self.payload.poll_gate()
    }
}

/// A part of a message.
#[derive(Clone, Copy)]
pub(crate) struct Run {
    pub(crate) base: *const u8,
    pub(crate) len: usize,
    pub(crate) desc: *mut c_void,
    /// The device whose memory has the run, which is copied before it is sent.
    pub(crate) device: Option<Device>,
}

// SAFETY: the address is one of a payload or a header slot, which may be sent; the descriptor is an
// opaque value of a provider that was opened with FI_THREAD_SAFE.
unsafe impl Send for Run {}
