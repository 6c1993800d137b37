//! `Scale`: an axis, where each value lies on it, and which values are written beside it.

use std::ops::Range;

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};

use crate::number::{bytes, tick};

/// How many values are written beside an axis, about.
const TICKS: usize = 8;
/// Amounts that differ by more than this factor are drawn on a logarithmic axis.
const LOG_ABOVE: f64 = 30.0;

/// An axis.
#[derive(Debug, Clone)]
pub struct Scale {
    label: String,
    kind: Kind,
    /// Places of both ends.
    low: f64,
    high: f64,
    ticks: Vec<(f64, String)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Linear,
    Log,
    Tail,
}

impl Kind {
    /// Where a value would lie on an axis without ends.
    fn place(self, value: f64) -> f64 {
        match self {
            Self::Linear => value,
            Self::Log => value.log10(),
            Self::Tail => -(1.0 - value / 100.0).log10(),
        }
    }
}

impl Scale {
    /// Sizes in bytes, logarithmic, with powers of two written beside it.
    pub fn sizes(label: &str, values: impl IntoIterator<Item = f64>) -> Self {
        let (low, high) =
            ends(values.into_iter().filter(|value| *value >= 1.0)).unwrap_or((1.0, 1.0));
        let (first, last) = (low.log2().floor() as i32, high.log2().ceil() as i32);
        let step = ((last - first) as usize).div_ceil(TICKS - 1).max(1);
        let powers = (first..=last).step_by(step).map(|power| 2f64.powi(power));
        let powers = powers.filter(|value| *value >= low && *value <= high);
        // The ends of the axis lie beside the outermost sizes, so that their intervals are whole.
        let room = 0.04 * (high / low).log10().max(0.6);
        Self {
            label: label.to_owned(),
            kind: Kind::Log,
            low: low.log10() - room,
            high: high.log10() + room,
            ticks: powers.map(|value| (value, bytes(value))).collect(),
        }
    }

    /// Amounts from 0; logarithmic where they differ a lot. What is not a number, or is negative,
    /// counts for nothing.
    pub fn amounts(label: &str, values: impl IntoIterator<Item = f64>) -> Self {
        let positive = values.into_iter().filter(|value| *value > 0.0);
        let Some((low, high)) = ends(positive) else {
            return Self::linear(label, 1.0);
        };
        if high / low <= LOG_ABOVE {
            return Self::linear(label, high);
        }
        let mut ticks = Vec::new();
        let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
        let parts: &[f64] = if last - first <= 3 {
            &[1.0, 3.0]
        } else {
            &[1.0]
        };
        let step = ((last - first) as usize).div_ceil(TICKS).max(1);
        for power in (first..=last).step_by(step) {
            ticks.extend(parts.iter().map(|part| part * 10f64.powi(power)));
        }
        let round = |power: i32| [1.0, 2.0, 3.0, 5.0].map(|part| part * 10f64.powi(power));
        let below = round(first)
            .into_iter()
            .rfind(|it| *it <= low)
            .unwrap_or(low);
        let above = round(last - 1).into_iter().find(|it| *it >= high);
        let decade = 10f64.powi(last);
        let above = above.unwrap_or(decade).clamp(high, f64::MAX);
        ticks.retain(|it| *it >= below * 0.999 && *it <= above * 1.001);
        Self {
            label: label.to_owned(),
            kind: Kind::Log,
            low: below.log10(),
            high: above.log10(),
            ticks: ticks.into_iter().map(|it| (it, tick(it))).collect(),
        }
    }

    /// From 0 to an amount, or a little more.
    fn linear(label: &str, high: f64) -> Self {
        let raw = high / 5.0;
        let power = 10f64.powf(raw.log10().floor());
        let part = [1.0, 2.0, 2.5, 5.0, 10.0]
            .into_iter()
            .find(|part| part * power >= raw * 0.999);
        let step = part.unwrap_or(10.0) * power;
        let count = (high / step * 0.999).ceil().max(1.0) as usize;
        let values = (0..=count).map(|n| n as f64 * step);
        Self {
            label: label.to_owned(),
            kind: Kind::Linear,
            low: 0.0,
            high: count as f64 * step,
            ticks: values.map(|value| (value, tick(value))).collect(),
        }
    }

    /// Seconds from 0 to the end, which is not rounded up.
    pub(crate) fn seconds(end: f64) -> Self {
        let end = if end.is_finite() && end > 0.0 {
            end
        } else {
            1.0
        };
        let mut scale = Self::linear("seconds", end);
        scale.ticks.retain(|(value, _)| *value <= end * 1.0001);
        scale.high = end;
        scale
    }

    /// Percentiles, stretched towards 100 % so that each further nine takes the same width.
    pub fn percentiles(label: &str) -> Self {
        let ticks = [50.0, 90.0, 99.0, 99.9, 99.99];
        Self {
            label: label.to_owned(),
            kind: Kind::Tail,
            low: Kind::Tail.place(50.0),
            high: Kind::Tail.place(99.99) + 0.02,
            ticks: ticks.map(|it| (it, format!("{it} %"))).to_vec(),
        }
    }

    /// What is written along the axis.
    pub fn label(&self) -> &str {
        &self.label
    }

    pub(crate) fn ticks(&self) -> &[(f64, String)] {
        &self.ticks
    }

    /// Whether a value has a place between the ends.
    pub(crate) fn holds(&self, value: f64) -> bool {
        let place = self.kind.place(value);
        place.is_finite() && place >= self.low - 1e-9 && place <= self.high + 1e-9
    }

    /// Where a value lies: 0 at the lower end, 1 at the upper. What lies beyond is put at the end.
    pub(crate) fn share(&self, value: f64) -> f64 {
        let place = self.kind.place(value);
        match place.is_nan() {
            true => 0.0,
            false => ((place - self.low) / (self.high - self.low)).clamp(0.0, 1.0),
        }
    }
}

/// The least and the greatest of the finite ones.
fn ends(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    let finite = values.filter(|value| value.is_finite());
    finite.fold(None, |ends, value| match ends {
        None => Some((value, value)),
        Some((low, high)) => Some((f64::min(low, value), f64::max(high, value))),
    })
}

impl Ranged for Scale {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        limit.0 + (f64::from(limit.1 - limit.0) * self.share(*value)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.ticks.iter().map(|(value, _)| *value).collect()
    }

    fn range(&self) -> Range<f64> {
        let value = |place: f64| match self.kind {
            Kind::Linear => place,
            Kind::Log => 10f64.powf(place),
            Kind::Tail => 100.0 * (1.0 - 10f64.powf(-place)),
        };
        value(self.low)..value(self.high)
    }
}

impl ValueFormatter<f64> for Scale {
    fn format_ext(&self, value: &f64) -> String {
        let found = self.ticks.iter().find(|(at, _)| at == value);
        found.map_or_else(|| tick(*value), |(_, text)| text.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(scale: &Scale) -> Vec<&str> {
        scale
            .ticks()
            .iter()
            .map(|(_, text)| text.as_str())
            .collect()
    }

    #[test]
    fn sizes_have_powers_of_two() {
        let powers = (0..12).map(|n| 8.0 * 4f64.powi(n));
        let scale = Scale::sizes("size", powers);
        assert_eq!(texts(&scale).first(), Some(&"8 B"));
        assert!(texts(&scale).len() >= 5 && texts(&scale).len() <= TICKS);
        assert!(scale.share(8.0) > 0.0 && scale.share(f64::from(32u32 << 20)) < 1.0);
        assert_eq!(texts(&Scale::sizes("size", [64.0])), ["64 B"]);
    }

    #[test]
    fn amounts_are_linear_until_they_differ_a_lot() {
        let near = Scale::amounts("GB/s", [3.0, 5.2]);
        assert_eq!(texts(&near), ["0", "2", "4", "6"]);
        let far = Scale::amounts("GB/s", [0.013, 5.2]);
        assert_eq!(texts(&far), ["0.01", "0.03", "0.1", "0.3", "1", "3", "10"]);
        assert_eq!(
            texts(&Scale::amounts("GB/s", [f64::NAN, -1.0])).first(),
            Some(&"0")
        );
    }

    #[test]
    fn each_further_nine_takes_the_same_width() {
        let scale = Scale::percentiles("percentile");
        let step = |a: f64, b: f64| scale.share(b) - scale.share(a);
        assert!((step(90.0, 99.0) - step(99.0, 99.9)).abs() < 1e-9);
        assert!(scale.holds(99.99) && !scale.holds(100.0));
    }

    #[test]
    fn any_numbers_give_an_axis() {
        let values = [
            f64::MIN_POSITIVE,
            1e-300,
            1e-9,
            0.9,
            1.0,
            7.0,
            1e12,
            1e300,
            f64::MAX,
        ];
        for low in values {
            for high in values {
                for scale in [
                    Scale::sizes("", [low, high]),
                    Scale::amounts("", [low, high]),
                ] {
                    assert!(scale.ticks().len() <= 3 * TICKS, "{low} {high}: {scale:?}");
                    assert!((0.0..=1.0).contains(&scale.share(high)), "{low} {high}");
                    assert!(scale.low < scale.high, "{low} {high}: {scale:?}");
                }
            }
        }
    }
}
