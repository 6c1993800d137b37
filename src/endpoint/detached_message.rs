//! `DetachedMessage`: a received message in memory of its own.

use std::fmt;

use crate::id::ConnectionId;

/// A copy of a received message, which holds no buffer of the endpoint that it came by: keep as
/// many as there is memory for. [`Message::detach`](crate::endpoint::Message::detach) makes one.
#[derive(Clone, PartialEq, Eq)]
pub struct DetachedMessage {
    connection: ConnectionId,
    sequence: u64,
    /// Bytes of the header, which come first.
    header: usize,
    bytes: Vec<u8>,
}

impl DetachedMessage {
    /// `header`: bytes of the header, in front of the payload.
    pub(crate) fn new(
        (connection, sequence): (ConnectionId, u64),
        header: usize,
        bytes: Vec<u8>,
    ) -> Self {
        Self {
            connection,
            sequence,
            header,
            bytes,
        }
    }

    /// The connection that it came by.
    pub fn connection(&self) -> ConnectionId {
        self.connection
    }

    /// Its number on that connection: see
    /// [`Message::sequence`](crate::endpoint::Message::sequence).
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// The header as it was sent.
    pub fn header(&self) -> &[u8] {
        &self.bytes[..self.header]
    }

    /// The payload.
    pub fn payload(&self) -> &[u8] {
        &self.bytes[self.header..]
    }
}

impl fmt::Debug for DetachedMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DetachedMessage")
            .field("connection", &self.connection)
            .field("sequence", &self.sequence)
            .field("header_bytes", &self.header().len())
            .field("payload_bytes", &self.payload().len())
            .finish_non_exhaustive()
    }
}
