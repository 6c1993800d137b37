//! `HeaderSlotManager`: small slots in one registered block, for the headers that go out in front
//! of payloads.

#![allow(unsafe_code)]

use std::fmt;
use std::sync::Arc;

use super::slot_table::{SlotPool, SlotTable};
use super::wake_list::{WakeFn, WakerId};
use crate::id::EndpointId;
use crate::memory::{Claim, MemoryError, Purpose, Region, round_up};
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Slots start at multiples of a cache line, so that two of them are never on one.
const STRIDE_BYTES: usize = 64;
/// The endpoint of a slot that is free: no endpoint has this id.
const NOBODY: u64 = 0;

/// How many header slots, and how large.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderSlotConfig {
    /// The number of slots, and so of messages with a header in flight: 1 to 65,536. Default: 256.
    pub slots: u32,
    /// The longest header, in bytes: 1 to 4,096. Default: 64. Memory: `slots` times this, rounded
    /// up to 64.
    pub slot_size: usize,
}

impl HeaderSlotConfig {
    /// The most slots.
    pub const SLOTS_MAX: u32 = 65_536;
    /// The largest slot, in bytes.
    pub const SLOT_SIZE_MAX: usize = 4_096;
}

impl Default for HeaderSlotConfig {
    fn default() -> Self {
        Self {
            slots: 256,
            slot_size: 64,
        }
    }
}

/// Why there is no slot for a header.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// The header is longer than a slot.
    #[error(
        "a header of {len} bytes is longer than a slot of {max} (`HeaderSlotConfig::slot_size`)"
    )]
    TooLong {
        /// The length of the header, in bytes.
        len: usize,
        /// The size of a slot, in bytes.
        max: usize,
    },
    /// All slots are taken: back-pressure, not a failure.
    #[error("no header slot is free: give some back, or have more (`HeaderSlotConfig::slots`)")]
    NoSlot,
}

fabricast_process::debug_as_words!(HeaderError);

/// What a slot is taken for.
struct SlotUse {
    /// The endpoint that it belongs to, or `NOBODY`.
    owner: AtomicU64,
    /// Meaningful while it has an owner.
    key: AtomicU64,
    /// How many hold it, if it is shared; says nothing otherwise.
    shares: AtomicU32,
}

impl SlotUse {
    fn none() -> Self {
        Self {
            owner: AtomicU64::new(NOBODY),
            key: AtomicU64::new(0),
            shares: AtomicU32::new(0),
        }
    }
}

struct HeaderSlots {
    table: SlotTable,
    uses: Box<[SlotUse]>,
    slot_size: usize,
    stride: usize,
    claim: Claim,
}

impl HeaderSlots {
    fn start(&self, taken: &TakenSlot) -> *const u8 {
        let region = self.claim.region();
        region.at(taken.index as usize * self.stride).as_ptr()
    }

    #[inline]
    fn give_back(&self, taken: &TakenSlot) {
        if taken.shared && !self.is_last(taken) {
            return;
        }
        let used = &self.uses[taken.index as usize];
        used.owner.store(NOBODY, Ordering::Release);
        self.table.release(taken.index);
    }

    /// One holder less; whether it was the last.
    #[cold]
    fn is_last(&self, taken: &TakenSlot) -> bool {
        // Holders of a slot only read it. Release and Acquire: all of them are done before the slot
        // is free.
        let used = &self.uses[taken.index as usize];
        used.shares.fetch_sub(1, Ordering::AcqRel) == 1
    }
}

/// A slot with its header, by number: nothing gives it back by itself. An operation holds it, which
/// saves counting its manager's owners for each message.
#[derive(Debug)]
#[must_use = "the slot stays taken until it is given back"]
pub(crate) struct TakenSlot {
    index: u32,
    len: u16,
    /// Others hold it, too, or did ([`HeaderSlotManager::share`]).
    shared: bool,
}

impl TakenSlot {
    pub(crate) fn len(&self) -> usize {
        self.len.into()
    }
}

/// Header slots that any number of threads and endpoints share; no call takes a lock, except while
/// somebody waits for a wake-up.
///
/// Clones are handles on the same slots.
///
/// ```
/// use fabricast::buffer::{HeaderSlotConfig, HeaderSlotManager};
/// use fabricast::endpoint::EndpointId;
/// let headers = HeaderSlotManager::new(HeaderSlotConfig::default())?;
/// let slot = headers.acquire(b"tag", 42, EndpointId::next())?;
/// assert_eq!(headers.free_count(), 255);
/// assert_eq!(headers.release(slot), 42);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct HeaderSlotManager(Arc<HeaderSlots>);

impl HeaderSlotManager {
    /// Allocates the slots in one region of host memory; register that ([`region`](Self::region))
    /// with the domain that sends.
    ///
    /// # Errors
    /// [`MemoryError::Setting`] for a number or size out of range, otherwise what [`Region::host`]
    /// answers.
    pub fn new(config: HeaderSlotConfig) -> Result<Self, MemoryError> {
        if !(1..=HeaderSlotConfig::SLOTS_MAX).contains(&config.slots) {
            let reason = "must be 1 to 65,536";
            return Err(MemoryError::Setting {
                field: "slots",
                value: u64::from(config.slots),
                reason,
            });
        }
        if !(1..=HeaderSlotConfig::SLOT_SIZE_MAX).contains(&config.slot_size) {
            let reason = "must be 1 to 4,096 bytes";
            return Err(MemoryError::Setting {
                field: "slot_size",
                value: config.slot_size as u64,
                reason,
            });
        }
        let stride = round_up(config.slot_size, STRIDE_BYTES).expect("at most 4,096");
        let region = Region::host(config.slots as usize * stride).build()?;
        Ok(Self(Arc::new(HeaderSlots {
            table: SlotTable::new(config.slots),
            uses: (0..config.slots).map(|_| SlotUse::none()).collect(),
            slot_size: config.slot_size,
            stride,
            claim: region.claim(Purpose::HeaderSlots)?,
        })))
    }

    /// Copies a header into a free slot, together with the key that comes back when the slot does.
    ///
    /// # Errors
    /// [`HeaderError::TooLong`], and [`HeaderError::NoSlot`] when all are taken.
    pub fn acquire(
        &self,
        header: &[u8],
        key: u64,
        endpoint: EndpointId,
    ) -> Result<HeaderSlot, HeaderError> {
        self.acquire_parts(&[header], key, endpoint)
    }

    /// As [`acquire`](Self::acquire), with a header in several parts, which are joined in the slot:
    /// a length, then the header proper.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire).
    pub fn acquire_parts(
        &self,
        parts: &[&[u8]],
        key: u64,
        endpoint: EndpointId,
    ) -> Result<HeaderSlot, HeaderError> {
        self.take(parts, key, endpoint).map(|taken| HeaderSlot {
            inner: Arc::clone(&self.0),
            taken,
            key,
        })
    }

    /// As [`acquire_parts`](Self::acquire_parts), for an owner that keeps the manager and gives the
    /// slot back to it itself.
    #[inline(always)]
    pub(crate) fn take(
        &self,
        parts: &[&[u8]],
        key: u64,
        endpoint: EndpointId,
    ) -> Result<TakenSlot, HeaderError> {
        let max = self.slot_size();
        let len = parts
            .iter()
            .fold(0usize, |sum, part| sum.saturating_add(part.len()));
        if len > max {
            return Err(HeaderError::TooLong { len, max });
        }
        let index = self.0.table.try_acquire().ok_or(HeaderError::NoSlot)?;
        let mut offset = index as usize * self.0.stride;
        for part in parts.iter().filter(|part| !part.is_empty()) {
            let to = self.region().at(offset);
            // SAFETY: `len <= slot_size <= stride`, so the parts lie within this slot and the
            // region; the slot came from the free list, so it is ours alone; a slice of the
            // caller's can't lie in a region that gives no references.
            unsafe { std::ptr::copy_nonoverlapping(part.as_ptr(), to.as_ptr(), part.len()) };
            offset += part.len();
        }
        let used = &self.0.uses[index as usize];
        used.key.store(key, Ordering::Relaxed);
        // Release pairs with the Acquire of `pending`: who sees the owner sees the key.
        used.owner.store(endpoint.get(), Ordering::Release);
        // At most `SLOT_SIZE_MAX`, just checked.
        let len = len as u16;
        Ok(TakenSlot {
            index,
            len,
            shared: false,
        })
    }

    /// The same slot for one operation more. It is free when each that holds it was given back;
    /// allocates nothing.
    pub(crate) fn share(&self, taken: &mut TakenSlot) -> TakenSlot {
        let shares = &self.0.uses[taken.index as usize].shares;
        if !std::mem::replace(&mut taken.shared, true) {
            // Nobody else knows of it yet.
            shares.store(1, Ordering::Relaxed);
        }
        shares.fetch_add(1, Ordering::Relaxed);
        TakenSlot {
            index: taken.index,
            len: taken.len,
            shared: true,
        }
    }

    /// Gives back what [`take`](Self::take) gave.
    #[inline]
    pub(crate) fn give_back(&self, taken: TakenSlot) {
        self.0.give_back(&taken);
    }

    /// Where the header of a slot of this manager lies: its first byte, derived from the whole
    /// region.
    #[inline]
    pub(crate) fn start(&self, taken: &TakenSlot) -> *const u8 {
        self.0.start(taken)
    }

    /// The header in a slot of this manager.
    pub(crate) fn bytes<'a>(&'a self, taken: &'a TakenSlot) -> &'a [u8] {
        // SAFETY: `len` bytes of this slot were written by `take`, and nobody writes there before
        // the slot is given back, for which its holder, borrowed here, is needed.
        unsafe { std::slice::from_raw_parts(self.0.start(taken), taken.len()) }
    }

    /// Gives a slot back and says its key. Dropping the slot gives it back too.
    ///
    /// A slot of another manager goes back to that one.
    pub fn release(&self, slot: HeaderSlot) -> u64 {
        slot.key
    }

    /// How many slots are free.
    pub fn free_count(&self) -> usize {
        self.0.table.free().len() as usize
    }

    /// The least number of free slots since the manager was made, or since
    /// [`take_low_water`](Self::take_low_water).
    pub fn low_water(&self) -> usize {
        self.0.table.free().low_water() as usize
    }

    /// The same, and starts anew: netio3's `get_num_available_buffers`.
    pub fn take_low_water(&self) -> usize {
        self.0.table.free().take_low_water() as usize
    }

    /// The keys of the slots that an endpoint has now, in no particular order. While other threads
    /// acquire for it, a snapshot.
    pub fn pending(&self, endpoint: EndpointId) -> Vec<u64> {
        let mine = |used: &&SlotUse| used.owner.load(Ordering::Acquire) == endpoint.get();
        let mine = self.0.uses.iter().filter(mine);
        mine.map(|used| used.key.load(Ordering::Relaxed)).collect()
    }

    /// The number of slots.
    pub fn capacity(&self) -> usize {
        self.0.uses.len()
    }

    /// The longest header, in bytes.
    pub fn slot_size(&self) -> usize {
        self.0.slot_size
    }

    /// The block that all slots lie in.
    pub fn region(&self) -> &Arc<Region> {
        self.0.claim.region()
    }

    /// Adds a function to be called when a slot becomes free; once after each [`arm`](Self::arm).
    pub fn add_waker(&self, wake: WakeFn) -> WakerId {
        self.0.table.add_waker(wake)
    }

    /// How many there are.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn wakers(&self) -> usize {
        self.0.table.wakers()
    }

    /// Removes it; false when it is not (or no longer) there. A call that is under way on another
    /// thread may still come.
    pub fn remove_waker(&self, id: WakerId) -> bool {
        self.0.table.remove_waker(id)
    }

    /// Arms a waker for one call, and says whether a slot is free already: then try again rather
    /// than sleep.
    pub fn arm(&self, id: WakerId) -> bool {
        self.0.table.arm(id)
    }
}

impl SlotPool for HeaderSlotManager {
    fn table(&self) -> &SlotTable {
        &self.0.table
    }
}

impl fmt::Debug for HeaderSlotManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeaderSlotManager")
            .field("capacity", &self.capacity())
            .field("slot_size", &self.slot_size())
            .field("free_count", &self.free_count())
            .finish_non_exhaustive()
    }
}

/// One header in its slot. Dropping it gives the slot back.
pub struct HeaderSlot {
    inner: Arc<HeaderSlots>,
    taken: TakenSlot,
    key: u64,
}

impl HeaderSlot {
    /// The number of the slot, below the manager's capacity.
    pub fn index(&self) -> u32 {
        self.taken.index
    }

    /// The length of the header, in bytes.
    pub fn len(&self) -> usize {
        self.taken.len()
    }

    /// Whether the header has no bytes.
    pub fn is_empty(&self) -> bool {
        self.taken.len == 0
    }

    /// The key that was given with the header.
    pub fn key(&self) -> u64 {
        self.key
    }

    /// The header.
    pub fn as_bytes(&self) -> &[u8] {
        // SAFETY: `len` bytes of this slot were written by `take`, and nobody writes there before
        // the slot is given back.
        unsafe { std::slice::from_raw_parts(self.inner.start(&self.taken), self.len()) }
    }
}

impl Drop for HeaderSlot {
    fn drop(&mut self) {
        self.inner.give_back(&self.taken);
    }
}

impl fmt::Debug for HeaderSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeaderSlot")
            .field("index", &self.taken.index)
            .field("len", &self.taken.len)
            .field("key", &self.key)
            .finish()
    }
}

#[cfg(all(test, not(loom)))]
#[path = "tests/header_slots.rs"]
mod tests;
