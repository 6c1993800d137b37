//! What [`ConnectionlessEndpoint::receive`](super::ConnectionlessEndpoint::receive) gives.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use super::event::{ConnectionlessEvent, PeerId, PeerMessage};
use crate::endpoint::inbox::MessageBatch;
use crate::endpoint::message_ref::MessageRef;

/// A message from a peer that is borrowed; a [`MessageRef`] in all else.
#[derive(Clone, Copy, Debug)]
pub struct PeerMessageRef<'a> {
    peer: PeerId,
    message: MessageRef<'a>,
    held: &'a Arc<()>,
}

impl<'a> PeerMessageRef<'a> {
    /// From whom.
    #[inline]
    pub fn peer(&self) -> PeerId {
        self.peer
    }

    /// The message, for as long as it is borrowed.
    #[inline]
    pub fn message(&self) -> MessageRef<'a> {
        self.message
    }

    /// The message to keep, counted as held until it is dropped: see [`MessageRef::to_message`].
    pub fn to_message(&self) -> PeerMessage {
        PeerMessage::new(self.message.to_message(), self.held)
    }
}

impl<'a> Deref for PeerMessageRef<'a> {
    type Target = MessageRef<'a>;

    fn deref(&self) -> &MessageRef<'a> {
        &self.message
    }
}

/// Messages that came from peers, in their order, borrowed from the endpoint.
///
/// A message is taken when it was given. What was not given when this is dropped is where the next
/// call begins, also if that is [`poll`](crate::ConnectionlessEndpoint::poll).
pub struct ReceivedPeerMessages<'a>(MessageBatch<'a, ConnectionlessEvent>);

impl<'a> ReceivedPeerMessages<'a> {
    pub(super) fn new(batch: MessageBatch<'a, ConnectionlessEvent>) -> Self {
        Self(batch)
    }
}

impl<'a> Iterator for ReceivedPeerMessages<'a> {
    type Item = PeerMessageRef<'a>;

    #[inline(always)]
    fn next(&mut self) -> Option<PeerMessageRef<'a>> {
        let (message, (peer, held)) = self.0.next_message()?;
        Some(PeerMessageRef {
            peer: *peer,
            message,
            held,
        })
    }
}

impl fmt::Debug for ReceivedPeerMessages<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReceivedPeerMessages")
            .finish_non_exhaustive()
    }
}
