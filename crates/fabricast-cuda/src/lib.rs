#![doc = include_str!("../README.md")]
//!
//! # How it is made
//!
//! ```text
//!  Device ── all, new ── or what is missing, in words
//!    ├── Stream      owned, or another library's ── record ── Event
//!    ├── MemoryKind  what lies at an address
//!    └── DmaBuf      its memory as a descriptor
//!  Cuda ── ready     the table: contexts, memory, pinned memory of the host, copies
//! ```
//!
//! The table of functions is our own: a foreign code must not become a Rust enum, and a missing
//! function is an error and no panic. The context that a call needs is made current in the thread
//! that makes it, and what was current before is put back.

#![deny(unsafe_code)]
// Which feature an item needs, in the pages of docs.rs, which builds with a nightly compiler.
#![cfg_attr(docsrs, feature(doc_cfg))]

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

pub use context::{Context, Current};
#[cfg(feature = "cudarc")]
pub use cudarc::OfCudarc;
pub use device::{Device, DeviceFeatures};
pub use dmabuf::DmaBuf;
pub use driver::{Cuda, FABRICAST_CUDA, may_be_here};
pub use error::{CudaCode, CudaError, CudaUnavailable};
pub use event::Event;
pub use fabricast_process::Attempt;
pub use memory::{DeviceAllocation, MemoryKind};
pub use stream::Stream;
pub use virtual_memory::Mapped;

/// A CUDA stream, `CUstream`; null is the default stream.
pub type RawStream = *mut std::ffi::c_void;
/// A CUDA event, `CUevent`.
pub type RawEvent = *mut std::ffi::c_void;
