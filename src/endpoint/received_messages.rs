//! `ReceivedMessages`: what [`ReceiveEndpoint::receive`](crate::ReceiveEndpoint::receive) gives.

use std::fmt;

use crate::endpoint::event::ReceiveEvent;
use crate::endpoint::inbox::MessageBatch;
use crate::endpoint::message_ref::MessageRef;

/// Messages that came, in their order, borrowed from the endpoint.
///
/// A message is taken when it was given. What was not given when this is dropped is where the next
/// call begins, also if that is [`poll`](crate::ReceiveEndpoint::poll).
pub struct ReceivedMessages<'a>(MessageBatch<'a, ReceiveEvent>);

impl<'a> ReceivedMessages<'a> {
    pub(crate) fn new(batch: MessageBatch<'a, ReceiveEvent>) -> Self {
        Self(batch)
    }
}

impl<'a> Iterator for ReceivedMessages<'a> {
    type Item = MessageRef<'a>;

    #[inline(always)]
    fn next(&mut self) -> Option<MessageRef<'a>> {
        self.0.next_message().map(|(message, ())| message)
    }
}

impl fmt::Debug for ReceivedMessages<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReceivedMessages").finish_non_exhaustive()
    }
}
