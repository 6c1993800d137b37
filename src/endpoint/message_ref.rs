//! `MessageRef`: a received message, looked at where it lies.

use std::fmt;

use crate::buffer::Buffer;
use crate::coalesce::{Format, SmallMessages};
use crate::endpoint::detached_message::DetachedMessage;
use crate::endpoint::message::Message;
use crate::id::ConnectionId;

/// A received message that is borrowed, as
/// [`ReceiveEndpoint::receive`](crate::ReceiveEndpoint::receive) and its likes give it: a few
/// words, whatever it is copied around. Nothing was allocated or counted for it.
///
/// One that is to be kept becomes a [`Message`] ([`to_message`](Self::to_message)), which shares
/// the buffer, or a [`DetachedMessage`] ([`detach`](Self::detach)), which has a copy.
#[derive(Clone, Copy)]
pub struct MessageRef<'a> {
    connection: ConnectionId,
    sequence: u64,
    header: &'a [u8],
    payload: &'a [u8],
    source: MessageSource<'a>,
}

/// What a message is borrowed from.
#[derive(Clone, Copy)]
enum MessageSource<'a> {
    Alone(&'a Message),
    /// Where in the frame its header begins, behind which the payload comes.
    Frame(&'a Buffer, usize),
}

impl<'a> MessageRef<'a> {
    /// One of a frame, where its header begins at so many bytes.
    #[inline(always)]
    pub(crate) fn in_frame(
        (connection, sequence): (ConnectionId, u64),
        (header, payload): (&'a [u8], &'a [u8]),
        (frame, start): (&'a Buffer, usize),
    ) -> Self {
        Self {
            connection,
            sequence,
            header,
            payload,
            source: MessageSource::Frame(frame, start),
        }
    }

    /// The connection that it came by.
    #[inline]
    pub fn connection(&self) -> ConnectionId {
        self.connection
    }

    /// Its number on that connection: see [`Message::sequence`].
    #[inline]
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// The header as it was sent: see [`Message::header`].
    #[inline]
    pub fn header(&self) -> &'a [u8] {
        self.header
    }

    /// The payload: see [`Message::payload`].
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// The small messages of the payload: see [`Message::coalesced`].
    #[inline]
    pub fn coalesced(&self, format: Format) -> SmallMessages<'a> {
        SmallMessages::new(format, self.payload)
    }

    /// The message to keep: it shares the buffer that it came in, which is counted and not copied.
    /// While it is held, that buffer is not posted again.
    pub fn to_message(&self) -> Message {
        match self.source {
            MessageSource::Alone(message) => message.share(),
            MessageSource::Frame(frame, start) => {
                let header = self.header.len();
                let buffer = frame.part(start..start + header + self.payload.len());
                Message::new(self.connection, self.sequence, 0..header, buffer, None)
            }
        }
    }

    /// A copy, which holds no buffer of the endpoint's: for one that is kept for long, as
    /// [`Message::detach`].
    pub fn detach(&self) -> DetachedMessage {
        let bytes = [self.header, self.payload].concat();
        let about = (self.connection, self.sequence);
        DetachedMessage::new(about, self.header.len(), bytes)
    }
}

impl<'a> From<&'a Message> for MessageRef<'a> {
    #[inline]
    fn from(message: &'a Message) -> Self {
        Self {
            connection: message.connection(),
            sequence: message.sequence(),
            header: message.header(),
            payload: message.payload(),
            source: MessageSource::Alone(message),
        }
    }
}

impl fmt::Debug for MessageRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MessageRef")
            .field("connection", &self.connection)
            .field("sequence", &self.sequence)
            .field("header_bytes", &self.header.len())
            .field("payload_bytes", &self.payload.len())
            .finish_non_exhaustive()
    }
}
