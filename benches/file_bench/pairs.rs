//! Interleaved pairs: plain and ours in turn, the order within a pair by chance, and the ratio of
//! each pair.

use std::time::Instant;

use fabricast::memory::HugePages;

use crate::case::{Bench, Figures, Operation, Side};
use crate::gpu::{self, GpuCase, Rig, Way};
use crate::host::{Chance, cpu_seconds};
use crate::memory::Memory;
use crate::ours::{self, Pass};
use crate::plain::{self, RANDOM_BYTES};
use crate::report::{self, Outcome};
use crate::stats::{median, median_interval};
use crate::{Failure, Options, fio};

/// Thread counts of plain reads, of which the best is taken.
const THREADS: [usize; 4] = [1, 2, 4, 8];
/// Runs of each of them.
const TRIALS: usize = 5;

/// Measures an operation and prints it, or why it can't be.
pub(crate) fn measure(
    bench: &Bench,
    operation: Operation,
    options: &Options,
) -> Result<(), Failure> {
    if let Some(reason) = skipped(bench, operation) {
        println!("SKIPPED: {}: {reason}", operation.name());
        return Ok(());
    }
    if let Some(case) = operation.gpu() {
        return measure_gpu(bench, operation, case, options);
    }
    let threads = match operation {
        Operation::UringCold | Operation::ReaderCold | Operation::UringOff16 => {
            best_threads(bench)?
        }
        Operation::UringWarm => 1,
        _ => bench.threads,
    };
    let run = |side| run(bench, operation, side, threads);
    let outcome = interleaved(options, operation, (bench.block, threads), run)?;
    report::print(bench, operation, &outcome, options.json);
    Ok(())
}

/// The same for GPU memory: a line for each size of a call and each way of ours.
fn measure_gpu(
    bench: &Bench,
    operation: Operation,
    case: GpuCase,
    options: &Options,
) -> Result<(), Failure> {
    for call in gpu::calls(options) {
        let mut rig = match Rig::new(bench, case, call, options.no_sync) {
            Ok(rig) => rig,
            Err(why) => {
                println!("SKIPPED: {}: {why}", operation.name());
                return Ok(());
            }
        };
        for way in Way::ALL {
            rig.go(way);
            let run = |side| rig.run(bench, side);
            let mut outcome = interleaved(options, operation, (call, 1), run)?;
            outcome.way = Some(way);
            report::print(bench, operation, &outcome, options.json);
        }
    }
    Ok(())
}

/// Runs both sides in turns, with the block and the threads that are to be reported.
fn interleaved(
    options: &Options,
    operation: Operation,
    (block, baseline_threads): (usize, usize),
    mut run: impl FnMut(Side) -> Result<Figures, Failure>,
) -> Result<Outcome, Failure> {
    let (mut ours, mut plain, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    let mut chance = Chance::new();
    for _ in 0..options.runs {
        let order = match chance.next() % 2 {
            0 => [Side::Plain, Side::Ours],
            _ => [Side::Ours, Side::Plain],
        };
        for side in order {
            if options.only.is_some_and(|only| only != side) {
                continue;
            }
            let figures = run(side)?;
            match side {
                Side::Ours => ours.push(figures),
                Side::Plain => plain.push(figures),
            }
        }
        let pair = ours.last().zip(plain.last());
        ratios.extend(pair.map(|(ours, plain)| match operation {
            Operation::HugePages => ours.requests_per_mib / plain.requests_per_mib,
            _ => ours.gb_per_s / plain.gb_per_s,
        }));
    }
    let (ratio_lo, ratio_hi) = median_interval(&ratios);
    Ok(Outcome {
        ours: medians(&ours),
        plain: medians(&plain),
        pairs: ratios.len(),
        ratio: median(&ratios),
        ratio_lo,
        ratio_hi,
        block,
        way: None,
        baseline_threads,
    })
}

fn skipped(bench: &Bench, operation: Operation) -> Option<String> {
    if operation.needs_direct() && bench.no_direct.is_some() {
        return bench.no_direct.clone();
    }
    let by_uring = operation.is_random()
        || matches!(
            operation,
            Operation::UringCold
                | Operation::UringOff16
                | Operation::UringWarm
                | Operation::ReaderCold
        );
    match (operation, fabricast::storage::io_uring_refused()) {
        (_, Some(reason)) if by_uring => Some(reason.to_owned()),
        (Operation::RandomFio, _) => fio::missing(),
        (Operation::HugePages, _) if bench.disk.is_none() => {
            Some("no block device of its own".to_owned())
        }
        _ => None,
    }
}

/// The thread count with which plain direct reads are fastest, as the median of a few runs of each.
fn best_threads(bench: &Bench) -> Result<usize, Failure> {
    let mut rates = [const { Vec::new() }; THREADS.len()];
    for _ in 0..TRIALS {
        for (threads, rates) in THREADS.iter().zip(&mut rates) {
            rates.push(run(bench, Operation::UringCold, Side::Plain, *threads)?.gb_per_s);
        }
    }
    let best = rates.iter().map(|rates| median(rates)).zip(THREADS);
    Ok(best
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map_or(1, |(_, threads)| threads))
}

/// One run of one side.
fn run(
    bench: &Bench,
    operation: Operation,
    side: Side,
    threads: usize,
) -> Result<Figures, Failure> {
    if operation.is_random() {
        return random(bench, operation, side);
    }
    match operation {
        Operation::ReaderCold if side == Side::Ours => blocks(bench, HugePages::Try),
        Operation::HugePages => blocks(
            bench,
            if side == Side::Ours {
                HugePages::Try
            } else {
                HugePages::Never
            },
        ),
        _ => passes(bench, operation, side, threads),
    }
}

/// Whole passes between the file and one large memory.
fn passes(
    bench: &Bench,
    operation: Operation,
    side: Side,
    threads: usize,
) -> Result<Figures, Failure> {
    use Operation::{
        ReadCached, UringCold, UringOff16, UringWarm, WriteCached, WriteDirect, WriteOff16,
    };
    let direct = !matches!(operation, ReadCached | WriteCached | UringWarm);
    let how = Pass {
        write: matches!(operation, WriteDirect | WriteCached | WriteOff16),
        uring: matches!(operation, UringCold | UringWarm | UringOff16),
    };
    let shift = match operation {
        Operation::ReadOff16 | UringOff16 | WriteOff16 if side == Side::Ours => 16,
        _ => 0,
    };
    match side {
        Side::Plain => {
            let file = plain::open(bench, direct)?;
            let mut memory = Memory::new(bench.size)?;
            timed(bench, !direct, bench.size, || {
                plain::pass(&file, &mut memory, bench.block, threads, how.write)
            })
        }
        Side::Ours => {
            // The same state of the cache as the plain side's.
            drop(plain::open(bench, direct)?);
            let file = ours::open(bench, direct)?;
            let mut memory = Memory::new(bench.size + shift)?;
            let memory = &mut memory.bytes()[shift..];
            timed(bench, !direct, bench.size, || {
                ours::pass(bench, &file, memory, how)
            })
        }
    }
}

/// Whole passes, block by block.
fn blocks(bench: &Bench, huge_pages: HugePages) -> Result<Figures, Failure> {
    drop(plain::open(bench, true)?);
    let file = ours::open(bench, true)?;
    let pool = ours::block_pool(bench, huge_pages)?;
    timed(bench, false, bench.size, || {
        ours::read_blocks(bench, &file, &pool)
    })
}

/// Passes of so many bytes, until the time is over; with `warm_up`, the first is not counted.
pub(crate) fn timed(
    bench: &Bench,
    warm_up: bool,
    pass_bytes: usize,
    mut pass: impl FnMut() -> Result<(), Failure>,
) -> Result<Figures, Failure> {
    if warm_up {
        pass()?;
    }
    let before = bench
        .disk
        .as_ref()
        .map(|disk| disk.requests())
        .transpose()?;
    let (begun, cpu) = (Instant::now(), cpu_seconds());
    let mut bytes = 0.0;
    while begun.elapsed().as_secs_f64() < bench.seconds {
        pass()?;
        bytes += pass_bytes as f64;
    }
    let (elapsed, cpu) = (begun.elapsed().as_secs_f64(), cpu_seconds() - cpu);
    let after = bench
        .disk
        .as_ref()
        .map(|disk| disk.requests())
        .transpose()?;
    let requests = before.zip(after).map(|(before, after)| {
        let mib = (after.read_bytes - before.read_bytes) as f64 / f64::from(1 << 20);
        (after.reads - before.reads) as f64 / mib
    });
    Ok(Figures {
        gb_per_s: bytes / elapsed / 1e9,
        kiops: f64::NAN,
        cpu_s_per_gb: cpu / (bytes / 1e9),
        requests_per_mib: requests.unwrap_or(f64::NAN),
    })
}

fn random(bench: &Bench, operation: Operation, side: Side) -> Result<Figures, Failure> {
    let direct = operation != Operation::RandomCached;
    let figures = |per_s: f64, cpu: f64, reads: f64| Figures {
        gb_per_s: per_s * RANDOM_BYTES as f64 / 1e9,
        kiops: per_s / 1e3,
        cpu_s_per_gb: cpu / (reads * RANDOM_BYTES as f64 / 1e9),
        requests_per_mib: f64::NAN,
    };
    if !direct {
        // So that all of it is in the cache.
        let file = plain::open(bench, false)?;
        let mut memory = Memory::new(bench.size)?;
        plain::pass(&file, &mut memory, bench.block, 1, false)?;
    }
    if operation == Operation::RandomFio && side == Side::Plain {
        let (per_s, cpu) = fio::random(bench)?;
        return Ok(figures(per_s, cpu, per_s * bench.seconds));
    }
    let cpu = cpu_seconds();
    let (reads, elapsed) = match side {
        Side::Plain => plain::random(bench, direct)?,
        Side::Ours => ours::random(bench, direct)?,
    };
    let cpu = cpu_seconds() - cpu;
    Ok(figures(reads as f64 / elapsed, cpu, reads as f64))
}

fn medians(runs: &[Figures]) -> Figures {
    let of = |field: fn(&Figures) -> f64| median(&runs.iter().map(field).collect::<Vec<_>>());
    Figures {
        gb_per_s: of(|run| run.gb_per_s),
        kiops: of(|run| run.kiops),
        cpu_s_per_gb: of(|run| run.cpu_s_per_gb),
        requests_per_mib: of(|run| run.requests_per_mib),
    }
}
