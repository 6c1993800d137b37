//! Moves bytes from storage and GPU memory to network peers over libfabric, without a copy of its own.

pub mod endpoint;
pub mod error;
pub mod event_loop;
mod sync;
