//! `Refusal`: why a receiver does not take a stream.

use crate::stream::RefusalCode;
use crate::stream::manifest::{EntryProblem, ManifestError};
use crate::stream::wire::{Message, Reason, Refuse};

/// Why a stream is not taken, for the sender.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) code: RefusalCode,
    /// By code: what was asked for, and the limit.
    pub(crate) details: [u64; 2],
    pub(crate) reason: String,
}

impl Refusal {
    pub(crate) fn new(code: RefusalCode, reason: impl Into<String>) -> Self {
        Self {
            code,
            details: [0; 2],
            reason: reason.into(),
        }
    }

    /// # Errors
    /// The refusal, where more is asked for than the limit.
    pub(super) fn limit(code: RefusalCode, asked: u64, limit: u64) -> Result<(), Self> {
        match asked <= limit {
            true => Ok(()),
            false => Err(Self {
                code,
                details: [asked, limit],
                reason: format!("{asked} are asked for, the limit is {limit}"),
            }),
        }
    }

    /// The message that tells the sender of `stream`.
    pub(crate) fn message(&self, stream: u32) -> Message<'_> {
        Message::Refuse(Refuse {
            stream,
            code: self.code,
            details: self.details,
            reason: Reason::new(&self.reason),
        })
    }
}

impl From<ManifestError> for Refusal {
    fn from(error: ManifestError) -> Self {
        let code = match error {
            ManifestError::Entry {
                problem: EntryProblem::Name(_) | EntryProblem::BelowFile | EntryProblem::Twice,
                ..
            } => RefusalCode::NAMES,
            // The other limits were looked at before the manifest came.
            ManifestError::Limit { .. } => RefusalCode::ENTRIES,
            _ => RefusalCode::MALFORMED,
        };
        Self::new(code, error.to_string())
    }
}
