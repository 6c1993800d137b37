//! `Failed`: what became of an operation whose future did not resolve to what it was given.

use std::fmt;

use crate::endpoint::SendErrorKind;
use crate::error::CompletionError;

/// Why a send failed.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendFailure {
    /// It was refused, and nothing was posted. Never back-pressure: for that the future waits.
    #[error(transparent)]
    Refused(#[from] SendErrorKind),
    /// It was accepted, and failed or will never complete. The peer may have got it all the same.
    #[error(transparent)]
    Failed(#[from] CompletionError),
    /// The endpoint itself failed, and was dropped: what was in flight went back to where it came
    /// from.
    #[error("the endpoint failed: {0}")]
    Endpoint(&'static str),
}

fabricast_process::debug_as_words!(SendFailure);

/// A send, a write or a read that failed, with what was given.
pub struct Failed<T> {
    /// The [`Payload`](crate::buffer::Payload) or [`Destination`](crate::endpoint::Destination)
    /// that was given. `None` where it went back to where it came from with the endpoint
    /// ([`SendFailure::Endpoint`]). What had to be leaked, because the provider would not close, is
    /// missing, too: then it is `None`, or an empty payload.
    pub given: Option<T>,
    /// Why.
    pub why: SendFailure,
}

fabricast_process::debug_as_words!([T] Failed<T>);

impl<T> fmt::Display for Failed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.why, f)
    }
}

impl<T> std::error::Error for Failed<T> {}
