//! `ReceivedFrame`: a frame that came, and lies here as it came until its messages are asked for.

use super::frame_reader::FrameReader;
use crate::buffer::Buffer;
use crate::endpoint::message_ref::MessageRef;
use crate::id::ConnectionId;
use crate::protocol::wire::frame::{self, FramePlace};
use crate::protocol::wire::{self, HeaderMode, WireError};

/// A frame that was read once: so many of its messages make sense, and nobody looks at what is
/// behind them.
pub(crate) struct ReceivedFrame {
    connection: ConnectionId,
    mode: HeaderMode,
    /// The number of the message in front of the first.
    before: u64,
    /// How many messages it has.
    count: usize,
    buffer: Buffer,
}

/// What is counted of a frame.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct FrameCounts {
    pub(crate) messages: u64,
    /// Bytes of them, headers included.
    pub(crate) bytes: u64,
    /// What comes behind them makes no sense.
    pub(crate) wrong: Option<WireError>,
}

impl ReceivedFrame {
    /// Reads all of a frame, of which nobody has heard anything yet.
    pub(super) fn read(
        (connection, mode): (ConnectionId, HeaderMode),
        before: u64,
        buffer: Buffer,
    ) -> (Self, FrameCounts) {
        let mut counts = FrameCounts::default();
        let bytes: &[u8] = &buffer;
        for place in frame::messages(bytes) {
            let read = place.and_then(|place| {
                wire::split(mode, &bytes[place.clone()])?;
                Ok(place.len())
            });
            match read {
                Ok(len) => counts.bytes += len as u64,
                Err(error) => {
                    counts.wrong = Some(error);
                    break;
                }
            }
            counts.messages += 1;
        }
        let frame = Self {
            connection,
            mode,
            before,
            count: counts.messages as usize,
            buffer,
        };
        (frame, counts)
    }

    /// The connection that it came by.
    pub(crate) fn connection(&self) -> ConnectionId {
        self.connection
    }

    /// No message of it makes sense.
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(crate) fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// What [`FrameView`] needs, looked up once for all messages.
    #[inline]
    pub(crate) fn view(&self) -> FrameView<'_> {
        FrameView {
            frame: self,
            bytes: &self.buffer,
        }
    }

    /// The messages behind a place, each with a handle of its own.
    pub(crate) fn rest(&self, place: FramePlace) -> FrameReader<'_> {
        let left = self.count.saturating_sub(place.count);
        let about = (self.connection, self.mode);
        FrameReader::new(about, self.before, &self.buffer, (place, left))
    }
}

/// A frame whose messages are looked at where they are.
#[derive(Clone, Copy)]
pub(crate) struct FrameView<'a> {
    frame: &'a ReceivedFrame,
    bytes: &'a [u8],
}

impl<'a> FrameView<'a> {
    /// Nothing comes behind this place.
    #[inline(always)]
    pub(crate) fn is_over(&self, place: FramePlace) -> bool {
        place.count >= self.frame.count
    }

    /// The message at a place where [there is one](Self::is_over); the place moves behind it.
    #[inline(always)]
    pub(crate) fn read(&self, place: &mut FramePlace) -> Option<MessageRef<'a>> {
        let Self { frame, bytes } = *self;
        let mut messages = frame::messages_from(bytes, *place);
        // It could be read before, and nobody has written there since.
        let message = messages.next()?.ok()?;
        let start = message.start;
        let message = &bytes[message];
        let (header, payload) = wire::split(frame.mode, message).ok()?;
        *place = messages.place();
        Some(MessageRef::in_frame(
            (frame.connection, frame.before + place.count as u64),
            (&message[header.clone()], &message[payload]),
            (&frame.buffer, start + header.start),
        ))
    }
}

/// A frame among events: so many of them came before it.
pub(crate) struct PlacedFrame {
    pub(crate) behind: usize,
    pub(crate) frame: ReceivedFrame,
}
