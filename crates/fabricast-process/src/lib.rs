#![doc = include_str!("../README.md")]
//!
//! # What is here
//!
//! ```text
//!  Owner, Here<T>   who made it: in a forked child it answers Forked, and is not dropped
//!  SharedObject     a library that is loaded at run time, its functions, and why there is none
//!  mapping          memory from libc's mmap, advised and unmapped where libfabric can see it
//!  contained        calls of foreign code, and what it said when it panicked
//!  debug_as_words   `Debug` of an error is its words
//! ```

#![deny(unsafe_code)]

mod contained;
pub mod mapping;
mod owner;
mod shared_object;
mod words;

pub use contained::contained;
pub use owner::{Forked, Here, Owner};
pub use shared_object::{Attempt, Attempts, Missing, SharedObject};

/// What tests of more than one crate share.
#[cfg(test)]
#[path = "../../../tests/common/forked.rs"]
mod forked;
