//! Data messages in two: the header in a message of its own, the payload in the next (shape
//! `TwoMessages`).
//!
//! Together they use one credit, for which the receiver keeps two receives posted; each has a
//! number of its own in the RDM form. A header waits for its payload, which is marked as such: if
//! the header is lost, it is not taken for a message.

use super::{Connection, Dropped, SendBlocked, State, Violation};
use crate::protocol::credit::CreditError;
use crate::protocol::wire::{self, ControlKind, HeaderMode, WireError};

/// Headers that travel alone.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Headers {
    /// Posted by this side since the connection began, modulo 2^32, as the numbers of messages are.
    pub(super) sent: u32,
    /// The bytes of one that came and whose payload did not yet.
    pub(super) waiting: Option<u16>,
}

impl Connection {
    /// Whether data messages may come in two: both sides said so.
    pub(crate) fn has_two_messages(&self) -> bool {
        self.peer.is_some_and(|peer| {
            peer.features & self.local.features & wire::FEATURE_TWO_MESSAGES != 0
        })
    }

    /// Receives that one credit of the peer stands for.
    pub(crate) fn receives_per_credit(&self) -> u32 {
        1 + u32::from(self.has_two_messages())
    }

    /// A header and its payload are about to be posted, in this order and with nothing but control
    /// messages between them: takes their one credit, and gives the number of the header; the
    /// payload has the next.
    ///
    /// # Errors
    ///
    /// As [`Connection::may_send`]; then nothing changes.
    pub(crate) fn on_pair_posted(&mut self) -> Result<u64, SendBlocked> {
        let number = self.on_data_posted()?;
        self.data.headers.sent = self.data.headers.sent.wrapping_add(1);
        Ok(number)
    }

    /// The provider did not take the header of the last `on_pair_posted`.
    pub(crate) fn on_pair_undone(&mut self) {
        self.data.headers.sent = self.data.headers.sent.wrapping_sub(1);
        self.on_post_undone();
    }

    /// The CQ data of a header that travels alone, and of the payload behind it, from the number of
    /// the header on.
    pub(crate) fn pair_data(&self, number: u64) -> [u64; 2] {
        let peer = self.peer.filter(|_| self.form == super::Form::Rdm);
        let index = peer.map_or(0, |peer| super::index_of(peer.connection));
        // The MSG form has no numbers.
        let number = peer.map_or([0; 2], |_| [number, number.wrapping_add(1)]);
        let short = peer.is_some() && self.has_short_marks();
        let mark = |kind| wire::mark(short, kind, index);
        [
            wire::numbered(mark(ControlKind::HEADER), number[0]),
            wire::numbered(mark(ControlKind::PAYLOAD), number[1]),
        ]
    }

    /// A payload of `len` bytes came, whose header came before. Gives the number of the message, as
    /// [`Connection::on_data`] does.
    ///
    /// # Errors
    ///
    /// [`Dropped`]: the message must not reach the application.
    pub(crate) fn on_payload(&mut self, len: u64) -> Result<u64, Dropped> {
        match self.data.headers.waiting.take() {
            Some(header) => {
                self.on_counted(len.saturating_add(header.into()), self.local.receive_size)
            }
            None => {
                self.violate(Violation::OutOfTurn("a payload without its header"));
                Err(Dropped)
            }
        }
    }

    /// A header of `len` bytes came in a message of its own.
    ///
    /// # Errors
    ///
    /// [`Dropped`]: the message must not reach the application.
    pub(crate) fn on_header(&mut self, len: u64) -> Result<(), Dropped> {
        self.on_arrival("a header before the connection was established");
        if self.state == State::Closed {
            return Err(Dropped);
        }
        self.hear();
        match self.judge_header(len) {
            Ok(len) => {
                self.data.headers.waiting = Some(len);
                Ok(())
            }
            Err(violation) => {
                self.violate(violation);
                Err(Dropped)
            }
        }
    }

    fn judge_header(&self, len: u64) -> Result<u16, Violation> {
        let limit = self.local.receive_size;
        let mode = self.peer.map_or(HeaderMode::Raw, |peer| peer.header_mode);
        if !self.has_two_messages() {
            return Err(WireError::Kind(ControlKind::HEADER.0).into());
        }
        if self.goodbye.is_heard() {
            return Err(Violation::OutOfTurn("a header after its goodbye"));
        }
        if self.data.headers.waiting.is_some() {
            return Err(Violation::OutOfTurn("a header where a payload is due"));
        }
        if len > limit {
            return Err(Violation::TooLong {
                len_bytes: len,
                limit_bytes: limit,
            });
        }
        let short = u16::try_from(len).ok();
        let Some(short) = short.filter(|len| mode.admits((*len).into())) else {
            let name = "header_len";
            return Err(WireError::Field { name, value: len }.into());
        };
        if !self.data.receive.has_room() {
            let granted = self.data.receive.received();
            return Err(CreditError::Overrun { granted }.into());
        }
        Ok(short)
    }
}
