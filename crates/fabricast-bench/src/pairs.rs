//! Interleaved pairs: bare and ours in turn, the order within a pair by chance, and the ratio of
//! each pair.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::case::{Case, Operation, Side};
use crate::client::{self, Figures};
use crate::control::Control;
use crate::error::Failure;
use crate::server::Through;
use crate::stats::{median, median_interval};
use crate::times::Times;

/// What runs one side of a case once, the server's half included.
pub trait Runner {
    /// Runs it.
    ///
    /// # Errors
    /// When either half fails.
    fn run(&mut self, side: Side, case: &Case) -> Result<Figures, Failure>;
}

/// A client in this process, alone.
#[derive(Debug)]
pub struct Alone<'a> {
    /// Its connection to the server.
    pub control: &'a mut Control,
    /// The third side, where there is one.
    pub through: Option<Through>,
}

impl Runner for Alone<'_> {
    fn run(&mut self, side: Side, case: &Case) -> Result<Figures, Failure> {
        client::run(self.control, side, case, self.through)
    }
}

/// What one pair of runs gave; none of a side that was not asked for.
#[derive(Clone, Debug)]
pub struct Pair {
    /// Through the library.
    pub ours: Option<Figures>,
    /// By the bare loop.
    pub bare: Option<Figures>,
}

/// The medians of the runs of a case, and of the ratios of its pairs.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The medians of our runs.
    pub ours: Figures,
    /// Those of the bare loop.
    pub bare: Figures,
    /// Pairs of runs.
    pub pairs: usize,
    /// The median of the pairs' ratios, ours to bare.
    pub ratio: f64,
    /// Where its 95 % interval begins.
    pub ratio_lo: f64,
    /// Where that ends.
    pub ratio_hi: f64,
    /// Coalesced: our byte rate to `send` of whole buffers.
    pub to_send: Ratio,
    /// Coalesced: our message rate to a bare loop of one message each.
    pub to_single: Ratio,
    /// The bare loop with a pause.
    pub paused: Figures,
    /// Our rate to its.
    pub to_paused: Ratio,
    /// Each pair by itself.
    pub runs: Vec<Pair>,
}

/// The median of ratios, with its interval; NaN where none was measured.
#[derive(Clone, Copy, Debug)]
pub struct Ratio {
    /// The median.
    pub median: f64,
    /// Where its 95 % interval begins.
    pub low: f64,
    /// Where that ends.
    pub high: f64,
}

impl Ratio {
    fn of(ratios: &[f64]) -> Self {
        let (low, high) = median_interval(ratios);
        Self {
            median: median(ratios),
            low,
            high,
        }
    }
}

/// Runs a case so many times by each of two sides, the baseline first, or by the `only` one.
///
/// # Errors
/// When a run fails.
pub fn run(
    runner: &mut dyn Runner,
    case: &Case,
    pairs: usize,
    [baseline, compared]: [Side; 2],
    only: Option<Side>,
) -> Result<Outcome, Failure> {
    let only = match case.operation.has_bare() {
        true => only,
        false => Some(compared),
    };
    let (mut ours, mut bare, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    let mut runs = Vec::new();
    let (mut to_send, mut to_single) = (Vec::new(), Vec::new());
    let (mut paused, mut to_paused) = (Vec::new(), Vec::new());
    let plain = case.without_pause();
    let mut chance = Chance::new();
    for _ in 0..pairs {
        let order = if chance.coin() {
            [baseline, compared]
        } else {
            [compared, baseline]
        };
        for side in order {
            if only.is_some_and(|only| only != side) {
                continue;
            }
            let figures = runner.run(side, &plain)?;
            match side == baseline {
                true => bare.push(figures),
                false => ours.push(figures),
            }
        }
        runs.push(Pair {
            ours: ours.get(runs.len()).cloned(),
            bare: bare.get(runs.len()).cloned(),
        });
        ratios.extend(ours.last().zip(bare.last()).map(|(ours, bare)| {
            match case.operation.is_latency() {
                true => ours.p50_us / bare.p50_us,
                false => ours.gb_per_s / bare.gb_per_s,
            }
        }));
        let by_itself = only.is_none() && baseline == Side::Bare;
        if let (Operation::Coalesced, true, Some(ours)) = (case.operation, by_itself, ours.last()) {
            let send = runner.run(Side::Ours, &case.of_buffers())?;
            to_send.push(ours.gb_per_s / send.gb_per_s);
            let single = runner.run(Side::Bare, &case.of_single_messages())?;
            to_single.push(ours.msgs_per_s / single.msgs_per_s);
        }
        if case.has_pause() && baseline == Side::Bare && only != Some(Side::Ours) {
            let figures = runner.run(Side::Bare, case)?;
            to_paused.extend(ours.last().map(|ours| ours.gb_per_s / figures.gb_per_s));
            paused.push(figures);
        }
    }
    let (ratio_lo, ratio_hi) = median_interval(&ratios);
    Ok(Outcome {
        ours: medians(&ours),
        bare: medians(&bare),
        pairs,
        ratio: median(&ratios),
        ratio_lo,
        ratio_hi,
        to_send: Ratio::of(&to_send),
        to_single: Ratio::of(&to_single),
        paused: medians(&paused),
        to_paused: Ratio::of(&to_paused),
        runs,
    })
}

fn medians(runs: &[Figures]) -> Figures {
    let of = |field: fn(&Figures) -> f64| median(&runs.iter().map(field).collect::<Vec<_>>());
    Figures {
        gb_per_s: of(|run| run.gb_per_s),
        msgs_per_s: of(|run| run.msgs_per_s),
        messages: of(|run| run.messages),
        p50_us: of(|run| run.p50_us),
        p99_us: of(|run| run.p99_us),
        p999_us: of(|run| run.p999_us),
        mean_us: of(|run| run.mean_us),
        cpu_s_per_gb: of(|run| run.cpu_s_per_gb),
        times: runs.iter().fold(Times::default(), |mut all, run| {
            all.add_all(&run.times);
            all
        }),
    }
}

/// Coins, by xorshift.
struct Chance(u64);

impl Chance {
    fn new() -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        Self(now.map_or(1, |time| time.as_nanos() as u64) | 1)
    }

    fn coin(&mut self) -> bool {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> 33 & 1 == 1
    }
}
