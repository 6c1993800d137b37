//! `Lanes`: what happened over time, a strip for each thing.

use plotters::element::{PathElement, Polygon, Text};
use plotters::style::Color;
use plotters::style::text_anchor::{HPos, VPos};

use crate::canvas::{self, Area, Drawn, TEXT, TITLE, WIDTH};
use crate::palette::{self, LOOKS};
use crate::scale::Scale;
use crate::table::Table;

/// Where the strips begin and end: at their left are their names, at their right what they come to.
const LEFT: i32 = 168;
const RIGHT: i32 = WIDTH as i32 - 104;
const TOP: i32 = 46;
/// From one strip to the next, and how high one is at most.
const ROW: i32 = 46;
const HIGH: f64 = 36.0;

/// One strip.
#[derive(Debug, Clone)]
pub struct Lane {
    /// What it shows.
    pub name: String,
    /// The colour: below [`LOOKS`], or they begin anew.
    pub look: usize,
    /// How much of it there was in each interval of time, from 0 to 1.
    pub shares: Vec<f64>,
    /// What all of it comes to, or what it is on average.
    pub total: String,
    /// What a strip of full height stands for.
    pub full: String,
}

/// Strips over one axis of time.
#[derive(Debug, Clone)]
pub struct Lanes {
    /// What it shows, above it.
    pub title: String,
    /// What it shows, in a sentence for who does not see it.
    pub description: String,
    /// Seconds that all intervals took together. They are all as long.
    pub seconds: f64,
    /// From top to bottom.
    pub lanes: Vec<Lane>,
}

impl Lanes {
    /// The strips as SVG.
    pub fn svg(&self) -> String {
        let height = TOP + ROW * self.lanes.len() as i32 + 56;
        let height = height.unsigned_abs();
        canvas::draw(&self.title, &self.description, height, |area| {
            self.draw(area)
        })
    }

    /// What each strip comes to.
    pub fn table(&self) -> Table {
        let mut table = Table::new(self.title.clone(), ["", "in all", "full height"]);
        let rows = self
            .lanes
            .iter()
            .map(|lane| vec![lane.name.clone(), lane.total.clone(), lane.full.clone()]);
        table.rows = rows.collect();
        table
    }

    fn draw(&self, area: &Area<'_>) -> Drawn {
        let style = canvas::style(TITLE, palette::INK, HPos::Left, VPos::Top);
        let title = canvas::fitting(&self.title, TITLE, WIDTH as i32 - 24);
        area.draw(&Text::new(title, (12, 10), style))?;
        let time = Scale::seconds(self.seconds);
        let bottom = TOP + ROW * self.lanes.len() as i32;
        for (value, text) in time.ticks() {
            let x = across(time.share(*value));
            area.draw(&PathElement::new(
                vec![(x, TOP), (x, bottom + 4)],
                palette::GRID.rgb(),
            ))?;
            let style = canvas::style(TEXT, palette::INK, HPos::Center, VPos::Top);
            area.draw(&Text::new(text.clone(), (x, bottom + 8), style))?;
        }
        let style = canvas::style(TEXT, palette::INK, HPos::Center, VPos::Top);
        let label = time.label().to_owned();
        area.draw(&Text::new(label, ((LEFT + RIGHT) / 2, bottom + 30), style))?;
        for (number, lane) in self.lanes.iter().enumerate() {
            draw_lane(area, lane, TOP + ROW * (number as i32 + 1))?;
        }
        Ok(())
    }
}

fn across(share: f64) -> i32 {
    LEFT + (f64::from(RIGHT - LEFT) * share).round() as i32
}

/// A strip above a line.
fn draw_lane(area: &Area<'_>, lane: &Lane, line: i32) -> Drawn {
    let colour = palette::SERIES[lane.look % LOOKS].rgb();
    let intervals = lane.shares.len().max(1) as f64;
    let mut outline = vec![(LEFT, line)];
    for (number, share) in lane.shares.iter().enumerate() {
        let share = if share.is_finite() {
            share.clamp(0.0, 1.0)
        } else {
            0.0
        };
        let y = line - (HIGH * share).round() as i32;
        outline.push((across(number as f64 / intervals), y));
        outline.push((across((number + 1) as f64 / intervals), y));
    }
    outline.push((RIGHT, line));
    // Between two heights that are the same there is nothing to say.
    outline.dedup();
    if outline.iter().any(|(_, y)| *y != line) {
        area.draw(&Polygon::new(outline, colour.filled()))?;
    }
    area.draw(&PathElement::new(
        vec![(LEFT, line), (RIGHT, line)],
        palette::FAINT.rgb(),
    ))?;
    let middle = line - ROW / 2 + 4;
    let style = canvas::style(TEXT, palette::INK, HPos::Right, VPos::Center);
    let name = canvas::fitting(&lane.name, TEXT, LEFT - 16);
    area.draw(&Text::new(name, (LEFT - 10, middle), style))?;
    let style = canvas::style(TEXT, palette::INK, HPos::Left, VPos::Center);
    let total = canvas::fitting(&lane.total, TEXT, WIDTH as i32 - RIGHT - 10);
    area.draw(&Text::new(total, (RIGHT + 8, middle), style))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_strip_is_as_high_as_its_share() {
        let lane = |shares: &[f64]| Lane {
            name: "reading".to_owned(),
            look: 0,
            shares: shares.to_vec(),
            total: "50 %".to_owned(),
            full: "100 %".to_owned(),
        };
        let svg = |lanes: Vec<Lane>| {
            let lanes = Lanes {
                title: "A transfer".to_owned(),
                description: "What it waited for.".to_owned(),
                seconds: 2.0,
                lanes,
            };
            lanes.svg()
        };
        let drawn = svg(vec![lane(&[1.0, 0.5, f64::NAN, 7.0])]);
        let polygon = drawn
            .lines()
            .find(|line| line.contains("<polygon"))
            .expect("a strip");
        let line = TOP + ROW;
        for y in [line - 36, line - 18, line] {
            assert!(polygon.contains(&format!(",{y} ")), "{y}: {polygon}");
        }
        assert!(!polygon.contains(&format!(",{}", line - 37)), "{polygon}");
        assert!(!svg(vec![lane(&[0.0, 0.0]), lane(&[])]).contains("<polygon"));
    }
}
