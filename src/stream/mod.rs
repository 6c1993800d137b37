//! Streams: files, or other runs of bytes, from storage to one or many peers, checked, and continued where they were cut.
//!
//! What is here so far is what needs no fabric, no thread and no file: the bytes that the two sides exchange, and what each of them keeps account of.

// The engines that use all of this are still to come.
#![allow(dead_code)]

pub(crate) mod auth;
mod block_set;
mod blocks;
pub(crate) mod content_hash;
pub(crate) mod digest;
mod error;
pub(crate) mod handshake;
pub(crate) mod hostile;
mod identity;
pub(crate) mod journal;
mod limits;
mod manifest;
mod name;
mod rate;
pub(crate) mod receiving;
pub(crate) mod sending;
#[cfg(test)]
mod simulation;
pub(crate) mod wire;

pub use auth::{KEY_LEN_MAX, KEY_LEN_MIN, PresharedKey};
pub use block_set::BlockSet;
pub use blocks::{Block, BlockPlan};
pub use content_hash::HASHED_BLOCK_MIN;
pub use digest::{StreamDigest, crc32c};
pub use error::{RefusalCode, StreamError, StreamViolation};
pub use journal::JournalError;
pub use limits::Limits;
pub use manifest::{Entry, EntryKind, EntryProblem, Manifest, ManifestError, Modified};
pub use name::{COMPONENT_LEN_MAX, NAME_LEN_MAX, NameError, RelativeName};
pub use rate::RateLimit;
pub use wire::{StreamIdentity, WireError};
