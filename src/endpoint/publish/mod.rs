//! Publish and subscribe: one buffer to all that asked for a tag.
//!
//! ```text
//!  PublishEndpoint ── core ── Hub
//!                      ├ table     tag ─► subscribers
//!                      ├ account   what is not over for everybody
//!                      ├ queues     what waits for each subscriber, by its policy
//!                      └ outbox    what is to be told
//!  PublishEndpointBuffered ── buffered (packs, tag by tag) ── PublishEndpoint
//!  SubscribeEndpoint ── subscribe_core ── Hub (dials)
//!                      └ wanted    what it asked of one publisher
//! ```

mod account;
mod buffered;
mod core;
mod event;
mod header;
mod held;
mod outbox;
mod policy;
mod posting;
mod publisher;
mod received;
mod settings;
mod subscribe_core;
mod subscribe_event;
mod subscriber;
mod subscriber_queue;
mod subscriber_queues;
mod table;
mod wanted;

pub use account::Outcomes;
pub use buffered::{
    PublishBufferedConfig, PublishBufferedEvent, PublishEndpointBuffered, PublishedContent,
};
pub use event::{Publication, PublishEvent};
pub use policy::{DropReason, PeerOutcome, SlowPolicy};
pub use publisher::{PublishConfig, PublishEndpoint};
pub use received::{PublicationRef, ReceivedPublications};
pub use subscribe_event::{PublisherId, SubscribeEvent};
pub use subscriber::{SubscribeConfig, SubscribeEndpoint};
pub use wanted::SubscribeError;

#[cfg(all(test, not(loom)))]
mod tests;
