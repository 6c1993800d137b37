//! Batches: messages that go to the provider together, on one connection or on several.
//!
//! A post is flagged (FI_MORE) only when the next message on its connection has all that it needs,
//! so that nothing but the provider itself can keep that one back. Until then it is kept here, and
//! it is posted whatever happens, a panic of the application's iterator included.

#![allow(unsafe_code)]

use super::sends::PeerSender;
use super::{Hub, outbound};
use crate::buffer::{Given, Payload};
use crate::endpoint::error::{Refused, SendErrorKind};
use crate::endpoint::hub::event::HubEvent;
use crate::endpoint::hub::headers::{Header, PreparedHeader};
use crate::endpoint::hub::line::ReadyMessage;
use crate::endpoint::link::Link;
use crate::endpoint::link::iov::IovList;
use crate::fabric::Shape;
use crate::id::{ConnectionId, IdMap};

/// A batch on several connections: of each, the message that is not posted yet. To be given to
/// [`Hub::post_joined`].
#[derive(Default)]
pub(crate) struct JoinedMessages(IdMap<ConnectionId, ReadyMessage>);

// SAFETY: the addresses are those of payloads and header slots that the slab keeps for the contexts
// of these messages, which may be sent to another thread; the descriptors are opaque values of a
// provider that was opened with FI_THREAD_SAFE.
unsafe impl Send for JoinedMessages {}

impl<L: Link, E: HubEvent> Hub<L, E> {
    /// Sends messages on a connection until one is refused; each but the last tells the provider
    /// that another follows, where it looks at that.
    pub(crate) fn send_batch<G: Given, H: AsRef<[u8]>>(
        &mut self,
        id: ConnectionId,
        mut messages: impl Iterator<Item = (G, H, u64)>,
    ) -> (usize, Option<Refused<Payload>>) {
        if let Some(mut sender) = self.sender(id) {
            return sender.send_batch(messages);
        }
        let first = messages.next();
        let refused = first.map(|(given, _, key)| self.refuse_unknown(given.into_payload(), key));
        (0, refused)
    }

    /// As [`send_prepared`](Self::send_prepared), of a message of a batch.
    pub(crate) fn send_joined(
        &mut self,
        joined: &mut JoinedMessages,
        id: ConnectionId,
        (payload, header): (Payload, &mut PreparedHeader),
        key: u64,
    ) -> Result<(), Refused<Payload>> {
        let Some(mut sender) = self.sender(id) else {
            return Err(self.refuse_unknown(payload, key));
        };
        let header = Header::Prepared(header);
        if !sender.joins() {
            return sender.send(payload, header, key);
        }
        let mut ready = joined.0.remove(&id);
        let sent = sender.join(&mut ready, payload, header, key);
        joined.0.extend(ready.map(|ready| (id, ready)));
        sent
    }

    /// The batch is over on all connections: posts what was not posted yet.
    pub(crate) fn post_joined(&mut self, joined: JoinedMessages) {
        for (id, ready) in joined.0 {
            // No connection goes but in a poll.
            if let Some(mut sender) = self.sender(id) {
                sender.post_ready(ready, false);
            }
        }
    }
}

/// A batch on one connection, with the message that is not posted yet.
struct OpenBatch<'s, 'a, L: Link> {
    sender: &'s mut PeerSender<'a, L>,
    ready: Option<ReadyMessage>,
}

impl<L: Link> Drop for OpenBatch<'_, '_, L> {
    fn drop(&mut self) {
        if let Some(last) = self.ready.take() {
            self.sender.post_ready(last, false);
        }
    }
}

impl<L: Link> PeerSender<'_, L> {
    /// Sends messages until one is refused.
    pub(crate) fn send_batch<G: Given, H: AsRef<[u8]>>(
        &mut self,
        messages: impl Iterator<Item = (G, H, u64)>,
    ) -> (usize, Option<Refused<Payload>>) {
        let (joins, mut sent) = (self.joins(), 0);
        let mut open = OpenBatch {
            sender: self,
            ready: None,
        };
        for (given, header, key) in messages {
            let header = Header::Bytes(header.as_ref());
            let taken = match joins {
                true => open
                    .sender
                    .join(&mut open.ready, given.into_payload(), header, key),
                false => open.sender.send(given, header, key),
            };
            if let Err(refused) = taken {
                return (sent, Some(refused));
            }
            sent += 1;
        }
        (sent, None)
    }

    /// Whether posts are joined: two messages each would take the flag apart.
    fn joins(&self) -> bool {
        let outgoing = &self.outbound.outgoing;
        !self.peer.outbound.packs()
            && outgoing.uses_more()
            && outgoing.shape() != Shape::TwoMessages
    }

    /// Takes a message and posts the one before it, which is in `ready` with what it needs.
    fn join(
        &mut self,
        ready: &mut Option<ReadyMessage>,
        payload: Payload,
        header: Header<'_>,
        key: u64,
    ) -> Result<(), Refused<Payload>> {
        match self.prepare(payload, header, key) {
            Ok(next) => {
                if let Some(last) = ready.replace(next) {
                    self.post_ready(last, true);
                }
                Ok(())
            }
            Err((kind, payload, header)) => {
                // It may only have to wait, behind that one.
                if let Some(last) = ready.take() {
                    self.post_ready(last, false);
                }
                self.send_otherwise(kind, payload, header, key)
            }
        }
    }

    /// Everything of [`send`](Self::send) but the post.
    fn prepare<'h>(
        &mut self,
        payload: Payload,
        mut header: Header<'h>,
        key: u64,
    ) -> Result<ReadyMessage, (SendErrorKind, Payload, Header<'h>)> {
        let len = match self.outbound.admit(self.peer, &payload, header.len()) {
            Ok(len) => len,
            Err(kind) => return Err((kind, payload, header)),
        };
        let mut iov = IovList::new();
        match self.load(payload, header.again(), key, &mut iov) {
            Ok(context) => {
                let to = (self.id, &mut *self.peer);
                let (_, mut way) = outbound::way(self.outbound, self.link, to);
                let data = way.take_credit();
                self.outbound
                    .account
                    .count_accepted(&mut self.peer.outbound, len);
                let message = (context, data);
                Ok(ReadyMessage { message, iov })
            }
            Err((kind, payload)) => Err((kind, payload, header)),
        }
    }

    fn post_ready(&mut self, ready: ReadyMessage, more: bool) {
        let (line, mut way) = self.way();
        line.messages
            .post_or_wait(&mut way, ready.message, ready.iov, more);
        self.on_posted();
    }
}
