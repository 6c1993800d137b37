//! GPU memory through endpoints: over a fake driver, whose device memory the host can't touch, and
//! with `FABRICAST_TEST_GPU=real` over the machine's own.

mod coalesced;
#[cfg(feature = "cudarc")]
mod cudarc;
mod endpoints;
mod fake;
mod landing;
mod one_sided;
mod publish;
mod two;
