//! `ObjectOps`: what a client calls the application for, and what comes of it.

use crate::object::{ObjectError, ObjectOperation, RdmaToken};

/// What an application's callbacks get: one part of a request, and the token that a server needs
/// for it.
#[derive(Debug)]
pub struct ObjectChunk<'a> {
    pub(super) token: &'a RdmaToken,
    pub(super) offset: u64,
    pub(super) memory_offset: u64,
}

impl ObjectChunk<'_> {
    /// Names the memory of this part, and nothing else. It is good during the callback only.
    pub fn token(&self) -> &RdmaToken {
        self.token
    }

    /// Where the part begins in the object, in bytes.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Where the part begins in the memory, in bytes.
    pub fn memory_offset(&self) -> u64 {
        self.memory_offset
    }

    /// How many bytes it has.
    #[expect(clippy::len_without_is_empty, reason = "a part has at least 1 byte")]
    pub fn len(&self) -> u64 {
        self.token.len()
    }
}

/// Why a callback failed: any error of the application's.
pub type CallbackError = Box<dyn std::error::Error + Send + Sync>;

/// The application's control path: it tells a server what to do with a token, and waits for its
/// answer. One call after the other for one request, on the caller's thread.
pub trait ObjectOps {
    /// Has a server write this part of the object into the memory.
    ///
    /// The answer is how many bytes it wrote, from the part's start on: fewer than asked for where
    /// the object ends.
    ///
    /// # Errors
    ///
    /// Whatever ends the request.
    fn get(&mut self, chunk: &ObjectChunk<'_>) -> Result<u64, CallbackError>;

    /// Has a server read this part of the object from the memory.
    ///
    /// # Errors
    ///
    /// Whatever ends the request.
    fn put(&mut self, chunk: &ObjectChunk<'_>) -> Result<u64, CallbackError>;
}

/// The same for a control path that is awaited.
pub trait AsyncObjectOps {
    /// As [`ObjectOps::get`].
    fn get(
        &mut self,
        chunk: &ObjectChunk<'_>,
    ) -> impl Future<Output = Result<u64, CallbackError>> + Send;

    /// As [`ObjectOps::put`].
    fn put(
        &mut self,
        chunk: &ObjectChunk<'_>,
    ) -> impl Future<Output = Result<u64, CallbackError>> + Send;
}

/// A GET or PUT that did not end well.
#[derive(thiserror::Error)]
#[error("{operation} ended after {transferred} bytes: {cause}")]
pub struct TransferFailed {
    /// Which.
    pub operation: ObjectOperation,
    /// Bytes that callbacks before had answered for, from the begin of the request on.
    pub transferred: u64,
    /// Why.
    #[source]
    pub cause: TransferCause,
}

fabricast_process::debug_as_words!(TransferFailed);

/// Why a GET or PUT did not end well.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum TransferCause {
    /// The memory can't be lent.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// The callback failed.
    #[error("the callback failed: {0}")]
    Callback(CallbackError),
    /// The callback said that more bytes were moved than it was given.
    #[error("the callback answered for {said} bytes of a part of {asked}")]
    TooMany {
        /// What it said.
        said: u64,
        /// What it was given.
        asked: u64,
    },
    /// No object has bytes there: what was asked for ends beyond 2^64 - 1.
    #[error(
        "{len} bytes at offset {offset} of the object end beyond {}, where the longest object \
         ends: begin sooner, or ask for less",
        u64::MAX
    )]
    BeyondObjects {
        /// Where they begin in the object, in bytes.
        offset: u64,
        /// How many bytes.
        len: u64,
    },
    /// The memory is another client's.
    #[error("the memory is registered with another client: register it with this one")]
    OtherClient,
    /// What a server wrote into a device's memory can't be made visible.
    #[error("what came can't be made visible in the device's memory: {0}")]
    Device(crate::cuda::CudaError),
}

fabricast_process::debug_as_words!(TransferCause);
