//! `IncomingLap`: a lap of a stream: the sender sends what is wanted and says that it is through,
//! and the receiver says what is missing.

use super::listing::Listing;
use crate::stream::wire::Finish;

/// The lap that a stream is in.
#[derive(Debug, Default)]
pub(super) struct IncomingLap {
    number: u32,
    /// What the sender said at the end of the lap.
    finish: Option<Finish>,
    /// What was missing after the last lap, as far as that is still to be said.
    missing: Option<Listing>,
    /// The last list of what is missing, for the case that the connection that it was said on is
    /// lost: after which lap, and how many blocks had arrived by then.
    last_missing: Option<(u32, u64)>,
}

impl IncomingLap {
    pub(super) fn number(&self) -> u32 {
        self.number
    }

    /// What the sender said at the end of the lap, if it has come to that.
    pub(super) fn finish(&self) -> Option<Finish> {
        self.finish
    }

    /// Whether the sender may say this at the end of the lap: the same on each connection.
    pub(super) fn admits(&self, finish: &Finish) -> bool {
        let said = |it: &Finish| (it.sent, it.digest, it.blake3);
        self.finish
            .is_none_or(|before| said(&before) == said(finish))
    }

    /// The sender has come to the end of the lap.
    pub(super) fn set_finish(&mut self, finish: Finish) {
        self.finish = Some(finish);
    }

    /// A sender that has come to this lap knows what was missing after the last one, even if that
    /// was about to be said again.
    pub(super) fn forget_missing(&mut self) {
        self.missing = None;
    }

    /// The next lap begins: the sender is told what is missing. `arrived`: blocks so far.
    pub(super) fn begin_next(&mut self, arrived: u64) {
        self.missing = Some(Listing::new(self.number));
        self.last_missing = Some((self.number, arrived));
        self.number += 1;
        self.finish = None;
    }

    /// What is missing is said again, unless the sender has shown that it knows: it has sent
    /// something since, or has come to the end of the lap.
    pub(super) fn say_missing_again(&mut self, arrived_now: u64) {
        if let Some((lap, arrived)) = self.last_missing
            && arrived == arrived_now
            && self.finish.is_none()
        {
            self.missing = Some(Listing::new(lap));
        }
    }

    /// The list of what is missing, as far as it is still to be said.
    pub(super) fn missing(&self) -> Option<Listing> {
        self.missing
    }

    /// A part of the list was said; this is the rest.
    pub(super) fn on_missing_sent(&mut self, rest: Option<Listing>) {
        self.missing = rest;
    }
}
