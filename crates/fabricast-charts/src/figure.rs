//! `Figure`: lines over one horizontal axis.

use plotters::chart::{ChartBuilder, ChartContext};
use plotters::coord::cartesian::Cartesian2d;
use plotters::drawing::DrawingArea;
use plotters::element::{Circle, EmptyElement, PathElement, Polygon, Rectangle, Text};
use plotters::series::LineSeries;
use plotters::style::text_anchor::{HPos, VPos};
use plotters::style::{Color, RGBColor, ShapeStyle};

use crate::canvas::{self, Area, Drawn, TEXT, TITLE, WIDTH};
use crate::palette::{self, LOOKS};
use crate::scale::Scale;

const HEIGHT: u32 = 420;
/// Half of the width of a marker.
const MARKER: i32 = 4;
/// Half of the width of the ends of an interval.
const CAP: i32 = 4;
/// The line and the marker before a name.
const SAMPLE: i32 = 34;
const ROW: i32 = 24;

type Chart<'a, 'b> = ChartContext<'a, plotters::backend::SVGBackend<'b>, Cartesian2d<Scale, Scale>>;

/// A value, and between which two it lies.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    /// Where it lies on the horizontal axis.
    pub x: f64,
    /// The value.
    pub y: f64,
    /// The lower end of its interval.
    pub low: f64,
    /// The upper end of its interval.
    pub high: f64,
}

impl Point {
    /// A value without an interval.
    pub fn exact(x: f64, y: f64) -> Self {
        let (low, high) = (y, y);
        Self { x, y, low, high }
    }

    fn is_drawn(&self, x: &Scale, y: &Scale) -> bool {
        x.holds(self.x) && y.holds(self.y)
    }
}

/// Points of one kind, joined by a line.
#[derive(Debug, Clone)]
pub struct Line {
    /// What is measured.
    pub name: String,
    /// Which colour and marker: below [`LOOKS`], or they begin anew.
    pub look: usize,
    /// In the order in which they are joined. What has no place on the axes is left out.
    pub points: Vec<Point>,
}

/// A chart with lines.
#[derive(Debug, Clone)]
pub struct Figure {
    /// What it shows, above it.
    pub title: String,
    /// What it shows, in a sentence for who does not see it.
    pub description: String,
    /// The horizontal axis.
    pub x: Scale,
    /// The vertical axis.
    pub y: Scale,
    /// What is drawn.
    pub lines: Vec<Line>,
}

impl Figure {
    /// The chart as SVG.
    pub fn svg(&self) -> String {
        canvas::draw(&self.title, &self.description, HEIGHT, |area| {
            self.draw(area)
        })
    }

    fn draw(&self, area: &Area<'_>) -> Drawn {
        let style = canvas::style(TITLE, palette::INK, HPos::Left, VPos::Top);
        let title = canvas::fitting(&self.title, TITLE, WIDTH as i32 - 24);
        area.draw(&Text::new(title, (12, 10), style))?;
        let top = self.draw_names(area)?;
        let widest = self
            .y
            .ticks()
            .iter()
            .map(|(_, text)| canvas::width(text, TEXT))
            .max();
        let place = area.margin(top + 4, 6, 6, 36);
        let mut chart = ChartBuilder::on(&place)
            .x_label_area_size(54)
            .y_label_area_size(38 + widest.unwrap_or(30))
            .build_cartesian_2d(self.x.clone(), self.y.clone())?;
        let ink = canvas::style(TEXT, palette::INK, HPos::Center, VPos::Center);
        chart
            .configure_mesh()
            .bold_line_style(palette::GRID.rgb())
            .light_line_style(palette::GRID.rgb().mix(0.0))
            .axis_style(palette::FAINT.rgb())
            .label_style(ink.clone())
            .axis_desc_style(ink)
            .x_desc(canvas::clean(self.x.label()))
            .y_desc(canvas::clean(self.y.label()))
            .draw()?;
        for line in &self.lines {
            self.draw_line(&mut chart, line)?;
        }
        Ok(())
    }

    /// The names of all lines below the title, in as many rows as they take. Where they end.
    fn draw_names(&self, area: &Area<'_>) -> Result<i32, Box<dyn std::error::Error>> {
        let (mut x, mut y) = (12, 52);
        let right = WIDTH as i32 - 12;
        for line in &self.lines {
            let name = canvas::fitting(&line.name, TEXT, right - 12 - SAMPLE);
            let wide = SAMPLE + canvas::width(&name, TEXT) + 14;
            if x > 12 && x + wide > right {
                (x, y) = (12, y + ROW);
            }
            let colour = look(line.look).rgb();
            let sample = vec![(x, y), (x + SAMPLE - 8, y)];
            area.draw(&PathElement::new(sample, colour.stroke_width(2)))?;
            draw_marker(area, line.look, (x + (SAMPLE - 8) / 2, y))?;
            let style = canvas::style(TEXT, palette::INK, HPos::Left, VPos::Center);
            area.draw(&Text::new(name, (x + SAMPLE, y), style))?;
            x += wide;
        }
        Ok(y + ROW / 2 + 6)
    }

    fn draw_line(&self, chart: &mut Chart<'_, '_>, line: &Line) -> Drawn {
        let colour = look(line.look).rgb();
        let points = || {
            line.points
                .iter()
                .filter(|point| point.is_drawn(&self.x, &self.y))
        };
        let joined = points().map(|point| (point.x, point.y));
        chart.draw_series(LineSeries::new(joined, colour.stroke_width(2)))?;
        for point in points().filter(|point| point.high > point.low) {
            let ends = vec![(point.x, point.low), (point.x, point.high)];
            chart.draw_series([PathElement::new(ends, colour.stroke_width(1))])?;
            for y in [point.low, point.high] {
                let cap = PathElement::new(vec![(-CAP, 0), (CAP, 0)], colour.stroke_width(1));
                chart.draw_series([EmptyElement::at((point.x, y)) + cap])?;
            }
        }
        // Curves of many points have a marker now and then.
        let every = line.points.len().div_ceil(16).max(1);
        let area = chart.plotting_area().strip_coord_spec();
        let origin = chart.plotting_area().get_base_pixel();
        for point in points().step_by(every) {
            let at = chart.backend_coord(&(point.x, point.y));
            draw_marker(&area, line.look, (at.0 - origin.0, at.1 - origin.1))?;
        }
        Ok(())
    }
}

/// The colour of a look.
fn look(look: usize) -> palette::Colour {
    palette::SERIES[look % LOOKS]
}

/// A shape for each colour, so that nobody has to tell them apart by the colour.
fn draw_marker(
    area: &DrawingArea<plotters::backend::SVGBackend<'_>, plotters::coord::Shift>,
    number: usize,
    (x, y): (i32, i32),
) -> Drawn {
    let colour = look(number).rgb();
    let (full, ground) = (colour.filled(), palette::GROUND.rgb().filled());
    let outline = |colour: RGBColor| -> ShapeStyle { colour.stroke_width(2) };
    let m = MARKER;
    match number % LOOKS {
        0 => area.draw(&Circle::new((x, y), m, full))?,
        1 => {
            let corners = [(x - m, y - m), (x + m, y + m)];
            area.draw(&Rectangle::new(corners, ground))?;
            area.draw(&Rectangle::new(corners, outline(colour)))?;
        }
        2 => {
            let corners = vec![(x, y - m - 2), (x + m + 1, y + m), (x - m - 1, y + m)];
            area.draw(&Polygon::new(corners, full))?;
        }
        3 => {
            let corners = [
                (x, y - m - 2),
                (x + m + 2, y),
                (x, y + m + 2),
                (x - m - 2, y),
            ];
            area.draw(&Polygon::new(corners.to_vec(), ground))?;
            let around = corners.into_iter().chain([corners[0]]);
            area.draw(&PathElement::new(
                around.collect::<Vec<_>>(),
                outline(colour),
            ))?;
        }
        4 => {
            for arms in [
                [(x - m, y - m), (x + m, y + m)],
                [(x - m, y + m), (x + m, y - m)],
            ] {
                area.draw(&PathElement::new(arms.to_vec(), outline(colour)))?;
            }
        }
        _ => {
            let corners = [(x - m, y - m), (x + m, y + m)];
            area.draw(&Rectangle::new(corners, full))?;
        }
    }
    Ok(())
}
