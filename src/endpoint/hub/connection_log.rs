//! `ConnectionLog`: what an operator reads of a hub's connections. New ones and polite ends are
//! INFO, losses and those that did not come to be WARN; a peer that comes and goes for ever does
//! not fill the log.

use std::fmt;
use std::time::{Duration, Instant};

use crate::contain::say;
use crate::fabric::PeerAddr;
use crate::id::ConnectionId;
use crate::protocol::connection::CloseReason;

/// Lines of one kind that may come at once; then one each [`INTERVAL`].
const BURST: u32 = 100;

/// After which a line of a kind that has used up its burst may come again.
const INTERVAL: Duration = Duration::from_secs(1);

/// What is said at INFO and WARN; what is too much goes to DEBUG.
#[derive(Debug)]
pub(super) struct ConnectionLog {
    connected: Quota,
    closed: Quota,
    lost: Quota,
    refused: Quota,
}

/// A kind of line. What was not said is counted, and said with the next one.
#[derive(Debug)]
struct Quota {
    left: u32,
    /// Since when the next one is earned.
    since: Instant,
    not_said: u64,
}

impl Quota {
    fn new(now: Instant) -> Self {
        Self {
            left: BURST,
            since: now,
            not_said: 0,
        }
    }

    /// Whether a line may be said; and how many were not before it, if any.
    fn take(&mut self, now: Instant) -> Option<Option<u64>> {
        let passed = now.saturating_duration_since(self.since);
        let earned = u32::try_from(passed.as_secs()).unwrap_or(BURST);
        if earned >= BURST - self.left {
            (self.left, self.since) = (BURST, now);
        } else {
            self.left += earned;
            self.since += INTERVAL * earned;
        }
        if self.left == 0 {
            self.not_said += 1;
            return None;
        }
        self.left -= 1;
        Some(Some(std::mem::take(&mut self.not_said)).filter(|lines| *lines > 0))
    }
}

/// A line at this level, or at DEBUG where there were too many of its kind. A subscriber is code of
/// others, and connections end where a panic of it would take something with it.
macro_rules! line {
    ($quota:expr, $now:expr, $level:ident, $($line:tt)*) => {
        match $quota.take($now) {
            Some(not_said) => say(|| tracing::$level!(not_said, $($line)*)),
            None => say(|| tracing::debug!($($line)*)),
        }
    };
}

/// The peer's address, where it is known.
struct Peer(Option<PeerAddr>);

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(addr) => addr.fmt(f),
            None => f.write_str("unknown"),
        }
    }
}

impl ConnectionLog {
    pub(super) fn new(now: Instant) -> Self {
        let [connected, closed, lost, refused] = [(); 4].map(|()| Quota::new(now));
        Self {
            connected,
            closed,
            lost,
            refused,
        }
    }

    #[cold]
    pub(super) fn connected(&mut self, now: Instant, id: ConnectionId, peer: Option<PeerAddr>) {
        let peer = Peer(peer);
        line!(self.connected, now, info, connection = %id, %peer, "connected");
    }

    /// The end of a connection that stood.
    #[cold]
    pub(super) fn ended(
        &mut self,
        now: Instant,
        id: ConnectionId,
        peer: Option<PeerAddr>,
        reason: &CloseReason,
    ) {
        let peer = Peer(peer);
        match reason {
            CloseReason::Finished | CloseReason::ClosedLocally => {
                line!(self.closed, now, info, connection = %id, %peer, %reason, "closed");
            }
            _ => line!(self.lost, now, warn, connection = %id, %peer, %reason, "lost"),
        }
    }

    /// A connection that did not come to be, asked for by either side.
    #[cold]
    pub(super) fn refused(
        &mut self,
        now: Instant,
        peer: Option<PeerAddr>,
        reason: &dyn fmt::Display,
    ) {
        let peer = Peer(peer);
        line!(self.refused, now, warn, %peer, %reason, "not connected");
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_quota_says_a_burst_and_then_one_in_each_second_with_what_was_left_out() {
        let begin = Instant::now();
        let mut quota = Quota::new(begin);
        let mut said = 0;
        for _ in 0..10 * BURST {
            said += u32::from(quota.take(begin).is_some());
        }
        assert_eq!(said, BURST);
        assert_eq!(quota.take(begin + INTERVAL / 2), None);
        let left_out = u64::from(9 * BURST + 1);
        assert_eq!(quota.take(begin + INTERVAL), Some(Some(left_out)));
        assert_eq!(quota.take(begin + INTERVAL), None);
        let later = begin + 2 * INTERVAL * BURST;
        assert_eq!(quota.take(later), Some(Some(1)));
        assert_eq!(quota.take(later), Some(None));
    }
}
