//! Runs rows: which there are, some of their behaviours at a time, and what came of each.

use std::panic::AssertUnwindSafe;
use std::sync::Mutex;
use std::time::Instant;

use crate::behaviours::{BEHAVIOURS, Behaviour, MIXED};
use crate::on::On;
use crate::rows::{self, KNOWN, PAIRS, ROWS};
use crate::table::{Cell, Line};

/// The title of a line, what runs, and on what.
struct Job {
    provider: String,
    version: String,
    device: String,
    on: On,
    behaviours: &'static [Behaviour],
}

fn is_asked_for(variable: &str, name: &str) -> bool {
    std::env::var(variable).map_or(true, |part| part.is_empty() || name.contains(&part))
}

/// Every row on every library that has it, then every pair: their lines.
pub(crate) fn all() -> (Vec<Line>, Vec<Line>) {
    let first = std::env::var("FABRICAST_LIBFABRIC").unwrap_or_default();
    let second = std::env::var("FABRICAST_LIBFABRIC_2").ok();
    let libraries = std::iter::once(first).chain(second.filter(|path| !path.is_empty()));
    let libraries: Vec<_> = libraries.collect();
    let mut jobs = row_jobs(&libraries);
    let rows = jobs.len();
    jobs.extend(pair_jobs(&libraries));
    let mut lines = run_side_by_side(jobs);
    let pairs = lines.split_off(rows);
    (lines, pairs)
}

fn row_jobs(libraries: &[String]) -> Vec<Job> {
    let mut jobs = Vec::new();
    let asked = |row: &&rows::Row| is_asked_for("FABRICAST_ROW", row.name);
    for row in ROWS.iter().filter(asked) {
        for library in libraries {
            match rows::probe(row.name, library) {
                Ok((version, device)) => jobs.push(Job {
                    provider: row.name.to_owned(),
                    version,
                    device,
                    on: On::one(row.name, library),
                    behaviours: BEHAVIOURS,
                }),
                Err(reason) => println!("SKIPPED: {} of {library:?}: {reason}", row.name),
            }
        }
    }
    jobs
}

fn pair_jobs(libraries: &[String]) -> Vec<Job> {
    let mut jobs = Vec::new();
    for &(one, other) in PAIRS {
        add_pair(one, other, libraries, &mut jobs);
        if one != other {
            add_pair(other, one, libraries, &mut jobs);
        }
    }
    jobs
}

/// A sender of the library that has `sends`, a receiver of the other; both ways where both have
/// both.
fn add_pair(
    sends: &'static str,
    receives: &'static str,
    libraries: &[String],
    jobs: &mut Vec<Job>,
) {
    let name = format!("{sends} to {receives}");
    if !is_asked_for("FABRICAST_ROW", &name) || !is_asked_for("FABRICAST_CASE", MIXED.0) {
        return;
    }
    let [first, second] = libraries else {
        return println!("SKIPPED: {name}: FABRICAST_LIBFABRIC_2 does not name a second libfabric");
    };
    for (from, to) in [(first, second), (second, first)] {
        match (rows::probe(sends, from), rows::probe(receives, to)) {
            (Ok((one, _)), Ok((other, _))) => jobs.push(Job {
                provider: format!("{sends} {one} to"),
                version: format!("{receives} {other}"),
                device: String::new(),
                on: On {
                    provider: sends,
                    receiving: receives,
                    sends: from.clone(),
                    receives: to.clone(),
                },
                behaviours: &[MIXED],
            }),
            // A name that only one of the two has.
            _ if sends != receives => {}
            (Err(reason), _) | (_, Err(reason)) => println!("SKIPPED: {name}: {reason}"),
        }
    }
}

/// How many behaviours run at a time: most of their time is waiting, for verdicts and deadlines.
fn side_by_side() -> usize {
    let asked = std::env::var("FABRICAST_JOBS").ok();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    asked.map_or(2 * cores, |text| {
        text.parse().expect("FABRICAST_JOBS is a number")
    })
}

/// The lines of the jobs, in their order. Behaviours of one row run side by side as those of
/// different rows do.
fn run_side_by_side(jobs: Vec<Job>) -> Vec<Line> {
    let cells: Vec<Vec<_>> = jobs.iter().map(Job::cells_to_fill).collect();
    let mut queue = Vec::new();
    for (job, cells) in jobs.iter().zip(&cells) {
        queue.extend(cells.iter().enumerate().map(|(at, cell)| (job, at, cell)));
    }
    let workers = side_by_side().min(queue.len());
    let queue = Mutex::new(queue.into_iter());
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let next = queue.lock().expect("not poisoned").next();
                    let Some((job, at, cell)) = next else { return };
                    *cell.lock().expect("not poisoned") = Some(job.run(at));
                }
            });
        }
    });
    let done = |cell: Mutex<Option<Cell>>| cell.into_inner().expect("not poisoned");
    let cells = cells
        .into_iter()
        .map(|of| of.into_iter().filter_map(done).collect());
    jobs.into_iter()
        .zip(cells)
        .map(|(job, cells)| job.line(cells))
        .collect()
}

impl Job {
    fn cells_to_fill(&self) -> Vec<Mutex<Option<Cell>>> {
        self.behaviours.iter().map(|_| Mutex::new(None)).collect()
    }

    fn title(&self) -> String {
        format!("{} {}", self.provider, self.version)
    }

    /// What comes of one of its behaviours.
    fn run(&self, at: usize) -> Cell {
        let (name, behaviour) = &self.behaviours[at];
        if *name != MIXED.0 && !is_asked_for("FABRICAST_CASE", name) {
            return Cell::NotAsked;
        }
        let title = self.title();
        let begun = Instant::now();
        let run = || std::panic::catch_unwind(AssertUnwindSafe(|| behaviour(&self.on)));
        let ran = run();
        let known = KNOWN
            .iter()
            .find(|(row, case, _)| (*row, *case) == (title.as_str(), *name));
        let cell = match (ran, known) {
            (Ok(shown), _) => Cell::Shown(shown),
            (Err(_), Some((_, _, why))) => Cell::Known(why),
            // They run side by side, on machines that are shared: one failure may be the machine's.
            // Two are not, and the table shows one, too.
            (Err(_), None) if run().is_ok() => Cell::Second,
            (Err(_), None) => Cell::Failed,
        };
        println!("{title}: {name}: {cell:?} in {:?}", begun.elapsed());
        cell
    }

    fn line(self, cells: Vec<Cell>) -> Line {
        Line {
            provider: self.provider,
            version: self.version,
            device: self.device,
            cells,
        }
    }
}
