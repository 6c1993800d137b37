//! How fast `fabricast` reads and writes files, beside a plain loop of pread, pwrite or io_uring in
//! the same run.
//!
//! ```text
//! file_bench                                   all operations, in the system's directory for
//!                                              temporary files
//! file_bench --dir /mnt/nvme --op read-direct,random-4k --size 2G --runs 15 --json
//! file_bench --dir /dev/shm                    on a file system in memory: what the disk is too
//!                                              uneven to decide
//! file_bench --op gpu-read,gpu-read-cached     to GPU memory, beside a plain cuFile program
//! ```
//!
//! See `benches/README.md` for what is printed.

mod case;
mod device;
mod disk;
mod fio;
mod gpu;
mod host;
mod memory;
mod ours;
mod pairs;
mod plain;
mod plain_cufile;
mod report;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use fabricast_bench::{json, size, stats};

use crate::case::{Bench, Operation};

/// What ends the program: one line for the user.
pub(crate) type Failure = Box<dyn std::error::Error>;

/// The speed of fabricast's files beside plain system calls, in interleaved pairs of runs.
#[derive(Parser)]
#[command(name = "file_bench")]
pub(crate) struct Options {
    /// Where the test file is made. Default: the system's directory for temporary files.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Operations. Default: all.
    #[arg(long, value_delimiter = ',')]
    op: Vec<Operation>,
    /// Bytes of the test file, with K, M or G for powers of 1024; a multiple of the block.
    #[arg(long, default_value = "512M", value_parser = parse_size)]
    size: usize,
    /// Bytes of a task, a block or a plain call.
    #[arg(long, default_value = "4M", value_parser = parse_size)]
    block: usize,
    /// Threads of both sides, where it is not one.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: u16,
    /// Reads of 4 KiB in flight.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=4096))]
    depth: u16,
    /// How long each run goes on, at least: whole passes over the file.
    #[arg(long, default_value_t = 0.5)]
    seconds: f64,
    /// Pairs of runs for each operation.
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u16).range(1..=1000))]
    runs: u16,
    /// Bytes of one call of the operations with GPU memory. Default: 64K, 1M, 16M and 512M.
    #[arg(long, value_delimiter = ',', value_parser = parse_size)]
    call: Vec<usize>,
    /// GPU memory: do not wait for the CUDA default stream, as the plain side does not.
    #[arg(long)]
    no_sync: bool,
    /// Run one side only, for a profiler: no ratio.
    #[arg(long)]
    only: Option<case::Side>,
    /// One JSON object a line and operation, instead of text.
    #[arg(long)]
    json: bool,
}

fn parse_size(text: &str) -> Result<usize, String> {
    let size = crate::size::parse(text);
    size.filter(|size| size.is_multiple_of(4096) && (4096..=1 << 40).contains(size))
        .ok_or_else(|| "a number of bytes from 4K to 1T, a multiple of 4K".to_owned())
}

fn run(options: &Options) -> Result<(), Failure> {
    if !options.size.is_multiple_of(options.block) {
        return Err("--size must be a multiple of --block".into());
    }
    let bench = Bench::prepare(options)?;
    let all = Operation::all();
    let operations = if options.op.is_empty() {
        &all
    } else {
        &options.op
    };
    report::head(&bench, options.json);
    for operation in operations {
        pairs::measure(&bench, *operation, options)?;
    }
    Ok(())
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("file_bench: {failure}");
            ExitCode::FAILURE
        }
    }
}
