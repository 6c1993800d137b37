//! Frames: several data messages that travel as one. A frame takes one credit, one receive and one
//! number of the RDM form, whatever is in it; the messages are counted by the side that reads them.

use super::{Connection, Dropped, Form};
use crate::protocol::wire::{self, ControlKind, WireError};

impl Connection {
    /// Whether data messages may come in frames: both sides said so.
    pub(crate) fn has_frames(&self) -> bool {
        let both = |features: u32| features & self.local.features & wire::FEATURE_FRAMES != 0;
        self.peer.is_some_and(|peer| both(peer.features))
    }

    /// A frame is begun, which takes a credit, by who has just asked whether it
    /// [may be sent](Self::may_send). Gives its CQ data.
    pub(crate) fn on_frame_begun(&mut self) -> u64 {
        let number = self.on_data_admitted();
        let peer = self.peer.filter(|_| self.form == Form::Rdm);
        let index = peer.map_or(0, |peer| super::index_of(peer.connection));
        // The MSG form has no numbers.
        let number = peer.map_or(0, |_| number);
        let short = peer.is_some() && self.has_short_marks();
        wire::numbered(wire::mark(short, ControlKind::FRAME, index), number)
    }

    /// A frame of `len` bytes came. Gives the number of its first message, as
    /// [`Connection::on_data`] does; [`on_frame_read`](Self::on_frame_read) counts the others.
    ///
    /// # Errors
    ///
    /// [`Dropped`]: nothing of it must reach the application.
    pub(crate) fn on_frame(&mut self, len: u64) -> Result<u64, Dropped> {
        if !self.has_frames() {
            self.on_arrival("a frame before the connection was established");
            self.violate(WireError::Kind(ControlKind::FRAME.0));
            return Err(Dropped);
        }
        self.on_data(len)
    }

    /// So many messages were in the frame that came last.
    pub(crate) fn on_frame_read(&mut self, messages: u64) {
        self.on_joined(messages.saturating_sub(1));
    }
}
