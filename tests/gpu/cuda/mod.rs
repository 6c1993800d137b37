//! CUDA: devices, streams, regions of device memory, their paths, and files into them; over a fake
//! driver, and the same over the real one with `FABRICAST_TEST_GPU=real` (`make test-gpu`).

#[cfg(feature = "cudarc")]
mod cudarc;
mod devices;
mod direct;
mod files;
mod loading;
mod object;
mod objects;
mod paths;
mod regions;
mod staged_objects;
