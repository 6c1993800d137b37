//! `Block` and `BlockError`: a numbered run of bytes of a file, and what went wrong with exactly
//! that one.

use std::time::Duration;

use super::{FileError, Transferred};
use crate::buffer::Buffer;

/// The largest number of blocks on their way at once.
pub(super) const AHEAD_MAX: u32 = 4096;

/// A block that was read.
#[derive(Debug)]
pub struct Block {
    /// Its number: 0 is the first of the range.
    pub index: u64,
    /// Where it begins in the file, in bytes.
    pub offset: u64,
    /// Its bytes, ready to be sent; the slot goes back to the pool when the last handle is dropped.
    pub buffer: Buffer,
    /// How it was read.
    pub transferred: Transferred,
}

/// A block that was written, or not.
#[derive(Debug)]
pub struct Written {
    /// As it was handed in.
    pub index: u64,
    /// Where it begins in the file, in bytes.
    pub offset: u64,
    /// Its bytes, back.
    pub buffer: Buffer,
    /// How it was written, or what went wrong: what of it is in the file then, the error says.
    pub result: Result<Transferred, BlockError>,
}

/// What went wrong with a block.
#[derive(thiserror::Error)]
#[error("block {index} at {offset}: {kind}")]
pub struct BlockError {
    /// The number of the block.
    pub index: u64,
    /// Where it begins in the file, in bytes.
    pub offset: u64,
    /// What it was.
    #[source]
    pub kind: BlockErrorKind,
}

fabricast_process::debug_as_words!(BlockError);

impl BlockError {
    /// Nothing failed: the deadline came first, and the same call goes on with this block.
    pub fn is_would_block(&self) -> bool {
        matches!(
            self.kind,
            BlockErrorKind::TimedOut { .. } | BlockErrorKind::NoBuffer { .. }
        )
    }
}

/// The kinds of that.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum BlockErrorKind {
    /// The file did not answer before the deadline. The block is still on its way.
    #[error("not there after {waited:?}")]
    TimedOut {
        /// How long this call waited.
        waited: Duration,
    },
    /// No buffer of the pool was free before the deadline: the blocks that were handed out are
    /// still held. The block was not begun.
    #[error(
        "no buffer of the pool became free within {waited:?}: drop blocks that were handed out"
    )]
    NoBuffer {
        /// How long this call waited.
        waited: Duration,
    },
    /// The file ends within the block, or before it, though the range goes on.
    #[error("the file ends {missing} bytes before the block does")]
    EndOfFile {
        /// Bytes of the block that are not in the file.
        missing: u64,
    },
    /// Reading or writing it failed.
    #[error(transparent)]
    File(FileError),
    /// The back end failed, and all blocks with it.
    #[error(transparent)]
    BackEnd(crate::Error),
}

fabricast_process::debug_as_words!(BlockErrorKind);
