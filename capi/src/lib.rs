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
pub mod batch_peers;
pub mod buffered;
pub mod call;
pub mod coalesced;
pub mod completed;
pub mod connectionless;
pub mod device;
pub mod device_order;
pub mod endpoint;
pub mod event;
pub mod event_loop;
pub mod event_loop_calls;
pub mod fabric;
mod face;
mod failures;
pub mod file;
pub mod file_batch;
pub mod file_defaults;
mod file_memory;
pub mod file_stats;
pub mod file_transfer;
pub mod file_vectored;
mod handle;
pub mod headers;
mod inside;
pub mod log;
pub mod memory_kind;
pub mod message;
pub mod object;
pub mod object_client;
pub mod object_info;
pub mod object_list;
pub mod object_piece;
pub mod object_remote;
pub mod object_server;
pub mod object_service;
pub mod object_store;
pub mod object_telemetry;
pub mod object_transfer;
pub mod open;
pub mod payload;
mod pointer;
pub mod pool;
pub mod publish;
pub mod publish_buffered;
pub mod receive;
pub mod region;
pub mod ring;
pub mod send;
pub mod settings;
mod settings_of;
pub mod stats;
pub mod stats_text;
pub mod status;
pub mod stream;
pub mod stream_offer;
pub mod stream_receive;
pub mod stream_send;
pub mod stream_sink;
mod stream_source;
pub mod stream_transfer;
pub mod subscribe;
mod table;
mod untaken;
pub mod wait;
pub mod window;
pub mod window_memory;
pub mod window_operations;
