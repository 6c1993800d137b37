//! `ReceiveCredit`: how many messages with blocks a sender may send, and how many it has sent. A
//! pack of several blocks is one of them, as a block that comes by itself is.

use crate::stream::StreamViolation;

/// Messages beyond its window that a receiver deals with, where a network brings them late or
/// twice.
const LATE_MAX: u64 = 64;

/// The credit of one stream, over all its connections.
#[derive(Debug)]
pub(super) struct ReceiveCredit {
    /// Messages that may be under way at a time.
    window: u64,
    /// Messages that the sender may have sent, all in all, as it was told.
    granted: u64,
    /// The sender was told so on a connection that is lost, or may not have heard of it.
    is_stale: bool,
    /// Messages that arrived.
    arrived: u64,
    /// Messages that were sent, and will never arrive.
    lost: u64,
    /// Messages whose buffers are free again, or that will never arrive.
    released: u64,
    /// Messages whose blocks are being checked and written.
    under_way: u64,
}

impl ReceiveCredit {
    pub(super) fn new(window: u64) -> Self {
        Self {
            window,
            granted: 0,
            is_stale: false,
            arrived: 0,
            lost: 0,
            released: 0,
            under_way: 0,
        }
    }

    pub(super) fn window(&self) -> u64 {
        self.window
    }

    pub(super) fn granted(&self) -> u64 {
        self.granted
    }

    pub(super) fn arrived(&self) -> u64 {
        self.arrived
    }

    pub(super) fn lost(&self) -> u64 {
        self.lost
    }

    /// A message has arrived.
    pub(super) fn on_arrived(&mut self) {
        self.arrived += 1;
    }

    /// The buffer of a message is free again that brought nothing new.
    pub(super) fn release(&mut self) {
        self.released += 1;
    }

    /// What a message brought is checked and written, or was damaged: its buffer is free again.
    pub(super) fn on_done(&mut self) {
        self.under_way -= 1;
        self.released += 1;
    }

    /// `messages` messages will never arrive.
    pub(super) fn on_lost(&mut self, messages: u64) {
        self.lost += messages;
        self.released += messages;
    }

    /// All that was sent, so many messages, is dealt with, whatever was counted as lost or came
    /// twice.
    pub(super) fn settle(&mut self, sent: u64) {
        self.released = sent;
    }

    /// The last grant may be lost: it is told once more.
    pub(super) fn tell_again(&mut self) {
        self.is_stale = true;
    }

    /// A message has brought something that is to be checked and written. Refuses those beyond the
    /// window, and some: what comes late or twice, damaged maybe, has made room that it did not
    /// take, and that is not the sender's doing.
    ///
    /// # Errors
    /// [`StreamViolation::OverCredit`].
    pub(super) fn take(&mut self) -> Result<(), StreamViolation> {
        if self.under_way < self.window.saturating_add(LATE_MAX) {
            self.under_way += 1;
            return Ok(());
        }
        Err(StreamViolation::OverCredit {
            sent: self.arrived + self.lost,
            granted: self.granted,
        })
    }

    /// What the sender is to be told now, if anything: a quarter of the window at a time, or
    /// whatever there is when the sender can't go on.
    pub(super) fn due(&self) -> Option<u64> {
        let granted = self.granted.max(self.released + self.window);
        let used = self.arrived + self.lost;
        let newly = granted - self.granted;
        let quarter = (self.window / 4).max(1);
        let is_due = self.is_stale || newly >= quarter || newly > 0 && used >= self.granted;
        is_due.then_some(granted)
    }

    /// The sender was told that it is accepted, with a whole window.
    pub(super) fn on_accept_sent(&mut self) {
        self.granted = self.window;
    }

    /// The sender was told of a grant.
    pub(super) fn on_credit_sent(&mut self, granted: u64) {
        self.granted = granted;
        self.is_stale = false;
    }
}
