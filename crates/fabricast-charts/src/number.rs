//! Numbers as people read them.

/// Three digits that count, with k, M, G or T for powers of 1000: `0.0345`, `5.10`, `123 k`.
pub fn short(value: f64) -> String {
    if !value.is_finite() {
        return "-".to_owned();
    }
    let size = value.abs();
    if size == 0.0 {
        return "0".to_owned();
    }
    if size < 0.000_099_95 {
        return format!("{value:.1e}");
    }
    let units = ["", " k", " M", " G", " T"];
    let (mut scaled, mut unit) = (size, 0);
    // What would be shown as 1000 is 1 of the next.
    while scaled >= 999.5 && unit + 1 < units.len() {
        scaled /= 1000.0;
        unit += 1;
    }
    if scaled >= 999.5 {
        return format!("{value:.2e}");
    }
    let digits = match scaled {
        scaled if scaled < 0.000_999_5 => 6,
        scaled if scaled < 0.009_995 => 5,
        scaled if scaled < 0.099_95 => 4,
        scaled if scaled < 0.999_5 => 3,
        scaled if scaled < 9.995 => 2,
        scaled if scaled < 99.95 => 1,
        _ => 0,
    };
    let sign = if value < 0.0 { "-" } else { "" };
    format!("{sign}{scaled:.digits$}{}", units[unit])
}

/// A size of memory in powers of 1024: `64 B`, `4 KiB`, `1.5 MiB`.
pub fn bytes(value: f64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let (mut scaled, mut unit) = (value.max(0.0), 0);
    while scaled >= 1024.0 && unit + 1 < units.len() {
        scaled /= 1024.0;
        unit += 1;
    }
    match scaled.fract() == 0.0 {
        true => format!("{scaled:.0} {}", units[unit]),
        false => format!("{scaled:.1} {}", units[unit]),
    }
}

/// A number beside an axis: no digits that say nothing.
pub(crate) fn tick(value: f64) -> String {
    let text = short(value);
    if text.contains('e') {
        return text;
    }
    let (digits, unit) = text.split_once(' ').unwrap_or((&text, ""));
    let digits = match digits.contains('.') {
        true => digits.trim_end_matches('0').trim_end_matches('.'),
        false => digits,
    };
    match unit {
        "" => digits.to_owned(),
        unit => format!("{digits} {unit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits_and_a_unit() {
        for (value, text) in [
            (0.0, "0"),
            (f64::NAN, "-"),
            (0.000_012, "1.2e-5"),
            (0.001, "0.00100"),
            (0.034_5, "0.0345"),
            (0.512, "0.512"),
            (0.999_6, "1.00"),
            (5.1, "5.10"),
            (99.96, "100"),
            (999.6, "1.00 k"),
            (-12_345.0, "-12.3 k"),
            (1.234e6, "1.23 M"),
            (5e18, "5.00e18"),
        ] {
            assert_eq!(short(value), text);
        }
    }

    #[test]
    fn sizes_are_in_powers_of_1024() {
        for (value, text) in [(8.0, "8 B"), (4096.0, "4 KiB"), (1_572_864.0, "1.5 MiB")] {
            assert_eq!(bytes(value), text);
        }
    }

    #[test]
    fn an_axis_has_no_digits_that_say_nothing() {
        for (value, text) in [
            (5.0, "5"),
            (0.001, "0.001"),
            (2e6, "2 M"),
            (0.0, "0"),
            (100.0, "100"),
        ] {
            assert_eq!(tick(value), text);
        }
    }
}
