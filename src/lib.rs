//! Moves bytes from storage and GPU memory to network peers over libfabric, from where they lie.
//! What it copies itself is counted, and can be avoided: short messages that find others under way
//! ([`Packing`](endpoint::Packing)), long ones over `FI_EP_RDM`
//! ([`ReceiveStats::long_copied`](stats::ReceiveStats::long_copied)), and what the hardware can't
//! reach ([`memory`], [`storage`]).
//!
//! Start at [`SendEndpointZeroCopy`] and [`ReceiveEndpoint`]; their examples run on any machine
//! that has libfabric, over its `tcp` provider.
//!
//! ```text
//!  Region ── register(&Domain)                 Fabric::builder() ── open ── open_domain
//!    │                                                                         │
//!  SharedBufferManager ── BufferMut ── freeze ── Buffer ──┐                    │
//!  RingRegion ── Reservation ── commit ── RingFragment ───┤       SendEndpointZeroCopy
//!                                                         └── send_data(payload, header, key)
//!                                                                 ├── Completed{key, payload}
//!                                                                 ║  libfabric
//!                              ReceiveEndpoint ── poll ── Message ── drop, on any thread
//! ```
//!
//! What it does not do: no async runtime (poll, sleep on a descriptor, or bring your own runtime:
//! [`future`]), no thread for an endpoint (but those that connect over `verbs`, for as long as the
//! provider takes), no copy of a long payload that the provider can send, no retry of a send (every
//! accepted one has exactly one outcome, and what to do about a failed one is the caller's). Files
//! have threads, in pools that [`storage`] describes, and so have streams ([`stream`]) and objects
//! ([`object`]). GPU memory is a [`Region`] whose bytes the host never touches ([`cuda`],
//! [`memory`]). Nothing is encrypted, and no peer has to say who it is, but those of streams with a
//! [key](stream::PresharedKey).

#![deny(unsafe_code)]
// Which feature an item needs, in the pages of docs.rs, which builds with a nightly compiler.
#![cfg_attr(docsrs, feature(doc_cfg))]

// What the tests of this package share names it so.
#[cfg(all(test, not(loom)))]
extern crate self as fabricast;

pub mod buffer;
mod clock;
pub mod coalesce;
mod contain;
pub mod cuda;
pub mod endpoint;
mod errno;
pub mod error;
pub mod event_loop;
pub mod fabric;
#[cfg(all(test, not(loom)))]
#[path = "testing/fake_gpu.rs"]
mod fake_gpu;
#[cfg(all(test, not(loom)))]
#[path = "../tests/common/forked.rs"]
mod forked;
pub mod future;
mod id;
mod in_flight;
pub mod memory;
pub mod metrics;
pub mod object;
mod poll;
mod protocol;
mod random;
#[cfg(test)]
#[path = "testing/soak.rs"]
mod soak;
pub mod stats;
pub mod storage;
pub mod stream;
mod sync;

// What lies below all of this, by the names that it has here.
use fabricast_process as process;
use fabricast_process::mapping;

pub use endpoint::{
    BufferedEvent, ConnectionEvent, ConnectionlessEndpoint, PeerAddr, PublishBufferedEvent,
    PublishEndpoint, PublishEndpointBuffered, PublishEvent, ReceiveEndpoint, ReceiveEvent,
    SendEndpointBuffered, SendEndpointZeroCopy, SendEvent, SubscribeEndpoint, SubscribeEvent,
};
pub use error::Error;
pub use fabric::{Domain, Fabric};
pub use memory::Region;

/// Not API: what the benches of this package measure.
#[doc(hidden)]
pub mod __internals {
    use crate::in_flight::{ContextKind, InFlight};

    /// One operation after the other through a slab of operations in flight: its context, and back.
    /// `cells`: contexts that the provider writes into.
    pub fn in_flight_round(cells: bool) -> impl FnMut(u64) -> u64 {
        let kind = match cells {
            true => ContextKind::Cells,
            false => ContextKind::Opaque,
        };
        let mut slab = InFlight::new(256, kind);
        move |op| {
            let context = slab.begin(op).expect("one at a time");
            let context = std::hint::black_box(context);
            slab.finish(context).expect("just begun")
        }
    }
}

/// Not API: the functions that the fuzz targets drive with bytes of a peer, where the library is
/// built for fuzzing.
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod __fuzz {
    /// Every parser of bytes that peers send. Panics where one is wrong.
    pub fn wire(bytes: &[u8]) {
        crate::protocol::wire::exercise(bytes);
    }

    /// The address in a hello of the RDM form. Panics where what is understood is not what was
    /// said.
    pub fn hello(bytes: &[u8]) {
        crate::endpoint::link::rdm_hello::exercise(bytes);
    }

    /// One connection whose peer says anything at any time, local calls among it. Panics where the
    /// connection breaks a promise.
    pub fn connection(bytes: &[u8]) {
        crate::protocol::hostile::exercise(bytes);
    }

    /// Two connections of one domain whose peers lie together, over a network in memory. Panics
    /// where one of them touches memory that was given back.
    #[cfg(not(loom))]
    pub fn two_connections(bytes: &[u8]) {
        crate::endpoint::testing::liars::exercise(bytes);
    }

    /// The same where the library's endpoints send, and those who receive lie.
    #[cfg(not(loom))]
    pub fn lying_receivers(bytes: &[u8]) {
        crate::endpoint::testing::liars::senders::exercise(bytes);
    }

    /// What a peer of a stream says, in whatever order, and a journal that was tampered with.
    /// Panics where a promise is broken.
    pub fn stream_wire(bytes: &[u8]) {
        crate::stream::hostile::exercise(bytes);
    }

    /// A token of an object's client, and the endpoint's name in it. Panics where what is
    /// understood is not what was said.
    pub fn token(bytes: &[u8]) {
        crate::object::exercise_token(bytes);
    }

    /// Both parsers of messages about objects. Panics where what is understood is not what was
    /// said.
    pub fn object_wire(bytes: &[u8]) {
        crate::object::wire::exercise(bytes);
    }

    /// Both parsers of coalesced buffers. Panics where one breaks its promises.
    pub fn coalesced(bytes: &[u8]) {
        crate::coalesce::exercise(bytes);
    }
}

/// The examples of the README and of the guide, as tests.
#[cfg(doctest)]
mod documents {
    #[doc = include_str!("../README.md")]
    struct Readme;
    #[doc = include_str!("../docs/guide/async.md")]
    struct Async;
    #[doc = include_str!("../docs/guide/errors.md")]
    struct Errors;
    #[doc = include_str!("../docs/guide/files.md")]
    struct Files;
    #[doc = include_str!("../docs/guide/gpu.md")]
    struct Gpu;
    #[doc = include_str!("../docs/guide/limits.md")]
    struct Limits;
    #[doc = include_str!("../docs/guide/metrics.md")]
    struct Metrics;
    #[doc = include_str!("../docs/guide/objects.md")]
    struct Objects;
    #[doc = include_str!("../docs/guide/providers.md")]
    struct Providers;
    #[doc = include_str!("../docs/guide/publish.md")]
    struct Publish;
    #[doc = include_str!("../docs/guide/send.md")]
    struct Send;
    #[doc = include_str!("../docs/guide/small-messages.md")]
    struct SmallMessages;
    #[doc = include_str!("../docs/guide/streams.md")]
    struct Streams;
}
