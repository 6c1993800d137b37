//! `RemoteError`: why a request to a service was not done.

use std::time::Duration;

use crate::Error;
use crate::endpoint::CloseReason;
use crate::object::store::{ObjectChecksum, ObjectNameError};
use crate::object::wire::{ObjectStatus, ObjectWireError};
use crate::object::{ObjectError, TransferCause, TransferFailed};
use crate::protocol::close_reason::Over;

/// Why a request to a service was not done.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum RemoteError {
    /// The service did not do it.
    #[error("the service refused: {status} ({text})")]
    Refused {
        /// Why, in a number.
        status: ObjectStatus,
        /// Bytes that may have been moved before.
        moved: u64,
        /// Why, in the service's words.
        text: String,
    },
    /// What landed is not what the service sent.
    #[error(
        "{len} bytes at {offset} of the memory have {found}, the service sent {said}: get them \
         again"
    )]
    Checksum {
        /// Where they begin in the memory, in bytes.
        offset: u64,
        /// How many bytes.
        len: u64,
        /// What the service computed.
        said: ObjectChecksum,
        /// What is there.
        found: ObjectChecksum,
    },
    /// The deadline passed. Whether it was done is not known.
    #[error(
        "no answer within {waited:.1?}: whether it was done is not known, look before you repeat"
    )]
    TimedOut {
        /// How long it waited.
        waited: Duration,
    },
    /// The connection is closed. Whether a request that was under way was done is not known.
    #[error(
        "{}; RemoteObjects::reconnect makes another",
        ended(.0.as_ref())
    )]
    Closed(Option<CloseReason>),
    /// The name is none.
    #[error(transparent)]
    Name(#[from] ObjectNameError),
    /// The service said something that makes no sense.
    #[error("the service makes no sense: {0}")]
    Wire(#[from] ObjectWireError),
    /// The service said something that can't be true.
    #[error("the service does not keep to the protocol: {0}")]
    Violation(&'static str),
    /// The memory can't be lent, or not read.
    #[error(transparent)]
    Memory(#[from] ObjectError),
    /// The transfer ended for another reason.
    #[error(transparent)]
    Transfer(TransferFailed),
    /// The endpoint failed.
    #[error(transparent)]
    Endpoint(#[from] Error),
}

fabricast_process::debug_as_words!(RemoteError);

fn ended(reason: Option<&CloseReason>) -> String {
    const CLOSED: &str = "the connection to the service is closed";
    reason.map_or_else(|| CLOSED.to_owned(), |it| Over(CLOSED, it).to_string())
}

impl RemoteError {
    /// Out of what a client says of a transfer, whose callbacks are this crate's.
    pub(super) fn of_transfer(failed: TransferFailed) -> Self {
        let TransferFailed {
            operation,
            transferred,
            cause,
        } = failed;
        let cause = match cause {
            TransferCause::Object(error) => return Self::Memory(error),
            TransferCause::Callback(error) => match error.downcast::<Self>() {
                Ok(error) => return *error,
                Err(error) => TransferCause::Callback(error),
            },
            other => other,
        };
        Self::Transfer(TransferFailed {
            operation,
            transferred,
            cause,
        })
    }

    /// How the service refused, if it did.
    pub fn status(&self) -> Option<ObjectStatus> {
        match self {
            Self::Refused { status, .. } => Some(*status),
            _ => None,
        }
    }
}
