//! GPU memory through endpoints: over a fake driver, whose device memory the host can't touch, and with `FABRICAST_TEST_GPU=real` over the
//! machine's own.

#[path = "../common/alone.rs"]
mod alone;
#[path = "../common/c_library.rs"]
mod c_library;
mod coalesced;
#[cfg(feature = "cudarc")]
mod cudarc;
mod endpoints;
mod fake;
#[path = "../common/fake_cuda.rs"]
mod fake_cuda;
mod landing;
mod one_sided;
#[path = "../common/pattern.rs"]
mod pattern;
mod publish;
mod two;
