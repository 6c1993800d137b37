//! How long fragments are.

use std::fmt;
use std::str::FromStr;

/// The longest fragment, in bytes.
const LEN_MAX: usize = 16 << 20;

/// An exponential distribution is cut at this many times its mean.
const CUT: usize = 8;

/// A distribution of lengths, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Size {
    /// All are equal: the words of a digitiser.
    Fixed(usize),
    /// Every length of a range is as likely.
    Uniform(usize, usize),
    /// Many short ones, few long ones, as hits in a detector make them; with this mean.
    Exponential(usize),
}

impl Size {
    pub(crate) fn draw(self, random: &mut Random) -> usize {
        match self {
            Self::Fixed(len) => len,
            Self::Uniform(least, most) => least + random.below(most - least + 1),
            Self::Exponential(mean) => {
                let len = -random.unit().ln() * mean as f64;
                (len as usize).clamp(1, self.max())
            }
        }
    }

    pub(crate) fn max(self) -> usize {
        match self {
            Self::Fixed(len) => len,
            Self::Uniform(_, most) => most,
            Self::Exponential(mean) => CUT * mean,
        }
    }
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let size = if let Some(mean) = text.strip_prefix("exp:") {
            Self::Exponential(parse_bytes(mean)? as usize)
        } else if let Some((least, most)) = text.split_once('-') {
            let (least, most) = (parse_bytes(least)? as usize, parse_bytes(most)? as usize);
            if least == 0 || least > most {
                return Err("want the shorter first, and at least 1".to_owned());
            }
            Self::Uniform(least, most)
        } else {
            Self::Fixed(parse_bytes(text)? as usize)
        };
        match size.max() {
            1..=LEN_MAX => Ok(size),
            _ => Err("fragments are 1 byte to 16M long (exp: up to 8 times the mean)".to_owned()),
        }
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(len) => write!(f, "{len}"),
            Self::Uniform(least, most) => write!(f, "{least}-{most}"),
            Self::Exponential(mean) => write!(f, "exp:{mean}"),
        }
    }
}

/// A number of bytes, with K, M or G for powers of 1024.
pub(crate) fn parse_bytes(text: &str) -> Result<u64, String> {
    let (digits, unit) = match text.char_indices().last() {
        Some((at, 'k' | 'K')) => (&text[..at], 1 << 10),
        Some((at, 'm' | 'M')) => (&text[..at], 1 << 20),
        Some((at, 'g' | 'G')) => (&text[..at], 1 << 30),
        _ => (text, 1),
    };
    let number: u32 = digits.parse().map_err(|_| {
        format!("{text:?}: want a number of bytes, with K, M or G behind it or nothing")
    })?;
    Ok(u64::from(number) * unit)
}

/// Xorshift: not random enough for anything but this, and no dependency.
#[derive(Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        // Any state but 0 will do.
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    /// Above 0, up to 1.
    fn unit(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_stay_in_their_distribution() {
        let mut random = Random::new(1);
        for text in ["1", "4K", "1-1", "256-8K", "exp:2K"] {
            let size: Size = text.parse().expect(text);
            let lens: Vec<_> = (0..10_000).map(|_| size.draw(&mut random)).collect();
            let (least, most) = (lens.iter().min().copied(), lens.iter().max().copied());
            assert!(
                least >= Some(1) && most <= Some(size.max()),
                "{text}: {least:?} {most:?}"
            );
            let mean = lens.iter().sum::<usize>() as f64 / lens.len() as f64;
            let want = match size {
                Size::Fixed(len) | Size::Exponential(len) => len as f64,
                Size::Uniform(least, most) => (least + most) as f64 / 2.0,
            };
            assert!((mean / want - 1.0).abs() < 0.1, "{text}: mean {mean}");
        }
        for wrong in [
            "",
            "0",
            "-1",
            "5-2",
            "0-4",
            "exp:",
            "exp:0",
            "17M",
            "exp:4M",
            "4X",
            "9999999999",
        ] {
            assert!(wrong.parse::<Size>().is_err(), "{wrong}");
        }
    }
}
