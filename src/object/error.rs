//! What can go wrong with objects, on the side that lends memory.

use std::sync::Arc;

use crate::Error;
use crate::cuda::CudaError;
use crate::memory::{Access, MemoryError, RegionKind, RegisterError};
use crate::object::{ObjectMemory, TokenError};
use crate::process::Forked;

/// Why memory can't be lent, or not now.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ObjectError {
    /// The memory has no byte, or none was asked for.
    #[error("0 bytes: what is lent has at least 1")]
    Empty,
    /// The range ends before it begins.
    #[error("the range {start}..{end} ends before it begins: a range is start..end, in bytes")]
    Reversed {
        /// Where it begins, in bytes.
        start: u64,
        /// Where it ends, in bytes.
        end: u64,
    },
    /// The range reaches beyond the memory.
    #[error(
        "{len} bytes at offset {offset} of memory of {memory_len} bytes: stay within it \
         (`ObjectMemory::len`)"
    )]
    OutOfRange {
        /// Where it begins, in bytes.
        offset: u64,
        /// How long it is, in bytes.
        len: u64,
        /// How long the memory is, in bytes.
        memory_len: u64,
    },
    /// The memory was not registered for that operation.
    #[error(
        "{asked} asked for, the memory allows {has}: `ObjectClient::register` says what servers \
         may do (WRITE for GET, READ for PUT), and memory that is shared can only be read"
    )]
    Access {
        /// What was asked for.
        asked: Access,
        /// What there is.
        has: Access,
    },
    /// A transfer into this memory was given up, and what it began may still land.
    #[error(
        "a transfer into this memory was given up, and what it began may still land: it can be \
         lent again when no other token of this client stands, or use other memory meanwhile"
    )]
    Quarantined,
    /// As many tokens stand as the client may have.
    #[error("{limit} tokens stand, as many as may at once (setting `tokens`): drop some")]
    TooManyTokens {
        /// The limit.
        limit: usize,
    },
    /// The bytes are a device's, or somebody else's: the host does not copy them.
    #[error(
        "the host can't copy these bytes by this handle: they are a device's memory, are shared, \
         or belong to whoever owns the region"
    )]
    NotCopied,
    /// Servers can't reach this memory by themselves.
    #[error(
        "no token names {kind} that servers can't reach by themselves: {reason}; \
         `ObjectClient::get` and `put` copy such memory through the host, or lend memory of the \
         host and copy between the two"
    )]
    NotDirect {
        /// What the memory is.
        kind: RegionKind,
        /// Why the provider does not reach it, in words.
        reason: Arc<str>,
    },
    /// As many transfers pass memory of the host as may at once.
    #[error(
        "{limit} transfers of a device's memory pass the host, as many as may at once (setting \
         `staging_buffers`): wait for one"
    )]
    StagingBusy {
        /// The limit.
        limit: usize,
    },
    /// There is no memory of the host for a device's bytes to pass.
    #[error("a device's memory can't pass the host: {0}")]
    Staging(#[from] MemoryError),
    /// Bytes could not be copied between a device's memory and the host's.
    #[error("the bytes can't be copied between the device's memory and the host's: {0}")]
    Copy(#[from] CudaError),
    /// The memory could not be registered.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// The token can't be said in its form.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// The endpoint behind the memory can't be opened.
    #[error(transparent)]
    Endpoint(#[from] Error),
    /// The client was opened by the process that this one was forked from.
    #[error("{0}: open a client of its own in the child")]
    Forked(#[from] Forked),
}

fabricast_process::debug_as_words!(ObjectError);

/// Why memory did not come back.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum NotReleased {
    /// Tokens of it stand.
    #[error("{tokens} tokens of this memory stand: drop them first")]
    Lent {
        /// How many.
        tokens: usize,
        /// The memory, as it was.
        memory: ObjectMemory,
    },
    /// Somebody may still reach it: other tokens of the client stand, behind the same endpoint.
    #[error(
        "somebody may still reach the memory: tokens of other memory stand behind the same \
         endpoint, which is closed when they are dropped (or it would not close: the log says so)"
    )]
    Deadline {
        /// The memory, as it was.
        memory: ObjectMemory,
    },
}

fabricast_process::debug_as_words!(NotReleased);

impl NotReleased {
    /// The memory, as it was.
    pub fn into_memory(self) -> ObjectMemory {
        match self {
            Self::Lent { memory, .. } | Self::Deadline { memory } => memory,
        }
    }
}
