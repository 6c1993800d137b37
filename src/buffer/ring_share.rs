//! `RingShare`: a piece's handle on what it shares with its ring.
//!
//! As an `Arc`, but the producer counts handles ahead, many at once: a piece costs one atomic
//! addition instead of two, and the processors of producer and network rarely pass the counter
//! between them.

#![allow(unsafe_code)]

use std::ops::Deref;
use std::ptr::NonNull;

use crate::memory::Claim;
use crate::sync::{AtomicBool, AtomicU64, Ordering, fence};

/// Handles that are counted at once.
const AHEAD: u64 = 256;

/// What the pieces share with their ring.
pub(super) struct RingCore {
    /// One mark for each piece that can be out, set by its drop.
    pub(super) released: Box<[AtomicBool]>,
    pub(super) host: bool,
    pub(super) claim: Claim,
}

struct Counted {
    handles: Handles,
    core: RingCore,
}

/// Far from what is only read.
#[repr(align(64))]
struct Handles(AtomicU64);

/// One handle, which is counted.
pub(super) struct RingShare(NonNull<Counted>);

// SAFETY: as of `Arc`: whichever thread drops the last handle drops the core, and all of them may
// look at it; `is_shareable` says at compile time that both may be.
unsafe impl Send for RingShare {}
// SAFETY: as above.
unsafe impl Sync for RingShare {}

const _: () = is_shareable::<RingCore>();

const fn is_shareable<T: Send + Sync>() {}

impl RingShare {
    #[inline]
    fn counted(&self) -> &Counted {
        // SAFETY: allocated by `RingShares::new`, and freed when no handle is left
        // (`RingShare::drop`); this is one.
        unsafe { self.0.as_ref() }
    }

    #[cold]
    fn free(&self) {
        // SAFETY: made by `Box::leak` in `RingShares::new`; the last handle calls this, once, when
        // everything that others did with theirs is over (the fence in `give_back`).
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }

    /// So many handles are gone.
    #[inline]
    fn give_back(&self, count: u64) {
        if self.counted().handles.0.fetch_sub(count, Ordering::Release) == count {
            // Pairs with the Release of all others.
            fence(Ordering::Acquire);
            self.free();
        }
    }
}

impl Deref for RingShare {
    type Target = RingCore;

    #[inline]
    fn deref(&self) -> &RingCore {
        &self.counted().core
    }
}

impl Drop for RingShare {
    #[inline]
    fn drop(&mut self) {
        self.give_back(1);
    }
}

/// The producer's handle, and those that it has counted ahead.
pub(super) struct RingShares {
    own: RingShare,
    ahead: u64,
}

impl RingShares {
    pub(super) fn new(core: RingCore) -> Self {
        let handles = Handles(AtomicU64::new(1));
        let counted = Box::leak(Box::new(Counted { handles, core }));
        Self {
            own: RingShare(NonNull::from(counted)),
            ahead: 0,
        }
    }

    /// A handle for a piece.
    #[inline]
    pub(super) fn share(&mut self) -> RingShare {
        if self.ahead == 0 {
            self.count_ahead();
        }
        self.ahead -= 1;
        RingShare(self.own.0)
    }

    #[cold]
    fn count_ahead(&mut self) {
        // Relaxed: our own handle keeps the core alive.
        self.own
            .counted()
            .handles
            .0
            .fetch_add(AHEAD, Ordering::Relaxed);
        self.ahead = AHEAD;
    }

    /// Whether a handle is one of this ring's.
    pub(super) fn has(&self, share: &RingShare) -> bool {
        self.own.0 == share.0
    }
}

impl Deref for RingShares {
    type Target = RingCore;

    #[inline]
    fn deref(&self) -> &RingCore {
        &self.own
    }
}

impl Drop for RingShares {
    fn drop(&mut self) {
        // Our own is still counted: these are never the last.
        if self.ahead > 0 {
            self.own.give_back(self.ahead);
        }
    }
}
