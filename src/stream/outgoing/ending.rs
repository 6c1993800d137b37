//! `SenderEnding`: how a stream ended at its sender, and what the peer is told of it.

use crate::stream::wire::{Cancel, Complete, Message, Reason};
use crate::stream::{RefusalCode, StreamError};

/// The end of one stream, once it has come to that.
#[derive(Debug, Default)]
pub(super) struct SenderEnding {
    /// Why this side ends the stream, until the peer was told.
    cancel: Option<(RefusalCode, String)>,
    outcome: Option<Result<Complete, StreamError>>,
}

impl SenderEnding {
    /// The first outcome counts.
    pub(super) fn set(&mut self, outcome: Result<Complete, StreamError>) {
        self.outcome.get_or_insert(outcome);
    }

    /// The peer does not keep to the protocol, whatever became of the stream before; it is told.
    pub(super) fn set_violation(&mut self, error: StreamError, reason: String) {
        self.outcome = Some(Err(error));
        self.cancel = Some((RefusalCode::MALFORMED, reason));
    }

    /// The peer is to be told why.
    pub(super) fn tell(&mut self, code: RefusalCode, reason: &str) {
        self.cancel = Some((code, reason.to_owned()));
    }

    pub(super) fn outcome(&self) -> Option<&Result<Complete, StreamError>> {
        self.outcome.as_ref()
    }

    /// Whether the peer is to be told something.
    pub(super) fn is_unsaid(&self) -> bool {
        self.cancel.is_some()
    }

    pub(super) fn on_said(&mut self) {
        self.cancel = None;
    }

    /// What the peer is told, if it is to be told something.
    pub(super) fn message(&self, stream: u32) -> Option<Message<'_>> {
        let (code, reason) = self.cancel.as_ref()?;
        Some(Message::Cancel(Cancel {
            stream,
            code: *code,
            reason: Reason::new(reason),
        }))
    }
}
