//! Memory that a peer may use by itself, and what this side does with the peer's.

pub(crate) mod destination;
pub(crate) mod exposed;
pub(crate) mod handle;
pub(crate) mod later;
pub(crate) mod one_sided;
pub(crate) mod staged_transfer;
#[cfg(all(test, not(loom)))]
mod tests;
mod unreleased;
pub(crate) mod volatile_buffer;
pub(crate) mod window;
