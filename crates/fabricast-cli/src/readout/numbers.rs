//! Which numbers events have.

/// Event numbers rise by gaps of this mean: from 1 to twice as much less 1, and by 1 where it is 1.
///
/// The number follows from which event it is, and the reverse: all detectors and sources agree
/// without a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gap(u64);

/// Bits of the longest gap.
const BITS_MAX: u32 = 24;

impl Gap {
    /// The number of the nth event, from 0. Below 2^63 for what a run can have.
    pub(crate) fn number(self, nth: u64) -> u64 {
        match self.0 {
            1 => nth,
            gap => nth * gap + mix(nth) % gap,
        }
    }

    /// Which event has this number.
    pub(crate) fn nth(self, number: u64) -> u64 {
        match self.0 {
            1 => number,
            gap => number / gap,
        }
    }

    pub(crate) fn mean(self) -> u64 {
        self.0
    }
}

/// Odd bits of a number that rises evenly.
fn mix(nth: u64) -> u64 {
    let product = nth.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (product ^ product >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 20
}

impl std::str::FromStr for Gap {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let most = 1 << BITS_MAX;
        match text.parse() {
            Ok(gap) if (1..=most).contains(&gap) => Ok(Self(gap)),
            _ => Err(format!("want a number from 1 to {most}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_rise_and_say_which_event_they_are() {
        for text in ["1", "2", "7", "1000", "16777216"] {
            let gap: Gap = text.parse().expect(text);
            for start in [0, 1 << 20, 1 << 38] {
                let numbers: Vec<_> = (start..start + 1000).map(|nth| gap.number(nth)).collect();
                assert!(numbers.is_sorted_by(|a, b| a < b), "{text}");
                assert!(numbers.iter().map(|n| gap.nth(*n)).eq(start..start + 1000));
                let gaps = numbers.windows(2).map(|pair| pair[1] - pair[0]);
                let (least, most) = (gaps.clone().min(), gaps.max());
                assert!(most < Some(2 * gap.mean()), "{text}");
                assert_eq!(gap.mean() == 1, least == most, "{text}");
            }
        }
        for wrong in ["", "0", "-1", "16777217", "x"] {
            assert!(wrong.parse::<Gap>().is_err(), "{wrong}");
        }
    }
}
