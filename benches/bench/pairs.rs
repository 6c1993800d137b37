//! Interleaved pairs: bare and ours in turn, the order within a pair by chance, and the ratio of
//! each pair.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::case::{Case, Operation, Side};
use crate::client::{self, Figures};
use crate::control::Control;
use crate::error::Failure;
use crate::stats::{median, median_interval};

/// The medians of the runs of a case, and of the ratios of its pairs.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub(crate) ours: Figures,
    pub(crate) bare: Figures,
    pub(crate) pairs: usize,
    pub(crate) ratio: f64,
    pub(crate) ratio_lo: f64,
    pub(crate) ratio_hi: f64,
    /// Coalesced: our byte rate to `send` of whole buffers, and our message rate to a bare loop of
    /// one message each.
    pub(crate) to_send: Ratio,
    pub(crate) to_single: Ratio,
    /// The bare loop with a pause, and our rate to its.
    pub(crate) paused: Figures,
    pub(crate) to_paused: Ratio,
}

/// The median of ratios, with its interval; NaN where none was measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ratio {
    pub(crate) median: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
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
pub(crate) fn run(
    control: &mut Control,
    case: &Case,
    pairs: usize,
    [baseline, compared]: [Side; 2],
    only: Option<Side>,
) -> Result<Outcome, Failure> {
    let (mut ours, mut bare, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
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
            let figures = client::run(control, side, &plain)?;
            match side == baseline {
                true => bare.push(figures),
                false => ours.push(figures),
            }
        }
        ratios.extend(
            ours.last()
                .zip(bare.last())
                .map(|(ours, bare)| match case.operation {
                    Operation::Send
                    | Operation::Coalesced
                    | Operation::Rdm
                    | Operation::Publish
                    | Operation::RmaWrite
                    | Operation::RmaRead
                    | Operation::ObjectGet
                    | Operation::ObjectPut
                    | Operation::ObjectRequest
                    | Operation::ObjectHttp => ours.gb_per_s / bare.gb_per_s,
                    Operation::Pingpong => ours.p50_us / bare.p50_us,
                }),
        );
        let by_itself = only.is_none() && baseline == Side::Bare;
        if let (Operation::Coalesced, true, Some(ours)) = (case.operation, by_itself, ours.last()) {
            let send = client::run(control, Side::Ours, &case.of_buffers())?;
            to_send.push(ours.gb_per_s / send.gb_per_s);
            let single = client::run(control, Side::Bare, &case.of_single_messages())?;
            to_single.push(ours.msgs_per_s / single.msgs_per_s);
        }
        if case.has_pause() && baseline == Side::Bare && only != Some(Side::Ours) {
            let figures = client::run(control, Side::Bare, case)?;
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
