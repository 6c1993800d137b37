//! CUDA: devices, streams, regions of device memory, their paths, and files into them; over a fake driver, and the same over the real one with
//! `FABRICAST_TEST_GPU=real` (`make test-gpu`).

mod devices;
#[path = "../common/fake_cuda.rs"]
mod fake_cuda;
mod files;
mod loading;
mod paths;
mod pattern;
mod regions;
