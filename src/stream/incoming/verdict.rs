//! `ReceiverVerdict`: what a sender is told in the end.

use super::refusal::Refusal;
use crate::stream::RefusalCode;
use crate::stream::wire::{Complete, Failed, Message, Reason};

/// How the stream ends.
#[derive(Debug)]
enum VerdictKind {
    /// The stream was not taken.
    Refused(Refusal),
    /// The stream was given up: why, and because of which block.
    Failed(RefusalCode, Option<u64>, String),
    Complete(Complete),
}

/// The last message of a stream, once there is one.
#[derive(Debug, Default)]
pub(super) struct ReceiverVerdict {
    kind: Option<VerdictKind>,
    is_unsaid: bool,
}

impl ReceiverVerdict {
    pub(super) fn refuse(&mut self, refusal: Refusal) {
        self.set(VerdictKind::Refused(refusal));
    }

    pub(super) fn fail(&mut self, code: RefusalCode, block: Option<u64>, reason: &str) {
        self.set(VerdictKind::Failed(code, block, reason.to_owned()));
    }

    pub(super) fn complete(&mut self, complete: Complete) {
        self.set(VerdictKind::Complete(complete));
    }

    fn set(&mut self, kind: VerdictKind) {
        self.kind = Some(kind);
        self.is_unsaid = true;
    }

    /// Whether it is to be said now.
    pub(super) fn is_unsaid(&self) -> bool {
        self.is_unsaid
    }

    pub(super) fn on_said(&mut self) {
        self.is_unsaid = false;
    }

    /// The connection that it was said on is gone, and nobody knows whether it arrived. A sender
    /// that has not heard of a refusal begins anew.
    pub(super) fn say_again(&mut self) {
        let is_repeated = matches!(
            self.kind,
            Some(VerdictKind::Failed(..) | VerdictKind::Complete(_))
        );
        self.is_unsaid |= is_repeated;
    }

    /// What the sender is told, once there is something.
    pub(super) fn message(&self, stream: u32) -> Option<Message<'_>> {
        Some(match self.kind.as_ref()? {
            VerdictKind::Refused(refusal) => refusal.message(stream),
            VerdictKind::Complete(complete) => Message::Complete(*complete),
            VerdictKind::Failed(code, block, reason) => Message::Failed(Failed {
                stream,
                code: *code,
                block: *block,
                reason: Reason::new(reason),
            }),
        })
    }
}
