//! `SendCredit`: how many messages with blocks were sent, and how many the peer has granted. A pack
//! of several blocks is one of them, as a block that goes by itself is.

use crate::stream::StreamViolation;

/// The most messages that a peer is believed to have room for at a time.
const CREDIT_WINDOW_MAX: u64 = 1 << 32;

/// The credit of one stream, over all its connections.
#[derive(Debug, Default)]
pub(super) struct SendCredit {
    pub(super) sent: u64,
    pub(super) granted: u64,
}

impl SendCredit {
    /// Messages that the peer has room for.
    pub(super) fn room(&self) -> u64 {
        self.granted.saturating_sub(self.sent)
    }

    /// The peer grants so many messages, all in all. Counts are said anew when a connection was
    /// lost: one that is not above the last is old. Whether it was above.
    ///
    /// # Errors
    /// More than any peer has room for.
    pub(super) fn on_granted(&mut self, granted: u64) -> Result<bool, StreamViolation> {
        if granted.saturating_sub(self.sent) > CREDIT_WINDOW_MAX {
            let what = "the number of blocks that are granted";
            let value = granted;
            return Err(StreamViolation::Count { what, value });
        }
        let is_more = granted > self.granted;
        self.granted = self.granted.max(granted);
        Ok(is_more)
    }
}
