//! Endpoints: who sends and who receives, over connections of our own.
//!
//! ```text
//!  SendEndpointZeroCopy   ReceiveEndpoint …  public, no type parameter
//!                                            (buffered: small messages in front of the first)
//!        send::core             │            one peer, connected to again and again
//!             └────── hub ──────┘            what all of them do, over any link
//!                      │                     (windows: one-sided operations)
//!                  protocol                  who may do what, the bytes, and when it is over; pure
//!                     link                  the one seam: link::fabric and link::rdm are real,
//!                                           the tests have a fake one
//! ```
//!
//! An endpoint moves messages, and says of each what became of it; providers differ, and endpoints
//! don't. Start with [`SendEndpointZeroCopy`] and [`ReceiveEndpoint`]; what else there is, is one
//! of these with something in front: many small messages ([`SendEndpointBuffered`]), many peers
//! over one endpoint ([`ConnectionlessEndpoint`]), one message to all who asked
//! ([`PublishEndpoint`], [`SubscribeEndpoint`]).
//!
//! ```
//! use fabricast::buffer::SharedBufferManager;
//! use fabricast::endpoint::{ReceiveConfig, ReceiveEvent, SendConfig};
//! use fabricast::{Fabric, ReceiveEndpoint, SendEndpointZeroCopy};
//!
//! let fabric = Fabric::builder().provider("tcp").node("127.0.0.1").open()?;
//! let domain = fabric.open_domain()?;
//! let any = "127.0.0.1:0".parse()?;
//! let mut receiver = ReceiveEndpoint::listen(&domain, any, ReceiveConfig::default())?;
//! let to = receiver.local_addr();
//! let mut sender = SendEndpointZeroCopy::connect(&domain, to, SendConfig::default())?;
//!
//! let pool = SharedBufferManager::allocate(1, 64)?;
//! pool.region().register(&domain)?;
//! let (mut sent, mut received) = (Vec::new(), Vec::new());
//! while !sender.is_connected() {
//!     sender.poll(&mut sent)?;
//!     receiver.poll(&mut received)?;
//! }
//! let buffer = pool.try_acquire().expect("it is free");
//! sender.send_data(buffer.freeze(64), b"event 7", 42)?;
//! while !received.iter().any(|event| matches!(event, ReceiveEvent::Message(_))) {
//!     sender.poll(&mut sent)?;
//!     receiver.poll(&mut received)?;
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod buffered;
mod connectionless;
mod delivery;
mod detached_message;
pub(crate) mod duplex;
pub(crate) mod error;
mod event;
mod header_source;
pub(crate) mod hub;
mod inbox;
pub(crate) mod limits;
pub(crate) mod link;
mod long_messages;
mod message;
mod message_ref;
pub(crate) mod origin;
mod publish;
mod receive;
mod received_messages;
mod reconnect;
pub(crate) mod send;
mod settings;
mod staging;
#[cfg(any(test, fuzzing))]
pub(crate) mod testing;
mod windows;

pub use error::{
    BatchError, Blocked, MessageLimit, PeerError, Refused, SendErrorKind, WindowError,
};

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::protocol::connection::Form;
use crate::protocol::wire::{INDEX_BITS, INDEX_MASK};
use link::ConnKey;

pub use crate::fabric::PeerAddr;
pub use crate::id::{ConnectionId, EndpointId};
pub use crate::memory::Access;
pub use crate::protocol::close_reason::{CloseReason, Violation};
pub use crate::protocol::credit::CreditError;
pub use crate::protocol::wire::{
    ByeReason, HeaderMode, Refusal, RefusalCode, SubscriptionOutcome, WINDOW_DESCRIPTOR_LEN,
    WindowDescriptor, WindowId, WireError,
};
pub use buffered::event::{
    BufferError, BufferedEvent, Carried, PushBatchError, PushError, SmallMessageLimit,
};
pub use buffered::{BufferedConfig, MessageSlot, SendEndpointBuffered};
pub use connectionless::{
    ConnectionlessConfig, ConnectionlessEndpoint, ConnectionlessEvent, PeerId, PeerInUse,
    PeerMessage, PeerMessageRef, ReceivedPeerMessages, SendTo,
};
pub use delivery::{DeviceDelivery, DeviceMessage};
pub use detached_message::DetachedMessage;
pub use event::{
    ConnectionEvent, ConnectionInfo, ConnectionRequest, DeadlinePolicy, Inject, Level, Packing,
    ReceiveEvent, SendEvent,
};
pub use header_source::HeaderSource;
pub use link::socket::{Keepalive, KernelWatch};
pub use long_messages::LongMessages;
pub use message::Message;
pub use message_ref::MessageRef;
pub use publish::{
    DropReason, Outcomes, PeerOutcome, Publication, PublicationRef, PublishBufferedConfig,
    PublishBufferedEvent, PublishConfig, PublishEndpoint, PublishEndpointBuffered, PublishEvent,
    PublishedContent, PublisherId, ReceivedPublications, SlowPolicy, SubscribeConfig,
    SubscribeEndpoint, SubscribeError, SubscribeEvent,
};
pub use receive::{AcceptPolicy, ReceiveConfig, ReceiveEndpoint};
pub use received_messages::ReceivedMessages;
pub use reconnect::ReconnectPolicy;
pub use send::SendStatus;
pub use send::{SendConfig, SendEndpointZeroCopy};
pub use settings::{ConnectionSettings, IncomingSettings, OutgoingSettings};
pub use staging::{StagingConfig, StagingRing, StagingStats};
pub use windows::destination::Destination;
pub(crate) use windows::destination::LeasedDestination;
pub use windows::handle::Windows;
pub(crate) use windows::volatile_buffer;
pub use windows::window::{LocalWindow, RemoteWindow, WindowEvent, WindowMemory, WindowPlace};

/// Which life of this process this is, for peers: drawn once, at random, so that a restarted
/// process has another.
fn incarnation() -> u64 {
    static INCARNATION: OnceLock<u64> = OnceLock::new();
    *INCARNATION.get_or_init(seed)
}

/// A number that nobody could foresee, as far as the system has one.
fn seed() -> u64 {
    crate::random::random_u64()
}

/// What this side calls a connection in its hello: unique in this process; in the RDM form it ends
/// in the index by which the peer is to address it.
fn hello_connection(form: Form, key: ConnKey) -> u64 {
    match form {
        Form::Msg => next_connection(),
        Form::Rdm => next_connection() << INDEX_BITS | key as u64 & u64::from(INDEX_MASK),
    }
}

/// A number for a connection, unique in this process.
fn next_connection() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
