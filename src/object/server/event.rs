//! `ChannelEvent`: what became of a transfer.

use crate::buffer::Payload;
use crate::endpoint::Destination;
use crate::object::server::error::TransferError;

/// What a channel reports. Each transfer that was accepted has exactly one outcome: the first four
/// are outcomes.
#[derive(Debug)]
#[non_exhaustive]
pub enum ChannelEvent {
    /// The payload is in the client's memory.
    Written {
        /// The key that was given.
        key: u64,
        /// What was given.
        payload: Payload,
    },
    /// The bytes of the client's memory are in the destination.
    Read {
        /// The key that was given.
        key: u64,
        /// What was given, filled.
        into: Destination,
    },
    /// A write failed.
    WriteFailed {
        /// The key that was given.
        key: u64,
        /// What was given. `None`: the provider still has it, and it comes with
        /// [`WriteReturned`](Self::WriteReturned); or the provider would not let go of it, and it
        /// was leaked.
        payload: Option<Payload>,
        /// Why.
        error: TransferError,
    },
    /// A read failed; what is in the destination is a part of the bytes, or none.
    ReadFailed {
        /// The key that was given.
        key: u64,
        /// What was given. `None` as in [`WriteFailed`](Self::WriteFailed), and it comes with
        /// [`ReadReturned`](Self::ReadReturned).
        into: Option<Destination>,
        /// Why.
        error: TransferError,
    },
    /// The provider is done with the payload of a write that failed before. Not an outcome.
    WriteReturned {
        /// The key that was given.
        key: u64,
        /// What was given.
        payload: Payload,
    },
    /// The provider is done with the destination of a read that failed before. Not an outcome.
    ReadReturned {
        /// The key that was given.
        key: u64,
        /// What was given.
        into: Destination,
    },
}

impl ChannelEvent {
    /// The key of the transfer that it is about.
    pub fn key(&self) -> u64 {
        match self {
            Self::Written { key, .. }
            | Self::Read { key, .. }
            | Self::WriteFailed { key, .. }
            | Self::ReadFailed { key, .. }
            | Self::WriteReturned { key, .. }
            | Self::ReadReturned { key, .. } => *key,
        }
    }

    /// Whether it tells what became of a transfer; else it only gives memory back.
    pub fn is_outcome(&self) -> bool {
        !matches!(self, Self::WriteReturned { .. } | Self::ReadReturned { .. })
    }
}
