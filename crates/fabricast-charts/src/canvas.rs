//! What all charts begin and end with, and text on them.

use plotters::backend::SVGBackend;
use plotters::coord::Shift;
use plotters::drawing::{DrawingArea, IntoDrawingArea};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color, FontFamily, FontStyle, TextStyle};

use crate::palette::{self, Colour};

/// How wide a chart is in its own units. Half of a wide window, or all of a narrow one.
pub(crate) const WIDTH: u32 = 640;
/// How high a line of text is; its letters are `LETTER` of that.
pub(crate) const TEXT: f64 = 19.0;
/// The same of the title.
pub(crate) const TITLE: f64 = 22.0;
/// plotters writes a font's size so much smaller than it was asked for.
const LETTER: f64 = 1.0 / 1.24;

pub(crate) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// A failure to draw. Drawing into memory has none but those of a fault in a chart.
pub(crate) type Drawn = Result<(), Box<dyn std::error::Error>>;

/// Draws into a string of SVG that says in words what it shows.
pub(crate) fn draw(
    title: &str,
    description: &str,
    height: u32,
    drawing: impl FnOnce(&Area<'_>) -> Drawn,
) -> String {
    let mut drawn = String::new();
    {
        let area = SVGBackend::with_string(&mut drawn, (WIDTH, height)).into_drawing_area();
        let all = area.fill(&palette::GROUND.rgb());
        let all = all.map_err(Into::into).and_then(|()| drawing(&area));
        let all = all.and_then(|()| area.present().map_err(Into::into));
        all.expect("a string takes all that is drawn");
    }
    let body = drawn.split_once('>').map_or("", |(_, body)| body);
    format!(
        "<svg class=\"chart\" role=\"img\" viewBox=\"0 0 {WIDTH} {height}\" \
         xmlns=\"http://www.w3.org/2000/svg\">\n<title>{}</title>\n<desc>{}</desc>{body}",
        escape(title),
        escape(description)
    )
}

pub(crate) fn style(size: f64, colour: Colour, across: HPos, down: VPos) -> TextStyle<'static> {
    let mut style = TextStyle::from((FontFamily::SansSerif, size, FontStyle::Normal));
    style.color = colour.rgb().to_backend_color();
    style.pos = Pos::new(across, down);
    style
}

/// How wide a text will be, about: the viewer has the letters.
pub(crate) fn width(text: &str, size: f64) -> i32 {
    (text.chars().count() as f64 * size * LETTER * 0.56).ceil() as i32
}

/// As much of a text as there is room for.
pub(crate) fn fitting(text: &str, size: f64, room: i32) -> String {
    if width(text, size) <= room {
        return clean(text);
    }
    let most = (f64::from(room) / (size * LETTER * 0.56)).floor() as usize;
    let begin: String = text.chars().take(most.saturating_sub(1)).collect();
    clean(&format!("{begin}…"))
}

/// Without characters that a document can't have.
pub(crate) fn clean(text: &str) -> String {
    let is_fit = |c: char| !c.is_control() && !matches!(c, '\u{FFFE}' | '\u{FFFF}');
    text.chars()
        .map(|c| if is_fit(c) { c } else { ' ' })
        .collect()
}

/// Text within a document or an attribute.
pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in clean(text).chars() {
        match c {
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '&' => escaped.push_str("&amp;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            c => escaped.push(c),
        }
    }
    escaped
}
