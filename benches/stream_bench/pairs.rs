//! Rounds: in each, every way runs once, in an order by chance; a ratio is that of two runs of one
//! round.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::Options;
use crate::case::{Case, Comparison, Figures, Operation, Waits, Way};
use crate::error::Failure;
use crate::files::Files;
use crate::peer::Peer;
use crate::report::{self, Outcome};
use crate::stats::{median, median_interval};

/// The two children.
pub(crate) struct Peers {
    sending: Peer,
    receiving: Peer,
    /// Bytes a second of the last run through GPUs, which its stages run at while one of them is
    /// measured.
    chain: f64,
}

impl Peers {
    pub(crate) fn start(case: &Case) -> Result<Self, Failure> {
        Ok(Self {
            sending: Peer::start("sending", case)?,
            receiving: Peer::start("receiving", case)?,
            chain: f64::NAN,
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
            Way::WriteAlone => sink.to_string(),
            _ => source.into_owned(),
        };
        let stage = Way::STAGES.contains(&way);
        let (how, sink) = match stage {
            true => (self.chain.to_string(), format!("{} {sink}", self.chain)),
            false => (sync.to_owned(), sink.into_owned()),
        };
        let to = match way.is_alone() {
            true => sink,
            false => {
                self.receiving.order(&format!("{} {sink}", way.name()))?;
                self.receiving.expect("at")?
            }
        };
        self.sending
            .order(&format!("{} {to} {how} {path}", way.name()))?;
        let [mut seconds, mut cpu, disk, wire, credits, sink] =
            numbers(&self.sending.expect("sent")?)?;
        let mut receive_cpu = 0.0;
        if !way.is_alone() {
            let [cpu, of_writing] = numbers(&self.receiving.expect("done")?)?;
            receive_cpu = cpu / gb;
            if way == Way::WriteStage {
                seconds = of_writing;
            }
        }
        if stage {
            // All stages ran: nobody knows which part is whose.
            (cpu, receive_cpu) = (f64::NAN, f64::NAN);
        }
        if way == Way::Gpu {
            self.chain = case.size as f64 / seconds;
        }
        Ok(Figures {
            gb_per_s: gb / seconds,
            send_cpu: cpu / gb,
            receive_cpu,
            waits: Waits([disk, wire, credits, sink]),
        })
    }
}

/// Just so many numbers, with spaces between them.
fn numbers<const N: usize>(said: &str) -> Result<[f64; N], Failure> {
    let numbers: Result<Vec<f64>, _> = said.split(' ').map(str::parse).collect();
    let numbers = numbers?.try_into();
    numbers.map_err(|_| Failure::new(format!("not what a peer says: {said}")))
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
    let ways = comparisons.iter().flat_map(|of| [of.way, of.by]);
    let ways = ways.flat_map(|way| match way {
        Way::SlowestStage => Way::STAGES.to_vec(),
        way => vec![way],
    });
    for way in ways {
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
    all.extend(slowest(&all));
    for comparison in comparisons {
        let outcome = outcome(comparison, &all);
        report::print(options, operation, &files.path(), &outcome)?;
    }
    Ok(())
}

/// Of each round, the stage that was slowest, where stages were measured.
fn slowest(all: &[Runs]) -> Option<Runs> {
    let mut stages = all.iter().filter(|runs| Way::STAGES.contains(&runs.way));
    let mut figures = stages.next()?.figures.clone();
    for runs in stages {
        for (least, run) in figures.iter_mut().zip(&runs.figures) {
            if run.gb_per_s < least.gb_per_s {
                *least = *run;
            }
        }
    }
    let way = Way::SlowestStage;
    Some(Runs { way, figures })
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
