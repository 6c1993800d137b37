//! The report for a terminal of 80 columns.

use super::contents::{Contents, NAMES};

/// How wide lines are.
const COLUMNS: usize = 80;
/// Changes that are named one by one, at most.
const CHANGES_MAX: usize = 40;

pub(super) fn of(contents: &Contents) -> String {
    let mut text = wrapped(&contents.title, "");
    contents
        .lead
        .iter()
        .for_each(|it| text += &wrapped(it, "  "));
    contents
        .facts
        .iter()
        .for_each(|it| text += &wrapped(it, "  "));
    if let Some(comparison) = &contents.comparison {
        text += "\nWhat has changed\n";
        comparison
            .summary()
            .iter()
            .for_each(|it| text += &wrapped(it, "  "));
        contents
            .circumstances
            .iter()
            .for_each(|it| text += &wrapped(it, "  "));
        for change in comparison.changes.iter().take(CHANGES_MAX) {
            text += &wrapped(&change.sentence(NAMES), "  ");
        }
        if let Some(more @ 1..) = comparison.changes.len().checked_sub(CHANGES_MAX) {
            text += &wrapped(&format!("and {more} more: --html has all of them"), "  ");
        }
        contents
            .only()
            .iter()
            .for_each(|it| text += &wrapped(it, "  "));
    }
    for part in &contents.parts {
        text.push('\n');
        text += &wrapped(&part.heading, "");
        part.text.iter().for_each(|it| text += &wrapped(it, "  "));
        for line in part.summary.text().lines() {
            text += &format!("  {line}\n");
        }
    }
    if !contents.skipped.is_empty() {
        text.push('\n');
        contents
            .skipped
            .iter()
            .for_each(|it| text += &wrapped(it, ""));
    }
    text
}

/// Lines of a paragraph; those behind the first are set in a little more.
fn wrapped(text: &str, indent: &str) -> String {
    let mut lines = String::new();
    let mut line = indent.to_owned();
    let mut is_empty = true;
    let clean: String = text
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    for word in clean.split_whitespace() {
        let mut word: Vec<char> = word.chars().collect();
        loop {
            let gap = usize::from(!is_empty);
            let room = COLUMNS.saturating_sub(line.chars().count() + gap);
            if word.len() <= room {
                if !is_empty {
                    line.push(' ');
                }
                line.extend(&word);
                is_empty = false;
                break;
            }
            if is_empty {
                // A word that no line has room for is cut.
                line.extend(word.drain(..room));
            }
            lines += &line;
            lines.push('\n');
            line = format!("{indent}  ");
            is_empty = true;
        }
    }
    lines += line.trim_end();
    lines.push('\n');
    lines
}
