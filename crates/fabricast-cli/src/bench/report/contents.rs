//! `Contents`: the report before it is text or HTML.

use std::collections::HashMap;

use fabricast_charts::{Page, Section, Table, bytes, short};

use super::case::{Case, Metric, Who};
use super::compare::{Comparison, bounds, main_metric, name, percent};
use super::curves::{self, Drawn, Side};
use super::reading::Results;

/// Parts that have charts, at most.
const DRAWN_PARTS_MAX: usize = 60;
/// Sizes of a part whose percentiles are drawn, at most.
const DRAWN_SIZES_MAX: usize = 8;

/// What two files are called.
pub(super) const NAMES: [&str; 2] = ["A", "B"];

/// The report.
pub(crate) struct Contents {
    pub(super) title: String,
    pub(super) lead: Vec<String>,
    /// What each file says of itself, in paragraphs.
    pub(super) facts: Vec<String>,
    facts_table: Table,
    /// What each file says besides.
    pub(super) notes: Vec<String>,
    pub(super) comparison: Option<Comparison>,
    /// What differs between the circumstances of two files.
    pub(super) circumstances: Vec<String>,
    pub(super) parts: Vec<Chapter>,
    pub(super) skipped: Vec<String>,
}

/// What was measured of an operation with one setting.
pub(crate) struct Chapter {
    pub(super) heading: String,
    pub(super) text: Vec<String>,
    pub(super) summary: Table,
    drawn: Vec<Drawn>,
}

impl Chapter {
    /// Its charts.
    pub(super) fn drawn(&self) -> impl Iterator<Item = &Drawn> {
        self.drawn.iter()
    }
}

impl Contents {
    /// Of one file, or of two.
    pub(crate) fn of(all: &[Results]) -> Self {
        let mut contents = Self {
            title: title(all),
            lead: lead(all),
            facts: all
                .iter()
                .enumerate()
                .flat_map(|(n, it)| facts(it, label(all, n)))
                .collect(),
            facts_table: facts_table(all),
            notes: all
                .iter()
                .enumerate()
                .flat_map(|(n, it)| notes(it, label(all, n)))
                .collect(),
            comparison: None,
            circumstances: Vec::new(),
            parts: parts(all),
            skipped: skipped(all),
        };
        if let [before, after] = all {
            contents.comparison = Some(Comparison::of(before, after));
            let mut sentences = before.facts.differences(&after.facts, NAMES);
            if !before.facts.same_machines(&after.facts) {
                sentences.insert(0, "These are figures of different machines.".to_owned());
            }
            contents.circumstances = sentences;
        }
        contents
    }

    /// The report as a page.
    pub(crate) fn page(&self) -> Page {
        let mut sections = vec![Section {
            heading: "What it was measured on".to_owned(),
            text: self
                .circumstances
                .iter()
                .chain(&self.notes)
                .cloned()
                .collect(),
            tables: vec![self.facts_table.clone()],
            ..Section::default()
        }];
        if let Some(comparison) = &self.comparison {
            let mut text = comparison.summary();
            text.extend(self.only());
            let mut tables = Vec::new();
            if !comparison.changes.is_empty() {
                tables.push(comparison.table(NAMES));
            }
            let heading = "What has changed".to_owned();
            sections.push(Section {
                heading,
                text,
                tables,
                ..Section::default()
            });
        }
        for part in &self.parts {
            sections.push(Section {
                heading: part.heading.clone(),
                text: part.text.clone(),
                tables: vec![part.summary.clone()],
                pictures: part.drawn().map(Drawn::picture).collect(),
            });
        }
        if !self.skipped.is_empty() {
            sections.push(Section {
                heading: "Skipped".to_owned(),
                text: self.skipped.clone(),
                ..Section::default()
            });
        }
        Page {
            title: self.title.clone(),
            text: self.lead.clone(),
            sections,
        }
    }

    /// What is in one of two files only.
    pub(super) fn only(&self) -> Vec<String> {
        let Some(comparison) = &self.comparison else {
            return Vec::new();
        };
        let lists = comparison
            .only
            .iter()
            .zip(NAMES)
            .filter(|(cases, _)| !cases.is_empty());
        let sentence = |(cases, file): (&Vec<String>, &str)| {
            const NAMED: usize = 20;
            let named = cases
                .iter()
                .take(NAMED)
                .cloned()
                .collect::<Vec<_>>()
                .join("; ");
            let more = match cases.len().saturating_sub(NAMED) {
                0 => String::new(),
                more => format!("; and {more} more"),
            };
            format!("Only in {file}: {named}{more}.")
        };
        lists.map(sentence).collect()
    }
}

fn label(all: &[Results], number: usize) -> &'static str {
    if all.len() > 1 { NAMES[number] } else { "" }
}

fn title(all: &[Results]) -> String {
    match all {
        [one] => format!("fabricast bench: {}", one.name),
        _ => "fabricast bench: two runs compared".to_owned(),
    }
}

fn lead(all: &[Results]) -> Vec<String> {
    let mut lead = Vec::new();
    for (number, results) in all.iter().enumerate() {
        let mut words = match label(all, number) {
            "" => results.name.clone(),
            label => format!("{label} is {}", results.name),
        };
        if let Some(at) = &results.facts.at {
            words += &format!(", measured at {at}");
        }
        if let Some(command) = &results.facts.command {
            words += &format!(", by: {command}");
        }
        lead.push(words);
    }
    lead
}

/// What a file says of itself, a paragraph for what is common and for each machine.
fn facts(results: &Results, label: &str) -> Vec<String> {
    let listed = |all: &[(String, String)]| {
        let all = all.iter().map(|(name, value)| format!("{name} {value}"));
        all.collect::<Vec<_>>().join("; ")
    };
    let about = |what: &str, all: &[(String, String)]| match label {
        "" => format!("{what}: {}", listed(all)),
        label => format!("{label}, {what}: {}", listed(all)),
    };
    let facts = &results.facts;
    let mut texts = Vec::new();
    if !facts.common.is_empty() {
        texts.push(about("both ends", &facts.common));
    }
    texts.extend(facts.nodes.iter().map(|(role, node)| about(role, node)));
    texts
}

fn notes(results: &Results, label: &str) -> Vec<String> {
    let notes = results.facts.notes.iter().map(|note| match label {
        "" => format!("note: {note}"),
        label => format!("{label}, note: {note}"),
    });
    notes.collect()
}

/// The same as a table, a column for each machine of each file.
fn facts_table(all: &[Results]) -> Table {
    let mut table = Table::new("Facts", [""]);
    let mut columns: Vec<&[(String, String)]> = Vec::new();
    for (number, results) in all.iter().enumerate() {
        let common = ("both ends", &results.facts.common);
        let nodes = results
            .facts
            .nodes
            .iter()
            .map(|(role, node)| (role.as_str(), node));
        for (what, named) in std::iter::once(common).chain(nodes) {
            table.head.push(match label(all, number) {
                "" => what.to_owned(),
                label => format!("{label}: {what}"),
            });
            columns.push(named);
        }
    }
    let mut names: Vec<&str> = Vec::new();
    for (name, _) in columns.iter().copied().flatten() {
        if !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    for name in names {
        let value = |column: &&[(String, String)]| {
            let found = column.iter().find(|(it, _)| it == name);
            found.map_or_else(String::new, |(_, value)| value.clone())
        };
        let cells = columns.iter().map(value);
        table
            .rows
            .push(std::iter::once(name.to_owned()).chain(cells).collect());
    }
    table
}

fn skipped(all: &[Results]) -> Vec<String> {
    let mut lines = Vec::new();
    for (number, results) in all.iter().enumerate() {
        for case in &results.cases {
            if let Some(why) = &case.skipped {
                let prefix = match label(all, number) {
                    "" => String::new(),
                    label => format!("{label}, "),
                };
                lines.push(format!("SKIPPED: {prefix}{}: {why}", name(case)));
            }
        }
    }
    lines
}

/// Each operation with each setting, in the order in which they come first.
fn parts(all: &[Results]) -> Vec<Chapter> {
    let mut order: Vec<String> = Vec::new();
    let mut by_part: HashMap<String, Vec<Vec<&Case>>> = HashMap::new();
    for (number, results) in all.iter().enumerate() {
        for case in results.cases.iter().filter(|case| case.skipped.is_none()) {
            let part = case.part();
            let sides = by_part.entry(part).or_insert_with_key(|part| {
                order.push(part.clone());
                vec![Vec::new(); all.len()]
            });
            sides[number].push(case);
        }
    }
    let mut parts = Vec::new();
    for heading in order {
        let mut cases = by_part.remove(&heading).unwrap_or_default();
        cases
            .iter_mut()
            .for_each(|side| side.sort_by(|a, b| a.size.total_cmp(&b.size)));
        let sides = cases.into_iter().enumerate();
        let sides = sides.map(|(number, cases)| Side {
            label: label(all, number),
            cases,
        });
        let is_drawn = parts.len() < DRAWN_PARTS_MAX;
        parts.push(part(heading, &sides.collect::<Vec<_>>(), is_drawn));
    }
    parts
}

fn part(heading: String, sides: &[Side<'_>], is_drawn: bool) -> Chapter {
    let mut text = vec![intervals(sides)];
    let mut drawn = Vec::new();
    if is_drawn {
        let over_sizes = |metrics: &[Metric]| -> Vec<Drawn> {
            let drawn = metrics
                .iter()
                .map(|it| curves::over_sizes(&heading, *it, sides));
            drawn.flatten().collect()
        };
        drawn = over_sizes(&[Metric::Median]);
        let has_curve = |size: &f64| {
            let all = sides
                .iter()
                .flat_map(|side| &side.cases)
                .filter(|case| case.size == *size);
            all.clone().any(|case| {
                Who::BOTH
                    .iter()
                    .any(|who| !case.percentiles(*who).is_empty())
            })
        };
        let sizes: Vec<_> = curves::sizes(sides).into_iter().filter(has_curve).collect();
        let every = sizes.len().div_ceil(DRAWN_SIZES_MAX).max(1);
        if every > 1 {
            text.push(format!("Percentiles are drawn for one in {every} sizes."));
        }
        let sizes = sizes.into_iter().step_by(every);
        drawn.extend(sizes.filter_map(|size| curves::percentiles(&heading, size, sides)));
        drawn.extend(over_sizes(&[
            Metric::Bandwidth,
            Metric::MessageRate,
            Metric::ProcessorTime,
        ]));
    } else {
        text.push(format!(
            "There are charts for the first {DRAWN_PARTS_MAX} settings only."
        ));
    }
    let cases = || sides.iter().flat_map(|side| &side.cases);
    if cases().any(|case| case.ratio.is_some()) {
        text.push(match cases().any(|case| case.is_ratio_of_times()) {
            true => "The ratio is our time to the bare loop's: below 1 is faster.".to_owned(),
            false => "The ratio is our rate to the bare loop's: above 1 is faster.".to_owned(),
        });
    }
    let summary = match sides {
        [one] => summary(one),
        both => summary_of_two(both),
    };
    Chapter {
        heading,
        text,
        summary,
        drawn,
    }
}

/// What the bars of charts, and the brackets of tables, are.
fn intervals(sides: &[Side<'_>]) -> String {
    let cases = sides.iter().flat_map(|side| &side.cases);
    let figures = cases.flat_map(|case| Metric::ALL.map(|it| case.figure(Who::Ours, it)));
    let runs: Vec<_> = figures.flatten().map(|it| it.runs).collect();
    let several = runs.iter().copied().filter(|runs| *runs > 1);
    let (least, most) = several.fold((usize::MAX, 0), |(a, b), n| (a.min(n), b.max(n)));
    const SINGLE: &str = "is of one run, or of runs that the file does not have";
    if runs.is_empty() {
        return "Nothing was measured.".to_owned();
    }
    if most == 0 {
        return format!("Each figure {SINGLE}: it has no interval.");
    }
    let count = match least == most {
        true => format!("{most} runs"),
        false => format!("{least} to {most} runs"),
    };
    let mut text = match least >= 6 {
        true => format!("Medians of {count}, with the 95 % interval of the median."),
        false => format!(
            "Medians of {count}. Intervals are 95 % intervals of the median for 6 runs or more, \
             and the range of all runs for fewer."
        ),
    };
    if runs.contains(&1) {
        text += &format!(" A figure without an interval {SINGLE}.");
    }
    text
}

/// Two digits behind the point, as long as that is short.
fn ratio_text(ratio: f64) -> String {
    match ratio < 99.5 {
        true => format!("{ratio:.2}"),
        false => short(ratio),
    }
}

/// Figures of one file, narrow enough for a terminal.
fn summary(side: &Side<'_>) -> Table {
    let cases = &side.cases;
    let is_timed = cases.iter().any(|case| main_metric(case) == Metric::Median);
    let figure = |case: &Case, who, metric| {
        case.figure(who, metric).map_or_else(
            || "-".to_owned(),
            |it: super::interval::Interval| short(it.value),
        )
    };
    let ratio = |case: &Case| match case.ratio {
        None => ["-".to_owned(), String::new()],
        Some(it) => {
            let [value, low, high] = [it.value, it.low, it.high].map(ratio_text);
            [value, format!("[{low}, {high}]")]
        }
    };
    let mut table = match is_timed {
        true => Table::new(
            "Times in microseconds",
            [
                "size", "p50 us", "p99 us", "p99.9 us", "bare p50", "ratio", "interval",
            ],
        ),
        false => Table::new(
            "Rates",
            [
                "size", "GB/s", "interval", "bare", "msgs/s", "ratio", "interval",
            ],
        ),
    };
    for case in cases {
        let [value, interval] = ratio(case);
        let first = main_metric(case);
        table.rows.push(match is_timed {
            true => vec![
                bytes(case.size),
                figure(case, Who::Ours, Metric::Median),
                figure(case, Who::Ours, Metric::P99),
                figure(case, Who::Ours, Metric::P999),
                figure(case, Who::Bare, Metric::Median),
                value,
                interval,
            ],
            false => vec![
                bytes(case.size),
                figure(case, Who::Ours, Metric::Bandwidth),
                case.figure(Who::Ours, first)
                    .map_or_else(String::new, |it| bounds(&it)),
                figure(case, Who::Bare, Metric::Bandwidth),
                figure(case, Who::Ours, Metric::MessageRate),
                value,
                interval,
            ],
        });
    }
    table
}

/// Figures of two files beside each other.
fn summary_of_two(sides: &[Side<'_>]) -> Table {
    let first = sides.iter().flat_map(|side| side.cases.first()).next();
    let metric = first.map_or(Metric::Bandwidth, |case| main_metric(case));
    let [a, b] = NAMES;
    let of_a = |what: &str| format!("{what} {a}");
    let [ours, bare, ratio] = [metric.short_unit(), "bare", "ratio"].map(of_a);
    let mut table = Table::new(
        format!("{}, {}", metric.title(), metric.unit()),
        ["size", &ours, b, "change", &bare, b, &ratio, b],
    );
    for size in curves::sizes(sides) {
        let at = |side: &Side<'_>| {
            side.cases
                .binary_search_by(|it| it.size.total_cmp(&size))
                .ok()
        };
        let two = sides.iter().map(|side| at(side).map(|at| side.cases[at]));
        let two: Vec<Option<&Case>> = two.collect();
        let values = |who| {
            let value = |case: &Option<&Case>| Some((*case)?.figure(who, metric)?.value);
            two.iter().map(value).collect::<Vec<_>>()
        };
        let cell = |value: &Option<f64>| value.map_or_else(|| "-".to_owned(), short);
        let ratio = |case: &Option<&Case>| {
            let ratio = case.and_then(|case| case.ratio);
            ratio.map_or_else(|| "-".to_owned(), |it| ratio_text(it.value))
        };
        let (ours, bare) = (values(Who::Ours), values(Who::Bare));
        let change = match ours[..] {
            [Some(a), Some(b)] => percent(a, b),
            _ => "-".to_owned(),
        };
        let mut row = vec![bytes(size)];
        row.extend(ours.iter().map(cell));
        row.push(change);
        row.extend(bare.iter().map(cell));
        row.extend(two.iter().map(ratio));
        table.rows.push(row);
    }
    table
}
