//! The C ABI of libfabric, written by hand and loaded at run time.
//!
//! No header, no C compiler and no system package is needed to build this crate; the library is
//! looked for when [`Library::load`](library::Library::load) is called. There is no logic here and
//! nothing is safe to call that is not safe in C: the crate `fabricast` is the safe layer.
//!
//! ```text
//!  library   the dozen functions that libfabric.so.1 exports, and the version that was negotiated
//!  inline    the functions that C headers define inline, through ops
//!  ops       tables of function pointers
//!  types     structs
//!  consts    constants
//!  version   version numbers
//! ```
//!
//! # Versions
//!
//! One binary works with libfabric 1.17 to 2.x. Structs are declared in the layout of [`NEWEST`],
//! `fi_getinfo` is asked for [`Library::negotiated`](library::Library::negotiated), and a field,
//! constant or operation that came later than 1.17 says so in its comment: it may be used only if
//! the negotiated version is at least that one.
//!
//! What is not here: atomics, collectives, tagged and triggered operations, counters, wait and poll
//! sets.

pub mod consts;
pub mod inline;
pub mod library;
pub mod ops;
mod signals;
pub mod types;
pub mod version;

pub use consts::*;
pub use inline::*;
pub use library::{Library, LoadError};
pub use ops::*;
pub use types::*;
pub use version::*;
