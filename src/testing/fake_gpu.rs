//! The fake CUDA driver that all tests of this package share, for unit tests: those of endpoints
//! with a device's memory over the fake link.

#[path = "../../tests/common/alone.rs"]
mod alone;
#[path = "../../tests/common/c_library.rs"]
mod c_library;
#[path = "../../tests/common/fake_cuda.rs"]
mod fake_cuda;

pub(crate) use fake_cuda::{Fake, over_the_fake};
