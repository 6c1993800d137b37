//! `ReconnectPolicy`: what becomes of an endpoint whose connection ends, and `Redial`, which says
//! when another one is to be made.
//!
//! What was in flight has its outcome by then, since the end of a connection is told last. Nothing
//! is sent again by itself.

use std::time::{Duration, Instant};

use crate::Error;
use crate::endpoint::limits::config;
use crate::errno::FabricErrno;
use crate::protocol::connection::CloseReason;
use crate::protocol::wire::RefusalCode;

/// Whether, when and how often a [`SendEndpointZeroCopy`](crate::SendEndpointZeroCopy) connects
/// again.
///
/// | setting | unit | default | range |
/// |---|---|---|---|
/// | [`fixed`](Self::fixed): the delay | time | | 1 ms to 1 h |
/// | [`backoff`](Self::backoff): both delays | time | | 1 ms to 1 h, `first` at most `max` |
/// | [`jitter`](Self::jitter) | percent of each delay | 50 for backoff, 0 for fixed | 0 to 100 |
/// | [`max_attempts`](Self::max_attempts) | attempts in a row | no limit | 1 and more |
/// | [`max_time`](Self::max_time) | time since the connection ended | no limit | 1 ms to 366 days |
///
/// The first connection counts as an attempt, too: a peer that is not there yet is waited for.
/// Attempts are counted anew once a connection has stood for as long as the longest delay.
///
/// Not tried again: what this side closed; a peer that refused for good (wire version, header mode,
/// its application's decision) or broke the protocol; an endpoint that failed or would not close.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReconnectPolicy {
    delay: Delay,
    jitter_percent: u8,
    max_attempts: Option<u32>,
    max_time: Option<Duration>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Delay {
    #[default]
    Off,
    Fixed(Duration),
    Doubling {
        first: Duration,
        max: Duration,
    },
}

impl ReconnectPolicy {
    /// Never: the end of the connection is the end of the endpoint. The default.
    pub fn off() -> Self {
        Self::default()
    }

    /// After the same delay each time.
    pub fn fixed(every: Duration) -> Self {
        Self {
            delay: Delay::Fixed(every),
            ..Self::default()
        }
    }

    /// After `first`, then twice that, and so on up to `max`; each shortened at random by up to
    /// half (see [`jitter`](Self::jitter)), so that many endpoints do not come back at the same
    /// moment.
    pub fn backoff(first: Duration, max: Duration) -> Self {
        Self {
            delay: Delay::Doubling { first, max },
            jitter_percent: 50,
            ..Self::default()
        }
    }

    /// By how much of it a delay is shortened at random, at most.
    #[must_use]
    pub fn jitter(mut self, percent: u8) -> Self {
        self.jitter_percent = percent;
        self
    }

    /// Gives up after so many attempts without success.
    #[must_use]
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = Some(attempts);
        self
    }

    /// Begins no attempt later than this after the connection ended.
    #[must_use]
    pub fn max_time(mut self, time: Duration) -> Self {
        self.max_time = Some(time);
        self
    }

    pub(crate) fn is_off(&self) -> bool {
        self.delay == Delay::Off
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        let range = Duration::from_millis(1)..=Duration::from_secs(3600);
        let delays = match self.delay {
            Delay::Off => return Ok(()),
            Delay::Fixed(every) => [every, every],
            Delay::Doubling { first, max } => [first, max],
        };
        let bad = |value: String, reason| Err(config("reconnect", value, reason));
        if delays.iter().any(|delay| !range.contains(delay)) || delays[0] > delays[1] {
            let reason = "the delays of `fixed` and `backoff` must be 1 ms to 1 h, the first at \
                most the longest";
            return bad(format!("{delays:?}"), reason);
        }
        if self.jitter_percent > 100 {
            let value = self.jitter_percent.to_string();
            return bad(value, "`jitter` must be 0 to 100 percent");
        }
        if self.max_attempts == Some(0) {
            return bad("0".to_owned(), "`max_attempts` must be at least 1");
        }
        let year = Duration::from_secs(366 * 24 * 3600);
        match self.max_time {
            Some(time) if !(Duration::from_millis(1)..=year).contains(&time) => {
                bad(format!("{time:?}"), "`max_time` must be 1 ms to 366 days")
            }
            _ => Ok(()),
        }
    }

    /// The delay before an attempt, counted from 1, without jitter.
    fn delay(&self, attempt: u32) -> Option<Duration> {
        match self.delay {
            Delay::Off => None,
            Delay::Fixed(every) => Some(every),
            Delay::Doubling { first, max } => {
                let factor = 1u32.checked_shl(attempt.saturating_sub(1)).unwrap_or(0);
                let delay = if factor == 0 {
                    max
                } else {
                    first.saturating_mul(factor)
                };
                Some(delay.min(max))
            }
        }
    }

    /// The longest delay: a connection that stood for as long was a good one.
    fn longest(&self) -> Duration {
        match self.delay {
            Delay::Off => Duration::ZERO,
            Delay::Fixed(every) => every,
            Delay::Doubling { max, .. } => max,
        }
    }
}

/// Whether another attempt can end in another way.
fn is_worth_a_retry(reason: &CloseReason) -> bool {
    match reason {
        CloseReason::Refused(refusal) | CloseReason::PeerAborted(refusal) => !matches!(
            refusal.code(),
            RefusalCode::VERSION
                | RefusalCode::MALFORMED
                | RefusalCode::HEADER_MODE
                | RefusalCode::BY_APPLICATION
                | RefusalCode::RECEIVE_DEPTH
                | RefusalCode::FEATURES
        ),
        CloseReason::RefusedPeer(_)
        | CloseReason::ClosedLocally
        | CloseReason::Violation(_)
        | CloseReason::EndpointFailed(_) => false,
        CloseReason::Finished
        | CloseReason::ConnectFailed(_)
        | CloseReason::ConnectTimedOut
        | CloseReason::HandshakeTimedOut
        | CloseReason::PeerLost { .. }
        | CloseReason::PeerSilent { .. }
        | CloseReason::MessageLost { .. }
        | CloseReason::PeerTruncated { .. }
        | CloseReason::ClosedByDeadline
        | CloseReason::RevokeDeadline
        | CloseReason::LongDeadline
        | CloseReason::FenceDeadline { .. }
        | CloseReason::FencesLate { .. }
        | CloseReason::TooSlow { .. }
        | CloseReason::SendDeadline { .. } => true,
    }
}

/// When to try again; pure.
#[derive(Debug, Clone)]
struct Schedule {
    policy: ReconnectPolicy,
    /// Attempts since the last good connection.
    attempts: u32,
    /// When the last good connection ended.
    ended: Option<Instant>,
    connected: Option<Instant>,
    random: u64,
}

impl Schedule {
    pub(crate) fn new(policy: ReconnectPolicy, seed: u64) -> Self {
        Self {
            policy,
            attempts: 0,
            ended: None,
            connected: None,
            random: seed,
        }
    }

    pub(crate) fn on_connected(&mut self, now: Instant) {
        self.connected = Some(now);
    }

    /// The number of the next attempt and the delay before it; none: enough.
    pub(crate) fn next(&mut self, now: Instant) -> Option<(u32, Duration)> {
        let stood = self.connected.take();
        if stood.is_some_and(|since| now.saturating_duration_since(since) >= self.policy.longest())
        {
            self.attempts = 0;
            self.ended = None;
        }
        let ended = *self.ended.get_or_insert(now);
        let attempt = self.attempts.saturating_add(1);
        if self.policy.max_attempts.is_some_and(|max| attempt > max) {
            return None;
        }
        let delay = self.policy.delay(attempt)?;
        let delay =
            delay - delay.mul_f64(self.fraction() * f64::from(self.policy.jitter_percent) / 100.0);
        let begins = now.saturating_duration_since(ended) + delay;
        if self.policy.max_time.is_some_and(|max| begins > max) {
            return None;
        }
        self.attempts = attempt;
        Some((attempt, delay))
    }

    /// 0 to 1 (SplitMix64).
    fn fraction(&mut self) -> f64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// The connection to one peer, as a policy wants it made again.
#[derive(Debug)]
pub(crate) struct Redial {
    /// None where nothing is tried any more.
    schedule: Option<Schedule>,
    /// When the next attempt begins.
    at: Option<Instant>,
}

impl Redial {
    pub(crate) fn new(policy: ReconnectPolicy, seed: u64) -> Self {
        Self {
            schedule: (!policy.is_off()).then(|| Schedule::new(policy, seed)),
            at: None,
        }
    }

    /// When the next attempt begins; none is waited for while there is a connection, or after the
    /// last one.
    pub(crate) fn at(&self) -> Option<Instant> {
        self.at
    }

    pub(crate) fn on_connected(&mut self, now: Instant) {
        if let Some(schedule) = &mut self.schedule {
            schedule.on_connected(now);
        }
    }

    /// The connection is over. The number of the next attempt, and the delay before it; none: it
    /// was the last one.
    pub(crate) fn on_end(&mut self, now: Instant, reason: &CloseReason) -> Option<(u32, Duration)> {
        let schedule = self.schedule.as_mut();
        let schedule = schedule.filter(|_| is_worth_a_retry(reason));
        let next = schedule.and_then(|schedule| schedule.next(now));
        self.at = next.map(|(_, after)| now + after);
        next
    }

    /// True once, when the next attempt is to begin.
    pub(crate) fn take_due(&mut self, now: Instant) -> bool {
        self.at.take_if(|at| *at <= now).is_some()
    }

    /// Nothing is tried any more. True: an attempt was waited for.
    pub(crate) fn stop(&mut self) -> bool {
        self.schedule = None;
        self.at.take().is_some()
    }
}

pub(crate) fn errno_of(error: &Error) -> FabricErrno {
    match error {
        Error::Fabric { errno, .. } => *errno,
        _ => FabricErrno::new(libc::EIO),
    }
}

#[cfg(all(test, not(loom)))]
#[path = "tests/reconnect.rs"]
mod tests;

#[cfg(all(test, not(loom)))]
mod documented {
    use super::*;
    use crate::endpoint::testing::documented_settings::{Setting, Value, compare};

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_table_of_settings_is_what_the_code_does() {
        let none: fn(&ReconnectPolicy) -> Value = |_| Value::Time(None);
        let settings: &[Setting<ReconnectPolicy>] = &[
            Setting {
                name: "fixed",
                get: none,
                set: |_, v| ReconnectPolicy::fixed(v.time()),
            },
            Setting {
                name: "backoff",
                get: none,
                set: |_, v| ReconnectPolicy::backoff(v.time(), v.time()),
            },
            Setting {
                name: "jitter",
                get: |_| {
                    let policy = ReconnectPolicy::backoff(SECOND, SECOND);
                    u32::from(policy.jitter_percent).into()
                },
                set: |_, v| ReconnectPolicy::fixed(SECOND).jitter(v.count() as u8),
            },
            Setting {
                name: "max_attempts",
                get: none,
                set: |_, v| ReconnectPolicy::fixed(SECOND).max_attempts(v.count()),
            },
            Setting {
                name: "max_time",
                get: none,
                set: |_, v| ReconnectPolicy::fixed(SECOND).max_time(v.time()),
            },
        ];
        let source = include_str!("reconnect.rs");
        compare(source, "ReconnectPolicy", settings, ReconnectPolicy::check);
    }
}
