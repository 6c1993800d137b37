//! What is printed: one JSON object a line and operation, or text.

use crate::case::{Bench, Figures, Operation};
use crate::gpu::Way;
use crate::json::{number, text};
use crate::stats::DECIDED;

/// The medians of the runs of an operation, and of the ratios of its pairs.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub(crate) ours: Figures,
    pub(crate) plain: Figures,
    pub(crate) pairs: usize,
    pub(crate) ratio: f64,
    pub(crate) ratio_lo: f64,
    pub(crate) ratio_hi: f64,
    /// Bytes of a block, a task or a call.
    pub(crate) block: usize,
    /// Of operations with GPU memory.
    pub(crate) way: Option<Way>,
    pub(crate) baseline_threads: usize,
}

impl Outcome {
    /// Nothing when the interval is too wide to say.
    fn decided(&self) -> bool {
        self.ratio_hi - self.ratio_lo <= DECIDED
    }

    /// The bar of the operation; the staged way is beside it, and has none.
    fn bar(&self, operation: Operation) -> Option<f64> {
        operation.bar().filter(|_| self.way != Some(Way::Staged))
    }

    /// Whether it is as good as it should be: surely, surely not, or open.
    fn verdict(&self, operation: Operation) -> &'static str {
        let Some(bar) = self.bar(operation) else {
            return "no bar";
        };
        let (sure, open) = match operation {
            // Far from the bar, a wide interval says enough.
            Operation::HugePages => (self.ratio_hi <= bar, self.ratio_lo <= bar),
            _ => (self.ratio_lo >= bar, self.ratio_hi >= bar),
        };
        match (sure, open) {
            (true, _) => "met",
            (false, false) => "missed",
            _ if self.decided() => "about met",
            _ => "not decided",
        }
    }
}

/// The line above the text.
pub(crate) fn head(bench: &Bench, json: bool) {
    if json {
        return;
    }
    println!(
        "{} MiB on {}, blocks of {} KiB, {} threads, 4 KiB reads at depth {}; direct: {}; \
         io_uring: {}",
        bench.size >> 20,
        bench.file_system,
        bench.block >> 10,
        bench.threads,
        bench.depth,
        bench.no_direct.as_deref().unwrap_or("yes"),
        fabricast::storage::io_uring_refused().unwrap_or("yes"),
    );
    println!(
        "{:28} {:>19} {:>19} {:>19}  ratio [95 %] of pairs, bar",
        "op", "GB/s (plain)", "kIOPS (plain)", "cpu s/GB (plain)"
    );
}

pub(crate) fn print(bench: &Bench, operation: Operation, outcome: &Outcome, json: bool) {
    if json {
        println!("{}", json_line(bench, operation, outcome));
        return;
    }
    let Outcome {
        ours,
        plain,
        pairs,
        ratio,
        ratio_lo,
        ratio_hi,
        block,
        way,
        baseline_threads,
    } = outcome;
    let pair = |ours: f64, plain: f64, digits: usize| {
        if ours.is_nan() && plain.is_nan() {
            "-".to_owned()
        } else {
            format!("{ours:.digits$} ({plain:.digits$})")
        }
    };
    let bar = outcome
        .bar(operation)
        .map_or_else(String::new, |bar| format!(", bar {bar}"));
    let name = match (way, block >> 20) {
        (None, _) => operation.name(),
        (Some(way), 0) => format!("{} {}K {}", operation.name(), block >> 10, way.name()),
        (Some(way), mib) => format!("{} {mib}M {}", operation.name(), way.name()),
    };
    println!(
        "{name:28} {:>19} {:>19} {:>19}  {ratio:.3} [{ratio_lo:.3}, {ratio_hi:.3}] of \
         {pairs}{bar}: {}",
        pair(ours.gb_per_s, plain.gb_per_s, 3),
        pair(ours.kiops, plain.kiops, 1),
        pair(ours.cpu_s_per_gb, plain.cpu_s_per_gb, 3),
        outcome.verdict(operation),
    );
    match operation {
        Operation::HugePages => println!(
            "{:28} {:.2} requests a MiB with large pages, {:.2} with pages of 4 KiB",
            "", ours.requests_per_mib, plain.requests_per_mib
        ),
        Operation::UringCold | Operation::UringOff16 | Operation::ReaderCold => println!(
            "{:28} against {baseline_threads} plain threads, the best of 1, 2, 4 and 8",
            ""
        ),
        _ => {}
    }
}

fn json_line(bench: &Bench, operation: Operation, outcome: &Outcome) -> String {
    let mut line = String::from("{");
    text(&mut line, "op", &operation.name());
    if let Some(way) = outcome.way {
        text(&mut line, "way", way.name());
    }
    text(&mut line, "file_system", &bench.file_system);
    number(&mut line, "size_bytes", bench.size as f64);
    number(&mut line, "block_bytes", outcome.block as f64);
    number(&mut line, "threads", outcome.baseline_threads as f64);
    number(
        &mut line,
        "depth",
        if operation.is_random() {
            bench.depth as f64
        } else {
            f64::NAN
        },
    );
    for (prefix, figures) in [("", outcome.ours), ("plain_", outcome.plain)] {
        number(&mut line, &format!("{prefix}gb_per_s"), figures.gb_per_s);
        number(&mut line, &format!("{prefix}kiops"), figures.kiops);
        number(
            &mut line,
            &format!("{prefix}cpu_s_per_gb"),
            figures.cpu_s_per_gb,
        );
        number(
            &mut line,
            &format!("{prefix}requests_per_mib"),
            figures.requests_per_mib,
        );
    }
    number(&mut line, "pairs", outcome.pairs as f64);
    number(&mut line, "ratio", outcome.ratio);
    number(&mut line, "ratio_lo", outcome.ratio_lo);
    number(&mut line, "ratio_hi", outcome.ratio_hi);
    number(&mut line, "bar", outcome.bar(operation).unwrap_or(f64::NAN));
    text(&mut line, "verdict", outcome.verdict(operation));
    line.push('}');
    line
}
