//! `Case`: what was measured of one operation with one size and setting, and `Metric`: what of it.

use serde_json::{Map, Value};

use super::interval::Interval;

/// Runs of one case, and percentiles of it, that are read at most.
const RUNS_MAX: usize = 10_000;
/// Letters of a text that is read, at most.
pub(super) const TEXT_MAX: usize = 1000;

/// A figure of a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Metric {
    Bandwidth,
    MessageRate,
    ProcessorTime,
    Median,
    P99,
    P999,
}

impl Metric {
    pub(super) const ALL: [Self; 6] = [
        Self::Bandwidth,
        Self::MessageRate,
        Self::ProcessorTime,
        Self::Median,
        Self::P99,
        Self::P999,
    ];

    pub(super) fn key(self) -> &'static str {
        match self {
            Self::Bandwidth => "gb_per_s",
            Self::MessageRate => "msgs_per_s",
            Self::ProcessorTime => "cpu_s_per_gb",
            Self::Median => "p50_us",
            Self::P99 => "p99_us",
            Self::P999 => "p999_us",
        }
    }

    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Bandwidth => "Bandwidth",
            Self::MessageRate => "Message rate",
            Self::ProcessorTime => "Processor time",
            Self::Median => "Median latency",
            Self::P99 => "99th percentile of latency",
            Self::P999 => "99.9th percentile of latency",
        }
    }

    /// As a label of an axis and of a table.
    pub(super) fn unit(self) -> &'static str {
        match self {
            Self::Bandwidth => "GB/s",
            Self::MessageRate => "messages/s",
            Self::ProcessorTime => "CPU seconds per GB",
            Self::Median | Self::P99 | Self::P999 => "us",
        }
    }

    /// In the head of a narrow column.
    pub(super) fn short_unit(self) -> &'static str {
        match self {
            Self::Bandwidth => "GB/s",
            Self::MessageRate => "msgs/s",
            Self::ProcessorTime => "CPU s/GB",
            Self::Median => "p50 us",
            Self::P99 => "p99 us",
            Self::P999 => "p99.9 us",
        }
    }

    pub(super) fn is_better_high(self) -> bool {
        matches!(self, Self::Bandwidth | Self::MessageRate)
    }
}

/// Whose figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Who {
    Ours,
    Bare,
}

impl Who {
    pub(super) const BOTH: [Self; 2] = [Self::Ours, Self::Bare];

    fn prefix(self) -> &'static str {
        match self {
            Self::Ours => "",
            Self::Bare => "bare_",
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Ours => "fabricast",
            Self::Bare => "bare loop",
        }
    }
}

/// What was measured in one case.
#[derive(Debug, Clone, Default)]
pub(super) struct Case {
    pub(super) operation: String,
    /// How it was set, but for the size: `depth 16`.
    pub(super) setting: String,
    pub(super) size: f64,
    figures: [[Option<Interval>; Metric::ALL.len()]; 2],
    /// Ours to bare.
    pub(super) ratio: Option<Interval>,
    percentiles: [Vec<(f64, f64)>; 2],
    pub(super) skipped: Option<String>,
    /// The keys whose values are no lists or objects.
    pub(super) scalars: Map<String, Value>,
}

impl Case {
    pub(super) fn figure(&self, who: Who, metric: Metric) -> Option<Interval> {
        self.figures[who as usize][metric as usize]
    }

    /// Percent and microseconds, in the order of percent.
    pub(super) fn percentiles(&self, who: Who) -> &[(f64, f64)] {
        &self.percentiles[who as usize]
    }

    /// Operation and setting: a part of the report.
    pub(super) fn part(&self) -> String {
        match self.setting.is_empty() {
            true => self.operation.clone(),
            false => format!("{}, {}", self.operation, self.setting),
        }
    }

    /// Whether the ratio to the bare loop is one of times, so that less is better.
    pub(super) fn is_ratio_of_times(&self) -> bool {
        matches!(self.operation.as_str(), "pingpong" | "latency")
    }

    /// A case from its line.
    pub(super) fn of(line: &Map<String, Value>) -> Result<Self, String> {
        let operation = text(line, "op")?.ok_or("it has no \"op\"")?;
        let size = amount(line, "size_bytes")?.ok_or("it has no \"size_bytes\"")?;
        let runs = list(line, "runs")?;
        let mut case = Self {
            operation,
            size,
            setting: setting(line)?,
            skipped: text(line, "skipped")?,
            scalars: line
                .iter()
                .filter(|(_, value)| !value.is_array() && !value.is_object())
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect(),
            ..Self::default()
        };
        for who in Who::BOTH {
            for metric in Metric::ALL {
                let key = format!("{}{}", who.prefix(), metric.key());
                case.figures[who as usize][metric as usize] = figure(line, runs, &key)?;
            }
            let key = format!("{}percentiles", who.prefix());
            case.percentiles[who as usize] = percentiles(line, &key)?;
        }
        case.ratio = ratio(line)?;
        Ok(case)
    }
}

/// What a case is besides its operation and size, in words.
fn setting(line: &Map<String, Value>) -> Result<String, String> {
    let mut words = Vec::new();
    let counts = [
        ("depth", "depth {}"),
        ("subscribers", "{} subscribers"),
        ("pairs_of_processes", "{} pairs of processes"),
        ("directions", "{} directions"),
        ("buffer_bytes", "buffers of {} bytes"),
        ("rate_asked", "{} messages/s asked for"),
    ];
    for (key, form) in counts {
        // One pair, and one direction, is what everybody takes it for.
        let is_usual = matches!(key, "pairs_of_processes" | "directions");
        let Some(count) = amount(line, key)? else {
            continue;
        };
        if !(is_usual && count == 1.0) {
            words.push(form.replace("{}", &count.to_string()));
        }
    }
    match line.get("pack") {
        None | Some(Value::Null | Value::Bool(false)) => {}
        Some(Value::Bool(true)) => words.push("packed".to_owned()),
        Some(_) => match amount(line, "pack") {
            Ok(Some(0.0)) => words.push("not packed".to_owned()),
            Ok(bytes) => words.push(format!("packed below {} bytes", bytes.unwrap_or(0.0))),
            Err(_) => words.extend(text(line, "pack")?.map(|text| format!("packed: {text}"))),
        },
    }
    words.extend(text(line, "path")?.filter(|path| path != "host"));
    Ok(words.join(", "))
}

/// A figure, and its interval where there are runs.
fn figure(
    line: &Map<String, Value>,
    runs: &[Value],
    key: &str,
) -> Result<Option<Interval>, String> {
    let single = amount(line, key)?;
    let mut values = Vec::new();
    for (number, run) in runs.iter().enumerate() {
        let run = run
            .as_object()
            .ok_or_else(|| format!("run {}: it is no object", number + 1))?;
        let value = amount(run, key).map_err(|why| format!("run {}: {why}", number + 1))?;
        values.extend(value);
    }
    // The bench's own median stands, whatever it is made of.
    let of_runs = Interval::of(&values);
    Ok(match (single, of_runs) {
        (Some(value), Some(runs)) => Some(Interval { value, ..runs }),
        (None, runs) => runs,
        (Some(value), None) => Some(Interval::single(value)),
    })
}

/// The ratio to the bare loop, which comes with an interval of the bench's.
fn ratio(line: &Map<String, Value>) -> Result<Option<Interval>, String> {
    let Some(value) = amount(line, "ratio")? else {
        return Ok(None);
    };
    let low = amount(line, "ratio_lo")?.unwrap_or(value);
    let high = amount(line, "ratio_hi")?.unwrap_or(value);
    if !(low <= value && value <= high) {
        return Err(format!(
            "its ratio {value} is not between ratio_lo {low} and ratio_hi {high}"
        ));
    }
    let runs = amount(line, "pairs")?.unwrap_or(1.0) as usize;
    Ok(Some(Interval {
        value,
        low,
        high,
        runs,
    }))
}

fn percentiles(line: &Map<String, Value>, key: &str) -> Result<Vec<(f64, f64)>, String> {
    let mut read = Vec::new();
    for pair in list(line, key)? {
        let numbers = pair
            .as_array()
            .map(|pair| pair.iter().map(Value::as_f64).collect());
        let numbers: Vec<Option<f64>> = numbers.unwrap_or_default();
        let [Some(percent), Some(us)] = numbers[..] else {
            return Err(format!(
                "\"{key}\": each is [percent, microseconds], not {pair}"
            ));
        };
        if !(0.0..=100.0).contains(&percent) || us < 0.0 {
            return Err(format!(
                "\"{key}\": {pair}: percent is 0 to 100, and no time is negative"
            ));
        }
        read.push((percent, us));
    }
    read.sort_by(|a, b| a.0.total_cmp(&b.0));
    if read.windows(2).any(|two| two[0].1 > two[1].1) {
        return Err(format!("\"{key}\": a higher percentile is a shorter time"));
    }
    Ok(read)
}

fn list<'a>(line: &'a Map<String, Value>, key: &str) -> Result<&'a [Value], String> {
    match line.get(key) {
        None | Some(Value::Null) => Ok(&[]),
        Some(Value::Array(list)) if list.len() > RUNS_MAX => Err(format!(
            "\"{key}\" has {} entries, more than {RUNS_MAX}",
            list.len()
        )),
        Some(Value::Array(list)) => Ok(list),
        Some(_) => Err(format!("\"{key}\" is no list")),
    }
}

/// A number that is not negative; none where there is none, or null.
fn amount(line: &Map<String, Value>, key: &str) -> Result<Option<f64>, String> {
    match line.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Number(number)) => match number.as_f64() {
            Some(value) if value.is_finite() && value >= 0.0 => Ok(Some(value)),
            _ => Err(format!("\"{key}\" is {number}, and must be 0 or more")),
        },
        Some(_) => Err(format!("\"{key}\" is no number")),
    }
}

pub(super) fn text(line: &Map<String, Value>, key: &str) -> Result<Option<String>, String> {
    match line.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) if text.chars().count() > TEXT_MAX => {
            Err(format!("\"{key}\" is longer than {TEXT_MAX} letters"))
        }
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(_) => Err(format!("\"{key}\" is no text")),
    }
}
