//! What [`SubscribeEndpoint::receive`](super::SubscribeEndpoint::receive) gives.

use std::fmt;
use std::ops::Deref;

use super::subscribe_event::{PublisherId, SubscribeEvent};
use crate::endpoint::inbox::MessageBatch;
use crate::endpoint::message_ref::MessageRef;

/// A publication that is borrowed; a [`MessageRef`] in all else.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct PublicationRef<'a> {
    /// Whose.
    pub publisher: PublisherId,
    /// Under which tag.
    pub tag: u64,
    /// Its number among the tag's publications.
    pub number: u64,
    /// How many publications of the tag the publisher dropped for this subscriber since the last
    /// one that came, or since the subscription.
    pub missed: u64,
    /// Header and payload.
    pub message: MessageRef<'a>,
}

impl<'a> Deref for PublicationRef<'a> {
    type Target = MessageRef<'a>;

    fn deref(&self) -> &MessageRef<'a> {
        &self.message
    }
}

/// Publications that came, in their order, borrowed from the endpoint.
///
/// One is taken when it was given. What was not given when this is dropped is where the next call
/// begins, also if that is [`poll`](crate::SubscribeEndpoint::poll).
pub struct ReceivedPublications<'a>(MessageBatch<'a, SubscribeEvent>);

impl<'a> ReceivedPublications<'a> {
    pub(super) fn new(batch: MessageBatch<'a, SubscribeEvent>) -> Self {
        Self(batch)
    }
}

impl<'a> Iterator for ReceivedPublications<'a> {
    type Item = PublicationRef<'a>;

    #[inline(always)]
    fn next(&mut self) -> Option<PublicationRef<'a>> {
        let (message, about) = self.0.next_message()?;
        Some(PublicationRef {
            publisher: about.publisher,
            tag: about.tag,
            number: about.number,
            missed: about.missed,
            message,
        })
    }
}

impl fmt::Debug for ReceivedPublications<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReceivedPublications")
            .finish_non_exhaustive()
    }
}
