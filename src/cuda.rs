//! CUDA: devices, streams, events and memory of the driver that is loaded at run time. The crate
//! `fabricast-cuda`; it builds and runs without CUDA.
//!
//! ```text
//!  Device ── all, new ── or what is missing, in words
//!    ├── Stream      owned, or another library's ── record ── Event
//!    ├── MemoryKind  what lies at an address
//!    └── DmaBuf      its memory as a descriptor
//! ```
//!
//! Memory of devices is in [`memory`](crate::memory): a [`Region`](crate::Region) like any other,
//! whose bytes the host never touches.
//!
//! It is here so that who sends a GPU's memory can name its device, and say by a stream or an event
//! when the bytes are ready. Start with [`Device::all`]:
//!
//! ```
//! use fabricast::cuda::Device;
//!
//! match Device::all() {
//!     Ok(devices) => println!("{} GPUs", devices.len()),
//!     Err(why) => println!("no GPU is used: {why}"),
//! }
//! ```

pub use fabricast_cuda::{
    Attempt, CudaCode, CudaError, CudaUnavailable, Device, DeviceAllocation, DeviceFeatures,
    DmaBuf, Event, FABRICAST_CUDA, MemoryKind, RawEvent, RawStream, Stream,
};

#[cfg(feature = "cudarc")]
pub(crate) use fabricast_cuda::OfCudarc;
pub(crate) use fabricast_cuda::{Context, Cuda, Current, Mapped, may_be_here};
