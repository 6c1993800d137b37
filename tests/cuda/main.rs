//! CUDA: devices, streams, regions of device memory, their paths, and files into them; over a fake driver, and the same over the real one with
//! `FABRICAST_TEST_GPU=real` (`make test-gpu`).

#[path = "../common/alone.rs"]
mod alone;
#[path = "../common/c_library.rs"]
mod c_library;
#[path = "../common/child.rs"]
#[allow(dead_code, reason = "shared with other tests, which use more of it")]
mod child;
#[cfg(feature = "cudarc")]
mod cudarc;
mod devices;
mod direct;
#[path = "../common/fake_cuda.rs"]
mod fake_cuda;
mod files;
mod loading;
mod paths;
#[path = "../common/pattern.rs"]
mod pattern;
mod regions;
