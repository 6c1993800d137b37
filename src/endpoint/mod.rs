//! Endpoints: who sends and who receives, over connections of our own.
//!
//! ```text
//!  SendEndpointZeroCopy   ReceiveEndpoint      public, no type parameter
//!        send_core          receive_core       what they do, over any link
//!             └──── connection ────┘           who may do what, and when it is over; pure (with wire and credit)
//!                     link                     the one seam: fabric_link is real, the tests have a fake one
//! ```

mod buffered;
mod buffered_core;
#[cfg(all(test, not(loom)))]
mod buffered_core_tests;
mod buffered_event;
mod conn_table;
pub(crate) mod connection;
mod control;
pub(crate) mod credit;
mod destination;
mod event;
mod exposed;
mod fabric_link;
#[cfg(all(test, not(loom)))]
mod fake_future_tests;
#[cfg(all(test, not(loom)))]
mod fake_link;
#[cfg(all(test, not(loom)))]
mod fake_rig;
#[cfg(all(test, not(loom)))]
mod fake_walk_tests;
mod fd_limit;
mod half_open;
mod id;
mod iov;
pub(crate) mod link;
mod liveness;
mod message;
mod one_sided;
#[cfg(all(test, not(loom)))]
mod one_sided_tests;
mod receive;
mod receive_core;
#[cfg(all(test, not(loom)))]
mod receive_core_tests;
#[cfg(all(test, not(loom)))]
mod receive_scale_tests;
mod recent_lease;
mod reconnect;
mod scoped;
mod send;
mod send_core;
#[cfg(all(test, not(loom)))]
mod send_core_tests;
mod socket;
mod wait;
mod window;
pub(crate) mod wire;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

pub use crate::fabric::PeerAddr;
pub use crate::memory::Access;
pub use buffered::{BufferedConfig, MessageSlot, SendEndpointBuffered};
pub use buffered_event::{
    BufferError, BufferedEvent, Carried, PushError, SendBufferError, SmallMessageLimit,
};
pub use connection::{CloseReason, Violation};
pub use credit::CreditError;
pub use destination::Destination;
pub use event::{
    ConnectionInfo, ConnectionRequest, DeadlinePolicy, Level, ReceiveEvent, SendEvent,
};
pub use id::{ConnectionId, EndpointId};
pub use message::Message;
pub use receive::{AcceptPolicy, ReceiveConfig, ReceiveEndpoint};
pub use reconnect::ReconnectPolicy;
pub use send::{SendConfig, SendEndpointZeroCopy};
pub use socket::{Keepalive, KernelWatch};
pub use window::{
    ExposeError, LocalWindow, RemoteWindow, WindowError, WindowEvent, WindowMemory, WindowPlace,
};
pub use wire::{
    ByeReason, HeaderMode, Refusal, RefusalCode, WINDOW_DESCRIPTOR_LEN, WindowDescriptor, WindowId,
    WireError,
};

/// Which life of this process this is, for peers: drawn once, at random, so that a restarted process has another.
fn incarnation() -> u64 {
    static INCARNATION: OnceLock<u64> = OnceLock::new();
    *INCARNATION.get_or_init(seed)
}

/// A number that nobody could foresee, as far as the system has one.
fn seed() -> u64 {
    crate::random::random_u64()
}

/// A number for a connection, unique in this process.
fn next_connection() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
