//! Rounds: in each, every way runs once, in an order by chance; a ratio is that of two runs of one round.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::Options;
use crate::case::{Case, Comparison, Figures, Operation, Waits, Way};
use crate::error::{Failure, fail};
use crate::files::Files;
use crate::peer::Peer;
use crate::report::{self, Outcome};
use crate::stats::{median, median_interval};

/// The two children.
pub(crate) struct Peers {
    sending: Peer,
    receiving: Peer,
}

impl Peers {
    pub(crate) fn start(case: &Case) -> Result<Self, Failure> {
        Ok(Self {
            sending: Peer::start("sending", case)?,
            receiving: Peer::start("receiving", case)?,
        })
    }

    pub(crate) fn end(self) -> Result<(), Failure> {
        self.sending.end()?;
        self.receiving.end()
    }

    /// One run.
    fn run(&mut self, way: Way, files: &Files, case: &Case) -> Result<Figures, Failure> {
        files.ready()?;
        let gb = case.size as f64 / 1e9;
        let sync = match files.sync {
            true => "sync",
            false => "-",
        };
        let sink = files
            .sink
            .as_ref()
            .map_or_else(|| "-".into(), |sink| sink.to_string_lossy());
        let source = files.source.to_string_lossy();
        let path = match way {
            Way::WriteAlone => &sink,
            _ => &source,
        };
        let to = match way.is_alone() {
            true => "-".to_owned(),
            false => {
                self.receiving.order(&format!("{} {sink}", way.name()))?;
                self.receiving.expect("at")?
            }
        };
        self.sending
            .order(&format!("{} {to} {sync} {path}", way.name()))?;
        let sent = self.sending.expect("sent")?;
        let numbers: Result<Vec<f64>, _> = sent.split(' ').map(str::parse).collect();
        let [seconds, cpu, disk, wire, credits, sink] = numbers?[..] else {
            return fail(format!("not what a sender says: {sent}"));
        };
        let receive_cpu = match way.is_alone() {
            true => 0.0,
            false => self.receiving.expect("done")?.parse::<f64>()? / gb,
        };
        Ok(Figures {
            gb_per_s: gb / seconds,
            send_cpu: cpu / gb,
            receive_cpu,
            waits: Waits([disk, wire, credits, sink]),
        })
    }
}

/// The runs of one way.
struct Runs {
    way: Way,
    figures: Vec<Figures>,
}

/// Measures an operation and prints it.
pub(crate) fn measure(
    peers: &mut Peers,
    operation: Operation,
    options: &Options,
) -> Result<(), Failure> {
    let Some(files) = Files::prepare(operation, options)? else {
        return Ok(());
    };
    let mut comparisons = operation.comparisons();
    if options.bars {
        comparisons = &comparisons[..1];
    }
    let mut all: Vec<Runs> = Vec::new();
    for way in comparisons.iter().flat_map(|of| [of.way, of.by]) {
        if all.iter().all(|runs| runs.way != way) {
            let figures = Vec::new();
            all.push(Runs { way, figures });
        }
    }
    // The first round warms up, and is not counted.
    for runs in &all {
        peers.run(runs.way, &files, &options.case)?;
    }
    let mut chance = Chance::new();
    let limit = options.seconds.map(Duration::from_secs);
    let began = Instant::now();
    for _ in 0..options.runs {
        if limit.is_some_and(|limit| began.elapsed() > limit) {
            break;
        }
        let mut order: Vec<usize> = (0..all.len()).collect();
        chance.shuffle(&mut order);
        for index in order {
            let figures = peers.run(all[index].way, &files, &options.case)?;
            all[index].figures.push(figures);
        }
    }
    for comparison in comparisons {
        let outcome = outcome(comparison, &all);
        report::print(options, operation, &files.path(), &outcome)?;
    }
    Ok(())
}

fn outcome(comparison: &Comparison, all: &[Runs]) -> Outcome {
    let of = |way| {
        let runs = all.iter().find(|runs| runs.way == way);
        runs.map_or(&[][..], |runs| &runs.figures)
    };
    let (ways, bys) = (of(comparison.way), of(comparison.by));
    let pairs = ways.iter().zip(bys);
    let ratios: Vec<f64> = pairs.map(|(way, by)| way.gb_per_s / by.gb_per_s).collect();
    let (low, high) = median_interval(&ratios);
    Outcome {
        comparison: *comparison,
        figures: medians(ways),
        by: medians(bys),
        pairs: ratios.len(),
        ratio: median(&ratios),
        low,
        high,
    }
}

fn medians(runs: &[Figures]) -> Figures {
    let of = |field: fn(&Figures) -> f64| median(&runs.iter().map(field).collect::<Vec<_>>());
    Figures {
        gb_per_s: of(|run| run.gb_per_s),
        send_cpu: of(|run| run.send_cpu),
        receive_cpu: of(|run| run.receive_cpu),
        waits: Waits([0, 1, 2, 3].map(|cause| {
            let shares = runs.iter().map(|run| run.waits.0[cause]);
            median(&shares.collect::<Vec<_>>())
        })),
    }
}

/// Orders by chance, by xorshift.
struct Chance(u64);

impl Chance {
    fn new() -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        Self(now.map_or(1, |time| time.as_nanos() as u64) | 1)
    }

    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % limit
    }

    fn shuffle(&mut self, order: &mut [usize]) {
        for last in (1..order.len()).rev() {
            order.swap(last, self.below(last + 1));
        }
    }
}
