//! Moves bytes from storage and GPU memory to network peers over libfabric, without a copy of its own.

#![deny(unsafe_code)]

pub mod buffer;
pub mod endpoint;
pub mod error;
pub mod event_loop;
pub mod fabric;
mod in_flight;
pub mod memory;
pub mod stats;
mod sync;

pub use endpoint::{PeerAddr, ReceiveEndpoint, ReceiveEvent, SendEndpointZeroCopy, SendEvent};
pub use error::Error;
pub use fabric::{Domain, Fabric};
pub use memory::Region;

/// Not API: what the benches of this package measure.
#[doc(hidden)]
pub mod __internals {
    pub use crate::in_flight::{ContextError, ContextKind, InFlight};
}
