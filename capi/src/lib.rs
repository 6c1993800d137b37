//! The C interface of `fabricast`: what a C or C++ program links.
//!
//! `include/fabricast.h` is generated from this crate, `include/fabricast.hpp` is written over it.
//! The rules that all functions keep:
//!
//! * A handle is a struct of one number. It is looked up in a table of its kind (`table.rs`), so
//!   one that was released, or never was, gets [`FCAST_STALE`](status::FCAST_STALE).
//! * A function returns a status, and its results by pointers that it writes on success alone.
//!   The words of a failure are kept for the thread (`status.rs`).
//! * No panic leaves a function (`call.rs`), and no function of the caller's is called while
//!   something is locked, but those that say so.
//! * One thread at a time uses an endpoint, a ring or a loop: a second one gets
//!   [`FCAST_BUSY`](status::FCAST_BUSY). All else may be used by any thread at any time.

#![deny(unsafe_code)]
#![allow(non_camel_case_types)] // The names of C.

pub mod batch;
pub mod buffered;
pub mod call;
pub mod coalesced;
pub mod connectionless;
pub mod device;
pub mod endpoint;
pub mod event;
pub mod fabric;
mod face;
mod failures;
mod handle;
pub mod message;
pub mod open;
pub mod payload;
mod pointer;
pub mod pool;
pub mod publish;
pub mod region;
pub mod ring;
pub mod send;
pub mod settings;
mod settings_of;
pub mod status;
pub mod subscribe;
mod table;
pub mod wait;
pub mod window;
pub mod window_operations;
