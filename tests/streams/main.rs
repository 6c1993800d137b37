//! Streams from end to end: files to directories and memory, over both kinds of connections.

#![allow(unsafe_code)]

#[path = "../common/alone.rs"]
mod alone;
mod by_write;
#[path = "../common/c_library.rs"]
mod c_library;
mod chaos;
#[path = "../common/mod.rs"]
mod common;
mod control;
#[path = "../common/fake_cuda.rs"]
mod fake_cuda;
mod fan_out;
mod gpu;
mod hostile;
mod large;
mod link;
mod links;
#[path = "../common/namespaces.rs"]
mod namespaces;
mod panics;
#[path = "../common/pattern.rs"]
mod pattern;
mod placing;
mod resume;
mod sparse;
mod stalls;
#[path = "../../benches/stream_bench/throttled.rs"]
mod throttled;
mod transfers;
mod world;
