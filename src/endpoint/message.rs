//! `Message`: a received message, owned.

use std::fmt;
use std::ops::Range;

use crate::buffer::Buffer;
use crate::coalesce::{Format, FormatError, OwnedSmallMessages, SmallMessage, SmallMessages};
use crate::endpoint::detached_message::DetachedMessage;
use crate::endpoint::message_ref::MessageRef;
use crate::id::ConnectionId;

/// A received message. Owned: keep it as long as you like, drop it on any thread.
///
/// While it is held, its slot of the receive pool is not posted again; hold them all and the peers
/// stall (that is the back-pressure). Dropping it gives the slot back. A message whose header came
/// by itself holds two slots.
///
/// Small messages that their sender packed ([`Packing`](crate::endpoint::Packing)) share the slot
/// of their frame, all of which is held by the last of them: a message of 64 bytes may hold 32 KiB.
/// [`detach`](Self::detach) those that are kept longer than their neighbours;
/// [`PackedReceives::frames_held`](crate::stats::PackedReceives::frames_held) says how many slots
/// are held so.
pub struct Message {
    connection: ConnectionId,
    sequence: u64,
    /// Where in the buffer the header is; the payload is what follows. Empty where the header came
    /// by itself.
    header: Range<usize>,
    buffer: Buffer,
    /// The header that came in a message of its own.
    lone_header: Option<Buffer>,
    copied: bool,
}

impl Message {
    /// A message in one buffer, or in two.
    #[inline]
    pub(crate) fn new(
        connection: ConnectionId,
        sequence: u64,
        header: Range<usize>,
        buffer: Buffer,
        lone_header: Option<Buffer>,
    ) -> Self {
        Self {
            connection,
            sequence,
            header,
            buffer,
            lone_header,
            copied: false,
        }
    }

    /// One that this library copied, or not.
    pub(crate) fn with_copied(self, copied: bool) -> Self {
        Self { copied, ..self }
    }

    /// What a layer of ours wrote in front of the header, and what follows it; of the payload where
    /// both are one run (`raw`).
    pub(crate) fn front(&self, raw: bool) -> &[u8] {
        match raw && self.lone_header.is_none() {
            true => self.payload(),
            false => self.header(),
        }
    }

    /// Cuts such a front off, which is so many bytes long.
    pub(crate) fn cut_front(&mut self, raw: bool, bytes: usize) {
        match &mut self.lone_header {
            Some(header) => *header = header.slice(bytes..),
            None if raw => self.header = self.header.end + bytes..self.header.end + bytes,
            None => self.header.start += bytes,
        }
    }

    /// The connection that it came by.
    #[inline]
    pub fn connection(&self) -> ConnectionId {
        self.connection
    }

    /// Its number on that connection, counted from 1, without a gap: messages of every kind are
    /// counted, and a write with immediate data
    /// ([`WindowEvent::PeerWrote`](crate::endpoint::WindowEvent::PeerWrote)) takes a number, too,
    /// which no message has.
    #[inline]
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// The header as it was sent; empty with [`HeaderMode::Raw`](crate::endpoint::HeaderMode::Raw),
    /// unless it came in a message of its own
    /// ([`Shape::TwoMessages`](crate::fabric::Shape::TwoMessages)).
    #[inline]
    pub fn header(&self) -> &[u8] {
        match &self.lone_header {
            Some(header) => header,
            None => &self.buffer[self.header.clone()],
        }
    }

    /// The payload; with [`HeaderMode::Raw`](crate::endpoint::HeaderMode::Raw), header and payload
    /// as they were sent, unless the header came in a message of its own.
    #[inline]
    pub fn payload(&self) -> &[u8] {
        &self.buffer[self.header.end..]
    }

    /// Whether this library has copied it on its way here: a long message that did not wait until
    /// every peer of the domain had confirmed that it writes no more, or where none can
    /// ([`LongMessages`](crate::endpoint::LongMessages)). The bytes are as good as those of any
    /// other: no peer can change them.
    #[inline]
    pub fn is_copied(&self) -> bool {
        self.copied
    }

    /// The payload as a buffer that can be sent on without a copy, if the receive pool's region is
    /// registered with the domain it goes out by.
    pub fn into_payload(self) -> Buffer {
        self.buffer.slice(self.header.end..)
    }

    /// Copies the message into memory of its own, and gives back its slot, or its part of one. For
    /// messages that are kept for long, or that are few of the many that came in one frame.
    pub fn detach(self) -> DetachedMessage {
        MessageRef::from(&self).detach()
    }

    /// The same message once more.
    pub(crate) fn share(&self) -> Self {
        Self {
            connection: self.connection,
            sequence: self.sequence,
            header: self.header.clone(),
            buffer: self.buffer.clone(),
            lone_header: self.lone_header.clone(),
            copied: self.copied,
        }
    }

    /// The small messages of the payload, borrowed. Nothing says that a message has any: both ends
    /// must be told the same format, and one that is not in it gives an error (always with
    /// [`Format::Compact`], which has a magic number; by chance with the other).
    #[inline]
    pub fn coalesced(&self, format: Format) -> SmallMessages<'_> {
        SmallMessages::new(format, self.payload())
    }

    /// The small messages of the payload, each an owned part of this message's buffer; its slot is
    /// posted again when the last is gone.
    pub fn into_coalesced(self, format: Format) -> OwnedSmallMessages {
        OwnedSmallMessages::new(format, self.into_payload())
    }

    /// Calls a function with each small message of the payload, and says how many there were.
    ///
    /// # Errors
    ///
    /// The payload is malformed; the messages in front of the fault were visited.
    #[inline]
    pub fn for_each_coalesced(
        &self,
        format: Format,
        mut visit: impl FnMut(SmallMessage<'_>),
    ) -> Result<u64, FormatError> {
        let mut count = 0;
        for small in self.coalesced(format) {
            visit(small?);
            count += 1;
        }
        Ok(count)
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("connection", &self.connection)
            .field("sequence", &self.sequence)
            .field("header_bytes", &self.header().len())
            .field("payload_bytes", &self.payload().len())
            .finish_non_exhaustive()
    }
}
