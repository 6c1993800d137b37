#![doc = include_str!("../README.md")]
//!
//! # What is here
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
//! Structs are declared in the layout of [`NEWEST`], `fi_getinfo` is asked for
//! [`Library::negotiated`](library::Library::negotiated), and a field, constant or operation that
//! came later than 1.17 says so in its comment.

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
