//! Memory that the network may read and write: regions and their registrations.
//!
//! A [`Region`] is one run of memory with one owner: host memory of our own ([`Region::host`]) or
//! memory that a DMA engine or another library owns ([`Region::external`]). It gives no safe access
//! to its bytes. What may be done with them depends on what the region is used for, and a region is
//! used for one thing at a time:
//!
//! ```text
//!            ┌─ Buffers      SharedBufferManager: &mut [u8] for one owner, &[u8] for many
//!            ├─ HeaderSlots  HeaderSlotManager: written once, then only read
//!  Region ──┤
//!            ├─ Ring         RingRegion over host memory: &mut [u8] for a reservation
//!            └─ Slices       RegionSlice, and RingRegion over external memory: addresses only,
//!                            any number of them
//! ```
//!
//! The first user claims the region, the claim ends with the last buffer, slot or fragment of that
//! user (slices keep it for good), and another use is refused with [`MemoryError::Claimed`]. So no
//! `&mut [u8]` can meet another handle on the same bytes.
//!
//! Memory of a GPU ([`Region::device`], [`Region::external_device`]) is a region, too, of which
//! there are slices and [`DeviceBufferManager`](crate::buffer::DeviceBufferManager)s: its bytes
//! never become `&[u8]`, and the host never touches them. Where a provider reaches it by itself or
//! it is staged through the host, [`Region::path`] says.
//!
//! A card reads and writes memory by itself, after it was registered, which takes time and pins
//! pages: so it is registered once, as a whole. Start with [`Region::host`]:
//!
//! ```
//! use fabricast::Fabric;
//! use fabricast::memory::Region;
//!
//! let fabric = Fabric::builder().provider("tcp").node("127.0.0.1").open()?;
//! let domain = fabric.open_domain()?;
//! let region = Region::host(1 << 20).build()?;
//! region.register(&domain)?;
//! assert!(region.len() >= 1 << 20);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod access;
#[cfg(feature = "cudarc")]
mod cudarc;
mod device;
mod dlpack;
mod error;
#[cfg(test)]
#[path = "testing/fake.rs"]
pub(crate) mod fake;
mod held;
mod host;
mod ledger;
mod path;
mod region;
mod registration;
pub(crate) mod volatile;

pub use access::Access;
pub use device::{DeviceRegionBuilder, RegionKind};
pub use dlpack::{DlDataType, DlDevice, DlManagedTensor, DlManagedTensorVersioned, DlTensor};
pub use error::{MemoryError, RegisterError};
pub use host::{HostRegionBuilder, HugePages, Pages};
pub use path::{DevicePaths, DirectBy, Path};
pub use region::{Purpose, Region};

pub(crate) use device::DeviceRange;
pub(crate) use held::HeldRegistration;
pub(crate) use ledger::{AccessLedger, Participant, Watcher};
pub(crate) use region::Claim;
pub(crate) use registration::{MAX_SCOPES, RawRegistration, Registrar, Scope, ScopeGuard};

/// The smallest multiple of `to` that is at least `value`; `None` when it does not fit in a
/// `usize`.
pub(crate) fn round_up(value: usize, to: usize) -> Option<usize> {
    value.checked_next_multiple_of(to)
}
