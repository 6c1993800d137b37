//! `SharedBufferManager`: equal slots over one region, for any number of endpoints and threads;
//! `BufferMut` and `Buffer`.
//!
//! ```text
//!  region  │ headroom │ slot_size bytes │ .. │ headroom │ slot_size bytes │ .. │
//!                     └ aligned                         └ aligned
//! ```

#![allow(unsafe_code)]

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::{Bound, Deref, DerefMut, RangeBounds};
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use super::room_claims::{RoomClaims, RoomTaken};
use super::shared_config::{Layout, SharedBufferConfig};
use super::slot_homes::ShareAccount;
use super::slot_table::{self, SlotPool, SlotTable};
use super::wake_list::{WakeFn, WakerId};
use crate::memory::{Claim, MemoryError, Purpose, Region};
use crate::metrics::registry::{Watch, WatchedPlace};
use crate::metrics::{PoolStats, WatchedKind, WatchedStats};

/// Why a waiting acquire got no slot.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AcquireError {
    /// No slot became free before the deadline.
    #[error(
        "no buffer became free within {waited:?}: drop buffers or messages that are held, or have \
         more slots"
    )]
    TimedOut {
        /// How long it waited.
        waited: Duration,
    },
}

fabricast_process::debug_as_words!(AcquireError);

struct SharedSlots {
    /// In front: it reads the rest until it is gone.
    watched: OnceLock<WatchedPlace>,
    table: SlotTable,
    layout: Layout,
    slot_size: usize,
    headroom: usize,
    /// Of the header room of each slot; empty where there is none.
    rooms: RoomClaims,
    claim: Claim,
}

impl Watch for SharedSlots {
    fn stats(&self) -> WatchedStats {
        WatchedStats::Pool(PoolStats {
            slots: self.layout.slots.into(),
            free: self.table.free().len().into(),
            empty: self.table.empty(),
        })
    }
}

impl SharedSlots {
    #[inline]
    fn offset(&self, index: u32) -> usize {
        self.layout.first + index as usize * self.layout.stride
    }
}

/// A pool of equal buffers in one region; clones are handles on the same pool.
///
/// No call takes a lock, except to sleep for a buffer and to wake who does; where endpoints have
/// [shares][shared_pool] of the pool, a buffer that goes back takes one that nobody else wants.
///
/// ```
/// use fabricast::buffer::SharedBufferManager;
/// let pool = SharedBufferManager::allocate(8, 4096)?;
/// let mut buffer = pool.try_acquire().expect("8 are free");
/// buffer[..5].copy_from_slice(b"hello");
/// let buffer = buffer.freeze(5);
/// let for_another_peer = buffer.clone();
/// assert_eq!(&for_another_peer[..], b"hello");
/// drop((buffer, for_another_peer));
/// assert_eq!(pool.free_count(), 8);
/// # Ok::<(), fabricast::memory::MemoryError>(())
/// ```
///
/// [shared_pool]: crate::endpoint::IncomingSettings::shared_pool
#[derive(Clone)]
pub struct SharedBufferManager(Arc<SharedSlots>);

impl SharedBufferManager {
    /// Cuts a host region into slots. The region is the pool's until the last buffer is gone.
    ///
    /// # Errors
    /// [`MemoryError::NotHost`] for an external region ([`new_external`](Self::new_external) takes
    /// those), [`MemoryError::Claimed`] for one in use, [`MemoryError::TooSmall`] when not one slot
    /// fits or not `slots`, [`MemoryError::Setting`] for a setting out of range.
    pub fn new(region: Arc<Region>, config: SharedBufferConfig) -> Result<Self, MemoryError> {
        if !region.is_host() {
            return Err(MemoryError::NotHost {
                what: "shared buffers",
            });
        }
        Self::over(&region, config)
    }

    /// Cuts memory that somebody else owns into slots.
    ///
    /// # Errors
    /// As [`new`](Self::new); `NotHost` for a device's memory.
    ///
    /// # Safety
    /// As long as the pool or one of its buffers lives:
    /// * the CPU may read and write all of the region as ordinary memory, and it is initialised;
    /// * nobody else writes to it, and nobody else reads from a slot while that is taken.
    pub unsafe fn new_external(
        region: Arc<Region>,
        config: SharedBufferConfig,
    ) -> Result<Self, MemoryError> {
        Self::over(&region, config)
    }

    /// A pool of `slots` buffers of `slot_size` bytes in a host region of its own.
    ///
    /// # Errors
    /// As [`new`](Self::new), and what [`Region::host`] answers.
    pub fn allocate(slots: u32, slot_size: usize) -> Result<Self, MemoryError> {
        Self::allocate_with_headroom(slots, slot_size, 0)
    }

    /// The same with room for a header in front of each buffer: see
    /// [`SharedBufferConfig::headroom`].
    ///
    /// # Errors
    /// As [`new`](Self::new), and what [`Region::host`] answers.
    pub fn allocate_with_headroom(
        slots: u32,
        slot_size: usize,
        headroom: usize,
    ) -> Result<Self, MemoryError> {
        let config = SharedBufferConfig {
            slots: Some(slots),
            headroom,
            ..SharedBufferConfig::new(slot_size)
        };
        let region = Region::host(config.region_bytes(slots)?).build()?;
        Self::new(region, config)
    }

    fn over(region: &Arc<Region>, config: SharedBufferConfig) -> Result<Self, MemoryError> {
        if region.is_device() {
            return Err(MemoryError::NotHost {
                what: "shared buffers",
            });
        }
        let layout = config.layout(region)?;
        let claim = region.claim(Purpose::Buffers)?;
        let rooms = match config.headroom {
            0 => 0,
            _ => layout.slots,
        };
        let slots = Arc::new(SharedSlots {
            watched: OnceLock::new(),
            table: SlotTable::new(layout.slots),
            layout,
            slot_size: config.slot_size,
            headroom: config.headroom,
            rooms: RoomClaims::new(rooms),
            claim,
        });
        let at: NonNull<dyn Watch> = NonNull::from(&*slots);
        // SAFETY: it lies in the `Arc` and is only ever shared; its place is its first field, and
        // is dropped before the others.
        let place = unsafe { WatchedPlace::lying(WatchedKind::Pool, None, at) };
        let _ = slots.watched.set(place);
        Ok(Self(slots))
    }

    /// What the pool is called in [`metrics`](crate::metrics), where pools that are called the same
    /// are one series. Until then it is called `pool` with a number.
    pub fn set_name(&self, name: &str) {
        if let Some(place) = self.0.watched.get() {
            place.rename(name);
        }
    }

    /// Takes a buffer, if one is free now.
    pub fn try_acquire(&self) -> Option<BufferMut> {
        let index = self.0.table.try_acquire()?;
        Some(BufferMut {
            slot: Slot::taken(&self.0, index),
        })
    }

    /// Takes a buffer for a share, one of its own first.
    pub(super) fn try_acquire_of(&self, share: &Arc<ShareAccount>) -> Option<BufferMut> {
        self.0.table.try_acquire_of(share).map(|it| self.taken(it))
    }

    /// Takes a buffer for a share, none of its own.
    pub(super) fn try_borrow(&self, share: &Arc<ShareAccount>) -> Option<BufferMut> {
        self.0.table.try_borrow(share).map(|it| self.taken(it))
    }

    fn taken(&self, index: u32) -> BufferMut {
        BufferMut {
            slot: Slot::taken(&self.0, index),
        }
    }

    /// Takes a buffer, and sleeps for it until the deadline.
    ///
    /// # Errors
    /// [`AcquireError::TimedOut`].
    pub fn acquire(&self, deadline: Instant) -> Result<BufferMut, AcquireError> {
        match self.0.table.acquire(deadline) {
            Ok(index) => Ok(BufferMut {
                slot: Slot::taken(&self.0, index),
            }),
            Err(waited) => Err(AcquireError::TimedOut { waited }),
        }
    }

    /// Adds a function to be called when a buffer becomes free; once after each [`arm`](Self::arm).
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

    /// Arms a waker for one call, and says whether a buffer is free already: then try again rather
    /// than sleep.
    pub fn arm(&self, id: WakerId) -> bool {
        self.0.table.arm(id)
    }

    /// How many buffers are free, without those that are reserved for an endpoint.
    pub fn free_count(&self) -> usize {
        self.0.table.free().len() as usize
    }

    /// The least number of free buffers since the pool was made, or since
    /// [`take_low_water`](Self::take_low_water).
    pub fn low_water(&self) -> usize {
        self.0.table.free().low_water() as usize
    }

    /// The same, and starts anew.
    pub fn take_low_water(&self) -> usize {
        self.0.table.free().take_low_water() as usize
    }

    /// The number of slots.
    pub fn slots(&self) -> usize {
        self.0.layout.slots as usize
    }

    /// The size of a slot, in bytes.
    pub fn slot_size(&self) -> usize {
        self.0.slot_size
    }

    /// The bytes reserved in front of each slot.
    pub fn headroom(&self) -> usize {
        self.0.headroom
    }

    /// The region that all slots lie in.
    pub fn region(&self) -> &Arc<Region> {
        self.0.claim.region()
    }
}

impl SlotPool for SharedBufferManager {
    fn table(&self) -> &SlotTable {
        &self.0.table
    }
}

impl fmt::Debug for SharedBufferManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedBufferManager")
            .field("slots", &self.slots())
            .field("slot_size", &self.slot_size())
            .field("headroom", &self.headroom())
            .field("free_count", &self.free_count())
            .finish_non_exhaustive()
    }
}

/// One handle on a slot: `BufferMut` keeps it the only one, `Buffer` may share it.
///
/// All handles on a slot have one count of the pool together, which the last of them ends: a handle
/// more costs one count, and not two.
pub(super) struct Slot {
    /// Never dropped but with the last handle; each handle has it without a count of its own.
    pool: ManuallyDrop<Arc<SharedSlots>>,
    index: u32,
}

impl Slot {
    /// The first handle on a slot that was just taken.
    fn taken(pool: &Arc<SharedSlots>, index: u32) -> Self {
        Self {
            pool: ManuallyDrop::new(Arc::clone(pool)),
            index,
        }
    }

    fn share(&self) -> Self {
        self.pool.table.share(self.index, 1);
        // SAFETY: the handle was counted right above.
        unsafe { self.counted() }
    }

    /// A handle that is counted already.
    ///
    /// # Safety
    ///
    /// The slot's count has a handle that nobody has, and this one is made for it.
    #[inline]
    pub(super) unsafe fn counted(&self) -> Self {
        Self {
            // SAFETY: the copy is dropped by the last handle alone (`Slot::drop`), and the others
            // forget theirs; until then the pool's count has the one of `taken`, since `self` and
            // the new handle are counted in the slot.
            pool: unsafe { std::ptr::read(&self.pool) },
            index: self.index,
        }
    }

    /// The counts of the handles, for who has this one.
    pub(super) fn table(&self) -> (&SlotTable, u32) {
        (&self.pool.table, self.index)
    }

    /// The first byte, derived from the whole region.
    #[inline]
    fn start(&self) -> *mut u8 {
        self.pool
            .claim
            .region()
            .at(self.pool.offset(self.index))
            .as_ptr()
    }
}

impl Drop for Slot {
    #[inline]
    fn drop(&mut self) {
        // Of the pool, the count alone is borrowed while it is written: others may end the pool as
        // soon as it is.
        if slot_table::end_handle(self.pool.table.handles_on(self.index)) {
            self.pool.table.free_slot(self.index);
            // SAFETY: this was the last handle on the slot as it was taken by `Slot::taken`, whose
            // count of the pool nobody has ended yet; nothing looks at the field behind this.
            unsafe { ManuallyDrop::drop(&mut self.pool) };
        }
    }
}

/// A buffer with one owner, who may write to it. Dropping it gives it back to its pool.
///
/// Its bytes are whatever the last owner left there.
pub struct BufferMut {
    slot: Slot,
}

impl BufferMut {
    /// Ends writing: the first `len` bytes become a [`Buffer`] that can be shared and sent.
    ///
    /// # Panics
    /// If `len` is more than the slot's size.
    pub fn freeze(self, len: usize) -> Buffer {
        let size = self.slot.pool.slot_size;
        assert!(len <= size, "freeze({len}) of a buffer of {size} bytes");
        Buffer {
            slot: self.slot,
            start: 0,
            len,
        }
    }

    /// The bytes reserved in front of this buffer.
    pub fn headroom(&self) -> usize {
        self.slot.pool.headroom
    }

    /// The number of the slot in its pool.
    pub fn index(&self) -> u32 {
        self.slot.index
    }

    /// Its length in bytes, without a look at them.
    pub(crate) fn size(&self) -> usize {
        self.slot.pool.slot_size
    }

    /// The region that the buffer lies in.
    pub fn region(&self) -> &Arc<Region> {
        self.slot.pool.claim.region()
    }

    /// The address of a byte, for who fills it later than this buffer is used otherwise: derived
    /// from the region, so that it is good after references to the buffer were made and are gone,
    /// as one that is derived from such a reference would not be.
    ///
    /// # Panics
    /// If there is no such byte, nor the end of the buffer there.
    pub(crate) fn place(&mut self, at: usize) -> NonNull<u8> {
        let size = self.slot.pool.slot_size;
        assert!(at <= size, "byte {at} of a buffer of {size} bytes");
        let region = self.slot.pool.claim.region();
        region.at(self.slot.pool.offset(self.slot.index) + at)
    }
}

impl Deref for BufferMut {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: `slot_size` initialised bytes (host memory is mapped zeroed; external: promised
        // to `new_external`) of a slot whose only handle this is, in a region that is claimed for
        // this pool.
        unsafe { std::slice::from_raw_parts(self.slot.start(), self.slot.pool.slot_size) }
    }
}

impl DerefMut for BufferMut {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` is the only access to the only handle.
        unsafe { std::slice::from_raw_parts_mut(self.slot.start(), self.slot.pool.slot_size) }
    }
}

impl fmt::Debug for BufferMut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BufferMut")
            .field("index", &self.slot.index)
            .field("len", &self.len())
            .finish()
    }
}

/// A frozen buffer: many owners, nobody writes. The last one dropped gives the slot back to its
/// pool, on any thread.
pub struct Buffer {
    pub(super) slot: Slot,
    pub(super) start: usize,
    pub(super) len: usize,
}

impl Buffer {
    /// A view of a part of this buffer, which keeps the same slot.
    ///
    /// # Panics
    /// If the range is not within the buffer.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Self {
        let (start, end) = bounds(&range, self.len);
        assert!(
            start <= end && end <= self.len,
            "slice({start}..{end}) of a buffer of {} bytes",
            self.len
        );
        Self {
            slot: self.slot.share(),
            start: self.start + start,
            len: end - start,
        }
    }

    /// Whether this is the only handle on the slot.
    pub fn is_unique(&self) -> bool {
        self.slot.pool.table.is_unique(self.slot.index)
    }

    /// Makes the buffer writable again, all of its slot, when nobody else has a handle on it.
    ///
    /// # Errors
    /// Gives the buffer back when it is shared.
    pub fn try_into_mut(self) -> Result<BufferMut, Self> {
        if self.is_unique() {
            Ok(BufferMut { slot: self.slot })
        } else {
            Err(self)
        }
    }

    /// The number of the slot in its pool.
    pub fn index(&self) -> u32 {
        self.slot.index
    }

    /// The region that the buffer lies in.
    #[inline]
    pub fn region(&self) -> &Arc<Region> {
        self.slot.pool.claim.region()
    }

    /// The bytes right in front of this buffer that a header may be put into: the pool's
    /// [`headroom`](SharedBufferConfig::headroom), or 0 for a [`slice`](Self::slice) that does not
    /// begin where the buffer does, since there lie bytes of the buffer itself.
    pub fn headroom(&self) -> usize {
        if self.start == 0 {
            self.slot.pool.headroom
        } else {
            0
        }
    }

    /// Puts a header right in front of this buffer, and claims the room until
    /// [`end_front`](Self::end_front), which the caller owes. The handle must stay until then.
    /// `header` is no longer than the [headroom](Self::headroom).
    pub(super) fn begin_front(&self, header: &[&[u8]], len: usize) -> Result<(), RoomTaken> {
        assert!(len <= self.headroom(), "a header longer than its room");
        let room = self.slot.pool.offset(self.slot.index) - len;
        let room = self.region().at(room).as_ptr();
        let write = || {
            let mut to = room;
            for part in header {
                // SAFETY: `headroom` bytes in front of the slot belong to it (`Layout::of`), and
                // the parts are `len <= headroom` bytes, so all of it lies in this slot's room; the
                // claim is ours alone while this runs (`RoomClaims::begin`); no reference is ever
                // made to a room, so the caller's part is elsewhere.
                unsafe { std::ptr::copy_nonoverlapping(part.as_ptr(), to, part.len()) };
                // SAFETY: at most the end of the room, as above.
                to = unsafe { to.add(part.len()) };
            }
        };
        let is_equal = || {
            // SAFETY: as above; a header of this length was written there, and nobody writes while
            // a claim is held (`RoomClaims::join`).
            let there = unsafe { std::slice::from_raw_parts(room, len) };
            header.iter().copied().flatten().eq(there)
        };
        // At most `HEADROOM_MAX`.
        let rooms = &self.slot.pool.rooms;
        rooms.begin(self.slot.index, len as u32, write, is_equal)
    }

    /// Ends the claim of [`begin_front`](Self::begin_front): the send is over.
    pub(super) fn end_front(&self) {
        self.slot.pool.rooms.end(self.slot.index);
    }

    /// Where in the region the buffer starts, in bytes.
    #[inline]
    pub(crate) fn offset(&self) -> usize {
        self.slot.pool.offset(self.slot.index) + self.start
    }
}

fn bounds(range: &impl RangeBounds<usize>, len: usize) -> (usize, usize) {
    let start = match range.start_bound() {
        Bound::Included(&start) => start,
        Bound::Excluded(&before) => before.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(&last) => last.saturating_add(1),
        Bound::Excluded(&end) => end,
        Bound::Unbounded => len,
    };
    (start, end)
}

impl Clone for Buffer {
    fn clone(&self) -> Self {
        Self {
            slot: self.slot.share(),
            start: self.start,
            len: self.len,
        }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        let start = self.region().at(self.offset());
        // SAFETY: `start + len` lies within the slot (`freeze` and `slice` checked it), its bytes
        // are initialised (see `BufferMut`), and nobody writes to a slot that has a frozen handle:
        // `BufferMut` is made only from the last one.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), self.len) }
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer")
            .field("index", &self.slot.index)
            .field("start", &self.start)
            .field("len", &self.len)
            .finish()
    }
}

#[cfg(all(test, not(loom)))]
#[path = "tests/shared.rs"]
mod tests;
