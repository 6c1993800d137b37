//! Sends that are more than one post, or none at first: header and payload as two messages,
//! batches whose posts the provider may join, and what waits in the line.
//!
//! What is posted can't be taken back. So once a header is out, or a post was flagged with FI_MORE,
//! what follows it is accepted even if the provider has no room for it: it waits in the line, and
//! is posted before anything else as soon as there is room.

use super::SendCore;
use crate::buffer::Payload;
use crate::endpoint::core::line::{Line, LineState, Posting, ReadyMessage};
use crate::endpoint::core::outgoing::Header;
use crate::endpoint::error::{Blocked, Refused, SendErrorKind};
use crate::endpoint::event::SendEvent;
use crate::endpoint::link::Link;
use crate::endpoint::link::iov::IovList;
use crate::error::CompletionError;
use crate::fabric::Shape;
use crate::protocol::connection::State;
use std::time::Instant;

impl<L: Link> SendCore<L> {
    /// The line, and what it posts with; none without a connection.
    pub(super) fn way(&mut self) -> Option<(&mut Line, Posting<'_, L>)> {
        let connection = self.connection_id();
        let way = Posting {
            link: &mut self.link,
            conn: self.conn.as_ref()?,
            connection,
            machine: &mut self.machine,
            scoped: &mut self.scoped,
            header_desc: self.header_desc.desc(),
            outgoing: &mut self.outgoing,
            posted: &mut self.posted,
            eagain: &mut self.stats.eagain,
        };
        Some((&mut self.line, way))
    }

    /// Posts a message that is in the slab as header and payload.
    pub(super) fn post_pair(
        &mut self,
        context: usize,
        iov: IovList,
        len: u64,
    ) -> Result<(), Refused<Payload>> {
        let Some((line, mut way)) = self.way() else {
            return self.post(context, &iov, len);
        };
        match line.post_new(&mut way, context, iov) {
            Ok(()) => {
                self.count_posted(len);
                self.on_posted();
                Ok(())
            }
            Err(refused) => Err(self.undo_post(context, refused)),
        }
    }

    /// What was accepted is posted, unless it is in the line now: then it waits, or was the end of
    /// the connection.
    fn on_posted(&mut self) {
        if self.line.messages() != LineState::Open {
            // The next poll posts it, sets the timer, or closes.
            self.wait.wake();
        }
    }

    // ---- what waits -----------------------------------------------------------------------------

    /// A message that can't be posted now for this reason: takes it all the same if it only has to
    /// wait, else gives everything back.
    #[cold]
    pub(super) fn send_later(
        &mut self,
        kind: SendErrorKind,
        payload: Payload,
        header: &[u8],
        key: u64,
    ) -> Result<(), Refused<Payload>> {
        let behind = kind == SendErrorKind::WouldBlock(Blocked::Provider)
            && self.line.messages() == LineState::Gated;
        let staged = self.outgoing.must_stage(&payload, self.scoped.scope());
        if !behind && !payload.is_gated() && staged == Ok(false) {
            return Err(self.refuse(kind, payload, key));
        }
        let (payload, len) = match self.admit_queued(payload, header.len()) {
            Ok(admitted) => admitted,
            Err((kind, payload)) => return Err(self.refuse(kind, payload, key)),
        };
        let posted = self.posted_at();
        let message = (payload, Header::Bytes(header), key);
        if let Some((line, mut way)) = self.way()
            && let Err((kind, payload)) = line.accept(&mut way, message, posted)
        {
            return Err(self.refuse(kind, payload, key));
        }
        self.count_posted(len);
        // The next poll looks at the gate, or sets the timer.
        self.wait.wake();
        Ok(())
    }

    /// As `admit`, of a message that may wait behind others; with what it is staged in.
    fn admit_queued(
        &mut self,
        payload: Payload,
        header_len: usize,
    ) -> Result<(Payload, u64), (SendErrorKind, Payload)> {
        if let Err(blocked) = self.machine.may_send() {
            return Err((self.blocked(blocked), payload));
        }
        if self.data_in_flight >= self.settings.depth {
            return Err((SendErrorKind::WouldBlock(Blocked::Depth), payload));
        }
        let payload = self.outgoing.stage(payload, self.scoped.scope())?;
        let peer_max = self.machine.peer_receive_size();
        match self.outgoing.measure(&payload, header_len, peer_max) {
            Ok(len) => Ok((payload, len)),
            Err(SendErrorKind::TooLong { .. })
                if self.sends_long() && self.line.messages() != LineState::Open =>
            {
                // It would overtake them: it waits until they are gone.
                let kind = SendErrorKind::WouldBlock(Blocked::Gate);
                Err((kind, payload.unstaged()))
            }
            Err(kind) => Err((kind, payload.unstaged())),
        }
    }

    /// Posts what may be posted of what waits.
    pub(super) fn drive_line(&mut self, events: &mut Vec<SendEvent>) {
        if self.machine.state() == State::Closed {
            // Its end is on the way, and gives them their outcomes.
            return;
        }
        let Some((line, mut way)) = self.way() else {
            return;
        };
        let driven = line.drive(&mut way);
        if self.machine.state() == State::Closed {
            self.wait.wake();
        }
        for (mut op, error) in driven.unposted {
            let (key, payload) = self.outgoing.end(&mut op);
            self.data_in_flight -= 1;
            self.stats.failed += 1;
            self.eventful = true;
            events.push(SendEvent::Failed {
                key,
                payload,
                error,
            });
        }
        for over in driven.over {
            self.on_line_over(over, events);
        }
    }

    // ---- long messages --------------------------------------------------------------------------

    /// Whether a message that is too long for a receive can go piece by piece.
    pub(super) fn sends_long(&self) -> bool {
        self.machine.may_offer_long() && self.link.limits().rma.is_some()
    }

    /// Offers a message to the peer, or gives everything back.
    #[cold]
    pub(super) fn send_long(
        &mut self,
        message: (Payload, &[u8], u64, u64),
    ) -> Result<(), Refused<Payload>> {
        let (payload, header, key, len) = message;
        if self.data_in_flight >= self.settings.depth {
            let kind = SendErrorKind::WouldBlock(Blocked::Depth);
            return Err(self.refuse(kind, payload, key));
        }
        let posted = self.posted_at();
        let message = (payload, Header::Bytes(header), key, len);
        if let Some((line, mut way)) = self.way()
            && let Err((kind, payload)) = line.offer_long(&mut way, message, posted)
        {
            return Err(self.refuse(kind, payload, key));
        }
        self.count_posted(len);
        // The next poll makes the offer: have it look.
        self.wait.wake();
        Ok(())
    }

    /// The peer does not take it.
    pub(super) fn on_long_refused(&mut self, limit: Option<u64>, events: &mut Vec<SendEvent>) {
        let error = limit.map_or_else(
            || CompletionError::new(libc::ECANCELED),
            CompletionError::too_long,
        );
        self.end_long(Some(error), events);
    }

    /// A piece is over.
    pub(super) fn on_long_piece(
        &mut self,
        error: Option<Box<CompletionError>>,
        events: &mut Vec<SendEvent>,
    ) {
        if let Some((line, mut way)) = self.way()
            && line.on_long_piece(error.map(|error| error.errno), &mut way)
        {
            self.end_long(None, events);
        }
    }

    /// The message is over, and nothing of it in flight.
    pub(super) fn end_long(&mut self, error: Option<CompletionError>, events: &mut Vec<SendEvent>) {
        let Some((key, payload)) = self.line.end_long(&mut self.outgoing) else {
            return;
        };
        self.data_in_flight -= 1;
        events.push(match error {
            None => {
                self.stats.completed += 1;
                SendEvent::Completed { key, payload }
            }
            Some(error) => {
                self.stats.failed += 1;
                SendEvent::Failed {
                    key,
                    payload,
                    error,
                }
            }
        });
    }

    // ---- batches --------------------------------------------------------------------------------

    /// Sends messages until one is refused; each but the last tells the provider that another
    /// follows, where it looks at that.
    ///
    /// A post is flagged only when the next message has all that it needs, so that nothing but the
    /// provider itself can keep that one back.
    pub(crate) fn send_batch<H: AsRef<[u8]>>(
        &mut self,
        messages: impl Iterator<Item = (Payload, H, u64)>,
    ) -> (usize, Option<Refused<Payload>>) {
        // Two messages each would take the flag apart.
        let joins = self.outgoing.uses_more() && self.outgoing.shape() != Shape::TwoMessages;
        let (mut sent, mut ready, mut refused) = (0, None, None);
        for (payload, header, key) in messages {
            if !joins {
                refused = self.send_data(payload, header.as_ref(), key).err();
            } else {
                match self.prepare(payload, header.as_ref(), key) {
                    Ok(next) => {
                        if let Some(last) = ready.replace(next) {
                            self.post_ready(last, true);
                        }
                    }
                    Err((kind, payload)) => {
                        // It may only have to wait, behind that one.
                        if let Some(last) = ready.take() {
                            self.post_ready(last, false);
                        }
                        refused = self.send_later(kind, payload, header.as_ref(), key).err();
                    }
                }
            }
            if refused.is_some() {
                break;
            }
            sent += 1;
        }
        if let Some(last) = ready {
            self.post_ready(last, false);
        }
        (sent, refused)
    }

    /// Everything of [`send_data`](Self::send_data) but the post.
    fn prepare(
        &mut self,
        payload: Payload,
        header: &[u8],
        key: u64,
    ) -> Result<ReadyMessage, (SendErrorKind, Payload)> {
        let len = match self.admit(&payload, header.len()) {
            Ok(len) => len,
            Err(kind) => return Err((kind, payload)),
        };
        let mut iov = IovList::new();
        let context = self.load(payload, header, key, &mut iov)?;
        let data = self.way().and_then(|(_, mut way)| way.take_credit());
        self.count_posted(len);
        Ok(ReadyMessage {
            message: (context, data),
            iov,
        })
    }

    fn post_ready(&mut self, ready: ReadyMessage, more: bool) {
        if let Some((line, mut way)) = self.way() {
            line.post_or_wait(&mut way, ready.message, ready.iov, more);
            self.on_posted();
        }
    }

    /// When a buffer may be free of another header: no endpoint tells another.
    pub(super) fn room_retry(&self) -> Option<Instant> {
        self.room_refused
            .filter(|_| self.blocked == Some(Blocked::HeaderRoom))
            .map(|refused| refused + super::CONTROL_RETRY)
    }
}
