//! `Manifest`: what the buffers carry that are in flight.

use crate::endpoint::buffered::event::Carried;

/// What each send in flight carries, by the key that the sender knows it by.
pub(super) struct Manifest {
    entries: Vec<Option<Carried>>,
    free: Vec<u32>,
}

impl Manifest {
    pub(super) fn new(depth: u32) -> Self {
        Self {
            entries: (0..depth).map(|_| None).collect(),
            free: (0..depth).rev().collect(),
        }
    }

    pub(super) fn put(&mut self, carried: Carried) -> Option<u64> {
        let index = self.free.pop()?;
        self.entries[index as usize] = Some(carried);
        Some(index.into())
    }

    /// The sender gives every key back once.
    pub(super) fn take(&mut self, key: u64) -> Option<Carried> {
        let carried = self.entries.get_mut(usize::try_from(key).ok()?)?.take()?;
        self.free.push(key as u32);
        Some(carried)
    }

    pub(super) fn get(&self, key: u64) -> Option<Carried> {
        self.entries.get(usize::try_from(key).ok()?).copied()?
    }

    /// What is in flight, oldest first.
    pub(super) fn in_flight(&self) -> Vec<Carried> {
        let mut in_flight: Vec<_> = self.entries.iter().flatten().copied().collect();
        in_flight.sort_unstable();
        in_flight
    }
}
