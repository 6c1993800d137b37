//! `ZeroCopyBufferManager`: a data region and its header slots, as one thing to share.

use std::sync::Arc;

use super::header_slots::{HeaderError, HeaderSlot, HeaderSlotConfig, HeaderSlotManager};
use crate::endpoint::EndpointId;
use crate::memory::{MemoryError, Region};

/// The two regions that zero-copy sending needs: the user's data, and header slots. Clones are handles on the same two.
///
/// Endpoints of one domain share it, so that both are registered once.
#[derive(Clone, Debug)]
pub struct ZeroCopyBufferManager {
    data: Arc<Region>,
    headers: HeaderSlotManager,
}

impl ZeroCopyBufferManager {
    /// Bundles a region with header slots, which are allocated.
    ///
    /// # Errors
    /// As [`HeaderSlotManager::new`].
    pub fn new(data: Arc<Region>, headers: HeaderSlotConfig) -> Result<Self, MemoryError> {
        Ok(Self {
            data,
            headers: HeaderSlotManager::new(headers)?,
        })
    }

    /// The region of the data.
    pub fn region(&self) -> &Arc<Region> {
        &self.data
    }

    /// The header slots.
    pub fn headers(&self) -> &HeaderSlotManager {
        &self.headers
    }

    /// Copies a header into a free slot: [`HeaderSlotManager::acquire`].
    ///
    /// # Errors
    /// [`HeaderError`].
    pub fn acquire(
        &self,
        header: &[u8],
        key: u64,
        endpoint: EndpointId,
    ) -> Result<HeaderSlot, HeaderError> {
        self.headers.acquire(header, key, endpoint)
    }

    /// Gives a slot back and says its key: [`HeaderSlotManager::release`].
    pub fn release(&self, slot: HeaderSlot) -> u64 {
        self.headers.release(slot)
    }

    /// How many header slots are free.
    pub fn free_count(&self) -> usize {
        self.headers.free_count()
    }

    /// The least number of free header slots so far: [`HeaderSlotManager::low_water`].
    pub fn low_water(&self) -> usize {
        self.headers.low_water()
    }

    /// The same, and starts anew.
    pub fn take_low_water(&self) -> usize {
        self.headers.take_low_water()
    }

    /// The keys that an endpoint waits for: [`HeaderSlotManager::pending`].
    pub fn pending(&self, endpoint: EndpointId) -> Vec<u64> {
        self.headers.pending(endpoint)
    }
}
