//! Settings that several endpoints have, with their defaults and ranges, and how one that is out of
//! range is refused.

use std::fmt::Debug;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use crate::Error;
use crate::clock::Clock;
use crate::protocol::connection::WINDOWS_MAX;
use crate::protocol::liveness::LivenessTimeouts;

/// When silence of a peer is reported, and when it ends the connection, by default.
pub(crate) const LIVENESS_DEFAULT: LivenessTimeouts = LivenessTimeouts {
    unresponsive: Some(Duration::from_secs(5)),
    lost: Some(Duration::from_secs(60)),
};

/// How long a peer may take to answer a fence, by default.
pub(crate) const FENCE_TIMEOUT_DEFAULT: Duration = Duration::from_secs(2);

pub(crate) fn check_liveness(liveness: &LivenessTimeouts) -> Result<(), Error> {
    let least = Duration::from_millis(10);
    let LivenessTimeouts { unresponsive, lost } = *liveness;
    match unresponsive {
        Some(time) if time < least || time > Duration::from_secs(3600) => {
            let reason = "must be 10 ms to 1 h, or none";
            return Err(config("unresponsive_after", format!("{time:?}"), reason));
        }
        _ => {}
    }
    match lost {
        Some(time) if time < least || time > Duration::from_secs(24 * 3600) => {
            let reason = "must be 10 ms to 24 h, or none";
            Err(config("lost_after", format!("{time:?}"), reason))
        }
        Some(time) if unresponsive.is_some_and(|sooner| sooner >= time) => {
            let reason = "must be above unresponsive_after";
            Err(config("lost_after", format!("{time:?}"), reason))
        }
        _ => Ok(()),
    }
}

/// A setting that can't be: its name, its value, and what it must be.
pub(crate) fn config(field: &'static str, value: String, reason: &'static str) -> Error {
    Error::Config {
        field,
        value,
        reason,
    }
}

pub(crate) fn check_windows(windows: u32) -> Result<(), Error> {
    let reason = "must be 0 to 65536 windows";
    check_range("windows", windows, 0..=WINDOWS_MAX, reason)
}

/// A number or a time that has to be in a range.
pub(crate) fn check_range<T: PartialOrd + Debug>(
    field: &'static str,
    value: T,
    range: RangeInclusive<T>,
    reason: &'static str,
) -> Result<(), Error> {
    match range.contains(&value) {
        true => Ok(()),
        false => Err(config(field, format!("{value:?}"), reason)),
    }
}

/// How many there may be of something: 1 to `max`.
pub(crate) fn check_count(
    field: &'static str,
    value: u32,
    max: u32,
    reason: &'static str,
) -> Result<(), Error> {
    check_range(field, value, 1..=max, reason)
}

/// Bytes of the largest message, or of a buffer.
pub(crate) fn check_size(field: &'static str, bytes: usize) -> Result<(), Error> {
    check_range(field, bytes, 64..=1 << 30, "must be 64 bytes to 1 GiB")
}

/// How long something that was posted may take; none: for ever.
pub(crate) fn check_deadline(field: &'static str, deadline: Option<Duration>) -> Result<(), Error> {
    match deadline {
        Some(time) if time < Duration::from_millis(1) || time > Duration::from_secs(24 * 3600) => {
            let reason = "must be 1 ms to 24 h, or none";
            Err(config(field, format!("{time:?}"), reason))
        }
        _ => Ok(()),
    }
}

/// How long a small message may wait for others; none: until something has it leave.
pub(crate) fn check_flush_interval(interval: Option<Duration>) -> Result<(), Error> {
    let range = Duration::from_micros(1)..=Duration::from_secs(3600);
    let reason = "must be 1 µs to 1 h, or none";
    interval.map_or(Ok(()), |time| {
        check_range("flush_interval", time, range, reason)
    })
}

/// When a time from now is over; one beyond what the clock can tell is as good as a year.
pub(crate) fn moment_in(clock: &Clock, timeout: Duration) -> Instant {
    const YEAR: Duration = Duration::from_secs(366 * 86_400);
    clock.now() + timeout.min(YEAR)
}

pub(crate) fn check_timeout(field: &'static str, timeout: Duration) -> Result<(), Error> {
    let range = Duration::from_millis(1)..=Duration::from_secs(3600);
    check_range(field, timeout, range, "must be 1 ms to 1 h")
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_ends_of_each_range_are_in_it() {
        let (ms, day) = (Duration::from_millis(1), Duration::from_secs(24 * 3600));
        for time in [None, Some(ms), Some(day)] {
            check_deadline("deadline", time).expect("in range");
        }
        for time in [Duration::ZERO, ms - Duration::from_nanos(1), day + ms] {
            let error = check_deadline("deadline", Some(time)).expect_err("out of range");
            let said = format!("setting deadline = {time:?}: must be 1 ms to 24 h, or none");
            assert_eq!(error.to_string(), said);
        }
        for count in [1, 3] {
            check_count("depth", count, 3, "must be 1 to 3 sends").expect("in range");
        }
        for count in [0, 4] {
            let error = check_count("depth", count, 3, "must be 1 to 3 sends");
            let said = format!("setting depth = {count}: must be 1 to 3 sends");
            assert_eq!(error.expect_err("out of range").to_string(), said);
        }
        for bytes in [64, 1 << 30] {
            check_size("max_message", bytes).expect("in range");
        }
        for bytes in [63, (1 << 30) + 1] {
            let error = check_size("max_message", bytes).expect_err("out of range");
            let said = format!("setting max_message = {bytes}: must be 64 bytes to 1 GiB");
            assert_eq!(error.to_string(), said);
        }
    }
}
