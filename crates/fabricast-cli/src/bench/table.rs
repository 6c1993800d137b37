//! The table on the terminal: 80 columns.

use fabricast_bench::case::{Case, Operation};
use fabricast_bench::client::Figures;
use fabricast_bench::pairs::Outcome;
use fabricast_bench::record::{About, Facts};
use fabricast_bench::stats::DECIDED;
use serde_json::Value;

/// Columns of a terminal.
const WIDTH: usize = 80;

/// What the signs of the table mean.
pub(super) const FOOT: &str = "\
?: an interval wider than 0.06 decides nothing: take more or longer runs, on a
machine with nothing beside it. Of fewer than six pairs it is the range.";

/// Lines of at most [`WIDTH`] columns; all but the first begin with spaces.
pub(super) fn wrapped(text: &str, indent: usize) -> String {
    let begun = text.trim_start_matches(' ');
    let mut column = text.len() - begun.len();
    let mut lines = " ".repeat(column);
    let mut is_first = true;
    for word in begun.split(' ') {
        let len = word.chars().count();
        if !is_first && column + 1 + len > WIDTH {
            lines.push('\n');
            lines.extend(std::iter::repeat_n(' ', indent));
            column = indent;
        } else if !is_first {
            lines.push(' ');
            column += 1;
        }
        is_first = false;
        lines.push_str(word);
        column += len;
    }
    lines
}

/// What is known before the first case.
pub(super) fn head(facts: &Facts) -> String {
    let mut lines = Vec::new();
    for node in &facts.nodes {
        let shown = |key: &str| match &node.value[key] {
            Value::String(text) => text.clone(),
            Value::Null => "?".to_owned(),
            value => value.to_string(),
        };
        let pinned = match node.value["pinned"].as_array() {
            Some(cores) if cores.len() == 1 => format!("pinned to core {}", cores[0]),
            _ => "not pinned".to_owned(),
        };
        let text = format!(
            "{:7} {}: {}, {} cores, {pinned}, Linux {}; fabricast {}, libfabric {}; {} by {}, MTU \
             {}, TCP by {}",
            shown("role"),
            shown("host"),
            shown("cpu"),
            shown("cores"),
            shown("kernel"),
            shown("fabricast"),
            shown("libfabric"),
            shown("address"),
            shown("device"),
            shown("mtu"),
            shown("congestion"),
        );
        lines.push(wrapped(&text, 8));
    }
    for note in &facts.notes {
        lines.push(wrapped(&format!("note    {note}"), 8));
    }
    lines.push(wrapped(
        &format!(
            "runs    {} pairs of {} s each; figures are medians, ours (bare loop)",
            facts.pairs, facts.seconds
        ),
        8,
    ));
    lines.push(String::new());
    lines.push(format!(
        "{:14} {:>6} {:>5} {:>14} {:>14}  ratio to bare",
        "operation", "bytes", "depth", "messages/s", "GB/s"
    ));
    lines.join("\n")
}

/// A case that was measured: a line, and one or two more for times.
pub(super) fn row(case: &Case, about: &About, outcome: &Outcome) -> String {
    let Outcome {
        ours,
        bare,
        ratio,
        ratio_lo,
        ratio_hi,
        ..
    } = outcome;
    let beside = match (case.operation.has_bare(), ratio.is_nan()) {
        (false, _) => "no bare loop".to_owned(),
        (true, true) => "one side only".to_owned(),
        (true, false) => {
            let mark = if ratio_hi - ratio_lo > DECIDED {
                "?"
            } else {
                ""
            };
            format!(
                "{} [{}, {}]{mark}",
                ratio_text(*ratio),
                ratio_text(*ratio_lo),
                ratio_text(*ratio_hi)
            )
        }
    };
    let mut lines = format!(
        "{} {:>14} {:>14}  {beside}",
        front(case, about),
        both(ours.msgs_per_s, bare.msgs_per_s, short),
        both(ours.gb_per_s, bare.gb_per_s, |value| format!("{value:.2}")),
    );
    let asked = match (about.timed, case.rate) {
        (None, _) => String::new(),
        (Some(timed), 0) => format!(", {timed}, lone"),
        (Some(timed), rate) => format!(", {timed}, {} a second asked", short(rate.into())),
    };
    let of_times = match case.operation {
        Operation::Pingpong if !ratio.is_nan() => "; the ratio is of the p50",
        _ => "",
    };
    if !ours.p50_us.is_nan() || !bare.p50_us.is_nan() {
        let times = format!(
            "    us: p50 {}, p99 {}, p99.9 {}, p99.99 {}, max {}{asked}{of_times}",
            time(ours, bare, 50.0),
            time(ours, bare, 99.0),
            time(ours, bare, 99.9),
            time(ours, bare, 99.99),
            time(ours, bare, 100.0),
        );
        lines += &format!("\n{}", wrapped(&times, 8));
    }
    if let Some((longest, many)) = about.gaps {
        let text = format!(
            "    the machine itself: on a spare core, a thread that reads the clock did not run \
             for {longest:.0} us at worst, {many} times for more than 100 us"
        );
        lines += &format!("\n{}", wrapped(&text, 8));
    }
    lines
}

fn time(ours: &Figures, bare: &Figures, percent: f64) -> String {
    both(
        ours.times.at(percent),
        bare.times.at(percent),
        |us| match us {
            us if us < 100.0 => format!("{us:.1}"),
            us => format!("{us:.0}"),
        },
    )
}

/// A case that was not.
pub(super) fn skipped(case: &Case, about: &About, why: &str) -> String {
    wrapped(&format!("{}  SKIPPED: {why}", front(case, about)), 8)
}

fn front(case: &Case, about: &About) -> String {
    format!(
        "{:14} {:>6} {:>5}",
        about.op,
        short_size(case.size),
        case.depth
    )
}

fn both(ours: f64, bare: f64, shown: impl Fn(f64) -> String) -> String {
    match (ours.is_nan(), bare.is_nan()) {
        (true, true) => "-".to_owned(),
        (false, true) => shown(ours),
        (true, false) => format!("({})", shown(bare)),
        (false, false) => format!("{} ({})", shown(ours), shown(bare)),
    }
}

/// Three digits.
fn ratio_text(ratio: f64) -> String {
    match ratio {
        ratio if ratio < 9.995 => format!("{ratio:.2}"),
        ratio if ratio < 99.95 => format!("{ratio:.1}"),
        ratio => format!("{ratio:.0}"),
    }
}

/// Three digits, with k, M or G for powers of 1000.
fn short(value: f64) -> String {
    let units = [(1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, "")];
    let found = units.into_iter().find(|(unit, _)| value >= *unit);
    let (unit, name) = found.unwrap_or((1.0, ""));
    match value / unit {
        scaled if scaled < 10.0 => format!("{scaled:.2}{name}"),
        scaled if scaled < 100.0 => format!("{scaled:.1}{name}"),
        scaled => format!("{scaled:.0}{name}"),
    }
}

/// With K or M for powers of 1024, if that says all.
fn short_size(bytes: usize) -> String {
    for (unit, name) in [(1 << 20, "M"), (1 << 10, "K")] {
        if bytes >= unit && bytes.is_multiple_of(unit) {
            return format!("{}{name}", bytes / unit);
        }
    }
    bytes.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        for (value, text) in [
            (0.5, "0.50"),
            (999.0, "999"),
            (1_234.0, "1.23k"),
            (45_600_000.0, "45.6M"),
            (2e9, "2.00G"),
        ] {
            assert_eq!(short(value), text);
        }
        let sizes = [64, 1024, 1536, 65536, 1 << 20, 16 << 20].map(short_size);
        assert_eq!(sizes, ["64", "1K", "1536", "64K", "1M", "16M"]);
    }

    #[test]
    fn lines_fit_a_terminal() {
        let text = "word ".repeat(60);
        let shown = wrapped(text.trim(), 8);
        assert!(shown.lines().count() > 3);
        assert!(shown.lines().all(|line| line.len() <= WIDTH));
        assert!(
            shown
                .lines()
                .skip(1)
                .all(|line| line.starts_with("        word"))
        );
    }
}
