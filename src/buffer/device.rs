//! `DeviceBufferManager` and `DeviceBuffer`: slots of a region of a device's memory.
//!
//! # Safety
//! Only the CUDA driver, cuFile and providers get these addresses; the host never reads or writes
//! there.

#![allow(unsafe_code)]

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Instant;

use super::segment::RegionSlice;
use super::shared::AcquireError;
use super::slot_table::{SlotPool, SlotTable};
use super::wake_list::{WakeFn, WakerId};
use crate::cuda::{CudaError, Device, Stream};
use crate::memory::{Claim, DeviceRange, MemoryError, Purpose, Region, round_up};

/// Slots begin at multiples of this, in bytes: what `cuMemAlloc` gives, and what kernels like.
pub(crate) const ALIGNMENT: usize = 256;

/// A pool of equal buffers in one region of a device's memory; clones are handles on the same pool.
///
/// No call takes a lock, except to sleep for a buffer and to wake who does.
///
/// ```
/// use fabricast::Region;
/// use fabricast::buffer::DeviceBufferManager;
/// use fabricast::cuda::{Device, Stream};
/// let Ok(device) = Device::new(0) else {
///     return Ok(()); // no GPU here
/// };
/// let pool = DeviceBufferManager::new(Region::device(1 << 20).build()?, 4096)?;
/// let stream = Stream::new(device)?;
/// let mut buffer = pool.try_acquire().expect("256 are free");
/// buffer.copy_from_host(b"hello", &stream)?;
/// let mut back = [0; 5];
/// buffer.copy_to_host(&mut back, &stream)?;
/// assert_eq!(&back, b"hello");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct DeviceBufferManager(Arc<DeviceSlots>);

struct DeviceSlots {
    table: SlotTable,
    stride: usize,
    slot_size: usize,
    slots: u32,
    device: Device,
    claim: Claim,
}

impl DeviceBufferManager {
    /// Cuts a region of a device's memory into as many slots of `slot_size` bytes as fit. The
    /// region is the pool's until the last buffer is gone.
    ///
    /// # Errors
    /// [`MemoryError::NotDeviceRegion`], [`MemoryError::Claimed`] for a region in use,
    /// [`MemoryError::TooSmall`] when not one slot fits, [`MemoryError::Setting`] for slots of 0
    /// bytes.
    pub fn new(region: Arc<Region>, slot_size: usize) -> Result<Self, MemoryError> {
        let kind = region.kind();
        let what = "device buffers";
        let device = kind
            .device()
            .ok_or(MemoryError::NotDeviceRegion { what, kind })?;
        if slot_size == 0 {
            let reason = "must be at least 1 byte";
            return Err(MemoryError::Setting {
                field: "slot_size",
                value: 0,
                reason,
            });
        }
        let too_large = MemoryError::TooLarge {
            asked_bytes: slot_size,
        };
        let stride = round_up(slot_size, ALIGNMENT).ok_or(too_large)?;
        let have_bytes = region.len();
        let behind_first = have_bytes
            .checked_sub(slot_size)
            .ok_or(MemoryError::TooSmall {
                what: "the slots",
                need_bytes: slot_size,
                have_bytes,
            })?;
        // The last mark of an index is not an index.
        let slots = u32::try_from(behind_first / stride + 1).unwrap_or(u32::MAX);
        let slots = slots.min(u32::MAX - 1);
        Ok(Self(Arc::new(DeviceSlots {
            table: SlotTable::new(slots),
            stride,
            slot_size,
            slots,
            device,
            claim: region.claim(Purpose::Buffers)?,
        })))
    }

    /// Takes a buffer, if one is free now. Its length is the slot's size, and its bytes are
    /// whatever the last owner left there.
    pub fn try_acquire(&self) -> Option<DeviceBuffer> {
        self.0.table.try_acquire().map(|index| self.buffer(index))
    }

    /// Takes a buffer, and sleeps for it until the deadline.
    ///
    /// # Errors
    /// [`AcquireError::TimedOut`].
    pub fn acquire(&self, deadline: Instant) -> Result<DeviceBuffer, AcquireError> {
        match self.0.table.acquire(deadline) {
            Ok(index) => Ok(self.buffer(index)),
            Err(waited) => Err(AcquireError::TimedOut { waited }),
        }
    }

    fn buffer(&self, index: u32) -> DeviceBuffer {
        DeviceBuffer {
            start: 0,
            len: self.0.slot_size,
            index,
            pool: Arc::clone(&self.0),
        }
    }

    /// Adds a function to be called when a buffer becomes free; once after each [`arm`](Self::arm).
    pub fn add_waker(&self, wake: WakeFn) -> WakerId {
        self.0.table.add_waker(wake)
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

    /// How many buffers are free.
    pub fn free_count(&self) -> usize {
        self.0.table.free().len() as usize
    }

    /// The number of slots.
    pub fn slots(&self) -> usize {
        self.0.slots as usize
    }

    /// The size of a slot, in bytes.
    pub fn slot_size(&self) -> usize {
        self.0.slot_size
    }

    /// The device whose memory it is.
    pub fn device(&self) -> Device {
        self.0.device
    }

    /// The region that all slots lie in.
    pub fn region(&self) -> &Arc<Region> {
        self.0.claim.region()
    }
}

impl SlotPool for DeviceBufferManager {
    fn table(&self) -> &SlotTable {
        &self.0.table
    }
}

impl fmt::Debug for DeviceBufferManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceBufferManager")
            .field("device", &self.0.device)
            .field("slots", &self.slots())
            .field("slot_size", &self.slot_size())
            .field("free_count", &self.free_count())
            .finish_non_exhaustive()
    }
}

/// A buffer in a device's memory, with one owner. Dropping it gives it back to its pool.
///
/// It gives addresses and no bytes: kernels get its [`address`](Self::address), and copies to and
/// from the host are calls.
pub struct DeviceBuffer {
    pool: Arc<DeviceSlots>,
    index: u32,
    /// Where in the slot it begins: behind the header of a message that came there.
    start: usize,
    len: usize,
}

impl DeviceBuffer {
    /// Its first byte, a `CUdeviceptr`. What runs on the device and reads or writes there has to be
    /// over before the buffer is given away.
    pub fn address(&self) -> u64 {
        self.region().address() + self.offset() as u64
    }

    /// The same as providers are told it: nothing here reaches a byte by it.
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.region().as_ptr().wrapping_add(self.offset())
    }

    /// Its bytes, for who registers them.
    pub(crate) fn range(&self) -> Option<DeviceRange> {
        self.region().device_part(self.address(), self.len)
    }

    /// The length in bytes: what is sent, written, or was received.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// What [`len`](Self::len) may be at most, in bytes: the size of the slot, or what is left of
    /// it behind a header.
    pub fn capacity(&self) -> usize {
        self.pool.slot_size - self.start
    }

    /// Begins so many bytes later, and is as much shorter.
    pub(crate) fn skip(&mut self, bytes: usize) {
        assert!(bytes <= self.len, "skip({bytes}) of {} bytes", self.len);
        self.start += bytes;
        self.len -= bytes;
    }

    /// Sets the length.
    ///
    /// # Panics
    /// If that is more than the [`capacity`](Self::capacity).
    pub fn set_len(&mut self, len: usize) {
        let capacity = self.capacity();
        assert!(
            len <= capacity,
            "set_len({len}) of a buffer of {capacity} bytes"
        );
        self.len = len;
    }

    /// The number of the slot in its pool.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Where in the region the buffer starts, in bytes.
    pub fn offset(&self) -> usize {
        self.index as usize * self.pool.stride + self.start
    }

    /// The device whose memory it is.
    pub fn device(&self) -> Device {
        self.pool.device
    }

    /// The region that the buffer lies in.
    pub fn region(&self) -> &Arc<Region> {
        self.pool.claim.region()
    }

    /// Copies bytes of the host to the beginning of the buffer, behind all that the stream was
    /// given before, and waits until they are there.
    ///
    /// # Errors
    /// What the CUDA driver answers; what lies in the buffer then, nobody knows.
    ///
    /// # Panics
    /// If there are more bytes than the buffer has.
    pub fn copy_from_host(&mut self, bytes: &[u8], stream: &Stream) -> Result<(), CudaError> {
        check_fits(bytes.len(), self.len);
        upload(self.address(), bytes, stream)
    }

    /// Copies the beginning of the buffer to the host, behind all that the stream was given before,
    /// and waits until it is there.
    ///
    /// # Errors
    /// What the CUDA driver answers.
    ///
    /// # Panics
    /// If more bytes are asked for than the buffer has.
    pub fn copy_to_host(&self, bytes: &mut [u8], stream: &Stream) -> Result<(), CudaError> {
        check_fits(bytes.len(), self.len);
        download(bytes, self.address(), stream)
    }

    /// Fills the buffer with a byte, behind all that the stream was given before, and waits until
    /// that is done.
    ///
    /// # Errors
    /// What the CUDA driver answers.
    pub fn fill(&mut self, byte: u8, stream: &Stream) -> Result<(), CudaError> {
        // SAFETY: the buffer's own bytes, which this waits for.
        unsafe { stream.fill(self.address(), byte, self.len) }?;
        stream.synchronize()
    }
}

/// A region's slice of a device's memory: copies to and from the host.
impl RegionSlice {
    /// Copies bytes of the host to the beginning of the slice, which is a device's memory; behind
    /// all that the stream was given before. Waits until they are there.
    ///
    /// # Errors
    /// What the CUDA driver answers; what lies in the slice then, nobody knows.
    ///
    /// # Panics
    /// If the slice is memory of the host, or there are more bytes than it has.
    pub fn copy_from_host(&self, bytes: &[u8], stream: &Stream) -> Result<(), CudaError> {
        assert!(self.region().is_device(), "a slice of the host's memory");
        check_fits(bytes.len(), self.len());
        upload(self.address(), bytes, stream)
    }

    /// Copies the beginning of the slice, which is a device's memory, to the host; behind all that
    /// the stream was given before. Waits until it is there.
    ///
    /// # Errors
    /// What the CUDA driver answers.
    ///
    /// # Panics
    /// If the slice is memory of the host, or has fewer bytes.
    pub fn copy_to_host(&self, bytes: &mut [u8], stream: &Stream) -> Result<(), CudaError> {
        assert!(self.region().is_device(), "a slice of the host's memory");
        check_fits(bytes.len(), self.len());
        download(bytes, self.address(), stream)
    }
}

fn check_fits(asked: usize, len: usize) {
    assert!(asked <= len, "{asked} bytes of {len}");
}

/// To a place on a device that a handle keeps, of that length at least.
fn upload(to: u64, bytes: &[u8], stream: &Stream) -> Result<(), CudaError> {
    if bytes.is_empty() {
        return Ok(());
    }
    // SAFETY: a handle keeps the device's part, the host's is borrowed, and both until the stream
    // was waited for: where waiting fails the context is gone, and with it what the stream was
    // given.
    unsafe { stream.copy_to_device(to, NonNull::from(bytes).cast(), bytes.len()) }?;
    stream.synchronize()
}

/// From a place on a device that a handle keeps, of that length at least.
fn download(bytes: &mut [u8], from: u64, stream: &Stream) -> Result<(), CudaError> {
    if bytes.is_empty() {
        return Ok(());
    }
    let len = bytes.len();
    // SAFETY: as in `upload`; the host's part is borrowed for this alone.
    unsafe { stream.copy_to_host(NonNull::from(bytes).cast(), from, len) }?;
    stream.synchronize()
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        self.pool.table.release(self.index);
    }
}

impl fmt::Debug for DeviceBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceBuffer")
            .field("device", &self.pool.device)
            .field("index", &self.index)
            .field("len", &self.len)
            .finish()
    }
}
