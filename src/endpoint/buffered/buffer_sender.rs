//! `BufferSender`: what sends the buffers of a buffered endpoint.

use std::time::Instant;

use crate::Error;
use crate::buffer::Payload;
use crate::endpoint::error::Refused;
use crate::endpoint::event::SendEvent;
use crate::endpoint::send::SendEndpointZeroCopy;
use crate::protocol::connection::CloseReason;

/// What sends the buffers: `SendEndpointZeroCopy`, or a fake one.
pub(crate) trait BufferSender {
    fn send(&mut self, payload: Payload, key: u64) -> Result<(), Refused<Payload>>;
    fn poll(&mut self, events: &mut Vec<SendEvent>) -> Result<(), Error>;
    fn is_connected(&self) -> bool;
    fn close_reason(&self) -> Option<CloseReason>;
    fn begin_close(&mut self, deadline: Instant);
}

impl BufferSender for SendEndpointZeroCopy {
    #[inline]
    fn send(&mut self, payload: Payload, key: u64) -> Result<(), Refused<Payload>> {
        self.send_data(payload, &[], key)
    }

    #[inline]
    fn poll(&mut self, events: &mut Vec<SendEvent>) -> Result<(), Error> {
        Self::poll(self, events).map(drop)
    }

    fn is_connected(&self) -> bool {
        Self::is_connected(self)
    }

    fn close_reason(&self) -> Option<CloseReason> {
        Self::close_reason(self)
    }

    fn begin_close(&mut self, deadline: Instant) {
        Self::begin_close(self, deadline);
    }
}
