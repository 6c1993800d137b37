//! Numbers as people read them: one unit everywhere, powers of 1000.

use std::fmt;

/// A number of bytes: `987 B`, `1.23 MB`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Bytes(pub(crate) f64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = ["B", "kB", "MB", "GB", "TB", "PB", "EB"];
        let mut value = self.0.max(0.0);
        let mut unit = 0;
        // What would be shown as 1000 is 1 of the next.
        while value >= 999.5 && unit + 1 < units.len() {
            value /= 1000.0;
            unit += 1;
        }
        let digits = match (unit, value) {
            (0, _) => 0,
            (_, value) if value < 9.995 => 2,
            (_, value) if value < 99.95 => 1,
            _ => 0,
        };
        write!(f, "{value:.digits$} {}", units[unit])
    }
}

/// A time that is left, in seconds: `0:07`, `1:02:03`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Left(pub(crate) f64);

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.0.ceil() as u64;
        let (hours, minutes, seconds) = (all / 3600, all / 60 % 60, all % 60);
        match hours {
            0 => write!(f, "{minutes}:{seconds:02}"),
            1..100 => write!(f, "{hours}:{minutes:02}:{seconds:02}"),
            _ => write!(f, "{} days", hours / 24),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits_and_a_unit() {
        for (bytes, text) in [
            (0.0, "0 B"),
            (999.0, "999 B"),
            (999.6, "1.00 kB"),
            (1000.0, "1.00 kB"),
            (12_345.0, "12.3 kB"),
            (99_960.0, "100 kB"),
            (999_600.0, "1.00 MB"),
            (1.5e9, "1.50 GB"),
            (f64::from(u32::MAX) * 4e9, "17.2 EB"),
        ] {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
    }

    #[test]
    fn times_are_rounded_up() {
        for (seconds, text) in [
            (0.0, "0:00"),
            (6.1, "0:07"),
            (61.0, "1:01"),
            (3723.0, "1:02:03"),
            (864_000.0, "10 days"),
        ] {
            assert_eq!(Left(seconds).to_string(), text);
        }
    }
}
