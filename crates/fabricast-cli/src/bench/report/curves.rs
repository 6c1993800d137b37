//! `Drawn`: a chart of a part of the report, with its numbers.

use fabricast_charts::{Figure, Line, Picture, Point, Scale, Table, bytes, short};

use super::case::{Case, Metric, Who};
use super::compare::bounds;
use super::interval::Interval;

/// The cases of a part in one file, by size.
pub(super) struct Side<'a> {
    /// What the file is called beside another one; of a single file empty.
    pub(super) label: &'a str,
    pub(super) cases: Vec<&'a Case>,
}

/// A chart that is drawn when it is asked for.
pub(super) struct Drawn {
    /// For the name of a file.
    pub(super) name: String,
    figure: Figure,
    table: Table,
}

impl Drawn {
    pub(super) fn picture(&self) -> Picture {
        Picture::of(&self.figure, self.table.clone())
    }
}

/// Whose figures a line has, and how it looks: of each file two lines.
fn lines<'a>(sides: &'a [Side<'a>]) -> impl Iterator<Item = (&'a Side<'a>, Who, String, usize)> {
    let each = sides.iter().enumerate();
    each.flat_map(|(file, side)| {
        Who::BOTH.into_iter().map(move |who| {
            let name = match side.label {
                "" => who.name().to_owned(),
                label => format!("{}, {label}", who.name()),
            };
            (side, who, name, 2 * file + who as usize)
        })
    })
}

/// A line over all sizes: size and figure, in the order of the sizes.
struct SizeLine {
    name: String,
    look: usize,
    figures: Vec<(f64, Interval)>,
}

/// A figure of all sizes; none where nobody has it.
pub(super) fn over_sizes(part: &str, metric: Metric, sides: &[Side<'_>]) -> Option<Drawn> {
    let all = lines(sides).map(|(side, who, name, look)| {
        let figure = |case: &&Case| Some((case.size, case.figure(who, metric)?));
        let figures = side.cases.iter().filter_map(figure).collect();
        SizeLine {
            name,
            look,
            figures,
        }
    });
    let all: Vec<_> = all.filter(|line| !line.figures.is_empty()).collect();
    if all.is_empty() {
        return None;
    }
    let label = match metric {
        Metric::Median | Metric::P99 | Metric::P999 => "microseconds",
        _ => metric.unit(),
    };
    let figures = || all.iter().flat_map(|line| &line.figures);
    let heights = figures().flat_map(|(_, it)| [it.low, it.value, it.high]);
    let title = metric.title();
    let figure = Figure {
        title: format!("{title}: {part}"),
        description: format!("{title} over the size of a message, in {label}. {part}."),
        x: Scale::sizes("size of a message", figures().map(|(size, _)| *size)),
        y: Scale::amounts(label, heights),
        lines: all.iter().map(SizeLine::drawn).collect(),
    };
    let caption = format!("{title}, {}", metric.unit());
    let table = size_table(caption, &all);
    let name = slug(&format!("{part} {title}"));
    Some(Drawn {
        name,
        figure,
        table,
    })
}

impl SizeLine {
    fn drawn(&self) -> Line {
        let points = self.figures.iter().map(
            |&(
                x,
                Interval {
                    value: y,
                    low,
                    high,
                    ..
                },
            )| { Point { x, y, low, high } },
        );
        Line {
            name: self.name.clone(),
            look: self.look,
            points: points.collect(),
        }
    }
}

/// Two columns for each line, a row for each size that one of them has.
fn size_table(caption: String, lines: &[SizeLine]) -> Table {
    let mut table = Table::new(caption, ["size"]);
    for line in lines {
        table
            .head
            .extend([line.name.clone(), "interval".to_owned()]);
    }
    let all = lines.iter().flat_map(|line| &line.figures);
    for size in each_once(all.map(|(size, _)| *size)) {
        let cells = lines.iter().flat_map(|line| {
            let at = line
                .figures
                .binary_search_by(|(it, _)| it.total_cmp(&size))
                .ok();
            let figure = at.map(|at| line.figures[at].1);
            figure.map_or_else(Default::default, |it| [short(it.value), bounds(&it)])
        });
        table
            .rows
            .push(std::iter::once(bytes(size)).chain(cells).collect());
    }
    table
}

/// The percentiles of one size; none where nobody has them.
pub(super) fn percentiles(part: &str, size: f64, sides: &[Side<'_>]) -> Option<Drawn> {
    let curves = lines(sides).filter_map(|(side, who, name, look)| {
        let at = side
            .cases
            .binary_search_by(|case| case.size.total_cmp(&size))
            .ok()?;
        let curve = side.cases[at].percentiles(who);
        (!curve.is_empty()).then_some((name, look, curve))
    });
    let curves: Vec<_> = curves.collect();
    if curves.is_empty() {
        return None;
    }
    let drawn = curves.iter().map(|(name, look, curve)| Line {
        name: name.clone(),
        look: *look,
        points: curve
            .iter()
            .map(|(percent, us)| Point::exact(*percent, *us))
            .collect(),
    });
    let all = || curves.iter().flat_map(|(_, _, curve)| curve.iter());
    // What the horizontal axis has no place for is not drawn.
    let shown = all().filter(|(percent, _)| (50.0..=99.99).contains(percent));
    let figure = Figure {
        title: format!("Latency, {}: {part}", bytes(size)),
        description: format!("Latency by percentile, in us. {part}, {}.", bytes(size)),
        x: Scale::percentiles("percentile"),
        y: Scale::amounts("microseconds", shown.map(|(_, us)| *us)),
        lines: drawn.collect(),
    };
    let mut table = Table::new(
        format!("Percentiles of {}, us", bytes(size)),
        ["percentile"],
    );
    table
        .head
        .extend(curves.iter().map(|(name, ..)| name.clone()));
    for percent in each_once(all().map(|(percent, _)| *percent)) {
        let cells = curves.iter().map(|(_, _, curve)| {
            let at = curve.iter().find(|it| it.0 == percent);
            at.map_or_else(String::new, |(_, us)| short(*us))
        });
        let first = match percent == 100.0 {
            true => "longest".to_owned(),
            false => format!("{percent} %"),
        };
        table
            .rows
            .push(std::iter::once(first).chain(cells).collect());
    }
    let name = slug(&format!("{part} {} percentiles", bytes(size)));
    Some(Drawn {
        name,
        figure,
        table,
    })
}

/// All sizes of a part, each once.
pub(super) fn sizes(sides: &[Side<'_>]) -> Vec<f64> {
    let all = sides.iter().flat_map(|side| &side.cases);
    each_once(all.map(|case| case.size))
}

fn each_once(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<_> = values.collect();
    values.sort_by(f64::total_cmp);
    values.dedup();
    values
}

/// Small letters, digits and dashes.
fn slug(text: &str) -> String {
    let mut slug = String::new();
    for c in text.chars() {
        match c {
            c if c.is_ascii_alphanumeric() => slug.push(c.to_ascii_lowercase()),
            _ if !slug.ends_with('-') => slug.push('-'),
            _ => {}
        }
    }
    slug.truncate(80);
    slug.trim_matches('-').to_owned()
}
