//! What allocates nothing once it is warm, or no more than it says. A program of its own, because
//! the allocator is the process's.

mod buffered;
#[path = "../common/mod.rs"]
mod common;
mod counting;
mod endpoints;
mod event_loop;
mod streams;

/// What a listener's handshakes may take here: twice in that time it looks for sockets that are
/// half open, which reads a directory and allocates.
const HANDSHAKE: std::time::Duration = std::time::Duration::from_secs(3600);
