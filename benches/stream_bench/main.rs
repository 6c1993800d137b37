//! How fast a stream goes from a file to a sink in another process, beside plain loops with the
//! same blocks, in the same run.
//!
//! ```text
//! stream_bench                                     all operations, over the loopback interface
//! stream_bench --op warm-discard --size 1G --block 1M --runs 15 --json
//! stream_bench --op cold-discard,tmpfs-disk --dir /mnt/nvme
//! ```
//!
//! See `benches/README.md` for what is compared with what.

mod alone;
mod bare;
mod case;
#[path = "../file_bench/disk.rs"]
#[expect(dead_code, reason = "the other bench counts requests")]
mod disk;
mod files;
mod idle;
#[path = "../../crates/fabricast-bench/src/bare/net.rs"]
mod net;
mod ours;
mod pairs;
mod peer;
mod receiving;
mod report;
mod ring;
mod sending;
mod socket;
mod stages;
mod throttled;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use fabricast_bench::{child, deadline, error, host, json, size, stats};

use crate::case::{Case, Operation};
use crate::error::{Failure, fail};

/// The speed of fabricast's streams beside plain loops, in interleaved pairs of runs.
#[derive(Parser)]
#[command(name = "stream_bench")]
pub(crate) struct Options {
    #[command(subcommand)]
    role: Option<Role>,
    /// Operations. Default: all.
    #[arg(long, value_delimiter = ',')]
    op: Vec<Operation>,
    /// Where the disk's files are made. Default: the system's directory for temporary files.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Where the files in memory are made.
    #[arg(long, default_value = "/dev/shm")]
    memory_dir: PathBuf,
    #[command(flatten)]
    case: Case,
    /// Rounds of runs: each runs everything once, in an order by chance.
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u16).range(1..=1000))]
    runs: u16,
    /// An operation ends after so many seconds, with the rounds that it has by then.
    #[arg(long)]
    seconds: Option<u64>,
    /// Only ours and what its bar is measured by, not what is printed beside.
    #[arg(long)]
    bars: bool,
    /// TCP congestion control of a network namespace of its own, where one may be made.
    #[arg(long)]
    netns: Option<String>,
    /// One JSON object a line, instead of a table.
    #[arg(long)]
    json: bool,
}

/// What a child of this program is. It takes its orders from standard input.
#[derive(Subcommand)]
enum Role {
    /// The process that sends.
    #[command(hide = true)]
    Sending(Case),
    /// The process that receives.
    #[command(hide = true)]
    Receiving(Case),
}

/// Runs all operations, with two children.
fn measure(options: &Options) -> Result<(), Failure> {
    if let Some(congestion) = &options.netns
        && let Err(error) = host::enter_namespace(congestion)
    {
        eprintln!("SKIPPED: the namespace with {congestion} ({error})");
    }
    if options.case.depth > options.case.buffers {
        return fail("--depth is at most --buffers");
    }
    let all = Operation::all();
    let operations = match options.op.is_empty() {
        true => &all,
        false => &options.op,
    };
    let mut peers = pairs::Peers::start(&options.case)?;
    report::head(&options.case, options.json)?;
    for &operation in operations {
        pairs::measure(&mut peers, operation, options)?;
    }
    peers.end()
}

fn main() -> ExitCode {
    let options = Options::parse();
    let result = match &options.role {
        None => measure(&options),
        Some(Role::Sending(case)) => sending::serve(case),
        Some(Role::Receiving(case)) => receiving::serve(case),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("stream_bench: {failure}");
            ExitCode::FAILURE
        }
    }
}
