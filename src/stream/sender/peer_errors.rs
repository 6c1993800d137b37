//! What becomes of a peer's transfer because of an error: another attempt or the end, and what the
//! peer is told.

use crate::endpoint::SendErrorKind;
use crate::stream::{RefusalCode, StreamError};

/// Whether a peer has no room for another stream, connection or window.
pub(super) fn is_busy(error: &StreamError) -> bool {
    let busy = RefusalCode::BUSY;
    matches!(error, StreamError::Refused { code, .. } if *code == busy)
}

/// Whether another attempt may go better.
pub(super) fn is_worth_a_retry(error: &StreamError) -> bool {
    match error {
        StreamError::Lost(_)
        | StreamError::Endpoint(_)
        | StreamError::Stalled { .. }
        | StreamError::Deadline { .. } => true,
        StreamError::Refused { code, .. } | StreamError::Failed { code, .. } => matches!(
            *code,
            RefusalCode::BUSY | RefusalCode::ALREADY | RefusalCode::LOST | RefusalCode::STALLED
        ),
        _ => false,
    }
}

/// Whether a block can't be sent from where it lies, whatever becomes of connections.
pub(super) fn is_unsendable(refused: &SendErrorKind) -> bool {
    matches!(
        refused,
        SendErrorKind::ForeignBuffer { .. }
            | SendErrorKind::NotRegistered { .. }
            | SendErrorKind::NotStaged { .. }
            | SendErrorKind::TooLong { .. }
            | SendErrorKind::TooManySegments { .. }
            | SendErrorKind::Register(_)
    )
}

/// What the peer is told of an error of this side.
pub(super) fn reason_of(error: &StreamError) -> (RefusalCode, String) {
    match error {
        StreamError::GivenUp { code, reason } => (*code, reason.clone()),
        StreamError::SourceChanged { .. } => (RefusalCode::SOURCE_CHANGED, error.to_string()),
        StreamError::Deadline { .. } => (RefusalCode::DEADLINE, error.to_string()),
        StreamError::Stalled { waits, .. } => (RefusalCode::STALLED, waits.clone()),
        StreamError::File(_) => (RefusalCode::SOURCE, error.to_string()),
        StreamError::Violation(_) => (RefusalCode::MALFORMED, error.to_string()),
        _ => (RefusalCode::CANCELLED, error.to_string()),
    }
}
