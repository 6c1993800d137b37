//! `SendFailed`: what became of a send whose future did not resolve to its payload.

use std::fmt;

use crate::buffer::Payload;
use crate::endpoint::Destination;
use crate::endpoint::SendErrorKind;
use crate::error::CompletionError;

/// Why a send failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
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

/// A send that failed, with its payload.
pub struct SendFailed {
    /// The payload that was given. Empty where it could not be given back: it had to be leaked,
    /// because the provider would not close, or went back to where it came from with the endpoint
    /// ([`SendFailure::Endpoint`]).
    pub payload: Payload,
    /// Why.
    pub error: SendFailure,
}

/// A one-sided read that failed, with its destination.
pub struct ReadFailed {
    /// The destination that was given. `None` where it could not be given back, as in
    /// [`SendFailed::payload`].
    pub into: Option<Destination>,
    /// Why.
    pub error: SendFailure,
}

impl fmt::Debug for ReadFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadFailed")
            .field("error", &self.error)
            .finish_non_exhaustive()
    }
}

impl fmt::Display for ReadFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.error, f)
    }
}

impl std::error::Error for ReadFailed {}

impl fmt::Debug for SendFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendFailed")
            .field("error", &self.error)
            .finish_non_exhaustive()
    }
}

impl fmt::Display for SendFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.error, f)
    }
}

impl std::error::Error for SendFailed {}
