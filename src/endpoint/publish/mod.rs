//! Publish and subscribe: one buffer to all that asked for a tag.
//!
//! ```text
//!  PublishEndpoint ── core ── ReceiveCore          SubscribeEndpoint ── subscribe_core ── ReceiveCore (dials)
//!                      ├ table     tag ─► subscribers                   └ wanted   what it asked of one publisher
//!                      ├ account   what is not over for everybody
//!                      └ lane      what waits for one subscriber, by its policy
//! ```

mod account;
mod core;
mod event;
mod lane;
mod policy;
mod stats;
mod subscribe_core;
mod subscribe_event;
mod table;
mod wanted;
