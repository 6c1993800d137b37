//! Endpoints: what sends and receives messages over connections of our own.
//!
//! The pure half is here in three files that know neither libfabric nor a clock: `wire` (the bytes), `credit` (how many
//! messages a peer may send) and `connection` (who may do what, and when it is over).

// The endpoints that use these three are written on top of them.
#[allow(dead_code)]
pub(crate) mod connection;
#[allow(dead_code)]
pub(crate) mod credit;
#[allow(dead_code)]
pub(crate) mod wire;

pub use connection::{CloseReason, Violation};
pub use credit::CreditError;
pub use wire::{ByeReason, HeaderMode, Refusal, RefusalCode, WireError};
