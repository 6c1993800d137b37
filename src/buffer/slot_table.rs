//! `SlotTable`: which slots are free, how many handles each taken one has, and who waits for one.
//! Knows indices, no memory.

use std::time::{Duration, Instant};

use super::free_list::FreeList;
use super::wake_list::WakeList;
use crate::sync::{AtomicU32, Ordering, fence};

/// Above this many handles on one slot the process ends, as it would for an `Arc`: only leaking
/// them in a loop gets there.
const HANDLES_MAX: u32 = u32::MAX / 2;

/// Counted slots.
pub(super) struct SlotTable {
    free: FreeList,
    handles: Box<[AtomicU32]>,
    wakes: WakeList,
}

impl SlotTable {
    pub(super) fn new(slots: u32) -> Self {
        Self {
            free: FreeList::full(slots),
            handles: (0..slots).map(|_| AtomicU32::new(0)).collect(),
            wakes: WakeList::new(),
        }
    }

    pub(super) fn free(&self) -> &FreeList {
        &self.free
    }

    pub(super) fn wakes(&self) -> &WakeList {
        &self.wakes
    }

    /// Takes a slot, with one handle.
    #[inline]
    pub(super) fn try_acquire(&self) -> Option<u32> {
        let index = self.free.pop()?;
        // Relaxed: the slot is ours alone until we share it.
        self.handles[index as usize].store(1, Ordering::Relaxed);
        Some(index)
    }

    /// Takes a slot, or says how long it waited for one.
    pub(super) fn acquire(&self, deadline: Instant) -> Result<u32, Duration> {
        match self.try_acquire() {
            Some(index) => Ok(index),
            None => self.wakes.wait_until(deadline, || self.try_acquire()),
        }
    }

    /// One handle more, by someone who has one.
    pub(super) fn share(&self, index: u32) {
        // Relaxed: a new handle is made from one that keeps the slot, and passed on by means that
        // order themselves.
        if self.handles[index as usize].fetch_add(1, Ordering::Relaxed) > HANDLES_MAX {
            std::process::abort();
        }
    }

    /// Whether the caller's handle is the only one.
    #[inline]
    pub(super) fn is_unique(&self, index: u32) -> bool {
        // Acquire pairs with the Release of `release`: the accesses of the handles that are gone
        // are over.
        self.handles[index as usize].load(Ordering::Acquire) == 1
    }

    /// One handle less; the last one frees the slot and wakes who waits.
    #[inline]
    pub(super) fn release(&self, index: u32) {
        // The only handle can't be shared by anybody else, so it needs no atomic write.
        if !self.is_unique(index) {
            // Release: our accesses come before those of whoever frees the slot.
            if self.handles[index as usize].fetch_sub(1, Ordering::Release) != 1 {
                return;
            }
            // Pairs with the Release of the others: their accesses come before the slot is free.
            fence(Ordering::Acquire);
        }
        self.free.push(index);
        self.wakes.notify();
    }
}

#[cfg(test)]
#[path = "tests/slot_table.rs"]
mod tests;
