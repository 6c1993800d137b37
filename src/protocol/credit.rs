//! How many data messages one side may send to the other: counted here, granted by control
//! messages.
//!
//! All counts are cumulative since the connection began, so a grant that comes late or is merged
//! with another loses nothing. Providers do not hold back a sender (tcp queues a million posts);
//! this does.

/// Most credit messages that one side can have under way before the other has read any of them.
///
/// The peer must have a receive posted for each, besides those for data and for the goodbye. That
/// there are never more follows from the rules of [`ReceiveCredits::take_grant`]. Let `w` be the
/// window, `q = max(w / 4, 1)` or more, and let the peer have read grants up to `g`; so at most `g`
/// data messages were ever sent. A grant is at most `w` above the number of data messages received,
/// hence at most `g + w`. A grant that is early (fewer than `q` new buffers) is made only when
/// everything granted has been received, so only when the peer has read every earlier grant: of the
/// unread ones it can only be the first, and it adds at least 1. Each other one adds at least `q`.
/// So `k` unread grants need `1 + (k - 1) q <= w`, which is `k <= 7` for every `w` (the worst is
/// `w = 7`, `q = 1`). The model test counts them.
pub(crate) const CREDIT_MESSAGES_MAX: usize = 8;

/// From this many messages on, half of the window is granted at once, and not a quarter.
const LARGE_WINDOW: u64 = 64;

/// Most heartbeats that one side can have under way before the other has read any of them: one
/// question, because the next one follows only its answer; and one answer, because the peer's next
/// question follows only this one. The exploration and the simulation of two machines count them.
pub(crate) const HEARTBEAT_MESSAGES_MAX: usize = 2;

/// Grants of one connection that grant nothing, at most. No peer of ours sends one
/// ([`ReceiveCredits::take_grant`]); they use no credit, so somebody who sends them without an end
/// keeps this side busy for nothing.
pub(crate) const EMPTY_GRANTS_MAX: u32 = 16;

/// What is wrong with a peer's account of credits.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CreditError {
    /// A grant took back what an earlier one gave.
    #[error("a grant of {granted} messages after one of {before}")]
    Backwards {
        /// Messages allowed by the new grant, since the connection began.
        granted: u64,
        /// Messages allowed before.
        before: u64,
    },
    /// A grant is for more messages than the peer said it ever has room for.
    #[error("a grant of {ahead} messages ahead, above the receive depth of {window}")]
    TooFar {
        /// Messages that could be sent at once by this grant.
        ahead: u64,
        /// Messages that the peer has room for.
        window: u64,
    },
    /// A grant said again and again what an earlier one had said.
    #[error("a grant of {granted} messages that were granted before, once too often")]
    Repeated {
        /// Messages allowed by the grant, and before, since the connection began.
        granted: u64,
    },
    /// The peer sent a message that it had no credit for.
    #[error("a message beyond the {granted} that were granted")]
    Overrun {
        /// Messages granted to the peer, since the connection began.
        granted: u64,
    },
}

fabricast_process::debug_as_words!(CreditError);

/// The sender's side: how many data messages may still be posted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SendCredits {
    granted: u64,
    used: u64,
    window: u32,
    /// Grants so far that granted nothing.
    empty_grants: u32,
}

impl SendCredits {
    /// From the peer's hello: its first grant, and the most that it may ever grant ahead (its
    /// receive depth).
    pub(crate) fn new(first: u32, window: u32) -> Self {
        Self {
            granted: first.into(),
            used: 0,
            window,
            empty_grants: 0,
        }
    }

    /// Messages that may be posted now.
    pub(crate) fn available(&self) -> u64 {
        self.granted - self.used
    }

    /// Messages that the peer has allowed since the connection began.
    pub(crate) fn granted(&self) -> u64 {
        self.granted
    }

    /// Messages posted since the connection began.
    pub(crate) fn used(&self) -> u64 {
        self.used
    }

    /// Uses one credit; false when there is none.
    pub(crate) fn take(&mut self) -> bool {
        if self.used == self.granted {
            return false;
        }
        self.used += 1;
        true
    }

    /// Gives back the credit of a message that was not posted after all.
    pub(crate) fn undo(&mut self) {
        debug_assert!(self.used > 0, "undo without take");
        self.used = self.used.saturating_sub(1);
    }

    /// Takes a grant from the peer and tells how many messages it adds.
    ///
    /// # Errors
    ///
    /// [`CreditError::Backwards`], [`CreditError::TooFar`] and [`CreditError::Repeated`]; then
    /// nothing can be sent because of it.
    pub(crate) fn grant(&mut self, cumulative: u64) -> Result<u64, CreditError> {
        let before = self.granted;
        if cumulative < before {
            return Err(CreditError::Backwards {
                granted: cumulative,
                before,
            });
        }
        // What the peer has received, we have used: an honest grant is never more than its depth
        // ahead of `used`.
        let ahead = cumulative - self.used;
        if ahead > self.window.into() {
            return Err(CreditError::TooFar {
                ahead,
                window: self.window.into(),
            });
        }
        if cumulative == before {
            self.empty_grants += 1;
            if self.empty_grants > EMPTY_GRANTS_MAX {
                return Err(CreditError::Repeated { granted: before });
            }
        }
        self.granted = cumulative;
        Ok(cumulative - before)
    }
}

/// The receiver's side: what the peer may send, and when to tell it about more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReceiveCredits {
    window: u64,
    granted: u64,
    received: u64,
    reposted: u64,
}

impl ReceiveCredits {
    /// With the first grant, which is also the window: that many buffers for data are posted from
    /// the start.
    pub(crate) fn new(window: u32) -> Self {
        let window = u64::from(window);
        Self {
            window,
            granted: window,
            received: 0,
            reposted: 0,
        }
    }

    /// Data messages received since the connection began.
    pub(crate) fn received(&self) -> u64 {
        self.received
    }

    /// Data messages allowed since the connection began.
    pub(crate) fn granted(&self) -> u64 {
        self.granted
    }

    /// Whether the peer has a credit that it has not used yet.
    pub(crate) fn has_room(&self) -> bool {
        self.received < self.granted
    }

    /// Counts one data message.
    ///
    /// # Errors
    ///
    /// [`CreditError::Overrun`] when the peer had no credit for it; then nothing changes.
    pub(crate) fn on_received(&mut self) -> Result<(), CreditError> {
        if self.received == self.granted {
            return Err(CreditError::Overrun {
                granted: self.granted,
            });
        }
        self.received += 1;
        Ok(())
    }

    /// `n` buffers that had held data messages are posted again.
    pub(crate) fn on_reposted(&mut self, n: u64) {
        debug_assert!(
            n <= self.received - self.reposted,
            "more buffers posted again than were filled"
        );
        // Never grant room that is not there, whatever the caller says.
        self.reposted = self.reposted.saturating_add(n).min(self.received);
    }

    /// Whether a grant is worth a message now: a quarter of the window is new, half of a large one,
    /// or the peer may have run dry.
    pub(crate) fn is_due(&self) -> bool {
        let new = self.window + self.reposted - self.granted;
        new >= self.quantum() || (new > 0 && self.granted == self.received)
    }

    /// Receives that are worth a message. A grant costs both sides a system call on tcp; half of a
    /// large window lasts while it travels.
    fn quantum(&self) -> u64 {
        if self.window < LARGE_WINDOW {
            (self.window / 4).max(1)
        } else {
            self.window / 2
        }
    }

    /// The cumulative count to grant, if a grant is due; from then on it counts as granted.
    pub(crate) fn take_grant(&mut self) -> Option<u64> {
        if !self.is_due() {
            return None;
        }
        self.granted = self.window + self.reposted;
        Some(self.granted)
    }
}

#[cfg(test)]
mod tests;
