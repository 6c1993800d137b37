//! `Attempts`: how often a peer was tried in vain, and how long the next attempt waits.

use std::time::Duration;

/// The first wait before a new attempt to connect, and the longest.
const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(5);

/// The attempts to send something to one peer.
#[derive(Debug, Default)]
pub(super) struct Attempts {
    /// Attempts in a row at which the peer got no more than it had ever had.
    failures: u32,
    has_failed: bool,
    /// The most that the peer said it has of the content, in bytes, in whichever session.
    most_written: u64,
}

impl Attempts {
    /// An attempt has failed. How long to wait before the next; `None`: there were so many already.
    pub(super) fn next(&mut self, most: u32, is_worth_it: bool) -> Option<Duration> {
        if self.failures >= most || !is_worth_it {
            return None;
        }
        let wait = RETRY_FIRST * 2_u32.saturating_pow(self.failures.min(16));
        self.failures += 1;
        Some(wait.min(RETRY_MAX))
    }

    /// An attempt has failed.
    pub(super) fn on_failed(&mut self) {
        self.has_failed = true;
    }

    /// Whether any attempt has failed.
    pub(super) fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// The peer says how many bytes it has. More than ever is what makes an attempt good, not what
    /// was sent: a peer that takes everything and has nothing in the end would be sent it for ever.
    pub(super) fn on_written(&mut self, bytes: u64) {
        if bytes > self.most_written {
            self.most_written = bytes;
            self.failures = 0;
        }
    }

    /// The most that the peer said it has, in bytes.
    pub(super) fn most_written(&self) -> u64 {
        self.most_written
    }

    /// Attempts in a row that were in vain.
    pub(super) fn failures(&self) -> u32 {
        self.failures
    }
}
