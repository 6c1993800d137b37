//! `StoreCompletion`: the one answer to a read or write of a store.

use std::fmt;

use super::StoreError;

/// What is called when a piece is over.
type Call<B> = Box<dyn FnOnce(Option<B>, Result<usize, StoreError>) + Send>;

/// The one answer to a [read](super::StoredObject::read) or [write](super::ObjectUpload::write):
/// the store [ends](Self::end) it, on whatever thread, with the buffer.
///
/// Dropped without that, it is an answer, too: [`StoreError::Lost`].
#[must_use = "the request waits until it is ended, or dropped"]
pub struct StoreCompletion<B>(Option<Call<B>>);

impl<B> StoreCompletion<B> {
    /// An answer that is given to this function: the buffer, if it comes back, and the bytes that
    /// were moved.
    pub fn new(call: impl FnOnce(Option<B>, Result<usize, StoreError>) + Send + 'static) -> Self {
        Self(Some(Box::new(call)))
    }

    /// Gives the answer: the buffer, and the bytes that were moved.
    pub fn end(mut self, buffer: B, result: Result<usize, StoreError>) {
        if let Some(call) = self.0.take() {
            call(Some(buffer), result);
        }
    }
}

impl<B> Drop for StoreCompletion<B> {
    fn drop(&mut self) {
        if let Some(call) = self.0.take() {
            call(None, Err(StoreError::Lost));
        }
    }
}

impl<B> fmt::Debug for StoreCompletion<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreCompletion").finish_non_exhaustive()
    }
}
