//! Streams from end to end: files to directories and memory, over both kinds of connections.

#![allow(unsafe_code)]

mod chaos;
#[path = "../common/mod.rs"]
mod common;
mod control;
mod fan_out;
mod hostile;
mod large;
#[path = "../common/pattern.rs"]
mod pattern;
mod resume;
mod transfers;
mod world;
