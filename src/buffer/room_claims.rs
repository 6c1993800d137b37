//! `RoomClaims`: who may use the header room in front of which slot. Knows indices, no memory.
//!
//! A frozen buffer has many handles, and each may be on its way to another peer with another
//! header; the room in front of the bytes is there once. So a send claims it until it is over.
//! Sends with equal headers share a claim; one with another header has to wait.
//!
//! ```text
//!  FREE ── begin ──► WRITING ── the header is there ──► held by 1 ── begin, equal header ──┐
//!    ▲                                                                                     │
//!    └───────────────────────────── end, end ◄── held by 2 ◄───────────────────────────────┘
//! ```

use crate::sync::{AtomicU64, Ordering};

const FREE: u64 = 0;
/// Somebody is filling the room. No state of a held room: so many never hold one.
const WRITING: u64 = u64::MAX;
/// One more holder; the holders are counted in the high half, the length of the header lies in the
/// low one.
const HOLDER: u64 = 1 << 32;

/// Another header is in the room, or on its way into it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RoomTaken;

/// One claim for each slot.
pub(super) struct RoomClaims(Box<[AtomicU64]>);

impl RoomClaims {
    pub(super) fn new(slots: u32) -> Self {
        Self((0..slots).map(|_| AtomicU64::new(FREE)).collect())
    }

    /// Claims the room of a slot for a header of `len` bytes.
    ///
    /// `write` puts the header there, and is called while nobody else reads or writes the room;
    /// `is_equal` says whether the header that is there is the caller's, and is called while nobody
    /// writes.
    pub(super) fn begin(
        &self,
        index: u32,
        len: u32,
        write: impl FnOnce(),
        is_equal: impl FnOnce() -> bool,
    ) -> Result<(), RoomTaken> {
        let state = &self.0[index as usize];
        // Acquire pairs with the Release of `end`: the last holder's reads are over before we
        // write.
        match state.compare_exchange(FREE, WRITING, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => {
                write();
                // Release pairs with the Acquire of `join`: who joins sees the header.
                state.store(HOLDER | u64::from(len), Ordering::Release);
                Ok(())
            }
            Err(seen) => self.join(index, len, seen, is_equal),
        }
    }

    /// Holds the room together with others, if the same header is there.
    fn join(
        &self,
        index: u32,
        len: u32,
        mut seen: u64,
        is_equal: impl FnOnce() -> bool,
    ) -> Result<(), RoomTaken> {
        let state = &self.0[index as usize];
        loop {
            // Free again by now: the caller tries again later, as it does for any other reason.
            if seen == FREE || seen == WRITING || seen as u32 != len {
                return Err(RoomTaken);
            }
            match state.compare_exchange_weak(
                seen,
                seen + HOLDER,
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => break,
                Err(now) => seen = now,
            }
        }
        // Held by us from here on: the header stays as it is while we look at it.
        if is_equal() {
            return Ok(());
        }
        self.end(index);
        Err(RoomTaken)
    }

    /// Ends a claim that `begin` gave.
    pub(super) fn end(&self, index: u32) {
        let state = &self.0[index as usize];
        let mut seen = state.load(Ordering::Relaxed);
        loop {
            debug_assert!(seen != FREE && seen != WRITING, "an end without a begin");
            let left = seen.saturating_sub(HOLDER);
            let next = if left < HOLDER { FREE } else { left };
            // Release: our use of the room comes before the next header.
            match state.compare_exchange_weak(seen, next, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
    }

    /// Whether nobody has a claim on the room, as of a moment ago.
    #[cfg(all(test, not(loom)))]
    pub(super) fn is_free(&self, index: u32) -> bool {
        self.0[index as usize].load(Ordering::Relaxed) == FREE
    }
}

#[cfg(test)]
#[path = "tests/room_claims.rs"]
mod tests;
