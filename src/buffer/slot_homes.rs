//! `SlotHomes`: where the slots of a pool go when they are free, where several have shares of it.
//! Knows indices, no memory.
//!
//! ```text
//!  Common ──► taken by anybody ──► Common
//!     └─────► taken for a share, as far as it has room ──► Lent ──► Common, and room again
//!  Own    ──► taken for its share ──► Own, until the share ends: then Common
//! ```
//!
//! What a share was promised lies in a list of its own, so nobody else can take it, in whatever
//! order threads come.

use std::sync::Arc;

use super::free_list::FreeList;
use super::slot_table::SlotTable;
use super::wake_list::WakeList;
use crate::sync::{AtomicU32, Mutex, Ordering, lock, total_order_under_loom};

/// Where a slot goes.
enum SlotHome {
    /// To whoever comes first.
    Common,
    /// To its share, whose slot of this number it is.
    Own(Arc<ShareAccount>, u32),
    /// To whoever comes first; the share that has it has room for another one then.
    Lent(Arc<ShareAccount>),
}

/// What one share of a pool has.
pub(crate) struct ShareAccount {
    /// The slots that are its own.
    own: Box<[u32]>,
    /// Those of them that are free, by their place in `own`.
    free: FreeList,
    /// Others that it has.
    lent: AtomicU32,
    lent_max: u32,
    /// Who waits for its own slots, and for room.
    wakes: WakeList,
}

impl ShareAccount {
    /// The most slots that it may have.
    pub(super) fn most(&self) -> usize {
        self.own.len() + self.lent_max as usize
    }

    /// Free slots that nobody else may take.
    pub(super) fn reserved(&self) -> usize {
        self.free.len() as usize
    }

    /// How many slots it may take that are not its own.
    pub(super) fn room(&self) -> usize {
        let lent = self.lent.load(Ordering::SeqCst);
        self.lent_max.saturating_sub(lent) as usize
    }

    pub(super) fn wakes(&self) -> &WakeList {
        &self.wakes
    }

    /// Takes room for a slot that is not its own.
    fn take_room(&self) -> bool {
        let more = |lent| (lent < self.lent_max).then_some(lent + 1);
        let taken = self
            .lent
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, more);
        taken.is_ok()
    }

    /// Has room for one more; true: it had none.
    fn give_room(&self) -> bool {
        let before = self.lent.fetch_sub(1, Ordering::SeqCst);
        total_order_under_loom();
        before == self.lent_max
    }
}

/// The home of each slot. A lock of these is taken by whoever has the slot, so nobody waits for
/// it, but for who ends a share.
pub(super) struct SlotHomes(Box<[Mutex<SlotHome>]>);

impl SlotHomes {
    fn new(slots: u32) -> Self {
        let common = |_| Mutex::new(SlotHome::Common);
        Self((0..slots).map(common).collect())
    }

    fn set(&self, index: u32, home: SlotHome) {
        *lock(&self.0[index as usize]) = home;
    }
}

impl SlotTable {
    /// A share that has `least` slots to itself, and `more` of the others at most. `None`: so many
    /// are not free.
    pub(super) fn add_share(&self, least: u32, more: u32) -> Option<Arc<ShareAccount>> {
        let homes = self
            .homes
            .get_or_init(|| SlotHomes::new(self.free.capacity()));
        // More than there are is refused before memory is asked for.
        let own: Box<[u32]> = match least <= self.free.capacity() {
            true => (0..least).map_while(|_| self.free.pop()).collect(),
            false => return None,
        };
        if own.len() < least as usize {
            own.iter().for_each(|index| self.free_common(*index));
            return None;
        }
        let share = Arc::new(ShareAccount {
            free: FreeList::full(least),
            own,
            lent: AtomicU32::new(0),
            lent_max: more,
            wakes: WakeList::new(),
        });
        for (place, index) in (0..).zip(&share.own) {
            homes.set(*index, SlotHome::Own(Arc::clone(&share), place));
        }
        Some(share)
    }

    /// Takes a slot for a share, one of its own first, with one handle.
    pub(super) fn try_acquire_of(&self, share: &Arc<ShareAccount>) -> Option<u32> {
        let Some(place) = share.free.pop() else {
            return self.try_borrow(share);
        };
        let index = share.own[place as usize];
        self.begin_handle(index);
        Some(index)
    }

    /// The same of one that is not its own.
    pub(super) fn try_borrow(&self, share: &Arc<ShareAccount>) -> Option<u32> {
        let homes = self.homes.get()?;
        if !share.take_room() {
            return None;
        }
        let Some(index) = self.free.pop() else {
            share.give_room();
            return None;
        };
        homes.set(index, SlotHome::Lent(Arc::clone(share)));
        self.begin_handle(index);
        Some(index)
    }

    /// A slot is free: it goes where it belongs, and who waits for it is woken.
    pub(super) fn send_home(&self, homes: &SlotHomes, index: u32) {
        let mut home = lock(&homes.0[index as usize]);
        if let SlotHome::Own(share, place) = &*home {
            // Under the lock: who ends the share looks for it behind this.
            share.free.push(*place);
            return share.wakes.notify();
        }
        let former = std::mem::replace(&mut *home, SlotHome::Common);
        drop(home);
        self.free.push(index);
        // While it had none, it did not wait for what is everybody's.
        if let SlotHome::Lent(share) = former
            && share.give_room()
        {
            share.wakes.notify();
        }
        self.wakes.notify();
    }

    /// What was a share's own is everybody's: at once, or when it is free.
    pub(super) fn end_share(&self, share: &ShareAccount) {
        let Some(homes) = self.homes.get() else {
            return;
        };
        for index in &share.own {
            homes.set(*index, SlotHome::Common);
        }
        // From here on, none comes back to it.
        while let Some(place) = share.free.pop() {
            self.free_common(share.own[place as usize]);
        }
    }

    fn free_common(&self, index: u32) {
        self.free.push(index);
        self.wakes.notify();
    }
}

#[cfg(all(test, loom))]
#[path = "tests/slot_homes.rs"]
mod tests;
