//! Streams from end to end: files to directories and memory, over both kinds of connections.

#[path = "../common/mod.rs"]
mod common;
mod transfers;
mod world;
