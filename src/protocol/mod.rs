//! What two endpoints say to each other and what follows from it; pure: no libfabric, no clock, no
//! file.
//!
//! ```text
//!  connection       one connection: who may do what when, and how it ends (close_reason)
//!     ├── credit    how many messages the peer has room for
//!     ├── liveness  how long the peer may be silent
//!     └── wire      the bytes; what the RDM form says beyond them: endpoint/link/rdm_hello.rs
//!  reorder          messages that came before their turn
//! ```

pub(crate) mod close_reason;
pub(crate) mod connection;
pub(crate) mod credit;
#[cfg(any(test, fuzzing))]
#[path = "testing/hostile.rs"]
pub(crate) mod hostile;
pub(crate) mod liveness;
pub(crate) mod reorder;
pub(crate) mod wire;
