//! CUDA: the functions of the driver that this library needs, loaded at run time. It builds and
//! runs without CUDA.
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
//! The table of functions is our own: a foreign code must not become a Rust enum, and a missing
//! function is an error and no panic. The context that a call needs is made current in the thread
//! that makes it, and what was current before is put back.

mod context;
#[cfg(feature = "cudarc")]
mod cudarc;
mod device;
mod dmabuf;
mod driver;
mod error;
mod event;
mod memory;
mod stream;
mod virtual_memory;

pub use device::{Device, DeviceFeatures};
pub use dmabuf::DmaBuf;
pub use driver::FABRICAST_CUDA;
pub use error::{CudaCode, CudaError, CudaUnavailable};
pub use event::Event;
pub use memory::{DeviceAllocation, MemoryKind};
pub use stream::Stream;

pub(crate) use context::{Context, Current};
#[cfg(feature = "cudarc")]
pub(crate) use cudarc::OfCudarc;
pub(crate) use driver::{Cuda, may_be_here};
pub(crate) use virtual_memory::Mapped;

/// A CUDA stream, `CUstream`; null is the default stream.
pub type RawStream = *mut std::ffi::c_void;
/// A CUDA event, `CUevent`.
pub type RawEvent = *mut std::ffi::c_void;
