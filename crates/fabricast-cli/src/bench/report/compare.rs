//! `Comparison`: what of two files differs by more than the runs of each differ among themselves.

use std::collections::HashMap;

use fabricast_charts::{Table, bytes, short};

use super::case::{Case, Metric, Who};
use super::interval::{Difference, Interval};
use super::reading::Results;

/// A figure that has changed.
#[derive(Debug, Clone)]
pub(super) struct Change {
    part: String,
    size: f64,
    what: String,
    unit: &'static str,
    before: Interval,
    after: Interval,
    /// None: of the bare loop, which is nobody's work.
    is_better: Option<bool>,
}

impl Change {
    pub(super) fn sentence(&self, names: [&str; 2]) -> String {
        let [a, b] = names;
        let Self {
            part,
            what,
            unit,
            before,
            after,
            ..
        } = self;
        let unit = if unit.is_empty() {
            String::new()
        } else {
            format!(" {unit}")
        };
        format!(
            "{part}, {}: {what} {}{unit} {} in {a}, {}{unit} {} in {b}: {}{}",
            bytes(self.size),
            short(before.value),
            bounds(before),
            short(after.value),
            bounds(after),
            percent(before.value, after.value),
            match self.is_better {
                None => "",
                Some(true) => ", better",
                Some(false) => ", worse",
            }
        )
    }
}

/// `[4.90, 5.20]`, or nothing for a single run.
pub(super) fn bounds(interval: &Interval) -> String {
    match interval.runs {
        0 | 1 => String::new(),
        _ => format!("[{}, {}]", short(interval.low), short(interval.high)),
    }
}

/// By how much a value has changed.
pub(super) fn percent(before: f64, after: f64) -> String {
    let change = 100.0 * (after / before - 1.0);
    match change.is_finite() {
        true if change.abs() < 9.95 => format!("{change:+.1} %"),
        true if change.abs() < 999.5 => format!("{change:+.0} %"),
        true => format!("{} times as much", short(after / before)),
        false => "-".to_owned(),
    }
}

/// What differs between two files.
#[derive(Debug, Clone, Default)]
pub(super) struct Comparison {
    pub(super) changes: Vec<Change>,
    /// Figures that both files have, with an interval.
    pub(super) compared: usize,
    /// Figures that both files have, one of them from a single run.
    pub(super) unknown: usize,
    /// Cases that the first file has, and the second has not; and the other way.
    pub(super) only: [Vec<String>; 2],
}

impl Comparison {
    pub(super) fn of(before: &Results, after: &Results) -> Self {
        let mut comparison = Self::default();
        let key = |case: &Case| (case.part(), case.size.to_bits());
        let later: HashMap<_, _> = after.cases.iter().map(|case| (key(case), case)).collect();
        let mut earlier = HashMap::new();
        for case in &before.cases {
            earlier.insert(key(case), ());
            match later.get(&key(case)) {
                Some(after) => comparison.compare(case, after),
                None => comparison.only[0].push(name(case)),
            }
        }
        let new = after
            .cases
            .iter()
            .filter(|case| !earlier.contains_key(&key(case)));
        comparison.only[1] = new.map(name).collect();
        comparison
    }

    fn compare(&mut self, before: &Case, after: &Case) {
        for metric in compared(before, after) {
            self.compare_figure(before, after, Who::Ours, metric);
        }
        self.compare_figure(before, after, Who::Bare, main_metric(before));
        if let (Some(a), Some(b)) = (before.ratio, after.ratio) {
            let is_better_high = !before.is_ratio_of_times();
            self.add(
                before,
                "ratio to the bare loop".to_owned(),
                "",
                [a, b],
                Some(is_better_high),
            );
        }
    }

    fn compare_figure(&mut self, before: &Case, after: &Case, who: Who, metric: Metric) {
        let (Some(a), Some(b)) = (before.figure(who, metric), after.figure(who, metric)) else {
            return;
        };
        let title = lower(metric.title());
        let (what, is_better_high) = match who {
            Who::Ours => (title, Some(metric.is_better_high())),
            Who::Bare => (format!("the bare loop's {title}"), None),
        };
        self.add(before, what, metric.unit(), [a, b], is_better_high);
    }

    fn add(
        &mut self,
        case: &Case,
        what: String,
        unit: &'static str,
        [before, after]: [Interval; 2],
        is_better_high: Option<bool>,
    ) {
        let is_higher = match after.since(&before) {
            Difference::Unknown => {
                self.unknown += 1;
                return;
            }
            Difference::None => None,
            Difference::Higher => Some(true),
            Difference::Lower => Some(false),
        };
        self.compared += 1;
        let Some(is_higher) = is_higher else {
            return;
        };
        self.changes.push(Change {
            part: case.part(),
            size: case.size,
            what,
            unit,
            before,
            after,
            is_better: is_better_high.map(|better| better == is_higher),
        });
    }

    /// What was found, in a sentence.
    pub(super) fn summary(&self) -> Vec<String> {
        let mut sentences = vec![match (self.compared, self.changes.len()) {
            (0, _) => "Nothing can be compared: no figure is in both files with more than one run."
                .to_owned(),
            (compared, 0) => format!(
                "Nothing has changed beyond the intervals, of {compared} figures that both have."
            ),
            (compared, changed) => format!(
                "{changed} of {compared} figures have changed beyond their intervals. Of many \
                 figures a few differ by chance."
            ),
        }];
        if self.unknown > 0 {
            sentences.push(format!(
                "{} figures are of a single run in one of the files: nobody knows how much they \
                 vary, and they are not compared.",
                self.unknown
            ));
        }
        sentences
    }

    /// All changes.
    pub(super) fn table(&self, names: [&str; 2]) -> Table {
        let [a, b] = names;
        let head = [
            "case", "size", "figure", a, "interval", b, "interval", "change", "",
        ];
        let mut table = Table::new("Changes beyond the intervals", head);
        let rows = self.changes.iter().map(|change| {
            let word = match change.is_better {
                None => "",
                Some(true) => "better",
                Some(false) => "worse",
            };
            let what = match change.unit {
                "" => change.what.clone(),
                unit => format!("{}, {unit}", change.what),
            };
            vec![
                change.part.clone(),
                bytes(change.size),
                what,
                short(change.before.value),
                bounds(&change.before),
                short(change.after.value),
                bounds(&change.after),
                percent(change.before.value, change.after.value),
                word.to_owned(),
            ]
        });
        table.rows = rows.collect();
        table
    }
}

/// A case, as people know it.
pub(super) fn name(case: &Case) -> String {
    format!("{}, {}", case.part(), bytes(case.size))
}

/// What a case is measured by first of all.
pub(super) fn main_metric(case: &Case) -> Metric {
    let order = [Metric::Median, Metric::Bandwidth, Metric::MessageRate];
    let found = order
        .into_iter()
        .find(|it| case.figure(Who::Ours, *it).is_some());
    found.unwrap_or(Metric::Bandwidth)
}

/// What is compared. The rates of bytes and of messages are the same figure twice.
fn compared(before: &Case, after: &Case) -> impl Iterator<Item = Metric> {
    let has = |metric| {
        [before, after]
            .iter()
            .all(|it| it.figure(Who::Ours, metric).is_some())
    };
    let has_bandwidth = has(Metric::Bandwidth);
    let all = Metric::ALL.into_iter();
    all.filter(move |it| *it != Metric::MessageRate || !has_bandwidth)
}

fn lower(title: &str) -> String {
    let mut letters = title.chars();
    let first = letters
        .next()
        .map(|c| c.to_lowercase().to_string())
        .unwrap_or_default();
    first + letters.as_str()
}

#[cfg(test)]
#[path = "tests/compare.rs"]
mod tests;
