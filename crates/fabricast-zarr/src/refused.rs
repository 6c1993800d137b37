//! `ReadRefused`: a read that did not begin, and its buffer.

use zarrs_storage::StorageError;

/// Why a read did not begin.
#[derive(Clone, thiserror::Error)]
pub enum ReadRefusal {
    /// The key has no value. A chunk without one is all fill value.
    #[error("the key has no value")]
    NotFound,
    /// The store failed, the range is not inside of the value, or the buffer is too short for it.
    #[error(transparent)]
    Storage(#[from] StorageError),
}

fabricast_process::debug_as_words!(ReadRefusal);

/// A read that did not begin: why, and the buffer that was given.
#[derive(thiserror::Error)]
#[error("{reason}")]
pub struct ReadRefused<B> {
    /// The buffer, untouched.
    pub buffer: B,
    /// Why it did not begin.
    pub reason: ReadRefusal,
}

fabricast_process::debug_as_words!([B] ReadRefused<B>);
