//! Charts as bitmaps.

use std::fmt;

use resvg::{tiny_skia, usvg};

/// Why there is no bitmap.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum PngError {
    /// The machine has no font: text would be left out.
    NoFont,
    /// What is wrong with the chart, in words.
    Chart(String),
}

impl fmt::Display for PngError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoFont => f.write_str(
                "this machine has no font, and a bitmap without text says nothing: install one \
                 (Debian: fonts-dejavu-core), or write SVG",
            ),
            Self::Chart(text) => write!(f, "the chart can't be drawn as a bitmap: {text}"),
        }
    }
}

impl std::error::Error for PngError {}

fabricast_process::debug_as_words!(PngError);

/// A chart as PNG on a light ground, so many times as large as its own units.
///
/// # Errors
/// [`PngError::NoFont`] on a machine without a font.
pub fn render(svg: &str, zoom: f32) -> Result<Vec<u8>, PngError> {
    let failed = |error: &dyn fmt::Display| PngError::Chart(error.to_string());
    let mut options = usvg::Options::default();
    let fonts = options.fontdb_mut();
    fonts.load_system_fonts();
    let Some(family) = fonts.faces().find_map(|face| {
        let is_plain = face.style == usvg::fontdb::Style::Normal && !face.monospaced;
        is_plain.then(|| face.families.first().map(|(name, _)| name.clone()))?
    }) else {
        return Err(PngError::NoFont);
    };
    let wanted = [
        "DejaVu Sans",
        "Liberation Sans",
        "Noto Sans",
        "Arial",
        "Helvetica",
    ];
    let is_here = |name: &&str| {
        let named = |(family, _): &(String, _)| family == *name;
        fonts.faces().any(|face| face.families.iter().any(named))
    };
    let family = wanted
        .into_iter()
        .find(is_here)
        .map_or(family, str::to_owned);
    fonts.set_sans_serif_family(family);
    let tree = usvg::Tree::from_str(svg, &options).map_err(|error| failed(&error))?;
    let size = tree.size().to_int_size();
    let size = size
        .scale_by(zoom)
        .ok_or_else(|| failed(&"its size is none"))?;
    let mut pixels = tiny_skia::Pixmap::new(size.width(), size.height())
        .ok_or_else(|| failed(&"it is too large"))?;
    let zoomed = tiny_skia::Transform::from_scale(zoom, zoom);
    resvg::render(&tree, zoomed, &mut pixels.as_mut());
    pixels.encode_png().map_err(|error| failed(&error))
}
