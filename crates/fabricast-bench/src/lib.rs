//! What `fabricast bench` measures with: each operation through `fabricast` and, beside it in the
//! same run, through a bare loop over `libfabric-sys`, in interleaved pairs between two processes.
//!
//! ```text
//!   pairs ── Runner ── client ── ours/, bare/ ══ libfabric ══ ours/, bare/ ── server
//!              │          └──────── control (lines over TCP, agreed on in session) ────┘
//!              └ team: several such clients, in processes of their own
//! ```
//!
//! `benches/README.md` says what each operation times, and which keys its records have.

mod bare;
pub mod case;
pub mod child;
pub mod client;
pub mod clock;
mod coalesced;
pub mod control;
pub mod deadline;
pub mod error;
pub mod facts;
pub mod gaps;
pub mod host;
mod http;
pub mod json;
mod latency;
mod object;
mod object_request;
mod ours;
pub mod pairs;
mod publish;
pub mod record;
pub mod report;
pub mod server;
pub mod session;
pub mod size;
pub mod stats;
mod stream;
pub mod team;
pub mod times;

pub use coalesced::{LONE, POLL_EVERY, per_buffer};
pub use ours::{CONNECT, Incoming, describe, has_provider, payloads};
