//! What is printed: one JSON object a line and comparison, or a table.

use crate::Options;
use crate::case::{Case, Comparison, Figures, Operation, Waits, name};
use crate::error::Failure;
use crate::json::{number, text};
use crate::stats::DECIDED;
use crate::{host, ours};

/// Fewer pairs give no interval of the median.
const PAIRS: usize = 6;

/// The medians of the runs of two ways, and of the ratios of their pairs.
pub(crate) struct Outcome {
    pub(crate) comparison: Comparison,
    pub(crate) figures: Figures,
    pub(crate) by: Figures,
    pub(crate) pairs: usize,
    pub(crate) ratio: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

impl Outcome {
    /// Whether it is as good as it should be: surely, surely not, or open.
    fn verdict(&self) -> &'static str {
        let decided = self.high - self.low <= DECIDED;
        match self.comparison.bar {
            _ if self.pairs < PAIRS => "not decided",
            None if decided => "no bar",
            Some(bar) if self.low >= bar => "met",
            Some(bar) if self.high < bar => "missed",
            Some(_) if decided => "about met",
            _ => "not decided",
        }
    }
}

/// The lines above the table.
pub(crate) fn head(case: &Case, json: bool) -> Result<(), Failure> {
    if json {
        return Ok(());
    }
    let (provider, libfabric) = ours::describe(case)?;
    let congestion = match host::congestion_over(&provider) {
        Some(congestion) => format!(", congestion control {congestion}"),
        None => String::new(),
    };
    println!(
        "{provider}, libfabric {libfabric}{congestion}, {} cores, not pinned, path host",
        host::cores(),
    );
    println!(
        "{} MiB in blocks of {} KiB, {} buffers, depth {}, {} receives; of ours {} readers, {} \
         writers; the bare loop waits by {}",
        case.size >> 20,
        case.block >> 10,
        case.buffers,
        case.depth,
        case.receives,
        case.readers,
        case.writers,
        name(case.bare_wait),
    );
    println!(
        "{:36} {:>15} {:>25}  ratio [95 %] of pairs, bar",
        "op: way / by", "GB/s (by)", "cpu s/GB send+recv (by)"
    );
    Ok(())
}

pub(crate) fn print(
    options: &Options,
    operation: Operation,
    path: &str,
    outcome: &Outcome,
) -> Result<(), Failure> {
    if options.json {
        println!("{}", json_line(&options.case, operation, path, outcome)?);
        return Ok(());
    }
    let Outcome {
        comparison: Comparison { way, by, bar },
        figures,
        by: of_by,
        pairs,
        ratio,
        low,
        high,
    } = outcome;
    let cpu = |figures: &Figures| format!("{:.3}+{:.3}", figures.send_cpu, figures.receive_cpu);
    let of_bar = bar.map_or_else(String::new, |bar| format!(", bar {bar}"));
    println!(
        "{:36} {:>15} {:>25}  {ratio:.3} [{low:.3}, {high:.3}] of {pairs}{of_bar}: {}",
        format!("{}: {} / {}", operation.name(), way.name(), by.name()),
        format!("{:.3} ({:.3})", figures.gb_per_s, of_by.gb_per_s),
        format!("{} ({})", cpu(figures), cpu(of_by)),
        outcome.verdict(),
    );
    if bar.is_some() {
        let waits = Waits::NAMES.iter().zip(figures.waits.0);
        let waits: Vec<_> = waits
            .map(|(cause, share)| format!("{cause} {:.1} %", share * 100.0))
            .collect();
        println!("{:36} ours waited for {}", "", waits.join(", "));
    }
    Ok(())
}

fn json_line(
    case: &Case,
    operation: Operation,
    path: &str,
    outcome: &Outcome,
) -> Result<String, Failure> {
    let (provider, libfabric) = ours::describe(case)?;
    let mut line = String::from("{");
    text(&mut line, "op", &operation.name());
    text(&mut line, "way", &outcome.comparison.way.name());
    text(&mut line, "by", &outcome.comparison.by.name());
    text(&mut line, "provider", &provider);
    text(&mut line, "libfabric", &libfabric);
    let congestion = host::congestion_over(&provider);
    text(
        &mut line,
        "congestion",
        congestion.as_deref().unwrap_or("none"),
    );
    text(&mut line, "path", path);
    text(&mut line, "bare_wait", &name(case.bare_wait));
    number(&mut line, "cores", host::cores() as f64);
    for (name, value) in [
        ("size_bytes", case.size),
        ("block_bytes", case.block),
        ("buffers", case.buffers),
        ("depth", case.depth),
        ("receives", case.receives),
        ("readers", case.readers as usize),
        ("writers", case.writers as usize),
    ] {
        number(&mut line, name, value as f64);
    }
    for (prefix, figures) in [("", outcome.figures), ("by_", outcome.by)] {
        let mut put = |name: &str, value| number(&mut line, &format!("{prefix}{name}"), value);
        put("gb_per_s", figures.gb_per_s);
        put("send_cpu_s_per_gb", figures.send_cpu);
        put("receive_cpu_s_per_gb", figures.receive_cpu);
    }
    for (cause, share) in Waits::NAMES.iter().zip(outcome.figures.waits.0) {
        number(&mut line, &format!("wait_{cause}"), share);
    }
    number(&mut line, "pairs", outcome.pairs as f64);
    number(&mut line, "ratio", outcome.ratio);
    number(&mut line, "ratio_lo", outcome.low);
    number(&mut line, "ratio_hi", outcome.high);
    number(&mut line, "bar", outcome.comparison.bar.unwrap_or(f64::NAN));
    text(&mut line, "verdict", outcome.verdict());
    line.push('}');
    Ok(line)
}
