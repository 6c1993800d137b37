//! `PublicationHold`: what a publication holds until it is over.

use crate::buffer::Payload;
use crate::endpoint::hub::headers::PreparedHeader;

/// What a publication holds until it is over.
pub(super) struct PublicationHold {
    /// Empty while the publication is posted.
    pub(super) payload: Payload,
    /// While it waits for a subscriber.
    pub(super) header: Option<PreparedHeader>,
}

impl PublicationHold {
    /// The hold of a publication that is being posted.
    pub(super) fn nothing() -> Self {
        Self {
            payload: Payload::empty(),
            header: None,
        }
    }

    /// What the application gets back. Nothing is copied out of it any more; what shared it is
    /// over, but for what the provider of a lost connection kept.
    pub(super) fn into_payload(self) -> Payload {
        self.payload.ungated().unshared()
    }
}
