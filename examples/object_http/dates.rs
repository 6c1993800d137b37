//! Times, as lists and HTTP say them.

use std::time::{Duration, SystemTime};

const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
const MONTHS: [&str; 12] = [
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
];

/// A time as `2026-11-23T04:05:06.000Z`.
pub(crate) fn iso(time: SystemTime) -> String {
    let (year, month, day, rest) = civil(seconds(time));
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.000Z")
}

/// A time as HTTP says it: `Mon, 23 Nov 2026 04:05:06 GMT`.
pub(crate) fn http_date(time: SystemTime) -> String {
    http_text(seconds(time))
}

fn http_text(seconds: u64) -> String {
    let (year, month, day, rest) = civil(seconds);
    let week_day = DAYS[(seconds / 86_400 % 7) as usize];
    let month = MONTHS[month as usize - 1];
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{week_day}, {day:02} {month} {year:04} {hour:02}:{minute:02}:{second:02} GMT")
}

/// Reads a time as HTTP says it today, in seconds since 1970. `None`: it is none.
pub(crate) fn read_http_date(text: &str) -> Option<u64> {
    let words: Vec<_> = text.split([' ', ':']).collect();
    let [_, day, month, year, hour, minute, second, "GMT"] = words[..] else {
        return None;
    };
    let number = |text: &str, below| text.parse::<u64>().ok().filter(|it| *it < below);
    let (day, year) = (number(day, 32)?.checked_sub(1)?, number(year, 10_000)?);
    let rest = number(hour, 24)? * 3600 + number(minute, 60)? * 60 + number(second, 60)?;
    let month = MONTHS.iter().position(|name| *name == month)?;
    let years: u64 = (1970..year)
        .map(|year| 365 + u64::from(is_leap(year)))
        .sum();
    let in_year: u64 = months(is_leap(year)).iter().take(month).sum();
    let seconds = (years + in_year + day) * 86_400 + rest;
    // Whatever does not come back as it was is no such time.
    (http_text(seconds) == text).then_some(seconds)
}

/// Whole seconds since 1970.
pub(crate) fn seconds(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap_or(Duration::ZERO).as_secs()
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

/// How many days each month has.
fn months(is_leap: bool) -> [u64; 12] {
    let february = 28 + u64::from(is_leap);
    [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]
}

/// Year, month, day, and the seconds of the day, of the Gregorian calendar.
fn civil(seconds: u64) -> (u64, u64, u64, u64) {
    let (mut days, rest) = (seconds / 86_400, seconds % 86_400);
    let mut year = 1970;
    loop {
        let in_year = 365 + u64::from(is_leap(year));
        if days < in_year {
            break;
        }
        days -= in_year;
        year += 1;
    }
    let mut month = 1;
    for in_month in months(is_leap(year)) {
        if days < in_month {
            break;
        }
        days -= in_month;
        month += 1;
    }
    (year, month, days + 1, rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_said_and_read() {
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_709_210_096);
        assert_eq!(iso(time), "2024-02-29T12:34:56.000Z");
        assert_eq!(http_date(time), "Thu, 29 Feb 2024 12:34:56 GMT");
        for seconds in [
            0,
            1,
            1_709_210_096,
            1_735_689_599,
            1_735_689_600,
            4_107_542_399,
        ] {
            assert_eq!(
                read_http_date(&http_text(seconds)),
                Some(seconds),
                "{seconds}"
            );
        }
        for wrong in [
            "",
            "yesterday",
            "Fri, 29 Feb 2024 12:34:56 GMT",
            "Thu, 29 Feb 2024 12:34:56",
            "Thu, 29 Feb 2023 12:34:56 GMT",
            "Thu, 00 Feb 2024 12:34:56 GMT",
            "Thu, 29 Feb 99999999999999999999 12:34:56 GMT",
            "Thu, 18446744073709551615 Feb 2024 12:34:56 GMT",
        ] {
            assert_eq!(read_http_date(wrong), None, "{wrong}");
        }
    }
}
