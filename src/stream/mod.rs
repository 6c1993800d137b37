//! Streams: files, or other runs of bytes, from storage to one or many peers, checked, and continued where they were cut.
//!
//! What is here so far is what needs no fabric, no thread and no file: the bytes that the two sides exchange, and what each of them keeps account of.

// The engines that use all of this are still to come.
#![allow(dead_code)]

mod blocks;
mod error;
mod manifest;
mod name;
pub(crate) mod wire;

pub use blocks::{Block, BlockPlan};
pub use error::{RefusalCode, StreamError, StreamViolation};
pub use manifest::{Entry, EntryKind, EntryProblem, Manifest, ManifestError, Modified};
pub use name::{COMPONENT_LEN_MAX, NAME_LEN_MAX, NameError, RelativeName};
pub use wire::{StreamIdentity, WireError};
