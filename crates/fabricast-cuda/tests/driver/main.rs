//! CUDA's driver: what is said where there is none, devices, streams, events and memory; over a
//! fake driver, and the same over the real one with `FABRICAST_TEST_GPU=real` (`make test-gpu`).

#[path = "../../../../tests/common/alone.rs"]
mod alone;
#[path = "../../../../tests/common/c_library.rs"]
mod c_library;
mod devices;
#[path = "../../../../tests/common/fake_cuda.rs"]
mod fake_cuda;
mod loading;
mod memory;
#[path = "../../../../tests/common/pattern.rs"]
mod pattern;
