//! Buffers that move to the network and come back: slots, shared buffers, rings, and the payloads
//! made of them.
//!
//! ```text
//! SharedBufferManager ─ try_acquire ─► BufferMut ─ freeze(len) ─► Buffer ─┐
//! Region ─ slice(range) ──────────────────────────────────► RegionSlice ──┤
//! DeviceBufferManager ─ try_acquire ─► DeviceBuffer ──────────────────────┤
//! RingRegion ─ reserve ─► Reservation ─ commit(len) ──► RingFragment ─────┤
//!                                      Payload ─► endpoint ─► Payload ◄───┘
//! HeaderSlotManager ─ acquire(header, key) ─► HeaderSlot ─► endpoint ─► key
//! ```
//!
//! Each handle owns its piece: dropping the last one gives the piece back, on any thread, without a
//! lock unless somebody sleeps for it. Nothing is borrowed, so a handle that is forgotten leaks its
//! piece and does no harm.
//!
//! A payload is read by the network after the call that sends it, so it can't be borrowed: it moves
//! into the endpoint, and comes back with the outcome. Start with a [`SharedBufferManager`]; a
//! [`RingRegion`] is for what hardware or a producer fills in order, a [`RegionSlice`] for any part
//! of memory that is somebody else's.
//!
//! ```
//! use fabricast::buffer::{Payload, SharedBufferManager};
//!
//! let pool = SharedBufferManager::allocate(8, 4096)?;
//! let mut buffer = pool.try_acquire().expect("8 are free");
//! buffer[..5].copy_from_slice(b"hello");
//! let payload = Payload::from(buffer.freeze(5));
//! assert_eq!((payload.len_bytes(), pool.free_count()), (5, 7));
//! # Ok::<(), fabricast::memory::MemoryError>(())
//! ```

mod buffer_parts;
mod device;
mod free_list;
mod gate;
mod header_slots;
mod payload;
mod payload_copy;
mod pool_share;
mod region_part;
mod ring;
mod ring_share;
mod room_claims;
mod segment;
mod shared;
mod shared_config;
mod slot_homes;
mod slot_table;
mod wake_list;
mod zero_copy;

pub use device::{DeviceBuffer, DeviceBufferManager};
pub use header_slots::{HeaderError, HeaderSlot, HeaderSlotConfig, HeaderSlotManager};
pub use payload::Payload;
pub use region_part::RegionPart;
pub use ring::{Reservation, RingConfig, RingError, RingFragment, RingRegion};
pub use segment::{RegionSlice, Segment};
pub use shared::{AcquireError, Buffer, BufferMut, SharedBufferManager};
pub use shared_config::SharedBufferConfig;
pub use wake_list::{WakeFn, WakerId};
pub use zero_copy::ZeroCopyBufferManager;

pub(crate) use buffer_parts::{BufferParts, PartsHeld};
pub(crate) use device::ALIGNMENT as DEVICE_ALIGNMENT;
pub(crate) use gate::{Gate, GateError};
pub(crate) use header_slots::TakenSlot;
pub(crate) use payload::{FrontError, LeaseError, LeasedPayload, Leases};
pub(crate) use payload_copy::HostBytes;
pub(crate) use pool_share::PoolShare;
pub(crate) use region_part::Given;
pub(crate) use slot_table::{SlotPool, SlotTable};
