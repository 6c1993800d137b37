//! Peers that lie, over two connections at once: raw programs over libfabric that say anything at
//! any time, and use keys where they were not given them. No byte of memory that the library gave
//! back changes, or goes out; who lies is closed; and others are served.
//!
//! Over FI_EP_MSG of tcp, on whichever libfabric is loaded. Where endpoints are shared, see
//! `connectionless` and `landings`.

mod answers;
#[path = "../common/mod.rs"]
mod common;
mod connectionless;
mod floods;
mod landings;
mod late;
mod long_messages;
mod marks;
mod peer;
mod relay;
mod victim;
mod windows;
mod wire;
