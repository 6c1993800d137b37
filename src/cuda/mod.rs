//! CUDA: the driver's functions that this library needs, loaded at run time. It builds and runs without CUDA.
//!
//! The table is our own, since a foreign code must not become a Rust enum, and a missing function must be an error and no panic.

mod driver;
mod error;

pub use driver::FABRICAST_CUDA;
pub use error::{CudaCode, CudaError, CudaUnavailable};

pub(crate) use driver::{Context, Cuda, Current};

/// A CUDA stream, `CUstream`; null is the default stream.
pub type RawStream = *mut std::ffi::c_void;
