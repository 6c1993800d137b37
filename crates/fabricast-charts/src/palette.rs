//! The colours, light and dark. All that is drawn has one of these, so that a page can exchange
//! them by a rule for each.

use plotters::style::RGBColor;

/// A colour of a chart: how it is called in a page, on a light ground, and on a dark one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Colour {
    pub(crate) name: &'static str,
    pub(crate) light: u32,
    pub(crate) dark: u32,
}

const fn colour(name: &'static str, light: u32, dark: u32) -> Colour {
    Colour { name, light, dark }
}

/// Behind everything.
pub(crate) const GROUND: Colour = colour("ground", 0xFFFFFF, 0x14181D);
/// Text.
pub(crate) const INK: Colour = colour("ink", 0x1B1F24, 0xE6EAEE);
/// Text that matters less.
pub(crate) const FAINT: Colour = colour("faint", 0x57606A, 0x9AA5B1);
/// The lines of a grid, and borders.
pub(crate) const GRID: Colour = colour("grid", 0xDDE1E6, 0x333B44);

/// Lines and lanes, in an order in which neighbours differ also for who sees no red or no green:
/// the palette of Okabe and Ito, darker on white and lighter on black.
pub(crate) const SERIES: [Colour; 6] = [
    colour("series-0", 0x0072B2, 0x56B4E9),
    colour("series-1", 0xC04F00, 0xE69F00),
    colour("series-2", 0x00805C, 0x2BC49A),
    colour("series-3", 0xA3457F, 0xE79AC6),
    colour("series-4", 0x6A5D00, 0xF0E442),
    colour("series-5", 0x4A4F57, 0xB8C0C8),
];

/// How many looks of lines there are. Each has a colour and a marker of its own.
pub const LOOKS: usize = SERIES.len();

/// Every colour that a chart may have.
pub(crate) fn all() -> impl Iterator<Item = Colour> {
    [GROUND, INK, FAINT, GRID].into_iter().chain(SERIES)
}

impl Colour {
    pub(crate) fn rgb(self) -> RGBColor {
        let [_, red, green, blue] = self.light.to_be_bytes();
        RGBColor(red, green, blue)
    }

    /// As the attributes of a chart have it.
    pub(crate) fn attribute(self) -> String {
        format!("#{:06X}", self.light)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How much lighter one colour is than another, as WCAG counts it: 1 to 21.
    fn contrast(one: u32, other: u32) -> f64 {
        let light = |colour: u32| {
            let [_, parts @ ..] = colour.to_be_bytes();
            let linear = parts.map(|part| match f64::from(part) / 255.0 {
                part if part <= 0.04045 => part / 12.92,
                part => ((part + 0.055) / 1.055).powf(2.4),
            });
            0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] + 0.05
        };
        let (one, other) = (light(one), light(other));
        one.max(other) / one.min(other)
    }

    #[test]
    fn text_and_lines_stand_out_from_the_ground_in_light_and_dark() {
        assert!((contrast(0, 0xFFFFFF) - 21.0).abs() < 0.01);
        for (text, least) in [(INK, 7.0), (FAINT, 4.5)] {
            assert!(contrast(text.light, GROUND.light) >= least, "{text:?}");
            assert!(contrast(text.dark, GROUND.dark) >= least, "{text:?}");
        }
        for line in SERIES {
            assert!(contrast(line.light, GROUND.light) >= 4.5, "{line:?}");
            assert!(contrast(line.dark, GROUND.dark) >= 4.5, "{line:?}");
        }
    }

    #[test]
    fn no_two_colours_are_the_same() {
        let mut seen: Vec<_> = all().map(Colour::attribute).collect();
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), all().count());
    }
}
