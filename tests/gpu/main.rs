//! GPUs: CUDA itself, cuFile, and GPU memory through endpoints. Over fakes of the driver and of
//! libcufile, and over the machine's own with `FABRICAST_TEST_GPU=real` (`make test-gpu`).

#[path = "../common/alone.rs"]
mod alone;
#[path = "../common/c_library.rs"]
mod c_library;
#[path = "../common/child.rs"]
#[allow(dead_code, reason = "shared with other tests, which use more of it")]
mod child;
mod cuda;
mod cufile;
#[path = "../common/fake_cuda.rs"]
mod fake_cuda;
mod gpu_endpoint;
#[path = "../common/pattern.rs"]
mod pattern;
