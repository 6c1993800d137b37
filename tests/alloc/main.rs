//! What allocates nothing once it is warm, or no more than it says. A program of its own, because the allocator is the process's.

mod buffered;
#[path = "../common/mod.rs"]
mod common;
mod counting;
mod endpoints;
mod event_loop;
mod streams;
