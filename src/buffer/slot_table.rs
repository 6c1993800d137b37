//! `SlotTable`: which slots are free, how many handles each taken one has, and who waits for one.
//! Knows indices, no memory.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use super::free_list::FreeList;
use super::slot_homes::SlotHomes;
use super::wake_list::{WakeFn, WakeList, WakerId};
use crate::sync::{AtomicBool, AtomicU32, Ordering, fence};

/// Above this many handles on one slot the process ends, as it would for an `Arc`: only leaking
/// them in a loop gets there.
const HANDLES_MAX: u32 = u32::MAX / 2;

/// A pool of counted slots, whatever they are.
pub(crate) trait SlotPool: Clone {
    /// Which of them are free, and who waits for one.
    fn table(&self) -> &SlotTable;
}

/// Counted slots.
pub(crate) struct SlotTable {
    /// Those that whoever comes first may take.
    pub(super) free: FreeList,
    /// Once somebody has a share.
    pub(super) homes: OnceLock<SlotHomes>,
    handles: Box<[AtomicU32]>,
    /// Slots whose handles are parts of one whole, each somebody else's; and how many there are.
    /// Said for statistics only.
    parted: Box<[AtomicBool]>,
    parted_count: AtomicU32,
    pub(super) wakes: WakeList,
    /// How often somebody wanted a slot and there was none.
    empty: std::sync::atomic::AtomicU64,
}

impl SlotTable {
    pub(super) fn new(slots: u32) -> Self {
        Self {
            free: FreeList::full(slots),
            homes: OnceLock::new(),
            handles: (0..slots).map(|_| AtomicU32::new(0)).collect(),
            parted: (0..slots).map(|_| AtomicBool::new(false)).collect(),
            parted_count: AtomicU32::new(0),
            wakes: WakeList::new(),
            empty: std::sync::atomic::AtomicU64::new(0),
        }
    }

    pub(super) fn free(&self) -> &FreeList {
        &self.free
    }

    #[cfg(all(test, loom))]
    pub(super) fn wakes(&self) -> &WakeList {
        &self.wakes
    }

    #[cfg(all(test, not(loom)))]
    pub(super) fn wakers(&self) -> usize {
        self.wakes.len()
    }

    /// Adds what is called when a slot becomes free, once each time that it is armed.
    pub(crate) fn add_waker(&self, wake: WakeFn) -> WakerId {
        self.wakes.add(wake)
    }

    /// Removes it; false when it is not there.
    pub(crate) fn remove_waker(&self, id: WakerId) -> bool {
        self.wakes.remove(id)
    }

    /// Arms it for one call; true if a slot is free already.
    pub(crate) fn arm(&self, id: WakerId) -> bool {
        self.wakes.arm(id);
        self.free.len() > 0
    }

    /// Takes a slot, with one handle.
    #[inline]
    pub(super) fn try_acquire(&self) -> Option<u32> {
        let Some(index) = self.free.pop() else {
            self.count_empty();
            return None;
        };
        self.begin_handle(index);
        Some(index)
    }

    #[cold]
    fn count_empty(&self) {
        // Relaxed: a counter only.
        self.empty.fetch_add(1, Ordering::Relaxed);
    }

    /// How often somebody wanted a slot and there was none.
    pub(super) fn empty(&self) -> u64 {
        self.empty.load(Ordering::Relaxed)
    }

    /// The first handle on a slot that was just taken.
    #[inline]
    pub(super) fn begin_handle(&self, index: u32) {
        // Relaxed: the slot is ours alone until we share it.
        self.handles[index as usize].store(1, Ordering::Relaxed);
    }

    /// Takes a slot, or says how long it waited for one.
    pub(super) fn acquire(&self, deadline: Instant) -> Result<u32, Duration> {
        match self.try_acquire() {
            Some(index) => Ok(index),
            None => self.wakes.wait_until(deadline, || self.try_acquire()),
        }
    }

    /// So many handles more, by someone who has one.
    #[inline]
    pub(super) fn share(&self, index: u32, count: u32) {
        // Relaxed: a new handle is made from one that keeps the slot, and passed on by means that
        // order themselves.
        if self.handles[index as usize].fetch_add(count, Ordering::Relaxed) > HANDLES_MAX {
            std::process::abort();
        }
    }

    /// So many handles less, of those that someone made who has another, and did not use.
    #[inline]
    pub(super) fn unshare(&self, index: u32, count: u32) {
        // Relaxed: nothing was accessed by these, and the one that stays is released yet.
        let before = self.handles[index as usize].fetch_sub(count, Ordering::Relaxed);
        debug_assert!(before > count, "the caller keeps a handle");
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
        if end_handle(self.handles_on(index)) {
            self.free_slot(index);
        }
    }

    /// The count of the handles on a slot, for [`end_handle`].
    #[inline]
    pub(super) fn handles_on(&self, index: u32) -> &AtomicU32 {
        &self.handles[index as usize]
    }

    /// The handles on a slot, which the caller has one of, are parts of one whole from now on.
    #[inline]
    pub(super) fn set_parted(&self, index: u32) {
        let parted = &self.parted[index as usize];
        // Relaxed, here and below: nothing is ordered by a statistic. The last handle clears the
        // flag, behind all that set it, as `end_handle` orders them.
        if !parted.load(Ordering::Relaxed) && !parted.swap(true, Ordering::Relaxed) {
            self.parted_count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether its handles are.
    pub(super) fn is_parted(&self, index: u32) -> bool {
        self.parted[index as usize].load(Ordering::Relaxed)
    }

    /// Slots whose handles are parts of one whole, and how many handles these are.
    pub(super) fn parted(&self) -> (u32, u64) {
        let count = self.parted_count.load(Ordering::Relaxed);
        if count == 0 {
            return (0, 0);
        }
        let all = self.parted.iter().zip(&self.handles);
        let parted = all.filter(|(parted, _)| parted.load(Ordering::Relaxed));
        let handles = parted.map(|(_, handles)| u64::from(handles.load(Ordering::Relaxed)));
        (count, handles.sum())
    }

    /// Frees a slot whose last handle [ended](end_handle), and wakes who waits.
    #[inline]
    pub(super) fn free_slot(&self, index: u32) {
        let parted = &self.parted[index as usize];
        if parted.load(Ordering::Relaxed) {
            parted.store(false, Ordering::Relaxed);
            self.parted_count.fetch_sub(1, Ordering::Relaxed);
        }
        match self.homes.get() {
            None => {
                self.free.push(index);
                self.wakes.notify();
            }
            Some(homes) => self.send_home(homes, index),
        }
    }
}

/// One handle less on the slot of this count; true: it was the last one, and owes
/// [`SlotTable::free_slot`]. Takes no more than the count: where the handles keep the table alive,
/// it may be gone as soon as the count is written.
#[inline]
pub(super) fn end_handle(handles: &AtomicU32) -> bool {
    // The only handle can't be shared by anybody else, so it needs no atomic write. Acquire: as in
    // `is_unique`.
    if handles.load(Ordering::Acquire) != 1 {
        // Release: our accesses come before those of whoever frees the slot.
        if handles.fetch_sub(1, Ordering::Release) != 1 {
            return false;
        }
        // Pairs with the Release of the others: their accesses come before the slot is free.
        fence(Ordering::Acquire);
    }
    true
}

#[cfg(test)]
#[path = "tests/slot_table.rs"]
mod tests;
