//! What goes in front of the payload of a message that is copied into a frame.

use super::Outgoing;
use crate::endpoint::hub::headers::{Header, Prefix};
use crate::fabric::Shape;

impl Outgoing {
    /// How many bytes go in front of a payload: of framing, and of the header. `None`: the header
    /// can't be sent, or has no bytes to be copied from.
    #[inline(always)]
    pub(in crate::endpoint::hub) fn front_len(&self, header: &Header<'_>) -> Option<[usize; 2]> {
        match header {
            Header::Bytes(header) => {
                self.headers.check(header.len()).ok()?;
                Some([self.headers.mode.overhead(), header.len()])
            }
            // It has no framing where it is to travel alone.
            Header::Prepared(_) if self.shape == Shape::TwoMessages => None,
            Header::Prepared(header) => Some([0, self.headers.prepared(header).len()]),
        }
    }

    /// These bytes.
    #[inline(always)]
    pub(in crate::endpoint::hub) fn front<'h>(
        &'h self,
        header: &'h Header<'_>,
    ) -> (Prefix, &'h [u8]) {
        match header {
            Header::Bytes(header) => (self.headers.prefix(header), header),
            Header::Prepared(header) => (Prefix(None), self.headers.prepared(header)),
        }
    }
}
