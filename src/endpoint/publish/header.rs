//! `PublicationHeader`: the header of a publication, behind what says its tag and number.

use crate::endpoint::error::SendErrorKind;
use crate::protocol::wire::{PUBLICATION_LEN, PublicationPrefix};

/// Where headers are composed; kept for its memory.
#[derive(Debug, Default)]
pub(super) struct PublicationHeader(Vec<u8>);

impl PublicationHeader {
    /// The bytes that go out.
    pub(super) fn compose(&mut self, tag: u64, number: u64, header: &[u8]) -> &[u8] {
        self.0.clear();
        let front = PublicationPrefix { tag, number };
        self.0.extend_from_slice(&front.encode());
        self.0.extend_from_slice(header);
        &self.0
    }

    /// The error for a header that is too long, in terms of the application's own `len` bytes.
    pub(super) fn explain(kind: SendErrorKind, len: usize) -> SendErrorKind {
        match kind {
            SendErrorKind::HeaderTooLong { max, .. } => SendErrorKind::HeaderTooLong {
                len,
                max: max.saturating_sub(PUBLICATION_LEN),
            },
            SendErrorKind::HeaderLength { fixed, .. } => SendErrorKind::HeaderLength {
                len,
                fixed: fixed.saturating_sub(PUBLICATION_LEN),
            },
            other => other,
        }
    }
}
