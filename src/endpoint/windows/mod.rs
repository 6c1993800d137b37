//! Memory that a peer may use by itself, and what this side does with the peer's.

pub(crate) mod destination;
pub(crate) mod exposed;
pub(crate) mod handle;
pub(crate) mod landing;
pub(crate) mod later;
#[cfg(all(test, not(loom)))]
mod line_tests;
pub(crate) mod one_sided;
#[cfg(all(test, not(loom)))]
mod one_sided_tests;
pub(crate) mod passage;
pub(crate) mod window;
