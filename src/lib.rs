//! Moves bytes from storage and GPU memory to network peers over libfabric, without a copy of its own.

#[allow(dead_code, unused_imports, reason = "the endpoint layer uses the rest")]
pub mod buffer;
pub mod endpoint;
pub mod error;
mod in_flight;
#[allow(dead_code, unused_imports, reason = "the fabric layer uses the rest")]
pub mod memory;
mod sync;

/// Not API: what the benches of this package measure.
#[doc(hidden)]
pub mod __internals {
    pub use crate::in_flight::{ContextError, ContextKind, InFlight};
}
