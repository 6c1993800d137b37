//! GPU memory through endpoints: over a fake driver, whose device memory the host can't touch, and with `FABRICAST_TEST_GPU=real` over the
//! machine's own.

mod endpoints;
mod fake;
