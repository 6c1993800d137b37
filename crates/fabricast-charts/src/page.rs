//! `Page`: charts, tables and sentences in one file of HTML.

use crate::canvas::escape;
use crate::figure::Figure;
use crate::lanes::Lanes;
use crate::palette::{self, Colour};
use crate::table::Table;

/// A chart, and the numbers below it.
#[derive(Debug, Clone)]
pub struct Picture {
    /// The chart as SVG.
    pub svg: String,
    /// What it shows, in numbers.
    pub table: Table,
}

impl Picture {
    /// A figure with its numbers.
    pub fn of(figure: &Figure, table: Table) -> Self {
        let svg = figure.svg();
        Self { svg, table }
    }

    /// Lanes with their numbers.
    pub fn of_lanes(lanes: &Lanes) -> Self {
        let (svg, table) = (lanes.svg(), lanes.table());
        Self { svg, table }
    }
}

/// A part of a page below a heading.
#[derive(Debug, Clone, Default)]
pub struct Section {
    /// The heading.
    pub heading: String,
    /// Paragraphs below it.
    pub text: Vec<String>,
    /// Tables that belong to no chart.
    pub tables: Vec<Table>,
    /// Charts, two beside each other where there is room.
    pub pictures: Vec<Picture>,
}

/// One file of HTML that needs nothing else.
#[derive(Debug, Clone, Default)]
pub struct Page {
    /// The title, and the heading above all.
    pub title: String,
    /// Paragraphs below it.
    pub text: Vec<String>,
    /// Its parts.
    pub sections: Vec<Section>,
}

const RULES: &str = include_str!("page.css");

/// What keeps a page from loading anything, and from running anything, whatever it quotes.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'";

impl Page {
    /// The page as HTML.
    pub fn html(&self) -> String {
        let title = escape(&self.title);
        let mut body = format!("<h1>{title}</h1>\n{}", paragraphs(&self.text));
        for section in &self.sections {
            body += &format!("<section>\n<h2>{}</h2>\n", escape(&section.heading));
            body += &paragraphs(&section.text);
            section
                .tables
                .iter()
                .for_each(|table| body += &table.html());
            if !section.pictures.is_empty() {
                body += "<div class=\"pictures\">\n";
                for picture in &section.pictures {
                    let (svg, table) = (&picture.svg, picture.table.html());
                    body += &format!("<figure>\n{svg}{table}</figure>\n");
                }
                body += "</div>\n";
            }
            body += "</section>\n";
        }
        format!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta name=\"color-scheme\" content=\"light dark\">\n\
             <title>{title}</title>\n<style>\n{}{RULES}</style>\n</head>\n\
             <body>\n<main>\n{body}</main>\n</body>\n</html>\n",
            colours()
        )
    }
}

fn paragraphs(texts: &[String]) -> String {
    texts
        .iter()
        .map(|text| format!("<p>{}</p>\n", escape(text)))
        .collect()
}

/// The colours of light and dark, and a rule for each that takes the place of what charts say.
fn colours() -> String {
    let named = |value: fn(Colour) -> u32| -> String {
        let all = palette::all();
        all.map(|colour| format!("--{}: #{:06X};\n", colour.name, value(colour)))
            .collect()
    };
    let mut rules = format!(":root {{\n{}}}\n", named(|it| it.light));
    rules += &format!(
        "@media (prefers-color-scheme: dark) {{ :root {{\n{}}} }}\n",
        named(|it| it.dark)
    );
    for colour in palette::all() {
        let (name, attribute) = (colour.name, colour.attribute());
        rules += &format!(
            ".chart [fill=\"{attribute}\"] {{ fill: var(--{name}) }}\n\
             .chart [stroke=\"{attribute}\"] {{ stroke: var(--{name}) }}\n"
        );
    }
    rules
}

/// A chart in a file of its own: with the colours of a dark ground for whoever prefers one.
pub(crate) fn alone(svg: &str) -> String {
    let mut rules = String::new();
    for colour in palette::all() {
        let (attribute, dark) = (colour.attribute(), colour.dark);
        rules += &format!(
            "[fill=\"{attribute}\"] {{ fill: #{dark:06X} }} \
             [stroke=\"{attribute}\"] {{ stroke: #{dark:06X} }}\n"
        );
    }
    let style = format!("<style>@media (prefers-color-scheme: dark) {{\n{rules}}}</style>\n");
    match svg.split_once(">\n") {
        Some((head, body)) => format!("{head}>\n{style}{body}"),
        None => svg.to_owned(),
    }
}

impl Picture {
    /// The chart for a file of its own, which follows light and dark by itself.
    pub fn file(&self) -> String {
        alone(&self.svg)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Line, Point, Scale};

    #[test]
    fn a_page_loads_nothing_and_runs_nothing() {
        let hostile = "</title><script>alert(1)</script><img src=http://x/>";
        let figure = Figure {
            title: hostile.to_owned(),
            description: hostile.to_owned(),
            x: Scale::sizes(hostile, [8.0, 64.0]),
            y: Scale::amounts(hostile, [1.0]),
            lines: vec![Line {
                name: hostile.to_owned(),
                look: 1,
                points: vec![Point::exact(8.0, 1.0)],
            }],
        };
        let page = Page {
            title: hostile.to_owned(),
            text: vec![hostile.to_owned()],
            sections: vec![Section {
                heading: hostile.to_owned(),
                text: vec![hostile.to_owned()],
                tables: vec![Table::new(hostile, [hostile])],
                pictures: vec![Picture::of(&figure, Table::default())],
            }],
        };
        let html = page.html();
        assert!(
            !html.contains("<script") && !html.contains("<img"),
            "{html}"
        );
        assert!(!html.contains("<link") && !html.contains("@import") && !html.contains("url("));
    }

    #[test]
    fn every_colour_of_a_chart_has_a_rule() {
        let rules = colours();
        let figure = Figure {
            title: "t".to_owned(),
            description: "d".to_owned(),
            x: Scale::sizes("x", [8.0, 64.0]),
            y: Scale::amounts("y", [1.0, 2.0]),
            lines: (0..palette::LOOKS)
                .map(|look| Line {
                    name: look.to_string(),
                    look,
                    points: vec![Point::exact(8.0, 1.0), Point::exact(64.0, 2.0)],
                })
                .collect(),
        };
        let svg = figure.svg();
        for part in svg.split(['"']).filter(|part| part.starts_with('#')) {
            assert!(rules.contains(part), "{part} has no rule");
        }
        assert!(alone(&svg).contains("prefers-color-scheme"));
    }
}
